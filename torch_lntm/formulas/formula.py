"""Formula: a formula with what it learned of its columns, which new documents are encoded by."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torch_lntm.errors import (
    ConfigError,
    CorpusError,
    CorpusWarning,
    MissingColumnError,
    import_extra,
    warn,
)
from torch_lntm.formulas.language import check_formula, columns_of, plain_message

#: What a column holds: numbers, dates in text, which count as days, or text, whose values are
#: levels.
Kind = Literal["number", "date", "text"]

#: Documents from which on a text that is another one in each of them is taken for a mistake.
MANY_LEVELS = 10
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ].*)?")


@dataclass(frozen=True)
class Formula:
    """A formula with the levels, knots and means of the documents that it was fitted to.

    It holds JSON-able data only and evaluates what :func:`check_formula` accepts only, so it can
    be read from a file of unknown origin.

    Attributes:
        text: The formula, such as ``"~ party * bs(date, df=6)"``.
        names: The names of the columns of :meth:`matrix`; the intercept's is ``"Intercept"``.
        kinds: What each column of metadata holds that the formula reads: ``"number"``, ``"date"``
            or ``"text"``.
        levels: The levels of each categorical expression.
        transforms: What each stateful function learned, such as the knots of splines.
    """

    text: str
    names: tuple[str, ...]
    kinds: Mapping[str, Kind]
    levels: Mapping[str, tuple[Any, ...]]
    transforms: Mapping[str, Any]

    @classmethod
    def fit(
        cls, text: str, columns: Mapping[str, Any], num_docs: int
    ) -> tuple[Formula, NDArray[np.float64]]:
        """Learn levels, knots and means from some documents.

        Args:
            text: The formula. A column of text is categorical, coded by its differences to the
                first level in alphabetical order. A column of dates, as in 2004-09-30, counts as
                the number of days since 1970-01-01.
            columns: ``(num_docs,)`` values by name: the metadata of a corpus.
            num_docs: Number of documents.

        Returns:
            The formula, and its matrix ``(num_docs, num_columns)`` of these documents.

        Raises:
            ConfigError: The formula cannot be used, or not with these columns.
            CorpusError: A column is missing, or lacks values.

        Warns:
            CorpusWarning: A column of text is another one in every document.
        """
        names = columns_of(check_formula(text))
        kinds = {name: _kind(columns[name]) for name in names if _has(name, columns)}
        blank = cls(text, (), kinds, {}, {})
        matrix = blank._evaluate(blank._frame(columns, num_docs), {}, {})
        spec = matrix.model_spec
        categorical = {
            str(factor): state[1]["categories"]
            for factor, state in spec.encoder_state.items()
            if state[0].value == "categorical"
        }
        levels = {name: tuple(_plain(level) for level in v) for name, v in categorical.items()}
        single = next((name for name, v in levels.items() if len(v) < 2), None)
        if single is not None:
            raise ConfigError(
                f"formula {text!r}: {single} is {levels[single]} in all documents, which says "
                "nothing of them; leave it out"
            )
        for name, kind in kinds.items():
            if kind == "text" and len(levels.get(name, ())) == num_docs >= MANY_LEVELS:
                warn(
                    f"formula {text!r}: {name} is another text in every document, such as "
                    f"{levels[name][0]!r}, and gets a coefficient for each; leave it out, or if "
                    "these are dates, write them as in 2004-09-30",
                    CorpusWarning,
                )
        fitted = cls(
            text, tuple(map(str, matrix.columns)), kinds, levels, _encode(spec.transform_state)
        )
        return fitted, fitted._numbers(matrix)

    def matrix(self, columns: Mapping[str, Any], num_docs: int) -> NDArray[np.float64]:
        """The formula's matrix ``(num_docs, num_columns)`` of any documents.

        Args:
            columns: ``(num_docs,)`` values by name.
            num_docs: Number of documents.

        Raises:
            CorpusError: A column is missing, lacks values, has a level that the formula was not
                fitted to, or a number outside of those that a spline was fitted to.
            ConfigError: The formula now gives other columns than those that it was fitted to.
        """
        frame = self._frame(columns, num_docs)
        for name, levels in self.levels.items():
            if name in frame and (unknown := set(frame[name].unique()) - set(levels)):
                raise CorpusError(
                    f"column {name!r} is {min(unknown)!r} in some documents, a level that formula "
                    f"{self.text!r} was not fitted to; it knows {', '.join(map(str, levels))}"
                )
        levels_before = {name: list(levels) for name, levels in self.levels.items()}
        transforms = _decode(self.transforms)
        self._check_ranges(frame, transforms)
        matrix = self._evaluate(frame, levels_before, transforms)
        # What had no state would have been fitted to the new documents.
        if tuple(map(str, matrix.columns)) != self.names or set(transforms) != set(self.transforms):
            raise ConfigError(
                f"formula {self.text!r} does not give the columns that it was fitted to; was it "
                "saved with another version of formulaic?"
            )
        return self._numbers(matrix)

    def reads_any(self, columns: Mapping[str, Any]) -> bool:
        """Whether some column that the formula reads is there."""
        return any(name in columns for name in self.kinds)

    def to_json(self) -> dict[str, Any]:
        """The formula as JSON-able data."""
        return asdict(self) | {
            "names": list(self.names),
            "levels": {name: list(levels) for name, levels in self.levels.items()},
        }

    @classmethod
    def from_json(cls, data: Any) -> Formula:
        """The formula that :meth:`to_json` gave.

        Raises:
            ConfigError: The data are damaged, or the formula may not be evaluated.
        """
        try:
            text, names, kinds = data["text"], tuple(data["names"]), dict(data["kinds"])
            levels = {name: tuple(values) for name, values in data["levels"].items()}
            transforms = dict(data["transforms"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"the state of a formula is damaged ({error!r})") from error
        reads = set(columns_of(check_formula(text)))
        whole = all(isinstance(name, str) for name in names)
        if not whole or set(kinds) != reads or set(kinds.values()) - {"number", "date", "text"}:
            raise ConfigError(f"the state of formula {text!r} does not fit the formula")
        return cls(text, names, kinds, levels, transforms)

    def _frame(self, columns: Mapping[str, Any], num_docs: int) -> Any:
        """The columns that the formula reads, as a pandas data frame."""
        pandas = import_extra("pandas", "formula", "a formula")
        values = {name: _numeric(name, columns, kind) for name, kind in self.kinds.items()}
        return pandas.DataFrame(values, index=pandas.RangeIndex(num_docs))

    def _check_ranges(self, frame: Any, transforms: Mapping[str, Any]) -> None:
        """Refuse values of columns beyond the ends of B-splines, which are not defined there."""
        for call, state in transforms.items():
            found = re.match(r"bs\((\w+)[,)]", call)
            if found is None or found[1] not in self.kinds or "extrapolation" in call:
                continue
            if not isinstance(state, Mapping) or not {"lower_bound", "upper_bound"} <= set(state):
                continue  # a damaged file
            name, lower, upper = found[1], state["lower_bound"], state["upper_bound"]
            values = frame[name].to_numpy(dtype=np.float64)
            outside = np.flatnonzero((values < lower) | (values > upper))
            if len(outside):
                low, high, first = (
                    _shown(value, self.kinds[name]) for value in (lower, upper, values[outside[0]])
                )
                raise CorpusError(
                    f"column {name!r} lies outside of {low} to {high}, to which {call} was fitted, "
                    f"in {len(outside)} document(s), first in document {outside[0]} ({first}); "
                    "leave these out, or fit with bs(..., extrapolation='clip'), which takes them "
                    "to the nearest end"
                )

    def _evaluate(self, frame: Any, levels: dict[str, Any], transforms: dict[str, Any]) -> Any:
        formulaic = import_extra("formulaic", "formula", "a formula")
        from formulaic.parser.types import Factor

        spec = formulaic.ModelSpec(
            formula=check_formula(self.text),
            na_action="ignore",
            output="pandas",
            encoder_state={
                name: (Factor.Kind.CATEGORICAL, {"categories": values})
                for name, values in levels.items()
            },
            transform_state=transforms,
        )
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("error", formulaic.errors.DataMismatchWarning)
                return spec.get_model_matrix(frame, context={})
        except Exception as error:
            reason, advice = " ".join(plain_message(error).split()), ""
            if "could not convert string to float" in reason:
                texts = ", ".join(name for name, kind in self.kinds.items() if kind == "text")
                advice = f"; of {texts} numbers are expected, or dates as in 2004-09-30"
            raise ConfigError(
                f"formula {self.text!r} cannot be evaluated: {reason:.300}{advice}"
            ) from error

    def _numbers(self, matrix: Any) -> NDArray[np.float64]:
        numbers = np.asarray(matrix, dtype=np.float64)
        bad = np.argwhere(~np.isfinite(numbers))
        if bad.size:
            row, column = bad[0]
            raise CorpusError(
                f"formula {self.text!r}: {matrix.columns[column]} is {numbers[row, column]} in "
                f"document {row}; leave such documents out, or change the formula"
            )
        return numbers


def _has(name: str, columns: Mapping[str, Any]) -> bool:
    if name not in columns:
        raise MissingColumnError(name, columns)
    return True


def _is_missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    if values.dtype.kind == "f":
        return np.isnan(values)
    return np.array([value is None for value in values], bool)


def _kind(values: Any) -> Kind:
    values = np.asarray(values)
    if values.dtype.kind in "bif":
        return "number"
    present = [str(value) for value in values if value is not None]
    return "date" if present and all(map(_DATE.fullmatch, present)) else "text"


def _numeric(name: str, columns: Mapping[str, Any], kind: Kind) -> NDArray[Any]:
    """The values of a column as a formula computes with them."""
    _has(name, columns)
    values = np.asarray(columns[name])
    values = values if values.dtype.kind in "bif" else values.astype(object)
    if len(rows := np.flatnonzero(_is_missing(values))):
        raise CorpusError(
            f"column {name!r} lacks a value in {len(rows)} documents, the first of them document "
            f"{rows[0]}; leave these out (corpus[rows]), or fill the values in"
        )
    if (kind == "number") != (values.dtype.kind in "bif"):
        expected = {"number": "numbers", "date": "dates such as 2004-09-30", "text": "text"}
        raise CorpusError(
            f"column {name!r} holds {values[0]!r:.40}; expected {expected[kind]}, as in the "
            "documents that the formula was fitted to"
        )
    if kind == "date":
        wrong = [value for value in values if not _DATE.fullmatch(str(value))]
        try:
            if wrong:
                raise ValueError(wrong[0])
            days = np.array([str(value)[:10] for value in values], "datetime64[D]")
        except ValueError as error:
            raise CorpusError(
                f"column {name!r} holds dates; expected each as in 2004-09-30 ({error})"
            ) from error
        return days.astype(np.float64)
    return values.astype(np.float64) if values.dtype.kind == "b" else values


def _shown(value: float, kind: Kind) -> str:
    """A number of a column as the column has it."""
    return str(np.datetime64(round(value), "D")) if kind == "date" else f"{value:g}"


# -------------------------------------------------------------------- state as JSON


def _plain(value: Any) -> Any:
    """A level as JSON holds it."""
    return value.item() if isinstance(value, np.generic) else value


def _encode(state: Any) -> Any:
    """What functions learned, as JSON holds it."""
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
    if isinstance(state, float) and not math.isfinite(state):
        raise ConfigError(f"the state of a formula holds {state}")
    return state
