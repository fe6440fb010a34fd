"""Fits as pyLDAvis, topicwizard, OCTIS, AnnData and users of BERTopic and gensim expect them.

Each function needs no more than the library that it serves, and those for plain arrays need none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, CorpusError, import_extra, require_whole
from torch_lntm.guides import Guide, require_guide
from torch_lntm.inference import transform
from torch_lntm.models import TopicModel
from torch_lntm.reports import representative_documents

__all__ = [
    "document_info",
    "from_anndata",
    "get_topics",
    "show_topics",
    "to_anndata",
    "to_octis",
    "to_pyldavis",
    "to_topicwizard",
    "topic_info",
]


# -------------------------------------------------------------------- arrays


def get_topics(model: TopicModel) -> NDArray[np.float64]:
    """The topics ``(num_topics, num_words)`` as gensim's ``get_topics``: rows add up to 1."""
    topics = model.topics.mean_probs.detach().cpu().double().numpy()
    return np.asarray(topics / topics.sum(1, keepdims=True))


def show_topics(
    model: TopicModel, num_words: int = 10, *, formatted: bool = True
) -> list[tuple[int, str]] | list[tuple[int, list[tuple[str, float]]]]:
    """All topics with their most probable words, as gensim's ``show_topics(num_topics=-1)``.

    Args:
        model: The model.
        num_words: Words of each topic.
        formatted: Whether to write a topic as ``0.050*"word" + ...``, not as pairs.

    Returns:
        Pairs of a topic's number and its words.

    Raises:
        ConfigError: ``num_words`` is below 1.
    """
    pairs = _top_words(model, num_words)
    if not formatted:
        return list(enumerate(pairs))
    return [
        (k, " + ".join(f'{probability:.3f}*"{word}"' for word, probability in topic))
        for k, topic in enumerate(pairs)
    ]


# -------------------------------------------------------------------- views and benchmarks


def to_pyldavis(guide: Guide[Any], corpus: Corpus) -> dict[str, Any]:
    """Arguments of ``pyLDAvis.prepare``: ``pyLDAvis.prepare(**to_pyldavis(guide, corpus))``.

    Documents without words are left out. Topics keep their numbers, which start at 0.

    Args:
        guide: A guide over the model.
        corpus: Documents over the model's vocabulary.

    Raises:
        ConfigError: No guide, or a corpus over other words.
    """
    theta = _theta(guide, corpus)
    filled = corpus.lengths > 0
    return {
        "topic_term_dists": get_topics(guide.model),
        "doc_topic_dists": theta[filled],
        "doc_lengths": corpus.lengths[filled],
        "vocab": list(_words(guide.model)),
        "term_frequency": corpus.word_totals,
        "sort_topics": False,
        "start_index": 0,
    }


def to_topicwizard(
    guide: Guide[Any], corpus: Corpus, texts: Sequence[str], *, vectorizer: Any = None
) -> dict[str, Any]:
    """The ``TopicData`` of topicwizard: ``topicwizard.visualize(topic_data=...)``.

    Args:
        guide: A guide over the model.
        corpus: Documents over the model's vocabulary.
        texts: Their texts, in order.
        vectorizer: The fitted ``CountVectorizer`` that counted the words, by which topicwizard
            finds the topics of new texts; without it there are none.

    Raises:
        ConfigError: No guide, a corpus over other words, or another number of texts.
    """
    _check_texts(texts, corpus)
    counts = _counts(corpus)

    def topics_of(new: Sequence[str]) -> NDArray[np.float64]:
        return _theta(guide, Corpus.from_texts(new, vectorizer=vectorizer))

    return {
        "corpus": list(texts),
        "vocab": np.array(_words(guide.model)),
        "document_term_matrix": counts,
        "document_topic_matrix": _theta(guide, corpus),
        "topic_term_matrix": get_topics(guide.model),
        "document_representation": counts,
        "transform": None if vectorizer is None else topics_of,
        "topic_names": _names(guide.model),
    }


def to_octis(
    guide: Guide[Any], corpus: Corpus, test: Corpus | None = None, *, num_words: int = 10
) -> dict[str, Any]:
    """The output of an OCTIS model, which its metrics score.

    Args:
        guide: A guide over the model.
        corpus: The training documents.
        test: The test documents.
        num_words: Words of each topic.

    Returns:
        ``topics``, lists of words; ``topic-word-matrix`` ``(num_topics, num_words)``;
        ``topic-document-matrix`` ``(num_topics, num_docs)``, and the same of the test documents as
        ``test-topic-document-matrix``.

    Raises:
        ConfigError: No guide, a corpus over other words, or ``num_words`` below 1.
    """
    output: dict[str, Any] = {
        "topics": [[word for word, _ in topic] for topic in _top_words(guide.model, num_words)],
        "topic-word-matrix": get_topics(guide.model),
        "topic-document-matrix": _theta(guide, corpus).T,
    }
    if test is not None:
        output["test-topic-document-matrix"] = _theta(guide, test).T
    return output


# -------------------------------------------------------------------- data frames


def topic_info(
    guide: Guide[Any],
    corpus: Corpus,
    texts: Sequence[str] | None = None,
    *,
    num_words: int = 10,
    num_docs: int = 3,
) -> Any:
    """A row for each topic, with the columns of BERTopic's ``get_topic_info``.

    ``Count`` is the number of documents in which no topic has a larger proportion, and there is no
    topic -1. ``Share``, which BERTopic does not have, is the mean proportion.

    Args:
        guide: A guide over the model.
        corpus: Documents over the model's vocabulary.
        texts: Their texts, for ``Representative_Docs``; without them the documents' positions.
        num_words: Words of each topic.
        num_docs: Representative documents of each.

    Returns:
        A pandas data frame: ``Topic``, ``Count``, ``Share``, ``Name``, ``Representation``,
        ``Representative_Docs``.

    Raises:
        ConfigError: No guide, a corpus over other words, another number of texts than of documents,
            or pandas is missing.
    """
    pandas = import_extra("pandas", "interop", "a data frame")
    _check_texts(texts, corpus)
    found = transform(guide, corpus, "mean")
    theta, filled = found.theta.double().numpy(), found.lengths > 0
    shown: list[list[int]] = [[] for _ in range(guide.model.num_topics)]
    for one in representative_documents(found, num_docs=num_docs):
        shown[one.topic].append(one.document)
    counts = np.bincount(theta[filled].argmax(1), minlength=guide.model.num_topics)
    words = [[word for word, _ in topic] for topic in _top_words(guide.model, num_words)]
    return pandas.DataFrame(
        {
            "Topic": range(len(words)),
            "Count": counts,
            "Share": theta[filled].mean(0),
            "Name": _names(guide.model),
            "Representation": words,
            "Representative_Docs": [
                rows if texts is None else [texts[d] for d in rows] for rows in shown
            ],
        }
    )


def document_info(
    guide: Guide[Any],
    corpus: Corpus,
    texts: Sequence[str] | None = None,
    *,
    num_words: int = 10,
    num_docs: int = 3,
) -> Any:
    """A row for each document, with the columns of BERTopic's ``get_document_info``.

    ``Topic`` is the one with the largest proportion, which is ``Probability``; a document without
    words has -1 and 0. The columns of the metadata follow.

    Args:
        guide: A guide over the model.
        corpus: Documents over the model's vocabulary.
        texts: Their texts; without them the column ``Document`` has positions.
        num_words: Words of each topic.
        num_docs: Documents of each topic that count as representative.

    Returns:
        A pandas data frame: ``Document``, ``Topic``, ``Name``, ``Representation``,
        ``Representative_Docs``, ``Top_n_words``, ``Probability``, ``Representative_document``.

    Raises:
        ConfigError: As :func:`topic_info`.
    """
    pandas = import_extra("pandas", "interop", "a data frame")
    topics = topic_info(guide, corpus, None, num_words=num_words, num_docs=num_docs)
    _check_texts(texts, corpus)
    theta = _theta(guide, corpus)
    filled = corpus.lengths > 0
    topic = np.where(filled, theta.argmax(1), -1)
    representative = topics["Representative_Docs"].tolist()
    none: list[Any] = []
    words = [*topics["Representation"], none]  # a document without words has the last, topic -1
    documents = [
        *([d if texts is None else texts[d] for d in rows] for rows in representative),
        none,
    ]
    frame = pandas.DataFrame(
        {
            "Document": range(len(corpus)) if texts is None else list(texts),
            "Topic": topic,
            "Name": [(*topics["Name"], "")[k] for k in topic],
            "Representation": [words[k] for k in topic],
            "Representative_Docs": [documents[k] for k in topic],
            "Top_n_words": [" - ".join(words[k]) for k in topic],
            "Probability": np.where(filled, theta.max(1), 0.0),
            "Representative_document": [
                k >= 0 and d in representative[k] for d, k in enumerate(topic.tolist())
            ],
        }
    )
    own = {name: values for name, values in corpus.metadata.items() if name not in frame.columns}
    return frame.assign(**own)


# -------------------------------------------------------------------- AnnData


def from_anndata(adata: Any, layer: str | None = None) -> Corpus:
    """The corpus of an AnnData object: observations are documents, variables are words.

    Args:
        adata: The object. Its ``obs`` become the metadata, and the names of its observations the
            column ``id``.
        layer: The layer that holds the whole counts; ``X`` if not given.

    Raises:
        CorpusError: There is no such layer, or it does not hold counts.
    """
    if layer is not None and layer not in adata.layers:
        known = ", ".join(map(str, adata.layers)) or "none"
        raise CorpusError(f"layer {layer!r}: the AnnData object has {known}")
    counts = adata.X if layer is None else adata.layers[layer]
    metadata = {"id": np.array(adata.obs_names, dtype=object)}
    metadata |= {str(name): adata.obs[name] for name in adata.obs.columns}
    return Corpus.from_matrix(
        counts, vocabulary=map(str, adata.var_names), metadata=metadata, allow_empty=True
    )


def to_anndata(guide: Guide[Any], corpus: Corpus, adata: Any = None) -> Any:
    """Topics as the scverse keeps them, in an AnnData object.

    ``obsm["X_topics"]`` has the proportions ``(num_docs, num_topics)``, ``varm["topics"]`` the
    topics ``(num_words, num_topics)``, and ``uns["topics"]`` the names of the model and of the
    posterior, the estimate of the proportions, and the correlations of the topics.

    Args:
        guide: A guide over the model.
        corpus: Documents over the model's vocabulary.
        adata: The object to write to, with an observation for each document and a variable for
            each word, in order; a new one with the counts and the metadata if not given.

    Returns:
        The object.

    Raises:
        ConfigError: No guide, a corpus over other words, an object of other documents or words, or
            anndata is missing.
    """
    model = require_guide(guide).model
    theta = _theta(guide, corpus)
    words = _words(model)
    if adata is None:
        anndata = import_extra("anndata", "interop", "AnnData")
        pandas = import_extra("pandas", "interop", "AnnData")
        obs = pandas.DataFrame(dict(corpus.metadata), index=[str(d) for d in range(len(corpus))])
        adata = anndata.AnnData(_counts(corpus), obs=obs, var=pandas.DataFrame(index=list(words)))
    elif adata.n_obs != len(corpus) or tuple(map(str, adata.var_names)) != words:
        raise ConfigError(
            f"the AnnData object has {adata.n_obs} observations of {adata.n_vars} variables; "
            f"expected the {len(corpus)} documents and the model's {len(words)} words, in order"
        )
    adata.obsm["X_topics"] = theta
    adata.varm["topics"] = get_topics(model).T
    adata.uns["topics"] = {
        "model": model.name,
        "posterior": guide.name or type(guide).__name__,
        "estimate": "mean",
        "correlation": model.topic_correlation().detach().cpu().numpy(),
    }
    return adata


# -------------------------------------------------------------------- what they share


def _theta(guide: Guide[Any], corpus: Corpus) -> NDArray[np.float64]:
    """Posterior means of the proportions ``(num_docs, num_topics)``, which add up to 1."""
    theta = transform(guide, corpus, "mean").theta.double().numpy()
    return np.asarray(theta / theta.sum(1, keepdims=True))


def _words(model: TopicModel) -> tuple[str, ...]:
    """The vocabulary; ``#17`` stands for column 17 where there is none."""
    return model.words_at(range(model.num_words))


def _top_words(model: TopicModel, num_words: int) -> list[list[tuple[str, float]]]:
    require_whole(1, num_words=num_words)
    positions, probabilities = model.topics.top_words(num_words)
    words = _words(model)
    return [
        [(words[v], p) for v, p in zip(row, values, strict=True)]
        for row, values in zip(positions.tolist(), probabilities.tolist(), strict=True)
    ]


def _names(model: TopicModel) -> list[str]:
    """A name for each topic, as BERTopic gives: ``0_game_team_games_season``."""
    topics = _top_words(model, 4)
    return ["_".join([str(k), *(word for word, _ in topic)]) for k, topic in enumerate(topics)]


def _counts(corpus: Corpus) -> sp.csr_matrix:
    """The counts ``(num_docs, num_words)``."""
    arrays = (corpus.counts, corpus.word_index, corpus.row_offsets)
    return sp.csr_matrix(arrays, shape=(len(corpus), corpus.num_words))


def _check_texts(texts: Sequence[str] | None, corpus: Corpus) -> None:
    if texts is not None and len(texts) != len(corpus):
        raise ConfigError(
            f"{len(texts)} texts for {len(corpus)} documents; expected as many, in order"
        )
