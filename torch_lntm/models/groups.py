"""Groups: groups of documents with different words in their topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, CorpusError
from torch_lntm.formulas.columns import find_column, refuse_missing

#: The name of the array in a batch's covariates.
CONTENT = "content"

Level = str | int | float | bool


@dataclass(frozen=True)
class Groups:
    """Groups of documents by the values of a metadata column.

    Attributes:
        column: Name of the column.
        levels: Values of the column in the training documents, sorted. Each value is a group.

    Example:
        >>> lntm.models.Groups.of(posts, "party")
        Groups(column='party', levels=('left', 'right'))
    """

    column: str
    levels: tuple[Level, ...]

    @classmethod
    def of(cls, corpus: Corpus, column: str) -> Groups:
        """Learn the groups of training documents.

        Args:
            corpus: The documents.
            column: Name of a metadata column with text, truth values or whole numbers.

        Raises:
            ConfigError: ``column`` is not a name. Or the column holds floating-point numbers, is
                constant, or has more values than half the number of documents.
            CorpusError: The column is missing or lacks values.
        """
        if not isinstance(column, str):
            raise ConfigError(
                f"content is a {type(column).__name__}; expected the name of one column, such as "
                "'party'"
            )
        values = _values(corpus, column)
        if values.dtype.kind == "f":
            raise ConfigError(
                f"content: column {column!r} holds numbers such as {values[0]}; expected groups "
                "of documents, as text or whole numbers"
            )
        levels = tuple(np.unique(values).tolist())
        if len(levels) < 2:
            raise ConfigError(
                f"content: column {column!r} is {levels[0]!r} in all documents; leave it out"
            )
        if 2 * len(levels) > corpus.num_docs:
            raise ConfigError(
                f"content: column {column!r} has {len(levels)} different values in "
                f"{corpus.num_docs} documents; expected groups of several documents each"
            )
        return cls(column, levels)

    def encode(self, corpus: Corpus) -> Corpus:
        """The corpus with the array ``"content"``: each document's group, as its position.

        The array has shape ``(num_docs,)``. An encoded corpus is returned unchanged. If the
        documents lack the column, an existing array ``"content"`` is kept.

        Raises:
            CorpusError: The column and the array are missing, the column lacks values, or a value
                of the column is no level of the training documents.
        """
        if self.column not in corpus.metadata and CONTENT in corpus.covariates:
            return corpus.without_encodings(CONTENT)
        return corpus.with_encoding(CONTENT, self, lambda: self._derive(corpus))

    def _derive(self, corpus: Corpus) -> NDArray[np.int64]:
        values = _values(corpus, self.column)
        levels, inverse = np.unique(values, return_inverse=True)
        position = {level: g for g, level in enumerate(self.levels)}
        unknown = [value for value in levels.tolist() if value not in position]
        if unknown:
            raise CorpusError(
                f"column {self.column!r} is {unknown[0]!r} in some documents, and the model has no "
                f"topics for this group; it knows {', '.join(map(str, self.levels))}. Leave these "
                "documents out, or use the mean of the groups' topics: "
                "model.with_parts(topics=model.topics.in_group())"
            )
        groups = np.array([position[value] for value in levels.tolist()], np.int64)
        return groups[inverse]

    def to_json(self) -> dict[str, Any]:
        """The groups as JSON-able data."""
        return {"column": self.column, "levels": list(self.levels)}

    @classmethod
    def from_json(cls, data: Any) -> Groups:
        """The groups from the data of :meth:`to_json`.

        Raises:
            ConfigError: The data are damaged.
        """
        levels = data.get("levels") if isinstance(data, Mapping) else None
        if (
            not isinstance(levels, list)
            or not isinstance(data.get("column"), str)
            or not all(isinstance(level, str | int) for level in levels)
            or not 0 < len(set(levels)) == len(levels)
        ):
            raise ConfigError(
                f"content is {data!r:.80}; expected the result of Groups.to_json(). Make the model "
                "by models.stm(num_topics, corpus, content='party')"
            )
        return cls(data["column"], tuple(levels))

    def position(self, level: Level) -> int:
        """Position of a level in ``levels``.

        Raises:
            ConfigError: The level is unknown.
        """
        if level not in self.levels:
            raise ConfigError(
                f"group {level!r} of column {self.column!r}; expected one of "
                f"{', '.join(map(repr, self.levels))}"
            )
        return self.levels.index(level)


def _values(corpus: Corpus, column: str) -> NDArray[Any]:
    """Values of a column.

    Raises:
        CorpusError: The column is missing or lacks values.
    """
    values = find_column(column, corpus.metadata)
    refuse_missing(column, values)
    return values
