"""Permutation test of a column's effects: fits to documents with a shuffled column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.effects.estimate import estimate
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.evaluation.alignment import align_topics
from torch_lntm.guides import Guide
from torch_lntm.inference.interruption import propagate_interrupts
from torch_lntm.models import TopicModel
from torch_lntm.progress import tqdm

#: A function that fits a model to documents and returns the model with a guide.
Fit = Callable[[Corpus], tuple[TopicModel, Guide[Any]]]


@dataclass(frozen=True, eq=False)
class PermutationTest:
    """Effects of a column, beside effects of the shuffled column.

    Attributes:
        column: The shuffled column.
        observed: ``(num_topics,)`` Wald statistics per effect, for the terms of the column.
        permuted: ``(num_permutations, num_topics)`` statistics of fits to shuffled documents, for
            the matching topics.
        similarity: ``(num_permutations, num_topics)`` similarities of the matching topics.
    """

    column: str
    observed: NDArray[np.float64]
    permuted: NDArray[np.float64]
    similarity: NDArray[np.float64]

    @property
    def p_values(self) -> NDArray[np.float64]:
        """``(num_topics,)`` share of all statistics that are at least the observed statistic."""
        larger = (self.permuted >= self.observed).sum(0)
        return np.asarray((1 + larger) / (1 + len(self.permuted)))


def permutation_test(
    fit: Fit,
    corpus: Corpus,
    formula: str,
    column: str,
    *,
    num_permutations: int = 99,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> PermutationTest:
    """Permutation test: effects of a column compared with effects of the shuffled column.

    A model that reads a column can find effects of it by pure chance. Each permutation therefore
    shuffles the column while the words and all other columns stay, fits a new model, and estimates
    the effects, so that the comparison includes all uncertainty of a fit.

    Args:
        fit: A function from a corpus to a fitted model and its guide. It is called first with
            ``corpus``, then with each shuffled corpus.
        corpus: The documents.
        formula: Formula of the effects.
        column: The column to shuffle. The formula must read it.
        num_permutations: Number of permutations.
        seed: Seed of the shuffles.
        progress: Show a progress bar on standard error.
        **options: Options of :func:`estimate`, ``topics`` and ``groups`` excluded.

    Returns:
        The statistics, by topic of the first fit.

    Raises:
        ConfigError: The formula does not read the column, or an option cannot be used.

    Example:
        >>> fit = lambda corpus: (model, guide)  # a real test fits a model to the corpus
        >>> test = lntm.effects.permutation_test(
        ...     fit, posts, "~ party", "party", num_permutations=4
        ... )
        >>> test.permuted.shape
        (4, 10)
    """
    if options.keys() & {"topics", "groups"}:
        raise ConfigError("permutation_test tests all topics; leave out topics= and groups=")
    require_whole(1, num_permutations=num_permutations)
    require_whole(0, seed=seed)

    def fitted(documents: Corpus) -> tuple[TopicModel, NDArray[np.float64]]:
        with propagate_interrupts():
            model, guide = fit(documents)
            effects = estimate(model, guide, documents, formula, **options)
        return model, effects.joint_statistics(column)

    model, observed = fitted(corpus)
    permuted, similarity = [], []
    generator = np.random.default_rng(seed)
    for _ in tqdm(range(num_permutations), desc="permutations", disable=not progress):
        values = corpus.metadata[column].to_numpy()[generator.permutation(corpus.num_docs)]
        other, statistics = fitted(corpus.with_metadata({column: values}))
        alignment = align_topics(model, other)
        permuted.append(statistics[alignment.partner])
        similarity.append(alignment.similarity)
    return PermutationTest(column, observed, np.array(permuted), np.array(similarity))
