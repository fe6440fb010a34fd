"""Averages of predictions over the documents, their differences and their derivatives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus.metadata import as_metadata
from torch_lntm.effects.design import Design
from torch_lntm.effects.linear import LinearRegression
from torch_lntm.effects.logit import AVERAGE, NEW, LogitRegression
from torch_lntm.effects.regression import Scale
from torch_lntm.errors import require_one
from torch_lntm.formulas import Formula
from torch_lntm.formulas.columns import read_columns
from torch_lntm.formulas.language import level_column

#: Values of the columns that a prediction does not set.
Others = Literal["average", "typical"]
#: Step of a derivative, in standard deviations of the column.
STEP = 1e-3
#: Most rows of a formula evaluated at once, to bound the memory of large grids.
MAX_ROWS = 50_000


class Documents(NamedTuple):
    """The distinct documents, each with the weight of all that equal it in the relevant columns.

    Attributes:
        first: ``(num_distinct,)`` the first of the equal documents.
        read: A row for each of them, as read by the formula.
        weights: ``(num_distinct,)`` weights, with the sum 1.
        positions: ``(num_distinct, num_random_terms)`` levels of the random terms.
    """

    first: NDArray[np.int64]
    read: pd.DataFrame
    weights: NDArray[np.float64]
    positions: NDArray[np.int64]

    @classmethod
    def of(
        cls, read: pd.DataFrame, weights: NDArray[np.float64], positions: NDArray[np.int64]
    ) -> Documents:
        """The different documents among all documents."""
        columns = [read[name].to_numpy() for name in read]
        codes = [np.unique(x, return_inverse=True)[1] for x in (*columns, *positions.T)]
        _, first, inverse = np.unique(
            np.stack(codes, 1), axis=0, return_index=True, return_inverse=True
        )
        sums = np.bincount(inverse.ravel(), weights).astype(np.float64)
        different = read.iloc[first].reset_index(drop=True)
        return cls(first.astype(np.int64), different, sums / sums.sum(), positions[first])


class Quantity(NamedTuple):
    """A function of the coefficients: an average of predictions, a difference or a derivative.

    Attributes:
        estimates: ``(num_responses,)``.
        gradients: ``(num_responses, num_coefficients)``.
        row: ``(num_terms,)`` average of the rows of the design.
        scale: Scale on which intervals are symmetric.
    """

    estimates: Tensor
    gradients: Tensor
    row: NDArray[np.float64]
    scale: Scale

    def less(self, other: Quantity) -> Quantity:
        """The difference."""
        gradients, row = self.gradients - other.gradients, self.row - other.row
        scale: Scale = "atanh" if self.scale == "logit" else "identity"
        return Quantity(self.estimates - other.estimates, gradients, row, scale)


@dataclass(frozen=True, eq=False)
class Averages:
    """Averages of a regression's predictions over the documents, at their own or other values.

    Attributes:
        formula: The fitted formula.
        regression: The regression, pooled over draws.
        design: Design of the regression.
        columns: The formula's columns, with a row for each document with words.
    """

    formula: Formula
    regression: LinearRegression | LogitRegression
    design: Design
    columns: pd.DataFrame

    # -- documents -------------------------------------------------------------------------------

    @cached_property
    def everyone(self) -> Documents:
        """All documents, with their own values."""
        return self.documents()

    def documents(
        self,
        others: Others = "average",
        *replaced: str,
        rows: NDArray[np.int64] | slice = slice(None),
    ) -> Documents:
        """The documents, distinct in all columns but the replaced ones, or the typical document."""
        if others == "typical":
            columns = as_metadata({name: [self._typical(name)] for name in self.columns})
            weights, positions = np.ones(1), np.full((1, len(self.design.sizes)), AVERAGE)
        else:
            columns, weights = self.columns.iloc[rows], self.design.weights.numpy()[rows]
            positions = self.design.positions.numpy()[rows]
        kinds = {name: kind for name, kind in self.formula.kinds.items() if name not in replaced}
        found = Documents.of(read_columns(columns, kinds)[0], weights, positions)
        return found._replace(first=np.arange(len(self.columns))[rows][found.first])

    def _typical(self, name: str) -> Any:
        """The most frequent level, or the median of numbers and dates."""
        column = self.columns[name].to_numpy()
        if self.has_levels(name):
            levels, counts = np.unique(column, return_counts=True)
            return levels[counts.argmax()]
        return np.sort(column)[len(column) // 2] if column.dtype == object else np.median(column)

    def has_levels(self, name: str) -> bool:
        """Whether the values of a column are levels: text, truth values, or numbers within C()."""
        within = any(level_column(expression) == name for expression in self.formula.levels)
        return within or self.columns[name].dtype.kind == "b"

    @cached_property
    def levels(self) -> dict[str, tuple[str, Any, Any]]:
        """Column, level and reference level, if any, by name of a column of the design."""
        found: dict[str, tuple[str, Any, Any]] = {}
        for expression, levels in self.formula.levels.items():
            names = {f"{expression}[{sign}{x}]": x for x in levels for sign in ("", "T.")}
            present = {name: names[name] for name in self.formula.names if name in names}
            rest = [level for level in levels if level not in present.values()]
            column = level_column(expression)
            if column is not None and len(rest) < 2:
                reference = rest[0] if rest else None
                found |= {name: (column, level, reference) for name, level in present.items()}
        return found

    # -- averages --------------------------------------------------------------------------------

    def at(self, points: Sequence[Mapping[str, Any]], others: Others) -> Iterator[Quantity]:
        """The average prediction at each point, which is values by column."""
        require_one(get_args(Others), others=others)
        random = self.formula.random
        kinds = {name: self.formula.kinds[name] for name in points[0] if name not in random}
        fixed, _ = read_columns(pd.DataFrame(points), kinds, "value")
        documents = self.documents(others, *kinds)
        for rows, point in zip(self._rows_at(fixed, documents), points, strict=True):
            positions = documents.positions.copy()
            for j, (name, known) in enumerate(random.items()):
                if name in point:
                    value = point[name]
                    positions[:, j] = known.index(value) if value in known else NEW
            yield self._mean(rows, documents._replace(positions=positions))

    def _rows_at(self, fixed: pd.DataFrame, documents: Documents) -> Iterator[NDArray[np.float64]]:
        """Rows of the design for all documents at each point. Large grids are read in parts."""
        size = len(documents.first)
        step = max(1, MAX_ROWS // size)
        for start in range(0, len(fixed), step):
            part = fixed[start : start + step]
            values = part.merge(documents.read, how="cross").set_index(part.index.repeat(size))
            yield from self.formula.evaluate(values, "value").reshape(len(part), size, -1)

    def _mean(
        self, rows: NDArray[np.float64], documents: Documents, scale: Any = 1.0, moved: Any = 0.0
    ) -> Quantity:
        """The average prediction of documents at rows of the design.

        Args:
            rows: ``(num_distinct, num_terms)``.
            documents: The documents.
            scale: A factor of their weights.
            moved: What is added to the rows in the basis.
        """
        weights = documents.weights * scale
        parts = (torch.from_numpy(weights), torch.from_numpy(documents.positions))
        found = self.regression.predict(self.design.rows(rows) + moved, *parts)
        of: Scale = "identity"
        if isinstance(self.regression, LogitRegression):
            of = "atanh" if bool((self.regression.responses < 0).any()) else "logit"
        return Quantity(*found, weights @ rows, of)

    def _changed(
        self, documents: Documents, values: Mapping[str, Any], scale: Any = 1.0, moved: Any = 0.0
    ) -> Quantity:
        """The average prediction with other values of some columns, and scaled weights."""
        rows = self.design.raw[documents.first]
        if values:
            kinds = self.formula.kinds
            numbers = {c: np.float64 for c in documents.read if kinds[str(c)] != "text"}
            read = documents.read.astype(numbers)
            rows = self.formula.evaluate(read.assign(**values).astype(read.dtypes))
        return self._mean(rows, documents, scale, moved)

    # -- effects ---------------------------------------------------------------------------------

    def effect(self, documents: Documents, name: str, low: Any, high: Any) -> Quantity:
        """The average difference between two values of a column, as read by the formula.

        Args:
            documents: The documents.
            name: The column.
            low: The lower value; ``None`` for the observed values.
            high: The higher value, or what is added to the observed values; ``None`` for a slope.
        """
        if high is None:
            return self._slope(documents, name)
        higher = high if low is not None else documents.read[name] + high
        lower = {} if low is None else {name: low}
        return self._changed(documents, {name: higher}).less(self._changed(documents, lower))

    def _slope(self, documents: Documents, name: str) -> Quantity:
        """The average derivative in a column of numbers or dates, by central differences."""
        column = documents.read[name].to_numpy(np.float64)
        known = self.everyone.read[name].to_numpy(np.float64)
        step = STEP * np.std(known - known[0])
        high, low = ((column + sign * step).clip(known.min(), known.max()) for sign in (1, -1))
        up, down = (self._changed(documents, {name: x}, 1 / (high - low)) for x in (high, low))
        return up.less(down)._replace(scale="identity")

    @cached_property
    def terms(self) -> list[Quantity]:
        """The effects of all columns of the design; see :meth:`Effects.table`."""
        return [self.term(name) for name in self.formula.names]

    def term(self, name: str) -> Quantity:
        """The effect of a column of the design."""
        j = self.formula.names.index(name)
        unit = np.eye(len(self.formula.names))[j]
        if isinstance(self.regression, LinearRegression):
            row = self.design.back[j].expand(len(self.regression.coefficients), -1)
            return Quantity((self.regression.coefficients * row).sum(1), row, unit, "identity")
        everyone, is_flag = self.everyone, j in self.design.flags
        if name == "Intercept":
            flags = [self.formula.names[i] for i in self.design.flags]
            references = {column: reference for column, _, reference in self.levels.values()}
            zeros = {column: 0 for column in flags if column in everyone.read}
            fixed = {c: v for c, v in (zeros | references).items() if v is not None}
            return self._changed(everyone, fixed)
        if name in self.levels:
            column, level, reference = self.levels[name]
            if reference is None:
                return self._changed(everyone, {column: level})
            return self.effect(everyone, column, reference, level)
        if name in everyone.read:
            return self.effect(everyone, name, *((0, 1) if is_flag else (None, None)))
        along = self.design.rows(unit[None])
        step = STEP / float(along.norm()) / len(self.design.x) ** 0.5
        up, down = (
            self._changed(everyone, {}, 0.5 / step, sign * step * along) for sign in (1, -1)
        )
        return up.less(down)._replace(row=unit, scale="identity")

    def random_effects(self, at: int) -> NDArray[np.float64]:
        """Effects of all levels of a random term, whose variance is integrated out.

        Args:
            at: Position of the term.

        Returns:
            ``(3, num_responses, num_levels)`` estimates, and variances within and between draws.
        """
        if isinstance(self.regression, LinearRegression):
            assert self.regression.random is not None
            means, variances = (
                part.split(self.design.sizes, 1)[at] for part in self.regression.random.effects
            )
            return torch.stack([means, variances, torch.zeros_like(means)]).numpy()
        pooled = np.zeros((3, len(self.regression.responses), self.design.sizes[at]))
        squares = np.zeros_like(pooled[0])
        for weight, regression in self.regression.at_variances(at):
            numbers = replace(self, regression=regression)._of_levels(at, self.everyone)
            pooled += weight * numbers
            squares += weight * numbers[0] ** 2
        pooled[1] += squares - pooled[0] ** 2
        return pooled

    def _of_levels(self, at: int, everyone: Documents) -> NDArray[np.float64]:
        """The effects at a variance of the term: differences from the effect 0."""
        means = []
        for position in (AVERAGE, *range(self.design.sizes[at])):
            positions = everyone.positions.copy()
            positions[:, at] = position
            means.append(self._changed(everyone._replace(positions=positions), {}))
        effects = [mean.less(means[0]) for mean in means[1:]]
        numbers = [(x.estimates, *self.regression.variances(x.gradients)) for x in effects]
        return torch.stack([torch.stack(x) for x in numbers], -1).numpy()
