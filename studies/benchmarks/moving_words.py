"""Simulated corpora with words that move: do bands hold the truth, and are the words found?

Some words of the topics follow a random walk. Bands are 95 % bands of a word's probability. One
number is the share of bands that hold the true probability. Another is the area under the ROC curve
of words, ranked by their change over its standard error, or by their learned scale. The study fits
the documents by both engines. It also fits the true tokens of each topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import torch_lntm as lntm
from torch_lntm.models import DynamicTopics
from torch_lntm.models.levels import learn_levels

#: Column with the number of a document's period.
PERIOD = "period"
#: Least tokens of a word in a topic, and M-steps given the true tokens.
LEAST_TOKENS, KNOWN_STEPS = 50, 40


@dataclass(frozen=True)
class Truth:
    """A simulated corpus and its topics.

    Attributes:
        corpus: The documents, with their period.
        probs: ``(num_periods, num_topics, num_words)`` true probabilities.
        moves: ``(num_topics, num_words)`` whether a word moves.
        tokens: ``(num_periods, num_topics, num_words)`` true tokens of each topic.
    """

    corpus: lntm.Corpus
    probs: NDArray[np.float64]
    moves: NDArray[np.bool_]
    tokens: NDArray[np.float64]


def simulated(
    seed: int,
    periods: int = 10,
    docs: int = 200,
    topics: int = 5,
    words: int = 300,
    length: float = 100.0,
    spread: float = 3.0,
) -> Truth:
    """Documents, and topics with a tenth of words that walk by steps of 0.3.

    Args:
        seed: Seed.
        periods: Number of periods.
        docs: Documents of a period.
        topics: Number of topics.
        words: Size of the vocabulary.
        length: Mean number of words of a document.
        spread: Standard deviation of the logits of a document's proportions.
    """
    rng = np.random.default_rng(seed)
    moves = rng.random((topics, words)) < 0.1
    steps = rng.normal(0.0, 0.3, (periods, topics, words)) * moves
    steps[0] = 0.0
    logits = rng.normal(0.0, 1.5, (topics, words)) + steps.cumsum(0)
    probs = np.exp(logits - logits.max(2, keepdims=True))
    probs /= probs.sum(2, keepdims=True)
    times = np.repeat(np.arange(periods), docs)
    theta = np.exp(rng.normal(0.0, spread, (len(times), topics)))
    theta /= theta.sum(1, keepdims=True)
    counts, tokens = np.zeros((len(times), words), int), np.zeros(probs.shape)
    for (d, t), k in product(enumerate(times), range(topics)):
        drawn = rng.multinomial(rng.poisson(length * theta[d, k]), probs[t, k])
        counts[d] += drawn
        tokens[t, k] += drawn
    names = [f"w{v}" for v in range(words)]
    corpus = lntm.Corpus.from_matrix(counts, names, metadata={PERIOD: times})
    return Truth(corpus, probs, moves, tokens)


#: Engines of the simulations, from a model and a seed.
ENGINES: dict[str, Callable[[lntm.models.TopicModel, int], Any]] = {
    "by Monte-Carlo EM": lambda model, seed: lntm.inference.MonteCarloEM(
        model, progress=False, seed=seed
    ),
    "by variational EM": lambda model, seed: lntm.inference.VariationalEM(
        model, lntm.guides.TaylorGuide(model), progress=False, seed=seed
    ),
}


def recovered(seed: int, **design: Any) -> dict[str, Any]:
    """Coverage of bands and ranking of moving words on a corpus of :func:`simulated`."""
    from scipy.optimize import linear_sum_assignment

    truth = simulated(seed, **design)
    size, words = truth.moves.shape
    content = f"~ rw({PERIOD})"
    column: Any = learn_levels(truth.corpus, content)
    known = DynamicTopics(size, words, column, dtype=torch.float64)
    known.prepare_(truth.corpus)
    tokens = torch.from_numpy(truth.tokens.transpose(1, 0, 2).reshape(size, -1))
    for _ in range(KNOWN_STEPS):
        known.m_step(tokens)
    found = {"known": bands(truth, known, [(k, k) for k in range(size)])}
    for name, engine in ENGINES.items():
        model = lntm.models.stm(size, truth.corpus, content=content, seed=seed)
        engine(model, seed).fit(truth.corpus)
        fitted: Any = model.topics
        similarity = np.sqrt(fitted.mean_probs.detach().numpy()) @ np.sqrt(truth.probs.mean(0)).T
        pairs = zip(*linear_sum_assignment(-similarity), strict=True)
        matched = [(int(a), int(b)) for a, b in pairs]
        found[name] = bands(truth, fitted, matched)
        fitted.certainty.fill_(1.0)
        found[f"{name}, as if known"] = bands(truth, fitted, matched)
    return found


def bands(
    truth: Truth, topics: DynamicTopics, pairs: Sequence[tuple[int, int]]
) -> dict[str, float]:
    """Coverage of bands, and ranking of words by their change.

    Args:
        truth: The simulated corpus.
        topics: Fitted topics.
        pairs: Number of each fitted topic and of its true topic.
    """
    from sklearn.metrics import roc_auc_score

    inside: dict[str, list[NDArray[np.bool_]]] = {"moving": [], "still": []}
    scores, scales, moves = [], [], []
    table = (topics.variances * topics.dispersion).double().sqrt().T.numpy()
    for ours, theirs in pairs:
        probs = truth.probs[:, theirs]
        _, lower, upper = (x.numpy() for x in topics.log_paths(ours).bands(0.95))
        held = (lower <= probs) & (probs <= upper)
        change, error = (x.numpy() for x in topics.log_changes(ours))
        seen = truth.tokens[:, theirs].sum(0) >= LEAST_TOKENS
        inside["moving"].append(held[:, seen & truth.moves[theirs]].ravel())
        inside["still"].append(held[:, seen & ~truth.moves[theirs]].ravel())
        scores.append(np.abs(change / error)[seen])
        moves.append(truth.moves[theirs][seen])
        scales.append(table[ours][seen])
    found = np.concatenate(moves)
    return {
        "auc": float(roc_auc_score(found, np.concatenate(scores))),
        "auc_scale": float(roc_auc_score(found, np.concatenate(scales))),
        **{name: float(np.concatenate(x).mean()) for name, x in inside.items()},
    }
