"""Metadata and covariates of documents: kinds of columns, names of rows, and files."""

from __future__ import annotations

import datetime
import json
import zlib

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from support.corpora import make_corpus

from torch_lntm.corpus import Corpus, read_corpus
from torch_lntm.corpus.metadata import make_metadata
from torch_lntm.corpus.splits import load_split
from torch_lntm.errors import CorpusError, FileError, MissingColumnError

NAN = float("nan")
ID = 1580661436132757506  # a number that no float64 holds


def polars_frame(table):
    return pytest.importorskip("polars").DataFrame(table)


MAKERS = {"pandas": pd.DataFrame, "arrow": pa.table, "polars": polars_frame}

# -------------------------------------------------------------------- kinds of columns


@pytest.mark.parametrize(
    ("values", "expected", "dtype"),
    [
        ([1, 2, 3], [1, 2, 3], np.int64),
        ([1, None, 3], [1.0, None, 3.0], np.float64),
        ([1.5, NAN, None], [1.5, None, None], np.float64),
        ([True, False], [True, False], bool),
        ([True, None], [1.0, None], np.float64),
        (["a", None, "", " "], ["a", None, None, " "], object),
        (["a", NAN, pd.NA, pd.NaT], ["a", None, None, None], object),
        (["a", 1, 2.5, True], ["a", "1", "2.5", "True"], object),
        ([True, 1], ["True", "1"], object),
        ([None, None], [None, None], object),
        ([["a", "b"], ["c"], [], None], ["a|b", "c", None, None], object),
        ([{"k": 1}], ['{"k": 1}'], object),
        ([2**63, 1], [str(2**63), "1"], object),
        ([ID, None], [str(ID), None], object),
        ([10**400, 0.5], [str(10**400), "0.5"], object),
        ([datetime.date(2020, 1, 2), None], ["2020-01-02", None], object),
        (np.array(["a", "bc", ""]), ["a", "bc", None], object),
        (np.array([2**64 - 1], np.uint64), [str(2**64 - 1)], object),
        (np.array([0.5, NAN], np.float32), [0.5, None], np.float64),
        (np.array(["2020-01-02", "NaT"], "M8[D]"), ["2020-01-02", None], object),
        (torch.tensor([1, 2]), [1, 2], np.int64),
        (pd.Series([1, None], dtype="Int64"), [1.0, None], np.float64),
        (pd.Series([ID, None], dtype="Int64"), [str(ID), None], object),
        (pd.Series([ID, ID + 1], dtype="Int64"), [ID, ID + 1], np.int64),
        (pd.Series(["a", None]), ["a", None], object),
        (pd.Series(["b", "a"], dtype="category"), ["b", "a"], object),
        (["x\udc80", "é", ["b\ud800", "c"]], ["x\ufffd", "é", "b\ufffd|c"], object),
        (pa.array([ID, None]), [str(ID), None], object),
    ],
)  # fmt: skip
def test_kinds_of_columns(values, expected, dtype):
    found = make_metadata({"x": values}, len(values))["x"]
    assert found.dtype == dtype
    assert [None if v is None or v != v else v for v in found.tolist()] == expected


@pytest.mark.parametrize(
    ("metadata", "match"),
    [
        ({"x": [1, 2]}, "metadata 'x': expected one value for each of 3 documents, got 2"),
        ({"x": "abc"}, "one value for each of 3 documents, got 'abc'"),
        ({" ": [1, 2, 3]}, "different names, got ' '"),
        ({1: [1, 2, 3], "1": [1, 2, 3]}, "different names, got '1' .twice."),
        (pd.DataFrame([[1, 2]] * 3, columns=["a", "a"]), "different names, got 'a' .twice."),
        ([1, 2, 3], "expected a data frame .* got a .* list"),
        (pd.DataFrame({"x": [1, 2]}), "expected one row for each of 3 documents, got 2"),
    ],
)
def test_invalid_metadata_are_refused(metadata, match):
    with pytest.raises(CorpusError, match=match):
        Corpus.from_matrix(np.ones((3, 2)), metadata=metadata)


def test_the_frame_of_a_corpus_is_a_copy():
    party = np.array(["x", "y"], object)
    corpus = Corpus.from_matrix(np.ones((2, 2)), metadata={"party": party})
    party[0] = "z"
    frame = corpus.metadata
    frame["new"] = 1
    frame.loc[0, "party"] = "z"
    assert corpus.metadata.to_dict("list") == {"party": ["x", "y"]}
    more = corpus.with_metadata({"party": ["p", "q"], "year": [1, 2]})
    assert more.metadata.to_dict("list") == {"party": ["p", "q"], "year": [1, 2]}
    assert list(corpus.metadata) == ["party"]
    with pytest.raises(MissingColumnError, match="no column 'age'; there are: x"):
        _ = corpus.with_covariates({"x": [1.0, 2.0]}).covariates["age"]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([1, 2], ("1", "2")),
        ([1, NAN], ("1", "")),
        (["a", ""], ("a", "")),
        ([None, "b"], ("", "b")),
        ([["a", "b"], True], ("a|b", "True")),
        (pd.Series([ID, None], dtype="Int64"), (str(ID), "")),
    ],
)
def test_labels_are_text_and_missing_labels_are_missing(labels, expected):
    corpus = Corpus.from_matrix(np.ones((2, 2)), metadata={"label": labels})
    assert corpus.labels == expected
    assert corpus.metadata["label"].isna().tolist() == [label == "" for label in expected]
    assert Corpus.from_matrix(np.ones((2, 2))).labels is None


def test_missing_labels_are_no_group():
    from torch_lntm.models import stm

    frame = pd.DataFrame({"text": ["tax vote", "goal team"] * 10})
    frame["party"] = pd.Series(["left", "right"] * 10).where(frame.index % 5 > 0)
    corpus = Corpus.from_texts(frame["text"], metadata={"label": frame["party"]})
    with pytest.raises(CorpusError, match="column 'label' lacks a value in 4 documents"):
        stm(2, corpus, prevalence="~ label")


# -------------------------------------------------------------------- frames and records

TABLE = {
    "id": [7, 8, 9],
    "body": ["wood stone", "stone stone", "iron wood"],
    "party": ["left", None, "right"],
    "score": [0.5, None, 2.0],
    "count": [1, None, 3],
    "big": [ID, None, ID + 1],
    "known": [True, False, True],
    "day": [datetime.date(2001, 2, 3), None, datetime.date(2002, 3, 4)],
    "tags": [["a", "b"], [], ["c"]],
}


@pytest.mark.parametrize("library", MAKERS)
def test_a_frame_gives_texts_metadata_and_names(library):
    table = {name: pd.Series(x, dtype=object) for name, x in TABLE.items()}
    frame = MAKERS[library](table if library == "pandas" else TABLE)
    corpus = Corpus.from_frame(frame, text="body", stop_words=None)
    counts = Corpus.from_matrix(MAKERS[library]({"wood": [1, 0], "iron": [2, 3]}))
    assert counts.vocabulary == ("wood", "iron")
    assert counts.to_scipy().toarray().tolist() == [[1, 2], [0, 3]]
    assert counts.with_metadata(MAKERS[library]({"n": [1, 2]})).metadata["n"].tolist() == [1, 2]
    assert corpus.vocabulary == ("iron", "stone", "wood")
    assert corpus.to_scipy().toarray().tolist() == [[0, 1, 1], [0, 2, 0], [1, 0, 1]]
    columns = {name: values.tolist() for name, values in corpus.metadata.items()}
    np.testing.assert_array_equal(columns.pop("score"), [0.5, np.nan, 2.0])
    np.testing.assert_array_equal(columns.pop("count"), [1.0, np.nan, 3.0])
    assert columns == {
        "id": [7, 8, 9],
        "party": ["left", None, "right"],
        "big": [str(ID), None, str(ID + 1)],
        "known": [True, False, True],
        "day": ["2001-02-03", None, "2002-03-04"],
        "tags": ["a|b", None, "c"],
    }
    assert corpus.metadata.index.tolist() == [7, 8, 9]


@pytest.mark.parametrize("library", MAKERS)
def test_times_of_a_frame_become_text_that_sorts(library):
    times = [datetime.datetime(2001, 2, 3, 4, 5), datetime.datetime(1999, 1, 1)]
    zoned = [time.replace(tzinfo=datetime.UTC) for time in times]
    frame = MAKERS[library]({"text": ["wood", "stone"], "time": times, "zoned": zoned})
    metadata = Corpus.from_frame(frame).metadata
    assert [text[:16] for text in metadata["time"]] == ["2001-02-03T04:05", "1999-01-01T00:00"]
    assert metadata["zoned"].tolist() == ["2001-02-03 04:05:00+00:00", "1999-01-01 00:00:00+00:00"]


@pytest.mark.parametrize("library", MAKERS)
def test_wrong_columns_of_texts_are_refused_with_advice(library):
    frame = MAKERS[library](TABLE)
    with pytest.raises(CorpusError, match=r"no columns are named 'text'; .* are id, body, "):
        Corpus.from_frame(frame)
    with pytest.raises(CorpusError, match=r"3 of 3 documents have no text.*: 0, 1, 2 .got 7.;"):
        Corpus.from_frame(frame, text="id")
    with pytest.raises(CorpusError, match=r"Corpus\.from_frame\(frame, text=name\)"):
        Corpus.from_texts(frame)
    with pytest.raises(CorpusError, match=r"30 of 31 documents have no text.*: 1, 2, .*, 20 and"):
        Corpus.from_frame(MAKERS[library]({"text": ["wood", *[None] * 30]}))


@pytest.mark.parametrize(
    ("table", "match"),
    [
        (pd.DataFrame([["wood", "stone"]], columns=["text", "text"]), "2 columns are named 'text'"),
        (polars_frame({"text": ["wood"]}).lazy(), r"got a polars LazyFrame; call collect\(\)"),
        *(
            (given, r"expected a data frame.* Corpus\.from_texts")
            for given in (["wood"], [{"text": "wood"}, "stone"], {"text": ["wood"]}, None)
        ),
    ],
)
def test_other_tables_are_refused_with_advice(table, match):
    with pytest.raises(CorpusError, match=match):
        Corpus.from_frame(table)


class Dataset:
    """What Hugging Face's Dataset shows, with rows chosen from its table."""

    shard = __len__ = None

    def with_format(self, name):
        return {"arrow": self}[name]

    def __getitem__(self, rows):
        assert rows == slice(None)
        return pa.table({"text": ["stone", "wood"], "id": [ID, ID + 1], "size": [None, ID]})


def test_a_dataset_of_hugging_face_gives_its_chosen_rows_exactly():
    corpus = Corpus.from_frame(Dataset())
    assert corpus.metadata.to_dict("list") == {"id": [ID, ID + 1], "size": [None, str(ID)]}
    assert corpus.metadata.index.tolist() == [ID, ID + 1]
    # A dictionary of splits has no rows of its own, and a stream has no length.
    splits = type("DatasetDict", (dict,), {"with_format": None})(train=Dataset())
    with pytest.raises(CorpusError, match=r"DatasetDict; .* take one split"):
        Corpus.from_frame(splits)


def test_records_give_texts_and_metadata():
    records = [{"text": "wood stone", "year": 2001}, {"text": "stone", "party": "left"}]
    corpus = Corpus.from_frame(records, stop_words=None)
    assert corpus.num_tokens == 3
    np.testing.assert_array_equal(corpus.metadata["year"], [2001.0, np.nan])
    assert corpus.metadata["party"].tolist() == [None, "left"]


# -------------------------------------------------------------------- names of rows

TEXTS = pd.Series(["wood", "stone", "iron"], index=["a", "b", "c"])
COUNTS = pd.DataFrame(np.eye(3, dtype=int), TEXTS.index)
ORDER = ["c", "a", "b"]
YEARS = pd.DataFrame({"year": [3, 1, 2]}, index=ORDER)


@pytest.mark.parametrize("documents", [TEXTS, COUNTS])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"year": x["year"]}])
def test_whatever_has_an_index_is_joined_by_it(documents, wrap):
    make = Corpus.from_texts if documents is TEXTS else Corpus.from_matrix
    corpus = make(documents, metadata=wrap(YEARS))
    later = make(documents).with_metadata(wrap(YEARS))
    for found in (corpus, later):
        assert found.metadata["year"].tolist() == [1, 2, 3]
        assert found.metadata.index.tolist() == ["a", "b", "c"]
    x = pd.DataFrame({"u": [3.0, 1.0, 2.0], "v": [6.0, 4.0, 5.0]}, index=ORDER)
    covariates = corpus.with_covariates({"x": x, "u": x["u"]}).covariates
    np.testing.assert_array_equal(covariates["x"], [[1, 4], [2, 5], [3, 6]])
    np.testing.assert_array_equal(covariates["u"], [1, 2, 3])
    assert corpus[YEARS["year"] > 1].metadata.index.tolist() == ["b", "c"]
    # Lists and arrays go by position.
    assert corpus.with_metadata({"n": [1, 2, 3]}).metadata.loc["b", "n"] == 2
    assert corpus[np.array([True, False, True])].metadata.index.tolist() == ["a", "c"]


@pytest.mark.parametrize("index", [["a", "b", "d"], [0, 1, 2], [5, 6, 7], ["a", "b", "b"]])
def test_rows_of_other_names_are_refused(index):
    corpus = Corpus.from_texts(TEXTS)
    column = pd.Series([True, False, True], index=index)
    for use in (
        lambda: corpus.with_metadata({"year": column}),
        lambda: corpus.with_metadata(column.to_frame("year")),
        lambda: corpus.with_covariates({"x": column}),
        lambda: corpus[column],
    ):
        with pytest.raises(CorpusError, match=r"have other names than the documents.*row \d is"):
            use()
    by_position = column.to_frame("year").to_dict("list")  # the advice of the message
    assert corpus.with_metadata(by_position).metadata["year"].tolist() == [True, False, True]


def test_rows_in_another_order_without_names_to_join_by_are_refused():
    shuffled = pd.DataFrame({"year": [1, 2, 3]}, index=[2, 0, 1])
    nullable = shuffled.set_axis(shuffled.index.astype("Int64"))
    for texts in (list(TEXTS), TEXTS.reset_index(drop=True)):
        for columns in (shuffled, {"label": shuffled["year"]}):
            with pytest.raises(CorpusError, match="stand in another order than the documents"):
                Corpus.from_texts(texts, metadata=columns)
    with pytest.raises(CorpusError, match="stand in another order than the documents"):
        Corpus.from_texts(list(TEXTS), metadata=nullable)
    for columns in (shuffled, {"year": shuffled["year"]}):
        with pytest.raises(CorpusError, match=r"row 0 is 2, and document 0 is 0"):
            Corpus.from_texts(list(TEXTS)).with_metadata(columns)
    # The documents have the same names.
    texts = pd.Series(list(TEXTS), index=shuffled.index)
    columns = {"year": shuffled["year"].sort_index(), "label": shuffled["year"]}
    found = Corpus.from_texts(texts, metadata=columns)
    assert found.metadata.to_dict("list") == {"year": [1, 2, 3], "label": [1, 2, 3]}
    assert found.metadata.index.tolist() == [2, 0, 1]
    whole = Corpus.from_frame(shuffled.assign(text=list(TEXTS)))
    assert whole.metadata["year"].to_dict() == {2: 1, 0: 2, 1: 3}


@pytest.mark.parametrize(
    ("index", "names"),
    [
        ([5, 7, 9], [5, 7, 9]),
        (["b", "a", "c"], ["b", "a", "c"]),
        ([1, 1, 0], [11, 12, 13]),  # no names, so the ids are
        ([0, 1, 2], [11, 12, 13]),
    ],
)
def test_documents_are_named_by_the_metadata_or_their_ids(index, names):
    columns = pd.DataFrame({"id": [11, 12, 13], "year": [1, 2, 3]}, index=index)
    corpus = Corpus.from_texts(list(TEXTS), metadata=columns)
    assert corpus.metadata["year"].tolist() == [1, 2, 3]
    assert corpus.metadata.index.tolist() == names
    frame = Corpus.from_frame(columns.assign(text=list(TEXTS)))
    assert frame.metadata.index.tolist() == names


def test_a_later_column_of_ids_names_the_documents():
    corpus = Corpus.from_texts(list(TEXTS))
    assert corpus.with_metadata({"id": [7, 8, 9]}).metadata.index.tolist() == [7, 8, 9]
    again = Corpus.from_texts(TEXTS).with_metadata({"id": [7, 8, 9]})
    assert again.metadata.index.tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("ids", [[1, 1, 2], [1, None, 2], ["a", "", "b"]])
def test_ids_that_repeat_or_lack_are_no_names(ids):
    corpus = Corpus.from_texts(list(TEXTS), metadata={"id": ids})
    assert corpus.metadata.index.equals(pd.RangeIndex(3))


def test_a_frame_with_ids_and_without_an_index_is_joined_by_the_ids():
    corpus = Corpus.from_texts(list(TEXTS), metadata={"id": ["1.txt", "10.txt", "2.txt"]})
    table = pd.DataFrame({"id": ["1.txt", "2.txt", "10.txt"], "n": [1, 2, 10]})
    found = corpus.with_metadata(table).metadata
    assert found["n"].tolist() == [1, 10, 2]
    assert found["id"].tolist() == found.index.tolist() == ["1.txt", "10.txt", "2.txt"]
    with pytest.raises(CorpusError, match="other names"):
        corpus.with_metadata(table.assign(id=["1.txt", "2.txt", "3.txt"]))


def test_numbers_as_ids_find_names_that_are_text():
    corpus = Corpus.from_texts(pd.Series(list(TEXTS), index=["1", "10", "2"]))
    table = pd.DataFrame({"id": [1, 2, 10], "n": [1, 2, 10]})
    assert corpus.with_metadata(table).metadata["n"].tolist() == [1, 10, 2]


def test_the_column_of_ids_of_a_file_names_its_documents(tmp_path):
    path = tmp_path / "posts.csv"
    path.write_text("id,text,n\n" + "".join(f"{9 - i},{t},{i}\n" for i, t in enumerate(TEXTS)))
    corpus = read_corpus(path)
    assert corpus.metadata.index.tolist() == [9, 8, 7]
    table = pd.DataFrame({"n": [7, 8, 9]}, index=[7, 8, 9])
    assert corpus.with_metadata(table).metadata["n"].tolist() == [9, 8, 7]


# -------------------------------------------------------------------- selections and files


@pytest.fixture
def known() -> Corpus:
    """A corpus whose metadata and covariates tell each document's number."""
    numbers = np.arange(50)
    corpus = make_corpus(labels=None).with_metadata(
        {
            "number": numbers,
            "name": [f"dök {i}\n" if i % 3 else None for i in numbers],
            "share": [i / 7 if i % 2 else NAN for i in numbers],
            "odd": numbers % 2 == 1,
            "none": [None] * 50,
        }
    )
    return corpus.with_covariates(
        {"x": numbers[:, None] / 3, "group": numbers, "e/..": numbers > 5}
    )


def check_known(corpus: Corpus, numbers) -> None:
    numbers = list(numbers)
    assert corpus.num_docs == len(numbers)
    assert corpus.metadata.dtypes.tolist() == [np.int64, object, np.float64, bool, object]
    assert corpus.metadata.index.tolist() == corpus.metadata["number"].tolist() == numbers
    assert corpus.metadata["name"].tolist() == [f"dök {i}\n" if i % 3 else None for i in numbers]
    shares = [i / 7 if i % 2 else NAN for i in numbers]
    np.testing.assert_array_equal(corpus.metadata["share"], shares)
    assert corpus.metadata["odd"].tolist() == [i % 2 == 1 for i in numbers]
    assert corpus.metadata["none"].tolist() == [None] * len(numbers)
    assert list(corpus.covariates) == ["x", "group", "e/.."]
    np.testing.assert_array_equal(corpus.covariates["x"], np.array(numbers)[:, None] / 3)
    assert corpus.covariates["group"].dtype == np.int64
    assert not any(array.flags.writeable for array in corpus.covariates.values())


def test_selections_and_splits_keep_metadata_and_covariates(known, tmp_path):
    check_known(known, range(50))
    check_known(known[[7, 3, 3]], [7, 3, 3])
    check_known(known[-1], [49])
    split = known.split(0.2)
    check_known(split.train, split.train_index)
    check_known(split.test, split.test_index)
    split.save(tmp_path / "split.npz")
    check_known(load_split(tmp_path / "split.npz", known).test, split.test_index)
    for part in known.hold_out_words():
        check_known(part, range(50))
    check_known(known.with_counts(known.counts * 2), range(50))
    for words in (["w3", "w1"], ["emu"]):
        with pytest.warns(UserWarning, match="dropped"):
            check_known(known.with_vocabulary(words), range(50))
    assert known.fingerprint() == make_corpus(labels=None).fingerprint()


def test_saving_keeps_metadata_and_covariates(known, tmp_path):
    for corpus, numbers in ((known, range(50)), (known[5:], range(5, 50)), (known[[9, 3]], [9, 3])):
        corpus.save(tmp_path / "toy")
        check_known(read_corpus(tmp_path / "toy"), numbers)


@pytest.mark.parametrize(
    "index", [["b", "é", "a"], [5, 3, 4], pd.date_range("2020-01-01", periods=3), [0.5, 1.5, 1.0]]
)
@pytest.mark.parametrize("columns", [{}, {"year": [1, 2, 3]}])
def test_saving_keeps_names(tmp_path, index, columns):
    frame = pd.DataFrame(columns, index=index)
    corpus = Corpus.from_matrix(np.ones((3, 2)), metadata=frame)
    corpus.save(tmp_path / "toy")
    found = read_corpus(tmp_path / "toy").metadata
    pd.testing.assert_frame_equal(found, corpus.metadata, check_column_type=False, check_freq=False)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("metadata.parquet", b"\x01\x02", ""),
        ("covariates.npz", {"covariates": b"["}, ".*Expecting value"),
        ("covariates.npz", {"covariates": b'["x"]'}, ".*covariate_0"),
        ("covariates.npz", {"covariates": b'["x"]', "covariate_0": [1.0, NAN]}, ".*finite"),
    ],
)
def test_damaged_columns_in_files_are_refused(tmp_path, name, content, match):
    """Damage that the checksum has, too."""
    corpus = Corpus.from_matrix(np.ones((2, 2)), metadata={"a": [1, 2]})
    corpus.with_covariates({"x": [1.0, 2.0]}).save(tmp_path / "toy")
    file, manifest = tmp_path / "toy/shard-00000" / name, tmp_path / "toy/corpus.json"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        np.savez(file, **content | {"covariates": np.frombuffer(content["covariates"], np.uint8)})
    about = json.loads(manifest.read_text())
    about["shards"][0]["files"][name] = zlib.crc32(file.read_bytes())
    manifest.write_text(json.dumps(about))
    with pytest.raises(FileError, match=rf"{name}: is damaged{match}"):
        read_corpus(tmp_path / "toy")


# -------------------------------------------------------------------- covariates


@pytest.mark.parametrize(
    ("covariates", "match"),
    [
        ([1, 2], "must be a mapping of names to arrays, .* got a list"),
        ({"x": [1, 2]}, r"'x': expected a named array .* 3 documents, got shape \(2,\) of int64"),
        ({"x": ["a", "b", "c"]}, "of <U1"),
        ({"x": [None, 1, 2]}, "of object"),
        ({"x": [1.0, NAN, 2.0]}, "expected finite numbers, got nan in document 1"),
        ({3: [1, 2, 3]}, "covariate 3: expected a named array"),
    ],
)
def test_invalid_covariates_are_refused(covariates, match):
    with pytest.raises(CorpusError, match=match):
        Corpus.from_matrix(np.ones((3, 2))).with_covariates(covariates)


def test_covariates_are_copies():
    x = np.zeros((3, 2))
    corpus = Corpus.from_matrix(np.ones((3, 2))).with_covariates({"x": x, "y": torch.ones(3)})
    x[:] = 1
    assert corpus.covariates["x"].sum() == 0
    both = corpus.with_covariates({"x": [1, 2, 3]})
    assert (list(both.covariates), both.covariates["x"].tolist()) == (["x", "y"], [1, 2, 3])
