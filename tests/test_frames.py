"""Rows matched to documents by name, and tables as text, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pandas as pd
import pytest

from torch_lntm.errors import ConfigError, CorpusError
from torch_lntm.frames import align, render, to_csv

NAMES = pd.Index(["a", "b", "c"])


def test_rows_are_joined_by_name() -> None:
    values = pd.Series([3, 1, 2], index=["c", "a", "b"])
    assert align(values, NAMES, "x").tolist() == [1, 2, 3]
    frame = align(values.to_frame("n"), NAMES, "x")
    assert frame["n"].tolist() == [1, 2, 3]
    assert frame.index.equals(NAMES)
    assert align({"n": values}, NAMES, "x")["n"].tolist() == [1, 2, 3]


def test_values_without_an_index_go_by_position() -> None:
    for values in ([3, 1, 2], np.array([3, 1, 2]), (3, 1, 2)):
        assert align(values, NAMES, "x") is values


def test_equal_names_go_by_position_even_if_they_repeat() -> None:
    twice = pd.Index(["a", "a", "b"])
    values = pd.Series([1, 2, 3], index=twice)
    assert align(values, twice, "x").tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("index", "documents"),
    [
        (["a", "b", "d"], NAMES),
        ([0, 1, 2], NAMES),
        ([2, 0, 1], pd.RangeIndex(3)),
        (["a", "b", "c"], pd.RangeIndex(3)),
        (["a", "a", "b"], NAMES),
        (["a", "a", "b"], pd.Index(["a", "b", "a"])),
        (["a", "b"], NAMES),
    ],
)
def test_other_names_and_orders_without_names_are_refused(
    index: list[object], documents: pd.Index
) -> None:
    with pytest.raises(CorpusError, match=r"party: "):
        align(pd.Series(range(len(index)), index=index), documents, "party")


def test_documents_that_kept_their_numbers_are_names() -> None:
    part = pd.RangeIndex(10)[4:7]
    assert align(pd.Series([6, 4, 5], index=[6, 4, 5]), part, "x").tolist() == [4, 5, 6]


HOSTILE = ["=1+1", "+1+1", "-1+1", "@SUM(1)", "\t=1", "\r=1", " =1", "\n=1", "a\rb", 'a"b,c']


def test_csv_neither_computes_nor_breaks_rows() -> None:
    frame = pd.DataFrame({"=x": HOSTILE, "number": np.linspace(-1, 1, len(HOSTILE))})
    text = to_csv(frame)
    assert "\r" not in text
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert [row[0] for row in rows] == [
        *("'=x", "'=1+1", "'+1+1", "'-1+1", "'@SUM(1)", "'\t=1"),
        *("'\n=1", "' =1", "'\n=1", "a\nb", 'a"b,c'),
    ]
    assert float(rows[1][1]) == -1.0


def test_numbers_in_texts_stay_numbers() -> None:
    assert render(pd.DataFrame({"x": ["-5", "+0.5"]}), "csv") == "x\n-5\n+0.5"


def test_frames_with_repeated_columns_and_without_columns_are_written() -> None:
    assert to_csv(pd.DataFrame([[1, "=2"]], columns=["a", "a"])) == "a,a\n1,'=2\n"
    assert to_csv(pd.DataFrame(index=[0, 1])).strip('\n"') == ""


def test_a_table_is_text_and_json() -> None:
    frame = pd.DataFrame({"topic": [0, 1], "share": [0.123456789, np.nan], "words": ["über", "b"]})
    assert render(frame).splitlines()[1].split() == ["0", "0.1235", "über"]
    rows = json.loads(render(frame, "json"))
    assert rows[1] == {"topic": 1, "share": None, "words": "b"}
    with pytest.raises(ConfigError, match="format is 'xml'; expected one of text, csv, json"):
        render(frame, "xml")  # type: ignore[arg-type]


def test_words_of_a_list_share_a_line_and_a_column_named_word_keeps_its_rows() -> None:
    words = pd.DataFrame({"topic": [0, 0], "word": ["a", "b"], "probability": [0.6, 0.4]})
    assert render(words).split() == ["topic", "words", "0", "a", "b"]
    effects = pd.DataFrame({"topic": [0, 0], "word": ["a", "b"], "estimate": [0.1, 0.2]})
    assert render(effects).splitlines()[2].split() == ["0", "b", "0.2"]
