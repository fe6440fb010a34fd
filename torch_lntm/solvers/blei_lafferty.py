"""The diagonal posterior of Blei & Lafferty (Ahmed & Xing 2007, §3.3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.latents.normal import NormalSpace
from torch_lntm.posteriors.normal import NormalPosterior
from torch_lntm.solvers.precision import in_sufficient_precision
from torch_lntm.solvers.special import inverse_mean_root, log_mean_rate
from torch_lntm.solvers.tangent import maximise_tangent_bound


@in_sufficient_precision
def blei_lafferty(
    batch: DocumentBatch,
    topics: Tensor,
    space: NormalSpace,
    *,
    start: Tensor,
    tolerance: float,
    max_iterations: int,
    temperature: float = 1.0,
) -> NormalPosterior:
    """Solve q(eta) = N(λ, diag ν²) by coordinate ascent on the tangent bound.

    *Ahmed & Xing 2007, eqs 13–15; Khan & Bouchard 2009, eqs 33–38 with V diagonal.* Rounds of a few
    ascent steps in λ, then ν² for the present ζ = Σ_k exp(λ_k + ν_k²/2), each coordinate exactly;
    responsibilities and ζ are always at their optimum. No update lowers the bound.

    Args:
        batch: Documents.
        topics: ``(num_topics, num_words)``, tempered if ``temperature`` is not 1.
        space: The prior of eta, whitened.
        start: ``(num_docs, dim)`` starting means.
        tolerance: Gain of the bound per round, nats, at which a document has converged.
        max_iterations: Bound on the rounds.
        temperature: Inverse temperature T. The variance returned is T·ν², the untempered one,
            for ν at its tempered optimum.

    Returns:
        The posterior; its objective is the tangent bound on log p(w) (tempered if T is not 1).
    """
    # As if half of the tokens were as the starting means have it, and the others of every topic
    # alike. The prior's own variance is a bad start where it is wide: with ζ held fixed it takes
    # very many rounds to come down from.
    share = 0.5 * (torch.softmax(space.lift(start), -1) + 1.0 / topics.shape[0])
    precision = space.precision.diagonal() + (batch.lengths[:, None] * share)[:, : space.dim]
    variances = _Diagonal(space, 1.0 / precision, temperature)
    ascent = maximise_tangent_bound(
        batch,
        topics,
        space,
        variances,
        start=start,
        tolerance=tolerance,
        max_iterations=max_iterations,
        temperature=temperature,
    )
    return NormalPosterior(
        space=space,
        mean=space.unwhiten(ascent.z),
        index=batch.index,
        converged=ascent.converged,
        iterations=ascent.iterations,
        objective=ascent.bound,
        std=variances.variance.sqrt(),
    )


@dataclass
class _Diagonal:
    """``variance`` ``(num_docs, dim)`` is T·ν²."""

    space: NormalSpace
    variance: Tensor
    temperature: float

    def marginal(self, rows: Tensor) -> Tensor:
        return self.variance[rows]

    def bound_terms(self, rows: Tensor) -> Tensor:
        """½ Σ_k [(1 + log ν_k²)/T − P_kk ν_k²] − ½ log|Σ|, up to a constant that is 0 at T = 1."""
        nu = self.variance[rows].double() / self.temperature
        entropy = (nu.log() + 1.0).sum(-1) / self.temperature
        trace = (nu * self.space.precision.diagonal().double()).sum(-1)
        return 0.5 * (entropy - trace) - self.space.tril.diagonal().log().sum()

    def update(self, rows: Tensor, batch: DocumentBatch, logits: Tensor) -> None:
        half = self.space.lift(self.variance[rows]) / (2.0 * self.temperature)
        log_rate = log_mean_rate(logits, half, batch.lengths)[:, : self.space.dim]
        precision = self.space.precision.diagonal()
        self.variance[rows] = inverse_mean_root(precision, log_rate, 0.5 / self.temperature)
