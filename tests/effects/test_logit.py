"""Predictions by the multinomial logit, against closed forms, derivatives and loops."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.effects import Effects, estimate
from torch_lntm.effects.logit import _Equations
from torch_lntm.errors import ConfigError, CorpusWarning, UnreliableEstimateWarning
from torch_lntm.inference.interruption import propagate_interrupts
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


def test_predictions_and_ends_stay_inside_and_sum_to_1(corpus, model, theta) -> None:
    both = make(model, theta, corpus, "~ age", topics=[0, 1, 2, 3], groups={"all but 3": [0, 1, 2]})
    points = both.predict(age=[0.0, 40.0, 300.0])
    table = points["estimate"].to_numpy().reshape(5, 3)
    np.testing.assert_allclose(table[:4].sum(0), 1.0, rtol=1e-10)
    np.testing.assert_allclose(table[4], table[:3].sum(0), rtol=1e-10)
    assert points.eval("0 <= lower < estimate < upper <= 1").all()
    # The complement of a prediction has the mirrored interval.
    np.testing.assert_allclose(points["lower"][12:], 1 - points["upper"][9:12], atol=1e-9)
    far = both.difference("age", 300.0, -300.0)
    assert far.eval("-1 <= lower <= estimate <= upper <= 1").all()
    # The line leaves the unit interval.
    line = make(model, theta, corpus, "~ age", link="identity").predict(age=[300.0])
    assert not line.eval("0 <= lower <= upper <= 1").all()


def raw_of(effects: Effects) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coefficients of the formula's columns, topic by topic, their deviations and covariance."""
    logit, back = effects.regression, effects.design.back
    # By columns first in the regression, and by topics first here.
    every = torch.kron(back, torch.eye(NUM_TOPICS - 1).double())
    order = torch.arange(len(every)).view(len(back), -1).mT.flatten()
    every = every[order]
    inverse = logit.system.dense_inverse
    covariance = inverse @ logit.inner.dense @ inverse
    mean = (back @ logit.mean[0])[:, :-1].mT.flatten()
    parts = (mean, logit.deviations @ every.mT, every @ covariance @ every.mT)
    return tuple(part.numpy() for part in parts)


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
    mean, deviations, _ = raw_of(effects)
    np.testing.assert_allclose(mean, draws.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(deviations, draws - draws.mean(0), atol=1e-4)
    np.testing.assert_allclose(raw_of(of_one)[2], scale * within, rtol=1e-4, atol=1e-9)


def test_draws_far_from_their_mean_solve_their_equations(corpus, model) -> None:
    """Only a draw of ten knows topic 0. The coefficients of constants are logs of ratios."""
    theta = torch.tensor([0.001, 0.3, 0.3, 0.399]).double().repeat(10, NUM_DOCS, 1)
    theta[7] = torch.tensor([0.97, 0.01, 0.01, 0.01]).double()
    mean, deviations, _ = raw_of(make(model, theta, corpus, "~ 1"))
    expected = (theta / theta[..., -1:]).log()[:, 0, :-1].numpy()
    np.testing.assert_allclose(mean, expected.mean(0), atol=1e-5)
    np.testing.assert_allclose(deviations, expected - expected.mean(0), atol=1e-5)


def test_separation_is_named(corpus, model, theta) -> None:
    theta = theta.clone()
    left = torch.tensor((corpus.metadata["party"] == "Left").to_numpy())
    theta[:, left, 2] = 1e-12
    theta = theta / theta.sum(-1, keepdim=True)
    with pytest.warns(CorpusWarning, match=r"separates documents without the topics 2"):
        points = make(model, theta, corpus, "~ party").predict("party")
    assert points.eval("0 <= lower <= upper <= 1").all()


def test_too_many_coefficients_are_refused(corpus, model, theta, monkeypatch) -> None:
    monkeypatch.setattr("torch_lntm.effects.logit.MAX_COEFFICIENTS", 8)
    with pytest.raises(ConfigError, match=r"the logit has 9 coefficients.* Use link='identity'"):
        make(model, theta, corpus, "~ party")


def test_the_table_has_average_marginal_effects(corpus, model, theta) -> None:
    """Against automatic derivatives of the averages by hand; levels equal `difference`."""
    numbers = np.asarray(corpus.metadata["age"])
    odd = corpus.with_metadata(
        {"odd": np.arange(NUM_DOCS) % 2, "flag": np.arange(NUM_DOCS) % 3 == 0}
    )
    effects = make(model, theta, odd, "~ party * age + I(age**2) + odd + flag")
    table = effects.table().query("topic == 1").set_index("term")
    assert list(table.index) == list(effects.formula.names)
    levels = (("Middle", "party[T.Middle]"), ("Right", "party[T.Right]"))
    pairs = [(term, ("party", level, "Left")) for level, term in levels]
    pairs += [("odd", ("odd", 1, 0)), ("flag", ("flag", True, False))]
    for term, arguments in pairs:
        gap, names = effects.difference(*arguments), ["estimate", "std_error", "df", "lower"]
        np.testing.assert_allclose(table.loc[term, names], gap.loc[1, names], rtol=1e-9)
    reference, names = effects.predict(party="Left", flag=False, odd=0), ["estimate", "lower"]
    np.testing.assert_allclose(table.loc["Intercept", names], reference.loc[1, names], rtol=1e-9)
    mean, deviations, within = map(torch.from_numpy, raw_of(effects))
    party = np.asarray(corpus.metadata["party"])
    names = list(effects.formula.names)
    raw = torch.from_numpy(effects.design.raw)

    def average(flat: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
        """Average derivative of topic 1 along moves of the design."""
        coefficients = torch.cat([flat.view(NUM_TOPICS - 1, -1).mT, torch.zeros(len(names), 1)], 1)
        at = torch.softmax(raw @ coefficients, -1)
        along = moves @ coefficients
        return (at[:, 1] * (along[:, 1] - (at * along).sum(1))).mean()

    squared = names[[name.startswith("I(") for name in names].index(True)]
    of_age = torch.zeros_like(raw)
    of_age[:, names.index("age")] = 1
    of_age[:, names.index(squared)] = torch.from_numpy(2 * numbers)
    for level, _ in levels:
        of_age[:, names.index(f"party[T.{level}]:age")] = torch.from_numpy((party == level) * 1.0)
    for term in ("age", squared, "party[T.Right]:age"):
        alone = torch.zeros_like(raw)
        alone[:, names.index(term)] = 1
        moves = of_age if term == "age" else alone
        slope = torch.autograd.functional.jacobian(lambda flat, m=moves: average(flat, m), mean)
        between = (deviations @ slope).var() * (1 + 1 / NUM_DRAWS)
        error = float((slope @ within @ slope + between).sqrt())
        found = table.loc[term, ["estimate", "std_error"]]
        np.testing.assert_allclose(found, [float(average(mean, moves)), error], rtol=1e-5)


def test_levels_without_a_reference_are_expected_proportions(corpus, model, theta) -> None:
    effects = make(model, theta, corpus, "~ 0 + party + age")
    table, names = effects.table(), ["estimate", "std_error"]
    found, expected = table[table["term"].str.startswith("party")], effects.predict("party")
    np.testing.assert_allclose(found[names], expected[names], rtol=1e-9)


def test_effects_of_dates_and_offsets_are_those_of_small_numbers(corpus, model, theta) -> None:
    days = np.random.default_rng(5).integers(0, 7, NUM_DOCS)
    dates = (np.datetime64("2008-10-01") + days).astype(str)
    moved = corpus.with_metadata({"date": dates, "days": days, "t": 1e12 + days * 4096})
    small = make(model, theta, moved, "~ days").table().iloc[-1]
    for formula, scale in (("~ date", 1.0), ("~ t", 4096)):
        row = make(model, theta, moved, formula).table().iloc[-1]
        assert row.estimate * scale == pytest.approx(small.estimate, rel=1e-6)
        assert row.std_error * scale == pytest.approx(small.std_error, rel=1e-6)


@pytest.mark.parametrize("finished", [1, 3])
def test_ctrl_c_keeps_the_finished_draws(finished, corpus, model, theta, monkeypatch) -> None:
    move, calls = _Equations.move, itertools.count()

    def interrupted(*args: Any) -> Any:
        if next(calls) == finished:
            raise KeyboardInterrupt
        return move(*args)

    with monkeypatch.context() as patch:
        patch.setattr(_Equations, "move", interrupted)
        if finished < 2:
            with pytest.raises(KeyboardInterrupt):
                make(model, theta, corpus, "~ party * age")
            return
        with pytest.warns(UnreliableEstimateWarning, match="those of 3 draws of 6"):
            found = make(model, theta, corpus, "~ party * age")
    expected = make(model, theta[:finished], corpus, "~ party * age")
    assert (found.interrupted, expected.interrupted) == (True, False)
    assert "(3 draws)" in str(found.notes)
    pd.testing.assert_frame_equal(found.table(), expected.table(), rtol=1e-4, atol=1e-5)
    calls = itertools.count()
    monkeypatch.setattr(_Equations, "move", interrupted)
    with propagate_interrupts(), pytest.raises(KeyboardInterrupt):
        make(model, theta, corpus, "~ party * age")
