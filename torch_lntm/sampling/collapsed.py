"""Collapsed Gibbs sampling of the topics of every token, with theta integrated out.

Given the topics of the document's other tokens, the topic of token i has

    p(z_i = k | others) ∝ (α_k + n_k) φ_kw,        n_k the other tokens of topic k

(*Griffiths & Steyvers 2004, eq. 5*, with fixed topics). Tokens of a document are drawn in turn,
while documents and chains move together. The time is proportional to the number of tokens, so the
sampler is slow for huge counts.

Because noise is a function of the keys of :mod:`torch_lntm.noise`, a document's draws do not depend
on its batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.corpus.batch import DocumentBatch

#: Floor of φ_kw in draws of the tokens' topics, which keeps their weights positive.
_SMALLEST_PHI = 1e-45
#: Numbers folded into a key for the start and for the sweeps.
_START, _SWEEPS = 0, 1


class CollapsedGibbs:
    """Chains of the tokens' topics, for the documents of a batch.

    A chain draws its first topics given proportions from a uniform distribution, which is wider
    than the posterior.

    Memory is a few times ``num_docs × num_chains × num_topics`` numbers, plus ``num_tokens ×
    num_chains`` numbers.

    Args:
        batch: Documents of whole counts.
        topics: ``(num_topics, num_words)``.
        concentration: ``(num_topics,)`` α.
        num_chains: Chains of each document.
        seed: Seed of all noise.
    """

    def __init__(
        self,
        batch: DocumentBatch,
        topics: Tensor,
        concentration: Tensor,
        *,
        num_chains: int,
        seed: int = 0,
    ) -> None:
        self._alpha = concentration.double()
        self._phi = topics.double().mT.clamp_min(_SMALLEST_PHI).contiguous()
        counts = batch.counts.round().long()
        lengths = counts.new_zeros(batch.num_docs).index_add_(0, batch.row_index, counts)
        # Documents are in descending order of length, so those with an i-th token are a slice.
        self._order = lengths.argsort(descending=True, stable=True)
        self._rank = self._order.argsort()
        row, word = (part.repeat_interleave(counts) for part in (batch.row_index, batch.word_index))
        position = torch.arange(len(row), device=row.device) - (lengths.cumsum(0) - lengths)[row]
        by_position = (position * batch.num_docs + self._rank[row]).argsort()
        self._word, self._position = word[by_position], position[by_position]
        self._row = self._rank[row][by_position]
        self._sizes = torch.bincount(position).tolist()
        shape = (batch.num_docs, num_chains, len(self._alpha))
        self._counts = self._alpha.new_zeros(shape)
        self._keys = noise.document_keys(seed, batch.index[self._order], num_chains).mT
        self._total = self._alpha.sum() + lengths.double()[:, None]
        self._num_sweeps = 0
        start = noise.fold_in(self._keys, _START)
        uniform = -noise.uniform(noise.fold_in(start, 0), shape[2]).log()
        self._topics: dict[int, Tensor] = {}
        self._pass(noise.fold_in(start, 1), uniform)

    def sweep(self) -> Tensor:
        """Draw the topic of every token once.

        Returns:
            ``(num_chains, num_docs, num_topics)`` float64, (α_k + Σ_i p(z_i = k | others)) / Σ. The
            mean over sweeps estimates the posterior mean of theta, with the drawn topics replaced
            by their probabilities.
        """
        self._num_sweeps += 1
        key = noise.fold_in(noise.fold_in(self._keys, _SWEEPS), self._num_sweeps)
        expected = self._pass(key, None) + self._alpha
        return (expected[self._rank].transpose(0, 1) / self._total.mT[..., None]).contiguous()

    def _pass(self, key: Tensor, proportions: Tensor | None) -> Tensor:
        """Draw all topics, and sum their probabilities over the tokens of each document.

        Args:
            key: ``(num_docs, num_chains)``.
            proportions: ``(num_docs, num_chains, num_topics)`` weights of the topics, for the
                start. None draws each topic given the others.

        Returns:
            ``(num_docs, num_chains, num_topics)`` in the order of the ranks.
        """
        expected = torch.zeros_like(self._counts)
        u = noise.uniform(noise.fold_in(key[self._row], self._position[:, None]), 1)
        stop = 0
        for position, size in enumerate(self._sizes):
            tokens, stop = slice(stop, stop + size), stop + size
            counts, one = self._counts[:size], u.new_ones(()).expand(size, u.shape[1], 1)
            if proportions is None:
                counts.scatter_add_(-1, self._topics[position], -one)
            prior = counts + self._alpha if proportions is None else proportions[:size]
            weights = prior * self._phi[self._word[tokens]][:, None]
            cumulative = weights.cumsum(-1)
            total = cumulative[..., -1:]
            # The threshold is positive, so the first topic to reach it has positive weight.
            self._topics[position] = topic = torch.searchsorted(cumulative, u[tokens] * total)
            counts.scatter_add_(-1, topic, one)
            expected[:size].addcdiv_(weights, total)
        return expected
