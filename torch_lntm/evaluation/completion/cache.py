"""Held-out tokens of documents that repeat their own words.

Words repeat within documents more than independent draws from topics do: a word of the observed
tokens is likely among the others. If a document's words have a distribution of its own, drawn from
Dirichlet(a q) around the topics' q = Σ_k theta_k φ_k, then its next token is w with probability

    (c_w + a q_w) / (N + a)

with c the counts of its N observed tokens (*Doyle & Elkan 2009, Accounting for burstiness in topic
models*). An infinite a is the topics alone.
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.kernels import SparseWords, probability_floor
from torch_lntm.kernels.contraction import document_sums, sampled_product, sum_over_words
from torch_lntm.models import TopicModel

#: The weight a; ``"model"`` for what the model says; None for the topics alone.
CacheWeight: TypeAlias = "float | Literal['model'] | None"
#: Where the a that predicts best is looked for.
_SMALLEST, _LARGEST = 1e-2, 1e7


class CacheWords(SparseWords):
    """Held-out tokens under topics and the documents' own observed words.

    Args:
        topics: ``(num_topics, num_words)`` float64 word probabilities.
        batch: The held-out tokens, float64.
        own_counts: ``(nnz,)`` float64 c, observed counts of the words of ``batch``.
        lengths: ``(num_docs,)`` float64 N, observed tokens.
        topic_tokens: a.
    """

    def __init__(
        self,
        topics: Tensor,
        batch: DocumentBatch,
        own_counts: Tensor,
        lengths: Tensor,
        topic_tokens: float,
    ) -> None:
        super().__init__(topics, batch)
        # With s the topics' probability, p = (s + c / a) a / (N + a).
        self._own = own_counts / topic_tokens
        self._log_share = batch.lengths * (topic_tokens / (lengths + topic_tokens)).log()
        self._words = topics.mT.contiguous()

    def _mixture(self, theta: Tensor) -> tuple[Tensor, Tensor, DocumentBatch]:
        """Σ_k theta_k φ_kv + c_v / a, all chains in rows, and these rows of theta and documents."""
        flat, num_chains = theta.reshape(-1, theta.shape[-1]), theta.shape[:-2].numel()
        rows = self.rows(num_chains)
        s = sampled_product(flat, self._words, rows) + self._own.repeat(num_chains)
        return s.clamp_min(probability_floor(s.dtype)), flat, rows

    def log_likelihood(self, theta: Tensor) -> Tensor:
        """Log probability of the held-out tokens, each by itself ``(..., num_docs)``."""
        s, _, rows = self._mixture(theta)
        sums = document_sums(rows.counts * s.log(), rows)
        return sums.view(theta.shape[:-1]) + self._log_share

    def expected_topic_counts(self, theta: Tensor) -> Tensor:
        """Held-out tokens that each topic, not the document, explains: theta × the gradient."""
        s, flat, rows = self._mixture(theta)
        return (flat * sum_over_words(rows.counts / s, self._words, rows)).view_as(theta)

    def expected_counts(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`log_likelihood` and :meth:`expected_topic_counts`."""
        return self.log_likelihood(theta), self.expected_topic_counts(theta)


def held_out_words(
    model: TopicModel, seen: DocumentBatch, unseen: DocumentBatch, cache_weight: float | None
) -> SparseWords:
    """The held-out tokens of some documents, for scores at given theta.

    Args:
        model: The model.
        seen: Their observed tokens.
        unseen: Their held-out tokens, float64.
        cache_weight: a; None for the topics alone.
    """
    batch = model.topics.assign_groups(unseen)
    topics = model.topics.double_probs
    if cache_weight is None:
        return SparseWords(topics, batch, model.words.for_single_tokens())
    own = counts_at(seen, unseen).double()
    return CacheWords(topics, batch, own, seen.lengths.double(), cache_weight)


def counts_at(batch: DocumentBatch, other: DocumentBatch) -> Tensor:
    """Counts of one batch ``(nnz of other,)`` at the stored counts of another, 0 where it has none.

    Args:
        batch: Some tokens of documents.
        other: Other tokens of the same documents, in the same order.
    """
    if batch.nnz == 0:
        return batch.counts.new_zeros(other.nnz)
    keys, wanted = (
        each.row_index.long() * batch.num_words + each.word_index.long() for each in (batch, other)
    )
    keys, order = keys.sort()
    place = torch.searchsorted(keys, wanted).clamp_max(batch.nnz - 1)
    return torch.where(keys[place] == wanted, batch.counts[order[place]], 0.0)


def cache_description(cache_weight: float | None) -> str:
    """What a result's method says of the documents' own words."""
    return (
        "" if cache_weight is None else f", and the documents' own words (a = {cache_weight:.4g})"
    )


def resolve_cache_weight(model: TopicModel, cache_weight: Any) -> float | None:
    """The weight a as a number, or None for the topics alone.

    Args:
        model: The model.
        cache_weight: What the caller gave; ``"model"`` for the concentration of a bursty model, and
            for the topics alone of another.

    Raises:
        ConfigError: It is not a positive, finite number, nor one of these.
    """
    if cache_weight is None:
        return None
    if cache_weight == "model":
        return model.words.cache_weight
    number = isinstance(cache_weight, int | float | np.number) and not isinstance(
        cache_weight, bool
    )
    if not number or not 0 < cache_weight < math.inf:
        raise ConfigError(
            f"cache_weight is {cache_weight!r}; expected a positive number of tokens, such as "
            "evaluation.fit_cache_weight finds, None for the topics alone, or 'model'"
        )
    return float(cache_weight)


def cache_entries(
    model: TopicModel, theta: Tensor, seen: DocumentBatch, unseen: DocumentBatch
) -> Tensor:
    """What :func:`best_cache_weight` takes of some documents, ``(4, nnz)`` float64 on the CPU.

    Args:
        model: The model.
        theta: ``(num_docs, num_topics)`` float64.
        seen: Their observed tokens.
        unseen: Their held-out tokens, float64.
    """
    words = model.topics.double_probs.mT.contiguous()
    topics = sampled_product(theta, words, model.topics.assign_groups(unseen))
    lengths = seen.lengths.double()[unseen.row_index]
    own = counts_at(seen, unseen).double()
    return torch.stack([unseen.counts, topics, own, lengths]).cpu()


def best_cache_weight(held_out: Tensor) -> float:
    """The a under which held-out tokens are most probable, each by itself.

    Args:
        held_out: ``(4, num_entries)`` float64: their counts, the topics' probabilities q of their
            words, the counts c of these words among the observed, and the observed tokens N of
            their documents.
    """
    counts, topics, own, lengths = held_out.numpy()
    topics = topics.clip(probability_floor(torch.float64))

    def loss(log_a: float) -> float:
        a = math.exp(log_a)
        return -float(counts @ np.log((own + a * topics) / (lengths + a)))

    # A coarse search first: the loss need not have one minimum only.
    grid = np.linspace(math.log(_SMALLEST), math.log(_LARGEST), 43)
    best = int(np.argmin([loss(log_a) for log_a in grid]))
    around = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    return math.exp(minimize_scalar(loss, bounds=around, method="bounded").x)
