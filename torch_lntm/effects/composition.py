"""Draws of all documents' topic proportions, from their posteriors or from chains."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import trange

from torch_lntm import noise
from torch_lntm.budget import docs_at_once
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import require_whole
from torch_lntm.guides import Guide
from torch_lntm.inference import DocumentHMC, JointChain
from torch_lntm.models import TopicModel
from torch_lntm.posteriors import Posterior

#: Eigenvalues of the coefficients' information, relative to the largest, that count as none: theta
#: does not depend on the shift that all topics of eta share.
NO_INFORMATION = 1e-10


class ThetaDraws(NamedTuple):
    """Draws of some documents' proportions.

    Attributes:
        rows: ``(num_docs,)`` positions of the documents in the corpus.
        theta: ``(num_draws, num_docs, num_topics)`` float64, on the CPU.
    """

    rows: NDArray[np.int64]
    theta: Tensor


#: What a fit leaves open and draws of the documents' proportions do not hold.
LEFT_OPEN = ("the topics' words", "the prior's covariance")


@dataclass(frozen=True, eq=False)
class JointDraws:
    """Draws of the documents' proportions from one chain over documents, prior and topics.

    Attributes:
        theta: ``(num_draws, num_docs, num_topics)`` float32, on the CPU; of a document without
            words, which takes no part in effects, all topics are equal.
        model: The fitted model, with the mean of the topics drawn. Where the fit's topics were
            poor, these are other ones: label them anew.
        topics: Whether the topics were drawn too; else they were taken as known.
    """

    theta: Tensor
    model: TopicModel
    topics: bool

    @property
    def propagated(self) -> tuple[str, ...]:
        """What the draws are of, in words."""
        drawn = ("the documents' proportions and their prior", "the topics' words")
        return drawn if self.topics else drawn[:1]

    @property
    def left_open(self) -> tuple[str, ...]:
        """What the fit leaves open and is not in the draws."""
        return () if self.topics else LEFT_OPEN[:1]


class GivenDraws:
    """Draws that are there already, such as those of chains.

    Args:
        theta: ``(num_draws, num_docs, num_topics)``.
        rows: Positions of the documents to take.
        propagated: What the draws are of, in words.
        left_open: What the fit leaves open and is not in the draws.
    """

    def __init__(
        self,
        theta: Tensor,
        rows: NDArray[np.int64],
        propagated: tuple[str, ...] = ("the documents' proportions, by the draws given",),
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
            if found is None:
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


def chain_draws(
    model: TopicModel,
    corpus: Corpus,
    *,
    num_draws: int = 50,
    thinning: int = 4,
    warmup_steps: int = 100,
    seed: int = 0,
    max_docs: int = 1000,
    progress: bool = False,
) -> Tensor:
    """Draws of every document's proportions by Hamiltonian Monte Carlo, for ``estimate``.

    They approximate nothing, which matters where documents are short (``docs/structural.md``).

    Args:
        model: The fitted model.
        corpus: The documents, empty ones included.
        num_draws: Draws of each document.
        thinning: Transitions of a chain from one draw to the next.
        warmup_steps: Transitions of a chain before the first draw.
        seed: Seed of the chains.
        max_docs: Documents whose chains run at once, which bounds memory.
        progress: Show progress bars on standard error.

    Returns:
        ``(num_draws, num_docs, num_topics)`` float32, on the CPU.

    Raises:
        ConfigError: A number that cannot be used, or a corpus over other words.
    """
    require_whole(1, num_draws=num_draws, thinning=thinning, max_docs=max_docs)
    corpus = model.check_corpus(corpus)
    sampler = DocumentHMC(model, num_chains=1, seed=seed)
    theta = torch.empty(num_draws, corpus.num_docs, model.num_topics)
    for batch in corpus.batches(max_docs, device=model.device, dtype=model.dtype):
        samples = sampler.run(batch, num_draws * thinning, warmup_steps, progress=progress)
        theta[:, batch.positions] = samples.theta()[0, thinning - 1 :: thinning].cpu().float()
    return theta


@torch.no_grad()
def joint_draws(
    model: TopicModel,
    corpus: Corpus,
    *,
    num_draws: int = 100,
    thinning: int = 5,
    warmup_steps: int = 300,
    topics: bool = True,
    seed: int = 0,
    progress: bool = False,
) -> JointDraws:
    """Draws of the training documents' proportions, topics and prior drawn too, for ``estimate``.

    They hold what the corpus leaves open of all of these, which matters where documents are short
    or few (``docs/structural.md``): see :class:`~torch_lntm.inference.JointChain`. All documents
    move at once, in memory of a few times ``num_docs × num_topics`` numbers.

    Args:
        model: The fitted model, which is not changed.
        corpus: The documents that it was fitted to.
        num_draws: Draws of each document.
        thinning: Sweeps of the chain from one draw to the next.
        warmup_steps: Sweeps before the first draw.
        topics: Whether to draw the topics too; else they are known.
        seed: Seed of the chain.
        progress: Show a progress bar on standard error.

    Returns:
        The draws.

    Raises:
        ConfigError: A number that cannot be used, or a corpus over other words.
        CorpusError: No document has words.
        IncompatibleGuideError: The prior or the topics have no posterior to draw from.
    """
    require_whole(1, num_draws=num_draws, thinning=thinning)
    require_whole(0, warmup_steps=warmup_steps, seed=seed)
    chain = JointChain(model, corpus, warmup_steps=warmup_steps, topics=topics, seed=seed)
    theta = torch.full((num_draws, corpus.num_docs, model.num_topics), 1.0 / model.num_topics)
    probs = torch.zeros_like(model.topics.double_probs)
    for sweep in trange(warmup_steps + num_draws * thinning, disable=not progress):
        found = chain.sweep()
        draw, rest = divmod(sweep - warmup_steps + 1, thinning)
        if draw > 0 and rest == 0:
            theta[draw - 1, chain.rows] = found.cpu().float()
            probs += chain.model.topics.double_probs / num_draws
    fitted = copy.deepcopy(model)
    if topics:
        fitted.topics.set_(probs)
    return JointDraws(theta, fitted, topics)


def _precision(prior: Any) -> Tensor:
    """Σ⁻¹ of a normal prior, float64."""
    precision: Tensor = torch.cholesky_inverse(prior.scale_tril.detach().double()).contiguous()
    return precision
