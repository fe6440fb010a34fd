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
        message: Text of the error, followed by the most different numbers.
        rtol: Relative and absolute tolerance.
    """
    got, wanted = (x.detach().double().cpu() for x in (actual, expected))
    shaped(got, tuple(wanted.shape), f"{message}: a tensor")
    bad = ~got.isclose(wanted, rtol, rtol)
    if bad.any():
        worst = int((got - wanted).abs().nan_to_num(torch.inf).where(bad, -1.0).argmax())
        ours, theirs = (float(x.flatten()[worst]) for x in (got, wanted))
        where = f"{int(bad.sum())} of {bad.numel()} numbers differ by more than {rtol:g}"
        raise AssertionError(f"{message}: got {ours:.8g}; expected {theirs:.8g}; {where}")


def same(actual: Any, expected: Any, what: str) -> None:
    """Raise ``AssertionError`` unless two values are equal."""
    assert actual == expected, f"{what}: got {actual}; expected {expected}"


def shaped(tensor: Tensor, shape: tuple[int, ...], what: str) -> None:
    """Raise ``AssertionError`` unless a tensor has a shape."""
    same(tuple(tensor.shape), shape, f"the shape of {what}")


def finite(tensors: Mapping[str, Tensor], what: str) -> None:
    """Raise ``AssertionError`` if one of some named tensors contains NaN or inf."""
    bad = [name for name, x in tensors.items() if not torch.isfinite(x).all()]
    assert not bad, f"{what} NaN or inf in {', '.join(bad)}; expected finite numbers"


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
    remedy: str = "; or check with exact_m_step=False",
) -> None:
    """Check that M-steps do not lower their objective.

    Args:
        part: The prior, topics or words of the M-steps.
        density: Returns the objective, a log density at the current parameters, as a scalar.
        m_step: Makes the M-steps.
        slack: Tolerated decrease of the log density, for rounding errors.
        exact: Whether to check for a local maximum too.
        remedy: End of the message that there is no local maximum.
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
                f"{after} at its result, {nearby} nearby{remedy}"
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
