"""Draws of theta from posteriors, a bounded number of documents at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.posteriors import Posterior

#: Most numbers that the draws of a group of documents hold at once.
MAX_NUMBERS = 2**22


def theta_draws(
    posterior: Posterior, num_samples: int, seed: int, numbers_per_draw: int = 1
) -> Iterator[tuple[Tensor, Tensor]]:
    """Draws of topic proportions, each a function of the seed and the document's position.

    Args:
        posterior: The posteriors of a batch.
        num_samples: Draws of each document.
        seed: Seed.
        numbers_per_draw: Numbers that the caller keeps for each draw of a document, theta excluded.

    Yields:
        Rows of the batch ``(num_rows,)``, and their draws ``(num_samples, num_rows, num_topics)``,
        float64.
    """
    numbers = num_samples * max(numbers_per_draw, posterior.num_topics)
    size = max(1, MAX_NUMBERS // numbers)
    for rows in torch.arange(posterior.num_docs, device=posterior.index.device).split(size):
        keys = noise.document_keys(seed, posterior.index[rows], num_samples)
        yield rows, posterior.theta(posterior.draw(keys, rows))


def theta_means(posterior: Posterior, num_samples: int, seed: int) -> Tensor:
    """Posterior means of theta ``(num_docs, num_topics)`` float64, exact or by draws."""
    if posterior.has_exact_theta_mean:
        return posterior.theta_mean().double()
    return torch.cat([draws.mean(0) for _, draws in theta_draws(posterior, num_samples, seed)])
