"""Shows fits in the forms that users of BERTopic, AnnData and R know."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from torch_lntm import __version__
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import (
    ConfigError,
    CorpusError,
    CorpusWarning,
    import_extra,
    require_whole,
    warn,
)
from torch_lntm.files.writing import write_file
from torch_lntm.frames import align, is_default
from torch_lntm.inference import DocumentTopics, DrawSource, ThetaDraws, theta_draws, transform
from torch_lntm.inference.draws import require_source
from torch_lntm.inference.fitted import Fitted
from torch_lntm.models import TopicModel
from torch_lntm.models.levels import CONTENT
from torch_lntm.models.names import is_named, name_words
from torch_lntm.reports.representatives import best_documents, require_texts

__all__ = ["from_anndata", "to_anndata", "to_stm", "topic_info"]

#: Draws of a document's proportions behind a file for R.
STM_DRAWS = 100
#: Smallest log probability of a word in a file for R, as in R's stm.
MIN_LOG_PROB = -1000.0


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
    require_texts(len(shown), corpus)
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
            different words.
        CorpusError: The object has different documents.
    """
    model = require_source(source).model
    _, theta = _shares(source, corpus)
    names, words = corpus.metadata.index, model.words_at(range(model.num_words))
    if is_default(names) and "id" in corpus.metadata:  # names that repeat are still compared
        names = pd.Index(corpus.metadata["id"])
    if adata is None:
        anndata = import_extra("anndata", "files", "AnnData")
        obs = corpus.metadata.set_axis(names.map(str).astype(object))
        var = pd.DataFrame(index=pd.Index(words, dtype=object))
        adata = anndata.AnnData(corpus.to_scipy(), obs, var)
    if tuple(map(str, adata.var_names)) != words:
        raise ConfigError(
            f"the AnnData object has {adata.n_vars} variables; expected the model's {len(words)} "
            "words, in order"
        )
    cells, documents = adata.obs_names.map(str), names.map(str)
    if is_default(names):  # numbers, which say positions, so that the order has to be the same
        cells, documents = pd.Index([int(x) if x.isdecimal() else x for x in cells]), names
    order = np.argsort(align(pd.Series(range(adata.n_obs), cells), documents, "AnnData"))
    adata.obsm["X_topics"] = theta[order]
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


def _shares(source: DrawSource, corpus: Corpus) -> tuple[DocumentTopics, NDArray[np.float64]]:
    """Posterior means of the proportions, and their numbers, whose rows sum to 1."""
    documents = transform(source, corpus, "mean")
    theta = documents.theta.double().numpy()
    return documents, np.asarray(theta / theta.sum(1, keepdims=True))


@torch.no_grad()
def to_stm(source: DrawSource | Fitted, corpus: Corpus, path: str | Path) -> None:
    """Write a fit as an object of R's package stm, which ``readRDS(path)`` reads.

    The functions of stm (``labelTopics``, ``sageLabels``, ``findThoughts``, ``topicCorr``,
    ``estimateEffect``) and of tidytext (``tidy``) take the object as if stm had made it.

    * ``theta`` has the posterior means of the proportions, in the order of the corpus.
    * ``eta`` has the posterior means of the logits relative to the last topic, and ``mu`` their
      regression on the prior's columns.
    * ``sigma`` is what an M-step without a prior would find: the mean of the documents' posterior
      covariances, plus the spread of ``eta`` around ``mu``. From it stm's
      ``estimateEffect(uncertainty="Global")`` recovers the mean covariance, and draws from it.
    * Words without a token in the corpus are left out, as stm does.

    Args:
        source: A result, or what draws the proportions: a guide over the model, or chains.
        corpus: The documents of the fit, over the model's vocabulary.
        path: Path of the file, which should end in ``.rds``.

    Raises:
        ConfigError: The source is invalid or has a single draw, the corpus has a different
            vocabulary, or the package ``rdata`` is missing.
        FileError: The file cannot be written.

    Example:
        >>> lntm.interop.to_stm(result, train, "fit.rds")
    """
    rdata = import_extra("rdata", "files", "A file for R")
    history = getattr(source, "history", [])
    source = source.source if isinstance(source, Fitted) else source
    draws = theta_draws(source, corpus, STM_DRAWS, progress=False)
    if draws.num_draws < 2:
        raise ConfigError("the source has one draw of each document; expected at least 2")
    model = draws.model
    encoded = model.encode(corpus)
    batch, words = encoded.batch(), np.flatnonzero(encoded.word_totals)
    theta, eta, covariance = _logit_moments(draws)
    regressors = model.prior.regressors(batch, of_levels=False)
    if regressors is not None and model.prior.regressors(batch) is None:
        what = "stm has no random terms: the regression of the file leaves them out, and its sigma"
        warn(f"{what} includes the differences between their levels", CorpusWarning)
    x, penalty = np.ones((len(eta), 1)), np.zeros(1)  # an intercept, if the prior has no columns
    if regressors is not None:
        x, penalty = (part.numpy(force=True) for part in regressors)
    gamma = np.linalg.solve(x.T @ x + np.diag(penalty), x.T @ eta)
    rest, plain = eta - x @ gamma, x.shape[1] == 1
    sigma = covariance + rest.T @ rest / len(eta)
    logbeta, tokens = _log_probs(model, words), np.asarray(encoded.word_totals)[words]
    kappa = {"kappa": _deviations(logbeta, tokens)} if len(logbeta) > 1 else {}
    bound = np.array([record["objective"] for record in history]) * corpus.num_tokens
    settings = {
        "dim": {
            "K": model.num_topics,
            "A": len(logbeta),
            "V": len(words),
            "N": len(eta),
            "wcounts": {"Group.1": np.arange(len(words)) + 1, "x": tokens},
        },
        "covariates": {"X": None if plain else x} | _levels(model, batch),
        "gamma": {"mode": "CTM" if plain else "Pooled"},
        "kappa": {"LDAbeta": not kappa, "interactions": bool(kappa)},
        "init": {"mode": "Custom", "alpha": 50 / model.num_topics},
    }
    elements = {
        "mu": {"mu": gamma.T, "gamma": None} if plain else {"mu": (x @ gamma).T, "gamma": gamma},
        "sigma": sigma,
        "beta": {"logbeta": [*logbeta], **kappa},
        "settings": settings,
        "vocab": np.array(model.words_at(words.tolist())),
        "convergence": {"bound": bound, "its": len(bound)},
        "theta": theta,
        "eta": eta,
        "invsigma": np.linalg.inv(sigma),
        "version": f"torch_lntm {__version__}",
        "topic_names": np.array(model.topic_names),
    }
    converter = rdata.conversion.ConverterFromPythonToR()
    data = converter.convert_to_r_data(elements)
    about = {"names": np.array(list(elements)), "class": "STM"}
    data.object.attributes = converter.convert_to_r_attributes(about)
    data.object.info.object = True
    write_file(path, gzip.compress(rdata.unparser.unparse_data(data)))


def _logit_moments(draws: ThetaDraws) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Means of theta, and means and mean covariance of the logits relative to the last topic."""
    size = draws.model.num_topics
    theta, eta = np.empty((len(draws.rows), size)), np.empty((len(draws.rows), size - 1))
    covariance = np.zeros((size - 1, size - 1))
    for part in draws:
        logs = part.theta.double().clamp_min(torch.finfo(part.theta.dtype).tiny).log()
        logits = (logs[..., :-1] - logs[..., -1:]).numpy()
        theta[part.rows] = part.theta.double().mean(0).numpy()
        eta[part.rows] = logits.mean(0)
        rest = (logits - logits.mean(0)).reshape(-1, size - 1)
        covariance += rest.T @ rest / (draws.num_draws - 1)
    return theta / theta.sum(1, keepdims=True), eta, covariance / len(theta)


def _levels(model: TopicModel, batch: DocumentBatch) -> dict[str, Any]:
    """The documents' levels, counted from 1, and the levels' names."""
    content = model.topics.content
    if content is None:
        return {"betaindex": np.ones(batch.num_docs), "yvarlevels": None}
    level = batch.covariates[CONTENT].numpy(force=True) + 1.0
    return {"betaindex": level, "yvarlevels": np.array([str(name) for name in content.levels])}


def _log_probs(model: TopicModel, words: NDArray[np.int64]) -> NDArray[Any]:
    """Log probabilities ``(num_levels, num_topics, num_words)`` of some words, by level."""
    topics = model.topics
    probs = topics.double_probs.unflatten(1, (topics.num_levels, topics.num_words))
    some = probs.transpose(0, 1).numpy(force=True)[..., words]
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(some / some.sum(-1, keepdims=True)), MIN_LOG_PROB)


def _deviations(logbeta: NDArray[Any], tokens: NDArray[np.int64]) -> dict[str, Any]:
    """The parts ``kappa`` of the log probabilities, as stm adds them up.

    ``m`` are the words' log frequencies. ``params`` has deviations from them: one of each topic,
    then one of each level, then one of each topic at each level, topics first.
    """
    m = np.log(tokens / tokens.mean())
    shared = logbeta.mean(0)
    rest = logbeta - shared
    # Words that a level leaves alone deviate by the same constant, the change of the normaliser.
    rest = rest - np.median(rest, -1, keepdims=True)
    # What most topics share is the level's own.
    by_level = np.median(rest, 1)
    cells = (rest - by_level[:, None]).reshape(-1, len(tokens))
    return {"m": m, "params": [*(shared - np.log(tokens / tokens.sum())), *by_level, *cells]}
