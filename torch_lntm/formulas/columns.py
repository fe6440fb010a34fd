"""Columns of metadata in a formula: as numbers or as levels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.metadata import column_or_values, complete_column
from torch_lntm.errors import ConfigError, CorpusError

#: Kind of a column: numbers, dates (text converted to days), or text (levels).
Kind = Literal["number", "date", "text"]

#: A date, perhaps with a time.
DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ].*)?")
#: Largest ratio of two weights: a document of less weight would vanish in the rounding of sums.
MOST_RATIO = 1e15


class Survey(NamedTuple):
    """The documents that count, and how they were sampled.

    Attributes:
        rows: Positions of the documents with words and a positive weight.
        weights: Their weights, of mean 1; ``None`` for equal weights.
        clusters: Their clusters, numbers from 0, if any.
        strata: ``(num_clusters,)`` or, without clusters, ``(num_docs,)`` strata, if any.
    """

    rows: NDArray[np.int64]
    weights: NDArray[np.float64] | None
    clusters: NDArray[np.int64] | None
    strata: NDArray[np.int64] | None

    def __str__(self) -> str:
        counts = {"clusters": self.clusters, "strata": self.strata}
        parts = [f"{of.max() + 1} {name}" for name, of in counts.items() if of is not None]
        return " in ".join(parts)


def read_survey(corpus: Corpus, weights: Any, clusters: Any, strata: Any) -> Survey:
    """The documents that count, with weights, clusters and strata.

    Args:
        corpus: The documents.
        weights: Name of a column, or values; ``None`` for equal weights.
        clusters: Likewise, for independent documents.
        strata: Likewise, for a single stratum.

    Raises:
        ConfigError: A weight is negative or not finite, all are 0, or two differ too much; a
            cluster lies in two strata; or a stratum has a single cluster.
        CorpusError: As for :func:`column_or_values`.
    """
    rows, of_weights = corpus.nonempty, None
    if weights is not None:
        found = column_or_values(corpus, weights, "weights", rows)
        if found.dtype.kind not in "bif" or not (np.isfinite(found) & (found >= 0)).all():
            raise ConfigError("weights must be finite numbers from 0, one for each document")
        if not found.any():
            raise ConfigError(
                "the weights of all documents with words are 0; expected positive ones"
            )
        rows, positive = rows[found > 0], found[found > 0].astype(np.float64)
        of_weights = positive / positive.max()  # first, since the sum of large weights is infinite
        if of_weights.min() < 1 / MOST_RATIO:
            raise ConfigError(
                f"weights lie between {positive.min():.3g} and {positive.max():.3g}; expected "
                f"ratios up to {MOST_RATIO:.0e}, or 0 for documents to leave out"
            )
        of_weights /= of_weights.mean()
    units = of_clusters = of_strata = None
    if clusters is not None:
        column = column_or_values(corpus, clusters, "clusters", rows).astype(str)
        units, of_clusters = np.unique(column, return_inverse=True)
    if strata is not None:
        column = column_or_values(corpus, strata, "strata", rows).astype(str)
        names, codes = np.unique(column, return_inverse=True)
        each = np.arange(len(rows)) if of_clusters is None else of_clusters
        each, of_strata = np.unique(np.stack([each, codes]), axis=1)
        double = np.flatnonzero(np.diff(each) == 0)
        if units is not None and len(double):
            raise ConfigError(
                f"cluster '{units[each[double[0]]]}' lies in several strata; expected each in one. "
                "If every stratum numbers its clusters anew, join both columns in one of clusters"
            )
        lone = np.flatnonzero(np.bincount(of_strata) == 1)
        if len(lone):
            unit = "document" if units is None else "cluster"
            raise ConfigError(
                f"stratum '{names[lone[0]]}' has a single {unit}, which tells nothing of the "
                "variance within the stratum; join it with a similar stratum"
            )
    return Survey(rows, of_weights, of_clusters, of_strata)


def read_columns(
    metadata: pd.DataFrame, kinds: Mapping[str, Kind | None], each: str = "document"
) -> tuple[pd.DataFrame, dict[str, Kind]]:
    """Columns for a formula, as numbers, days since 1970-01-01, or text.

    Args:
        metadata: The metadata.
        kinds: Kinds of the columns by name. Where it is ``None``, text is of the kind date if all
            values are dates.
        each: Name of the place of a value in messages, such as ``"document"``.

    Returns:
        The columns, and their kinds.

    Raises:
        CorpusError: A column or a value is missing, or a value is of another kind.
    """
    read: dict[str, Any] = {}
    found: dict[str, Kind] = {}
    for name, kind in kinds.items():
        values = complete_column(name, metadata, each)
        is_number = values.dtype.kind in "bif"
        if kind is None:
            is_date = not is_number and all(map(DATE.fullmatch, values))
            kind = "number" if is_number else "date" if is_date else "text"
        if (kind == "number") != is_number:
            raise CorpusError(
                f"column {name!r} holds {values[0]!r:.40}; expected {kind}s, as in the documents "
                "that the formula was fitted to"
            )
        if kind == "date":
            days = [_day(value) for value in values]
            if None in days:
                row = days.index(None)
                raise CorpusError(
                    f"column {name!r} holds dates, and {values[row]!r:.40} in {each} {row}, "
                    "counted from 0; expected each as in 2004-09-30"
                )
            values = np.array(days, np.float64)
        found[name] = kind
        read[name] = values.astype(np.float64) if values.dtype.kind == "b" else values
    return pd.DataFrame(read, index=pd.RangeIndex(len(metadata))), found


def _day(text: str) -> float | None:
    try:
        date = np.datetime64(text[:10], "D") if DATE.fullmatch(text) else None
    except ValueError:
        return None
    return None if date is None else float(date.astype(np.int64))
