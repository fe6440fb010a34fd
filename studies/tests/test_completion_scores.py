"""Scores of held-out tokens for given proportions and topics."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from studies.scores.completion import completion_perplexity
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, CorpusError

COUNTS = np.random.default_rng(3).poisson(0.8, (20, 12))


def test_arrays_are_normalised_and_frames_are_joined_by_names() -> None:
    corpus = Corpus.from_matrix(COUNTS, allow_empty=True)
    rng = np.random.default_rng(0)
    theta, topics = rng.dirichlet(np.ones(5), 20), rng.dirichlet(np.ones(12), 5)
    result = completion_perplexity(theta.astype(np.float32), 7 * topics, corpus)
    expected = math.exp(-(COUNTS * np.log(theta @ topics)).sum() / COUNTS.sum())
    assert result.perplexity == pytest.approx(expected, rel=1e-6)
    tensors = completion_perplexity(torch.tensor(theta), torch.tensor(topics), corpus)
    assert tensors.perplexity == pytest.approx(expected, rel=1e-12)
    named = corpus.with_metadata({"id": [f"d{d}" for d in range(20)]})
    shuffled = pd.DataFrame(theta, named.metadata.index).sample(frac=1, random_state=0)
    assert completion_perplexity(shuffled, topics, named).perplexity == pytest.approx(expected)
    with pytest.raises(CorpusError, match="other names"):
        completion_perplexity(pd.DataFrame(theta), topics, named)


@pytest.mark.parametrize(
    ("theta", "topics", "message"),
    [
        (np.ones((2, 3)), np.ones((3, 4)), r"theta has shape \(2, 3\)"),
        (np.ones((3, 2)), np.ones((3, 4)), r"topics has shape \(3, 4\)"),
        (np.ones((3, 2)), np.ones((2, 5)), r"topics has shape \(2, 5\)"),
        (np.ones(3), np.ones((2, 4)), "two dimensions"),
        (-np.ones((3, 2)), np.ones((2, 4)), "theta has .* finite and nonnegative"),
        (np.full((3, 2), np.nan), np.ones((2, 4)), "theta has .* finite"),
        (np.ones((3, 2)), np.zeros((2, 4)), "topics: row 0 sums to 0"),
        (np.eye(3, 2)[[0, 1, 0]], np.ones((2, 4)) - np.eye(2, 4, 1), "word 1 of document 2 has"),
    ],
)
def test_invalid_proportions_and_topics_are_refused(theta, topics, message: str) -> None:
    held_out = Corpus.from_matrix([[1, 0, 0, 0], [1, 2, 0, 0], [0, 3, 0, 0]])
    with pytest.raises(ConfigError, match=message):
        completion_perplexity(theta, topics, held_out)


def test_tiny_probabilities_differ_from_zero() -> None:
    held_out = Corpus.from_matrix([[0, 100]])
    result = completion_perplexity([[1.0]], [[1.0, 1e-30]], held_out)
    assert result.nats_per_token == pytest.approx(math.log(1e-30))
