"""Representative documents of topics: for the report page, and as tables."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.inference import DocumentTopics, ThetaDraws
from torch_lntm.models import TopicModel
from torch_lntm.reports.groups import format_number
from torch_lntm.reports.labels import (
    RepresentativeDocument,
    representative_documents,
    topic_labels,
)
from torch_lntm.reports.tables import TableFormat, check_text, to_csv

#: Most characters of a text and of a metadata value, most columns, most words of a document.
_TEXT, _VALUE, _FIELDS, _WORDS = 420, 80, 6, 15
#: Number of draws for an interval.
_DRAWS = 200
#: Words in the label of a topic, and most characters of a text in a line, of printed documents.
_LABEL_WORDS, _LINE = 5, 100


@dataclass(frozen=True)
class Representative:
    """A document with a large share of a topic.

    Attributes:
        document: Position in the corpus, or the number given for it.
        share: Posterior mean of the topic's proportion.
        lower: Lower end of the proportion's interval.
        upper: Upper end of the interval.
        fields: Names and values of the metadata.
        excerpt: Beginning of the text; the most frequent words if there are no texts.
        is_text: Whether the excerpt is text.
    """

    document: int
    share: float
    lower: float
    upper: float
    fields: tuple[tuple[str, str], ...]
    excerpt: str
    is_text: bool


def represent_topics(
    draws: ThetaDraws,
    corpus: Corpus,
    proportions: DocumentTopics,
    num_docs: int,
    texts: Iterable[str] | None = None,
    positions: NDArray[np.int64] | None = None,
    num_texts: int | None = None,
    *,
    level: float = 0.95,
) -> list[list[Representative]]:
    """Documents with the largest share of each topic, with intervals and excerpts.

    Args:
        draws: Draws of the documents' proportions.
        corpus: The documents.
        proportions: The documents' mean proportions.
        num_docs: Documents for each topic.
        texts: Texts of the documents in the order of the corpus, read once.
        positions: ``(num_docs,)`` numbers of the documents to show, and to find their texts.
            Defaults to positions in the corpus.
        num_texts: Number of texts to expect. Defaults to the number of documents.
        level: Posterior probability of each interval.

    Returns:
        A list of documents for each topic, the largest share first.

    Raises:
        ConfigError: The number of texts differs from the number of documents.
    """
    model = draws.model
    representatives = representative_documents(proportions, num_docs=num_docs) if num_docs else []
    chosen = sorted({row.document for row in representatives})
    number = list(range(len(corpus))) if positions is None else positions.tolist()
    excerpts = None
    if texts is not None:
        excerpts = excerpts_of(texts, {number[d] for d in chosen}, num_texts or len(corpus))
    ends: dict[int, tuple[Tensor, Tensor]] = {}
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2])
    for part in draws.take(np.array(chosen, np.int64), _DRAWS) if chosen else ():
        lower, upper = torch.quantile(part.theta, tails.to(part.theta), dim=0)
        ends |= {d: (lower[i], upper[i]) for i, d in enumerate(part.rows.tolist())}
    shown: list[list[Representative]] = [[] for _ in range(model.num_topics)]
    for row in representatives:
        d, k = row.document, row.topic
        shown[k].append(
            Representative(
                number[d],
                row.share,
                float(ends[d][0][k]),
                float(ends[d][1][k]),
                _fields(row.metadata),
                frequent_words(model, corpus, d) if excerpts is None else excerpts[number[d]],
                excerpts is not None,
            )
        )
    return shown


def format_documents(
    model: TopicModel,
    documents: Sequence[RepresentativeDocument],
    corpus: Corpus,
    texts: Iterable[str] | None = None,
    format: TableFormat = "text",
) -> str:
    """Representative documents as text, as JSON, or as CSV with a row per document.

    Args:
        model: The model, for the labels of the topics.
        documents: The result of :func:`representative_documents`.
        corpus: The documents.
        texts: Texts of the documents in the order of the corpus, read once. Without texts, the most
            frequent words stand for a document.
        format: ``"text"``, ``"json"`` or ``"csv"``.

    Raises:
        ConfigError: The format has another name, or the number of texts differs from the number of
            documents.

    Example:
        >>> found = lntm.reports.representative_documents(lntm.inference.transform(guide, train))
        >>> print(lntm.reports.format_documents(model, found, train, format="csv"))
        topic,name,document,share,excerpt
        ...
    """
    positions = {row.document for row in documents}
    excerpts = (
        {d: frequent_words(model, corpus, d) for d in positions}
        if texts is None
        else excerpts_of(texts, positions, len(corpus))
    )
    names = model.topic_names
    if format == "json":
        records = [
            {**asdict(row), "name": names[row.topic], "excerpt": excerpts[row.document]}
            for row in documents
        ]
        return json.dumps(records, indent=2, ensure_ascii=False, default=_plain)
    if format == "csv":
        rows = [["topic", "name", "document", "share", "excerpt"]]
        rows += [
            [str(r.topic), names[r.topic], str(r.document), f"{r.share:.6f}", excerpts[r.document]]
            for r in documents
        ]
        return to_csv(rows)
    check_text(format)
    labels, lines = topic_labels(model, _LABEL_WORDS), []
    for topic, group in itertools.groupby(documents, lambda row: row.topic):
        lines += [f"\nTopic {labels[topic]}", "  document   share"]
        for row in group:
            about = [f"{name}={value}" for name, value in _fields(row.metadata)]
            text = " ".join([*about, _cut(excerpts[row.document], _LINE)])
            lines.append(f"  {row.document:8}  {row.share:6.1%}  {text}")
    return "\n".join(lines).lstrip("\n")


def _plain(value: Any) -> Any:
    """A value of metadata as JSON knows it."""
    return value.item() if isinstance(value, np.generic) else str(value)


def excerpts_of(texts: Iterable[str], positions: set[int], num_docs: int) -> dict[int, str]:
    """Beginnings of the texts at some positions."""
    excerpts, number = {}, 0
    for position, text in enumerate(texts):
        number += 1
        if position in positions:
            # A text can be a whole book: cut it before cleaning its white space.
            excerpts[position] = _cut(" ".join(text[: 4 * _TEXT].split()), _TEXT)
    if number != num_docs:
        raise ConfigError(
            f"{number} texts for {num_docs} documents; expected one for each, in order"
        )
    return excerpts


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1].rstrip() + "…"


def _fields(metadata: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Names and values of the first metadata columns, missing values left out."""
    fields = []
    for name, value in metadata.items():
        if value is not None and value == value:  # not NaN
            text = format_number(value) if isinstance(value, float) else str(value)
            fields.append((name, _cut(text, _VALUE)))
    return tuple(fields[:_FIELDS])


def frequent_words(model: TopicModel, corpus: Corpus, document: int) -> str:
    """The most frequent words of a document, separated by commas."""
    entries = slice(*corpus.row_offsets[document : document + 2].tolist())
    words, counts = np.asarray(corpus.word_index[entries]), np.asarray(corpus.counts[entries])
    frequent = words[np.argsort(-counts, kind="stable")[:_WORDS]].tolist()
    return ", ".join(model.words_at(frequent))
