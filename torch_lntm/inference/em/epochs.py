"""Epochs of Monte-Carlo EM: diagnostics of their transitions, and the last draws of chains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from torch_lntm.inference.chains.chains import Chains
from torch_lntm.inference.em.distributed import Processes
from torch_lntm.sampling.hmc import HMCInfo

#: Prefixes of the tables with the chains' latent variables and with their adaptation.
CHAIN, ADAPTATION = "chain.", "adaptation."
#: Table of the logarithms of the chains' frozen step sizes.
STEP_SIZE = ADAPTATION + "log_average"


def last_draws(
    tables: Mapping[str, Tensor], empty: Tensor, rotations: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Last draws ``(num_chains, num_docs, dim)`` of the chains, by the names of the sites.

    Args:
        tables: The tables by name, on the CPU.
        empty: ``(num_docs,)`` bool: the document is empty. Its draws are NaN.
        rotations: Rotations of some sites' draws, by ``prior.canonicalise_``.
    """
    latents = {}
    for site in (name.removeprefix(CHAIN) for name in tables if name.startswith(CHAIN)):
        draws = tables[CHAIN + site].transpose(0, 1).contiguous()
        draws[:, empty] = torch.nan
        latents[site] = draws @ rotations[site].to(draws) if site in rotations else draws
    return latents


def mean_draws(draws: Tensor, counted: Tensor) -> Tensor:
    """Means ``(num_docs, dim)`` of a site's draws over some chains, or over all if none counts.

    Args:
        draws: ``(num_chains, num_docs, dim)`` draws.
        counted: ``(num_chains, num_docs)`` bool: the chain counts.
    """
    counted = counted | ~counted.any(0)
    return torch.einsum("cd,cdk->dk", counted.to(draws) / counted.sum(0), draws)


class EpochStats:
    """Averages an epoch's diagnostics of transitions, without waiting for the device.

    Args:
        num_batches: Number of mini-batches of the epoch.
    """

    def __init__(self, num_batches: int) -> None:
        self._num_batches = num_batches
        self._values: dict[str, list[Tensor]] = defaultdict(list)

    def add(self, chains: Chains, info: HMCInfo, step_size: Tensor, share: float) -> Tensor:
        """Add the transitions of a batch, and the draws after them.

        Args:
            chains: The chains of this process's documents of a mini-batch, after the transitions.
            info: Outcomes of the transitions.
            step_size: Step sizes after each of them.
            share: Share of this process in the mini-batch's documents.

        Returns:
            ``(num_chains, num_docs)`` bool: a transition moved the chain.
        """
        means = {"acceptance": info.acceptance.mean(), "step_size": step_size.mean()}
        for name, mean in means.items():
            # A share of 1 skips the multiplication, which is a launch on a GPU.
            self._values[name].append(mean if share == 1.0 else share * mean)
        self._values["divergences"].append(info.divergent.sum())
        self._values["log_likelihood"].append(chains.state.log_likelihood.mean(0).sum())
        return info.accepted.any(0)

    def total(self, processes: Processes, stuck: Tensor) -> dict[str, Tensor]:
        """Sums and means of the epoch over all processes, float64 scalars.

        Args:
            processes: The processes.
            stuck: Number of this process's chains without a move.

        Returns:
            ``stuck``: number of all chains without a move.
            ``log_likelihood``: nats at the draws of all chains, including stuck chains.
            ``acceptance`` and ``step_size``: means over the transitions. ``divergences``: number of
            divergent transitions.
        """
        values = {name: torch.stack(x) for name, x in self._values.items()}
        visited_share = len(values["log_likelihood"]) / self._num_batches
        for name in ("acceptance", "step_size"):
            values[name] = visited_share * values[name].mean()
        sums = {name: x.sum() for name, x in values.items()}
        return processes.total({**sums, "stuck": stuck})


def to_floats(values: Mapping[str, float | Tensor]) -> dict[str, float]:
    """Scalars as Python numbers, so that the host waits for a GPU only once for all of them."""
    device = next((x.device for x in values.values() if isinstance(x, Tensor)), None)
    scalars = [torch.as_tensor(x, dtype=torch.float64, device=device) for x in values.values()]
    return dict(zip(values, torch.stack(scalars).tolist(), strict=True))
