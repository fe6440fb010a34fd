"""What is known of documents beside their words: columns of metadata, and covariates."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.errors import CorpusError, MissingColumnError

T = TypeVar("T")

#: Half of a surrogate pair, which no file can hold.
SURROGATE = re.compile("[\ud800-\udfff]")
#: The largest integer up to which a float64 holds all.
EXACT_IN_FLOAT = 2**53
#: How many names a message lists.
_SHOWN = 20
_KINDS = {
    "bool": np.dtype(bool),
    "int": np.dtype(np.int64),
    "float": np.dtype(np.float64),
    "text": np.dtype(object),
}


class FrozenDict(Mapping[str, T], Generic[T]):
    """A dictionary that cannot be changed; it can be pickled and copied.

    Args:
        items: What it holds.
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


def listed(names: Iterable[str]) -> str:
    """The first of some names for a message, and how many others there are."""
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def select_rows(columns: Arrays, rows: Any) -> Arrays:
    """The columns of some documents."""
    return _frozen({name: array[rows] for name, array in columns.items()})


def _frozen(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    for array in arrays.values():
        array.setflags(write=False)
    return FrozenDict(arrays)


# -------------------------------------------------------------------- metadata


def make_metadata(columns: Any, num_docs: int) -> Arrays:
    """Makes columns of one value a document, each of one of four kinds.

    Numbers and truth values are arrays of float64, int64 and bool. Everything else is text: an
    object array of strings, in which a list is joined by ``|``, and a date is written out. A
    missing value (``None``, NaN, pandas's ``NA`` and ``NaT``) is NaN among numbers and ``None``
    in text. Half of a surrogate pair becomes U+FFFD. A column of integers or truth values with
    missing ones becomes float64, or text where that would round an integer.

    Args:
        columns: A mapping of names to values, or a pandas data frame, of which the index is not
            used.
        num_docs: How many values each column must have.

    Raises:
        CorpusError: The columns are no such mapping, a name is blank or occurs twice, or a column
            does not have one value a document.
    """
    pairs: Iterable[tuple[Any, Any]]
    if is_frame(columns):
        pairs = ((name, columns.iloc[:, i]) for i, name in enumerate(columns.columns))
    elif isinstance(columns, Mapping):
        pairs = columns.items()
    else:
        raise CorpusError(
            "metadata must be a mapping of column names to values, or a pandas data frame; got a "
            f"{type(columns).__name__}"
        )
    made: dict[str, NDArray[Any]] = {}
    for key, values in pairs:
        name = _text(key)
        if not name.strip() or name in made:
            problem = "twice" if name in made else "a blank name"
            raise CorpusError(
                f"columns of metadata must have different names, got {name!r} ({problem})"
            )
        made[name] = _column(name, values, num_docs)
    return _frozen(made)


def is_frame(value: object) -> bool:
    """Whether this is a pandas data frame; without importing pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


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
    """The column of any Python values."""
    missing = np.fromiter(map(_is_missing, values), bool, len(values))
    lacking = bool(missing.any())
    present = [v for v, m in zip(values, missing, strict=True) if not m] if lacking else values
    found = _as_numbers(present, lacking) if present else None
    if found is None:
        found = np.fromiter(map(_text, present), object, len(present))
    if not lacking:
        return found
    column = np.full(len(values), None if found.dtype == object else np.nan, found.dtype)
    column[~missing] = found
    return column


def _as_numbers(values: list[Any], lacking: bool) -> NDArray[Any] | None:
    """Values as numbers or truth values; None where they are something else.

    Args:
        values: The values of a column that are not missing.
        lacking: Whether others are, beside which integers and truth values are floats.
    """
    truths = [isinstance(value, (bool, np.bool_)) for value in values]
    if all(truths):
        return np.array(values, np.float64 if lacking else bool)
    if any(truths) or not all(isinstance(value, Real) for value in values):
        return None
    if all(isinstance(value, Integral) for value in values):
        largest = max(abs(int(value)) for value in values)
        if not lacking and largest < 2**63:
            return np.array(values, np.int64)
        if largest > EXACT_IN_FLOAT:
            return None
    try:
        return np.array(values, np.float64)
    except OverflowError:  # an integer beyond all floats
        return None


def _is_missing(value: Any) -> bool:
    if isinstance(value, (float, np.floating)):
        return bool(np.isnan(value))
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        text = "|".join(map(str, value))
    else:
        text = json.dumps(value) if isinstance(value, dict) else str(value)
    # No file, table or terminal takes half of a surrogate pair.
    return text if text.isascii() else SURROGATE.sub("\ufffd", text)


def encode_metadata(columns: Arrays) -> list[dict[str, Any]]:
    """The columns as what JSON can hold, in order."""
    kinds = {dtype: kind for kind, dtype in _KINDS.items()}
    return [
        {"name": name, "kind": kinds[array.dtype], "values": array.tolist()}
        for name, array in columns.items()
    ]


def decode_metadata(columns: Any, num_docs: int) -> Arrays:
    """Returns the columns that ``encode_metadata`` wrote.

    Raises:
        CorpusError: The columns are damaged.
    """
    made: dict[str, NDArray[Any]] = {}
    try:
        for column in columns:
            name, kind, values = column["name"], column["kind"], column["values"]
            if not isinstance(name, str) or not isinstance(values, list):
                raise TypeError(f"column {name!r:.60} has no name or no list of values")
            if kind == "text" and not all(v is None or isinstance(v, str) for v in values):
                raise TypeError(f"column {name!r:.60} holds other things than text")
            made[name] = np.fromiter(values, _KINDS[kind], count=len(values))
            if len(values) != num_docs:
                raise ValueError(f"column {name!r:.60} has {len(values)} values")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CorpusError(f"the metadata of {num_docs} documents are damaged: {error}") from error
    return _frozen(made)


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
    """Copies arrays with one entry a document as float64, int64 or bool.

    Raises:
        CorpusError: A value is not a finite number, or there is not one entry for each document.
    """
    if not isinstance(arrays, Mapping):
        raise CorpusError(
            f"covariates must be a mapping of names to arrays, got a {type(arrays).__name__}; "
            "give for example {'x': array}"
        )
    made: dict[str, NDArray[Any]] = {}
    for name, values in arrays.items():
        if not isinstance(name, str) or not name.strip():
            raise CorpusError(f"covariates must have names, got {name!r}")
        given = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        if given.dtype.kind not in "biuf" or given.ndim < 1 or given.shape[0] != num_docs:
            raise CorpusError(
                f"covariate {name!r}: expected an array of numbers whose first axis is the "
                f"{num_docs} documents, got shape {given.shape} of {given.dtype}"
            )
        kind = {"b": bool, "f": np.float64}.get(given.dtype.kind, np.int64)
        made[name] = np.array(given, kind)
        bad = np.argwhere(~np.isfinite(made[name]))
        if bad.size:
            raise CorpusError(
                f"covariate {name!r}: expected finite numbers, got "
                f"{made[name][tuple(bad[0])]} in document {bad[0][0]}; leave out documents with "
                "missing values, or fill these in"
            )
    return _frozen(made)
