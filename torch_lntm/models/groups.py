"""Groups: what content covariates know of the documents' column."""

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

Level = str | int | bool


@dataclass(frozen=True)
class Groups:
    """The groups of documents by the values of one column of their metadata.

    Attributes:
        column: The column's name.
        levels: Its values in the training documents, one a group, in order.
    """

    column: str
    levels: tuple[Level, ...]

    @classmethod
    def of(cls, corpus: Corpus, column: str) -> Groups:
        """Learn the groups of training documents.

        Args:
            corpus: The documents.
            column: A column of their metadata that holds text, truth values or whole numbers.

        Raises:
            ConfigError: The column is no name, holds fractions, or has the same value throughout or
                hardly one twice.
            CorpusError: There is no such column, or it lacks values.
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
        """The corpus with the array ``"content"`` ``(num_docs,)``, positions of the groups.

        It is derived once: an encoded corpus is returned as it is. Documents without the column
        keep the array that they have.

        Raises:
            CorpusError: There is neither, a value is missing, or it is not one of the levels.
        """
        if self.column not in corpus.metadata and CONTENT in corpus.covariates:
            return corpus.without_encodings(CONTENT)
        return corpus.with_encoding(CONTENT, self, lambda: self._derive(corpus))

    def _derive(self, corpus: Corpus) -> NDArray[np.int64]:
        values = _values(corpus, self.column)
        found, inverse = np.unique(values, return_inverse=True)
        position = {level: g for g, level in enumerate(self.levels)}
        unknown = [value for value in found.tolist() if value not in position]
        if unknown:
            raise CorpusError(
                f"column {self.column!r} is {unknown[0]!r} in some documents, a group that the "
                f"model has no topics of; it knows {', '.join(map(str, self.levels))}. Leave these "
                "out, or take the mean of the groups' topics: "
                "model.with_parts(topics=model.topics.in_group())"
            )
        groups = np.array([position[value] for value in found.tolist()], np.int64)
        return groups[inverse]

    def to_json(self) -> dict[str, Any]:
        """The groups as JSON-able data."""
        return {"column": self.column, "levels": list(self.levels)}

    @classmethod
    def from_json(cls, data: Any) -> Groups:
        """The groups that :meth:`to_json` gave.

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
                f"content is {data!r:.80}; expected what Groups.to_json() gives. Make the model by "
                "models.stm(num_topics, corpus, content='party')"
            )
        return cls(data["column"], tuple(levels))

    def position(self, level: Level) -> int:
        """The position of a level.

        Raises:
            ConfigError: There is no such level.
        """
        if level not in self.levels:
            raise ConfigError(
                f"group {level!r} of column {self.column!r}; expected one of "
                f"{', '.join(map(repr, self.levels))}"
            )
        return self.levels.index(level)


def _values(corpus: Corpus, column: str) -> NDArray[Any]:
    """The values of a column, none of them missing; text as text."""
    values = find_column(column, corpus.metadata)
    refuse_missing(column, values)
    return values
