"""Documents that repeat their words: counts whose distribution is each document's own.

The words of document d are drawn from p_d ~ Dirichlet(a q_d), with q_d the mixture of topics, and
not from q_d itself (*Doyle & Elkan 2009, Accounting for burstiness in topic models*). With p_d
integrated out, the probability of its N tokens in a given order is

    Γ(a) / Γ(a + N) Π_v Γ(c_v + x_v) / Γ(x_v)        x_v = a q_v,

over the stored counts c alone. As a grows, the words become independent draws from q_d.

The first token of a word always comes from the topics, a later one often repeats. How many came
from them, its *tables* t in the picture of Chinese restaurants, has the expectation

    t_v = x_v (ψ(c_v + x_v) − ψ(x_v))    between 1 and c_v, and 1 where c_v is 1.

The derivative of the log probability in log q_v is t_v, where that of independent draws is c_v; and
around any x the terms are bounded from below by those of t independent draws (*Minka 2000,
Estimating a Dirichlet distribution, appendix*),

    log Γ(c + y) / Γ(y)  ≥  log Γ(c + x) / Γ(x) + t (log y − log x).

So what is done with counts, posteriors and statistics do with tables.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.errors import ConfigError


def tables_of(counts: Tensor, rate: Tensor) -> Tensor:
    """Expected tokens that came from the topics, x (ψ(c + x) − ψ(x)).

    Args:
        counts: c, positive, float64.
        rate: x = a q, positive, float64, of a shape that broadcasts.
    """
    return rate * (torch.digamma(counts + rate) - torch.digamma(rate))


def log_rising(counts: Tensor, rate: Tensor) -> Tensor:
    """Log Γ(c + x) − log Γ(x); arguments as of :func:`tables_of`."""
    return torch.lgamma(counts + rate) - torch.lgamma(rate)


def log_share(concentration: Tensor, lengths: Tensor) -> Tensor:
    """Log Γ(a) − log Γ(a + N) ``(num_docs,)`` float64, what all words of a document share."""
    a = concentration.double()
    return torch.lgamma(a) - torch.lgamma(a + lengths.double())


def tables(probability: Tensor, batch: DocumentBatch) -> Tensor:
    """``(nnz,)`` tokens that are expected to have come from the topics, in the batch's dtype.

    Args:
        probability: ``(nnz,)`` q at the stored counts, positive.
        batch: The documents; without a concentration all tokens came from the topics.
    """
    if batch.concentration is None:
        return batch.counts
    entries, counts = batch.repeated
    found = torch.ones_like(batch.counts)
    rate = batch.concentration * probability[entries].double()
    found[entries] = tables_of(counts, rate).to(found.dtype)
    return found


def ratio(probability: Tensor, batch: DocumentBatch) -> Tensor:
    """``(nnz,)`` derivative of the log likelihood in the probabilities: c / q, or t / q."""
    if batch.concentration is None:
        return batch.counts / probability
    found, (entries, counts) = probability.reciprocal(), batch.repeated
    rate = batch.concentration * probability[entries].double()
    found[entries] *= tables_of(counts, rate).to(found.dtype)
    return found


def log_terms(probability: Tensor, batch: DocumentBatch) -> Tensor:
    """``(nnz,)`` terms of the log likelihood but for :func:`log_share`, differentiable.

    Args:
        probability: ``(nnz,)`` q at the stored counts, positive.
        batch: The documents, with a concentration.
    """
    assert batch.concentration is not None
    entries, counts = batch.repeated
    rate = batch.concentration.double() * probability.double()
    return rate.log().index_copy(0, entries, log_rising(counts, rate[entries]))


def require_independent(batch: DocumentBatch) -> None:
    """Raise ``ConfigError`` if these are documents that repeat their words."""
    if batch.concentration is not None:
        raise ConfigError(
            "documents that repeat their words, of a bursty model; expected independent draws: "
            "take batch, raised = guide.as_independent(batch, posterior), and add the nats raised"
        )


def with_tables(probability: Tensor, batch: DocumentBatch) -> tuple[DocumentBatch, Tensor]:
    """Independent draws in place of the documents', which bound their likelihood from below.

    Args:
        probability: ``(nnz,)`` q at the stored counts, positive: where the bound is tight.
        batch: The documents, with a concentration.

    Returns:
        The same documents with tables for counts and without a concentration; and
        ``(num_docs,)`` float64 nats, what the log likelihood of these is to be raised by.
    """
    assert batch.concentration is not None
    found = tables(probability, batch)
    gaps = log_terms(probability, batch) - found.double() * probability.double().log()
    offsets = torch.segment_reduce(gaps, "sum", offsets=batch.row_offsets, axis=0, initial=0.0)
    offsets += log_share(batch.concentration, batch.lengths)
    return batch.with_counts(found), offsets
