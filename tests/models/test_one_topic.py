"""Models of one topic are the unigram model, under any prior."""

from __future__ import annotations

import numpy as np
import pytest

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.guides import guides_for
from torch_lntm.recipes import Recipe

MODELS = ["ctm", "lntm", "iftm", "lda"]
CORPUS = lntm.Corpus.from_matrix(np.random.default_rng(0).poisson([2.0, 1.0, 0.5, 0.5], (30, 4)))


@pytest.mark.parametrize("name", MODELS)
def test_every_guide_fits_a_single_topic(name):
    model = Recipe(name).make(4, options={"num_topics": 1}).model
    for posterior in guides_for(model):
        options = {"num_topics": 1, "progress": False, "start_epochs": 1, "stepwise_epochs": 1}
        made = Recipe(name, posterior).make(4, options={**options, "max_iterations": 1})
        made.engine.fit(CORPUS)
        assert (lntm.inference.transform(made.guide, CORPUS).theta == 1.0).all()
        assert made.model.topic_correlation().tolist() == [[1.0]]


@pytest.mark.parametrize("name", MODELS)
def test_a_single_topic_has_the_unigram_likelihood(name):
    options = {"num_topics": 1, "dtype": "float64", "progress": False, "max_epochs": 2}
    # With several mini-batches, later words would have more weight.
    options |= {"topic_update": "exact", "batch_size": len(CORPUS)}
    model, _, engine = Recipe(name, "hmc").make(4, options=options)
    engine.fit(CORPUS)
    shares = CORPUS.word_totals / CORPUS.num_tokens
    # Smoothing, or the prior of normal logits, moves the topic slightly away from the shares.
    np.testing.assert_allclose(model.topics.probs[0].detach(), shares, atol=1e-3)
    expected = shares @ model.topics.probs[0].detach().log().numpy()
    for method, few in (("importance", {"num_draws": 25}), ("ais", {"num_temperatures": 3})):
        found = lntm.evaluation.log_likelihood(model, CORPUS, method, **few)
        assert found.nats_per_token == pytest.approx(expected, abs=1e-12)


def test_a_single_topic_cannot_be_anchored():
    with pytest.raises(ConfigError, match="one topic has no free component if anchored"):
        lntm.models.ctm(1, 4, anchored=True)
    with pytest.raises(ConfigError, match="num_sources is 2; expected 1 to 1"):
        lntm.models.iftm(1, 4, 2)
