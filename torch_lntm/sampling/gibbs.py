"""Gibbs sampling of the topic proportions of many documents under a Dirichlet prior.

Given theta, every token has a topic of its own, p(z = k) ∝ theta_k φ_kw; given the tokens of each
topic n, theta ~ Dirichlet(α + n). Both are exact draws, so there is nothing to tune and nothing to
reject. All documents and chains move together, and noise is a function of the keys of
:mod:`torch_lntm.noise`: a document's draws do not depend on its batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.corpus.batch import DocumentBatch

#: Smallest proportion, relative to the largest, lest theta_k φ_kw be zero for all k.
_SMALLEST = 1e-260
#: Numbers that the tokens' topics are drawn with at once.
_MAX_NUMBERS = 2**22
#: What is folded into a key for the topics of the tokens and for theta.
_TOPICS, _THETA = 0, 1


def gibbs(
    batch: DocumentBatch,
    topics: Tensor,
    concentration: Tensor,
    *,
    num_chains: int,
    num_samples: int,
    warmup_sweeps: int,
    sweeps: int = 1,
    seed: int = 0,
) -> Tensor:
    """Draws of theta from the posterior of every document.

    Chains start from uniform draws of theta: a prior of small concentration has draws in which a
    topic is too rare to be tried.

    Args:
        batch: Documents, of whole counts.
        topics: ``(num_topics, num_words)``.
        concentration: ``(num_topics,)`` α.
        num_chains: Chains of each document.
        num_samples: Draws of each chain.
        warmup_sweeps: Sweeps before the first draw.
        sweeps: Sweeps from draw to draw.
        seed: Seed of all noise.

    Returns:
        ``(num_chains, num_samples, num_docs, num_topics)`` float64, on the CPU.
    """
    alpha = concentration.double()
    num_docs, num_topics = batch.num_docs, len(alpha)
    # Tokens one by one: their documents, their places in them and their stored counts.
    counts = batch.counts.round().long()
    row = batch.row_index.repeat_interleave(counts)
    lengths = torch.zeros(num_docs, dtype=torch.int64, device=row.device).scatter_add_(
        0, batch.row_index, counts
    )
    place = torch.arange(len(row), device=row.device) - (lengths.cumsum(0) - lengths)[row]
    entry = torch.arange(batch.nnz, device=row.device).repeat_interleave(counts)
    words = topics.double().mT[batch.word_index]
    chunks = torch.arange(len(row), device=row.device).split(
        max(1, _MAX_NUMBERS // (num_chains * num_topics))
    )
    keys = noise.document_keys(seed, batch.index, num_chains)
    chain = torch.arange(num_chains, device=row.device)[:, None]

    def dirichlet(key: Tensor, gamma: Tensor) -> Tensor:
        return torch.softmax(noise.log_gamma(noise.fold_in(key, _THETA), gamma), -1)

    theta = dirichlet(noise.fold_in(keys, 0), alpha.new_ones(num_chains, num_docs, num_topics))
    draws = torch.empty(num_chains, num_samples, num_docs, num_topics, dtype=torch.float64)
    for sweep in range(1, warmup_sweeps + num_samples * sweeps + 1):
        key = noise.fold_in(keys, sweep)
        topic_keys, floored = noise.fold_in(key, _TOPICS), theta.clamp_min(_SMALLEST)
        topic_counts = torch.zeros(theta.numel(), dtype=torch.int64, device=row.device)
        for tokens in chunks:
            docs = row[tokens]
            cumulative = (floored[:, docs] * words[entry[tokens]]).cumsum(-1)
            u = noise.uniform(noise.fold_in(topic_keys[:, docs], place[tokens]), 1)
            # The last topic with a share is as far as a product rounded up can go.
            total = cumulative[..., -1:]
            threshold = torch.minimum(u * total, total * (1.0 - 1e-15))
            topic = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)
            cells = (chain * num_docs + docs) * num_topics + topic
            topic_counts += torch.bincount(cells.flatten(), minlength=theta.numel())
        theta = dirichlet(key, alpha + topic_counts.view_as(theta))
        drawn, rest = divmod(sweep - warmup_sweeps, sweeps)
        if drawn > 0 and rest == 0:
            draws[:, drawn - 1] = theta.cpu()
    return draws
