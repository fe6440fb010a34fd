"""Average comparisons and slopes, against an own logit in numpy and its finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.special

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.effects import Effects, estimate
from torch_lntm.errors import ConfigError

NUM_DOCS, NUM_TOPICS = 240, 3
FORMULA = "~ side * age + I(age ** 2) + old + day"


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng = np.random.default_rng(0)
    days = np.datetime64("2004-01-01") + rng.integers(0, 300, NUM_DOCS)
    table = {
        "side": rng.choice(["a", "b", "c"], NUM_DOCS),
        "age": rng.normal(size=NUM_DOCS),
        "old": rng.integers(0, 2, NUM_DOCS),
        "day": days.astype(str),
        "w": rng.uniform(0.2, 3.0, NUM_DOCS),
        "blog": rng.choice([f"b{i}" for i in range(9)], NUM_DOCS),
    }
    return Corpus.from_matrix(np.ones((NUM_DOCS, 6), int), metadata=table)


@pytest.fixture(scope="module")
def theta(corpus) -> np.ndarray:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(NUM_DOCS, NUM_TOPICS))
    logits[:, 0] += corpus.metadata["age"] ** 2 / 2 + (corpus.metadata["side"] == "b")
    return scipy.special.softmax(logits, -1)


def design(table: pd.DataFrame) -> np.ndarray:
    age, side = table["age"].to_numpy(), table["side"].to_numpy()
    day = (pd.to_datetime(table["day"]) - pd.Timestamp("2004-06-01")).dt.days / 100
    b, c = (side == "b").astype(float), (side == "c").astype(float)
    return np.column_stack(
        [np.ones(len(age)), b, c, age, b * age, c * age, age**2, table["old"], day]
    )


class Own:
    """The logit, its HC1 covariance, and functions of the averages by the delta method."""

    def __init__(self, corpus: Corpus, theta: np.ndarray, weights: np.ndarray, link: str) -> None:
        self.table, self.link, self.w = corpus.metadata, link, weights / weights.mean()
        x = design(self.table)
        size = x.shape[1]
        if link == "identity":
            gram = np.linalg.inv(x.T @ (self.w[:, None] * x))
            self.b = gram @ x.T @ (self.w[:, None] * theta)
            bread = np.kron(gram, np.eye(NUM_TOPICS))
            free = NUM_TOPICS
        else:
            free = NUM_TOPICS - 1

            def score(b: np.ndarray) -> np.ndarray:
                return (x.T @ (self.w[:, None] * (theta - self.mean(x, b))[:, :free])).ravel()

            found = scipy.optimize.root(score, np.zeros(size * free), tol=1e-13)
            assert found.success
            self.b = found.x
            p = self.mean(x, self.b)[:, :free]
            outer = np.einsum("ni,ij->nij", p, np.eye(free)) - p[:, :, None] * p[:, None]
            info = np.einsum("n,np,nij,nq->piqj", self.w, x, outer, x)
            bread = np.linalg.inv(info.reshape(size * free, -1))
        scores = (x[:, :, None] * (theta - self.mean(x, self.b))[:, None, :free]).reshape(
            NUM_DOCS, -1
        )
        scores *= self.w[:, None]
        scale = NUM_DOCS / (NUM_DOCS - size)
        self.covariance = scale * bread @ scores.T @ scores @ bread

    def mean(self, x: np.ndarray, b: np.ndarray) -> np.ndarray:
        if self.link == "identity":
            return x @ b.reshape(x.shape[1], NUM_TOPICS)
        eta = x @ b.reshape(x.shape[1], NUM_TOPICS - 1)
        return scipy.special.softmax(np.column_stack([eta, np.zeros(len(x))]), -1)

    def average(self, tables: list[tuple[float, dict[str, Any]]], mask: Any = slice(None)) -> Any:
        """Σ c mean(predictions with some columns changed), and its standard errors."""
        table, w = self.table[mask], self.w[mask]

        def at(b: np.ndarray) -> np.ndarray:
            parts = [c * self.mean(design(table.assign(**new)), b) for c, new in tables]
            return np.average(sum(parts), axis=0, weights=w)

        b = np.asarray(self.b).ravel()
        steps = 1e-5 * np.eye(len(b))
        jacobian = np.stack([(at(b + e) - at(b - e)) / 2e-5 for e in steps], 1)
        return at(b), np.sqrt(np.einsum("kp,pq,kq->k", jacobian, self.covariance, jacobian))


def make(corpus: Any, theta: Any, **options: Any) -> Effects:
    options = {"progress": False, "standard_errors": "HC1", **options}
    model = lntm.models.ctm(NUM_TOPICS, 6)
    return estimate(model, theta[None].repeat(2, 0), corpus, FORMULA, **options)


def check(rows: pd.DataFrame, expected: Any, **tolerance: float) -> None:
    np.testing.assert_allclose(
        rows["estimate"], expected[0], **{"rtol": 1e-5, "atol": 1e-8} | tolerance
    )
    np.testing.assert_allclose(rows["std_error"], expected[1], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("link", ["logit", "identity"])
@pytest.mark.parametrize("weights", [None, "w"])
def test_comparisons_and_slopes_are_averages_over_observed_rows(
    corpus, theta, link, weights
) -> None:
    effects = make(corpus, theta, link=link, weights=weights)
    table = corpus.metadata
    own = Own(corpus, theta, np.ones(NUM_DOCS) if weights is None else table["w"].to_numpy(), link)
    found = effects.avg_comparisons("side", old=None, age=0.5, day=("2004-02-01", "2004-05-01"))
    expected = {
        ("side", "b − a"): [(1, {"side": "b"}), (-1, {"side": "a"})],
        ("side", "c − a"): [(1, {"side": "c"}), (-1, {"side": "a"})],
        ("old", "1 − 0"): [(1, {"old": 1}), (-1, {"old": 0})],
        ("age", "+0.5"): [(1, {"age": table["age"] + 0.5}), (-1, {})],
        ("day", "2004-05-01 − 2004-02-01"): [
            (1, {"day": "2004-05-01"}),
            (-1, {"day": "2004-02-01"}),
        ],
    }
    assert list(found.groupby(["term", "contrast"]).groups) == sorted(expected)
    for at, tables in expected.items():
        check(found.set_index(["term", "contrast"]).sort_index().loc[at], own.average(tables))
    np.testing.assert_allclose(found["statistic"], found["estimate"] / found["std_error"])
    assert ((found["lower"] < found["estimate"]) & (found["estimate"] < found["upper"])).all()

    def slope(mask: Any = slice(None)) -> Any:
        tables = [(s / 2e-4, {"age": table["age"][mask] + s * 1e-4}) for s in (1, -1)]
        return own.average(tables, mask)

    slopes = effects.avg_slopes(level=0.9)
    assert slopes["term"].unique().tolist() == ["side", "age", "old", "day"]
    check(slopes.query("term == 'age'"), slope(), rtol=2e-4, atol=1e-5)
    assert set(slopes.query("term == 'age'")["contrast"]) == {"dY/dX"}
    by = effects.avg_slopes("age", by=["side", "old"])
    assert by.columns[:5].tolist() == ["topic", "term", "contrast", "side", "old"]
    assert len(by) == NUM_TOPICS * 6
    for (side, old), rows in by.groupby(["side", "old"]):
        mask = ((table["side"] == side) & (table["old"] == old)).to_numpy()
        check(rows, slope(mask), rtol=1e-3, atol=1e-4)
    both = effects.avg_comparisons(side="pairwise", by="old")
    assert set(both["contrast"]) == {"b − a", "c − a", "c − b"}
    at = both.query("contrast == 'c − b' and old == 1")
    mask = (table["old"] == 1).to_numpy()
    check(at, own.average([(1, {"side": "c"}), (-1, {"side": "b"})], mask))
    order = effects.avg_comparisons(side="sequential")["contrast"].unique().tolist()
    assert order == ["b − a", "c − b"]


def test_slopes_go_through_splines_and_references_are_those_of_the_formula(corpus, theta) -> None:
    model, twice = lntm.models.ctm(NUM_TOPICS, 6), theta[None].repeat(2, 0)
    formula = "~ bs(age, df=5) * C(side, Treatment(reference='c')) + (1 | blog)"
    effects = estimate(model, twice, corpus, formula, progress=False)
    found = effects.avg_comparisons("side")
    assert found["contrast"].unique().tolist() == ["a − c", "b − c"]
    same = effects.difference("side", "a", "c")
    rows = found.query("contrast == 'a − c'")
    columns = ["estimate", "std_error", "lower", "upper", "p_value"]
    np.testing.assert_allclose(rows[columns], same[columns], rtol=1e-9)
    with pytest.raises(ConfigError, match=r"no value at age \+1 in some .* age=\(low, high\)"):
        effects.avg_comparisons()
    # A predicted curve's central differences at each document, by the public predictions.
    age = corpus.metadata["age"].to_numpy()
    slopes = effects.avg_slopes("age", by="blog")
    rows = slopes.query("blog == 'b3'")
    at = (corpus.metadata["blog"] == "b3").to_numpy()
    total = np.zeros(NUM_TOPICS)
    for a, side in zip(age[at], corpus.metadata["side"][at], strict=True):
        ends = np.clip([a - 1e-4, a + 1e-4], age.min(), age.max())
        low, high = (effects.predict(age=e, side=side, blog="b3")["estimate"] for e in ends)
        total += ((high - low) / (ends[1] - ends[0])).to_numpy()
    np.testing.assert_allclose(rows["estimate"], total / at.sum(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda e: e.avg_comparisons("speed"), "does not read the column 'speed'"),
        (lambda e: e.avg_comparisons("age", by="speed"), "does not read the column 'speed'"),
        (lambda e: e.avg_comparisons(side="every"), "expected 'reference', 'sequential'"),
        (lambda e: e.avg_comparisons(side=2), "expected 'reference', 'sequential'"),
        (lambda e: e.avg_comparisons(age="sd"), "expected an increase or two values"),
        (lambda e: e.avg_comparisons(age=0), "expected an increase or two values"),
        (lambda e: e.avg_comparisons(age=(1, 2, 3)), "expected an increase or two values"),
    ],
)
def test_other_contrasts_are_refused(corpus, theta, call, match) -> None:
    with pytest.raises(ConfigError, match=match):
        call(make(corpus, theta))


def test_random_terms_and_formulas_without_columns_have_no_comparisons(corpus, theta) -> None:
    model, twice = lntm.models.ctm(NUM_TOPICS, 6), theta[None].repeat(2, 0)
    mixed = estimate(model, twice, corpus, "~ age + (1 | blog)", progress=False)
    with pytest.raises(ConfigError, match=r"random term; compare its levels by levels\('blog'\)"):
        mixed.avg_comparisons("blog")
    with pytest.raises(ConfigError, match="has no columns to compare"):
        estimate(model, twice, corpus, "~ 1", progress=False).avg_slopes()


def test_a_table_for_a_paper_has_a_row_for_each_topic(corpus, theta) -> None:
    model = lntm.models.ctm(NUM_TOPICS, 6)
    model.topic_names = {1: "tax & war"}
    draws = np.stack([theta, theta])
    effects = estimate(model, draws, corpus, "~ side + I(1000 * age)", progress=False)
    rows, plain = effects.table().set_index(["topic", "term"]), effects.paper_table()
    assert plain.index.tolist() == ["0", "tax & war", "2"]
    assert plain.columns.tolist() == [*effects.formula.names]
    side, age = (rows.loc[0, term] for term in plain.columns[[1, -1]])
    assert 0.01 < side.std_error < 0.1
    assert plain.iloc[0, 1] == f"{side.estimate:.3f} ({side.std_error:.3f})"
    assert 1e-5 < age.std_error < 1e-4
    assert plain.iloc[0, -1] == f"{age.estimate:.6f} ({age.std_error:.6f})"
    assert side.p_value < 0.001
    few = effects.paper_table(terms=["side", plain.columns[-1]])
    pd.testing.assert_frame_equal(few, plain.iloc[:, 1:])
    for wrong in (["sid"], "side", []):
        with pytest.raises(ConfigError, match="expected a list of some of Intercept, side, I"):
            effects.paper_table(terms=wrong)
    starred = effects.paper_table(stars=True)
    assert starred.iloc[0, 1] == f"{side.estimate:.3f}*** ({side.std_error:.3f})"
    assert r"tax \& war & " in plain.to_latex(escape=True)
    assert "<th>tax &amp; war</th>" in plain.to_html()
