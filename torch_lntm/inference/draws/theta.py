"""ThetaDraws: draws of the topic proportions of a corpus's documents, whoever makes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.budget import docs_at_once
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.models import TopicModel

if TYPE_CHECKING:
    from typing import Self

Positions = NDArray[np.int64]
#: Quantities that a fit estimates and draws of the documents' proportions take as known.
FIXED = ("the topics' words", "the prior's covariance")
#: Draws are kept after the first pass over them, up to this many numbers: 256 MB of float32.
MAX_KEPT = 2**26
#: Fewest and most draws of a document that :func:`enough_draws` asks for, and draws of all
#: documents together above which it asks for no more.
FEWEST, MOST, ALL_DRAWS = 25, 50, 250_000


class DrawnDocuments(NamedTuple):
    """Draws of some documents' proportions, on the CPU.

    Attributes:
        rows: ``(num_docs,)`` positions of the documents in the corpus.
        theta: ``(num_draws, num_docs, num_topics)`` proportions.
        converged: ``(num_docs,)`` whether the document's posterior met its guide's tolerance, or
            all of its chains moved.
    """

    rows: Positions
    theta: Tensor
    converged: Tensor


#: Draws of the documents at some positions, in parts: ``make(rows, num_draws)``.
DrawsDocuments = Callable[[Positions, int], Iterator[DrawnDocuments]]


@dataclass(eq=False, repr=False)
class ThetaDraws:
    """Draws of the topic proportions of a corpus's documents.

    Guides, chains and joint chains make them: see :func:`theta_draws` and :func:`joint_draws`.
    Reports, effects and other libraries take them. Iteration yields the documents in parts
    (:class:`DrawnDocuments`), so that large corpora need little memory; :attr:`theta` is the whole
    array. The draws are made at the first pass. Later passes read them from memory where they
    have at most 67 million numbers (``keep``), and make the same draws again otherwise. For
    example::

        draws = lntm.inference.theta_draws(result.posterior, corpus, num_draws=25)
        draws.theta  # (25, num_docs, num_topics)
        effects = lntm.effects.estimate(model, draws, corpus, "~ party")

    Attributes:
        make: Function that makes the draws of the documents at some positions.
        model: The model. Draws of topics, as by :func:`joint_draws`, have their mean in it.
        rows: ``(num_docs,)`` positions of the documents in the corpus.
        num_draws: Draws of each document.
        name: Name of the posterior in a recipe.
        description: Maker of the draws, in words.
        sources_of_uncertainty: Quantities that vary between draws, in words.
        fixed: Quantities that the fit estimates and that the draws take as known, in words.
        max_draws: Number of draws that exist, where no others can be made; None elsewhere.
        keep: Keep the draws in memory for later passes, unless they are too many.
    """

    make: DrawsDocuments
    model: TopicModel
    rows: Positions
    num_draws: int
    name: str
    description: str
    sources_of_uncertainty: tuple[str, ...]
    fixed: tuple[str, ...] = FIXED
    max_draws: int | None = None
    keep: bool = True
    _kept: list[DrawnDocuments] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Take no more draws than there are.

        Raises:
            ConfigError: ``num_draws`` is below 1.
        """
        require_whole(1, num_draws=self.num_draws)
        if self.max_draws is not None:
            self.num_draws = min(self.num_draws, self.max_draws)

    @classmethod
    def of(
        cls,
        theta: Tensor,
        model: TopicModel,
        rows: Positions | None = None,
        *,
        name: str = "draws",
        description: str = "the draws given",
        sources_of_uncertainty: tuple[str, ...] | None = None,
        fixed: tuple[str, ...] = FIXED,
    ) -> Self:
        """Draws that exist already, as an array.

        Args:
            theta: ``(num_draws, num_docs, num_topics)`` proportions.
            model: The model.
            rows: ``(num_docs,)`` ascending positions of the documents in the corpus. Defaults to
                all documents, in order.
            name: Name of the posterior in a recipe.
            description: Maker of the draws, in words.
            sources_of_uncertainty: Quantities that vary between draws, in words. Defaults to the
                documents' proportions.
            fixed: Quantities that the fit estimates and that the draws take as known, in words.

        Raises:
            ConfigError: The array has another shape, or holds other numbers than proportions.
        """
        theta = theta.detach().cpu()
        if theta.dim() != 3 or theta.shape[2] != model.num_topics or not len(theta):
            raise ConfigError(
                f"draws of shape {tuple(theta.shape)}; expected (num_draws, num_docs, "
                f"{model.num_topics})"
            )
        if not bool(torch.isfinite(theta).all()) or bool((theta < 0).any()):
            raise ConfigError("draws of theta must be finite and not negative")
        held = np.arange(theta.shape[1]) if rows is None else rows

        def make(wanted: Positions, num_draws: int) -> Iterator[DrawnDocuments]:
            at = np.searchsorted(held, wanted)
            if (at >= len(held)).any() or (held[at] != wanted).any():
                raise ConfigError(
                    f"draws of {len(held)} documents do not hold all of the {len(wanted)} "
                    "documents asked for; draw them for the same corpus"
                )
            size = docs_at_once(num_draws * model.num_topics, "cpu", torch.float64)
            for first in range(0, len(wanted), size):
                part = torch.from_numpy(at[first : first + size])
                converged = torch.ones(len(part), dtype=torch.bool)
                found = theta[:num_draws, part]
                yield DrawnDocuments(wanted[first : first + size], found, converged)

        return cls(
            make,
            model,
            held,
            len(theta),
            name,
            description,
            sources_of_uncertainty or (f"the documents' proportions, by {description}",),
            fixed,
            max_draws=len(theta),
            keep=False,
        )

    def __iter__(self) -> Iterator[DrawnDocuments]:
        if self._kept is not None:
            yield from self._kept
            return
        parts = []
        for part in self.make(self.rows, self.num_draws):
            if self._is_kept:
                parts.append(part)
            yield part
        if self._is_kept:
            self._kept = parts

    @property
    def _is_kept(self) -> bool:
        """Whether the draws stay in memory after the first pass."""
        numbers = self.num_draws * len(self.rows) * self.model.num_topics
        return self.keep and numbers <= MAX_KEPT

    def _select(self, rows: Positions, num_draws: int) -> Iterator[DrawnDocuments]:
        """The draws of most of the documents, from all draws."""
        if num_draws != self.num_draws or not np.isin(rows, self.rows).all():
            yield from self.make(rows, num_draws)
            return
        for part in self:
            taken = np.flatnonzero(np.isin(part.rows, rows))
            if len(taken) == len(part.rows):
                yield part
            elif len(taken):
                at = torch.from_numpy(taken)
                yield DrawnDocuments(part.rows[taken], part.theta[:, at], part.converged[at])

    def take(
        self, rows: Positions | None = None, num_draws: int | None = None, *, keep: bool = True
    ) -> ThetaDraws:
        """Draws of other documents of the same corpus, or another number of draws.

        Draws that exist as an array, or by joint chains, have no others: the result then has at
        most their number.

        Args:
            rows: ``(num_docs,)`` positions of the documents. Defaults to the same documents.
            num_draws: Draws of each document. Defaults to the same number.
            keep: Keep them in memory for later passes, unless they are too many.

        Raises:
            ConfigError: ``num_draws`` is below 1.
        """
        rows = self.rows if rows is None else rows
        num_draws = self.num_draws if num_draws is None else num_draws
        make = self.make
        if num_draws == self.num_draws and self._is_kept and 2 * len(rows) > len(self.rows):
            make, keep = self._select, False
        return replace(self, make=make, rows=rows, num_draws=num_draws, keep=keep)

    @property
    def theta(self) -> Tensor:
        """All draws ``(num_draws, num_docs, num_topics)``, in the order of :attr:`rows`."""
        found: Tensor | None = None
        place = np.empty(self.rows.max() + 1, np.int64)
        place[self.rows] = np.arange(len(self.rows))
        for part in self:
            if found is None:
                found = part.theta.new_empty(self.num_draws, len(self.rows), self.model.num_topics)
            found[:, torch.from_numpy(place[part.rows])] = part.theta
        assert found is not None
        return found

    def __repr__(self) -> str:
        return (
            f"ThetaDraws({self.num_draws} draws of {len(self.rows)} documents, "
            f"{self.model.num_topics} topics, by {self.description})"
        )


def enough_draws(num_docs: int) -> int:
    """Draws of each document that shares of topics need.

    The Monte-Carlo standard error of a share is then at most 0.05 percentage points, half a unit
    of its last printed digit, as long as proportions have posterior standard deviations of up to
    0.25; or, in a corpus of fewer than 5,000 documents, at most a fourteenth of half the width of
    the share's 95 % interval.

    Args:
        num_docs: Documents that the shares are means over.
    """
    return min(max(FEWEST, math.ceil(ALL_DRAWS / max(num_docs, 1))), MOST)
