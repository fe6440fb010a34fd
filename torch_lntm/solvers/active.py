"""Bookkeeping of which of a solver's documents are active, converged or failed.

The documents of a batch converge at different speeds. A solver therefore holds tensors of its
active documents only, and drops the rows of those that have stopped, so that they cost nothing
more.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor


class ActiveSet:
    """Active documents of a batch, and the outcome of each document.

    Because dropping rows copies the tensors of all remaining documents, a solver may hold stopped
    documents for a while and drop several together.

    Args:
        num_docs: Documents of the batch.
        device: Device of their tensors.
        sizes: ``(num_docs,)`` cost of holding each document. Defaults to 1.
        idle_share: Largest share of the held documents' cost for stopped documents. With 0, the
            default, every document is dropped as soon as it stops.

    Attributes:
        rows: ``(num_held,)`` int64 positions of the held documents in the batch.
        working: ``(num_docs,)`` bool, whether the document is active.
        converged: ``(num_docs,)`` bool, whether the document stopped at the tolerance.
        iterations: ``(num_docs,)`` int64 iterations of the document while active.
        finished: Whether the last :meth:`drop_stopped` found every document stopped.
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
        """End an iteration of the held documents; converged and failed documents stop.

        Args:
            converged: ``(num_held,)`` bool, whether the document has met the tolerance.
            failed: ``(num_held,)`` bool, whether the document cannot be improved any more.
        """
        working = self.working[self.rows]
        self.iterations[self.rows] += working
        self.converged[self.rows] |= converged & working
        stopped = converged if failed is None else converged | failed
        self.working[self.rows] = working & ~stopped

    def drop_stopped(self, *held: Any) -> tuple[Any, ...]:
        """Drop the stopped documents if they cost more than ``idle_share`` allows.

        Args:
            *held: Values of the held documents, as for :func:`select_rows`.

        Returns:
            The values of the documents held now.
        """
        working = self.working[self.rows]
        # A single transfer, so that the host waits for these numbers only once.
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
        return tuple(map(partial(select_rows, rows=keep), held))


def select_rows(part: Any, rows: Tensor) -> Any:
    """The rows of some documents.

    Args:
        part: A tensor with a row for each document, a named tuple of such tensors, an object with a
            ``select`` method for rows, or None.
        rows: int64.
    """
    if part is None:
        return None
    if isinstance(part, Tensor):
        return part[rows]
    if isinstance(part, tuple):
        return type(part)(*map(partial(select_rows, rows=rows), part))
    return part.select(rows)


def replace_rows(part: Tensor | tuple[Any, ...], rows: Tensor, other: Any) -> None:
    """Overwrite rows of documents in a tensor or a named tuple by the rows of ``other``."""
    if isinstance(part, Tensor):
        part[rows] = other
        return
    for target, source in zip(part, other, strict=True):
        replace_rows(target, rows, source)


def bound_rounding(bound: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
    """Largest fall of each bound that rounding can cause in a round, in nats.

    The result is the rounding of the bound plus, for each token, the rounding of the logits.

    Args:
        bound: ``(num_docs,)`` float64.
        lengths: ``(num_docs,)`` tokens.
        logits: ``(num_docs, num_topics)`` in the precision of the bounds' computation.
    """
    size = bound.abs() + lengths * logits.abs().amax(-1)
    return 4.0 * torch.finfo(logits.dtype).eps * size


def converged_or_failed(gain: Tensor, tolerance: float, rounding: Tensor) -> tuple[Tensor, Tensor]:
    """Converged and failed documents of an ascent on a bound.

    A document has converged once an iteration gains too little. In exact arithmetic no iteration
    lowers the bound, so a document whose bound fell by more than rounding explains has failed.

    Args:
        gain: ``(num_docs,)`` float64 gain of the bound in the last iteration, nats.
        tolerance: Gain below which a document has converged.
        rounding: ``(num_docs,)`` float64 largest change of the gain by rounding.

    Returns:
        Converged and failed documents, both ``(num_docs,)`` bool.
    """
    fell = gain < -rounding.clamp_min(tolerance)
    return (gain <= tolerance) & ~fell, fell
