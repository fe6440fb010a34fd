"""Topics with keywords beside keyATM, SeededLDA and CorEx of topica.

Keywords of a class are the words with the largest contributions to the mutual information of class
and presence in the training documents: p(v, c) log(p(v, c) / p(v) p(c)), over documents. Every
system gets the same keywords, the same number of free topics and the same training documents. A
test document is classified by the keyword topic with the largest proportion. Purity and NMI compare
the labels with the largest of all topics, free topics included.

Completion is at the mode of theta, by one evaluator for all systems with topics and a prior. A
corpus without a split (``keyatm_bills``) is fitted as a whole, and its labelled documents are
classified.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

import torch_lntm as lntm
from studies.benchmarks.frozen import own_split
from studies.benchmarks.neural import texts_of
from studies.benchmarks.topic_scores import purity_and_nmi
from studies.machine import Stopwatch
from studies.measure import Cells, Study, check_choices, check_numbers, corpus_file
from studies.scores.completion import completion_of
from studies.tables import table_of, with_error
from torch_lntm.errors import KeywordWarning
from torch_lntm.inference.em.start import document_topics, random_order
from torch_lntm.models import Keywords
from torch_lntm.recipes import Recipe

#: Label of documents without a class.
UNLABELLED = "unlabelled"


@dataclass(frozen=True)
class Task:
    """One fit.

    Attributes:
        train: Training documents.
        test: Documents to classify.
        keywords: Words of each class.
        num_topics: Number of topics, free topics included.
        seed: Seed of the fit.
        sweeps: Sweeps of Gibbs samplers.
    """

    train: lntm.Corpus
    test: lntm.Corpus
    keywords: dict[str, list[str]]
    num_topics: int
    seed: int
    sweeps: int

    @property
    def num_free(self) -> int:
        """Number of free topics."""
        return self.num_topics - len(self.keywords)


@dataclass(frozen=True)
class Fit:
    """A fitted system.

    Attributes:
        theta: ``(num_test_docs, num_topics)`` the system's proportions of the test documents.
        cpu_seconds: CPU seconds of the fit.
        topics: ``(num_topics, num_words)`` word probabilities, or None.
        prior: Prior in the form of :func:`completion_of`, or None.
        concentration: Concentration of bursty words, or None.
    """

    theta: NDArray[np.floating]
    cpu_seconds: float
    topics: Any = None
    prior: Any = None
    concentration: float | None = None


class OrdinaryStart(Keywords):
    """Keywords in the prior only. Their topics start from random documents, as free topics do."""

    def initial_topics(self, corpus: lntm.Corpus) -> NDArray[np.float64]:
        """Topics of random documents."""
        topics = document_topics(corpus, random_order(corpus, 0), len(self), 0)
        return np.asarray(topics.numpy())


def ours(
    *, keywords: bool = True, prior_only: bool = False, **options: Any
) -> Callable[[Task], Fit]:
    """A fit of the correlated topic model by the default recipe.

    Args:
        keywords: Whether the model has the keywords.
        prior_only: Whether keyword topics start from random documents.
        **options: Options of the model.
    """

    def fit(task: Task) -> Fit:
        train, stopwatch = task.train, Stopwatch()
        chosen = Recipe("ctm", "auto").for_corpus(train, task.num_topics)
        settings = {"num_topics": task.num_topics, "progress": False, **options}
        if keywords:
            settings["keywords"] = task.keywords
        with stopwatch:
            model, _, engine = chosen.make(
                train.num_words, train.vocabulary, seed=task.seed, options=settings
            )
            if prior_only:
                found: Any = model.topics.keywords
                parts = (found.lists, found.strength, found.exclusive)
                model.topics.keywords = OrdinaryStart(*parts)
            result = engine.fit(train)
        theta = lntm.inference.transform(result.source, task.test, progress=False).theta
        prior: Any = model.prior
        parameters = (prior.loc.detach().double(), prior.covariance.detach().double())
        probs, concentration = model.topics.double_probs, model.words.cache_weight
        return Fit(theta.numpy(), stopwatch.cpu_seconds, probs, parameters, concentration)

    return fit


def _topica(task: Task, model: Any, **options: Any) -> Fit:
    """A fit of a model of topica."""
    stopwatch, texts = Stopwatch(), texts_of(task.train)
    with stopwatch:
        model.fit(texts, num_threads=1, **options)
    theta = np.asarray(model.transform(texts_of(task.test)))
    if not hasattr(model, "alpha") or "CorEx" in type(model).__name__:
        return Fit(theta, stopwatch.cpu_seconds)
    column = {word: v for v, word in enumerate(task.train.vocabulary or ())}
    at = [column[word] for word in model.vocabulary]
    topics = np.repeat(model.topic_word.min(1, keepdims=True), len(column), 1)
    topics[:, at] = model.topic_word
    alpha = np.broadcast_to(np.asarray(model.alpha, float), len(topics)).copy()
    return Fit(theta, stopwatch.cpu_seconds, topics / topics.sum(1, keepdims=True), alpha)


def keyatm(task: Task) -> Fit:
    """KeyATM with its default weights of words."""
    import topica

    keywords: Any = task.keywords
    model = topica.KeyATM(keywords, num_topics=task.num_topics, seed=task.seed)
    return _topica(task, model, iters=task.sweeps, keep_theta_draws=False)


def seeded_lda(task: Task) -> Fit:
    """SeededLDA."""
    import topica

    keywords: Any = task.keywords
    model = topica.SeededLDA(keywords, residual=task.num_free, seed=task.seed)
    return _topica(task, model, iters=task.sweeps, keep_theta_draws=False)


def corex(task: Task) -> Fit:
    """CorEx with anchors of strength 3, in the middle of its authors' advice."""
    import topica

    options: dict[str, Any] = {
        "anchor_words": task.keywords,
        "anchor_strength": 3.0,
        "seed": task.seed,
    }
    # The stubs of topica leave CorEx out.
    library: Any = topica
    model = library.CorEx(task.num_topics, **options)
    return _topica(task, model)


FREE = "ctm without keywords"
SYSTEMS: dict[str, Callable[[Task], Fit]] = {
    "ctm": ours(),
    "ctm, bursty": ours(bursty=True),
    "keywords in free topics too": ours(exclusive_keywords=False),
    "start only": ours(keyword_strength=0.0, exclusive_keywords=False),
    "prior only, ordinary start": ours(prior_only=True),
    FREE: ours(keywords=False),
    "topica KeyATM": keyatm,
    "topica SeededLDA": seeded_lda,
    "topica CorEx": corex,
}


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpora: Names of corpora in the folder of data, or paths.
        num_keywords: Keywords of a class.
        num_free: Free topics beside the keyword topics.
        seeds: Seeds of the fits and of the hold-out.
        systems: Systems to fit.
        sweeps: Sweeps of topica's Gibbs samplers; their defaults are 1,500 and 2,000.
    """

    corpora: tuple[str, ...] = ("agnews_ecrtm", "yahoo_ecrtm", "20ng_ecrtm", "keyatm_bills")
    num_keywords: int = 5
    num_free: int = 5
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    systems: tuple[str, ...] = tuple(SYSTEMS)
    sweeps: int = 300

    def __post_init__(self) -> None:
        """Check the settings."""
        whole = {"num_keywords": 1, "num_free": 0, "seeds": 0, "sweeps": 1}
        check_numbers(self, whole)
        check_choices(self, "systems", tuple(SYSTEMS))


def class_name(label: str) -> str:
    """Name of a class as a topic. Names of topics need a letter."""
    return f"class {label}" if label.isdecimal() else label


def class_keywords(corpus: lntm.Corpus, num_keywords: int) -> dict[str, list[str]]:
    """Keywords of every class by the rule in the module's docstring."""
    labels, words = np.array(corpus.labels), np.array(corpus.vocabulary)
    present = sp.csr_matrix(corpus.to_scipy() > 0, dtype=np.float64)
    share = np.asarray(present.mean(0)).ravel()
    chosen = {}
    for label in sorted(set(labels.tolist()) - {UNLABELLED}):
        of_class = labels == label
        joint = np.asarray(present[of_class].sum(0)).ravel() / len(labels)
        with np.errstate(divide="ignore", invalid="ignore"):
            score = np.where(joint > 0, joint * np.log(joint / (share * of_class.mean())), -1.0)
        chosen[class_name(label)] = words[np.argsort(-score, kind="stable")[:num_keywords]].tolist()
    return chosen


def task_of(name: str, seed: int, settings: Settings) -> Task:
    """The documents and keywords of a corpus."""
    path = corpus_file(name)
    corpus = lntm.read_corpus(path)
    in_test = own_split(path, corpus.num_docs)
    lists = path.with_name(f"{path.stem}.keywords.json")
    if in_test is None:
        train = corpus
        test = corpus[np.flatnonzero(np.array(corpus.labels) != UNLABELLED)]
    else:
        train, test = corpus[np.flatnonzero(~in_test)], corpus[np.flatnonzero(in_test)]
    if lists.exists():
        keywords = json.loads(lists.read_text(encoding="utf-8"))
    else:
        keywords = class_keywords(train, settings.num_keywords)
    size = len(keywords) + settings.num_free
    return Task(train, test, keywords, size, seed, settings.sweeps)


def scores_of(fit: Fit, task: Task, has_keywords: bool) -> dict[str, float]:
    """Agreement with the labels, completion and seconds of a fit."""
    from sklearn.metrics import f1_score

    labels = np.array([class_name(label) for label in task.test.labels or ()])
    names = np.array(list(task.keywords))
    purity, nmi = purity_and_nmi(labels, fit.theta.argmax(1))
    scores = {"purity": purity, "nmi": nmi, "cpu_seconds": fit.cpu_seconds}
    if has_keywords:
        predicted = names[fit.theta[:, : len(names)].argmax(1)]
        scores["accuracy"] = float((predicted == labels).mean())
        scores["macro_f1"] = float(f1_score(labels, predicted, average="macro"))
    if fit.topics is not None:
        hold_out = task.test.hold_out_words(0.5, seed=task.seed)
        completion = completion_of(
            fit.prior,
            fit.topics,
            hold_out,
            "mode",
            concentration=fit.concentration,
            cache_weight=None,
        )
        scores["perplexity"] = completion.perplexity
    return scores


def run(settings: Settings, cells: Cells) -> list[dict[str, Any]]:
    """Fit and score every system. Systems without their library are left out."""
    torch.set_num_threads(1)
    has_topica = find_spec("topica") is not None
    systems = [name for name in settings.systems if has_topica or "topica" not in name]

    def compare(key: tuple[int, str, str]) -> dict[str, Any]:
        seed, corpus, system = key
        task = task_of(corpus, seed, settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KeywordWarning)
            fit = SYSTEMS[system](task)
        row = {"corpus": Path(corpus).stem, "system": system, "seed": seed}
        return {**row, "keywords": task.keywords, **scores_of(fit, task, system != FREE)}

    return cells.each(product(settings.seeds, settings.corpora, systems), compare)


def tables(rows: list[dict[str, Any]]) -> str:
    """A row for each corpus and system: means over seeds with their standard errors."""
    columns = {
        "accuracy": ("accuracy", 3),
        "macro_f1": ("macro-F1", 3),
        "purity": ("purity", 3),
        "nmi": ("NMI", 3),
        "perplexity": ("perplexity", 1),
        "cpu_seconds": ("CPU s", 1),
    }
    of: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        of.setdefault((row["corpus"], row["system"]), []).append(row)
    lines = []
    for (corpus, system), found in of.items():
        line = {"corpus": corpus, "system": system}
        for name, (title, digits) in columns.items():
            values = [row[name] for row in found if name in row]
            line[title] = with_error(values, digits) if values else ""
        lines.append(line)
    return (
        f"{table_of(lines)}\n\nMeans over seeds, ± s.e. over seeds. Accuracy and macro-F1: the "
        "largest keyword topic of a test\ndocument. Purity and NMI: the largest of all topics. "
        "Perplexity: completion at the mode of theta."
    )


STUDY = Study(
    Settings,
    run,
    tables,
    quick={"corpora": ("keyatm_bills",), "seeds": (0,), "sweeps": 20},
)
