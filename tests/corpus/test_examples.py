"""Corpora and topics to try things on."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import torch

import torch_lntm as lntm
from torch_lntm.corpus import example_corpus, examples, lee_corpus, synthetic_topics
from torch_lntm.corpus.examples import example_file
from torch_lntm.errors import CorpusError


def test_lee_corpus(lee):
    assert lee.num_docs == 300
    assert lee.name == "lee_background"
    assert 1_000 < lee.num_words < 5_000
    documents = np.bincount(lee.word_index, minlength=lee.num_words)
    assert documents.min() >= 3
    assert documents.max() <= 150
    assert {"australian", "israeli", "palestinian"} <= set(lee.vocabulary)
    assert "the" not in lee.vocabulary
    assert all(word.isalpha() and len(word) >= 3 for word in lee.vocabulary)


def test_lee_corpus_without_gensim_advises_to_install_it(monkeypatch):
    monkeypatch.setattr(examples, "find_spec", lambda name: None)
    with pytest.raises(CorpusError, match=r"torch-lntm\[demo\]"):
        lee_corpus()


def test_the_example_corpus_has_short_texts_and_columns():
    corpus = example_corpus()
    assert 60 <= corpus.num_docs <= 90
    texts = [json.loads(line)["text"] for line in example_file().read_text().splitlines()]
    assert all(30 <= len(text.split()) <= 60 for text in texts)
    assert len(set(texts)) == len(texts)
    themes, sizes = np.unique(corpus.metadata["theme"], return_counts=True)
    assert list(themes) == ["football", "garden", "kitchen", "music", "sea", "stars"]
    assert sizes.min() >= 12
    assert set(corpus.metadata["season"]) == {"spring", "summer", "autumn", "winter"}
    assert (corpus.lengths > 0).all()
    assert example_corpus(stop_words=None, max_df=1.0).num_words > corpus.num_words


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_topics_of_the_example_corpus_are_its_themes(seed):
    corpus = example_corpus()
    model = lntm.models.ctm(6, corpus.num_words, vocabulary=corpus.vocabulary, seed=seed)
    guide = lntm.guides.TaylorGuide(model)
    lntm.inference.VariationalEM(model, guide, seed=seed, progress=False).fit(corpus)
    largest = guide.posterior(corpus.batch()).theta_mode().argmax(1).numpy()
    themes = corpus.metadata["theme"]
    right = sum(Counter(themes[largest == k]).most_common(1)[0][1] for k in set(largest))
    assert right >= 0.95 * len(corpus)


@pytest.mark.slow
@pytest.mark.parametrize("concentration", [1e-3, 0.1, 5.0])
def test_synthetic_topics(concentration):
    topics = synthetic_topics(7, 50, concentration)
    assert topics.shape == (7, 50)
    assert topics.dtype == torch.float64
    assert (topics > 0).all()
    assert topics.float().log().isfinite().all()
    torch.testing.assert_close(topics.sum(1), torch.ones(7, dtype=torch.float64))


def test_synthetic_topics_have_dirichlet_moments():
    # var = (1/V)(1 - 1/V) / (V a + 1); the mean of 40,000 squares has a relative error under 1 %.
    topics = synthetic_topics(4_000, 10, 0.5)
    assert topics.var().item() == pytest.approx(0.1 * 0.9 / 6, rel=0.05)
