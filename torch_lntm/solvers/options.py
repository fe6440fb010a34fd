"""SolveOptions, by which a guide tells a solver where to start and how far to go."""

from __future__ import annotations

from typing import Any, NamedTuple


class SolveOptions(NamedTuple):
    """Start, accuracy and inverse temperatures of a solver.

    Attributes:
        start: Tensor of starting means ``(num_docs, latent_dim)``, or of what the solver
            describes. A guide fills in its own start if there is none, so that a solver always has
            one.
        tolerance: Tolerance of a converged document, in the unit of the solver.
        max_iterations: Bound on the iterations of each document.
        inverse_temperature: Inverse temperature T of deterministic annealing, for normal
            posteriors (*Ahmed & Xing 2007, §3.2*).
        inverse_topic_temperature: Inverse temperature T of the topics, φ^T; those that a solver
            sees are tempered already.
    """

    start: Any = None
    tolerance: float = 1e-4
    max_iterations: int = 100
    inverse_temperature: float = 1.0
    inverse_topic_temperature: float = 1.0


#: The defaults: a guide's own start, and no annealing.
DEFAULTS = SolveOptions()
