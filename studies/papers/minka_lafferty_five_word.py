"""Aspects of documents without aspects: *Minka & Lafferty 2002, §6.1, five equiprobable words*.

Three aspects are fitted to documents of 100 tokens from five words with probability 1/5 each. By
maximum likelihood the aspects should all be near the uniform distribution. The study takes 90
seconds on one core.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from studies.measure import Cells, Study, check_numbers
from studies.papers.minka_lafferty import METHODS, exact_log_likelihood, fit_small
from studies.tables import table, with_error
from torch_lntm.errors import ConfigError


@dataclass(frozen=True)
class FiveWordSettings:
    """Settings of the study.

    Attributes:
        num_words: Words, all with equal probability.
        num_docs: Training documents.
        length: Tokens of a document.
        num_topics: Aspects.
        num_test_docs: Documents for the perplexity.
        repetitions: Corpora.
        tolerances: Moves of a word's probability, falling. The study counts the updates to each; EM
            ends at the last.
        max_updates: Bound on the updates of EM.
        seed: Seed of all draws.
    """

    num_words: int = 5
    num_docs: int = 100
    length: int = 100
    num_topics: int = 3
    num_test_docs: int = 1000
    repetitions: int = 10
    tolerances: tuple[float, ...] = (1e-4, 1e-5)
    max_updates: int = 10000
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is out of range.
        """
        names = ("num_words", "num_docs", "length", "num_test_docs", "repetitions", "max_updates")
        whole = {**dict.fromkeys(names, 1), "num_topics": 2, "seed": 0}
        check_numbers(self, whole, ["tolerances"])
        if not self.tolerances or any(a <= b for a, b in pairwise(self.tolerances)):
            raise ConfigError(f"tolerances are {self.tolerances}; expected falling numbers")


@dataclass(frozen=True)
class FiveWordRow:
    """One method on one corpus.

    Attributes:
        repetition: Number of the corpus.
        method: Name of the method.
        topics: The fitted p(w | a).
        smallest: Their smallest entry.
        largest: Their largest entry.
        updates: Updates until each tolerance; None for an unmet tolerance.
        train_log_likelihood: Exact log p of the corpus under the fit, nats per document.
        perplexity: Exact, of the test documents.
    """

    repetition: int
    method: str
    topics: list[list[float]]
    smallest: float
    largest: float
    updates: list[int | None]
    train_log_likelihood: float
    perplexity: float


@dataclass(frozen=True)
class FiveWordResult:
    """The result of the study.

    Attributes:
        settings: The settings.
        rows: One for each corpus and method.
    """

    settings: FiveWordSettings
    rows: list[FiveWordRow]

    def of(self, method: str) -> list[FiveWordRow]:
        """The rows of a method."""
        return [row for row in self.rows if row.method == method]

    def tables(self) -> str:
        """Means with standard errors over corpora, and the aspects of the first corpus."""
        tolerances = self.settings.tolerances
        header = ["method", "smallest p", "largest p", "range over all corpora"]
        header += [f"updates to {tolerance:g}" for tolerance in tolerances]
        header += ["train nats per document, less uniform", "test perplexity"]
        uniform = -self.settings.length * float(np.log(self.settings.num_words))
        lines = []
        for method in METHODS:
            rows = self.of(method)
            cells = [
                method,
                with_error([row.smallest for row in rows], 4),
                with_error([row.largest for row in rows], 4),
                f"{min(r.smallest for r in rows):.3f} to {max(r.largest for r in rows):.3f}",
            ]
            for i in range(len(tolerances)):
                updates = [u for row in rows if (u := row.updates[i]) is not None]
                missed = len(rows) - len(updates)
                note = f", {missed} not met" if missed else ""
                cells.append(with_error(updates, 0) + note)
            cells.append(with_error([row.train_log_likelihood - uniform for row in rows], 3))
            cells.append(with_error([row.perplexity for row in rows], 3))
            lines.append(cells)
        parts = [
            f"Mean over {self.settings.repetitions} corpora (standard error).",
            table(header, lines),
        ]
        for method in METHODS:
            words = [f"w = {v + 1}" for v in range(self.settings.num_words)]
            entries = [
                [f"a = {a + 1}", *(f"{p:.3f}" for p in topic)]
                for a, topic in enumerate(self.of(method)[0].topics)
            ]
            parts += [f"Aspects of the first corpus, {method}:", table(["", *words], entries)]
        return "\n\n".join(parts)


def run(settings: FiveWordSettings, cells: Cells) -> FiveWordResult:
    """Draw the corpora and fit each by every method, from the same start."""

    def fit(repetition: int) -> list[FiveWordRow]:
        uniform = np.full(settings.num_words, 1.0 / settings.num_words)
        rng = np.random.default_rng([settings.seed, repetition])
        train, test = (
            rng.multinomial(settings.length, uniform, size)
            for size in (settings.num_docs, settings.num_test_docs)
        )
        start = rng.dirichlet(np.ones(settings.num_words), settings.num_topics)
        rows = []
        for method in METHODS:
            guide, updates = fit_small(
                method, train, start, settings.tolerances, settings.max_updates
            )
            topics = guide.model.topics.probs.detach().numpy()
            per_token = exact_log_likelihood(test, topics).mean() / settings.length
            row = FiveWordRow(
                repetition,
                method,
                topics.tolist(),
                float(topics.min()),
                float(topics.max()),
                updates,
                float(exact_log_likelihood(train, topics).mean()),
                float(np.exp(-per_token)),
            )
            rows.append(row)
        return rows

    found = cells.each(range(settings.repetitions), fit)
    return FiveWordResult(settings, [FiveWordRow(**row) for rows in found for row in rows])


STUDY = Study(FiveWordSettings, run, FiveWordResult.tables, quick={"repetitions": 1})
