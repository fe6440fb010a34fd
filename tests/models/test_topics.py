"""Topics in single precision over large vocabularies, and their copies."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from oracles.grids import Quadrature
from scipy.special import log_softmax, softmax

from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import document_completion, log_likelihood
from torch_lntm.guides import LaplaceGuide
from torch_lntm.models import DirichletTopics, ctm
from torch_lntm.models.topics.normal import NormalTopics

NUM_TOPICS, NUM_WORDS = 2, 500_000


def make_topics(
    cls: type[DirichletTopics], device: torch.device, num_words: int = NUM_WORDS
) -> DirichletTopics:
    """Topics from counts that are mostly zero, as in a large vocabulary."""
    counts = np.random.default_rng(0).poisson(0.01, (NUM_TOPICS, num_words)) + 0.01
    return cls(NUM_TOPICS, num_words, probs=torch.from_numpy(counts)).to(device)


each_kind = pytest.mark.parametrize("cls", [DirichletTopics, NormalTopics])


@each_kind
def test_topics_in_single_precision_sum_to_1(cls, device) -> None:
    topics = make_topics(cls, device)
    expected = softmax(topics.logits.detach().cpu().double().numpy(), 0).T
    with torch.no_grad():
        within = topics.probs
    with topics.cached():
        fixed = topics.probs
    for probs in (topics.probs.detach(), within, fixed):
        assert probs.dtype == torch.float32
        np.testing.assert_allclose(probs.double().sum(1).cpu(), 1, atol=2e-7)
        np.testing.assert_allclose(probs.cpu(), expected, rtol=2e-6)


def test_topics_follow_their_parameters_after_caching() -> None:
    topics = make_topics(DirichletTopics, torch.device("cpu"), 5)
    others = torch.tensor([[0.1, 0.2, 0.3, 0.2, 0.2], [0.5, 0.1, 0.1, 0.1, 0.2]])
    with topics.cached():
        before = topics.probs
    topics.set_(others)
    assert not torch.allclose(topics.probs, before)
    torch.testing.assert_close(topics.probs, others)


def test_held_out_scores_agree_in_single_and_double_precision(device) -> None:
    single = ctm(
        NUM_TOPICS, NUM_WORDS, topics=make_topics(DirichletTopics, torch.device("cpu")).double_probs
    )
    double = ctm(NUM_TOPICS, NUM_WORDS, topics=single.topics.double_probs, dtype="float64")
    corpus, _ = single.generate([60] * 20, seed=1)
    scores = [
        [
            document_completion(
                model, corpus, theta="mode", guide=LaplaceGuide(model)
            ).nats_per_token,
            log_likelihood(model, corpus, Quadrature()).total / 1200,
        ]
        for model in (single.to(device), double.to(device))
    ]
    # In nats per token. Topics normalised in float32 would change both numbers by 100 times this
    # tolerance.
    np.testing.assert_allclose(*scores, atol=1e-5)


@each_kind
def test_double_probs_are_computed_in_double_precision(cls, device) -> None:
    topics = make_topics(cls, device, 1000)
    expected = softmax(topics.logits.detach().cpu().double().numpy(), 0).T
    np.testing.assert_allclose(topics.double_probs.cpu(), expected, rtol=1e-13)
    assert not topics.double_probs.requires_grad
    assert topics.double_probs.mT.is_contiguous()


def test_the_log_prior_of_a_large_vocabulary_is_accurate(device) -> None:
    topics = make_topics(DirichletTopics, device)
    expected = (
        topics.smoothing * log_softmax(topics.logits.detach().cpu().double().numpy(), 0).sum()
    )
    # A rounding error of 1e-7 in the normaliser of each topic counts 500,000 times.
    error = 1e-7 * topics.smoothing * NUM_TOPICS * NUM_WORDS
    assert math.isclose(topics.log_prior().item(), expected, abs_tol=error)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_match_a_softmax(dtype, device) -> None:
    topics = make_topics(DirichletTopics, device, 50).to(dtype)
    weights = torch.rand(NUM_TOPICS, 50, dtype=torch.float64, device=device)
    logits = topics.logits.detach().double().requires_grad_()
    for got, want in (
        ((topics.probs * weights).sum(), (torch.softmax(logits, 0).mT * weights).sum()),
        (topics.log_prior(), topics.smoothing * torch.log_softmax(logits, 0).sum()),
    ):
        gradient = torch.autograd.grad(got, topics.logits)[0].double()
        torch.testing.assert_close(
            gradient, torch.autograd.grad(want, logits)[0], rtol=1e-4, atol=1e-6
        )


def test_sampled_topics_of_a_large_vocabulary_sum_to_1(device) -> None:
    probs = make_topics(NormalTopics, device).emit()
    np.testing.assert_allclose(probs.double().sum(1).cpu(), 1, atol=2e-7)


@each_kind
@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_many_m_steps_in_a_row_match_separate_m_steps(cls, smoothing, device) -> None:
    rng = np.random.default_rng(3)
    counts = [torch.from_numpy(rng.gamma(1.0, 5.0, (3, 7))).to(device) for _ in range(4)]
    for table in counts:
        # Without smoothing a topic without counts keeps its words.
        table[2] = 0.0
    once, often = (make_topics_of(cls, smoothing).to(device) for _ in range(2))
    for table in counts:
        once.m_step(table)
    with often.updated_often():
        for table in counts:
            often.m_step(table)
            with often.cached():
                inside = often.probs.detach().clone()
    torch.testing.assert_close(often.probs, once.probs)
    torch.testing.assert_close(inside, once.probs.detach())


def make_topics_of(cls: type[DirichletTopics], smoothing: float) -> DirichletTopics:
    probs = torch.from_numpy(np.random.default_rng(4).dirichlet(np.ones(7), 3))
    options = {"smoothing": smoothing} if cls is DirichletTopics else {}
    return cls(3, 7, probs=probs, **options)


def _interrupted(topics: DirichletTopics, counts: torch.Tensor) -> None:
    topics.m_step(counts)
    raise ValueError("shape")


def test_a_topic_without_counts_keeps_very_small_logits() -> None:
    topics = DirichletTopics(2, 3, smoothing=0.0)
    topics.logits.data[0, 1] = -300.0
    before = topics.logits.detach().clone()
    topics.m_step(torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]))
    assert torch.equal(topics.logits[:, 1], before[:, 1])
    assert not torch.equal(topics.logits[:, 0], before[:, 0])


def test_an_error_among_many_m_steps_keeps_the_last_step() -> None:
    topics, twin = make_topics_of(DirichletTopics, 0.1), make_topics_of(DirichletTopics, 0.1)
    counts = torch.arange(21.0).view(3, 7)
    with pytest.raises(ValueError, match="shape"), topics.updated_often():
        _interrupted(topics, counts)
    twin.m_step(counts)
    torch.testing.assert_close(topics.probs, twin.probs)
    twin.m_step(counts + 1.0)
    topics.m_step(counts + 1.0)
    torch.testing.assert_close(topics.logits, twin.logits)


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        (torch.ones(3, 5), r"shape \(3, 5\); expected \(2, 5\)"),
        (torch.tensor([[0.5, -0.1, 0.2, 0.2, 0.2], [0.2] * 5]), "finite and nonnegative"),
        (torch.full((2, 5), float("nan")), "finite and nonnegative"),
        (torch.tensor([[0.0] * 5, [0.2] * 5]), "topic 0 has probability zero"),
        (torch.tensor([[0.5, 0.5, 0.0, 0.0, 0.0]] * 2), "word 2 has probability zero"),
    ],
)
@pytest.mark.parametrize("cls", [DirichletTopics, NormalTopics])
def test_invalid_probabilities_are_refused(cls, probs, message) -> None:
    with pytest.raises(ConfigError, match=message):
        cls(2, 5).set_(probs)
