"""Contrasts of eta: how far a grid over them reaches."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from torch_lntm.latents import ContrastSpace, NormalSpace


def test_the_prior_is_negligible_outside_the_grid() -> None:
    """Holds on the near side of a posterior far from the prior mean too."""
    zero, eye = torch.zeros(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    space = ContrastSpace.of(NormalSpace(zero, eye))
    mean = torch.tensor([[9.0, -4.0, -5.0]], dtype=torch.float64)
    posterior = SimpleNamespace(mean=mean, scale_tril=0.1 * eye[None])
    depth = torch.tensor(45.0, dtype=torch.float64)
    grid = space.grid(posterior, 0, lambda z: depth, 11)
    lowest = float(space.log_density(grid.centre) - depth)
    # Points all around the grid.
    corner = grid.ends.sinh()
    along = torch.linspace(-1.0, 1.0, 201, dtype=torch.float64)[:, None] * corner
    for end in (-1.0, 1.0):
        for axis in range(space.dim):
            side = along.clone()
            side[:, axis] = end * corner[axis]
            z = grid.centre + side @ grid.scale.mT
            assert float(space.log_density(z).max()) <= lowest
