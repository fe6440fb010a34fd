"""Random terms of effects: restricted maximum likelihood, against dense matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.effects import estimate
from torch_lntm.errors import ConfigError
from torch_lntm.models import TopicModel

NUM_TOPICS, NUM_DOCS = 3, 80


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng = np.random.default_rng(0)
    authors = np.concatenate([np.arange(10), rng.integers(0, 10, NUM_DOCS - 10)])
    metadata = {
        "author": [f"a{i}" for i in authors],
        "party": [("Left", "Right")[i % 2] for i in authors],
        "year": np.concatenate([[2000, 2001, 2002], rng.integers(2000, 2003, NUM_DOCS - 3)]),
        "age": rng.uniform(20, 60, NUM_DOCS),
    }
    return Corpus.from_matrix(rng.poisson(2.0, (NUM_DOCS, 6)) + 1, metadata=metadata)


@pytest.fixture(scope="module")
def model(corpus) -> TopicModel:
    return lntm.models.ctm(NUM_TOPICS, corpus.num_words)


@pytest.fixture(scope="module")
def theta(corpus) -> torch.Tensor:
    rng = np.random.default_rng(1)
    eta = rng.normal(size=(NUM_DOCS, NUM_TOPICS))
    for name in ("author", "year"):
        at = np.unique(corpus.metadata[name], return_inverse=True)[1]
        eta += rng.normal(0, 0.8, (at.max() + 1, NUM_TOPICS))[at]
    return torch.softmax(torch.from_numpy(eta), -1)


def linear(*arguments: Any, **options: Any) -> Any:
    return estimate(*arguments, link="identity", **options)


def random_of(effects: Any) -> Any:
    return effects.regression.random


def one_hot(column: Any) -> np.ndarray:
    levels, at = np.unique(column, return_inverse=True)
    return np.eye(len(levels))[at]


def test_one_draw_is_restricted_maximum_likelihood(corpus, model, theta) -> None:
    weights = np.random.default_rng(2).uniform(0.5, 2, NUM_DOCS)
    formula = "~ party + age + (1 | year) + (1 | author)"
    two = theta.expand(2, -1, -1)
    effects = linear(model, two, corpus, formula, weights=weights)
    assert "random effects of year and author" in repr(effects)
    party = np.array(corpus.metadata["party"]) == "Right"
    x = np.column_stack([np.ones(NUM_DOCS), party, corpus.metadata["age"]])
    blocks = [one_hot(corpus.metadata["year"]), one_hot(corpus.metadata["author"])]
    noise = np.diag(weights.mean() / weights)
    for k in range(NUM_TOPICS):
        y = theta[:, k].numpy()

        def covariance(logs: np.ndarray) -> np.ndarray:
            parts = (np.exp(s) * z @ z.T for s, z in zip(logs[:2], blocks, strict=True))
            return sum(parts) + np.exp(logs[2]) * noise

        def loss(logs: np.ndarray, y: np.ndarray = y) -> float:
            inverse = np.linalg.inv(covariance(logs))
            information = x.T @ inverse @ x
            beta = np.linalg.solve(information, x.T @ inverse @ y)
            residual = y - x @ beta
            log_dets = np.linalg.slogdet(information)[1] - np.linalg.slogdet(inverse)[1]
            return 0.5 * (log_dets + residual @ inverse @ residual)

        found = scipy.optimize.minimize(
            loss,
            [-4.0, -4.0, -3.0],
            method="Nelder-Mead",
            options={"xatol": 1e-6, "fatol": 1e-9, "maxiter": 4000},
        )
        assert random_of(effects) is not None
        spread = [*effects.regression.spread[k].tolist(), float(random_of(effects).residual[k])]
        # At the maximum up to the tolerance of the variances.
        assert loss(2 * np.log(spread)) < found.fun + 1e-4
        v = covariance(2 * np.log(spread))
        information = x.T @ np.linalg.solve(v, x)
        beta = np.linalg.solve(information, x.T @ np.linalg.solve(v, y))
        rows = effects.table()[3 * k : 3 * k + 3]
        found = [[row.estimate, row.standard_error] for row in rows]
        expected = np.column_stack([beta, np.sqrt(np.diag(np.linalg.inv(information)))])
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        solved = np.linalg.solve(v, y - x @ beta)
        best = np.concatenate(
            [s**2 * z.T @ solved for s, z in zip(spread[:2], blocks, strict=True)]
        )
        np.testing.assert_allclose(random_of(effects).effects[k], best, rtol=1e-5, atol=1e-8)
    levels = effects.levels("author")
    assert [effect.term for effect in levels[:2]] == ["author[a0]", "author[a1]"]
    assert [effect.estimate for effect in levels[:10]] == pytest.approx(
        random_of(effects).effects[0, 3:].tolist()
    )
    assert "Standard deviations of effects" in effects.summary()


def test_balanced_levels_give_the_variances_of_the_analysis_of_variance(corpus, model) -> None:
    size, num_levels = 8, 10
    rng = np.random.default_rng(3)
    author = np.repeat(np.arange(num_levels), size)
    eta = rng.normal(0, 0.4, (80, 3)) + rng.normal(0, 0.7, (num_levels, 3))[author]
    theta = torch.softmax(torch.from_numpy(eta), -1)
    balanced = corpus.with_metadata({"author": author})
    effects = linear(model, theta.expand(2, -1, -1), balanced, "~ (1 | author)")
    table = theta.numpy().reshape(num_levels, size, 3)
    within = table.var(1, ddof=1).mean(0)
    between = table.mean(1).var(0, ddof=1)
    assert random_of(effects) is not None
    np.testing.assert_allclose(random_of(effects).residual ** 2, within, rtol=1e-3)
    np.testing.assert_allclose(
        effects.regression.spread[:, 0] ** 2, between - within / size, rtol=5e-3
    )
    # The interval of the mean is the exact interval of the levels' means.
    for row, variance in zip(effects.table(), between, strict=True):
        assert row.standard_error == pytest.approx((variance / num_levels) ** 0.5, rel=1e-3)
        assert row.freedom == pytest.approx(9)
    assert {round(row.freedom, 6) for row in effects.levels("author")} == {9.0}


def test_levels_without_effect_leave_the_linear_regression(corpus, model) -> None:
    rng = np.random.default_rng(4)
    author = np.repeat(np.arange(10), 8)
    noise = rng.normal(size=(80, 3))
    noise = noise - noise.reshape(10, 8, 3).mean(1)[author]
    theta = torch.softmax(torch.from_numpy(0.1 * noise), -1).expand(2, -1, -1)
    theta = theta - theta.view(2, 10, 8, 3).mean(2)[:, author] + 1 / 3
    documents = corpus.with_metadata({"author": author})
    mixed = linear(model, theta, documents, "~ age + (1 | author)")
    plain = linear(model, theta, documents, "~ age", standard_errors="classical")
    for row, twin in zip(mixed.table(), plain.table(), strict=True):
        assert row.estimate == pytest.approx(twin.estimate, rel=1e-4)
        assert row.standard_error == pytest.approx(twin.standard_error, rel=1e-3)


def test_degrees_of_freedom_follow_the_containment_rule(corpus, model, theta) -> None:
    effects = linear(model, theta.expand(2, -1, -1), corpus, "~ party + age + (1 | author)")
    # Intercept and party are constant within the 10 authors; age varies.
    rows = effects.table()
    assert [row.freedom for row in rows[:2]] == pytest.approx([8.0, 8.0])
    assert rows[2].freedom > 60
    wide = effects.difference("party", "Left", "Right")[0]
    assert wide.freedom == pytest.approx(8)
    assert {round(row.freedom, 6) for row in effects.levels("author")} == {8.0}


def test_levels_are_text_and_a_data_frame(corpus, model, theta) -> None:
    effects = linear(model, theta.expand(2, -1, -1), corpus, "~ party + (1 | author)")
    levels = effects.levels("author")
    lines = [line.split() for line in effects.format(levels).splitlines() if "[a3]" in line]
    assert len(lines) == NUM_TOPICS
    assert [float(cell) for cell in lines[0][2:6:3]] == pytest.approx(
        [levels[3].estimate, 8], rel=1e-3
    )
    assert list(effects.frame(levels)["term"]) == [level.term for level in levels]


def test_robust_errors_clusters_and_linear_predictions_of_levels_are_refused(
    corpus, model, theta
) -> None:
    draws, formula = theta.expand(2, -1, -1), "~ party + (1 | author)"
    for settings in ({"clusters": "author"}, {"standard_errors": "HC3"}):
        with pytest.raises(ConfigError, match="standard errors are those of the model"):
            linear(model, draws, corpus, formula, **settings)
    effects = linear(model, draws, corpus, formula, standard_errors="classical")
    with pytest.raises(ConfigError, match="no random term of 'year'"):
        effects.levels("year")
    with pytest.raises(ConfigError, match=r"levels\('author'\), or estimate with link='logit'"):
        effects.predict("author")


def test_2000_levels_make_no_dense_columns(model) -> None:
    rng = np.random.default_rng(5)
    authors = np.concatenate([np.arange(2000), rng.integers(0, 2000, 3000)])
    corpus = Corpus.from_matrix(np.ones((5000, 6)), metadata={"author": authors})
    eta = rng.normal(size=(2, 5000, 3)) + 0.7 * rng.normal(size=(2000, 3))[authors]
    theta = torch.softmax(torch.from_numpy(eta), -1)
    effects = linear(model, theta, corpus, "~ (1 | author)")
    within = theta.var(1).mean(0)
    assert random_of(effects) is not None
    share = effects.regression.spread[:, 0] ** 2 / within
    # The share of variance between authors is 0.49/1.49 on eta's scale, a little less on theta's.
    assert ((share > 0.2) & (share < 0.45)).all()
