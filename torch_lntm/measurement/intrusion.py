"""Intrusion tasks, by which people judge topics, and the precision of their answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import NDArray

from torch_lntm.corpus.readers.texts import Options, read_csv
from torch_lntm.errors import ConfigError, require_level, require_one, require_whole
from torch_lntm.files.writing import write_file
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
#: Words by their numbers; and what tasks show of their topic, the intruder, and a document's text.
Words = Callable[[Sequence[int]], Sequence[str]]
Shown = list[tuple[Sequence[str], str, str]]


@dataclass(frozen=True, eq=False, repr=False)
class Intrusion:
    """Intrusion tasks for raters, and their answers.

    Attributes:
        kind: What is shown.
        tasks: A row for each task, in the order of the file: its identifier ``task``, the number
            ``topic`` and the ``name`` of its topic, the letter of the intruder as ``answer``, the
            ``document`` if one is shown, and the options by letter.
    """

    kind: Kind
    tasks: pd.DataFrame

    def frame(self) -> pd.DataFrame:
        """What a rater sees: ``task``, ``document`` if one is shown, the options, empty answers."""
        return self.tasks.drop(columns=["topic", "name", "answer"]).assign(answer="", rater="")

    def key(self) -> pd.DataFrame:
        """The answers, which raters must not see: ``task``, ``topic``, ``name``, ``answer``."""
        return self.tasks[["task", "topic", "name", "answer"]]

    def save(self, path: str | Path) -> Path:
        """Write the raters' file, a CSV without the answers.

        Args:
            path: The file. Each rater gets a copy, and fills in the column ``answer`` by a letter.

        Raises:
            FileError: The file cannot be written.
        """
        write_file(path, to_csv(self.frame()).encode())
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
        require_level(level)
        tasks = {task["task"]: task for task in self.tasks.to_dict("records")}
        letters = [letter for letter in LETTERS if letter in self.tasks]
        found: dict[tuple[str, str], tuple[int, str, bool]] = {}
        for rater, name, answer in (x for i, of in enumerate(ratings) for x in _answers(of, i)):
            task = tasks.get(name, {})
            options = [*letters, *(task.get(letter) for letter in letters)]
            if not task:
                why = "is none of these tasks; make them by the same book, kind and seed"
            elif answer not in options:
                why = f"is answered by {answer!r:.40}; expected a letter or text of an option"
            elif (rater, name) in found:
                why = "is answered twice"
            else:
                right = (2 * letters)[options.index(answer)] == task["answer"]
                found[rater, name] = task["topic"], task["name"], right
                continue
            raise ConfigError(f"task {name!r:.40} of rater {rater!r:.40} {why}")
        if not found:
            raise ConfigError("there are no answers")
        table = pd.DataFrame(
            [(*key, *value) for key, value in found.items()],
            columns=["rater", "task", "topic", "name", "right"],
        )
        parts: list[Any] = [(("all", "all"), table), *table.groupby(["topic", "name"])]
        rows = [{"topic": k, "name": name, **_precision(x, level)} for (k, name), x in parts]
        return pd.DataFrame(rows).assign(chance=1 / len(letters))

    def __repr__(self) -> str:
        topics = self.tasks["topic"].nunique()
        return f"Intrusion({len(self.tasks)} tasks of {self.kind}, {topics} topics)"


def intrusion(
    model: TopicModel,
    hash: str,
    kind: Kind,
    measured: Measurement | None = None,
    *,
    topics: Sequence[int | str] | None = None,
    per_topic: int = 3,
    texts: Iterable[str] | None = None,
    seed: int = 0,
) -> Intrusion:
    """Make tasks; see :meth:`Codebook.intrusion`."""
    require_one(get_args(Kind), kind=kind)
    require_whole(1, per_topic=per_topic)
    require_whole(0, seed=seed)
    names, least = model.topic_names, TOPICS + 1 if kind == "documents" else 2
    if model.num_topics < least or model.num_words < 2 * TOP:
        raise ConfigError(
            f"{model.num_topics} topics and {model.num_words} words; tasks of {kind} need at least "
            f"{least} topics, and {2 * TOP} words"
        )
    rng = np.random.default_rng(seed)
    found = find_topics(names, range(len(names)) if topics is None else topics)
    if measured is not None:
        made = [*_of_documents(measured, found, per_topic, texts, rng)]
    else:
        probs = model.topics.mean_probs.detach().double().cpu().numpy()
        make = _of_words if kind == "words" else _of_sets
        made = [(k, *x) for k in found for x in make(probs, k, per_topic, rng, model.words_at)]
    tasks = []
    for topic, shown, intruder, document in (made[i] for i in rng.permutation(len(made))):
        order = rng.permutation(len(shown) + 1)
        options = [[*shown, intruder][j] for j in order]
        text = "\n".join([hash, kind, document, *options])
        name = hashlib.sha256(text.encode()).hexdigest()[:10]
        about = (name, topic, names[topic], LETTERS[order.argmax()], document)
        tasks.append((*about, *options))
    columns = ["task", "topic", "name", "answer", "document", *LETTERS[: len(options)]]
    table = pd.DataFrame(tasks, columns=columns).drop_duplicates("task", ignore_index=True)
    return Intrusion(kind, table if measured else table.drop(columns="document"))


def _of_words(
    probs: NDArray[Any], k: int, number: int, rng: np.random.Generator, words: Words
) -> Shown:
    """The most probable words of a topic, and a word of another topic that is improbable here."""
    top = np.argsort(-probs[k], kind="stable")
    others = np.unique(np.argsort(-np.delete(probs, k, 0), 1, "stable")[:, : 2 * WORDS])
    rank = np.argsort(top, kind="stable")  # of each word in this topic
    pool = others[rank[others] >= min(len(top) // 2, rank[others].max())]
    drawn = rng.permutation(pool)[:number].tolist()
    return [(words(top[:WORDS].tolist()), words([word])[0], "") for word in drawn]


def _of_sets(
    probs: NDArray[Any], k: int, number: int, rng: np.random.Generator, words: Words
) -> Shown:
    """Three sets of four words of a topic, and one of another topic."""

    def draw(topic: int, size: int, without: Any = ()) -> list[str]:
        p = probs[topic].copy()
        p[list(without)] = 0.0
        top = np.argsort(-p, kind="stable")[:TOP]
        drawn = rng.choice(top, size, replace=False, p=p[top] / p[top].sum()).tolist()
        return [", ".join(words(drawn[i : i + SET_WORDS])) for i in range(0, size, SET_WORDS)]

    others, top = np.delete(np.arange(len(probs)), k), np.argsort(-probs[k], kind="stable")[:TOP]
    return [
        (draw(k, 3 * SET_WORDS), draw(rng.choice(others), SET_WORDS, top)[0], "")
        for _ in range(number)
    ]


def _of_documents(
    measured: Measurement,
    topics: Sequence[int],
    number: int,
    texts: Iterable[str] | None,
    rng: np.random.Generator,
) -> Iterator[tuple[int, Sequence[str], str, str]]:
    """Documents by their largest topic, three topics of each, and one that it hardly has."""
    model, order = measured.model, np.argsort(-measured.means, 1, "stable")
    best = np.where(measured.corpus.lengths > 0, order[:, 0], -1)
    of_topics = [rng.permutation(np.flatnonzero(best == k))[:number] for k in topics]
    rows = np.concatenate(of_topics)
    if not len(rows):
        raise ConfigError("no document has one of the topics as its largest; take other topics")
    shown = [", ".join(model.words_at(x)) for x in model.topics.top_words(TOPIC_WORDS)[0].tolist()]
    for d, text in zip(rows, excerpts(rows, measured.corpus, texts), strict=True):
        intruder = rng.choice(order[d, max(TOPICS, model.num_topics // 2) :])
        yield int(best[d]), [shown[j] for j in order[d, :TOPICS]], shown[intruder], text


def _answers(given: Any, number: int) -> Iterator[tuple[str, str, str]]:
    """Rater, task and answer of each row with an answer."""
    who = str(number)
    if not isinstance(given, pd.DataFrame):
        path, who = Path(given), Path(given).stem
        given = pd.DataFrame([row for _, row in read_csv(path, Options())], dtype=object)
    if not {"task", "answer"} <= {*given}:
        raise ConfigError(f"ratings have the columns {[*given]}; expected task and answer")
    table = given.reindex(columns=["rater", "task", "answer"]).astype(object).fillna("")
    for rater, task, answer in table.astype(str).map(str.strip).to_numpy().tolist():
        if answer:
            yield rater or who, task, answer.lower() if len(answer) == 1 else answer


def _precision(table: pd.DataFrame, level: float) -> dict[str, float]:
    """Share of right answers, its interval, and numbers of answers, tasks and raters."""
    right, size = table["right"].to_numpy(np.float64), len(table)
    p, counts, clustered = float(right.mean()), {}, []
    for name in ("task", "rater"):
        sums = np.bincount(pd.factorize(table[name])[0], right - p)
        n = counts[f"{name}s"] = len(sums)
        clustered.append((n / (n - 1) * (sums @ sums) / size**2 if n > 1 else 0.0, max(n - 1, 1)))
    variances, degrees = np.array(clustered).T
    # Unanimous answers show no variance, and count as one answer to each task.
    effective, freedom = float(counts["tasks"]), np.inf
    if variances.any():
        variance = max(variances.sum() - p * (1 - p) / size, variances.max())
        effective = min(size, max(1.0, p * (1 - p) / variance))
        freedom = max(1.0, variance**2 / (variances**2 / degrees).sum())  # by Satterthwaite
    t = float(scipy.stats.t.ppf((1 + level) / 2, freedom))
    centre = (p + t**2 / (2 * effective)) / (1 + t**2 / effective)
    root = (p * (1 - p) / effective + t**2 / (4 * effective**2)) ** 0.5
    half = t / (1 + t**2 / effective) * root
    ends = {"lower": max(0.0, round(centre - half, 12)), "upper": min(1.0, centre + half)}
    return {"precision": p, **ends, "answers": size, **counts}
