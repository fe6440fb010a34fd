"""Representative documents of topics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.frames import Rows, align, is_missing
from torch_lntm.inference import DocumentTopics, ThetaDraws
from torch_lntm.models.names import find_topics
from torch_lntm.plotting.style import format_number, shorten

#: Most characters of a text and of a metadata value, most columns, most words of a document.
_TEXT, _VALUE, _FIELDS, _WORDS = 420, 80, 6, 15
#: Number of draws for an interval.
_DRAWS = 200


@dataclass(frozen=True)
class RepresentativeDocument:
    """A document with a large share of a topic.

    Attributes:
        topic: The topic.
        name: Name of the topic; its number as text if it has no name.
        rank: Place of the document among the documents of the topic, from 1.
        document: Position of the document in the corpus.
        id: Name of the document: its entry in the index of ``corpus.metadata``.
        share: Share of the topic in the document.
        metadata: Metadata of the document, by column.
        excerpt: Beginning of the text, or the most frequent words; None if neither was asked for.
        interval: Ends of the share's interval, on the report page.
    """

    topic: int
    name: str
    rank: int
    document: int
    id: Any
    share: float
    metadata: dict[str, Any]
    excerpt: str | None = None
    interval: tuple[float, float] | None = None

    def records(self) -> list[dict[str, Any]]:
        """The row of a frame, with the columns of the metadata, and the excerpt at last."""
        row = {"topic": self.topic, "name": self.name, "rank": self.rank, "document": self.id}
        row["gamma"] = self.share
        row |= {name: value for name, value in self.metadata.items() if name not in row}
        return [row if self.excerpt is None else {**row, "excerpt": self.excerpt}]

    @property
    def fields(self) -> list[tuple[str, str]]:
        """Names and values of the first metadata columns, missing values left out."""
        return [
            (name, shorten(format_number(x) if isinstance(x, float) else str(x), _VALUE))
            for name, x in self.metadata.items()
            if not is_missing(x)
        ][:_FIELDS]


def representative_documents(
    proportions: DocumentTopics,
    *,
    num_docs: int = 3,
    least: float = 0.0,
    topics: Sequence[int | str] | None = None,
    corpus: Corpus | None = None,
    texts: Iterable[str] | None = None,
) -> Rows[RepresentativeDocument]:
    """Documents with the largest share of each topic.

    Args:
        proportions: The result of :func:`torch_lntm.inference.transform`.
        num_docs: Most documents of each topic.
        least: Smallest share of the topic in a document.
        topics: The topics, by number or name. Defaults to all.
        corpus: The documents, for excerpts: beginnings of ``texts``, or the most frequent words.
        texts: Texts of the documents: a pandas series, whose index names the documents; or any
            other iterable in the order of the corpus, read once.

    Returns:
        The documents, topic by topic, the largest share first. Empty documents are left out. The
        columns of ``frame()`` are ``topic``, ``name``, ``rank``, ``document``, ``gamma``, those of
        the metadata, and ``excerpt`` if a corpus is given.

    Raises:
        ConfigError: A number is out of range, a topic does not exist, or the number of texts
            differs from the number of documents.
        CorpusError: The texts have other names than the documents.

    Example:
        >>> proportions = lntm.inference.transform(guide, train)
        >>> documents = lntm.reports.representative_documents(proportions, num_docs=2)
        >>> documents.frame()["topic"].tolist()[:4]
        [0, 0, 1, 1]
    """
    require_whole(1, num_docs=num_docs)
    if texts is not None and corpus is None:
        raise ConfigError("texts without a corpus; give corpus=, whose documents they belong to")
    names, table = proportions.topic_names, proportions.metadata
    numbers = find_topics(names, range(len(names)) if topics is None else topics)
    columns = {name: np.asarray(column) for name, column in table.items()}
    ids = table.index if len(table) else pd.RangeIndex(len(proportions.lengths))
    shares = proportions.theta.double().clone()
    shares[torch.from_numpy(proportions.lengths == 0)] = -1.0
    rows = Rows[RepresentativeDocument](columns=("topic", "name", "rank", "document", "gamma"))
    for k in numbers:
        order = shares[:, k].argsort(stable=True, descending=True)[:num_docs]
        for rank, d in enumerate(order[shares[order, k] >= max(least, 0.0)].tolist(), 1):
            metadata = {name: values[d] for name, values in columns.items()}
            share = float(shares[d, k])
            rows.append(RepresentativeDocument(k, names[k], rank, d, ids[d], share, metadata))
    return rows if corpus is None else with_excerpts(rows, corpus, texts)


def with_excerpts(
    rows: Sequence[RepresentativeDocument],
    corpus: Corpus,
    texts: Iterable[str] | None,
    positions: NDArray[np.int64] | None = None,
) -> Rows[RepresentativeDocument]:
    """Documents with the beginnings of their texts, or with their most frequent words.

    Args:
        rows: The documents.
        corpus: All documents.
        texts: See :func:`representative_documents`.
        positions: Positions in the corpus of the documents that ``rows`` counts from 0. Defaults to
            the positions in ``rows``. The result has positions in the corpus.
    """
    at = [row.document if positions is None else int(positions[row.document]) for row in rows]
    index = corpus.metadata.index
    if texts is None:
        excerpts = {d: _frequent_words(corpus, d) for d in set(at)}
    else:
        excerpts = _beginnings(align(texts, index, "texts"), set(at), len(corpus))
    found = zip(rows, at, strict=True)
    return Rows(replace(row, document=d, id=index[d], excerpt=excerpts[d]) for row, d in found)


def with_intervals(
    rows: Sequence[RepresentativeDocument], draws: ThetaDraws, level: float
) -> Rows[RepresentativeDocument]:
    """Documents with equal-tailed intervals of their shares, from draws of their proportions."""
    chosen = np.array(sorted({row.document for row in rows}), np.int64)
    tails = [(1 - level) / 2, (1 + level) / 2]
    ends: dict[int, NDArray[np.float64]] = {}
    for part in draws.take(chosen, _DRAWS) if len(chosen) else ():
        both = np.quantile(part.theta.cpu().numpy(), tails, axis=0)
        ends |= {d: both[:, i] for i, d in enumerate(part.rows.tolist())}
    return Rows(replace(row, interval=(*ends[row.document][:, row.topic],)) for row in rows)


def _beginnings(texts: Iterable[str], positions: set[int], num_docs: int) -> dict[int, str]:
    """Beginnings of the texts at some positions."""
    excerpts, number = {}, 0
    for number, text in enumerate(texts, 1):
        if number - 1 in positions:
            # A text can be a whole book: cut it before cleaning its white space.
            beginning = "" if is_missing(text) else str(text)[: 4 * _TEXT]
            excerpts[number - 1] = shorten(" ".join(beginning.split()), _TEXT)
    if number != num_docs:
        raise ConfigError(
            f"{number} texts for {num_docs} documents; expected one for each, in order"
        )
    return excerpts


def _frequent_words(corpus: Corpus, document: int) -> str:
    """The most frequent words of a document, separated by commas."""
    entries = slice(*corpus.row_offsets[document : document + 2].tolist())
    words, counts = np.asarray(corpus.word_index[entries]), np.asarray(corpus.counts[entries])
    frequent = words[np.argsort(-counts, kind="stable")[:_WORDS]].tolist()
    return ", ".join(
        f"#{v}" if corpus.vocabulary is None else corpus.vocabulary[v] for v in frequent
    )
