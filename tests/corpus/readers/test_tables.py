"""Corpora in Parquet files."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.corpora import dense, write

from torch_lntm.corpus import read_corpus
from torch_lntm.corpus.readers import texts
from torch_lntm.errors import CorpusError, FileError

POSTS = {
    "text": ["cat cat", "dog\u2028cat", "", None, "dog"],
    "label": ["a", None, "b", "3", "a"],
    "year": [2001, 2002, None, 2004, 2005],
    "tags": [["x", "y"], [], None, ["z"], ["x"]],
}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(texts, "_ROWS", 3)


def write_posts(path, first=0, last=5, **columns):
    table = {name: values for name, values in (POSTS | columns).items() if values is not None}
    pq.write_table(pa.table(table).slice(first, last - first), path, row_group_size=2)
    return path


def test_texts_of_parquet_and_json_lines_give_equal_corpora(tmp_path):
    corpus = read_corpus(write_posts(tmp_path / "a.parquet"))
    np.testing.assert_array_equal(dense(corpus), [[2, 0], [1, 1], [0, 0], [0, 0], [0, 1]])
    assert corpus.labels == ("a", "", "b", "3", "a")
    (tmp_path / "posts").mkdir()
    for i, (first, last) in enumerate([(0, 2), (2, 2), (2, 5)]):
        write_posts(tmp_path / "posts" / f"part-{i}.parquet", first, last)
    (tmp_path / "posts" / "_SUCCESS").touch()  # as Spark leaves it
    lines = [json.dumps({n: v[i] for n, v in POSTS.items()}) for i in range(5)]
    for path in (write(tmp_path / "a.jsonl", "\n".join(lines)), tmp_path / "posts"):
        same = read_corpus(path)
        assert same.name == path.stem
        assert corpus.fingerprint() == same.fingerprint()
        assert list(corpus.metadata) == list(same.metadata)
        for name, values in corpus.metadata.items():
            np.testing.assert_array_equal(values, same.metadata[name])


def test_files_with_other_columns_are_refused(tmp_path):
    folder = tmp_path / "posts"
    folder.mkdir()
    with pytest.raises(FileError, match=r"posts: holds no document"):
        read_corpus(folder, format="parquet")
    write_posts(folder / "part-00.parquet")
    for columns in ({"year": None}, {"more": [1] * 5}):
        write_posts(folder / "part-01.parquet", **columns)
        with pytest.raises(FileError, match=r"part-01\.parquet: has the columns"):
            read_corpus(folder)
    write_posts(folder / "part-01.parquet", text=[1] * 5)
    with pytest.raises(FileError, match=r"posts, part-01\.parquet, row 1: expected a text"):
        read_corpus(folder)
    data = (folder / "part-00.parquet").read_bytes()
    for content in (b"", b"no such thing", data[: len(data) // 2]):
        (folder / "part-01.parquet").write_bytes(content)
        with pytest.raises(FileError, match=r"part-01\.parquet: not a complete Parquet file"):
            read_corpus(folder)


def test_the_column_of_the_texts_of_parquet_can_be_named(tmp_path):
    path = write_posts(tmp_path / "a.parquet", text=None, body=POSTS["text"])
    assert read_corpus(path, text_field="body").vocabulary == ("cat", "dog")
    assert read_corpus(path, text_field="body", label_field="year").labels[:2] == ("2001", "2002")
    with pytest.warns(UserWarning, match="dropped 3 of 5 tokens: 1 words unknown"):
        corpus = read_corpus(path, ["dog", "emu"], text_field="body")
    assert corpus.vocabulary == ("dog", "emu")


@pytest.mark.parametrize(
    ("columns", "options", "match"),
    [
        ({"text": None, "words": [["a"]] * 5}, {}, "field 'text', got none; .* words;"),
        ({}, {"text_field": "body"}, "the field 'body', got none; .* are text"),
        ({}, {"text_field": "year"}, "row 1: expected a text .* 'year', got 2001"),
        ({}, {"text_field": "tags"}, "row 1: expected a text .* 'tags', got .'x'"),
        ({}, {"delimiter": ";"}, "delimiter cannot be used with texts of the format"),
    ],
)
def test_unusable_parquet_is_refused(tmp_path, columns, options, match):
    path = write_posts(tmp_path / "a.parquet", **columns)
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
    with pytest.raises(FileError, match=r"a\.parquet: not a complete Parquet file .*utf-8"):
        read_corpus(path)
