"""The fitted weight of a cache language model, against its optimum and simulated documents."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import optimize

from studies.scores.cache import best_cache_weight, fit_cache_weight
from torch_lntm.corpus import Corpus
from torch_lntm.evaluation import document_completion
from torch_lntm.models import TopicModel, iftm, lda

TOPICS = np.random.default_rng(0).dirichlet(np.full(7, 0.7), 3)


def unigram() -> TopicModel:
    return lda(1, 7, topics=torch.from_numpy(TOPICS[:1]), dtype=torch.float64)


@pytest.mark.filterwarnings("error")
def test_a_word_outside_every_topic_leaves_the_weight_finite() -> None:
    counts, topics = [3.0, 2.0, 1.0], [0.2, 0.1, 0.0]
    found = best_cache_weight(torch.tensor([counts, topics, [2.0, 0.0, 0.0], [5.0] * 3]).double())

    def loss(a: float) -> float:
        return -3 * math.log((2 + 0.2 * a) / (5 + a)) - 3 * math.log(a / (5 + a))

    assert loss(found) == pytest.approx(min(loss(a) for a in np.geomspace(0.1, 1e4, 20001)))


def bursty(a: float, num_docs: int) -> Corpus:
    """Documents whose words have a distribution of their own around that of one topic."""
    rng = np.random.default_rng(0)
    own = np.tile(TOPICS[0], (num_docs, 1))
    if a < math.inf:
        own = rng.dirichlet(a * TOPICS[0], num_docs)
    return Corpus.from_matrix(np.stack([rng.multinomial(40, row) for row in own]))


@pytest.mark.stat
@pytest.mark.parametrize("a", [2.0, 20.0, math.inf])
def test_the_fitted_weight_is_close_to_the_true_weight(a) -> None:
    """The weight is optimal, and close to the concentration of the simulated documents."""
    corpus = bursty(a, 4000)
    split = corpus.hold_out_words(seed=0)
    found = fit_cache_weight(unigram(), split, max_docs=1500)
    observed, held_out = (part.to_scipy().toarray() for part in split)

    def loss(log_a: float) -> float:
        p = (observed + math.exp(log_a) * TOPICS[0]) / (20 + math.exp(log_a))
        return -(held_out * np.log(p)).sum()

    best = optimize.minimize_scalar(loss, bounds=(-4.0, 16.0), method="bounded")
    assert loss(math.log(found)) == pytest.approx(best.fun, abs=1e-3)
    if a == math.inf:
        assert found > 500
        return
    parts = [corpus[start::8].hold_out_words(seed=0) for start in range(8)]
    logs = [math.log(fit_cache_weight(unigram(), part)) for part in parts]
    # Student's t of 7 degrees of freedom is above 8 once in 10,000 times.
    assert abs(np.mean(logs) - math.log(a)) < 8.0 * np.std(logs, ddof=1) / math.sqrt(8)
    assert np.std(logs) < 0.2


def test_a_weight_can_be_fitted_for_laplace_sources() -> None:
    corpus = Corpus.from_matrix(np.random.default_rng(0).poisson(2.0, (12, 8)))
    hold_out = corpus.hold_out_words(0.5, seed=0)
    model = iftm(3, 8, 2, source="laplace")
    assert fit_cache_weight(model, hold_out) > 0
    assert document_completion(model, hold_out, theta="mode").perplexity > 1
