"""Broken sticks: how far a grid over their logits reaches."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from torch_lntm.latents import StickSpace


def test_the_prior_is_negligible_outside_the_grid() -> None:
    """Holds on the near side of a posterior far from the middle too."""
    alpha = torch.tensor([1.0, 1.0], dtype=torch.float64)
    space = StickSpace.of(alpha)
    posterior = SimpleNamespace(gamma=torch.tensor([[2000.0, 1.0]], dtype=torch.float64))
    depth = torch.tensor(45.0, dtype=torch.float64)
    grid = space.grid(posterior, 0, lambda z: depth, 11)
    lowest = space.log_density(grid.centre) - depth
    for end in (-grid.ends, grid.ends):
        z = grid.centre + grid.scale @ end.sinh()
        assert float(space.log_density(z)) <= float(lowest)
