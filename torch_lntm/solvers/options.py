"""SolveOptions: what a guide asks of a solver."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class SolveOptions(NamedTuple):
    """Start, accuracy and temperature of a solver.

    Attributes:
        start: Starting means of each document ``(num_docs, latent_dim)``, or what the solver
            describes.
        tolerance: Tolerance of a converged document, in the unit of the solver.
        max_iterations: Bound on the iterations of each document.
        temperature: Inverse temperature T of deterministic annealing, for normal posteriors.
    """

    start: Tensor
    tolerance: float
    max_iterations: int
    temperature: float = 1.0
