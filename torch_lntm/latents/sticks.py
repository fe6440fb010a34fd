"""Dirichlet priors of theta in the logits of broken sticks, whose densities form a product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from torch_lntm import noise
from torch_lntm.latents.gamma import DirichletSpace
from torch_lntm.latents.identified import IdentifiedSpace
from torch_lntm.latents.proposals import Proposal, log_gamma_variates
from torch_lntm.latents.stick_proposals import log_beta, mixture_draws, stick_parameters


@dataclass(frozen=True, eq=False)
class StickSpace(DirichletSpace, IdentifiedSpace):
    """theta ~ Dirichlet(α) in x = logit v, theta_k = v_k ∏_{j<k} (1 − v_j).

    Under Dirichlet(α) the v_k ~ Beta(α_k, Σ_{j>k} α_j) are independent. The density of x is
    therefore a product of densities v^a (1 − v)^b / B(a, b), smooth for every α > 0. Topics are
    broken off in the order of ``order``.

    Attributes:
        order: ``(num_topics,)`` int64 topics in the order of the sticks.
    """

    order: Tensor

    proposals = {"sticks": "stick-breaking mixture", "dirichlet": "Dirichlet"}  # noqa: RUF012
    reference = "ep"
    variable = "theta"

    @classmethod
    def of(cls, concentration: Tensor) -> Self:
        """Space with the sticks in the order of the topics."""
        alpha = concentration.double()
        return cls(alpha, torch.arange(len(alpha), device=alpha.device))

    def ordered(self, order: Tensor) -> Self:
        """Space of the prior with another order of sticks, given as topics ``(num_topics,)``."""
        return replace(self, order=order)

    @property
    def dim(self) -> int:
        """See :attr:`LatentSpace.dim`."""
        return len(self.concentration) - 1

    @property
    def dtype(self) -> torch.dtype:
        """See :attr:`LatentSpace.dtype`."""
        return self.concentration.dtype

    @property
    def exponents(self) -> Tensor:
        """Parameters ``(2, num_topics - 1)`` of the beta distributions of v."""
        return stick_parameters(self.concentration[self.order])

    def logits(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.logits`; log theta."""
        log_v, log_remaining = F.logsigmoid(z), F.logsigmoid(-z)
        remaining = log_remaining.cumsum(-1)
        zero = z.new_zeros(*z.shape[:-1], 1)
        sticks = torch.cat([log_v, zero], -1) + torch.cat([zero, remaining], -1)
        log_theta = torch.empty_like(sticks)
        log_theta[..., self.order] = sticks
        return log_theta

    def log_density(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.log_density`."""
        return self._log_kernel(z) - log_beta(self.exponents).sum()

    def _log_kernel(self, z: Tensor) -> Tensor:
        """Log density without its constant, at most −min(a, b)·|x| for any stick x."""
        own, after = self.exponents
        return F.logsigmoid(z) @ own + F.logsigmoid(-z) @ after

    def gradient(self, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.gradient`."""
        own, after = self.exponents
        return own * torch.sigmoid(-z) - after * torch.sigmoid(z)

    def pull(self, gradient: Tensor, z: Tensor) -> Tensor:
        """See :meth:`LatentSpace.pull`."""
        sticks = gradient[..., self.order]
        # A stick's breaking scales all later topics by 1 − v.
        later = sticks[..., 1:].flip(-1).cumsum(-1).flip(-1)
        return torch.sigmoid(-z) * sticks[..., :-1] - torch.sigmoid(z) * later

    def draw(self, key: Tensor) -> Tensor:
        """See :meth:`LatentSpace.draw`."""
        parts = self.exponents.flatten().expand(*key.shape, 2 * self.dim)
        own, after = noise.log_gamma(key, parts).chunk(2, -1)
        return own - after

    def locate(self, latents: Mapping[str, Tensor], key: Tensor | None = None) -> Tensor:
        """See :meth:`LatentSpace.locate`; a proportion of 0 counts as the smallest number."""
        theta = latents["theta"].double()
        return self.from_log_theta(theta.clamp_min(torch.finfo(theta.dtype).tiny).log())

    def from_log_theta(self, log_theta: Tensor) -> Tensor:
        """The z ``(..., num_topics - 1)`` of log proportions ``(..., num_topics)``."""
        sticks = log_theta[..., self.order]
        after = sticks[..., 1:].flip(-1).logcumsumexp(-1).flip(-1)
        return sticks[..., :-1] - after

    @property
    def standardiser(self) -> Tensor:
        """See :attr:`IdentifiedSpace.standardiser`; of theta itself."""
        alpha = self.concentration
        mean = alpha / alpha.sum()
        return ((alpha.sum() + 1.0) / (mean * (1.0 - mean))).sqrt().diag()

    def proper(self, posterior: Any) -> Tensor:
        """See :meth:`IdentifiedSpace.proper`."""
        return (torch.isfinite(posterior.gamma) & (posterior.gamma > 0)).all(1)

    def proposal(
        self,
        name: str,
        posterior: Any,
        row: int,
        words: Tensor,
        counts: Tensor,
        degrees_of_freedom: float,
    ) -> Proposal:
        """See :meth:`IdentifiedSpace.proposal`.

        ``"dirichlet"`` is the posterior Dirichlet(γ) itself. The ratio of the prior to it grows as
        theta_k^(α_k − γ_k) and is unbounded. If the document could do without topic k, its weights
        have the Pareto shape 1 − α_k/γ_k. ``"sticks"`` is a mixture around the posterior in which
        every topic may be absent. Its weights are bounded.
        """
        gamma = posterior.gamma[row].double()
        if name == "dirichlet":
            return Proposal(self, partial(self._dirichlet_draws, gamma))
        order = gamma.argsort(stable=True)
        draws = partial(mixture_draws, self.concentration[order], gamma[order])
        return Proposal(self.ordered(order), draws)

    def _dirichlet_draws(
        self, gamma: Tensor, num_samples: int, key: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Draws ``(num_samples, dim)`` of Dirichlet(γ), and their log densities."""
        rng = np.random.default_rng(list(key))
        shapes = np.broadcast_to(gamma.cpu().numpy(), (num_samples, len(gamma)))
        log_theta = torch.log_softmax(log_gamma_variates(rng, shapes), -1).to(gamma.device)
        z = self.from_log_theta(log_theta)
        return z, replace(self, concentration=gamma).log_density(z)

    def to(self, dtype: torch.dtype) -> Self:
        """See :meth:`LatentSpace.to`."""
        return replace(self, concentration=self.concentration.to(dtype))
