"""Regressions by the public function, against statsmodels on centred columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.special

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.effects import Effects, estimate
from torch_lntm.errors import ConfigError, CorpusWarning

NUM_DOCS = 240
KINDS = ["classical", "HC1", "HC3", "clusters"]


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Columns with an offset of 1e12, and years, parties, clusters and weights."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "party": rng.choice(["A", "B", "C"], NUM_DOCS),
            "ts": 1e12 + rng.normal(size=NUM_DOCS),
            "year": rng.integers(2010, 2021, NUM_DOCS),
            "age": rng.normal(40, 10, NUM_DOCS),
            "blog": rng.integers(0, 12, NUM_DOCS),
            "w": rng.uniform(0.5, 2, NUM_DOCS),
        }
    )
    noise = rng.normal(size=NUM_DOCS) * (1 + (frame["party"] == "B"))
    effects = 0.3 * (frame["party"] == "B") + 0.2 * (frame["ts"] - 1e12) * (frame["party"] == "C")
    frame["y"] = scipy.special.expit(effects + 0.5 * noise - 1)
    return frame


#: Formula, the same columns centred, and the names of the coefficients that centring leaves alone.
DESIGNS = {
    "~ ts": lambda t: [t.ts - 1e12],
    "~ party * ts + age": lambda t: [
        *(t.party == "B", t.party == "C", t.ts - 1e12, t.age - 40),
        *((t.party == level) * (t.ts - 1e12) for level in "BC"),
    ],
    "~ 0 + party + ts": lambda t: [t.party == "B", t.party == "C", t.ts - 1e12],
    "~ year + I(year**2)": lambda t: [t.year - 2015, (t.year - 2015) ** 2],
    "~ party + bs(age, df=4)": None,
}


def x_of(formula: str, frame: pd.DataFrame) -> np.ndarray:
    make = DESIGNS[formula]
    if make is None:
        found, _ = lntm.formulas.Formula.fit(formula, frame)
        return found.matrix(frame)
    return np.column_stack([np.ones(len(frame)), *make(frame)]).astype(float)


def known(y: Any, frame: pd.DataFrame, formula: str, **options: Any) -> Effects:
    """Effects of known proportions: two equal draws of two topics."""
    theta = np.stack([np.stack([y, 1 - y], 1)] * 2)
    corpus = Corpus.from_matrix(np.ones((len(frame), 3), int), metadata=frame.to_dict("list"))
    return estimate(lntm.models.ctm(2, 3), theta, corpus, formula, topics=[0], **options)


def points_of(effects: Effects, frame: pd.DataFrame) -> np.ndarray:
    """Predictions and standard errors at the rows of a frame."""
    names = list(effects.formula.kinds)
    rows = frame[names].to_dict("records")
    found = pd.concat([effects.predict(**row) for row in rows])
    return found[["estimate", "std_error"]].to_numpy()


@pytest.mark.slow  # the import of statsmodels
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("formula", DESIGNS)
def test_linear_regressions_equal_statsmodels(table, formula, kind) -> None:
    sm = pytest.importorskip("statsmodels.api")
    options = {"clusters": "blog"} if kind == "clusters" else {"standard_errors": kind}
    effects = known(table.y, table, formula, weights="w", link="identity", **options)
    x = x_of(formula, table)
    fit = sm.WLS(table.y, x, table.w).fit(
        cov_type={"classical": "nonrobust", "clusters": "cluster"}.get(kind, kind),
        cov_kwds={"groups": table.blog} if kind == "clusters" else None,
    )
    few = [0, 100, 200]
    errors = np.sqrt(np.einsum("np,pq,nq->n", x[few], fit.cov_params(), x[few]))
    expected = np.column_stack([x[few] @ fit.params, errors])
    np.testing.assert_allclose(points_of(effects, table.iloc[few]), expected, rtol=1e-8)
    if formula == "~ party * ts + age":  # slopes stay, whatever is subtracted
        found = effects.table()[["estimate", "std_error"]][3:]
        expected = np.column_stack([fit.params, fit.bse])[3:]
        np.testing.assert_allclose(found, expected, rtol=1e-8)


def linearised(scores: np.ndarray, clusters: Any, strata: Any) -> np.ndarray:
    """Variance of a total by Taylor linearisation, as by R's package survey: a loop over strata."""
    found = np.zeros((scores.shape[1],) * 2)
    for stratum in np.unique(strata):
        at = strata == stratum
        totals = [scores[at & (clusters == c)].sum(0) for c in np.unique(clusters[at])]
        apart = np.array(totals) - np.mean(totals, axis=0)
        found += len(totals) / (len(totals) - 1) * apart.T @ apart
    return found


@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("link", ["identity", "logit"])
def test_strata_have_the_variances_of_a_survey(table, clustered, link) -> None:
    clusters = table.blog if clustered else pd.Series(table.index)
    strata = (table.blog % 3).map({0: "north", 1: "south", 2: "west"})
    # A stratum with a mean of its own: its variance between strata is none of the sample's.
    y = np.clip(table.y + 0.2 * (strata == "south"), 0.01, 0.99)
    options = {"clusters": "blog"} if clustered else {}
    effects = known(y, table, "~ age", strata=strata, weights="w", link=link, **options)
    x, w = np.column_stack([np.ones(NUM_DOCS), table.age]), table.w.to_numpy()
    b = np.zeros(2)
    for _ in range(30):
        mean = x @ b if link == "identity" else scipy.special.expit(x @ b)
        slope = np.ones(NUM_DOCS) if link == "identity" else mean * (1 - mean)
        bread = np.linalg.inv((w * slope * x.T) @ x)
        scores = (w * (y.to_numpy() - mean))[:, None] * x
        b = b + bread @ scores.sum(0)
    variance = bread @ linearised(scores, clusters.to_numpy(), strata.to_numpy()) @ bread
    rows = slope[:2, None] * x[:2]
    errors = np.sqrt(np.diag(rows @ variance @ rows.T) * (NUM_DOCS - 1) / (NUM_DOCS - 2))
    expected = np.column_stack([mean[:2], errors])
    np.testing.assert_allclose(points_of(effects, table[:2]), expected, rtol=1e-6)
    assert effects.regression.freedom == (12 - 3 if clustered else NUM_DOCS - 2 - 2)
    text = "12 clusters in 3 strata" if clustered else "the regression (3 strata)"
    assert text in repr(effects)
    one = known(y, table, "~ age", strata=np.ones(NUM_DOCS), weights="w", link=link, **options)
    none = {"standard_errors": "HC1", **options}
    none = known(y, table, "~ age", weights="w", link=link, **none)
    np.testing.assert_allclose(points_of(one, table[:2]), points_of(none, table[:2]), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["HC1", "clusters"])
@pytest.mark.parametrize("formula", DESIGNS)
def test_logits_of_two_topics_equal_statsmodels(table, formula, kind) -> None:
    sm = pytest.importorskip("statsmodels.api")
    options = {"clusters": "blog"} if kind == "clusters" else {"standard_errors": kind}
    effects = known(table.y, table, formula, **options)
    x = x_of(formula, table)
    fit = sm.GLM(table.y, x, sm.families.Binomial()).fit(
        tol=1e-14,
        cov_type="cluster" if kind == "clusters" else "HC0",
        cov_kwds={"groups": table.blog} if kind == "clusters" else None,
    )
    scale = np.sqrt(NUM_DOCS / (NUM_DOCS - x.shape[1])) if kind == "HC1" else 1.0
    few = [0, 100, 200]
    mean = scipy.special.expit(x[few] @ fit.params)
    slopes = (mean * (1 - mean))[:, None] * x[few]
    errors = scale * np.sqrt(np.einsum("np,pq,nq->n", slopes, fit.cov_params(), slopes))
    expected = np.column_stack([mean, errors])
    np.testing.assert_allclose(points_of(effects, table.iloc[few]), expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_random_terms_equal_statsmodels(table) -> None:
    sm = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(1)
    y = table.y + 0.1 * rng.normal(size=12)[table.blog]
    effects = known(y / 2, table, "~ party + ts + (1 | blog)", link="identity")
    x = np.column_stack(
        [np.ones(NUM_DOCS), table.party == "B", table.party == "C", table.ts - 1e12]
    )
    fit = sm.MixedLM(y / 2, x, table.blog).fit(method=["bfgs", "powell", "bfgs"], gtol=1e-12)
    random = effects.regression.random
    ratio = float((effects.regression.spread[0, 0] / random.residual[0]) ** 2)
    assert ratio == pytest.approx(fit.cov_re.iloc[0, 0] / fit.scale, rel=1e-4)
    found = effects.table()["estimate"][1:]
    np.testing.assert_allclose(found, fit.fe_params[1:], rtol=1e-6)
    # Generalised least squares at the variances.
    z = np.eye(12)[table.blog]
    inverse = np.linalg.inv(np.eye(NUM_DOCS) + ratio * z @ z.T)
    information = x.T @ inverse @ x
    solved = np.linalg.solve(information, x.T @ inverse @ y / 2)
    residual = y / 2 - x @ solved
    variance = residual @ inverse @ residual / (NUM_DOCS - 4)
    errors = np.sqrt(variance * np.diag(np.linalg.inv(information)))
    found = effects.table()[["estimate", "std_error"]][1:]
    np.testing.assert_allclose(found, np.column_stack([solved, errors])[1:], rtol=1e-8)
    # Levels are averages over the variance (test_random_terms), near those of the best variance.
    expected = ratio * z.T @ inverse @ residual
    np.testing.assert_allclose(random.effects[0][0], expected, rtol=0.02, atol=1e-4)


@pytest.mark.parametrize("link", ["identity", "logit"])
@pytest.mark.parametrize("kind", ["HC1", "HC3", "classical"])
def test_a_document_alone_in_its_level_has_the_classical_variance(table, link, kind) -> None:
    frame = table.assign(party=table.party.where(table.index != 7, "Z"))
    options = {"link": link, "standard_errors": kind}
    if kind == "classical":
        effects = known(table.y, frame, "~ party", **options)
    else:
        with pytest.warns(
            CorpusWarning, match=r"document 7, .*\(party 'Z'\) alone .* party\[T.Z\]"
        ):
            effects = known(table.y, frame, "~ party", **options)
    (alone,) = effects.predict(party="Z").itertuples()
    means = table.y.groupby(frame.party).transform("mean")
    spread = np.sqrt(((table.y - means) ** 2).sum() / (NUM_DOCS - 4))
    if link == "identity" or kind != "classical":
        scale = np.sqrt(NUM_DOCS / (NUM_DOCS - 4)) if kind == "HC1" else 1.0
        assert alone.std_error == pytest.approx(scale * spread, rel=1e-6)
    (gap,) = effects.difference("party", "Z", "A").itertuples()
    (other,) = effects.predict(party="A").itertuples()
    assert gap.std_error**2 == pytest.approx(alone.std_error**2 + other.std_error**2, rel=1e-8)
    row = effects.table().set_index("term").loc["party[T.Z]"]
    assert (row.estimate, row.std_error) == pytest.approx((gap.estimate, gap.std_error))


@pytest.mark.parametrize("link", ["identity", "logit"])
@pytest.mark.parametrize("lone", ["A", "C"])
def test_a_cluster_alone_with_a_level_leaves_its_variance_unknown(table, link, lone) -> None:
    blog = table.blog.where(table.party != lone, 99)
    with pytest.warns(CorpusWarning, match=rf"cluster of documents \(party '{lone}'\) alone"):
        effects = known(table.y, table.assign(blog=blog), "~ party", link=link, clusters="blog")
    for level in "ABC":
        (point,) = effects.predict(party=level).itertuples()
        assert np.isinf(point.std_error) == (level == lone)
        ends = (0, 1) if link == "logit" else (-np.inf, np.inf)
        assert ((point.lower, point.upper) == ends) == (level == lone)
    (gap,) = effects.difference("party", lone, "B").itertuples()
    assert np.isinf(gap.std_error)
    assert np.isnan([gap.p_value, gap.statistic]).all()
    known_gap = effects.difference("party", *sorted({"A", "B", "C"} - {lone}))
    assert 0 < known_gap["std_error"][0] < 0.1
    assert "inf" in effects.summary()


def test_columns_without_digits_or_rank_are_refused(table) -> None:
    for formula, message in (
        ("~ ts + I(ts**2)", r"I\(ts \*\* 2\) varies too little .* use center"),
        ("~ age + I(2 * age)", r"I\(2 \* age\) is determined by the terms before it"),
        ("~ party + C(blog)", "2 documents with words for"),
    ):
        few = table.iloc[:2].assign(party=["A", "B"], blog=[0, 1])
        frame = few if "blog" in formula else table
        with pytest.raises(ConfigError, match=message):
            known(frame.y.to_numpy(), frame, formula)
    with pytest.raises(ConfigError, match="1 cluster; expected at least 2"):
        known(table.y, table, "~ party", clusters=np.ones(NUM_DOCS))
    for options in ({"standard_errors": "white"}, {"link": "probit"}):
        with pytest.raises(ConfigError, match="expected"):
            known(table.y, table, "~ party", **options)


@pytest.mark.parametrize("kind", ["HC1", "HC3"])
def test_a_saturated_logit_has_the_errors_of_the_linear_regression(table, kind) -> None:
    linear, logit = (
        known(table.y, table, "~ party", link=link, standard_errors=kind)
        for link in ("identity", "logit")
    )
    for a, b in (
        (linear.table(), logit.table()),
        (linear.predict("party"), logit.predict("party")),
    ):
        np.testing.assert_allclose(a["estimate"], b["estimate"], rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(a["std_error"], b["std_error"], rtol=1e-6)
