"""``effects.estimate``: regression of topic proportions by the method of composition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus, as_corpus
from torch_lntm.effects.logit import LogitRegression, regress_logit
from torch_lntm.effects.mixed import RandomTerms, regress_mixed
from torch_lntm.effects.mixed_logit import MixedLogit, regress_mixed_logit
from torch_lntm.effects.regression import Part, Pooled, StandardErrors, regress
from torch_lntm.effects.result import Effects
from torch_lntm.errors import ConfigError, CorpusError, require_whole
from torch_lntm.formulas import Formula
from torch_lntm.formulas.columns import find_column
from torch_lntm.inference import DrawSource, ThetaDraws, theta_draws
from torch_lntm.models import TopicGroups, TopicModel
from torch_lntm.models.model import require_model
from torch_lntm.models.names import find_topics
from torch_lntm.models.topic_groups import as_groups


@torch.no_grad()
def estimate(
    model: TopicModel,
    draws: DrawSource | Tensor | NDArray[Any],
    corpus: Corpus,
    formula: str,
    *,
    topics: Sequence[int | str] | None = None,
    groups: Mapping[str, Sequence[int | str]] | TopicGroups | None = None,
    standard_errors: StandardErrors | None = None,
    clusters: Any = None,
    weights: Any = None,
    num_draws: int | None = None,
    coefficients: bool = True,
    seed: int = 0,
    progress: bool = False,
) -> Effects:
    """Effects of the documents' metadata on their topic proportions, by regression.

    The method of composition draws all documents' proportions from their posteriors (*Treier &
    Jackman 2008*). Least squares regresses each draw on the formula's columns. Coefficients and
    covariances are pooled over draws (*Rubin 1987*).

    The intervals contain the uncertainty of the regression and of the documents' posteriors. (Every
    document has its own posterior covariance.) With ``coefficients``, they also contain the
    uncertainty of the prior mean's coefficients, which is common to all documents. They leave out
    the uncertainty of the topics' words and of the prior's covariance; draws from
    ``inference.joint_draws`` include both.

    Args:
        model: The fitted model. It may have covariates (``models.stm``), but needs none.
        draws: Source of the documents' proportions: the posterior of a fit, ``result.posterior``; a
            guide of the model; new chains, ``DocumentHMC(model)``, which are exact and slower;
            draws from ``inference.theta_draws`` or ``inference.joint_draws``; or an array
            ``(num_draws, num_docs, num_topics)``.
        corpus: The documents, with the formula's columns among their metadata. Documents without
            words are left out.
        formula: The columns, such as ``"~ party * bs(date, df=6)"`` (``docs/structural.md``). Terms
            that are absent from the model's own formula are shrunk towards no effect. Random terms
            such as ``(1 | author)`` give each author an effect of its own, with a variance that is
            estimated for each topic and draw.
        topics: Topics to regress, by number or name. Defaults to all topics, or to no topic if
            there are groups.
        groups: Groups of topics to regress, such as ``{"economy": [3, 7]}``; see
            :class:`TopicGroups`. The proportion of a group is the sum over its topics, draw by
            draw. Groups follow the topics.
        standard_errors: ``"classical"``, or ``"HC0"`` to ``"HC3"`` for robustness to unequal
            variances. Defaults to ``"HC3"``, since proportions near 0 vary less. With random terms
            the covariance is that of the model, and only ``"classical"`` is accepted.
        clusters: Groups of dependent documents: the name of a column, or ``(num_docs,)`` values.
            Standard errors are then robust to any dependence within a group. Refused with random
            terms.
        weights: Positive weights of the documents in the regression: the name of a column of
            numbers, or ``(num_docs,)`` numbers. Defaults to equal weights.
        num_draws: Draws of each document. Defaults to 50, and to fewer for large corpora, but at
            least 25. ``ThetaDraws`` and arrays default to all of their draws.
        coefficients: Draw the prior mean's coefficients too, if the prior has coefficients.
        seed: Seed of a guide's draws. Chains have a seed of their own.
        progress: Show progress bars on standard error.

    Returns:
        The effects, with tables, predictions, differences and plots.

    Raises:
        ConfigError: The formula, the draws or a setting cannot be used, or the other terms
            determine a term.
        CorpusError: A column is missing, or has missing values.
        IncompatibleGuideError: The guide belongs to another model.

    Example:
        >>> effects = lntm.effects.estimate(model, guide, posts, "~ party")
        >>> effects.table()[1].term
        'party[T.right]'
    """
    require_model(model)
    require_whole(0, seed=seed)
    if num_draws is not None:
        require_whole(2, num_draws=num_draws)
    corpus = model.encode(as_corpus(corpus))
    topic_numbers, topic_groups = _topics(model, topics, groups)
    fitted, matrix = Formula.fit(formula, corpus.metadata, corpus.num_docs)
    rows = corpus.nonempty
    _check_rank(fitted, matrix[rows])
    cluster_of, num_clusters = _clusters(corpus, clusters, rows)
    levels = fitted.positions(corpus.metadata, corpus.num_docs) if fitted.random else None
    arrays = _Arrays(matrix, _weights(corpus, weights), cluster_of, levels)
    proportions = theta_draws(
        _source(draws, model, corpus),
        corpus,
        num_draws,
        model=model,
        rows=rows,
        seed=seed,
        coefficients=coefficients,
        progress=progress,
    )
    _require_draws(proportions)
    respond = partial(_responses, topics=topic_numbers, groups=topic_groups)
    pooled, random = _regress(
        lambda: _parts(proportions, arrays, respond), fitted, standard_errors, num_clusters
    )
    return Effects(
        formula=fitted,
        topics=(*topic_numbers, *(topic_groups.names if topic_groups else ())),
        pooled=pooled,
        random=random,
        columns={name: np.asarray(corpus.metadata[name])[rows] for name in fitted.kinds},
        weights=arrays.weights[rows],
        sources_of_uncertainty=proportions.sources_of_uncertainty,
        fixed=proportions.fixed,
        method=_method(fitted, standard_errors, num_clusters),
        model=proportions.model,
        groups=topic_groups,
        responses=respond(torch.eye(model.num_topics).double()).mT,
        regress_logit=partial(_regress_logit, proportions, arrays, fitted, num_clusters),
        positions=None if levels is None else levels[rows],
        mean_length=float(corpus.lengths[rows].mean()),
    )


class _Arrays(NamedTuple):
    """Rows of all documents: design, weights, clusters and levels of random terms."""

    design: NDArray[np.float64]
    weights: NDArray[np.float64]
    clusters: NDArray[np.int64] | None
    positions: NDArray[np.int64] | None


def _parts(
    proportions: ThetaDraws,
    arrays: _Arrays,
    respond: Callable[[Tensor], Tensor] = lambda theta: theta,
) -> Iterator[Part]:
    """Parts of the documents, with the responses of the draws of theta."""
    for part in proportions:
        design, weights, clusters, positions = (
            None if array is None else torch.from_numpy(array[part.rows]) for array in arrays
        )
        assert design is not None
        assert weights is not None
        yield Part(design, respond(part.theta.double()), weights, clusters, positions)


def _regress(
    parts: Callable[[], Iterator[Part]],
    formula: Formula,
    standard_errors: StandardErrors | None,
    num_clusters: int | None,
) -> tuple[Pooled, RandomTerms | None]:
    """The pooled regression, and its random terms if any."""
    if not formula.random:
        return regress(parts, standard_errors or "HC3", num_clusters), None
    if num_clusters is not None or standard_errors not in (None, "classical"):
        raise ConfigError(
            f"formula {formula.text!r} has random terms, whose standard errors are those of the "
            "model; leave out clusters= and standard_errors=, or the random terms"
        )
    return regress_mixed(parts, tuple(map(len, formula.random.values())))


def _regress_logit(
    proportions: ThetaDraws, arrays: _Arrays, formula: Formula, num_clusters: int | None
) -> LogitRegression | MixedLogit:
    """The multinomial logit regression of all topics."""
    parts = partial(_parts, proportions, arrays)
    if not formula.random:
        return regress_logit(parts, num_clusters)
    return regress_mixed_logit(parts, tuple(map(len, formula.random.values())))


def _method(
    formula: Formula, standard_errors: StandardErrors | None, num_clusters: int | None
) -> str:
    """Kind of the standard errors, in words."""
    if formula.random:
        return f"random effects of {' and '.join(formula.random)}"
    return (standard_errors or "HC3") if num_clusters is None else f"{num_clusters} clusters"


def _topics(
    model: TopicModel, topics: Sequence[int | str] | None, groups: Any
) -> tuple[list[int], TopicGroups | None]:
    """Numbers of the topics to regress, and the groups of topics."""
    found = as_groups(model, groups)
    if topics is not None:
        return find_topics(model.topic_names, topics), found
    return ([] if found else list(range(model.num_topics))), found


def _responses(theta: Tensor, topics: Sequence[int], groups: TopicGroups | None) -> Tensor:
    """Proportions of the regressed topics, then of the groups of topics, in the last dimension."""
    columns = theta[..., topics]
    return columns if groups is None else torch.cat([columns, groups.sums(theta)], -1)


def _source(
    draws: DrawSource | Tensor | NDArray[Any], model: TopicModel, corpus: Corpus
) -> DrawSource:
    """The source of draws; an array as ``ThetaDraws``.

    Raises:
        ConfigError: The shape is different, or the numbers are not proportions.
    """
    if not isinstance(draws, Tensor | np.ndarray):
        return draws
    theta = torch.as_tensor(draws)
    expected = (corpus.num_docs, model.num_topics)
    if theta.dim() != 3 or tuple(theta.shape[1:]) != expected or len(theta) < 2:
        raise ConfigError(
            f"draws of shape {tuple(theta.shape)}; expected (num_draws, {expected[0]}, "
            f"{expected[1]}), at least 2 draws"
        )
    return ThetaDraws.of(theta, model)


def _require_draws(proportions: ThetaDraws) -> None:
    """Check that there are draws to pool.

    Raises:
        ConfigError: There is a single draw.
    """
    if proportions.num_draws < 2:
        raise ConfigError(f"{proportions!r}; expected at least 2 draws")


def _check_rank(formula: Formula, matrix: NDArray[np.float64]) -> None:
    """Check that the terms are linearly independent.

    Raises:
        ConfigError: Earlier terms determine a term; names the first such term.
    """
    names = formula.names
    scale = np.linalg.norm(matrix, axis=0)
    scaled = matrix / np.where(scale > 0, scale, 1.0)
    diagonal = np.abs(np.diagonal(np.linalg.qr(scaled, mode="r")))
    dependent = np.flatnonzero(diagonal < 1e-8)
    if len(dependent) or len(matrix) < len(names):
        name = names[dependent[0]] if len(dependent) else names[-1]
        raise ConfigError(
            f"formula {formula.text!r}: {name} is determined by the terms before it in these "
            f"{len(matrix)} documents; leave it out (a spline by cr takes constraints='center')"
        )


def _column(corpus: Corpus, values: Any, what: str) -> NDArray[Any]:
    """``(num_docs,)`` values: a column of the metadata by name, or the values as an array."""
    column = np.asarray(find_column(values, corpus.metadata) if isinstance(values, str) else values)
    if column.shape != (corpus.num_docs,):
        raise ConfigError(f"{what} of shape {column.shape}; expected one for each of the documents")
    return column


def _weights(corpus: Corpus, weights: Any) -> NDArray[np.float64]:
    if weights is None:
        return np.ones(corpus.num_docs)
    column = _column(corpus, weights, "weights")
    if column.dtype.kind not in "bif" or not (np.isfinite(column) & (column > 0)).all():
        raise ConfigError("weights must be positive finite numbers, one for each document")
    numbers = column.astype(np.float64)
    return numbers / numbers.mean()


def _clusters(
    corpus: Corpus, clusters: Any, rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64] | None, int | None]:
    """The documents' clusters as numbers from 0, and the number of clusters."""
    if clusters is None:
        return None, None
    column = _column(corpus, clusters, "clusters")
    missing = [value is None or value != value for value in column[rows]]
    if any(missing):
        raise CorpusError(
            f"clusters: {sum(missing)} documents lack a value, the first of them document "
            f"{rows[missing.index(True)]}"
        )
    numbers = np.zeros(corpus.num_docs, np.int64)
    names, numbers[rows] = np.unique(column[rows].astype(str), return_inverse=True)
    return numbers, len(names)
