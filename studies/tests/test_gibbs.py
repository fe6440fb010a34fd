"""Gibbs sampling of theta against enumeration and SciPy's laws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special, stats

from studies.scores.accuracy.gibbs import gibbs
from tests.support.problems import make_batch

TOPICS = np.random.default_rng(0).dirichlet(np.full(5, 0.5), 3)
COUNTS = np.array([[3, 0, 1, 0, 2], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 1, 0, 4, 1]])


def draw(counts: np.ndarray, alpha: list[float], device: torch.device, **options) -> torch.Tensor:
    settings = {"num_chains": 20, "num_draws": 400, "warmup_sweeps": 50, **options}
    batch = make_batch(counts, device)
    topics = torch.from_numpy(TOPICS).to(device)
    return gibbs(batch, topics, torch.tensor(alpha).double().to(device), **settings)


def exact(alpha: np.ndarray, bag: np.ndarray) -> np.ndarray:
    """E theta and E theta² given a bag, by every assignment of its tokens to topics."""
    tokens = np.repeat(np.arange(5), bag)
    total, mean = 0.0, np.zeros((2, len(alpha)))
    for z in np.ndindex(*[len(alpha)] * len(tokens)):
        topics = np.array(z, dtype=int)
        gamma = alpha + np.bincount(topics, minlength=len(alpha))
        p = np.prod(TOPICS[topics, tokens]) * np.exp(special.gammaln(gamma).sum())
        size = gamma.sum()
        total += p
        mean += p * np.stack([gamma / size, gamma * (gamma + 1) / (size * (size + 1))])
    return mean / total


@pytest.mark.slow
@pytest.mark.stat
@pytest.mark.parametrize("alpha", [[0.7, 2.0, 0.3], [0.1, 0.05, 0.2]])
def test_moments_equal_the_enumeration(alpha: list[float], device: torch.device) -> None:
    """24 means within 6 standard errors between 20 chains, Student-t: false-failure rate 2e-4."""
    theta = draw(COUNTS, alpha, device, sweeps=3)
    draws = torch.stack([theta, theta.square()], -2)
    chains = draws.mean(1)
    error = chains.std(0) / np.sqrt(len(chains))
    for d, bag in enumerate(COUNTS):
        off = (chains.mean(0)[d] - torch.from_numpy(exact(np.array(alpha), bag))).abs()
        assert bool((off < 6.0 * error[d]).all()), d
    assert float(error.max()) < 0.02


def test_a_document_does_not_depend_on_its_batch(device: torch.device) -> None:
    options = {"num_chains": 2, "num_draws": 5, "warmup_sweeps": 3}
    batch = make_batch(COUNTS, device)
    topics, alpha = torch.from_numpy(TOPICS).to(device), torch.ones(3, device=device).double()
    rows = torch.tensor([3, 0], device=device)
    together = gibbs(batch, topics, alpha, **options)
    torch.testing.assert_close(
        gibbs(batch.select(rows), topics, alpha, **options), together[:, :, rows.cpu()]
    )
    assert not torch.allclose(gibbs(batch, topics, alpha, seed=1, **options), together)
    more = gibbs(batch, topics, alpha, **{**options, "num_draws": 2, "sweeps": 2})
    torch.testing.assert_close(more, together[:, [1, 3]])
    assert not torch.allclose(together[0], together[1])


def test_extreme_concentrations_give_proportions(device: torch.device) -> None:
    """Topics without common words, tiny concentrations, a huge count."""
    eye = torch.eye(5, dtype=torch.float64, device=device)[:3].clamp_min(1e-30)
    counts = np.array([[200_000, 0, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
    alpha = torch.full((3,), 1e-6, device=device).double()
    theta = gibbs(
        make_batch(counts, device), eye, alpha, num_chains=2, num_draws=5, warmup_sweeps=2
    )
    torch.testing.assert_close(theta.sum(-1), torch.ones(2, 5, 3).double())
    torch.testing.assert_close(theta[:, :, 0, 0], torch.ones(2, 5).double())
    assert bool((theta[:, :, 1] > 1e-9).all())


def test_draws_do_not_depend_on_the_chunks_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"num_chains": 2, "num_draws": 5, "warmup_sweeps": 3}
    whole = draw(COUNTS, [0.5, 1.0, 2.0], torch.device("cpu"), **options)
    monkeypatch.setattr("studies.scores.accuracy.gibbs._MAX_NUMBERS", 2 * 3 * 4)
    assert torch.equal(whole, draw(COUNTS, [0.5, 1.0, 2.0], torch.device("cpu"), **options))


@pytest.mark.slow
@pytest.mark.stat
@pytest.mark.parametrize("alpha", [[0.7, 2.0, 0.3], [0.1, 0.05, 0.2]])
def test_multinomial_draws_of_counts_have_equal_moments(
    alpha: list[float], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, with a multinomial draw for every count above 1: false-failure rate 2e-4."""
    monkeypatch.setattr("studies.scores.accuracy.gibbs._MAX_TOKENS", 1)
    theta = draw(COUNTS, alpha, device, sweeps=3)
    chains = torch.stack([theta, theta.square()], -2).mean(1)
    error = chains.std(0) / np.sqrt(len(chains))
    for d, bag in enumerate(COUNTS):
        off = (chains.mean(0)[d] - torch.from_numpy(exact(np.array(alpha), bag))).abs()
        assert bool((off < 6.0 * error[d]).all()), d


def test_multinomial_draws_of_counts_do_not_depend_on_the_batch(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("studies.scores.accuracy.gibbs._MAX_TOKENS", 1)
    test_a_document_does_not_depend_on_its_batch(device)


@pytest.mark.parametrize("seed", range(3))
def test_a_huge_count_has_its_exact_law_in_bounded_memory(device: torch.device, seed: int) -> None:
    """Topics of one word each: theta_0 ~ Beta(1 + n, 1 + m) exactly.

    Kolmogorov–Smirnov of independent draws, false-failure rate 1e-4 each.
    """
    counts = np.array([[3 * 10**8, 5], [10**8, 2 * 10**8]])
    topics = torch.eye(2, dtype=torch.float64, device=device)
    options = {"num_chains": 200, "num_draws": 1, "warmup_sweeps": 1, "seed": seed}
    alpha = torch.ones(2, dtype=torch.float64, device=device)
    theta = gibbs(make_batch(counts, device), topics, alpha, **options)[:, 0].numpy()
    for document, (n, m) in enumerate(counts):
        # The smaller proportion. The larger proportion has no digits left.
        values, law = (theta[:, document, 1], stats.beta(1 + m, 1 + n))
        assert stats.kstest(values, law.cdf).pvalue > 1e-4


def test_a_huge_count_follows_its_expectation(device: torch.device) -> None:
    """A sweep over very many tokens of a word multiplies the topics' odds by their φ.

    600 changes at 6 standard errors, of a multinomial and a Dirichlet: false-failure rate 1e-6.
    """
    size = 3 * 10**8
    topics = torch.tensor([[0.5, 0.5], [0.3, 0.7]], dtype=torch.float64, device=device)
    alpha = torch.ones(2, dtype=torch.float64, device=device)
    batch = make_batch(np.array([[size, 0]]), device)
    theta = gibbs(batch, topics, alpha, num_chains=200, num_draws=4, warmup_sweeps=0)[:, :, 0]
    log_odds = (theta[..., 0] / theta[..., 1]).log()
    error = (2.0 / (size * theta.prod(-1).amin(1))).sqrt()[:, None]
    assert bool(((log_odds.diff(dim=1) - np.log(5 / 3)).abs() < 6.0 * error).all())
    assert len(log_odds.unique()) == log_odds.numel()
