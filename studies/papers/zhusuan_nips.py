"""Held-out perplexity after Monte-Carlo and variational EM: the *ZhuSuan LNTM tutorial*.

The tutorial fits the logistic-normal topic model to papers of NIPS by Monte-Carlo EM, and estimates
the perplexity of test papers by annealed importance sampling. This study runs the tutorial's
algorithm with its settings. Beside it run a correlated topic model fitted by Monte-Carlo EM and
models fitted by variational EM. One estimator judges all of them. The folder ``models`` beside the
result keeps the fitted models.

The tutorial prints no perplexity. ``studies/pages/experiments.md`` has the results.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from studies.measure import Cells, Study, check_choices, check_numbers
from studies.papers.texts import read_parts
from studies.tables import entry, table
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.evaluation import AIS, ais_bracket, document_completion, log_likelihood
from torch_lntm.guides import make_guide
from torch_lntm.inference import MonteCarloEM, VariationalEM
from torch_lntm.io import save_model
from torch_lntm.models import TopicModel
from torch_lntm.models.registry import CONSTRUCTORS

#: Estimates with a larger Pareto k are unreliable.
PARETO_K_LIMIT = 0.7


class Method(NamedTuple):
    """A way to fit a model.

    Attributes:
        label: Name in the table.
        kind: Key of :data:`torch_lntm.models.registry.CONSTRUCTORS`.
        posterior: Name of the guide of variational EM; None for Monte-Carlo EM.
        options: Options of the model.
        tutorial: Whether Monte-Carlo EM runs as in the tutorial, or with this package's defaults.
    """

    label: str
    kind: str
    posterior: str | None
    options: Mapping[str, Any] = MappingProxyType({})
    tutorial: bool = False


#: Compared methods, by name.
METHODS = {
    "tutorial": Method(
        "MCEM of the tutorial, diagonal Σ", "lntm", None, {"pseudo_documents": 0.0}, True
    ),
    "mcem-lntm": Method("MCEM, diagonal Σ", "lntm", None),
    "mcem-ctm": Method("MCEM, full Σ", "ctm", None),
    "taylor": Method("VEM, Taylor, full Σ", "ctm", "taylor"),
    "laplace": Method("VEM, Laplace, full Σ", "ctm", "laplace"),
    "blei-lafferty": Method("VEM, Blei–Lafferty, full Σ", "ctm", "blei-lafferty"),
    "lda": Method("VEM, LDA", "lda", "vb"),
}


@dataclass(frozen=True)
class NipsSettings:
    """Settings of the study.

    Attributes:
        corpus: Name of a corpus in the folder of data, or a path. A file
            ``NAME.split.txt`` beside it has a line ``train`` or ``test`` for each document.
        methods: Names in :data:`METHODS`.
        num_topics: Topics.
        epochs: Epochs of Monte-Carlo EM with the tutorial's settings.
        batch_size: Documents of its mini-batches.
        num_transitions: Its transitions per batch.
        num_steps: Leapfrog steps of each transition.
        num_chains: Chains of each document.
        topic_scale: δ, the standard deviation of the logits of the topics.
        ais_chains: Chains of annealed importance sampling.
        ais_temperatures: Temperatures of annealed importance sampling.
        bracket_docs: Documents simulated from each fitted model, with the lengths of the first test
            documents. Their likelihood is bounded from both sides.
        num_docs: Number of documents of each part, from the first on; None for all.
        seed: Seed of everything random.
    """

    corpus: str = "nips_uci"
    methods: tuple[str, ...] = tuple(METHODS)
    num_topics: int = 100
    epochs: int = 100
    batch_size: int = 100
    num_transitions: int = 5
    num_steps: int = 20
    num_chains: int = 1
    topic_scale: float = 10.0
    ais_chains: int = 25
    ais_temperatures: int = 1000
    bracket_docs: int = 20
    num_docs: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is out of range.
        """
        counts = ("epochs", "batch_size", "num_transitions", "num_steps", "num_chains")
        check_numbers(
            self,
            {**dict.fromkeys(counts, 1), "num_topics": 2, "ais_chains": 2, "ais_temperatures": 3}
            | {"bracket_docs": 2, "seed": 0},
            ["topic_scale"],
        )
        check_choices(self, "methods", METHODS)
        if self.num_docs is not None and self.num_docs < 2:
            raise ConfigError(f"num_docs is {self.num_docs}; expected at least 2")


@dataclass(frozen=True)
class Fit:
    """One method, fitted and judged.

    Attributes:
        method: Name of the method.
        perplexity: Perplexity of the test documents by annealed importance sampling.
        log_likelihood: Log likelihood of each test document, nats.
        total_error: Monte-Carlo standard error of their sum, nats.
        effective_sample_size: Effective number of chains in the median document.
        gap: Nats per document between the bounds of simulated documents, and its standard error.
        importance: Perplexity by importance sampling with the default guide and draws.
        unreliable: Share of the test documents with a Pareto k̂ above 0.7.
        completion: Perplexity of half of each test document given the other half, by the Laplace
            posterior's mode (variational Bayes' mean for LDA).
        fit_seconds: Processor time of the fit.
        evaluation_seconds: Processor time of annealed importance sampling.
    """

    method: str
    perplexity: float
    log_likelihood: list[float]
    total_error: float
    effective_sample_size: float
    gap: tuple[float, float]
    importance: float
    unreliable: float
    completion: float
    fit_seconds: float
    evaluation_seconds: float


@dataclass(frozen=True)
class NipsResult:
    """The result of the study.

    Attributes:
        settings: The settings.
        fits: One for each method.
        test_tokens: Tokens of the test documents.
    """

    settings: NipsSettings
    fits: list[Fit]
    test_tokens: int

    def difference(self, fit: Fit, other: Fit) -> tuple[float, float]:
        """Gain of one fit in nats per token, and the standard error over documents."""
        gap = np.array(fit.log_likelihood) - np.array(other.log_likelihood)
        error = gap.std(ddof=1) * math.sqrt(gap.size) if gap.size > 1 else math.nan
        return float(gap.sum()) / self.test_tokens, float(error) / self.test_tokens

    def tables(self) -> str:
        """A row per method; differences are from the first."""
        rows = []
        for fit in self.fits:
            mean, error = self.difference(fit, self.fits[0])
            rows.append(
                [
                    METHODS[fit.method].label,
                    f"{fit.perplexity:.1f}",
                    "–" if fit is self.fits[0] else f"{mean:+.4f} ({error:.4f})",
                    f"{fit.total_error:.1f}",
                    f"{fit.effective_sample_size:.1f}",
                    entry(*fit.gap, 2),
                    f"{fit.importance:.1f} ({fit.unreliable:.0%})",
                    f"{fit.completion:.1f}",
                    f"{fit.fit_seconds:.0f}",
                    f"{fit.evaluation_seconds:.0f}",
                ]
            )
        header = [
            "",
            "perplexity (AIS)",
            "nats per token better than the first",
            "sampling error, nats",
            "effective chains",
            "gap of the bounds, nats",
            "perplexity by importance sampling (unreliable)",
            "completion perplexity",
            "fit, CPU s",
            "AIS, CPU s",
        ]
        return table(header, rows)


def run(settings: NipsSettings, cells: Cells) -> NipsResult:
    """Fit and evaluate every method.

    Raises:
        ConfigError: The corpus or its split does not exist.
    """
    train, test = read_parts(settings.corpus, settings.num_docs)

    def fit(name: str) -> Fit:
        model, judged = measure(settings, name, train, test, progress=cells.progress)
        if cells.folder is not None:
            save_model(model, cells.folder / "models" / name, overwrite=True)
        return judged

    found = cells.each(settings.methods, fit)
    return NipsResult(settings, [Fit(**each) for each in found], int(test.num_tokens))


def measure(
    settings: NipsSettings, name: str, train: Corpus, test: Corpus, *, progress: bool = False
) -> tuple[TopicModel, Fit]:
    """Fit one method and judge it.

    Args:
        settings: The settings.
        name: Name of the method.
        train: Training documents.
        test: Test documents.
        progress: Show progress bars.
    """
    ais = AIS(
        num_chains=settings.ais_chains, num_temperatures=settings.ais_temperatures, start="prior"
    )
    began = time.process_time()
    model = fit_model(settings, METHODS[name], train, progress=progress)
    fitted = time.process_time()
    with warnings.catch_warnings():
        # The result holds the effective chains and the share of unreliable estimates.
        warnings.filterwarnings("ignore", ".*(effective sample size|Pareto k)", UserWarning)
        estimate = log_likelihood(model, test, ais, seed=settings.seed, progress=progress)
        evaluated = time.process_time()
        lengths = test.lengths[: settings.bracket_docs].tolist()
        bracket = ais_bracket(model, lengths, ais, seed=settings.seed, progress=progress)
        importance = log_likelihood(model, test, seed=settings.seed, progress=progress)
    assert estimate.effective_sample_size is not None
    assert importance.pareto_k is not None
    guide = make_guide("vb" if model.name == "lda" else "laplace", model)
    return model, Fit(
        name,
        estimate.perplexity,
        estimate.log_likelihood.tolist(),
        estimate.total_error,
        float(estimate.effective_sample_size.median()),
        (bracket.mean_gap, bracket.mean_gap_standard_error),
        importance.perplexity,
        float((importance.pareto_k > PARETO_K_LIMIT).double().mean()),
        document_completion(model, test, theta="mode", guide=guide, seed=settings.seed).perplexity,
        fitted - began,
        evaluated - fitted,
    )


def fit_model(
    settings: NipsSettings, method: Method, train: Corpus, *, progress: bool = False
) -> TopicModel:
    """A fitted model.

    Args:
        settings: The settings.
        method: The method.
        train: Training documents.
        progress: Show progress bars.
    """
    options = dict(method.options)
    if method.kind == "lntm":
        options["topic_scale"] = settings.topic_scale
    model = CONSTRUCTORS[method.kind](
        settings.num_topics, train.num_words, seed=settings.seed, **options
    )
    common: dict[str, Any] = {"seed": settings.seed, "progress": progress}
    engine: MonteCarloEM | VariationalEM
    if method.posterior is not None:
        engine = VariationalEM(model, make_guide(method.posterior, model), **common)
    elif method.tutorial:
        engine = MonteCarloEM(
            model,
            start="model",
            num_chains=settings.num_chains,
            num_transitions=settings.num_transitions,
            num_steps=settings.num_steps,
            mass_matrix="identity",
            target_accept=0.6,
            max_epochs=settings.epochs,
            min_gain=0.0,
            batch_size=settings.batch_size,
            topic_update="gradient",
            **common,
        )
    else:
        engine = MonteCarloEM(model, **common)
    engine.fit(train)
    return model


STUDY = Study(
    NipsSettings,
    run,
    NipsResult.tables,
    quick={
        "num_topics": 10,
        "num_docs": 100,
        "epochs": 10,
        "ais_temperatures": 100,
        "bracket_docs": 5,
    },
)
