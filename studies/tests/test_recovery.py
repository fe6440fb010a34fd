"""The study of recovery: corpora, assignments and correlations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from studies.__main__ import load
from studies.benchmarks.recovery import (
    DESIGNS,
    Recovery,
    Settings,
    assigned,
    centred,
    correlations,
    simulated,
    tables,
)
from studies.measure import measure
from torch_lntm.errors import ConfigError


def test_a_simulated_corpus_has_the_sizes_and_the_topics_of_its_design() -> None:
    design = DESIGNS["3 topics"]
    counts, topics, covariance = simulated(design, seed=2)
    assert counts.shape == (design.num_docs, design.num_words)
    assert (counts.sum(1) == design.length).all()
    np.testing.assert_allclose(topics.sum(1), 1.0)
    assert np.linalg.eigvalsh(covariance).min() >= 0.3 - 1e-12
    # All words of the corpus come from the topics, with about the shares of a mixture.
    share = np.asarray(counts.sum(0)).ravel() / counts.sum()
    weights, *_ = np.linalg.lstsq(topics.T, share, rcond=None)
    assert weights.sum() == pytest.approx(1.0, abs=0.01)
    assert np.abs(weights @ topics - share).max() < 0.005
    again, _, _ = simulated(design, seed=2)
    assert (again != counts).nnz == 0


def test_permuted_topics_are_found_and_a_merged_topic_is_far() -> None:
    topics = np.random.default_rng(0).dirichlet(np.full(50, 0.1), 4)
    order = np.array([2, 0, 3, 1])
    distance, found = assigned(topics, 7.0 * topics[order])
    np.testing.assert_allclose(distance, 0.0, atol=1e-12)
    assert (order[found] == np.arange(4)).all()
    merged = topics.copy()
    merged[0] = merged[1] = (topics[0] + topics[1]) / 2
    distance, _ = assigned(topics, merged)
    expected = np.abs(topics[0] - topics[1]).sum() / 2
    np.testing.assert_allclose(distance, [expected, expected, 0.0, 0.0], atol=1e-12)


def test_centred_correlations_are_those_of_draws_less_their_mean() -> None:
    rng = np.random.default_rng(1)
    factor = rng.standard_normal((4, 4))
    # A number that all topics of a document share changes nothing.
    draws = rng.standard_normal((200_000, 4)) @ factor.T + 5.0 * rng.standard_normal((200_000, 1))
    expected = np.corrcoef((draws - draws.mean(1, keepdims=True)).T)
    found = correlations(centred(factor @ factor.T))
    np.testing.assert_allclose(found, expected, atol=0.01)


def test_the_table_counts_missed_topics_and_leaves_out_unknown_correlations() -> None:
    fits = [
        Recovery("3 topics", "ours", 0, 0, 0.1, 1.0, 0.2, 1.1),
        Recovery("3 topics", "ours", 1, 2, 0.3, 3.0, 0.4, 1.3),
        Recovery("3 topics", "lda", 0, 0, 0.2, 2.0, None, None),
    ]
    first, second = (
        [cell.strip() for cell in row.split("|")[1:-1]] for row in tables(fits).splitlines()[2:4]
    )
    assert first == [
        "3 topics", "ours", "1 of 2", "2 of 6", "0.200 (0.100)", "0.30", "1.20 (0.10)", "2.0"
    ]  # fmt: skip
    assert second[2:] == ["0 of 1", "0 of 3", "0.200", "–", "–", "2.0"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"designs": ("4 topics",)}, "designs are 4 topics; expected some of 3 topics"),
        ({"systems": ("mallet",)}, "systems are mallet; expected some of"),
        ({"seeds": (-1,)}, "seeds is -1; expected a whole number"),
    ],
)
def test_unknown_names_and_negative_seeds_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings(**options)


@pytest.mark.slow
def test_a_fit_finds_the_topics_of_a_small_corpus(tmp_path: Path) -> None:
    study = load("recovery")
    settings = study.settings(designs=("3 topics",), systems=("torch_lntm ctm, auto",), seeds=(0,))
    (fit,) = measure("recovery", study, settings, tmp_path, progress=False)
    assert fit.missed == 0
    assert fit.distance < 0.3
    assert fit.correlation_error is not None
    assert fit.correlation_error < 0.5
    assert fit.cpu_seconds > 0.0
