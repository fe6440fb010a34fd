"""DocumentHMC: Hamiltonian Monte Carlo with chains of its own for every document."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.inference.chains.chains import Chains
from torch_lntm.inference.chains.kept import KeptChains
from torch_lntm.inference.chains.samples import DocumentSamples
from torch_lntm.inference.chains.settings import HMCSettings
from torch_lntm.inference.interruption import stops_on_interrupt
from torch_lntm.models import TopicModel
from torch_lntm.progress import tqdm

#: What to do about chains that never move.
_CURE = "use more warmup_steps or a smaller step_size"


class DocumentHMC(MCMCKernel):
    """Hamiltonian Monte Carlo for the latent variables of documents, each with chains of its own.

    It is a kernel for ``pyro.infer.MCMC(DocumentHMC(model), num_samples=500).run(batch)``, and
    :meth:`run` does without Pyro. Each document has its own mass matrix, and each of its chains its
    own acceptance and step size. All documents and chains move in one tensor, and gradients are in
    closed form. A document's draws are a function of the model, the document, its position in the
    corpus and the seed; the other documents of its batch change them by rounding only.

    Inside ``pyro.infer.MCMC`` a sample has the shape that stock kernels give it,
    ``(num_docs, dim)``, with one chain, and ``(num_chains, num_docs, dim)`` with more. There, as
    with stock kernels, chains also depend on ``pyro.set_rng_seed``, so that Pyro's own
    ``num_chains`` run different ones.

    Chains start from prior draws, which are wider than the posterior: where R-hat is 1, documents
    with several modes have been explored. Step sizes adapt to each chain's acceptance by dual
    averaging in warm-up and are frozen after it. With the mass matrices ``"prior"`` and
    ``"laplace"`` a trajectory is at most a third of a period long, so acceptance may be higher than
    aimed at. Mass matrices do not change.

    Args:
        model: A model whose prior has a latent space, as all of :mod:`torch_lntm.models` have.
        num_chains: Chains of each document.
        mass_matrix: What has unit mass. ``"prior"``: the coordinates of the latent space.
            ``"identity"``: the sites themselves, where the space can say so. Others come from the
            document's own posterior, by the space's ``posterior_metrics``: ``"laplace"`` for ctm
            and lntm; ``"taylor"`` for these and for iftm, where it is that of eta and sources
            together. The default is ``"laplace"`` for ctm and lntm and ``"prior"`` for iftm and
            lda: the space's ``default_metric``.
        num_steps: Leapfrog steps of a transition; by default 5 with the document's own mass matrix
            and 30 otherwise.
        step_size: A number or ``(num_chains, num_docs)`` to keep; None to search and adapt them.
        target_accept: Mean acceptance probability that adaptation aims at.
        jitter: Largest relative change of a step size from transition to transition. Trajectories
            that vary in length do not keep returning to where they started.
        seed: Seed of all noise.

    Attributes:
        model: The model.
        settings: The settings, with the defaults filled in.

    Raises:
        IncompatibleGuideError: The model's prior has no latent space.
        ConfigError: A setting that cannot be used.
    """

    #: Pyro's ``MCMC`` applies these to the samples: none.
    transforms: Mapping[str, Any] = {}
    #: Draws that exist already: chains have none.
    existing_draws: ClassVar[None] = None

    def __init__(
        self,
        model: TopicModel,
        *,
        num_chains: int = 1,
        mass_matrix: str | None = None,
        num_steps: int | None = None,
        step_size: float | Tensor | None = None,
        target_accept: float = 0.8,
        jitter: float = 0.2,
        seed: int = 0,
    ) -> None:
        self.settings = HMCSettings.of(
            model,
            num_chains=num_chains,
            mass_matrix=mass_matrix,
            num_steps=num_steps,
            step_size=step_size,
            target_accept=target_accept,
            jitter=jitter,
            seed=seed,
        )
        self.model = model
        self._initial: Mapping[str, Tensor] | None = None
        self._chains: Chains | None = None
        #: Whether each transition had a divergent chain: one scalar each, on the chains' device.
        self._divergent: list[Tensor] = []

    @property
    def kept_chains(self) -> KeptChains:
        """Chains of these settings to draw from documents by; all of them begin anew."""
        return KeptChains.empty(self.model, self.settings)

    @torch.no_grad()
    def run(
        self,
        batch: DocumentBatch,
        num_samples: int = 500,
        warmup_steps: int = 200,
        *,
        initial_params: Mapping[str, Tensor] | None = None,
        progress: bool = True,
    ) -> DocumentSamples:
        """Draw from the posterior of every document of a batch.

        Ctrl-C ends the run and returns the draws so far.

        Args:
            batch: The documents, over the model's vocabulary.
            num_samples: Draws of each chain.
            warmup_steps: Transitions before them, in which step sizes adapt.
            initial_params: Where to start: ``(num_chains, num_docs, dim)`` values by the names of
                the sites, or without the first axis for one chain; prior draws by default.
            progress: Show a progress bar on standard error.

        Returns:
            The draws, their acceptance and diagnostics.

        Raises:
            ConfigError: The batch has another vocabulary size than the model, or a number or shape
                is wrong.
            NumericalError: The model's parameters, a start, or a density where the chains start,
                are not finite; names the parameter or the documents.

        Warns:
            ConvergenceWarning: Some chains never moved after warm-up.
            UnreliableEstimateWarning: Documents are too long for the model's dtype.
        """
        require_whole(1, num_samples=num_samples)
        require_whole(0, warmup_steps=warmup_steps)
        settings = self.settings
        chains = Chains(self.model, settings, batch, settings.seed, warmup_steps, initial_params)
        store = {
            site: torch.empty(settings.num_chains, num_samples, *value.shape[1:], dtype=value.dtype)
            for site, value in chains.latents.items()
        }
        drawn, interrupted = 0, False
        with tqdm(total=warmup_steps + num_samples, unit="it", disable=not progress) as bar:
            try:
                for count in range(-warmup_steps, num_samples):
                    bar.set_description("warm-up" if count < 0 else "sampling", refresh=False)
                    chains.move(num_samples - count)
                    if count >= 0:
                        for site, value in chains.latents.items():
                            store[site][:, count] = value
                        drawn = count + 1
                    if progress:
                        bar.set_postfix(chains.summary, refresh=False)
                    bar.update()
            except KeyboardInterrupt:
                if not stops_on_interrupt():
                    raise
                interrupted = True
        store = {site: draws[:, :drawn] for site, draws in store.items()}
        chains.warn_of_stuck(f"means leave them out. {_CURE}")
        return DocumentSamples(
            model=self.model,
            latents=store,
            index=chains.target.batch.index.cpu(),
            acceptance=chains.mean_acceptance.cpu(),
            step_size=chains.step_size.cpu(),
            divergences=chains.divergences.sum(0).cpu(),
            moved=chains.moved.cpu(),
            interrupted=interrupted,
        )

    # -- what pyro.infer.MCMC calls ---------------------------------------------------------------

    @torch.no_grad()
    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Prepare the chains of a batch, the only argument.

        Raises:
            ConfigError: See :meth:`run`.
            NumericalError: See :meth:`run`.
        """
        if len(args) != 1 or kwargs:
            raise ConfigError(
                f"DocumentHMC takes a batch and nothing else; got {len(args)} arguments"
                + (f" and {', '.join(kwargs)}" if kwargs else "")
            )
        # Pyro's chains differ by the global generator's state alone.
        seed = self.settings.seed + int(torch.randint(2**62, ()))
        self._chains = Chains(self.model, self.settings, args[0], seed, warmup_steps, self._initial)
        self._initial, self._divergent = None, []

    @property
    def initial_params(self) -> dict[str, Tensor]:
        """Where the chains are after :meth:`setup`, by the names of the sites."""
        return self._params()

    @initial_params.setter
    def initial_params(self, params: Mapping[str, Tensor]) -> None:
        self._initial = params

    @torch.no_grad()
    def sample(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One transition of every chain, from where the last one ended."""
        chains = self._running()
        chains.move()
        assert chains.last is not None
        self._divergent.append(chains.last.divergent.any())
        return self._params()

    def logging(self) -> OrderedDict[str, str]:
        """Mean step size, and mean acceptance probability of the last transition."""
        return OrderedDict(self._running().summary)

    def diagnostics(self) -> dict[str, Any]:
        """What happened after warm-up.

        Returns:
            ``"divergences"``, as of Pyro's kernels the numbers of the samples whose transition was
            divergent, here for any document; ``"divergent"``, a list with the document's position
            for each divergent transition; ``"acceptance rate"`` and ``"step size"``, each
            ``(num_chains, num_docs)``; and ``"stuck"``, a list with the document's position for
            each chain that never moved.

        Warns:
            ConvergenceWarning: Some chains never moved.
        """
        chains = self._running()
        chains.warn_of_stuck(_CURE)
        index = chains.target.batch.index
        sampled = self._divergent[chains.warmup_steps :]
        return {
            "divergences": [number for number, divergent in enumerate(sampled) if bool(divergent)],
            "divergent": index.repeat_interleave(chains.divergences.sum(0)).tolist(),
            "acceptance rate": chains.mean_acceptance,
            "step size": chains.step_size,
            "stuck": index.repeat_interleave((~chains.moved).sum(0)).tolist(),
        }

    def cleanup(self) -> None:
        """Forget the chains."""
        self._chains = None

    def _running(self) -> Chains:
        if self._chains is None:
            raise ConfigError("DocumentHMC has no chains yet; call setup with a batch, or run")
        return self._chains

    def _params(self) -> dict[str, Tensor]:
        latents = self._running().latents
        if self.settings.num_chains > 1:
            return latents
        return {site: value[0] for site, value in latents.items()}
