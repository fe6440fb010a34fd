"""Gibbs sampling of the topic proportions of many documents under a Dirichlet prior.

Given theta, the topics of the tokens are independent, with p(z = k) ∝ theta_k φ_kw. Given the
number n_k of tokens of each topic, theta ~ Dirichlet(α + n). Both draws are exact, so nothing needs
tuning and every draw is accepted. All documents and chains move together. Noise is a function of
the keys of :mod:`torch_lntm.noise`, so a document's draws do not depend on its batch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.corpus.batch import DocumentBatch

#: Floors of theta_k and φ_kw in draws of the tokens' topics. Their product is positive.
_SMALLEST, _SMALLEST_PHI = 1e-260, 1e-45
#: Numbers held at once while tokens draw their topics.
_MAX_NUMBERS = 2**22
#: Largest stored count with a separate draw for each token. The topics of a larger count are a
#: single multinomial draw.
_MAX_TOKENS = 1000
#: Numbers folded into a key for the topics of the tokens and for theta.
_TOPICS, _THETA = 0, 1


class _Entries(NamedTuple):
    """Stored counts of a batch.

    Attributes:
        row: ``(num_entries,)`` int64 document.
        word: ``(num_entries,)`` int64 word.
        tokens: ``(num_entries,)`` int64 tokens.
        position: ``(num_entries,)`` int64 position of the first token in its document.
    """

    row: Tensor
    word: Tensor
    tokens: Tensor
    position: Tensor

    def select(self, rows: Tensor | slice) -> _Entries:
        """Some of the entries."""
        return _Entries(*(part[rows] for part in self))


def gibbs(
    batch: DocumentBatch,
    topics: Tensor,
    concentration: Tensor,
    *,
    num_chains: int,
    num_draws: int,
    warmup_sweeps: int,
    sweeps: int = 1,
    seed: int = 0,
) -> Tensor:
    """Draws of theta from the posterior of every document.

    Chains start from uniform draws of theta. Draws from a prior of small concentration would be a
    bad start: some topics would be too rare for any token to try them. Memory does not depend on
    the size of the counts.

    Args:
        batch: Documents of whole counts.
        topics: ``(num_topics, num_words)``.
        concentration: ``(num_topics,)`` α.
        num_chains: Chains of each document.
        num_draws: Draws of each chain.
        warmup_sweeps: Sweeps before the first draw.
        sweeps: Sweeps between draws.
        seed: Seed of all noise.

    Returns:
        ``(num_chains, num_draws, num_docs, num_topics)`` float64, on the CPU.

    Example:
        >>> from studies.scores.accuracy.gibbs import gibbs
        >>> options = {"num_chains": 2, "num_draws": 3, "warmup_sweeps": 5}
        >>> gibbs(batch, model.topics.probs.detach(), torch.ones(10), **options).shape
        torch.Size([2, 3, 5, 10])
    """
    alpha, phi = concentration.double(), topics.double().mT.clamp_min(_SMALLEST_PHI)
    entries = _entries(batch)
    small = entries.select(entries.tokens <= _MAX_TOKENS)
    large = entries.select(entries.tokens > _MAX_TOKENS)
    chunks = _chunks(small, _MAX_NUMBERS // (num_chains * len(alpha)))
    keys = noise.document_keys(seed, batch.index, num_chains)

    def dirichlet(key: Tensor, gamma: Tensor) -> Tensor:
        return torch.softmax(noise.log_gamma(noise.fold_in(key, _THETA), gamma), -1)

    shape = (num_chains, batch.num_docs, len(alpha))
    theta = dirichlet(noise.fold_in(keys, 0), alpha.new_ones(shape))
    draws = torch.empty(num_chains, num_draws, *shape[1:], dtype=torch.float64)
    for sweep in range(1, warmup_sweeps + num_draws * sweeps + 1):
        key = noise.fold_in(keys, sweep)
        topic_keys, floored = noise.fold_in(key, _TOPICS), theta.clamp_min(_SMALLEST)
        topic_counts = torch.zeros(shape, dtype=torch.int64, device=theta.device)
        for chunk in chunks:
            topic_counts += _token_by_token(topic_keys, floored, phi, chunk)
        if len(large.tokens):
            topic_counts += _count_by_count(topic_keys, floored, phi, large)
        theta = dirichlet(key, alpha + topic_counts)
        num_drawn, sweeps_since = divmod(sweep - warmup_sweeps, sweeps)
        if num_drawn > 0 and sweeps_since == 0:
            draws[:, num_drawn - 1] = theta.cpu()
    return draws


def _entries(batch: DocumentBatch) -> _Entries:
    """Stored counts of a batch, as integers."""
    count = batch.counts.round().long()
    before = count.cumsum(0) - count
    first = torch.cat([before, before.new_zeros(1)])[batch.row_offsets[:-1]]
    return _Entries(batch.row_index, batch.word_index, count, before - first[batch.row_index])


def _chunks(entries: _Entries, max_tokens: int) -> list[_Entries]:
    """The entries in parts of about ``max_tokens`` tokens, each with at least one entry."""
    part = (entries.tokens.cumsum(0) - entries.tokens) // max(1, max_tokens)
    sizes = part.unique_consecutive(return_counts=True)[1].tolist()
    return [_Entries(*parts) for parts in zip(*(x.split(sizes) for x in entries), strict=True)]


def _token_by_token(keys: Tensor, theta: Tensor, phi: Tensor, entries: _Entries) -> Tensor:
    """Tokens of each topic, with a separate uniform number for each token.

    Args:
        keys: ``(num_chains, num_docs)``.
        theta: ``(num_chains, num_docs, num_topics)`` positive float64.
        phi: ``(num_words, num_topics)`` float64.
        entries: The counts.

    Returns:
        ``(num_chains, num_docs, num_topics)`` int64.
    """
    num_chains, num_docs, num_topics = theta.shape
    count = entries.tokens
    row, word, first = (
        part.repeat_interleave(count)
        for part in (entries.row, entries.word, entries.position - count.cumsum(0) + count)
    )
    position = first + torch.arange(len(row), device=row.device)
    cumulative = (theta[:, row] * phi[word]).cumsum(-1)
    u = noise.uniform(noise.fold_in(keys[:, row], position), 1)
    # Rounding up must not carry the threshold beyond the last topic of positive weight.
    total = cumulative[..., -1:]
    threshold = torch.minimum(u * total, total * (1.0 - 1e-15))
    topic = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)
    chain = torch.arange(num_chains, device=row.device)[:, None]
    cells = (chain * num_docs + row) * num_topics + topic
    return torch.bincount(cells.flatten(), minlength=theta.numel()).view_as(theta)


def _count_by_count(keys: Tensor, theta: Tensor, phi: Tensor, entries: _Entries) -> Tensor:
    """Tokens of each topic, by a single multinomial draw for each count of each chain.

    The noise comes from a counter-based generator, with the key of the count's first token.
    Arguments and result as for :func:`_token_by_token`.
    """
    topic_counts = torch.zeros(theta.shape, dtype=torch.int64)
    for row, word, count, position in zip(*(part.tolist() for part in entries), strict=True):
        weights = theta[:, row] * phi[word]
        # NumPy draws the topics in turn, and the last topic receives the remaining tokens. In
        # ascending order the last weight keeps all its digits, and a topic of weight 0 receives no
        # token.
        share, order = (weights / weights.sum(-1, keepdim=True)).cpu().sort(-1)
        seeds = noise.fold_in(keys[:, row], position).tolist()
        for chain, seed in enumerate(seeds):
            generator = np.random.Generator(np.random.Philox(key=seed % 2**64))
            drawn = torch.from_numpy(generator.multinomial(count, share[chain].numpy()))
            topic_counts[chain, row, order[chain]] += drawn
    return topic_counts.to(theta.device)
