"""Residual dispersion and exclusivity against their formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import dispersion as module
from torch_lntm.evaluation import exclusivity, residual_dispersion
from torch_lntm.guides import TaylorGuide

NUM_TOPICS, NUM_WORDS, NUM_DOCS = 2, 8, 60


@pytest.fixture(scope="module")
def fitted():
    topics = torch.from_numpy(np.random.default_rng(0).dirichlet(np.ones(NUM_WORDS), NUM_TOPICS))
    model = lntm.models.ctm(NUM_TOPICS, NUM_WORDS, topics=topics, dtype="float64")
    corpus, _ = model.generate([40] * (NUM_DOCS - 1) + [0], seed=0)
    return model, TaylorGuide(model, tolerance=1e-10, max_iterations=500), corpus


def test_dispersion_is_pearsons_statistic_over_its_degrees_of_freedom(fitted, monkeypatch) -> None:
    model, guide, corpus = fitted
    occupied = np.flatnonzero(corpus.lengths)
    theta = guide.posterior(corpus.batch(occupied, dtype=torch.float64)).theta_mode().numpy()
    counts = corpus.to_scipy().toarray()[occupied]
    q = theta @ model.topics.probs.detach().numpy()
    expected = counts.sum(1, keepdims=True) * q
    squares = ((counts - expected) ** 2 / (expected * (1 - q))).sum()
    parameters = len(occupied) * (NUM_TOPICS - 1) + NUM_TOPICS * (NUM_WORDS - 1)
    freedom = (expected > 0.01).sum() - NUM_WORDS - parameters
    found = residual_dispersion(model, guide, corpus)
    assert found.value == pytest.approx(squares / freedom, rel=1e-6)
    assert found.num_docs == NUM_DOCS - 1
    monkeypatch.setattr(module, "BLOCK", 7 * NUM_WORDS)
    again = residual_dispersion(model, guide, corpus)
    assert again.value == pytest.approx(found.value, rel=1e-5)
    assert again.standard_error == pytest.approx(found.standard_error, rel=1e-4)


@pytest.mark.stat
def test_the_dispersion_of_a_correct_model_is_one(fitted) -> None:
    model, guide, _ = fitted
    corpus, _ = model.generate([200] * 2000, seed=1)
    found = residual_dispersion(model, guide, corpus, max_docs=2000)
    # The topics are known here, which the degrees of freedom take for fitted: 22 of some 14,000.
    assert abs(found.value - 1) < 5 * found.standard_error + 0.01
    some = residual_dispersion(model, guide, corpus, max_docs=500)
    assert some.num_docs == 500
    assert abs(some.value - found.value) < 5 * some.standard_error
    one_topic = lntm.models.ctm(
        2, NUM_WORDS, topics=model.topics.probs.detach().mean(0).expand(2, -1), dtype="float64"
    )
    worse = residual_dispersion(one_topic, TaylorGuide(one_topic), corpus)
    assert worse.value > 1.5


def test_a_sample_of_documents_in_periodic_order_has_all_kinds(fitted) -> None:
    model, guide, _ = fitted
    other = lntm.models.ctm(2, NUM_WORDS, topics=model.topics.probs.flip(1), dtype="float64")
    parts = [m.generate([40] * 100, seed=2)[0].to_scipy().toarray() for m in (model, other)]
    corpus = lntm.Corpus.from_matrix(np.stack(parts, 1).reshape(-1, NUM_WORDS))
    found, half = (residual_dispersion(model, guide, corpus, max_docs=n) for n in (200, 100))
    assert half.num_docs == 100
    assert abs(half.value - found.value) < 3 * half.standard_error
    assert found.value > 2 * residual_dispersion(model, guide, corpus[::2]).value


def test_too_few_documents_are_refused(fitted) -> None:
    model, guide, corpus = fitted
    with pytest.raises(ConfigError, match="take fewer topics"):
        residual_dispersion(model, guide, corpus[:2])


def test_exclusivity_equals_its_formula() -> None:
    topics = torch.tensor([[0.6, 0.3, 0.1], [0.6, 0.1, 0.3]])
    # Topic 0: ranks by probability 3, 2, 1; by share 2 (one half), 3 (three quarters), 1.
    first = 1 / (0.7 / (2 / 3) + 0.3 / 1.0)
    second = 1 / (0.7 / 1.0 + 0.3 / (2 / 3))
    found = exclusivity(topics, top_n=2)
    np.testing.assert_allclose(found.numpy(), (first + second) / 2, rtol=1e-6)
    apart = exclusivity(torch.eye(3).double() + 1e-9, top_n=1)
    np.testing.assert_allclose(apart.numpy(), 1.0)
