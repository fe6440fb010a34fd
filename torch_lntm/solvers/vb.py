"""Variational Bayes for the Dirichlet aspect model (Minka & Lafferty 2002, §4.1 and §5.2)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.errors import NumericalError
from torch_lntm.kernels.mixture import expected_counts, expected_topic_counts
from torch_lntm.posteriors.dirichlet import (
    DirichletPosterior,
    expected_log_theta,
    log_multivariate_beta,
)
from torch_lntm.solvers.active import ActiveSet
from torch_lntm.solvers.options import SolveOptions

#: Factor of every second step, for a document that moves less than ``LONG_BELOW`` and more than
#: half as far as in the step before.
LONG_STEP = 3.0
LONG_BELOW = 0.01
#: Bound on the numbers of second-order word counts that are held at once.
MAX_ELEMENTS = 2**20


def vb(
    batch: DocumentBatch, topics: Tensor, concentration: Tensor, options: SolveOptions
) -> DirichletPosterior:
    """Solve q(theta) = Dirichlet(γ) by the fixed point of *Minka & Lafferty 2002, eqs 10–11*.

    The update is γ ← α + (expected tokens of each topic under responsibilities ∝ exp(Ψ(γ_k)) φ_kv).
    The responsibilities themselves are never formed. Since the iteration is EM, it never lowers the
    bound, but it is slow on some documents.

    Near the fixed point the eigenvalues λ of its Jacobian lie in [0, 1). Once a document is near
    and slow, every second step goes 3 times as far, so that a pair of steps scales an error by λ(3λ
    − 2) rather than λ². The size of this factor is below 1 for every λ, and for λ close to 1 the
    pair gains as much as 4 plain steps. Long steps from the start led to worse local optima, and so
    did Anderson's.

    Args:
        batch: Documents.
        topics: ``(num_topics, num_words)`` φ in the dtype of the counts.
        concentration: ``(num_topics,)`` positive α.
        options: Start ``(num_docs, num_topics)``: nonnegative mean theta, scaled to γ = start·(Σα +
            N). The start matters: a topic with α below 1 and nearly no weight at the start hardly
            ever returns. Equal proportions favour no topic. The tolerance is the largest Σ_k |Δγ_k|
            / Σ_k γ_k of an update of eq. 10 for a converged document, the total change of the mean
            of theta. The remaining distance is this change times 1 / (1 − λ). The tolerance is
            raised to 8 times the machine epsilon of ``topics`` if smaller.

    Returns:
        The posterior. Its objective is :func:`dirichlet_bound`. The posterior of an empty document
        is the prior.

    Raises:
        NumericalError: A document's γ or bound is not finite; names documents.

    Example:
        >>> from torch_lntm.solvers.vb import SolveOptions, vb
        >>> options = SolveOptions(torch.full((5, 10), 0.1), tolerance=1e-4, max_iterations=100)
        >>> post = vb(batch, model.topics.probs.detach(), torch.full((10,), 0.1), options)
        >>> post.gamma.shape
        torch.Size([5, 10])
    """
    topics = topics.mT.contiguous().mT  # word by word, as every iteration reads them
    alpha = concentration.double()
    total = alpha.sum() + batch.lengths.double()
    # A mean of theta starts at 1e-7 or more in every dtype.
    gamma = options.start.double().clamp_min(1e-7) * total[:, None]
    # Converged documents are dropped once they are an eighth of the held documents.
    active = ActiveSet(batch.num_docs, gamma.device, idle_share=0.125)
    tolerance = max(options.tolerance, 8.0 * torch.finfo(topics.dtype).eps)

    current, position = batch, gamma
    last_change = torch.full_like(total, torch.inf)
    for iteration in range(options.max_iterations if batch.num_docs else 0):
        rows = active.rows
        weights = _log_weights(torch.digamma(position)).exp().to(topics)
        update = alpha + expected_topic_counts(weights, topics, current).double()
        step = update - position
        change = step.abs().sum(-1) / total[rows]
        # A converged document that is still held keeps its values.
        gamma[rows] = torch.where(active.working[rows, None], update, gamma[rows])
        active.step(change <= tolerance)
        position = update
        if iteration % 2 == 1:
            # A step goes at most half way to the prior, because a topic there hardly ever returns.
            extrapolated = torch.maximum(update + (LONG_STEP - 1.0) * step, 0.5 * (update + alpha))
            slow = (change < LONG_BELOW) & (change > 0.5 * last_change)
            position = torch.where(slow[:, None], extrapolated, update)
        current, position, last_change = active.drop_stopped(current, position, change)
        if active.finished:
            break

    bound = dirichlet_bound(batch, topics, alpha, gamma)
    failed = ~torch.isfinite(bound)
    if bool(failed.any()):
        documents = batch.index[failed].tolist()
        raise NumericalError(
            f"variational Bayes of {len(documents)} document(s) is not finite, first at position "
            f"{documents[0]}; check the topics, counts and concentration",
            documents,
        )
    return DirichletPosterior(
        concentration=alpha,
        gamma=gamma,
        index=batch.index,
        converged=active.converged,
        iterations=active.iterations,
        objective=bound,
    )


def dirichlet_bound(
    batch: DocumentBatch, topics: Tensor, concentration: Tensor, gamma: Tensor
) -> Tensor:
    """Lower bound on log p(w) at q(theta) = Dirichlet(γ), with responsibilities at their optimum.

    loglik(e^E) + Σ_k (α_k − γ_k) E_k + log 𝔅(γ) − log 𝔅(α), E = E log theta. At a fixed point of
    eqs 10–11 it is *Minka & Lafferty 2002, eqs 8–9*. Eq. 8 as printed lacks the exponent n_w q(a|w)
    of p(w|a) / q(a|w). The value is a bound for every γ.

    Args:
        batch: Documents.
        topics: ``(num_topics, num_words)`` φ in the dtype of the counts.
        concentration: ``(num_topics,)`` α.
        gamma: ``(num_docs, num_topics)`` positive γ.

    Returns:
        ``(num_docs,)`` float64 nats; 0 for an empty document at its prior.
    """
    alpha, gamma = concentration.double(), gamma.double()
    expectation = expected_log_theta(gamma)
    log_weights = _log_weights(expectation)
    counts = expected_counts(log_weights.exp().to(topics), topics, batch)
    # Responsibilities from any t give a bound that starts Σ c log s + Σ_k topic_counts_k (E_k − log
    # t_k). Here t is proportional to e^E, except for topics raised to the lowest weight.
    inner = counts.topic_counts.double() * (expectation - log_weights)
    inner += (alpha - gamma) * expectation
    normaliser = log_multivariate_beta(gamma) - log_multivariate_beta(alpha)
    return counts.log_likelihood + inner.sum(-1) + normaliser


def _log_weights(expectation: Tensor) -> Tensor:
    """Log weights of the topics, 0 for the document's largest and bounded below.

    If a weight underflowed to 0, a word that only this topic explains would be left without any.
    """
    # e^-40 is far above underflow in float32.
    return (expectation - expectation.amax(-1, keepdim=True)).clamp_min(-40.0)


def second_order_word_counts(gamma: Tensor, topics: Tensor, batch: DocumentBatch) -> Tensor:
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
    # Only ratios of a word's probabilities count, so they are scaled to keep their squares from
    # underflowing.
    words = words / words.amax(-1, keepdim=True).clamp_min(tiny)
    # A chunk needs 4 tables of counts × topics at a time.
    size = max(1, MAX_ELEMENTS // (4 * num_topics))
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
