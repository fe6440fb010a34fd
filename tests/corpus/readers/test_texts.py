"""Readers of texts: whole files and damaged ones."""

from __future__ import annotations

import csv
import json
import os

import numpy as np
import pytest
from support.corpora import dense, write

from torch_lntm.corpus import read_corpus
from torch_lntm.errors import CorpusError


@pytest.mark.parametrize("name", ["toy.txt", "toy.txt.gz"])
def test_a_document_per_line(tmp_path, name):
    path = write(tmp_path / name, "Cat cat dog\n\nthe dog\r\nend")
    write(tmp_path / "toy.labels.txt", "a\nb\nc\nd\n")
    corpus = read_corpus(path, stop_words="english")
    assert corpus.vocabulary == ("cat", "dog", "end")
    np.testing.assert_array_equal(dense(corpus), [[2, 1, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1]])
    assert (corpus.name, corpus.labels) == ("toy", ("a", "b", "c", "d"))


def test_texts_are_counted_over_a_given_vocabulary(tmp_path):
    path = write(tmp_path / "toy.txt", "cat cat dog\ndog emu\n")
    words = write(tmp_path / "words.txt", "dog\ncat\n")
    with pytest.warns(UserWarning, match="dropped 1 of 5 tokens: 1 words .* in 1 of 2 documents"):
        corpus = read_corpus(path, words)
    assert corpus.vocabulary == ("dog", "cat")
    np.testing.assert_array_equal(dense(corpus), [[1, 2], [1, 0]])


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
        ('{"body": "dog", "id": 1}', "line 3: expected a text in the field 'text', got None; .*id"),
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
    before = csv.field_size_limit(1000)
    path = write(tmp_path / "toy.csv", "body,kind\n" + "word " * 50_000 + ",x\n")
    corpus = read_corpus(path, text_field="body", label_field="kind")
    assert corpus.num_tokens == 50_000
    assert corpus.labels == ("x",)
    assert csv.field_size_limit(before) == 1000  # the process-wide limit is as it was


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('id,text\n1,"a\nb"\n2,b,c\n', "line 4: expected 2 fields as in the header, got 3"),
        ("id,text\n1\n", "line 2: expected 2 fields as in the header, got 1"),
        ("id,body\n1,word\n", "line 2: expected a text in the field 'text', .* id, body"),
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
        ("toy.csv", "id,text\n1,\n", "toy.csv: the texts cannot be counted: all 1 of them are"),
        ("toy.jsonl", "", "toy.jsonl: holds no document"),
        ("toy.json", "[]", "toy.json: holds no document"),
        ("toy.txt", "", "toy.txt: is empty; expected a document in each line"),
        ("toy.txt", "\n \n", "toy.txt: the texts cannot be counted: all 2 of them are blank"),
    ],
)
def test_files_without_words_are_refused(tmp_path, name, text, match):
    with pytest.raises(CorpusError, match=match):
        read_corpus(write(tmp_path / name, text))


def test_errors_name_the_options_that_leave_no_word(tmp_path):
    path = write(tmp_path / "toy.txt", "cat\ndog\n")
    with pytest.raises(CorpusError, match=r"toy\.txt: .*no word of 2 documents .* min_df=1000;"):
        read_corpus(path, min_df=1000)


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


def test_errors_list_only_some_of_many_fields(tmp_path):
    header = ",".join(f"f{i}" for i in range(500))
    with pytest.raises(CorpusError, match=r"f0, .*, f19 and 480 more; choose by text_field"):
        read_corpus(write(tmp_path / "toy.csv", f"{header}\n{header}\n"))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{}", r"toy\.json: expected an array of JSON objects, got a dict; .*format='jsonl'"),
        ('[{"text": "cat"}, 3]', r"toy\.json, record 2: expected a JSON object, got '3'"),
        ('[{"text": "cat"},\n{]', r"toy\.json, line 2: not JSON"),
        ('[{"body": "cat"}]', r"toy\.json, record 1: expected a text in the field 'text'"),
    ],
)
def test_damaged_json_is_refused(tmp_path, text, match):
    with pytest.raises(CorpusError, match=match):
        read_corpus(write(tmp_path / "toy.json", text))


def test_records_with_too_many_different_fields_are_refused(tmp_path):
    records = (json.dumps({"text": "cat", f"f{i}": 1}) for i in range(2_000))
    with pytest.raises(CorpusError, match=r"line \d+: the records have \d+ different fields"):
        read_corpus(write(tmp_path / "toy.jsonl", "\n".join(records)))


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
    with pytest.raises(CorpusError, match="the fields are id:text; choose by text_field"):
        read_corpus(path)
    with pytest.raises(CorpusError, match="delimiter must be one character, got '::'"):
        read_corpus(path, delimiter="::")


def test_a_single_column_needs_no_delimiter(tmp_path):
    assert read_corpus(write(tmp_path / "toy.csv", "text\ncat dog\n")).num_tokens == 2


def test_columns_of_the_same_name_are_refused(tmp_path):
    path = write(tmp_path / "toy.csv", "text,id,text\ncat,1,dog\n")
    with pytest.raises(CorpusError, match="line 1: columns must have different names, got text tw"):
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
    skipped = "2 that do not end in .txt and 2 that are broken links or no regular files"
    assert sorted(str(w.message) for w in caught) == [f"{tmp_path}: skipped files: {skipped}"]
    assert caught[0].filename == __file__
    (tmp_path / "a.txt").unlink()
    with pytest.raises(CorpusError, match=r"folder of \.txt files, found files: 2 that"):
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
