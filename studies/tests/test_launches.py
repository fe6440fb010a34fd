"""The study of launches; launches and host waits of the parts of a fit, which may only fall."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from studies.benchmarks.launch_costs import Cost, CountingDevice
from studies.benchmarks.launch_parts import Parts, Shape
from studies.benchmarks.launches import Settings, run, tables
from studies.measure import Cells
from torch_lntm.errors import ConfigError

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
    with CountingDevice() as device:
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
def test_launches_by_fused_kernels_do_not_increase(name: str, triton: torch.device) -> None:
    if triton.type != "cpu":
        pytest.skip("needs Triton's interpreter, which counts on the pretend device, without a GPU")
    launches, waits = FUSED[name]
    with CountingDevice() as device:
        cost = Parts(device, replace(SHAPE, num_docs=2, length=6)).by_name()[name]()
    assert cost.launches <= launches
    assert cost.waits <= waits


def test_counts_the_parts_that_were_asked_for() -> None:
    cells = Cells()
    settings = Settings(num_docs=8, num_words=20, num_topics=3, length=10, only=("expected",))
    costs = run(settings, cells)
    assert list(costs) == ["expected counts", "expected counts, words' too"]
    less, more = costs.values()
    assert 0 < less["launches"] < more["launches"]
    assert less["waits"] == more["waits"] == 0
    # 5 µs a launch.
    row = [cell.strip() for cell in tables(costs).splitlines()[2].split("|")[1:-1]]
    assert row[:3] == ["expected counts", str(less["launches"]), "0"]
    assert row[3] == f"{0.005 * less['launches']:.2f}"
    assert set(cells.done) == set(costs)


def test_no_part_of_that_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="no part has any of nothing"):
        run(Settings(num_docs=8, num_words=20, num_topics=3, only=("nothing",)), Cells())


@pytest.mark.parametrize(
    ("call", "cost"),
    [
        (lambda t: t + 1, Cost(1, 0)),
        (lambda t: t.exp().sum(), Cost(2, 0)),
        (lambda t: torch.where(t > 1, t, 0.0), Cost(3, 0)),  # with a fill for the scalar
        (lambda t: t.mT.view(3, 2)[:, None].expand(3, 4, 2), Cost(0, 0)),
        (lambda t: t[:0] + 1, Cost(0, 0)),  # nothing to do
        (lambda t: torch.ones(3).mul(2.0), Cost(0, 0)),  # on the CPU
        (lambda t: operator.setitem(t, t > 1, 0.0), Cost(3, 0)),
        (lambda t: t.sum().item(), Cost(1, 1)),
        (lambda t: t.cpu(), Cost(0, 1)),  # a copy of memory
        (lambda t: t.to("cpu", torch.float64), Cost(1, 1)),  # converted first
        (lambda t: torch.ones(3).cuda(), Cost(0, 1)),
        (lambda t: t[t > 1], Cost(6, 1)),
        (lambda t: torch.equal(t, t), Cost(2, 1)),
        (lambda t: t.flatten().repeat_interleave(t.long().flatten(), output_size=15), Cost(6, 0)),
        (lambda t: t.flatten().repeat_interleave(t.long().flatten()), Cost(6, 1)),
    ],
)
def test_launches_and_waits(call: Callable[[Tensor], Any], cost: Cost) -> None:
    with CountingDevice() as device:
        tensor = torch.arange(6.0, device="cuda").view(2, 3)
        with device.measure() as found:
            call(tensor)
    assert found == cost


def test_the_backward_pass_is_counted() -> None:
    with CountingDevice() as device:
        loss = torch.arange(6.0, device="cuda").requires_grad_().exp().sum()
        with device.measure() as cost:
            loss.backward()
    assert 2 <= cost.launches <= 3
    assert cost.waits == 0
