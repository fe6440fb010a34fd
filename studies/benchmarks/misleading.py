"""Where word vectors mislead: topics whose words differ, and which the vectors take for one.

Vectors are close for words that occur in like contexts. These are opposites and rivals as well as
synonyms: hot and cold, praise and complaint, two brands of one good. The corpus has pairs of such
topics. Both topics of a pair share the words of their subject, and each has opinions of its own.
The documents are the same for all kinds of vectors:

    plain      no vectors
    follow     subjects and opinions have different places among the vectors
    mislead    a subject and both opinions about it have one place
    shuffled   the vectors of ``follow`` in random order
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.benchmarks.neural import Task, ours
from studies.benchmarks.topic_scores import purity_and_nmi
from studies.scores.completion import completion_of
from studies.tables import table_of, with_error
from torch_lntm.corpus import Corpus

KEY = ("study", "documents", "seed", "vectors")
KINDS = ("plain", "follow", "mislead", "shuffled")
#: Pairs of topics, words of a subject and of an opinion, and tokens of a document.
PAIRS, SUBJECT, OPINION, TOKENS = 10, 80, 60, 12
#: Probability that a token is an opinion, and that it comes from the document's own topic.
OPINIONS, OWN = 0.5, 0.7
#: Test documents, and dimension of the vectors. Words have a variance of 1 about their place.
TEST, DIMENSION = 1000, 20


def documents_of(number: int, seed: int) -> Corpus:
    """Documents with labels, each of a topic of its own."""
    rng = np.random.default_rng([seed, number])
    labels = rng.integers(2 * PAIRS, size=number)
    shape = number, TOKENS
    topic = np.where(rng.random(shape) < OWN, labels[:, None], rng.integers(2 * PAIRS, size=shape))
    subject, opinion = (rng.choice(n, shape, p=_zipf(n)) for n in (SUBJECT, OPINION))
    opinion += SUBJECT + OPINION * (topic % 2)
    word = np.where(rng.random(shape) < OPINIONS, opinion, subject)
    size = SUBJECT + 2 * OPINION
    counts = [np.bincount(row, minlength=PAIRS * size) for row in topic // 2 * size + word]
    return Corpus.from_matrix(np.stack(counts), metadata={"label": labels.astype(str)})


def _zipf(number: int) -> NDArray[np.float64]:
    weights = 1 / np.arange(1.0, number + 1)
    return weights / weights.sum()


def vectors_for(kind: str, seed: int) -> NDArray[np.float32]:
    """``(num_words, DIMENSION)`` vectors of a kind."""
    rng = np.random.default_rng(seed)
    places = rng.normal(size=(PAIRS, 3, DIMENSION))
    if kind == "mislead":
        places[:, 1:] = places[:, :1]
    vectors = np.concatenate([place.repeat([SUBJECT, OPINION, OPINION], 0) for place in places])
    vectors += rng.normal(size=vectors.shape)
    return (rng.permutation(vectors) if kind == "shuffled" else vectors).astype(np.float32)


def compare(key: tuple[str, int, int, str]) -> dict[str, Any]:
    """Scores of a fit; ``"confused"`` is the share of documents among those of the rival topic."""
    _, number, seed, kind = key
    train, test = documents_of(number, seed), documents_of(TEST, 1000 + seed)
    options = {} if kind == "plain" else {"word_vectors": vectors_for(kind, seed)}
    fit = ours(Task(train, 2 * PAIRS, seed, Path()), **options)
    hold_out = test.hold_out_words(0.5, seed=seed)
    score: Any = completion_of(fit.prior, fit.topics, hold_out, tolerance=0.004, seed=seed)
    labels = np.asarray(test.labels).astype(int)
    clusters = fit.proportions(test).argmax(1)
    members = {cluster: np.bincount(labels[clusters == cluster]) for cluster in set(clusters)}
    commonest = np.array([members[cluster].argmax() for cluster in clusters])
    purity, nmi = purity_and_nmi(labels, clusters)
    found = {
        "nats": float(score.log_predictive.sum() / score.held_out_tokens.sum()),
        "purity": purity,
        "nmi": nmi,
        "confused": float((commonest == labels + 1 - 2 * (labels % 2)).mean()),
        **fit.settings,
    }
    return {name: round(value, 4) for name, value in found.items()}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each number of documents and kind of vectors, with means over seeds."""
    lines = []
    for number, kind in product(sorted({row["documents"] for row in rows}), KINDS):
        of = {
            name: [r for r in rows if (r["documents"], r["vectors"]) == (number, name)]
            for name in KINDS
        }
        pairs = zip(of[kind], of["plain"], strict=True)
        gains = [row["nats"] - plain["nats"] for row, plain in pairs]
        line = {"documents": f"{number:,}", "vectors": kind}
        line["perplexity"] = f"{fmean(math.exp(-row['nats']) for row in of[kind]):,.0f}"
        line["gain, nats"] = with_error(gains, 3) if kind != "plain" else ""
        names = {"c": 0, "nmi": 3, "purity": 3, "confused": 3}
        for name, digits in names.items():
            line[name] = with_error([row[name] for row in of[kind] if name in row], digits)
        lines.append(line)
    return table_of(lines) if lines else ""
