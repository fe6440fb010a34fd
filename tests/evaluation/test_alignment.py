"""Alignment of the topics of two fits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import align_topics

PROBS = torch.from_numpy(np.random.default_rng(0).dirichlet(np.full(9, 0.2), 4))


def test_a_permutation_is_undone() -> None:
    order = torch.tensor([2, 0, 3, 1])
    found = align_topics(PROBS[order], PROBS)
    assert found.partner.tolist() == order.tolist()
    np.testing.assert_allclose(found.similarity, 1.0)


def test_no_other_matching_is_more_similar() -> None:
    other = torch.from_numpy(np.random.default_rng(1).dirichlet(np.full(9, 0.5), 4))
    affinity = np.sqrt(PROBS.numpy()) @ np.sqrt(other.numpy()).T
    best = max(
        sum(affinity[k, j] for k, j in enumerate(order))
        for order in itertools.permutations(range(4))
    )
    found = align_topics(PROBS, other)
    assert found.similarity.sum() == pytest.approx(best)


def test_numbers_of_topics_may_differ() -> None:
    found = align_topics(PROBS, PROBS[[3, 1]])
    assert found.partner.tolist() == [-1, 1, -1, 0]
    np.testing.assert_allclose(found.similarity, [0, 1, 0, 1])
    assert align_topics(PROBS[[3, 1]], PROBS).partner.tolist() == [3, 1]


def test_models_with_other_words_are_refused() -> None:
    one, other = (lntm.models.ctm(2, 3, vocabulary=words) for words in ("abc", "abd"))
    with pytest.raises(ConfigError, match="the same words in the same order"):
        align_topics(one, other)
    with pytest.raises(ConfigError, match="over 9 and 8 words"):
        align_topics(PROBS, PROBS[:, :8])
    assert align_topics(one, one).partner.tolist() == [0, 1]
