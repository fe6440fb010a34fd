"""Sources and contrasts of eta together, where sources that are not Gaussian do not integrate out.

With eta = μ + A s + ε the contrasts of eta are c = Qμ + QA s + Ue, Q the rows of an orthonormal
basis orthogonal to 1, UUᵀ = QΛ⁻¹Qᵀ, and e standard normal. In the coordinates u = (s, e) the prior
is a product, p(s) N(e; 0, I), and the logits are linear.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_lntm.solvers.contrasts import contrast_basis, triangular_factor
from torch_lntm.solvers.factor import FactorPrior
from torch_lntm.solvers.importance import noise_log_density


class SourceContrasts:
    """The prior of u = (s, e) with Laplace sources; see the module.

    Args:
        prior: The prior of sources and eta; all is computed in float64 on its device.

    Attributes:
        num_sources: L.
        base: ``(num_topics,)`` logits at u = 0, centred.
        loading: ``(L + num_topics - 1, num_topics)`` change of the logits with u.
    """

    def __init__(self, prior: FactorPrior) -> None:
        basis = contrast_basis(prior.dim).to(prior.loc.device)
        self.num_sources = prior.mixing.shape[1]
        self._contrasts = basis
        self._loc = basis @ prior.loc.double()
        self._mixing = basis @ prior.mixing.double()
        self._noise_tril = triangular_factor(basis * prior.noise_precision.double().rsqrt())
        self.base = self._loc @ basis
        self.loading = torch.cat([self._mixing.mT, self._noise_tril.mT]) @ basis

    def logits(self, u: Tensor) -> Tensor:
        """Centred logits ``(..., num_topics)`` of u ``(..., L + num_topics - 1)``."""
        return self.base + u @ self.loading

    def log_density(self, u: Tensor) -> Tensor:
        """Log prior density ``(...)`` at u ``(..., L + num_topics - 1)``, nats."""
        source, noise = u[..., : self.num_sources], u[..., self.num_sources :]
        return noise_log_density(noise) - source.abs().sum(-1) - self.num_sources * math.log(2.0)

    def approximate(
        self, eta: Tensor, source: Tensor, source_scale: Tensor, words: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A normal approximation of one document's posterior of u around a given point.

        The prior of a source is replaced by the normal N(0, abs(η)) of its dual (*Putthividhya et
        al. 2009, eqs 2–3*), and the log likelihood by its second-order expansion at the point, less
        the directions in which it is convex. Unlike the mean field it knows how eta's components
        and the sources move together.

        Args:
            eta: ``(num_topics,)`` eta of the point.
            source: ``(L,)`` its sources.
            source_scale: ``(L,)`` abs(η) = sqrt(E s²), positive.
            words: ``(nnz, num_topics)`` probabilities of the document's words under each topic.
            counts: ``(nnz,)`` their counts.

        Returns:
            ``(loc, tril)``, mean ``(dim,)`` and Cholesky factor of the covariance ``(dim, dim)``.
        """
        residual = self._contrasts @ eta - self._loc - self._mixing @ source
        noise = torch.linalg.solve_triangular(self._noise_tril, residual[:, None], upper=False)
        loc = torch.cat([source, noise.squeeze(1)])
        scale = torch.cat([source_scale.sqrt(), torch.ones_like(residual)])
        # In u/scale the normal prior is standard, so the precision is at least I.
        loading = scale[:, None] * self.loading
        data = loading @ _information(self.logits(loc), words, counts) @ loading.mT
        values, vectors = torch.linalg.eigh(data)
        root = scale[:, None] * vectors * (1.0 + values.clamp_min(0.0)).rsqrt()
        return loc, triangular_factor(root)


def _information(logits: Tensor, words: Tensor, counts: Tensor) -> Tensor:
    """Minus the Hessian of one document's log likelihood in the logits, ``(K, K)``."""
    theta = torch.softmax(logits, -1)
    joint = theta * words
    rho = joint / joint.sum(1, keepdim=True).clamp_min(torch.finfo(joint.dtype).tiny)
    complete = counts.sum() * (theta.diag() - torch.outer(theta, theta))
    return complete - (counts @ rho).diag() + rho.mT @ (counts[:, None] * rho)
