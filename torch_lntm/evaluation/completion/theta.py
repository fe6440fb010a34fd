"""Estimates of theta for completion: modes for every prior, and means of posteriors."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from torch_lntm import noise
from torch_lntm.corpus import DocumentBatch
from torch_lntm.guides import make_guide
from torch_lntm.guides.table import guides_suited
from torch_lntm.kernels.likelihood import INDEPENDENT, CountLikelihood
from torch_lntm.kernels.mixture import expected_topic_counts
from torch_lntm.latents.gamma import GammaSpace
from torch_lntm.models import TopicModel
from torch_lntm.posteriors import Posterior

#: Most updates of a Dirichlet's mode, and the largest change of a proportion at convergence.
MAX_UPDATES, UPDATE_TOLERANCE = 5000, 1e-6
#: Options of the solver of a normal's mode.
SOLVER = {"tolerance": 1e-6, "max_iterations": 500}


def theta_modes(model: TopicModel, batch: DocumentBatch) -> Tensor:
    """Theta ``(num_docs, num_topics)`` float64 at the posterior mode of its logits.

    * Normal priors: the mode of eta.
    * Gaussian sources: the joint mode of eta and the sources.
    * Laplace sources: the mean of the factor posterior.
    * Dirichlet priors: the mode of log theta up to a shift, by :func:`dirichlet_modes`.

    Args:
        model: The model.
        batch: The tokens to condition on.
    """
    if model.prior.space_type.conjugate:
        concentration = cast(GammaSpace, model.prior.space(batch)).concentration
        batch = model.topics.assign_levels(batch).to(dtype=torch.float64)
        return dirichlet_modes(batch, model.topics.double_probs, concentration, model.words)
    # Laplace's and Taylor's posteriors are centred at the mode. Laplace sources support neither.
    guide = make_guide(guides_suited(model).mode, model, **SOLVER)
    return guide.posterior(batch).theta_mode().double()


def dirichlet_modes(
    batch: DocumentBatch,
    topics: Tensor,
    concentration: Tensor,
    likelihood: CountLikelihood = INDEPENDENT,
) -> Tensor:
    """Mode of theta under a Dirichlet prior, for the density on the softmax scale.

    The mode is a fixed point, theta ∝ expected topic counts + α, which is updated until no
    proportion changes by more than ``UPDATE_TOLERANCE``. On the softmax scale, it exists for every
    α > 0.

    Args:
        batch: The tokens to condition on, float64.
        topics: ``(num_topics, num_words)`` float64.
        concentration: ``(num_topics,)`` α.
        likelihood: The distribution of the counts. Defaults to independent draws.

    Returns:
        ``(num_docs, num_topics)`` float64.
    """
    alpha = concentration.double()
    theta = (alpha / alpha.sum()).expand(batch.num_docs, -1)
    for _ in range(MAX_UPDATES):
        weights = expected_topic_counts(theta, topics, batch, likelihood) + alpha
        weights /= weights.sum(-1, keepdim=True)
        change = float((weights - theta).abs().max())
        theta = weights
        if change <= UPDATE_TOLERANCE:
            break
    return theta


def theta_means(posterior: Posterior, num_draws: int, seed: int) -> Tensor:
    """Posterior means of theta ``(num_docs, num_topics)`` float64, exact or by draws.

    The draws depend only on the seed and on the documents' positions.
    """
    if posterior.has_exact_theta_mean:
        return posterior.theta_mean().double()
    keys = noise.document_keys(seed, posterior.index, num_draws)
    return posterior.theta(posterior.draw(keys)).mean(0)
