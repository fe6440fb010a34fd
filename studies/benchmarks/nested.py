"""Blogs and days as random effects: held-out words, and intervals of an effect between blogs.

Posts of *poliblog5k* have a rating, the political side of their blog, and a day. The study fits
structural models with several formulas, and scores half of the words of held-out posts given few or
half of the other words. It also regresses the proportions of topics on the rating: with documents
taken as independent, by clusters, and with random effects of the blogs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import torch

import torch_lntm as lntm
from studies.measure import Cells, Study, check_numbers, corpus_file
from studies.tables import entry, mean_and_error, table_of
from torch_lntm.effects import Effects
from torch_lntm.evaluation import CompletionResult, document_completion, paired_difference

#: The formula without columns, the reference of the scores.
PLAIN = "~ 1"


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpus: Name of a corpus, with its columns in the file NAME.columns.csv beside it.
        formulas: Formulas of the prior mean.
        effect: Column of the effect, constant within groups.
        group: Column of the groups.
        num_topics: Number of topics.
        observed: Shares of observed words of the held-out documents.
        test_fraction: Share of held-out documents.
        seeds: Seeds, each of a split and its fits.
    """

    corpus: str = "poliblog5k"
    formulas: tuple[str, ...] = (
        "~ rating",
        "~ blog",
        "~ rating + (1 | blog)",
        "~ rating + (1 | blog) + (1 | day)",
    )
    effect: str = "rating"
    group: str = "blog"
    num_topics: int = 20
    observed: tuple[float, ...] = (0.05, 0.5)
    test_fraction: float = 0.1
    seeds: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        """Check the settings."""
        check_numbers(self, {"num_topics": 2, "seeds": 0}, positive=("test_fraction",))


@dataclass(frozen=True)
class Result:
    """The result of the study.

    Attributes:
        settings: The settings.
        rows: Scores of each seed: gains over the formula without columns, and intervals.
    """

    settings: Settings
    rows: list[dict[str, Any]]


def run(settings: Settings, cells: Cells) -> Result:
    """Fit and score every formula."""
    torch.set_num_threads(1)
    return Result(settings, cells.each(settings.seeds, lambda seed: measured(settings, seed)))


def measured(settings: Settings, seed: int) -> dict[str, Any]:
    """Scores of the formulas on one split, and intervals on all documents."""
    file = corpus_file(settings.corpus)
    corpus = lntm.read_corpus(file, metadata=file.with_suffix(".columns.csv"))
    order = np.random.default_rng(seed).permutation(corpus.num_docs)
    size = round(settings.test_fraction * corpus.num_docs)
    train, test = corpus[np.sort(order[size:])], corpus[np.sort(order[:size])]
    fits = {formula: fitted(settings, train, formula, seed) for formula in settings.formulas}
    plain = fitted(settings, train, PLAIN, seed)
    gains = {}
    for share in settings.observed:
        reference = completion(plain, test, share, seed)
        gains[f"{PLAIN}, {share:g}"] = reference.perplexity
        for formula, fit in fits.items():
            score = completion(fit, test, share, seed)
            gains[f"{formula}, {share:g}"] = paired_difference(score, reference)[0]
    return {"seed": seed, "gains": gains, "intervals": intervals(settings, corpus, seed)}


def completion(fit: tuple[Any, Any], test: Any, share: float, seed: int) -> CompletionResult:
    """Completion at the mode of a fit's model and guide."""
    model, guide = fit
    return document_completion(
        model, test, theta="mode", guide=guide, observed_fraction=share, seed=seed
    )


def fitted(settings: Settings, corpus: Any, formula: str, seed: int) -> tuple[Any, Any]:
    """The fitted model and its guide."""
    model = lntm.models.stm(settings.num_topics, corpus, formula, seed=seed)
    guide = lntm.guides.TaylorGuide(model)
    lntm.inference.VariationalEM(model, guide, progress=False, seed=seed).fit(corpus)
    return model, guide


def intervals(settings: Settings, corpus: Any, seed: int) -> dict[str, list[float]]:
    """Mean width of the effect's intervals and share of significant effects, by regression."""
    column, group = settings.effect, settings.group
    formula = f"~ {column} + (1 | {group})"
    model, guide = fitted(settings, corpus, formula, seed)
    draws = lntm.inference.theta_draws(guide, corpus, seed=seed)
    estimate = partial(lntm.effects.estimate, model, draws, corpus, link="identity")
    rows = {
        "independent documents, HC3": estimate(f"~ {column}"),
        f"clusters of {group}": estimate(f"~ {column}", clusters=group),
        f"random effects of {group}": estimate(formula),
    }
    return {name: width_and_share(effects, column) for name, effects in rows.items()}


def width_and_share(effects: Effects, column: str) -> list[float]:
    """Mean width of 95 % intervals of a column's coefficients, and share of p values below 5 %."""
    table = effects.table()
    rows = table[table["term"].str.startswith(column)]
    return [(rows["upper"] - rows["lower"]).mean(), (rows["p_value"] < 0.05).mean()]


def tables(result: Result) -> str:
    """Gains of the formulas, then intervals by regression; means over seeds."""
    settings, rows = result.settings, result.rows
    gains = []
    for formula, share in product((PLAIN, *settings.formulas), settings.observed):
        mean, error = mean_and_error([row["gains"][f"{formula}, {share:g}"] for row in rows])
        digits = 1 if formula == PLAIN else 4
        what = "perplexity" if formula == PLAIN else "gain, nats per token"
        gains.append(
            {
                "formula": formula,
                "observed": f"{share:g}",
                "score": what,
                "mean": entry(mean, error, digits),
            }
        )
    return f"{table_of(gains)}\n\n{table_of(interval_rows(rows))}"


def interval_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Rows of the table of intervals."""
    return [
        {
            "regression": name,
            "mean width": f"{fmean(row['intervals'][name][0] for row in rows):.4f}",
            "p < 5 %": f"{fmean(row['intervals'][name][1] for row in rows):.0%}",
        }
        for name in rows[0]["intervals"]
    ]


STUDY = Study(Settings, run, tables, quick={"seeds": (0,), "num_topics": 5})
