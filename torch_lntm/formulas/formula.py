"""Formula, a model formula together with its fitted levels, knots and means."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from torch_lntm.corpus.metadata import as_metadata, complete_column
from torch_lntm.errors import ConfigError, CorpusError, CorpusWarning, warn
from torch_lntm.formulas.columns import DATE, Kind, read_columns
from torch_lntm.formulas.language import (
    check_formula,
    columns_of,
    level_column,
    plain_message,
    split_random,
)

#: Minimum number of documents for a warning about a text column with distinct values only.
MANY_LEVELS = 10
#: Most levels of text without a warning if they have fewer than ten documents each on average.
MOST_RARE_LEVELS = 50
#: Maximum absolute value in a matrix. Products of larger numbers overflow.
MAX_SIZE = 1e100
#: Most columns of levels in a matrix.
MAX_COLUMNS = 1000


@dataclass(frozen=True)
class Formula:
    """A model formula with the levels, knots and means that it learned from documents.

    New documents get their rows from the same levels and knots, so that each column keeps its
    meaning. The object holds only JSON-able data and its text is checked before anything is
    evaluated, so that it can be read from a file of unknown origin.

    Attributes:
        text: The formula, such as ``"~ party * bs(date, df=6)"``.
        names: Names of the columns of :meth:`matrix`. The intercept is ``"Intercept"``.
        kinds: Kind of each column of metadata in the formula: ``"number"``, ``"date"`` or
            ``"text"``.
        levels: Levels of each categorical expression.
        transforms: State of each stateful function, such as the knots of splines.
        random: Sorted levels of the column of each random term, such as ``(1 | author)``. Random
            terms have no columns in :meth:`matrix`; see :meth:`positions`.

    Example:
        >>> columns = {"party": ["Left", "Right", "Left"], "year": [1990.0, 2000.0, 2010.0]}
        >>> formula, matrix = lntm.formulas.Formula.fit("~ party + center(year)", columns)
        >>> formula.names
        ('Intercept', 'party[T.Right]', 'center(year)')
        >>> formula.matrix({"party": ["Right"], "year": [2001.0]})
        array([[1., 1., 1.]])
    """

    text: str
    names: tuple[str, ...]
    kinds: Mapping[str, Kind]
    levels: Mapping[str, tuple[Any, ...]]
    transforms: Mapping[str, Any]
    random: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @classmethod
    def fit(cls, text: str, metadata: Any) -> tuple[Formula, NDArray[np.float64]]:
        """Fit levels, knots and means to documents.

        Args:
            text: The formula. Columns of text are categorical and coded by differences from the
                first level in alphabetical order. Columns of dates, such as 2004-09-30, are
                converted to days since 1970-01-01.
            metadata: The metadata of a corpus, or other columns with a row for each document.

        Returns:
            The formula, and the matrix ``(num_docs, num_columns)`` of the documents.

        Raises:
            ConfigError: The formula is invalid, or unusable with these columns, for example because
                they have more than 1,000 levels.
            CorpusError: A column or a value is missing.

        Warns:
            CorpusWarning: A column of text differs in every document.
        """
        parsed, metadata = check_formula(text), as_metadata(metadata)
        values, kinds = read_columns(metadata, dict.fromkeys(columns_of(parsed)))
        blank = cls(text, (), kinds, {}, {})
        blank._refuse_many_levels(parsed, values.nunique(dropna=False))
        matrix = blank._evaluate(parsed, values)
        spec = matrix.model_spec
        levels = {
            str(factor): tuple(map(_plain, state[1]["categories"]))
            for factor, state in spec.encoder_state.items()
            if state[0].value == "categorical"
        }
        random = {}
        for name in split_random(text)[1]:
            different = np.unique(_random_values(name, metadata))
            if not 1 < len(different) < len(values):
                what = "the same" if len(different) == 1 else "different"
                raise ConfigError(
                    f"formula {text!r}: {name} is {what} in all documents, so (1 | {name}) has no "
                    "effect to learn; leave the term out"
                )
            random[name] = tuple(different.tolist())
        names, transforms = tuple(map(str, matrix.columns)), _encode(spec.transform_state)
        fitted = cls(text, names, kinds, levels, transforms, random)
        fitted._check_levels(len(values))
        return fitted, fitted._numbers(matrix)

    def matrix(self, metadata: Any) -> NDArray[np.float64]:
        """Matrix ``(num_docs, num_columns)`` of new documents.

        Args:
            metadata: As for :meth:`fit`.

        Raises:
            CorpusError: A column or a value is missing, a level is unknown, or a number is outside
                of the range of a fitted spline.
            ConfigError: The formula gives different columns than in the fit, for example with
                another version of formulaic.
        """
        return self.evaluate(read_columns(as_metadata(metadata), self.kinds)[0])

    def evaluate(self, values: pd.DataFrame, each: str = "document") -> NDArray[np.float64]:
        """Matrix ``(num_rows, num_columns)`` of the result of :func:`read_columns`.

        Args:
            values: A row of values of all columns for each row of the matrix. The index has the
                number of its place in messages.
            each: Name of such a place.

        Raises:
            CorpusError: A level is unknown, a number is outside of the range of a spline, or a
                number of the matrix is infinite, NaN or too large.
            ConfigError: As for :meth:`matrix`.
        """
        parsed = check_formula(self.text)
        try:
            matrix = self._evaluate(parsed, values)
        except ConfigError as error:
            row, last = 0, len(values)  # the first rows fail together with the first bad one
            while last - row > 1:
                half = (row + last) // 2
                try:
                    self._evaluate(parsed, values[:half])
                    row = half
                except ConfigError:
                    last = half
            at = {str(name): self._shown(str(name), x.iloc[row]) for name, x in values.items()}
            known = [f"{name}: {', '.join(map(str, x[:20]))}" for name, x in self.levels.items()]
            levels = f"; the levels of the fit are {'; '.join(known) or 'none'}"
            raise CorpusError(
                f"{error}; {each} {values.index[row]}, counted from 0, is the first: {at}{levels}"
            ) from error
        # If its saved state were lost, a function would now be fitted to the new documents.
        state = _encode(matrix.model_spec.transform_state)
        if tuple(map(str, matrix.columns)) != self.names or state != self.transforms:
            raise ConfigError(
                f"formula {self.text!r} does not give the columns that it was fitted to; was it "
                "saved with another version of formulaic?"
            )
        return self._numbers(matrix, each)

    def _shown(self, name: str, value: Any) -> Any:
        """A value in the notation of its column."""
        if self.kinds[name] == "date":
            return str(np.datetime64(round(value), "D"))
        return value.item() if isinstance(value, np.generic) else value

    def positions(self, metadata: Any) -> NDArray[np.int64]:
        """Position of every document's level in each random term.

        Args:
            metadata: As for :meth:`fit`.

        Returns:
            ``(num_docs, num_random_terms)``. Levels absent from the fit are -1.

        Raises:
            CorpusError: A column or a value is missing.
        """
        metadata = as_metadata(metadata)
        found = np.full((len(metadata), len(self.random)), -1)
        for j, (name, levels) in enumerate(self.random.items()):
            values = _random_values(name, metadata)
            if isinstance(levels[0], str) != (values.dtype.kind not in "bif"):
                raise CorpusError(
                    f"column {name!r} holds {values[0]!r:.40}; expected values such as "
                    f"{levels[0]!r}, as in the documents that the formula was fitted to"
                )
            found[:, j] = pd.Index(levels).get_indexer(values)
        return found

    def check_column(self, name: str) -> None:
        """Check that the formula reads a column.

        Raises:
            ConfigError: The formula reads other columns only; names them.
        """
        names = [*self.kinds, *self.random]
        if name not in names:
            raise ConfigError(
                f"formula {self.text!r} does not read the column {name!r}; it reads "
                f"{', '.join(names) or 'none'}"
            )

    def without_random(self) -> Formula:
        """The formula with its fixed terms only."""
        return replace(self, text=split_random(self.text)[0], random={}) if self.random else self

    def reads_any(self, metadata: pd.DataFrame) -> bool:
        """Whether the metadata have a column of the formula."""
        return any(name in metadata for name in (*self.kinds, *self.random))

    def to_json(self) -> dict[str, Any]:
        """The formula as JSON-able data."""
        data = asdict(self) | {"names": list(self.names)}
        for table in ("levels", "random"):
            data[table] = {name: list(levels) for name, levels in getattr(self, table).items()}
        return data if self.random else {n: value for n, value in data.items() if n != "random"}

    @classmethod
    def from_json(cls, data: Any) -> Formula:
        """Inverse of :meth:`to_json`.

        Raises:
            ConfigError: The data are damaged, or the formula is invalid.
        """
        try:
            text, names, kinds = data["text"], tuple(data["names"]), dict(data["kinds"])
            levels = {name: tuple(values) for name, values in data["levels"].items()}
            transforms = dict(data["transforms"])
            random = {name: tuple(values) for name, values in data.get("random", {}).items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"the state of a formula is damaged ({error!r})") from error
        fits = set(kinds) == set(columns_of(check_formula(text)))
        fits &= tuple(random) == split_random(text)[1] and all(random.values())
        if not fits or set(kinds.values()) - {"number", "date", "text"}:
            raise ConfigError(f"the state of formula {text!r} is damaged: it does not fit the text")
        return cls(text, names, kinds, levels, transforms, random)

    def _check_levels(self, num_docs: int) -> None:
        """Refuse a single level, and warn of implausible levels."""
        for name, levels in self.levels.items():
            if len(levels) < 2:
                raise ConfigError(
                    f"formula {self.text!r}: {name} is {levels} in all documents and has no "
                    "effect; leave it out"
                )
            if self.kinds.get(name) != "text":
                continue
            texts = pd.Series(levels)
            plain = pd.to_numeric(texts, errors="coerce").notna() | texts.str.fullmatch(DATE)
            problem = ""
            if len(levels) == num_docs >= MANY_LEVELS:
                problem = f"is a different text in every document, such as {levels[0]!r}"
            elif len(levels) > MOST_RARE_LEVELS and num_docs < 10 * len(levels):
                many = f"{len(levels)} levels in {num_docs} documents"
                problem = f"has {many}, such as {levels[0]!r}"
            elif 0.5 < plain.mean() < 1:
                problem = f"holds numbers or dates as in 2004-09-30, and {levels[plain.argmin()]!r}"
            if problem:
                warn(
                    f"formula {self.text!r}: {name} {problem}. Each text gets a coefficient; "
                    "correct the values, write dates as in 2004-09-30 (pandas.to_datetime reads "
                    f"others), give a random term (1 | {name}), or leave the column out",
                    CorpusWarning,
                )

    def _refuse_many_levels(self, parsed: Any, sizes: pd.Series) -> None:
        """Refuse a matrix with very many columns of levels, before it is made.

        Args:
            parsed: The parsed formula.
            sizes: Number of different values of each column.
        """
        total = 0
        for term in parsed:
            names = [(str(factor.expr), level_column(str(factor.expr))) for factor in term.factors]
            coded = [n for e, n in names if n in sizes and (e != n or self.kinds[n] == "text")]
            size = math.prod(sizes[name] for name in coded)
            total += size
            if total > MAX_COLUMNS:
                raise ConfigError(
                    f"formula {self.text!r}: {term} has {size:,} levels, and a formula may have "
                    f"{MAX_COLUMNS:,} columns; give each level a random effect by a term such as "
                    "(1 | author), or make the levels coarser"
                )

    def _evaluate(self, parsed: Any, values: pd.DataFrame) -> Any:
        """Matrix of a parsed formula as a data frame, with the fitted state as ``model_spec``."""
        import formulaic
        from formulaic.parser.types import Factor

        state = {
            name: (Factor.Kind.CATEGORICAL, {"categories": list(levels)})
            for name, levels in self.levels.items()
        }
        try:
            spec = formulaic.ModelSpec(
                formula=parsed,
                na_action="ignore",
                output="pandas",
                encoder_state=state,
                transform_state=_decode(self.transforms),
            )
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("error", formulaic.errors.DataMismatchWarning)
                return spec.get_model_matrix(values, context={})
        except Exception as error:
            texts = {
                name: values[name].iloc[0] for name, kind in self.kinds.items() if kind == "text"
            }
            advice = f"; columns of text are levels, not numbers: {texts}"
            message = plain_message(error).partition(". They are being cast to nan")[0]
            raise ConfigError(
                f"formula {self.text!r} cannot be evaluated: {message:.300}"
                + advice * bool(texts and not self.names)  # in the fit
            ) from error

    def _numbers(self, matrix: Any, each: str = "document") -> NDArray[np.float64]:
        """Numbers of a data frame, after a check of their size."""
        numbers = np.asarray(matrix, dtype=np.float64)
        bad = np.argwhere(~(np.abs(numbers) <= MAX_SIZE))
        if bad.size:
            row, column = bad[0]
            advice = f"leave such {each}s out, or change the formula"
            if np.isfinite(numbers[row, column]):
                advice = f"numbers beyond {MAX_SIZE:g} overflow; divide the column by a constant"
            raise CorpusError(
                f"formula {self.text!r}: {matrix.columns[column]} is {numbers[row, column]} in "
                f"{each} {matrix.index[row]}, counted from 0; {advice}"
            )
        return numbers


def _random_values(name: str, metadata: pd.DataFrame) -> NDArray[Any]:
    """Values of the column of a random term: numbers or text."""
    values = complete_column(name, metadata)
    return values if values.dtype.kind in "bif" else values.astype(str)


# -------------------------------------------------------------------- state as JSON


def _plain(value: Any) -> Any:
    """A level as a JSON-able value."""
    return value.item() if isinstance(value, np.generic) else value


def _encode(state: Any) -> Any:
    """State of stateful functions as JSON-able data."""
    if isinstance(state, Mapping):
        return {str(name): _encode(value) for name, value in state.items()}
    if isinstance(state, np.ndarray):
        return {"array": state.tolist()}
    if isinstance(state, (list, tuple)):
        return [_encode(value) for value in state]
    return _plain(state)


def _decode(state: Any) -> Any:
    """The inverse of :func:`_encode`."""
    if isinstance(state, Mapping):
        if set(state) == {"array"}:
            return np.array(state["array"], np.float64)
        return {int(n) if n.isdigit() else n: _decode(value) for n, value in state.items()}
    if isinstance(state, list):
        return [_decode(value) for value in state]
    return state
