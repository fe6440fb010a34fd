"""EM, exact likelihoods and line styles for the studies of *Minka & Lafferty 2002, §6*."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp, roots_jacobi

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.guides import DirichletGuide, EPGuide
from torch_lntm.inference import Statistics
from torch_lntm.inference.em.statistics import expected_statistics
from torch_lntm.models import TopicModel, lda

AspectGuide = DirichletGuide | EPGuide

#: Variational Bayes with eq. 27 and with eqs 32–34, and expectation propagation with eqs 32–34.
METHODS = ("vb", "vb second-order", "ep")
#: The colours and lines of the methods in every figure.
STYLES: dict[str, dict[str, Any]] = {
    "exact": {"color": "#1a1a1a", "linestyle": "-"},
    "max": {"color": "#4d4d4d", "linestyle": "--"},
    "vb": {"color": "#c25b00", "linestyle": "--"},
    "vb second-order": {"color": "#762a83", "linestyle": "-"},
    "ep": {"color": "#2166ac", "linestyle": "-."},
}
#: Largest number of passes over a document's words between two updates. A posterior starts at its
#: last value: it follows the topics, and has converged once the topics stand still.
PASSES = 5


def make_method(method: str, model: TopicModel, tolerance: float) -> AspectGuide:
    """The guide of a method.

    Args:
        method: One of :data:`METHODS`.
        model: The model.
        tolerance: The change at convergence of a document; see the guide.
    """
    if method == "ep":
        return EPGuide(model, tolerance=tolerance)
    if method == "vb":
        return DirichletGuide(model, tolerance=tolerance)
    return DirichletGuide(model, topics_update="second-order", tolerance=tolerance)


def em_updates(guide: AspectGuide, batch: DocumentBatch) -> Iterator[tuple[float, Statistics]]:
    """Update the guide's model by EM, without end.

    A document's posterior starts from its last value: EP's from its sites, as in §5.2, and VB's
    from its mean. Probabilities of zero stay zero, and can hold a topic at a corner of the simplex.

    Yields:
        After each update, the largest move of a word's probability in a topic, and the statistics
        of the update.
    """
    model = guide.model
    init = None
    while True:
        before = model.topics.probs.detach()
        posterior = guide.posterior(batch, init, max_iterations=PASSES)
        init = posterior.warm_start
        statistics = expected_statistics(guide, batch, posterior)
        statistics.maximise(model)
        yield float((model.topics.probs.detach() - before).abs().max()), statistics


def small_model(topics: NDArray[np.float64]) -> TopicModel:
    """A float64 aspect model with these topics, free of smoothing, and α = 1 throughout."""
    return lda(
        *topics.shape,
        concentration=1.0,
        learn_concentration=False,
        topics=torch.from_numpy(topics),
        topic_smoothing=0.0,
        dtype=torch.float64,
    )


def small_batch(counts: NDArray[np.integer]) -> DocumentBatch:
    """Documents of a dense ``(num_docs, num_words)`` table."""
    return Corpus.from_matrix(counts).batch(dtype=torch.float64)


#: The change at convergence of a document over a small vocabulary; see the guides.
SMALL_TOLERANCE = 1e-5


def fit_small(
    method: str,
    counts: NDArray[np.integer],
    start: NDArray[np.float64],
    tolerances: Sequence[float],
    max_updates: int,
) -> tuple[AspectGuide, list[int | None]]:
    """Fit topics to documents over a small vocabulary, α = 1 throughout.

    Args:
        method: One of :data:`METHODS`.
        counts: ``(num_docs, num_words)``.
        start: ``(num_topics, num_words)`` topics at the start.
        tolerances: Moves of a word's probability. EM ends at the smallest tolerance.
        max_updates: Bound on the updates.

    Returns:
        The guide with the fitted model, and the number of updates to each tolerance, None for an
        unmet tolerance.
    """
    guide = make_method(method, small_model(start), SMALL_TOLERANCE)
    met: list[int | None] = [None] * len(tolerances)
    for update, (change, _) in enumerate(em_updates(guide, small_batch(counts)), 1):
        for i, tolerance in enumerate(tolerances):
            if met[i] is None and change <= tolerance:
                met[i] = update
        if None not in met or update >= max_updates:
            break
    return guide, met


def dirichlet_rule(
    concentration: Sequence[float], degree: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points and weights of a quadrature for Dirichlet expectations, exact for polynomials.

    Under Dirichlet(α) the share v_k of the rest of the stick is Beta(α_k, Σ_{j>k} α_j),
    independently. A polynomial in theta has at most its own degree in each v_k, and a product of
    Gauss–Jacobi rules is exact.

    Args:
        concentration: α.
        degree: Total degree of exactness.

    Returns:
        ``(num_points, num_topics)`` theta, and ``(num_points,)`` positive weights that sum to 1.
    """
    theta, weights = np.ones((1, 1)), np.ones(1)
    for k in range(len(concentration) - 1):
        rest = sum(concentration[k + 1 :])
        x, w = roots_jacobi(degree // 2 + 1, rest - 1.0, concentration[k] - 1.0)
        share, left = 0.5 * (1.0 + x), theta[:, -1:]
        parts = [(left * v).reshape(-1, 1) for v in (share, 1.0 - share)]
        theta = np.hstack([np.repeat(theta[:, :-1], len(x), 0), *parts])
        weights = (weights[:, None] * (w / w.sum())).ravel()
    return theta, weights


def exact_log_likelihood(
    counts: NDArray[np.integer], topics: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Exact log p(w) of documents over a small vocabulary under α = 1, by quadrature.

    p(w) is the expectation of a polynomial in theta; its degree is the document's length (*Minka &
    Lafferty 2002, eq. 3*).

    Args:
        counts: ``(num_docs, num_words)``.
        topics: ``(num_topics, num_words)``. The rule has (length / 2 + 1)^(topics − 1) points: take
            few topics.

    Returns:
        ``(num_docs,)`` nats, exact to rounding.
    """
    theta, weights = dirichlet_rule((1.0,) * len(topics), int(counts.sum(1).max()))
    log_words = np.log(np.maximum(theta @ topics, np.finfo(np.float64).tiny))
    terms = counts.astype(np.float64) @ log_words.T + np.log(weights)
    return np.asarray(logsumexp(terms, axis=1))
