"""Whether a column has an effect at all: fits to documents whose column is shuffled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.effects.estimate import estimate
from torch_lntm.effects.result import Effects
from torch_lntm.errors import ConfigError, ConvergenceWarning, require_whole, warn
from torch_lntm.evaluation.alignment import align_topics
from torch_lntm.guides import Guide
from torch_lntm.inference.interruption import propagate_interrupts
from torch_lntm.models import TopicModel
from torch_lntm.progress import tqdm

#: What fits a model to documents.
Fit = Callable[[Corpus], tuple[TopicModel, Guide[Any]]]


@dataclass(frozen=True, eq=False, repr=False)
class PermutationTest:
    """How large effects are in the documents, and how large by chance.

    Attributes:
        column: The column that was shuffled.
        observed: ``(num_topics,)`` Wald statistics per coefficient of the terms with the column.
        permuted: ``(num_permutations, num_topics)`` the same of fits to shuffled documents, of the
            topics that match.
        similarity: ``(num_permutations, num_topics)`` of the topics that match.
    """

    column: str
    observed: NDArray[np.float64]
    permuted: NDArray[np.float64]
    similarity: NDArray[np.float64]

    @property
    def p_values(self) -> NDArray[np.float64]:
        """``(num_topics,)`` share of statistics, the observed one among them, as large as that."""
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
    """Fit again and again to documents whose column is shuffled, and compare the effects.

    The words and the other columns stay. A model that reads the column can find effects that are
    not there; how large these are is what this measures, with all that a fit leaves open.

    Args:
        fit: Fits a model to documents and returns it with its guide. It is called once with the
            corpus as it is.
        corpus: The documents.
        formula: The formula whose effects are estimated.
        column: The column to shuffle, one that the formula reads.
        num_permutations: How often.
        seed: Seed of the shuffles.
        progress: Show a progress bar on standard error.
        **options: Options of :func:`estimate` other than ``topics``.

    Ctrl-C ends it, with the permutations that are done, if there is one.

    Returns:
        The statistics, by the topics of the first fit.

    Raises:
        ConfigError: The formula does not read the column, or an option cannot be used.

    Warns:
        ConvergenceWarning: Ctrl-C was pressed.
    """
    if "topics" in options:
        raise ConfigError("topics is no option of permutation_test, which tests all of them")
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
    terms = _terms(effects, column)
    found: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
    generator = np.random.default_rng(seed)
    try:
        for _ in tqdm(range(num_permutations), desc="permutations", disable=not progress):
            order = generator.permutation(corpus.num_docs)
            shuffled = corpus.with_metadata({column: corpus.metadata[column][order]})
            with propagate_interrupts():
                other, its_guide = fit(shuffled)
                its_effects = estimate(other, its_guide, shuffled, formula, **options)
            alignment = align_topics(model, other)
            statistics = _statistics(its_effects, terms)[alignment.partner]
            found.append((statistics, alignment.similarity))
    except KeyboardInterrupt:
        if not found:
            raise
        warn(
            f"Ctrl-C ended the test after {len(found)} of {num_permutations} permutations",
            ConvergenceWarning,
        )
    permuted, similarity = map(np.array, zip(*found, strict=True))
    return PermutationTest(column, _statistics(effects, terms), permuted, similarity)


def _terms(effects: Effects, column: str) -> NDArray[np.int64]:
    """Positions of the formula's terms that the column is in."""
    values = effects.columns[column]
    shifted = {**effects.columns, column: np.random.default_rng(0).permutation(values)}
    before, after = (
        effects.formula.matrix(columns, effects.num_docs) for columns in (effects.columns, shifted)
    )
    return np.flatnonzero((before != after).any(0))


def _statistics(effects: Effects, terms: NDArray[np.int64]) -> NDArray[np.float64]:
    """Wald statistics per coefficient of some terms, by topic."""
    pooled = effects.pooled
    beta = pooled.coefficients[:, terms].numpy()
    total = pooled.within + (1 + 1 / pooled.num_draws) * pooled.between
    covariance = total[:, terms][:, :, terms].numpy()
    solved = np.linalg.solve(covariance, beta[..., None])[..., 0]
    return np.asarray((beta * solved).sum(1) / len(terms))
