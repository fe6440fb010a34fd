"""Draws of documents' proportions from the posteriors that a guide solves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.budget import docs_at_once
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.guides import Guide
from torch_lntm.inference.draws.theta import DrawnDocuments, Positions
from torch_lntm.models.priors.prior import is_up_to_date
from torch_lntm.posteriors import Posterior
from torch_lntm.progress import tqdm

#: Eigenvalues of the coefficients' information, relative to the largest, that count as none: theta
#: does not depend on the shift that all topics of eta share.
NO_INFORMATION = 1e-10


@dataclass(eq=False)
class GuideDraws:
    """Draws from the posteriors that a guide solves, anew at every pass.

    Args:
        guide: The guide.
        corpus: The documents, with the covariates of the model.
        seed: Seed of the draws.
        means: ``(num_docs, latent_dim)`` where the solver starts; None for its own choice.
        max_docs: Documents computed together; None for what fits into memory.
        progress: Show a progress bar on standard error.

    Attributes:
        shifts: ``(num_draws, num_rows, latent_dim)`` draws of Σ⁻¹Δᵀ, where Δ is added to the
            coefficients of the prior's mean; None for coefficients as fitted.
    """

    guide: Guide[Any]
    corpus: Corpus
    seed: int
    means: Tensor | None
    max_docs: int | None
    progress: bool

    def __post_init__(self) -> None:
        """Start from the given means, or from none."""
        self.name = self.guide.name or type(self.guide).__name__
        self.description = f"the posterior {self.name}"
        self.shifts: Tensor | None = None
        self._model = self.guide.model
        # Later passes start where the first ended.
        size = (self.corpus.num_docs, self._model.latent_dim)
        self._means = torch.zeros(size, dtype=self._model.dtype)
        self._solved = torch.full(size[:1], self.means is not None)
        if self.means is not None:
            self._means.copy_(self.means)

    @property
    def sources_of_uncertainty(self) -> tuple[str, ...]:
        """See :class:`ThetaDraws`."""
        documents = f"the documents' proportions, by {type(self.guide).__name__}"
        if self.shifts is None:
            return (documents,)
        return (documents, "the coefficients of their prior mean")

    @torch.no_grad()
    def make(self, rows: Positions, num_draws: int) -> Iterator[DrawnDocuments]:
        """The draws of the documents at some positions, in parts."""
        for batch, posterior in self._posteriors(rows, num_draws):
            keys = noise.document_keys(self.seed, batch.index, num_draws)
            latent = posterior.draw(keys)
            if self.shifts is not None:
                found = self._model.prior.regressors(batch)
                assert found is not None
                moved = found[0] @ self.shifts[:num_draws]
                covariance = posterior.covariance.double()
                latent = latent + torch.einsum("sdj,djk->sdk", moved, covariance)
            theta = posterior.theta(latent).to(self._model.dtype).cpu()
            yield DrawnDocuments(batch.positions.numpy(), theta, posterior.converged.cpu())

    def _posteriors(
        self, rows: Positions, num_draws: int
    ) -> Iterator[tuple[DocumentBatch, Posterior]]:
        """The posteriors of the documents at some positions, batch by batch."""
        device, dtype = self._model.device, self._model.dtype
        numbers = self.guide.memory_per_document(self.corpus.nnz / self.corpus.num_docs)
        numbers = max(numbers, 3 * num_draws * self._model.num_topics)
        size = self.max_docs or docs_at_once(numbers, device, torch.float64)
        warm = self.guide.warm_start_rows == "documents"
        with tqdm(total=len(rows), desc="documents", unit="doc", disable=not self.progress) as bar:
            for batch in self.corpus.batches(size, order=rows, device=device, dtype=dtype):
                at = batch.positions
                known = warm and bool(self._solved[at].all())
                init = self._means[at].to(device, dtype) if known else None
                posterior = self.guide.posterior(batch, init)
                self._means[at] = posterior.mean.cpu().to(self._means)
                self._solved[at] = True
                yield batch, posterior
                bar.update(batch.num_docs)

    @torch.no_grad()
    def draw_coefficients(self, rows: Positions, num_draws: int) -> bool:
        """Draw :attr:`shifts`, if the prior's mean has coefficients; returns whether it has.

        Under the normal approximation coefficients Γ + Δ move the mean of document d from m_d to
        m_d + V_d Σ⁻¹ Δᵀx_d, and their information is

            Σ_d x_d x_dᵀ ⊗ (Σ⁻¹ − Σ⁻¹ V_d Σ⁻¹) + R ⊗ Σ⁻¹,

        the information that known eta would hold, less what is missing (*Louis 1982*).
        """
        prior = self._model.prior
        information: Tensor | None = None
        for batch, posterior in self._posteriors(rows, num_draws):
            found = prior.regressors(batch)
            if found is None or not is_up_to_date(prior, "regressors", "location"):
                return False
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
            return False
        values, vectors = torch.linalg.eigh((information + information.mT) / 2)
        certain = values <= NO_INFORMATION * values.max()
        scale = torch.where(certain, 0.0, values.clamp_min(1e-300).rsqrt())
        generator = torch.Generator().manual_seed(self.seed)
        white = torch.randn(num_draws, len(values), generator=generator, dtype=torch.float64).to(
            values.device
        )
        changes = (white * scale) @ vectors.mT
        self.shifts = changes.unflatten(1, (-1, len(precision))) @ precision
        return True


def _precision(prior: Any) -> Tensor:
    """Σ⁻¹ of a normal prior, float64."""
    precision: Tensor = torch.cholesky_inverse(prior.scale_tril.detach().double()).contiguous()
    return precision
