"""Scores of the neural papers: clusters, classes and printed words, as TopMost 1.0.2 computes them.

TopMost counts C_V in a window of 110 words. The corpora of the study are counts, so the window is
the document here, for every system.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.evaluation import coherence, topic_diversity
from torch_lntm.reports.labels import word_scores

#: Printed words of a topic.
PRINTED = 15
#: Added to probabilities of pairs in C_V, as gensim does.
EPSILON = 1e-12


@dataclass(frozen=True)
class Rule:
    """A rule that chooses the printed words of a topic.

    Attributes:
        measure: A measure of ``torch_lntm.reports.word_scores``.
        weight: Weight of frequency in FREX.
        candidates: Number of most probable words among which the measure chooses. None for all.
        share: Smallest share of the training documents that have a word.
    """

    measure: Literal["probability", "score", "frex"] = "frex"
    weight: float = 0.5
    candidates: int | None = None
    share: float = 0.0


#: Rules by name. FREX has two kinds of floors on frequency: within a topic, and in documents.
RULES: dict[str, Rule] = {
    "probability": Rule("probability"),
    "score": Rule("score"),
    "FREX": Rule(),
    "FREX of 30": Rule(candidates=30),
    "FREX of 25, weight .7": Rule(weight=0.7, candidates=25),
    "FREX of 20, weight .7": Rule(weight=0.7, candidates=20),
    "FREX in 0.5 % of documents, weight .85": Rule(weight=0.85, share=0.005),
    "FREX in 1 % of documents, weight .85": Rule(weight=0.85, share=0.01),
}


def purity_and_nmi(labels: Any, clusters: Any) -> tuple[float, float]:
    """Purity and normalised mutual information of clusters.

    Args:
        labels: ``(num_docs,)`` labels.
        clusters: ``(num_docs,)`` clusters, such as each document's largest topic.

    Returns:
        The share of documents that have the commonest label of their cluster, and the mutual
        information over the arithmetic mean of both entropies.
    """
    from sklearn.metrics import normalized_mutual_info_score

    labels, clusters = np.asarray(labels), np.asarray(clusters)
    members = [labels[clusters == cluster] for cluster in np.unique(clusters)]
    commonest = [np.unique(part, return_counts=True)[1].max() for part in members]
    nmi = normalized_mutual_info_score(labels, clusters)
    return float(np.sum(commonest) / len(labels)), float(nmi)


def svc_accuracy(
    train: NDArray[np.floating], train_labels: Any, test: NDArray[np.floating], test_labels: Any
) -> float:
    """Accuracy of scikit-learn's ``SVC(gamma="scale")`` on proportions of topics."""
    from sklearn.svm import SVC

    machine = SVC(gamma="scale", cache_size=500).fit(train, train_labels)
    return float((machine.predict(test) == np.asarray(test_labels)).mean())


def printed_words(
    topics: NDArray[np.floating], train: Corpus, rule: str, number: int = PRINTED
) -> NDArray[np.int64]:
    """The words that a rule prints, best first.

    Args:
        topics: ``(num_topics, num_words)`` probabilities; for the rule ``"probability"`` any
            weights.
        train: Training documents.
        rule: A name in :data:`RULES`.
        number: Words of a topic.

    Returns:
        ``(num_topics, number)`` positions of words.
    """
    chosen = RULES[rule]
    weights = np.asarray(topics, dtype=np.float64)
    totals = np.asarray(train.word_totals)
    scores = word_scores(weights, totals, chosen.measure, frequency_weight=chosen.weight)
    if chosen.candidates is not None:
        rank = np.argsort(np.argsort(-weights, axis=1, kind="stable"), axis=1)
        scores = np.where(rank < chosen.candidates, scores, -np.inf)
    if chosen.share:
        frequent = np.asarray(train.document_frequency) >= chosen.share * train.num_docs
        scores = np.where(frequent, scores, -np.inf)
    # The more probable of two words with equal scores comes first.
    return np.asarray(np.lexsort((-weights, -scores))[:, :number])


def word_list_scores(words: NDArray[np.int64], reference: Corpus) -> dict[str, float]:
    """Diversity of printed words, and their coherence in reference documents.

    Args:
        words: ``(num_topics, number)`` positions of words.
        reference: Held-out documents.

    Returns:
        ``"diversity"``, the share of distinct words; ``"npmi"``, with −1 for pairs without a common
        document; and ``"c_v"``.
    """
    number = words.shape[1]
    return {
        "diversity": topic_diversity(words.tolist(), number),
        "npmi": float(coherence(words.tolist(), reference, top_n=number).mean()),
        "c_v": float(c_v(words, reference).mean()),
    }


def intruders_found(words: NDArray[np.int64], vectors: NDArray[np.floating]) -> float:
    """Share of intruding words that vectors find (word intrusion, *Chang et al. 2009*).

    Each topic shows its first five words that have a vector, and in turn the first word of every
    other topic that is not among its own. The judge names the word whose cosines with the other
    five have the smallest sum.

    Args:
        words: ``(num_topics, number)`` positions of words, best first.
        vectors: ``(num_words, dimension)`` vectors of words; NaN for words without one.

    Returns:
        The share of right answers over all pairs of topics; chance is 1/6.
    """
    known = ~np.isnan(vectors).any(1)
    unit = vectors - vectors[known].mean(0)
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    lists = [[v for v in row if known[v]] for row in words.tolist()]
    right = []
    for k, own in enumerate(lists):
        for j, other in enumerate(lists):
            intruder = next((v for v in other if v not in own), None)
            if j != k and intruder is not None and len(own) >= 5:
                shown = unit[[*own[:5], intruder]]
                cosines = shown @ shown.T
                right.append(int((cosines.sum(1) - cosines.diagonal()).argmin()) == 5)
    return float(np.mean(right)) if right else float("nan")


def c_v(words: NDArray[np.int64], reference: Corpus) -> NDArray[np.float64]:
    """C_V of each topic (*Röder, Both & Hinneburg 2015*), with documents as windows.

    A word's vector holds its NPMI with every word of the topic. C_V is the mean cosine of a word's
    vector and the sum of the vectors. The probability of a pair is its share of documents plus
    :data:`EPSILON`. A word without a document has the vector 0.

    Args:
        words: ``(num_topics, number)`` positions of words.
        reference: Reference documents.

    Returns:
        ``(num_topics,)`` from 0 to 1.
    """
    columns, place = np.unique(words, return_inverse=True)
    occurs = sp.csr_matrix(reference.to_scipy() > 0, dtype=np.float64)[:, columns]
    together = (occurs.T @ occurs).toarray() / occurs.shape[0]
    found = []
    for row in place.reshape(words.shape):
        pair = together[np.ix_(row, row)]
        single = pair.diagonal()
        known = (single > 0)[:, None] & (single > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            npmi = np.log((pair + EPSILON) / np.outer(single, single)) / -np.log(pair + EPSILON)
        vectors = np.where(known, npmi, 0.0)
        whole = vectors.sum(0)
        length = np.linalg.norm(vectors, axis=1) * np.linalg.norm(whole)
        cosine = np.divide(vectors @ whole, length, out=np.zeros(len(row)), where=length > 0)
        found.append(cosine.mean())
    return np.array(found)
