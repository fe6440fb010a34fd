"""Shows fits in the forms that users of BERTopic and AnnData know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, CorpusError, import_extra, require_whole
from torch_lntm.frames import align, is_default
from torch_lntm.inference import DocumentTopics, DrawSource, transform
from torch_lntm.inference.draws import require_source
from torch_lntm.models.names import is_named, name_words
from torch_lntm.reports.representatives import best_documents

__all__ = ["from_anndata", "to_anndata", "topic_info"]


def topic_info(
    source: DrawSource,
    corpus: Corpus,
    texts: Iterable[str] | None = None,
    *,
    top_n: int = 10,
    num_docs: int = 3,
) -> pd.DataFrame:
    """Data frame of the topics, with the columns of BERTopic's ``get_topic_info``.

    ``Count`` is the number of documents in which the topic has the largest proportion, and an
    additional column, ``Share``, has the topic's mean proportion. Both skip documents without
    words, and there is no outlier topic -1.

    Args:
        source: What draws the proportions: a guide over the model, or chains.
        corpus: Documents over the model's vocabulary.
        texts: The documents' texts, for ``Representative_Docs``: a series, joined by the documents'
            names (the index of ``corpus.metadata``), or other texts in order. Defaults to the
            documents' positions.
        top_n: Number of words for each topic.
        num_docs: Number of representative documents for each topic.

    Returns:
        A row for each topic, with the columns ``Topic``, ``Count``, ``Share``, ``Name``,
        ``Representation`` and ``Representative_Docs``.

    Raises:
        ConfigError: The source is invalid, the corpus has a different vocabulary, or the numbers of
            texts and documents differ.
        CorpusError: The texts have other names than the documents.

    Example:
        >>> frame = lntm.interop.topic_info(guide, train, top_n=3)
        >>> list(frame.columns[:4])
        ['Topic', 'Count', 'Share', 'Name']
        >>> int(frame["Count"].sum()) == len(train)
        True
    """
    require_whole(1, top_n=top_n)
    documents, theta = _shares(source, corpus)
    shown = list(
        range(len(corpus)) if texts is None else align(texts, corpus.metadata.index, "texts")
    )
    if len(shown) != len(corpus):
        raise ConfigError(
            f"{len(shown)} texts for {len(corpus)} documents; expected a text for each, in order"
        )
    model, theta = source.model, theta[documents.lengths > 0]
    words = [list(model.words_at(row)) for row in model.topics.top_words(top_n)[0].tolist()]
    telling = name_words(model.topics.mean_probs, model.words_at, 4)
    # A topic without a name gets one in BERTopic's style: 0_game_team_season_coach.
    names = [
        name if is_named(model.topic_names, k) else "_".join([name, *telling[k]])
        for k, name in enumerate(model.topic_names)
    ]
    examples: list[list[Any]] = [[] for _ in names]
    for row in best_documents(documents, num_docs).itertuples():
        examples[row.topic].append(shown[row.position])
    return pd.DataFrame(
        {
            "Topic": range(len(names)),
            "Count": np.bincount(theta.argmax(1), minlength=len(names)),
            "Share": theta.sum(0) / max(1, len(theta)),
            "Name": names,
            "Representation": words,
            "Representative_Docs": examples,
        }
    )


def from_anndata(adata: Any, layer: str | None = None) -> Corpus:
    """Makes a corpus from an AnnData object, with observations as documents and variables as words.

    Args:
        adata: The object. The columns of its ``obs`` become the metadata, and the names of its
            observations become the column ``id``.
        layer: Name of the layer with the integer counts. Defaults to ``adata.X``.

    Raises:
        CorpusError: The layer or a matrix is missing, or holds numbers that are not counts.
    """
    if layer is not None and layer not in adata.layers:
        layers = ", ".join(map(str, adata.layers)) or "none"
        raise CorpusError(f"layer {layer!r}: the AnnData object has {layers}")
    x = adata.X if layer is None else adata.layers[layer]
    if len(getattr(x, "shape", ())) != 2:
        raise CorpusError(
            f"expected a matrix of counts, cells by genes, got {type(x).__name__}; if the counts "
            "are in a layer, name it: layer='counts'"
        )
    x = x.to_memory() if hasattr(x, "to_memory") else x  # of an object that is backed by a file
    x = x if hasattr(x, "tocsr") else x[:]
    metadata = {"id": adata.obs_names, **{str(n): adata.obs[n].array for n in adata.obs}}
    words = map(str, adata.var_names)
    return Corpus.from_matrix(x, words, metadata=metadata, allow_empty=True)


def to_anndata(source: DrawSource, corpus: Corpus, adata: Any = None) -> Any:
    """Write the topics to an AnnData object, in the layout of the scverse.

    ``obsm["X_topics"]`` holds the proportions ``(num_docs, num_topics)`` and ``varm["topics"]`` the
    topics ``(num_words, num_topics)``. ``uns["topics"]`` describes them: it has the names of the
    model and of the posterior, the kind of the estimate (``"mean"``), and the topics' correlations
    and names.

    Args:
        source: What draws the proportions: a guide over the model, or chains.
        corpus: Documents over the model's vocabulary.
        adata: Object to write to. Its variables are the words. Its observations are the documents,
            in any order, because they are matched by name, the index of ``corpus.metadata``. Names
            that repeat, and the numbers of documents without names, have to be in the order of the
            corpus. Defaults to a new object with the counts and the metadata of the corpus.

    Returns:
        The object.

    Raises:
        ConfigError: The source is invalid, the corpus has a different vocabulary, or the object has
            different documents or words.
    """
    model = require_source(source).model
    _, theta = _shares(source, corpus)
    names, words = corpus.metadata.index, model.words_at(range(model.num_words))
    if is_default(names) and "id" in corpus.metadata:  # names that repeat are still compared
        names = pd.Index(corpus.metadata["id"])
    if adata is None:
        anndata = import_extra("anndata", "files", "AnnData")
        obs = pd.DataFrame({name: _writable(column) for name, column in corpus.metadata.items()})
        obs.index = names.map(str).astype(object)
        var = pd.DataFrame(index=pd.Index(words, dtype=object))
        adata = anndata.AnnData(corpus.to_scipy(), obs, var)
    if tuple(map(str, adata.var_names)) != words:
        raise ConfigError(
            f"the AnnData object has {adata.n_vars} variables; expected the model's {len(words)} "
            "words, in order"
        )
    cells, documents = adata.obs_names.map(str), names.map(str)
    if not cells.equals(documents):
        unique = cells.is_unique and documents.is_unique and not is_default(names)
        if not unique or set(cells) != set(documents):
            raise ConfigError(
                f"the AnnData object has {adata.n_obs} observations, whose names differ from the "
                f"names of the {len(corpus)} documents (the index of corpus.metadata); make the "
                "corpus of this object by interop.from_anndata"
            )
        theta = theta[documents.get_indexer(cells)]
    adata.obsm["X_topics"] = theta
    topics = model.topics.mean_probs.detach().cpu().double().numpy()
    adata.varm["topics"] = (topics / topics.sum(1, keepdims=True)).T
    adata.uns["topics"] = {
        "model": model.name,
        "posterior": getattr(source, "name", None) or type(source).__name__,
        "estimate": "mean",
        "correlation": model.topic_correlation().detach().cpu().numpy(),
        "names": np.array(model.topic_names),
    }
    return adata


def _writable(column: pd.Series) -> pd.Series:
    """A column that AnnData can write: numbers as they are, and everything else as text."""
    if pd.api.types.is_numeric_dtype(column):
        return column
    texts = [None if missing else str(x) for x, missing in zip(column, column.isna(), strict=True)]
    return pd.Series(texts, column.index, dtype=object)


def _shares(source: DrawSource, corpus: Corpus) -> tuple[DocumentTopics, NDArray[np.float64]]:
    """Posterior means of the proportions, and their numbers, whose rows sum to 1."""
    documents = transform(source, corpus, "mean")
    theta = documents.theta.double().numpy()
    return documents, np.asarray(theta / theta.sum(1, keepdims=True))
