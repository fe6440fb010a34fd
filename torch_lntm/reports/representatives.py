"""The documents that represent topics, as the report page shows them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.inference import DocumentTopics, ThetaDraws
from torch_lntm.models import TopicModel
from torch_lntm.reports.groups import format_number
from torch_lntm.reports.labels import representative_documents

#: Letters of a text and of a value, columns, and words of a document that are shown.
_TEXT, _VALUE, _FIELDS, _WORDS = 420, 80, 6, 15
#: Draws of an interval.
_DRAWS = 200


@dataclass(frozen=True)
class Representative:
    """A document of which a topic has a large share.

    Attributes:
        document: Its position in the corpus.
        share: The topic's posterior mean proportion.
        lower: The lower end of the proportion's interval.
        upper: The upper end.
        fields: Names and values of its metadata.
        excerpt: The beginning of its text, or its most frequent words if no texts are known.
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
    found: DocumentTopics,
    num_docs: int,
    texts: Iterable[str] | None = None,
    *,
    level: float = 0.95,
) -> list[list[Representative]]:
    """The documents with the largest share of each topic, with intervals and excerpts.

    Args:
        draws: Draws of the documents' proportions.
        corpus: The documents.
        found: Their proportions.
        num_docs: Documents for each topic.
        texts: The documents' texts in the order of the corpus, which are read once.
        level: Probability that each interval is to cover under the posterior.

    Returns:
        For each topic its documents, the largest share first.

    Raises:
        ConfigError: There are fewer texts than documents, or more.
    """
    model = draws.model
    chosen = representative_documents(found, num_docs=num_docs) if num_docs else []
    wanted = sorted({one.document for one in chosen})
    quoted = None if texts is None else _quote(texts, set(wanted), len(corpus))
    ends: dict[int, tuple[Tensor, Tensor]] = {}
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2])
    for part in draws.take(np.array(wanted, np.int64), _DRAWS) if wanted else ():
        lower, upper = torch.quantile(part.theta, tails.to(part.theta), dim=0)
        ends |= {d: (lower[i], upper[i]) for i, d in enumerate(part.rows.tolist())}
    shown: list[list[Representative]] = [[] for _ in range(model.num_topics)]
    for one in chosen:
        d, k = one.document, one.topic
        shown[k].append(
            Representative(
                d,
                one.share,
                float(ends[d][0][k]),
                float(ends[d][1][k]),
                _fields(one.metadata),
                _frequent_words(model, corpus, d) if quoted is None else quoted[d],
                quoted is not None,
            )
        )
    return shown


def _quote(texts: Iterable[str], wanted: set[int], num_docs: int) -> dict[int, str]:
    """The beginnings of some of the texts."""
    quoted, number = {}, 0
    for position, text in enumerate(texts):
        number += 1
        if position in wanted:
            # Before the white space is tidied the text is cut, since it may be a book.
            quoted[position] = _cut(" ".join(text[: 4 * _TEXT].split()), _TEXT)
    if number != num_docs:
        raise ConfigError(f"{number} texts for {num_docs} documents; expected as many, in order")
    return quoted


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1].rstrip() + "…"


def _fields(metadata: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """What the metadata say of a document."""
    found = []
    for name, value in metadata.items():
        if value is not None and value == value:  # not NaN
            text = format_number(value) if isinstance(value, float) else str(value)
            found.append((name, _cut(text, _VALUE)))
    return tuple(found[:_FIELDS])


def _frequent_words(model: TopicModel, corpus: Corpus, document: int) -> str:
    """A document's most frequent words."""
    entries = slice(*corpus.row_offsets[document : document + 2].tolist())
    words, counts = np.asarray(corpus.word_index[entries]), np.asarray(corpus.counts[entries])
    frequent = words[np.argsort(-counts, kind="stable")[:_WORDS]].tolist()
    return ", ".join(model.words_at(frequent))
