"""chains_for: chains of a batch's documents, by the sampler that suits the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, cast

import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.inference.chains.chains import Chains
from torch_lntm.inference.chains.document_hmc import DocumentHMC
from torch_lntm.inference.chains.samples import DocumentSamples
from torch_lntm.latents.gamma import GammaSpace
from torch_lntm.models import TopicModel
from torch_lntm.sampling.collapsed import CollapsedGibbs
from torch_lntm.sampling.gibbs import gibbs

#: Sweeps of Gibbs sampling from one draw to the next.
_SWEEPS = 5


class DocumentChains(ABC):
    """Chains of the documents of one batch. Their draws converge to the posterior of theta.

    Args:
        model: The model.
        batch: The documents.
        num_chains: Number of chains of each document.
        warmup_steps: Number of transitions before the first draw of :meth:`sample`. Hamiltonian
            chains adapt their step sizes in these transitions, also with :meth:`move`.
        seed: Seed of all random numbers.
    """

    #: Name of the sampler, for use in front of the word "chains".
    name: ClassVar[str]

    def __init__(
        self, model: TopicModel, batch: DocumentBatch, num_chains: int, warmup_steps: int, seed: int
    ) -> None:
        self.model, self.batch = model, batch
        self.num_chains, self.warmup_steps, self.seed = num_chains, warmup_steps, seed

    @property
    @abstractmethod
    def method(self) -> str:
        """Description of the sampler and its settings."""

    @abstractmethod
    def move(self) -> Tensor:
        """Make one transition of every chain. Chains continue from their last state.

        Returns:
            ``(num_chains, num_docs, num_topics)`` float64 proportions. Averages over the
            transitions after warm-up converge to the posterior mean of theta.
        """

    @abstractmethod
    def sample(self, num_samples: int) -> DocumentSamples:
        """Draw from the posteriors by new chains. Draws during warm-up are left out.

        Args:
            num_samples: Number of draws of each chain.
        """


class _GibbsChains(DocumentChains):
    """Gibbs sampling of the tokens' topics under a Dirichlet prior."""

    name = "collapsed Gibbs"
    _collapsed: CollapsedGibbs | None = None

    @property
    def method(self) -> str:
        return f"Gibbs sampling, every {_SWEEPS}th sweep"

    @property
    def _concentration(self) -> Tensor:
        return cast(GammaSpace, self.model.prior.space(self.batch)).concentration

    def move(self) -> Tensor:
        if self._collapsed is None:
            self._collapsed = CollapsedGibbs(
                self.model.topics.assign_groups(self.batch),
                self.model.topics.double_probs,
                self._concentration,
                num_chains=self.num_chains,
                seed=self.seed,
            )
        return self._collapsed.sweep()

    def sample(self, num_samples: int) -> DocumentSamples:
        draws = gibbs(
            self.model.topics.assign_groups(self.batch),
            self.model.topics.double_probs,
            self._concentration,
            num_chains=self.num_chains,
            num_samples=num_samples,
            warmup_sweeps=self.warmup_steps,
            sweeps=_SWEEPS,
            seed=self.seed,
        )
        latents = {self.model.prior.latent: draws}
        return DocumentSamples.without_rejections(self.model, latents, self.batch.index)


class _HamiltonianChains(DocumentChains):
    """Hamiltonian Monte Carlo in the coordinates of the prior's latent space."""

    name = "Hamiltonian"
    _chains: Chains | None = None

    def __init__(
        self,
        model: TopicModel,
        batch: DocumentBatch,
        num_chains: int,
        warmup_steps: int,
        seed: int,
        mass_matrix: str | None,
        num_steps: int | None,
    ) -> None:
        super().__init__(model, batch, num_chains, warmup_steps, seed)
        self._kernel = DocumentHMC(
            model, num_chains=num_chains, mass_matrix=mass_matrix, num_steps=num_steps, seed=seed
        )

    @property
    def method(self) -> str:
        settings = self._kernel.settings
        return f"DocumentHMC ({settings.num_steps} leapfrogs, mass matrix {settings.mass_matrix!r})"

    def move(self) -> Tensor:
        if self._chains is None:
            self._chains = Chains(
                self.model, self._kernel.settings, self.batch, self.seed, self.warmup_steps
            )
        self._chains.move()
        return torch.softmax(self._chains.logits.double(), -1)

    def sample(self, num_samples: int) -> DocumentSamples:
        return self._kernel.run(self.batch, num_samples, self.warmup_steps, progress=False)


def chains_for(
    model: TopicModel,
    batch: DocumentBatch,
    *,
    num_chains: int,
    warmup_steps: int,
    seed: int,
    mass_matrix: str | None = None,
    num_steps: int | None = None,
) -> DocumentChains:
    """Chains of a batch's documents: Gibbs sampling for conjugate models, otherwise Hamiltonian.

    Args:
        model: The model.
        batch: The documents.
        num_chains: Number of chains of each document.
        warmup_steps: Number of warm-up transitions; see :class:`DocumentChains`.
        seed: Seed of all random numbers.
        mass_matrix: As for :class:`DocumentHMC`. Gibbs sampling ignores it.
        num_steps: As for :class:`DocumentHMC`. Gibbs sampling ignores it.

    Raises:
        IncompatibleGuideError: The model's prior has no latent space.
        ConfigError: A setting is invalid.
    """
    if model.is_conjugate:
        return _GibbsChains(model, batch, num_chains, warmup_steps, seed)
    return _HamiltonianChains(model, batch, num_chains, warmup_steps, seed, mass_matrix, num_steps)
