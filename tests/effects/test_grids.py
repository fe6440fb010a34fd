"""Averages of a formula over documents at a grid of values."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from torch_lntm.corpus import Corpus
from torch_lntm.effects import averages, estimate
from torch_lntm.effects.result import Effects
from torch_lntm.errors import ConfigError, CorpusError
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
def effects(columns) -> Effects:
    rng = np.random.default_rng(1)
    corpus = Corpus.from_matrix(np.ones((NUM_DOCS, 4), int), metadata=columns)
    theta = rng.dirichlet(np.ones(3), (3, NUM_DOCS))
    return estimate(ctm(3, 4), theta, corpus, TEXT)


@pytest.mark.parametrize("max_rows", [1, 100, 100_000])
@pytest.mark.parametrize(
    "points",
    [
        {},
        {"party": ["Right", "Left"]},
        {"date": ["2004-02-01", "2004-05-05"], "blog": [0, 2]},
        {"age": [1.5, 22.0], "party": "Left", "date": "2004-03-03", "blog": 1},
    ],
)
def test_predictions_average_the_rows_of_all_documents(
    columns, points, max_rows, monkeypatch
) -> None:
    """The formula is evaluated at all documents anew for each point."""
    monkeypatch.setattr(averages, "MAX_ROWS", max_rows)
    rng = np.random.default_rng(2)
    weights, theta = rng.uniform(0.2, 3.0, NUM_DOCS), rng.dirichlet(np.ones(3), (2, NUM_DOCS))
    corpus = Corpus.from_matrix(np.ones((NUM_DOCS, 4), int), metadata=columns)
    effects = estimate(ctm(3, 4), theta, corpus, TEXT, weights=weights, link="identity")
    beta = effects.table()["estimate"].to_numpy().reshape(3, -1)
    found = effects.predict(**points)
    for _, point in found[: len(found) // 3].iterrows():
        at = {
            name: np.full(NUM_DOCS, point[name], column.dtype) if name in points else column
            for name, column in columns.items()
        }
        rows = weights @ effects.formula.matrix(at) / weights.sum()
        same = found[(found[list(points)] == point[list(points)]).all(axis=1)]["estimate"]
        np.testing.assert_allclose(same, beta @ rows, rtol=1e-10, atol=1e-12)


def test_a_second_column_divides_predictions_by_a_few_values(effects, columns) -> None:
    """Up to ten numbers are classes of their own; of more, and of days, five remain."""
    ages = sorted({*columns["age"]})
    found = effects.predict("date", "age").query("topic == 0")
    assert found["age"].unique().tolist() == ages
    assert len(found) == 50 * len(ages)
    days = effects.predict("age", "date")["date"].unique().tolist()
    assert days == np.sort(columns["date"])[[0, 10, 20, 29, 39]].tolist()
    assert "The formula has age in whole numbers, taken as amounts; C(age)" in repr(effects)
    lines = effects.plot("date", by="age", topics=[0])
    assert [text.get_text() for text in lines.get_legend().get_texts()] == [f"{a:g}" for a in ages]


def test_errors_name_the_value_of_the_grid(effects, monkeypatch) -> None:
    monkeypatch.setattr(averages, "MAX_ROWS", 1)  # each value is a part of its own
    with pytest.raises(CorpusError, match=r"value 1, .*is the first: {'party': 'Green'"):
        effects.predict(party=["Left", "Green"])
    with pytest.raises(
        CorpusError, match=r"extrapolation.*value 2, .*is the first: {'date': '1999-01-01'"
    ):
        effects.predict(date=["2004-02-01", "2004-03-01", "1999-01-01"])


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
        assert effects.predict(blog=values).equals(expected)
    days = pd.date_range("2004-02-01", periods=2)
    for one, same in (
        ({"blog": np.array(1)}, {"blog": 1}),
        ({"date": days}, {"date": ["2004-02-01", "2004-02-02"]}),
        ({"date": days[1]}, {"date": "2004-02-02"}),
        ({"party": pd.Series(["Left", "Right"], dtype="category")}, {"party": ["Left", "Right"]}),
    ):
        assert effects.predict(**one).equals(effects.predict(**same))
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
    typical = effects.predict(party="Left", others="typical")["estimate"]
    named = effects.predict(party="Left", year=2003, flag=False, age=age)["estimate"]
    np.testing.assert_allclose(typical, named)


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
    few = estimate(ctm(3, 4), theta[:, rows], corpus[rows], "~ party + age")
    pd.testing.assert_frame_equal(found.table(), few.table())
