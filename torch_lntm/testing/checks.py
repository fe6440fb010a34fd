"""Helpers of the checks: shared tolerances, comparisons, and sites of a model's program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.subsample_messenger import _Subsample
from torch import Tensor, nn

from torch_lntm.corpus import DocumentBatch
from torch_lntm.models import TopicModel

#: Relative and absolute tolerance of numbers that must be equal.
RTOL, ATOL = 1e-6, 1e-8
#: Tolerance of means of draws, in standard errors. A check of 24 means fails falsely once in
#: 100,000 runs.
STANDARD_ERRORS = 5.5
#: Size and number of random steps away from an M-step's result.
NUDGE, NUDGES = 1e-3, 8


def equal(actual: Tensor, expected: Tensor, message: str, rtol: float = RTOL) -> None:
    """Raise ``AssertionError`` unless two tensors agree.

    Args:
        actual: A tensor.
        expected: A tensor of equal shape.
        message: Text of the error, followed by the differences.
        rtol: Relative and absolute tolerance.
    """
    both = (x.detach().double() for x in (actual, expected))
    torch.testing.assert_close(*both, rtol=rtol, atol=rtol, msg=lambda why: f"{message}: {why}")


def sound(name: str, value: Tensor, *shape: int) -> None:
    """Raise ``AssertionError`` unless a tensor has its shape, and finite numbers.

    Args:
        name: Name of the tensor, for the message.
        value: The tensor.
        *shape: Its sizes. By default they are not checked.
    """
    size = tuple(value.shape)
    assert size == (shape or size), f"{name} has shape {size}; expected {shape}"
    assert torch.isfinite(value).all(), f"{name} contains NaN or inf"


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
    assert after >= before - slack, (
        f"m_step() lowers the log density of its sums, from {before} to {after}"
    )
    parameters = [(x, x.clone()) for x in part.parameters() if x.requires_grad]
    for seed in range(NUDGES if exact else 0):
        for size in (NUDGE, -NUDGE):
            nudge_((x for x, _ in parameters), seed, size)
            nearby = float(density())
            assert nearby <= after + slack, (
                "m_step() does not maximise the log density of its sums: "
                f"{after} at its result, {nearby} nearby"
            )
            for parameter, value in parameters:
                parameter.copy_(value)


def check_sums(sums: Mapping[str, Tensor], parts: Sequence[Mapping[str, Tensor]]) -> None:
    """Check that statistics of all documents are the sums of those of parts of them."""
    for name, value in sums.items():
        total = torch.stack([part[name] for part in parts]).sum(0)
        equal(total, value, f"the statistic {name} of all documents is not the sum of its parts")


def latent_sites(model: TopicModel, batch: DocumentBatch) -> dict[str, Any]:
    """The documents' latent sites of the program, in its order."""
    trace: Any = poutine.trace(model).get_trace(batch)
    return {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample"
        and not site["is_observed"]
        and not isinstance(site["fn"], _Subsample)
        and name not in ("topics_prior", "document_prior", "words_prior")
    }
