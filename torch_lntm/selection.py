"""Chooses the number of topics by comparing fits of several sizes on one fixed split."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import joblib
import numpy as np
import pandas as pd
import torch
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.corpus import as_corpus
from torch_lntm.errors import (
    ConfigError,
    TooFewDocumentsError,
    knows_its_options,
    require_whole,
)
from torch_lntm.evaluation import (
    AIS,
    CompletionResult,
    LikelihoodEstimate,
    align_topics,
    coherence,
    document_completion,
    exclusivity,
    residual_dispersion,
)
from torch_lntm.evaluation.per_token import per_token
from torch_lntm.frames import render
from torch_lntm.guides import Guide
from torch_lntm.inference.interruption import Terminated, propagate_interrupts
from torch_lntm.models import TopicModel
from torch_lntm.progress import tqdm
from torch_lntm.recipes import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["select"]

#: Unit or meaning of each criterion, in the order of the tables' columns.
CRITERIA = {
    "completion": "nats per held-out token",
    "likelihood": "nats per token of held-out documents, by annealed importance sampling",
    "coherence": "NPMI of top words, mean over topics",
    "exclusivity": "exclusivity of top words, mean over topics",
    "dispersion": "dispersion of residuals; 1 for a correct model with few parameters",
    "stability": "similarity of topics to those of a fit to resampled documents",
}
#: Largest loss of the recommended number of topics against the best, in standard errors.
TOLERATED_ERRORS = 1.0


@dataclass(frozen=True, eq=False, repr=False)
class Selection:
    """Comparison of several numbers of topics on one fixed split, with a recommendation.

    Attributes:
        scores: A row for each number of topics, which is the index, in ascending order. Each
            criterion is a mean over the fits from several seeds, and the column ``..._se`` after it
            is its standard error: over documents, or over topics if it is a mean over topics.
            ``behind`` is how far ``completion`` falls short of that of the best number of topics;
            its standard error comes from the differences of single documents. Standard errors of
            ``completion``, ``behind`` and ``likelihood`` also have the variance between seeds,
            which all numbers of topics estimate together; a single seed cannot show it.
            ``stability`` compares the fits with one to documents drawn with replacement.
            ``seconds`` is the total time of the fits from the seeds. ``dispersion`` is missing
            where the residuals have no more degrees of freedom than there are parameters.
        interrupted: Whether Ctrl-C ended the fits early.
    """

    scores: pd.DataFrame
    interrupted: bool = False

    @property
    def best(self) -> int:
        """The number of topics with the best completion."""
        return int(self.scores["completion"].idxmax())

    @property
    def recommended(self) -> int:
        """The fewest topics whose completion is within one standard error of the best."""
        scores = self.scores
        is_close = scores["behind"] <= TOLERATED_ERRORS * scores["behind_se"]
        return int(scores.index[is_close | (scores.index == self.best)][0])

    @property
    def because(self) -> str:
        """The recommendation, with its reason."""
        best, chosen = self.best, self.recommended
        perplexity, behind = self.scores["perplexity"], self.scores.loc[chosen, "behind"]
        if chosen == best:
            text = f"they predict held-out words best (perplexity {perplexity[best]:.1f})"
        else:
            text = (
                f"the fewest that predict held-out words as well as {best}, the best "
                f"(perplexity {perplexity[chosen]:.1f} and {perplexity[best]:.1f}), within a "
                f"standard error of the difference, {behind:.4f} ± "
                f"{self.scores.loc[chosen, 'behind_se']:.2g} nats per token"
            )
        if self.interrupted:
            text += ". Ctrl-C ended the comparison before all fits were made"
        elif chosen == self.scores.index[-1] and len(self.scores) > 1:
            text += ". This is the largest number tried; try larger numbers"
        return f"{chosen} topics: {text}"

    def __repr__(self) -> str:
        return f"Selection({self.because})"

    def __str__(self) -> str:
        frame = self.frame().drop(columns=["seconds", "recommended"])
        units = {name: unit for name, unit in CRITERIA.items() if name in frame}
        units |= {"behind": "nats per token below the best completion", "_se": "standard error"}
        lines = [f"{name}: {unit}" for name, unit in units.items()]
        return "\n".join([*lines, "", render(frame), "", self.because])

    def frame(self) -> pd.DataFrame:
        """The scores with the columns ``num_topics`` and ``recommended``."""
        scores = self.scores
        return scores.assign(recommended=scores.index == self.recommended).reset_index()

    def plot(self) -> Figure:
        """Plot each criterion against the number of topics, with the recommendation marked."""
        import matplotlib.pyplot as plt

        from torch_lntm.plotting import style

        frame = self.frame()
        names = [name for name in CRITERIA if name in frame]
        sizes, columns = frame["num_topics"], min(3, len(names))
        rows = -(-len(names) // columns)
        figure = plt.figure(figsize=(3.2 * columns, 2.5 * rows), layout="constrained")
        for place, name in enumerate(names, 1):
            ax = figure.add_subplot(rows, columns, place)
            ax.errorbar(sizes, frame[name], frame[f"{name}_se"], fmt="o-", color=style.NEGATIVE)
            ax.axvline(self.recommended, color=style.POSITIVE, ls="--", linewidth=1)
            ax.set_title(name, fontsize=10)
            ax.set(xlabel="topics", xticks=sizes)
            style.rule(ax, "y")
        return figure


class _Fit(NamedTuple):
    """A fit from one seed, with its scores on the held-out documents."""

    model: TopicModel
    guide: Guide[Any]
    completion: CompletionResult
    likelihood: LikelihoodEstimate | None
    seconds: float


def _fit_and_score(
    corpus: Corpus,
    recipe: Recipe,
    size: int,
    fit_seed: int | None,
    shares: tuple[float, float],
    seed: int,
    likelihood: AIS | None,
    settings: Mapping[str, Any],
) -> _Fit | TopicModel:
    """Fit a number of topics from a seed, and score the fit on the held-out documents.

    Each process makes the split itself. The processes can share the file of a mapped corpus,
    whereas a split has counts of its own, which would have to be copied.

    Without a seed of the fit, the documents are drawn with replacement, and the model is returned
    without scores. Other seeds would have the same anchor words, and so nearly the same topics.
    """
    train, test = corpus.split(shares[0], seed=seed)
    if fit_seed is None:
        rows = np.random.default_rng(seed).integers(len(train), size=len(train))
        train = train[np.sort(rows)]
    options = {"progress": False, **settings["options"], "num_topics": size}
    settings = {**settings, "options": options, "seed": seed if fit_seed is None else fit_seed}
    model, guide, engine = recipe.for_corpus(train, size).make(corpus, **settings)
    with propagate_interrupts():
        seconds = engine.fit(train).seconds
    if fit_seed is None:
        return model
    hold_out = test.hold_out_words(shares[1], seed=seed)
    completion = document_completion(model, hold_out, seed=seed, progress=False)
    estimate = (
        None if likelihood is None else likelihood.estimate(model, test, seed=seed, progress=False)
    )
    return _Fit(model, guide, completion, estimate, seconds)


@knows_its_options
def select(
    corpus: Corpus,
    num_topics: Collection[int],
    *,
    recipe: Recipe | str = "ctm",
    num_seeds: int = 2,
    test_fraction: float = 0.1,
    observed_fraction: float = 0.5,
    seed: int = 0,
    top_n: int = 10,
    likelihood: AIS | bool = False,
    options: Mapping[str, Any] | None = None,
    model_options: Mapping[str, Any] | None = None,
    device: torch.device | str = "cpu",
    n_jobs: int | None = None,
    progress: bool = True,
) -> Selection:
    """Fit models of several numbers of topics and compare their scores.

    All fits share one split of documents and held-out tokens. The difference between two numbers of
    topics therefore concerns the same tokens, and is far more certain than either score. On Ctrl-C,
    the fits completed so far are compared.

    Args:
        corpus: The documents.
        num_topics: Numbers of topics to compare.
        recipe: The model and its posterior, or the model's name, for which the posterior is chosen
            as by :func:`~torch_lntm.fit`.
        num_seeds: Number of fits for each number of topics, each from its own seed. One more, to
            documents drawn with replacement, shows how stable the topics are.
        test_fraction: Share of the documents to hold out.
        observed_fraction: Share of each held-out document's tokens to observe. The remaining tokens
            are predicted.
        seed: Seed of the split of the documents, of the split of their tokens, and of the first
            fit.
        top_n: Number of top words per topic for coherence and exclusivity.
        likelihood: Whether to estimate the log likelihood of whole held-out documents as well,
            which takes about as long as the fits. Give an ``AIS`` to choose its settings.
        options: Options of model, guide and engine, as for :meth:`~torch_lntm.recipes.Recipe.make`.
        model_options: Further arguments of the model's constructor.
        device: Device of the computation.
        n_jobs: Number of fits that joblib runs at the same time, which divide the cores between
            them; -1 gives each fit one core. A single fit uses all cores itself. Defaults to 1, or
            to the number set by ``joblib.parallel_config``, with which you can also choose
            another backend, such as Dask or Ray.
        progress: Whether to show a progress bar on standard error.

    Returns:
        The criteria with standard errors, and a recommendation. Models of bursty words also predict
        from a document's observed words, so compare their completion only with that of other such
        models.

    Raises:
        ConfigError: A number or option is invalid.
        CorpusError: The corpus has too few documents for the split.

    Example:
        >>> options = {"max_iterations": 1, "stepwise_epochs": 1, "start_epochs": 1}
        >>> selection = lntm.select(
        ...     train[:60], [2, 3], recipe=lntm.recipes.Recipe("ctm", "taylor"), num_seeds=1,
        ...     options=options,
        ... )
        >>> selection.scores.index.tolist()
        [2, 3]
        >>> selection.recommended in (2, 3)
        True
    """
    corpus = as_corpus(corpus)
    if not isinstance(num_topics, Collection) or not len(num_topics):
        expected = "expected numbers of topics to compare, such as [10, 20, 50]"
        raise ConfigError(f"num_topics is {num_topics!r}; {expected}")
    require_whole(2, top_n=top_n, **{f"num_topics[{j}]": n for j, n in enumerate(num_topics)})
    require_whole(1, num_seeds=num_seeds)
    sizes = sorted({*num_topics})
    recipe = Recipe.of(recipe, None, options or {}) if isinstance(recipe, str) else recipe
    train, _ = corpus.split(test_fraction, seed=seed)
    annealing = (AIS() if likelihood is True else likelihood) or None
    shares = (test_fraction, observed_fraction)
    settings = {"options": options or {}, "model_options": model_options, "device": device}
    seeds = [*range(seed, seed + num_seeds), None]
    runs = [(size, own) for size in sizes for own in seeds]
    fits: dict[int, list[_Fit]] = {}
    resampled: dict[int, TopicModel] = {}
    made = joblib.Parallel(n_jobs=n_jobs, return_as="generator")(
        joblib.delayed(_fit_and_score)(corpus, recipe, *run, shares, seed, annealing, settings)
        for run in runs
    )
    try:
        bar = tqdm(made, desc="fits", total=len(runs), disable=not progress)
        for (size, _), fit in zip(runs, bar, strict=True):
            if isinstance(fit, TopicModel):
                resampled[size] = fit
            else:
                fits.setdefault(size, []).append(fit)
    except KeyboardInterrupt as stop:
        if not fits or isinstance(stop, Terminated):
            raise
    interrupted = sum(map(len, fits.values())) + len(resampled) < len(runs)
    return Selection(_scores(fits, resampled, train, top_n), interrupted)


def _scores(
    fits: Mapping[int, Sequence[_Fit]],
    resampled: Mapping[int, TopicModel],
    train: Corpus,
    top_n: int,
) -> pd.DataFrame:
    """Criteria of every number of topics, and its loss against the best."""
    predictive = {
        size: torch.stack([fit.completion.log_predictive for fit in of_size]).mean(0)
        for size, of_size in fits.items()
    }
    best = max(predictive, key=lambda size: float(predictive[size].sum()))
    rows = {}
    for size, of_size in fits.items():
        tokens, seconds = of_size[0].completion.held_out_tokens, sum(fit.seconds for fit in of_size)
        pairs = {
            "behind": per_token(predictive[best] - predictive[size], tokens),
            "completion": per_token(predictive[size], tokens),
            **_criteria(of_size, train, top_n),
        }
        if size in resampled:
            similar = [align_topics(fit.model, resampled[size]).similarity for fit in of_size]
            pairs["stability"] = _over_topics(torch.from_numpy(np.mean(similar, axis=0)))
        rows[size] = {"perplexity": math.exp(-pairs["completion"][0]), "seconds": round(seconds, 3)}
        for name, (value, error) in pairs.items():
            rows[size] |= {name: value, f"{name}_se": error}
    scores = pd.DataFrame.from_dict(rows, orient="index").rename_axis("num_topics")
    _add_seeds(scores, fits, best)
    scored = [name + end for name in ("behind", *CRITERIA) for end in ("", "_se")]
    return scores[[name for name in ("perplexity", *scored, "seconds") if name in scores]]


def _add_seeds(scores: pd.DataFrame, fits: Mapping[int, Sequence[_Fit]], best: int) -> None:
    """Add the variance of means over seeds to the standard errors of held-out scores."""
    shares = pd.Series({size: 1 / len(of_size) for size, of_size in fits.items()})
    for name in {"completion", "likelihood"} & {*scores}:
        by_seed = [
            np.array([getattr(fit, name).nats_per_token for fit in of_size])
            for of_size in fits.values()
        ]
        freedom = sum(len(values) - 1 for values in by_seed)
        variance = sum(len(values) * values.var() for values in by_seed) / max(1, freedom)
        scores[f"{name}_se"] = np.hypot(scores[f"{name}_se"], np.sqrt(variance * shares))
        if name == "completion":
            added = (variance * (shares + shares[best])).where(shares.index != best, 0.0)
            scores["behind_se"] = np.hypot(scores["behind_se"], np.sqrt(added))


def _criteria(fits: Sequence[_Fit], train: Corpus, top_n: int) -> dict[str, tuple[float, float]]:
    """Criteria of single fits except completion, as means over seeds with standard errors."""
    values: dict[str, list[tuple[float, float]]] = {}
    for fit in fits:
        words = fit.model.topics.top_words(top_n)[0].tolist()
        by_topic = {
            "coherence": coherence(words, train, top_n=top_n),
            "exclusivity": exclusivity(fit.model.topics.mean_probs, top_n),
        }
        for name, of_topics in by_topic.items():
            values.setdefault(name, []).append(_over_topics(of_topics))
        with suppress(TooFewDocumentsError):
            found = residual_dispersion(fit.model, fit.guide, train)
            values.setdefault("dispersion", []).append((found.value, found.standard_error))
    # Fits from different seeds share documents and words, so their mean is hardly more certain than
    # a single fit. That is why the standard errors are averaged as well.
    means = {name: np.mean(of_seeds, axis=0).tolist() for name, of_seeds in values.items()}
    likelihoods = [fit.likelihood for fit in fits if fit.likelihood is not None]
    if likelihoods:
        mean = torch.stack([estimate.log_likelihood for estimate in likelihoods]).mean(0)
        means["likelihood"] = per_token(mean, likelihoods[0].lengths)
    return means


def _over_topics(values: Tensor) -> tuple[float, float]:
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))
