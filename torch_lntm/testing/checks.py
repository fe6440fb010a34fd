"""Helpers of the checks: assertions and shared tolerances."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

#: Relative and absolute tolerance of numbers that must be equal.
RTOL, ATOL = 1e-6, 1e-8
#: Tolerance of means of draws, in standard errors. A check of 24 means fails falsely once in
#: 100,000 runs.
STANDARD_ERRORS = 5.5
#: Size and number of random steps away from an M-step's result.
NUDGE, NUDGES = 1e-3, 8


def check(holds: bool, message: str) -> None:
    """Raise ``AssertionError`` with a message unless a condition holds."""
    if not holds:
        raise AssertionError(message)


def equal(actual: Tensor, expected: Tensor, message: str, rtol: float = RTOL) -> None:
    """Raise ``AssertionError`` unless two tensors agree. The error shows the largest difference.

    Args:
        actual: A tensor.
        expected: A tensor of equal shape.
        message: Text of the error.
        rtol: Relative and absolute tolerance.
    """
    actual, expected = actual.detach().double(), expected.detach().double()
    worst = float((actual - expected).abs().max()) if actual.numel() else 0.0
    check(
        actual.shape == expected.shape and torch.allclose(actual, expected, rtol=rtol, atol=rtol),
        f"{message} (largest difference {worst:.3g})",
    )


@torch.no_grad()
def nudge_(parameters: Iterable[Tensor], seed: int, size: float = NUDGE) -> None:
    """Move parameters by a small random step."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        step = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.add_(size * step.to(parameter.device))


@torch.no_grad()
def check_m_step(
    part: nn.Module,
    density: Callable[[], Tensor],
    m_step: Callable[[], None],
    slack: float,
    exact: bool = True,
) -> None:
    """Check that M-steps do not lower their objective.

    Args:
        part: The prior, topics or words of the M-steps.
        density: Returns the objective, a log density at the current parameters, as a scalar.
        m_step: Makes the M-steps.
        slack: Tolerated decrease of the log density, for rounding errors.
        exact: Whether to check for a local maximum too.
    """
    before = float(density())
    m_step()
    after = float(density())
    check(
        after >= before - slack,
        f"m_step() lowers the log density of its sums, from {before} to {after}",
    )
    parameters = [(x, x.clone()) for x in part.parameters() if x.requires_grad]
    for seed in range(NUDGES if exact else 0):
        for size in (NUDGE, -NUDGE):
            nudge_((x for x, _ in parameters), seed, size)
            nearby = float(density())
            check(
                nearby <= after + slack,
                "m_step() does not maximise the log density of its sums: "
                f"{after} at its result, {nearby} nearby",
            )
            for parameter, value in parameters:
                parameter.copy_(value)
