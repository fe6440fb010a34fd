"""The tables of the neural papers: clusters, classes and printed words of topic models.

The corpora, their splits and the protocol are those of ECRTM (*Wu et al. 2023*), as TopMost 1.0.2
computes them. Each system infers the proportions theta of training and test documents itself. The
largest topic of a test document is its cluster; a support vector machine learns the labels from
training proportions. Coherence is counted in the test documents. Published C_V is counted in
Wikipedia, and so it stands in no table here.

There are two further parts. The first compares rules that choose printed words, on training
documents only. The second scores held-out halves of documents, by the protocol of ETM (*Dieng, Ruiz
& Blei 2020*) and by ours.

Systems without their libraries are left out. ``studies.benchmarks.neural`` names the libraries.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import torch_lntm as lntm
from studies.benchmarks.neural import SYSTEMS, Fit, Task
from studies.benchmarks.topic_scores import (
    PRINTED,
    RULES,
    printed_words,
    purity_and_nmi,
    svc_accuracy,
    word_list_scores,
)
from studies.machine import Stopwatch
from studies.measure import Cells, Study, check_choices, check_filled, check_numbers, corpus_file
from studies.scores.completion import completion_of
from studies.tables import entry, mean_and_error, table_of, with_error
from torch_lntm.corpus import Corpus, WordHoldOut
from torch_lntm.errors import ConfigError, UnreliableEstimateWarning
from torch_lntm.evaluation.completion.result import ExactCompletion

OURS = "torch_lntm ctm, auto"
#: Words at random, beside the rules of printed words: the number of commonest words to draw from.
RANDOM = {"words at random": None, "words at random, of the 300 commonest": 300}
#: Rules of printed words in the main table.
SHOWN = ("probability", "FREX of 30")
#: Published purity and NMI at K = 50, by corpus and system (the table of Wu et al. 2023, rounded).
PUBLISHED: dict[str, dict[str, tuple[float, float | None]]] = {
    "agnews_ecrtm": {"LDA": (0.64, None), "ECRTM": (0.80, 0.37)},
    "yahoo_ecrtm": {"LDA": (0.29, None), "ECRTM": (0.55, 0.30)},
    "20ng_ecrtm": {"LDA": (0.37, None), "ECRTM": (0.56, 0.52)},
}
PUBLISHED_TOPICS = 50
#: Systems whose topics and theta predict words.
PREDICTING = (*(name for name in SYSTEMS if "torch_lntm" in name or "topica" in name), "ETM")
#: Scored documents of halves at the exact mean of theta.
EXACT_DOCS = 500


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpora: Names of corpora with labels and a split, or paths.
        num_topics: Numbers of topics.
        seeds: Seeds of the fits.
        systems: Systems to fit.
        word_seeds: Seeds of the fits that compare rules of printed words, on training documents.
        halves: Names of corpora with halves of their test documents, or paths.
        tolerance: Monte-Carlo standard error of exact scores of halves, nats per token.
    """

    corpora: tuple[str, ...] = ("agnews_ecrtm", "yahoo_ecrtm", "20ng_ecrtm")
    num_topics: tuple[int, ...] = (50, 100)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    systems: tuple[str, ...] = tuple(SYSTEMS)
    word_seeds: tuple[int, ...] = (7, 8, 9)
    halves: tuple[str, ...] = ("etm20ng",)
    tolerance: float = 0.002

    def __post_init__(self) -> None:
        """Check the settings."""
        whole = {"num_topics": 2, "seeds": 0, "word_seeds": 0}
        check_numbers(self, whole, positive=("tolerance",))
        check_choices(self, "systems", SYSTEMS)
        check_filled(self, "num_topics")


@dataclass(frozen=True)
class Result:
    """The result of the study.

    Attributes:
        settings: The settings.
        rows: One for each corpus, number of topics, seed and system.
        words: One for each corpus, number of topics and seed of the comparison of rules.
        halves: One for each corpus with halves, number of topics, seed and system.
        skipped: Skipped systems, and their missing libraries.
    """

    settings: Settings
    rows: list[dict[str, Any]]
    words: list[dict[str, Any]]
    halves: list[dict[str, Any]]
    skipped: dict[str, str]


def missing_library(system: str) -> str | None:
    """The first library of a system that is not installed."""
    return next((name for name in SYSTEMS[system][0] if find_spec(name) is None), None)


def run(settings: Settings, cells: Cells) -> Result:
    """Fit and score the systems, seed by seed.

    Raises:
        ConfigError: A corpus does not exist, or lacks its split, labels or halves.
    """
    torch.set_num_threads(1)
    lacking = {system: missing_library(system) for system in settings.systems}
    found = [system for system, library in lacking.items() if library is None]
    predicting = [system for system in found if system in PREDICTING]
    parts_of = cache(parts)

    with tempfile.TemporaryDirectory() as folder:
        kept = cells.folder or Path(folder)

        def compare(key: tuple[str, int, int, str]) -> dict[str, Any]:
            corpus, num_topics, seed, system = key
            train, test = parts_of(corpus)
            task = Task(train, num_topics, seed, kept)
            return _row(*key) | scores_of(SYSTEMS[system][1](task), task, test)

        def choose(key: tuple[str, str, int, int]) -> dict[str, Any]:
            _, corpus, num_topics, seed = key
            return _row(*key[1:], OURS) | compare_rules(corpus, num_topics, seed, kept)

        def complete(key: tuple[str, str, int, int, str]) -> dict[str, Any]:
            _, corpus, num_topics, seed, system = key
            return _row(*key[1:]) | halves_of(
                corpus, num_topics, seed, system, kept, settings.tolerance
            )

        few = settings.num_topics[:1]
        keys = product(settings.seeds, settings.num_topics, settings.corpora, found)
        rows = cells.each([(c, k, seed, s) for seed, k, c, s in keys], compare)
        words = cells.each(product(["words"], settings.corpora, few, settings.word_seeds), choose)
        scored = cells.each(
            product(["halves"], settings.halves, few, settings.seeds, predicting), complete
        )
    skipped = {name: library for name, library in lacking.items() if library is not None}
    return Result(settings, rows, words, [row for row in scored if "own_documents" in row], skipped)


def _row(corpus: str, num_topics: int, seed: int, system: str) -> dict[str, Any]:
    return {"corpus": Path(corpus).stem, "num_topics": num_topics, "seed": seed, "system": system}


def _divided(name: str) -> tuple[Path, Corpus, NDArray[np.str_]]:
    """The file of a corpus, its documents, and the part of each document."""
    path = corpus_file(name)
    file = path.with_name(f"{path.stem}.split.txt")
    if not file.exists():
        raise ConfigError(
            f"{file} does not exist; expected a line for each document, train or test"
        )
    corpus = lntm.read_corpus(path)
    part = np.array(file.read_text(encoding="utf-8").split())
    if len(part) != corpus.num_docs:
        raise ConfigError(f"{file} has {len(part)} lines; expected {corpus.num_docs}")
    return path, corpus, part


def parts(name: str) -> tuple[Corpus, Corpus]:
    """Training and test documents of a corpus, with labels."""
    path, corpus, part = _divided(name)
    if corpus.labels is None or corpus.vocabulary is None:
        raise ConfigError(f"{path} has no labels or no words; expected files .labels and .vocab")
    return corpus[np.flatnonzero(part == "train")], corpus[np.flatnonzero(part == "test")]


def scores_of(fit: Fit, task: Task, test: Corpus) -> dict[str, Any]:
    """All scores of a fit on labelled documents."""
    stopwatch = Stopwatch()
    with stopwatch:
        of_train, of_test = fit.proportions(task.train), fit.proportions(test)
    purity, nmi = purity_and_nmi(test.labels, of_test.argmax(1))
    rules = [rule for rule in SHOWN if fit.normalised or rule == "probability"]
    return {
        "purity": purity,
        "nmi": nmi,
        "svc": svc_accuracy(of_train, task.train.labels, of_test, test.labels),
        "clusters": len(np.unique(of_test.argmax(1))),
        "cpu_seconds": fit.cpu_seconds,
        "proportions_cpu_seconds": stopwatch.cpu_seconds,
        "words": {
            rule: word_list_scores(printed_words(fit.topics, task.train, rule), test)
            for rule in rules
        },
        "settings": dict(fit.settings),
    }


def compare_rules(corpus: str, num_topics: int, seed: int, folder: Path) -> dict[str, Any]:
    """Printed words of every rule, and words at random.

    Half of the training documents fit, and the other half is the reference. Coherence needs many
    documents: pairs of exclusive words are rare.
    """
    train, reference = parts(corpus)[0].split(test_fraction=0.5, seed=seed)
    fit = SYSTEMS[OURS][1](Task(train, num_topics, seed, folder))
    lists = {rule: printed_words(fit.topics, train, rule) for rule in RULES}
    rng = np.random.default_rng(seed)
    commonest = np.argsort(-np.asarray(train.word_totals))
    for name, number in RANDOM.items():
        lists[name] = np.stack(
            [rng.choice(commonest[:number], PRINTED, replace=False) for _ in range(num_topics)]
        )
    scores = {rule: word_list_scores(words, reference) for rule, words in lists.items()}
    return {"reference_docs": reference.num_docs, "words": scores}


# -------------------------------------------------------------------- halves


def halves(name: str) -> tuple[Corpus, WordHoldOut[Corpus]]:
    """Training documents of a corpus, and its test documents with their own halves.

    The files ``NAME.h1.npz`` and ``NAME.h2.npz`` beside the corpus hold the observed and the
    held-out counts of the test documents in order.
    """
    path, corpus, part = _divided(name)
    test = corpus[np.flatnonzero(part == "test")]
    first, second = (
        lntm.read_corpus(path.with_name(f"{path.stem}.{half}.npz")).to_scipy()
        for half in ("h1", "h2")
    )
    whole = test.to_scipy()
    if first.shape != whole.shape or abs(first + second - whole).sum():
        raise ConfigError(f"the halves beside {path} do not add up to its test documents")
    row = np.repeat(np.arange(whole.shape[0]), np.diff(whole.indptr))
    observed = np.asarray(first[row, whole.indices]).ravel().astype(np.int64)
    return corpus[np.flatnonzero(part == "train")], WordHoldOut(test, observed)


def halves_of(
    corpus: str, num_topics: int, seed: int, system: str, folder: Path, tolerance: float
) -> dict[str, Any]:
    """Perplexities of held-out halves.

    * By the system's own theta of the first half: nats per token averaged document by document, as
      ETM's code does, and over all tokens.
    * At the exact posterior mean of theta: the same of :data:`EXACT_DOCS` documents.
    """
    train, hold_out = halves(corpus)
    fit = SYSTEMS[system][1](Task(train, num_topics, seed, folder))
    theta = fit.proportions(hold_out.observed)
    own = _nats(theta, fit.topics, hold_out.held_out)
    tokens = np.asarray(hold_out.held_out.lengths, dtype=np.float64)
    chosen = np.sort(np.random.default_rng(0).permutation(len(tokens))[:EXACT_DOCS])
    some = _some(hold_out, chosen)
    stopwatch = Stopwatch()
    with stopwatch, warnings.catch_warnings():
        # The row holds the error of the simulation.
        warnings.simplefilter("ignore", UnreliableEstimateWarning)
        exact = completion_of(
            fit.prior,
            fit.topics,
            some,
            concentration=fit.concentration,
            cache_weight=None,
            tolerance=tolerance,
            seed=seed,
        )
    assert isinstance(exact, ExactCompletion)
    nats = exact.log_predictive.numpy()
    return {
        "own_documents": _by_document(own, tokens),
        "own_tokens": _by_token(own, tokens),
        "own_some": _by_token(own[chosen], tokens[chosen]),
        "exact_documents": _by_document(nats, tokens[chosen]),
        "exact_tokens": _by_token(nats, tokens[chosen]),
        "simulation_error": exact.simulation_error,
        "cpu_seconds": fit.cpu_seconds,
        "scoring_cpu_seconds": stopwatch.cpu_seconds,
    }


def _some(hold_out: WordHoldOut[Corpus], chosen: NDArray[np.int64]) -> WordHoldOut[Corpus]:
    """Some documents of a hold-out."""
    ends = hold_out.corpus.to_scipy().indptr
    entries = np.concatenate([np.arange(ends[d], ends[d + 1]) for d in chosen])
    return WordHoldOut(hold_out.corpus[chosen], hold_out.observed_counts[entries])


def _nats(
    theta: NDArray[np.floating], topics: NDArray[np.floating], held_out: Corpus
) -> NDArray[np.float64]:
    """``(num_docs,)`` log-probability of each document's held-out tokens under theta."""
    counts = held_out.to_scipy().tocsr()
    found = np.zeros(counts.shape[0])
    for d in range(counts.shape[0]):
        part = slice(counts.indptr[d], counts.indptr[d + 1])
        found[d] = counts.data[part] @ np.log(theta[d] @ topics[:, counts.indices[part]])
    return found


def _by_document(nats: NDArray[np.float64], tokens: NDArray[np.float64]) -> float:
    """Perplexity: exp of minus the mean over documents of a document's nats per token."""
    return math.exp(-float((nats / tokens).mean()))


def _by_token(nats: NDArray[np.float64], tokens: NDArray[np.float64]) -> float:
    """Perplexity: exp of minus the nats per token of all documents together."""
    return math.exp(-float(nats.sum() / tokens.sum()))


# -------------------------------------------------------------------- tables


def tables(result: Result) -> str:
    """A table for each corpus and number of topics, the rules of words, and the halves."""
    text = []
    for corpus, num_topics in product(
        map(_stem, result.settings.corpora), result.settings.num_topics
    ):
        rows = [r for r in result.rows if (r["corpus"], r["num_topics"]) == (corpus, num_topics)]
        if rows:
            text.append(f"## {corpus}, K = {num_topics}\n\n{_table(rows, corpus, num_topics)}")
    if result.words:
        text.append(f"## Rules of printed words\n\n{_rules(result.words)}")
    if result.halves:
        text.append(f"## Held-out halves\n\n{_halves(result.halves)}")
    text += [f"skipped: {name} ({lib} is not installed)" for name, lib in result.skipped.items()]
    text.append(
        "Means over seeds (s.e. over seeds). TD, NPMI and C_V: diversity, and coherence in the\n"
        "test documents, of 15 printed words: the most probable, and by FREX among the 30 most\n"
        "probable. CPU s: the fit, and proportions of all documents."
    )
    return "\n\n".join(text)


def _stem(corpus: str) -> str:
    return Path(corpus).stem


def _by_system(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    of: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        of.setdefault(row["system"], []).append(row)
    return of


def _table(rows: Sequence[dict[str, Any]], corpus: str, num_topics: int) -> str:
    lines = []
    for system, found in _by_system(rows).items():
        line = {"system": system, "seeds": str(len(found))}
        for name, title in {"purity": "purity", "nmi": "NMI", "svc": "SVC"}.items():
            line[title] = with_error([row[name] for row in found], 3)
        for rule, prefix in zip(SHOWN, ("", "FREX "), strict=True):
            of_rule = [row["words"][rule] for row in found if rule in row["words"]]
            for name, title in {"diversity": "TD", "npmi": "NPMI", "c_v": "C_V"}.items():
                line[prefix + title] = with_error([scores[name] for scores in of_rule], 3)
        seconds = [row["cpu_seconds"] + row["proportions_cpu_seconds"] for row in found]
        line["CPU s"] = f"{np.mean(seconds):.0f}"
        lines.append(line)
    if num_topics == PUBLISHED_TOPICS:
        for system, (purity, nmi) in PUBLISHED.get(corpus, {}).items():
            figures = {"purity": f"{purity:.2f}", "NMI": "" if nmi is None else f"{nmi:.2f}"}
            lines.append(dict.fromkeys(lines[0], "") | {"system": f"{system}, published"} | figures)
    return table_of(lines)


def _rules(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for corpus in dict.fromkeys(row["corpus"] for row in rows):
        found = [row["words"] for row in rows if row["corpus"] == corpus]
        for rule in (*RULES, *RANDOM):
            line = {"corpus": corpus, "rule": rule}
            for name, title in {"diversity": "TD", "npmi": "NPMI", "c_v": "C_V"}.items():
                line[title] = with_error([scores[rule][name] for scores in found], 3)
            lines.append(line)
    return table_of(lines)


def _halves(rows: Sequence[dict[str, Any]]) -> str:
    titles = {
        "own_documents": "own theta, mean of documents (ETM's)",
        "own_tokens": "own theta, tokens",
        "own_some": "own theta, tokens, 500 documents",
        "exact_tokens": "exact theta, tokens, 500 documents",
    }
    lines = []
    for system, found in _by_system(rows).items():
        line = {"system": system, "seeds": str(len(found))}
        for name, title in titles.items():
            line[title] = entry(*mean_and_error([row[name] for row in found]), 1)
        line["CPU s"] = f"{np.mean([row['cpu_seconds'] for row in found]):.0f}"
        lines.append(line)
    return table_of(lines)


STUDY = Study(
    Settings,
    run,
    tables,
    quick={
        "corpora": ("agnews_ecrtm",),
        "num_topics": (10,),
        "seeds": (0,),
        "systems": (OURS,),
        "word_seeds": (),
        "halves": (),
    },
    selects=("corpora", "num_topics", "seeds", "systems", "word_seeds", "halves"),
)
