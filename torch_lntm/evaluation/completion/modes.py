"""The mode of theta on the softmax scale, for every prior: the plug-in beside the exact mean."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.guides import make_guide
from torch_lntm.kernels import INDEPENDENT, CountLikelihood, expected_topic_counts
from torch_lntm.latents.gamma import GammaSpace
from torch_lntm.models import TopicModel

#: Bound on the updates of a Dirichlet's mode, and the change of a proportion that ends them.
MAX_UPDATES, UPDATE_TOLERANCE = 5000, 1e-6
#: Tolerance and bound of the solver of a normal's mode.
SOLVER = {"tolerance": 1e-6, "max_iterations": 500}


def theta_modes(model: TopicModel, batch: DocumentBatch) -> Tensor:
    """Theta ``(num_docs, num_topics)`` float64 at the mode of its logits.

    Under a normal prior, that of eta; with sources, of eta and sources together, or if these are
    Laplace the mean of the factor posterior. Under a Dirichlet that of log theta up to a shift,
    :func:`dirichlet_modes`.

    Args:
        model: The model.
        batch: The tokens to condition on.
    """
    space = model.prior.space_type
    if space.conjugate:
        concentration = cast(GammaSpace, model.prior.space(batch)).concentration
        placed = model.topics.assign_groups(batch)
        return dirichlet_modes(placed, model.topics.double_probs, concentration, model.words)
    guides = space.posterior_metrics.values()
    # Laplace's and Taylor's posteriors are centred at the mode. Laplace sources have neither.
    name = next((name for name in ("laplace", "taylor") if name in guides), "factor")
    return make_guide(name, model, **SOLVER).posterior(batch).theta_mode().double()


def dirichlet_modes(
    batch: DocumentBatch,
    topics: Tensor,
    concentration: Tensor,
    likelihood: CountLikelihood = INDEPENDENT,
) -> Tensor:
    """Mode of theta under a Dirichlet prior, its density taken on the softmax scale.

    The fixed point theta ∝ expected topic counts + α, iterated until no proportion moves by more
    than ``UPDATE_TOLERANCE``. On that scale the mode exists for every α > 0.

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
        moved = float((weights - theta).abs().max())
        theta = weights
        if moved <= UPDATE_TOLERANCE:
            break
    return theta
