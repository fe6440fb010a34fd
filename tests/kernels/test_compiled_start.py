"""Compiled steps and mergers of a start against PyTorch's operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.kernels import without_fused_kernels
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.inference.em import merging, start
from torch_lntm.inference.em.checkpoint import FitState
from torch_lntm.inference.em.distributed import Processes
from torch_lntm.inference.em.documents import DocumentShard
from torch_lntm.inference.em.start import RunningTopics, Start
from torch_lntm.kernels import threads
from torch_lntm.models import ctm

NUM_WORDS = 83


def make_corpus(rate: float) -> Corpus:
    """Documents of very different lengths, one of them empty, and a word that no document has."""
    rng = np.random.default_rng(0)
    rates = rate * rng.gamma(1.0, size=(150, 1))
    counts = rng.poisson(rates * rng.gamma(0.3, size=(150, NUM_WORDS)))
    counts[0], counts[4] = 3, 0
    counts[:, 7] = 0
    return Corpus.from_matrix(counts)


def started(corpus: Corpus, num_topics: int, dtype: str, **options: Any) -> tuple[Any, ...]:
    """Objectives, topics and means of documents after a start, and numbers of its last step."""
    model = ctm(num_topics, NUM_WORDS, seed=0, dtype=dtype, **options)
    shard = DocumentShard(model, corpus, Processes(alone=True))
    first = Start(model, shard, name="lda", epochs=7, seed=1)
    first.step_docs = 40
    state = FitState(shard.table)
    with torch.no_grad():
        objectives = torch.tensor(list(first.run(state, progress=False)))
    assert bool(first.mergers) == (corpus.num_tokens > 6000 and not options)
    topics = model.topics.probs.detach()
    return objectives, topics, shard.table.tensors["means"], state.word_counts


# One topic; numbers of topics besides multiples of the padding; short documents; keywords, whose
# topics exclude the others'.
@pytest.mark.parametrize(
    ("num_topics", "rate", "keywords"),
    [(1, 2.0, None), (7, 2.0, None), (16, 0.3, None), (5, 2.0, {"a": [3, 7, 11], "b": [50]})],
)
def test_a_start_equals_pytorchs(num_topics, rate, keywords, numba, monkeypatch) -> None:
    options = {} if keywords is None else {"keywords": keywords}
    corpus = make_corpus(rate)
    calls = []
    lda_counts = start._lda_counts
    monkeypatch.setattr(start, "_lda_counts", lambda *x: calls.append(1) or lda_counts(*x))
    compiled = started(corpus, num_topics, "float64", **options)
    # The first step alone is PyTorch's.
    assert len(calls) == 1
    without_fused_kernels(monkeypatch)
    expected = started(corpus, num_topics, "float64", **options)
    assert len(calls) == 1 + 7 * 4
    for got, other in zip(compiled, expected, strict=True):
        torch.testing.assert_close(got, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("keywords", [None, {"a": [3, 7, 11], "b": [50]}])
def test_a_start_has_the_same_bits_for_every_number_of_threads(keywords, numba, monkeypatch):
    monkeypatch.setattr(threads, "LEAST_EFFORT", 1)
    options = {} if keywords is None else {"keywords": keywords}
    found = []
    for number in (1, 2, 3):
        monkeypatch.setattr(threads, "_chosen", number)
        found.append(started(make_corpus(2.0), 5, "float32", **options))
    for others in found[1:]:
        for got, expected in zip(others, found[0], strict=True):
            assert torch.equal(got, expected)


def test_steps_keep_a_small_scale_apart(numba, monkeypatch) -> None:
    """After so many steps that the scale has underflowed several times."""
    corpus = make_corpus(1.0)
    batch = corpus.batch(range(60), dtype=torch.float64)
    words = batch.words
    part = batch.over(words)
    rng = np.random.default_rng(2)
    counts = torch.from_numpy(rng.gamma(1.0, size=(NUM_WORDS, 3)))
    theta = torch.from_numpy(rng.dirichlet(np.ones(3), corpus.num_docs))

    def averages() -> tuple[Tensor, Tensor]:
        kept, table = counts.clone(), theta.clone()
        running = RunningTopics(kept.mT, 0.1)
        for _ in range(40):
            running.step_(words, part, table, 2, 0.2, 0.9, scale=3.0)
        running.apply_scale()
        return kept, table

    kept, table = averages()
    expected, proportions = counts.clone(), theta[:60].clone()
    without_fused_kernels(monkeypatch)
    for _ in range(40):
        topics = (expected + 0.1) / (expected + 0.1).sum(0)
        for _sweep in range(2):
            found = start.expected_counts(proportions, topics[words].mT, part, word_counts=True)
            proportions = start._updated(found.topic_counts, 0.2)
            assert found.word_counts is not None
        expected = 0.1 * expected
        expected[words] += 0.9 * 3.0 * found.word_counts.mT
    torch.testing.assert_close(kept, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(table[:60], proportions, rtol=1e-9, atol=1e-12)
    assert torch.equal(table[60:], theta[60:])


def test_steps_refuse_other_words_and_other_documents(numba) -> None:
    batch = make_corpus(1.0).batch(dtype=torch.float64)
    running = RunningTopics(torch.ones(NUM_WORDS, 3, dtype=torch.float64).mT, 0.1)
    settings = 1, 0.1, 0.5
    with pytest.raises(ConfigError, match=f"over {NUM_WORDS} words given to topics over 5"):
        running.step_(torch.arange(5), batch, torch.ones(150, 3), *settings, scale=1.0)
    with pytest.raises(ConfigError, match="proportions of shape"):
        running.step_(torch.arange(NUM_WORDS), batch, torch.ones(149, 3), *settings, scale=1.0)


# Without tokens all mergers are equally good, so only the losses are compared.
@pytest.mark.parametrize(("empty", "number"), [([], 8), ([4, 9], 0)])
def test_mergers_equal_numpys(empty, number, numba, monkeypatch) -> None:
    rng = np.random.default_rng(3)
    words, documents = rng.gamma(0.1, size=(20, 51)), rng.gamma(0.2, size=(33, 20))
    words[:5, :20], words[5:, 20:] = 0, 0
    words[empty], documents[:, empty] = 0, 0

    def found() -> tuple[np.ndarray, np.ndarray]:
        merger = merging._Merger(words, documents)
        for _ in range(number):
            merger.merge()
        return merger.label, merger._loss

    labels, losses = found()
    without_fused_kernels(monkeypatch)
    expected_labels, expected_losses = found()
    np.testing.assert_array_equal(labels, expected_labels)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-9, atol=1e-9)
    assert len(set(labels)) == 20 - number
