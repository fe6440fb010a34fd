"""Words that move with time: our models, models without time, and other dynamic topic models.

Systems of the first part fit 85 % of the documents, and score half of the words of some held-out
documents of all periods. Systems of the second part fit the documents of all periods up to one, and
score documents of the next period. The observed half of a document's words predicts the other half.
One evaluator scores all systems, with theta at its mode given the observed words, under the topics
of the document's period. For a period after the last, a system with groups takes its last group.

The third part simulates corpora (``moving_words.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import torch_lntm as lntm
from studies.benchmarks.moving_words import PERIOD, recovered
from studies.machine import Stopwatch
from studies.measure import Cells, Study, check_choices, check_numbers, corpus_file
from studies.scores.completion import completion_of
from studies.tables import mean_and_error, table_of
from torch_lntm.corpus import WordHoldOut
from torch_lntm.evaluation import document_completion
from torch_lntm.models import DynamicTopics, Periods

#: Periods of the corpora, and the column behind a smooth prevalence.
PERIODS = {"nips12": "~ rw(year)", "poliblog5k": "~ rw(day, width=7)"}
#: Degrees of freedom of the smooth prevalence.
SMOOTH = f"~ bs({PERIOD}, df=5, extrapolation='clip')"
CTM, WALK = "ctm", "words by random walk"
#: Variance of tomotopy's documents around their period, its default.
ETA_VARIANCE = 0.1


@dataclass(frozen=True)
class Task:
    """One fit.

    Attributes:
        train: Training documents, with the number of their period in the column ``period``.
        periods: Number of periods in the training documents.
        num_topics: Number of topics.
        seed: Seed of the fit.
        sweeps: Sweeps of tomotopy's DTModel.
    """

    train: lntm.Corpus
    periods: int
    num_topics: int
    seed: int
    sweeps: int


#: Log probability of each held-out document, for a hold-out and the period of its documents.
Scorer = Callable[[WordHoldOut[lntm.Corpus], int], Any]


@dataclass(frozen=True)
class Fit:
    """A fitted system.

    Attributes:
        score: Function that scores a hold-out whose documents are all of one period.
        cpu_seconds: CPU seconds of the fit.
    """

    score: Scorer
    cpu_seconds: float


def ours(prevalence: str = "~ 1", content: str | None = None) -> Callable[[Task], Fit]:
    """A fit of a structural model of this package.

    Args:
        prevalence: Formula of the prior mean.
        content: Groups or periods of the words.
    """

    def fit(task: Task) -> Fit:
        stopwatch = Stopwatch()
        with stopwatch:
            model = lntm.models.stm(
                task.num_topics, task.train, prevalence, content, seed=task.seed
            )
            guide = lntm.guides.TaylorGuide(model)
            engine = lntm.inference.VariationalEM(model, guide, progress=False, seed=task.seed)
            engine.fit(task.train)

        def score(hold_out: WordHoldOut[lntm.Corpus], period: int) -> Any:
            topics: Any = model.topics
            if isinstance(topics, DynamicTopics):
                topics = topics.at(period)
            elif topics.num_levels > 1:
                topics = topics.at(group_name(min(period, task.periods - 1)))
            of_period = model.with_parts(topics=topics)
            return document_completion(of_period, hold_out, theta="mode")

        return Fit(score, stopwatch.cpu_seconds)

    return fit


def topica_dtm(task: Task) -> Fit:
    """Topica's DTM at its defaults, a port of the algorithm of Blei & Lafferty's program."""
    import topica

    model = topica.DTM(task.num_topics, seed=task.seed)
    texts, times = _texts(task.train), _times(task.train)
    stopwatch = Stopwatch()
    with stopwatch:
        model.fit(texts, times, progress=None)
    columns = _columns(task.train, model.vocabulary)

    def score(hold_out: WordHoldOut[lntm.Corpus], period: int) -> Any:
        known = np.asarray(model.topic_word(min(period, task.periods - 1)))
        alpha = np.full(task.num_topics, 0.01)
        return _completion(alpha, known, columns, hold_out)

    return Fit(score, stopwatch.cpu_seconds)


def tomotopy_dtm(task: Task) -> Fit:
    """DTModel of tomotopy, with its default variances."""
    import tomotopy

    model = tomotopy.DTModel(
        k=task.num_topics, t=task.periods, eta_var=ETA_VARIANCE, seed=task.seed
    )
    for text, time in zip(_texts(task.train), _times(task.train), strict=True):
        model.add_doc(text, timepoint=time)
    stopwatch = Stopwatch()
    with stopwatch:
        model.train(task.sweeps, workers=1)
    columns = _columns(task.train, list(model.used_vocabs))

    def score(hold_out: WordHoldOut[lntm.Corpus], period: int) -> Any:
        last = min(period, task.periods - 1)
        topics = range(task.num_topics)
        known = np.stack([model.get_topic_word_dist(k, timepoint=last) for k in topics])
        prior = (np.asarray(model.get_alpha(last)), ETA_VARIANCE * np.eye(task.num_topics))
        return _completion(prior, known, columns, hold_out)

    return Fit(score, stopwatch.cpu_seconds)


SYSTEMS: dict[str, Callable[[Task], Fit]] = {
    CTM: ours(),
    "prevalence by spline": ours(SMOOTH),
    "words by groups": ours(content="group"),
    WALK: ours(content=f"~ rw({PERIOD})"),
    "walk and prevalence": ours(SMOOTH, f"~ rw({PERIOD})"),
    "topica DTM": topica_dtm,
    "tomotopy DTModel": tomotopy_dtm,
}


def _texts(corpus: lntm.Corpus) -> list[list[str]]:
    """Documents as lists of words."""
    counts, words = corpus.to_scipy(), np.array(corpus.vocabulary)
    ends = zip(counts.indptr[:-1], counts.indptr[1:], strict=True)
    return [
        np.repeat(words[counts.indices[a:b]], counts.data[a:b].astype(int)).tolist()
        for a, b in ends
    ]


def _times(corpus: lntm.Corpus) -> list[int]:
    """Number of each document's period."""
    return [int(period) for period in corpus.metadata[PERIOD]]


def _columns(corpus: lntm.Corpus, words: Sequence[str]) -> NDArray[np.int64]:
    """Positions of some words in the vocabulary of a corpus."""
    position = {word: v for v, word in enumerate(corpus.vocabulary or ())}
    return np.array([position[word] for word in words])


def _completion(
    prior: Any,
    known: NDArray[np.floating],
    columns: NDArray[np.int64],
    hold_out: WordHoldOut[lntm.Corpus],
) -> Any:
    """Scores of another program's topics. Words unknown to the program get its least probability.

    Args:
        prior: Prior in the form of :func:`completion_of`.
        known: ``(num_topics, num_known)`` probabilities of the known words.
        columns: ``(num_known,)`` positions of the known words.
        hold_out: The documents.
    """
    topics = np.repeat(known.min(1, keepdims=True), hold_out.corpus.num_words, 1)
    topics[:, columns] = known
    topics = np.maximum(topics, 1e-12)
    return completion_of(prior, topics / topics.sum(1, keepdims=True), hold_out, "mode")


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpora: Names of corpora, with their columns in the file NAME.columns.csv beside each.
        num_topics: Number of topics.
        seeds: Seeds, each of a split and its fits.
        systems: Systems to fit.
        test_docs: Scored documents of a cell.
        next_periods: Periods to predict, the last ones.
        sweeps: Sweeps of tomotopy's DTModel.
        simulated: Number of simulated corpora.
        short: Number of simulated corpora of 1,500 documents of 60 words and several topics.
    """

    corpora: tuple[str, ...] = tuple(PERIODS)
    num_topics: int = 20
    seeds: tuple[int, ...] = (0, 1, 2)
    systems: tuple[str, ...] = tuple(SYSTEMS)
    test_docs: int = 250
    next_periods: int = 3
    sweeps: int = 200
    simulated: int = 5
    short: int = 0

    def __post_init__(self) -> None:
        """Check the settings."""
        whole = {"num_topics": 2, "seeds": 0, "test_docs": 2, "next_periods": 0}
        check_numbers(self, whole | {"sweeps": 1, "simulated": 0, "short": 0})
        check_choices(self, "systems", tuple(SYSTEMS))
        check_choices(self, "corpora", tuple(PERIODS))


@dataclass(frozen=True)
class Result:
    """The result of the study.

    Attributes:
        settings: The settings.
        held_out: Scores of held-out documents, one for each corpus, seed and system.
        following: Scores of the next period, one for each corpus, period and system.
        simulated: Coverage and ranking, one for each simulated corpus.
        short: The same of short documents.
    """

    settings: Settings
    held_out: list[dict[str, Any]]
    following: list[dict[str, Any]]
    simulated: list[dict[str, Any]]
    short: list[dict[str, Any]]


def run(settings: Settings, cells: Cells) -> Result:
    """Fit and score every system. Systems without their library are left out."""
    torch.set_num_threads(1)
    systems = [name for name in settings.systems if _is_installed(name)]

    def held_out(key: tuple[str, str, int, str]) -> dict[str, Any]:
        _, name, seed, system = key
        corpus = dated(name)
        order = np.random.default_rng(seed).permutation(corpus.num_docs)
        size = round(0.15 * corpus.num_docs)
        train, test = order[size:], order[:size][: settings.test_docs]
        return measured(settings, corpus, np.sort(train), np.sort(test), system, seed)

    def following(key: tuple[str, str, int, str]) -> dict[str, Any]:
        _, name, back, system = key
        corpus = dated(name)
        times = np.array(_times(corpus))
        target = times.max() + 1 - back
        test = np.flatnonzero(times == target)[: settings.test_docs]
        return measured(settings, corpus, np.flatnonzero(times < target), test, system, back)

    return Result(
        settings,
        cells.each(product(["held out"], settings.corpora, settings.seeds, systems), held_out),
        cells.each(
            product(["next"], settings.corpora, range(1, settings.next_periods + 1), systems),
            following,
        ),
        cells.each(
            product(["simulated"], range(settings.simulated)), lambda key: recovered(key[1])
        ),
        cells.each(
            product(["short"], range(settings.short)),
            lambda key: recovered(key[1], docs=150, length=60.0, spread=1.5),
        ),
    )


def _is_installed(system: str) -> bool:
    """Whether the library of a system is installed."""
    library = system.split()[0]
    return library not in ("topica", "tomotopy") or find_spec(library) is not None


def group_name(period: int) -> str:
    """Name of a period as an unordered group."""
    return f"p{period:03}"


def dated(name: str) -> lntm.Corpus:
    """A corpus with the number of each document's period, and the period's name as a group."""
    file = corpus_file(name)
    corpus = lntm.read_corpus(file, metadata=file.with_suffix(".columns.csv"))
    periods = Periods.of(corpus, PERIODS[name]).encode(corpus).encodings["content"]
    numbers = [int(period) for period in periods]
    return corpus.with_metadata({PERIOD: numbers, "group": [group_name(t) for t in numbers]})


def measured(
    settings: Settings,
    corpus: lntm.Corpus,
    train: NDArray[np.int64],
    test: NDArray[np.int64],
    system: str,
    seed: int,
) -> dict[str, Any]:
    """A fit of some documents, and its scores of other documents."""
    times = np.array(_times(corpus))
    task = Task(
        corpus[train], int(times[train].max()) + 1, settings.num_topics, seed, settings.sweeps
    )
    fit = SYSTEMS[system](task)
    nats, tokens = [], []
    for period in np.unique(times[test]).tolist():
        scored = corpus[test[times[test] == period]]
        result = fit.score(scored.hold_out_words(0.5, seed=seed), period)
        nats += [round(x, 4) for x in result.log_predictive.tolist()]
        tokens += result.held_out_tokens.tolist()
    return {"cpu_seconds": fit.cpu_seconds, "log_predictive": nats, "held_out_tokens": tokens}


# -------------------------------------------------------------------- tables


def tables(result: Result) -> str:
    """Scores of held-out documents, of the next period, and of simulated corpora."""
    settings = result.settings
    systems = [name for name in settings.systems if _is_installed(name)]
    parts = []
    for title, rows, runs in (
        ("held-out documents", result.held_out, len(settings.seeds)),
        ("next period", result.following, settings.next_periods),
    ):
        keys = product(settings.corpora, range(runs), systems)
        of: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for (corpus, _, system), row in zip(keys, rows, strict=True):
            of.setdefault((corpus, system), []).append(row)
        lines = [_line(title, *key, found, of) for key, found in of.items()]
        parts += [table_of(lines)] if lines else []
    for rows in (result.simulated, result.short):
        if rows:
            parts.append(table_of([_simulated_line(rows, name) for name in rows[0]]))
    parts.append(
        "Gain: nats per token over the first system, paired by document; in parentheses the "
        "standard errors over\ndocuments and over fits. CPU seconds: of a fit."
    )
    return "\n\n".join(parts)


def _line(
    title: str,
    corpus: str,
    system: str,
    rows: Sequence[dict[str, Any]],
    of: dict[tuple[str, str], list[dict[str, Any]]],
) -> dict[str, str]:
    """Perplexity, gain over the first system, and seconds of a system."""
    nats, tokens = (_joined(rows, name) for name in ("log_predictive", "held_out_tokens"))
    line = {
        "part": title,
        "corpus": corpus,
        "system": system,
        "perplexity": f"{math.exp(-nats.sum() / tokens.sum()):.1f}",
        "gain": "",
        "CPU s": f"{np.mean([row['cpu_seconds'] for row in rows]):.1f}",
    }
    base = next(found for (name, _), found in of.items() if name == corpus)
    if base is not rows:
        gains = nats - _joined(base, "log_predictive")
        mean = gains.sum() / tokens.sum()
        error = math.sqrt(float(((gains - mean * tokens) ** 2).sum())) / tokens.sum()
        each = [_gain(row, other) for row, other in zip(rows, base, strict=True)]
        line["gain"] = f"{mean:+.4f} ({error:.4f}; {mean_and_error(each)[1]:.4f})"
    return line


def _joined(rows: Iterable[dict[str, Any]], name: str) -> NDArray[np.float64]:
    """A number for every document of several fits."""
    return np.concatenate([np.array(row[name], np.float64) for row in rows])


def _gain(row: dict[str, Any], base: dict[str, Any]) -> float:
    """Gain of a fit in nats per token."""
    gain = np.sum(row["log_predictive"]) - np.sum(base["log_predictive"])
    return float(gain / np.sum(row["held_out_tokens"]))


def _simulated_line(rows: Sequence[dict[str, Any]], tokens: str) -> dict[str, str]:
    """Means over simulated corpora."""
    names = {"moving": "moving words in bands", "still": "still words in bands"}
    names |= {"auc": "AUC of changes", "auc_scale": "AUC of scales"}
    found = {name: mean_and_error([row[tokens][name] for row in rows]) for name in names}
    return {
        "topics of the tokens": tokens,
        **{title: f"{found[n][0]:.3f} ({found[n][1]:.3f})" for n, title in names.items()},
    }


STUDY = Study(
    Settings,
    run,
    tables,
    quick={
        "corpora": ("poliblog5k",),
        "seeds": (0,),
        "num_topics": 5,
        "systems": (CTM, WALK),
        "next_periods": 1,
        "simulated": 1,
    },
    selects=("corpora", "seeds", "systems"),
)
