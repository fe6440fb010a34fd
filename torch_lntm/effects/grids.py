"""A formula's rows at a grid of values, averaged over documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_lntm.formulas import Formula

#: Rows up to which a formula is evaluated at once; it bounds the memory of large grids.
MAX_ROWS = 50_000


def average_rows(
    formula: Formula,
    columns: Mapping[str, NDArray[Any]],
    weights: NDArray[np.float64],
    points: Sequence[Mapping[str, Any]],
) -> NDArray[np.float64]:
    """The formula's row at each point, averaged over documents.

    Documents that agree in all columns but those of the points are evaluated once, with the sum of
    their weights. The whole grid is evaluated at once, in parts if it has many rows.

    Args:
        formula: The formula.
        columns: ``(num_docs,)`` values by name of the columns that the formula reads.
        weights: ``(num_docs,)`` weights of the documents.
        points: Values by the names of some columns, the same columns at each point.

    Returns:
        ``(num_points, num_terms)``.

    Raises:
        CorpusError: A value that the formula was not fitted to.
    """
    fixed = {
        name: formula.read(name, _values(name, points, columns[name]), "value")
        for name in points[0]
    }
    free = {name: column for name, column in columns.items() if name not in fixed}
    first, weights = _distinct(list(free.values()), weights)
    size, weights = len(first), weights / weights.sum()
    others = {name: formula.read(name, column[first]) for name, column in free.items()}
    rows = []
    at_once = max(1, MAX_ROWS // size)
    for start in range(0, len(points), at_once):
        part = slice(start, start + at_once)
        num_points = len(points[part])
        values = {name: np.repeat(at[part], size) for name, at in fixed.items()}
        values |= {name: np.tile(column, num_points) for name, column in others.items()}
        matrix = formula.evaluate(values, num_points * size, "value", size)
        rows.append(np.einsum("d,pdt->pt", weights, matrix.reshape(num_points, size, -1)))
    return np.concatenate(rows)


def _values(name: str, points: Sequence[Mapping[str, Any]], column: NDArray[Any]) -> NDArray[Any]:
    """The points' values of a column, as metadata hold them."""
    return np.array([point[name] for point in points], object if column.dtype == object else None)


def _distinct(
    columns: Sequence[NDArray[Any]], weights: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The first of the documents that agree in all columns, and the sums of their weights."""
    codes = np.zeros((len(weights), 1 + len(columns)), np.int64)
    for j, column in enumerate(columns):
        codes[:, j] = np.unique(column, return_inverse=True)[1]
    _, first, inverse = np.unique(codes, axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int64), np.bincount(inverse.ravel(), weights).astype(np.float64)
