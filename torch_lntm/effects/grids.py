"""Rows of a formula at grids of values, for the documents to average over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_lntm.formulas import Formula

#: Most rows of a formula evaluated at once, to bound the memory of large grids.
MAX_ROWS = 50_000


class Documents(NamedTuple):
    """Documents that differ in some columns or levels, each with the weight of all its equals.

    Attributes:
        first: ``(num_distinct,)`` the first of the equal documents.
        read: ``(num_distinct,)`` values by column, as read by the formula.
        weights: ``(num_distinct,)`` weights, with the sum 1.
        positions: ``(num_distinct, num_random_terms)`` levels of the random terms.
    """

    first: NDArray[np.int64]
    read: Mapping[str, NDArray[Any]]
    weights: NDArray[np.float64]
    positions: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        read: Mapping[str, NDArray[Any]],
        weights: NDArray[np.float64],
        positions: NDArray[np.int64],
    ) -> Documents:
        """The different documents among all documents."""
        codes = [np.unique(x, return_inverse=True)[1] for x in (*read.values(), *positions.T)]
        _, first, inverse = np.unique(
            np.stack(codes, 1), axis=0, return_index=True, return_inverse=True
        )
        sums = np.bincount(inverse.ravel(), weights).astype(np.float64)
        different = {name: column[first] for name, column in read.items()}
        return cls(first.astype(np.int64), different, sums / sums.sum(), positions[first])

    def rows(
        self, formula: Formula, fixed: Mapping[str, NDArray[Any]], num_points: int
    ) -> Iterator[NDArray[np.float64]]:
        """Design rows of the documents at each point. Large grids are evaluated in parts.

        Args:
            formula: The formula.
            fixed: ``(num_points,)`` values of all other columns, as read by the formula.
            num_points: Number of points.

        Yields:
            ``(num_distinct, num_terms)`` for each point.
        """
        size = len(self.first)
        step = max(1, MAX_ROWS // size)
        for start in range(0, num_points, step):
            count = min(step, num_points - start)
            values = {n: np.repeat(x[start : start + count], size) for n, x in fixed.items()}
            values |= {name: np.tile(column, count) for name, column in self.read.items()}
            yield from formula.evaluate(values, count * size, "value", size).reshape(
                count, size, -1
            )
