"""Draws of documents' topic proportions: from a guide's posteriors, or from chains."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_lntm.budget import docs_at_once
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import IncompatibleGuideError, require_whole
from torch_lntm.guides import Guide, require_guide
from torch_lntm.inference.chains.document_hmc import DocumentHMC
from torch_lntm.models import TopicModel
from torch_lntm.progress import tqdm

#: Transitions of a chain before its first draw, and from one draw to the next.
WARMUP_STEPS, THINNING = 100, 4
#: Documents whose chains run at once, at most: more of them are no faster.
_CHAINS_AT_ONCE = 1000


class DocumentDraws(NamedTuple):
    """Draws of the proportions of a batch's documents.

    Attributes:
        theta: ``(num_samples, num_docs, num_topics)``, on the model's device or the CPU.
        converged: ``(num_docs,)`` whether the posterior met the guide's tolerance, or all chains
            moved.
    """

    theta: Tensor
    converged: Tensor


class DrawSource(ABC):
    """Where draws of documents' proportions come from.

    Attributes:
        model: The model.
        name: The posterior's name in a recipe.
        described: What the draws are from, in words.
    """

    model: TopicModel
    name: str
    described: str

    @abstractmethod
    def docs_at_once(self, corpus: Corpus, num_samples: int) -> int:
        """How many of a corpus's documents fit into memory at once."""

    @abstractmethod
    def draw(self, batch: DocumentBatch, num_samples: int, seed: int) -> DocumentDraws:
        """Draws of a batch's documents, functions of their positions in the corpus."""

    @torch.no_grad()
    def draw_all(
        self,
        corpus: Corpus,
        num_samples: int,
        seed: int = 0,
        *,
        max_docs: int | None = None,
        progress: bool = False,
    ) -> Tensor:
        """Draws of all documents, empty ones included.

        Args:
            corpus: Documents over the model's vocabulary.
            num_samples: Draws of each.
            seed: Seed of the draws; that of chains is their own.
            max_docs: Documents at once, which bounds memory; by default what fits.
            progress: Show a progress bar on standard error.

        Returns:
            ``(num_samples, num_docs, num_topics)`` in the model's dtype, on the CPU.

        Raises:
            ConfigError: A number that cannot be used, or a corpus over other words.
        """
        require_whole(1, num_samples=num_samples, max_docs=max_docs)
        require_whole(0, seed=seed)
        model = self.model
        corpus = model.encode(corpus)
        theta = torch.empty(num_samples, corpus.num_docs, model.num_topics, dtype=model.dtype)
        size = max_docs or self.docs_at_once(corpus, num_samples)
        with tqdm(total=len(corpus), desc="draws", unit="doc", disable=not progress) as bar:
            for batch in corpus.batches(size, device=model.device, dtype=model.dtype):
                theta[:, batch.positions] = self.draw(batch, num_samples, seed).theta.cpu()
                bar.update(batch.num_docs)
        return theta


class _GuideDraws(DrawSource):
    """Draws from the posteriors that a guide solves."""

    def __init__(self, guide: Guide[Any]) -> None:
        self.guide, self.model = guide, guide.model
        self.name = guide.name or type(guide).__name__
        self.described = f"the posterior {self.name}"

    def docs_at_once(self, corpus: Corpus, num_samples: int) -> int:
        needed = self.guide.memory_per_document(corpus.nnz / corpus.num_docs)
        needed = max(needed, 3 * self.model.num_topics * num_samples)
        return docs_at_once(needed, self.model.device, self.model.dtype)

    def draw(self, batch: DocumentBatch, num_samples: int, seed: int) -> DocumentDraws:
        posterior = self.guide.posterior(batch)
        return DocumentDraws(posterior.theta_samples(num_samples, seed), posterior.converged)


class _ChainDraws(DrawSource):
    """Draws from the documents' chains, which approximate nothing; the seed is the sampler's."""

    name = "hmc"
    described = "chains of each document (Hamiltonian Monte Carlo)"

    def __init__(self, sampler: DocumentHMC, warmup_steps: int, thinning: int) -> None:
        self.sampler, self.model = sampler, sampler.model
        self.warmup_steps, self.thinning = warmup_steps, thinning

    def docs_at_once(self, corpus: Corpus, num_samples: int) -> int:
        needed = (self.thinning + 2) * num_samples * self.model.num_topics
        return min(_CHAINS_AT_ONCE, docs_at_once(needed, self.model.device, self.model.dtype))

    def draw(self, batch: DocumentBatch, num_samples: int, seed: int) -> DocumentDraws:
        per_chain = math.ceil(num_samples / self.sampler.settings.num_chains)
        samples = self.sampler.run(
            batch, per_chain * self.thinning, self.warmup_steps, progress=False
        )
        if samples.interrupted:
            raise KeyboardInterrupt
        kept = samples.latents[self.model.prior.latent][:, self.thinning - 1 :: self.thinning]
        theta = self.model.theta(kept.flatten(0, 1)[:num_samples].to(self.model.device))
        return DocumentDraws(theta, samples.moved.all(0))


class KeptChainDraws(DrawSource):
    """Draws of the chains of one corpus's documents, made once for all who ask for the same.

    It stands in the place of ``DocumentHMC(model)``, for a report with effects for instance, and
    holds ``num_samples × num_docs × num_topics`` numbers on the CPU.

    Args:
        sampler: The chains.
    """

    def __init__(self, sampler: DocumentHMC) -> None:
        self._source = _ChainDraws(sampler, WARMUP_STEPS, THINNING)
        self.model, self.name = sampler.model, self._source.name
        self.described = self._source.described
        self._kept: dict[tuple[int, ...], DocumentDraws] = {}

    def docs_at_once(self, corpus: Corpus, num_samples: int) -> int:
        """See :meth:`DrawSource.docs_at_once`."""
        return self._source.docs_at_once(corpus, num_samples)

    def draw(self, batch: DocumentBatch, num_samples: int, seed: int) -> DocumentDraws:
        """See :meth:`DrawSource.draw`."""
        key = (num_samples, *batch.index.tolist())
        if key not in self._kept:
            theta, converged = self._source.draw(batch, num_samples, seed)
            self._kept[key] = DocumentDraws(theta.cpu(), converged.cpu())
        return self._kept[key]


#: What draws of documents' proportions can be had from.
PosteriorSource = Guide[Any] | DocumentHMC | KeptChainDraws


def draw_source(
    posterior: PosteriorSource,
    model: TopicModel | None = None,
    *,
    warmup_steps: int = WARMUP_STEPS,
    thinning: int = THINNING,
) -> DrawSource:
    """The draws of a guide's posteriors, or of chains.

    Args:
        posterior: A guide; or chains, ``DocumentHMC(model)``, kept or not.
        model: The model that it has to belong to; any by default.
        warmup_steps: Transitions of a chain before its first draw.
        thinning: Transitions of a chain from one draw to the next.

    Raises:
        ConfigError: It is neither.
        IncompatibleGuideError: It belongs to another model.
    """
    if not isinstance(posterior, DocumentHMC | KeptChainDraws):
        return _GuideDraws(require_guide(posterior, model))
    if model is not None and posterior.model is not model:
        raise IncompatibleGuideError(
            "DocumentHMC was made for another model; make one for this: DocumentHMC(model)"
        )
    if isinstance(posterior, KeptChainDraws):
        return posterior
    return _ChainDraws(posterior, warmup_steps, thinning)


def chain_draws(
    model: TopicModel,
    corpus: Corpus,
    *,
    num_draws: int = 50,
    thinning: int = THINNING,
    warmup_steps: int = WARMUP_STEPS,
    seed: int = 0,
    max_docs: int | None = None,
    progress: bool = False,
) -> Tensor:
    """Draws of every document's proportions by Hamiltonian Monte Carlo.

    They approximate nothing, which matters where documents are short (``docs/structural.md``).

    Args:
        model: The fitted model.
        corpus: The documents, empty ones included.
        num_draws: Draws of each document.
        thinning: Transitions of a chain from one draw to the next.
        warmup_steps: Transitions of a chain before the first draw.
        seed: Seed of the chains.
        max_docs: Documents whose chains run at once, which bounds memory; 1,000 or fewer by
            default.
        progress: Show a progress bar on standard error.

    Returns:
        ``(num_draws, num_docs, num_topics)`` float32, on the CPU.

    Raises:
        ConfigError: A number that cannot be used, or a corpus over other words.
    """
    require_whole(1, num_draws=num_draws, thinning=thinning)
    require_whole(0, warmup_steps=warmup_steps)
    sampler = DocumentHMC(model, seed=seed)
    source = draw_source(sampler, warmup_steps=warmup_steps, thinning=thinning)
    return source.draw_all(corpus, num_draws, seed, max_docs=max_docs, progress=progress).float()
