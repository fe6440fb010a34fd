"""Visits of documents by their chains, the E-step of Monte-Carlo EM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.inference.chains.chains import Chains, Progress, initial_latents
from torch_lntm.inference.chains.settings import HMCSettings
from torch_lntm.inference.em.distributed import Processes
from torch_lntm.inference.em.documents import DocumentTables
from torch_lntm.inference.em.statistics import Statistics, chain_statistics
from torch_lntm.models import TopicModel
from torch_lntm.sampling.step_sizes import DualAveraging

if TYPE_CHECKING:
    from typing import Self

#: Prefixes of the tables with the chains' latent variables and with their adaptation.
CHAIN, ADAPTATION = "chain.", "adaptation."
#: The table of the logarithms of the chains' frozen step sizes.
STEP_SIZE = ADAPTATION + "log_average"


class ChainEStep:
    """Visits of documents: some transitions of each document's chains, from and to tables.

    Args:
        model: The model.
        settings: How chains move.
        num_transitions: Transitions of each chain at a visit.
        warmup_epochs: Visits of each document in which step sizes adapt.
        from_prior: Chains start at prior draws; else at the documents' means.
    """

    def __init__(
        self,
        model: TopicModel,
        settings: HMCSettings,
        num_transitions: int,
        warmup_epochs: int,
        from_prior: bool,
    ) -> None:
        self.model, self.settings, self.from_prior = model, settings, from_prior
        self.num_transitions, self.warmup_epochs = num_transitions, warmup_epochs

    def run(
        self,
        batch: DocumentBatch,
        documents: DocumentTables,
        epoch: int,
        stats: EpochStats,
        share: float,
        include_unmoved: bool,
    ) -> Statistics:
        """Move the chains of a batch.

        Args:
            batch: The documents.
            documents: Their tables, read and written.
            epoch: Number of the visit, from 0.
            stats: What the transitions did, which is added.
            share: Share of the mini-batch's documents that these are.
            include_unmoved: Also chains that have not moved enter the statistics.

        Returns:
            The documents' statistics at the chains' last draws.
        """
        chains = self._chains(batch, documents, epoch)
        moved = torch.zeros_like(chains.moved)
        if epoch:
            moved = self._read(documents, batch, "moved")[""]
        for remaining in range(self.num_transitions, 0, -1):
            chains.move(remaining)
            moved = moved | stats.add(chains, share)
        stats.add_draws(chains)
        if chains.means is not None:
            documents.write("means", batch, chains.means)
        adaptation = chains.progress.adaptation._asdict()
        del adaptation["num_updates"]
        tables = {CHAIN: chains.latents, ADAPTATION: adaptation, "moved": {"": moved}}
        for prefix, values in tables.items():
            for name, value in values.items():
                documents.write(prefix + name, batch, value.transpose(0, 1))
        return chain_statistics(self.model, chains, None if include_unmoved else moved)

    def _chains(self, batch: DocumentBatch, documents: DocumentTables, epoch: int) -> Chains:
        """The chains of a batch where the last visit left them, or where they start."""
        settings, means = self.settings, documents.read("means", batch)
        initial, progress = None, None
        if epoch:
            initial = self._read(documents, batch, CHAIN)
            num_done = epoch * self.num_transitions
            adaptation = self._read(documents, batch, ADAPTATION)
            progress = Progress(num_done, DualAveraging(**adaptation, num_updates=num_done))
        elif not self.from_prior:
            initial = initial_latents(self.model, batch, means, settings.num_chains, settings.seed)
        warmup_steps = self.warmup_epochs * self.num_transitions
        return Chains(
            self.model, settings, batch, settings.seed, warmup_steps, initial, progress, means
        )

    def _read(
        self, documents: DocumentTables, batch: DocumentBatch, prefix: str
    ) -> dict[str, Tensor]:
        """Chains' values ``(num_chains, num_docs, ...)`` of a batch, by name without the prefix."""
        return {
            name.removeprefix(prefix): documents.read(name, batch).transpose(0, 1)
            for name in documents.tables
            if name.startswith(prefix)
        }

    def countable_transitions(self, epochs: int) -> int:
        """Transitions in which a chain could move by the end of so many epochs.

        What was noted of its moves is forgotten when the step sizes are frozen.
        """
        if epochs > self.warmup_epochs:
            epochs -= self.warmup_epochs
        return epochs * self.num_transitions


@dataclass(eq=False)
class LastDraws:
    """Where the chains of all documents are; of no document in the processes but the first.

    Attributes:
        latents: ``(num_chains, num_docs, dim)`` by the names of the sites, NaN for empty documents;
            no site before the chains' first visit.
        moved: ``(num_chains, num_docs)`` bool, the chain has moved.
        step_size: ``(num_chains, num_docs)`` averages of the adaptation; 1 before.
    """

    latents: dict[str, Tensor]
    moved: Tensor
    step_size: Tensor

    @staticmethod
    def needs(name: str) -> bool:
        """Whether a table is read here."""
        return name.startswith(CHAIN) or name in ("moved", STEP_SIZE)

    @classmethod
    def of(cls, tables: Mapping[str, Tensor], empty: Tensor, num_chains: int) -> Self:
        """The chains that tables of the whole corpus hold.

        Args:
            tables: The tables by name, on the CPU.
            empty: ``(num_docs,)`` bool, the document has no words.
            num_chains: Chains of each document.
        """
        none = torch.zeros(len(empty), num_chains)
        latents = {
            name.removeprefix(CHAIN): table.transpose(0, 1).contiguous()
            for name, table in tables.items()
            if name.startswith(CHAIN)
        }
        for value in latents.values():
            value[:, empty] = torch.nan
        step_size = tables.get(STEP_SIZE, none).mT.exp()
        return cls(latents, tables.get("moved", none.bool()).mT, step_size)

    def rotate(self, rotations: Mapping[str, Tensor]) -> None:
        """Apply the rotations that a prior gave its sites to their values."""
        for site in self.latents.keys() & rotations.keys():
            self.latents[site] = self.latents[site] @ rotations[site].to(self.latents[site])

    def means(self, before: Tensor | None, site: str) -> Tensor | None:
        """Means ``(num_docs, dim)`` of a site over the chains that have moved.

        Args:
            before: Means of documents none of whose chains has moved; None if there are none.
            site: The site.
        """
        if before is None or not self.latents:
            return before
        weights = self.moved.to(before) / self.moved.sum(0).clamp_min(1)
        means = torch.einsum("cd,cdk->dk", weights, self.latents[site].to(before))
        still = ~self.moved.any(0)
        means[still] = before[still]
        return means


class EpochStats:
    """What the transitions of an epoch did, on average, without waiting for the device.

    Args:
        num_batches: Mini-batches of the epoch.
    """

    def __init__(self, num_batches: int) -> None:
        self._num_batches = num_batches
        self._acceptance: list[Tensor] = []
        self._divergences: list[Tensor] = []
        self._step_size: list[Tensor] = []
        self._log_likelihood: list[Tensor] = []

    def add(self, chains: Chains, share: float) -> Tensor:
        """Count the last transition; returns which chains it moved.

        Args:
            chains: The chains of this process's documents of a mini-batch.
            share: Share of the mini-batch's documents that these are.
        """
        assert chains.last is not None
        self._acceptance.append(_weighted(chains.last.acceptance.mean(), share))
        self._divergences.append(chains.last.divergent.sum())
        self._step_size.append(_weighted(chains.step_size.mean(), share))
        return chains.last.accepted

    def add_draws(self, chains: Chains) -> None:
        """Count where a visit left the chains."""
        self._log_likelihood.append(chains.state.log_likelihood.mean(0).sum())

    def total(self, processes: Processes) -> dict[str, Tensor]:
        """The epoch's sums and means over the processes, float64 scalars.

        Returns:
            ``log_likelihood``, nats, at the draws of all chains, whether they moved or not; and of
            the transitions mean ``acceptance``, number of ``divergences`` and mean ``step_size``.
        """
        visited = len(self._log_likelihood) / self._num_batches
        return processes.total(
            {
                "log_likelihood": torch.stack(self._log_likelihood).sum(),
                "acceptance": visited * torch.stack(self._acceptance).mean(),
                "divergences": torch.stack(self._divergences).sum(),
                "step_size": visited * torch.stack(self._step_size).mean(),
            }
        )


def _weighted(value: Tensor, share: float) -> Tensor:
    """The share of a value; one process alone has all of it, without a launch on a GPU."""
    return value if share == 1.0 else share * value


def latent_spread(
    tables: Mapping[str, Tensor], site: str, rows: Tensor, share: float, processes: Processes
) -> dict[str, Tensor]:
    """How the latent variable spreads over all processes' documents, float64 scalars.

    Args:
        tables: The tables of this process's documents, by name.
        site: Name of the latent variable.
        rows: ``(num_docs,)`` rows of the documents that have chains.
        share: Share of all documents that these are.
        processes: The processes.

    Returns:
        ``stuck``, the number of chains that have not moved, ``latent_mean``, and ``latent_std``,
        the mean over components of the standard deviation.
    """
    draws, moved = (tables[name][rows.to(tables[name].device)] for name in (CHAIN + site, "moved"))
    flat = draws.double().flatten(0, 1)
    means = flat.mean(0)
    found = processes.total(
        {"stuck": (~moved).sum(), "latent_mean": share * flat.mean(), "means": share * means}
    )
    apart = means - found.pop("means").to(means.device)
    variance = share * (flat.var(0, correction=0) + apart.square())
    return {**found, "latent_std": processes.total({"": variance})[""].sqrt().mean()}


def to_floats(values: Mapping[str, float | Tensor]) -> dict[str, float]:
    """Scalars as Python's numbers: a GPU is asked, and waited for, once for all of them."""
    device = next((x.device for x in values.values() if isinstance(x, Tensor)), None)
    scalars = [torch.as_tensor(x, dtype=torch.float64, device=device) for x in values.values()]
    return dict(zip(values, torch.stack(scalars).tolist(), strict=True))
