"""The study of names: ranks of topics by words of their names, and rules by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from studies.__main__ import load
from studies.benchmarks import names
from studies.measure import measure
from tests.support.corpora import save_counts
from torch_lntm.models import ctm

WORDS = np.array(["the", "tax", "war", "law"])
PROBS = np.array([[0.5, 0.3, 0.0, 0.2], [0.4, 0.1, 0.5, 0.0]])


def test_ranks_count_topics_with_more_tokens_and_half_of_ties() -> None:
    counts = sp.csr_matrix([[0, 2, 1, 0], [0, 0, 3, 1], [4, 0, 0, 0]])
    found, reached = names.reciprocal_ranks(
        counts, np.array([0, 0, 1]), [["tax", "law"], ["war"]], WORDS
    )
    assert found.tolist() == [1.0, 0.5, 0.75]
    assert reached == pytest.approx(2 / 3)


def test_rules_name_topics_as_by_hand() -> None:
    found = {rule: names.named(PROBS, WORDS, *how) for rule, how in names.rules(PROBS).items()}
    assert found["probability, 2 words, shared"] == [["the", "tax"], ["war", "the"]]
    assert found["probability"] == [["the", "tax", "law"], ["war"]]
    assert found["p^0.5 log lift"] == [["law", "tax", "the"], ["war"]]
    # Among the two most probable words of topic 0, "tax" is the more exclusive.
    assert names.frex(PROBS, PROBS / PROBS.mean(0), 0.9, 2)[0].argmax() == 1


def test_the_rule_of_the_package_is_the_one_of_the_study(tmp_path: Path) -> None:
    truth = ctm(4, 200, vocabulary=[f"{v}w" for v in range(200)], seed=0)
    corpus, _ = truth.generate([60] * 200, seed=0)
    save_counts(corpus, tmp_path / "small.npz")
    settings = names.Settings((str(tmp_path / "small.npz"),), (), (4,), 100, (0,))
    study = load("names")
    result = measure("names", study, settings, tmp_path / "out", progress=False)
    scores = result.chosen[0]["rules"]
    assert scores["package"] == scores["p^0.5 log lift"]
    assert 0 < scores["package"]["reached"] <= 1
    assert len(result.chosen[0]["names"]["package"]) == 4
    assert "| probability, 2 words, shared |" in study.table(result)
