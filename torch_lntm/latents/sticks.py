"""Dirichlet priors of theta in the logits of broken sticks, which are independent."""

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
from torch_lntm.latents.identified import IdentifiedSpace, Proposal, log_gamma_variates


@dataclass(frozen=True, eq=False)
class StickSpace(DirichletSpace, IdentifiedSpace):
    """theta ~ Dirichlet(α) in x = logit v, theta_k = v_k ∏_{j<k} (1 − v_j).

    Under Dirichlet(α) the v_k ~ Beta(α_k, Σ_{j>k} α_j) are independent, so that the density of x is
    a product of densities v^a (1 − v)^b / B(a, b), smooth for every α > 0. Topics are broken off in
    the order of ``order``.

    Attributes:
        order: ``(num_topics,)`` int64 topics in the order of the sticks.
    """

    order: Tensor

    proposals = {"sticks": "stick-breaking mixture", "dirichlet": "Dirichlet"}  # noqa: RUF012

    @classmethod
    def of(cls, concentration: Tensor) -> Self:
        """Space with the sticks in the order of the topics."""
        alpha = concentration.double()
        return cls(alpha, torch.arange(len(alpha), device=alpha.device))

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

    def proper(self, posterior: Any) -> Tensor:
        """See :meth:`IdentifiedSpace.proper`."""
        return (torch.isfinite(posterior.gamma) & (posterior.gamma > 0)).all(1)

    def proposal(
        self, name: str, posterior: Any, row: int, document: tuple[Tensor, Tensor]
    ) -> Proposal:
        """See :meth:`IdentifiedSpace.proposal`.

        ``"dirichlet"`` is the posterior Dirichlet(γ) itself. The ratio of the prior to it grows as
        theta_k^(α_k − γ_k) and is unbounded, so that if the document could do without topic k, its
        weights have the Pareto shape 1 − α_k/γ_k. ``"sticks"`` is a mixture around the posterior in
        which every topic may be absent, and its weights are bounded.
        """
        gamma = posterior.gamma[row].double()
        if name == "dirichlet":
            return Proposal(self, partial(self._dirichlet_draws, gamma))
        order = gamma.argsort(stable=True)
        draws = partial(mixture_draws, self.concentration[order], gamma[order])
        return Proposal(replace(self, order=order), draws)

    def _dirichlet_draws(
        self, gamma: Tensor, num_draws: int, key: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Draws ``(num_draws, dim)`` of Dirichlet(γ), and their log densities."""
        rng = np.random.default_rng(list(key))
        shapes = np.broadcast_to(gamma.cpu().numpy(), (num_draws, len(gamma)))
        log_theta = torch.log_softmax(log_gamma_variates(rng, shapes), -1).to(gamma.device)
        z = self.from_log_theta(log_theta)
        return z, replace(self, concentration=gamma).log_density(z)

    def to(self, dtype: torch.dtype) -> Self:
        """See :meth:`LatentSpace.to`."""
        return replace(self, concentration=self.concentration.to(dtype))


def stick_parameters(concentration: Tensor) -> Tensor:
    """Beta parameters of the sticks of Dirichlet(α): α_k and Σ_{j>k} α_j.

    Args:
        concentration: ``(..., num_topics)`` α in the order of the sticks.

    Returns:
        ``(2, ..., num_topics - 1)``.
    """
    after = concentration[..., 1:].flip(-1).cumsum(-1).flip(-1)
    return torch.stack([concentration[..., :-1], after])


def log_beta(parameters: Tensor) -> Tensor:
    """Log beta function log B(a, b) ``(...)`` of parameters ``(2, ...)``."""
    own, after = parameters
    return torch.lgamma(own) + torch.lgamma(after) - torch.lgamma(own + after)


def mixture_draws(
    concentration: Tensor, gamma: Tensor, num_draws: int, key: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Draws of a mixture around Dirichlet(γ) in which every topic may be absent.

    The posterior of theta_k is a mixture over the number of the document's tokens of topic k. Given
    no token it is as wide as the prior, but a single Dirichlet also has to cover the case of some
    tokens and is narrower. Let μ = γ − α be the expected number of tokens. The mixture gives a
    topic no token with probability about e^−μ, and μ/(1 − e^−μ) tokens otherwise, and both
    parameters of every stick's beta distribution take these two values. With at least a small
    probability both are those of the prior, which bounds the ratio of the prior to the mixture.

    Args:
        concentration: ``(num_topics,)`` float64 α, in the order of the sticks.
        gamma: ``(num_topics,)`` float64 γ in the order of the sticks. Ascending γ gives the best
            fit.
        num_draws: Number of draws.
        key: Seed of the generator, as for :class:`~torch_lntm.latents.identified.Proposal`.

    Returns:
        Logits of the sticks ``(num_draws, num_topics - 1)`` and their log densities
        ``(num_draws,)``.
    """
    rng = np.random.default_rng(list(key))
    prior = stick_parameters(concentration)
    tokens = stick_parameters((gamma - concentration).clamp_min(1e-6))
    # Least probability of drawing from the prior rather than the posterior, summed over sticks and
    # their two ends, which bounds the importance weights.
    share = 0.05 / max(1, prior.numel())
    # P(some token) = 1 − e^−μ. The log odds of absence are −log(e^μ − 1) = −(μ + log(1 − e^−μ)).
    prob_some = -torch.expm1(-tokens)
    # Power of the odds of a topic's absence. A power below 1 draws rare cases more often than they
    # occur, so that their weights are small rather than large.
    absent = torch.sigmoid(-0.7 * (tokens + prob_some.log())).clamp(share, 1.0 - share)
    present = prior + tokens / prob_some
    use_prior = torch.from_numpy(rng.random((num_draws, *prior.shape))).to(gamma) < absent
    shapes = torch.where(use_prior, prior, present)
    variates = log_gamma_variates(rng, shapes.cpu().numpy()).to(gamma.device)
    log_v = torch.log_softmax(variates, 1)
    terms = [
        _log_density(log_v, torch.stack([own, after])) + own_share.log() + after_share.log()
        for own, own_share in ((prior[0], absent[0]), (present[0], 1.0 - absent[0]))
        for after, after_share in ((prior[1], absent[1]), (present[1], 1.0 - absent[1]))
    ]
    return variates[:, 0] - variates[:, 1], torch.stack(terms).logsumexp(0).sum(-1)


def _log_density(log_v: Tensor, parameters: Tensor) -> Tensor:
    """Log density of each logit ``(num_draws, n)``, from log v and log(1 − v) on axis 1."""
    return (log_v * parameters).sum(1) - log_beta(parameters)
