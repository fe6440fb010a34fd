"""Effects on outcomes: contrasts, settings and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import torch_lntm as lntm
from torch_lntm.errors import ConfigError, CorpusError
from torch_lntm.reports.page import render_page


def make_posts(**columns: Any) -> lntm.Corpus:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(12, rng.dirichlet(np.full(10, 0.3), 40))
    metadata = {"y": rng.normal(size=40), "x": rng.normal(size=40), "one": np.arange(40) % 2}
    return lntm.Corpus.from_matrix(counts, metadata=metadata | columns)


@pytest.mark.filterwarnings("ignore::torch_lntm.errors.ConvergenceWarning")
def test_effects_are_contrasts_of_expected_outcomes() -> None:
    model = lntm.models.ctm(3, 10, seed=1)
    settings: Any = {"num_draws": 6, "warmup_steps": 2, "groups": {"two": [0, 2]}}
    found = lntm.outcomes.estimate(model, make_posts(), "y ~ topics + x", **settings)
    at, w = found.coefficients.mean((0, 1)), found.shares
    both = (w[0] * at[0] + w[2] * at[2]) / (w[0] + w[2])
    frame = found.frame().set_index("term")["estimate"]
    assert frame["topic 1"] == pytest.approx(at[1] - both)
    assert frame["two"] == pytest.approx(both - at[1])
    assert frame["x"] == pytest.approx(at[3])
    against = found.frame(reference="two", per=0.1).set_index("term")["estimate"]
    assert against["topic 0"] == pytest.approx(0.1 * (at[0] - both))
    assert "two" not in against
    assert "worst R-hat" in repr(found)


@pytest.mark.filterwarnings("ignore::torch_lntm.errors.ConvergenceWarning")
def test_the_report_says_what_the_largest_effect_means() -> None:
    model, posts = lntm.models.ctm(3, 10, seed=1), make_posts()
    settings: Any = {"num_draws": 6, "warmup_steps": 2, "family": "binomial"}
    found = lntm.outcomes.estimate(model, posts, "one ~ topics + x", **settings)
    guide = lntm.guides.TaylorGuide(model)
    page = render_page(guide, posts, outcomes=found, num_docs=0, progress=False)
    at = found.coefficients.mean((0, 1))[:3]
    effects = [
        at[k] - np.average(np.delete(at, k), weights=np.delete(found.shares, k)) for k in range(3)
    ]
    topic = int(np.argmax(np.abs(effects)))
    change = "higher" if effects[topic] > 0 else "lower"
    assert f"points more of topic {topic}, and less" in page
    assert f"has the log odds of one {change} by {abs(effects[topic]) / 10:.3g} in" in page
    ax = found.plot(per=0.1)
    assert [label.get_text() for label in ax.get_yticklabels()] == [f"topic {k}" for k in range(3)]
    np.testing.assert_allclose(ax.lines[0].get_xdata(), np.array(effects) / 10)


@pytest.mark.parametrize(
    ("formula", "family", "message"),
    [
        ("topics + x", "normal", "expected an outcome and columns"),
        ("y ~ x", "normal", "expected 'topics' once"),
        ("y ~ topics * x", "normal", "without interactions"),
        ("y ~ topics + (1 | one)", "normal", "random term"),
        ("y ~ 0 + topics + x", "normal", "leaves out the intercept"),
        ("y ~ topics + x + I(2 * x)", "normal", "is determined by"),
        ("y ~ topics", "binomial", "both 0 and 1"),
        ("y ~ topics", "poisson", "counts from 0"),
        ("side ~ topics", "normal", "Of two classes, make a column of 0 and 1"),
        ("one ~ topics", "gamma", "expected one of normal, binomial, poisson"),
    ],
)
def test_refusals(formula: str, family: Any, message: str) -> None:
    posts = make_posts(side=["l", "r"] * 20)
    with pytest.raises(ConfigError, match=message):
        lntm.outcomes.estimate(lntm.models.ctm(3, 10), posts, formula, family=family)


def test_missing_outcomes_are_refused() -> None:
    y = np.where(np.arange(40) == 7, np.nan, 1.0 * np.arange(40))
    with pytest.raises(CorpusError, match="document 7"):
        lntm.outcomes.estimate(lntm.models.ctm(3, 10), make_posts(y=y), "y ~ topics")
