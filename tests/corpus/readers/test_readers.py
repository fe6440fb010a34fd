"""read_corpus: choosing a format, files that are missing, real corpora."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from support.corpora import COUNTS, LDAC, MTX, UCI, dense, write

from torch_lntm.corpus import read_corpus
from torch_lntm.errors import CorpusError

MISSPELT = "no record has the field 'pary'; .* text, party; choose by label_field"


def test_the_format_is_an_option(tmp_path):
    path = write(tmp_path / "counts", LDAC)
    np.testing.assert_array_equal(dense(read_corpus(path, format="ldac")), COUNTS)
    assert read_corpus(path, format="txt", token_pattern=r"\d+").num_docs == 3


@pytest.mark.parametrize(
    ("name", "text", "options", "match"),
    [
        ("toy.xyz", LDAC, {}, r"toy\.xyz: cannot tell the format from .*'\.xyz'"),
        ("toy.xyz", LDAC, {"format": "lda"}, "unknown format 'lda'; give one of npz, ldac, uci"),
        ("a.ldac", LDAC, {"text_field": "x", "min_df": 2}, "text_field, min_df .* with counts of"),
        ("a.txt", "cat\n", {"label_field": "x"}, "no record has the field 'x'"),
        ("a.jsonl", '{"text": "cat"}', {"delimiter": ";"}, "delimiter .* of the format jsonl"),
        ("a.json", '[{"text": "cat", "party": "x"}]', {"label_field": "pary"}, MISSPELT),
        ("a.jsonl", '{"text": "cat", "party": "x"}', {"label_field": "pary"}, MISSPELT),
        ("a.csv", "text,party\ncat,x\n", {"label_field": "pary"}, MISSPELT),
    ],
)
def test_unknown_formats_and_options_of_others_are_refused(tmp_path, name, text, options, match):
    with pytest.raises(CorpusError, match=match):
        read_corpus(write(tmp_path / name, text), **options)


@pytest.mark.parametrize("name", ["no.npz", "docword.no.txt.gz", "folder"])
def test_missing_files_are_refused(tmp_path, name):
    with pytest.raises(CorpusError, match=f"{name}: no such file or folder"):
        read_corpus(tmp_path / name)
    path = write(tmp_path / "toy.mtx", MTX)
    with pytest.raises(CorpusError, match=f"{name}: no such file"):
        read_corpus(path, vocabulary=tmp_path / name)


@pytest.mark.parametrize("damage", ["truncated", "corrupt", "no gzip"])
def test_damaged_gzip_files_are_refused(tmp_path, damage):
    data = gzip.compress(UCI.encode() * 100)
    broken = {
        "truncated": data[: len(data) // 2],
        "corrupt": data[:20] + b"\x00\xff" * 10 + data[40:],
        "no gzip": UCI.encode(),
    }
    path = tmp_path / "docword.toy.txt.gz"
    path.write_bytes(broken[damage])
    with pytest.raises(CorpusError, match=r"toy\.txt\.gz: cannot be read, is it complete"):
        read_corpus(path)


# ------------------------------------------------------------------ real data


def test_the_working_folder_and_its_parent_are_read_as_folders_of_texts(tmp_path, monkeypatch):
    write(tmp_path / "posts" / "a.txt", "cat dog")
    write(tmp_path / "posts" / "b.txt", "cat bee")
    write(tmp_path / "posts.labels.txt", "x\ny\n")
    (tmp_path / "posts" / "empty").mkdir()
    for folder, path in (("posts", "."), ("posts/empty", ".."), ("posts/empty", "../../posts/.")):
        monkeypatch.chdir(tmp_path / folder)
        corpus = read_corpus(path)
        assert corpus.name == "posts"
        assert corpus.num_docs == 2
        assert corpus.labels == ("x", "y")


@pytest.mark.parametrize("given", [["wood", "stone"], {"text": ["wood"]}, np.eye(2), 3])
def test_documents_passed_as_a_path_are_refused_with_advice(given):
    with pytest.raises(CorpusError, match=r"expected the path of a file.*from_texts\(texts\)"):
        read_corpus(given)


def test_metadata_of_a_file_are_columns_of_the_corpus(tmp_path: Path) -> None:
    counts = sp.csr_matrix([[1, 0], [0, 2], [3, 0]])
    sp.save_npz(tmp_path / "counts.npz", counts)
    columns = tmp_path / "columns.csv"
    columns.write_text('party;year;label\nleft;1990;7\n"the ""right""";2000;8\n;2010;9\n')
    corpus = read_corpus(tmp_path / "counts.npz", metadata=columns)
    assert list(corpus.metadata["party"]) == ["left", 'the "right"', None]
    assert corpus.metadata["year"].dtype.kind == "i"
    assert list(corpus.labels) == ["7", "8", "9"]
    by_name = read_corpus(tmp_path / "counts.npz", metadata={"year": [1, 2, 3]})
    assert list(by_name.metadata["year"]) == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("party\nleft\n", r"npz with .*columns\.csv: .*each of 2 documents, got 1"),
        ("party,year\nleft\n", "expected 2 fields"),
        ("party,party\nleft,right\n", "different names"),
        ("party\n", "holds no document"),
    ],
)
def test_metadata_that_do_not_fit_are_refused(text: str, message: str, tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "counts.npz", sp.csr_matrix([[1, 0], [0, 2]]))
    (tmp_path / "columns.csv").write_text(text)
    with pytest.raises(CorpusError, match=message):
        read_corpus(tmp_path / "counts.npz", metadata=tmp_path / "columns.csv")


# ------------------------------------------------------------------ metadata by id


def folder_of(path: Path, numbers: list[int]) -> Path:
    """A folder of texts of one word each, ``w1`` in ``1.txt``."""
    for i in numbers:
        write(path / f"{i}.txt", f"w{i} wood")
    return path


def pairs_of(corpus):
    """The word of each document with its value of ``n``."""
    words = [next(w for w in corpus.vocabulary if w[1:] == i[:-4]) for i in corpus.metadata["id"]]
    return dict(zip(words, corpus.metadata["n"].tolist(), strict=True))


@pytest.mark.parametrize(
    "kind", ["file", "stems", "frame", "index", "mapping", "polars", "numbers"]
)
def test_metadata_are_joined_by_the_names_of_files(tmp_path, kind):
    """The order of a folder is 1, 10, 11, 2; rows were taken by position."""
    folder = folder_of(tmp_path / "fold", [*range(1, 13)])
    ids = [f"{i}.txt" for i in range(1, 13)]
    n = [*range(1, 13)]
    frame = pd.DataFrame({"id": ids, "n": n})
    given = {
        "file": write(tmp_path / "a.csv", frame.to_csv(index=False)),
        "stems": write(tmp_path / "b.csv", "id,n\n" + "".join(f"0{i},{i}\n" for i in n)),
        "frame": frame[::-1],
        "index": frame.set_index("id").rename_axis("file"),
        "mapping": {"id": ids, "n": n},
        "polars": pl.DataFrame({"id": ids, "n": n}),
        "numbers": write(tmp_path / "c.csv", "id,n\n" + "".join(f"{i},{i}\n" for i in n)),
    }[kind]
    if kind == "stems":
        for i in n:
            (folder / f"{i}.txt").rename(folder / f"0{i}.txt")
        corpus = read_corpus(folder, metadata=given)
        assert [f"0{i}.txt" for i in corpus.metadata["n"]] == corpus.metadata["id"].tolist()
        return
    corpus = read_corpus(folder, metadata=given)
    assert corpus.metadata["id"].tolist() == sorted(ids)
    assert pairs_of(corpus) == {f"w{i}": i for i in n}


@pytest.mark.parametrize(
    ("ids", "match"),
    [
        (["1.txt", "2.txt", "4.txt"], r"without a row .*\(3\.txt\).* without a document \(4"),
        (["1.txt", "2.txt"], r"1 documents without a row of the metadata \(3\.txt\)"),
        (["1.txt", "2.txt", "3.txt", "x"], r"1 rows of the metadata without a document \(x\)"),
        (["1.txt", "2.txt", "2.txt"], r"metadata with a missing or repeated id \(2\.txt\)"),
        (["1.txt", "2.txt", ""], "metadata with a missing or repeated id"),
        (["1", "2.txt", "2.TXT"], "2 documents without a row"),
    ],
)
def test_ids_that_do_not_match_are_refused(tmp_path, ids, match):
    folder = folder_of(tmp_path / "fold", [1, 2, 3])
    table = write(tmp_path / "a.csv", "id,n\n" + "".join(f"{i},1\n" for i in ids))
    with pytest.raises(CorpusError, match=match):
        read_corpus(folder, metadata=table)


def test_metadata_of_documents_without_ids_go_by_position(tmp_path):
    path = write(tmp_path / "a.txt", "wood\nstone\n")
    table = write(tmp_path / "a.csv", "id,n\nx,1\ny,2\n")
    metadata = read_corpus(path, metadata=table).metadata
    assert metadata["n"].tolist() == [1, 2]
    assert metadata["id"].tolist() == ["x", "y"]
    folder = folder_of(tmp_path / "fold", [1, 2])
    by_order = write(tmp_path / "b.csv", "n,m\n1,a\n2,b\n")
    assert read_corpus(folder, metadata=by_order).metadata["n"].tolist() == [1, 2]


def test_ids_of_csv_join_numbers_with_texts(tmp_path):
    path = write(tmp_path / "a.csv", "id,text\n1580661436132757506,wood\n7,stone\n")
    table = write(tmp_path / "b.csv", "id,n\n7,1\n1580661436132757506,2\n")
    assert read_corpus(path, metadata=table).metadata["n"].tolist() == [2, 1]
