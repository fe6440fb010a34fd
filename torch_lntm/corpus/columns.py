"""Columns of metadata and covariates of documents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus.frames import (
    frame_columns,
    is_missing,
    is_table,
    warn_of_shuffled_rows,
)
from torch_lntm.errors import CorpusError, MissingColumnError

T = TypeVar("T")

#: Half of a surrogate pair. Encoding it raises an error.
SURROGATE = re.compile("[\ud800-\udfff]")
#: float64 represents every integer up to this one.
EXACT_IN_FLOAT = 2**53
_KINDS = {
    "bool": np.dtype(bool),
    "int": np.dtype(np.int64),
    "float": np.dtype(np.float64),
    "text": np.dtype(object),
}


class FrozenDict(Mapping[str, T], Generic[T]):
    """Immutable dictionary with strings as keys. It can be pickled and copied.

    Args:
        items: The content. Defaults to an empty dictionary.
    """

    def __init__(self, items: Mapping[str, T] | None = None) -> None:
        self._items = dict(items or {})

    def __getitem__(self, name: str) -> T:
        try:
            return self._items[name]
        except KeyError:
            raise MissingColumnError(name, self._items) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return repr(self._items)


Arrays = FrozenDict[NDArray[Any]]


def select_rows(columns: Arrays, rows: Any) -> Arrays:
    """Columns with the selected rows only."""
    return _frozen({name: array[rows] for name, array in columns.items()})


def _frozen(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    for array in arrays.values():
        array.setflags(write=False)
    return FrozenDict(arrays)


# -------------------------------------------------------------------- metadata


def make_metadata(columns: Any, num_docs: int) -> Arrays:
    """Converts values to columns of metadata, each with one value for every document.

    A column has one of four types: float64, int64, bool, or object for text. Values of other
    types become text. Lists are joined by ``|``, and dates are
    written out. Missing values are ``None``, NaN and pandas's ``NA`` and ``NaT``. A missing value
    becomes NaN in a column of numbers and ``None`` in text. Half of a surrogate pair becomes
    U+FFFD. Integers and truth values with missing values become float64, or text if float64 would
    round an integer.

    Args:
        columns: A mapping of names to values, pairs of a name and values, or a data frame of
            pandas, Polars or Arrow. Rows are taken by position.
        num_docs: Number of values of each column.

    Raises:
        CorpusError: ``columns`` is of another type, a name is blank or repeated, or a column has
            another number of values.

    Warns:
        CorpusWarning: See :func:`~torch_lntm.corpus.frames.warn_of_shuffled_rows`.
    """
    pairs: Iterable[tuple[Any, Any]]
    warn_of_shuffled_rows(columns)
    if is_table(columns):
        pairs = frame_columns(columns)
    elif isinstance(columns, Mapping):
        pairs = columns.items()
    elif isinstance(columns, list) and all(isinstance(pair, tuple) for pair in columns):
        pairs = columns
    else:
        raise CorpusError(
            "metadata must be a mapping of column names to values, or a data frame; got a "
            f"{type(columns).__name__}"
        )
    arrays: dict[str, NDArray[Any]] = {}
    for key, values in pairs:
        name = _text(key)
        if not name.strip() or name in arrays:
            problem = "twice" if name in arrays else "a blank name"
            raise CorpusError(
                f"columns of metadata must have different names, got {name!r} ({problem})"
            )
        arrays[name] = _column(name, values, num_docs)
    return _frozen(arrays)


def _column(name: str, values: Any, num_docs: int) -> NDArray[Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    elif hasattr(values, "to_numpy"):
        values = values.to_numpy()
    elif not isinstance(values, np.ndarray):
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise CorpusError(
                f"metadata {name!r}: expected one value for each of {num_docs} documents, got "
                f"{values!r:.60}"
            )
        values = list(values)
        values = np.fromiter(values, dtype=object, count=len(values))
    if values.shape != (num_docs,):
        raise CorpusError(
            f"metadata {name!r}: expected one value for each of {num_docs} documents, got "
            f"{values.size if values.ndim == 1 else f'shape {tuple(values.shape)}'}"
        )
    if values.dtype.kind in "bif":
        return values.astype({"b": bool, "i": np.int64, "f": np.float64}[values.dtype.kind])
    if values.dtype.kind in "mM":
        text = values.astype(str).astype(object)
        text[np.isnat(values)] = None
        return text
    return _from_objects(values.tolist())


def _from_objects(values: list[Any]) -> NDArray[Any]:
    """Column of a list of Python values."""
    missing = np.fromiter(map(is_missing, values), bool, len(values))
    any_missing = bool(missing.any())
    present = [v for v, m in zip(values, missing, strict=True) if not m] if any_missing else values
    array = _as_numbers(present, any_missing) if present else None
    if array is None:
        array = np.fromiter(map(_text, present), object, len(present))
    if not any_missing:
        return array
    column = np.full(len(values), None if array.dtype == object else np.nan, array.dtype)
    column[~missing] = array
    return column


def _as_numbers(values: list[Any], any_missing: bool) -> NDArray[Any] | None:
    """Values as an array of numbers or truth values; ``None`` for values of other types.

    Args:
        values: The present values of a column.
        any_missing: The column also has missing values, so integers and truth values become
            float64.
    """
    truths = [isinstance(value, (bool, np.bool_)) for value in values]
    if all(truths):
        return np.array(values, np.float64 if any_missing else bool)
    if any(truths) or not all(isinstance(value, Real) for value in values):
        return None
    if all(isinstance(value, Integral) for value in values):
        largest = max(abs(int(value)) for value in values)
        if not any_missing and largest < 2**63:
            return np.array(values, np.int64)
        if largest > EXACT_IN_FLOAT:
            return None
    try:
        return np.array(values, np.float64)
    except OverflowError:  # the integer exceeds the largest float
        return None


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        text = "|".join(map(str, value))
    else:
        text = json.dumps(value) if isinstance(value, dict) else str(value)
    # Files, tables and terminals refuse half of a surrogate pair.
    return text if text.isascii() else SURROGATE.sub("\ufffd", text)


def encode_metadata(columns: Arrays) -> list[dict[str, Any]]:
    """Columns as a list for JSON, in order."""
    kinds = {dtype: kind for kind, dtype in _KINDS.items()}
    return [
        {"name": name, "kind": kinds[array.dtype], "values": array.tolist()}
        for name, array in columns.items()
    ]


def decode_metadata(columns: Any, num_docs: int) -> Arrays:
    """Inverse of ``encode_metadata``.

    Raises:
        CorpusError: The columns are damaged.
    """
    arrays: dict[str, NDArray[Any]] = {}
    try:
        for column in columns:
            name, kind, values = column["name"], column["kind"], column["values"]
            if not isinstance(name, str) or not isinstance(values, list):
                raise TypeError(f"column {name!r:.60} has no name or no list of values")
            if kind == "text" and not all(v is None or isinstance(v, str) for v in values):
                raise TypeError(f"column {name!r:.60} holds values other than text")
            arrays[name] = np.fromiter(values, _KINDS[kind], count=len(values))
            if len(values) != num_docs:
                raise ValueError(f"column {name!r:.60} has {len(values)} values")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CorpusError(f"the metadata of {num_docs} documents are damaged: {error}") from error
    return _frozen(arrays)


def frame_of(columns: Arrays) -> Any:
    """The columns as a pandas data frame.

    Raises:
        CorpusError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise CorpusError(
            "a data frame needs pandas, which is not installed; install it by pip install pandas"
        ) from error
    return pandas.DataFrame(dict(columns))


# -------------------------------------------------------------------- covariates


def make_covariates(arrays: Any, num_docs: int) -> Arrays:
    """Copies arrays with one row for each document, as float64, int64 or bool.

    Raises:
        CorpusError: A value is infinite, NaN or of another type, or the number of rows is wrong.
    """
    if not isinstance(arrays, Mapping):
        raise CorpusError(
            f"covariates must be a mapping of names to arrays, got a {type(arrays).__name__}; "
            "give for example {'x': array}"
        )
    copies: dict[str, NDArray[Any]] = {}
    for name, values in arrays.items():
        if not isinstance(name, str) or not name.strip():
            raise CorpusError(f"covariates must have names, got {name!r}")
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        if array.dtype.kind not in "biuf" or array.ndim < 1 or array.shape[0] != num_docs:
            raise CorpusError(
                f"covariate {name!r}: expected an array of numbers whose first axis is the "
                f"{num_docs} documents, got shape {array.shape} of {array.dtype}"
            )
        kind = {"b": bool, "f": np.float64}.get(array.dtype.kind, np.int64)
        copies[name] = np.array(array, kind)
        bad = np.argwhere(~np.isfinite(copies[name]))
        if bad.size:
            raise CorpusError(
                f"covariate {name!r}: expected finite numbers, got "
                f"{copies[name][tuple(bad[0])]} in document {bad[0][0]}; leave out documents with "
                "missing values, or fill these in"
            )
    return _frozen(copies)
