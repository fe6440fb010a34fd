"""The documents that represent topics, as the report page shows them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_lntm.budget import docs_at_once
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.guides import Guide
from torch_lntm.reports.tables import words_of

#: Letters of a text and of a value, columns, and words of a document that are shown.
_TEXT, _VALUE, _FIELDS, _WORDS = 420, 80, 6, 15
#: Draws of an interval.
_DRAWS = 400


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
    guide: Guide[Any],
    corpus: Corpus,
    theta: Tensor,
    num_docs: int,
    texts: Iterable[str] | None = None,
    *,
    level: float = 0.95,
    seed: int = 0,
) -> list[list[Representative]]:
    """The documents with the largest mean proportion of each topic, empty ones left out.

    Args:
        guide: A guide over the model.
        corpus: The documents.
        theta: ``(num_docs, num_topics)`` their posterior means.
        num_docs: Documents for each topic.
        texts: The documents' texts in the order of the corpus, which are read once.
        level: Probability that each interval is to cover under the posterior.
        seed: Seed of the draws.

    Returns:
        For each topic its documents, the largest share first.

    Raises:
        ConfigError: There are fewer texts than documents, or more.
    """
    filled = torch.from_numpy(corpus.lengths > 0)
    count = min(num_docs, int(filled.sum()))
    chosen = theta.masked_fill(~filled[:, None], -1.0).topk(count, dim=0).indices.mT
    wanted = sorted(set(chosen.flatten().tolist()))
    quoted = None if texts is None else _quote(texts, set(wanted), len(corpus))
    if not wanted:
        return [[] for _ in chosen]
    model = guide.model
    per_document = max(
        guide.memory_per_document(corpus.nnz / len(corpus)), 2 * _DRAWS * model.num_topics
    )
    ends: dict[int, tuple[Tensor, Tensor]] = {}
    max_docs = docs_at_once(per_document, model.device, model.dtype)
    for batch in corpus.batches(max_docs, order=wanted, device=model.device, dtype=model.dtype):
        lower, upper = guide.posterior(batch).theta_interval(level, _DRAWS, seed)
        ends |= dict(
            zip(batch.index.tolist(), zip(lower.cpu(), upper.cpu(), strict=True), strict=True)
        )
    shown = {d: (_fields(corpus, d), _frequent_words(guide, corpus, d)) for d in wanted}
    return [
        [
            Representative(
                d,
                float(theta[d, k]),
                float(ends[d][0][k]),
                float(ends[d][1][k]),
                shown[d][0],
                shown[d][1] if quoted is None else quoted[d],
                quoted is not None,
            )
            for d in documents
        ]
        for k, documents in enumerate(chosen.tolist())
    ]


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


def _fields(corpus: Corpus, document: int) -> tuple[tuple[str, str], ...]:
    """What the metadata say of a document."""
    found = []
    for name, values in corpus.metadata.items():
        value = values[document]
        if value is not None and value == value:  # not NaN
            text = f"{value:g}" if values.dtype.kind == "f" else str(value)
            found.append((name, _cut(text, _VALUE)))
    return tuple(found[:_FIELDS])


def _frequent_words(guide: Guide[Any], corpus: Corpus, document: int) -> str:
    """A document's most frequent words."""
    entries = slice(*corpus.row_offsets[document : document + 2].tolist())
    words, counts = np.asarray(corpus.word_index[entries]), np.asarray(corpus.counts[entries])
    frequent = words[np.argsort(-counts, kind="stable")[:_WORDS]].tolist()
    return ", ".join(words_of(guide.model, frequent))
