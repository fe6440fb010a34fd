"""Averages of a formula over documents at a grid of values."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from tests.support.formulas import count_evaluations
from torch_lntm.corpus import Corpus
from torch_lntm.corpus.metadata import as_column
from torch_lntm.effects import estimate, result
from torch_lntm.effects.result import Documents, Effects
from torch_lntm.errors import ConfigError, CorpusError
from torch_lntm.formulas import Formula
from torch_lntm.models import ctm

NUM_DOCS = 40
TEXT = "~ party * age + bs(date, df=4) + C(blog)"


@pytest.fixture(scope="module")
def columns() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    days = np.datetime64("2004-01-01") + rng.integers(0, 300, NUM_DOCS)
    return {
        "party": rng.choice(np.array(["Left", "Middle", "Right"], object), NUM_DOCS),
        "age": rng.integers(20, 24, NUM_DOCS).astype(float),
        "date": days.astype(str).astype(object),
        "blog": rng.integers(0, 3, NUM_DOCS),
    }


@pytest.fixture(scope="module")
def formula(columns) -> Formula:
    return Formula.fit(TEXT, columns, NUM_DOCS)[0]


@pytest.fixture(scope="module")
def effects(columns) -> Effects:
    rng = np.random.default_rng(1)
    corpus = Corpus.from_matrix(np.ones((NUM_DOCS, 4), int), metadata=columns)
    theta = rng.dirichlet(np.ones(3), (3, NUM_DOCS))
    return estimate(ctm(3, 4), theta, corpus, TEXT)


def one_by_one(formula, columns, weights, points) -> np.ndarray:
    """The formula evaluated at all documents anew for each point."""
    rows = []
    for point in points:
        at = {
            name: np.array([point[name]] * NUM_DOCS, object) if name in point else column
            for name, column in columns.items()
        }
        at = {n: v.astype(columns[n].dtype) for n, v in at.items()}
        rows.append(weights @ formula.matrix(at, NUM_DOCS) / weights.sum())
    return np.array(rows)


def rows_at(formula, columns, weights, points) -> list[tuple[np.ndarray, np.ndarray]]:
    """Design rows and weights of the different documents at each point."""
    given = {n: as_column(n, [point[n] for point in points], len(points)) for n in points[0]}
    fixed = {n: formula.read(n, values, "value") for n, values in given.items()}
    free = {n: formula.read(n, column) for n, column in columns.items() if n not in fixed}
    documents = Documents.of(free, weights, np.zeros((NUM_DOCS, 1), int))
    rows = list(documents.rows(formula, fixed, len(points)))
    return [(of_point, documents.weights) for of_point in rows]


@pytest.mark.parametrize("max_rows", [1, 100, 100_000])
@pytest.mark.parametrize(
    "points",
    [
        [{}],
        [{"party": party} for party in ("Right", "Left")],
        [{"date": date, "blog": blog} for date in ("2004-02-01", "2004-05-05") for blog in (0, 2)],
        [{"age": age, "party": "Left", "date": "2004-03-03", "blog": 1} for age in (1.5, 22.0)],
    ],
)
def test_a_grid_gives_the_rows_of_its_single_points(
    formula, columns, points, max_rows, monkeypatch
) -> None:
    monkeypatch.setattr(result, "MAX_ROWS", max_rows)
    weights = np.random.default_rng(2).uniform(0.5, 2.0, NUM_DOCS)
    found = [of_rows @ rows for rows, of_rows in rows_at(formula, columns, weights, points)]
    expected = one_by_one(formula, columns, weights, points)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_a_grid_needs_one_evaluation_of_the_formula(effects) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    import matplotlib.pyplot as plt

    for ask in (
        lambda: effects.predict("date"),
        lambda: effects.predict("date", "party", others="typical"),
        lambda: effects.difference("party", "Left", "Right"),
        lambda: effects.plot("date", by="party", topics=[0]),
    ):
        with count_evaluations() as evaluations:
            ask()
        assert len(evaluations) == 1
    plt.close("all")


def test_predictions_average_over_weighted_documents(columns) -> None:
    rng = np.random.default_rng(3)
    corpus = Corpus.from_matrix(np.ones((NUM_DOCS, 4), int), metadata=columns)
    weights = rng.uniform(0.2, 3.0, NUM_DOCS)
    theta = rng.dirichlet(np.ones(3), (2, NUM_DOCS))
    effects = estimate(ctm(3, 4), theta, corpus, "~ party + age", weights=weights, link="identity")
    age = weights @ columns["age"] / weights.sum()
    beta = np.array([effect.estimate for effect in effects.table()]).reshape(3, 4)
    expected = beta @ np.array([1.0, 0.0, 1.0, age])
    found = [point.estimate for point in effects.predict(party="Right")]
    np.testing.assert_allclose(found, expected)


def test_documents_with_equal_values_are_evaluated_once(formula, columns, monkeypatch) -> None:
    sizes = []
    evaluate = Formula.evaluate

    def counted(self, values, num_rows, *args):
        sizes.append(num_rows)
        return evaluate(self, values, num_rows, *args)

    monkeypatch.setattr(Formula, "evaluate", counted)
    points = [{"date": "2004-02-01", "blog": 0}, {"date": "2004-03-01", "blog": 0}]
    assert len(rows_at(formula, columns, np.ones(NUM_DOCS), points)) == 2
    kinds = len(set(zip(columns["party"], columns["age"], strict=True)))
    assert kinds < NUM_DOCS
    assert sizes == [2 * kinds]


def test_errors_name_the_value_of_the_grid(effects) -> None:
    with pytest.raises(CorpusError, match=r"value 1 is the first: {'party': 'Green'"):
        effects.predict(party=["Left", "Green"])
    with pytest.raises(
        CorpusError, match=r"extrapolation.*value 2 is the first: {'date': '1999-01-01'"
    ):
        effects.predict(date=["2004-02-01", "2004-03-01", "1999-01-01"])


def test_errors_about_numbers_name_the_value_of_the_grid(columns) -> None:
    read = {name: columns[name] for name in ("age", "party")}
    formula, _ = Formula.fit("~ log(age) + party", read, NUM_DOCS)
    with pytest.raises(CorpusError, match=r"log\(age\) is nan in value 1"):
        rows_at(formula, read, np.ones(NUM_DOCS), [{"age": 20.0}, {"age": -1.0}])


def test_values_are_given_in_any_form(effects) -> None:
    """Series, ranges, indexes, sets, arrays and dates; empty ones and positions are refused."""
    expected = effects.predict(blog=[0, 1])
    for values in (
        pd.Series([0, 1], index=[5, 9]),
        range(2),
        pd.Index([0, 1]),
        {1, 0},
        np.array([0, 1]),
        torch.tensor([0, 1]),
        (np.int64(0), np.int64(1)),
        iter([0, 1]),
    ):
        assert effects.predict(blog=values) == expected
    assert effects.predict(blog=np.array(1)) == effects.predict(blog=1)
    days = pd.date_range("2004-02-01", periods=2)
    assert effects.predict(date=days) == effects.predict(date=["2004-02-01", "2004-02-02"])
    assert effects.predict(date=days[1]) == effects.predict(date="2004-02-02")
    assert effects.predict(party=pd.Series(["Left", "Right"], dtype="category")) == (
        effects.predict(party=["Left", "Right"])
    )
    for empty in ([], pd.Series([], dtype=float), range(0)):
        with pytest.raises(ConfigError, match="party has no value"):
            effects.predict(party=empty)
    with pytest.raises(ConfigError, match="does not read the column"):
        effects.predict("date", ["2004-02-01"])


def test_typical_levels_are_the_most_frequent(columns) -> None:
    """Numbers within C(), truth values and text; the median number need not be a level."""
    frequent = {
        "year": np.repeat([2000, 2001, 2003, 2004], [10, 10, 13, 7]),
        "flag": np.arange(NUM_DOCS) % 3 == 0,
        **{name: columns[name] for name in ("party", "age")},
    }
    corpus = Corpus.from_matrix(np.ones((NUM_DOCS, 4), int), metadata=frequent)
    theta = np.random.default_rng(1).dirichlet(np.ones(3), (3, NUM_DOCS))
    effects = estimate(ctm(3, 4), theta, corpus, "~ party + C(year) * flag + age")
    age = float(np.median(columns["age"]))
    assert effects.predict(party="Left", others="typical")[0].estimate == pytest.approx(
        effects.predict(party="Left", year=2003, flag=False, age=age)[0].estimate
    )


def test_documents_without_words_have_no_say(columns) -> None:
    """Their levels are no levels, and their missing values do no harm."""
    counts = np.ones((NUM_DOCS, 4), int)
    counts[[3, 7]] = 0
    party, age = columns["party"].copy(), columns["age"].copy()
    party[3], age[7] = "A", np.nan
    corpus = Corpus.from_matrix(counts, metadata={"party": party, "age": age})
    theta = np.random.default_rng(1).dirichlet(np.ones(3), (3, NUM_DOCS))
    rows = corpus.nonempty
    found = estimate(ctm(3, 4), theta, corpus, "~ party + age")
    assert found.formula.names == ("Intercept", "party[T.Middle]", "party[T.Right]", "age")
    assert (
        found.table() == estimate(ctm(3, 4), theta[:, rows], corpus[rows], "~ party + age").table()
    )
