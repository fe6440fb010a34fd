"""Stability of topics over new fits: similarities to the partners, printed and reported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import align_topics
from torch_lntm.inference import VariationalEM
from torch_lntm.models import TopicModel, ctm, stm

WORDS = tuple(f"word{v}" for v in range(40))
QUICK = {"max_iterations": 3, "stepwise_epochs": 2, "start_epochs": 2}


@pytest.fixture(scope="module")
def fitted() -> tuple[TopicModel, Any, Any]:
    """Three topics over words of their own, and a fit to a corpus of them."""
    probs = torch.full((3, 40), 0.002)
    for k in range(3):
        probs[k, 12 * k : 12 * k + 12] += torch.rand(12, generator=torch.Generator().manual_seed(k))
    truth = ctm(3, 40, topics=probs / probs.sum(1, keepdim=True), vocabulary=WORDS)
    corpus, _ = truth.generate([40] * 150, seed=0)
    model = ctm(3, 40, vocabulary=WORDS)
    guide = lntm.guides.TaylorGuide(model)
    result = VariationalEM(model, guide, progress=False, **QUICK).fit(corpus)
    model.topic_names = {1: "middle"}
    return model, corpus, result


@pytest.mark.slow
def test_clear_topics_are_found_by_all_fits(fitted: Any, tmp_path: Any) -> None:
    model, corpus, result = fitted
    found = lntm.topic_stability(result, corpus, 2, options=QUICK)
    assert found["by_seed"].min() > 0.95
    assert 0.9 < found["by_resample"].min() <= found["by_resample"].max() < 1
    assert found["found_by_resample"].tolist() == [1.0] * 3
    assert found["name"][1] == "middle"
    assert found["nearest"].max() < 0.8
    assert found.equals(lntm.topic_stability(result, corpus, 2, options=QUICK))
    assert model.topic_names[1] == "middle"
    path = lntm.report(result, corpus, tmp_path / "a.html", stability=found, num_draws=2)
    page = path.read_text(encoding="utf-8")
    assert "Stability of the topics" in page
    assert f"{found['by_resample'][1]:.2f}" in page


@pytest.mark.slow
def test_similarities_are_those_of_an_aligned_fit(fitted: Any) -> None:
    model, corpus, _ = fitted
    found = lntm.topic_stability(model, corpus, 1, posterior="taylor", options=QUICK, seed=5)
    twin = ctm(3, 40, vocabulary=WORDS, seed=5)
    engine = VariationalEM(twin, lntm.guides.TaylorGuide(twin), progress=False, seed=5, **QUICK)
    engine.fit(corpus)
    similarity = align_topics(model, twin).similarity
    np.testing.assert_allclose(found["by_seed"], similarity, rtol=1e-6)
    # The seed of the fit is not used again.
    found = lntm.topic_stability(model, corpus, 1, posterior="taylor", options=QUICK, seed=0)
    assert (found["by_seed"] < 1 - 1e-9).any()


@pytest.mark.slow
def test_topics_without_a_counterpart_in_the_words_are_not_found(fitted: Any) -> None:
    _, corpus, _ = fitted
    # Five topics where the words have three: some are copies of others.
    model = ctm(5, 40, vocabulary=WORDS)
    engine = VariationalEM(model, lntm.guides.TaylorGuide(model), progress=False, **QUICK)
    found = lntm.topic_stability(engine.fit(corpus), corpus, 2, options=QUICK)
    assert found["by_seed"].mean() < 0.97
    assert found["nearest"].max() > 0.6


def test_a_model_with_covariates_is_fitted_again() -> None:
    corpus, _ = ctm(2, 40, vocabulary=WORDS).generate([30] * 40, seed=0)
    corpus = corpus.with_metadata({"party": np.array(["a", "b"] * 20, object)})
    model = stm(2, corpus, "~ party", content="party")
    stability = lntm.topic_stability(model, corpus, 1, posterior="taylor", options=QUICK)
    assert stability["by_resample"].between(0, 1).all()


def test_a_model_of_no_constructor_and_wrong_numbers_are_refused(fitted: Any) -> None:
    model, corpus, _ = fitted
    with pytest.raises(ConfigError, match="no registered constructor"):
        lntm.topic_stability(model.with_parts(), corpus)
    with pytest.raises(ConfigError, match="num_fits is 0"):
        lntm.topic_stability(model, corpus, 0)
