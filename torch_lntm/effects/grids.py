"""Rows of a formula's design matrix at a grid of values, averaged over documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_lntm.formulas import Formula

#: Most rows of a formula evaluated at once, to bound the memory of large grids.
MAX_ROWS = 50_000


def average_rows(
    formula: Formula,
    columns: Mapping[str, NDArray[Any]],
    weights: NDArray[np.float64],
    points: Sequence[Mapping[str, Any]],
) -> NDArray[np.float64]:
    """Design row of the formula at each point, averaged over documents.

    Documents with equal values in all other columns are evaluated once, with the sum of their
    weights. Large grids are evaluated in parts.

    Args:
        formula: The formula.
        columns: ``(num_docs,)`` values of the formula's columns, by name.
        weights: ``(num_docs,)`` weights of the documents.
        points: Values by column name. All points have the same columns.

    Returns:
        ``(num_points, num_terms)`` rows.

    Raises:
        CorpusError: The formula was fitted without a value.
    """
    rows = [
        np.einsum("d,pdt->pt", weights, matrix)
        for matrix, weights, _ in rows_at(formula, columns, weights, points)
    ]
    return np.concatenate(rows)


def rows_at(
    formula: Formula,
    columns: Mapping[str, NDArray[Any]],
    weights: NDArray[np.float64],
    points: Sequence[Mapping[str, Any]],
    positions: NDArray[np.int64] | None = None,
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64] | None]]:
    """Design rows of the formula at each point, for the documents to average over.

    Args:
        formula: As for :func:`average_rows`.
        columns: As for :func:`average_rows`.
        weights: As for :func:`average_rows`.
        points: As for :func:`average_rows`.
        positions: ``(num_docs, num_random_terms)`` levels of the documents, if they matter.

    Yields:
        Rows ``(some_points, num_distinct, num_terms)``, weights ``(num_distinct,)`` of the distinct
        documents with the sum 1, and their levels ``(num_distinct, num_random_terms)`` if given.

    Raises:
        CorpusError: The formula was fitted without a value.
    """
    fixed = {
        name: formula.read(name, _values(name, points, columns[name]), "value")
        for name in points[0]
    }
    free = {name: column for name, column in columns.items() if name not in fixed}
    levels = [] if positions is None else list(positions.T)
    first, weights = _distinct([*free.values(), *levels], weights)
    if positions is not None:
        positions = positions[first]
    size, weights = len(first), weights / weights.sum()
    others = {name: formula.read(name, column[first]) for name, column in free.items()}
    step = max(1, MAX_ROWS // size)
    for start in range(0, len(points), step):
        part = slice(start, start + step)
        num_points = len(points[part])
        values = {name: np.repeat(column[part], size) for name, column in fixed.items()}
        values |= {name: np.tile(column, num_points) for name, column in others.items()}
        matrix = formula.evaluate(values, num_points * size, "value", size)
        yield matrix.reshape(num_points, size, -1), weights, positions


def _values(name: str, points: Sequence[Mapping[str, Any]], column: NDArray[Any]) -> NDArray[Any]:
    """A column's values at the points, in the array type of the metadata."""
    return np.array([point[name] for point in points], object if column.dtype == object else None)


def _distinct(
    columns: Sequence[NDArray[Any]], weights: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """First document of each group with equal values in all columns, and the groups' weights."""
    codes = np.zeros((len(weights), 1 + len(columns)), np.int64)
    for j, column in enumerate(columns):
        codes[:, j] = np.unique(column, return_inverse=True)[1]
    _, first, inverse = np.unique(codes, axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int64), np.bincount(inverse.ravel(), weights).astype(np.float64)
