"""The study of trees, groups and stability of topics on small corpora."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from studies.__main__ import load
from studies.benchmarks import trees
from studies.measure import measure
from tests.support.corpora import save_counts

SMALL = trees.Settings(("words",), 1, 2, 2, 60, 150, 40, 20, (), 4, (), 3, 1, (0,))


def test_neighbours_are_groups_of_the_true_model() -> None:
    model = trees.true_model(SMALL, "words", 0)
    distance = trees.jensen_shannon(model.topics.probs.detach().double())
    within = distance[0, 1], distance[2, 3]
    assert max(within) < distance[:2, 2:].min()
    prior: Any = trees.true_model(SMALL, "proportions", 0).prior
    correlated = prior.covariance.detach()
    assert float(correlated[0, 1]) == pytest.approx(0.6)
    assert float(correlated[0, 2]) == 0


def test_distances_of_jensen_and_shannon_follow_their_definition() -> None:
    probs = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]]).double()
    root = np.sqrt(np.log(2))  # disjoint distributions
    expected = np.array([[0, root, 0], [root, 0, root], [0, root, 0]])
    np.testing.assert_allclose(trees.jensen_shannon(probs), expected, atol=1e-7)


def test_clusters_join_close_topics() -> None:
    distance = np.array([[0.0, 0.1, 0.9], [0.1, 0.0, 0.9], [0.9, 0.9, 0.0]])
    first, second, third = trees.clusters(distance, 2)
    assert first == second != third


def test_a_perfect_order_has_rank_correlation_and_area_of_one() -> None:
    row = {
        "predictors": {"a": [0.1, 0.2, 0.3]},
        "fresh": [0.4, 0.5, 0.9],
        "found": [0.0, 0.5, 1.0],
    }
    assert trees.ranks(row, "a") == (pytest.approx(1.0), 1.0)
    assert np.isnan(trees.ranks({**row, "predictors": {"a": [1, 1, 1]}}, "a")[0])


def test_the_study_measures_simulated_corpora(tmp_path: Path) -> None:
    study = load("trees")
    result = measure("trees", study, SMALL, tmp_path / "out", progress=False)
    (row,) = result.simulated
    assert all(-1 <= value <= 1 for value in row["agreement"].values())
    for topics in ("true topics", "fitted topics"):
        numbers = row[topics]
        for kind in ("population", "documents"):
            # Ends of intervals add up to a wider interval, for proportions that compensate.
            assert numbers[f"{kind}, sum: width"] < numbers[f"{kind}, ends: width"]
            assert 0 <= numbers[f"{kind}, sum: coverage"] <= 1
    text = study.table(result)
    assert "topic_tree, by correlation" in text
    assert "words, fitted topics" in text


def test_topics_are_found_again_in_fresh_documents(tmp_path: Path) -> None:
    model = trees.true_model(SMALL, "words", 0)
    corpus, _ = model.generate([60] * 200, seed=0)
    save_counts(corpus, tmp_path / "half.npz")
    row = trees.found_again(SMALL, str(tmp_path / "half.npz"), 0)
    assert len(row["fresh"]) == len(row["found"]) == 3
    assert all(0 <= value <= 1 for value in [*row["fresh"], *row["found"]])
    text = trees.tables(trees.Result([], [], [row]))
    assert "similarity, resamples" in text


def test_labels_of_documents_are_compared_with_groups_of_topics(tmp_path: Path) -> None:
    model = trees.true_model(SMALL, "words", 0)
    corpus, latents = model.generate([60] * 300, seed=0)
    groups = latents["eta"].softmax(-1).unflatten(-1, (2, 2)).sum(-1).argmax(-1)
    save_counts(corpus, tmp_path / "half.npz")
    names = "\n".join("ab"[g] for g in groups)
    (tmp_path / "half.labels.txt").write_text(names, encoding="utf-8")
    row = trees.by_label(SMALL, str(tmp_path / "half.npz"), 0)
    assert row["classes"] == 2
    for found in row["agreement"].values():
        assert 0 <= found["documents"] <= 1
        assert -1 <= found["topics"] <= 1
        assert 2 <= found["largest"] < 4
    words = row["agreement"]["topic_tree, by words"]
    assert words["topics"] == pytest.approx(1.0)
    assert words["documents"] > 0.2
    assert "half.npz (2), topic_tree, by words" in trees.tables(trees.Result([], [row], []))
