r"""Errors of classification by class-conditional probability: *Minka & Lafferty 2002, §6.1*.

Documents of one class are uniform over five words, those of the other have word probabilities in
proportion to 1, 2, …, 5. An aspect model is fitted to 50 documents of each class, and test
documents go to the class whose model gives them the higher probability. Run it by

    python -m torch_lntm.experiments.minka_lafferty_two_class \
        --config configs/minka_lafferty_two_class.yaml --out runs/minka_lafferty_two_class
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from torch_lntm.errors import LNTMError
from torch_lntm.experiments._result import (
    Result,
    check_settings,
    command,
    table,
    with_error,
)
from torch_lntm.experiments.minka_lafferty_em import (
    METHODS,
    exact_log_likelihood,
    fit_small,
    small_batch,
)

OPTIMAL = "true models"
#: Whose own estimate of the class-conditional probability also classifies.
OWN = {"vb": "vb, by its bound", "ep": "ep, by its evidence"}


@dataclass(frozen=True)
class TwoClassSettings:
    """What to draw.

    Attributes:
        num_words: Words.
        num_docs: Documents of each class that models are fitted to.
        length: Tokens of a document.
        num_topics: Aspects of each model.
        num_test_docs: Test documents of each class.
        repetitions: Resamplings of all documents.
        tolerance: Move of a word's probability at which EM has converged.
        max_updates: Bound on the updates of EM.
        seed: Seed of everything.
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
            ConfigError: A value that cannot be used.
        """
        names = ("num_docs", "length", "num_test_docs", "repetitions", "max_updates")
        whole = {**dict.fromkeys(names, 1), "num_words": 2, "num_topics": 2, "seed": 0}
        check_settings(self, whole, ["tolerance"])


@dataclass(frozen=True)
class TwoClassResult(Result):
    """What was found.

    Attributes:
        settings: What was asked for.
        errors: Name of a classifier to the test documents misclassified in each repetition.
        unconverged: Runs of EM that met the bound on the updates.
        seconds: Wall-clock time.
    """

    settings: TwoClassSettings
    errors: dict[str, list[int]]
    unconverged: int
    seconds: float

    def report(self) -> str:
        """Mean errors, and their difference from those of EP and of the true models."""
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
            f"{table(header, rows)}\n\nRuns of EM that did not converge: {self.unconverged}."
        )


def run(settings: TwoClassSettings | None = None, *, progress: bool = True) -> TwoClassResult:
    """Draw documents, fit the models and classify.

    Args:
        settings: What to draw; the defaults if not given.
        progress: Show a progress bar.

    Returns:
        The result; the same for the same settings, but for the time.
    """
    settings = TwoClassSettings() if settings is None else settings
    began = time.perf_counter()
    errors: dict[str, list[int]] = {}
    unconverged = 0
    rising = np.arange(1.0, settings.num_words + 1)
    classes = [np.full(settings.num_words, 1.0 / settings.num_words), rising / rising.sum()]
    for repetition in tqdm(range(settings.repetitions), desc="samples", disable=not progress):
        rng = np.random.default_rng([settings.seed, repetition])
        train = [rng.multinomial(settings.length, p, settings.num_docs) for p in classes]
        test = np.vstack(
            [rng.multinomial(settings.length, p, settings.num_test_docs) for p in classes]
        )
        start = rng.dirichlet(np.ones(settings.num_words), settings.num_topics)
        scores = {OPTIMAL: [test @ np.log(p) for p in classes]}
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
        for name, (first, second) in scores.items():
            errors.setdefault(name, []).append(num_errors(first, second))
    return TwoClassResult(settings, errors, unconverged, time.perf_counter() - began)


def num_errors(first: NDArray[np.float64], second: NDArray[np.float64]) -> int:
    """Documents misclassified, the first half being of the first class.

    Args:
        first: ``(num_docs,)`` log probabilities under the first class.
        second: The same under the second; ties go to the first.
    """
    half = len(first) // 2
    chosen = second > first
    return int(chosen[:half].sum() + (~chosen[half:]).sum())


def main(argv: Sequence[str] | None = None) -> TwoClassResult:
    """Run from the command line; writes the result and prints its tables.

    Args:
        argv: Arguments instead of the process's own.

    Returns:
        The result.

    Raises:
        ConfigError: Settings that cannot be used, or an output folder that holds a result.
    """
    return command("minka_lafferty_two_class", TwoClassSettings, run, argv)


if __name__ == "__main__":
    try:
        main()
    except LNTMError as error:
        sys.exit(f"error: {error}")
