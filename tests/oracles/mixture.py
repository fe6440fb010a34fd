"""Mixtures of topics by brute force in NumPy: densely, and by enumerating every token's topic."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch


def log_likelihood(weights: np.ndarray, topics: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Σ_v c_dv log Σ_k t_dk φ_kv from dense counts ``(num_docs, num_words)``."""
    words = np.where(counts > 0, weights @ topics, 1.0)
    return (counts * np.log(words)).sum(-1)


def enumerate_assignments(
    theta: np.ndarray, topics: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Every assignment z of topics to the tokens of every document, one after another.

    For a handful of tokens: a document of N costs num_topics ** N.

    Returns:
        log p(w_d) ``(num_docs,)``; under p(z | w): the expected tokens of each topic
        ``(num_docs, num_topics)``; the expected tokens of each word under each topic
        ``(num_topics, num_words)``; and the covariances of the tokens of each topic
        ``(num_docs, num_topics, num_topics)``.
    """
    num_docs, num_topics = theta.shape
    log_evidence = np.zeros(num_docs)
    topic_counts = np.zeros((num_docs, num_topics))
    word_counts = np.zeros(topics.shape)
    covariance = np.zeros((num_docs, num_topics, num_topics))
    for d in range(num_docs):
        tokens = np.repeat(np.arange(counts.shape[1]), counts[d].astype(int))
        total, second = 0.0, np.zeros((num_topics, num_topics))
        for z in itertools.product(range(num_topics), repeat=len(tokens)):
            p = np.prod([theta[d, k] * topics[k, v] for k, v in zip(z, tokens, strict=True)])
            used = np.bincount(np.array(z, dtype=int), minlength=num_topics)
            total += p
            topic_counts[d] += p * used
            second += p * np.outer(used, used)
        topic_counts[d] /= total
        covariance[d] = second / total - np.outer(topic_counts[d], topic_counts[d])
        log_evidence[d] = np.log(total)
        for v in tokens:
            joint = theta[d] * topics[:, v]
            word_counts[:, v] += joint / joint.sum()
    return log_evidence, topic_counts, word_counts, covariance


def mixture_log_likelihood_reference(
    weights: Tensor, topics: Tensor, batch: DocumentBatch
) -> Tensor:
    """The log likelihood of independent tokens, document by document, for autograd."""
    totals = []
    for d in range(batch.num_docs):
        entries = slice(int(batch.row_offsets[d]), int(batch.row_offsets[d + 1]))
        s = weights[..., d, :] @ topics[:, batch.word_index[entries]]
        totals.append((batch.counts[entries].double() * s.double().log()).sum(-1))
    return torch.stack(totals, -1)
