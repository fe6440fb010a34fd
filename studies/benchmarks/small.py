"""Short and long searches of Monte-Carlo EM on thinned corpora of 2 to 200 tokens a word.

The training documents of a corpus are thinned to a number of tokens for each word of their
vocabulary. Each thinned corpus has two fits with one seed. The first fit follows the rule of small
corpora, and ends after 20 epochs. The second fit goes on while the objective rises.
The two fits are equal for the first 15 epochs. The score is that of the study ``quality``: theta
integrated out. The splits are for tuning: no table has them.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from studies.benchmarks.frozen import MAX_DOCS, MAX_TEST_DOCS, frozen
from studies.machine import Stopwatch
from studies.measure import Cells, Study, check_filled, check_numbers
from studies.tables import table_of
from torch_lntm.corpus import Corpus, synthetic_topics
from torch_lntm.errors import UnreliableEstimateWarning
from torch_lntm.evaluation import CompletionResult, document_completion, paired_difference
from torch_lntm.inference.em import monte_carlo
from torch_lntm.models import ctm
from torch_lntm.recipes import Recipe

#: Simulated corpora: their length of documents. Topics are Dirichlet(0.05) over 1,000 words.
SIMULATED = {"simulated, 10 tokens": 10, "simulated, 100 tokens": 100}
SIMULATED_TOPICS, SIMULATED_WORDS, SIMULATED_TEST = 20, 1000, 500
#: A thinned corpus has at least this number of documents for each topic.
FEWEST_DOCS = 5


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpora: Names of corpora in the folder of data, paths, or simulated corpora.
        tokens_per_word: Tokens for each word of the thinned training documents. A corpus with fewer
            tokens has no such cell.
        num_topics: Topics.
        seeds: Seeds of splits, thinnings and fits; from 7 on, no table has them.
        max_docs: Largest number of documents; a larger corpus is sampled.
        max_test_docs: Largest number of scored documents.
        tolerance: Monte-Carlo standard error of the exact score, nats per token.
    """

    corpora: tuple[str, ...] = ("m10", "cora", "ohsumed", "ap", "imdb100k", *SIMULATED)
    tokens_per_word: tuple[int, ...] = (2, 5, 10, 20, 50, 200)
    num_topics: int = 20
    seeds: tuple[int, ...] = (7, 8)
    max_docs: int = MAX_DOCS
    max_test_docs: int = MAX_TEST_DOCS
    tolerance: float = 0.003

    def __post_init__(self) -> None:
        """Check the settings."""
        whole = {"num_topics": 2, "seeds": 7, "tokens_per_word": 1}
        check_numbers(self, {**whole, "max_docs": 2, "max_test_docs": 1}, positive=("tolerance",))
        check_filled(self, "corpora", "tokens_per_word", "seeds")


@dataclass(frozen=True)
class Pair:
    """The two fits to a thinned corpus.

    Attributes:
        corpus: Name of the corpus.
        tokens_per_word: Asked number of tokens for each word.
        seed: Seed.
        num_docs: Training documents.
        density: Number of tokens for each word.
        epochs: Epochs of the short and of the long fit.
        cpu_seconds: CPU seconds of the two fits.
        nats: Scores of a held-out token, nats.
        gain: Score of the long fit less that of the short fit.
        error: Standard error of the gain over documents.
    """

    corpus: str
    tokens_per_word: int
    seed: int
    num_docs: int
    density: float
    epochs: list[int]
    cpu_seconds: list[float]
    nats: list[float]
    gain: float
    error: float


def run(settings: Settings, cells: Cells) -> list[Pair]:
    """Fit and score every thinned corpus by both rules.

    Raises:
        ConfigError: A corpus does not exist.
    """
    torch.set_num_threads(1)
    keys = [
        (corpus, tokens, seed)
        for seed in settings.seeds
        for corpus in settings.corpora
        for tokens in settings.tokens_per_word
    ]
    found = cells.each(keys, partial(compare, settings))
    return [Pair(*key, **cell) for key, cell in zip(keys, found, strict=True) if cell]


def compare(settings: Settings, key: tuple[str, int, int]) -> dict[str, Any]:
    """The numbers of a :class:`Pair`; empty if the corpus has too few tokens or documents."""
    name, tokens, seed = key
    train, test = documents(settings, name, seed)
    train, test = thinned(train, test, tokens, seed)
    density = train.num_tokens / train.num_words
    if density < 0.9 * tokens or len(train) < FEWEST_DOCS * settings.num_topics:
        return {}
    scores: list[CompletionResult] = []
    epochs, seconds = [], []
    for word_tokens in (math.inf, 0.0):
        with patch.object(monte_carlo, "WORD_TOKENS", word_tokens):
            score, number, spent = fit_and_score(settings, train, test, seed)
        scores.append(score)
        epochs.append(number)
        seconds.append(round(spent, 2))
    gain, error = paired_difference(scores[1], scores[0])
    return {
        "num_docs": len(train),
        "density": density,
        "epochs": epochs,
        "cpu_seconds": seconds,
        "nats": [score.nats_per_token for score in scores],
        "gain": gain,
        "error": error,
    }


def documents(settings: Settings, name: str, seed: int) -> tuple[Corpus, Corpus]:
    """All training documents, and the documents to score."""
    if name in SIMULATED:
        topics = synthetic_topics(SIMULATED_TOPICS, SIMULATED_WORDS, 0.05, seed=seed)
        truth = ctm(SIMULATED_TOPICS, SIMULATED_WORDS, topics=topics)
        length = SIMULATED[name]
        most = max(settings.tokens_per_word) * SIMULATED_WORDS // length
        made, _ = truth.generate([length] * (most + SIMULATED_TEST), seed=seed)
        return made[SIMULATED_TEST:], made[:SIMULATED_TEST]
    split = frozen(name, seed, settings.max_docs, settings.max_test_docs, tuning=True)
    return split.train, split.hold_out.corpus


def thinned(train: Corpus, test: Corpus, tokens: int, seed: int) -> tuple[Corpus, Corpus]:
    """Random training documents with some tokens for each of their words, over these words."""
    order = np.random.default_rng(seed).permutation(len(train))
    counts = train.to_scipy()[order]
    last = np.full(train.num_words, len(order))  # the first document with each word
    rows, columns = counts.nonzero()
    np.minimum.at(last, columns, rows)
    words = np.searchsorted(np.sort(last), np.arange(len(order)), side="right")
    totals = np.asarray(counts.sum(1)).ravel().cumsum()
    dense = np.flatnonzero(totals >= tokens * np.maximum(words, 1))
    # Very few documents can have many tokens a word, too.
    number = _first_lasting(dense, len(order))
    known = np.flatnonzero(last < number)
    return tuple(  # type: ignore[return-value]
        Corpus.from_matrix(part[:, known], allow_empty=True)
        for part in (counts[:number], test.to_scipy())
    )


def _first_lasting(dense: NDArray[np.int64], most: int) -> int:
    """Number of documents from which on all larger numbers are dense; ``most`` without any."""
    if not len(dense) or dense[-1] != most - 1:
        return most
    breaks = np.flatnonzero(np.diff(dense) > 1)
    return int(dense[breaks[-1] + 1 if len(breaks) else 0]) + 1


def fit_and_score(
    settings: Settings, train: Corpus, test: Corpus, seed: int
) -> tuple[CompletionResult, int, float]:
    """A fit by chains: its score, its epochs and its CPU seconds."""
    chosen = Recipe("ctm", "hmc").for_corpus(train, settings.num_topics)
    options = {"num_topics": settings.num_topics, "progress": False}
    model, _, engine = chosen.make(train.num_words, seed=seed, options=options)
    with Stopwatch() as watch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        history = engine.fit(train).history
    hold_out = test.hold_out_words(observed_fraction=0.5, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnreliableEstimateWarning)
        score = document_completion(model, hold_out, tolerance=settings.tolerance, seed=seed)
    epochs = sum(record["phase"] in ("warm-up", "sampling", "averaging") for record in history)
    return score, epochs, watch.cpu_seconds


def tables(pairs: list[Pair]) -> str:
    """A row for each thinned corpus."""
    lines = []
    for corpus, tokens in dict.fromkeys((p.corpus, p.tokens_per_word) for p in pairs):
        some = [p for p in pairs if (p.corpus, p.tokens_per_word) == (corpus, tokens)]
        lines.append(
            {
                "corpus": Path(corpus).stem,
                "tokens a word": f"{np.mean([p.density for p in some]):.0f}",
                "documents": f"{np.mean([p.num_docs for p in some]):.0f}",
                "epochs": ", ".join(f"{p.epochs[0]}/{p.epochs[1]}" for p in some),
                "gain of the long search": ", ".join(
                    f"{p.gain:+.4f} ± {p.error:.4f}" for p in some
                ),
                "CPU s": ", ".join(f"{p.cpu_seconds[0]:.0f}/{p.cpu_seconds[1]:.0f}" for p in some),
            }
        )
    return (
        f"{table_of(lines)}\n\ngain: nats of a held-out token, one number for each seed; errors\n"
        "are over documents."
    )


STUDY = Study(
    Settings,
    run,
    tables,
    quick={
        "corpora": ("simulated, 10 tokens",),
        "tokens_per_word": (2, 5),
        "num_topics": 5,
        "seeds": (7,),
        "max_test_docs": 30,
    },
    selects=("corpora", "tokens_per_word", "seeds"),
)
