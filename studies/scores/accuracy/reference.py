"""Moments of reference chains, and distances of posteriors from these moments."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from pyro.ops.stats import split_gelman_rubin
from torch import Tensor

from studies.scores.accuracy.result import Accuracy
from torch_lntm.evaluation.completion.theta import theta_means
from torch_lntm.inference.chains.samples import DocumentSamples, effective_sample_size
from torch_lntm.posteriors import Posterior

#: Requirements for reliable chains of a document (*Vehtari et al. 2021, §4*).
LARGEST_RHAT = 1.01
SMALLEST_EFFECTIVE_SAMPLE_SIZE = 400.0
#: Number of draws for a guide's mean of theta.
GUIDE_DRAWS = 10_000
#: Segments of each chain, for the error of its covariance.
_SEGMENTS = 10
#: E|x| of a standard normal x.
_MEAN_ABSOLUTE = math.sqrt(2.0 / math.pi)


@dataclass(frozen=True, eq=False)
class Reference:
    """Moments of the chains of a batch's documents, float64 on the CPU.

    Attributes:
        mean: ``(num_docs, num_topics)`` means of x, the standardised variable.
        covariance: ``(num_docs, num_topics, num_topics)`` covariances of x.
        theta: ``(num_docs, num_topics)`` means of theta.
        theta_variance: ``(num_docs, num_topics)`` variances of theta's draws.
        mean_error: ``(num_docs, num_topics)`` Monte-Carlo standard errors of ``mean``.
        theta_error: ``(num_docs, num_topics)`` Monte-Carlo standard errors of ``theta``.
        covariance_error: ``(num_docs,)`` Monte-Carlo standard error of ``covariance``, in the
            Frobenius norm.
        log_std_error: ``(num_docs,)`` Monte-Carlo standard error of the mean log standard deviation
            over topics.
        rhat: ``(num_docs,)`` largest split R-hat over topics.
        effective_sample_size: ``(num_docs,)`` smallest effective sample size over topics.
        moved: ``(num_docs,)`` bool, whether every chain moved.
    """

    mean: Tensor
    covariance: Tensor
    theta: Tensor
    theta_variance: Tensor
    mean_error: Tensor
    theta_error: Tensor
    covariance_error: Tensor
    log_std_error: Tensor
    rhat: Tensor
    effective_sample_size: Tensor
    moved: Tensor

    @classmethod
    def from_samples(cls, samples: DocumentSamples, standardiser: Tensor) -> Reference:
        """Moments of draws of the documents.

        Args:
            samples: The draws.
            standardiser: ``(latent_dim, num_topics)`` float64 on the CPU, the linear map from the
                prior's main site to x.
        """
        latent = samples.latents[samples.model.prior.latent]
        theta = samples.theta().double()
        x = latent.double() @ standardiser
        mean, size = x.mean((0, 1)), effective_sample_size(x)
        centred = x - mean
        # Covariances of segments about the common mean. Their spread gives the error of the
        # covariance.
        length = x.shape[1] // _SEGMENTS
        segments = centred[:, : length * _SEGMENTS].unflatten(1, (_SEGMENTS, length)).flatten(0, 1)
        by_segment = torch.einsum("csdi,csdj->cdij", segments, segments) / length
        flat = centred.flatten(0, 1)
        covariance = torch.einsum("sdi,sdj->dij", flat, flat) / (len(flat) - 1)
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        # First-order influence of a draw on the mean log standard deviation.
        influence = 0.5 * (centred.square() / variance).mean(-1)
        theta_variance = theta.flatten(0, 1).var(0)
        return cls(
            mean=mean,
            covariance=covariance,
            theta=theta.mean((0, 1)),
            theta_variance=theta_variance,
            mean_error=(variance / size).sqrt(),
            theta_error=(theta_variance / effective_sample_size(theta)).sqrt(),
            covariance_error=(by_segment.var(0).sum((-2, -1)) / len(by_segment)).sqrt(),
            log_std_error=influence.flatten(0, 1).std(0) / effective_sample_size(influence).sqrt(),
            rhat=split_gelman_rubin(x).max(-1).values,
            effective_sample_size=size.min(-1).values,
            moved=samples.moved.all(0),
        )

    @property
    def std(self) -> Tensor:
        """Standard deviations ``(num_docs, num_topics)`` of x."""
        return self.covariance.diagonal(dim1=-2, dim2=-1).sqrt()

    @property
    def reliable(self) -> Tensor:
        """``(num_docs,)`` bool, whether the chains are long enough to judge a posterior."""
        enough = self.effective_sample_size >= SMALLEST_EFFECTIVE_SAMPLE_SIZE
        return self.moved & (self.rhat <= LARGEST_RHAT) & enough

    def noise(self, exact_theta: bool) -> Accuracy:
        """Expected :meth:`distance` of an exact posterior, by the noise of the chains.

        Args:
            exact_theta: Whether the posterior's mean of theta is exact, without draws.
        """
        draws = 0.0 if exact_theta else self.theta_variance / GUIDE_DRAWS
        theta_error = (self.theta_error.square() + draws).sqrt()
        return Accuracy(
            mean_error=self.mean_error.square().mean(-1).sqrt(),
            std_ratio=self.log_std_error.exp(),
            covariance_error=self.covariance_error / self.covariance.norm(dim=(-2, -1)),
            total_variation=0.5 * _MEAN_ABSOLUTE * theta_error.sum(-1),
        )

    def distance(self, posterior: Posterior, standardiser: Tensor, seed: int) -> Accuracy:
        """Distances of a guide's posteriors of the same documents.

        Args:
            posterior: The posteriors.
            standardiser: As for :meth:`from_samples`.
            seed: Seed of the posteriors' draws of theta, for posteriors without an exact mean.
        """
        mean = posterior.mean.double().cpu() @ standardiser
        covariance = standardiser.mT @ posterior.covariance.double().cpu() @ standardiser
        std = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
        difference = (covariance - self.covariance).norm(dim=(-2, -1))
        theta = theta_means(posterior, GUIDE_DRAWS, seed).cpu()
        return Accuracy(
            mean_error=(mean - self.mean).square().mean(-1).sqrt(),
            std_ratio=(std.log() - self.std.log()).mean(-1).exp(),
            covariance_error=difference / self.covariance.norm(dim=(-2, -1)),
            total_variation=0.5 * (theta - self.theta).abs().sum(-1),
        )
