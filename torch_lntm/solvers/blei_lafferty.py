"""The diagonal posterior of Blei & Lafferty (Ahmed & Xing 2007, §3.3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lntm.corpus.batch import DocumentBatch
from torch_lntm.latents.normal import NormalSpace
from torch_lntm.posteriors.normal import NormalPosterior
from torch_lntm.solvers.options import SolveOptions
from torch_lntm.solvers.precision import in_sufficient_precision
from torch_lntm.solvers.special import inverse_mean_root, log_mean_rate
from torch_lntm.solvers.tangent import maximise_tangent_bound


@in_sufficient_precision
def blei_lafferty(
    batch: DocumentBatch, topics: Tensor, space: NormalSpace, options: SolveOptions
) -> NormalPosterior:
    """Solve q(eta) = N(λ, diag ν²) by coordinate ascent on the tangent bound.

    *Ahmed & Xing 2007, eqs 13–15; Khan & Bouchard 2009, eqs 33–38 with V diagonal.* A round takes a
    few ascent steps in λ, then updates each ν_k² exactly for the present ζ = Σ_k exp(λ_k + ν_k²/2).
    Responsibilities and ζ are always at their optimum, and no update lowers the bound.

    Args:
        batch: Documents.
        topics: ``(num_topics, num_words)``, tempered if ``inverse_temperature`` is not 1.
        space: Whitened prior of eta.
        options: Starting means ``(num_docs, dim)``. A document has converged if a round raises its
            bound by less than the tolerance, in nats. The returned variance is T·ν², the untempered
            variance, for ν at its tempered optimum.

    Returns:
        The posterior. Its objective is the tangent bound on log p(w), tempered if T is not 1.

    Example:
        >>> from torch_lntm.solvers.blei_lafferty import SolveOptions, blei_lafferty
        >>> space, topics = model.prior.space(batch), model.topics.probs.detach()
        >>> options = SolveOptions(torch.zeros(5, space.eta_dim), 1e-3, max_iterations=50)
        >>> blei_lafferty(batch, topics, space, options).std.shape
        torch.Size([5, 10])
    """
    # The starting variances are those of a document with half of its tokens distributed as in the
    # starting means, and the other half equally over topics. The prior's own variance is a bad
    # start if it is wide: at fixed ζ it takes very many rounds to come down.
    share = 0.5 * (torch.softmax(space.lift(options.start), -1) + 1.0 / topics.shape[0])
    precision = space.precision.diagonal() + (batch.lengths[:, None] * share)[:, : space.dim]
    variances = _Diagonal(space, 1.0 / precision, options.inverse_temperature)
    means = maximise_tangent_bound(batch, topics, space, variances, options)
    return NormalPosterior.around(means, std=variances.variance.sqrt())


@dataclass
class _Diagonal:
    """Diagonal variances; ``variance`` ``(num_docs, dim)`` is T·ν²."""

    space: NormalSpace
    variance: Tensor
    inverse_temperature: float

    def marginal(self, rows: Tensor) -> Tensor:
        return self.variance[rows]

    def bound_terms(self, rows: Tensor) -> Tensor:
        """½ Σ_k [(1 + log ν_k²)/T − P_kk ν_k²] − ½ log|Σ|, up to a constant that is 0 at T = 1."""
        nu = self.variance[rows].double() / self.inverse_temperature
        entropy = (nu.log() + 1.0).sum(-1) / self.inverse_temperature
        trace = (nu * self.space.precision.diagonal().double()).sum(-1)
        return 0.5 * (entropy - trace) - self.space.tril.diagonal().log().sum()

    def update(self, rows: Tensor, batch: DocumentBatch, logits: Tensor) -> None:
        half = self.space.lift(self.variance[rows]) / (2.0 * self.inverse_temperature)
        log_rate = log_mean_rate(logits, half, batch.lengths)[:, : self.space.dim]
        precision = self.space.precision.diagonal()
        self.variance[rows] = inverse_mean_root(precision, log_rate, 0.5 / self.inverse_temperature)
