"""Chains, the running Hamiltonian chains of one batch's documents."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import (
    ConfigError,
    ConvergenceWarning,
    NumericalError,
    UnreliableEstimateWarning,
    warn,
)
from torch_lntm.guides import make_guide
from torch_lntm.guides.table import guides_suited
from torch_lntm.latents.metrics import Metric
from torch_lntm.models import TopicModel
from torch_lntm.sampling import hmc
from torch_lntm.sampling.collapsed import CollapsedGibbs
from torch_lntm.sampling.step_sizes import CONSTANTS, DualAveraging, find_step_size

#: Numbers folded into a chain's key, for its start, its search for a step size and its transitions.
_START, _SEARCH, _TRANSITIONS = 0, 1, 2
#: Upper bound on step size × number of steps, before jitter. It is a third of the period 2π that
#: the dynamics of a unit normal have, because longer trajectories begin to return to their start.
MAX_TRAJECTORY_LENGTH = 2.0 * math.pi / 3.0
#: Mass matrices with this bound, in whose coordinates a posterior is hardly wider than a unit
#: normal. Taylor's posterior is too narrow, so in its metric the true one may be much wider.
_BOUNDED = ("prior", "laplace")
#: Number of transitions without a move after which a chain counts as stuck, because shorter pauses
#: happen by chance.
FEWEST_TRANSITIONS = 10
#: Maximum number of momenta drawn at once, for several transitions, to bound memory.
DRAWN_AHEAD = 2**22
#: Largest acceptable rounding error of a document's log likelihood in nats, estimated as its tokens
#: times the dtype's machine epsilon. Larger errors spoil the acceptance.
MAX_ENERGY_ROUNDING = 0.05


@dataclass(frozen=True, eq=False)
class HMCSettings:
    """Settings of Hamiltonian Monte Carlo; see :class:`DocumentHMC` for details.

    Attributes:
        num_chains: Number of chains of each document.
        mass_matrix: ``"prior"``, ``"identity"``, or one of the space's guides
            (:mod:`torch_lntm.guides.table`).
        num_steps: Number of leapfrog steps of a transition.
        step_size: Constant step size, as a number or ``(num_chains, num_docs)``. ``None`` searches
            and adapts step sizes.
        target_accept: Mean acceptance probability that the adaptation aims at.
        jitter: Largest relative change of a step size between transitions.
        seed: Seed of all random numbers.
    """

    num_chains: int
    mass_matrix: str
    num_steps: int
    step_size: float | Tensor | None = None
    target_accept: float = 0.8
    jitter: float = 0.2
    seed: int = 0


class Chains:
    """The running chains of one batch's documents.

    Args:
        model: The model. Its parameters are read once.
        settings: Settings of the chains.
        batch: The documents.
        warmup_steps: Transitions with adapting step sizes.
        initial: ``(num_chains, num_docs, dim)`` initial latent variables by the names of the sites,
            whose first axis may be missing for one chain. Defaults to prior draws.
        progress: State of the adaptation after an earlier visit, with the number of past
            transitions. The chains then continue from the latent variables ``initial`` and skip the
            checks. Defaults to new chains.
        means: ``(num_docs, latent_dim)`` starting points for the solver of the mass matrices. By
            default the solver chooses.

    Attributes:
        target: Density of the documents.
        step_size: ``(num_chains, num_docs)`` float64 step size of the next transition, before
            jitter.
        num_transitions: Number of past transitions.
        last: Outcomes of the last transitions. ``None`` before the first one.
        divergences: ``(num_chains, num_docs)`` int64 numbers of divergent transitions after
            warm-up.
        moved: ``(num_chains, num_docs)`` bool: the chain accepted a proposal after warm-up.
        counts: Proportions ``(num_chains, num_docs, num_topics)`` at the last positions, and ratios
            ``(num_chains, nnz)`` of counts and probabilities, if :meth:`advance` has made them.

    Raises:
        ConfigError: The vocabulary sizes of batch and model differ, the mass matrix is unknown, or
            a shape is wrong.
        NumericalError: A parameter of the model, or a density at the start of the chains, is not
            finite. The message names the parameter or the documents, but continued chains skip this
            check.

    Warns:
        UnreliableEstimateWarning: Documents are too long for the model's dtype.
    """

    def __init__(
        self,
        model: TopicModel,
        settings: HMCSettings,
        batch: DocumentBatch,
        warmup_steps: int,
        initial: Mapping[str, Tensor] | None = None,
        progress: DualAveraging | None = None,
        means: Tensor | None = None,
    ) -> None:
        self.settings = settings
        self.warmup_steps = warmup_steps
        self.target = model.bind(batch)
        if progress is None:
            _warn_of_rounding(self.target.batch)
        self._metric = self._make_metric(model, means)
        keys = noise.document_keys(settings.seed, self.target.batch.index, settings.num_chains)
        self._keys = noise.fold_in(keys, _TRANSITIONS)
        start_keys = noise.fold_in(keys, _START)
        # Coordinates that the latents leave open are drawn, with new keys at every visit.
        visit = 0 if progress is None else progress.num_updates
        if initial is None:
            position = self.target.draw_prior(start_keys)
        else:
            initial = initial if progress else self._checked(initial, keys.shape)
            position = self.target.locate(initial, noise.fold_in(start_keys, visit))
        self._position, self._state = position, None  # type: Tensor, hmc.HMCState | None
        self._latents: dict[str, Tensor] | None = None
        self._drawn: list[hmc.Randomness] = []
        self.counts: tuple[Tensor, ...] | None = None
        # Checking makes the host wait for a GPU, so only new chains are checked.
        if progress is None:
            self._require_finite(initial or {})
            if not bool(hmc.are_finite([*model.parameters(), *self.state])):
                model.check_parameters()
                hmc.require_finite(self.target, self.state)
        self.num_transitions = 0
        self._adaptation: DualAveraging | None = None
        if progress is not None:
            self.num_transitions, self._adaptation = progress.num_updates, progress
            self.step_size = self._adapted(self._adaptation)
        elif settings.step_size is not None:
            constant = torch.as_tensor(settings.step_size).to(self.state.log_prior)
            self.step_size = constant.expand_as(self.state.log_prior)
        else:
            search_keys = noise.fold_in(keys, _SEARCH)
            step_size = find_step_size(search_keys, self.target, self.state, self._metric)
            self.step_size = step_size.clamp_max(self._longest_step)
            if warmup_steps:
                self._adaptation = DualAveraging.start(self.step_size)
        self.last: hmc.HMCInfo | None = None
        self._acceptance = torch.zeros_like(self.step_size)
        self.divergences = torch.zeros_like(self._acceptance, dtype=torch.int64)
        self.moved = torch.zeros_like(self._acceptance, dtype=torch.bool)

    def _make_metric(self, model: TopicModel, means: Tensor | None) -> Metric:
        space, name = self.target.space, self.settings.mass_matrix
        if name == "prior":
            return Metric()
        metrics = guides_suited(model).metrics
        if name == "identity":
            metric = space.unit_metric()
            if metric is None:
                raise ConfigError(
                    f"mass_matrix 'identity' does not exist in a {type(space).__name__}; expected "
                    f"one of {', '.join([*metrics, 'prior'])}"
                )
            return metric
        model.check_parameters()
        return make_guide(name, model).posterior(self.target.batch, means).metric()

    def _checked(self, latents: Mapping[str, Tensor], rows: torch.Size) -> dict[str, Tensor]:
        """Latent variables in the type of the space, after a check of their names and shapes."""
        space = self.target.space
        template = space.latents(self.target.topics.new_zeros(1, 1, space.dim))
        if set(latents) != set(template):
            raise ConfigError(
                f"initial_params has {', '.join(sorted(latents))}; expected "
                f"{', '.join(sorted(template))}"
            )
        values = {}
        for site, expected in template.items():
            value = torch.as_tensor(latents[site]).to(expected)
            if rows[0] == 1 and value.dim() == 2:
                value = value[None]
            shape = (*rows, expected.shape[-1])
            if value.shape != shape:
                raise ConfigError(
                    f"initial {site} of shape {tuple(torch.as_tensor(latents[site]).shape)}; "
                    f"expected {shape}"
                )
            values[site] = value
        return values

    def _require_finite(self, latents: Mapping[str, Tensor]) -> None:
        """Check the initial latent variables themselves, because some maps to z hide a NaN."""
        positions = self.target.batch.positions
        for site, value in latents.items():
            bad = ~torch.as_tensor(value).cpu().isfinite().all(-1).view(-1, len(positions)).all(0)
            if documents := positions[bad].tolist():
                raise NumericalError(
                    f"initial {site} of {len(documents)} document(s) is not finite, first at "
                    f"position {documents[0]}",
                    documents,
                )

    @property
    def state(self) -> hmc.HMCState:
        """Positions of the chains, with their densities and gradients."""
        # Continued chains evaluate them in their first transition.
        if self._state is None:
            self._state = hmc.evaluate(self.target, self._position)
        return self._state

    @property
    def latents(self) -> dict[str, Tensor]:
        """Latent variables of the chains ``(num_chains, num_docs, dim)`` by the sites' names."""
        if self._latents is None:
            self._latents = self.target.space.latents(self.state.position)
        return self._latents

    @property
    def logits(self) -> Tensor:
        """Logits of theta at the chains' positions ``(num_chains, num_docs, num_topics)``."""
        return self.target.space.logits_at(self.state.position, self.latents)

    def advance(
        self, number: int = 1, with_counts: bool = False, later: int = 0
    ) -> tuple[hmc.HMCInfo, Tensor]:
        """Make some transitions, and adapt the step sizes during warm-up.

        Compiled kernels make all of them in one call.

        Args:
            number: Number of transitions, at least 1, which is the default.
            with_counts: Whether compiled kernels also make :attr:`counts`, while the documents'
                words are in the cache.
            later: Number of transitions that will follow, whose random numbers PyTorch draws too,
                because a larger draw takes hardly longer.

        Returns:
            Outcomes of the transitions and the step sizes after them, ``(number, num_chains,
            num_docs)`` each.
        """
        self._latents = self.counts = None
        if not hmc.is_compiled(self.target):
            steps = [self._step(self._draw(number - i + later)) for i in range(number)]
            # A stack of one would be a launch on a GPU.
            made = [torch.stack(x) if number > 1 else x[0][None] for x in zip(*steps, strict=True)]
            return hmc.HMCInfo(*made[:4]), made[4]
        settings, unknown, state = self.settings, torch.empty_like(self.step_size), self._state
        adaptation = self._adaptation if self.num_transitions < self.warmup_steps else None
        if state is None:
            state = hmc.HMCState(self._position, unknown, unknown, self._position)
        new, sizes, outcome, counts = hmc.compiled_steps(
            self.target,
            state,
            (self._keys,),
            (self.step_size, *(adaptation or ())[:4]),
            (
                *(self._state is None, self.num_transitions, self.warmup_steps),
                *(settings.num_steps, settings.jitter, hmc.MAX_ENERGY_ERROR),
                *(settings.target_accept, math.log(self._longest_step), *CONSTANTS),
            ),
            number,
            self._metric,
            with_counts=with_counts,
        )
        self._state = hmc.HMCState(*new)
        self.counts = counts if with_counts else None
        info, step_sizes = hmc.HMCInfo(*outcome[:4]), outcome[4]
        self._count(info)
        if adaptation is not None:
            last = max(adaptation.num_updates, min(self.num_transitions, self.warmup_steps))
            _, log_step_size, log_average, shortfall, centre = sizes
            self._adaptation = DualAveraging(log_step_size, log_average, shortfall, centre, last)
        self.step_size = step_sizes[-1]
        return info, step_sizes

    def _draw(self, number: int) -> hmc.Randomness:
        """Random numbers of the next transition, drawn at once for up to ``number`` of them."""
        if not self._drawn:
            ahead = min(number, max(1, DRAWN_AHEAD // max(1, self._position.numel())))
            numbers = torch.arange(ahead, device=self._keys.device) + self.num_transitions
            drawn = hmc.draw(noise.fold_in(self._keys, numbers[:, None, None]), self.target)
            self._drawn = list(map(hmc.Randomness, *(x.unbind() for x in drawn)))
        return self._drawn.pop(0)

    def _step(self, drawn: hmc.Randomness) -> tuple[Tensor, ...]:
        """One transition by PyTorch's operations: its outcome, and the step sizes after it."""
        settings = self.settings
        self._state, info = hmc.step(
            drawn,
            self.target,
            self.state,
            self.step_size,
            self._metric,
            settings.num_steps,
            jitter=settings.jitter,
        )
        self._count(hmc.HMCInfo(*(x[None] for x in info)))
        if self.num_transitions <= self.warmup_steps and self._adaptation is not None:
            self._adaptation = self._adaptation.update(
                info.acceptance, settings.target_accept, self._longest_step
            )
            self.step_size = self._adapted(self._adaptation)
        return *info, self.step_size

    def _count(self, info: hmc.HMCInfo) -> None:
        """Count transitions."""
        self.last = info
        first = max(0, self.warmup_steps - self.num_transitions)
        self.num_transitions += len(info.accepted)
        if first < len(info.accepted):
            self._acceptance = self._acceptance + info.acceptance[first:].sum(0)
            self.divergences = self.divergences + info.divergent[first:].sum(0)
            self.moved = self.moved | info.accepted[first:].any(0)

    def _adapted(self, adaptation: DualAveraging) -> Tensor:
        frozen = self.num_transitions >= self.warmup_steps
        return (adaptation.log_average if frozen else adaptation.log_step_size).exp()

    @property
    def _longest_step(self) -> float:
        """Upper bound on the step size."""
        if self.settings.mass_matrix in _BOUNDED:
            return MAX_TRAJECTORY_LENGTH / self.settings.num_steps
        return math.inf

    @property
    def progress(self) -> DualAveraging:
        """State of the adaptation for a later visit of the same chains."""
        assert self._adaptation is not None
        return self._adaptation._replace(num_updates=self.num_transitions)

    @property
    def num_draws(self) -> int:
        """Number of transitions after warm-up."""
        return max(0, self.num_transitions - self.warmup_steps)

    @property
    def mean_acceptance(self) -> Tensor:
        """Mean acceptance probability ``(num_chains, num_docs)`` after warm-up. NaN before."""
        return self._acceptance / self.num_draws

    @property
    def summary(self) -> dict[str, str]:
        """Mean step size and mean acceptance probability of the last transition, as text."""
        acceptance = self._acceptance[None] if self.last is None else self.last.acceptance
        return {
            "step size": f"{float(self.step_size.mean()):.2e}",
            "acc. prob": f"{float(acceptance[-1].mean()):.3f}",
        }

    def warn_of_stuck(self, advice: str) -> None:
        """Warn of documents with chains that have been stuck since warm-up.

        Args:
            advice: Consequence of stuck chains, and a remedy, in words.

        Warns:
            ConvergenceWarning: A chain never moved. The message names its document.
        """
        if self.num_draws:
            warn_of_stuck(self.moved, self.target.batch.index, self.num_draws, advice)


def theta_chains(
    model: TopicModel,
    batch: DocumentBatch,
    *,
    num_chains: int,
    warmup_steps: int,
    seed: int,
    num_steps: int,
) -> tuple[Callable[[int], Tensor], str]:
    """Start chains of documents whose averages converge to the posterior mean of theta.

    Args:
        model: The model.
        batch: The documents.
        num_chains: Number of chains of each document.
        warmup_steps: Number of transitions with adapting step sizes.
        seed: Seed of all random numbers.
        num_steps: Number of leapfrog steps of a transition.

    Returns:
        Function that makes some transitions of every chain and returns their last proportions
        ``(num_chains, num_docs, num_topics)``, float64; and the name of the sampler: collapsed
        Gibbs sampling for conjugate models, and Hamiltonian Monte Carlo for all others.
    """
    if model.is_conjugate:
        space: Any = model.prior.space(batch)
        gibbs = CollapsedGibbs(
            model.topics.assign_levels(batch),
            model.topics.double_probs,
            space.concentration,
            num_chains=num_chains,
            seed=seed,
        )

        def sweep(number: int) -> Tensor:
            return [gibbs.sweep() for _ in range(number)][-1]

        return sweep, "collapsed Gibbs"
    settings = HMCSettings(num_chains, "prior", num_steps, seed=seed)
    chains = Chains(model, settings, batch, warmup_steps)

    def move(number: int) -> Tensor:
        chains.advance(number)
        return torch.softmax(chains.logits.double(), -1)

    return move, "Hamiltonian"


def initial_latents(
    model: TopicModel, batch: DocumentBatch, means: Tensor, num_chains: int, seed: int
) -> dict[str, Tensor]:
    """Initial latent variables of chains: the main one at given means, the rest drawn.

    Further coordinates are drawn.

    Args:
        model: The model.
        batch: The documents.
        means: ``(num_docs, latent_dim)`` values of the prior's main latent variable.
        num_chains: Number of chains of each document.
        seed: Seed of the draws.

    Returns:
        ``(num_chains, num_docs, dim)`` by the names of the sites.
    """
    space = model.prior.space(batch)
    keys = noise.document_keys(seed, batch.index, num_chains)
    return space.latents(space.place(means.expand(num_chains, -1, -1), keys))


def _warn_of_rounding(batch: DocumentBatch) -> None:
    """Warn of documents that are too long for the dtype: rounding would spoil their acceptance.

    Warns:
        UnreliableEstimateWarning: A document is too long. The message names its position.
    """
    longest = MAX_ENERGY_ROUNDING / torch.finfo(batch.dtype).eps
    # The total length bounds every length, and the host usually knows it without waiting for a GPU.
    if batch.num_tokens <= longest:
        return
    long = batch.lengths > longest
    if bool(long.any()):
        documents = batch.index[long].tolist()
        warn(
            f"{len(documents)} document(s), first at position {documents[0]}, of up to "
            f"{int(batch.lengths.max())} tokens are too long for {batch.dtype}: rounding spoils "
            "their chains; use a model of dtype float64",
            UnreliableEstimateWarning,
        )


def warn_of_stuck(moved: Tensor, index: Tensor, num_transitions: int, advice: str) -> None:
    """Warn of stuck chains.

    Args:
        moved: ``(num_chains, num_docs)`` bool: the chain moved.
        index: ``(num_docs,)`` positions of the documents.
        num_transitions: Number of observed transitions.
        advice: Consequence of stuck chains, and a remedy, in words.

    Warns:
        ConvergenceWarning: A chain never moved. The message names its document.
    """
    stuck = (~moved).any(0)
    if bool(stuck.any()):
        documents = index[stuck].tolist()
        named = ", ".join(map(str, documents[:10])) + (", …" if len(documents) > 10 else "")
        warn(
            f"{int((~moved).sum())} chain(s) of {len(documents)} document(s) never moved in "
            f"{num_transitions} transitions, at positions {named}; {advice}",
            ConvergenceWarning,
        )


def warn_of_low_acceptance(acceptance: float, target: float, advice: str) -> None:
    """Warn of chains that accept less than half of the target.

    Args:
        acceptance: Mean acceptance probability.
        target: Acceptance that the adaptation aimed at.
        advice: Reason or consequence, and a remedy, in words.

    Warns:
        ConvergenceWarning: The acceptance is low.
    """
    if acceptance < target / 2.0:
        warn(
            f"chains accepted {acceptance:.2f} of their proposals, far below the target {target}: "
            f"{advice}",
            ConvergenceWarning,
        )
