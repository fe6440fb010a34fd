"""The loop under both engines: its records, and what it returns to after an interruption."""

from __future__ import annotations

import itertools
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.fits import assert_same, break_at, fit, fit_monte_carlo, make_corpus, new_model
from support.pairs import make_model

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConvergenceWarning, NumericalError, SavingWarning
from torch_lntm.guides import EPGuide, FactorGuide, TaylorGuide
from torch_lntm.inference import FitResult, VariationalEM
from torch_lntm.inference.em.checkpoint import FitState
from torch_lntm.inference.em.distributed import Processes
from torch_lntm.inference.em.documents import DocumentShard
from torch_lntm.inference.em.loop import ResumableFit
from torch_lntm.inference.interruption import Terminated
from torch_lntm.models import TopicModel, ctm, iftm, lda


class Counting(ResumableFit):
    """A fit that adds 1 to the prior mean, and to a table, in each of its five steps."""

    not_copied = frozenset({"scratch"})

    def __init__(self, **breaks: Any) -> None:
        self.model = make_model("ctm")
        self.model.prior.set_(loc=torch.zeros(4))
        self.processes = Processes(alone=True)
        self.corpus = Corpus.from_matrix(np.ones((2, 15)))
        self.shard = DocumentShard(self.model, self.corpus, self.processes)
        self.state = FitState(self.shard.table)
        self.state.documents.tensors = {name: torch.zeros(2) for name in ("means", "scratch")}
        self.breaks = breaks
        self.num_identities = 0

    def steps(self):
        while self.state.step < 5:
            step = self.state.step + 1
            self.model.prior.loc.data.add_(1.0)
            for table in self.state.documents.tensors.values():
                table.add_(1.0)
            # In the middle of a step, when all of this is already new.
            if self.breaks.get("error_at") == step:
                raise self.breaks["error"]
            self.state.step = step
            objective = math.nan if self.breaks.get("nan_at") == step else -1.0 / step
            yield {"phase": "em", "iteration": step, "objective": objective}

    def result(self, stop_reason):
        raise NotImplementedError

    def identity(self):
        self.num_identities += 1
        return {"name": "counting"}

    @property
    def numbers(self) -> tuple[float, float, int]:
        tables = self.state.documents.tensors
        return (self.model.prior.loc[0].item(), tables["means"][0].item(), len(self.state.history))


def test_every_step_adds_a_record_with_its_time() -> None:
    counting = Counting()
    assert counting.run(None, 60.0) == "max_iterations"
    assert counting.numbers == (5, 5, 5)
    assert counting.num_identities == 0
    seconds = [record["seconds"] for record in counting.state.history]
    assert seconds == sorted(seconds)
    assert counting.state.seconds >= seconds[-1] - 1e-3


@pytest.mark.parametrize("step", [1, 4])
@pytest.mark.parametrize(
    ("error", "reason"), [(KeyboardInterrupt(), "interrupted"), (Terminated(), "terminated")]
)
def test_signals_restore_and_save_the_last_finished_step(
    error: BaseException, reason: str, step: int, tmp_path: Path
) -> None:
    path, counting = tmp_path / "fit.safetensors", Counting(error_at=step, error=error)
    assert counting.run(path, 1000.0) == reason
    assert counting.numbers == (step - 1, step - 1, step - 1)
    again = Counting()
    assert again.run(path, 1000.0) == "max_iterations"
    assert again.numbers == (5, 5, 5)
    assert [r["iteration"] for r in again.state.history] == [1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "call"),
    [("ctm", 20), ("lntm", 14)],  # in the third epoch of the start; in the fourth of chains
)
def test_a_fit_ended_in_the_middle_of_a_step_continues_to_the_same_bits(
    family: str, call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = make_corpus(200)

    def fitted(**options: Any) -> tuple[TopicModel, FitResult]:
        if family == "ctm":
            return fit(corpus, start_epochs=4, stepwise_epochs=1, max_iterations=1, **options)
        model = new_model(family, 3, corpus.num_words)
        brief = {"start": "model", "max_epochs": 6, "warmup_epochs": 2}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return model, fit_monte_carlo(model, corpus, **brief, **options)

    whole, _ = fitted()
    path, calls = tmp_path / "fit.safetensors", itertools.count(1)

    def poll(processes: Processes) -> None:
        if next(calls) == call:
            raise Terminated

    with monkeypatch.context() as patch:
        patch.setattr(Processes, "poll", poll)
        _, ended = fitted(checkpoint=path)
    assert ended.stop_reason == "terminated"
    continued, _ = fitted(checkpoint=path)
    assert_same(continued, whole)


def test_a_killed_fit_continues_from_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "fit.safetensors"
    with pytest.raises(RuntimeError, match="killed"):
        Counting(error_at=4, error=RuntimeError("killed")).run(path, 0.0)
    again = Counting()
    assert again.run(path, 0.0) == "max_iterations"
    assert again.numbers == (5, 5, 5)
    assert [r["iteration"] for r in again.state.history] == [1, 2, 3, 4, 5]
    assert again.num_identities == 1
    # From the finished fit's file there is nothing left to do.
    done = Counting(error_at=1, error=RuntimeError("a step was taken"))
    assert done.run(path, 0.0) == "max_iterations"
    assert done.numbers == again.numbers


def test_checkpoints_keep_their_least_time_apart(tmp_path: Path, monkeypatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("torch_lntm.inference.em.loop.time.monotonic", lambda: next(clock))
    written = []
    monkeypatch.setattr(
        "torch_lntm.inference.em.loop.write_checkpoint",
        lambda path, state, *rest: written.append(state.step),
    )
    # A step looks at the clock once or, where it saves, twice; each look is a second.
    Counting().run(tmp_path / "fit.safetensors", 2.0)
    assert written == [2, 4]


# ---------------------------------------------------------------- callbacks


def test_a_callback_gets_each_record_at_the_parameters_of_its_step() -> None:
    counting, told = Counting(), []

    def callback(record):
        told.append((record["iteration"], counting.numbers[0]))
        record.clear()  # a copy: the history keeps its records

    assert counting.run(None, 60.0, callback) == "max_iterations"
    assert told == [(step, step) for step in range(1, 6)]
    assert [r["iteration"] for r in counting.state.history] == [1, 2, 3, 4, 5]


def test_a_callback_that_returns_true_ends_the_fit_at_this_step(tmp_path: Path) -> None:
    path = tmp_path / "fit.safetensors"
    counting = Counting()
    reason = counting.run(path, 1e9, lambda record: record["iteration"] == 2)
    assert reason == "stopped_by_callback"
    assert counting.numbers[:2] == (2, 2)
    again = Counting()
    assert again.run(path, 1e9) == "max_iterations"
    assert again.numbers[:2] == (5, 5)


def test_an_error_of_a_callback_ends_the_fit_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "fit.safetensors"

    def broken(record):
        if record["iteration"] == 3:
            raise RuntimeError("no connection")

    counting = Counting()
    with pytest.raises(RuntimeError, match="no connection"):
        counting.run(path, 1e9, broken)
    assert counting.numbers[0] == 3
    again, told = Counting(), []
    assert again.run(path, 1e9, lambda record: told.append(record["iteration"])) == "max_iterations"
    assert told == [4, 5]
    assert again.numbers == (5, 5, 5)


def test_a_fit_continues_if_its_checkpoint_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    counting = Counting()
    with pytest.warns(SavingWarning, match="could not be written .* the fit goes on") as caught:
        assert counting.run(tmp_path / "file" / "fit.safetensors", 0.0) == "max_iterations"
    assert len(caught) == 5
    assert counting.numbers == (5, 5, 5)


def test_an_objective_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "fit.safetensors"
    message = "the objective became nan in phase em, iteration 3"
    with pytest.raises(NumericalError, match=message):
        Counting(nan_at=3).run(path, 0.0)
    # What was saved last is from before.
    again = Counting()
    again.run(path, 0.0)
    assert again.numbers == (5, 5, 5)


# -- the same in variational EM, with its batches and restarts ------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "kind_of_guide", "at"),
    [*((ctm, TaylorGuide, at) for at in (3, 60, 100)), (lda, EPGuide, 50), (iftm, FactorGuide, 50)],
)
def test_a_killed_fit_continues_to_the_same_bits(
    tmp_path: Path, kind: Any, kind_of_guide: Any, at: int
) -> None:
    """Killed in the stepwise phase of either restart, or in EM; with its warm starts."""
    corpus, path = make_corpus(60), tmp_path / "fit.safetensors"

    def engine() -> VariationalEM:
        model = kind(3, corpus.num_words, dtype="float64")
        return VariationalEM(
            model, kind_of_guide(model), restarts=2, start_epochs=3, stepwise_epochs=3,
            max_iterations=10, tolerance=0.0, max_docs=5, progress=False,
        )  # fmt: skip

    straight, killed, continued = engine(), engine(), engine()
    expected = straight.fit(corpus)
    break_at(killed.guide, at, RuntimeError)
    with pytest.raises(RuntimeError):
        killed.fit(corpus, checkpoint=path, checkpoint_seconds=0.0)
    result = continued.fit(corpus, checkpoint=path)
    assert_same(straight.model, continued.model)
    assert result.stop_reason == expected.stop_reason
    assert torch.equal(expected.means, result.means)
    keys = ("phase", "restart", "iteration", "objective")
    assert [[r[k] for k in keys] for r in result.history] == [
        [r[k] for k in keys] for r in expected.history
    ]


def test_ctrl_c_in_a_restart_keeps_the_best_scored_restart() -> None:
    corpus = make_corpus(32)
    options: dict[str, Any] = {"start_epochs": 2, "stepwise_epochs": 2, "progress": False}
    model, single = (ctm(3, corpus.num_words, dtype="float64") for _ in range(2))
    guide = TaylorGuide(model)
    # Two stepwise epochs of eight batches and one scoring pass make up a restart.
    break_at(guide, 20)
    result = VariationalEM(model, guide, restarts=3, **options).fit(corpus)
    alone = VariationalEM(single, TaylorGuide(single), max_iterations=0, **options).fit(corpus)
    assert result.stop_reason == "interrupted"
    assert result.history[-1]["phase"] == "score"
    assert_same(model, single)
    assert result.means.std(0).min() > 0.1
    # Stepwise EM would begin with their M-step, which must not go to another restart's topics.
    assert result.statistics is None
    assert alone.statistics is not None


@pytest.mark.slow
def test_ctrl_c_in_a_restart_saves_a_checkpoint_of_this_restart(tmp_path: Path) -> None:
    corpus, path = make_corpus(32), tmp_path / "fit.safetensors"
    options: dict[str, Any] = {"start_epochs": 2, "stepwise_epochs": 2, "progress": False}
    options |= {"restarts": 3, "max_iterations": 2}
    model, whole = (ctm(3, corpus.num_words, dtype="float64") for _ in range(2))
    guide = TaylorGuide(model)
    break_at(guide, 20)
    engine = VariationalEM(model, guide, **options)
    assert engine.fit(corpus, checkpoint=path).stop_reason == "interrupted"
    continued = VariationalEM(model, TaylorGuide(model), **options).fit(corpus, checkpoint=path)
    expected = VariationalEM(whole, TaylorGuide(whole), **options).fit(corpus)
    assert_same(model, whole)
    assert [r["objective"] for r in continued.history] == [r["objective"] for r in expected.history]


@pytest.mark.slow
def test_a_continued_fit_honours_a_tighter_tolerance(tmp_path: Path) -> None:
    corpus, path = make_corpus(), tmp_path / "fit.safetensors"
    _, loose = fit(corpus, checkpoint=path, checkpoint_seconds=0.0, tolerance=1e-2)
    _, tight = fit(corpus, checkpoint=path, tolerance=1e-5)
    assert loose.stop_reason == tight.stop_reason == "converged"
    assert len(tight.history) > len(loose.history)
    assert tight.seconds > loose.seconds
