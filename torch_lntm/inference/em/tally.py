"""What the chains of Monte-Carlo EM did in an epoch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from torch_lntm.inference.chains.chains import Chains
from torch_lntm.inference.em.processes import Processes


class Tally:
    """What the transitions of an epoch did, on average, without waiting for the device.

    Attributes:
        share: The share that this process has in the present mini-batch.
    """

    def __init__(self) -> None:
        self.share = 1.0
        self._acceptance: list[Tensor] = []
        self._divergences: list[Tensor] = []
        self._step_size: list[Tensor] = []
        self._log_likelihood: list[Tensor] = []

    def add(self, chains: Chains) -> Tensor:
        """Count the last transition; returns which chains it moved."""
        assert chains.last is not None
        self._acceptance.append(self._own_share(chains.last.acceptance.mean()))
        self._divergences.append(chains.last.divergent.sum())
        self._step_size.append(self._own_share(chains.step_size.mean()))
        return chains.last.accepted

    def _own_share(self, mean: Tensor) -> Tensor:
        return mean if self.share == 1.0 else self.share * mean

    def add_draws(self, chains: Chains) -> None:
        """Count where a visit left the chains."""
        self._log_likelihood.append(chains.state.log_likelihood.mean(0).sum())

    def add_up(self, processes: Processes, num_batches: int) -> dict[str, Tensor]:
        """The epoch's sums and means over the processes, float64 scalars.

        Returns:
            ``log_likelihood``, at the draws of all chains, whether they moved or not, nats; and of
            the transitions mean ``acceptance``, number of ``divergences`` and mean ``step_size``.
        """
        visited = len(self._log_likelihood) / num_batches
        return processes.total(
            "tally",
            lambda: {
                "log_likelihood": torch.stack(self._log_likelihood).sum().double(),
                "acceptance": visited * torch.stack(self._acceptance).mean().double(),
                "divergences": torch.stack(self._divergences).sum().double(),
                "step_size": visited * torch.stack(self._step_size).mean().double(),
            },
        )


def spread(draws: Tensor, moved: Tensor, share: float, processes: Processes) -> dict[str, Tensor]:
    """How the latent variable spreads over all processes' documents, float64 scalars.

    Args:
        draws: ``(num_docs, num_chains, latent_dim)`` where this process's chains are.
        moved: ``(num_docs, num_chains)`` bool, which of them have moved.
        share: The share of all documents that these are.
        processes: The processes.

    Returns:
        ``stuck``, the number of chains that have not moved, ``latent_mean``, and ``latent_std``,
        the mean over components of the standard deviation.
    """
    flat = draws.double().flatten(0, 1)
    found = processes.total(
        "latents",
        lambda: {
            "stuck": (~moved).sum().double(),
            "latent_mean": share * flat.mean(),
            "means": share * flat.mean(0),
        },
    )
    apart = flat.mean(0) - found.pop("means").to(flat.device)
    variance = processes.total(
        "spread", lambda: {"": share * (flat.var(0, correction=0) + apart.square())}
    )[""]
    return {**found, "latent_std": variance.sqrt().mean()}


def as_numbers(values: Mapping[str, float | Tensor]) -> dict[str, float]:
    """Scalars as Python's numbers: a GPU is asked, and waited for, once for all of them."""
    device = next((x.device for x in values.values() if isinstance(x, Tensor)), None)
    scalars = [torch.as_tensor(x, dtype=torch.float64, device=device) for x in values.values()]
    return dict(zip(values, torch.stack(scalars).tolist(), strict=True))
