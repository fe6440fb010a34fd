"""Expectation propagation for the Dirichlet aspect model (Minka & Lafferty 2002, §4.2).

Every term t_w(θ) = Σ_k φ_kw θ_k of a document, which enters to the power of its count n_w, has an
approximation s_w Π_k θ_k^β_wk, so that the posterior is Dirichlet(γ), γ = α + Σ_w n_w β_w. A visit
to a word takes one copy of its approximation out, g = γ − β_w (eq. 17), and finds the Dirichlet γ'
with the mean and the summed variance of t_w(θ) Dirichlet(g) (eqs 23–25). That product is a mixture
of Dirichlet(g + e_k) with weights r_k = φ_kw g_k / Σ_j φ_jw g_j, and eqs 23–25 come to

    γ' = f·(g + r),   f = A / (A + (G + 2) B),   G = Σ_k g_k,
    A = Σ_{j≠k} g_j g_k + 2 Σ_{j≠k} r_j g_k,   B = Σ_{j≠k} r_j r_k,

sums of positive numbers, where the printed eq. 25 subtracts nearly equal ones if theta is near a
corner or γ is large. With partial sums, Σ_{j≠k} x_j y_k = Σ_k (x_k Y_{k−1} + y_k X_{k−1}). The move

    γ' − γ = f·(r − β_w) − (1 − f)·γ

is small to working precision too, which lets float32 do.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.errors import NumericalError
from torch_lntm.kernels import probability_floor
from torch_lntm.solvers.dirichlet import (
    DirichletPosterior,
    expected_log_theta,
    log_multivariate_beta,
)

#: Share of the way to γ' that all copies of a word go together, where 1/n_w of it is less.
LEAST_STEP = 0.5
#: Range of a document's damping, and what it is multiplied by after a bad and after a good pass.
LEAST_DAMPING = 1.0 / 16.0
DAMP, UNDAMP = 0.5, 1.25
#: A document of which a word was skipped is drawn back to its prior by this factor.
DRAW_BACK = 0.5
#: Numbers that each table of the evidence holds at once.
MAX_ELEMENTS = 2**20


def ep(
    batch: DocumentBatch,
    topics: Tensor,
    concentration: Tensor,
    *,
    init: Tensor | None = None,
    tolerance: float,
    max_iterations: int,
) -> DirichletPosterior:
    """Solve q(theta) = Dirichlet(γ) by *Minka & Lafferty 2002, eqs 12–25*.

    An iteration is a pass over the distinct words of a document in their stored order, one visit
    after another; the j-th words of all documents are visited together. A word whose γ − β_w is
    not positive is skipped in that pass. Step sizes do not change the fixed points. The step of a
    visit, the share μ of the way that β_w goes, is the paper's safest 1/n_w, with which γ becomes
    γ', for counts up to 2. For larger counts it is 1/2, since 1/n_w takes n_w passes, or as much
    less as keeps each γ_k above half of what it was (never less than 1/n_w, which keeps γ positive
    anyway, so that the paper's second reason to skip a word does not arise). For counts below 1 it
    is 1. Each document has a damping that multiplies its steps: it is halved after a pass in which
    γ travelled further than in the one before or a word was skipped, else it recovers. Where a word
    was skipped, the document's β are halved as well: without this, some documents with small α
    skip the same words forever.

    Args:
        batch: Documents.
        topics: ``(num_topics, num_words)`` φ in the dtype of the counts; the visits compute in it.
        concentration: ``(num_topics,)`` positive α.
        init: ``(nnz, num_topics)`` β to start from, those of an earlier call with these documents;
            zeros if not given. A document whose γ they make nonpositive starts from zeros.
        tolerance: Distance that γ travels in a pass, Σ_w Σ_k |Δγ_k| / Σ_k γ_k, undamped, at which a
            document has converged if no word was skipped; β stands still too. At least 64
            roundings of the dtype of ``topics``.
        max_iterations: Bound on the passes over each document.

    Returns:
        The posterior with its ``sites`` β in the dtype of ``topics``; its objective is the
        estimate of log p(w), no bound. It counts a word whose γ − β_w is not positive at the end by
        what variational Bayes makes of it, log Σ_k φ_kw exp(E log θ_k) − Σ_k β_wk E log θ_k. Such
        documents have not converged. An empty document's is the prior.

    Raises:
        NumericalError: A document's γ or evidence is not finite; names documents.
    """
    words = topics.mT.clamp_min(probability_floor(topics.dtype)).contiguous()
    alpha = concentration.double()
    sites, gamma = _start(batch, topics, alpha, init)
    tolerance = max(tolerance, 64.0 * torch.finfo(topics.dtype).eps)
    iterations = torch.zeros_like(batch.index)
    converged = torch.zeros_like(iterations, dtype=torch.bool)
    damping = words.new_ones(batch.num_docs)
    travelled = torch.full_like(damping, torch.inf)

    # A visit needs ratios of probabilities only; those of the likeliest topic are then 1.
    relative = words / words.amax(-1, keepdim=True)
    # Longest first, so that the documents with a j-th word are the first ones.
    rows = batch.row_offsets.diff().argsort(descending=True, stable=True)
    workspace = [words.new_empty(batch.num_docs, len(alpha)) for _ in range(6)]
    visits = _schedule(batch, rows)
    for _ in range(max_iterations if batch.num_docs else 0):
        found = _sweep(gamma[rows], sites, relative, visits, damping[rows], workspace)
        gamma[rows] += found.change.double()
        iterations[rows] += 1
        distance = found.distance / (damping[rows] * gamma[rows].sum(-1)).to(words)
        converged[rows] = (distance <= tolerance) & ~found.skipped
        bad = found.skipped | (distance > travelled[rows])
        factor = torch.where(bad, DAMP, UNDAMP)
        damping[rows] = (damping[rows] * factor).clamp(LEAST_DAMPING, 1.0)
        travelled[rows] = distance
        _draw_back(batch, alpha, rows[found.skipped], sites, gamma)
        stay = (~converged[rows]).nonzero().squeeze(-1)
        if not len(stay):
            break
        if len(stay) < len(rows):
            rows = rows[stay]
            visits = _schedule(batch, rows)

    # Free of what the passes rounded; that may have left a γ next to 0 on its wrong side.
    gamma = _from_sites(batch, alpha, sites)
    converged &= (gamma > 0).all(-1)
    gamma = torch.maximum(gamma, torch.finfo(words.dtype).eps * alpha)
    evidence, whole = _evidence(batch, words, alpha, gamma, sites)
    failed = ~torch.isfinite(evidence)
    if bool(failed.any()):
        documents = batch.index[failed].tolist()
        raise NumericalError(
            f"expectation propagation of {len(documents)} document(s) is not finite, first at "
            f"position {documents[0]}; check the topics, counts and concentration",
            documents,
        )
    return DirichletPosterior(alpha, gamma, converged & whole, iterations, evidence, sites)


def _start(
    batch: DocumentBatch, topics: Tensor, alpha: Tensor, init: Tensor | None
) -> tuple[Tensor, Tensor]:
    """β ``(nnz, num_topics)`` to start from, a new tensor, and their γ."""
    if init is None:
        sites = topics.new_zeros(batch.nnz, len(alpha))
        return sites, alpha.repeat(batch.num_docs, 1)
    sites = init.to(topics, copy=True)
    gamma = _from_sites(batch, alpha, sites)
    cold = ~(gamma > 0).all(-1, keepdim=True)
    sites.masked_fill_(cold[batch.row_index], 0.0)
    return sites, torch.where(cold, alpha, gamma)


def _from_sites(batch: DocumentBatch, alpha: Tensor, sites: Tensor) -> Tensor:
    """γ = α + Σ_w n_w β_w ``(num_docs, num_topics)`` float64 (*eq. 16*)."""
    if batch.nnz == 0:
        return alpha.repeat(batch.num_docs, 1)
    return alpha + F.embedding_bag(
        torch.arange(batch.nnz, device=sites.device),
        sites.double(),
        batch.row_offsets,
        mode="sum",
        per_sample_weights=batch.counts.double(),
        include_last_offset=True,
    )


def _draw_back(
    batch: DocumentBatch, alpha: Tensor, rows: Tensor, sites: Tensor, gamma: Tensor
) -> None:
    """Scale the β of the documents ``rows`` in place, and γ with them."""
    if not len(rows):
        return
    scale = sites.new_ones(batch.num_docs)
    scale[rows] = DRAW_BACK
    sites *= scale[batch.row_index][:, None]
    gamma[rows] = alpha + DRAW_BACK * (gamma[rows] - alpha)


class _Visit(NamedTuple):
    """The j-th words of the documents that have one, the first ``len(entries)`` at work.

    Attributes:
        entries: Their places among the batch's stored counts.
        words: Their words.
        counts: ``(len(entries), 1)``.
    """

    entries: Tensor
    words: Tensor
    counts: Tensor


def _schedule(batch: DocumentBatch, rows: Tensor) -> list[_Visit]:
    """One visit after another, for the documents ``rows``, longest first."""
    first = batch.row_offsets[rows]
    sizes = batch.row_offsets[rows + 1] - first
    positions = torch.arange(int(sizes[0]) if len(rows) else 0, device=rows.device)
    visits = []
    for j, number in enumerate(torch.searchsorted(-sizes, -positions).tolist()):
        entries = first[:number] + j
        counts = batch.counts.index_select(0, entries)[:, None]
        visits.append(_Visit(entries, batch.word_index.index_select(0, entries), counts))
    return visits


class _Sweep(NamedTuple):
    """What a pass did: ``change`` of γ, ``distance`` Σ_w Σ_k |Δγ_k|, a word was ``skipped``."""

    change: Tensor
    distance: Tensor
    skipped: Tensor


def _sweep(
    start: Tensor,
    sites: Tensor,
    words: Tensor,
    visits: list[_Visit],
    damping: Tensor,
    workspace: list[Tensor],
) -> _Sweep:
    """Visit every word once.

    Args:
        start: ``(num_rows, num_topics)`` γ.
        sites: ``(nnz, num_topics)`` β, updated in place.
        words: ``(num_words, num_topics)`` φ, each row to its own scale.
        visits: Of these documents.
        damping: ``(num_rows,)`` factors of the steps.
        workspace: Six tables of at least ``(num_rows, num_topics)``.
    """
    start, damping = start.to(words), damping[:, None]
    change = torch.zeros_like(start)
    distance = torch.zeros_like(damping)
    skipped = torch.zeros_like(damping, dtype=torch.bool)
    for entries, word_index, counts in visits:
        n = len(entries)
        gamma, site, cavity, r, partial_g, partial_r = (table[:n] for table in workspace)
        torch.add(start[:n], change[:n], out=gamma)
        torch.index_select(sites, 0, entries, out=site)
        torch.sub(gamma, site, out=cavity)
        positive = cavity.amin(-1, keepdim=True) > 0
        torch.index_select(words, 0, word_index, out=r)
        r *= cavity
        # Of a skipped word, r and f are 0, so that nothing that follows is not finite.
        r *= torch.where(positive, r.sum(-1, keepdim=True).reciprocal(), 0.0)

        torch.cumsum(cavity, -1, out=partial_g)
        torch.cumsum(r, -1, out=partial_r)
        total = partial_g[:, -1:].clone()
        spread = 2.0 * _dot(r, partial_r)
        between = _dot(cavity, partial_r)
        cavity += r
        between = 2.0 * (between + _dot(cavity, partial_g))
        excess = (total + 2.0) * spread
        # One topic has no variance to match.
        whole = torch.where(positive & (between + excess > 0), between + excess, 1.0)
        shrink = torch.where(positive, excess / whole, 1.0)
        move = r.sub_(site).mul_(1.0 - shrink).addcmul_(gamma, shrink, value=-1.0)

        # γ' > 0, so that moves of γ by the whole of it or less are safe.
        deepest = torch.div(move, gamma, out=cavity).amin(-1, keepdim=True)
        longest = torch.where(deepest < 0, -0.5 / deepest, torch.inf).clamp_min(1.0)
        step = torch.minimum(torch.maximum(counts.clamp_max(1.0), LEAST_STEP * counts), longest)
        step = torch.where(positive, step * damping[:n], 0.0)
        change[:n].addcmul_(move, step)
        sites.index_copy_(0, entries, site.addcmul_(move, step / counts))
        distance[:n] += step * move.abs_().sum(-1, keepdim=True)
        skipped[:n] |= ~positive
    return _Sweep(change, distance.squeeze(-1), skipped.squeeze(-1))


def _dot(values: Tensor, partial: Tensor) -> Tensor:
    """Σ_k values_k · partial_{k−1} ``(num_rows, 1)``."""
    return (values[:, 1:] * partial[:, :-1]).sum(-1, keepdim=True)


def _evidence(
    batch: DocumentBatch, words: Tensor, alpha: Tensor, gamma: Tensor, sites: Tensor
) -> tuple[Tensor, Tensor]:
    """The estimate of log p(w) (*eqs 19–22*), and where every word had a positive γ − β_w.

    log 𝔅(γ) − log 𝔅(α) + Σ_w n_w [log Z_w(γ − β_w) + log 𝔅(γ − β_w) − log 𝔅(γ)]. The β are the
    stored ones; eq. 20 as printed has γ' in the place of γ, the same at convergence only.

    Returns:
        ``(num_docs,)`` float64 nats and ``(num_docs,)`` bool.
    """
    normaliser = log_multivariate_beta(gamma)
    terms = torch.empty_like(batch.counts, dtype=torch.float64)
    whole = torch.ones_like(normaliser, dtype=torch.bool)
    rows_at_once = max(1, MAX_ELEMENTS // len(alpha))
    for entries in torch.arange(batch.nnz, device=gamma.device).split(rows_at_once):
        docs, site = batch.row_index[entries], sites[entries].double()
        word, cavity = words[batch.word_index[entries]].double(), gamma[docs] - site
        mean = (word * cavity).sum(-1) / cavity.sum(-1)
        terms[entries] = mean.log() + log_multivariate_beta(cavity) - normaliser[docs]
        bad = (~(cavity > 0).all(-1)).nonzero().squeeze(-1)
        expected = expected_log_theta(gamma[docs[bad]])
        jensen = torch.logsumexp(word[bad].log() + expected, -1)
        terms[entries[bad]] = jensen - (site[bad] * expected).sum(-1)
        whole[docs[bad]] = False
    total = torch.segment_reduce(
        batch.counts.double() * terms, "sum", offsets=batch.row_offsets, axis=0, initial=0.0
    )
    return total + normaliser - log_multivariate_beta(alpha), whole
