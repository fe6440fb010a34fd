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
from torch_lntm.guides.theta_draws import DrawnDocuments, DrawOptions, Positions
from torch_lntm.models.parts import is_up_to_date
from torch_lntm.posteriors import Posterior
from torch_lntm.progress import tqdm

#: Eigenvalues of the coefficients' information up to this share of the largest count as 0. Some do,
#: because a shift of all topics of eta leaves theta the same, so documents say nothing about it.
NO_INFORMATION = 1e-10


class WarmStarts:
    """Means of documents' posteriors by position in a corpus, at which the next solutions start.

    Args:
        guide: The guide. Warm starts with rows for stored counts are not kept.
        num_docs: Number of documents of the corpus.
    """

    def __init__(self, guide: Any, num_docs: int) -> None:
        self.num_docs, self._is_used = num_docs, guide.warm_start_rows == "documents"
        self._means = torch.zeros(num_docs, guide.model.latent_dim, dtype=guide.model.dtype)
        self._lengths = torch.full((num_docs,), torch.nan)

    def read(self, batch: DocumentBatch) -> Tensor | None:
        """The means of a batch, if all its documents are known: as long as the last ones there."""
        at = batch.positions
        known = self._lengths[at] == batch.lengths.cpu()
        return self._means[at] if self._is_used and bool(known.all()) else None

    def write(self, at: Any, lengths: Tensor, means: Tensor) -> None:
        """Remember the means of the documents at some positions."""
        self._lengths[at] = lengths.to(self._lengths)
        self._means[at] = means.detach().to(self._means)


@dataclass(eq=False)
class GuideDraws:
    """Draws from the posteriors that a guide solves, anew at every pass.

    Args:
        guide: The guide.
        corpus: The documents, with the covariates of the model.
        options: Options of the draws.

    Attributes:
        shifts: ``(num_draws, num_coefficients, latent_dim)`` draws of ΔΣ⁻¹, where Δ is added to
            the coefficients of the prior's mean. ``None`` keeps the fitted coefficients.
    """

    guide: Any
    corpus: Corpus
    options: DrawOptions

    def __post_init__(self) -> None:
        """Store the starting points."""
        self.shifts: Tensor | None = None
        self._model = self.guide.model
        # A later pass starts at the means of the first.
        self._starts = WarmStarts(self.guide, self.corpus.num_docs)
        if self.options.means is not None:
            lengths = torch.tensor(self.corpus.lengths)
            self._starts.write(slice(None), lengths, self.options.means)

    @property
    def sources_of_uncertainty(self) -> tuple[str, ...]:
        """See :class:`ThetaDraws`."""
        documents = f"the documents' proportions, by {type(self.guide).__name__}"
        if self.shifts is None:
            return (documents,)
        return (documents, "the coefficients of their prior mean")

    @torch.no_grad()
    def draw(self, rows: Positions, num_draws: int) -> Iterator[DrawnDocuments]:
        """Draws of the documents at some positions, in parts."""
        # Draws depend on the position of a document in the whole corpus.
        first = 0 if self.corpus.part is None else self.corpus.part.first
        for batch, posterior in self._posteriors(rows, num_draws):
            keys = noise.document_keys(self.options.seed, batch.index + first, num_draws)
            latent = posterior.draw(keys)
            if self.shifts is not None:
                shift = self._model.prior.mean_shift(batch, self.shifts[:num_draws])
                covariance = posterior.covariance.double()
                latent = latent + torch.einsum("sdj,djk->sdk", shift, covariance)
            theta = posterior.theta(latent).to(self._model.dtype).cpu()
            yield DrawnDocuments(batch.positions.numpy(), theta, posterior.converged.cpu())

    def _posteriors(
        self, rows: Positions, num_draws: int
    ) -> Iterator[tuple[DocumentBatch, Posterior]]:
        """Posteriors of the documents at some positions, batch by batch."""
        device, dtype = self._model.device, self._model.dtype
        numbers = self.guide.memory_per_document(self.corpus.nnz / self.corpus.num_docs)
        numbers = max(numbers, 3 * num_draws * self._model.num_topics)
        size = self.options.max_docs or docs_at_once(numbers, device, torch.float64)
        hidden = not self.options.progress
        with tqdm(total=len(rows), desc="documents", unit="doc", disable=hidden) as bar:
            for batch in self.corpus.batches(size, order=rows, device=device, dtype=dtype):
                posterior = self.guide.posterior(batch, self._starts.read(batch))
                self._starts.write(batch.positions, batch.lengths, posterior.mean)
                yield batch, posterior
                bar.update(batch.num_docs)

    @torch.no_grad()
    def draw_coefficients(self, rows: Positions, num_draws: int) -> bool:
        """Draw :attr:`shifts` if the prior's mean has coefficients.

        Under the normal approximation, coefficients Γ + Δ move the mean of document d from m_d to
        m_d + V_d Σ⁻¹ Δᵀx_d. The information about the coefficients is

            Σ_d x_d x_dᵀ ⊗ (Σ⁻¹ − Σ⁻¹ V_d Σ⁻¹) + R ⊗ Σ⁻¹,

        the information of known eta minus the missing information (*Louis 1982*).

        Returns:
            Whether the prior's mean has coefficients.
        """
        prior = self._model.prior
        if prior.num_changes:
            self._draw_changes(rows, num_draws)
            return True
        information: Tensor | None = None
        for batch, posterior in self._posteriors(rows, num_draws):
            regressors = prior.regressors(batch)
            if regressors is None or not is_up_to_date(prior, "regressors", "location"):
                return False
            x, penalties = regressors
            precision = _precision(prior)
            missing = precision @ posterior.covariance.double() @ precision
            observed = (precision - missing).flatten(1)
            outer = (x[:, :, None] * x[:, None, :]).flatten(1)
            if information is None:
                information = torch.kron(penalties.diag().contiguous(), precision)
            size = (len(penalties), len(penalties), len(precision), len(precision))
            of_batch = (outer.mT @ observed).view(size).transpose(1, 2)
            information = information + of_batch.reshape(information.shape)
        if information is None:
            return False
        values, vectors = torch.linalg.eigh((information + information.mT) / 2)
        irrelevant = values <= NO_INFORMATION * values.max()
        scale = torch.where(irrelevant, 0.0, values.clamp_min(1e-300).rsqrt())
        white = self._white(num_draws, len(values)).to(values)
        # The symmetric root, because eigenvectors have no unique signs.
        changes = (white @ vectors * scale) @ vectors.mT
        self.shifts = changes.unflatten(1, (-1, len(precision))) @ precision
        return True

    def _draw_changes(self, rows: Positions, num_draws: int) -> None:
        """Draw :attr:`shifts` for a prior with many coefficients, such as effects of authors.

        The documents' average information stands in for that of each document.
        """
        prior = self._model.prior
        precision = _precision(prior)
        total = torch.zeros_like(precision)
        for _, posterior in self._posteriors(rows, num_draws):
            total += posterior.covariance.double().sum(0)
        observed = precision - precision @ (total / len(rows)) @ precision
        white = self._white(num_draws, prior.num_changes, len(precision)).to(precision)
        self.shifts = prior.draw_changes(observed, white) @ precision

    def _white(self, *size: int) -> Tensor:
        """Standard normal numbers, float64, on the CPU."""
        generator = torch.Generator().manual_seed(self.options.seed)
        return torch.randn(size, generator=generator, dtype=torch.float64)


def _precision(prior: Any) -> Tensor:
    """Precision Σ⁻¹ of a normal prior, float64."""
    precision: Tensor = torch.cholesky_inverse(prior.scale_tril.detach().double()).contiguous()
    return precision
