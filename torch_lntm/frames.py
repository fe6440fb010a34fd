"""Data frames: rows matched to documents by name, and tables as text, CSV and JSON.

The index of a frame names its rows, so that they can be matched; values without an index, such as
arrays and lists, go by position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from torch_lntm.errors import CorpusError, require_one

TableFormat = Literal["text", "csv", "json"]
#: Most characters of a cell of a printed table.
_WIDEST = 160


def is_default(index: pd.Index) -> bool:
    """Whether an index only numbers its rows 0, 1, …, so that the rows have no names."""
    return bool(index.equals(pd.RangeIndex(len(index))))


def align(values: Any, documents: pd.Index, what: str) -> Any:
    """Puts values with one row per document in the order of the documents.

    Args:
        values: A pandas series or frame, whose index is compared with the documents' names; a
            mapping of names to columns, each aligned by itself; or any other value, which goes by
            position and is returned unchanged.
        documents: Names of the documents, which is the index of ``corpus.metadata``.
        what: What the values are, for messages.

    Returns:
        The values; pandas objects get the index ``documents``.

    Raises:
        CorpusError: The rows have other names than the documents; or they stand in another order,
            and the documents have no names of their own to join by.

    Example:
        >>> import pandas
        >>> party = pandas.Series(["left", "right"], index=["b", "a"])
        >>> lntm.frames.align(party, pandas.Index(["a", "b"]), "party").tolist()
        ['right', 'left']
    """
    if isinstance(values, Mapping):
        return {name: align(column, documents, str(name)) for name, column in values.items()}
    if not isinstance(values, (pd.Series, pd.DataFrame)) or values.index.equals(documents):
        return values
    rows = values.index
    if len(rows) != len(documents):
        raise CorpusError(
            f"{what}: expected one row for each of {len(documents)} documents, got {len(rows)}"
        )
    is_same_set = rows.is_unique and documents.is_unique and rows.isin(documents).all()
    if is_same_set and not is_default(documents):
        return values.reindex(documents)
    first = int(np.argmax(rows != documents))
    problem = "stand in another order than" if is_same_set else "have other names than"
    raise CorpusError(
        f"{what}: the rows {problem} the documents, whose names are the index of corpus.metadata: "
        f"row {first} is {rows.tolist()[first]!r}, and document {first} is "
        f"{documents.tolist()[first]!r}. Give the "
        "rows the documents' names by frame.set_index, or leave out the index to take them by "
        "position: .to_numpy() of a series, .to_dict('list') of a frame"
    )


def _protected(cell: Any) -> Any:
    """A text made safe: no spreadsheet computes it, and no reader takes it for the end of a row."""
    if not isinstance(cell, str):
        return cell
    text = cell.replace("\r\n", "\n").replace("\r", "\n")
    if not text.lstrip().startswith(("=", "+", "-", "@")) and not text.startswith(("\t", "\n")):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def to_csv(frame: pd.DataFrame) -> str:
    """A frame as comma-separated values, without its index and safe to open in a spreadsheet.

    A text that a spreadsheet would compute, such as ``=1+1``, is preceded by an apostrophe.
    Carriage returns become line feeds, because every reader accepts those inside a quoted cell.

    Args:
        frame: The table.
    """
    safe = frame.copy()
    for i, dtype in enumerate(frame.dtypes):  # by position, because names of columns may repeat
        if dtype.kind not in "biuf":
            safe.isetitem(i, frame.iloc[:, i].map(_protected))
    safe.columns = [_protected(name) for name in frame.columns]
    return str(safe.to_csv(index=False, lineterminator="\n"))


def render(table: Any, form: TableFormat = "text") -> str:
    """A frame as text for a terminal, as CSV, or as a JSON list with an object for each row.

    Args:
        table: The frame, whose index is not printed; or a result with a method ``frame``, whose
            text is ``str(table)``.
        form: ``"text"``, ``"csv"`` or ``"json"``.

    Returns:
        The table, without a line feed at its end.

    Raises:
        ConfigError: The format has another name.

    Example:
        >>> import pandas
        >>> frame = pandas.DataFrame({"topic": [0, 1], "words": ["tax law", "=1+1"]})
        >>> print(lntm.frames.render(frame, "csv"))
        topic,words
        0,tax law
        1,'=1+1
    """
    if not isinstance(table, pd.DataFrame):
        if form == "text":
            return str(table)
        table = table.frame()
    if form == "csv":
        return to_csv(table).rstrip("\n")
    if form == "json":
        return str(table.to_json(orient="records", indent=2, force_ascii=False, date_format="iso"))
    require_one(get_args(TableFormat), format=form)
    table = _words_in_lines(table)
    columns = [_flush_left(table.iloc[:, i]) for i in range(table.shape[1])]
    shown = pd.concat(columns, axis=1) if columns else table
    text = str(shown.to_string(index=False, na_rep="", float_format="{:.4g}".format))
    return "\n".join(line.rstrip() for line in text.split("\n"))


def _words_in_lines(table: pd.DataFrame) -> pd.DataFrame:
    """A table with the words of a list in one line, and without names that are numbers."""
    if "word" in table and {"probability", "ratio"} & {*table}:  # of topics, and no metadata
        keys = table.columns[: table.columns.get_loc("word")].tolist()
        lists = table.groupby(keys, sort=False, dropna=False)["word"]
        table = lists.agg(" ".join).reset_index(name="words")
    if {"name", "topic"} <= {*table} and (table["name"] == table["topic"].map(str)).all():
        table = table.drop(columns="name")
    return table


def _flush_left(column: pd.Series) -> pd.Series:
    """A column of texts padded to one width, its name too; another column is printed by pandas."""
    if column.dtype.kind in "iu":
        return column.astype(object).where(column.notna(), "")
    if column.dtype.kind in "bfM":
        return column
    texts = ["" if is_missing(x) else "".join(map(_visible, str(x))) for x in column]
    texts = [t if len(t) <= _WIDEST else f"{t[: _WIDEST - 1]}…" for t in texts]
    width = max(map(len, [str(column.name), *texts]))
    return pd.Series([t.ljust(width) for t in texts], column.index, name=f"{column.name:{width}}")


def is_missing(value: Any) -> bool:
    """Whether a value of a table is None, NaN, NaT or pandas' NA."""
    return value is None or value is pd.NA or value is pd.NaT or value != value


def _visible(letter: str) -> str:
    """A letter as a terminal may print it."""
    return letter if letter.isprintable() else " " if letter.isspace() else "�"
