"""Corpus: construction, validation, selection, vocabularies, saving."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from support.corpora import dense

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.corpus import as_corpus
from torch_lntm.errors import ConfigError, CorpusError

COUNTS = np.array([[2, 0, 1, 0], [0, 0, 0, 0], [0, 5, 0, 0], [1, 1, 1, 0]])
WORDS = ("apple", "bee", "cat", "dog")
LABELS = {"label": list("abcd")}
TABLE = pd.DataFrame({"text": ["wood", "stone"]})


# ------------------------------------------------------------------ from_matrix


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
@pytest.mark.parametrize(
    "convert",
    [
        np.asarray,
        np.ndarray.tolist,
        lambda x: x.astype(bool) * x.astype(np.uint8),
        lambda x: x.astype(np.float32),
        np.asfortranarray,
        sp.csr_matrix,
        sp.csc_matrix,
        sp.coo_matrix,
        sp.dok_matrix,
        sp.csr_array,
        sp.coo_array,
        torch.from_numpy,
        lambda x: torch.from_numpy(x).to(torch.bfloat16),
        lambda x: torch.from_numpy(x).to_sparse_coo(),
        lambda x: torch.from_numpy(x).float().to_sparse_csr(),
        lambda x: torch.from_numpy(x).float().to_sparse_csc(),
        lambda x: torch.from_numpy(x).float().requires_grad_(),
    ],
)
def test_from_matrix_takes_every_kind_of_matrix(convert):
    corpus = Corpus.from_matrix(
        convert(COUNTS), WORDS, name="toy", metadata={"label": [0, 1, 1, 0]}
    )
    np.testing.assert_array_equal(dense(corpus), COUNTS)
    assert (corpus.num_docs, corpus.num_words, corpus.nnz, corpus.num_tokens) == (4, 4, 6, 11)
    np.testing.assert_array_equal(corpus.lengths, [3, 0, 5, 3])
    assert corpus.lengths.dtype == np.int64
    assert corpus.vocabulary == WORDS
    assert corpus.labels == ("0", "1", "1", "0")
    assert len(corpus) == 4
    assert repr(corpus) == "Corpus('toy', num_docs=4, num_words=4, num_tokens=11, columns: label)"


def test_entries_are_sorted_summed_and_positive():
    matrix = sp.csr_matrix(([1, 2, 0, 4, 3], [2, 0, 1, 2, 0], [0, 4, 5]), shape=(2, 3))
    corpus = Corpus.from_matrix(matrix)
    np.testing.assert_array_equal(corpus.word_index, [0, 2, 0])
    np.testing.assert_array_equal(corpus.counts, [2, 5, 3])
    np.testing.assert_array_equal(matrix.indices, [2, 0, 1, 2, 0])  # the input is left alone
    bytes_ = np.full(3, 200, np.uint8), ([0, 0, 0], [0, 0, 1])
    np.testing.assert_array_equal(dense(Corpus.from_matrix(sp.coo_matrix(bytes_))), [[400, 200]])
    twice = torch.sparse_coo_tensor([[0, 0], [1, 1]], [2, 3], (1, 2), check_invariants=True)
    np.testing.assert_array_equal(dense(Corpus.from_matrix(twice)), [[0, 5]])


def test_long_documents_do_not_overflow():
    corpus = Corpus.from_matrix(np.full((1, 4), 2**31 - 1))
    assert corpus.num_tokens == 4 * (2**31 - 1)


def test_a_corpus_is_immutable_and_independent_of_its_input():
    matrix = sp.csr_matrix(COUNTS.astype(np.int32))
    corpus = Corpus.from_matrix(matrix)
    matrix.data[:] = 7
    matrix.indices[:] = 0
    np.testing.assert_array_equal(dense(corpus), COUNTS)
    for array in (corpus.row_offsets, corpus.word_index, corpus.counts, corpus.lengths):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        corpus.num_words = 3
    matrix = corpus.to_scipy()
    matrix.data[:] = 9  # a copy: writing to it changes nothing
    np.testing.assert_array_equal(dense(corpus), COUNTS)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(-1.0, "-1.0"), (0.5, "0.5"), (np.nan, "nan"), (-np.inf, "-inf"), (2.0**31, "2147483648.0")],
)
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_matrix, torch.from_numpy])
def test_errors_of_invalid_counts_name_document_and_word(value, shown, convert):
    counts = COUNTS.astype(float)
    counts[2, 3] = value
    with pytest.raises(CorpusError, match=f"got {shown} in document 2, word 3"):
        Corpus.from_matrix(convert(counts))


def test_invalid_counts_are_found_before_duplicates_are_summed():
    matrix = sp.coo_matrix(([3, -1], ([0, 0], [1, 1])), shape=(1, 2))
    with pytest.raises(CorpusError, match="got -1 in document 0, word 1"):
        Corpus.from_matrix(matrix)
    big = sp.coo_matrix(([2**31 - 1, 1], ([0, 0], [1, 1])), shape=(1, 2))
    with pytest.raises(CorpusError, match="add up to more than 2147483647"):
        Corpus.from_matrix(big)


def test_data_frames_name_the_words():
    frame = pd.DataFrame(COUNTS, columns=WORDS, index=[7, 7, 3, 1])
    corpus = Corpus.from_matrix(frame)
    np.testing.assert_array_equal(dense(corpus), COUNTS)
    assert corpus.vocabulary == WORDS
    sparse = Corpus.from_matrix(frame.astype(pd.SparseDtype(int, 0)))
    np.testing.assert_array_equal(dense(sparse), COUNTS)
    assert sparse.vocabulary == WORDS
    assert Corpus.from_matrix(frame, ["a", "b", "c", "d"]).vocabulary == ("a", "b", "c", "d")
    assert Corpus.from_matrix(pd.DataFrame(COUNTS)).vocabulary is None
    nullable = frame.astype("Int64")
    np.testing.assert_array_equal(dense(Corpus.from_matrix(nullable)), COUNTS)
    nullable.iloc[2, 1] = None
    with pytest.raises(CorpusError, match="got nan in document 2, word 1"):
        Corpus.from_matrix(nullable)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (3, 3)])
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_matrix, torch.from_numpy])
def test_an_empty_corpus_is_an_error(shape, convert):
    with pytest.raises(CorpusError, match=f"{shape[0]} documents, {shape[1]} words, 0 tokens"):
        Corpus.from_matrix(convert(np.zeros(shape)))


@pytest.mark.parametrize(
    ("matrix", "match"),
    [
        (np.ones(3), "1 dimensions"),
        (np.ones((1, 2, 3)), "3 dimensions"),
        (5, "0 dimensions"),
        ([["a", "b"]], "of <U1"),
        (np.array([[1j]]), "of complex128"),
        (np.array([[None]]), "of object"),
        ([[1, 2], [3]], "malformed"),
        (torch.ones(1, 1, dtype=torch.complex64), "of complex64"),
    ],
)
def test_objects_other_than_matrices_of_numbers_are_refused(matrix, match):
    with pytest.raises(CorpusError, match=match):
        Corpus.from_matrix(matrix)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
def test_malformed_sparse_matrices_are_refused():
    ours, one, unchecked = sp.csr_matrix(COUNTS), torch.ones(1), {"check_invariants": False}
    ours.indices = np.full(6, 99)
    csr = torch.sparse_csr_tensor([0, 1], [9], one, (1, 2), **unchecked)
    coo = torch.sparse_coo_tensor([[0], [9]], one, (1, 2), **unchecked)
    for matrix in (ours, csr, coo):
        with pytest.raises(CorpusError, match="malformed"):
            Corpus.from_matrix(matrix)


@pytest.mark.parametrize(
    ("vocabulary", "match"),
    [
        (WORDS[:3], "each of the 4 columns, got 3"),
        ((*WORDS, "eel"), "each of the 4 columns, got 5"),
        (("apple", "bee", "cat", "bee"), "got 'bee' more than once"),
        (("apple", "bee", 3, "dog"), "word 2 of the vocabulary must be a non-blank .* got 3"),
        (("apple", "bee", " ", "dog"), "word 2 of the vocabulary must be a non-blank string"),
        ("abcd", "got a str"),
        ({"apple": 0, "bee": 1, "cat": 2, "dog": 3}, "got a dict .*get_feature_names_out"),
        (set(WORDS), "got a set"),
        (("apple", "b\ud800ee", "cat", "dog"), "word 1 .* half of a surrogate pair"),
    ],
)
def test_invalid_vocabularies_are_refused(vocabulary, match):
    with pytest.raises(CorpusError, match=match):
        Corpus.from_matrix(COUNTS, vocabulary)


# ------------------------------------------------------------------ selection


@pytest.mark.parametrize(
    "rows",
    [
        slice(None),
        slice(1, 3),
        slice(None, None, -1),
        slice(None, None, 2),
        [3, 0, 0],
        np.array([True, False, True, True]),
        np.array([-1, 1]),
        torch.tensor([2, 1]),
        torch.tensor([False, True, True, False]),
        [1],
    ],
)
def test_selections_follow_the_rules_of_numpy(rows):
    corpus = Corpus.from_matrix(COUNTS, WORDS, name="toy", metadata=LABELS)
    chosen = corpus[rows]
    positions = np.arange(4)[np.asarray(rows) if isinstance(rows, torch.Tensor) else rows]
    np.testing.assert_array_equal(dense(chosen), COUNTS[positions])
    assert chosen.labels == tuple("abcd"[d] for d in positions)
    assert (chosen.vocabulary, chosen.name) == (WORDS, "toy")
    np.testing.assert_array_equal(dense(chosen[-1]), COUNTS[positions][[-1]])
    np.testing.assert_array_equal(np.concatenate([dense(one) for one in chosen]), dense(chosen))


def test_invalid_selections_are_refused():
    corpus = Corpus.from_matrix(COUNTS)
    with pytest.raises(CorpusError, match="holds no document"):
        corpus[[]]
    with pytest.raises(IndexError, match="out of bounds"):
        corpus[4]
    with pytest.raises(IndexError, match="boolean"):
        corpus[np.array([True, False])]


def test_with_counts_drops_entries_of_zero():
    corpus = Corpus.from_matrix(COUNTS)
    fewer = corpus.with_counts(np.array([1, 0, 5, 0, 0, 1]))
    np.testing.assert_array_equal(
        dense(fewer), [[1, 0, 0, 0], [0, 0, 0, 0], [0, 5, 0, 0], [0, 0, 1, 0]]
    )
    assert corpus.with_counts(np.zeros(6, int)).num_tokens == 0


# ------------------------------------------------------------------ vocabularies


def test_with_vocabulary_moves_columns():
    corpus = Corpus.from_matrix(COUNTS, WORDS, name="toy", metadata=LABELS)
    moved = corpus.with_vocabulary(["cat", "emu", "dog", "bee", "apple"])  # all known: no warning
    np.testing.assert_array_equal(dense(moved), np.insert(COUNTS[:, [2, 3, 1, 0]], 1, 0, axis=1))
    assert moved.vocabulary == ("cat", "emu", "dog", "bee", "apple")
    assert (moved.labels, moved.name) == (corpus.labels, "toy")
    np.testing.assert_array_equal(dense(moved.with_vocabulary(WORDS)), COUNTS)
    assert corpus.with_vocabulary(list(WORDS)) is corpus


def test_with_vocabulary_keeps_emptied_documents():
    corpus = Corpus.from_matrix(COUNTS, WORDS, metadata=LABELS)
    with pytest.warns(UserWarning, match="dropped 5 of 11 tokens: 2 words .* in 2 of 4 documents"):
        small = corpus.with_vocabulary(["bee"])
    np.testing.assert_array_equal(dense(small), COUNTS[:, [1]])
    with pytest.warns(UserWarning, match="made by the same tokenizer"):
        unknown = corpus.with_vocabulary(["emu", "fox"])
    assert (unknown.num_docs, unknown.num_tokens, unknown.labels) == (4, 0, tuple("abcd"))
    with warnings.catch_warnings():  # of words that no document has
        warnings.simplefilter("error")
        np.testing.assert_array_equal(dense(corpus.with_vocabulary(WORDS[:3])), COUNTS[:, :3])


def test_with_vocabulary_errors():
    with pytest.raises(CorpusError, match="has no vocabulary"):
        Corpus.from_matrix(COUNTS).with_vocabulary(WORDS)
    with pytest.raises(CorpusError, match="got 'emu' more than once"):
        Corpus.from_matrix(COUNTS, WORDS).with_vocabulary(["emu", "emu"])


# ------------------------------------------------------------------ fingerprint and saving


def test_different_contents_have_different_fingerprints():
    corpus = Corpus.from_matrix(COUNTS, WORDS)
    same = Corpus.from_matrix(sp.csc_matrix(COUNTS.astype(np.uint8)), WORDS, name="other name")
    assert corpus.fingerprint() == same.fingerprint()
    changed = COUNTS.copy()
    changed[2, 1] -= 1
    wider = np.pad(COUNTS, ((0, 0), (0, 1)))
    others = [
        Corpus.from_matrix(COUNTS),
        Corpus.from_matrix(COUNTS, WORDS[::-1]),
        Corpus.from_matrix(changed, WORDS),
        Corpus.from_matrix(wider, (*WORDS, "eel")),
        corpus[::-1],
        corpus[:3],
    ]
    assert len({corpus.fingerprint(), *(other.fingerprint() for other in others)}) == 7


# ------------------------------------------------------------------ documents of any kind


def test_as_corpus_takes_corpora_and_frames():
    corpus = Corpus.from_matrix(COUNTS)
    assert as_corpus(corpus) is corpus
    assert as_corpus(pd.DataFrame(COUNTS, columns=WORDS)).vocabulary == WORDS
    assert as_corpus(np.zeros((1, 2)), allow_empty=True).num_tokens == 0
    with pytest.raises(CorpusError, match="the corpus is empty"):
        as_corpus(np.zeros((1, 2)))


@pytest.mark.parametrize(
    ("documents", "match"),
    [
        (["a text", "another"], r"Corpus\.from_texts"),
        (("a text",), r"Corpus\.from_texts"),
        (np.array(["a text"]), r"Corpus\.from_texts"),
        (pd.Series(["a text"]), r"Corpus\.from_texts"),
        (TABLE, r"go to Corpus\.from_texts\("),
        ([{"text": "wood"}], r"go to Corpus\.from_texts\("),
        ("ap.npz", "got 'ap.npz'; if it is a file, read it by read_corpus"),
        (Path("ap.npz"), "read_corpus"),
        (None, "got a NoneType, .*; texts go to"),
        (3, "got a int"),
        ({"a": 1}, "got a dict"),
    ],
)
def test_as_corpus_refuses_other_documents_with_advice(documents, match):
    with pytest.raises((ConfigError, CorpusError), match=match):
        as_corpus(documents)


@pytest.mark.parametrize("given", [["wood stone"], np.eye(2), "posts.csv"])
def test_calling_the_class_with_documents_is_refused_with_advice(given):
    with pytest.raises(CorpusError, match=r"Corpus\.from_texts\(texts\), .*from_matrix.*read_corp"):
        Corpus(given)


def test_a_vocabulary_in_another_order_than_the_columns_is_refused() -> None:
    frame = pd.DataFrame([[1, 2], [3, 0]], columns=["soil", "goal"])
    with pytest.raises(CorpusError, match=r"got 'goal' for the column 'soil'; give"):
        Corpus.from_matrix(frame, ["goal", "soil"])
    assert Corpus.from_matrix(frame, ["w0", "w1"]).vocabulary == ("w0", "w1")


def test_metadata_as_a_series_are_refused() -> None:
    with pytest.raises(CorpusError, match=r"give frame\[\['name'\]\]"):
        Corpus.from_matrix([[1, 2], [3, 0]], metadata=pd.Series(["wet", "dry"], name="season"))
