"""DocumentHMC: Hamiltonian Monte Carlo with chains of its own for every document."""

from __future__ import annotations

import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from pyro.ops.stats import autocovariance, split_gelman_rubin
from torch import Tensor
from tqdm.auto import tqdm

from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError, IncompatibleGuideError
from torch_lntm.guides import FactorGuide, LaplaceGuide, TaylorGuide
from torch_lntm.models import IndependentFactorPrior, LogisticNormalPrior, TopicModel
from torch_lntm.solvers import hmc
from torch_lntm.solvers.factor import FactorPrior

MassMatrix = Literal["identity", "prior", "taylor", "laplace"]
Quantity = Literal["theta", "eta", "source"]

#: What is folded into a chain's key for its start, its search for a step size, its transitions.
_START, _SEARCH, _TRANSITIONS = 0, 1, 2
#: Leapfrog steps with the documents' own metrics, and with those that all documents share.
_FEW_STEPS, _MANY_STEPS = 5, 30
#: Longest trajectory, before jitter, where the metric makes the posterior hardly wider than a unit
#: normal: a third of the period of that. Longer ones turn back, and close on themselves.
_LONGEST = 2.0 * math.pi / 3.0
#: Tokens times the dtype's precision, nats: rounding of a log likelihood that chains would notice.
_COARSE = 0.05
#: What to do about chains that never move.
_CURE = "use more warmup_steps or a smaller step_size"
#: Numbers that diagnostics hold at once in one of their tables.
_MAX_NUMBERS = 2**22


@dataclass(frozen=True, eq=False)
class DocumentSamples:
    """Draws from the posteriors of the documents of a batch, on the CPU.

    A chain that never moved in all its draws is left out of every mean and diagnostic; a document
    of which none moved has NaN there.

    Attributes:
        model: The model that was sampled.
        eta: ``(num_chains, num_samples, num_docs, latent_dim)``.
        source: ``(num_chains, num_samples, num_docs, num_sources)`` under a factor prior, or None.
        index: ``(num_docs,)`` positions of the documents in their corpus.
        acceptance: ``(num_chains, num_docs)`` float64 mean acceptance probability.
        step_size: ``(num_chains, num_docs)`` float64, as frozen after warm-up.
        divergences: ``(num_docs,)`` int64 divergent transitions of all chains, warm-up left out.
        moved: ``(num_chains, num_docs)`` bool, the chain accepted a proposal after warm-up.
        interrupted: The run was ended by Ctrl-C; these are the draws it had.
    """

    model: TopicModel
    eta: Tensor
    source: Tensor | None
    index: Tensor
    acceptance: Tensor
    step_size: Tensor
    divergences: Tensor
    moved: Tensor
    interrupted: bool = False

    @property
    def num_chains(self) -> int:
        """Chains of each document."""
        return self.eta.shape[0]

    @property
    def num_samples(self) -> int:
        """Draws of each chain."""
        return self.eta.shape[1]

    @property
    def num_docs(self) -> int:
        """Number of documents."""
        return self.eta.shape[2]

    def theta(self) -> Tensor:
        """Topic proportions ``(num_chains, num_samples, num_docs, num_topics)``."""
        return self.model.theta(self.eta)

    def mean(self, quantity: Quantity = "theta") -> Tensor:
        """Posterior mean ``(num_docs, dim)`` of theta, eta or the sources, float64."""
        return self._summarise(quantity, lambda draws: draws.mean((0, 1)))

    def std(self, quantity: Quantity = "theta") -> Tensor:
        """Posterior standard deviation ``(num_docs, dim)``, float64.

        Raises:
            ConfigError: There is a single draw.
        """
        if self.num_chains * self.num_samples < 2:
            raise ConfigError("there is a single draw; a standard deviation needs 2")
        return self._summarise(quantity, lambda draws: draws.flatten(0, 1).std(0))

    def rhat(self, quantity: Quantity = "theta") -> Tensor:
        """Split R-hat ``(num_docs, dim)``: 1 where the halves of all chains agree.

        Raises:
            ConfigError: There are fewer than 4 draws of a chain.
        """
        self._require(4)
        return self._summarise(quantity, split_gelman_rubin)

    def effective_sample_size(
        self, quantity: Quantity = "theta", kind: Literal["bulk", "mean"] = "bulk"
    ) -> Tensor:
        """Independent draws that are worth as much as all of these ``(num_docs, dim)``.

        Args:
            quantity: Of which variable.
            kind: ``"bulk"``, of the normal scores of the ranks (*Vehtari et al. 2021, §4.1*), which
                exists for any distribution; ``"mean"``, of the draws themselves, which is what the
                error of the mean depends on. Both of split chains.

        Raises:
            ConfigError: There are fewer than 4 draws of a chain, or there is no such kind.
        """
        self._require(4)
        if kind not in ("bulk", "mean"):
            raise ConfigError(f"kind {kind!r}; expected 'bulk' or 'mean'")

        def size(draws: Tensor) -> Tensor:
            return effective_sample_size(_normal_scores(draws) if kind == "bulk" else draws)

        return self._summarise(quantity, size)

    def mcse(self, quantity: Quantity = "theta") -> Tensor:
        """Monte-Carlo standard error of :meth:`mean` ``(num_docs, dim)``.

        Raises:
            ConfigError: There are fewer than 4 draws of a chain.
        """
        size = self.effective_sample_size(quantity, "mean")
        return self.std(quantity) / size.sqrt()

    def to_arviz(self) -> Any:
        """For ArviZ; see :func:`torch_lntm.inference.to_arviz`.

        Raises:
            ConfigError: ArviZ is missing.
        """
        from torch_lntm.inference.diagnostics import to_arviz

        return to_arviz(self)

    def __repr__(self) -> str:
        return (
            f"DocumentSamples({self.num_chains} chains × {self.num_samples} samples × "
            f"{self.num_docs} documents, acceptance {self.acceptance.mean():.2f}, "
            f"{int(self.divergences.sum())} divergences, {int((~self.moved).sum())} stuck chains"
            f"{', interrupted' if self.interrupted else ''})"
        )

    def _require(self, least: int) -> None:
        if self.num_samples < least:
            raise ConfigError(
                f"there are {self.num_samples} draws of each chain; diagnostics need {least}"
            )

    def _summarise(self, quantity: Quantity, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a function of draws ``(chains, samples, docs, dim)`` to the chains that moved."""
        if quantity not in get_args(Quantity) or (quantity == "source" and self.source is None):
            known = [q for q in get_args(Quantity) if q != "source" or self.source is not None]
            raise ConfigError(f"quantity {quantity!r}; expected one of {', '.join(known)}")
        values = self.eta if self.source is None or quantity != "source" else self.source
        transform = self.model.theta if quantity == "theta" else lambda draws: draws
        dim = self.model.num_topics if quantity == "theta" else values.shape[-1]
        result = values.new_full((self.num_docs, dim), torch.nan, dtype=torch.float64)
        size = max(1, _MAX_NUMBERS // max(1, dim * self.num_chains * self.num_samples))
        # Documents with the same chains left are summarised together.
        for pattern in self.moved.unique(dim=1).unbind(1):
            if not bool(pattern.any()):
                continue
            documents = (self.moved == pattern[:, None]).all(0).nonzero().squeeze(-1)
            for rows in documents.split(size):
                draws = transform(values[:, :, rows][pattern].double())
                result[rows] = function(draws)
        return result


def _normal_scores(draws: Tensor) -> Tensor:
    """Normal scores of the ranks of draws ``(chains, samples, ...)`` among all chains' draws."""
    flat = draws.flatten(0, 1)
    # Rejections repeat draws: from both ends, equal draws have the same ranks on average.
    average = 0.5 * (_ranks(flat) + _ranks(flat.flip(0)).flip(0)).double()
    return torch.special.ndtri((average + 0.625) / (len(flat) + 0.25)).view_as(draws)


def _ranks(values: Tensor) -> Tensor:
    """Ranks from 0 along the first axis, equal values in order of appearance."""
    return values.argsort(dim=0, stable=True).argsort(0)


def effective_sample_size(draws: Tensor) -> Tensor:
    """Effective sample size of split chains, by Geyer's initial monotone sequence.

    As Pyro's and Stan's (*Vehtari et al. 2021, §3.2*), of chains cut in two; in memory linear in
    the number of draws, of which Pyro's takes the square. Of chains that alternate, Pyro's can be
    negative.

    Args:
        draws: ``(num_chains, num_samples, ...)``, at least 4 samples.

    Returns:
        ``(...)``; at most n·log₁₀ n of n draws, and n of draws that are all the same.
    """
    half = draws.shape[1] // 2
    split = torch.cat([draws[:, :half], draws[:, -half:]])
    total = 2 * draws.shape[0] * half
    within = split.var(1).mean(0)
    spread = (half - 1) / half * within + split.mean(1).var(0)
    covariance = autocovariance(split, dim=1).mean(0)
    correlation = 1.0 - (within - covariance) / torch.where(spread > 0, spread, 1.0)
    correlation[0] = 1.0
    pairs = correlation[: half // 2 * 2].unflatten(0, (-1, 2)).sum(1)
    pairs[1:] = pairs[1:].clamp_min(0.0)
    time = 2.0 * pairs.cummin(0).values.sum(0) - 1.0
    longest = torch.tensor(float(total)).log10().reciprocal()
    return torch.where(spread > 0, total / time.clamp_min(longest), float(total))


class DocumentHMC(MCMCKernel):
    """Hamiltonian Monte Carlo for eta (and its sources), every document with chains of its own.

    A kernel for ``pyro.infer.MCMC(DocumentHMC(model), num_samples=500).run(batch)``, and with
    :meth:`run` on its own. Acceptance, step size and mass matrix belong to each document (the first
    two to each of its chains), all documents and chains move in one tensor, and gradients are in
    closed form. A document's draws are a function of the model, the document, its position in the
    corpus and the seed: who shares its batch changes them by rounding only.

    Inside ``pyro.infer.MCMC`` a sample has the shape that stock kernels give it,
    ``(num_docs, dim)``, with one chain, and ``(num_chains, num_docs, dim)`` with more. There, as
    with stock kernels, chains also depend on ``pyro.set_rng_seed``, so that Pyro's own
    ``num_chains`` run different ones.

    Chains start from prior draws, which are wider than the posterior: where R-hat is 1, documents
    with several modes have been explored. Step sizes adapt to each chain's acceptance by dual
    averaging in warm-up and are frozen after it; with the metrics ``"prior"`` and ``"laplace"``
    they stay below those of trajectories that turn back, so acceptance may be higher than aimed at.
    Mass matrices do not change.

    Args:
        model: A model with eta: ``ctm``, ``lntm`` or ``iftm``.
        num_chains: Chains of each document.
        mass_matrix: What has unit mass: ``"identity"``, eta and sources themselves; ``"prior"``,
            the whitened prior; ``"taylor"``, the document's Taylor posterior, under a factor prior
            that of eta and sources together (Laplace sources by their dual at the factor
            posterior); ``"laplace"``, the document's Laplace posterior. By default the last, whose
            chains mix best per leapfrog (*on* ``ap`` *with 50 topics,* ``benchmarks.sampling``);
            with sources, for which there is none, ``"prior"``.
        num_steps: Leapfrog steps of a transition; by default 5 with the document's own metric and
            30 otherwise (*there, of the former: 0.076, 0.073 and 0.050 effective samples per
            leapfrog with 5, 8 and 12*).
        step_size: A number or ``(num_chains, num_docs)`` to keep; None to search and adapt them.
        target_accept: Mean acceptance probability that adaptation aims at.
        jitter: Step sizes vary by this part from transition to transition, uniformly, lest
            trajectories close on themselves.
        seed: Seed of all noise.

    Raises:
        IncompatibleGuideError: The model has no eta.
        ConfigError: A setting that cannot be used.
    """

    #: Pyro's ``MCMC`` applies these to the samples: none.
    transforms: Mapping[str, Any] = {}

    def __init__(
        self,
        model: TopicModel,
        *,
        num_chains: int = 1,
        mass_matrix: MassMatrix | None = None,
        num_steps: int | None = None,
        step_size: float | Tensor | None = None,
        target_accept: float = 0.8,
        jitter: float = 0.2,
        seed: int = 0,
    ) -> None:
        prior = getattr(model, "prior", None)
        if not isinstance(prior, LogisticNormalPrior | IndependentFactorPrior):
            raise IncompatibleGuideError(
                f"DocumentHMC samples eta, which {getattr(prior, 'family', type(model).__name__)} "
                "does not have; it is for ctm, lntm and iftm. pyro.infer.NUTS takes every model"
            )
        if mass_matrix is None:
            mass_matrix = "laplace" if isinstance(prior, LogisticNormalPrior) else "prior"
        if num_steps is None:
            num_steps = _FEW_STEPS if mass_matrix in ("taylor", "laplace") else _MANY_STEPS
        if mass_matrix not in get_args(MassMatrix):
            raise ConfigError(
                f"mass_matrix {mass_matrix!r}; expected one of {', '.join(get_args(MassMatrix))}"
            )
        if mass_matrix == "laplace" and isinstance(prior, IndependentFactorPrior):
            raise ConfigError(
                "mass_matrix 'laplace' is for ctm and lntm; with sources use 'taylor', 'prior' or "
                "'identity'"
            )
        for name, value in (("num_chains", num_chains), ("num_steps", num_steps)):
            if value < 1:
                raise ConfigError(f"{name} is {value}; expected at least 1")
        if not 0 < target_accept < 1 or not 0 <= jitter < 1:
            raise ConfigError(
                f"target_accept is {target_accept} and jitter {jitter}; expected them between 0 "
                "and 1"
            )
        if step_size is not None:
            given = torch.as_tensor(step_size)
            if not bool((given.isfinite() & (given > 0)).all()):
                raise ConfigError(f"step_size is {step_size}; expected positive numbers")
        if not 0 <= seed < 2**63:
            raise ConfigError(f"seed is {seed}; expected a number from 0 to 2**63 - 1")
        self.model = model
        self.num_chains = num_chains
        self.mass_matrix: MassMatrix = mass_matrix
        self.num_steps = num_steps
        self.step_size = step_size
        self.target_accept = target_accept
        self.jitter = jitter
        self.seed = seed
        self._initial: Mapping[str, Tensor] | None = None
        self._chains: Chains | None = None

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

        Ctrl-C ends the run with the draws it has so far.

        Args:
            batch: The documents, over the model's vocabulary.
            num_samples: Draws of each chain.
            warmup_steps: Transitions before them, in which step sizes adapt.
            initial_params: Where to start: ``(num_chains, num_docs, dim)`` values by the names of
                the sites, or without the first axis of one chain; prior draws by default.
            progress: Show a progress bar on standard error.

        Returns:
            The draws, their acceptance and diagnostics.

        Raises:
            ConfigError: The batch has another vocabulary size than the model, or a number or shape
                is wrong.
            NumericalError: The model's parameters, or a density where the chains start, are not
                finite; names the parameter or the documents.
        """
        for name, number, least in (
            ("num_samples", num_samples, 1),
            ("warmup_steps", warmup_steps, 0),
        ):
            if number < least:
                raise ConfigError(f"{name} is {number}; expected at least {least}")
        chains = Chains(self, batch, self.seed, warmup_steps, initial_params)
        store = {
            site: torch.empty(self.num_chains, num_samples, *value.shape[1:], dtype=value.dtype)
            for site, value in chains.latents.items()
        }
        drawn, interrupted = 0, False
        with tqdm(total=warmup_steps + num_samples, unit="it", disable=not progress) as bar:
            try:
                for count in range(-warmup_steps, num_samples):
                    bar.set_description("warm-up" if count < 0 else "sampling", refresh=False)
                    chains.move()
                    if count >= 0:
                        for site, value in chains.latents.items():
                            store[site][:, count] = value
                        drawn = count + 1
                    if progress:
                        bar.set_postfix(chains.summary, refresh=False)
                    bar.update()
            except KeyboardInterrupt:
                interrupted = True
        store = {site: draws[:, :drawn] for site, draws in store.items()}
        chains.warn_of_stuck(f"means leave them out. {_CURE}")
        return DocumentSamples(
            model=self.model,
            eta=store["eta"],
            source=store.get("source"),
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
        seed = self.seed + int(torch.randint(2**62, ()))
        self._chains = Chains(self, args[0], seed, warmup_steps, self._initial)
        self._initial = None

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
        self._running().move()
        return self._params()

    def logging(self) -> OrderedDict[str, str]:
        """Mean step size, and mean acceptance probability of the last transition."""
        return OrderedDict(self._running().summary)

    def diagnostics(self) -> dict[str, Any]:
        """What happened after warm-up.

        Returns:
            ``"divergences"``, a list with the document's position for each divergent transition;
            ``"acceptance rate"`` and ``"step size"``, each ``(num_chains, num_docs)``; and
            ``"stuck"``, a list with the document's position for each chain that never moved.
        """
        chains = self._running()
        chains.warn_of_stuck(_CURE)
        index = chains.target.batch.index
        return {
            "divergences": index.repeat_interleave(chains.divergences.sum(0)).tolist(),
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
        if self.num_chains > 1:
            return latents
        return {site: value[0] for site, value in latents.items()}


class Progress(NamedTuple):
    """How far chains have come, besides where they are.

    Attributes:
        num_transitions: Transitions made.
        adaptation: Their step sizes.
    """

    num_transitions: int
    adaptation: hmc.DualAveraging


class Chains:
    """The chains of one batch on their way.

    Args:
        kernel: The settings.
        batch: The documents.
        seed: Seed of all noise.
        warmup_steps: Transitions in which step sizes adapt.
        initial: Where to start, or None for prior draws.
        progress: What the same chains had come to at an earlier visit; they go on from there.
        means: ``(num_docs, latent_dim)`` where the solver of the mass matrices starts.

    Raises:
        ConfigError: See :meth:`DocumentHMC.run`.
        NumericalError: See :meth:`DocumentHMC.run`.
    """

    def __init__(
        self,
        kernel: DocumentHMC,
        batch: DocumentBatch,
        seed: int,
        warmup_steps: int,
        initial: Mapping[str, Tensor] | None,
        progress: Progress | None = None,
        means: Tensor | None = None,
    ) -> None:
        model = kernel.model
        if not isinstance(batch, DocumentBatch):
            raise ConfigError(
                f"expected a DocumentBatch; got a {type(batch).__name__}; a corpus has batch()"
            )
        batch = model.check_batch(batch)
        model.check_parameters()
        assert isinstance(model.prior, LogisticNormalPrior | IndependentFactorPrior)
        _warn_of_rounding(batch)
        self.kernel = kernel
        self.warmup_steps = warmup_steps
        self.target = hmc.DocumentTarget(
            batch, model.topics.probs.detach(), model.prior.solver_prior(), kernel.num_chains
        )
        #: What the mass matrices' solver ended at, if there was any.
        self.means = means
        self._metric = self._make_metric()
        keys = hmc.chain_keys(seed, batch.index, kernel.num_chains)
        self._keys = hmc.fold_in(keys, _TRANSITIONS)
        if initial is None:
            position = self.target.draw_prior(hmc.fold_in(keys, _START))
        else:
            position = self._position(initial)
        self.state = hmc.init(self.target, position)
        self._adaptation: hmc.DualAveraging | None = None
        self.num_transitions = 0
        shape = self.state.log_prior.shape
        if progress is not None:
            self.num_transitions, self._adaptation = progress
            self.step_size = self._adapted(self._adaptation)
        elif kernel.step_size is None:
            found = hmc.find_step_size(
                hmc.fold_in(keys, _SEARCH), self.target, self.state, self._metric
            )
            self.step_size = found.clamp_max(self._longest_step)
            if warmup_steps:
                self._adaptation = hmc.DualAveraging.start(self.step_size)
        else:
            step_size = torch.as_tensor(kernel.step_size).to(self.state.log_prior)
            try:
                self.step_size = step_size.expand(shape)
            except RuntimeError:
                raise ConfigError(
                    f"step_size of shape {tuple(step_size.shape)}; expected a number or "
                    f"{tuple(shape)}"
                ) from None
        self._acceptance = torch.zeros_like(self.state.log_prior)
        self.last: hmc.HMCInfo | None = None
        self.divergences = torch.zeros(shape, dtype=torch.int64, device=batch.device)
        self.moved = torch.zeros(shape, dtype=torch.bool, device=batch.device)

    def _make_metric(self) -> hmc.Metric:
        model, batch, prior = self.kernel.model, self.target.batch, self.target.prior
        name = self.kernel.mass_matrix
        if name == "prior":
            return hmc.UnitMetric()
        if name == "identity":
            return hmc.eta_metric(prior)
        if not isinstance(prior, FactorPrior):
            guide = TaylorGuide(model) if name == "taylor" else LaplaceGuide(model)
            found = guide.posterior(batch, self.means)
            self.means = found.mean
            return hmc.posterior_metric(found)
        if prior.source == "gaussian":
            found = TaylorGuide(model).posterior(batch, self.means)
            scale = found.mean.new_ones(batch.num_docs, prior.num_sources)
        else:
            found = posterior = FactorGuide(model).posterior(batch, self.means)
            # |η| = sqrt(E s²), at which the dual touches −|s|.
            second = posterior.source_mean.double().square() + posterior.source_std.square()
            scale = second.pow(0.25)
        self.means = found.mean
        weights = batch.lengths[:, None] * found.theta_mode()
        return hmc.factor_metric(prior, weights, scale, batch.index)

    def _position(self, latents: Mapping[str, Tensor]) -> Tensor:
        """The z of given latent variables, checked."""
        prior, batch = self.target.prior, self.target.batch
        sizes = {"eta": prior.dim}
        if isinstance(prior, FactorPrior):
            sizes["source"] = prior.num_sources
        if set(latents) != set(sizes):
            raise ConfigError(
                f"initial_params has {', '.join(sorted(latents))}; expected "
                f"{', '.join(sorted(sizes))}"
            )
        values = {}
        for site, size in sizes.items():
            value = latents[site].to(self.target.topics)
            if self.kernel.num_chains == 1 and value.dim() == 2:
                value = value[None]
            expected = (self.kernel.num_chains, batch.num_docs, size)
            if tuple(value.shape) != expected:
                raise ConfigError(
                    f"initial {site} of shape {tuple(latents[site].shape)}; expected {expected}"
                )
            values[site] = value
        if not isinstance(prior, FactorPrior):
            return prior.whiten(values["eta"])
        noise = prior.noise(values["eta"], values["source"]).to(values["eta"])
        return torch.cat([values["source"], noise], -1)

    @property
    def latents(self) -> dict[str, Tensor]:
        """Where the chains are, ``(num_chains, num_docs, dim)`` by the names of the sites."""
        z = self.state.position
        latents = {"eta": self.target.prior.unwhiten(z)}
        if self.target.num_sources:
            latents["source"] = z[..., : self.target.num_sources]
        return latents

    def move(self) -> None:
        """One transition, and what there is to learn from it."""
        key = hmc.fold_in(self._keys, self.num_transitions)
        state, info = hmc.step(
            key,
            self.target,
            self.state,
            hmc.jittered(key, self.step_size, self.kernel.jitter),
            self._metric,
            self.kernel.num_steps,
        )
        self.state = state
        self.num_transitions += 1
        self.last = info
        if self.num_transitions > self.warmup_steps:
            self._acceptance = self._acceptance + info.acceptance
            self.divergences = self.divergences + info.divergent
            self.moved = self.moved | info.accepted
        elif self._adaptation is not None:
            target = self.kernel.target_accept
            self._adaptation = self._adaptation.update(info.acceptance, target, self._longest_step)
            self.step_size = self._adapted(self._adaptation)

    def _adapted(self, adaptation: hmc.DualAveraging) -> Tensor:
        frozen = self.num_transitions >= self.warmup_steps
        return (adaptation.log_average if frozen else adaptation.log_step_size).exp()

    @property
    def _longest_step(self) -> float:
        """The step size with which a trajectory is as long as it may be.

        That is known in metrics in which the posterior is hardly wider than a unit normal. In
        others it may be much wider: in Taylor's, which is too sure, as well.
        """
        known = self.kernel.mass_matrix in ("prior", "laplace")
        return _LONGEST / self.kernel.num_steps if known else math.inf

    @property
    def progress(self) -> Progress:
        """What to go on from at a later visit."""
        assert self._adaptation is not None
        return Progress(self.num_transitions, self._adaptation)

    @property
    def num_samples(self) -> int:
        """Transitions after warm-up."""
        return max(0, self.num_transitions - self.warmup_steps)

    @property
    def mean_acceptance(self) -> Tensor:
        """Mean acceptance probability after warm-up ``(num_chains, num_docs)``; NaN before."""
        return self._acceptance / self.num_samples if self.num_samples else self._acceptance / 0.0

    @property
    def summary(self) -> dict[str, str]:
        """A line about the last transition."""
        acceptance = self._acceptance if self.last is None else self.last.acceptance
        return {
            "step size": f"{float(self.step_size.mean()):.2e}",
            "acc. prob": f"{float(acceptance.mean()):.3f}",
        }

    def warn_of_stuck(self, advice: str) -> None:
        """Name the documents of which a chain never moved after warm-up."""
        if self.num_samples:
            index = self.target.batch.index
            warn_of_stuck(self.moved, index, self.num_samples, advice)


def _warn_of_rounding(batch: DocumentBatch) -> None:
    """Name documents so long that rounding spoils their energies, which acceptance is made of."""
    long = batch.lengths * torch.finfo(batch.dtype).eps > _COARSE
    if bool(long.any()):
        documents = batch.index[long].tolist()
        warnings.warn(
            f"{len(documents)} document(s), first at position {documents[0]}, of up to "
            f"{int(batch.lengths.max())} tokens are too long for {batch.dtype}: rounding spoils "
            "their chains; use a model of dtype float64",
            stacklevel=5,
        )


def warn_of_stuck(moved: Tensor, index: Tensor, num_transitions: int, advice: str) -> None:
    """Warn, on behalf of whoever called the public method, of chains that never moved.

    Args:
        moved: ``(num_chains, num_docs)`` bool.
        index: ``(num_docs,)`` positions of the documents.
        num_transitions: In how many transitions they did not.
        advice: What follows from it, and what to do about it.
    """
    stuck = (~moved).any(0)
    if bool(stuck.any()):
        documents = index[stuck].tolist()
        named = ", ".join(map(str, documents[:10])) + (", …" if len(documents) > 10 else "")
        warnings.warn(
            f"{int((~moved).sum())} chain(s) of {len(documents)} document(s) never moved in "
            f"{num_transitions} transitions, at positions {named}; {advice}",
            stacklevel=5,  # the public method's decorator is a frame too
        )
