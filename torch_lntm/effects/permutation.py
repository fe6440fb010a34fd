"""Permutation test of a column's effects: fits to documents with a shuffled column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.effects.estimate import estimate
from torch_lntm.errors import ConfigError, ConvergenceWarning, require_whole, warn
from torch_lntm.evaluation.alignment import align_topics
from torch_lntm.formulas.columns import find_column
from torch_lntm.guides import Guide
from torch_lntm.inference.interruption import propagate_interrupts
from torch_lntm.models import TopicModel
from torch_lntm.progress import tqdm

#: A function that fits a model to documents and returns the model with a guide.
Fit = Callable[[Corpus], tuple[TopicModel, Guide[Any]]]


@dataclass(frozen=True, eq=False, repr=False)
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

    def __repr__(self) -> str:
        return (
            f"PermutationTest({self.column!r} shuffled {len(self.permuted)} times, "
            f"{len(self.observed)} topics, smallest p {self.p_values.min():.3g})"
        )


def permutation_test(
    fit: Fit,
    corpus: Corpus,
    formula: str,
    column: str,
    *,
    num_permutations: int = 99,
    seed: int = 0,
    progress: bool = False,
    **options: Any,
) -> PermutationTest:
    """Permutation test: effects of a column compared with effects of the shuffled column.

    A model that reads the column can show effects of pure chance. Each permutation shuffles the
    column, keeps the words and the other columns, fits a new model, and estimates the effects. The
    comparison therefore includes all uncertainty of a fit.

    Ctrl-C ends the test and keeps the finished permutations, if any.

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

    Warns:
        ConvergenceWarning: Ctrl-C was pressed.

    Example:
        >>> fit = lambda corpus: (model, guide)  # a real test fits a model to the corpus
        >>> test = lntm.effects.permutation_test(
        ...     fit, posts, "~ party", "party", num_permutations=4
        ... )
        >>> test.permuted.shape
        (4, 10)
    """
    if refused := options.keys() & {"topics", "groups"}:
        raise ConfigError(
            f"permutation_test has no option {min(refused)}; it tests all topics, because each "
            "permutation fits topics of its own, which are matched one by one"
        )
    require_whole(1, num_permutations=num_permutations)
    require_whole(0, seed=seed)
    with propagate_interrupts():
        model, guide = fit(corpus)
        effects = estimate(model, guide, corpus, formula, **options)
    if column not in effects.formula.kinds:
        raise ConfigError(
            f"formula {formula!r} does not read {column!r}; it reads "
            f"{', '.join(effects.formula.kinds) or 'no column'}"
        )
    permutations: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
    generator = np.random.default_rng(seed)
    try:
        for _ in tqdm(range(num_permutations), desc="permutations", disable=not progress):
            order = generator.permutation(corpus.num_docs)
            shuffled = corpus.with_metadata({column: find_column(column, corpus.metadata)[order]})
            with propagate_interrupts():
                new_model, new_guide = fit(shuffled)
                new_effects = estimate(new_model, new_guide, shuffled, formula, **options)
            alignment = align_topics(model, new_model)
            statistics = new_effects.joint_statistics(column)[alignment.partner]
            permutations.append((statistics, alignment.similarity))
    except KeyboardInterrupt:
        if not permutations:
            raise
        warn(
            f"Ctrl-C ended the test after {len(permutations)} of {num_permutations} permutations",
            ConvergenceWarning,
        )
    permuted, similarity = map(np.array, zip(*permutations, strict=True))
    return PermutationTest(column, effects.joint_statistics(column), permuted, similarity)
