"""Corpora of data frames and of lists of dicts."""

from __future__ import annotations

import datetime
import re
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from torch_lntm import Corpus
from torch_lntm.errors import ConfigError, CorpusError, CorpusWarning

TABLE = {
    "id": [7, 8, 9],
    "body": ["wood stone", "stone stone", "iron wood"],
    "party": ["left", None, "right"],
    "score": [0.5, None, 2.0],
    "count": [1, None, 3],
    "known": [True, False, True],
    "day": [datetime.date(2001, 2, 3), None, datetime.date(2002, 3, 4)],
    "tags": [["a", "b"], [], ["c"]],
}


def polars_frame(table):
    return pytest.importorskip("polars").DataFrame(table)


MAKERS = {"pandas": pd.DataFrame, "arrow": pa.table, "polars": polars_frame}


@pytest.mark.parametrize("library", MAKERS)
def test_a_frame_gives_texts_and_metadata(library):
    corpus = Corpus.from_frame(MAKERS[library](TABLE), text="body", stop_words=None)
    assert corpus.vocabulary == ("iron", "stone", "wood")
    assert corpus.to_scipy().toarray().tolist() == [[0, 1, 1], [0, 2, 0], [1, 0, 1]]
    assert list(corpus.metadata) == [name for name in TABLE if name != "body"]
    columns = {name: values.tolist() for name, values in corpus.metadata.items()}
    assert columns["id"] == [7, 8, 9]
    assert columns["party"] == ["left", None, "right"]
    assert columns["known"] == [True, False, True]
    assert columns["day"] == ["2001-02-03", None, "2002-03-04"]
    assert columns["tags"] == ["a|b", "", "c"]
    np.testing.assert_array_equal(columns["score"], [0.5, np.nan, 2.0])
    np.testing.assert_array_equal(columns["count"], [1.0, np.nan, 3.0])


@pytest.mark.parametrize("library", MAKERS)
def test_times_of_a_frame_become_text_that_sorts(library):
    times = [datetime.datetime(2001, 2, 3, 4, 5), datetime.datetime(1999, 1, 1)]
    zoned = [time.replace(tzinfo=datetime.UTC) for time in times]
    frame = MAKERS[library]({"text": ["wood", "stone"], "time": times, "zoned": zoned})
    metadata = Corpus.from_frame(frame).metadata
    assert [text[:16] for text in metadata["time"]] == ["2001-02-03T04:05", "1999-01-01T00:00"]
    assert metadata["zoned"].tolist() == ["2001-02-03 04:05:00+00:00", "1999-01-01 00:00:00+00:00"]


def test_categories_and_nullable_columns_of_pandas_become_metadata():
    frame = pd.DataFrame(
        {
            "text": pd.array(["wood", "stone"], "string"),
            "party": pd.Categorical(["left", "right"]),
            "year": pd.array([2001, None], "Int64"),
        },
        index=[5, 3],
    )
    corpus = Corpus.from_frame(frame, vocabulary=["wood", "stone"])
    assert corpus.metadata["party"].tolist() == ["left", "right"]
    np.testing.assert_array_equal(corpus.metadata["year"], [2001.0, np.nan])
    assert corpus.vocabulary == ("wood", "stone")


@pytest.mark.parametrize("library", MAKERS)
def test_a_frame_of_any_library_is_metadata(library):
    frame = MAKERS[library]({"year": [2001, 2002]})
    corpus = Corpus.from_texts(["wood", "stone"], metadata=frame)
    assert corpus.metadata["year"].tolist() == [2001, 2002]
    assert corpus.with_metadata(MAKERS[library]({"n": [1, 2]})).metadata["n"].tolist() == [1, 2]


@pytest.mark.parametrize("library", MAKERS)
def test_missing_texts_are_refused_with_their_rows(library):
    frame = MAKERS[library]({"text": ["wood", None, "stone", None]})
    with pytest.raises(CorpusError, match=r"'text' has no text in 2 of 4 rows: 1, 3; leave these"):
        Corpus.from_frame(frame)
    many = MAKERS[library]({"text": ["wood", *[None] * 30]})
    with pytest.raises(CorpusError, match=r"in 30 of 31 rows: 1, 2, .*, 20 and 10 more;"):
        Corpus.from_frame(many)


@pytest.mark.parametrize("library", MAKERS)
def test_a_wrong_column_of_texts_is_refused(library):
    frame = MAKERS[library](TABLE)
    with pytest.raises(CorpusError, match="no column is named 'text'; the columns are id, body, "):
        Corpus.from_frame(frame)
    with pytest.raises(CorpusError, match="'id' must hold texts, got 7 in row 0; name the column"):
        Corpus.from_frame(frame, text="id")


def test_two_columns_of_texts_with_one_name_are_refused():
    frame = pd.DataFrame([["wood", "stone"]], columns=["text", "text"])
    with pytest.raises(CorpusError, match="2 columns are named 'text'"):
        Corpus.from_frame(frame)


def test_a_lazy_frame_is_refused_with_advice():
    frame = polars_frame({"text": ["wood"]}).lazy()
    with pytest.raises(CorpusError, match=r"got a polars LazyFrame; call its collect\(\) first"):
        Corpus.from_frame(frame)
    with pytest.raises(CorpusError, match=r"got a LazyFrame .*Corpus.from_frame\(frame, text=name"):
        Corpus.from_texts(frame)


@pytest.mark.parametrize("library", MAKERS)
def test_frames_passed_as_texts_are_refused_with_advice(library):
    advice = re.escape("Corpus.from_frame(frame, text='body')")
    with pytest.raises(CorpusError, match=advice):
        Corpus.from_texts(MAKERS[library](TABLE))


@pytest.mark.parametrize("given", [["wood stone"], {"text": ["wood"]}, None])
def test_other_objects_than_frames_are_refused_with_advice(given):
    with pytest.raises(CorpusError, match=r"expected a data frame.* Corpus\.from_texts, lists of"):
        Corpus.from_frame(given)


def test_pandas_needs_no_extra_and_arrow_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "narwhals", None)
    assert Corpus.from_frame(pd.DataFrame({"text": ["wood"]})).num_tokens == 1
    with pytest.raises(ConfigError, match=r"a pyarrow Table needs narwhals.*torch-lntm\[frames\]"):
        Corpus.from_frame(pa.table({"text": ["wood"]}))


def test_records_give_texts_and_metadata():
    records = [{"text": "wood stone", "year": 2001}, {"text": "stone", "party": "left"}]
    corpus = Corpus.from_records(records, stop_words=None)
    assert corpus.num_tokens == 3
    np.testing.assert_array_equal(corpus.metadata["year"], [2001.0, np.nan])
    assert corpus.metadata["party"].tolist() == [None, "left"]
    named = Corpus.from_records(({"body": text} for text in ("wood", "stone")), text="body")
    assert named.num_docs == 2


@pytest.mark.parametrize(
    ("records", "match"),
    [
        ([{"text": "wood"}, {"year": 1}], "'text' has no text in 1 of 2 rows: 1;"),
        ([{"body": "wood"}], "no column is named 'text'; the columns are body;"),
        ([{"text": 3}], "'text' must hold texts, got 3 in row 0"),
        ([{"text": "wood"}, "stone"], "record 1 must be a dict, got str; texts alone go to"),
        ({"text": ["wood"]}, "records must be a list of dicts, one for each document, got a dict"),
        (pd.DataFrame({"text": ["wood"]}), r"got a pandas DataFrame; use Corpus\.from_frame"),
        ("wood", "got a str"),
    ],
)
def test_wrong_records_are_refused(records, match):
    with pytest.raises(CorpusError, match=match):
        Corpus.from_records(records)


# -------------------------------------------------------------------- the order of rows

TEXTS = pd.Series(["wood", "stone", "iron"], index=["a", "b", "c"])
SHUFFLED = pd.DataFrame({"year": [1, 2, 3]}, index=[2, 0, 1])


@pytest.mark.parametrize("wrap", [lambda frame: frame, lambda frame: {"year": frame["year"]}])
@pytest.mark.parametrize("documents", [TEXTS, pd.DataFrame(np.eye(3, dtype=int), TEXTS.index)])
def test_metadata_in_another_order_than_the_documents_are_refused(documents, wrap):
    frame = pd.DataFrame({"year": [3, 1, 2]}, index=["c", "a", "b"])
    is_text = documents is TEXTS
    make = Corpus.from_texts if is_text else Corpus.from_matrix
    match = (
        r"row 0 has the index 'c' in the metadata and 'a' in .*metadata=frame.loc\[texts.index\]"
    )
    with pytest.raises(CorpusError, match=match):
        make(documents, metadata=wrap(frame))
    # The advice of the message.
    assert make(documents, metadata=frame.loc[TEXTS.index]).metadata["year"].tolist() == [1, 2, 3]


def test_a_shuffled_frame_beside_a_corpus_warns_how_to_say_which_order_is_meant():
    corpus = Corpus.from_texts(list(TEXTS))
    match = r"row 0 has the index 2\..*frame.sort_index\(\).*frame.reset_index\(drop=True\)"
    for columns in (SHUFFLED, {"year": SHUFFLED["year"]}):
        with pytest.warns(CorpusWarning, match=match):
            assert corpus.with_metadata(columns).metadata["year"].tolist() == [1, 2, 3]
    # Both pieces of advice end the warning, which is an error in this suite.
    sorted_rows = corpus.with_metadata(SHUFFLED.sort_index())
    assert sorted_rows.metadata["year"].tolist() == [2, 3, 1]
    as_they_are = corpus.with_metadata(SHUFFLED.reset_index(drop=True))
    assert as_they_are.metadata["year"].tolist() == [1, 2, 3]


def test_rows_shuffled_together_with_the_documents_are_taken_as_they_are():
    """Warnings are errors in this suite."""
    texts = pd.Series(list(TEXTS), index=SHUFFLED.index)
    for columns in (SHUFFLED, {"year": SHUFFLED["year"]}):
        assert Corpus.from_texts(texts, metadata=columns).metadata["year"].tolist() == [1, 2, 3]
    frame = SHUFFLED.assign(text=list(TEXTS))
    assert Corpus.from_frame(frame).metadata["year"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("index", [[0, 1, 2], [5, 7, 9], [9, 5, 7], [1, 1, 0], ["b", "a", "c"]])
def test_other_indexes_of_metadata_are_taken_by_position(index):
    """Warnings are errors in this suite. Numbers of documents may come in any order."""
    columns = pd.DataFrame({"year": [1, 2, 3]}, index=index)
    assert Corpus.from_texts(list(TEXTS), metadata=columns).metadata["year"].tolist() == [1, 2, 3]
