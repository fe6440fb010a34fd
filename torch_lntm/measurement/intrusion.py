"""Intrusion tasks, by which people judge topics, and the precision of their answers."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.files.reading import read_bytes, read_errors
from torch_lntm.files.writing import atomic_write
from torch_lntm.frames import to_csv
from torch_lntm.measurement.measured import Measurement
from torch_lntm.models import TopicModel
from torch_lntm.models.names import find_topics
from torch_lntm.reports.representatives import excerpts

Kind = Literal["words", "word sets", "documents"]
#: Words of a topic beside an intruder; words of a set, and most probable words that sets are drawn
#: from; topics of a document beside an intruder, and words shown of each.
WORDS, SET_WORDS, TOP, TOPICS, TOPIC_WORDS = 5, 4, 20, 3, 8
LETTERS = "abcdef"


class Task(NamedTuple):
    """A task: its topic, options in the order shown, the position of the intruder, and a text."""

    topic: int
    options: tuple[str, ...]
    intruder: int
    document: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Intrusion:
    """Intrusion tasks for raters, and their answers.

    Attributes:
        kind: What is shown.
        tasks: The tasks by their identifiers, in the order of the file.
        topic_names: Names of the topics.
    """

    kind: Kind
    tasks: dict[str, Task]
    topic_names: tuple[str, ...]

    def frame(self) -> pd.DataFrame:
        """What a rater sees: ``task``, ``document`` if one is shown, the options, empty answers."""
        rows = []
        for name, task in self.tasks.items():
            shown = {"document": task.document} if self.kind == "documents" else {}
            rows.append({"task": name, **shown, **dict(zip(LETTERS, task.options, strict=False))})
        return pd.DataFrame(rows).assign(answer="", rater="")

    def key(self) -> pd.DataFrame:
        """The answers, which raters must not see: ``task``, ``topic``, ``name``, ``answer``."""
        rows = [
            (n, t.topic, self.topic_names[t.topic], LETTERS[t.intruder])
            for n, t in self.tasks.items()
        ]
        return pd.DataFrame(rows, columns=["task", "topic", "name", "answer"])

    def save(self, path: str | Path) -> Path:
        """Write the raters' file, a CSV without the answers.

        Args:
            path: The file. Each rater gets a copy, and fills in the column ``answer`` by a letter.

        Raises:
            FileError: The file cannot be written.
        """
        with atomic_write(Path(path)) as file:
            file.write(to_csv(self.frame()).encode())
        return Path(path)

    def read_ratings(self, *ratings: Any, level: float = 0.95) -> pd.DataFrame:
        """Model precision: the share of answers that find the intruder, with intervals.

        The intervals are for other tasks and other raters of the same kinds. Answers to a task are
        alike, and so are those of a rater, so variances are clustered in both ways (*Cameron,
        Gelbach & Miller 2011*), and give the size of Wilson's interval. A single rater says nothing
        about others.

        Args:
            *ratings: Files, or data frames, with the columns ``task`` and ``answer`` (a letter, or
                the text of an option; empty answers are skipped), and perhaps ``rater``, which
                defaults to the name of the file.
            level: Probability of the intervals.

        Returns:
            A row for all topics, whose ``topic`` is ``all``, and one for each topic: ``topic``,
            ``name``, ``precision``, ``lower``, ``upper``, ``answers``, ``tasks``, ``raters`` and
            ``chance``, the precision of guesses.

        Raises:
            ConfigError: A column is missing, a task or an answer is unknown, a rater answers a task
                twice, or there are no answers.
        """
        if not 0 < level < 1:
            raise ConfigError(f"level is {level}; expected a probability between 0 and 1")
        found: dict[tuple[str, str], tuple[int, bool]] = {}
        for number, given in enumerate(ratings):
            for rater, name, answer in _rows(given, str(number)):
                task = self.tasks.get(name)
                options = [*LETTERS[: len(task.options)], *task.options] if task else []
                if task is None:
                    why = "is none of these tasks; make them by the same book, kind and seed"
                elif answer not in options:
                    why = f"is answered by {answer!r:.40}; expected a letter or text of an option"
                elif (rater, name) in found:
                    why = "is answered twice"
                else:
                    right = options.index(answer) % len(task.options) == task.intruder
                    found[rater, name] = task.topic, right
                    continue
                raise ConfigError(f"task {name!r:.40} of rater {rater!r:.40} {why}")
        if not found:
            raise ConfigError("there are no answers")
        table = pd.DataFrame([*found], columns=["rater", "task"])
        table[["topic", "right"]] = [*found.values()]
        chance = 1 / len(next(iter(self.tasks.values())).options)
        parts: list[Any] = [("all", "all", table)]
        parts += [(k, self.topic_names[k], part) for k, part in table.groupby("topic")]
        rows = [{"topic": k, "name": name, **_precision(x, level)} for k, name, x in parts]
        return pd.DataFrame(rows).assign(chance=chance)

    def __repr__(self) -> str:
        topics = len({task.topic for task in self.tasks.values()})
        return f"Intrusion({len(self.tasks)} tasks of {self.kind}, {topics} topics)"


def intrusion(
    measured: Measurement | TopicModel,
    hash: str,
    kind: Kind,
    topics: Sequence[int | str] | None,
    per_topic: int,
    texts: Iterable[str] | None,
    seed: int,
) -> Intrusion:
    """Make tasks; see :meth:`Codebook.intrusion`."""
    if kind not in get_args(Kind):
        raise ConfigError(f"kind {kind!r}; expected one of {', '.join(get_args(Kind))}")
    require_whole(1, per_topic=per_topic)
    require_whole(0, seed=seed)
    model = measured.model if isinstance(measured, Measurement) else measured
    names, least = model.topic_names, TOPICS + 1 if kind == "documents" else 2
    if model.num_topics < least or model.num_words < 2 * TOP:
        raise ConfigError(
            f"{model.num_topics} topics and {model.num_words} words; tasks of {kind} need at least "
            f"{least} topics, and {2 * TOP} words"
        )
    rng = np.random.default_rng(seed)
    found = find_topics(names, range(len(names)) if topics is None else topics)
    if kind == "documents":
        if not isinstance(measured, Measurement):
            raise ConfigError("tasks of documents need documents; give them as corpus")
        made = _of_documents(measured, found, per_topic, texts, rng)
    else:
        probs = model.topics.mean_probs.detach().double().cpu().numpy()
        make = {"words": _of_words, "word sets": _of_sets}[kind]
        made = [
            (k, *task) for k in found for task in make(probs, k, per_topic, rng, model.words_at)
        ]
    tasks: dict[str, Task] = {}
    for i in rng.permutation(len(made)).tolist():
        topic, shown, intruder, document = made[i]
        order = rng.permutation(len(shown) + 1)
        options = tuple([*shown, intruder][j] for j in order)
        text = "\n".join([hash, kind, document, *options])
        name = hashlib.sha256(text.encode()).hexdigest()[:10]
        tasks[name] = Task(topic, options, int(order.argmax()), document)
    return Intrusion(kind, tasks, names)


Words = Callable[[Sequence[int]], tuple[str, ...]]
Shown = list[tuple[list[str], str, str]]


def _of_words(
    probs: NDArray[Any], k: int, number: int, rng: np.random.Generator, words: Words
) -> Shown:
    """The most probable words of a topic, and a word of another topic that is improbable here."""
    top = np.argsort(-probs[k], kind="stable")
    others = np.unique(np.argsort(-np.delete(probs, k, 0), 1, "stable")[:, : 2 * WORDS])
    rank = np.argsort(top, kind="stable")  # of each word in this topic
    pool = others[rank[others] >= min(len(top) // 2, rank[others].max())]
    drawn = rng.permutation(pool)[:number].tolist()
    return [([*words(top[:WORDS].tolist())], words([word])[0], "") for word in drawn]


def _of_sets(
    probs: NDArray[Any], k: int, number: int, rng: np.random.Generator, words: Words
) -> Shown:
    """Three sets of four words of a topic, and one of another topic."""

    def draw(topic: int, size: int, without: Sequence[int] = ()) -> list[int]:
        p = probs[topic].copy()
        p[list(without)] = 0.0
        top = np.argsort(-p, kind="stable")[:TOP]
        return rng.choice(top, size, replace=False, p=p[top] / p[top].sum()).tolist()

    shown: Shown = []
    for _ in range(number):
        own = draw(k, 3 * SET_WORDS)
        other = int(rng.choice(np.delete(np.arange(len(probs)), k)))
        intruder = draw(other, SET_WORDS, np.argsort(-probs[k], kind="stable")[:TOP].tolist())
        sets = [own[i : i + SET_WORDS] for i in range(0, len(own), SET_WORDS)]
        texts = [", ".join(words(each)) for each in [*sets, intruder]]
        shown.append((texts[:-1], texts[-1], ""))
    return shown


def _of_documents(
    measured: Measurement,
    topics: Sequence[int],
    number: int,
    texts: Iterable[str] | None,
    rng: np.random.Generator,
) -> list[tuple[int, list[str], str, str]]:
    """Documents by their largest topic, three topics of each, and one that it hardly has."""
    corpus: Corpus = measured.corpus
    order = np.argsort(-measured.means, 1, "stable")
    best = np.where(corpus.lengths > 0, order[:, 0], -1)
    drawn = [
        (k, d) for k in topics for d in rng.permutation(np.flatnonzero(best == k))[:number].tolist()
    ]
    rows = np.array([d for _, d in drawn], np.int64)
    if not len(rows):
        raise ConfigError("no document has one of the topics as its largest; take other topics")
    top = measured.model.topics.top_words(TOPIC_WORDS)[0].tolist()
    shown = [", ".join(measured.model.words_at(row)) for row in top]
    low = max(TOPICS, measured.model.num_topics // 2)
    return [
        (k, [shown[j] for j in order[d, :TOPICS]], shown[rng.choice(order[d, low:])], text)
        for (k, d), text in zip(drawn, excerpts(rows, corpus, texts), strict=True)
    ]


def _rows(given: Any, number: str) -> list[tuple[str, str, str]]:
    """Rater, task and answer of each row with an answer."""
    who = number
    if not isinstance(given, pd.DataFrame):
        path, who = Path(given), Path(given).stem
        data = read_bytes(path)
        with read_errors(path, "is no CSV", Exception):
            sep = ";" if data.lstrip(b"\xef\xbb\xbf").startswith((b"task;", b'"task";')) else ","
            given = pd.read_csv(io.BytesIO(data), sep=sep, dtype=str, keep_default_na=False)
    if not {"task", "answer"} <= {*given}:
        raise ConfigError(f"ratings have the columns {[*given]}; expected task and answer")
    table = given.assign(rater=given.get("rater", "")).fillna("").astype(str)
    columns = (table[name].str.strip() for name in ("rater", "task", "answer"))
    return [
        (rater or who, task, answer.lower() if len(answer) == 1 else answer)
        for rater, task, answer in zip(*columns, strict=True)
        if answer
    ]


def _precision(table: pd.DataFrame, level: float) -> dict[str, float]:
    """Share of right answers, its interval, and numbers of answers, tasks and raters."""
    right = table["right"].to_numpy(np.float64)
    p, size = float(right.mean()), len(right)
    counts, variances, degrees = {}, [], []
    for name in ("task", "rater"):
        codes, different = pd.factorize(table[name])
        count = counts[f"{name}s"] = len(different)
        if count > 1:
            sums = np.bincount(codes, right - p)
            variances.append(count / (count - 1) * float(sums @ sums) / size**2)
            degrees.append(count - 1)
    # Unanimous answers show no variance, and count as one answer to each task.
    effective, freedom = float(counts["tasks"]), np.inf
    if sum(variances) > 0:
        both = p * (1 - p) / size if len(variances) == 2 else 0.0
        variance = max(sum(variances) - both, *variances)
        effective = min(size, max(1.0, p * (1 - p) / variance))
        parts = sum(v**2 / d for v, d in zip(variances, degrees, strict=True))
        freedom = max(1.0, variance**2 / parts)  # by Satterthwaite
    t = float(scipy.stats.t.ppf((1 + level) / 2, freedom))
    centre = (p + t**2 / (2 * effective)) / (1 + t**2 / effective)
    root = (p * (1 - p) / effective + t**2 / (4 * effective**2)) ** 0.5
    half = t / (1 + t**2 / effective) * root
    ends = {"lower": max(0.0, round(centre - half, 12)), "upper": min(1.0, centre + half)}
    return {"precision": p, **ends, "answers": size, **counts}
