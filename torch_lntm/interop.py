"""Export of fits for pyLDAvis, topicwizard, OCTIS, AnnData, and users of BERTopic and gensim.

``topic_info`` and ``document_info`` need pandas, and ``to_anndata`` without an object to write to
needs anndata and pandas. The other functions need no further library.
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
from torch_lntm.models.names import is_named
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
    """Topics ``(num_topics, num_words)``, as gensim's ``get_topics``. Rows sum to 1."""
    topics = model.topics.mean_probs.detach().cpu().double().numpy()
    return np.asarray(topics / topics.sum(1, keepdims=True))


def show_topics(
    model: TopicModel, num_words: int = 10, *, formatted: bool = True
) -> list[tuple[int, str]] | list[tuple[int, list[tuple[str, float]]]]:
    """All topics with their most probable words, as gensim's ``show_topics(num_topics=-1)``.

    Args:
        model: The model.
        num_words: Number of words for each topic.
        formatted: Whether to write a topic as ``0.050*"word" + ...``. If False, a topic is a list
            of pairs of a word and its probability.

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
    """Arguments of ``pyLDAvis.prepare``.

    Documents without words are left out. The options keep the order of the topics, and number them
    from 0.

    Args:
        guide: A guide over the model.
        corpus: Documents over the model's vocabulary.

    Raises:
        ConfigError: The guide is invalid, or the corpus has a different vocabulary.

    Example:
        >>> arguments = lntm.interop.to_pyldavis(guide, train)
        >>> arguments["doc_topic_dists"].shape == (len(train), 10)
        True
        >>> page = pyLDAvis.prepare(**arguments)  # doctest: +SKIP
    """
    theta = _theta(guide, corpus)
    nonempty = corpus.lengths > 0
    return {
        "topic_term_dists": get_topics(guide.model),
        "doc_topic_dists": theta[nonempty],
        "doc_lengths": corpus.lengths[nonempty],
        "vocab": list(_words(guide.model)),
        "term_frequency": corpus.word_totals,
        "sort_topics": False,
        "start_index": 0,
    }


def to_topicwizard(
    guide: Guide[Any], corpus: Corpus, texts: Sequence[str], *, vectorizer: Any = None
) -> dict[str, Any]:
    """``TopicData`` of topicwizard, for ``topicwizard.visualize(topic_data=...)``.

    Args:
        guide: A guide over the model.
        corpus: Documents over the model's vocabulary.
        texts: The documents' texts, in order.
        vectorizer: The fitted ``CountVectorizer`` of the corpus, for topics of new texts. Without
            it, the entry ``transform`` is ``None``.

    Raises:
        ConfigError: The guide is invalid, the corpus has a different vocabulary, or the numbers of
            texts and documents differ.
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
    """Output of an OCTIS model, for the metrics of OCTIS.

    Args:
        guide: A guide over the model.
        corpus: The training documents.
        test: The test documents, if any.
        num_words: Number of words for each topic.

    Returns:
        ``topics``: lists of words. ``topic-word-matrix``: ``(num_topics, num_words)``.
        ``topic-document-matrix``: ``(num_topics, num_docs)``. ``test-topic-document-matrix``: the
        matrix of the test documents.

    Raises:
        ConfigError: The guide is invalid, a corpus has a different vocabulary, or ``num_words`` is
            below 1.
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
    """Data frame of the topics, with the columns of BERTopic's ``get_topic_info``.

    ``Count`` is the number of documents whose largest proportion belongs to the topic. The
    additional column ``Share`` is the topic's mean proportion. Both skip documents without words.
    There is no outlier topic -1.

    Args:
        guide: A guide over the model.
        corpus: Documents over the model's vocabulary.
        texts: The documents' texts, for ``Representative_Docs``. Defaults to the documents'
            positions.
        num_words: Number of words for each topic.
        num_docs: Number of representative documents for each topic.

    Returns:
        A pandas data frame with a row for each topic and the columns ``Topic``, ``Count``,
        ``Share``, ``Name``, ``Representation`` and ``Representative_Docs``.

    Raises:
        ConfigError: The guide is invalid, the corpus has a different vocabulary, the numbers of
            texts and documents differ, or pandas is missing.

    Example:
        >>> frame = lntm.interop.topic_info(guide, train, num_words=3)
        >>> list(frame.columns[:4])
        ['Topic', 'Count', 'Share', 'Name']
        >>> int(frame["Count"].sum()) == len(train)
        True
    """
    pandas = import_extra("pandas", "interop", "a data frame")
    _check_texts(texts, corpus)
    documents = transform(guide, corpus, "mean")
    theta, nonempty = documents.theta.double().numpy(), documents.lengths > 0
    representative: list[list[int]] = [[] for _ in range(guide.model.num_topics)]
    for example in representative_documents(documents, num_docs=num_docs):
        representative[example.topic].append(example.document)
    counts = np.bincount(theta[nonempty].argmax(1), minlength=guide.model.num_topics)
    words = [[word for word, _ in topic] for topic in _top_words(guide.model, num_words)]
    return pandas.DataFrame(
        {
            "Topic": range(len(words)),
            "Count": counts,
            "Share": theta[nonempty].mean(0),
            "Name": _names(guide.model),
            "Representation": words,
            "Representative_Docs": [
                rows if texts is None else [texts[d] for d in rows] for rows in representative
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
    """Data frame of the documents, with the columns of BERTopic's ``get_document_info``.

    ``Topic`` is the topic with the largest proportion, and ``Probability`` is this proportion. A
    document without words has topic -1 and probability 0. The metadata's columns come last.

    Args:
        guide: A guide over the model.
        corpus: Documents over the model's vocabulary.
        texts: The documents' texts, for the column ``Document``. Defaults to the documents'
            positions.
        num_words: Number of words for each topic.
        num_docs: Number of representative documents for each topic.

    Returns:
        A pandas data frame with a row for each document and the columns ``Document``, ``Topic``,
        ``Name``, ``Representation``, ``Representative_Docs``, ``Top_n_words``, ``Probability`` and
        ``Representative_document``.

    Raises:
        ConfigError: As for :func:`topic_info`.
    """
    pandas = import_extra("pandas", "interop", "a data frame")
    topics = topic_info(guide, corpus, None, num_words=num_words, num_docs=num_docs)
    _check_texts(texts, corpus)
    theta = _theta(guide, corpus)
    nonempty = corpus.lengths > 0
    topic = np.where(nonempty, theta.argmax(1), -1)
    representative = topics["Representative_Docs"].tolist()
    nothing: list[Any] = []
    # Documents without words have topic -1, which selects the last item.
    words = [*topics["Representation"], nothing]
    documents = [
        *([d if texts is None else texts[d] for d in rows] for rows in representative),
        nothing,
    ]
    frame = pandas.DataFrame(
        {
            "Document": range(len(corpus)) if texts is None else list(texts),
            "Topic": topic,
            "Name": [(*topics["Name"], "")[k] for k in topic],
            "Representation": [words[k] for k in topic],
            "Representative_Docs": [documents[k] for k in topic],
            "Top_n_words": [" - ".join(words[k]) for k in topic],
            "Probability": np.where(nonempty, theta.max(1), 0.0),
            "Representative_document": [
                k >= 0 and d in representative[k] for d, k in enumerate(topic.tolist())
            ],
        }
    )
    columns = {
        name: x.to_numpy() for name, x in corpus.metadata.items() if name not in frame.columns
    }
    return frame.assign(**columns)


# -------------------------------------------------------------------- AnnData


def from_anndata(adata: Any, layer: str | None = None) -> Corpus:
    """Corpus of an AnnData object. Observations are documents, and variables are words.

    Args:
        adata: The object. The columns of its ``obs`` become the metadata, and the names of its
            observations become the column ``id``.
        layer: Name of the layer with the integer counts. Defaults to ``adata.X``.

    Raises:
        CorpusError: The layer is missing, or holds numbers that are not counts.
    """
    if layer is not None and layer not in adata.layers:
        layers = ", ".join(map(str, adata.layers)) or "none"
        raise CorpusError(f"layer {layer!r}: the AnnData object has {layers}")
    counts = adata.X if layer is None else adata.layers[layer]
    metadata = {"id": np.array(adata.obs_names, dtype=object)}
    metadata |= {str(name): adata.obs[name] for name in adata.obs.columns}
    return Corpus.from_matrix(
        counts, vocabulary=map(str, adata.var_names), metadata=metadata, allow_empty=True
    )


def to_anndata(guide: Guide[Any], corpus: Corpus, adata: Any = None) -> Any:
    """AnnData object with the topics, in the layout of the scverse.

    ``obsm["X_topics"]`` holds the proportions ``(num_docs, num_topics)``, ``varm["topics"]`` the
    topics ``(num_words, num_topics)``, and ``uns["topics"]`` the names of the model and of the
    posterior, the kind of the estimate (``"mean"``), and the correlations and names of the topics.

    Args:
        guide: A guide over the model.
        corpus: Documents over the model's vocabulary.
        adata: Object to write to, with an observation for each document and a variable for each
            word, in order. Defaults to a new object with the counts and the metadata.

    Returns:
        The object.

    Raises:
        ConfigError: The guide is invalid, the corpus has a different vocabulary, the object has
            different documents or words, or anndata is missing.
    """
    model = require_guide(guide).model
    theta = _theta(guide, corpus)
    words = _words(model)
    if adata is None:
        anndata = import_extra("anndata", "interop", "AnnData")
        pandas = import_extra("pandas", "interop", "AnnData")
        obs = corpus.metadata.set_axis(corpus.metadata.index.map(str))
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
        "names": np.array(model.topic_names),
    }
    return adata


# -------------------------------------------------------------------- shared functions


def _theta(guide: Guide[Any], corpus: Corpus) -> NDArray[np.float64]:
    """Posterior means of the proportions ``(num_docs, num_topics)``. Rows sum to 1."""
    theta = transform(guide, corpus, "mean").theta.double().numpy()
    return np.asarray(theta / theta.sum(1, keepdims=True))


def _words(model: TopicModel) -> tuple[str, ...]:
    """Vocabulary of the model; ``#17`` stands for word 17 of a model without a vocabulary."""
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
    """Name of each topic. A topic without a name has BERTopic's: ``0_game_team_games_season``."""
    names = model.topic_names
    return [
        names[k] if is_named(names, k) else "_".join([names[k], *(word for word, _ in topic)])
        for k, topic in enumerate(_top_words(model, 4))
    ]


def _counts(corpus: Corpus) -> sp.csr_matrix:
    """Counts ``(num_docs, num_words)``."""
    arrays = (corpus.counts, corpus.word_index, corpus.row_offsets)
    return sp.csr_matrix(arrays, shape=(len(corpus), corpus.num_words))


def _check_texts(texts: Sequence[str] | None, corpus: Corpus) -> None:
    if texts is not None and len(texts) != len(corpus):
        raise ConfigError(
            f"{len(texts)} texts for {len(corpus)} documents; expected a text for each, in order"
        )
