"""Recipes: a model, its guide and its engine by name, each with its own options."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import torch_lntm as lntm
from torch_lntm import recipes
from torch_lntm.budget import find_device
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, IncompatibleGuideError
from torch_lntm.guides import GUIDES
from torch_lntm.inference import MonteCarloEM, VariationalEM
from torch_lntm.recipes import SAMPLERS, Recipe, guide_of

DEFAULTS = {"ctm": "taylor", "lntm": "taylor", "iftm": "factor", "lda": "vb"}


@pytest.mark.parametrize(("name", "posterior"), DEFAULTS.items())
def test_every_model_has_a_default(name, posterior):
    made = Recipe(name).make(7, "abcdefg", options={"num_topics": 3})
    assert made.model.name == name
    assert made.model.num_topics == 3
    assert made.model.vocabulary == tuple("abcdefg")
    assert made.guide.name == posterior
    assert isinstance(made.engine, VariationalEM)
    assert made.engine.model is made.guide.model is made.model
    assert made.engine.guide is made.guide


def test_options_go_to_model_guide_or_engine():
    options = {"num_topics": 4, "topic_smoothing": 0.3, "topics_update": "second-order"}
    options |= {"tolerance": 1e-5, "max_iterations": 7, "restarts": 2}
    made = Recipe("lda", "vb").make(7, seed=5, device="cpu", options=options)
    assert made.model.topics.smoothing == 0.3
    assert made.guide.topics_update == "second-order"
    assert (made.engine.tolerance, made.engine.max_iterations) == (1e-5, 7)
    assert made.guide.tolerance == lntm.guides.DirichletGuide(made.model).tolerance
    assert made.engine.restarts == 2
    assert made.engine.seed == 5
    twin = lntm.models.lda(4, 7, topic_smoothing=0.3, seed=5)
    assert torch.equal(made.model.topics.logits, twin.topics.logits)


def test_a_sampler_is_an_engine_with_the_models_default_guide():
    recipe = Recipe("iftm", "hmc")
    assert recipe.samples
    assert not Recipe("iftm").samples
    made = recipe.make(7, options={"num_topics": 4, "num_chains": 2, "max_epochs": 3})
    assert isinstance(made.engine, MonteCarloEM)
    assert made.engine.max_epochs == 3
    assert made.guide.name == "factor"
    assert list(SAMPLERS) == ["hmc"]
    assert not SAMPLERS.keys() & GUIDES.keys()
    assert guide_of("hmc", made.model).name == guide_of(None, made.model).name == "factor"
    assert guide_of("taylor", made.model, tolerance=0.5).tolerance == 0.5


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (("lsa",), {}, "model 'lsa'; expected one of ctm"),
        (("ctm", "em"), {}, "posterior is 'em'; expected one of .*hmc"),
        (("ctm",), {"num_sources": 2}, "num_sources is an option of iftm; leave it out with ctm"),
        (("ctm",), {"max_epochs": 2}, "max_epochs is an option of posterior hmc; leave it out"),
        (("ctm", "hmc"), {"restarts": 2}, "restarts is an option of variational EM; leave it"),
        (("ctm",), {"topics_update": "bound"}, "topics_update is an option of vb, ep; leave"),
        (("ctm",), {"colour": 1, "shape": 2}, "no model, posterior or engine takes colour"),
    ],
)
def test_unknown_options_are_refused(names, options, message):
    with pytest.raises(ConfigError, match=message):
        Recipe(*names).make(7, options={"num_topics": 3} | options)


def test_a_posterior_of_another_model_is_refused():
    with pytest.raises(IncompatibleGuideError):
        Recipe("lda", "taylor").make(7, options={"num_topics": 3})


def test_registered_models_take_options():
    made = Recipe("ctm").make(7, model_options={"num_topics": 3, "anchored": True})
    assert made.model.latent_dim == 2
    with pytest.raises(ConfigError, match="takes no anchord; did you mean anchored"):
        Recipe("ctm").make(7, model_options={"num_topics": 3, "anchord": True})


def documents(num_docs: int, num_words: int, length: int) -> Corpus:
    """Documents of ``length`` different words."""
    rows = np.arange(num_docs * length) // length
    columns = np.arange(num_docs * length) * 7919 % num_words
    counts = sp.csr_matrix((np.ones(len(rows), int), (rows, columns)), (num_docs, num_words))
    return Corpus.from_matrix(counts)


@pytest.mark.parametrize(
    ("model", "num_topics", "length", "smoothing"),
    [
        ("ctm", 50, 10, 0.05 * 0.02),
        ("ctm", 50, 200, 0.05 * 0.4),
        ("ctm", 5, 200, 0.05),
        ("lntm", 50, 10, None),
        ("stm", 50, 10, 0.05 * 0.02),
        ("iftm", 50, 10, 0.05 * 0.02),
        ("lda", 50, 200, 0.05 * 0.4),
    ],
)
def test_auto_chooses_chains_and_the_smoothing(model, num_topics, length, smoothing) -> None:
    corpus = documents(100, 1000, length)
    chosen = Recipe(model, "auto").for_corpus(corpus, num_topics)
    assert chosen == Recipe(model, "hmc")
    expected = {} if smoothing is None else {"topic_smoothing": pytest.approx(smoothing)}
    assert chosen.options == expected
    assert chosen.reason == "Monte-Carlo EM"


@pytest.mark.parametrize(("visits", "epochs"), [(45_000, None), (44_999, 44), (6_000, 6), (10, 4)])
def test_auto_chooses_fewer_epochs_for_large_corpora(monkeypatch, visits, epochs) -> None:
    corpus = documents(100, 1000, 10)
    monkeypatch.setattr(recipes, "MAX_VISITS", visits)
    chosen = Recipe("ctm", "auto").for_corpus(corpus, 5)
    assert chosen == Recipe("ctm", "hmc")
    assert chosen.options.get("max_epochs") == epochs
    if epochs is not None:
        expected = f"Monte-Carlo EM, by default {epochs} epochs at most, for 1,000 tokens"
        assert chosen.reason == expected
        engine = chosen.make(1000, options={"num_topics": 5}).engine
        assert engine.max_epochs == epochs
    # Whoever names the posterior gets its defaults.
    assert "max_epochs" not in Recipe("ctm", "hmc").for_corpus(corpus, 5).options


def test_only_auto_is_replaced_and_must_be() -> None:
    chosen = Recipe("ctm", "laplace").for_corpus(documents(10, 100, 5), 3)
    assert (chosen, chosen.reason) == (Recipe("ctm", "laplace"), None)
    given = {"tolerance": 1e-6, "topic_smoothing": 0.01}
    chosen = Recipe("ctm", "laplace", given).for_corpus(documents(10, 100, 5), 3)
    assert chosen.options == given
    with pytest.raises(ConfigError, match="for_corpus"):
        Recipe("ctm", "auto").make(10, options={"num_topics": 3})


def test_devices_are_found_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") == find_device("cpu") == torch.device("cpu")
    corpus = documents(3, 5, 2)
    for ask in (find_device, corpus.batch().to, lntm.models.ctm(2, 5).to):
        with pytest.raises(ConfigError, match="device cuda: torch finds no CUDA device"):
            ask("cuda")
    with pytest.raises(ConfigError, match="device cuda: torch finds no CUDA device"):
        corpus.batch(device="cuda")
    with pytest.raises(ConfigError, match="device 'gpu'; expected auto"):
        find_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert find_device("auto") == torch.device("cuda")
    assert find_device("cuda:1") == torch.device("cuda:1")
