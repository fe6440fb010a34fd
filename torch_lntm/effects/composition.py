"""Draws of all documents' topic proportions, from their posteriors or from chains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm import noise
from torch_lntm.budget import docs_at_once
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.guides import Guide
from torch_lntm.models.priors.prior import keeps_up
from torch_lntm.posteriors import Posterior

#: Eigenvalues of the coefficients' information, relative to the largest, that count as none: theta
#: does not depend on the shift that all topics of eta share.
NO_INFORMATION = 1e-10
#: What a fit leaves open and draws of the documents' proportions do not hold.
LEFT_OPEN = ("the topics' words", "the prior's covariance")


class ThetaDraws(NamedTuple):
    """Draws of some documents' proportions.

    Attributes:
        rows: ``(num_docs,)`` positions of the documents in the corpus.
        theta: ``(num_draws, num_docs, num_topics)`` float64, on the CPU.
    """

    rows: NDArray[np.int64]
    theta: Tensor


class GivenDraws:
    """Draws that are there already, such as those of chains.

    Args:
        theta: ``(num_draws, num_docs, num_topics)``.
        rows: Positions of the documents to take.
        propagated: What they are draws of, in words.
        left_open: What the fit leaves open and is not in them.
    """

    def __init__(
        self,
        theta: Tensor,
        rows: NDArray[np.int64],
        propagated: tuple[str, ...],
        left_open: tuple[str, ...] = LEFT_OPEN,
    ) -> None:
        self.propagated, self.left_open = propagated, left_open
        self._theta = theta.detach().cpu()
        self._rows = rows
        self._at_once = docs_at_once(theta.shape[0] * theta.shape[2], "cpu", torch.float64)

    def __iter__(self) -> Iterator[ThetaDraws]:
        for first in range(0, len(self._rows), self._at_once):
            rows = self._rows[first : first + self._at_once]
            yield ThetaDraws(rows, self._theta[:, torch.from_numpy(rows)].double())


class PosteriorDraws:
    """Draws from the documents' own posteriors, at every pass the same to the solver's tolerance.

    A draw is of the prior mean's coefficients too, where the prior has any: all documents share it.
    Under the normal approximation coefficients Γ + Δ move the mean of document d from m_d to m_d +
    V_d Σ⁻¹ Δᵀx_d, and their information is

        Σ_d x_d x_dᵀ ⊗ (Σ⁻¹ − Σ⁻¹ V_d Σ⁻¹) + R ⊗ Σ⁻¹,

    that of known eta less what is missing for they are not known (*Louis 1982*).

    Args:
        guide: The guide.
        corpus: The documents, with the covariates that the model's prior reads.
        rows: Positions of the documents to take.
        num_draws: Number of draws.
        seed: Seed of the draws.
        coefficients: Whether to draw the coefficients of the prior mean.
    """

    left_open = LEFT_OPEN

    def __init__(
        self,
        guide: Guide[Any],
        corpus: Corpus,
        rows: NDArray[np.int64],
        num_draws: int,
        seed: int,
        coefficients: bool,
    ) -> None:
        self._guide = guide
        self._model = guide.model
        self._corpus = corpus
        self._rows = rows
        self._num_draws = num_draws
        self._seed = seed
        per_document = guide.memory_per_document(corpus.nnz / corpus.num_docs)
        per_document = max(per_document, 3 * num_draws * self._model.num_topics)
        self._at_once = docs_at_once(per_document, self._model.device, torch.float64)
        # Later passes start where the first ended.
        self._means = torch.zeros(corpus.num_docs, self._model.latent_dim, dtype=self._model.dtype)
        self._solved = False
        self._shifts = self._draw_coefficients() if coefficients else None

    @property
    def propagated(self) -> tuple[str, ...]:
        """What the draws are of, in words."""
        said = (f"the documents' proportions, by {type(self._guide).__name__}",)
        if self._shifts is None:
            return said
        return (*said, "the coefficients of their prior mean")

    def _posteriors(self) -> Iterator[tuple[DocumentBatch, Posterior]]:
        device, dtype = self._model.device, self._model.dtype
        starts_anew = not self._solved or self._guide.starts_from != "documents"
        for batch in self._corpus.batches(
            self._at_once, order=self._rows, device=device, dtype=dtype
        ):
            init = None if starts_anew else self._means[batch.positions].to(device, dtype)
            posterior = self._guide.posterior(batch, init)
            self._means[batch.positions] = posterior.mean.cpu().to(self._means)
            yield batch, posterior
        self._solved = True

    def _draw_coefficients(self) -> Tensor | None:
        """Draws of Σ⁻¹Δᵀ ``(num_draws, num_rows, latent_dim)``, on the model's device."""
        prior = self._model.prior
        information: Tensor | None = None
        for batch, posterior in self._posteriors():
            found = prior.regressors(batch)
            if found is None or not keeps_up(prior, "regressors", "location"):
                return None
            x, penalties = found
            precision = _precision(prior)
            missing = precision @ posterior.covariance.double() @ precision
            known = (precision - missing).flatten(1)
            outer = (x[:, :, None] * x[:, None, :]).flatten(1)
            if information is None:
                information = torch.kron(penalties.diag().contiguous(), precision)
            size = (len(penalties), len(penalties), len(precision), len(precision))
            added = (outer.mT @ known).view(size).transpose(1, 2)
            information = information + added.reshape(information.shape)
        if information is None:
            return None
        values, vectors = torch.linalg.eigh((information + information.mT) / 2)
        certain = values <= NO_INFORMATION * values.max()
        scale = torch.where(certain, 0.0, values.clamp_min(1e-300).rsqrt())
        generator = torch.Generator().manual_seed(self._seed)
        white = torch.randn(
            self._num_draws, len(values), generator=generator, dtype=torch.float64
        ).to(values.device)
        changes = (white * scale) @ vectors.mT
        return changes.unflatten(1, (-1, len(precision))) @ precision

    def __iter__(self) -> Iterator[ThetaDraws]:
        for batch, posterior in self._posteriors():
            keys = noise.document_keys(self._seed, batch.index, self._num_draws)
            latent = posterior.draw(keys)
            if self._shifts is not None:
                found = self._model.prior.regressors(batch)
                assert found is not None
                moved = found[0] @ self._shifts
                covariance = posterior.covariance.double()
                latent = latent + torch.einsum("sdj,djk->sdk", moved, covariance)
            yield ThetaDraws(batch.positions.numpy(), posterior.theta(latent).cpu().double())


def _precision(prior: Any) -> Tensor:
    """Σ⁻¹ of a normal prior, float64."""
    precision: Tensor = torch.cholesky_inverse(prior.scale_tril.detach().double()).contiguous()
    return precision
