"""Epochs of Monte-Carlo EM: diagnostics of their transitions, and the last draws of chains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Self

import torch
from torch import Tensor

from torch_lntm.inference.chains.chains import Chains
from torch_lntm.inference.em.distributed import Processes

#: Prefixes of the tables with the chains' latent variables and with their adaptation.
CHAIN, ADAPTATION = "chain.", "adaptation."
#: Largest number of float64 numbers at once in :func:`latent_spread`.
SPREAD_NUMBERS = 2**18
#: Table of the logarithms of the chains' frozen step sizes.
STEP_SIZE = ADAPTATION + "log_average"


@dataclass(eq=False)
class LastDraws:
    """Last draws of the chains of all documents. Only the first process has them.

    Attributes:
        latents: ``(num_chains, num_docs, dim)`` latent variables by the names of the sites. NaN for
            empty documents. Empty before the first visit.
        moved: ``(num_chains, num_docs)`` bool: the chain has moved.
        step_size: ``(num_chains, num_docs)`` average step sizes of the adaptation. 1 before the
            first visit.
    """

    latents: dict[str, Tensor]
    moved: Tensor
    step_size: Tensor

    @classmethod
    def of(cls, tables: Mapping[str, Tensor], empty: Tensor, num_chains: int) -> Self:
        """Last draws from the tables of the entire corpus.

        Args:
            tables: The tables by name, on the CPU.
            empty: ``(num_docs,)`` bool: the document is empty.
            num_chains: Number of chains of each document.
        """
        zeros = torch.zeros(len(empty), num_chains)
        latents = {
            name.removeprefix(CHAIN): table.transpose(0, 1).contiguous()
            for name, table in tables.items()
            if name.startswith(CHAIN)
        }
        for value in latents.values():
            value[:, empty] = torch.nan
        step_size = tables.get(STEP_SIZE, zeros).mT.exp()
        return cls(latents, tables.get("moved", zeros.bool()).mT, step_size)

    def rotate(self, rotations: Mapping[str, Tensor]) -> None:
        """Rotate the draws of each site by the rotation from ``prior.canonicalise_``."""
        for site in self.latents.keys() & rotations.keys():
            self.latents[site] = self.latents[site] @ rotations[site].to(self.latents[site])

    def means(self, before: Tensor | None, site: str, counted: Tensor) -> Tensor | None:
        """Means ``(num_docs, dim)`` of a site over some chains.

        Args:
            before: Means for documents without such chains, and for all documents before the first
                visit. Documents without means have the averages of all their chains.
            site: The site.
            counted: ``(num_chains, num_docs)`` bool: the chain counts.
        """
        if not self.latents:
            return before
        draws = self.latents[site]
        counted = counted | ~counted.any(0) if before is None else counted
        weights = counted.to(draws) / counted.sum(0).clamp_min(1)
        means = torch.einsum("cd,cdk->dk", weights, draws)
        return means if before is None else torch.where(counted.any(0)[:, None], means, before)


class EpochStats:
    """Average diagnostics of an epoch's transitions, computed without waiting for the device.

    Args:
        num_batches: Number of mini-batches of the epoch.
    """

    def __init__(self, num_batches: int) -> None:
        self._num_batches = num_batches
        self._values: dict[str, list[Tensor]] = defaultdict(list)

    def add(self, chains: Chains, share: float) -> Tensor:
        """Add the last transition of a batch.

        Args:
            chains: Chains of this process's documents of a mini-batch.
            share: Share of this process in the mini-batch's documents.

        Returns:
            ``(num_chains, num_docs)`` bool: the transition moved the chain.
        """
        last = chains.last
        assert last is not None
        self._values["acceptance"].append(_weighted(last.acceptance.mean(), share))
        self._values["divergences"].append(last.divergent.sum())
        self._values["step_size"].append(_weighted(chains.step_size.mean(), share))
        return last.accepted

    def add_draws(self, chains: Chains) -> None:
        """Add the chains' draws at the end of a visit."""
        self._values["log_likelihood"].append(chains.state.log_likelihood.mean(0).sum())

    def total(self, processes: Processes) -> dict[str, Tensor]:
        """Sums and means of the epoch over all processes, float64 scalars.

        Returns:
            ``log_likelihood``: nats at the draws of all chains, including stuck chains.
            ``acceptance`` and ``step_size``: means over the transitions. ``divergences``: number of
            divergent transitions.
        """
        values = {name: torch.stack(x) for name, x in self._values.items()}
        visited_share = len(values["log_likelihood"]) / self._num_batches
        means = {
            name: visited_share * values.pop(name).mean() for name in ("acceptance", "step_size")
        }
        return processes.total({name: x.sum() for name, x in values.items()} | means)


def _weighted(value: Tensor, share: float) -> Tensor:
    """The value times a share. A share of 1 skips the multiplication, a launch on a GPU."""
    return value if share == 1.0 else share * value


def latent_spread(
    tables: Mapping[str, Tensor], site: str, rows: Tensor, share: float, processes: Processes
) -> dict[str, Tensor]:
    """Mean and spread of the latent variable over the documents of all processes.

    Args:
        tables: The tables of this process's documents, by name.
        site: Name of the latent variable.
        rows: ``(num_docs,)`` rows of the documents with chains.
        share: Share of this process in all documents.
        processes: The processes.

    Returns:
        Float64 scalars. ``stuck``: number of chains without a move. ``latent_mean``: mean over
        documents and components. ``latent_std``: standard deviation over documents, averaged over
        components.
    """
    table, moved = tables[CHAIN + site], tables["moved"]
    rows = rows.to(table.device)
    sums = []
    # Float64 copies of all draws at once would take more memory than the rest of an epoch.
    for part in rows.split(max(1, SPREAD_NUMBERS // table[0].numel())):
        draws = table[part].double().flatten(0, 1)
        sums.append(torch.stack([draws.sum(0), draws.square().sum(0)]))
    moments = reduce(torch.add, sums) * (share / (len(rows) * table.shape[1]))
    stuck = (~moved[rows.to(moved.device)]).sum()
    totals = processes.total({"stuck": stuck, "moments": moments})
    mean, square = totals.pop("moments")
    deviation = (square - mean.square()).clamp_min(0.0).sqrt()
    return {**totals, "latent_mean": mean.mean(), "latent_std": deviation.mean()}


def to_floats(values: Mapping[str, float | Tensor]) -> dict[str, float]:
    """Scalars as Python numbers. The host waits for a GPU only once, for all scalars together."""
    device = next((x.device for x in values.values() if isinstance(x, Tensor)), None)
    scalars = [torch.as_tensor(x, dtype=torch.float64, device=device) for x in values.values()]
    return dict(zip(values, torch.stack(scalars).tolist(), strict=True))
