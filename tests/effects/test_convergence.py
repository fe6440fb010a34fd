"""Agreement of chains on effects, and intervals that count the effective draws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.effects import estimate
from torch_lntm.errors import ConfigError
from torch_lntm.inference import ThetaDraws

NUM_DOCS, EACH, CHAINS = 60, 50, 4


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    x = np.arange(NUM_DOCS) % 2
    return Corpus.from_matrix(np.ones((NUM_DOCS, 5), int), metadata={"x": x})


def draws_of(apart: float, num_chains: int = CHAINS) -> ThetaDraws:
    """Draws in turn of chains, the last of which is apart in the effect of x on topic 0."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(EACH, CHAINS, 1, 3)) * 0.1
    logits = rng.normal(size=(1, 1, NUM_DOCS, 3)) + noise * (np.arange(NUM_DOCS) % 2)[:, None]
    logits[:, -1, 1::2, 0] += apart
    theta = torch.softmax(torch.from_numpy(logits).flatten(0, 1), -1)
    drawn = ThetaDraws.of(theta, lntm.models.ctm(3, 5))
    return replace(drawn, num_chains=num_chains)


def fit(draws: Any, corpus: Corpus, **options: Any) -> Any:
    return estimate(draws.model, draws, corpus, "~ x", progress=False, **options)


@pytest.mark.parametrize("link", ["logit", "identity"])
def test_rhat_and_effective_draws_are_those_of_each_draws_effect(corpus, link) -> None:
    """Effects of x are differences of means, which the logit linearises at their mean."""
    draws = draws_of(0.05)
    effects = fit(draws, corpus, link=link)
    theta = draws.theta.numpy()
    gaps = (theta[:, 1::2].mean(1) - theta[:, ::2].mean(1)).reshape(EACH, CHAINS, 3)
    split = np.concatenate([gaps[: EACH // 2], gaps[EACH // 2 :]], 1)
    within, between = split.var(0, ddof=1).mean(0), split.mean(0).var(0, ddof=1)
    n = EACH // 2
    rhat = np.sqrt(((n - 1) / n * within + between) / within)
    found = effects.convergence()
    assert found.columns.tolist() == ["topic", "term", "rhat", "ess"]
    of_x = found[found["term"] == "x"]
    np.testing.assert_allclose(of_x["rhat"], rhat, rtol=2e-3 if link == "logit" else 1e-9)
    assert of_x["ess"].between(60, 200).all()
    text = f"Over 4 chains: R-hat of the effects at most {found['rhat'].max():.2f}, and at least"
    assert text in repr(effects)
    # Rubin's rules for so many draws as the effective ones.
    row = effects.table().query("topic == 0 and term == 'x'").iloc[0]
    same = fit(replace(draws, num_chains=0), corpus, link=link)
    plain = same.table().query("topic == 0 and term == 'x'").iloc[0]
    size, m, b = of_x["ess"].iloc[0], EACH * CHAINS, gaps[..., 0].var(ddof=1)
    b_effective = b * (1 - 1 / m) / (1 - 1 / size)
    extra = (1 + 1 / size) * b_effective - (1 + 1 / m) * b
    gap = row["std_error"] ** 2 - plain["std_error"] ** 2
    assert gap == pytest.approx(extra, rel=0.04 if link == "logit" else 1e-8)
    assert row["df"] < plain["df"]
    assert "Over" not in repr(same)
    with pytest.raises(ConfigError, match="the draws are independent"):
        same.convergence()


def test_chains_apart_make_wide_intervals_and_say_so(corpus) -> None:
    effects = fit(draws_of(3.0), corpus)
    found = effects.convergence().query("topic == 0 and term == 'x'").iloc[0]
    assert found["rhat"] > 3
    assert found["ess"] < 8
    assert "The chains disagree, so intervals are unreliable" in repr(effects)
    by_chain = draws_of(3.0).theta.unflatten(0, (EACH, CHAINS)).transpose(0, 1).flatten(0, 1)
    moving = replace(ThetaDraws.of(by_chain, lntm.models.ctm(3, 5)), num_chains=1)
    assert "The chain has not settled, so" in repr(fit(moving, corpus))
    row = effects.table().query("topic == 0 and term == 'x'").iloc[0]
    half = scipy.stats.t.ppf(0.975, found["ess"] - 1) * row["std_error"]
    width = np.arctanh(row["upper"]) - np.arctanh(row["lower"])
    assert width / 2 * (1 - row["estimate"] ** 2) > 0.8 * half


def test_one_chain_and_few_draws(corpus) -> None:
    alone = fit(draws_of(0.0, 1), corpus)
    assert "Over 1 chain: R-hat" in repr(alone)
    assert "Further chains, from other starts" in repr(alone)
    draws = draws_of(0.0).take(num_draws=8)
    few = fit(draws, corpus)
    assert "Over" not in repr(few)
    plain = fit(replace(draws, num_chains=0), corpus)
    np.testing.assert_array_equal(few.table()["lower"], plain.table()["lower"])
    assert few.convergence()["rhat"].isna().all()
