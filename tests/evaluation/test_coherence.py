"""Coherence against a count of all pairs and against gensim, and topic diversity."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import coherence, topic_diversity


def brute_force(words: list[int], corpus: Corpus, measure: str, smoothing: float = 1.0) -> float:
    """The mean over pairs, with sets of documents."""
    counts = corpus.to_scipy().toarray()
    holders = {w: {d for d in range(len(counts)) if counts[d, w]} for w in words}
    num_docs = sum(1 for row in counts if row.any())
    values = []
    for u, v in itertools.combinations(words, 2):
        both = len(holders[u] & holders[v])
        if measure == "umass":
            values.append(math.log((both + smoothing) / (len(holders[u]) or num_docs)))
        elif both == 0:
            values.append(-1.0)
        elif both == num_docs:
            values.append(1.0)
        else:
            p = both / num_docs
            independent = len(holders[u]) * len(holders[v]) / num_docs**2
            values.append(math.log(p / independent) / -math.log(p))
    return sum(values) / len(values)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    counts = np.random.default_rng(0).poisson(0.4, size=(60, 25))
    counts[:, 3] = 0  # a word of no document
    counts[10] = 0  # an empty document
    counts[:, 4] += counts.any(1)  # two words of every document that has any
    counts[:, 5] += counts.any(1)
    return Corpus.from_matrix(counts, vocabulary=[f"w{v}" for v in range(25)])


@pytest.mark.parametrize("measure", ["npmi", "umass"])
def test_coherence_equals_a_count_of_all_pairs(corpus: Corpus, measure: str) -> None:
    weights = torch.rand(8, 25, generator=torch.Generator().manual_seed(0))
    weights[0, [3, 4, 5]] = 2.0
    values = coherence(weights, corpus, measure, top_n=7)
    assert values.dtype == torch.float64
    for value, row in zip(values, weights, strict=True):
        words = row.argsort(descending=True, stable=True)[:7].tolist()
        assert float(value) == pytest.approx(brute_force(words, corpus, measure))


def test_npmi_is_one_for_pairs_always_together_and_minus_one_for_pairs_never_together() -> None:
    corpus = Corpus.from_matrix([[1, 1, 0, 1, 0], [2, 1, 0, 1, 0], [0, 0, 1, 1, 0]])
    pairs = [[0, 1], [0, 2], [0, 3], [0, 4], [4, 3]]
    values = coherence(pairs, corpus, "npmi", top_n=2)
    # Always together; never; with a word of every document, which says nothing; absent words.
    torch.testing.assert_close(values, torch.tensor([1.0, -1.0, 0.0, -1.0, -1.0]).double())


def test_umass_of_absent_words_is_the_smallest_value() -> None:
    corpus = Corpus.from_matrix([[1, 1, 0, 0], [2, 0, 0, 0], [1, 0, 0, 0]])
    values = coherence([[0, 1], [1, 0], [0, 2], [2, 0], [2, 3]], corpus, "umass", top_n=2)
    expected = torch.log(torch.tensor([2 / 3, 2.0, 1 / 3, 1 / 3, 1 / 3]).double())
    torch.testing.assert_close(values, expected)
    assert bool((values >= math.log(1 / 3)).all())


def test_umass_equals_gensims(lee: Corpus) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = pytest.importorskip("gensim.models")
        dictionary = pytest.importorskip("gensim.corpora").Dictionary([list(lee.vocabulary)])
    rng = np.random.default_rng(0)
    frequent = np.argsort(-np.bincount(lee.word_index))[:200]
    words = [[lee.vocabulary[v] for v in rng.choice(frequent, 10, replace=False)] for _ in range(5)]
    rows = lee.to_scipy()
    bags = []
    for d in range(lee.num_docs):
        row = rows[d]
        pairs = zip(row.indices, row.data, strict=True)
        bags.append([(dictionary.token2id[lee.vocabulary[v]], int(c)) for v, c in pairs])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = models.CoherenceModel(
            topics=words, corpus=bags, dictionary=dictionary, coherence="u_mass", topn=10
        ).get_coherence_per_topic()
    # gensim adds 1e-12 to the probability where Mimno et al. add 1 to the count.
    ours = coherence(words, lee, "umass", smoothing=1e-12 * lee.num_docs)
    np.testing.assert_allclose(ours, peer, rtol=1e-9)


def test_coherent_topics_score_higher(lee: Corpus) -> None:
    together = ["israeli", "palestinian", "gaza", "arafat", "hamas"]
    apart = ["israeli", "cricket", "christmas", "union", "qantas"]
    for measure in ("npmi", "umass"):
        values = coherence([together, apart], lee, measure)
        assert float(values[0]) > float(values[1]) + 0.3


def test_topic_diversity_is_the_share_of_distinct_top_words() -> None:
    assert topic_diversity(torch.eye(4), top_n=1) == 1.0
    assert topic_diversity(torch.ones(4, 10), top_n=5) == 0.25
    assert topic_diversity([["a", "b"], ["b", "c"]]) == 0.75
    assert topic_diversity([[0, 1, 2], [2, 3, 4]], top_n=2) == 1.0


@pytest.mark.parametrize(
    ("topics", "options", "message"),
    [
        (torch.ones(2, 25), {"measure": "c_v"}, "measure is 'c_v'; expected one of npmi, umass"),
        (torch.ones(2, 25), {"top_n": 1}, "top_n is 1"),
        (torch.ones(2, 25), {"smoothing": 0.0}, "smoothing is 0.0"),
        (torch.ones(2, 24), {}, "topics over 24 words and a corpus over 25"),
        (torch.ones(25), {}, r"topics of shape \(25,\)"),
        (torch.full((2, 25), math.nan), {}, "finite"),
        ([[1, 25]], {}, "topic 0 has the word 25, which is not in"),
        ([[1, 1]], {}, "topic 0 is .* or has a word twice"),
        (pd.DataFrame(np.ones((2, 25))), {}, r"(?s)topics is .*; expected a model, a floating"),
        ([(0, [("w1", 0.5), ("w2", 0.3)])], {}, "topic 0 is .*; expected .* different words or po"),
        ([("w1", 5), ("w2", 3)], {}, r"topic 0 is \('w1', 5\), or"),
        (["w1 w2"], {}, "topic 0 is 'w1 w2', or"),
        (None, {}, "topics is None; expected"),
        ([["w1", "w99"]], {}, "'w99', which is not in the vocabulary"),
        ([[0.5, 0.5]], {}, "different words or positions of words"),
        ([[]], {}, "non-empty"),
    ],
)
def test_invalid_arguments_are_refused(corpus: Corpus, topics, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        coherence(topics, corpus, **options)


def test_words_need_a_vocabulary() -> None:
    with pytest.raises(ConfigError, match="not in the vocabulary"):
        coherence([["a", "b"]], Corpus.from_matrix([[1, 1]]))
    with pytest.raises(ConfigError, match="top_n is 0"):
        topic_diversity([[1]], top_n=0)
