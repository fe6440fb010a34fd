"""read_corpus: every format, found by name and told, whole and damaged."""

from __future__ import annotations

import csv
import gzip
import json
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from torch_lntm.corpus import read_corpus
from torch_lntm.errors import CorpusError

COUNTS = np.array([[2, 0, 1], [0, 0, 0], [0, 5, 0]])
LDAC = "2 0:2 2:1\n0\n1 1:5\n"
UCI = "3\n3\n3\n1 1 2\n1 3 1\n3 2 5\n"
MTX = "%%MatrixMarket matrix coordinate integer general\n%\n3 3 3\n1 1 2\n1 3 1\n3 2 5\n"
WORDS = ("apple", "bee", "cat")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def counts_of(corpus) -> np.ndarray:
    return corpus.to_scipy().toarray()


# ------------------------------------------------------------------ counts


@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("toy.ldac", LDAC),
        ("toy.dat", LDAC),
        ("docword.toy.txt", UCI),
        ("toy.mtx", MTX),
        ("toy.mm", MTX.replace("integer", "real").replace("1 3 1", "1 3 1.0")),
    ],
)
def test_count_formats(tmp_path, name, text, gz, newline):
    path = write(tmp_path / (name + gz), text.replace("\n", newline))
    corpus = read_corpus(path)
    np.testing.assert_array_equal(counts_of(corpus), COUNTS)
    assert (corpus.name, corpus.vocabulary, corpus.labels) == ("toy", None, None)


@pytest.mark.parametrize(
    ("name", "text", "vocabulary_name"),
    [
        ("toy.ldac", LDAC, "toy.vocab.txt"),
        ("toy.dat", LDAC, "vocab.txt"),
        ("docword.toy.txt.gz", UCI, "vocab.toy.txt"),
        ("docword.toy.txt", UCI, "vocab.txt"),
        ("toy.mtx", MTX, "toy.vocab.txt"),
    ],
)
def test_words_and_labels_are_found_beside_counts(tmp_path, name, text, vocabulary_name):
    path = write(tmp_path / name, text)
    write(tmp_path / vocabulary_name, "\ufeffapple\r\nbee\r\ncat\r\n")
    write(tmp_path / "toy.labels.txt", "a|b\n\nc\n")
    corpus = read_corpus(path)
    assert corpus.vocabulary == WORDS
    assert corpus.labels == ("a|b", "", "c")


def test_given_words_and_labels_win(tmp_path):
    path = write(tmp_path / "toy.ldac", LDAC)
    write(tmp_path / "vocab.txt", "one\ntwo\n")  # would not fit
    write(tmp_path / "toy.labels.txt", "x\n")
    other = write(tmp_path / "words" / "w.txt", "apple\nbee\ncat")
    labels = write(tmp_path / "words" / "l.txt", "p\nq\nr\n")
    corpus = read_corpus(str(path), str(other), labels=str(labels))
    assert corpus.vocabulary == WORDS
    assert corpus.labels == ("p", "q", "r")
    corpus = read_corpus(path, vocabulary=iter(WORDS), labels=[1, 2, 3])
    assert corpus.vocabulary == WORDS
    assert corpus.labels == ("1", "2", "3")


def test_ldac_with_a_vocabulary_keeps_unused_words(tmp_path):
    path = write(tmp_path / "toy.ldac", LDAC)
    assert read_corpus(path, vocabulary=[*WORDS, "dog", "eel"]).num_words == 5


def test_matrix_market_by_scipy(tmp_path):
    counts = np.random.default_rng(0).poisson(0.3, (40, 30))
    for matrix in (sp.coo_matrix(counts), sp.csr_matrix(counts.astype(float))):
        scipy.io.mmwrite(tmp_path / "a.mtx", matrix, comment="one\ntwo")
        np.testing.assert_array_equal(counts_of(read_corpus(tmp_path / "a.mtx")), counts)
    scipy.io.mmwrite(tmp_path / "a.mtx", sp.coo_matrix(counts > 0), field="pattern")
    np.testing.assert_array_equal(counts_of(read_corpus(tmp_path / "a.mtx")), counts > 0)


def test_the_count_formats_agree_on_random_corpora(tmp_path):
    counts = np.random.default_rng(5).poisson(0.3, (60, 25))
    counts[:, -1] = 1  # LDA-C does not tell the number of words
    matrix = sp.coo_matrix(counts)
    entries = list(zip(matrix.row, matrix.col, matrix.data, strict=True))
    write(
        tmp_path / "docword.a.txt.gz",
        f"60\n25\n{len(entries)}\n" + "".join(f"{d + 1} {w + 1} {c}\n" for d, w, c in entries),
    )
    write(
        tmp_path / "a.ldac",
        "".join(
            " ".join([str((row > 0).sum()), *(f"{w}:{row[w]}" for w in np.flatnonzero(row))]) + "\n"
            for row in counts
        ),
    )
    sp.save_npz(tmp_path / "a.npz", matrix.tocsr())
    for name in ("docword.a.txt.gz", "a.ldac", "a.npz"):
        np.testing.assert_array_equal(counts_of(read_corpus(tmp_path / name)), counts)


def test_repeated_entries_are_added(tmp_path):
    path = write(tmp_path / "a.ldac", "3 0:1 0:2 1:0\n")
    np.testing.assert_array_equal(counts_of(read_corpus(path)), [[3, 0]])


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("2 0:1 1:-1", r"line 2: expected 'M word:count .* got '2 0:1 1:-1'"),
        ("2 0:1 1:1.5", "line 2: expected 'M word:count"),
        ("2 0:1 1:nan", "line 2: expected 'M word:count"),
        ("2 0:1 1", "line 2: expected 'M word:count"),
        ("2 0:1 :1", "line 2: expected 'M word:count"),
        ("2 0:1 1 :1", "line 2: expected 'M word:count"),
        ("two 0:1 1:1", "line 2: expected 'M word:count"),
        ("", "line 2: expected 'M word:count"),
        ("3 0:1 1:1", "line 2: announces 3 words and holds 2; is it truncated?"),
        ("1 0:1 1:1", "line 2: announces 1 words and holds 2"),
        ("1 7:1", "line 2: word 7 is not among the 3 of the vocabulary"),
        ("1 0:" + "9" * 30, "line 2: expected 'M word:count"),
        ("1 0:" + "9" * 15, "in document 1, word 0"),
    ],
)
def test_damaged_ldac(tmp_path, line, match):
    path = write(tmp_path / "toy.ldac", f"1 0:1\n{line}\n1 1:1\n")
    with pytest.raises(CorpusError, match=rf"toy\.ldac.*{match}"):
        read_corpus(path, vocabulary=WORDS)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("1 3 1", "1 3 -1", r"line 5: expected 'document word count' .* got '1 3 -1'"),
        ("1 3 1", "1 3 1.5", "line 5: expected"),
        ("1 3 1", "1 3 nan", "line 5: expected"),
        ("1 3 1", "1 3", "line 5: expected"),
        ("1 3 1", "1 3 1 1", "line 5: expected"),
        ("1 3 1", "1 3 1x", "line 5: expected"),
        ("1 3 1", "", "line 5: expected"),
        ("1 3 1", "4 3 1", "line 5: document 4 is not among the announced 1 to 3"),
        ("1 3 1", "0 3 1", "line 5: document 0 is not among"),
        ("1 3 1", "1 4 1", "line 5: word 4 is not among the announced 1 to 3"),
        ("1 3 1", "1 0 1", "line 5: word 0 is not among"),
        ("3 2 5\n", "", "line 5: ends after 2 of 3 announced entries; is it truncated?"),
        ("3 2 5\n", "3 2 5\n3 3 1\n", "ends after 4 of 3"),
        ("3\n3\n3\n", "3\nthree\n3\n", "line 2: expected the number W, got 'three'"),
        ("3\n3\n3\n", "3 3 3\n", "line 1: expected the number D"),
        (UCI, "3\n3\n", "line 3: expected the number NNZ, got ''"),
        (UCI, "", "line 1: expected the number D, got ''"),
        (UCI, "3\n3\n0\n", "3 documents, 3 words, 0 tokens"),
        ("1 3 1", "1 3 3000000000", "document 0, word 2"),
    ],
)
def test_damaged_uci(tmp_path, old, new, match):
    path = write(tmp_path / "docword.toy.txt", UCI.replace(old, new, 1))
    with pytest.raises(CorpusError, match=rf"docword\.toy\.txt.*{match}"):
        read_corpus(path)


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        (MTX, "", "line 1: expected '%%MatrixMarket matrix coordinate integer general'"),
        ("%%MatrixMarket", "%%Matrix", "line 1: expected"),
        ("coordinate", "array", "line 1: expected"),
        ("integer", "complex", "line 1: expected"),
        ("general", "symmetric", "line 1: expected"),
        ("3 3 3", "3 3", "line 3: expected the numbers of rows, columns and entries, got '3 3'"),
        ("3 3 3\n1 1 2\n1 3 1\n3 2 5\n", "", "line 3: expected the numbers of rows"),
        ("1 3 1", "1 3 -1", "line 5: expected"),
        ("1 3 1", "1 3 1.5", "line 5: expected"),
        ("1 3 1", "4 3 1", "line 5: document 4 is not"),
        ("3 2 5\n", "", "line 5: ends after 2 of 3"),
        ("3 2 5\n", "3 2 ", "line 6: expected"),
    ],
)
def test_damaged_matrix_market(tmp_path, old, new, match):
    path = write(tmp_path / "toy.mtx", MTX.replace(old, new, 1))
    with pytest.raises(CorpusError, match=rf"toy\.mtx.*{match}"):
        read_corpus(path)


def test_fractional_count_in_a_real_matrix_names_the_line(tmp_path):
    text = MTX.replace("integer", "real").replace("1 3 1", "1 3 2.5e0")
    with pytest.raises(CorpusError, match=r"line 5: expected a whole count, got 2\.5"):
        read_corpus(write(tmp_path / "toy.mtx", text))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"data": None}, "missing data"),
        ({"data": np.array([2.0, -1.0, 5.0])}, r"got -1\.0 in document 0, word 2"),
        ({"data": np.array([2, 1])}, "and 2 entries"),
        ({"indices": np.array([0, 9, 1])}, "malformed"),
        ({"indices": np.array([0, -1, 1])}, "malformed"),
        ({"indices": np.array([0.0, 2.0, 1.0])}, "must be integers"),
        ({"indices": np.array([0, 2])}, "malformed"),
        ({"indptr": np.array([0, 2, 1, 3])}, "malformed"),
        ({"indptr": np.array([0, 2, 2])}, "and 3 entries"),
        ({"indptr": np.array([0, 2, 3])}, "malformed"),
        ({"indptr": np.array([], int)}, "ends with the number"),
        ({"shape": np.array([3])}, "shape of two numbers"),
        ({"shape": np.array([4, 3])}, "malformed"),
        ({"data": np.array([print] * 3)}, "plain arrays"),
        ({"format": b"csc"}, "expected a CSR matrix"),
    ],
)
def test_damaged_npz(tmp_path, changes, match):
    matrix = sp.csr_matrix(COUNTS)
    arrays = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
    arrays |= {"shape": np.array([3, 3])} | changes
    np.savez(tmp_path / "toy.npz", **{k: v for k, v in arrays.items() if v is not None})
    with pytest.raises(CorpusError, match=rf"toy\.npz: .*{match}"):
        read_corpus(tmp_path / "toy.npz")


@pytest.mark.parametrize("size", [0, 10, 200, -30])
def test_truncated_npz(tmp_path, size):
    sp.save_npz(tmp_path / "toy.npz", sp.csr_matrix(COUNTS))
    data = (tmp_path / "toy.npz").read_bytes()
    (tmp_path / "toy.npz").write_bytes(data[:size])
    with pytest.raises(CorpusError, match=r"toy\.npz: not a complete \.npz"):
        read_corpus(tmp_path / "toy.npz")


def test_a_bare_array_is_no_npz(tmp_path):
    np.save(tmp_path / "toy.npy", COUNTS)
    with pytest.raises(CorpusError, match=r"not a complete \.npz"):
        read_corpus(tmp_path / "toy.npy", format="npz")


def test_the_vocabulary_of_another_corpus_is_not_a_saved_ones(tmp_path):
    sp.save_npz(tmp_path / "toy.npz", sp.csr_matrix(COUNTS))
    write(tmp_path / "vocab.txt", "x\ny\nz\n")
    assert read_corpus(tmp_path / "toy.npz").vocabulary is None


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ("apple\nbee\n", r"toy\.mtx with .*toy\.vocab\.txt: .*each of the 3 columns, got 2"),
        ("apple\nbee\napple\n", r"vocab\.txt, line 3: the word 'apple' stands on line 1 already"),
        ("apple\n\ncat\n", r"vocab\.txt, line 2: expected a word, got a blank line"),
        ("", r"vocab\.txt, line 1: expected a word"),
    ],
)
def test_damaged_vocabulary_files(tmp_path, words, match):
    write(tmp_path / "toy.vocab.txt", words)
    with pytest.raises(CorpusError, match=match):
        read_corpus(write(tmp_path / "toy.mtx", MTX))


def test_labels_of_the_wrong_length(tmp_path):
    write(tmp_path / "toy.labels.txt", "a\nb\n")
    with pytest.raises(CorpusError, match=r"toy\.labels\.txt: .*each of 3 documents, got 2"):
        read_corpus(write(tmp_path / "toy.mtx", MTX))


# ------------------------------------------------------------------ texts


@pytest.mark.parametrize("name", ["toy.txt", "toy.txt.gz"])
def test_a_document_per_line(tmp_path, name):
    path = write(tmp_path / name, "Cat cat dog\n\nthe dog\r\nend")
    write(tmp_path / "toy.labels.txt", "a\nb\nc\nd\n")
    corpus = read_corpus(path, stop_words="english")
    assert corpus.vocabulary == ("cat", "dog", "end")
    np.testing.assert_array_equal(counts_of(corpus), [[2, 1, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1]])
    assert (corpus.name, corpus.labels) == ("toy", ("a", "b", "c", "d"))


def test_texts_over_a_given_vocabulary(tmp_path):
    path = write(tmp_path / "toy.txt", "cat cat dog\ndog emu\n")
    words = write(tmp_path / "words.txt", "dog\ncat\n")
    with pytest.warns(UserWarning, match="dropped 1 of 5 tokens: 1 words .* in 1 of 2 documents"):
        corpus = read_corpus(path, words)
    assert corpus.vocabulary == ("dog", "cat")
    np.testing.assert_array_equal(counts_of(corpus), [[1, 2], [1, 0]])


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
    np.testing.assert_array_equal(counts_of(corpus), [[2, 0], [1, 1], [0, 0], [0, 1], [0, 1]])
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
def test_damaged_json_lines(tmp_path, line, match):
    path = write(tmp_path / "toy.jsonl", f'{{"text": "cat"}}\n\n{line}\n')
    with pytest.raises(CorpusError, match=rf"toy\.jsonl, {match}"):
        read_corpus(path)


def test_csv(tmp_path):
    rows = [["x", 'cat, "cat"\r\nand dog', "1"], ["", "dog", "2"], ["y", "", "3"]]
    with open(tmp_path / "toy.csv", "w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([["label", "text", "id"], *rows])
    corpus = read_corpus(tmp_path / "toy.csv", stop_words=["and"])
    assert corpus.vocabulary == ("cat", "dog")
    np.testing.assert_array_equal(counts_of(corpus), [[2, 1], [0, 1], [0, 0]])
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
def test_damaged_csv(tmp_path, text, match):
    with pytest.raises(CorpusError, match=rf"toy\.csv, {match}"):
        read_corpus(write(tmp_path / "toy.csv", text))


@pytest.mark.parametrize("text", ["", "id,text\n", "id,text\n1,\n"])
def test_csv_without_words(tmp_path, text):
    with pytest.raises(CorpusError, match=r"toy\.csv: the texts cannot be counted"):
        read_corpus(write(tmp_path / "toy.csv", text))


def test_folder_with_labels(tmp_path):
    root = tmp_path / "news"
    write(root / "sport" / "b.txt", "goal goal\nball")
    write(root / "sport" / "a.txt", "ball")
    write(root / "art" / "old" / "c.txt", "oil")
    write(root / "readme.md", "not read")
    corpus = read_corpus(root)
    assert corpus.vocabulary == ("ball", "goal", "oil")
    assert corpus.labels == ("art/old", "sport", "sport")
    np.testing.assert_array_equal(counts_of(corpus), [[0, 0, 1], [1, 0, 0], [1, 2, 0]])
    assert corpus.name == "news"


def test_flat_folder_has_no_labels(tmp_path):
    write(tmp_path / "news" / "1.txt", "ball")
    write(tmp_path / "news" / "2.txt", "")
    corpus = read_corpus(tmp_path / "news")
    assert (corpus.num_docs, corpus.labels) == (2, None)


def test_folder_errors(tmp_path):
    with pytest.raises(CorpusError, match=r"expected a folder of \.txt files, found none"):
        read_corpus(tmp_path)
    (tmp_path / "bad.txt").write_bytes(b"fine\nfine\n\xff\n")
    with pytest.raises(CorpusError, match=r"bad\.txt, line 3: not utf-8"):
        read_corpus(tmp_path)


# ------------------------------------------------------------------ choosing


def test_format_can_be_told(tmp_path):
    path = write(tmp_path / "counts", LDAC)
    np.testing.assert_array_equal(counts_of(read_corpus(path, format="ldac")), COUNTS)
    assert read_corpus(path, format="txt", token_pattern=r"\d+").num_docs == 3


def test_format_errors(tmp_path):
    path = write(tmp_path / "toy.xyz", LDAC)
    with pytest.raises(CorpusError, match=r"toy\.xyz: cannot tell the format from .*'\.xyz'"):
        read_corpus(path)
    with pytest.raises(CorpusError, match=r"unknown format 'lda'; give one of npz, ldac, uci"):
        read_corpus(path, format="lda")
    with pytest.raises(CorpusError, match="min_df would choose the words of texts"):
        read_corpus(path, format="ldac", min_df=2)


@pytest.mark.parametrize("name", ["no.npz", "no.txt", "docword.no.txt.gz", "folder"])
def test_missing_files(tmp_path, name):
    with pytest.raises(CorpusError, match=f"{name}: no such file or folder"):
        read_corpus(tmp_path / name)


def test_missing_vocabulary_and_labels(tmp_path):
    path = write(tmp_path / "toy.mtx", MTX)
    with pytest.raises(CorpusError, match=r"words\.txt: no such file"):
        read_corpus(path, tmp_path / "words.txt")
    with pytest.raises(CorpusError, match=r"labels\.txt: no such file"):
        read_corpus(path, labels=tmp_path / "labels.txt")


@pytest.mark.parametrize("damage", ["truncated", "corrupt", "no gzip"])
def test_damaged_gzip(tmp_path, damage):
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


@pytest.mark.parametrize(
    ("name", "num_docs", "num_words", "num_tokens"),
    [
        ("ap", 2_246, 10_473, 435_838),
        ("bbc", 2_225, 2_949, 267_259),
        ("m10", 8_355, 1_696, 49_385),
        ("nips_uci", 1_500, 7_605, 1_870_706),
        ("searchsnippets", 12_295, 4_720, 177_338),
    ],
)
def test_real_corpora(shared_data, name, num_docs, num_words, num_tokens):
    corpus = read_corpus(shared_data / f"{name}.npz")
    assert (corpus.num_docs, corpus.num_words, corpus.num_tokens) == (
        num_docs,
        num_words,
        num_tokens,
    )
    assert len(corpus.vocabulary) == num_words
    assert (corpus.labels is not None) == (name in ("bbc", "m10", "searchsnippets"))


def test_a_large_corpus_is_read_in_seconds(shared_data):
    start = time.process_time()
    corpus = read_corpus(shared_data / "imdb100k.npz")
    seconds = time.process_time() - start
    assert corpus.num_docs == 100_000
    assert corpus.labels[0] == "pos|9"
    assert seconds < 20  # about 1 second, with room for a busy machine
