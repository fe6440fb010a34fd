"""Chains: the Hamiltonian chains of the documents of one batch, on their way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

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
from torch_lntm.inference.chains.settings import HMCSettings
from torch_lntm.latents.metrics import Metric, UnitMetric
from torch_lntm.models import TopicModel
from torch_lntm.sampling import hmc
from torch_lntm.sampling.step_sizes import DualAveraging, find_step_size

#: What is folded into a chain's key for its start, its search for a step size, its transitions.
_START, _SEARCH, _TRANSITIONS = 0, 1, 2
#: Upper bound on step size × number of steps, before jitter. For a unit normal the dynamics have
#: period 2π; beyond a third of it, trajectories start to return to where they came from.
MAX_TRAJECTORY_LENGTH = 2.0 * math.pi / 3.0
#: Mass matrices in which a posterior is hardly wider than a unit normal, so that the bound applies.
#: In other metrics it may be much wider, as in that of Taylor's posterior, which is too narrow.
_BOUNDED = ("prior", "laplace")
#: Transitions without a move of a chain that is stuck; after fewer it may be unlucky.
FEWEST_TRANSITIONS = 10
#: Momenta of several transitions are drawn at once as long as they have at most so many numbers.
DRAWN_AHEAD = 2**16
#: Largest acceptable rounding error of a document's log likelihood, in nats, estimated as its
#: number of tokens times the dtype's machine epsilon. Above it, acceptance probabilities are
#: unreliable.
MAX_ENERGY_ROUNDING = 0.05


class Progress(NamedTuple):
    """What a later visit of the same chains continues from, besides their positions.

    Attributes:
        num_transitions: Transitions made.
        adaptation: State of the adaptation of their step sizes.
    """

    num_transitions: int
    adaptation: DualAveraging


class Chains:
    """The chains of one batch on their way.

    Args:
        model: The model, whose parameters are read once.
        settings: How the chains move.
        batch: The documents.
        seed: Seed of all noise.
        warmup_steps: Transitions in which step sizes adapt.
        initial: ``(num_chains, num_docs, dim)`` latent variables to start from, by the names of the
            sites; without the first axis for one chain. None for prior draws.
        progress: Where the same chains ended an earlier visit, from whose latent variables
            ``initial`` they go on. They continue its adaptation, and nothing is checked again.
        means: ``(num_docs, latent_dim)`` where the solver of the mass matrices starts; its own
            choice by default.

    Attributes:
        target: The density of the documents.
        state: Where the chains are.
        means: Posterior means that the mass matrices' solver ended at, if there was one.
        step_size: ``(num_chains, num_docs)`` float64, of the next transition before jitter.
        num_transitions: Transitions made.
        last: What the last transition did, or None.
        divergences: ``(num_chains, num_docs)`` int64 divergent transitions after warm-up.
        moved: ``(num_chains, num_docs)`` bool, the chain accepted a proposal after warm-up.

    Raises:
        ConfigError: The batch has another vocabulary size than the model, there is no such mass
            matrix, or a shape is wrong.
        NumericalError: The model's parameters, or a density where the chains start, are not
            finite; names the parameter or the documents. Not looked at where chains go on.

    Warns:
        UnreliableEstimateWarning: Documents are too long for the model's dtype.
    """

    def __init__(
        self,
        model: TopicModel,
        settings: HMCSettings,
        batch: DocumentBatch,
        seed: int,
        warmup_steps: int,
        initial: Mapping[str, Tensor] | None = None,
        progress: Progress | None = None,
        means: Tensor | None = None,
    ) -> None:
        self.settings = settings
        self.warmup_steps = warmup_steps
        self.target = model.bind(batch)
        if progress is None:
            _warn_of_rounding(self.target.batch)
        self.means = means
        self._metric = self._make_metric(model)
        keys = noise.document_keys(seed, self.target.batch.index, settings.num_chains)
        self._keys = noise.fold_in(keys, _TRANSITIONS)
        start_keys = noise.fold_in(keys, _START)
        # What the latents leave open is drawn, anew at every visit.
        visit = 0 if progress is None else progress.num_transitions
        if initial is None:
            position = self.target.draw_prior(start_keys)
        else:
            position = self._locate(initial, noise.fold_in(start_keys, visit))
        self.state = hmc.evaluate(self.target, position)
        # Asked where chains begin, not at every visit, since the host waits for a GPU.
        if progress is None:
            device = self.target.batch.device
            given = [torch.as_tensor(value).to(device) for value in (initial or {}).values()]
            if not bool(hmc.are_finite([*model.parameters(), *given, *self.state])):
                model.check_parameters()
                self._require_finite(initial or {})
                hmc.require_finite(self.target, self.state)
        self.num_transitions = 0
        self._adaptation: DualAveraging | None = None
        if progress is not None:
            self.num_transitions, self._adaptation = progress
            self.step_size = self._adapted(self._adaptation)
        elif settings.step_size is not None:
            self.step_size = self._given_step_size(settings.step_size)
        else:
            search = noise.fold_in(keys, _SEARCH)
            found = find_step_size(search, self.target, self.state, self._metric)
            self.step_size = found.clamp_max(self._longest_step)
            if warmup_steps:
                self._adaptation = DualAveraging.start(self.step_size)
        self.last: hmc.HMCInfo | None = None
        #: What the next transitions draw.
        self._drawn: list[hmc.Randomness] = []
        self._acceptance = torch.zeros_like(self.state.log_prior)
        self.divergences = torch.zeros_like(self._acceptance, dtype=torch.int64)
        self.moved = torch.zeros_like(self._acceptance, dtype=torch.bool)

    def _make_metric(self, model: TopicModel) -> Metric:
        space, name = self.target.space, self.settings.mass_matrix
        if name == "prior":
            return UnitMetric()
        if name == "identity":
            metric = space.unit_metric()
            if metric is None:
                raise ConfigError(
                    f"mass_matrix 'identity' does not exist in a {type(space).__name__}; expected "
                    f"one of {', '.join([*space.posterior_metrics, 'prior'])}"
                )
            return metric
        model.check_parameters()
        batch = self.target.batch
        posterior = make_guide(space.posterior_metrics[name], model).posterior(batch, self.means)
        self.means = posterior.mean
        return posterior.metric(batch.lengths)

    def _locate(self, latents: Mapping[str, Tensor], keys: Tensor) -> Tensor:
        """The z of given latent variables, checked."""
        space = self.target.space
        like = space.latents(self.target.topics.new_zeros(*keys.shape, space.dim))
        if set(latents) != set(like):
            raise ConfigError(
                f"initial_params has {', '.join(sorted(latents))}; expected "
                f"{', '.join(sorted(like))}"
            )
        values = {}
        for site, expected in like.items():
            given = torch.as_tensor(latents[site])
            value = given.to(expected)
            if len(keys) == 1 and value.dim() == 2:
                value = value[None]
            if value.shape != expected.shape:
                raise ConfigError(
                    f"initial {site} of shape {tuple(given.shape)}; expected "
                    f"{tuple(expected.shape)}"
                )
            values[site] = value
        return space.locate(values, keys).to(self.target.topics.dtype)

    def _require_finite(self, latents: Mapping[str, Tensor]) -> None:
        """Name the documents of which a given latent variable is not finite, if there are any."""
        for site, given in latents.items():
            finite = torch.as_tensor(given).isfinite().all(-1).view(-1, self.target.batch.num_docs)
            if bad := self.target.batch.positions[~finite.all(0).cpu()].tolist():
                raise NumericalError(
                    f"initial {site} of {len(bad)} document(s) is not finite, first at position "
                    f"{bad[0]}",
                    bad,
                )

    def _given_step_size(self, step_size: float | Tensor) -> Tensor:
        given = torch.as_tensor(step_size).to(self.state.log_prior)
        try:
            return given.expand_as(self.state.log_prior)
        except RuntimeError:
            raise ConfigError(
                f"step_size of shape {tuple(given.shape)}; expected a number or "
                f"{tuple(self.state.log_prior.shape)}"
            ) from None

    @property
    def latents(self) -> dict[str, Tensor]:
        """Where the chains are, ``(num_chains, num_docs, dim)`` by the names of the sites."""
        return self.target.space.latents(self.state.position)

    @property
    def logits(self) -> Tensor:
        """Logits of theta there, ``(num_chains, num_docs, num_topics)``."""
        return self.target.space.logits(self.state.position)

    def move(self, remaining: int = 1) -> None:
        """Make one transition; in warm-up, adapt the step sizes to it.

        Args:
            remaining: Transitions that will be made, this one among them: what they draw is drawn
                for some of them at once, which takes hardly longer.
        """
        if not self._drawn:
            ahead = max(1, min(remaining, DRAWN_AHEAD // max(1, self.state.position.numel())))
            numbers = torch.arange(ahead, device=self._keys.device) + self.num_transitions
            drawn = hmc.draw(noise.fold_in(self._keys, numbers[:, None, None]), self.target)
            self._drawn = list(map(hmc.Randomness, *(x.unbind() for x in drawn)))
        self.state, info = hmc.step(
            self._drawn[0],
            self.target,
            self.state,
            self.step_size,
            self._metric,
            self.settings.num_steps,
            jitter=self.settings.jitter,
        )
        del self._drawn[0]
        self.num_transitions += 1
        self.last = info
        if self.num_transitions > self.warmup_steps:
            self._acceptance = self._acceptance + info.acceptance
            self.divergences = self.divergences + info.divergent
            self.moved = self.moved | info.accepted
        elif self._adaptation is not None:
            self._adaptation = self._adaptation.update(
                info.acceptance, self.settings.target_accept, self._longest_step
            )
            self.step_size = self._adapted(self._adaptation)

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
    def progress(self) -> Progress:
        """What a later visit of these chains continues from."""
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
        """Mean step size, and mean acceptance probability of the last transition."""
        acceptance = self._acceptance if self.last is None else self.last.acceptance
        return {
            "step size": f"{float(self.step_size.mean()):.2e}",
            "acc. prob": f"{float(acceptance.mean()):.3f}",
        }

    def warn_of_stuck(self, advice: str) -> None:
        """Name the documents that have a chain which never moved after warm-up.

        Args:
            advice: What follows from it, and what to do about it.

        Warns:
            ConvergenceWarning: There are such documents.
        """
        if self.num_samples:
            warn_of_stuck(self.moved, self.target.batch.index, self.num_samples, advice)


def initial_latents(
    model: TopicModel, batch: DocumentBatch, means: Tensor, num_chains: int, seed: int
) -> dict[str, Tensor]:
    """Latent variables for chains to start from that have given means; the rest of them is drawn.

    Args:
        model: The model.
        batch: The documents.
        means: ``(num_docs, latent_dim)`` of the prior's latent variable.
        num_chains: Chains of each document.
        seed: Seed of the draws.

    Returns:
        ``(num_chains, num_docs, dim)`` by the names of the sites.
    """
    space = model.prior.space(batch)
    keys = noise.document_keys(seed, batch.index, num_chains)
    return space.latents(space.place(means.expand(num_chains, -1, -1), keys))


def _warn_of_rounding(batch: DocumentBatch) -> None:
    """Name documents so long that rounding spoils their acceptance probabilities."""
    longest = MAX_ENERGY_ROUNDING / torch.finfo(batch.dtype).eps
    if batch.num_tokens <= longest:
        return  # as none is longer than all together: most often the host knows, and need not wait
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
    """Warn of chains that never moved.

    Args:
        moved: ``(num_chains, num_docs)`` bool.
        index: ``(num_docs,)`` positions of the documents.
        num_transitions: Number of transitions in which they did not move.
        advice: What follows from it, and what to do about it.

    Warns:
        ConvergenceWarning: There are such chains.
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
