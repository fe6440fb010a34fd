"""Proposals for theta under a Dirichlet prior, against closed forms."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from scipy import stats
from torch import Tensor

from torch_lntm.latents.sticks import StickSpace
from torch_lntm.sampling.importance import pareto_k


def draws(
    name: str, alpha: Tensor, gamma: Tensor, num_draws: int, key: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Log theta, and the log ratio of the prior to the proposal."""
    space, posterior = StickSpace.of(alpha), SimpleNamespace(gamma=gamma[None])
    proposal = space.proposal(name, posterior, 0, (torch.empty(0), torch.empty(0)))
    z, log_q = proposal.draw(num_draws, key)
    return proposal.space.logits(z), proposal.space.log_density(z) - log_q


@pytest.mark.parametrize("proposal", ["sticks", "dirichlet"])
@pytest.mark.parametrize("concentration", [1e-6, 0.01, 2.0])
def test_proposal_draws_have_the_stated_density(proposal: str, concentration: float) -> None:
    # For γ a few tokens above the prior, weighted means of theta equal the prior's. Dirichlet draws
    # have bounded weights here only for smaller γ. |z| < 4.5: false-failure rate below 1e-4.
    alpha = concentration * torch.tensor([1.0, 2.0, 0.5]).double()
    tokens = torch.tensor([0.3, 0.0, 2.0]).double()
    gamma = alpha + tokens if proposal == "sticks" else 0.8 * alpha
    log_theta, log_ratio = draws(proposal, alpha, gamma, 20_000, (0, 1))
    assert bool(torch.isfinite(log_theta).all())
    assert bool(torch.isfinite(log_ratio).all())
    torch.testing.assert_close(log_theta.logsumexp(1), torch.zeros(20_000).double())
    weights = log_ratio.exp()
    for values, expected in [
        (torch.ones(20_000, 1).double(), torch.ones(1).double()),
        (log_theta.exp(), alpha / alpha.sum()),
    ]:
        weighted = weights[:, None] * values
        z = (weighted.mean(0) - expected) / weighted.std(0).clamp_min(1e-12) * math.sqrt(20_000)
        assert bool((z.abs() < 4.5).all())


def test_weights_of_sticks_have_light_tails_if_a_topic_may_be_absent() -> None:
    # As a topic vanishes, ratios of the Dirichlet have Pareto shape 1 − α/γ = 0.89.
    alpha = torch.full((4,), 0.05).double()
    gamma = alpha + torch.tensor([0.4, 3.0, 0.0, 0.4]).double()
    _, sticks = draws("sticks", alpha, gamma, 100_000, (0,))
    _, dirichlet = draws("dirichlet", alpha, gamma, 100_000, (0,))
    assert float(pareto_k(dirichlet[None])[0]) > 0.7
    # Three sticks with two ends. Each end has the prior's law with probability 1/120 or more.
    assert float(sticks.max()) <= 6 * math.log(120)
    assert float(sticks.max()) < float(dirichlet.max())


def test_any_topic_may_be_absent_in_mixture_draws() -> None:
    # A topic with 40 expected tokens is absent in some draws, as under the prior.
    alpha = torch.full((3,), 0.01).double()
    gamma = alpha + torch.tensor([0.3, 40.0, 0.0])
    log_theta, _ = draws("sticks", alpha, gamma, 20_000, (0,))
    assert int((log_theta[:, 1] < -20).sum()) > 10


def test_dirichlet_draws_have_the_dirichlet_moments() -> None:
    # Kolmogorov–Smirnov against the marginal Beta; false-failure rate 1e-4 each.
    gamma = torch.tensor([0.5, 3.0, 0.1]).double()
    log_theta, log_ratio = draws("dirichlet", gamma, gamma, 5000, (0,))
    torch.testing.assert_close(log_ratio, torch.zeros(5000).double(), atol=1e-9, rtol=0)
    for k in range(3):
        law = stats.beta(float(gamma[k]), float(gamma.sum() - gamma[k]))
        assert stats.kstest(log_theta[:, k].exp().numpy(), law.cdf).pvalue > 1e-4


def test_sticks_have_the_stated_density() -> None:
    # Two topics have a single stick. Its law is a mixture of four beta distributions.
    alpha, gamma = torch.tensor([0.4, 0.9]).double(), torch.tensor([2.0, 3.5]).double()
    posterior, nothing = SimpleNamespace(gamma=gamma[None]), (torch.empty(0), torch.empty(0))
    proposal = StickSpace.of(alpha).proposal("sticks", posterior, 0, nothing)
    z, log_q = proposal.draw(8, (3,))
    ends = []
    for a, tokens in zip(alpha.tolist(), (gamma - alpha).tolist(), strict=True):
        absent = 1.0 / (1.0 + math.expm1(tokens) ** 0.7)
        absent = min(max(absent, 0.05 / 2), 1.0 - 0.05 / 2)
        ends.append([(a, absent), (a - tokens / math.expm1(-tokens), 1.0 - absent)])
    v = torch.sigmoid(z[:, 0]).numpy()
    density = sum(
        own_share * after_share * stats.beta(own, after).pdf(v) * v * (1.0 - v)
        for own, own_share in ends[0]
        for after, after_share in ends[1]
    )
    torch.testing.assert_close(log_q.exp(), torch.tensor(density))
