"""Data frames: rows matched to documents by name, and tables as text, CSV and JSON.

The index of a frame names its rows. Values without an index, such as arrays and lists, go by
position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from torch_lntm.errors import ConfigError, CorpusError

TableFormat = Literal["text", "csv", "json"]


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
    unique = rows.is_unique and documents.is_unique
    if unique and rows.isin(documents).all() and not is_default(documents):
        return values.reindex(documents)
    first = int(np.argmax(rows != documents)) if len(rows) else 0
    shuffled = unique and rows.isin(documents).all()
    problem = "stand in another order than" if shuffled else "have other names than"
    raise CorpusError(
        f"{what}: the rows {problem} the documents, whose names are the index of corpus.metadata: "
        f"row {first} is {rows.tolist()[first]!r}, and document {first} is "
        f"{documents.tolist()[first]!r}. Give the "
        "rows the documents' names by frame.set_index, or leave out the index to take them by "
        "position: .to_numpy() of a series, .reset_index(drop=True) of a frame for a new corpus"
    )


def _protected(cell: Any) -> Any:
    """A text that neither a spreadsheet computes nor a reader takes for the end of a row."""
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


def to_csv(frame: pd.DataFrame, *, index: bool = False) -> str:
    """A frame as comma-separated values, safe to open in a spreadsheet.

    A text that a spreadsheet would compute, such as ``=1+1``, gets an apostrophe in front, and
    carriage returns become line feeds, which every reader knows to be inside of a quoted cell.

    Args:
        frame: The table.
        index: Whether to write the index as the first column.
    """
    # Column by column, because frames may repeat the name of a column.
    columns = [
        frame.iloc[:, i]
        if frame.dtypes.iloc[i].kind in "biuf"
        else frame.iloc[:, i].map(_protected)
        for i in range(frame.shape[1])
    ]
    safe = pd.concat(columns, axis=1) if columns else frame.copy()
    safe.columns = [_protected(name) for name in frame.columns]
    safe.index = frame.index.map(_protected) if index else frame.index
    return str(safe.to_csv(index=index, lineterminator="\n"))


def render(frame: pd.DataFrame, form: TableFormat = "text") -> str:
    """A frame as text for a terminal, as CSV, or as a JSON list with an object for each row.

    Args:
        frame: The table. Its index is not printed.
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
    if form == "csv":
        return to_csv(frame).rstrip("\n")
    if form == "json":
        return str(frame.to_json(orient="records", indent=2, force_ascii=False, date_format="iso"))
    if form != "text":
        raise ConfigError(f"format {form!r}; expected one of {', '.join(get_args(TableFormat))}")
    return str(frame.to_string(index=False, na_rep="", float_format="{:.4g}".format))
