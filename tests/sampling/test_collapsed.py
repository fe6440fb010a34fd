"""Collapsed Gibbs sampling against enumeration of the tokens' topics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles.dirichlet import enumerated_moments
from support.problems import make_batch

from torch_lntm.sampling.collapsed import CollapsedGibbs

TOPICS = np.random.default_rng(0).dirichlet(np.full(5, 0.5), 3)
COUNTS = np.array([[3, 0, 1, 0, 2], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 1, 0, 4, 1]])
ALPHA = np.array([0.3, 0.8, 0.15])


def chains(counts: np.ndarray, device: torch.device, **options) -> CollapsedGibbs:
    settings = {"num_chains": 20, **options}
    topics, alpha = (torch.from_numpy(x).to(device) for x in (TOPICS, ALPHA))
    return CollapsedGibbs(make_batch(counts, device), topics, alpha, **settings)


@pytest.mark.stat
def test_means_equal_the_enumeration(device: torch.device) -> None:
    """9 means within 6 standard errors between 20 chains, Student-t: false-failure rate 1e-4."""
    gibbs = chains(COUNTS, device)
    for _ in range(20):
        gibbs.sweep()
    means = torch.stack([gibbs.sweep() for _ in range(300)], 1).mean(1).cpu()
    error = means.std(0) / np.sqrt(len(means))
    for d, bag in enumerate(COUNTS):
        off = (means.mean(0)[d] - torch.from_numpy(enumerated_moments(ALPHA, bag, TOPICS)[0])).abs()
        assert bool((off <= 6.0 * error[d] + 1e-12).all()), d
    assert 0.0 < float(error.max()) < 0.01


def test_documents_of_zero_and_one_token_are_exact(device: torch.device) -> None:
    theta = chains(COUNTS, device, num_chains=3).sweep().cpu()
    assert theta.shape == (3, 4, 3)
    torch.testing.assert_close(theta.sum(-1), torch.ones(3, 4).double())
    for d in (1, 2):
        expected = torch.from_numpy(enumerated_moments(ALPHA, COUNTS[d], TOPICS)[0]).expand(3, 3)
        torch.testing.assert_close(theta[:, d], expected)


def test_topics_without_common_words_fix_the_topics_of_tokens(device: torch.device) -> None:
    eye = torch.eye(5, dtype=torch.float64, device=device)[:3]
    batch = make_batch(np.array([[7, 2, 0, 0, 0], [0, 0, 0, 3, 0]]), device)
    alpha = torch.full((3,), 1e-6, device=device).double()
    theta = CollapsedGibbs(batch, eye, alpha, num_chains=2).sweep().cpu()
    expected = torch.tensor([[7.0, 2.0, 0.0], [1.0, 1.0, 1.0]]).double()
    expected = expected / expected.sum(1, keepdim=True)
    torch.testing.assert_close(theta[:, 0], expected[None, 0].expand(2, 3), atol=1e-6, rtol=0)
    # A word without any topic carries no information.
    assert bool(theta[:, 1].isfinite().all())
