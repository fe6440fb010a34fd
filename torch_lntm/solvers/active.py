"""The documents that a solver still works on, and when one of them is done.

The documents of a batch converge at different speeds. A solver holds the tensors of the documents
that it still works on, and drops the rows of those that have stopped, which then cost nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class ActiveSet:
    """Which documents of a batch a solver works on, and how each of them ended.

    Dropping rows copies the tensors of all documents that stay. A solver may therefore hold stopped
    documents for a while and retire several together.

    Args:
        num_docs: Documents of the batch.
        device: Where their tensors are.
        sizes: ``(num_docs,)`` cost of holding each document; 1 if not given.
        idle_share: Largest share of the held documents' cost that stopped documents may have. With
            0 every document is retired as soon as it stops.

    Attributes:
        rows: ``(num_held,)`` int64 positions of the held documents in the batch.
        working: ``(num_docs,)`` bool, the document has not stopped.
        converged: ``(num_docs,)`` bool, the document stopped because it met the tolerance.
        iterations: ``(num_docs,)`` int64 iterations that the document was worked on.
        finished: No document is left to work on, as the last :meth:`drop_stopped` found.
    """

    def __init__(
        self,
        num_docs: int,
        device: torch.device,
        *,
        sizes: Tensor | None = None,
        idle_share: float = 0.0,
    ) -> None:
        self.rows = torch.arange(num_docs, device=device)
        self.working = torch.ones_like(self.rows, dtype=torch.bool)
        self.converged = torch.zeros_like(self.working)
        self.iterations = torch.zeros_like(self.rows)
        self.finished = num_docs == 0
        self._sizes = sizes
        self._held_size = num_docs if sizes is None else int(sizes.sum())
        self._idle_share = idle_share

    def step(self, converged: Tensor, failed: Tensor | None = None) -> None:
        """End an iteration of the held documents; the converged and the failed ones stop.

        Args:
            converged: ``(num_held,)`` bool, the document has met the tolerance.
            failed: ``(num_held,)`` bool, the document cannot be improved any more.
        """
        working = self.working[self.rows]
        self.iterations[self.rows] += working
        self.converged[self.rows] |= converged & working
        stopped = converged if failed is None else converged | failed
        self.working[self.rows] = working & ~stopped

    def drop_stopped(self, *held: Any) -> tuple[Any, ...]:
        """Take the stopped documents out if they cost more than ``idle_share`` allows.

        Args:
            *held: What the solver has of the held documents; see :func:`select_rows`.

        Returns:
            The same of the documents that are held now.
        """
        working = self.working[self.rows]
        # All that the host has to wait for, in one transfer.
        if self._sizes is None:
            left = size = int(working.sum())
        else:
            counts = torch.stack([working.sum(), (working * self._sizes[self.rows]).sum()])
            left, size = counts.tolist()
        self.finished = left == 0
        crowded = size < self._held_size and size <= (1.0 - self._idle_share) * self._held_size
        if self.finished or not crowded:
            return held
        keep = working.nonzero().squeeze(-1)
        self.rows, self._held_size = self.rows[keep], size
        return tuple(select_rows(part, keep) for part in held)


def select_rows(part: Any, rows: Tensor) -> Any:
    """The rows of some documents.

    Args:
        part: A tensor with a row for each document, a named tuple of such, an object whose
            ``select`` takes rows, or None.
        rows: int64.
    """
    if part is None:
        return None
    if isinstance(part, Tensor):
        return part[rows]
    if isinstance(part, tuple):
        return type(part)(*(select_rows(member, rows) for member in part))
    return part.select(rows)


def replace_rows(part: Tensor | tuple[Any, ...], rows: Tensor, other: Any) -> None:
    """Overwrite the rows of some documents, in a tensor or a named tuple, by those of ``other``."""
    if isinstance(part, Tensor):
        part[rows] = other
        return
    for mine, its in zip(part, other, strict=True):
        replace_rows(mine, rows, its)


def bound_rounding(bound: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
    """Nats by which rounding may lower bounds in a round: their own, and the logits', once a token.

    Args:
        bound: ``(num_docs,)`` float64.
        lengths: ``(num_docs,)`` tokens.
        logits: ``(num_docs, num_topics)`` in the precision in which the bounds are computed.
    """
    size = bound.abs() + lengths * logits.abs().amax(-1)
    return 4.0 * torch.finfo(logits.dtype).eps * size


def converged_or_failed(gain: Tensor, tolerance: float, rounding: Tensor) -> tuple[Tensor, Tensor]:
    """Which documents have converged in an ascent on a bound, and which have failed.

    A document has converged once an iteration gains too little. In exact arithmetic no iteration
    lowers the bound; if the bound fell by more than rounding explains, the document has failed.

    Args:
        gain: ``(num_docs,)`` float64 gain of the bound in the last iteration, nats.
        tolerance: Gain below which a document has converged.
        rounding: ``(num_docs,)`` float64, largest change of the gain that rounding explains.

    Returns:
        Converged and failed documents, both ``(num_docs,)`` bool.
    """
    fell = gain < -rounding.clamp_min(tolerance)
    return (gain <= tolerance) & ~fell, fell
