"""True topics and correlations of simulated corpora, and those that a fit finds.

A corpus of a design has K topics, and documents of equal length. Topics are Dirichlet over the
words. The logits of a document are normal: η ~ N(μ, 2AAᵀ/K + 0.3 I), with A and μ/0.4 standard
normal. NumPy alone makes the corpora.

The distance of two topics is Σ_v |φ_kv − φ′_kv|, from 0 to 2. Each true topic is assigned a fitted
topic of its own, with the least sum of distances. A true topic is *missed* if its distance is above
1. The study has its own assignment and correlations, so that it shares no code with the package.

Logits are known up to a number that all topics of a document share. Covariances are therefore
those of centred logits η_k − mean(η). Only logistic-normal models have them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from studies.benchmarks.completion import check_installed
from studies.benchmarks.systems import SYSTEMS, Task
from studies.machine import Stopwatch
from studies.measure import Cells, Study, check_choices, check_filled, check_numbers
from studies.tables import table_of, with_error


@dataclass(frozen=True)
class Design:
    """Sizes of a simulated corpus.

    Attributes:
        num_topics: Topics K.
        num_words: Words.
        num_docs: Documents.
        length: Tokens of a document.
        concentration: Parameter of the topics' symmetric Dirichlet distribution.
    """

    num_topics: int
    num_words: int
    num_docs: int
    length: int
    concentration: float


#: Designs by name.
DESIGNS = {
    "3 topics": Design(3, 100, 400, 60, 0.1),
    "5 topics": Design(5, 100, 500, 60, 0.1),
    "10 topics": Design(10, 1000, 2000, 100, 0.05),
    "20 topics": Design(20, 2000, 4000, 100, 0.05),
}
#: Distance above which a topic is missed.
MISSED = 1.0


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        designs: Names of designs.
        systems: Systems of the study ``quality``.
        seeds: Seeds of the corpora of each design, and of their fits.
    """

    designs: tuple[str, ...] = tuple(DESIGNS)
    systems: tuple[str, ...] = ("torch_lntm ctm, auto", "topica LDA", "topica LDA, tuned")
    seeds: tuple[int, ...] = tuple(range(40))

    def __post_init__(self) -> None:
        """Check the settings."""
        check_numbers(self, {"seeds": 0})
        check_filled(self, "seeds")
        check_choices(self, "designs", DESIGNS)
        check_choices(self, "systems", SYSTEMS)


@dataclass(frozen=True)
class Recovery:
    """A fit of a simulated corpus.

    Attributes:
        design: Name of the design.
        system: Name of the system.
        seed: Seed of corpus and fit.
        missed: Number of missed topics.
        distance: Mean distance of the topics.
        cpu_seconds: CPU seconds of the fit.
        correlation_error: Largest absolute error of a correlation; None for Dirichlet models.
        variance_ratio: Mean of fitted variances over true variances; None for Dirichlet models.
    """

    design: str
    system: str
    seed: int
    missed: int
    distance: float
    cpu_seconds: float
    correlation_error: float | None
    variance_ratio: float | None


def run(settings: Settings, cells: Cells) -> list[Recovery]:
    """Fit every corpus by every system.

    Raises:
        ConfigError: A system is not installed.
    """
    check_installed(settings.systems)
    keys = [
        (design, system, seed)
        for design in settings.designs
        for system in settings.systems
        for seed in settings.seeds
    ]
    found = cells.each(keys, recover)
    return [Recovery(*key, **cell) for key, cell in zip(keys, found, strict=True)]


def simulated(
    design: Design, seed: int
) -> tuple[sp.csr_matrix, NDArray[np.float64], NDArray[np.float64]]:
    """A corpus of a design.

    Returns:
        Counts ``(num_docs, num_words)``, topics ``(num_topics, num_words)`` and the covariance of
        the logits ``(num_topics, num_topics)``.
    """
    rng, size = np.random.default_rng(1000 + seed), design.num_topics
    topics = rng.dirichlet(np.full(design.num_words, design.concentration), size)
    mean, factor = 0.4 * rng.standard_normal(size), rng.standard_normal((size, size))
    covariance = 2 * factor @ factor.T / size + 0.3 * np.eye(size)
    logits = rng.multivariate_normal(mean, covariance, design.num_docs)
    theta = np.exp(logits - logits.max(1, keepdims=True))
    theta /= theta.sum(1, keepdims=True)
    counts = np.stack([rng.multinomial(design.length, row) for row in theta @ topics])
    return sp.csr_matrix(counts), topics, covariance


def recover(key: tuple[str, str, int]) -> dict[str, Any]:
    """The numbers of a :class:`Recovery`."""
    design, system, seed = key
    counts, topics, covariance = simulated(DESIGNS[design], seed)
    task = Task(counts, len(topics), seed, 1, None, None, Stopwatch())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = SYSTEMS[system][1](task)
    distance, order = assigned(topics, np.asarray(fit.topics, np.float64))
    found: dict[str, Any] = {
        "missed": int((distance > MISSED).sum()),
        "distance": float(distance.mean()),
        "cpu_seconds": round(task.stopwatch.cpu_seconds, 2),
        "correlation_error": None,
        "variance_ratio": None,
    }
    if "covariance" in fit.prior:
        fitted = np.asarray(fit.prior["covariance"], np.float64)
        # Some peers leave out the last topic, whose logit is 0.
        fitted = np.pad(fitted, (0, len(topics) - len(fitted)))
        fitted, true = centred(fitted[np.ix_(order, order)]), centred(covariance)
        errors = correlations(fitted) - correlations(true)
        found["correlation_error"] = float(np.abs(errors).max())
        found["variance_ratio"] = float((fitted.diagonal() / true.diagonal()).mean())
    return found


def assigned(
    true: NDArray[np.float64], fitted: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Distance of each true topic from its fitted topic, and the positions of the fitted topics."""
    fitted = fitted / fitted.sum(1, keepdims=True)
    distances = np.stack([np.abs(topic - fitted).sum(1) for topic in true])
    rows, order = linear_sum_assignment(distances)
    return distances[rows, order], order


def centred(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Covariance of the logits less their mean over topics."""
    centre = np.eye(len(covariance)) - 1.0 / len(covariance)
    return centre @ covariance @ centre


def correlations(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Correlations of a covariance."""
    scale = np.sqrt(covariance.diagonal())
    return covariance / np.outer(scale, scale)


def tables(found: list[Recovery]) -> str:
    """A row for each design and system."""
    lines = []
    for design, system in dict.fromkeys((r.design, r.system) for r in found):
        some = [r for r in found if (r.design, r.system) == (design, system)]
        errors = [r.correlation_error for r in some if r.correlation_error is not None]
        ratios = [r.variance_ratio for r in some if r.variance_ratio is not None]
        total = len(some) * DESIGNS[design].num_topics
        lines.append(
            {
                "design": design,
                "system": system,
                "corpora with a missed topic": f"{sum(r.missed > 0 for r in some)} of {len(some)}",
                "topics missed": f"{sum(r.missed for r in some)} of {total}",
                "distance": with_error([r.distance for r in some], 3),
                "error of a correlation": f"{median(errors):.2f}" if errors else "–",
                "variance over truth": with_error(ratios, 2),
                "CPU s": f"{fmean(r.cpu_seconds for r in some):.1f}",
            }
        )
    return (
        f"{table_of(lines)}\n\nerror of a correlation: the largest of a corpus, median over "
        "corpora.\nMeans over corpora, with standard errors."
    )


STUDY = Study(
    Settings,
    run,
    tables,
    quick={"designs": ("3 topics",), "systems": ("torch_lntm ctm, auto",), "seeds": (0, 1)},
    selects=("designs", "systems", "seeds"),
)
