"""Starting values for variational EM: the start decides the optimum that EM ends in."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.inference.em.memory import DocumentTables
from torch_lntm.inference.em.processes import Processes
from torch_lntm.inference.em.statistics import Statistics, known
from torch_lntm.kernels import expected_counts, expected_topic_counts
from torch_lntm.models import TopicModel

#: Documents mixed into each starting topic, and the share of the corpus' word frequencies in it.
SEED_DOCUMENTS = 3
BACKGROUND_SHARE = 0.5
#: Dirichlet pseudo-tokens of all topics in a document, on the softmax scale, while starting: their
#: share of the mean document's tokens, the most of them, and the most for one topic.
PSEUDO_SHARE, MAX_PSEUDO_TOKENS, MAX_CONCENTRATION = 0.1, 5.0, 0.3
#: Tokens for every topic, and documents at least, that a stochastic step aims at.
STEP_TOKENS, MIN_STEP_DOCS = 240, 64
#: Documents of a stochastic step at most, and steps of an epoch at least.
MAX_STEP_DOCS, MIN_BATCHES = 1024, 8
#: Updates of theta per visit of a batch, the first time and later.
FIRST_SWEEPS, SWEEPS = 8, 2
#: Documents whose prior means are found at once.
MAX_FILLED_DOCS = 1024


def document_topics(
    corpus: Corpus, documents: NDArray[np.int64], num_topics: int, seed: int
) -> Tensor:
    """Topics from the words of a few random documents each, mixed with the corpus' frequencies.

    Args:
        corpus: The corpus.
        documents: Positions of its non-empty documents, in the order to choose from.
        num_topics: Number of topics.
        seed: Seed of the choice of documents.

    Returns:
        ``(num_topics, num_words)`` float64, all positive.
    """
    frequency = corpus.word_totals + 1.0
    frequency = frequency / frequency.sum()
    generator = np.random.default_rng(seed)
    per_topic = min(SEED_DOCUMENTS, len(documents))
    seeds = np.zeros((num_topics, corpus.num_words))
    for topic in seeds:
        chosen = documents[generator.choice(len(documents), per_topic, replace=False)]
        for document in chosen:
            entries = slice(corpus.row_offsets[document], corpus.row_offsets[document + 1])
            topic[corpus.word_index[entries]] += corpus.counts[entries]
    seeds = seeds / seeds.sum(1, keepdims=True)
    return torch.from_numpy(BACKGROUND_SHARE * frequency + (1 - BACKGROUND_SHARE) * seeds)


def start_concentration(num_topics: int, mean_length: float) -> float:
    """Pseudo-tokens of each topic in a document while starting.

    As many as suit long documents would leave short ones without topics of their own: their
    proportions, the prior that starts from these, and topics would all be alike.

    Args:
        num_topics: Number of topics.
        mean_length: Tokens of the average document.
    """
    pseudo_tokens = min(MAX_PSEUDO_TOKENS, PSEUDO_SHARE * mean_length)
    return min(MAX_CONCENTRATION, pseudo_tokens / num_topics)


def step_documents(num_docs: int, mean_length: float, num_topics: int) -> int:
    """Documents of a stochastic step: as few as tell enough of every topic.

    The noise of small steps is what finds good topics; steps of too few tokens lose the topics
    that are rare.

    Args:
        num_docs: Documents of the corpus.
        mean_length: Tokens of the average document.
        num_topics: Number of topics.
    """
    enough = max(MIN_STEP_DOCS, math.ceil(STEP_TOKENS * num_topics / mean_length))
    return min(enough, MAX_STEP_DOCS, math.ceil(num_docs / MIN_BATCHES))


@torch.no_grad()
def lda_epoch(
    model: TopicModel,
    batches: Iterable[DocumentBatch | None],
    documents: DocumentTables,
    word_counts: Tensor,
    num_tokens: float,
    updates: int,
    exponent: float,
    concentration: float,
    first: bool,
    processes: Processes,
) -> tuple[int, float]:
    """One pass of stepwise EM for the topics, with documents' theta at their mode.

    A cheap stand-in for the full model: theta has a symmetric Dirichlet prior, its mode (on the
    softmax scale) is the fixed point theta ∝ topic_counts + concentration, and the topics' counts
    are a running average over batches with step size (updates + 1)^−exponent (Cappé & Moulines
    2009). The noise of the steps acts as annealing: it ends in better topics than many more full
    sweeps.

    Args:
        model: Its topics are read and written.
        batches: All documents once, or this process's part of every batch, None if that is empty.
        documents: Their table ``theta`` ``(num_docs, num_topics)``, proportions, is overwritten.
        word_counts: ``(num_topics, num_words)`` running average, overwritten.
        num_tokens: Tokens of the corpus.
        updates: Steps taken before.
        exponent: Decay of the step size, in (0, 1].
        concentration: Pseudo-tokens of each topic in a document.
        first: This is the first pass, in which the documents' theta need more sweeps.
        processes: The processes that share the batches.

    Returns:
        The new number of steps, and the log likelihood met on the way, nats.
    """
    objective: float | Tensor = 0.0
    sweeps = FIRST_SWEEPS if first else SWEEPS
    for batch in batches:
        part = partial(_lda_statistics, model, batch, documents, sweeps, concentration)
        found = processes.add_up("lda", part, word_counts.dtype)
        objective += found.objective
        updates += 1
        step = float(updates) ** -exponent
        scale = num_tokens / found.num_tokens
        word_counts.mul_(1 - step).add_(found.word_counts, alpha=step * scale)
        model.topics.start_from_counts(word_counts)
    return updates, float(objective)


def _lda_statistics(
    model: TopicModel,
    batch: DocumentBatch | None,
    documents: DocumentTables,
    sweeps: int,
    concentration: float,
) -> Statistics | None:
    """Statistics of a batch's words under LDA, whose theta are read and written."""
    if batch is None:
        return None
    batch = model.check_batch(batch)
    topics = model.topics.probs
    weights = documents.read("theta", batch, topics.device).to(topics)
    for _ in range(sweeps - 1):
        weights = expected_topic_counts(weights, topics, batch) + concentration
        weights /= weights.sum(-1, keepdim=True)
    # The last update of theta and the words' counts come of one pass.
    found = expected_counts(weights, topics, batch, word_counts=True)
    assert found.word_counts is not None
    weights = found.topic_counts + concentration
    documents.write("theta", batch, weights / weights.sum(-1, keepdim=True))
    return Statistics(
        num_docs=float(batch.num_docs),
        num_tokens=batch.num_tokens,
        sums={},
        word_counts=found.word_counts,
        objective=known(found.log_likelihood.sum()),
        num_unconverged=0,
    )


def fill_prior_means(
    model: TopicModel, corpus: Corpus, rows: NDArray[np.int64], means: Tensor
) -> None:
    """Write the prior mean of some documents' latent variable into their rows of ``means``."""
    if not len(rows):
        return
    for batch in corpus.batches(MAX_FILLED_DOCS, order=rows, dtype=model.dtype):
        centre = model.prior.space(model.check_batch(batch)).centre
        means[batch.positions] = centre.expand(batch.num_docs, -1).to(means)
