"""Held-out words after each number of EM iterations of variational EM, and where rules would stop.

A fit makes ``max_iterations`` iterations. At some of them the study scores the held-out words as in
the study ``quality``, with theta integrated out. Every rule is then read from the same fit: the
objectives say after which iteration it stops, and scores between two scored iterations are
interpolated. The splits are for tuning: no table has them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from studies.benchmarks.frozen import MAX_DOCS, MAX_TEST_DOCS, Frozen, frozen
from studies.measure import Cells, Study, check_choices, check_filled, check_numbers
from studies.tables import mean_and_error, table_of
from torch_lntm.errors import UnreliableEstimateWarning
from torch_lntm.evaluation import CompletionResult, document_completion, paired_difference
from torch_lntm.models import TopicModel
from torch_lntm.recipes import Recipe

#: Fits, by model and posterior.
RECIPES = {
    "ctm, taylor": Recipe("ctm", "taylor"),
    "ctm, laplace": Recipe("ctm", "laplace"),
    "iftm, factor": Recipe("iftm", "factor"),
    "lda, vb": Recipe("lda", "vb"),
}
#: E-steps of EM after which the words are scored, as far as the fit has them.
SCORED = (1, 2, 3, 5, 8, 12, 20, 35, 60, 100)
#: Compared tolerances: gains of an iteration in nats a token, and relative changes of the
#: objective.
GAINS = (0.01, 0.005, 0.003, 0.002, 0.001, 0.0005, 0.0002)
CHANGES = (3e-3, 1e-3)


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpora: Names of corpora in the folder of data, or paths.
        recipes: Fits, by model and posterior.
        num_topics: Topics.
        seeds: Seeds of splits, hold-outs and fits; from 7 on, no table has them.
        max_iterations: EM iterations of a fit.
        max_docs: Largest number of documents; a larger corpus is sampled.
        max_test_docs: Largest number of scored documents.
        tolerance: Monte-Carlo standard error of the exact score, nats per token.
    """

    corpora: tuple[str, ...] = ("m10", "cora", "ap", "reuters21578", "imdb100k")
    recipes: tuple[str, ...] = ("ctm, taylor",)
    num_topics: tuple[int, ...] = (50,)
    seeds: tuple[int, ...] = (7, 8)
    max_iterations: int = 60
    max_docs: int = MAX_DOCS
    max_test_docs: int = MAX_TEST_DOCS
    tolerance: float = 0.003

    def __post_init__(self) -> None:
        """Check the settings."""
        whole = {"num_topics": 2, "seeds": 7, "max_iterations": 2}
        check_numbers(self, {**whole, "max_docs": 2, "max_test_docs": 1}, positive=("tolerance",))
        check_choices(self, "recipes", RECIPES)
        check_filled(self, "corpora", "num_topics", "seeds")


@dataclass(frozen=True)
class Trace:
    """One fit.

    Attributes:
        corpus: Name of the corpus.
        recipe: Name of the recipe.
        num_topics: Topics.
        seed: Seed.
        tokens_per_word: Training tokens for each word of the vocabulary.
        objective: Objective after each E-step of EM, nats per token.
        cpu_seconds: CPU seconds of the fit until each E-step of EM.
        scored: Numbers of the scored E-steps.
        nats: Score of a held-out token at each, nats.
        error: Standard error of the gain of each over the first, nats, paired by document.
    """

    corpus: str
    recipe: str
    num_topics: int
    seed: int
    tokens_per_word: float
    objective: list[float]
    cpu_seconds: list[float]
    scored: list[int]
    nats: list[float]
    error: list[float]


def run(settings: Settings, cells: Cells) -> list[Trace]:
    """Make every fit, and score its iterations.

    Raises:
        ConfigError: A corpus does not exist.
    """
    torch.set_num_threads(1)
    keys = [
        (corpus, recipe, num_topics, seed)
        for seed in settings.seeds
        for corpus in settings.corpora
        for recipe in settings.recipes
        for num_topics in settings.num_topics
    ]
    found = cells.each(keys, partial(fit_and_score, settings))
    return [Trace(*key, **cell) for key, cell in zip(keys, found, strict=True)]


def fit_and_score(settings: Settings, key: tuple[str, str, int, int]) -> dict[str, Any]:
    """The numbers of one fit; see :class:`Trace`."""
    corpus, recipe, num_topics, seed = key
    split = frozen(corpus, seed, settings.max_docs, settings.max_test_docs, tuning=True)
    train = split.train
    chosen = RECIPES[recipe].for_corpus(train, num_topics)
    options = {
        "num_topics": num_topics,
        "max_iterations": settings.max_iterations - 1,
        "tolerance": 0.0,
        "progress": False,
    }
    model, _, engine = chosen.make(train.num_words, seed=seed, options=options)
    kept: dict[int, dict[str, torch.Tensor]] = {}
    seconds: list[float] = []
    spent = 0.0

    def keep(record: dict[str, Any]) -> None:
        nonlocal spent
        began = time.process_time()
        if record["phase"] == "em":
            seconds.append(began - start - spent)
            if record["iteration"] in SCORED:
                state = model.state_dict()
                kept[record["iteration"]] = {name: value.clone() for name, value in state.items()}
        spent += time.process_time() - began

    start = time.process_time()
    result = engine.fit(train, callback=keep)
    scores = [score(model, state, split, settings.tolerance, seed) for state in kept.values()]
    gains = [paired_difference(at, scores[0]) for at in scores]
    return {
        "tokens_per_word": train.num_tokens / train.num_words,
        "objective": [r["objective"] for r in result.history if r["phase"] == "em"],
        "cpu_seconds": [round(value, 2) for value in seconds],
        "scored": list(kept),
        "nats": [at.nats_per_token for at in scores],
        "error": [error for _, error in gains],
    }


def score(
    model: TopicModel, state: dict[str, torch.Tensor], split: Frozen, tolerance: float, seed: int
) -> CompletionResult:
    """Held-out score of a model with some parameters, theta integrated out."""
    model.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnreliableEstimateWarning)
        return document_completion(model, split.hold_out, tolerance=tolerance, seed=seed)


# --------------------------------------------------------------------------------------- rules


def stops_by_gain(objective: Sequence[float], most: float) -> int:
    """Number of E-steps until an iteration changes the objective by at most ``most``."""
    return _first(objective, lambda before, last: abs(last - before) <= most)


def stops_by_change(objective: Sequence[float], most: float) -> int:
    """Number of E-steps until the relative change of the objective is at most ``most``."""
    return _first(objective, lambda before, last: abs(last - before) <= most * abs(last))


def _first(objective: Sequence[float], stops: Callable[[float, float], bool]) -> int:
    for number in range(1, len(objective)):
        if stops(objective[number - 1], objective[number]):
            return number + 1
    return len(objective)


RULES: dict[str, Callable[[Sequence[float]], int]] = {
    **{f"change {most:g}": partial(stops_by_change, most=most) for most in CHANGES},
    **{f"gain {most:g}": partial(stops_by_gain, most=most) for most in GAINS},
    "all iterations": len,
}


def tables(traces: list[Trace]) -> str:
    """For each corpus, recipe and number of topics: where each rule stops, scores and seconds."""
    parts = []
    groups = dict.fromkeys((t.corpus, t.recipe, t.num_topics) for t in traces)
    for corpus, recipe, num_topics in groups:
        some = [
            t for t in traces if (t.corpus, t.recipe, t.num_topics) == (corpus, recipe, num_topics)
        ]
        first = next(iter(RULES))
        lines = [_line(rule, first, some) for rule in RULES]
        density, _ = mean_and_error([t.tokens_per_word for t in some])
        parts.append(
            f"## {Path(corpus).stem}, {recipe}, K = {num_topics}, {density:.0f} tokens a word\n\n"
            f"{table_of(lines)}"
        )
    parts.append(
        "E-steps: E-steps of EM before the rule stops; gain: nats of a held-out token over the\n"
        "first row, on each split; next: objective that the next iteration would gain."
    )
    return "\n\n".join(parts)


def _line(rule: str, first: str, traces: list[Trace]) -> dict[str, str]:
    stops = [RULES[rule](trace.objective) for trace in traces]
    base = [RULES[first](trace.objective) for trace in traces]
    gains = [
        nats_at(trace, stop) - nats_at(trace, start)
        for trace, stop, start in zip(traces, stops, base, strict=True)
    ]
    following = [
        f"{trace.objective[stop] - trace.objective[stop - 1]:.4f}"
        for trace, stop in zip(traces, stops, strict=True)
        if stop < len(trace.objective)
    ]
    seconds = [trace.cpu_seconds[stop - 1] for trace, stop in zip(traces, stops, strict=True)]
    return {
        "rule": rule,
        "E-steps": ", ".join(map(str, stops)),
        "gain": ", ".join(f"{gain:+.4f}" for gain in gains),
        "next": ", ".join(following) or "–",
        "CPU s": f"{sum(seconds) / len(seconds):.1f}",
    }


def nats_at(trace: Trace, number: int) -> float:
    """Score after a number of E-steps, linear between the scored ones."""
    return float(np.interp(number, trace.scored, trace.nats))


STUDY = Study(
    Settings,
    run,
    tables,
    quick={
        "corpora": ("m10",),
        "num_topics": (5,),
        "seeds": (7,),
        "max_iterations": 8,
        "max_docs": 300,
        "max_test_docs": 30,
    },
    selects=("corpora", "recipes", "num_topics", "seeds"),
)
