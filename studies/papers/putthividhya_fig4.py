"""Held-out likelihood by topics, perplexity by observed share: *Putthividhya et al. 2009, Fig. 4*.

LDA, the factor models and correlated topic models are fitted to real texts and judged on test
documents. The first score is the log likelihood, for several numbers of topics. The second is the
perplexity of the rest of a document given a share of its words. The paper's texts are abstracts of
grants, in four folds. This study has news articles and conference papers, in one division each,
with several fits a model. Differences between models are paired by document.

The log likelihood is estimated twice: as in the paper, by importance sampling around a posterior,
and by annealed importance sampling, which needs no good posterior. Both are too low on average:
importance sampling for a bad posterior, annealing for a short path. The higher estimate judges a
model.

The rest of a document is predicted by the posterior of the fit. At one observed share, further
posteriors of the same models predict it too, and so does the exact posterior mean of θ, from
chains. The comparison separates models from posteriors.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from studies.measure import Cells, Study, corpus_file
from studies.papers.putthividhya_fig4_scores import (
    BASELINE,
    PARETO_K_LIMIT,
    PREDICTIONS,
    RealResult,
    RealSettings,
    Scored,
)
from studies.papers.texts import MODELS, fit
from torch_lntm.corpus import Corpus, read_corpus
from torch_lntm.errors import ConfigError, UnreliableEstimateWarning
from torch_lntm.evaluation import AIS, document_completion, log_likelihood
from torch_lntm.evaluation.completion.result import ExactCompletion
from torch_lntm.guides import Guide, guides_for, make_guide

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run(settings: RealSettings, cells: Cells) -> RealResult:
    """Fit and judge every model."""
    parts = {name: read_texts(settings, name) for name in settings.corpora}
    keys = [
        (corpus, k, name, number)
        for number in range(settings.fits)
        for corpus in settings.corpora
        for k in settings.num_topics
        for name in settings.models
    ]

    def measure(key: tuple[str, int, str, int]) -> Scored:
        return score(settings, *parts[key[0]], *key)

    found = cells.each(keys, measure)
    tokens = {name: test.lengths.tolist() for name, (_, test) in parts.items()}
    held_out = {
        name: {
            str(share): test.hold_out_words(share, seed=settings.seed).held_out.lengths.tolist()
            for share in settings.observed_shares
        }
        for name, (_, test) in parts.items()
    }
    return RealResult(settings, [Scored(**row) for row in found], tokens, held_out)


def read_texts(settings: RealSettings, name: str) -> tuple[Corpus, Corpus]:
    """Training documents and test documents.

    Raises:
        ConfigError: The corpus does not exist, or has too few documents.
    """
    corpus = read_corpus(corpus_file(name))
    corpus = corpus[(corpus.lengths > 1).nonzero()[0]]
    wanted = settings.train_docs + settings.test_docs
    if corpus.num_docs < wanted:
        raise ConfigError(f"{name} has {corpus.num_docs} documents; expected at least {wanted}")
    order = np.random.default_rng(settings.seed).permutation(corpus.num_docs)[:wanted]
    return corpus[order[settings.test_docs :]], corpus[order[: settings.test_docs]]


def score(
    settings: RealSettings,
    train: Corpus,
    test: Corpus,
    corpus: str,
    num_topics: int,
    name: str,
    number: int,
) -> Scored:
    """Fit a model to the training documents and score it on the test documents."""
    fitted = fit(name, train, num_topics, settings.seed + number)
    model, guide = fitted.model, fitted.guide
    ais = AIS(
        num_chains=settings.ais_chains, num_temperatures=settings.ais_temperatures, start="prior"
    )
    with warnings.catch_warnings():
        # The result holds the share of unreliable documents.
        warnings.simplefilter("ignore", UnreliableEstimateWarning)
        # A factor model's own mean field leaves most draws without weight.
        proposal = None if model.name == "iftm" else guide
        importance = log_likelihood(
            model,
            test,
            guide=proposal,
            num_draws=settings.num_samples,
            seed=settings.seed,
        )
        annealed = log_likelihood(model, test, ais, seed=settings.seed)
    assert importance.pareto_k is not None

    def predict(posterior: Guide[Any], share: float) -> list[float]:
        found = document_completion(
            model,
            test,
            guide=posterior,
            observed_fraction=share,
            seed=settings.seed,
            theta="mean",
            num_draws=settings.theta_samples,
        )
        return _rounded(found.log_predictive.tolist())

    completions, predictions, exact_error = {}, {}, math.nan
    if num_topics == settings.completion_topics:
        completions = {str(share): predict(guide, share) for share in settings.observed_shares}
        share = settings.exact_share
        exact = document_completion(
            model,
            test.hold_out_words(share, seed=settings.seed),
            tolerance=settings.exact_tolerance,
            seed=settings.seed,
        )
        assert isinstance(exact, ExactCompletion)
        others = [other for other in PREDICTIONS if other in guides_for(model)]
        predictions = {
            "own": completions[str(share)],
            **{other: predict(make_guide(other, model), share) for other in others},
            "exact": _rounded(exact.log_predictive.tolist()),
        }
        exact_error = exact.simulation_error
    return Scored(
        corpus,
        num_topics,
        name,
        number,
        _rounded(importance.log_likelihood.tolist()),
        float((importance.pareto_k > PARETO_K_LIMIT).double().mean()),
        _rounded(annealed.log_likelihood.tolist()),
        annealed.total_error,
        completions,
        predictions,
        exact_error,
        fitted.seconds,
    )


def _rounded(nats: list[float]) -> list[float]:
    """Nats to three digits, below every error here."""
    return [round(value, 3) for value in nats]


def figure(result: RealResult) -> Figure:
    """The paper's Figure 4, by corpus: likelihood by topics, perplexity by observed share.

    Both are shown less :data:`BASELINE`'s, because differences between documents hide differences
    between models. Bars are both standard errors together, over documents and over fits.
    """
    from matplotlib.figure import Figure

    settings = result.settings
    plot = Figure(figsize=(9.6, 3.5 * len(settings.corpora) + 0.5), layout="constrained")
    axes = plot.subplots(len(settings.corpora), 2, squeeze=False)
    topics = list(settings.num_topics)
    percent = [100 * share for share in settings.observed_shares]
    for (left, right), corpus in zip(axes, settings.corpora, strict=True):
        for name in settings.models:
            by_topics = [
                result.likelihood(corpus, k, name, "higher")
                - result.likelihood(corpus, k, BASELINE, "higher")
                for k in topics
            ]
            by_share = [
                result.completion(corpus, name, share) - result.completion(corpus, BASELINE, share)
                for share in settings.observed_shares
            ]
            style = {"markersize": 5, "linewidth": 1.4, "elinewidth": 0.9, **MODELS[name]}
            for ax, x, found in ((left, topics, by_topics), (right, percent, by_share)):
                means, *errors = zip(*(scores.gap for scores in found), strict=True)
                ax.errorbar(x, means, np.hypot(*np.nan_to_num(errors)), **style)
        left.set_xscale("log")
        left.set_xticks(topics, [str(k) for k in topics])
        left.minorticks_off()
        left.set_xlabel("topics K")
        left.set_ylabel(f"{corpus}: log likelihood less IFTM-G's,\nnats per token")
        right.set_xlabel("observed share of a document's words, %")
        right.set_ylabel(f"the rest, K = {settings.completion_topics},\nnats per token")
        for ax in (left, right):
            ax.grid(alpha=0.25)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    plot.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return plot


STUDY = Study(
    RealSettings,
    run,
    RealResult.tables,
    figure,
    quick={
        "num_topics": (10, 20),
        "completion_topics": 20,
        "observed_shares": (0.1, 0.5),
        "train_docs": 200,
        "test_docs": 30,
        "num_samples": 200,
        "ais_temperatures": 50,
        "theta_samples": 20,
        "exact_tolerance": 0.01,
        "fits": 1,
    },
)
