"""A cache language model for held-out tokens: topics mixed with the document's observed words.

Words repeat within a document more often than they would if drawn independently from topics.
Suppose, then, that each document draws its own distribution over words from Dirichlet(a q), around
the topics' q = Σ_k theta_k φ_k. The probability that its next token is w is now

    (c_w + a q_w) / (N + a)

where c counts its N observed tokens (*Doyle & Elkan 2009, Accounting for burstiness in topic
models*). With an infinite a, only the topics are left.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.kernels.chains import SparseWords
from torch_lntm.kernels.contraction import document_sums, sampled_product, sum_over_words
from torch_lntm.kernels.mixture import probability_floor
from torch_lntm.models import TopicModel

#: The weight a; ``"model"`` for the model's own weight; None for the topics alone.
CacheWeight: TypeAlias = "float | Literal['model'] | None"


class CacheWords(SparseWords):
    """Held-out tokens under a cache language model: topics and observed words of each document.

    Args:
        topics: ``(num_topics, num_words)`` float64 word probabilities.
        batch: The held-out tokens, float64.
        observed: ``(nnz,)`` float64 c, observed counts of the words of ``batch``.
        lengths: ``(num_docs,)`` float64 N, observed tokens.
        weight: The weight a, in tokens.
    """

    def __init__(
        self,
        topics: Tensor,
        batch: DocumentBatch,
        observed: Tensor,
        lengths: Tensor,
        weight: float,
    ) -> None:
        super().__init__(topics, batch)
        # p = (q + c / a) a / (N + a) for the topics' probability q.
        self._cache = observed / weight
        self._log_factor = batch.lengths * (weight / (lengths + weight)).log()
        self._words = topics.mT.contiguous()

    def _mixture(self, theta: Tensor) -> tuple[Tensor, Tensor, DocumentBatch]:
        """Σ_k theta_k φ_kv + c_v / a, theta and documents, with a row per chain and document."""
        flat, num_chains = theta.reshape(-1, theta.shape[-1]), theta.shape[:-2].numel()
        rows = self.rows(num_chains)
        s = sampled_product(flat, self._words, rows) + self._cache.repeat(num_chains)
        return s.clamp_min(probability_floor(s.dtype)), flat, rows

    def log_likelihood(self, theta: Tensor) -> Tensor:
        """Sum of log probabilities of the held-out tokens ``(..., num_docs)``."""
        s, _, rows = self._mixture(theta)
        sums = document_sums(rows.counts * s.log(), rows)
        return sums.view(theta.shape[:-1]) + self._log_factor

    def expected_topic_counts(self, theta: Tensor) -> Tensor:
        """Expected held-out tokens of each topic, cache excluded: theta times the gradient."""
        s, flat, rows = self._mixture(theta)
        return (flat * sum_over_words(rows.counts / s, self._words, rows)).view_as(theta)

    def expected_counts(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """:meth:`log_likelihood` and :meth:`expected_topic_counts` together."""
        return self.log_likelihood(theta), self.expected_topic_counts(theta)


def held_out_words(
    model: TopicModel, seen: DocumentBatch, unseen: DocumentBatch, cache_weight: float | None
) -> SparseWords:
    """Held-out tokens as an object that scores any theta.

    Args:
        model: The model.
        seen: Observed tokens of the documents.
        unseen: Held-out tokens of the same documents, float64.
        cache_weight: The weight a; None for the topics alone.
    """
    batch = model.topics.assign_levels(unseen)
    topics = model.topics.double_probs
    if cache_weight is None:
        return SparseWords(topics, batch, model.words.for_single_tokens())
    observed = counts_at(seen, unseen).double()
    return CacheWords(topics, batch, observed, seen.lengths.double(), cache_weight)


def counts_at(batch: DocumentBatch, other: DocumentBatch) -> Tensor:
    """Counts ``(nnz of other,)`` in one batch of the words that another batch stores.

    Args:
        batch: Tokens of documents. Words without a token here count 0.
        other: Other tokens of the same documents, in the same order.
    """
    if batch.nnz == 0:
        return batch.counts.new_zeros(other.nnz)
    keys, other_keys = (
        part.row_index.long() * batch.num_words + part.word_index.long() for part in (batch, other)
    )
    keys, order = keys.sort()
    position = torch.searchsorted(keys, other_keys).clamp_max(batch.nnz - 1)
    return torch.where(keys[position] == other_keys, batch.counts[order[position]], 0.0)


def resolve_cache_weight(model: TopicModel, cache_weight: Any) -> float | None:
    """The weight a as a number, or None for the topics alone.

    Args:
        model: The model.
        cache_weight: The caller's argument. ``"model"`` means the concentration of a bursty model,
            and None for other models.

    Raises:
        ConfigError: A number is negative, 0, infinite or NaN, or the argument has another type.
    """
    if cache_weight is None:
        return None
    if cache_weight == "model":
        return model.words.cache_weight
    number = isinstance(cache_weight, Real) and not isinstance(cache_weight, bool)
    if not (number and 0 < cache_weight < math.inf):
        raise ConfigError(
            f"cache_weight is {cache_weight!r}; expected a positive number of tokens, None for the "
            "topics alone, or 'model'"
        )
    return float(cache_weight)
