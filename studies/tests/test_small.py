"""The study of small corpora: thinned corpora, and the two rules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from studies.__main__ import load
from studies.benchmarks.small import thinned
from studies.measure import measure
from torch_lntm.corpus import Corpus
from torch_lntm.inference.em import monte_carlo


def corpus_of(num_docs: int, seed: int) -> Corpus:
    rng = np.random.default_rng(seed)
    return Corpus.from_matrix(rng.multinomial(20, rng.dirichlet(np.full(200, 0.3)), num_docs))


@pytest.mark.parametrize("tokens", [2, 10, 30])
def test_a_thinned_corpus_has_the_asked_tokens_for_each_of_its_words(tokens: int) -> None:
    train, test = corpus_of(1000, 0), corpus_of(30, 1)
    fewer, scored = thinned(train, test, tokens, seed=3)
    density = fewer.num_tokens / fewer.num_words
    assert tokens <= density < tokens + 1.0
    counts = fewer.to_scipy()
    assert (np.asarray(counts.sum(0)) > 0).all()
    assert scored.num_words == fewer.num_words
    assert len(scored) == 30
    assert scored.num_tokens <= test.num_tokens
    # Larger numbers add documents to the smaller ones.
    more, _ = thinned(train, test, tokens + 5, seed=3)
    assert len(more) > len(fewer)
    totals = np.sort(np.asarray(more.to_scipy()[: len(fewer)].sum(0)).ravel())
    np.testing.assert_array_equal(totals[totals > 0], np.sort(np.asarray(counts.sum(0)).ravel()))


def test_a_corpus_with_too_few_tokens_stays_whole() -> None:
    train, test = corpus_of(20, 0), corpus_of(5, 1)
    assert len(thinned(train, test, 1000, seed=0)[0]) == 20


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_two_fits_differ_in_their_epochs_only(tmp_path: Path) -> None:
    study, limit = load("small"), monte_carlo.WORD_TOKENS
    settings = study.settings(
        corpora=("simulated, 10 tokens",), tokens_per_word=(2,), num_topics=3, seeds=(7,),
        max_test_docs=20, tolerance=0.05,
    )  # fmt: skip
    (pair,) = measure("small", study, settings, tmp_path, progress=False)
    assert limit == monte_carlo.WORD_TOKENS
    assert pair.epochs[0] == 20 <= pair.epochs[1]
    assert pair.gain == pytest.approx(pair.nats[1] - pair.nats[0])
    assert 2.0 <= pair.density < 2.5
