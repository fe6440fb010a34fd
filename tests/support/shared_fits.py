"""Fits that several processes share. Their results can be sent between processes."""

from __future__ import annotations

import os
import signal
import warnings
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.fits import NUM_WORDS, break_at, fit_monte_carlo, make_corpus, new_model
from support.processes import in_processes

from torch_lntm.corpus import Corpus, read_corpus
from torch_lntm.errors import ConvergenceWarning, LNTMError, NumericalError
from torch_lntm.guides import make_guide
from torch_lntm.inference import (
    FitResult,
    MonteCarloEM,
    MonteCarloResult,
    Processes,
    Statistics,
    VariationalEM,
    join_parts,
)
from torch_lntm.inference.em import documents, loop, monte_carlo, start
from torch_lntm.inference.em.checkpoint import folder_of
from torch_lntm.models import TopicModel, ctm, stm

#: A corpus so small that some steps leave a process without documents. One document is empty.
NUM_DOCS, EMPTY = 40, (3,)
#: Documents of a corpus in 8 shards. The positions of the empty documents fill no shard.
PART_DOCS, SHARD_DOCS, PART_EMPTY = 90, 12, (3, 4, 40)
BRIEF = {"start_epochs": 3, "stepwise_epochs": 2, "max_iterations": 2, "tolerance": 0.0}
CHAINS: dict[str, Any] = {"max_epochs": 4, "batch_size": 13, "num_transitions": 1, "start": "lda"}
#: Axis of the documents in the tables of a result. The first process has the rows of a whole
#: corpus, and every process those of its part.
AXES = {"means": 0, "moved": 1, "eta": 1, "source": 1, "theta": 1}
_OF_FIT = ("checkpoint", "checkpoint_seconds")


def arrays(model: TopicModel, result: FitResult) -> dict[str, Any]:
    """The model and the result of a fit as NumPy arrays and numbers."""
    found = {f"model.{name}": x.detach().numpy() for name, x in model.state_dict().items()}
    tensors = {name: x for name, x in vars(result).items() if isinstance(x, torch.Tensor)}
    if isinstance(result, MonteCarloResult):
        tensors |= result.chains.latents
    found |= {name: x.numpy() for name, x in tensors.items()}
    return found | {"history": result.history, "stop_reason": result.stop_reason}


def write_corpus(folder: Path) -> Path:
    """A corpus in shards. Its documents are so long that topics of the start merge and split."""
    corpus = make_corpus(PART_DOCS, length=60, empty=PART_EMPTY)
    numbers = np.arange(PART_DOCS)
    corpus = corpus.with_metadata({"x": np.sin(numbers), "side": (numbers % 3).astype(str)})
    corpus.save(folder, shard_size=SHARD_DOCS)
    return folder


def own_part(folder: Path) -> Corpus:
    """This process's part of a corpus."""
    processes = Processes()
    return read_corpus(folder, rank=processes.rank, world_size=processes.size)


def make_model(kind: str, corpus: Corpus, **options: Any) -> TopicModel:
    """A model of a kind: a family, ``"keywords"``, ``"vectors"``, or ``"stm"`` with columns."""
    if kind == "vectors":
        rows = np.random.default_rng(0).standard_normal((NUM_WORDS, 4))
        return ctm(3, NUM_WORDS, word_vectors=rows, **options)
    if kind == "keywords":
        return ctm(3, NUM_WORDS, keywords={"a": [1, 2], "b": [7]}, **options)
    if kind == "stm":
        return stm(3, corpus, "~ x", content="side", **options)
    return new_model(kind, 3, NUM_WORDS, **options)


def fitted(
    kind: str = "ctm",
    guide: str | None = None,
    folder: Path | None = None,
    length: int = 40,
    sample_docs: int = documents.SAMPLE_DOCS,
    dtype: str = "float64",
    bursty: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """A fit by all processes of the group.

    Args:
        kind: Kind of the model.
        guide: Name of the guide of variational EM. ``None`` for Monte-Carlo EM.
        folder: Folder of a corpus of which every process has its part. ``None`` for a whole corpus.
        length: Length of its documents.
        sample_docs: Bound on the documents of the start.
        dtype: Floating-point type of the model.
        bursty: Whether its words are bursty.
        **options: Options of the engine and of ``fit``.
    """
    corpus = own_part(folder) if folder else make_corpus(NUM_DOCS, length, EMPTY)
    model = make_model(kind, corpus, dtype=dtype, **({"bursty": True} if bursty else {}))
    with patch.object(documents, "SAMPLE_DOCS", sample_docs), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if guide is None:
            result: FitResult = fit_monte_carlo(model, corpus, **(CHAINS | options))
        else:
            of_fit = {name: options.pop(name) for name in _OF_FIT if name in options}
            solver = make_guide(guide, model, tolerance=1e-8, max_iterations=200)
            engine = VariationalEM(model, solver, progress=False, **(BRIEF | options))
            result = engine.fit(corpus, **of_fit)
    found = arrays(model, result)
    if folder:
        found["shares"] = result.topic_shares.numpy()  # type: ignore[union-attr]
    return found


def fits(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Several fits, one after the other."""
    return [fitted(**case) for case in cases]


def stopped(path: Path, saves: int, where: str = "after", **case: Any) -> str:
    """A fit that fails in all processes at a checkpoint.

    Args:
        path: File of the checkpoint.
        saves: Number of the checkpoint.
        where: ``"after"`` the checkpoint, or ``"rows"`` for an end before its main file.
        **case: The fit.
    """
    save, numbers = loop.ResumableFit._save, iter(range(1, 1000))

    def save_and_stop(self: Any, *arguments: Any) -> None:
        last = next(numbers) == saves
        refused = patch.object(loop, "write_checkpoint", side_effect=SystemError("stopped"))
        with refused if last and where == "rows" else nullcontext():
            save(self, *arguments)
        if last:
            raise SystemError("stopped")

    with patch.object(loop.ResumableFit, "_save", save_and_stop):
        try:
            fitted(checkpoint=path, checkpoint_seconds=0.0, **case)
        except SystemError as error:
            return str(error)
    return "went on to its end"


def joined(results: list[dict[str, Any]], num_docs: int = NUM_DOCS) -> dict[str, Any]:
    """The result of all processes: equal numbers, and the rows of all documents."""
    whole = dict(results[0])
    for name in AXES.keys() & whole.keys():
        whole[name] = np.concatenate([result[name] for result in results], AXES[name])
        assert whole[name].shape[AXES[name]] == num_docs
    for other in results[1:]:
        assert other.keys() == whole.keys()
        for name in other.keys() - AXES.keys():
            np.testing.assert_equal(other[name], whole[name])
    return whole


def assert_equal(found: dict[str, Any], expected: dict[str, Any], rtol: float = 0.0) -> None:
    """Two fits left the same but for times; with a tolerance, but for rounding."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name == "history":
            for record, other in zip(found[name], value, strict=True):
                assert record.keys() == other.keys()
                for key in record.keys() - {"seconds"}:
                    number = other[key]
                    if isinstance(number, float):
                        number = pytest.approx(number, rel=rtol, abs=0.0)
                    assert record[key] == number
        elif isinstance(value, np.ndarray):
            # Means of centred topics are near 0, and no rounding is relative to that.
            np.testing.assert_allclose(found[name], value, rtol, rtol, strict=True, err_msg=name)
        else:
            assert found[name] == value


def continued(before: int, after: int, saves: int, path: Path, **case: Any) -> list[Any]:
    """A fit that ends after a checkpoint, and goes on from there in other processes."""

    def run(size: int, work: Any) -> list[Any]:
        return [work()] if size == 1 else in_processes(size, work)

    assert set(run(before, partial(stopped, path, saves, **case))) == {"stopped"}
    assert len(list(folder_of(path).iterdir())) == before  # a file by each process
    left = path.read_bytes()
    found = run(after, partial(fitted, checkpoint=path, **case))
    assert path.read_bytes() == left  # it went on for less than a minute
    return found


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
    for seed, some in ((rank, corpus), (0, corpus[: 20 + rank]), (0, corpus[:1])):
        try:
            _engine(1000, IndexError, seed=seed).fit(some)
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


def interrupted(number: int, sent: int) -> dict[str, Any]:
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
    # The events happen in PyTorch's steps.
    os.environ["LNTM_COMPILED"] = "0"
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
        values: ``(num_processes, num_words)`` counts. Words without counts are not sent.
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
        with patch.object(dist, "all_reduce", wraps=dist.all_reduce) as reduce:
            added = processes.add_up(statistics, torch.float32)
        again = processes.add_up(statistics, torch.float64)
    found = vars(added) | {"again": again.word_counts, "told": processes.gather(processes.rank)}
    found |= total | found.pop("sums")
    found["sizes"] = [call.args[0].numel() for call in reduce.call_args_list]
    return {n: x.numpy() if isinstance(x, torch.Tensor) else x for n, x in found.items()}


# -- parts -----------------------------------------------------------------------------------------


def killed(folder: Path, checkpoint: Path, epoch: int) -> str:
    """A fit in which SIGKILL ends the second process in an epoch. Returns another one's error."""
    make_epoch, epochs = monte_carlo.MonteCarloRun._epoch, iter(range(1, 1000))

    def deadly(self: Any, bar: Any) -> Any:
        if next(epochs) == epoch and Processes().rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return make_epoch(self, bar)

    with patch.object(monte_carlo.MonteCarloRun, "_epoch", deadly):
        try:
            fitted(folder=folder, checkpoint=checkpoint, checkpoint_seconds=0.0)
        except LNTMError as error:
            return type(error).__name__
    return "went on to its end"


def full_disk(folder: Path, checkpoint: Path) -> tuple[list[str], str]:
    """Warnings of a fit whose second process cannot write, and the fit's end."""
    write = loop.write_rows

    def refused(*arguments: Any) -> None:
        if Processes().rank == 1:
            raise OSError(28, "No space left on device")
        write(*arguments)

    with patch.object(loop, "write_rows", refused), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = CHAINS | {"checkpoint": checkpoint, "checkpoint_seconds": 0.0}
        result = fit_monte_carlo(ctm(3, NUM_WORDS), own_part(folder), **options)
    return [x.category.__name__ for x in caught], result.stop_reason


def facts(folder: Path) -> dict[str, Any]:
    """Numbers of the whole corpus in this process."""
    return vars(join_parts(own_part(folder)).whole)


def part_refusals(folder: Path, other: Path) -> list[str]:
    """Messages for parts that make up no corpus."""
    processes, found = Processes(), []
    rank, part = processes.rank, own_part(folder)
    engine = MonteCarloEM(new_model("ctm", 3, NUM_WORDS), progress=False)
    corpora = [
        part if rank else read_corpus(folder),
        read_corpus(folder, rank=0, world_size=2),
        part if rank else read_corpus(other, rank=0, world_size=2),
    ]
    for corpus in corpora:
        try:
            engine.fit(corpus)
        except LNTMError as error:
            found.append(str(error))
    return found


def warned(folder: Path) -> list[str]:
    """Warnings of a fit in which the chains of some documents never move."""
    visit = monte_carlo.MonteCarloRun._visit

    def stuck(self: Any, batch: Any, *arguments: Any) -> Any:
        found = visit(self, batch, *arguments)
        if batch is not None and self.state.step >= 1:
            rows = (batch.index % 30 == 7).nonzero().squeeze(1)
            if len(rows):
                moved = torch.zeros(len(rows), 1, dtype=torch.bool)
                self.state.documents.write("moved", batch.select(rows), moved)
        return found

    with (
        patch.object(monte_carlo.MonteCarloRun, "_visit", stuck),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        options = CHAINS | {"max_epochs": 3, "num_transitions": 6, "warmup_epochs": 1}
        fit_monte_carlo(ctm(3, NUM_WORDS), own_part(folder), **options)
    return [str(x.message) for x in caught if issubclass(x.category, ConvergenceWarning)]
