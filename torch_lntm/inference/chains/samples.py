"""DocumentSamples, the draws from documents' posteriors, with summaries and diagnostics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from pyro.ops.stats import autocovariance, split_gelman_rubin
from torch import Tensor

from torch_lntm.errors import ConfigError, require_level, require_one
from torch_lntm.models import TopicModel

#: Largest number of values in memory at once, while diagnostics are computed.
_MAX_NUMBERS = 2**22


@dataclass(frozen=True, eq=False)
class DocumentSamples:
    """Draws from the posteriors of the documents of a batch, on the CPU.

    Means and diagnostics leave out stuck chains, except for R-hat, which shows them. All are NaN
    for a document whose chains are all stuck.

    Attributes:
        model: The sampled model.
        latents: ``(num_chains, num_draws, num_docs, dim)`` draws by the names of the program's
            sites, such as ``"eta"``. The last site determines theta.
        index: ``(num_docs,)`` positions of the documents in their corpus.
        acceptance: ``(num_chains, num_docs)`` float64 mean acceptance probability.
        step_size: ``(num_chains, num_docs)`` float64 step sizes, frozen after warm-up. NaN for
            samplers without step sizes.
        divergences: ``(num_docs,)`` int64 numbers of divergent transitions after warm-up, summed
            over chains.
        moved: ``(num_chains, num_docs)`` bool: the chain accepted a proposal after warm-up.
        interrupted: Whether Ctrl-C ended the run early.
    """

    model: TopicModel
    latents: Mapping[str, Tensor]
    index: Tensor
    acceptance: Tensor
    step_size: Tensor
    divergences: Tensor
    moved: Tensor
    interrupted: bool = False

    @property
    def _main(self) -> Tensor:
        """Draws at the site that determines theta."""
        return self.latents[self.model.prior.latent]

    @property
    def num_chains(self) -> int:
        """Number of chains of each document."""
        return self._main.shape[0]

    @property
    def num_draws(self) -> int:
        """Number of draws of each chain."""
        return self._main.shape[1]

    @property
    def num_docs(self) -> int:
        """Number of documents."""
        return self._main.shape[2]

    @torch.no_grad()
    def theta(self) -> Tensor:
        """Topic proportions ``(num_chains, num_draws, num_docs, num_topics)``."""
        return self.model.theta(self._main)

    def mean(self, quantity: str = "theta") -> Tensor:
        """Posterior mean ``(num_docs, dim)``, float64.

        Args:
            quantity: ``"theta"``, or the name of a site: ``"eta"`` or ``"source"``.

        Raises:
            ConfigError: The quantity is unknown.
        """
        return self._summarise(quantity, lambda draws: draws.mean((0, 1)))

    def std(self, quantity: str = "theta") -> Tensor:
        """Posterior standard deviation ``(num_docs, dim)``, float64.

        Args:
            quantity: As for :meth:`mean`.

        Raises:
            ConfigError: There is a single draw, or the quantity is unknown.
        """
        if self.num_chains * self.num_draws < 2:
            raise ConfigError("there is a single draw; a standard deviation needs 2")
        return self._summarise(quantity, lambda draws: draws.flatten(0, 1).std(0))

    def theta_interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Equal-tailed posterior intervals of the topic proportions.

        Args:
            level: Posterior probability of each interval, between 0 and 1.

        Returns:
            ``(lower, upper)``, each ``(num_docs, num_topics)`` float64.

        Raises:
            ConfigError: ``level`` is not between 0 and 1.
        """
        require_level(level)

        def quantile(q: float) -> Tensor:
            return self._summarise("theta", lambda draws: draws.flatten(0, 1).quantile(q, dim=0))

        tail = (1.0 - level) / 2.0
        return quantile(tail), quantile(1.0 - tail)

    def rhat(self, quantity: str = "theta") -> Tensor:
        """Split R-hat ``(num_docs, dim)``. It is 1 if the halves of all chains agree.

        A stuck chain counts, and makes it large wherever the chain stays away from the others.

        Args:
            quantity: As for :meth:`mean`.

        Raises:
            ConfigError: A chain has fewer than 4 draws, or the quantity is unknown.
        """
        self._require(4)
        return self._summarise(quantity, split_gelman_rubin, keep_stuck=True)

    def effective_sample_size(
        self, quantity: str = "theta", kind: Literal["bulk", "mean"] = "bulk"
    ) -> Tensor:
        """Effective sample size ``(num_docs, dim)``: the equivalent number of independent draws.

        Args:
            quantity: As for :meth:`mean`.
            kind: ``"bulk"`` uses the normal scores of the ranks (*Vehtari et al. 2021, §4.1*), and
                so exists even for distributions without moments. ``"mean"`` uses the draws
                themselves and gives the error of the mean. Both split the chains in halves.

        Raises:
            ConfigError: A chain has fewer than 4 draws, or the quantity or kind is unknown.
        """
        self._require(4)
        if kind not in ("bulk", "mean"):
            raise ConfigError(f"kind {kind!r}; expected 'bulk' or 'mean'")
        if kind == "mean":
            return self._summarise(quantity, effective_sample_size)
        return self._summarise(quantity, lambda draws: effective_sample_size(normal_scores(draws)))

    def mcse(self, quantity: str = "theta") -> Tensor:
        """Monte-Carlo standard error of :meth:`mean` ``(num_docs, dim)``.

        Args:
            quantity: As for :meth:`mean`.

        Raises:
            ConfigError: A chain has fewer than 4 draws, or the quantity is unknown.
        """
        size = self.effective_sample_size(quantity, "mean")
        return self.std(quantity) / size.sqrt()

    def __repr__(self) -> str:
        return (
            f"DocumentSamples({self.num_chains} chains × {self.num_draws} samples × "
            f"{self.num_docs} documents, acceptance {self.acceptance.mean():.2f}, "
            f"{int(self.divergences.sum())} divergences, {int((~self.moved).sum())} stuck chains"
            f"{', interrupted' if self.interrupted else ''})"
        )

    def _require(self, least: int) -> None:
        if self.num_draws < least:
            raise ConfigError(
                f"there are {self.num_draws} draws of each chain; diagnostics need {least}"
            )

    @torch.no_grad()
    def _summarise(
        self, quantity: str, function: Callable[[Tensor], Tensor], keep_stuck: bool = False
    ) -> Tensor:
        """Apply a function of draws ``(chains, samples, docs, dim)`` to the moving chains."""
        require_one(dict.fromkeys(["theta", *self.latents]), quantity=quantity)
        values = self.latents.get(quantity, self._main)
        dim = self.model.num_topics if quantity == "theta" else values.shape[-1]
        result = torch.full((self.num_docs, dim), torch.nan, dtype=torch.float64)
        size = max(1, _MAX_NUMBERS // max(1, dim * self.num_chains * self.num_draws))
        # One call summarises all documents with the same pattern of stuck chains.
        for pattern in self.moved.unique(dim=1).unbind(1):
            if not bool(pattern.any()):
                continue
            documents = (self.moved == pattern[:, None]).all(0).nonzero().squeeze(-1)
            for rows in documents.split(size):
                draws = values[:, :, rows][pattern | keep_stuck].double()
                if quantity not in self.latents:
                    draws = self.model.theta(draws)
                result[rows] = function(draws)
        return result


def effective_sample_size(draws: Tensor) -> Tensor:
    """Effective sample size of split chains, by Geyer's initial monotone sequence.

    The estimate is that of Pyro and Stan (*Vehtari et al. 2021, §3.2*) for chains split in halves.
    Memory is linear in the number of draws, whereas Pyro's function needs its square. The estimate
    also stays positive for alternating chains, for which Pyro's may be negative.

    Args:
        draws: ``(num_chains, num_draws, ...)``, at least 4 samples.

    Returns:
        ``(...)``. It is at most n·log₁₀ n for n draws, and n if all draws are equal.
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
    shortest = 1.0 / math.log10(total)
    return torch.where(spread > 0, total / time.clamp_min(shortest), float(total))


def normal_scores(draws: Tensor) -> Tensor:
    """Normal scores of the draws' ranks among all chains (*Vehtari et al. 2021, eq. 14*).

    Args:
        draws: ``(num_chains, num_draws, ...)``.

    Returns:
        Scores in the shape of the draws.
    """
    flat = draws.flatten(0, 1)
    # Rejections repeat draws. Equal draws have equal average ranks if ranked from both ends.
    average = 0.5 * (_ranks(flat) + _ranks(flat.flip(0)).flip(0)).double()
    return torch.special.ndtri((average + 0.625) / (len(flat) + 0.25)).view_as(draws)


def _ranks(values: Tensor) -> Tensor:
    """Ranks along the first axis, from 0. Equal values rank in order of appearance."""
    return values.argsort(dim=0, stable=True).argsort(0)
