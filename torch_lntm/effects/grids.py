"""Rows of a formula's design matrix at a grid of values, for the documents to average over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_lntm.formulas import Formula
from torch_lntm.formulas.columns import plain_values

#: Most rows of a formula evaluated at once, to bound the memory of large grids.
MAX_ROWS = 50_000


def rows_at(
    formula: Formula,
    columns: Mapping[str, NDArray[Any]],
    weights: NDArray[np.float64],
    points: Sequence[Mapping[str, Any]],
    positions: NDArray[np.int64] | None = None,
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64] | None]]:
    """Design rows of the formula at each point, for all documents.

    Documents with equal values in all other columns are evaluated once, with the sum of their
    weights. Large grids are evaluated in parts.

    Args:
        formula: The formula.
        columns: ``(num_docs,)`` values of the formula's columns, by name.
        weights: ``(num_docs,)`` weights of the documents.
        points: Values by column name. All points have the same columns.
        positions: ``(num_docs, num_random_terms)`` levels of the documents, if they matter.

    Yields:
        For each point: rows ``(num_distinct, num_terms)``, weights ``(num_distinct,)`` of the
        distinct documents with the sum 1, and their levels ``(num_distinct, num_random_terms)`` if
        given.

    Raises:
        CorpusError: The formula was fitted without a value.
    """
    fixed = {
        name: formula.read(name, plain_values([point[name] for point in points]), "value")
        for name in points[0]
    }
    free = {name: column for name, column in columns.items() if name not in fixed}
    levels = [] if positions is None else list(positions.T)
    first, weights = distinct([*free.values(), *levels], weights)
    if positions is not None:
        positions = positions[first]
    size = len(first)
    others = {name: formula.read(name, column[first]) for name, column in free.items()}
    step = max(1, MAX_ROWS // size)
    for start in range(0, len(points), step):
        part = slice(start, start + step)
        num_points = len(points[part])
        values = {name: np.repeat(column[part], size) for name, column in fixed.items()}
        values |= {name: np.tile(column, num_points) for name, column in others.items()}
        matrix = formula.evaluate(values, num_points * size, "value", size)
        for rows in matrix.reshape(num_points, size, -1):
            yield rows, weights, positions


def distinct(
    columns: Sequence[NDArray[Any]], weights: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """First document of each group with equal values, and the groups' weights, of sum 1."""
    codes = np.zeros((len(weights), 1 + len(columns)), np.int64)
    for j, column in enumerate(columns):
        codes[:, j] = np.unique(column, return_inverse=True)[1]
    _, first, inverse = np.unique(codes, axis=0, return_index=True, return_inverse=True)
    sums = np.bincount(inverse.ravel(), weights).astype(np.float64)
    return first.astype(np.int64), sums / sums.sum()
