"""Splits of documents and hold-outs of words."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm
from support.corpora import make_corpus

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.splits import load_split
from torch_lntm.errors import CorpusError


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return make_corpus()


# ------------------------------------------------------------------ documents


@pytest.mark.parametrize(("fraction", "num_test"), [(0.001, 1), (0.2, 10), (0.999, 49)])
def test_a_split_is_a_partition_of_the_documents(corpus, fraction, num_test):
    split = corpus.split(fraction, seed=3)
    assert (split.train.num_docs, split.test.num_docs) == (50 - num_test, num_test)
    assert (split.test_index == corpus.split(fraction, seed=3).test_index).all()
    assert (corpus.split(0.2, seed=1).test_index != corpus.split(0.2, seed=2).test_index).any()
    together = np.concatenate([split.train_index, split.test_index])
    assert sorted(together) == list(range(50))
    assert (np.diff(split.test_index) > 0).all()
    assert (np.diff(split.train_index) > 0).all()
    train, test = split
    assert test.labels == tuple(str(d) for d in split.test_index)
    counts = corpus.to_scipy().toarray()
    np.testing.assert_array_equal(train.to_scipy().toarray(), counts[split.train_index])
    np.testing.assert_array_equal(test.to_scipy().toarray(), counts[split.test_index])


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan")])
def test_fractions_outside_of_0_to_1_are_refused(corpus, fraction):
    with pytest.raises(CorpusError, match="test_fraction must lie between 0 and 1"):
        corpus.split(fraction)
    with pytest.raises(CorpusError, match="observed_fraction must lie between 0 and 1"):
        corpus.hold_out_words(fraction)
    with pytest.raises(CorpusError, match="at least 2 documents"):
        corpus[0].split()


# ------------------------------------------------------------------ words


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 0.9, 0.99])
def test_a_hold_out_divides_every_document(corpus, fraction):
    hold_out = corpus.hold_out_words(fraction)
    observed, held_out = hold_out
    assert (observed.to_scipy() + held_out.to_scipy() != corpus.to_scipy()).nnz == 0
    assert observed.labels == held_out.labels == corpus.labels
    n = corpus.lengths
    expected = np.clip(np.rint(fraction * n), 1, np.maximum(n - 1, 1)) * (n > 0)
    np.testing.assert_array_equal(observed.lengths, expected)
    assert observed.lengths[4] == held_out.lengths[4] == 0
    assert (observed.lengths[5], held_out.lengths[5]) == (1, 0)
    assert (held_out.lengths[n > 1] > 0).all()


def test_equal_seeds_give_equal_hold_outs(corpus):
    first = corpus.hold_out_words(seed=1).observed_counts
    np.testing.assert_array_equal(first, corpus.hold_out_words(seed=1).observed_counts)
    assert (first != corpus.hold_out_words(seed=2).observed_counts).any()


# False-failure rate of each comparison below, for any seed. There are fewer than 100.
RATE = 1e-8


def multivariate_moments(document: np.ndarray, drawn: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the multivariate hypergeometric distribution."""
    total = document.sum()
    shares = document / total
    scale = drawn * (total - drawn) / (total - 1)
    return drawn * shares, scale * (np.diag(shares) - np.outer(shares, shares))


def check_moments(x: np.ndarray, document: np.ndarray, drawn: int) -> None:
    """z-tests of the mean of every entry, and of the covariance of every pair, of draws x."""
    mean, covariance = multivariate_moments(document, drawn)
    centred = x - mean
    bound = norm.isf(RATE / 2) / np.sqrt(len(x))
    assert (np.abs(centred.mean(0)) < bound * np.sqrt(np.diag(covariance))).all()
    products = centred[:, :, None] * centred[:, None, :]
    # The square of a lone token's deviation is always 1/4.
    error = np.abs(products.mean(0) - covariance)
    assert (error <= bound * products.std(0) + 1e-9 * np.abs(covariance)).all()


@pytest.mark.stat
@pytest.mark.parametrize(
    ("document", "fraction"),
    [
        ([7, 5, 1, 3], 0.5),
        ([1] * 7, 0.3),
        ([40, 1, 2, 9, 9, 3], 0.9),
        ([499_999_999, 3, 499_999_997], 0.5),
    ],
)
def test_hold_out_draws_have_hypergeometric_moments(document, fraction):
    document = np.array(document)
    copies = 20_000 if document.sum() < 10**6 else 2_000
    corpus = Corpus.from_matrix(np.tile(document, (copies, 1)))
    drawn = corpus.hold_out_words(fraction).observed_counts.reshape(copies, -1)
    check_moments(drawn.astype(float), document, round(fraction * int(document.sum())))


def test_neighbouring_documents_are_drawn_independently():
    # Correlation of 20,000 independent pairs: |z| beyond 5 has a rate of 6e-7.
    corpus = Corpus.from_matrix(np.full((40_000, 2), 4))
    first = corpus.hold_out_words().observed_counts[::2].reshape(-1, 2).astype(float)
    assert abs(np.corrcoef(first.T)[0, 1]) * np.sqrt(len(first)) < 5


# ------------------------------------------------------------------ saving


def test_a_saved_split_is_read_back_unchanged(corpus, tmp_path):
    split = corpus.split(0.3, seed=7)
    split.save(tmp_path / "split.npz")
    back = load_split(str(tmp_path / "split.npz"), make_corpus())
    np.testing.assert_array_equal(back.train_index, split.train_index)
    np.testing.assert_array_equal(back.test_index, split.test_index)
    assert back.test.fingerprint() == split.test.fingerprint()
    assert [p.name for p in tmp_path.iterdir()] == ["split.npz"]


def test_a_split_of_another_corpus_is_refused(corpus, tmp_path):
    corpus.split().save(tmp_path / "split.npz")
    with pytest.raises(CorpusError, match=r"split\.npz: made from another corpus"):
        load_split(tmp_path / "split.npz", make_corpus(seed=1))


# ------------------------------------------------------------------ fingerprints


def test_a_fingerprint_depends_on_documents_and_observed_tokens(corpus):
    hold_out = corpus.hold_out_words(seed=1)
    found = hold_out.fingerprint()
    assert corpus.hold_out_words(seed=1).fingerprint() == found
    others = [corpus.hold_out_words(seed=2), corpus[1:].hold_out_words(seed=1)]
    assert len({found, *(other.fingerprint() for other in others)}) == 3
