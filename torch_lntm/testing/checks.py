"""Helpers of the checks: what they raise, and the tolerances that they share."""

from __future__ import annotations

import torch
from torch import Tensor

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
