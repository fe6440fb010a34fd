"""Fits that several processes share. Their results can be sent between processes."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from support.fits import break_at, fit_monte_carlo, make_corpus, new_model

from torch_lntm.errors import ConvergenceWarning, LNTMError, NumericalError
from torch_lntm.guides import make_guide
from torch_lntm.inference import FitResult, MonteCarloResult, Processes, Statistics, VariationalEM
from torch_lntm.models import TopicModel

#: A corpus so small that some steps leave a process without documents. One document is empty.
NUM_DOCS, EMPTY = 40, (3,)
BRIEF = {"start_epochs": 3, "stepwise_epochs": 2, "max_iterations": 2, "tolerance": 0.0}
_OF_FIT = ("checkpoint", "checkpoint_seconds")


def arrays(model: TopicModel, result: FitResult) -> dict[str, Any]:
    """The model and the result of a fit as NumPy arrays and numbers."""
    found = {f"model.{name}": x.detach().numpy() for name, x in model.state_dict().items()}
    tensors = {name: x for name, x in vars(result).items() if isinstance(x, torch.Tensor)}
    if isinstance(result, MonteCarloResult):
        tensors |= result.chains.latents
    found |= {name: x.numpy() for name, x in tensors.items()}
    return found | {"history": result.history, "stop_reason": result.stop_reason}


def fitted(family: str, posterior: str, options: dict[str, Any]) -> dict[str, Any]:
    """A fit by all processes of the group.

    ``dtype`` in ``options`` defaults to float64, and ``length`` to documents of 40 tokens.
    """
    options = dict(options)
    corpus = make_corpus(NUM_DOCS, length=options.pop("length", 40), empty=EMPTY)
    of_model = {"dtype": "float64"}
    of_model |= {name: options.pop(name) for name in ("dtype", "bursty") if name in options}
    model = new_model(family, 3, corpus.num_words, **of_model)
    if posterior == "hmc":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return arrays(model, fit_monte_carlo(model, corpus, **options))
    of_fit = {name: options.pop(name) for name in _OF_FIT if name in options}
    guide = make_guide(posterior, model, tolerance=1e-8, max_iterations=200)
    engine = VariationalEM(model, guide, progress=False, **(BRIEF | options))
    return arrays(model, engine.fit(corpus, **of_fit))


def fits(cases: list[tuple[str, str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Several fits, one after the other."""
    return [fitted(*case) for case in cases]


def killed(path: Path, step: int, family: str, posterior: str, options: dict[str, Any]) -> str:
    """A fit that fails in all processes right after the checkpoint of a step."""
    from torch_lntm.inference.em import loop

    save, steps = loop.ResumableFit._save, iter(range(1, 1000))

    def save_and_stop(self: Any, *arguments: Any) -> None:
        save(self, *arguments)
        if next(steps) == step:
            raise SystemError("killed")

    with patch.object(loop.ResumableFit, "_save", save_and_stop):
        try:
            fitted(family, posterior, options | {"checkpoint": path, "checkpoint_seconds": 0.0})
        except SystemError as error:
            return str(error)
    return "went on to its end"


def _engine(call: int, error: Any, **options: Any) -> VariationalEM:
    """An engine with a guide that fails at one call, in the second process only."""
    model = new_model("ctm", 3, 30, dtype="float64")
    guide = make_guide("taylor", model)
    if Processes().rank == 1:
        break_at(guide, call, error)
    return VariationalEM(model, guide, progress=False, **(BRIEF | options))


def errors_of_one() -> list[tuple[Any, ...]]:
    """Errors of one process as all processes raise them: type, text, ``shared``, documents."""
    corpus, found = make_corpus(NUM_DOCS), []
    makers: list[Any] = [
        lambda: NumericalError("documents 1, 7 left the numbers", [1, 7]),
        lambda: IndexError("out of range"),
    ]
    for make in makers:
        for call in (1, 12):  # the first sum there is of posteriors, and a later one
            try:
                _engine(call, make()).fit(corpus)
            except Exception as error:
                about = [getattr(error, name, None) for name in ("shared", "documents")]
                found.append((type(error).__name__, str(error), *about))
    # The processes still run the same steps.
    assert _engine(1000, IndexError).fit(corpus).stop_reason == "max_iterations"
    return found


def called_back(stopper: int) -> list[Any]:
    """Records that this process's callback gets, the stop reason, and an error of one callback."""
    told: list[int] = []
    processes, corpus = Processes(), make_corpus(NUM_DOCS)

    def stop(record: dict[str, Any]) -> bool:
        told.append(record["iteration"])
        # Other callbacks may wait for all processes, too.
        processes.gather(None)
        return len(told) == 4 and processes.rank == stopper

    def fail(record: dict[str, Any]) -> None:
        raise IndexError("no connection")

    result = _engine(1000, IndexError).fit(corpus, callback=stop, processes=processes)
    try:
        _engine(1000, IndexError).fit(corpus, callback=None if processes.first else fail)
    except IndexError as error:
        return [told, result.stop_reason, str(error)]
    return []


def refusals() -> list[str]:
    """Messages for fits that differ between processes, and for corpora that are too small."""
    rank, found = Processes().rank, []
    corpus = make_corpus(NUM_DOCS)
    for seed, documents in ((rank, corpus), (0, corpus[: 20 + rank]), (0, corpus[:1])):
        try:
            _engine(1000, IndexError, seed=seed).fit(documents)
        except LNTMError as error:
            found.append(str(error))
    with patch("torch_lntm.__version__", f"0.{rank}", create=True):
        try:
            _engine(1000, IndexError).fit(corpus)
        except LNTMError as error:
            found.append(str(error))
    return found


def alone() -> list[Any]:
    """Topics of fits with different seeds, each in a process of its own."""
    engine = _engine(1000, IndexError, seed=Processes().rank)
    engine.fit(make_corpus(NUM_DOCS), processes=Processes(alone=True))
    return engine.model.topics.probs.tolist()


def interrupted(number: int, sent: int = signal.SIGINT) -> dict[str, Any]:
    """A fit in which one process gets a signal during a posterior, given by its number."""
    engine = _engine(1000, IndexError)
    solve, calls = engine.guide._solve, iter(range(1, 10000))

    def pressed(*arguments: Any, **settings: Any) -> Any:
        if next(calls) == number and Processes().rank == 1:
            os.kill(os.getpid(), sent)
        return solve(*arguments, **settings)

    engine.guide._solve = pressed  # type: ignore[method-assign]
    found = arrays(engine.model, engine.fit(make_corpus(NUM_DOCS, empty=EMPTY)))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    return found


def starts(call: int, what: str, **options: Any) -> list[Any]:
    """A fit with an event in the second process only, at a step of the start.

    Args:
        call: Number of the step.
        what: The event: ``"error"``, ``"Ctrl-C"``, or ``"rounding"`` from this step on. Or
            ``"anchors"``: other anchor words at the beginning.
        **options: Options of the engine.
    """
    from torch_lntm.inference.em import start

    counts_of, calls = start._lda_counts, iter(range(1, 10000))
    anchor_topics = start.anchor_topics

    def other_anchors(*arguments: Any) -> Any:
        found = anchor_topics(*arguments)
        return found if Processes().rank == 0 else found[::-1].copy()

    def changed(*arguments: Any) -> Any:
        found, now = counts_of(*arguments), next(calls)
        if Processes().rank == 0:
            return found
        if what == "error" and now == call:
            raise NumericalError("documents 1, 7 left the numbers", [1, 7])
        if what == "Ctrl-C" and now == call:
            os.kill(os.getpid(), signal.SIGINT)
        if what == "rounding" and now >= call:
            words = torch.arange(found.word_counts.shape[1], dtype=torch.float64)
            found.word_counts.mul_(1.0 + 1e-9 * words)
        return found

    engine = _engine(1000, IndexError, **{"start_epochs": 20, **options})
    anchors = other_anchors if what == "anchors" else anchor_topics
    with patch.multiple(start, _lda_counts=changed, anchor_topics=anchors):
        try:
            result = engine.fit(make_corpus(NUM_DOCS, empty=EMPTY))
        except NumericalError as error:
            return [str(error), error.shared, error.documents]
    return [arrays(engine.model, result)]


def left_alone() -> str:
    """Error of the first process if the second process dies during a fit."""
    engine = _engine(1000, IndexError)
    if Processes().rank == 1:
        engine.guide._solve = lambda *_, **__: os._exit(0)  # type: ignore[method-assign]
    try:
        engine.fit(make_corpus(NUM_DOCS))
    except LNTMError as error:
        return f"{type(error).__name__}: {error}"
    return "went on to its end"


def sums(values: np.ndarray) -> dict[str, Any]:
    """Sums over processes, by rank. All processes except the first have statistics of a mini-batch.

    Args:
        values: ``(num_processes, num_words)`` counts.
    """
    processes = Processes()
    own = torch.from_numpy(values[processes.rank])

    def statistics() -> Statistics | None:
        if processes.first:
            return None
        counts = own.float()[:, None].mT
        return Statistics(1.0, 2.0, {"sum": own[:3], "other": own[:1, None]}, counts, -0.5, 1)

    with processes.working(torch.device("cpu")):
        total = processes.total({"wide": own, "narrow": own.float()})
        added = processes.add_up(statistics, torch.float32)
        again = processes.add_up(statistics, torch.float64)
    found = vars(added) | {"again": again.word_counts, "told": processes.gather(processes.rank)}
    found |= total | found.pop("sums")
    return {n: x.numpy() if isinstance(x, torch.Tensor) else x for n, x in found.items()}
