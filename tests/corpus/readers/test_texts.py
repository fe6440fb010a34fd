"""Readers of texts: whole files and damaged ones."""

from __future__ import annotations

import csv
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


def test_encodings(tmp_path):
    path = tmp_path / "toy.txt"
    path.write_bytes("plain\nEspaña naïve\n".encode("latin-1"))
    with pytest.raises(CorpusError, match=r"toy\.txt, line 2: not utf-8 text"):
        read_corpus(path)
    assert read_corpus(path, encoding="latin-1").vocabulary == ("españa", "naïve", "plain")


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


def test_json_lines_without_labels_and_with_other_fields(tmp_path):
    path = write(tmp_path / "toy.jsonl.gz", '{"body": "cat", "kind": "x"}\n')
    corpus = read_corpus(path, text_field="body")
    assert (corpus.vocabulary, corpus.labels, corpus.name) == (("cat",), None, "toy")
    assert read_corpus(path, text_field="body", label_field="kind").labels == ("x",)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ('{"text": "dog"', r"line 3: not JSON \(.*\): '{\"text\": \"dog\"'"),
        ('["dog"]', r"line 3: expected a JSON object, got"),
        ('{"body": "dog", "id": 1}', "line 3: expected a text in the field 'text', got none; .*id"),
        ('{"text": 7}', "line 3: expected a text in the field 'text', got 7"),
    ],
)
def test_damaged_json_lines_are_refused(tmp_path, line, match):
    path = write(tmp_path / "toy.jsonl", f'{{"text": "cat"}}\n\n{line}\n')
    with pytest.raises(CorpusError, match=rf"toy\.jsonl, {match}"):
        read_corpus(path)


def test_csv(tmp_path):
    rows = [["x", 'cat, "cat"\r\nand dog', "1"], ["", "dog", "2"], ["y", "", "3"]]
    with open(tmp_path / "toy.csv", "w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([["label", "text", "id"], *rows])
    corpus = read_corpus(tmp_path / "toy.csv", stop_words=["and"])
    assert corpus.vocabulary == ("cat", "dog")
    np.testing.assert_array_equal(dense(corpus), [[2, 1], [0, 1], [0, 0]])
    assert corpus.labels == ("x", "", "y")


def test_csv_with_other_columns_and_a_long_document(tmp_path):
    path = write(tmp_path / "toy.csv", "body,kind\n" + "word " * 50_000 + ",x\n")
    corpus = read_corpus(path, text_field="body", label_field="kind")
    assert corpus.num_tokens == 50_000
    assert corpus.labels == ("x",)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('id,text\n1,"a\nb"\n2,b,c\n', "line 4: expected 2 fields as in the header, got 3"),
        ("id,text\n1\n", "line 2: expected 2 fields as in the header, got 1"),
        (
            "id,body\n1,word\n",
            "line 2: expected a text in the field 'text', .* fields are id, body",
        ),
        ('id,text\n1,word\n2,"open\nword\n', "line 3: not a CSV record"),
        ('id,text\n1,"word"x\n', "line 2: not a CSV record"),
    ],
)
def test_damaged_csv_is_refused(tmp_path, text, match):
    with pytest.raises(CorpusError, match=rf"toy\.csv, {match}"):
        read_corpus(write(tmp_path / "toy.csv", text))


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("toy.csv", "", "toy.csv: is empty; expected a header"),
        ("toy.csv", "\n\n", "toy.csv: is empty; expected a header"),
        ("toy.csv", "id,text\n", "toy.csv: holds no document"),
        ("toy.csv", "id,text\n1,\n", "toy.csv: the texts cannot be counted: no word of 1"),
        ("toy.jsonl", "", "toy.jsonl: holds no document"),
        ("toy.json", "[]", "toy.json: holds no document"),
        ("toy.txt", "", "toy.txt: holds no document"),
        ("toy.txt", "\n \n", "toy.txt: the texts cannot be counted: no word of 2"),
    ],
)
def test_files_without_words_are_refused(tmp_path, name, text, match):
    with pytest.raises(CorpusError, match=match):
        read_corpus(write(tmp_path / name, text))


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


def test_columns_of_numbers_become_numbers(tmp_path):
    path = write(
        tmp_path / "toy.csv",
        "text,count,share,code,word,none,label,year,\n"
        "cat,1,0.5,007,NA,,1,1990,x\n"
        "dog,-2,1e3,12,b,,2.50,,y\n"
        "emu,3,NA,1,,,3,2000,z\n",
    )
    metadata = read_corpus(path).metadata
    assert "".join(metadata[name].dtype.kind for name in ("count", "share", "year")) == "iff"
    assert metadata["count"].tolist() == [1, -2, 3]
    np.testing.assert_array_equal(metadata["share"], [0.5, 1000.0, np.nan])
    assert metadata["code"].tolist() == ["007", "12", "1"]
    assert metadata["word"].tolist() == ["NA", "b", None]
    assert metadata["none"].tolist() == [None] * 3
    assert metadata["label"].tolist() == ["1", "2.50", "3"]
    assert metadata["column_9"].tolist() == ["x", "y", "z"]
    np.testing.assert_array_equal(metadata["year"], [1990, np.nan, 2000])


def test_a_label_field_stays_a_column_under_its_name(tmp_path):
    path = write(tmp_path / "toy.csv", "text,party,label\ncat,x,1\ndog,,2\n")
    corpus = read_corpus(path, label_field="party")
    assert corpus.labels == ("x", "")
    assert corpus.metadata["party"].tolist() == ["x", None]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("toy.csv", "text,party\ncat,x\n"),
        ("toy.jsonl", '{"text": "cat", "party": "x"}\n'),
        ("toy.json", '[{"text": "cat", "party": "x"}]'),
    ],
)
def test_a_misspelt_label_field_is_an_error(tmp_path, name, text):
    path = write(tmp_path / name, text)
    with pytest.raises(CorpusError, match=r"no record has the field 'pary'; .* text, party; choo"):
        read_corpus(path, label_field="pary")


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


def test_columns_of_the_same_name_are_refused(tmp_path):
    path = write(tmp_path / "toy.csv", "text,id,text\ncat,1,dog\n")
    with pytest.raises(
        CorpusError, match=r"toy\.csv: columns must have different names, got text twice"
    ):
        read_corpus(path)


@pytest.mark.parametrize("name", ["toy.txt", "toy.csv", "toy.jsonl"])
def test_lines_of_old_macs(tmp_path, name):
    lines = {
        "toy.txt": ["cat cat", "dog"],
        "toy.csv": ["text", "cat cat", "dog"],
        "toy.jsonl": ['{"text": "cat cat"}', '{"text": "dog"}'],
    }
    corpus = read_corpus(write(tmp_path / name, "\r".join(lines[name]) + "\r"))
    np.testing.assert_array_equal(dense(corpus), [[2, 0], [0, 1]])


def test_half_a_surrogate_pair_in_a_word_is_refused(tmp_path):
    path = write(tmp_path / "toy.jsonl", '{"text": "aaa\\ud800bbb aaa"}\n')
    with pytest.raises(CorpusError, match=r"toy\.jsonl: word 1 .* half of a surrogate pair"):
        read_corpus(path, token_pattern=r"\S+")


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


def test_flat_folder_has_no_labels(tmp_path):
    write(tmp_path / "news" / "1.txt", "ball")
    write(tmp_path / "news" / "2.txt", "")
    corpus = read_corpus(tmp_path / "news")
    assert (corpus.num_docs, corpus.labels) == (2, None)
    assert corpus.metadata["id"].tolist() == ["1.txt", "2.txt"]


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


def test_the_files_of_a_folder_are_bounded_together(tmp_path):
    for name in "abc":
        write(tmp_path / f"{name}.txt", "ball " * 100)
    assert read_corpus(tmp_path, max_bytes=1500).num_docs == 3
    with pytest.raises(CorpusError, match=r"c\.txt: holds more than .* max_bytes"):
        read_corpus(tmp_path, max_bytes=1499)


def test_folders_without_readable_texts_are_refused(tmp_path):
    with pytest.raises(CorpusError, match=r"expected a folder of \.txt files, found none"):
        read_corpus(tmp_path)
    (tmp_path / "bad.txt").write_bytes(b"fine\nfine\n\xff\n")
    with pytest.raises(CorpusError, match=r"bad\.txt, line 3: not utf-8"):
        read_corpus(tmp_path)


def test_columns_of_numbers_with_missing_values(tmp_path):
    rows = ["1,1,9007199254740993,0.5,7", "2,,,NA,x", "-3,4,1,,NA"]
    path = write(tmp_path / "a.csv", "n,m,big,x,t,text\n" + "".join(f"{r},wood\n" for r in rows))
    found = read_corpus(path).metadata
    assert found["n"].tolist() == [1, 2, -3]
    assert found["n"].dtype == np.int64
    np.testing.assert_array_equal(found["m"], [1, np.nan, 4])
    np.testing.assert_array_equal(found["x"], [0.5, np.nan, np.nan])
    assert found["big"].tolist() == ["9007199254740993", None, "1"]
    assert found["t"].tolist() == ["7", "x", "NA"]


# ------------------------------------------------------------------ public reports


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([str(1580661436132757506 + i) for i in range(4)], np.int64),
        ([str(-(10**17) - i) for i in range(4)], np.int64),
        ([str(2**63 - 1), str(-(2**63) + 1)], np.int64),
        ([str(2**63), "1"], None),
        ([str(10**19 + i) for i in range(4)], None),
        ([f"-{10**24 + i}" for i in range(4)], None),
        (["1580661436132757506", "", "NA", "7"], ["1580661436132757506", None, None, "7"]),
        ([str(2**53), "", "NaN", "3"], [2.0**53, np.nan, np.nan, 3.0]),
        (["007", "12"], None),
        (["+5", "12"], None),
        ([" 5", "12"], None),
        (["NA", "a", ""], ["NA", "a", None]),
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


def test_labels_that_are_numbers_keep_their_digits(tmp_path):
    path = write(
        tmp_path / "a.jsonl", '{"text": "a b", "label": 1}\n{"text": "a c", "label": null}\n'
    )
    assert read_corpus(path, min_df=1, token_pattern=r"\w+").labels == ("1", "")


def test_excels_first_line_names_the_delimiter(tmp_path):
    path = write(tmp_path / "a.csv", "\ufeffsep=;\r\ntext;n\r\nwood, stone;1\r\n")
    assert read_corpus(path).metadata["n"].tolist() == [1]
    assert read_metadata(path)["text"].tolist() == ["wood, stone"]


def test_a_table_without_a_header_is_refused_with_advice(tmp_path):
    path = write(tmp_path / "corpus.tsv", "wood and stone\ttrain\twood\nwater\ttest\twater\n")
    with pytest.raises(CorpusError, match="choose by text_field; the first line of csv must name"):
        read_corpus(path)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"text": {"0": "wood"}, "n": {"0": 1}}', "expected an array .* got .*orient='records'"),
        ('{"text": "wood"}\n{"text": "stone"}\n', "line 2: not JSON .*format='jsonl'"),
        ('["wood", "stone"]', "record 1: expected a JSON object, got 'wood'"),
        ("[" * 100_000, "RecursionError"),
        ('[{"text": "cat"},\n{]', r"a\.json, line 2: not JSON"),
        ('[{"body": "cat"}]', r"a\.json, record 1: expected a text in the field 'text'"),
    ],
)
def test_json_of_another_shape_is_refused_with_advice(tmp_path, text, match):
    with pytest.raises(CorpusError, match=match):
        read_corpus(write(tmp_path / "a.json", text))


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


@pytest.mark.parametrize("row", ["3,the\nrest", '3,"the\n4,rest', "3"])
def test_rows_that_do_not_fit_the_header_are_never_taken_for_documents(tmp_path, row):
    """pandas fills short rows up, and Arrow's reader joins records at a lost quote."""
    path = write(tmp_path / "a.csv", f"id,text\n1,wood\n2,stone\n{row}\n5,coal\n")
    with pytest.raises(CorpusError, match=r"a\.csv, line \d: (expected 2 fields|not a CSV record)"):
        read_corpus(path)
