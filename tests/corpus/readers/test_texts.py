"""Readers of texts: whole files and damaged ones."""

from __future__ import annotations

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.corpora import dense, write

from torch_lntm.corpus import read_corpus
from torch_lntm.corpus.readers.texts import read_metadata
from torch_lntm.errors import CorpusError


@pytest.mark.parametrize("name", ["toy.txt", "toy.txt.gz"])
def test_a_document_per_line(tmp_path, name):
    path = write(tmp_path / name, "Cat cat dog\n\nthe dog\r\nend")
    write(tmp_path / "toy.labels.txt", "a\nb\nc\nd\n")
    corpus = read_corpus(path, stop_words="english")
    assert corpus.vocabulary == ("cat", "dog", "end")
    np.testing.assert_array_equal(dense(corpus), [[2, 1, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1]])
    assert (corpus.name, corpus.labels) == ("toy", ("a", "b", "c", "d"))


def test_json_lines(tmp_path):
    records = [
        {"text": "cat cat", "label": "a"},
        {"text": "dog\u2028cat", "label": None},
        {"text": "", "label": ["b", "c"]},
        {"text": "dog", "label": 3, "id": 17},
        {"text": "dog"},
    ]
    text = "\n".join(json.dumps(r, ensure_ascii=False) for r in records[:2]) + "\n\n"
    text += "\n".join(map(json.dumps, records[2:])) + "\n"
    corpus = read_corpus(write(tmp_path / "toy.jsonl", text))
    np.testing.assert_array_equal(dense(corpus), [[2, 0], [1, 1], [0, 0], [0, 1], [0, 1]])
    assert corpus.labels == ("a", "", "b|c", "3", "")


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("a.jsonl", '{"text": "cat"}\n\n{"text": "dog"', "line 3: not JSON .*: '{.text.: .dog.'"),
        ("a.jsonl", '["dog"]', "line 1: expected a mapping of fields, got"),
        ("a.jsonl", '{"body": "dog", "id": 1}', "line 1: .* field 'text', got none; .* body, id"),
        ("a.jsonl", '{"text": 7}', "line 1: expected a text in the field 'text', got 7"),
        ("a.jsonl", '{"text": "aaa\\ud800bbb"}', "word 0 .* half of a surrogate pair"),
        ("a.json", "[]", "holds no document"),
        ("a.json", '{"text": {"0": "wood"}}', "expected an array .* got .*orient='records'"),
        ("a.json", '{"text": "wood"}\n{"text": "stone"}\n', "line 2: not JSON .*format='jsonl'"),
        ("a.json", '["wood", "stone"]', "record 1: expected a mapping of fields, got 'wood'"),
        ("a.json", "[" * 100_000, "RecursionError"),
        ("a.csv", 'id,text\n1,"a\nb"\n2,b,c\n', "line 4: expected 2 fields .* got 3"),
        # pandas fills short rows up, and Arrow's reader joins records at a lost quote.
        ("a.csv", "id,text\n1,wood\n3,the\nrest\n5,coal\n", "line 4: expected 2 fields"),
        ("a.csv", 'id,text\n1,wood\n3,"the\n4,rest\n5,coal\n', "line 3: not a CSV record"),
        ("a.csv", 'id,text\n1,"word"x\n', "line 2: not a CSV record"),
        ("a.csv", "id,body\n1,word\n", "line 2: .* field 'text', .* fields are id, body"),
        ("a.csv", "text,id,text\ncat,1,dog\n", "columns must have different names, got text twice"),
        ("a.csv", "\n\n", "holds no document"),
        ("a.csv", "id,text\n", "holds no document"),
        ("a.csv", "id,text\n1,\n", "the texts cannot be counted: no word of 1"),
        ("a.tsv", "wood and stone\ttrain\nwater\ttest\n", "the first line of csv must name"),
        ("a.txt", "", "holds no document"),
        ("a.txt", "\n \n", "the texts cannot be counted: no word of 2"),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, text, match):
    with pytest.raises(CorpusError, match=rf"{name}.*{match}"):
        read_corpus(write(tmp_path / name, text), token_pattern=r"\S+")


# ------------------------------------------------------------------ fields


def test_further_fields_become_metadata(tmp_path):
    records = [
        {"text": "cat", "id": "a1", "year": 1990, "tags": ["x", "y"], "share": 0.5},
        {"text": "dog", "id": "a2", "year": None, "party": {"name": "p"}},
    ]
    expected = {
        "id": ["a1", "a2"],
        "year": [1990.0, None],
        "tags": ["x|y", None],
        "share": [0.5, None],
        "party": [None, '{"name": "p"}'],
    }
    lines = write(tmp_path / "toy.jsonl", "\n".join(map(json.dumps, records)))
    array = write(tmp_path / "toy.json", json.dumps(records, indent=1))
    for path in (lines, array):
        metadata = read_corpus(path).metadata
        found = {
            name: [None if v != v else v for v in column.tolist()]
            for name, column in metadata.items()
        }
        assert found == expected
        assert list(found) == list(expected)


def test_labels_stay_text_and_columns_without_a_name_get_one(tmp_path):
    path = write(tmp_path / "toy.csv", "text,count,label,\ncat,1,1,x\ndog,-2,2.50,y\nemu,3,3,z\n")
    metadata = read_corpus(path).metadata
    assert metadata["count"].tolist() == [1, -2, 3]
    assert metadata["label"].tolist() == ["1", "2.50", "3"]
    assert metadata["column_4"].tolist() == ["x", "y", "z"]


# ------------------------------------------------------------------ delimiters


@pytest.mark.parametrize("name", ["toy.csv", "toy.tsv", "toy.CSV", "toy.csv.GZ"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters_are_found_by_the_header(tmp_path, name, delimiter):
    text = 'id_text@other@text\n1@2@"cat, dog; | emu"\n2@3@cat cat\n'.replace("@", delimiter)
    corpus = read_corpus(write(tmp_path / name, text))
    assert corpus.vocabulary == ("cat", "dog", "emu")
    assert list(corpus.metadata) == ["id_text", "other"]
    assert corpus.name == "toy"


def test_the_delimiter_is_an_option(tmp_path):
    path = write(tmp_path / "toy.csv", "id:text\n1:cat\n")
    assert read_corpus(path, delimiter=":").metadata["id"].tolist() == [1]
    with pytest.raises(CorpusError, match="the other fields are id:text; choose by text_field"):
        read_corpus(path)
    with pytest.raises(CorpusError, match=r"a.*delimiter.* must be a 1-character string"):
        read_corpus(path, delimiter="::")


# ------------------------------------------------------------------ folders


def test_folder_with_labels(tmp_path):
    root = tmp_path / "news"
    write(root / "sport" / "b.txt", "goal goal\nball")
    write(root / "sport" / "a.TXT", "ball")
    write(root / "art" / "old" / "c.txt", "oil")
    corpus = read_corpus(root)
    assert corpus.vocabulary == ("ball", "goal", "oil")
    assert corpus.labels == ("art/old", "sport", "sport")
    assert corpus.metadata["id"].tolist() == ["art/old/c.txt", "sport/a.TXT", "sport/b.txt"]
    np.testing.assert_array_equal(dense(corpus), [[0, 0, 1], [1, 0, 0], [1, 2, 0]])
    assert corpus.name == "news"


def test_skipped_files_are_counted_in_a_warning(tmp_path):
    write(tmp_path / "a.txt", "ball")
    write(tmp_path / "b.text", "ball")
    write(tmp_path / "sub" / "readme.md", "ball")
    write(tmp_path / ".hidden", "ball")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "broken.txt").symlink_to(tmp_path / "nowhere")
    with pytest.warns(UserWarning, match="skipped files") as caught:
        assert read_corpus(tmp_path).num_docs == 1
    assert f"{tmp_path}: skipped files: 4 that do not end in .txt" in str(caught[0].message)
    assert caught[0].filename == __file__
    (tmp_path / "a.txt").unlink()
    with pytest.raises(CorpusError, match=r"folder of \.txt files, found none, and 4 that"):
        read_corpus(tmp_path)


def test_linked_folders_are_entered_once(tmp_path):
    write(tmp_path / "elsewhere" / "b.txt", "dog")
    root = tmp_path / "news"
    write(root / "a.txt", "cat")
    (root / "link").symlink_to(tmp_path / "elsewhere")
    (root / "again").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(root)
    (root / "self").symlink_to(root)
    corpus = read_corpus(root)
    assert corpus.metadata["id"].tolist() == ["a.txt", "again/b.txt"]


# ------------------------------------------------------------------ public reports


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([str(1580661436132757506 + i) for i in range(4)], np.int64),
        ([str(2**63 - 1), str(-(2**63) + 1)], np.int64),
        ([str(2**63), "1"], None),
        ([f"-{10**24 + i}" for i in range(4)], None),
        (["1580661436132757506", "", "NA", "7"], ["1580661436132757506", None, None, "7"]),
        ([str(2**53), "", "NaN", "3"], [2.0**53, np.nan, np.nan, 3.0]),
        (["007", "12"], None),
        (["+5", "12"], None),
        ([" 5", "12"], None),
        (["NA", "a", ""], [None, "a", None]),
        (["null", "None", "n/a"], None),
        (["true", "False"], None),
        (["1e3", "-.5", "NA", "0.1"], [1000.0, -0.5, np.nan, 0.1]),
        (["", ""], [None, None]),
    ],
)
def test_numbers_of_csv_are_exact(tmp_path, cells, expected):
    """Tweet ids of 19 digits and more became floats."""
    rows = "".join(f"{cell},wood\n" for cell in cells)
    path = write(tmp_path / "a.csv", f"x,text\n{rows}")
    for column in (read_corpus(path).metadata["x"], read_metadata(path)["x"]):
        if expected is np.int64:
            assert column.dtype == np.int64
            assert column.tolist() == list(map(int, cells))
        else:
            values = [None if x != x or x == "" else x for x in column]
            wanted = cells if expected is None else [None if x != x else x for x in expected]
            assert values == wanted


@pytest.mark.parametrize("value", [1580661436132757506, 2**64 + 1, -(10**24)])
def test_integers_of_json_are_exact(tmp_path, value):
    lines = [{"text": "wood", "id": value + i} for i in range(3)] + [{"text": "stone"}]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)))
    assert read_corpus(path).metadata["id"].tolist() == [*(str(value + i) for i in range(3)), None]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json", "parquet", "labels.txt"])
def test_a_missing_label_is_missing(tmp_path, kind):
    """It was a class of its own."""
    labels, path = ["a", None, "b", ""], tmp_path / f"a.{kind}"
    records = [{"text": "wood", "label": label, "party": label} for label in labels]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif kind == "csv":
        write(path, "text,label,party\n" + "".join(f"wood,{x or ''},{x or ''}\n" for x in labels))
    elif kind == "labels.txt":
        write(path, "a\n\nb\n\n")
        path = write(tmp_path / "a.txt", "wood\n" * 4)
    else:
        text = json.dumps(records) if kind == "json" else "\n".join(map(json.dumps, records))
        write(path, text)
    metadata = read_corpus(path).metadata
    assert metadata["label"].isna().tolist() == [False, True, False, True]
    assert metadata["label"].dropna().tolist() == ["a", "b"]
    if "party" in metadata:
        assert metadata["party"].isna().tolist() == [False, True, False, True]


def test_excels_first_line_names_the_delimiter(tmp_path):
    path = write(tmp_path / "a.csv", "\ufeffsep=;\r\ntext;n\r\nwood, stone;1\r\n")
    assert read_corpus(path).metadata["n"].tolist() == [1]
    assert read_metadata(path)["text"].tolist() == ["wood, stone"]


@pytest.mark.parametrize(
    ("data", "options", "expected"),
    [
        ("text;n\nwood;1\nstone;2\n".encode("utf-8-sig"), {}, [1, 2]),
        ("text\tn\nwood\t1\nstone\t2\n".encode("utf-16"), {"encoding": "utf-16"}, [1, 2]),
        (b"text,n\rwood,1\rstone,2\r", {}, [1, 2]),
        (
            "text,n\nwood\x80,ä\nstone,€\n".encode("cp1252", "replace"),
            {"encoding": "cp1252"},
            ["ä", "€"],
        ),
        (b'text,n\n"wood ""big"", x","a\r\nb"\nstone,5\' x\n', {}, ["a\nb", "5' x"]),
        (b"text,n\nwood\0big,a\0b\nstone,c\n", {}, ["a\0b", "c"]),
        ("text,n\nwood\u2028big,a\u2028b\nstone,c\n".encode(), {}, ["a\u2028b", "c"]),
        (b"text,n\n,\nwood,1\n,\n", {}, [None, 1.0, None]),
        (b"text,n\r\nwood,1\r\n\r\nstone,1e2\r\n", {}, [1.0, 100.0]),
    ],
)
def test_csv_of_many_programs(tmp_path, data, options, expected):
    (tmp_path / "a.csv").write_bytes(data)
    corpus = read_corpus(tmp_path / "a.csv", **options)
    values = corpus.metadata["n"].tolist()
    assert [None if x is None or x != x else x for x in values] == expected
    assert "wood" in corpus.vocabulary


def test_a_label_field_stays_a_column_under_its_name(tmp_path):
    path = write(tmp_path / "toy.csv", "text,party,label\ncat,x,1\ndog,,2\n")
    corpus = read_corpus(path, label_field="party")
    assert corpus.labels == ("x", "")
    assert corpus.metadata["party"].tolist() == ["x", None]


def test_na_is_missing_in_text_but_may_be_an_id(tmp_path) -> None:
    """Namibia's code names a document; R writes NA for a missing value."""
    (tmp_path / "c.csv").write_text("id,text,party\nDE,cats,a\nNA,dogs,NA\n")
    table = read_corpus(tmp_path / "c.csv").metadata
    assert table["id"].tolist() == ["DE", "NA"]
    assert table["party"].tolist() == ["a", None]
