"""Metadata and covariates of documents.

The metadata are a pandas data frame whose index names the documents. Anything a caller adds is
joined on that index, and each column's type is determined once, so that the rest of the library can
take the frame as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import infer_dtype
from torch import Tensor

from torch_lntm.errors import CorpusError, MissingColumnError
from torch_lntm.frames import align, is_default

T = TypeVar("T")

#: Half of a surrogate pair. Encoding it raises an error.
SURROGATE = re.compile("[\ud800-\udfff]")
#: float64 represents every integer up to this one.
EXACT_IN_FLOAT = 2**53
#: Types of the columns of metadata, by pandas. Objects are text, or None where it is missing.
TYPES = {"bool", "float64", "int64", "object"}
#: Maximum number of names and rows in a message.
_LISTED = 20
_INTEGER = re.compile(r"-?(?:0|[1-9]\d*)")
_DECIMAL = re.compile(r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
#: Texts that are missing values in a column of numbers, and words in a column of text.
_MISSING_NUMBERS = ("", "NA", "NaN", "nan")


class Columns(dict[str, T]):
    """A mapping of names to values, whose error for an unknown name lists the known ones."""

    def __missing__(self, name: str) -> T:
        raise MissingColumnError(name, self)


Arrays = Columns[NDArray[Any]]


def frozen(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Read-only arrays by name."""
    for array in arrays.values():
        array.setflags(write=False)
    return Columns(arrays)


def select_rows(arrays: Arrays, rows: Any) -> Arrays:
    """Arrays with the selected rows only."""
    return frozen({name: array[rows] for name, array in arrays.items()})


def listed(items: Iterable[Any]) -> str:
    """Items for a message: the first 20, then the number of further items."""
    texts = [str(item) for item in items]
    more = f" and {len(texts) - _LISTED} more" if len(texts) > _LISTED else ""
    return ", ".join(texts[:_LISTED]) + more


# -------------------------------------------------------------------- frames and records


def is_table(value: object) -> bool:
    """Whether a value is a data frame of pandas, Polars, Arrow or a similar library."""
    # Goes by the class, because merely asking a lazy frame for its columns makes it warn.
    has_rows = any(hasattr(type(value), name) for name in ("__arrow_c_stream__", "collect_schema"))
    return isinstance(value, pd.DataFrame) or (has_rows and hasattr(type(value), "columns"))


def as_frame(table: Any) -> pd.DataFrame:
    """A data frame or a list of dicts as a pandas frame, without rounding any integer.

    Raises:
        CorpusError: ``table`` is of another type, or lazy.
    """
    if isinstance(table, pd.DataFrame):
        return table
    if isinstance(table, list) and table and all(isinstance(row, Mapping) for row in table):
        return pd.DataFrame(table, dtype=object)
    # A Dataset of Hugging Face. Its own table lacks the order and choice of its rows.
    if hasattr(table, "with_format") and hasattr(table, "shard") and hasattr(table, "__len__"):
        table = table.with_format("arrow")[:]
    if not hasattr(table, "__arrow_c_stream__") or isinstance(table, pd.Series):
        kind = f"{type(table).__module__.partition('.')[0]} {type(table).__name__}"
        raise CorpusError(
            "expected a data frame of pandas, Polars or Arrow, a Dataset, or a list of dicts, got "
            f"a {kind}; call collect() of a lazy frame, take one split of a DatasetDict, and give "
            "frame[['name']] for one column; texts go to Corpus.from_texts"
        )
    import pyarrow as pa

    arrow = pa.table(table)
    columns = [
        column.to_pandas()
        if pa.types.is_temporal(column.type)
        or (pa.types.is_primitive(column.type) and not column.null_count)
        else pd.Series(column.to_pylist(), dtype=object)
        for column in arrow.columns
    ]
    frame = pd.concat(columns, axis=1) if columns else pd.DataFrame()
    return frame.set_axis(arrow.column_names, axis=1)


def take_texts(frame: pd.DataFrame, text: str) -> tuple[pd.Series, pd.DataFrame]:
    """The texts of a column, and all further columns.

    Raises:
        CorpusError: The column is missing or repeated.
    """
    number = list(frame.columns).count(text)
    if number != 1:
        raise CorpusError(
            f"{number or 'no'} columns are named {text!r}; name the column of the texts: text=; "
            f"the columns are {listed(frame.columns)}"
        )
    return frame[text].astype(object), frame.drop(columns=text)


# -------------------------------------------------------------------- metadata


def describe(documents: Any, num_docs: int, metadata: Any = None) -> pd.DataFrame:
    """Metadata of new documents, with an index that names them.

    If the documents have a pandas index, it gives the names. A list has no index, so it borrows
    that of the metadata, provided that it does more than count 0, 1, 2.
    Names that repeat or merely count are replaced by the column ``id`` if its values are distinct,
    and otherwise by the positions.

    Args:
        documents: The documents as the caller gave them.
        num_docs: Number of documents.
        metadata: As for :func:`make_metadata`.

    Raises:
        CorpusError: As for :func:`make_metadata`. The rows stand in another order than the
            documents, and neither have names to join by.
    """
    metadata = as_frame(metadata) if is_table(metadata) else metadata
    tables = [*metadata.values()] if isinstance(metadata, Mapping) else [metadata]
    positions = pd.RangeIndex(num_docs)
    own = _index_of(documents)
    given = [i for i in map(_index_of, tables) if i is not None and not is_default(i)]
    names = own if own is not None else given[0] if given else positions
    if len(names) != num_docs or (own is None and _is_shuffled(names)):
        names = positions  # align explains what is wrong
    frame = make_metadata({} if metadata is None else metadata, num_docs, names)
    is_whole = isinstance(names, pd.MultiIndex) or not names.hasnans
    return named(frame if names.is_unique and is_whole else frame.set_axis(positions))


def named(frame: pd.DataFrame, like: pd.Index | None = None) -> pd.DataFrame:
    """The frame with its column ``id`` as its index, if its rows have no names.

    The ids must differ, and none may be missing.

    Args:
        frame: The frame.
        like: Names of documents. Ids are compared as text with names that are text.
    """
    if not is_default(frame.index) or list(frame.columns).count("id") != 1:
        return frame
    ids = pd.Index(as_column("id", frame["id"], len(frame)))
    if like is not None and like.dtype.kind not in "iufM":
        ids = ids.map(str)
    return frame.set_axis(ids) if ids.is_unique and not ids.hasnans else frame


def make_metadata(columns: Any, num_docs: int, documents: pd.Index | None = None) -> pd.DataFrame:
    """Converts values to columns of metadata, each with one value for every document.

    A column has one of four types: float64, int64, bool, or object for text. Anything else becomes
    text: lists are joined by ``|``, and dates are written out. ``None``, NaN, empty text, and
    pandas's ``NA`` and ``NaT`` all count as missing, and become NaN among numbers and ``None`` in
    text. Integers and truth values with gaps become float64, unless that would round an integer, in
    which case they become text.

    Args:
        columns: A mapping of names to values, or a data frame of pandas, Polars or Arrow. A pandas
            index is matched with the names of the documents. So are the values of the column ``id``
            of a frame without an index. Other values go by position.
        num_docs: Number of values of each column.
        documents: Names of the documents. Defaults to their positions.

    Raises:
        CorpusError: ``columns`` is of another type, a name is blank or repeated, a column has
            another number of values, or the rows have other names than the documents.
    """
    documents = pd.RangeIndex(num_docs) if documents is None else documents
    if isinstance(columns, Mapping):
        return typed(align(columns, documents, "metadata").items(), documents)
    frame = as_frame(columns)
    if not is_default(documents):
        frame = named(frame, documents)
    return typed(align(frame, documents, "metadata").items(), documents)


def as_metadata(columns: Any) -> pd.DataFrame:
    """A frame whose columns have the types of metadata: the frame itself if they have them."""
    if isinstance(columns, pd.DataFrame) and {*map(str, columns.dtypes)} <= TYPES:
        objects = {infer_dtype(column) for _, column in columns.items() if column.dtype == object}
        if objects <= {"string", "empty"}:
            return columns
    first = columns if is_table(columns) else next(iter(columns.values()), ())
    return make_metadata(columns, len(first), _index_of(first))


def typed(
    columns: Iterable[tuple[Any, Any]],
    documents: pd.Index,
    convert: Callable[[str, Any, int], NDArray[Any]] | None = None,
) -> pd.DataFrame:
    """Columns of metadata with their types, each determined once.

    Args:
        columns: Pairs of a name and values in the order of the documents.
        documents: Names of the documents.
        convert: A function from a name, values and the number of documents to the typed values.
            Defaults to :func:`as_column`; for texts of CSV it is :func:`parse_column`.

    Raises:
        CorpusError: A name is blank or repeated, or a column has another number of values.
    """
    found: dict[str, pd.Series] = {}
    for key, values in columns:
        name = _text(key)
        if not name.strip() or name in found:
            problem = "twice" if name in found else "a blank name"
            raise CorpusError(
                f"columns of metadata must have different names, got {name!r} ({problem})"
            )
        array = (convert or as_column)(name, values, len(documents))
        found[name] = pd.Series(array, documents, dtype=array.dtype)
    return pd.DataFrame(found, index=documents)


def with_labels(frame: pd.DataFrame, labels: Any) -> pd.DataFrame:
    """The frame with the column ``label`` as its last: text, and None for missing labels."""
    values: list[Any] = as_column("label", labels, len(frame)).tolist()
    texts = [
        None if x is None or x != x else str(int(x) if isinstance(x, float) and x % 1 == 0 else x)
        for x in values
    ]
    bare = frame.drop(columns="label", errors="ignore")
    return bare.assign(label=pd.Series(texts, frame.index, dtype=object))


def _index_of(values: Any) -> pd.Index | None:
    return values.index if isinstance(values, (pd.Series, pd.DataFrame)) else None


def _is_shuffled(index: pd.Index) -> bool:
    """Whether an index holds the positions 0, 1, … in some other order."""
    if index.dtype.kind not in "iu" or index.hasnans:
        return False
    index = index.astype(np.int64)  # also of the type Int64
    return not is_default(index) and is_default(index.sort_values())


def as_column(name: str, values: Any, num_docs: int) -> NDArray[Any]:
    """Values as an array ``(num_docs,)`` of one of the four types of :func:`make_metadata`."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    values = values.to_pylist() if hasattr(values, "to_pylist") else values
    dtype, array = getattr(values, "dtype", None), None
    if isinstance(dtype, np.dtype):
        array = np.asarray(values)
    elif isinstance(dtype, pd.CategoricalDtype):
        # The levels of a category are names even if they look like numbers.
        array = np.asarray(pd.Series(values).astype(object).map(str, na_action="ignore"))
    elif isinstance(values, Iterable) and not isinstance(values, (str, bytes)):
        items = list(values)
        array = np.fromiter(items, object, len(items))
    if array is None or array.shape != (num_docs,):
        got = len(array) if array is not None and array.ndim == 1 else f"{values!r:.60}"
        raise CorpusError(
            f"metadata {name!r}: expected one value for each of {num_docs} documents, got {got}"
        )
    if array.dtype.kind == "M":
        missing, array = np.isnat(array), array.astype(str).astype(object)
        array[missing] = None
    elif array.dtype.kind not in "bif":
        array = _from_objects(array)
    types: dict[str, Any] = {"b": bool, "i": np.int64, "f": np.float64}
    return array.astype(types.get(array.dtype.kind, object))


def _from_objects(values: Any) -> NDArray[Any]:
    """Column of Python values, by the type that pandas infers for the present values."""
    items = pd.Series(values, dtype=object)
    present = items[items.notna() & ~items.map(lambda x: isinstance(x, str) and not x)]
    column = present.infer_objects()
    kind, complete = column.dtype.kind, len(present) == len(items)
    if not complete and kind in "bi" and max(map(abs, present)) <= EXACT_IN_FLOAT:
        column = column.astype(np.float64)
    elif kind not in ("bif" if complete else "f"):
        column = pd.Series([_text(x) or None for x in present], present.index, dtype=object)
    if complete:
        return column.to_numpy()
    return column.reindex(items.index).to_numpy(na_value=None if column.dtype == object else np.nan)


def parse_column(name: str, values: pd.Series, num_docs: int) -> NDArray[Any]:
    """A CSV column as numbers if every value present is a number, and otherwise as text.

    Numbers with leading zeros or a plus sign are likely to be codes, so they stay text. Integers of
    64 bits stay integers; if some are missing, they become floats, unless that would round them.
    In text NA is missing, as R writes it, but not among ids.
    """
    present = {*values} - {*_MISSING_NUMBERS}
    if not present or not all(map(_DECIMAL.fullmatch, present)):
        return as_column(
            name, [None if text == "NA" and name != "id" else text for text in values], num_docs
        )
    kind = int if all(map(_INTEGER.fullmatch, present)) else float
    numbers = {text: kind(text) for text in present}
    return as_column(name, [numbers.get(text) for text in values], num_docs)


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple, np.ndarray)):
        text = "|".join(map(str, value))
    else:
        text = json.dumps(value) if isinstance(value, dict) else str(value)
    # Half of a surrogate pair cannot be written to files, tables or terminals.
    return text if text.isascii() else SURROGATE.sub("\ufffd", text)


# -------------------------------------------------------------------- columns


def find_column(name: str, metadata: pd.DataFrame) -> NDArray[Any]:
    """Values of a column: bool, int64, float64, or objects, which are text or None if missing.

    Raises:
        MissingColumnError: The column is missing.
    """
    if name not in metadata:
        raise MissingColumnError(name, metadata)
    return metadata[name].to_numpy()


def complete_column(name: str, metadata: pd.DataFrame, each: str = "document") -> NDArray[Any]:
    """The result of :func:`find_column` for a column without missing values.

    Raises:
        CorpusError: The column or a value is missing. The message names the first document.
    """
    values = find_column(name, metadata)
    if not len(values):
        raise CorpusError(f"column {name!r} has no values; give at least one {each}")
    missing = pd.isna(values)
    if missing.any():
        raise CorpusError(
            f"column {name!r} lacks a value in {missing.sum()} {each}s, the first of them {each} "
            f"{missing.argmax()}, counted from 0; leave these out (in Python: corpus[rows]), or "
            "fill the values in"
        )
    return values


def column_or_values(corpus: Any, values: Any, what: str, rows: Any = slice(None)) -> NDArray[Any]:
    """Values of some documents: a column of the metadata, or values by index or position.

    Args:
        corpus: The corpus.
        values: Name of the column, or a value for each document.
        what: What the values are, for messages.
        rows: Positions of the documents.

    Raises:
        CorpusError: As for :func:`complete_column`, or the values are those of other documents.
    """
    name = values if isinstance(values, str) else what
    table = corpus if isinstance(values, str) else corpus.with_metadata({what: values})
    return complete_column(name, table.metadata.iloc[rows])


# -------------------------------------------------------------------- covariates


def make_covariates(arrays: Any, num_docs: int, documents: pd.Index | None = None) -> Arrays:
    """Copies arrays with one row for each document, as float64, int64 or bool.

    Args:
        arrays: Values by name.
        num_docs: Number of documents.
        documents: Names of the documents, to match with the index of pandas values.

    Raises:
        CorpusError: A value is infinite, NaN or of another type, or the number of rows is wrong.
    """
    if not isinstance(arrays, Mapping):
        raise CorpusError(
            "covariates must be a mapping of names to arrays, for example {'x': array}; got a "
            f"{type(arrays).__name__}"
        )
    copies: dict[str, NDArray[Any]] = {}
    for name, values in arrays.items():
        values = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
        array = np.asarray(values if documents is None else align(values, documents, name))
        is_numeric = isinstance(name, str) and array.dtype.kind in "biuf" and array.ndim > 0
        if not is_numeric or array.shape[0] != num_docs:
            raise CorpusError(
                f"covariate {name!r}: expected a named array of numbers whose first axis is the "
                f"{num_docs} documents, got shape {array.shape} of {array.dtype}"
            )
        kind = {"b": bool, "f": np.float64}.get(array.dtype.kind, np.int64)
        copies[name] = np.array(array, kind)
        bad = np.argwhere(~np.isfinite(copies[name]))
        if bad.size:
            raise CorpusError(
                f"covariate {name!r}: expected finite numbers, got "
                f"{copies[name][tuple(bad[0])]} in document {bad[0][0]}, counted from 0; leave out "
                "documents with missing values, or fill these in"
            )
    return frozen(copies)
