"""Launches and host waits of the parts of a fit, which may only fall."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from support.launches import Parts, Shape
from support.pretend import PretendDevice

SHAPE = Shape(num_docs=16, num_words=30, num_topics=4, num_sources=2, length=20)

# Launches and waits as counted. Numbers here may be lowered, never raised: who launches more, or
# waits where there was no wait, makes every fit on a GPU slower.
EXACT = {
    "expected counts": (17, 0),
    "expected counts, words' too": (21, 0),
    "leapfrog, ctm, prior metric": (21, 0),
    "leapfrog, ctm, taylor metric": (23, 0),
    "leapfrog, ctm, laplace metric": (23, 0),
    "leapfrog, gaussian iftm, prior metric": (27, 0),
    "leapfrog, laplace iftm, prior metric": (29, 0),
    "transition, ctm, prior metric": (154, 0),
    "transition, ctm, taylor metric": (165, 0),
    "transition, ctm, laplace metric": (165, 0),
    "transition, gaussian iftm, prior metric": (184, 0),
    "transition, laplace iftm, prior metric": (199, 0),
    "iteration, lda, DirichletGuide": (43, 1),
    "iteration, lda, EPGuide": (599, 2),
}

# The same where loops end when their documents have converged, which rounding may put off.
UNTIL_CONVERGED = {
    "iteration, ctm, TaylorGuide": (123, 2),
    "iteration, ctm, LaplaceGuide": (123, 2),
    "iteration, ctm, BleiLaffertyGuide": (430, 4),
    "iteration, ctm, KhanBouchardGuide": (581, 9),
    "iteration, gaussian iftm, TaylorGuide": (130, 2),
    "iteration, gaussian iftm, LaplaceGuide": (130, 2),
    "iteration, gaussian iftm, FactorGuide": (327, 2),
    "iteration, laplace iftm, FactorGuide": (392, 3),
    "E-step, ctm, TaylorGuide": (1752, 38),
    "E-step, ctm, BleiLaffertyGuide": (4166, 51),
    "E-step, ctm, KhanBouchardGuide": (4276, 76),
    # Eight steps an epoch. Some 16 launches of each find the documents that need float64.
    "stochastic epoch, ctm, TaylorGuide": (4197, 84),
    "stochastic epoch, ctm, BleiLaffertyGuide": (9933, 119),
    "stochastic epoch, gaussian iftm, TaylorGuide": (5066, 92),
    "stochastic epoch, laplace iftm, FactorGuide": (11984, 120),
    "stochastic epoch, lda, DirichletGuide": (1846, 73),
    # Three transitions of eight leapfrogs.
    "Monte-Carlo EM epoch, ctm": (1073, 4),
    "SVI step, ctm, TaylorGuide": (1038, 57),
}
ROOM = 1.1

# As the first, of a few short documents, by Triton's kernels.
FUSED = {
    "expected counts": (1, 0),
    "expected counts, words' too": (2, 0),
    "leapfrog, ctm, prior metric": (0, 0),
    "leapfrog, ctm, taylor metric": (12, 0),
    "transition, ctm, prior metric": (4, 0),
    "transition, gaussian iftm, prior metric": (4, 0),
    "Monte-Carlo EM epoch, ctm": (290, 4),
}


@pytest.fixture
def parts() -> Iterator[Parts]:
    with PretendDevice() as device:
        yield Parts(device, SHAPE)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EXACT, *UNTIL_CONVERGED])
def test_launches_and_waits_do_not_increase(name: str, parts: Parts) -> None:
    launches, waits = EXACT.get(name) or [ROOM * number for number in UNTIL_CONVERGED[name]]
    cost = parts.by_name()[name]()
    assert 0 < cost.launches <= launches
    assert cost.waits <= waits


@pytest.mark.slow
@pytest.mark.parametrize("name", FUSED)
def test_launches_by_fused_kernels_do_not_increase(name: str, fused: torch.device) -> None:
    if fused.type != "cpu":
        pytest.skip("needs Triton's interpreter, which counts on the pretend device, without a GPU")
    launches, waits = FUSED[name]
    with PretendDevice() as device:
        cost = Parts(device, replace(SHAPE, num_docs=2, length=6)).by_name()[name]()
    assert cost.launches <= launches
    assert cost.waits <= waits
