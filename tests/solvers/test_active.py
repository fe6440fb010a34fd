"""The set of active documents of a solver."""

from __future__ import annotations

import pytest
import torch

from torch_lntm.solvers.active import (
    ActiveSet,
    bound_rounding,
    converged_or_failed,
)


def flags(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bool)


def test_stopped_documents_are_dropped_from_all_held_values() -> None:
    active = ActiveSet(4, torch.device("cpu"))
    table = torch.arange(8.0).reshape(4, 2)
    active.step(flags(0, 1, 0, 0), flags(0, 0, 0, 1))
    table, nothing = active.drop_stopped(table, None)
    assert active.rows.tolist() == [0, 2]
    assert table.tolist() == [[0.0, 1.0], [4.0, 5.0]]
    assert nothing is None
    assert not active.finished

    active.step(flags(1, 0))
    (table,) = active.drop_stopped(table)
    assert active.rows.tolist() == [2]
    assert table.tolist() == [[4.0, 5.0]]
    # The last document ends the loop. It stays held, so its values can still be read.
    active.step(flags(1))
    (table,) = active.drop_stopped(table)
    assert active.finished
    assert table.tolist() == [[4.0, 5.0]]

    assert active.converged.tolist() == [True, True, True, False]
    assert active.iterations.tolist() == [2, 1, 3, 1]
    assert active.working.tolist() == [False] * 4


def test_a_held_failed_document_does_not_converge_later() -> None:
    active, table = ActiveSet(3, torch.device("cpu"), idle_share=0.5), torch.arange(3)
    active.step(flags(0, 0, 0), flags(1, 0, 0))
    (table,) = active.drop_stopped(table)
    active.step(flags(1, 0, 0))
    assert table.tolist() == active.rows.tolist() == [0, 1, 2]
    assert active.converged.tolist() == [False, False, False]
    assert active.iterations.tolist() == [1, 2, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_of_a_bound_includes_the_logits_of_every_token(dtype) -> None:
    found = bound_rounding(
        torch.tensor([-600.0, -600.0, 0.0], dtype=torch.float64),
        torch.tensor([0.0, 50.0, 10.0], dtype=dtype),
        torch.tensor([[9.0, 9.0], [3.0, -100.0], [2.0, 1.0]], dtype=dtype),
    )
    unit = 4 * torch.finfo(dtype).eps
    assert found.tolist() == pytest.approx([600 * unit, 5600 * unit, 20 * unit], rel=1e-6)


@pytest.mark.parametrize(
    ("gain", "rounding", "expected"),
    [
        (torch.inf, 1e-3, (False, False)),
        (1.1e-2, 1.0, (False, False)),
        (1e-2, 1e-3, (True, False)),
        (-1e-2, 1e-3, (True, False)),
        # A fall within rounding is convergence. A larger fall is failure.
        (-0.9, 1.0, (True, False)),
        (-1.1, 1.0, (False, True)),
        (-1.1e-2, 1e-3, (False, True)),
        (torch.nan, 1e-3, (False, False)),
    ],
)
def test_a_round_converges_or_fails_by_its_gain(gain, rounding, expected) -> None:
    gain, rounding = (torch.tensor([x], dtype=torch.float64) for x in (gain, rounding))
    converged, failed = converged_or_failed(gain, 1e-2, rounding)
    assert (bool(converged), bool(failed)) == expected
