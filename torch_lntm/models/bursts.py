"""Bursts: how much documents repeat their own words."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from torch_lntm.corpus import DocumentBatch
from torch_lntm.kernels.bursts import tables_of
from torch_lntm.models.snapshot import Snapshot

#: Where the concentration starts: tokens of documents from which their own words weigh as much as
#: their topics; and its bounds, at the upper of which words are independent draws.
START, LOWEST, HIGHEST = 200.0, 1e-3, 1e7
#: Largest change of its logarithm in an M-step; and curvature, in tokens, that counts as none.
MAX_STEP, NEGLIGIBLE = 1.0, 1e-6


class Bursts(nn.Module):
    """The concentration a of documents' own distributions of words, Dirichlet(a q).

    q is the mixture of topics; see :mod:`torch_lntm.kernels.bursts`. After N tokens the next one
    comes from the topics with probability a / (a + N), and else repeats one of them.

    Args:
        dtype: Floating-point type.

    Attributes:
        log_concentration: log a ``()``, a parameter. Its prior is flat.
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.log_concentration = nn.Parameter(torch.tensor(math.log(START), dtype=dtype))
        self._known: tuple[Snapshot, Tensor] | None = None

    @property
    def concentration(self) -> Tensor:
        """The number a ``()``, float64, with its gradient."""
        return self.log_concentration.double().exp()

    @property
    def value(self) -> Tensor:
        """The number a ``()``, float64, without a gradient.

        It is the same tensor until the parameter changes, so that batches that have it can tell.
        """
        log_a = cast(Tensor, self.log_concentration)
        if not isinstance(log_a, nn.Parameter):  # a handler's, for the time of one call
            return self.concentration.detach()
        if self._known is None or not self._known[0].holds([log_a]):
            # Not of inference mode, since batches keep it, and are trained on later.
            with torch.inference_mode(False), torch.no_grad():
                self._known = (Snapshot([log_a]), self.concentration)
        return self._known[1]

    @torch.no_grad()
    def statistics(
        self, probability: Tensor, batch: DocumentBatch, shares: Tensor | None = None
    ) -> Tensor:
        """What :meth:`m_step` takes, summed over documents: ``(2,)`` float64.

        With g and h the log likelihood's derivatives in log a: −h, and g − h log a. Sums of these
        over batches that were met at different a still say where the maximum is; sums of g do not.

        Args:
            probability: ``(nnz,)`` q at the stored counts.
            batch: The documents, with this concentration.
            shares: ``(num_docs,)`` how much each document counts; by default 1.
        """
        a, lengths = self.concentration, batch.lengths.double()
        entries, counts = batch.repeated
        # Of words that no topic has, the square of the rate would be 0.
        rate = (a * probability[entries].double()).clamp_min(1e-100)
        tables = tables_of(counts, rate)
        bend = rate.square() * (torch.polygamma(1, counts + rate) - torch.polygamma(1, rate))
        # Of a word that is there once, the first derivative is 1 and the second 0.
        of_words = torch.stack([tables - 1.0, tables + bend])
        shared = a * (torch.digamma(a + lengths) - torch.digamma(a))
        shared_bend = a.square() * (torch.polygamma(1, a + lengths) - torch.polygamma(1, a))
        of_documents = torch.stack([batch.row_offsets.diff() - shared, -shared - shared_bend])
        if shares is not None:
            of_documents = of_documents * shares.double()
            of_words = of_words * shares.double()[batch.row_index[entries]]
        slope, curvature = of_documents.sum(1) + of_words.sum(1)
        return torch.stack([-curvature, slope - curvature * self.log_concentration.double()])

    @torch.no_grad()
    def m_step(self, statistics: Tensor) -> None:
        """A step in log a toward the maximum of the log likelihood, by sums over all batches.

        Newton's where the log likelihood is concave, which near the maximum it is. Elsewhere a step
        of bounded size, after which it may be a little lower than before.
        """
        bend, line = statistics
        present = self.log_concentration.double()
        slope = line - bend * present
        # Where the log likelihood is not concave, or nearly flat, the step has the largest size;
        # none where the documents say nothing.
        step = slope / torch.maximum(bend, slope.abs() / MAX_STEP).clamp_min(NEGLIGIBLE)
        found = (present + step).clamp(math.log(LOWEST), math.log(HIGHEST))
        self.log_concentration.copy_(found)
