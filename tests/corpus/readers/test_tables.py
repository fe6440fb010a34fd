"""Corpora in Parquet files."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.corpora import dense, random_counts, write

from torch_lntm.corpus import read_corpus
from torch_lntm.corpus.readers import tables
from torch_lntm.errors import CorpusError, FileError

COUNTS = random_counts()
WORDS = [f"wörd{v}" for v in range(20)]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(tables, "_ROWS", 7)


def test_truncated_and_foreign_files_are_refused(tmp_path):
    path = write_parquet(tmp_path / "a.parquet")
    data = path.read_bytes()
    for content in (b"", b"no such thing", data[: len(data) // 2]):
        path.write_bytes(content)
        with pytest.raises(FileError, match=r"a\..*: .*complete"):
            read_corpus(path)


# ------------------------------------------------------------------ Parquet


ROWS = [np.flatnonzero(row) for row in COUNTS]
COLUMNS = {
    "words": [[WORDS[v] for v in row] for row in ROWS],
    "counts": [COUNTS[d, row].tolist() for d, row in enumerate(ROWS)],
    "year": list(range(50)),
    "who": ["ann", None] * 25,
}


def write_parquet(path, given=COLUMNS, **columns):
    table = {name: values for name, values in (given | columns).items() if values is not None}
    pq.write_table(pa.table(table), path, row_group_size=2)
    return path


def test_parquet_of_words(tmp_path):
    corpus = read_corpus(write_parquet(tmp_path / "a.parquet"))
    assert corpus.vocabulary == tuple(sorted(WORDS))
    order = [corpus.vocabulary.index(word) for word in WORDS]
    np.testing.assert_array_equal(dense(corpus)[:, order], COUNTS)
    assert corpus.metadata["year"].tolist() == list(range(50))
    assert corpus.metadata["who"].tolist() == ["ann", None] * 25


def test_parquet_of_columns(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", words=[row.tolist() for row in ROWS])
    np.testing.assert_array_equal(dense(read_corpus(path)), COUNTS)
    named = read_corpus(path, vocabulary=[*WORDS, "more"])
    assert named.num_words == 21
    with pytest.raises(FileError, match="expected a number from 0 to below 5"):
        read_corpus(path, vocabulary=WORDS[:5])


def test_parquet_of_tokens(tmp_path):
    tokens = [np.repeat(np.arange(20), row)[::-1].tolist() for row in COUNTS]
    tokens[3] = None  # an empty document
    path = write_parquet(tmp_path / "a.parquet", words=tokens, counts=None)
    expected = COUNTS.copy()
    expected[3] = 0
    np.testing.assert_array_equal(dense(read_corpus(path)), expected)


# ------------------------------------------------------------------ folders of Parquet files


def write_folder(folder, rows_of_files, row_group_size=3, **columns):
    """The documents of ``COUNTS`` by columns, in files of these numbers of documents."""
    words = pa.array([row.tolist() for row in ROWS], pa.list_(pa.int32()))
    given = COLUMNS | {"words": words, "who": None} | columns
    table = {name: values for name, values in given.items() if values is not None}
    folder.mkdir()
    first = 0
    for i, num_rows in enumerate(rows_of_files):
        part = pa.table(table).slice(first, num_rows)
        pq.write_table(part, folder / f"part-{i:02}.parquet", row_group_size=row_group_size)
        first += num_rows
    return folder


@pytest.mark.parametrize("named", [False, True])
def test_parquet_of_columns_in_several_files(tmp_path, named):
    folder = write_folder(tmp_path / "posts", [20, 0, 1, 29])
    (folder / "_SUCCESS").touch()  # as Spark leaves it
    options = {"vocabulary": WORDS} if named else {}
    corpus = read_corpus(folder, **options)
    np.testing.assert_array_equal(dense(corpus), COUNTS)
    assert corpus.vocabulary == (tuple(WORDS) if named else None)
    assert corpus.metadata["year"].tolist() == list(range(50))
    assert corpus.name == "posts"


def test_parquet_of_texts_in_several_files(tmp_path):
    texts = pa.array([" ".join(np.repeat(WORDS, row)) for row in COUNTS])
    columns = {"words": None, "counts": None, "text": texts}
    folder = write_folder(tmp_path / "posts", [7, 13, 30], **columns)
    corpus = read_corpus(folder, vocabulary=WORDS)
    np.testing.assert_array_equal(dense(corpus), COUNTS)
    broken = pa.table({"year": pa.array([1, 2]), "text": pa.array([1, 2])})
    pq.write_table(broken, folder / "part-03.parquet")
    with pytest.raises(FileError, match=r"posts, part-03\.parquet, row 1: expected a text"):
        read_corpus(folder, vocabulary=WORDS)


def test_files_with_other_columns_are_refused(tmp_path):
    folder = write_folder(tmp_path / "posts", [25, 25])
    other = pq.read_table(folder / "part-01.parquet")
    words = other.drop_columns("words").append_column("words", pa.array([["a"]] * 25))
    for table in (other.drop_columns("counts"), words, words.select(["words", "counts", "year"])):
        pq.write_table(table, folder / "part-01.parquet")
        with pytest.raises(FileError, match=r"has the columns|complete"):
            read_corpus(folder)
    data = (folder / "part-00.parquet").read_bytes()
    (folder / "part-01.parquet").write_bytes(data[: len(data) // 2])
    with pytest.raises(FileError, match=r"part-01\.parquet: not a complete Parquet file"):
        read_corpus(folder)
    for file in folder.iterdir():
        file.unlink()
    with pytest.raises(FileError, match=r"posts: expected a folder of \.parquet files, found none"):
        read_corpus(folder, format="parquet")


# ------------------------------------------------------------------ Parquet of texts

POSTS = {
    "text": ["cat cat", "dog\u2028cat", "", None, "dog"],
    "label": ["a", None, "b", "3", "a"],
    "year": [2001, 2002, None, 2004, 2005],
    "tags": [["x", "y"], [], None, ["z"], ["x"]],
}


def write_posts(path, **columns):
    return write_parquet(path, POSTS, **columns)


def test_texts_of_parquet_and_json_lines_give_equal_corpora(tmp_path):
    path = write_posts(tmp_path / "a.parquet")
    corpus = read_corpus(path)
    np.testing.assert_array_equal(dense(corpus), [[2, 0], [1, 1], [0, 0], [0, 0], [0, 1]])
    assert corpus.labels == ("a", "", "b", "3", "a")
    lines = [json.dumps({n: v[i] for n, v in POSTS.items()}) for i in range(5)]
    same = read_corpus(write(tmp_path / "a.jsonl", "\n".join(lines)))
    assert corpus.fingerprint() == same.fingerprint()
    assert list(corpus.metadata) == list(same.metadata)
    for name, values in corpus.metadata.items():
        np.testing.assert_array_equal(values, same.metadata[name])


def test_the_column_of_the_texts_of_parquet_can_be_named(tmp_path):
    path = write_posts(tmp_path / "a.parquet", text=None, body=POSTS["text"])
    assert read_corpus(path, text_field="body").vocabulary == ("cat", "dog")
    assert read_corpus(path, text_field="body", label_field="year").labels[:2] == ("2001", "2002")
    with pytest.warns(UserWarning, match="dropped 3 of 5 tokens: 1 words unknown"):
        corpus = read_corpus(path, ["dog", "emu"], text_field="body")
    assert corpus.vocabulary == ("dog", "emu")


def test_parquet_of_words_and_texts_is_read_as_counts_by_default(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", text=["emu owl"] * 50)
    counted = read_corpus(path)
    assert counted.vocabulary == tuple(sorted(WORDS))
    assert counted.metadata["text"][0] == "emu owl"
    assert read_corpus(path, text_field="text").vocabulary == ("emu", "owl")
    path = write_posts(tmp_path / "b.parquet", words=[1, 2, 0, 0, 1])  # no lists, but how many
    corpus = read_corpus(path)
    assert corpus.vocabulary == ("cat", "dog")
    assert corpus.metadata["words"].tolist() == [1, 2, 0, 0, 1]


@pytest.mark.parametrize(
    ("make", "columns", "options", "match"),
    [
        (write_parquet, {"words": None}, {}, "expected a column 'text' of texts, or .* 'words'"),
        (write_parquet, {"words": [1.5] * 50}, {}, "'words' must be lists of string or int, got d"),
        (write_parquet, {"words": [["a", None]] * 50}, {}, "'words' and 'counts' must be complete"),
        (write_parquet, {"words": [[1, -2]] * 50, "counts": None}, {}, "has the word -2"),
        (write_parquet, {"counts": [[1]] * 50}, {}, "and equally many in each document"),
        (write_parquet, {"counts": [1] * 50}, {}, "'counts' must be lists of int or .*, got int64"),
        (write_parquet, {"words": [["a"]] * 50, "counts": [[0.5]] * 50}, {}, r"got 0\.5"),
        (write_parquet, {"words": [[10**12]] * 50, "counts": None}, {}, "out of proportion"),
        (write_parquet, {}, {"label_field": "who"}, "label_field cannot be used with counts"),
        (write_posts, {"text": None}, {}, "expected a column 'text' of texts, or .* are label, ye"),
        (write_posts, {}, {"text_field": "body"}, "expected a column 'body' of texts, .* are text"),
        (write_posts, {}, {"text_field": "year"}, "row 1: expected a text .* 'year', got 2001"),
        (write_posts, {}, {"text_field": "tags"}, "row 1: expected a text .* 'tags', got .'x'"),
        (write_posts, {}, {"delimiter": ";"}, "delimiter cannot be used with texts of the format"),
    ],
)
def test_unusable_parquet_is_refused(tmp_path, make, columns, options, match):
    path = make(tmp_path / "a.parquet", **columns)
    with pytest.raises(CorpusError, match=rf"a\.parquet.*{match}"):
        read_corpus(path, **options)


def test_parquet_without_documents_unicode_or_different_names_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    with pytest.raises(FileError, match=r"a\.parquet: holds no document"):
        read_corpus(path)
    pq.write_table(pa.table([["a cat"], ["a dog"]], names=["text", "text"]), path)
    with pytest.raises(FileError, match="has the columns text, text; expected different names"):
        read_corpus(path)
    write_posts(path, text=["cat wolf"] * 5)
    path.write_bytes(path.read_bytes().replace(b"wolf", b"wol\xff"))
    with pytest.raises(FileError, match=r"a\.parquet.*is it complete\? \(.*utf-8"):
        read_corpus(path)
