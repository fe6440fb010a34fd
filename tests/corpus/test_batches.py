"""Corpus.batch and Corpus.batches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from torch_lntm.corpus import Corpus
from torch_lntm.errors import CorpusError


@pytest.fixture(scope="module")
def counts() -> np.ndarray:
    counts = np.random.default_rng(1).poisson(0.5, (40, 9))
    counts[[0, 7, 39]] = 0
    counts[20] = 50
    return counts


@pytest.fixture(scope="module")
def corpus(counts: np.ndarray) -> Corpus:
    return Corpus.from_matrix(counts)


def dense(batch) -> np.ndarray:
    """Independent of DocumentBatch's own conversions."""
    out = np.zeros(batch.shape)
    offsets = batch.row_offsets.tolist()
    for d in range(batch.num_docs):
        entries = slice(offsets[d], offsets[d + 1])
        out[d, batch.word_index[entries].cpu()] = batch.counts[entries].cpu()
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batch_of_all(corpus, counts, dtype, device):
    batch = corpus.batch(device, dtype)
    np.testing.assert_array_equal(dense(batch), counts)
    assert batch.dtype == dtype
    assert batch.device.type == device.type
    assert batch.row_offsets.dtype == batch.word_index.dtype == batch.index.dtype == torch.int64
    assert batch.index.tolist() == list(range(40))
    assert (batch.corpus_size, batch.num_words) == (40, 9)


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


def test_a_document_over_the_bound_makes_its_own_batch():
    corpus = Corpus.from_matrix([[1], [9], [1], [1]])
    batches = corpus.batches(max_tokens=2)
    assert [b.index.tolist() for b in batches] == [[0], [1], [2, 3]]


def test_shuffling_follows_the_seed(corpus):
    def order(seed):
        return torch.cat([b.index for b in corpus.batches(7, shuffle=True, seed=seed)]).tolist()

    assert order(0) == order(0) != order(1)
    generator = np.random.default_rng(0)
    assert order(generator) == order(0)
    assert order(generator) != order(0)  # the generator has gone on


def test_order_does_not_depend_on_the_batch_size(corpus):
    orders = [
        torch.cat([b.index for b in corpus.batches(size, shuffle=True)]).tolist()
        for size in (1, 7, None)
    ]
    assert orders[0] == orders[1] == orders[2]


def test_bad_bounds_are_refused_at_once(corpus):
    with pytest.raises(CorpusError, match="max_docs must be at least 1, got 0"):
        corpus.batches(0)
    with pytest.raises(CorpusError, match="max_tokens must be at least 1, got -5"):
        corpus.batches(max_tokens=-5)


def test_writing_to_a_batch_leaves_the_corpus_alone(corpus, counts):
    batch = next(corpus.batches())
    batch.counts.zero_()
    batch.word_index.zero_()
    batch.row_offsets.zero_()
    np.testing.assert_array_equal(corpus.to_scipy().toarray(), counts)


def test_batches_of_a_selection_number_its_own_documents(corpus, counts):
    part = corpus[[5, 20, 7]]
    batch = part.batch()
    assert batch.index.tolist() == [0, 1, 2]
    assert batch.corpus_size == 3
    np.testing.assert_array_equal(dense(batch), counts[[5, 20, 7]])
