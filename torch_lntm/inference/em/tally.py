"""What the chains of Monte-Carlo EM did in an epoch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_lntm.inference.chains.chains import Chains
from torch_lntm.inference.em.processes import Processes


class Tally:
    """What the transitions of an epoch did, on average; one wait for the device at its end.

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
        self._acceptance.append(self.share * chains.last.acceptance.mean())
        self._divergences.append(chains.last.divergent.sum())
        self._step_size.append(self.share * chains.step_size.mean())
        return chains.last.accepted

    def add_draws(self, chains: Chains) -> None:
        """Count where a visit left the chains."""
        self._log_likelihood.append(chains.state.log_likelihood.mean(0).sum())

    def add_up(self, processes: Processes, num_batches: int) -> tuple[float, dict[str, Any]]:
        """The epoch's sums and means over the processes.

        Returns:
            The log likelihood at the draws of all chains, whether they moved or not, nats; and of
            the transitions the means and the number of divergences, JSON-able.
        """
        visited = len(self._log_likelihood) / num_batches
        found = processes.total(
            "tally",
            lambda: {
                "": torch.stack(
                    [
                        torch.stack(self._log_likelihood).sum().double(),
                        visited * torch.stack(self._acceptance).mean().double(),
                        torch.stack(self._divergences).sum().double(),
                        visited * torch.stack(self._step_size).mean().double(),
                    ]
                )
            },
        )
        log_likelihood, acceptance, divergences, step_size = found[""].tolist()
        return log_likelihood, {
            "acceptance": acceptance,
            "divergences": int(divergences),
            "step_size": step_size,
        }


def spread(draws: Tensor, moved: Tensor, share: float, processes: Processes) -> dict[str, Any]:
    """Stuck chains, and the mean and spread of the latent variable over all processes' documents.

    Args:
        draws: ``(num_docs, num_chains, latent_dim)`` where this process's chains are.
        moved: ``(num_docs, num_chains)`` bool, which of them have moved.
        share: The share of all documents that these are.
        processes: The processes.
    """
    flat = draws.double().flatten(0, 1)
    found = processes.total(
        "latents",
        lambda: {
            "stuck": (~moved).sum().double(),
            "mean": share * flat.mean(),
            "means": share * flat.mean(0),
        },
    )
    apart = flat.mean(0) - found["means"].to(flat.device)
    variance = processes.total(
        "spread", lambda: {"": share * (flat.var(0, correction=0) + apart.square())}
    )[""]
    # A list at once: the host waits for a GPU each time that it asks.
    stuck, mean, std = torch.stack([found["stuck"], found["mean"], variance.sqrt().mean()]).tolist()
    return {"stuck": int(stuck), "latent_mean": mean, "latent_std": std}
