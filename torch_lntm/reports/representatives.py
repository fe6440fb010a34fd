"""Representative documents of topics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.frames import align, is_missing
from torch_lntm.inference import DocumentTopics
from torch_lntm.inference.fitted import Fitted
from torch_lntm.models.names import find_topics
from torch_lntm.plotting.style import shorten, topic_labels

#: Most characters of a text, and most words of a document.
_TEXT, _WORDS = 420, 15
#: Standard errors below a share at which documents are ranked: the lower end of 90 %.
_BELOW = 1.645


def representative_documents(
    proportions: DocumentTopics | Fitted,
    *,
    num_docs: int = 3,
    topics: Sequence[int | str] | None = None,
    corpus: Corpus | None = None,
    texts: Iterable[str] | None = None,
) -> pd.DataFrame:
    """The documents that represent each topic best, because they surely have a large share of it.

    Documents are ranked by the lower end of the 90 % interval that Wilson (1927) gives a share of
    so many tokens. Long documents are ranked by their shares; a text of three words comes after a
    text of a hundred with almost the same share.

    Args:
        proportions: The result of :func:`torch_lntm.inference.transform`; or a fit or run, whose
            documents and texts are the defaults of the others.
        num_docs: Most documents of each topic.
        topics: The topics, by number or name. Defaults to all.
        corpus: The documents, for excerpts: beginnings of ``texts``, or the most frequent words.
        texts: Texts of the documents: a pandas series, whose index names the documents; or any
            other iterable in the order of the corpus, read once.

    Returns:
        A row for each document, topic by topic, the best first. Empty documents are left
        out. The columns are ``topic``, ``name`` (of a topic without a name in a fit, the words that
        tell it), ``rank``, the name ``document``, its share
        ``gamma``, those of the metadata, and ``excerpt`` if a corpus is given.

    Raises:
        ConfigError: A number is out of range, a topic does not exist, or the number of texts
            differs from the number of documents.
        CorpusError: The texts have other names than the documents.

    Example:
        >>> proportions = lntm.inference.transform(guide, train)
        >>> documents = lntm.reports.representative_documents(proportions, num_docs=2)
        >>> documents["topic"].tolist()[:4]
        [0, 0, 1, 1]
    """
    if isinstance(proportions, Fitted):
        fit, own = proportions, corpus is None
        corpus = fit.check_corpus(corpus)
        texts = getattr(fit, "texts", None) if own and texts is None else texts
        proportions = fit.transform(corpus, progress=False)
        names = topic_labels(fit.model, numbered=False)
    else:
        names = list(proportions.topic_names)
    if texts is not None and corpus is None:
        raise ConfigError("texts without a corpus; give corpus=, whose documents they belong to")
    table = proportions.metadata
    best = best_documents(proportions, num_docs, topics)
    at = best.pop("position").to_numpy()
    ids = table.index if len(table) else pd.RangeIndex(len(proportions.lengths))
    best.insert(1, "name", [names[k] for k in best["topic"]])
    best.insert(3, "document", ids[at])
    about = table.iloc[at if len(table) else []].set_axis(best.index if len(table) else [], axis=0)
    found = best.join(about[[column for column in about if column not in best]])
    if corpus is not None:
        found["excerpt"] = excerpts(at, corpus, texts)
    return found


def best_documents(
    proportions: DocumentTopics, num_docs: int, topics: Sequence[int | str] | None = None
) -> pd.DataFrame:
    """Positions of the documents that represent each topic best.

    Returns:
        A row for each document: ``topic``, ``rank``, ``position`` in the corpus, share ``gamma``.
    """
    require_whole(1, num_docs=num_docs)
    names = proportions.topic_names
    shares, tokens = proportions.theta.double().cpu().numpy(), proportions.lengths[:, None]
    spread = np.sqrt((tokens * shares * (1 - shares)).clip(0) + _BELOW**2 / 4)
    low = (tokens * shares + _BELOW**2 / 2 - _BELOW * spread) / (tokens + _BELOW**2)
    low[proportions.lengths == 0] = -1.0
    rows = []
    for k in find_topics(names, range(len(names)) if topics is None else topics):
        order = np.argsort(-low[:, k], kind="stable")[:num_docs]
        found = order[proportions.lengths[order] > 0].tolist()
        rows += [(k, rank, d, float(shares[d, k])) for rank, d in enumerate(found, 1)]
    return pd.DataFrame(rows, columns=["topic", "rank", "position", "gamma"])


def excerpts(
    positions: NDArray[np.int64], corpus: Corpus, texts: Iterable[str] | None
) -> list[str]:
    """Beginnings of the documents' texts, or their most frequent words.

    Args:
        positions: Positions of documents in the corpus.
        corpus: The corpus.
        texts: See :func:`representative_documents`.
    """
    if texts is None:
        return [_frequent_words(corpus, d) for d in positions.tolist()]
    wanted, found, number = set(positions.tolist()), dict[int, str](), 0
    for number, text in enumerate(align(texts, corpus.metadata.index, "texts"), 1):
        if number - 1 in wanted:
            # A text can be a whole book, so it is cut before its white space is cleaned.
            beginning = "" if is_missing(text) else str(text)[: 4 * _TEXT]
            found[number - 1] = shorten(" ".join(beginning.split()), _TEXT)
    require_texts(number, corpus)
    return [found[d] for d in positions.tolist()]


def require_texts(number: int, corpus: Corpus) -> None:
    """Refuse another number of texts than of documents."""
    if number != len(corpus):
        raise ConfigError(
            f"{number} texts for {len(corpus)} documents; expected one for each, in order"
        )


def _frequent_words(corpus: Corpus, document: int) -> str:
    """The most frequent words of a document, separated by commas."""
    entries = slice(*corpus.row_offsets[document : document + 2].tolist())
    words, counts = np.asarray(corpus.word_index[entries]), np.asarray(corpus.counts[entries])
    frequent = words[np.argsort(-counts, kind="stable")[:_WORDS]].tolist()
    vocabulary: Any = corpus.vocabulary
    return ", ".join(f"#{v}" if vocabulary is None else vocabulary[v] for v in frequent)
