"""``effects.estimate``: the method of composition (*Treier & Jackman 2008*)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus, as_corpus
from torch_lntm.effects.regression import Part, StandardErrors, regress
from torch_lntm.effects.result import Effects
from torch_lntm.errors import ConfigError, CorpusError, require_whole
from torch_lntm.formulas import Formula
from torch_lntm.inference import DrawSource, ThetaDraws, theta_draws
from torch_lntm.models import TopicModel
from torch_lntm.models.model import require_model


@torch.no_grad()
def estimate(
    model: TopicModel,
    draws: DrawSource | Tensor | NDArray[Any],
    corpus: Corpus,
    formula: str,
    *,
    topics: Sequence[int] | None = None,
    standard_errors: StandardErrors = "HC3",
    clusters: Any = None,
    weights: Any = None,
    num_draws: int | None = None,
    coefficients: bool = True,
    seed: int = 0,
    progress: bool = False,
) -> Effects:
    """Regress the documents' topic proportions on their columns, unsure as they are.

    The method of composition: the proportions of all documents are drawn from their posteriors, and
    each draw is regressed on the formula's columns by least squares; coefficients and covariances
    are pooled over draws (*Rubin 1987*), so intervals hold what the regression and what the
    documents' posteriors leave open. Every document has its own posterior covariance. With
    ``coefficients``, draws also hold what the fit leaves open of the prior mean's coefficients,
    which all documents share. What the fit leaves open of the topics' words and of the prior's
    covariance is not in the intervals.

    Args:
        model: The fitted model: one with covariates (``models.stm``), or any other.
        draws: Source of the documents' proportions: ``result.posterior`` of a fit; a guide of the
            model; new chains, ``DocumentHMC(model)``, which approximate nothing and take longer;
            :class:`~torch_lntm.inference.ThetaDraws`, such as those of ``inference.joint_draws``,
            whose intervals hold all that the fit leaves open; or an array
            ``(num_draws, num_docs, num_topics)``.
        corpus: The documents, with the formula's columns among their metadata. Documents without
            words take no part.
        formula: The columns, such as ``"~ party * bs(date, df=6)"`` (``docs/structural.md``). It
            need not be the model's own, but what is not in the model's is shrunk towards no effect.
        topics: Topics to regress; all by default.
        standard_errors: ``"classical"``, or robust to unequal variances, ``"HC0"`` to ``"HC3"``.
            Proportions near 0 vary less than others, so the default is robust.
        clusters: Groups of documents that may depend on each other: the name of a column, or
            ``(num_docs,)`` values. Standard errors are then robust to any dependence within them.
        weights: Weights of the documents in the regression, positive: the name of a column of
            numbers, or ``(num_docs,)`` numbers.
        num_draws: Draws of each document. Defaults to 25 to 50, fewer for larger corpora; and to
            all of draws that exist already.
        coefficients: Whether to draw the prior mean's coefficients too, where the prior has them.
        seed: Seed of a guide's draws. Chains have their own.
        progress: Show progress bars on standard error.

    Returns:
        The effects: a table, predictions, differences and plots.

    Raises:
        ConfigError: The formula, the draws or a setting cannot be used, or terms say the same.
        CorpusError: A column is missing, or lacks values.
        IncompatibleGuideError: The guide belongs to another model.
    """
    require_model(model)
    require_whole(0, seed=seed)
    if num_draws is not None:
        require_whole(2, num_draws=num_draws)
    corpus = model.encode(as_corpus(corpus))
    chosen = _topics(model, topics)
    fitted, matrix = Formula.fit(formula, corpus.metadata, corpus.num_docs)
    rows = corpus.nonempty
    _check_rank(formula, fitted.names, matrix[rows])
    weighing = _weights(corpus, weights)
    groups, num_groups = _clusters(corpus, clusters, rows)
    if isinstance(draws, Tensor | np.ndarray):
        draws = _given(torch.as_tensor(draws), model, corpus)
    drawn = theta_draws(
        draws,
        corpus,
        num_draws,
        model=model,
        rows=rows,
        seed=seed,
        coefficients=coefficients,
        progress=progress,
    )
    if drawn.num_draws < 2:
        raise ConfigError(f"{drawn!r}; expected at least 2 draws")

    def parts() -> Iterator[Part]:
        for part in drawn:
            yield Part(
                torch.from_numpy(matrix[part.rows]),
                part.theta[..., chosen].double(),
                torch.from_numpy(weighing[part.rows]),
                None if groups is None else torch.from_numpy(groups[part.rows]),
            )

    return Effects(
        formula=fitted,
        topics=tuple(chosen),
        pooled=regress(parts, standard_errors, num_groups),
        columns={name: np.asarray(corpus.metadata[name])[rows] for name in fitted.kinds},
        weights=weighing[rows],
        sources_of_uncertainty=drawn.sources_of_uncertainty,
        fixed=drawn.fixed,
        method=standard_errors if num_groups is None else f"{num_groups} clusters",
        model=drawn.model,
        mean_length=float(corpus.lengths[rows].mean()),
    )


def _topics(model: TopicModel, topics: Sequence[int] | None) -> list[int]:
    chosen = list(range(model.num_topics)) if topics is None else [int(k) for k in topics]
    bad = [k for k in chosen if not 0 <= k < model.num_topics]
    if bad or not chosen or len(set(chosen)) < len(chosen):
        raise ConfigError(
            f"topics {chosen}; expected different numbers from 0 to {model.num_topics - 1}"
        )
    return chosen


def _given(theta: Tensor, model: TopicModel, corpus: Corpus) -> ThetaDraws:
    """Draws that were given as an array.

    Raises:
        ConfigError: Another shape, or they are no proportions.
    """
    expected = (corpus.num_docs, model.num_topics)
    if theta.dim() != 3 or tuple(theta.shape[1:]) != expected or len(theta) < 2:
        raise ConfigError(
            f"draws of shape {tuple(theta.shape)}; expected (num_draws, {expected[0]}, "
            f"{expected[1]}), at least 2 draws"
        )
    return ThetaDraws.of(theta, model)


def _check_rank(formula: str, names: Sequence[str], matrix: NDArray[np.float64]) -> None:
    """Refuse terms that say the same.

    Raises:
        ConfigError: It names the first that the others determine.
    """
    scale = np.linalg.norm(matrix, axis=0)
    scaled = matrix / np.where(scale > 0, scale, 1.0)
    diagonal = np.abs(np.diagonal(np.linalg.qr(scaled, mode="r")))
    dependent = np.flatnonzero(diagonal < 1e-8)
    if len(dependent) or len(matrix) < len(names):
        name = names[dependent[0]] if len(dependent) else names[-1]
        raise ConfigError(
            f"formula {formula!r}: {name} is determined by the terms before it in these "
            f"{len(matrix)} documents; leave it out (a spline by cr takes constraints='center')"
        )


def _column(corpus: Corpus, values: Any, what: str) -> NDArray[Any]:
    """``(num_docs,)`` values, by the name of their column or as they are."""
    found = np.asarray(corpus.metadata[values] if isinstance(values, str) else values)
    if found.shape != (corpus.num_docs,):
        raise ConfigError(f"{what} of shape {found.shape}; expected one for each of the documents")
    return found


def _weights(corpus: Corpus, weights: Any) -> NDArray[np.float64]:
    if weights is None:
        return np.ones(corpus.num_docs)
    found = _column(corpus, weights, "weights")
    if found.dtype.kind not in "bif" or not (np.isfinite(found) & (found > 0)).all():
        raise ConfigError("weights must be positive finite numbers, one for each document")
    numbers = found.astype(np.float64)
    return numbers / numbers.mean()


def _clusters(
    corpus: Corpus, clusters: Any, rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64] | None, int | None]:
    """Numbers of the documents' clusters, and how many clusters there are."""
    if clusters is None:
        return None, None
    found = _column(corpus, clusters, "clusters")
    missing = [value is None or value != value for value in found[rows]]
    if any(missing):
        raise CorpusError(
            f"clusters: {sum(missing)} documents lack a value, the first of them document "
            f"{rows[missing.index(True)]}"
        )
    numbers = np.zeros(corpus.num_docs, np.int64)
    known, numbers[rows] = np.unique(found[rows].astype(str), return_inverse=True)
    return numbers, len(known)
