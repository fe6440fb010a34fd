"""Helpers of the checks: what they raise, and the tolerances that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

#: Relative and absolute error of numbers that should be equal.
RTOL, ATOL = 1e-6, 1e-8
#: Standard errors by which means of draws may be off: 24 of them fail falsely once in 100,000
#: checks.
STANDARD_ERRORS = 5.5
#: Size and number of the moves of parameters away from what an M-step leaves.
NUDGE, NUDGES = 1e-3, 8


def check(holds: bool, message: str) -> None:
    """Raise ``AssertionError`` with a message unless something holds."""
    if not holds:
        raise AssertionError(message)


def equal(found: Tensor, expected: Tensor, message: str, rtol: float = RTOL) -> None:
    """Raise ``AssertionError`` unless two tensors agree; the message says by how much they differ.

    Args:
        found: A tensor.
        expected: A tensor of the same shape.
        message: Text of the error.
        rtol: Relative and absolute tolerance.
    """
    found, expected = found.detach().double(), expected.detach().double()
    worst = float((found - expected).abs().max()) if found.numel() else 0.0
    check(
        found.shape == expected.shape and torch.allclose(found, expected, rtol=rtol, atol=rtol),
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
    """Check that M-steps do not lower the density of what they were given.

    Args:
        part: The prior, topics or words, which M-steps change.
        density: Returns the log density at the present parameters, as a scalar.
        m_step: Makes the M-steps.
        slack: Loss of log density that counts as rounding.
        exact: Nothing near the parameters may exceed the density either.
    """
    before = float(density())
    m_step()
    after = float(density())
    check(
        after >= before - slack,
        f"m_step() lowers the log density of what it was given, from {before} to {after}",
    )
    parameters = [(x, x.clone()) for x in part.parameters() if x.requires_grad]
    for seed in range(NUDGES if exact else 0):
        for size in (NUDGE, -NUDGE):
            nudge_((x for x, _ in parameters), seed, size)
            there = float(density())
            check(
                there <= after + slack,
                "m_step() does not maximise the log density of what it was given: "
                f"{after} there, {there} near it",
            )
            for parameter, value in parameters:
                parameter.copy_(value)
