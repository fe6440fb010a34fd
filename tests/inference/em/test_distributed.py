"""Fits in several processes are fits in one, up to rounding."""

from __future__ import annotations

import functools
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import shared_fits
from support.processes import GONE, in_processes
from support.shared_fits import assert_equal, fitted, joined

from torch_lntm import errors
from torch_lntm.errors import UnsharedFitWarning
from torch_lntm.inference import Annealing, Processes
from torch_lntm.inference.em.distributed import _error_record, _rebuilt_error
from torch_lntm.inference.em.documents import assign_owners

WARM = Annealing((0.5, 1.0), (0.5, 1.0), iterations=1)
CASES: list[dict[str, Any]] = [
    {"guide": "taylor", "covariance_stride": 4, "max_docs": 3},
    {"guide": "laplace", "start": "documents", "start_epochs": None, "restarts": 2},
    {"guide": "blei-lafferty", "annealing": WARM, "stepwise_epochs": None},
    {"guide": "khan-bouchard", "start": "model", "start_epochs": None},
    {"kind": "iftm", "guide": "factor"},
    {"kind": "lda", "guide": "vb"},
    {"kind": "lda", "guide": "ep"},
    {"kind": "lntm", "num_chains": 2},
    {"kind": "iftm", "start": "model", "num_chains": 2},
    {"guide": "taylor", "covariance_stride": 4, "max_docs": 3, "bursty": True},
    {"kind": "lda", "guide": "ep", "bursty": True},
    {"start": "documents", "num_chains": 2, "bursty": True},
    # In longer documents, topics of the start merge and split.
    {"guide": "taylor", "length": 60},
    {"kind": "vectors", "guide": "taylor"},
    {"kind": "vectors", "start": "vectors"},
]


@pytest.mark.long
@pytest.mark.parametrize(("size", "cases"), [(2, CASES), (3, CASES[::3])])
def test_a_shared_fit_equals_the_fit_of_one_process(size: int, cases: Any) -> None:
    results = in_processes(size, shared_fits.fits, cases)
    for i, case in enumerate(cases):
        assert_equal(joined([result[i] for result in results]), fitted(**case), 1e-8)


@pytest.mark.long
def test_shared_fits_in_float32_agree_within_rounding() -> None:
    case = functools.partial(fitted, guide="taylor", dtype="float32")
    found = joined(in_processes(2, case))
    for record, other in zip(found["history"], case()["history"], strict=True):
        assert record["objective"] == pytest.approx(other["objective"], rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after", "saves", "case"),
    [
        (2, 1, 2, {"guide": "taylor", "restarts": 2}),  # in the start
        (2, 3, 9, {"guide": "laplace", "restarts": 2}),  # after the first restart
        (3, 2, 5, {"kind": "lda", "guide": "ep"}),  # with a row for each stored count
        (1, 2, 7, {"kind": "iftm", "guide": "factor"}),  # in EM
        (2, 3, 2, {"kind": "lntm", "num_chains": 2}),
    ],
)
def test_checkpoints_continue_in_any_number_of_processes(
    before: int, after: int, saves: int, case: dict[str, Any], tmp_path: Path
) -> None:
    found = shared_fits.continued(before, after, saves, tmp_path / "fit", **case)
    assert_equal(joined(found), fitted(**case), 1e-8)


@pytest.mark.slow
def test_an_error_of_one_process_is_raised_in_all() -> None:
    numerical = ("NumericalError", "documents 1, 7 left the numbers", True, (1, 7))
    other = ("IndexError", "out of range", None, None)
    for found in in_processes(2, shared_fits.errors_of_one):
        assert found == [*[numerical] * 2, *[other] * 2]


@pytest.mark.slow
def test_every_process_calls_its_callback_and_one_ends_the_fit_of_all() -> None:
    found = in_processes(2, shared_fits.called_back, 1)
    assert found == [[[1, 2, 3, 1], "stopped_by_callback", "no connection"]] * 2


@pytest.mark.slow
def test_processes_with_different_fits_are_refused() -> None:
    found = in_processes(2, shared_fits.refusals)
    assert found[0] == found[1]
    seed, corpus, small, version = found[0]
    assert seed.startswith("the 2 processes do not make the same fit: they differ in seed.")
    assert "they differ in corpus." in corpus
    assert small == "2 processes for 1 documents with words; use fewer processes"
    assert "they differ in version. Give all of them the same corpus, model," in version


def test_every_error_of_the_package_arrives_with_its_class_and_message() -> None:
    kinds = [x for x in vars(errors).values() if isinstance(x, type) and issubclass(x, Exception)]
    assert len(kinds) > 15
    for kind in [*kinds, FileNotFoundError, OSError, ValueError, MemoryError, ZeroDivisionError]:
        if kind is errors.MissingColumnError:  # made of other arguments than its message
            continue
        made = kind("bad: x.npz")
        again = _rebuilt_error(*_error_record(made))
        assert type(again) is kind
        assert str(again) == str(made)
    told = _rebuilt_error(*_error_record(type("Unknown", (Exception,), {})("what is this")))
    assert type(told) is errors.ProcessError
    assert str(told) == "Unknown in another process: what is this"


@pytest.mark.slow
def test_processes_can_make_separate_fits() -> None:
    topics = in_processes(2, shared_fits.alone)
    assert topics[0] != topics[1]
    assert topics[0] == shared_fits.alone()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "reason"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")]
)
def test_a_signal_in_one_process_ends_all_at_the_same_step(sent: int, reason: str) -> None:
    found = in_processes(2, shared_fits.interrupted, 12, sent)
    joined(found)
    assert found[0]["stop_reason"] == reason
    # 8 updates an epoch, three epochs of the start: the twelfth posterior is in the second epoch.
    records = [(r["phase"], r["iteration"]) for r in found[0]["history"]]
    assert records == [("start", 1), ("start", 2), ("start", 3), ("stepwise", 1)]
    whole = fitted(guide="taylor")
    objectives = [record["objective"] for record in found[0]["history"]]
    expected = [record["objective"] for record in whole["history"]][:4]
    assert objectives == pytest.approx(expected, rel=1e-8)


@pytest.mark.slow
def test_errors_and_ctrl_c_during_the_start_reach_all_processes(monkeypatch) -> None:
    """All of them make its steps, 8 an epoch, in PyTorch as :func:`shared_fits.starts` does."""
    monkeypatch.setenv("LNTM_COMPILED", "0")
    for found in in_processes(2, shared_fits.starts, 70, "error"):
        assert found == ["documents 1, 7 left the numbers", True, (1, 7)]

    first, second = in_processes(2, shared_fits.starts, 70, "Ctrl-C")
    joined([first[0], second[0]])
    assert first[0]["stop_reason"] == "interrupted"
    assert [r["phase"] for r in first[0]["history"]] == ["start"] * 8

    # All begin with the anchor words of the first, and go on with its counts.
    for event, epochs in (("rounding", 20), ("anchors", 1)):
        brief = {"start_epochs": epochs, "stepwise_epochs": 0, "max_iterations": 0}
        work = functools.partial(shared_fits.starts, **brief)
        first, second = in_processes(2, work, 100, event)
        joined([first[0], second[0]])
        alone = fitted(guide="taylor", **brief)
        topics, expected = (found["model.topics.logits"] for found in (first[0], alone))
        np.testing.assert_array_equal(topics, expected)
    # The prior comes from the proportions in both processes.
    loc, expected = (found["model.prior.loc"] for found in (first[0], alone))
    np.testing.assert_allclose(loc, expected, rtol=0.0, atol=1e-9)


@pytest.mark.slow
def test_a_lost_process_is_reported_by_the_remaining_ones() -> None:
    said, gone = in_processes(2, shared_fits.left_alone)
    assert gone == GONE
    assert said.startswith("ProcessError: process 0 of 2 lost the other processes: one of")


@pytest.mark.slow
def test_sums_are_float64_and_word_counts_have_the_requested_dtype() -> None:
    """The first process has no documents of the mini-batch, and one word in three never occurs."""
    values = np.random.default_rng(0).standard_normal((3, 200))
    values *= 10.0 ** np.arange(-6, 14).repeat(10)
    values[:, ::3] = values[1, 1::3] = 0.0
    found = in_processes(3, shared_fits.sums, values)
    exact, single = values.sum(0), values.astype(np.float32)
    for rank in range(3):
        np.testing.assert_allclose(found[rank]["wide"], exact, rtol=1e-14, atol=1e-12)
        np.testing.assert_allclose(found[rank]["narrow"], single.sum(0, np.float64), rtol=1e-14)
        np.testing.assert_allclose(found[rank]["sum"], values[1:, :3].sum(0), rtol=1e-14)
        np.testing.assert_allclose(found[rank]["other"], values[1:, :1].sum(0)[None], rtol=1e-14)
        expected = single[1:].sum(0)[None]
        np.testing.assert_array_equal(found[rank]["word_counts"], expected, strict=True)
        again = single[1:].sum(0, np.float64)[None]
        np.testing.assert_array_equal(found[rank]["again"], again, strict=True)
        scalars = [found[rank][n] for n in ("num_docs", "num_tokens", "objective")]
        assert scalars == [2.0, 4.0, -1.0]
        assert found[rank]["num_unconverged"] == 2
        assert found[rank]["told"] == [0, 1, 2]
        # Words with counts, the counts of two words in three, and all other sums with flags.
        assert found[rank]["sizes"] == [200, 133, 3 + 4 + 3 + 1]


def test_several_processes_without_a_group_are_warned_of(monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.warns(UnsharedFitWarning, match=r"WORLD_SIZE is 4, .*init_process_group\(\)"):
        assert Processes().alone
    assert Processes(alone=True).alone  # as asked for: without a warning
    for other in ("1", "", "all"):
        monkeypatch.setenv("WORLD_SIZE", other)
        assert Processes().alone


class Some(Processes):
    """Processes that are not there."""

    def __init__(self, size: int) -> None:
        super().__init__(alone=True)
        self.size = size


@pytest.mark.parametrize(("size", "num_docs"), [(2, 1000), (7, 500), (64, 1000), (3, 3)])
def test_processes_get_equal_shares_of_every_group(size: int, num_docs: int) -> None:
    rng = np.random.default_rng(0)
    sizes = np.ceil(rng.lognormal(4.0, 1.0, num_docs)).astype(np.int64)
    step, rank = np.arange(num_docs) // 128, np.arange(num_docs) % 8
    found = assign_owners(sizes, Some(size), step, rank)
    assert np.ptp(np.bincount(found, minlength=size)) <= 1
    for s in range(step.max() + 1):
        assert np.ptp(np.bincount(found[step == s], minlength=size)) <= 2
    counts = np.bincount(found, sizes, size)
    if num_docs >= 100 * size:
        assert counts.max() < 1.05 * counts.mean()
    # By their numbers alone documents would be spread less evenly.
    whole = np.bincount(assign_owners(sizes, Some(size)), sizes, size)
    assert whole.max() - whole.min() <= 2 * sizes.max()
