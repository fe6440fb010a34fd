"""Corpora in AnnData and Parquet files."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from anndata.io import write_elem
from support.corpora import dense, random_counts, write

from torch_lntm.corpus import read_corpus
from torch_lntm.corpus.readers import tables
from torch_lntm.errors import CorpusError, FileError

COUNTS = random_counts()
WORDS = [f"wörd{v}" for v in range(20)]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(tables, "_ROWS", 7)


# ------------------------------------------------------------------ AnnData


def texts(values):
    """An index of Python's strings, because anndata cannot write those of pandas 3."""
    return pd.Index(values, dtype=object)


def write_h5ad(path, x, dtype=np.float32):
    obs = pd.DataFrame(index=texts([f"d{d}" for d in range(50)]))
    obs["cell"] = pd.Categorical.from_codes(np.arange(50) % 3 - 1, texts(["B", "T"]))
    obs["age"] = np.linspace(0, 1, 50)
    obs["batch"] = texts([str(d % 4) for d in range(50)])
    obs["count"] = pd.array([None if d == 7 else d for d in range(50)], dtype="Int64")
    with h5py.File(path, "w") as file:
        write_elem(file, "X", x.astype(dtype))
        write_elem(file, "obs", obs)
        write_elem(file, "var", pd.DataFrame(index=texts(WORDS)))
    return path


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(sp.csr_array, np.float32), (sp.csc_array, np.int64), (np.asarray, np.float32)],
)
def test_anndata(tmp_path, kind, dtype):
    corpus = read_corpus(write_h5ad(tmp_path / "a.h5ad", kind(COUNTS), dtype))
    np.testing.assert_array_equal(dense(corpus), COUNTS)
    assert corpus.vocabulary == tuple(WORDS)
    assert list(corpus.metadata) == ["id", "cell", "age", "batch", "count"]
    assert corpus.metadata["id"].iloc[49] == corpus.metadata.index[49] == "d49"
    assert corpus.metadata["cell"].tolist()[:4] == [None, "B", "T", None]
    assert corpus.metadata["age"].dtype == np.float64
    assert corpus.metadata["batch"].tolist()[:2] == ["0", "1"]
    assert np.isnan(corpus.metadata["count"].iloc[7])
    assert corpus.metadata["count"].iloc[8] == 8


def put(file, name, value):
    attributes = dict(file[name].attrs)
    del file[name]
    file[name] = value
    file[name].attrs.update(attributes)


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (lambda f: f.__delitem__("X"), "is it complete?"),
        (lambda f: f.__delitem__("X/indptr"), "is it complete?"),
        (lambda f: put(f, "obs", np.arange(3)), "is it complete?"),
        (lambda f: put(f, "obs/age", np.float64(3)), "obs/age is a link, a single number"),
        (lambda f: f["X"].attrs.__setitem__("shape", (50, 19)), "malformed"),
        (lambda f: f["X"].attrs.__setitem__("shape", (10**15, 20)), ""),
        (lambda f: put(f, "X/indptr", np.array(3)), "X/indptr is a link, a single number"),
        (lambda f: put(f, "X/indices", np.arange(5)), "malformed"),
        (lambda f: put(f, "X/data", f["obs/cell"]), ""),
        (lambda f: f["X/indptr"].__setitem__(3, 400), "malformed"),
        (lambda f: f["X/indices"].__setitem__(3, 20), "malformed"),
        (lambda f: f["X/data"].__setitem__(3, 0.5), r"whole numbers .* got 0\.5 in document"),
        (lambda f: put(f, "var/_index", ["a", "b"]), "each of the 20 columns, got 2"),
        (lambda f: put(f, "obs/age", np.arange(3)), "is it complete?"),
        (lambda f: put(f, "obs/cell/codes", np.full(50, 2)), "is it complete?"),
    ],
)
def test_unusable_anndata_are_refused(tmp_path, edit, match):
    path = write_h5ad(tmp_path / "a.h5ad", sp.csr_array(COUNTS))
    with h5py.File(path, "r+") as file:
        edit(file)
    with pytest.raises(CorpusError, match=rf"a\.h5ad.*{match}"):
        read_corpus(path)


def test_announced_sizes_beyond_the_memory_are_refused_before_reading(tmp_path):
    path = write_h5ad(tmp_path / "a.h5ad", sp.csr_array(COUNTS))
    with h5py.File(path, "r+") as file:  # announced, and not stored
        del file["obs/age"]
        file["obs"].create_dataset("age", (10**13,), np.float64, chunks=(1000,))
    with pytest.raises(FileError, match=r"obs/age, of shape .* takes more bytes than the file"):
        read_corpus(path)


@pytest.mark.parametrize("name", ["a.h5ad", "a.parquet"])
def test_truncated_and_foreign_files_are_refused(tmp_path, name):
    path = tmp_path / name
    if name == "a.h5ad":
        write_h5ad(path, sp.csr_array(COUNTS))
    else:
        write_parquet(path)
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
