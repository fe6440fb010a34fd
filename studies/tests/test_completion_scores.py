"""Scores of held-out tokens for given proportions and topics."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from studies.scores.completion import completion_of, completion_perplexity
from tests.support.held_out import (
    ALPHA,
    COVARIANCE,
    LOC,
    NUM_WORDS,
    TOPICS,
    hold_out,
)
from torch_lntm.corpus import Corpus, WordHoldOut
from torch_lntm.errors import ConfigError, CorpusError
from torch_lntm.evaluation import document_completion
from torch_lntm.evaluation.completion.result import ExactCompletion
from torch_lntm.models import ctm, iftm, lda

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


@pytest.mark.slow
def test_a_model_scores_like_its_prior_and_topics() -> None:
    options = {"tolerance": 1.0, "num_draws": 5}
    pairs = [
        (ALPHA[3], lda(3, NUM_WORDS, concentration=torch.from_numpy(ALPHA[3]), **_topics())),
        (
            (LOC[3], COVARIANCE[3]),
            ctm(
                *(3, NUM_WORDS),
                loc=torch.from_numpy(LOC[3]),
                covariance=torch.from_numpy(COVARIANCE[3]),
                **_topics(),
            ),
        ),
    ]
    for prior, model in pairs:
        for theta in ("exact", "mode"):
            given = completion_of(prior, TOPICS[3], hold_out(), theta, **options)
            own = document_completion(model, hold_out(), theta=theta, **options)
            torch.testing.assert_close(given.log_predictive, own.log_predictive)
    sources = iftm(3, NUM_WORDS, 1, source="laplace", **_topics())
    assert math.isfinite(document_completion(sources, hold_out(), **options).perplexity)


def _topics() -> dict[str, object]:
    return {"topics": torch.from_numpy(TOPICS[3]), "dtype": "float64"}


def test_other_tokens_than_the_frozen_ones_are_refused() -> None:
    frozen = hold_out().fingerprint()
    result = completion_of(ALPHA[3], TOPICS[3], hold_out(), tolerance=1.0, fingerprint=frozen)
    assert isinstance(result, ExactCompletion)
    assert result.fingerprint == frozen
    other = WordHoldOut(hold_out().corpus, hold_out().corpus.counts - hold_out().observed_counts)
    with pytest.raises(CorpusError, match=r"fingerprint .*…, expected .*from the same corpus"):
        completion_of(ALPHA[3], TOPICS[3], other, fingerprint=frozen)
    with pytest.raises(CorpusError, match="expected"):
        completion_of(ALPHA[3], TOPICS[3], hold_out(2), "mode", fingerprint=frozen)


@pytest.mark.parametrize(
    ("prior", "topics", "options", "message"),
    [
        (ALPHA[2], TOPICS[3], {}, r"(?s)prior is .*concentration: got shape \(2,\)"),
        ((LOC[3][:1], COVARIANCE[3]), TOPICS[3], {}, r"(?s)mean: got shape \(1,\); exp"),
        ((1, 2, 3), TOPICS[3], {}, r"prior is \(1, 2, 3\) .*tuple \(mean, covariance\)"),
        (ALPHA[3], TOPICS[3][0], {}, "topics has shape .*; expected two dimensions"),
        (ALPHA[3], TOPICS[3][:, :4], {}, "4"),
        (lda(3, NUM_WORDS), TOPICS[3], {}, "which has its own; pass None"),
        (lda(3, NUM_WORDS).prior, TOPICS[3], {}, "(?s)prior is Dirichlet.*or a model, with"),
        (ALPHA[3], lda(3, NUM_WORDS).topics, {}, "topics is a DirichletTopics; expected a matrix"),
        (ALPHA[3], TOPICS[3], {"theta": "median"}, "expected one of mode, mean"),
        (ALPHA[3], TOPICS[3], {"concentration": 0.0}, r"concentration is 0\.0; expected one pos"),
    ],
)
def test_invalid_arguments_are_named(prior, topics, options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        completion_of(prior, topics, hold_out(), **options)
