"""Small random models and documents for many tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from scipy.special import softmax

from torch_lntm.corpus import DocumentBatch
from torch_lntm.latents import NormalSpace
from torch_lntm.models import TopicModel, ctm


def make_batch(
    counts: np.ndarray,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
    corpus_size: int | None = None,
) -> DocumentBatch:
    """A batch of dense counts ``(num_docs, num_words)``, entry by entry."""
    rows, columns = np.nonzero(counts)
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    offsets[1:] = np.cumsum((counts > 0).sum(1))
    return DocumentBatch(
        row_offsets=torch.from_numpy(offsets).to(device),
        word_index=torch.from_numpy(columns.astype(np.int64)).to(device),
        counts=torch.from_numpy(counts[rows, columns].astype(float)).to(device, dtype),
        num_words=counts.shape[1],
        index=torch.arange(len(counts), device=device),
        corpus_size=corpus_size or len(counts),
    )


@dataclass
class Problem:
    """Parameters of a model, and documents, as NumPy arrays in float64."""

    counts: np.ndarray
    topics: np.ndarray
    loc: np.ndarray
    covariance: np.ndarray

    @property
    def anchored(self) -> bool:
        return len(self.loc) < len(self.topics)

    def model(
        self,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
        **options: object,
    ) -> TopicModel:
        return ctm(
            *self.topics.shape,
            anchored=self.anchored,
            loc=torch.from_numpy(self.loc),
            covariance=torch.from_numpy(self.covariance),
            topics=torch.from_numpy(self.topics),
            dtype=dtype,
            **options,  # type: ignore[arg-type]
        ).to(device)

    def batch(
        self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64
    ) -> DocumentBatch:
        return make_batch(self.counts, device, dtype)

    def space(
        self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64
    ) -> NormalSpace:
        """Coordinates of the prior."""
        tril = torch.linalg.cholesky(torch.from_numpy(self.covariance)).to(device)
        return NormalSpace(torch.from_numpy(self.loc).to(device, dtype), tril, self.anchored)

    def lifted(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance of the K logits; degenerate if anchored."""
        lift = np.eye(len(self.topics))[:, : len(self.loc)]
        return lift @ self.loc, lift @ self.covariance @ lift.T

    def grid(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Differences of eta from its last entry on a grid, theta there, and posteriors' weights.

        The last have a row for each document.
        """
        loc, covariance = self.lifted()
        difference = np.hstack([np.eye(len(loc) - 1), -np.ones((len(loc) - 1, 1))])
        mean, cov = difference @ loc, difference @ covariance @ difference.T
        axes = [
            np.linspace(m - 8 * s, m + 8 * s, 301)
            for m, s in zip(mean, np.sqrt(np.diag(cov)), strict=True)
        ]
        x = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(mean))
        theta = softmax(np.hstack([x, np.zeros((len(x), 1))]), 1)
        log_density = stats.multivariate_normal(mean, cov).logpdf(x)
        weights = softmax(log_density + self.counts @ np.log(theta @ self.topics).T, 1)
        return x, theta, weights


def random_problem(
    num_topics: int = 4,
    num_words: int = 15,
    lengths: tuple[int, ...] = (30, 1, 8, 60, 3),
    anchored: bool = False,
    scale: float = 1.0,
    diagonal: bool = False,
    seed: int = 0,
) -> Problem:
    """Documents drawn from a random correlated topic model."""
    rng = np.random.default_rng(seed)
    dim = num_topics - anchored
    topics = rng.dirichlet(np.full(num_words, 0.4), num_topics) * 0.98 + 0.02 / num_words
    loc = rng.normal(size=dim)
    root = rng.normal(size=(dim, dim)) / np.sqrt(dim) + 0.5 * np.eye(dim)
    covariance = (
        np.diag(rng.uniform(0.3, 3, dim)) if diagonal else root @ root.T + 0.1 * np.eye(dim)
    )
    covariance *= scale
    eta = rng.multivariate_normal(loc, covariance, len(lengths))
    weights = np.exp(np.hstack([eta, np.zeros((len(lengths), int(anchored)))]))
    theta = weights / weights.sum(1, keepdims=True)
    counts = np.stack([rng.multinomial(n, p @ topics) for n, p in zip(lengths, theta, strict=True)])
    return Problem(counts.astype(float), topics, loc, covariance)
