"""Starting values for variational EM: the start decides the optimum that EM ends in."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.inference.em.memory import DocumentTables
from torch_lntm.inference.em.processes import Processes
from torch_lntm.inference.em.statistics import known
from torch_lntm.kernels import (
    ExpectedCounts,
    expected_counts,
    expected_topic_counts,
    probability_floor,
)
from torch_lntm.models import TopicModel

#: Documents mixed into each starting topic, and the share of the corpus' word frequencies in it.
SEED_DOCUMENTS = 3
BACKGROUND_SHARE = 0.5
#: Dirichlet pseudo-tokens of all topics in a document, on the softmax scale, while starting: their
#: share of the mean document's tokens, the most of them, and the most for one topic.
PSEUDO_SHARE, MAX_PSEUDO_TOKENS, MAX_CONCENTRATION = 0.1, 5.0, 0.3
#: Updates of theta per visit of a batch, the first time and later.
FIRST_SWEEPS, SWEEPS = 8, 2
#: The number that all words' counts are to be multiplied by, at which it is.
MIN_SCALE = 1e-12
#: Steps between which processes tell each other that all goes well, or of Ctrl-C.
STEPS_TOGETHER = 64
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


class RunningTopics:
    """Topics from a running average of word counts, whose updates touch a batch's words alone.

    An update multiplies the counts of all words by one number, which is kept apart, and adds to
    those of the batch's words: it takes no longer for a large vocabulary.

    Args:
        word_counts: ``(num_topics, num_words)`` the average, stored word by word. It is overwritten
            and holds the average again after :meth:`settle`.
        smoothing: Pseudo-counts of every word in every topic.
    """

    def __init__(self, word_counts: Tensor, smoothing: float) -> None:
        self._rows, self._scale = word_counts.mT, 1.0
        self._totals = self._rows.sum(0, dtype=torch.float64)
        self._smoothing = smoothing

    def probs(self, words: Tensor) -> Tensor:
        """Probabilities ``(num_topics, n)`` of the words ``(n,)`` at some positions."""
        dtype = self._rows.dtype
        totals = self._totals + self._smoothing * len(self._rows)
        counts = self._rows.index_select(0, words).mul_(self._scale).add_(self._smoothing)
        probs = counts.div_(totals.clamp_min(torch.finfo(dtype).tiny).to(dtype))
        return probs.clamp_min_(probability_floor(dtype)).mT

    def blend_(self, words: Tensor, found: Tensor, weight: float, scale: float) -> None:
        """Let the average become (1 − weight) × itself + weight × scale × ``found``.

        Args:
            words: ``(n,)`` positions of words, each once.
            found: ``(num_topics, n)`` their counts; those of other words are 0.
            weight: Weight of ``found``.
            scale: What to multiply it by.
        """
        rows = found.mT
        totals = rows.sum(0, dtype=torch.float64)
        self._totals = (1 - weight) * self._totals + weight * scale * totals
        self._scale *= 1 - weight
        if self._scale < MIN_SCALE:
            self.settle()
        at = words.unsqueeze(1).expand_as(rows)
        self._rows.scatter_add_(0, at, rows * (weight * scale / self._scale))

    def settle(self) -> None:
        """Write the average itself into the tensor that was given."""
        self._rows.mul_(self._scale)
        self._scale = 1.0


@torch.no_grad()
def lda_epoch(
    model: TopicModel,
    steps: Iterable[tuple[Tensor, DocumentBatch]],
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

    Steps are so small that several processes would take longer to add up their parts than one takes
    for all. So each of them makes every step itself.

    Args:
        model: Its topics are written, at the end of the epoch.
        steps: All documents once, in batches over some words alone, with the positions of these
            words.
        documents: Their table ``theta`` ``(num_docs, num_topics)``, proportions, is overwritten.
        word_counts: ``(num_topics, num_words)`` running average, stored word by word, overwritten.
        num_tokens: Tokens of the corpus.
        updates: Steps taken before.
        exponent: Decay of the step size, in (0, 1].
        concentration: Pseudo-tokens of each topic in a document.
        first: This is the first pass, in which the documents' theta need more sweeps.
        processes: The processes of the fit, which go on with the first one's counts.

    Returns:
        The new number of steps, and the log likelihood met on the way, nats.
    """
    objective: float | Tensor = 0.0
    sweeps = FIRST_SWEEPS if first else SWEEPS
    running = RunningTopics(word_counts, model.topics.start_smoothing)
    remaining, last = iter(steps), updates - STEPS_TOGETHER
    while updates == last + STEPS_TOGETHER:
        last = updates
        with processes.same():
            for words, batch in islice(remaining, STEPS_TOGETHER):
                processes.poll()
                found = _lda_counts(running.probs(words), batch, documents, sweeps, concentration)
                assert found.word_counts is not None
                objective += known(found.log_likelihood.sum())
                updates += 1
                scale = num_tokens / batch.num_tokens
                running.blend_(words, found.word_counts, float(updates) ** -exponent, scale)
    running.settle()
    # Other machines may have rounded otherwise.
    processes.share({"word_counts": word_counts})
    model.topics.start_from_counts(word_counts)
    [objective] = processes.of_first(float(objective))
    return updates, objective


def _lda_counts(
    topics: Tensor,
    batch: DocumentBatch,
    documents: DocumentTables,
    sweeps: int,
    concentration: float,
) -> ExpectedCounts:
    """Expected counts of a batch's words under LDA, whose theta are read and written."""
    weights = documents.read("theta", batch).to(topics)
    for _ in range(sweeps - 1):
        weights = expected_topic_counts(weights, topics, batch) + concentration
        weights /= weights.sum(-1, keepdim=True)
    # The last update of theta and the words' counts come of one pass.
    found = expected_counts(weights, topics, batch, word_counts=True)
    weights = found.topic_counts + concentration
    documents.write("theta", batch, weights / weights.sum(-1, keepdim=True))
    return found


def fill_prior_means(
    model: TopicModel, corpus: Corpus, rows: NDArray[np.int64], means: Tensor
) -> None:
    """Write the prior mean of some documents' latent variable into their rows of ``means``."""
    if not len(rows):
        return
    for batch in corpus.batches(MAX_FILLED_DOCS, order=rows, dtype=model.dtype):
        centre = model.prior.space(model.check_batch(batch)).centre
        means[batch.positions] = centre.expand(batch.num_docs, -1).to(means)
