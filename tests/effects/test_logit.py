"""Predictions by the multinomial logit, against closed forms, derivatives and loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.effects import Effects, estimate
from torch_lntm.errors import ConfigError, CorpusWarning
from torch_lntm.models import TopicModel

NUM_TOPICS, NUM_DOCS, NUM_DRAWS = 4, 90, 6


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng = np.random.default_rng(0)
    metadata = {
        "party": np.repeat(["Left", "Middle", "Right"], NUM_DOCS // 3),
        "age": rng.uniform(20, 60, NUM_DOCS),
        "blog": rng.integers(0, 15, NUM_DOCS),
    }
    return Corpus.from_matrix(rng.poisson(2.0, (NUM_DOCS, 8)) + 1, metadata=metadata)


@pytest.fixture(scope="module")
def model(corpus) -> TopicModel:
    return lntm.models.ctm(NUM_TOPICS, corpus.num_words)


@pytest.fixture(scope="module")
def theta(corpus) -> torch.Tensor:
    """Draws in which topic 0 is rare."""
    rng = np.random.default_rng(1)
    age = (corpus.metadata["age"] - 40) / 10
    eta = rng.normal([-4.0, 0.0, 0.0, 1.0], 1.0, (NUM_DOCS, NUM_TOPICS))
    eta[:, 1] += 0.8 * age
    eta = eta + 0.3 * rng.normal(size=(NUM_DRAWS, NUM_DOCS, NUM_TOPICS))
    return torch.softmax(torch.from_numpy(eta), -1)


def make(model: TopicModel, theta: torch.Tensor, corpus: Corpus, formula: str, **settings: Any):
    return estimate(model, theta, corpus, formula, **settings)


def test_a_saturated_logit_equals_the_linear_regression_on_its_own_scale(
    corpus, model, theta
) -> None:
    # Standard errors are those of the mean draw, so draws that differ little agree.
    theta = theta.mean(0) + 0.01 * (theta - theta.mean(0))
    effects = make(model, theta, corpus, "~ party", standard_errors="HC1")
    pairs = [
        (effects.predict("party"), effects.predict("party", link="identity")),
        (
            effects.difference("party", "Left", "Right"),
            effects.difference("party", "Left", "Right", link="identity"),
        ),
    ]
    for logit, linear in pairs:
        for a, b in zip(logit, linear, strict=True):
            assert a.estimate == pytest.approx(b.estimate, abs=1e-5)
            assert a.standard_error == pytest.approx(b.standard_error, rel=1e-4)
            assert a.freedom == pytest.approx(b.freedom, rel=1e-3)


def test_predictions_and_ends_stay_inside_and_sum_to_1(corpus, model, theta) -> None:
    effects = make(model, theta, corpus, "~ age", groups={"all but 3": [0, 1, 2]})
    assert effects.topics == ("all but 3",)
    both = make(model, theta, corpus, "~ age", topics=[0, 1, 2, 3], groups={"all but 3": [0, 1, 2]})
    points = both.predict(age=[0.0, 40.0, 300.0], link="logit")
    table = np.array([p.estimate for p in points]).reshape(5, 3)
    np.testing.assert_allclose(table[:4].sum(0), 1.0, rtol=1e-10)
    np.testing.assert_allclose(table[4], table[:3].sum(0), rtol=1e-10)
    assert all(0 <= p.lower < p.estimate < p.upper <= 1 for p in points)
    # The complement of a prediction has the mirrored interval.
    for mirrored, group in zip(points[9:12], points[12:], strict=True):
        assert group.lower == pytest.approx(1 - mirrored.upper, abs=1e-9)
    far = both.difference("age", 300.0, -300.0, link="logit")
    assert all(-1 <= p.lower <= p.estimate <= p.upper <= 1 for p in far)
    # The line leaves the unit interval.
    assert any(not 0 <= p.lower <= p.upper <= 1 for p in both.predict(age=[300.0], link="identity"))


def oracle(
    x: np.ndarray, theta: np.ndarray, weights: np.ndarray, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of each draw, and their mean sandwich covariance, by loops."""
    num_terms, size = x.shape[1], x.shape[1] * (NUM_TOPICS - 1)
    everything, within = [], np.zeros((size, size))
    for draw in theta:
        b = np.zeros(size)
        for _ in range(50):
            scores, information = np.zeros((len(x), size)), np.zeros((size, size))
            for d, row in enumerate(x):
                z = np.exp([*(row @ b.reshape(-1, num_terms).T), 0.0])
                p = (z / z.sum())[:-1]
                scores[d] = weights[d] * np.kron(draw[d, :-1] - p, row)
                information += weights[d] * np.kron(np.diag(p) - np.outer(p, p), np.outer(row, row))
            b = b + np.linalg.solve(information, scores.sum(0))
        everything.append(b)
        sums = np.stack([scores[groups == g].sum(0) for g in np.unique(groups)])
        inverse = np.linalg.inv(information)
        within += inverse @ sums.T @ sums @ inverse / len(theta)
    return np.array(everything), within


@pytest.mark.slow
@pytest.mark.parametrize("clustered", [False, True])
def test_coefficients_and_covariances_equal_loops_over_documents(
    corpus, model, theta, clustered
) -> None:
    weights = np.random.default_rng(2).uniform(0.5, 2, NUM_DOCS)
    blogs = corpus.metadata["blog"]
    settings = {"clusters": "blog"} if clustered else {}
    effects = make(model, theta, corpus, "~ party + age", weights=weights, **settings)
    one = theta[:1].expand(2, -1, -1)
    of_one = make(model, one, corpus, "~ party + age", weights=weights, **settings)
    party = corpus.metadata["party"]
    x = np.column_stack(
        [np.ones(NUM_DOCS), party == "Middle", party == "Right", corpus.metadata["age"]]
    )
    groups = blogs if clustered else np.arange(NUM_DOCS)
    draws, _ = oracle(x, theta.numpy(), weights / weights.mean(), groups)
    _, within = oracle(x, theta[:1].numpy(), weights / weights.mean(), groups)
    scale = NUM_DOCS / (NUM_DOCS - 4)
    if clustered:
        count = len(np.unique(blogs))
        scale = count / (count - 1) * (NUM_DOCS - 1) / (NUM_DOCS - 4)
    found = effects.logit
    mean = found.coefficients[:, :-1].mT.flatten().numpy()
    np.testing.assert_allclose(mean, draws.mean(0), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found.deviations, draws - draws.mean(0), atol=2e-4)
    np.testing.assert_allclose(of_one.logit.within, scale * within, rtol=1e-3, atol=1e-7)


def test_standard_errors_are_the_delta_method_of_averaged_predictions(corpus, model, theta) -> None:
    effects: Effects = make(model, theta, corpus, "~ party * age")
    logit, party = effects.logit, "Right"
    age = torch.tensor(corpus.metadata["age"])
    ones = torch.ones_like(age)
    x = torch.stack([ones, 0 * ones, ones, age, 0 * age, age], 1)

    def average(flat: torch.Tensor) -> torch.Tensor:
        coefficients = torch.cat([flat.view(NUM_TOPICS - 1, 6).mT, torch.zeros(6, 1)], 1)
        return torch.softmax(x @ coefficients, -1).mean(0)

    flat = logit.coefficients[:, :-1].mT.flatten()
    slopes = torch.autograd.functional.jacobian(average, flat)
    within = (slopes @ logit.within @ slopes.mT).diagonal()
    between = (logit.deviations @ slopes.mT).var(0)
    error = (within + (1 + 1 / NUM_DRAWS) * between).sqrt()
    for k, point in enumerate(effects.predict(party=party, link="logit")):
        assert point.estimate == pytest.approx(float(average(flat)[k]), rel=1e-9)
        assert point.standard_error == pytest.approx(float(error[k]), rel=1e-6)


def test_draws_far_from_their_mean_solve_their_equations(corpus, model) -> None:
    """Only a draw of ten knows topic 0. The coefficients of constants are logs of ratios."""
    theta = torch.tensor([0.001, 0.3, 0.3, 0.399]).double().repeat(10, NUM_DOCS, 1)
    theta[7] = torch.tensor([0.97, 0.01, 0.01, 0.01]).double()
    found = make(model, theta, corpus, "~ 1").logit
    expected = (theta / theta[..., -1:]).log()[:, 0, :-1]
    torch.testing.assert_close(found.coefficients[0, :-1], expected.mean(0), rtol=0, atol=1e-3)
    deviations = expected - expected.mean(0)
    torch.testing.assert_close(found.deviations, deviations, rtol=0, atol=1e-3)


def test_separation_is_named(corpus, model, theta) -> None:
    theta = theta.clone()
    left = torch.tensor((corpus.metadata["party"] == "Left").to_numpy())
    theta[:, left, 2] = 1e-12
    theta = theta / theta.sum(-1, keepdim=True)
    effects = make(model, theta, corpus, "~ party")
    with pytest.warns(CorpusWarning, match=r"separates documents without the topics 2"):
        points = effects.predict("party", link="logit")
    assert all(0 <= p.lower <= p.upper <= 1 for p in points)


def test_unknown_links_and_too_many_coefficients_are_refused(
    corpus, model, theta, monkeypatch
) -> None:
    effects = make(model, theta, corpus, "~ party")
    with pytest.raises(ConfigError, match="link is 'probit'"):
        effects.predict("party", link="probit")  # type: ignore[arg-type]
    monkeypatch.setattr("torch_lntm.effects.logit.MAX_COEFFICIENTS", 8)
    with pytest.raises(ConfigError, match="the logit has 9 coefficients"):
        effects.predict("party", link="logit")


def test_a_large_logit_is_left_out_by_default(corpus, model, theta, monkeypatch) -> None:
    effects = make(model, theta, corpus, "~ party + age")
    logit, linear = (effects.predict(age=50.0, link=link) for link in ("logit", "identity"))
    assert effects.predict(age=50.0) == logit != linear
    monkeypatch.setattr("torch_lntm.effects.result.MAX_BY_DEFAULT", 11)
    assert effects.predict(age=50.0) == linear
