"""ThetaDraws, the draws of documents' topic proportions, and their options."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.budget import docs_at_once
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.models import TopicModel

Positions = NDArray[np.int64]
#: Quantities that the fit estimates, and that draws of the documents' proportions keep fixed.
FIXED = ("the topics' words", "the prior's covariance")
#: Largest number of values kept in memory after a pass over the draws: 256 MB of float32.
MAX_KEPT = 2**26
#: Smallest and largest number of draws of a document by :func:`enough_draws`, and target number of
#: draws of all documents together.
FEWEST, MOST, ALL_DRAWS = 25, 50, 250_000


class DrawnDocuments(NamedTuple):
    """Draws of some documents' proportions, on the CPU.

    Attributes:
        rows: ``(num_docs,)`` positions of the documents in the corpus.
        theta: ``(num_draws, num_docs, num_topics)`` proportions.
        converged: ``(num_docs,)`` bool: the document's posterior met its guide's tolerance, or all
            of its chains moved.
    """

    rows: Positions
    theta: Tensor
    converged: Tensor


@dataclass(frozen=True, eq=False)
class DrawOptions:
    """Options of :func:`~torch_lntm.inference.theta_draws`, which documents them."""

    seed: int = 0
    means: Tensor | None = None
    coefficients: bool = False
    warmup_steps: int = 100
    thinning: int | None = None
    max_docs: int | None = None
    keep: bool = True
    progress: bool = False


#: Function ``draw(rows, num_draws)`` that draws the documents at some positions, in parts.
DrawsDocuments = Callable[[Positions, int], Iterator[DrawnDocuments]]


@dataclass(eq=False, repr=False)
class ThetaDraws:
    """Draws of the topic proportions of a corpus's documents.

    They are made by functions such as :func:`theta_draws` and :func:`joint_draws`, and read by
    reports, effects and other libraries. Iteration yields the documents in parts
    (:class:`DrawnDocuments`), so that large corpora need little memory, whereas :attr:`theta` is
    the array of all draws.

    Nothing is drawn before the first pass. Later passes see the same draws, from memory if they
    were few enough to keep (:data:`MAX_KEPT`) and otherwise made again.

    Attributes:
        draw: Function that draws the documents at some positions.
        model: The model. If the topics were drawn too, as by :func:`joint_draws`, its topics are
            the mean of the drawn topics.
        rows: ``(num_docs,)`` positions of the documents in the corpus.
        num_draws: Number of draws of each document.
        name: Name of the posterior in a recipe, or of the source of the draws.
        description: Method of drawing, in words.
        sources_of_uncertainty: Quantities with different values in different draws, in words.
        fixed: Quantities that the fit estimates and the draws keep fixed, in words.
        max_draws: Number of existing draws of a document. ``None`` if more can be made.
        keep: Whether to keep the draws in memory for later passes, if they are few enough.
        num_chains: Number of Markov chains of whole corpora that made the draws in turn: draw s is
            one of chain ``s % num_chains``. 0 if a document's draws do not belong to such chains.
        corpus: The corpus, which other documents are compared with. ``None`` for an array, whose
            documents go by position.

    Example:
        >>> draws = lntm.inference.theta_draws(result.source, train, num_draws=25)
        >>> tuple(draws.theta.shape) == (25, len(train), model.num_topics)
        True
        >>> parts = [part.rows for part in draws]  # documents in parts, for large corpora
        >>> sum(map(len, parts)) == len(train)
        True
    """

    draw: DrawsDocuments
    model: TopicModel
    rows: Positions
    num_draws: int
    name: str = "draws"
    description: str = "existing draws"
    sources_of_uncertainty: tuple[str, ...] = ("the documents' proportions, by existing draws",)
    fixed: tuple[str, ...] = FIXED
    max_draws: int | None = None
    keep: bool = True
    num_chains: int = 0
    corpus: Corpus | None = None
    _kept: list[DrawnDocuments] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Limit ``num_draws`` to the draws that exist.

        Raises:
            ConfigError: ``num_draws`` is below 1.
        """
        require_whole(1, num_draws=self.num_draws)
        if self.max_draws is not None:
            self.num_draws = min(self.num_draws, self.max_draws)

    @classmethod
    def of(cls, theta: Tensor, model: TopicModel, rows: Positions | None = None) -> Self:
        """Draws from an array of proportions.

        Args:
            theta: ``(num_draws, num_docs, num_topics)`` proportions.
            model: The model.
            rows: ``(num_docs,)`` ascending positions of the documents in the corpus. Defaults to
                all documents, in order.

        Raises:
            ConfigError: The array has the wrong shape, or a number is negative or not finite.
        """
        theta = theta.detach().cpu()
        if theta.dim() != 3 or theta.shape[2] != model.num_topics or not len(theta):
            raise ConfigError(
                f"draws of shape {tuple(theta.shape)}; expected (num_draws, num_docs, "
                f"{model.num_topics})"
            )
        if not bool(torch.isfinite(theta).all()) or bool((theta < 0).any()):
            raise ConfigError("draws of theta must be finite and not negative")
        positions = np.arange(theta.shape[1]) if rows is None else rows

        def draw(wanted: Positions, num_draws: int) -> Iterator[DrawnDocuments]:
            columns = np.searchsorted(positions, wanted)
            if (columns >= len(positions)).any() or (positions[columns] != wanted).any():
                raise ConfigError(
                    f"the draws of {len(positions)} documents lack some of the {len(wanted)} "
                    "requested documents; make draws for the same corpus"
                )
            size = docs_at_once(num_draws * model.num_topics, "cpu", torch.float64)
            for first in range(0, len(wanted), size):
                part = torch.from_numpy(columns[first : first + size])
                converged = torch.ones(len(part), dtype=torch.bool)
                proportions = theta[:num_draws, part]
                yield DrawnDocuments(wanted[first : first + size], proportions, converged)

        return cls(draw, model, positions, len(theta), max_draws=len(theta), keep=False)

    def theta_draws(
        self, corpus: Corpus, num_draws: int | None, rows: Positions | None, options: DrawOptions
    ) -> ThetaDraws:
        """The same draws, or some of them, as a :class:`~torch_lntm.inference.DrawSource`.

        Raises:
            ConfigError: The draws are of other documents, or of these in another order.
        """
        own = corpus if self.corpus is None else self.corpus
        if own is not corpus and own.fingerprint() != corpus.fingerprint():
            raise ConfigError(
                f"the draws are of {own!r}; the documents are others, or stand in another order: "
                f"{corpus!r}. Make draws for the same corpus"
            )
        return self.take(rows, num_draws, keep=options.keep)

    def __iter__(self) -> Iterator[DrawnDocuments]:
        if self._kept is not None:
            yield from self._kept
            return
        parts = []
        for part in self.draw(self.rows, self.num_draws):
            if self._stays_in_memory:
                parts.append(part)
            yield part
        if self._stays_in_memory:
            self._kept = parts

    @property
    def _stays_in_memory(self) -> bool:
        numbers = self.num_draws * len(self.rows) * self.model.num_topics
        return self.keep and numbers <= MAX_KEPT

    def _select(self, rows: Positions, num_draws: int) -> Iterator[DrawnDocuments]:
        """Draws of some documents, taken from the pass over all draws if it has enough of them."""
        if num_draws != self.num_draws or not np.isin(rows, self.rows).all():
            yield from self.draw(rows, num_draws)
            return
        for part in self:
            columns = np.flatnonzero(np.isin(part.rows, rows))
            if len(columns) == len(part.rows):
                yield part
            elif len(columns):
                at = torch.from_numpy(columns)
                yield DrawnDocuments(part.rows[columns], part.theta[:, at], part.converged[at])

    def take(
        self, rows: Positions | None = None, num_draws: int | None = None, *, keep: bool = True
    ) -> ThetaDraws:
        """Draws of different documents of the same corpus, or a different number of draws.

        Draws from an array or a joint chain exist already, so the result has at most as many.

        Args:
            rows: ``(num_docs,)`` positions of the documents. Defaults to the same documents.
            num_draws: Number of draws of each document. Defaults to the same number.
            keep: Whether to keep the draws in memory for later passes, if they are few enough.

        Raises:
            ConfigError: ``num_draws`` is below 1.
        """
        rows = self.rows if rows is None else rows
        num_draws = self.num_draws if num_draws is None else num_draws
        draw = self.draw
        # The draws may be in memory. If most of the documents are wanted, it is also cheaper to
        # pass over all draws, which then stay there.
        selects = self._kept is not None or 2 * len(rows) > len(self.rows)
        if num_draws == self.num_draws and self._stays_in_memory and selects:
            draw, keep = self._select, False
        return replace(self, draw=draw, rows=rows, num_draws=num_draws, keep=keep)

    def several(self) -> Self:
        """These draws, if there are at least 2 of each document, for variances between them.

        Raises:
            ConfigError: There is 1.
        """
        if self.num_draws < 2:
            raise ConfigError(f"{self!r}; expected at least 2 draws")
        return self

    def of_selection(self, positions: Positions) -> ThetaDraws:
        """Draws of the selection ``corpus[positions]``, whose documents count from 0.

        Args:
            positions: ``(num_docs,)`` ascending positions in the corpus of these draws.
        """

        def draw(rows: Positions, num_draws: int) -> Iterator[DrawnDocuments]:
            for part in self.draw(positions[rows], num_draws):
                yield part._replace(rows=np.searchsorted(positions, part.rows))

        return replace(self, draw=draw, rows=np.arange(len(positions)), corpus=None)

    @property
    def theta(self) -> Tensor:
        """All draws ``(num_draws, num_docs, num_topics)``, in the order of :attr:`rows`."""
        theta: Tensor | None = None
        columns = np.empty(self.rows.max() + 1, np.int64)
        columns[self.rows] = np.arange(len(self.rows))
        for part in self:
            if theta is None:
                theta = part.theta.new_empty(self.num_draws, len(self.rows), self.model.num_topics)
            theta[:, torch.from_numpy(columns[part.rows])] = part.theta
        assert theta is not None
        return theta

    def __repr__(self) -> str:
        return (
            f"ThetaDraws({self.num_draws} draws of {len(self.rows)} documents, "
            f"{self.model.num_topics} topics, by {self.description})"
        )


def wanted_draws(
    num_docs: int, rows: Positions | None, num_draws: int | None
) -> tuple[Positions, int]:
    """Positions of the documents, by default all, and number of draws of each document."""
    rows = np.arange(num_docs) if rows is None else rows
    return rows, enough_draws(len(rows)) if num_draws is None else num_draws


def enough_draws(num_docs: int) -> int:
    """Number of draws of each document for accurate shares of topics.

    The Monte-Carlo standard error of a share is then at most 0.05 percentage points, half a unit of
    its last printed digit, for proportions with posterior standard deviations of up to 0.25. In
    corpora of fewer than 5,000 documents, the standard error is at most 1/14 of half the width of
    the share's 95 % interval.

    Args:
        num_docs: Number of documents in the mean of a share.
    """
    return min(max(FEWEST, math.ceil(ALL_DRAWS / max(num_docs, 1))), MOST)
