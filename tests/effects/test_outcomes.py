"""Sums, differences, ratios and log-ratios of topics as outcomes, against numpy and statsmodels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.effects import Effects, estimate
from torch_lntm.errors import ConfigError
from torch_lntm.models import TopicModel

NUM_DOCS, NUM_DRAWS = 150, 6
GROUPS = {"economy": [0, 1], "culture": ["war - peace"]}
NAMES = {1: "foreign policy", 2: "war - peace", 3: "war"}


@pytest.fixture(scope="module")
def model() -> TopicModel:
    model = lntm.models.ctm(5, 6)
    model.topic_names = NAMES
    return model


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng = np.random.default_rng(0)
    table = {
        "age": rng.normal(size=NUM_DOCS),
        "w": rng.uniform(0.5, 2, NUM_DOCS),
        "blog": rng.integers(0, 12, NUM_DOCS),
    }
    return Corpus.from_matrix(np.ones((NUM_DOCS, 6), int), metadata=table)


@pytest.fixture(scope="module")
def theta(corpus) -> np.ndarray:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(1, NUM_DOCS, 5)) + 0.5 * rng.normal(size=(NUM_DRAWS, NUM_DOCS, 5))
    logits[..., 0] += corpus.metadata["age"].to_numpy()
    return scipy.special.softmax(logits, -1)


def make(model: Any, theta: Any, corpus: Any, outcome: str, **options: Any) -> Effects:
    options = {"groups": GROUPS, "progress": False, **options}
    return estimate(model, theta, corpus, "~ age", outcome=outcome, **options)


def design(corpus: Corpus) -> np.ndarray:
    return np.column_stack([np.ones(NUM_DOCS), corpus.metadata["age"]])


#: Outcomes, and the same by numpy; sums and differences of two topics last.
OUTCOMES = {
    "log(economy / culture)": lambda t: np.log((t[0] + t[1]) / t[2]),
    "log(war / (war + topic 4))": lambda t: np.log(t[3] / (t[3] + t[4])),
    "(economy-war)/(economy+war)": lambda t: (t[0] + t[1] - t[3]) / (t[0] + t[1] + t[3]),
    "war - peace / (4 + foreign policy)": lambda t: t[2] / (t[4] + t[1]),
    "0 / (economy + culture)": lambda t: t[0] / (t[0] + t[1] + t[2]),
    "-economy + (war + culture)": lambda t: t[3] + t[2] - t[0] - t[1],
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_linear_regressions_are_those_of_each_draw_pooled(model, corpus, theta, outcome) -> None:
    """Least squares by numpy with HC3, of each draw's outcome, and Rubin's rules."""
    rows = make(model, theta, corpus, outcome, link="identity").table()
    x, y = design(corpus), OUTCOMES[outcome](np.moveaxis(theta, -1, 0))
    inverse = np.linalg.inv(x.T @ x)
    draws = y @ x @ inverse
    scaled = (y - draws @ x.T) / (1 - np.einsum("np,pq,nq->n", x, inverse, x))
    within = np.stack([np.diag(inverse @ (x.T * e**2) @ x @ inverse) for e in scaled])
    variance = within.mean(0) + (1 + 1 / NUM_DRAWS) * draws.var(0, ddof=1)
    np.testing.assert_allclose(rows["estimate"], draws.mean(0), rtol=1e-8)
    np.testing.assert_allclose(rows["std_error"] ** 2, variance, rtol=1e-8)
    assert rows["topic"].unique().tolist() == [outcome]


@pytest.mark.slow  # the import of statsmodels
@pytest.mark.filterwarnings("ignore:cov_type not fully supported")
@pytest.mark.parametrize("kind", ["HC1", "clusters"])
def test_a_share_is_a_fractional_logit(model, corpus, theta, kind) -> None:
    """Two equal draws, against a weighted binomial regression by statsmodels."""
    sm = pytest.importorskip("statsmodels.api")
    options = {"clusters": "blog"} if kind == "clusters" else {}
    one = theta[[0, 0]]
    effects = make(model, one, corpus, "0 / (economy + culture)", weights="w", **options)
    x, w = design(corpus), corpus.metadata["w"].to_numpy()
    y = one[0, :, 0] / one[0, :, :3].sum(1)
    fit = sm.GLM(y, x, sm.families.Binomial(), var_weights=w / w.mean()).fit(
        tol=1e-14,
        cov_type="cluster" if kind == "clusters" else "HC0",
        cov_kwds={"groups": corpus.metadata["blog"].to_numpy()} if kind == "clusters" else None,
    )
    scale = 1.0 if kind == "clusters" else np.sqrt(NUM_DOCS / (NUM_DOCS - 2))
    at = np.array([1.0, 2.5])
    eta, error = at @ fit.params, scale * np.sqrt(at @ fit.cov_params() @ at)
    found = effects.predict(age=2.5).iloc[0]
    mean = scipy.special.expit(eta)
    assert found["estimate"] == pytest.approx(mean, rel=1e-7)
    assert found["std_error"] == pytest.approx(mean * (1 - mean) * error, rel=1e-5)
    half = scipy.stats.t.ppf(0.975, effects.regression.freedom) * error
    ends = scipy.special.expit([eta - half, eta + half])
    assert found[["lower", "upper"]].tolist() == pytest.approx(ends, rel=1e-3)
    slope = w @ (fit.fittedvalues * (1 - fit.fittedvalues)) / w.sum() * fit.params[1]
    assert effects.table()["estimate"][1] == pytest.approx(slope, rel=1e-5)


def test_sums_and_differences_come_from_the_logit_of_all_topics(model, corpus, theta) -> None:
    groups = {"a": [0, 1], "b": [2], "both": [0, 1, 2]}
    each = estimate(model, theta, corpus, "~ age", groups=groups, progress=False)
    a, b, both = (each.predict(age=1.0).iloc[k] for k in range(3))
    gap = make(model, theta, corpus, "economy - culture").predict(age=1.0).iloc[0]
    assert gap["estimate"] == pytest.approx(a["estimate"] - b["estimate"], abs=1e-9)
    # Var(a − b) = 2 Var a + 2 Var b − Var(a + b)
    variance = 2 * a["std_error"] ** 2 + 2 * b["std_error"] ** 2 - both["std_error"] ** 2
    assert gap["std_error"] == pytest.approx(variance**0.5, rel=1e-6)
    whole = make(model, theta, corpus, "economy + culture").predict(age=1.0).iloc[0]
    columns = ["estimate", "std_error", "lower", "upper"]
    assert whole[columns].tolist() == pytest.approx(both[columns].tolist(), rel=1e-9)
    far = make(model, theta, corpus, "economy - culture").predict(age=[-60.0, 60.0], level=0.999)
    ends = far[["lower", "upper"]].to_numpy()
    assert np.abs(ends).max() <= 1
    assert ends.min() < 0 < ends.max()


def test_outcomes_have_pictures(model, corpus, theta) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    share = make(model, theta, corpus, "0 / economy")
    assert share.plot("age").get_ylabel() == "expected proportion, 95% intervals"
    ratio = make(model, theta, corpus, "0 / war", link="identity")
    assert ratio.plot("age").get_ylabel() == "expected value, 95% intervals"
    assert "linear regression of 0 / war in 150 documents" in repr(ratio)
    plt.close("all")


@pytest.mark.parametrize(
    ("outcome", "match"),
    [
        (" ", "expected sums and differences"),
        ("economy / (culture", "expected sums and differences"),
        ("0 / 1 / 2", "expected sums and differences"),
        ("economy (culture)", "expected sums and differences"),
        ("0 / 1 + 2", "expected sums and differences"),
        ("ecomony / culture", "'ecomony' is no topic; .* 'foreign policy', 'war - peace'"),
        ("5 / 0", "'5' is no topic; expected numbers from 0 to 4"),
        ("0 * 1", r"'\* 1' is no topic"),
        ("economy / (0 + 2)", "topic 0 is on both sides, but the numerator has other topics too"),
        ("economy / (1 + 0)", "the same number in every document"),
        ("economy - (1 + 0)", "the same number in every document"),
        ("0 + 1 + 2 + 3 + 4", "the same number in every document"),
        ("economy + foreign policy", "counts topic 1 twice"),
        ("0 / (1 - 2)", "a sum of topics in the denominator"),
        ("log(economy)", "expected a ratio in the logarithm"),
        ("log((0 - 1) / 2)", "expected sums of topics on both sides"),
        ("economy / culture", "between 0 and 1; use link='identity'"),
    ],
)
def test_other_expressions_are_refused(model, corpus, theta, outcome, match) -> None:
    with pytest.raises(ConfigError, match=match):
        make(model, theta, corpus, outcome)


def test_outcomes_without_a_value_are_refused(model, corpus, theta) -> None:
    zero = theta.copy()
    zero[1, 7, 2] = 0.0
    for outcome in ("0 / culture", "log(culture / 0)"):
        with pytest.raises(ConfigError, match="no value in document 7, counted from 0"):
            make(model, zero, corpus, outcome, link="identity")
    assert make(model, zero, corpus, " culture / (culture + 0)").topics[0][0] == "c"
    with pytest.raises(ConfigError, match="topics and outcome are given"):
        make(model, theta, corpus, "0 / economy", topics=[0])


def test_warnings_of_separation_name_what_is_absent(model, corpus, theta) -> None:
    half = np.arange(NUM_DOCS) % 2
    gone = np.where((half[:, None] == 1) & (np.arange(5) == 4), 1e-12, theta)
    gone /= gone.sum(-1, keepdims=True)
    halves = corpus.with_metadata({"half": half})
    for outcome, absent in (("economy - 4", "the topics 4:"), ("4 / (4 + 0)", r"4 / \(4 \+ 0\):")):
        options = {"groups": GROUPS, "progress": False, "outcome": outcome}
        with pytest.warns(lntm.errors.CorpusWarning, match=absent):
            estimate(model, gone, halves, "~ half", **options)
