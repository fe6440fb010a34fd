"""How prevalent topics are among documents, and how they correlate, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, ConvergenceWarning, warn
from torch_lntm.inference import DocumentTopics, DrawSource, theta_draws
from torch_lntm.reports.groups import Grouping, group_documents

Array = NDArray[np.float64]

#: Tokens of an average document below which what the fit leaves open of the topics' words, which no
#: interval here holds, matters much.
SHORT_DOCUMENT = 50.0
#: Change of a share from half of its draws to the other, in Monte-Carlo standard errors, that
#: independent draws have in less than one of 1,000 reports; the least change that matters, a unit
#: of the last printed digit; and the fewest draws that can tell.
DRIFT_ERRORS, LAST_DIGIT, FEWEST_DRAWS = 7.0, 0.001, 20


@dataclass(frozen=True, eq=False, repr=False)
class Prevalence:
    """Mean topic proportions of groups of documents.

    Attributes:
        grouping: The groups.
        num_docs: ``(num_groups,)`` documents of each, without empty ones.
        mean: ``(num_groups, num_topics)`` mean proportions.
        lower: ``(num_groups, num_topics)`` lower ends of their intervals.
        upper: ``(num_groups, num_topics)`` upper ends.
        standard_error: ``(num_groups, num_topics)``; infinite for a group of one document.
    """

    grouping: Grouping
    num_docs: NDArray[np.int64]
    mean: Array
    lower: Array
    upper: Array
    standard_error: Array

    def __repr__(self) -> str:
        groups, topics = self.mean.shape
        return f"Prevalence({self.grouping.column!r}, {groups} groups, {topics} topics)"

    def differences(self) -> Array:
        """``(num_topics,)`` how clearly the groups differ in each topic."""
        return differences(self.mean, self.standard_error)


def differences(mean: Array, standard_error: Array) -> Array:
    """``(num_topics,)`` how far means ``(num_groups, num_topics)`` are from their mean.

    The mean square over groups, in standard errors.
    """
    precision = standard_error.clip(1e-12) ** -2.0
    middle = (precision * mean).sum(0) / precision.sum(0).clip(1e-300)
    return np.asarray((precision * np.square(mean - middle)).mean(0))


@dataclass(frozen=True, eq=False, repr=False)
class CorpusSummary:
    """What a pass over the posteriors of a corpus's documents finds.

    Attributes:
        documents: Posterior means of the documents' proportions, by draws.
        overall: Prevalence among all documents, as one group.
        prevalence: Prevalence by each column that was asked for.
        correlation_error: ``(num_topics, num_topics)`` standard errors of the topics' correlations,
            on the scale of Fisher's z; infinite where the documents do not determine them.
    """

    documents: DocumentTopics
    overall: Prevalence
    prevalence: tuple[Prevalence, ...]
    correlation_error: Array

    def __repr__(self) -> str:
        return f"CorpusSummary({self.documents!r})"


@torch.no_grad()
def summarise_corpus(
    draws: DrawSource,
    corpus: Corpus,
    by: Sequence[str] = (),
    *,
    level: float = 0.95,
    num_draws: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> CorpusSummary:
    """How prevalent topics are, overall and by columns of the metadata, and how they correlate.

    The documents count as a sample, and the topics as known. A mean proportion has two sources of
    error: which documents were sampled, and that their proportions are known by their posteriors
    alone. Draws of the posteriors tell both, and Rubin's rule adds them up: W + (1 + 1/S)B, W the
    mean over S draws of the squared standard error among documents, B the variance of the mean over
    draws. Intervals are Student's.

    The error of a correlation counts what the documents would tell if their logits were observed,
    I = D - 3 on the scale of Fisher's z, less what is missing (*Louis 1982*): I - I²B, B the
    variance over draws of the z of the drawn logits. Each correlation is taken alone.

    Args:
        draws: Source of the documents' proportions; see :func:`torch_lntm.inference.theta_draws`.
        corpus: The documents.
        by: Columns of the metadata.
        level: Probability that each interval is to cover.
        num_draws: Draws of each document. Defaults to 25 to 50, fewer for larger corpora.
        seed: Seed of a guide's draws. Chains have their own.
        progress: Show a progress bar on standard error.

    Returns:
        The summary, on the CPU.

    Raises:
        ConfigError: ``draws`` cannot draw, the level is no probability, there are fewer than 2
            draws, or the corpus has other words or none.
        MissingColumnError: The metadata have no such column.

    Warns:
        ConvergenceWarning: A share changes while it is drawn: chains have not settled.
    """
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; expected a probability between 0 and 1")
    drawn = theta_draws(draws, corpus, num_draws, seed=seed, keep=False, progress=progress)
    if drawn.num_draws < 2:
        raise ConfigError(f"{drawn!r}; expected at least 2 draws")
    if not corpus.num_tokens:
        raise ConfigError("the documents have no words; give some that do")
    model, filled = drawn.model, torch.from_numpy(corpus.lengths > 0)
    whole = Grouping("all documents", ("all documents",), np.zeros(len(corpus), np.int64))
    groupings = [whole, *(group_documents(name, corpus.metadata[name]) for name in by)]
    group_sums = [
        _GroupSums(grouping, corpus, drawn.num_draws, model.num_topics) for grouping in groupings
    ]
    logits = _LogitMoments(drawn.num_draws, model.num_topics)
    theta = torch.full((len(corpus), model.num_topics), 1.0 / model.num_topics, dtype=model.dtype)
    converged = torch.ones(len(corpus), dtype=torch.bool)
    for part in drawn:
        rows, draws_of_theta = torch.from_numpy(part.rows), part.theta.double()
        for sums in group_sums:
            sums.add(draws_of_theta, rows)
        logits.add(draws_of_theta[:, filled[rows]])
        theta[rows] = draws_of_theta.mean(0).to(model.dtype)
        converged[rows] = part.converged
    overall, *others = (sums.result(level) for sums in group_sums)
    _check_drift(group_sums[0].by_draw()[:, 0])
    documents = DocumentTopics(
        theta, converged, corpus.lengths, "mean", metadata=dict(corpus.metadata)
    )
    return CorpusSummary(documents, overall, tuple(others), logits.error())


class _GroupSums:
    """Sums over documents of the draws of their proportions, by group."""

    def __init__(self, grouping: Grouping, corpus: Corpus, num_draws: int, num_topics: int) -> None:
        self.grouping = grouping
        self.codes = torch.from_numpy(np.where(corpus.lengths > 0, grouping.codes, -1))
        num_groups = len(grouping.names)
        self.first = torch.zeros(num_draws, num_groups, num_topics, dtype=torch.float64)
        self.second = torch.zeros(num_groups, num_topics, dtype=torch.float64)

    def add(self, theta: Tensor, rows: Tensor) -> None:
        """Add the draws ``(num_draws, num_docs, num_topics)`` of some documents."""
        groups = torch.arange(len(self.grouping.names))
        member = (self.codes[rows] == groups[:, None]).double()
        self.first += member @ theta
        self.second += member @ theta.square().mean(0)

    def by_draw(self) -> Array:
        """Mean proportions ``(num_draws, num_groups, num_topics)`` at each draw."""
        num_docs = np.bincount(self.codes[self.codes >= 0], minlength=len(self.grouping.names))
        return np.asarray(self.first.numpy() / np.maximum(num_docs, 1)[:, None])

    def result(self, level: float) -> Prevalence:
        """The prevalence, with intervals of a level."""
        codes = self.codes.numpy()
        num_docs = np.bincount(codes[codes >= 0], minlength=len(self.grouping.names))
        count, by_draw = num_docs[:, None].astype(np.float64), self.by_draw()
        mean = by_draw.mean(0)
        scatter = self.second.numpy() - count * np.square(by_draw).mean(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            within = np.where(count > 1, scatter.clip(0) / (count - 1) / count, np.inf)
        between = (1 + 1 / len(by_draw)) * by_draw.var(0, ddof=1)
        error = np.sqrt(within + between)
        reach = stdtrit(np.maximum(count - 1, 1), (1 + level) / 2) * error
        return Prevalence(
            self.grouping, num_docs, mean, (mean - reach).clip(0), (mean + reach).clip(max=1), error
        )


def _check_drift(shares: Array) -> None:
    """Tell of shares that change while they are drawn, as those of chains on their way do.

    Args:
        shares: ``(num_draws, num_topics)`` mean proportions of the documents at each draw.
    """
    if len(shares) < FEWEST_DRAWS:
        return
    early, late = np.array_split(shares, 2)
    change = np.abs(late.mean(0) - early.mean(0))
    error = np.sqrt(early.var(0) / len(early) + late.var(0) / len(late))
    drifts = np.where(change > DRIFT_ERRORS * error, change, 0.0)
    if drifts.max() > LAST_DIGIT:
        warn(
            f"the share of topic {drifts.argmax()} changes by {100 * drifts.max():.1f} percentage "
            "points from the first half of the draws to the second: the chains have not settled. "
            "Fit with more epochs, or draw with more warmup_steps",
            ConvergenceWarning,
        )


class _LogitMoments:
    """Second moments over documents of the draws of the centred logits of theta."""

    def __init__(self, num_draws: int, num_topics: int) -> None:
        self.num_docs = 0
        self.first = torch.zeros(num_draws, num_topics, dtype=torch.float64)
        self.second = torch.zeros(num_draws, num_topics, num_topics, dtype=torch.float64)

    def add(self, theta: Tensor) -> None:
        """Add the draws ``(num_draws, num_docs, num_topics)`` of some documents."""
        logits = theta.clamp_min(torch.finfo(torch.float32).tiny).log()
        logits -= logits.mean(-1, keepdim=True)
        self.num_docs += logits.shape[1]
        self.first += logits.sum(1)
        self.second += logits.mT @ logits

    def error(self) -> Array:
        """Standard errors of the correlations' Fisher z; see :func:`summarise_corpus`."""
        size = self.first.shape[1]
        information = self.num_docs - 3
        if information < 1:
            return np.full((size, size), np.inf)
        mean = self.first / self.num_docs
        covariance = self.second / self.num_docs - mean[:, :, None] * mean[:, None, :]
        scale = covariance.diagonal(dim1=1, dim2=2).clamp_min(1e-300).sqrt()
        z = (
            (covariance / scale[:, :, None] / scale[:, None, :])
            .clamp(-1 + 1e-12, 1 - 1e-12)
            .atanh()
        )
        left = information - information**2 * z.var(0)
        return np.where(left.numpy() > 0, left.clamp_min(1e-12).rsqrt().numpy(), np.inf)


def correlation_intervals(correlation: Tensor, error: Array, level: float) -> tuple[Array, Array]:
    """Intervals of correlations, symmetric on the scale of Fisher's z.

    Args:
        correlation: ``(num_topics, num_topics)``, as of ``model.topic_correlation()``.
        error: Standard errors on that scale, ``correlation_error`` of a :class:`CorpusSummary`.
        level: Probability that each interval is to cover.

    Returns:
        ``(lower, upper)``, each ``(num_topics, num_topics)``.
    """
    z = correlation.detach().cpu().double().clamp(-1 + 1e-12, 1 - 1e-12).atanh().numpy()
    reach = ndtri((1 + level) / 2) * error
    return np.tanh(z - reach), np.tanh(z + reach)
