"""Exact document completion against quadrature and enumeration, and its invariances."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from oracles import dirichlet
from scipy import special
from support.held_out import (
    ALPHA,
    COVARIANCE,
    HELD_OUT,
    LOC,
    NUM_WORDS,
    OBSERVED,
    TOPICS,
    hold_out,
)

from studies.scores.completion import completion_of, completion_perplexity
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, UnreliableEstimateWarning
from torch_lntm.evaluation import CompletionResult, document_completion, paired_difference
from torch_lntm.evaluation.completion.exact import SHORT, _score
from torch_lntm.evaluation.completion.result import ExactCompletion
from torch_lntm.kernels.chains import SparseWords
from torch_lntm.models import lda


def score_at(theta: np.ndarray, topics: np.ndarray) -> np.ndarray:
    return (HELD_OUT * np.log(theta @ topics)).sum(1)


def means(log_theta: np.ndarray, log_weights: np.ndarray, topics: np.ndarray) -> np.ndarray:
    """Posterior means of theta over weighted points."""
    theta = np.exp(log_theta)
    log_posterior = log_weights[:, None] + np.log(theta @ topics) @ OBSERVED.T
    weights = np.exp(log_posterior - log_posterior.max(0))
    return (weights / weights.sum(0)).T @ theta


def normal_points(loc: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A grid of the differences to the last logit, eight standard deviations wide."""
    num_topics = len(loc)
    difference = np.hstack([np.eye(num_topics - 1), -np.ones((num_topics - 1, 1))])
    mean, cov = difference @ loc, difference @ covariance @ difference.T
    axes = [
        m + s * np.linspace(-8, 8, 401) for m, s in zip(mean, np.sqrt(np.diag(cov)), strict=True)
    ]
    x = np.array(list(itertools.product(*axes)))
    log_weights = -0.5 * ((x - mean) @ np.linalg.inv(cov) * (x - mean)).sum(1)
    logits = np.hstack([x, np.zeros((len(x), 1))])
    return logits - special.logsumexp(logits, axis=1, keepdims=True), log_weights


def check(result: CompletionResult, expected: np.ndarray, times: int) -> None:
    """Every copy's score within 6 of its standard errors on average; false-failure rate 1e-6."""
    assert isinstance(result, ExactCompletion)
    scores = result.log_predictive.view(times, -1)
    error = scores.std(0) / math.sqrt(times)
    off = (scores.mean(0) - torch.from_numpy(expected)).abs()
    assert bool((off <= 6.0 * error + 1e-9).all()), (off, error)
    assert float(error.max()) < 0.01
    # What the chains say of their own error is what copies of a document show.
    shown, said = scores.var(0).sum(), result.variance.view(times, -1).mean(0).sum()
    assert 0.4 < float(said / shown) < 2.5
    assert float(result.rhat.max()) < 1.2
    assert result.held_out_tokens.tolist() == HELD_OUT.sum(1).tolist() * times


@pytest.mark.slow
@pytest.mark.stat
@pytest.mark.parametrize("num_topics", [2, 3])
def test_scores_of_a_dirichlet_prior_equal_quadrature(num_topics: int) -> None:
    alpha, topics = ALPHA[num_topics], TOPICS[num_topics]
    points = dirichlet.quadrature(alpha, float(OBSERVED.sum(1).max()))
    expected = score_at(means(*points, topics), topics)
    check(completion_of(alpha, topics, hold_out(50), tolerance=0.1), expected, 50)


@pytest.mark.slow
@pytest.mark.stat
@pytest.mark.parametrize("num_topics", [2, 3])
def test_scores_of_a_logistic_normal_prior_equal_quadrature(num_topics: int) -> None:
    loc, covariance, topics = (x[num_topics] for x in (LOC, COVARIANCE, TOPICS))
    expected = score_at(means(*normal_points(loc, covariance), topics), topics)
    check(completion_of((loc, covariance), topics, hold_out(50), tolerance=0.1), expected, 50)
    # The same prior with the last logit at 0.
    difference = np.hstack([np.eye(num_topics - 1), -np.ones((num_topics - 1, 1))])
    anchored = (difference @ loc, difference @ covariance @ difference.T)
    check(completion_of(anchored, topics, hold_out(50), tolerance=0.1), expected, 50)


def enumerated_means(alpha: np.ndarray, topics: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """Posterior means of theta, by the sum over all assignments of the tokens to topics."""
    theta = []
    for bag in observed:
        tokens = np.repeat(np.arange(len(bag)), bag)
        num_topics, num_tokens = len(alpha), len(tokens)
        z = np.indices((num_topics,) * num_tokens).reshape(num_tokens, num_topics**num_tokens).T
        gamma = alpha + (z[..., None] == np.arange(num_topics)).sum(1)
        log_weights = special.gammaln(gamma).sum(1) + np.log(topics[z, tokens]).sum(1)
        weights = special.softmax(log_weights)
        theta.append(weights @ (gamma / gamma.sum(1, keepdims=True)))
    return np.array(theta)


@pytest.mark.slow
@pytest.mark.stat
def test_the_reported_error_holds_for_the_total_score() -> None:
    rng = np.random.default_rng(1)
    num_docs, num_words, alpha, times = 200, 12, np.full(3, 0.05), 12
    topics = rng.dirichlet(np.full(num_words, 0.1), 3) * 0.97 + 0.03 / num_words
    lengths = rng.integers(6, 13, num_docs)
    counts = [
        rng.multinomial(length, theta @ topics)
        for length, theta in zip(lengths, rng.dirichlet(alpha, num_docs), strict=True)
    ]
    documents = Corpus.from_matrix(np.array(counts)).hold_out_words()
    observed, held_out = (part.to_scipy().toarray() for part in documents)
    theta = enumerated_means(alpha, topics, observed)
    exact = torch.from_numpy((held_out * np.log(theta @ topics)).sum(1))
    off, said = [], []
    for seed in range(times):
        result = completion_of(alpha, topics, documents, tolerance=10.0, seed=seed)
        assert isinstance(result, ExactCompletion)
        off.append(result.log_predictive - exact)
        said.append(result.variance)
        tokens = int(result.held_out_tokens.sum())
        assert result.simulation_error == pytest.approx(float(said[-1].sum().sqrt()) / tokens)
    errors, variances = torch.stack(off), torch.stack(said)
    # Chi-square of 12 squares over 12: outside of these bounds at a rate of 5e-5.
    of_totals = float((errors.sum(1).square() / variances.sum(1)).mean())
    assert 0.1 < of_totals < 4.0
    # Chains that all missed a rare mode agree with one another.
    assert bool((errors.abs() > 6.0 * variances.sqrt() + 1e-3).any())


@pytest.mark.slow
def test_chains_are_doubled_until_they_are_within_the_tolerance() -> None:
    options = {"num_draws": 8, "seed": 3}
    rough, fine = (
        completion_of(ALPHA[3], TOPICS[3], hold_out(5), tolerance=tolerance, **options)
        for tolerance in (0.1, 0.001)
    )
    assert rough.within_tolerance
    assert fine.within_tolerance
    assert fine.simulation_error < rough.simulation_error
    assert set(rough.num_draws.tolist()) == {8}
    assert int(fine.num_draws[0]) in {2**n for n in range(4, 13)}
    with pytest.warns(UnreliableEstimateWarning, match="raise max_draws"):
        short = completion_of(
            ALPHA[3], TOPICS[3], hold_out(5), tolerance=1e-9, max_draws=20, **options
        )
    assert set(short.num_draws.tolist()) == {16}
    assert not short.within_tolerance
    assert "NOT within 1e-09" in repr(short)
    assert "NOT" not in repr(fine)


@pytest.mark.slow
def test_the_gradient_is_zero_at_the_modes() -> None:
    topics = torch.from_numpy(TOPICS[3])
    result = completion_of(ALPHA[3], topics, hold_out(), "mode")
    assert result.theta == "mode"
    logits = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([logits], max_iter=60)

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        log_theta = torch.log_softmax(logits, -1)
        words = (torch.from_numpy(OBSERVED) * (log_theta.exp() @ topics).log()).sum()
        value = -words - (torch.from_numpy(ALPHA[3]) * log_theta).sum()
        value.backward()
        return value

    optimiser.step(loss)
    theta = torch.softmax(logits.detach(), -1)
    expected = completion_perplexity(theta, topics, hold_out().held_out)
    torch.testing.assert_close(result.log_predictive, expected.log_predictive, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_topics_that_say_the_same_leave_no_doubt_of_the_chains() -> None:
    model = lda(3, NUM_WORDS, topics=torch.ones(3, NUM_WORDS))
    assert document_completion(model, hold_out(), num_draws=10).rhat.eq(1.0).all()


def test_rhat_is_large_where_chains_disagree() -> None:
    words = SparseWords(
        torch.full((2, NUM_WORDS), 1.0 / NUM_WORDS), Corpus.from_matrix(HELD_OUT).batch()
    )
    draws = np.random.default_rng(0).normal(size=(4, 50, len(HELD_OUT)))
    means = torch.full((4, len(HELD_OUT), 2), 0.5)
    for shift in (0.0, 1.0):
        values = draws + shift * np.arange(4)[:, None, None]
        halves = values.reshape(8, 25, -1)
        within = halves.var(1, ddof=1).mean(0)
        between = halves.mean(1).var(0, ddof=1)
        expected = np.sqrt(24 / 25 + between / within)
        rhat = _score(words, means, torch.from_numpy(values))["rhat"].numpy()
        np.testing.assert_allclose(rhat, expected)
        assert (rhat > 1.3).all() == (shift > 0)


def test_a_document_scores_the_same_in_every_batch() -> None:
    options = {"tolerance": 10.0, "num_draws": 10}
    counts = np.vstack([OBSERVED + HELD_OUT, 30 * OBSERVED[3:]])
    documents = Corpus.from_matrix(counts).hold_out_words()
    assert documents.observed.lengths[-1] > SHORT > documents.observed.lengths[-2]
    for prior in (ALPHA[3], (LOC[3], COVARIANCE[3])):
        whole, parts = (
            completion_of(prior, TOPICS[3], documents, max_docs=size, **options)
            for size in (128, 2)
        )
        torch.testing.assert_close(whole.log_predictive, parts.log_predictive)
        torch.testing.assert_close(whole.rhat, parts.rhat)


def test_differences_are_paired() -> None:
    scores = [
        torch.tensor(x).double() for x in ([-20.0, -9.0, 0.0, -14.0], [-22.0, -8.5, 0.0, -16])
    ]
    tokens = torch.tensor([10, 4, 0, 7])
    ours, other = (CompletionResult(x, tokens, "given", "given") for x in scores)
    gain, error = paired_difference(ours, other)
    assert gain == pytest.approx(3.5 / 21)
    residual = np.array([2, -0.5, 2]) - gain * np.array([10, 4, 7])
    assert error == pytest.approx(math.sqrt((residual**2).sum() * 3 / 2) / 21)
    assert paired_difference(ours, ours) == (0.0, 0.0)
    fewer = CompletionResult(scores[0][:3], tokens[:3], "given", "given")
    marked = [replace(ours, fingerprint=name) for name in ("of one", "of another")]
    for pair in ((ours, fewer), marked):
        with pytest.raises(ConfigError, match="different held-out tokens; score one hold-out"):
            paired_difference(*pair)


@pytest.mark.parametrize("name", ["tolerance", "num_chains", "num_draws"])
def test_settings_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0"):
        document_completion(lda(3, NUM_WORDS), hold_out(), **{name: 0})
