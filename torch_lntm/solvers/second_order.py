"""Expected word counts beyond VB's plug-in (Minka & Lafferty 2002, §5.2 and appendix)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch


def second_order_word_counts(
    gamma: Tensor, topics: Tensor, batch: DocumentBatch, *, max_elements: int = 2**20
) -> Tensor:
    """Expected tokens of each word under each topic, to second order in theta's spread.

    The responsibility of a token is φ_a theta_a / Σ_b φ_b theta_b. Its expectation under
    Dirichlet(γ) is (φ_a γ_a / γ_0) E[1 / Σ_b φ_b theta_b], where γ has an additional token of topic
    a (*Minka & Lafferty 2002, eqs 31 and 36–38*). The function 1/x is expanded to second order
    about the mean of x under this distribution (*eqs 32–34, 39–42*). With s = Σ_b φ_b γ_b and q =
    Σ_b φ_b² γ_b the sums of eq. 33 are Σ_b φ_b m_ab = (s + φ_a)/(γ_0 + 1) and Σ_b φ_b² m_ab = (q +
    φ_a²)/(γ_0 + 1). A token therefore costs O(K) rather than O(K²). S of eq. 33 depends on the word
    too, although its printed indices leave out the word.

    Under the expansion, the responsibilities of a token do not sum exactly to 1, so the counts of a
    word do not sum to its tokens. The excess differs between words and documents, and normalising
    topics over words does not remove it. It vanishes as 1/γ_0².

    Args:
        gamma: ``(num_docs, num_topics)`` γ, by any method.
        topics: ``(num_topics, num_words)`` φ of the posterior γ.
        batch: The counts.
        max_elements: Bound on the numbers held at once for the topics of stored counts.

    Returns:
        ``(num_topics, num_words)`` float64.
    """
    num_topics = topics.shape[0]
    result = gamma.new_zeros(batch.num_words, num_topics, dtype=torch.float64)
    if batch.nnz == 0:
        return result.mT
    order, doc_index, word_offsets = batch.by_word
    word_index, counts = batch.word_index[order], batch.counts[order].double()
    gamma, words = gamma.double(), topics.mT.double()
    tiny = torch.finfo(torch.float64).tiny
    # Only ratios of a word's probabilities count. After scaling, their squares do not underflow.
    words = words / words.amax(-1, keepdim=True).clamp_min(tiny)
    # A chunk needs 4 tables of counts × topics at a time.
    size = max(1, max_elements // (4 * num_topics))
    starts = torch.arange(0, batch.nnz, size, device=order.device)
    stops = (starts + size).clamp_max(batch.nnz)
    spans = torch.stack([starts, stops, word_index[starts], word_index[stops - 1] + 1], 1)
    for start, stop, first, last in spans.tolist():
        part = _responsibilities(gamma[doc_index[start:stop]], words[word_index[start:stop]])
        # A word at a chunk's edge adds up over two chunks.
        result[first:last] += F.embedding_bag(
            torch.arange(stop - start, device=order.device),
            part,
            word_offsets[first : last + 1].clamp(start, stop) - start,
            mode="sum",
            per_sample_weights=counts[start:stop],
            include_last_offset=True,
        )
    return result.mT


def _responsibilities(gamma: Tensor, word: Tensor) -> Tensor:
    """Eqs 32–34 for single tokens: γ and φ of the token's word, each ``(tokens, num_topics)``."""
    total = gamma.sum(-1, keepdim=True)
    joint = word * gamma
    mean = (joint.sum(-1, keepdim=True) + word) / (total + 1.0)
    mean.clamp_min_(torch.finfo(mean.dtype).tiny)  # for a word without any topic
    square = ((joint * word).sum(-1, keepdim=True) + word.square()) / (total + 1.0)
    spread = square / mean / mean - 1.0
    return joint / total / mean * (1.0 + spread / (total + 2.0))
