"""Errors of classification by class-conditional probability: *Minka & Lafferty 2002, §6.1*.

Documents of the first class are uniform over five words. Documents of the second have word
probabilities in proportion to 1, 2, …, 5. An aspect model is fitted to 50 documents of each class,
and a test document goes to the class with the higher probability. The study takes 90 seconds on one
core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.measure import Cells, Study, check_numbers
from studies.papers.minka_lafferty import METHODS, exact_log_likelihood, fit_small, small_batch
from studies.tables import table, with_error

OPTIMAL = "true models"
#: Methods that also classify by their own estimate of the class-conditional probability.
OWN = {"vb": "vb, by its bound", "ep": "ep, by its evidence"}


@dataclass(frozen=True)
class TwoClassSettings:
    """Settings of the study.

    Attributes:
        num_words: Words.
        num_docs: Training documents of each class.
        length: Tokens of a document.
        num_topics: Aspects of each model.
        num_test_docs: Test documents of each class.
        repetitions: Resamplings of all documents.
        tolerance: Move of a word's probability at convergence of EM.
        max_updates: Bound on the updates of EM.
        seed: Seed of all draws.
    """

    num_words: int = 5
    num_docs: int = 50
    length: int = 50
    num_topics: int = 3
    num_test_docs: int = 1000
    repetitions: int = 20
    tolerance: float = 1e-4
    max_updates: int = 10000
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is out of range.
        """
        names = ("num_docs", "length", "num_test_docs", "repetitions", "max_updates")
        whole = {**dict.fromkeys(names, 1), "num_words": 2, "num_topics": 2, "seed": 0}
        check_numbers(self, whole, ["tolerance"])


@dataclass(frozen=True)
class TwoClassResult:
    """The result of the study.

    Attributes:
        settings: The settings.
        errors: Misclassified test documents in each repetition, by name of the classifier.
        unconverged: Runs of EM that reached the bound on the updates.
    """

    settings: TwoClassSettings
    errors: dict[str, list[int]]
    unconverged: int

    def tables(self) -> str:
        """Mean errors, and their difference from EP's and the true models' errors."""
        rows = []
        for name, errors in self.errors.items():
            cells = [name, with_error(errors, 1)]
            for other in ("ep", OPTIMAL):
                pairs = zip(errors, self.errors[other], strict=True)
                cells.append("" if name == other else with_error([a - b for a, b in pairs], 1))
            rows.append([*cells, f"{min(errors)} to {max(errors)}"])
        header = ["classifier", "errors", "less ep's", "less the true models'", "range"]
        return (
            f"Errors in {2 * self.settings.num_test_docs} documents, mean over "
            f"{self.settings.repetitions} resamplings (standard error; differences are paired).\n\n"
            f"{table(header, rows)}\n\nRuns of EM without convergence: {self.unconverged}."
        )


def run(settings: TwoClassSettings, cells: Cells) -> TwoClassResult:
    """Draw documents, fit the models and classify."""
    rising = np.arange(1.0, settings.num_words + 1)
    classes = [np.full(settings.num_words, 1.0 / settings.num_words), rising / rising.sum()]

    def classify(repetition: int) -> dict[str, Any]:
        rng = np.random.default_rng([settings.seed, repetition])
        train = [rng.multinomial(settings.length, p, settings.num_docs) for p in classes]
        test = np.vstack(
            [rng.multinomial(settings.length, p, settings.num_test_docs) for p in classes]
        )
        start = rng.dirichlet(np.ones(settings.num_words), settings.num_topics)
        scores = {OPTIMAL: [test @ np.log(p) for p in classes]}
        unconverged = 0
        for method in METHODS:
            for documents in train:
                guide, (updates,) = fit_small(
                    method, documents, start, [settings.tolerance], settings.max_updates
                )
                unconverged += updates is None
                topics = guide.model.topics.probs.detach().numpy()
                scores.setdefault(method, []).append(exact_log_likelihood(test, topics))
                if method in OWN:
                    own = guide.posterior(small_batch(test)).objective.numpy()
                    scores.setdefault(OWN[method], []).append(own)
        errors = {name: num_errors(first, second) for name, (first, second) in scores.items()}
        return {"errors": errors, "unconverged": unconverged}

    found = cells.each(range(settings.repetitions), classify)
    errors = {name: [cell["errors"][name] for cell in found] for name in found[0]["errors"]}
    return TwoClassResult(settings, errors, sum(cell["unconverged"] for cell in found))


def num_errors(first: NDArray[np.float64], second: NDArray[np.float64]) -> int:
    """Number of misclassified documents; the first half belongs to the first class.

    Args:
        first: ``(num_docs,)`` log probabilities under the first class.
        second: Log probabilities under the second class. Ties go to the first.
    """
    half = len(first) // 2
    chosen = second > first
    return int(chosen[:half].sum() + (~chosen[half:]).sum())


STUDY = Study(TwoClassSettings, run, TwoClassResult.tables, quick={"repetitions": 2})
