"""The set of active documents of a solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from torch_lntm.solvers.active import (
    ActiveSet,
    bound_rounding,
    converged_or_failed,
    replace_rows,
    select_rows,
)


def flags(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bool)


@dataclass
class Named:
    """A held value of another kind than a tensor."""

    names: list[str]

    def select(self, rows: torch.Tensor) -> Named:
        return Named([self.names[row] for row in rows.tolist()])


def test_stopped_documents_are_dropped_from_all_held_values() -> None:
    active = ActiveSet(4, torch.device("cpu"))
    table, named = torch.arange(8.0).reshape(4, 2), Named(list("abcd"))
    active.step(flags(0, 1, 0, 0), flags(0, 0, 0, 1))
    table, named, nothing = active.drop_stopped(table, named, None)
    assert active.rows.tolist() == [0, 2]
    assert table.tolist() == [[0.0, 1.0], [4.0, 5.0]]
    assert named.names == ["a", "c"]
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


def test_stopped_documents_are_held_up_to_the_idle_share_of_the_cost() -> None:
    active = ActiveSet(4, torch.device("cpu"), sizes=torch.tensor([0, 5, 1, 4]), idle_share=0.25)
    table = torch.arange(4)
    active.step(flags(0, 0, 1, 0))
    assert active.drop_stopped(table)[0] is table
    # A stopped document is ignored, even if it seems to fail now.
    active.step(flags(0, 1, 0, 0), flags(0, 0, 1, 0))
    (table,) = active.drop_stopped(table)
    assert table.tolist() == active.rows.tolist() == [0, 3]
    active.step(flags(0, 1))
    active.drop_stopped(table)
    # An active document without cost delays the end.
    assert not active.finished
    assert active.rows.tolist() == [0]
    assert active.converged.tolist() == [False, True, True, True]
    assert active.iterations.tolist() == [3, 2, 1, 3]


def test_a_held_failed_document_does_not_converge_later() -> None:
    active, table = ActiveSet(3, torch.device("cpu"), idle_share=0.5), torch.arange(3)
    active.step(flags(0, 0, 0), flags(1, 0, 0))
    (table,) = active.drop_stopped(table)
    active.step(flags(1, 0, 0))
    assert table.tolist() == active.rows.tolist() == [0, 1, 2]
    assert active.converged.tolist() == [False, False, False]
    assert active.iterations.tolist() == [1, 2, 2]


class Inner(NamedTuple):
    table: torch.Tensor


class Outer(NamedTuple):
    values: torch.Tensor
    inner: Inner
    named: Named | None


def test_rows_are_selected_in_all_members_of_a_tuple() -> None:
    whole = Outer(torch.arange(3.0), Inner(torch.arange(6.0).reshape(3, 2)), Named(list("abc")))
    part = select_rows(whole, torch.tensor([2, 0]))
    assert isinstance(part, Outer)
    assert isinstance(part.inner, Inner)
    assert part.values.tolist() == [2.0, 0.0]
    assert part.inner.table.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert part.named.names == ["c", "a"]
    assert select_rows(whole._replace(named=None), torch.tensor([1])).named is None


def test_rows_are_replaced_in_place_in_all_members() -> None:
    mine = (torch.zeros(3), Inner(torch.zeros(3, 2)))
    replace_rows(mine, torch.tensor([2, 0]), (torch.tensor([1.0, 2.0]), Inner(torch.ones(2, 2))))
    assert mine[0].tolist() == [2.0, 0.0, 1.0]
    assert mine[1].table.tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    with pytest.raises(ValueError, match="zip"):
        replace_rows(mine, torch.tensor([0]), (torch.zeros(1),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_of_a_bound_includes_the_logits_of_every_token(dtype) -> None:
    found = bound_rounding(
        torch.tensor([-600.0, -600.0, 0.0], dtype=torch.float64),
        torch.tensor([0.0, 50.0, 10.0], dtype=dtype),
        torch.tensor([[9.0, 9.0], [3.0, -100.0], [2.0, 1.0]], dtype=dtype),
    )
    unit = 4 * torch.finfo(dtype).eps
    assert found.tolist() == pytest.approx([600 * unit, 5600 * unit, 20 * unit], rel=1e-6)


def test_an_empty_batch_is_finished_at_the_start() -> None:
    assert ActiveSet(0, torch.device("cpu")).finished


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
    values = (torch.tensor([x], dtype=torch.float64) for x in (gain, rounding))
    gain, rounding = values
    converged, failed = converged_or_failed(gain, 1e-2, rounding)
    assert (bool(converged), bool(failed)) == expected
