"""Design matrices of the documents' columns, in a basis that loses none of their digits."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.errors import ConfigError

#: A column whose own part is relatively smaller than this is determined by the terms before it.
DEPENDENT = 1e-9
#: Units in the last place that a column's own part must exceed.
RESOLVED = 200
#: Bits of an offset that is subtracted at once.
BITS = 22
#: A document or cluster with this share in its own fitted value counts as determining it alone.
WHOLE = 1 - 1e-10
#: A column with at most this share of its squares within levels counts as constant within them.
CONSTANT = 1e-9


class Design:
    """The design matrix of all documents, and the same columns in an orthonormal basis.

    A time such as 1e12 + t would lose the digits of t in the first product, so offsets are
    subtracted before any product is formed. The offset of column j is a sum Σ_i b_ij d_i over the
    columns d of zeros and ones. Its coefficients b have so few bits that the subtraction is exact.
    What remains is scaled and factored by QR.

    Args:
        names: ``(num_terms,)`` names of the columns.
        raw: ``(num_docs, num_terms)`` the columns.
        weights: ``(num_docs,)`` weights, of mean 1. Defaults to equal weights.
        clusters: ``(num_docs,)`` cluster of each document, if any.
        strata: Stratum of each cluster or, without clusters, of each document, if any.
        positions: ``(num_docs, num_random_terms)`` level of each document in the random terms.
        sizes: Number of levels of each random term.

    Attributes:
        x: ``(num_docs, num_terms)`` the columns in the basis, orthonormal under the weights.
        flags: Positions of the columns of zeros and ones.
        offsets: ``(num_flags, num_terms)`` coefficients b of the offsets.
        basis: ``(num_terms, num_terms)`` matrix from columns without offsets to the basis.
        strata: Given, or a single stratum of all clusters.
        freedom: Degrees of freedom of the regression, for independent documents or for clusters.
        positions: A design without random terms has one term without levels, in which no document
            has one.

    Raises:
        ConfigError: Earlier columns determine a column, its digits are lost, or there are too few
            documents or clusters.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        raw: NDArray[np.float64],
        weights: NDArray[np.float64] | None = None,
        clusters: NDArray[np.int64] | None = None,
        strata: NDArray[np.int64] | None = None,
        positions: NDArray[np.int64] | None = None,
        sizes: tuple[int, ...] = (),
    ) -> None:
        num_docs, num_terms = raw.shape
        if num_docs <= num_terms:
            raise ConfigError(
                f"{num_docs} documents with words for {num_terms} coefficients; expected more "
                "documents"
            )
        w = np.ones(num_docs) if weights is None else weights
        self.names, self.raw, self.weights = names, np.array(raw), torch.from_numpy(w)
        self.clusters = None if clusters is None else torch.from_numpy(clusters)
        freedom = num_docs - num_terms + 1
        if clusters is not None:
            freedom = int(clusters.max()) + 1
            strata = np.zeros(freedom, np.int64) if strata is None else strata
            if freedom == 1:
                raise ConfigError("1 cluster; expected at least 2")
        self.strata = None if strata is None else torch.from_numpy(strata)
        self.freedom = max(1.0, freedom - (1.0 if strata is None else strata.max() + 1.0))
        if positions is None:
            positions, sizes = np.full((num_docs, 1), -1), (0,)
        self.positions, self.sizes = torch.from_numpy(positions), sizes
        self.flags = [j for j in range(num_terms) if np.isin(raw[:, j], (0.0, 1.0)).all()]
        self.offsets = _offsets(raw, self.flags)
        moved = raw - raw[:, self.flags] @ self.offsets
        size = np.sqrt(w @ moved**2)
        scale = np.where(size > 0, size, 1.0)
        q, r = np.linalg.qr(np.sqrt(w)[:, None] * moved / scale)
        own = np.abs(np.diagonal(r))
        digits = np.finfo(np.float64).eps * np.abs(raw).max(0)
        blurred = own * size / np.sqrt(w.sum()) < RESOLVED * digits
        for name, part, is_blurred in zip(names, own, blurred, strict=True):
            if part < DEPENDENT:
                raise ConfigError(
                    f"{name} is determined by the terms before it in these {num_docs} documents; "
                    "leave it out (a spline by bs takes fewer df, a spline by cr "
                    "constraints='center')"
                )
            if is_blurred:
                raise ConfigError(
                    f"{name} varies too little beside its size and the terms before it: float64 "
                    "rounds the variation; use center(...) of the column within the formula, as in "
                    "I(center(time)**2), or subtract a constant first"
                )
        self.x = torch.from_numpy(q / np.sqrt(w)[:, None])
        self.basis = np.linalg.inv(r) / scale[:, None]

    def rows(self, raw: NDArray[np.float64]) -> Tensor:
        """Rows ``(num_rows, num_terms)`` of columns, in the basis."""
        return torch.from_numpy((raw - raw[:, self.flags] @ self.offsets) @ self.basis)

    @cached_property
    def back(self) -> Tensor:
        """Matrix that turns coefficients in the basis into coefficients of the columns."""
        coefficients = self.basis.copy()
        coefficients[self.flags] -= self.offsets @ self.basis
        return torch.from_numpy(coefficients)

    @cached_property
    def leverage(self) -> Tensor:
        """``(num_docs,)`` share of each document in its own fitted value."""
        return self.weights * self.x.square().sum(1)

    @cached_property
    def alone(self) -> Tensor:
        """Positions of the documents that determine some coefficient all by themselves."""
        return (self.leverage > WHOLE).nonzero().squeeze(1)

    @cached_property
    def unknown(self) -> list[tuple[list[int], Tensor]]:
        """Clusters that alone determine coefficients.

        Returns:
            For each, its documents on which the coefficients depend, and their directions
            ``(num_terms, n)``.
        """
        found: list[tuple[list[int], Tensor]] = []
        if self.clusters is None:
            return found
        shares = torch.bincount(self.clusters, self.leverage)
        # The shares sum to the number of terms, so only a few clusters can determine a direction.
        for g in (shares > WHOLE).nonzero().squeeze(1).tolist():
            rows = (self.clusters == g).nonzero().squeeze(1)
            x = self.x[rows]
            values, vectors = torch.linalg.eigh(x.mT @ (self.weights[rows, None] * x))
            if bool((values > WHOLE).any()):
                moved = (x @ vectors[:, values > WHOLE]).abs().amax(1)
                found.append(
                    (rows[moved > 1e-7 * moved.max()].tolist(), vectors[:, values > WHOLE])
                )
        return found

    @property
    def directions(self) -> Tensor | None:
        """All directions of :attr:`unknown` ``(num_terms, num_directions)``, if any."""
        return torch.cat([at for _, at in self.unknown], 1) if self.unknown else None

    def containment(self, freedom: float) -> Tensor:
        """Degrees of freedom ``(num_terms,)`` of the coefficients, by the containment rule.

        A column that is constant within the levels of a random term gets as many degrees as the
        term has levels, less the number of such columns.

        Args:
            freedom: Degrees of freedom of other columns.
        """
        raw, weights = torch.from_numpy(self.raw), self.weights[:, None]
        total = (weights * (raw - (weights * raw).sum(0) / weights.sum()).square()).sum(0)
        result = torch.full((raw.shape[1],), freedom, dtype=torch.float64)
        for size, at in zip(self.sizes, self.positions.mT, strict=True):
            sums = raw.new_zeros(size, raw.shape[1] + 1)
            sums.index_add_(0, at, weights * torch.cat([raw, torch.ones_like(weights)], 1))
            means = sums[:, :-1] / sums[:, -1:].clamp_min(1e-300)
            constant = (weights * (raw - means[at]).square()).sum(0) <= CONSTANT * total
            bound = float(max(1, size - int(constant.sum())))
            result = result.where(~constant, result.clamp_max(bound))
        return result

    def determined(self, directions: Tensor) -> str:
        """Names of the columns whose coefficients move in some directions of the basis."""
        moves = (self.back @ directions).abs().reshape(len(self.names), -1).amax(1)
        moves = moves * torch.from_numpy(np.abs(self.raw).max(0))
        moved = (moves > 1e-7 * moves.max()).nonzero().squeeze(1).tolist()
        names = [self.names[j] for j in moved]
        return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _offsets(raw: NDArray[np.float64], flags: list[int]) -> NDArray[np.float64]:
    """Coefficients of the columns of zeros and ones near those of the other columns' regression."""
    result = np.zeros((len(flags), raw.shape[1]))
    if not flags:
        return result
    flagged = raw[:, flags]
    inverse = np.linalg.pinv(flagged.T @ flagged)
    for _ in range(2):
        found = inverse @ (flagged.T @ (raw - flagged @ result))
        found[:, flags] = 0.0
        largest = np.abs(found).max(0)
        grid = 2.0 ** (np.ceil(np.log2(np.where(largest > 0, largest, 1.0))) - BITS)
        result += np.round(found / grid) * grid
    return result
