"""Fits of a corpus in parts, for several processes. Their results can be sent between processes."""

from __future__ import annotations

import os
import signal
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from support.fits import NUM_WORDS, fit_monte_carlo, make_corpus, new_model
from support.shared_fits import BRIEF, arrays

from torch_lntm.corpus import Corpus, read_corpus
from torch_lntm.errors import ConvergenceWarning, LNTMError
from torch_lntm.guides import make_guide
from torch_lntm.inference import FitResult, MonteCarloEM, Processes, VariationalEM, join_parts
from torch_lntm.inference.em import documents, loop, monte_carlo
from torch_lntm.models import TopicModel, ctm, stm

#: Documents of the corpus in 8 shards. The positions of the empty documents fill no shard.
NUM_DOCS, SHARD_DOCS, EMPTY = 90, 12, (3, 4, 40)
OPTIONS: dict[str, Any] = {"max_epochs": 4, "batch_size": 13, "num_transitions": 1, "start": "lda"}
_OF_FIT = ("checkpoint", "checkpoint_seconds")


def write_corpus(folder: Path) -> Corpus:
    """The corpus of these fits, written in shards."""
    # Documents are so long that topics of the start merge and split.
    corpus = make_corpus(NUM_DOCS, length=60, empty=EMPTY)
    numbers = np.arange(NUM_DOCS)
    corpus = corpus.with_metadata({"x": np.sin(numbers), "side": (numbers % 3).astype(str)})
    corpus.save(folder, shard_size=SHARD_DOCS)
    return corpus


def own_part(folder: Path) -> Corpus:
    """This process's part of a corpus."""
    processes = Processes()
    return read_corpus(folder, rank=processes.rank, world_size=processes.size)


def make_model(folder: Path, kind: str, dtype: str = "float64") -> TopicModel:
    """A model of a kind: a family, ``"keywords"``, or ``"stm"`` with columns and groups."""
    if kind == "keywords":
        return ctm(3, NUM_WORDS, dtype=dtype, keywords={"a": [1, 2], "b": [7]})
    if kind == "stm":
        return stm(3, own_part(folder), "~ x", content="side", dtype=dtype)
    return new_model(kind, 3, NUM_WORDS, dtype=dtype)


def fitted(
    folder: Path,
    kind: str = "ctm",
    dtype: str = "float64",
    sample_docs: int = 0,
    guide: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """A fit of the parts of all processes.

    Args:
        folder: Folder of the corpus.
        kind: Kind of the model.
        dtype: Its floating-point type.
        sample_docs: Bound on the documents of the start, if it is not 0.
        guide: Name of the guide of variational EM. ``None`` for Monte-Carlo EM.
        **options: Options of the engine and of ``fit``.
    """
    model = make_model(folder, kind, dtype)
    most = sample_docs or documents.SAMPLE_DOCS
    with patch.object(documents, "SAMPLE_DOCS", most), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if guide is None:
            result = fit_monte_carlo(model, own_part(folder), **(OPTIONS | options))
        else:
            result = fit_variational(model, own_part(folder), guide, **options)
    shares = result.topic_shares
    assert shares is not None
    return arrays(model, result) | {"shares": shares.numpy()}


def fit_variational(model: TopicModel, corpus: Corpus, guide: str, **options: Any) -> FitResult:
    """A fit by variational EM. ``options`` go to the engine and to ``fit``."""
    of_fit = {name: options.pop(name) for name in _OF_FIT if name in options}
    solver = make_guide(guide, model, tolerance=1e-8, max_iterations=200)
    engine = VariationalEM(model, solver, progress=False, **(BRIEF | options))
    return engine.fit(corpus, **of_fit)


def fits(folder: Path, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Several fits, one after the other."""
    return [fitted(folder, **case) for case in cases]


def killed(folder: Path, checkpoint: Path, epoch: int, **options: Any) -> str:
    """A fit in which SIGKILL ends the second process in an epoch. Returns another one's error."""
    make_epoch, epochs = monte_carlo.MonteCarloRun._epoch, iter(range(1, 1000))

    def deadly(self: Any, bar: Any) -> Any:
        if next(epochs) == epoch and Processes().rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return make_epoch(self, bar)

    with patch.object(monte_carlo.MonteCarloRun, "_epoch", deadly):
        try:
            fitted(folder, checkpoint=checkpoint, checkpoint_seconds=0.0, **options)
        except LNTMError as error:
            return type(error).__name__
    return "went on to its end"


def stopped(
    folder: Path, checkpoint: Path, saves: int, where: str = "after", case: Any = None
) -> str:
    """A fit that fails in all processes at a checkpoint.

    Args:
        folder: Folder of the corpus.
        checkpoint: File of the checkpoint.
        saves: Number of the checkpoint.
        where: ``"after"`` the checkpoint, or ``"rows"`` for an end before its main file.
        case: Options of the fit.
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
            fitted(folder, checkpoint=checkpoint, checkpoint_seconds=0.0, **(case or {}))
        except SystemError as error:
            return str(error)
    return "went on to its end"


def continued(folder: Path, checkpoint: Path, case: Any = None) -> dict[str, Any]:
    """A fit from its checkpoint, without a further checkpoint. ``case`` has its options."""
    return fitted(folder, checkpoint=checkpoint, checkpoint_seconds=1e6, **(case or {}))


def full_disk(folder: Path, checkpoint: Path) -> tuple[list[str], str]:
    """Warnings of a fit whose second process cannot write, and the fit's end."""
    write = loop.write_rows

    def refused(*arguments: Any) -> None:
        if Processes().rank == 1:
            raise OSError(28, "No space left on device")
        write(*arguments)

    with patch.object(loop, "write_rows", refused), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options = {"checkpoint": checkpoint, "checkpoint_seconds": 0.0, **OPTIONS}
        result = fit_monte_carlo(ctm(3, NUM_WORDS), own_part(folder), **options)
    return [x.category.__name__ for x in caught], result.stop_reason


def facts(folder: Path) -> dict[str, Any]:
    """Numbers of the whole corpus in this process."""
    return vars(join_parts(own_part(folder)).whole)


def refusals(folder: Path, other: Path) -> list[str]:
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
        options = OPTIONS | {"max_epochs": 3, "num_transitions": 6, "warmup_epochs": 1}
        fit_monte_carlo(make_model(folder, "ctm"), own_part(folder), **options)
    return [str(x.message) for x in caught if issubclass(x.category, ConvergenceWarning)]
