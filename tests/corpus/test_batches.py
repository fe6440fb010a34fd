"""Batches of a corpus: Corpus.batch, Corpus.batches and DocumentBatch."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle

import numpy as np
import pytest
import torch
from support.corpora import dense

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, CorpusError


@pytest.fixture(scope="module")
def counts() -> np.ndarray:
    counts = np.random.default_rng(1).poisson(0.5, (40, 9))
    counts[[0, 7, 39]] = 0
    counts[20] = 50
    return counts


@pytest.fixture(scope="module")
def corpus(counts: np.ndarray) -> Corpus:
    return Corpus.from_matrix(counts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batch_of_all(corpus, counts, dtype, device):
    batch = corpus.batch(device=device, dtype=dtype)
    np.testing.assert_array_equal(dense(batch), counts)
    assert batch.dtype == dtype
    assert batch.device.type == device.type
    assert batch.row_offsets.dtype == batch.word_index.dtype == batch.index.dtype == torch.int64
    assert batch.index.tolist() == list(range(40))
    assert (batch.corpus_size, batch.num_words) == (40, 9)
    for tensor in (batch.counts, batch.word_index, batch.row_offsets):
        tensor.zero_()
    np.testing.assert_array_equal(corpus.to_scipy().toarray(), counts)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("max_docs", [None, 1, 7, 40, 100])
@pytest.mark.parametrize("max_tokens", [None, 1, 13, 60, 10_000])
def test_batches_cover_every_document_once_within_bounds(
    corpus, counts, shuffle, max_docs, max_tokens
):
    batches = list(corpus.batches(max_docs, max_tokens, shuffle=shuffle))
    index = torch.cat([batch.index for batch in batches])
    assert sorted(index.tolist()) == list(range(40))
    assert shuffle != (index.tolist() == list(range(40)))
    np.testing.assert_array_equal(np.concatenate([dense(b) for b in batches]), counts[index])
    for batch in batches:
        assert batch.corpus_size == 40
        assert max_docs is None or batch.num_docs <= max_docs
        assert max_tokens is None or batch.num_docs == 1 or batch.counts.sum() <= max_tokens
    for this, following in itertools.pairwise(batches):
        # No batch could have taken its successor's first document.
        full = max_docs is not None and this.num_docs == max_docs
        tokens = counts[this.index].sum() + counts[following.index[0]].sum()
        assert full or tokens > max_tokens


def test_equal_seeds_give_equal_orders(corpus):
    def order(seed):
        return torch.cat([b.index for b in corpus.batches(7, shuffle=True, seed=seed)]).tolist()

    assert order(0) == order(0) != order(1)
    generator = np.random.default_rng(0)
    assert order(generator) == order(0)
    assert order(generator) != order(0)  # the generator has gone on
    for size in (1, None):  # the order does not depend on the size of the batches
        batches = corpus.batches(size, shuffle=True, seed=0)
        assert torch.cat([b.index for b in batches]).tolist() == order(0)


def test_batch_of_some_documents_keeps_their_positions(corpus, counts):
    batch = corpus.batch([5, 20, 7])
    assert batch.index.tolist() == [5, 20, 7]
    assert batch.corpus_size == 40
    np.testing.assert_array_equal(dense(batch), counts[[5, 20, 7]])
    part = corpus[[5, 20, 7]].batch()  # a corpus of its own
    assert (part.index.tolist(), part.corpus_size) == ([0, 1, 2], 3)
    np.testing.assert_array_equal(dense(part), counts[[5, 20, 7]])
    np.testing.assert_array_equal(corpus.batch(slice(-2, None)).index, [38, 39])
    assert corpus.batch(counts.sum(1) == 0).index.tolist() == [0, 7, 39]


def test_batches_in_a_given_order(corpus, counts):
    order = [30, 2, 2, 7, 20, 0]
    batches = list(corpus.batches(4, order=order))
    assert [b.index.tolist() for b in batches] == [order[:4], order[4:]]
    assert {b.corpus_size for b in batches} == {40}
    np.testing.assert_array_equal(np.concatenate([dense(b) for b in batches]), counts[order])
    bounded = corpus.batches(max_tokens=60, order=torch.tensor(order))
    assert torch.cat([b.index for b in bounded]).tolist() == order


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"max_docs": 0}, ConfigError, "max_docs is 0; expected at least 1"),
        ({"max_tokens": -5}, ConfigError, "max_tokens is -5; expected at least 1"),
        ({"order": [40]}, IndexError, "out of bounds"),
        ({"order": [1], "shuffle": True}, CorpusError, "order and shuffle both"),
        ({"order": []}, CorpusError, "holds no document"),
    ],
)
def test_bad_bounds_and_orders_are_refused_before_the_first_batch(corpus, options, error, match):
    with pytest.raises(error, match=match):
        corpus.batches(**options)


# ------------------------------------------------------------------ covariates and positions


@pytest.fixture
def known(corpus: Corpus) -> Corpus:
    """The corpus with a design matrix, a group and a flag of every document."""
    x = np.arange(80.0).reshape(40, 2)
    return corpus.with_covariates({"x": x, "group": np.arange(40), "flag": np.arange(40) > 3})


def check_covariates(batch: DocumentBatch) -> None:
    """Each document's covariates are those of its position."""
    index = batch.index.cpu()
    first = 2.0 * index.to(batch.dtype)
    torch.testing.assert_close(batch.covariates["x"].cpu(), torch.stack([first, first + 1], 1))
    assert batch.covariates["group"].tolist() == index.tolist()
    assert batch.covariates["flag"].tolist() == (index > 3).tolist()
    assert {x.device.type for x in batch.covariates.values()} == {batch.device.type}
    assert batch.positions.tolist() == index.tolist()
    assert batch.positions.device.type == "cpu"


@pytest.mark.slow
def test_batches_carry_covariates(known, device):
    for batch in known.batches(7, shuffle=True, device=device):
        check_covariates(batch)
        check_covariates(batch.to(dtype=torch.float64))
        check_covariates(batch.to("cpu"))
        check_covariates(batch.select(torch.tensor([3, 0], device=device)))
        check_covariates(batch.select(torch.tensor([3, 0])))
        for part in batch.split(2):
            check_covariates(part)
        check_covariates(batch.repeat(3))
    assert batch.to(dtype=torch.float64).covariates["group"].dtype == torch.int64
    assert batch.to(dtype=torch.float64).covariates["flag"].dtype == torch.bool


@pytest.mark.slow
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))])
def test_batches_can_be_copied(known, counts, clone):
    batch = clone(known.batch([5, 1]))
    check_covariates(batch)
    assert dataclasses.replace(batch, index=batch.index + 1).positions.tolist() == [6, 2]
    np.testing.assert_array_equal(dense(batch.repeat(2)), counts[[5, 1, 5, 1]])
    copied = clone(known)
    assert list(copied.metadata) == list(known.metadata)
    check_covariates(copied.batch())


@pytest.mark.parametrize("words", [[1, 3, 4], [0, 1, 3, 4], [0, 1, 2, 3, 4, 5]])
def test_a_batch_over_some_words_has_the_same_counts(words, device):
    counts = np.array([[0, 2, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0], [0, 1, 0, 3, 0, 0]])
    batch = Corpus.from_matrix(counts).batch(device=device)
    assert batch.words.tolist() == [1, 3, 4]
    part = batch.over(torch.tensor(words, device=device))
    assert part.num_words == len(words)
    np.testing.assert_array_equal(dense(part), counts[:, words])
    assert part.positions.tolist() == [0, 1, 2]
    fresh = dataclasses.replace(part)  # which knows nothing of what was carried over
    for carried, made in zip(part.by_word, fresh.by_word, strict=True):
        assert torch.equal(carried, made)


def test_empty_documents_have_a_batch_over_no_words(device):
    batch = Corpus.from_matrix(np.eye(3)).batch(device=device)
    empty = batch.select(torch.arange(0, device=device))
    assert empty.words.tolist() == []
    assert empty.over(empty.words).num_words == 0


@pytest.mark.parametrize("num_docs", [0, 1, 200])
def test_entries_by_word_keep_the_order_of_the_documents(num_docs, device):
    # Words in any order and twice within a document, and words and documents without an entry.
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(0, 6, (num_docs,), generator=generator)
    words = torch.randint(0, 40, (int(sizes.sum()),), generator=generator)
    batch = DocumentBatch(
        row_offsets=torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]),
        word_index=words,
        counts=torch.ones(words.numel()),
        num_words=50,
        index=torch.arange(num_docs),
        corpus_size=num_docs,
    ).to(device)
    order, documents, offsets = (found.cpu() for found in batch.by_word)
    expected = torch.argsort(words, stable=True)
    assert {found.dtype for found in (order, documents, offsets)} == {torch.int64}
    assert order.tolist() == expected.tolist()
    assert documents.tolist() == torch.arange(num_docs).repeat_interleave(sizes)[expected].tolist()
    assert offsets.diff().tolist() == torch.bincount(words, minlength=50).tolist()
    assert offsets[0] == 0
