"""Words that name topics: which of them find the topics of held-out documents.

A fit to training documents gives topics, and long chains give the proportions of held-out
documents. A rule names every topic by a few words. Topics are ranked for each held-out document by
the number of its tokens that are in their names, with ties in random order. The study measures

* the mean reciprocal rank of the document's largest topic, which is 1 if names always find it, and
  the mean of 1/1, …, 1/K if names belong to the topics by chance;
* the share of documents with a word of their largest topic's name.

Names of rare words find few documents, and names of common words find many wrong ones. Rules were
chosen on the first corpora; the others were read afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata

import torch_lntm as lntm
from studies.measure import Cells, Study, check_numbers, corpus_file
from studies.tables import table, table_of, with_error
from torch_lntm.models.names import distinct_words, name_words

Array = NDArray[np.float64]

#: The rule of the package, and the rules whose names are printed.
OWN, SHOWN = "package", ("probability, 2 words, shared", "FREX 0.5", "package")


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        chosen: Corpora on which rules were chosen, by name or path.
        checked: Corpora that were read after the choice.
        num_topics: Numbers of topics.
        max_docs: Most training documents.
        seeds: Seeds of splits and fits.
    """

    chosen: tuple[str, ...] = (
        *("agnews_ecrtm", "poliblog5k", "ap_allwords", "bbc", "ap", "yahoo_ecrtm", "nips12"),
    )
    checked: tuple[str, ...] = ("20ng_bydate", "reuters21578", "searchsnippets", "m10", "ohsumed")
    num_topics: tuple[int, ...] = (20, 50)
    max_docs: int = 10_000
    seeds: tuple[int, ...] = (0, 1)

    def __post_init__(self) -> None:
        """Check the settings."""
        check_numbers(self, {"num_topics": 2, "max_docs": 2, "seeds": 0})


@dataclass(frozen=True)
class Result:
    """The result of the study: a row for each fit, by the corpora's part in the choice."""

    chosen: list[dict[str, Any]]
    checked: list[dict[str, Any]]


def run(settings: Settings, cells: Cells) -> Result:
    """Measure all fits."""
    torch.set_num_threads(1)
    parts = (
        cells.each(
            product(corpora, settings.num_topics, settings.seeds),
            lambda key: measured(settings, *key),
        )
        for corpora in (settings.chosen, settings.checked)
    )
    return Result(*parts)


def measured(settings: Settings, name: str, num_topics: int, seed: int) -> dict[str, Any]:
    """Scores of all rules in a fit."""
    corpus = lntm.read_corpus(corpus_file(name))
    order = np.random.default_rng(seed).permutation(corpus.nonempty)
    size = len(order) // 5
    train = corpus[np.sort(order[size:][: settings.max_docs])]
    held_out = corpus[np.sort(order[:size][: settings.max_docs // 2])]
    model = lntm.models.ctm(num_topics, train, seed=seed)
    result = lntm.inference.MonteCarloEM(model, seed=seed, progress=False).fit(train)
    theta = result.transform(held_out, progress=False).theta.numpy()
    probs, words = model.topics.mean_probs.detach().double(), np.array(corpus.vocabulary)
    names = {rule: named(probs.numpy(), words, *how) for rule, how in rules(probs.numpy()).items()}
    names[OWN] = [list(name) for name in name_words(probs, model.words_at, 3)]
    counts, largest = held_out.to_scipy(), theta.argmax(1)
    found = {rule: reciprocal_ranks(counts, largest, names[rule], words) for rule in names}
    own = found[OWN][0]
    return {
        "corpus": name,
        "num_topics": num_topics,
        "rules": {
            rule: {
                "rank": float(ranks.mean()),
                "ahead": float((ranks - own).mean()),
                "reached": reached,
            }
            for rule, (ranks, reached) in found.items()
        },
        # Of the first fit to a corpus only, since they are for looking at.
        "names": {
            rule: [" ".join(name) for name in names[rule]]
            for rule in SHOWN
            if (num_topics, seed) == (settings.num_topics[0], settings.seeds[0])
        },
    }


def rules(probs: Array) -> dict[str, tuple[Array, int, bool]]:
    """Scores of the words by each rule, words of a name, and whether names may share words."""
    tiny, average = np.finfo(np.float64).tiny, probs.mean(0)
    logs = np.log(np.maximum(probs, tiny))
    lift = logs - np.log(np.maximum(average, tiny))
    scores = {
        "probability": probs,
        "c-TF-IDF": probs * np.log1p(1 / np.maximum(probs.sum(0), tiny)),
    }
    scores["score"] = probs * (logs - logs.mean(0))
    scores |= {f"p^{a} log lift": probs**a * lift for a in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)}
    scores |= {f"relevance {w}": w * logs + (1 - w) * lift for w in (0.2, 0.4, 0.5, 0.6, 0.8)}
    scores |= {f"FREX {w}": frex(probs, lift, w) for w in (0.3, 0.5, 0.7, 0.9)}
    for size in (20, 50, 100):
        scores[f"lift of {size}"] = np.where(most_probable(probs, size), lift, -np.inf)
        scores |= {f"FREX {w} of {size}": frex(probs, lift, w, size) for w in (0.5, 0.7)}
    best = scores["p^0.5 log lift"]
    return {
        **{rule: (x, 3, False) for rule, x in scores.items()},
        "p^0.5 log lift, 2 words": (best, 2, False),
        "p^0.5 log lift, 4 words": (best, 4, False),
        "p^0.5 log lift, shared": (best, 3, True),
        "probability, 2 words, shared": (probs, 2, True),
    }


def most_probable(probs: Array, size: int) -> NDArray[np.bool_]:
    """Whether a word is among the most probable of a topic."""
    return rankdata(-probs, "ordinal", axis=1) <= size


def frex(probs: Array, lift: Array, weight: float, size: int | None = None) -> Array:
    """FREX with a weight of exclusivity, by ranks among the most probable words of a topic."""
    size = probs.shape[1] if size is None else min(size, probs.shape[1])
    kept, below = most_probable(probs, size), probs.shape[1] - size
    by_lift, by_prob = (
        (rankdata(np.where(kept, x, -np.inf), axis=1) - below) / size for x in (lift, probs)
    )
    return np.where(kept, 1 / (weight / by_lift + (1 - weight) / by_prob), -np.inf)


def named(
    probs: Array, words: NDArray[np.str_], scores: Array, number: int, shared: bool
) -> list[list[str]]:
    """Names by scores of words, each of which belongs to the topic where it is most probable."""
    order, owner = np.lexsort((-probs, -scores))[:, :60], probs.argmax(0)
    names: list[list[str]] = [[] for _ in probs]
    taken: set[str] = set()
    for own in (False,) if shared else (True, False):
        for k, row in enumerate(order):
            fitting = row[owner[row] == k] if own else row
            free = [w for w in words[fitting].tolist() if shared or w not in taken]
            names[k] = distinct_words([*names[k], *free], number)
            taken.update(names[k])
    return names


def reciprocal_ranks(
    counts: sp.csr_matrix, largest: Array, names: Sequence[Sequence[str]], words: NDArray[np.str_]
) -> tuple[Array, float]:
    """Reciprocal rank of each document's largest topic, and share of documents with its name."""
    tokens = np.stack([counts[:, np.isin(words, name)].sum(1).A1 for name in names], 1)
    own = tokens[np.arange(len(tokens)), largest][:, None]
    above, equal = (tokens > own).sum(1), (tokens == own).sum(1)
    # The expectation over random orders of topics with equally many tokens.
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, len(names) + 1))])
    return (harmonic[above + equal] - harmonic[above]) / equal, float((own > 0).mean())


def tables(result: Result) -> str:
    """Scores of the rules, on corpora of the choice and on others."""
    lines: list[dict[str, str]] = []
    for rule in result.chosen[0]["rules"]:
        line = {"names": rule}
        for part, rows in (("chosen", result.chosen), ("checked", result.checked)):
            keys = dict.fromkeys((row["corpus"], row["num_topics"]) for row in rows)
            of_fits = [
                [row["rules"][rule] for row in rows if (row["corpus"], row["num_topics"]) == key]
                for key in keys
            ]
            for name, digits in (("rank", 3), ("ahead", 4), ("reached", 2)):
                means = [fmean(fit[name] for fit in fits) for fits in of_fits]
                line[f"{part}: {name}"] = with_error(means, digits)
        lines.append(line)
    lines.sort(key=lambda line: -float(line["chosen: rank"].split()[0]))
    names = [row["names"] for row in result.chosen[:1]]
    shown = [table(SHOWN, zip(*(of_fit[rule] for rule in SHOWN), strict=True)) for of_fit in names]
    return "\n\n".join([table_of(lines), *shown])


STUDY = Study(
    Settings,
    run,
    tables,
    quick={"chosen": ("ap",), "checked": ("m10",), "num_topics": (10,), "seeds": (0,)},
    selects=("chosen", "checked", "num_topics", "seeds"),
)
