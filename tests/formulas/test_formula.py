"""Formulas: what they make of columns, that new documents get the same, and what is refused."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from typing import Any

import numpy as np
import pandas as pd
import pytest

from torch_lntm.errors import ConfigError, CorpusError, CorpusWarning, LNTMError, MissingColumnError
from torch_lntm.formulas import Formula
from torch_lntm.formulas.language import check_formula

NUM_DOCS = 30


@pytest.fixture(scope="module")
def columns() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    days = np.datetime64("2004-01-01") + rng.permutation(NUM_DOCS)
    return {
        "party": np.array(["Liberal", "Conservative", "Other"] * 10, object),
        "date": days.astype(str).astype(object),
        "age": rng.uniform(20, 60, NUM_DOCS),
        "year": rng.permutation(np.repeat([2003, 2004, 2006], 10)),
        "rural": rng.permutation(np.repeat([False, True], 15)),
    }


def fitted(text: str, columns: dict[str, Any]) -> tuple[Formula, Any]:
    return Formula.fit(text, columns)


def test_main_effects(columns) -> None:
    formula, matrix = fitted("~ party + age + rural", columns)
    names = ("Intercept", "party[T.Liberal]", "party[T.Other]", "age", "rural")
    assert formula.names == names
    party = columns["party"]
    expected = [
        np.ones(NUM_DOCS),
        party == "Liberal",
        party == "Other",
        columns["age"],
        columns["rural"],
    ]
    np.testing.assert_array_equal(matrix, np.stack(expected, 1).astype(float))
    formula, matrix = fitted("~ party * age", columns)
    at = formula.names.index("party[T.Other]:age")
    np.testing.assert_allclose(matrix[:, at], (party == "Other") * columns["age"])


def test_dates_count_as_days(columns) -> None:
    formula, matrix = fitted("~ date", columns)
    assert formula.kinds == {"date": "date"}
    assert matrix[list(columns["date"]).index("2004-01-03"), 1] == 12418 + 2
    assert fitted("~ C(date)", columns)[1].shape == (NUM_DOCS, NUM_DOCS)
    # Also before 1677, where pandas' nanoseconds of 64 bits end.
    _, matrix = fitted("~ day", {"day": np.array(["1605-01-16", "1605-01-17"], object)})
    assert np.diff(matrix[:, 1]).tolist() == [1.0]


def test_numbers_can_be_levels(columns) -> None:
    formula, matrix = fitted("~ C(year)", columns)
    assert formula.names == ("Intercept", "C(year)[T.2004]", "C(year)[T.2006]")
    np.testing.assert_array_equal(matrix[:, 2], columns["year"] == 2006)


def test_splines_span_the_cubic_polynomials(columns) -> None:
    matrix = fitted("~ bs(age, df=6)", columns)[1]
    assert matrix.shape == (NUM_DOCS, 7)
    cubic = np.polynomial.Polynomial([1, 2, -3, 1])(columns["age"] / 60)
    assert float(np.linalg.lstsq(matrix, cubic, rcond=None)[1][0]) < 1e-20


@pytest.mark.parametrize(
    "text",
    [
        "~ party * bs(date, df=5)",
        "~ C(year) + rural",
        "~ poly(age, 3) + center(year) + scale(age)",
        "~ cr(age, df=4, constraints='center')",
        "~ C(party, Treatment(reference='Other'))",
        "~ C(party, levels=['Other', 'Liberal', 'Conservative'])",
        "~ 0 + party + party:age",
        "~ I(age ** 2) + log(age) + I(age / 2)",
        "~ (party + rural) ** 2",
        "1",
    ],
)
def test_new_documents_get_the_same_numbers(columns, text) -> None:
    formula, matrix = fitted(text, columns)
    again = Formula.from_json(json.loads(json.dumps(formula.to_json())))
    some = {name: values[:4] for name, values in columns.items()}
    np.testing.assert_allclose(again.matrix(some), matrix[:4], rtol=1e-12, atol=1e-12)
    assert again.to_json() == formula.to_json()


@pytest.mark.parametrize(
    "text",
    [
        "np.log(age)",
        "__import__('os').system('touch owned')",
        "{__import__('os').system('touch owned')}",
        "eval('1')",
        "age.max()",
        "age[0]",
        "log(age, **{})",
        "log(*[age])",
        "I((age := 1))",
        "I(age if age else 1)",
        "I([x for x in age])",
        "I(lambda: 1)",
        "I(f'{age}')",
        "I('a' * 1000)",
        "bs(age, _state=[1])",
        "(party + age) ** 0",
        "(party + age) ^ (0)",
        "(party + age) ** 00 + age",
        "(a + b)^(0)",
        "age ~ party",
        "age | party",
        "hashed(party)",
        "Q('age')",
        "age +",
        "I(\x00)",
        "",
        3,
    ],
)
def test_forbidden_formulas_are_refused_before_evaluation(text, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="formula"):
        check_formula(text)
    assert not list(tmp_path.iterdir())


def test_what_r_writes_otherwise_is_named() -> None:
    for text, hint in (("~ I(age ^ 2)", "(write ** instead)"), ("~ ns(age)", "(write cr(")):
        with pytest.raises(ConfigError, match=re.escape(hint)):
            check_formula(text)


def test_a_missing_column_is_named(columns) -> None:
    with pytest.raises(MissingColumnError, match=r"'income'; there are: party"):
        fitted("~ income", columns)
    with pytest.raises(MissingColumnError, match="'np'"):
        fitted("~ log(np)", columns)
    formula, _ = fitted("~ party", columns)
    with pytest.raises(MissingColumnError, match="'party'"):
        formula.matrix({"age": columns["age"]})


@pytest.mark.parametrize(("name", "missing"), [("party", None), ("age", np.nan)])
def test_missing_values_are_refused_with_their_document(columns, name, missing) -> None:
    values = columns[name].copy()
    values[[7, 9]] = missing
    with pytest.raises(CorpusError, match=f"{name}.* in 2 documents, .* document 7"):
        fitted(f"~ {name}", {**columns, name: values})


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("~ C(party, Treatment(reference='Other')) * age", "party", "X"),
        ("~ age + C(date)", "date", "1999-01-01"),
        ("~ C(rural) + age", "rural", 2),
        ("~ party + C(year)", "party", "Green"),
        ("~ party + C(year)", "year", 1999),
    ],
)
def test_unknown_levels_are_named(columns, text, name, value) -> None:
    formula, _ = fitted(text, columns)
    values = columns[name][:4].tolist()
    values[2] = value
    with pytest.raises(
        CorpusError, match=f"categories.*document 2, .*is the first: .*'{name}': '?{value}"
    ):
        formula.matrix({**{n: v[:4] for n, v in columns.items()}, name: np.array(values)})


def test_many_levels_are_refused_before_they_become_columns() -> None:
    columns = {"q": np.array([f"q{i}" for i in range(10_000)], object), "x": np.arange(10_000.0)}
    for text in ("~ q", "~ C(x)", "~ x * q"):
        with pytest.raises(ConfigError, match=r"10,000 levels.*\(1 \| author\)"):
            Formula.fit(text, columns)


def test_random_terms_take_names_in_back_quotes() -> None:
    columns = {"blog-name": ["a", "b", "a"], "a+|b": [1, 1, 2]}
    formula, matrix = Formula.fit("~ (1 | `blog-name`) + (1|`a+|b`)", columns)
    assert dict(formula.random) == {"blog-name": ("a", "b"), "a+|b": (1, 2)}
    assert matrix.shape == (3, 1)
    assert Formula.from_json(formula.to_json()).positions(columns).tolist() == [
        [0, 0],
        [1, 0],
        [0, 1],
    ]


@pytest.mark.parametrize("bound", ["a", None, [1], {"array": "x"}])
def test_saved_bounds_of_other_types_are_refused(columns, bound) -> None:
    state = fitted("~ bs(age, df=4)", columns)[0].to_json()
    with pytest.raises(ConfigError, match="does not give the columns"):
        Formula.from_json({**state, "transforms": {}}).matrix(columns)
    state["transforms"]["bs(age, df=4)"]["lower_bound"] = bound
    with pytest.raises(LNTMError, match=r"cannot be evaluated|does not give the columns"):
        Formula.from_json(state).matrix(columns)


def test_values_of_another_kind_than_in_the_fit_are_refused(columns) -> None:
    formula, _ = fitted("~ party + age + date", columns)
    for name, values in (
        ("party", columns["age"]),
        ("age", columns["party"]),
        ("date", columns["party"]),
        ("date", np.array(["2004-13-01"] * NUM_DOCS, object)),
    ):
        with pytest.raises(CorpusError, match=f"column '{name}' holds"):
            formula.matrix({**columns, name: values})
    with pytest.raises(CorpusError, match="column 'party' has no values; give at least one"):
        formula.matrix({name: values[:0] for name, values in columns.items()})


def test_a_frame_of_any_types_and_index_is_read_as_metadata(columns) -> None:
    text = "~ party + date + age + rural"
    formula, matrix = fitted(text, columns)
    rows = np.arange(NUM_DOCS)[::-1]
    frame = pd.DataFrame(columns, rows)[["party", "date", "age", "rural"]]
    other = frame.assign(
        party=frame["party"].astype("category"),
        date=[np.datetime64(day).item() for day in columns["date"]],
        rural=frame["rural"].astype("boolean"),
    )
    for given in (frame, other, frame.assign(date=other["date"]), dict(other.items())):
        np.testing.assert_array_equal(formula.matrix(given), matrix)
    assert formula.positions(frame).shape == (NUM_DOCS, 0)


def test_constant_columns_are_refused(columns) -> None:
    same = {**columns, "party": np.array(["Liberal"] * NUM_DOCS, object)}
    with pytest.raises(ConfigError, match="in all documents"):
        fitted("~ party", same)


def test_infinite_and_nan_numbers_are_refused(columns) -> None:
    ages = columns["age"].copy()
    ages[3] = 0.0
    with pytest.raises(CorpusError, match=r"log\(age\) is -inf in document 3"):
        fitted("~ log(age)", {**columns, "age": ages})


@pytest.mark.parametrize(
    "change",
    [
        {"text": "~ np.log(age)"},
        {"text": "~ party + age + year"},
        {"kinds": {"age": "number"}},
        {"kinds": {"party": "code", "age": "number"}},
        {"names": 3},
        {"levels": None},
        {"transforms": 5},
    ],
)
def test_damaged_states_are_refused(columns, change) -> None:
    formula, _ = fitted("~ party + age", columns)
    with pytest.raises(ConfigError, match="formula"):
        Formula.from_json({**formula.to_json(), **change})


def test_numbers_beyond_a_spline_are_refused() -> None:
    days = [f"2001-{month:02}-{day:02}" for month in range(1, 5) for day in range(1, 6)]
    columns = {"date": np.array(days, object), "x": np.arange(20.0)}
    formula, _ = Formula.fit(
        "~ bs(date, df=4) + bs(x, df=4, extrapolation='clip') + cr(x, df=3, constraints='center')",
        columns,
    )
    inside = {"date": np.array(["2001-02-03"] * 2, object), "x": np.array([3.0, 99.0])}
    assert np.isfinite(formula.matrix(inside)).all()
    with pytest.raises(CorpusError, match=r"extrapolation.* document 1, .*'date': '2004-01-05'"):
        formula.matrix({**inside, "date": np.array(["2001-02-03", "2004-01-05"], object)})


@pytest.mark.parametrize("text", ["~ log(x)", "~ party + bs(x, df=4)", "~ C(party):I(x ** 2)"])
def test_text_where_numbers_are_needed_is_named(text) -> None:
    columns = {"x": np.array([f"{day:02}/01/2001" for day in range(1, 13)], object)}
    with pytest.raises(ConfigError, match=r"not numbers: .*'x': '01/01/2001'"):
        Formula.fit(text, {**columns, "party": np.array(["Left", "Right"] * 6)})
    with pytest.warns(CorpusWarning, match="x is a different text in every document.*2004-09-30"):
        Formula.fit("~ x", columns)


def test_many_levels_of_few_documents_warn() -> None:
    days = [f"{day:02}.{month:02}.2008" for month in range(1, 4) for day in range(1, 29)]
    with pytest.warns(CorpusWarning, match=r"84 levels in 420 documents.*to_datetime.*\(1 \| x\)"):
        Formula.fit("~ x", {"x": np.array(days * 5, object)})
    Formula.fit("~ x", {"x": np.array(days * 10, object)})  # ten documents a level


@pytest.mark.parametrize(
    ("text", "levels", "warns"),
    [
        ("~ x", ["1", "2", "n/a"], True),
        ("~ x", ["2001-01-01", "2001-01-02", "n/a"], True),
        # Text that was meant: codes, names, and levels that C() declares.
        ("~ x", ["1", "2"], False),
        ("~ x", ["a", "b"], False),
        ("~ x", ["1", "n/a"], False),
        ("~ C(x)", ["1", "2", "n/a"], False),
    ],
)
def test_a_text_among_numbers_or_dates_gives_a_warning(text, levels, warns) -> None:
    columns = {"x": np.array((levels * 3)[:6], object)}
    with pytest.warns(CorpusWarning, match="and 'n/a'") if warns else nullcontext():
        Formula.fit(text, columns)


def test_errors_name_an_impossible_date_and_its_document() -> None:
    dates = np.array(["2001-01-01", "2001-02-01", "2001-03-01"], object)
    formula, _ = Formula.fit("~ date", {"date": dates})
    for wrong in ("30/09/2015", "2001-02-30", "2001-2-3"):
        dates[2] = wrong
        with pytest.raises(CorpusError, match=f"'date' holds dates, and '{wrong}' in document 2"):
            formula.matrix({"date": dates})


@pytest.mark.parametrize("size", [1e300, 1e150])
def test_numbers_that_overflow_are_refused_with_advice(size) -> None:
    columns = {"x": size * np.array([1.0, 2.0, -3.0])}
    with pytest.raises(CorpusError, match=r"x is 1e\+\d+ in document 0, .* divide the column"):
        Formula.fit("~ x", columns)
    formula, _ = Formula.fit("~ x", {"x": np.arange(3.0)})
    with pytest.raises(CorpusError, match="divide the column"):
        formula.matrix(columns)
