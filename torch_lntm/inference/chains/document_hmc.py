"""DocumentHMC, Hamiltonian Monte Carlo with separate chains for every document."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, knows_its_options, require_whole
from torch_lntm.guides.table import guides_suited
from torch_lntm.guides.theta_draws import DrawOptions, Positions, ThetaDraws
from torch_lntm.inference.chains.chains import Chains, HMCSettings
from torch_lntm.inference.chains.kept import KeptChains
from torch_lntm.inference.chains.samples import DocumentSamples
from torch_lntm.inference.interruption import stops_on_interrupt
from torch_lntm.kernels import fused
from torch_lntm.models import TopicModel
from torch_lntm.progress import tqdm

#: Default numbers of leapfrog steps, with a metric for each document and with a common one.
_FEW_STEPS, _MANY_STEPS = 5, 30
#: Advice about stuck chains.
_ADVICE = "use more warmup_steps or a smaller step_size"


class DocumentHMC(MCMCKernel):
    """Hamiltonian Monte Carlo for the latent variables of documents, with separate chains for each.

    Documents and chains all move together in one tensor, with gradients in closed form, yet each
    document keeps its own mass matrix and each chain its own acceptance and step size. A document's
    draws are therefore the same in every batch, up to rounding: they depend only on the model, the
    document, its position in the corpus and the seed.

    The simplest way to use it is :meth:`run`. It is also a Pyro kernel, as in
    ``pyro.infer.MCMC(DocumentHMC(model), num_samples=500).run(batch)``. A sample then has the shape
    ``(num_docs, dim)`` for one chain, as with Pyro's own kernels, and ``(num_chains, num_docs,
    dim)`` for several. There it also depends on ``pyro.set_rng_seed``, so that the chains of
    ``MCMC(..., num_chains=4)`` differ.

    Chains start from prior draws. The prior is wider than the posterior, so an R-hat of 1 suggests
    that the chains have explored all modes of a document. During warm-up the step sizes adapt by
    dual averaging and are frozen afterwards, whereas mass matrices stay the same throughout. With
    ``"prior"`` and ``"laplace"`` a trajectory has at most a third of the period of a unit normal,
    so acceptance may exceed its target.

    Args:
        model: A model with a latent space, like all of :mod:`torch_lntm.models`.
        num_chains: Number of chains of each document.
        mass_matrix: Coordinates with unit mass. ``"prior"``: the coordinates of the latent space.
            ``"identity"``: the sites themselves, if the space supports it. ``"laplace"`` and
            ``"taylor"`` (for ctm and lntm): the document's own posterior. Defaults to ``"laplace"``
            for ctm and lntm, and to ``"prior"`` for iftm and lda.
        num_steps: Number of leapfrog steps of a transition. Defaults to 5 with the document's own
            mass matrix, and to 30 otherwise.
        step_size: Constant step size, as a number or ``(num_chains, num_docs)``. By default, step
            sizes are searched for and adapted.
        target_accept: Mean acceptance probability that the adaptation aims at.
        jitter: Largest relative change of a step size between transitions. It varies the length of
            trajectories, so that they do not keep returning to their start.
        seed: Seed of all random numbers.

    Attributes:
        model: The model.
        settings: The settings, including defaults.

    Raises:
        IncompatibleGuideError: No guide suits the latent space of the model's prior.
        ConfigError: A setting is invalid.

    Example:
        >>> sampler = lntm.inference.DocumentHMC(model, num_chains=2, seed=0)
        >>> samples = sampler.run(batch, num_draws=5, warmup_steps=5, progress=False)
        >>> samples.theta().shape  # chains, samples, documents, topics
        torch.Size([2, 5, 5, 10])
        >>> samples.mean().shape
        torch.Size([5, 10])
    """

    #: Transforms of the samples by Pyro's ``MCMC``.
    transforms: Mapping[str, Any] = {}

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
        suited = guides_suited(model)
        metrics = [*suited.metrics, "prior", "identity"]
        if mass_matrix is None:
            mass_matrix = metrics[0]
        if mass_matrix not in metrics:
            raise ConfigError(
                f"mass_matrix {mass_matrix!r}; expected one of {', '.join(metrics)} for a "
                f"{type(model.prior).__name__}"
            )
        if num_steps is None:
            num_steps = _FEW_STEPS if mass_matrix in suited.metrics else _MANY_STEPS
        require_whole(1, num_chains=num_chains, num_steps=num_steps)
        if not 0 < target_accept < 1 or not 0 <= jitter < 1:
            raise ConfigError(
                f"target_accept is {target_accept} and jitter {jitter}; expected numbers between 0 "
                "and 1"
            )
        if step_size is not None:
            sizes = torch.as_tensor(step_size)
            if not bool((sizes.isfinite() & (sizes > 0)).all()):
                raise ConfigError(f"step_size is {step_size}; expected positive numbers")
        require_whole(0, seed=seed)
        self.settings = HMCSettings(
            num_chains, mass_matrix, num_steps, step_size, target_accept, jitter, seed
        )
        self.model = model
        self._initial: Mapping[str, Tensor] | None = None
        self._chains: Chains | None = None
        #: For each transition, a bool scalar on the chains' device: whether any chain diverged.
        self._divergent: list[Tensor] = []

    def theta_draws(
        self, corpus: Corpus, num_draws: int | None, rows: Positions | None, options: DrawOptions
    ) -> ThetaDraws:
        """Draws by new chains; see :func:`torch_lntm.inference.theta_draws`."""
        chains = KeptChains.empty(self.model, self.settings)
        return chains.theta_draws(corpus, num_draws, rows, options)

    @knows_its_options
    @torch.no_grad()
    @fused.threaded
    def run(
        self,
        batch: DocumentBatch,
        num_draws: int = 500,
        warmup_steps: int = 200,
        *,
        initial_params: Mapping[str, Tensor] | None = None,
        progress: bool = True,
    ) -> DocumentSamples:
        """Draw from the posterior of every document of a batch.

        Ctrl-C ends the run and returns the draws so far.

        Args:
            batch: The documents, over the model's vocabulary.
            num_draws: Number of draws of each chain.
            warmup_steps: Number of transitions before the first draw, with adapting step sizes.
            initial_params: ``(num_chains, num_docs, dim)`` initial values by the names of the
                sites, whose first axis may be missing for one chain. Defaults to prior draws.
            progress: Whether to show a progress bar on standard error.

        Returns:
            The draws, their acceptance and diagnostics.

        Raises:
            ConfigError: The vocabulary sizes of batch and model differ, or a number or shape is
                wrong.
            NumericalError: A parameter of the model, an initial value or its density is not finite.
                The message names the parameter or the documents.

        Warns:
            ConvergenceWarning: Some chains never moved after warm-up.
            UnreliableEstimateWarning: Documents are too long for the model's dtype.
        """
        require_whole(1, num_draws=num_draws)
        require_whole(0, warmup_steps=warmup_steps)
        settings = self.settings
        chains = Chains(self.model, settings, batch, warmup_steps, initial_params)
        store = {
            site: torch.empty(settings.num_chains, num_draws, *value.shape[1:], dtype=value.dtype)
            for site, value in chains.latents.items()
        }
        num_drawn, interrupted = 0, False
        with tqdm(total=warmup_steps + num_draws, unit="it", disable=not progress) as bar:
            try:
                for count in range(-warmup_steps, num_draws):
                    bar.set_description("warm-up" if count < 0 else "sampling", refresh=False)
                    chains.advance(later=num_draws - count - 1)
                    if count >= 0:
                        for site, value in chains.latents.items():
                            store[site][:, count] = value
                        num_drawn = count + 1
                    if progress:
                        bar.set_postfix(chains.summary, refresh=False)
                    bar.update()
            except KeyboardInterrupt:
                if not stops_on_interrupt():
                    raise
                interrupted = True
        store = {site: draws[:, :num_drawn] for site, draws in store.items()}
        chains.warn_of_stuck(f"means exclude these chains. {_ADVICE}")
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

    # -- interface of pyro.infer.MCMC -------------------------------------------------------------

    @torch.no_grad()
    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Prepare the chains of a batch.

        Args:
            warmup_steps: Transitions with adapting step sizes.
            *args: The batch, as the only argument.
            **kwargs: Must be empty.

        Raises:
            ConfigError: See :meth:`run`.
            NumericalError: See :meth:`run`.
        """
        if len(args) != 1 or kwargs:
            raise ConfigError(
                f"DocumentHMC takes a batch and nothing else; got {len(args)} arguments"
                + (f" and {', '.join(kwargs)}" if kwargs else "")
            )
        # Pyro's chains differ only in the state of its global generator.
        seed = self.settings.seed + int(torch.randint(2**62, ()))
        settings = replace(self.settings, seed=seed)
        self._chains = Chains(self.model, settings, args[0], warmup_steps, self._initial)
        self._initial, self._divergent = None, []

    @property
    def initial_params(self) -> dict[str, Tensor]:
        """Latent variables of the chains after :meth:`setup`, by the names of the sites."""
        return self._params()

    @initial_params.setter
    def initial_params(self, params: Mapping[str, Tensor]) -> None:
        self._initial = params

    @torch.no_grad()
    def sample(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Make one transition of every chain, from its last state."""
        chains = self._running()
        info, _ = chains.advance()
        self._divergent.append(info.divergent.any())
        return self._params()

    def logging(self) -> OrderedDict[str, str]:
        """Mean step size and mean acceptance probability of the last transition, as text."""
        return OrderedDict(self._running().summary)

    def diagnostics(self) -> dict[str, Any]:
        """Diagnostics of the transitions after warm-up.

        Returns:
            ``"divergences"``: numbers of the samples with a divergent transition of any document,
            as with Pyro's kernels. ``"divergent"``: the document's position for each divergent
            transition. ``"acceptance rate"`` and ``"step size"``: each ``(num_chains, num_docs)``.
            ``"stuck"``: the document's position for each stuck chain.

        Warns:
            ConvergenceWarning: Some chains never moved.
        """
        chains = self._running()
        chains.warn_of_stuck(_ADVICE)
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
        """Remove the chains from memory."""
        self._chains = None

    def _running(self) -> Chains:
        if self._chains is None:
            raise ConfigError("DocumentHMC has no chains yet; call run(batch), or use it in MCMC")
        return self._chains

    def _params(self) -> dict[str, Tensor]:
        latents = self._running().latents
        if self.settings.num_chains > 1:
            return latents
        return {site: value[0] for site, value in latents.items()}
