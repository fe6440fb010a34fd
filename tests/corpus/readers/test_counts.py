"""Readers of word counts: whole files and damaged ones."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from support.corpora import COUNTS, LDAC, MTX, UCI, WORDS, dense, write

from torch_lntm.corpus import read_corpus
from torch_lntm.corpus.readers import counts
from torch_lntm.errors import CorpusError


@pytest.mark.parametrize("gz", ["", ".gz"])
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
def test_count_formats(tmp_path, name, text, gz):
    corpus = read_corpus(write(tmp_path / (name + gz), text))
    np.testing.assert_array_equal(dense(corpus), COUNTS)
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


def test_words_are_found_beside_arrays(tmp_path):
    sp.save_npz(tmp_path / "toy.npz", sp.csr_matrix([[1, 0, 2]]))
    write(tmp_path / "toy.vocab.txt", "apple\nbee\ncat\n")
    assert read_corpus(tmp_path / "toy.npz").vocabulary == WORDS


def test_words_of_the_caller_override_files_beside_counts(tmp_path):
    path = write(tmp_path / "toy.ldac", LDAC)
    write(tmp_path / "vocab.txt", "one\ntwo\n")  # would not fit
    words = write(tmp_path / "words" / "w.txt", "apple\nbee\ncat")
    for given in (str(words), iter(WORDS)):
        assert read_corpus(str(path), given).vocabulary == WORDS


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.ldac", "3 0:1 0:2 1:0\n1 1:4\n"),
        ("docword.a.txt", "2\n2\n4\n1 1 1\n1 1 2\n2 2 3\n2 2 1\n"),
    ],
)
def test_repeated_entries_are_added_up(tmp_path, name, text):
    path = write(tmp_path / name, text)
    np.testing.assert_array_equal(dense(read_corpus(path)), [[3, 0], [0, 4]])


@pytest.mark.parametrize(
    ("name", "text", "end"),
    [
        *(("a.ldac", LDAC, end) for end in ("\r\n", "\r")),
        *((name, text, "\r\n") for name, text in (("docword.a.txt", UCI), ("a.mtx", MTX))),
    ],
)
def test_blocks_of_lines_of_any_end(tmp_path, monkeypatch, name, text, end):
    monkeypatch.setattr(counts, "_LINES", 1)
    (tmp_path / name).write_bytes(text.replace("\n", end).encode() + b"  " + end.encode() * 3)
    np.testing.assert_array_equal(dense(read_corpus(tmp_path / name)), COUNTS)


def test_matrix_market_by_scipy(tmp_path):
    counts = np.random.default_rng(0).poisson(0.3, (40, 30))
    for matrix in (sp.coo_matrix(counts), sp.csr_matrix(counts.astype(float))):
        scipy.io.mmwrite(tmp_path / "a.mtx", matrix, comment="one\ntwo")
        np.testing.assert_array_equal(dense(read_corpus(tmp_path / "a.mtx")), counts)
    scipy.io.mmwrite(tmp_path / "a.mtx", sp.coo_matrix(counts > 0), field="pattern")
    np.testing.assert_array_equal(dense(read_corpus(tmp_path / "a.mtx")), counts > 0)


@pytest.mark.parametrize(
    ("name", "old", "new", "match"),
    [
        ("a.ldac", "0\n", "2 0:1 1:-1\n", "line 2: expected 'M word:count .* got '2 0:1 1:-1'"),
        ("a.ldac", "0\n", "2 0:1 1:1.5\n", "line 2: expected 'M word:count"),
        ("a.ldac", "0\n", "2 0:1 1\n", "line 2: expected 'M word:count"),
        ("a.ldac", "0\n", "3 0:1 1:1\n", "line 2: announces 3 words and holds 2; is it truncated?"),
        ("a.ldac", "0\n", "1 7:1\n", "document 1, .* the word 7; expected .* from 0 to below 3"),
        ("a.ldac", "0\n", f"1 0:{'9' * 30}\n", "line 2: expected 'M word:count"),
        ("a.ldac", "0\n", f"1 0:{'9' * 15}\n", "in document 1, word 0"),
        ("docword.a.txt", "1 3 1", "1 3 -1", r"got -1\.0 in document 0, word 2"),
        ("docword.a.txt", "1 3 1", "", "Truncated file. Expected another 1 lines"),
        ("docword.a.txt", "1 3 1", "4 3 1", "Line 5: Row index out of bounds"),
        ("docword.a.txt", "1 3 1", "1 0 1", "Line 5: Column index out of bounds"),
        ("docword.a.txt", "3 2 5\n", "", "Truncated file. Expected another 1 lines"),
        ("docword.a.txt", "3 2 5\n", "3 2 5\n3 3 1\n", "Line 7: Too many lines in file"),
        ("docword.a.txt", "3\n3\n3\n", "3\nthree\n3\n", "Invalid integer value"),
        ("docword.a.txt", UCI, "3\n3\n0\n", "3 documents, 3 words, 0 tokens"),
        ("docword.a.txt", "1 3 1", "1 3 3000000000", "document 0, word 2"),
        ("a.mtx", MTX, "", "Line 1: .* Missing banner"),
        ("a.mtx", "3 3 3", "3 3", "Invalid integer value"),
        ("a.mtx", "1 3 1", "1 3 1.5", r"got 1\.5 in document 0, word 2"),
        ("a.mtx", MTX, MTX.replace("integer", "Integer").replace("1 3 1", "1 3 1.5"), r"got 1\.5"),
        ("docword.a.txt", "1 3 1", "1 3 1.5", r"got 1\.5 in document 0, word 2"),
        ("a.mtx", "3 2 5\n", "3 2 ", "Line 6: Invalid"),
    ],
)
def test_damaged_counts_are_refused(tmp_path, name, old, new, match):
    whole = {"a.ldac": LDAC, "a.mtx": MTX}.get(name, UCI)
    path = write(tmp_path / name, whole.replace(old, new, 1))
    with pytest.raises(CorpusError, match=rf"{name}.*{match}"):
        read_corpus(path, vocabulary=WORDS)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"data": None}, "missing data"),
        ({"data": np.array([2.0, -1.0, 5.0])}, r"got -1\.0 in document 0, word 2"),
        ({"indices": np.array([0, 9, 1])}, "malformed"),
        ({"indices": np.array([0.0, 2.0, 1.0])}, "must be integers"),
        ({"indptr": np.array([0, 2, 1, 3])}, "malformed"),
        ({"indptr": np.array([], int)}, "malformed"),
        ({"indptr": np.array(3)}, "malformed"),
        ({"indices": np.ones((3, 1), int)}, "malformed"),
        ({"shape": np.array([4, 3])}, "malformed"),
        ({"data": np.array([print] * 3)}, "plain arrays"),
        ({"format": b"csc"}, "expected a CSR matrix"),
    ],
)
def test_damaged_npz_is_refused(tmp_path, changes, match):
    matrix = sp.csr_matrix(COUNTS)
    arrays = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
    arrays |= {"shape": np.array([3, 3])} | changes
    np.savez(tmp_path / "toy.npz", **{k: v for k, v in arrays.items() if v is not None})
    with pytest.raises(CorpusError, match=rf"toy\.npz: .*{match}"):
        read_corpus(tmp_path / "toy.npz")
    data = (tmp_path / "toy.npz").read_bytes()
    for size in (0, 200, -30):
        (tmp_path / "toy.npz").write_bytes(data[:size])
        with pytest.raises(CorpusError, match=r"toy\.npz: .*complete"):
            read_corpus(tmp_path / "toy.npz")


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ("apple\nbee\n", r"toy\.mtx with .*toy\.vocab\.txt: .*each of the 3 columns, got 2"),
        ("apple\nbee\napple\n", r"vocab\.txt: the words .* differ, got 'apple' more than once"),
        ("apple\n\ncat\n", r"vocab\.txt: word 1 of the vocabulary must be a non-blank"),
    ],
)
def test_damaged_vocabulary_files_are_refused(tmp_path, words, match):
    write(tmp_path / "toy.vocab.txt", words)
    with pytest.raises(CorpusError, match=match):
        read_corpus(write(tmp_path / "toy.mtx", MTX))


# ------------------------------------------------------------------ sizes


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("docword.a.txt", f"{10**12}\n3\n1\n1 1 1\n", "1000000000000 documents are out of prop"),
        ("docword.a.txt", f"3\n{10**12}\n1\n1 1 1\n", "000 words are out of .*vocabulary"),
        ("a.ldac", f"1 {10**17}:1\n", "100000000000000001 words are out of proportion to its 1 e"),
        ("a.mtx", MTX.replace("3 3 3", f"3 {10**12} 3"), "words are out of proportion to its 3"),
        ("a.mtx", MTX.replace("3 3 3", f"{10**12} 3 3"), "documents are out of proportion"),
        ("a.npz", None, "1000000000000 words are out of proportion to its 1 entries"),
    ],
)
def test_sizes_out_of_proportion_to_the_file_are_refused(tmp_path, name, text, match):
    path = tmp_path / name
    if text is None:
        np.savez(path, data=[1], indices=[0], indptr=[0, 1], shape=[1, 10**12])
    else:
        write(path, text)
    with pytest.raises(CorpusError, match=rf"{name}: .*{match}"):
        read_corpus(path)


def test_a_vocabulary_justifies_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr(counts, "_FREE_SIZE", 2)
    monkeypatch.setattr(counts, "_SIZE_PER_ENTRY", 1)
    words = [f"w{i}" for i in range(9)]
    path = write(tmp_path / "docword.a.txt", "1\n9\n1\n1 1 1\n")
    assert read_corpus(path, vocabulary=words).num_words == 9
    with pytest.raises(CorpusError, match="one word for each of the 9 columns, got 8"):
        read_corpus(path, vocabulary=words[:8])
    with pytest.raises(CorpusError, match="9 words are out of proportion"):
        read_corpus(path)


def test_ldac_lines_of_many_words_are_checked_to_their_end(tmp_path):
    pairs = [f"{i}:1" for i in range(10_000)]
    path = write(tmp_path / "a.ldac", f"10000 {' '.join(pairs)} \n")
    assert read_corpus(path).num_tokens == 10_000
    for wrong in ("x", "3", "3:", "1" * 19 + ":1", "3:4:5"):
        write(path, f"10001 {' '.join(pairs)} {wrong}\n")
        with pytest.raises(CorpusError, match=r"a\.ldac, line 1: expected 'M word:count"):
            read_corpus(path)
