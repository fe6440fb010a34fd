"""The correlated topic model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.models.model import TopicModel
from torch_lntm.models.prior import LogisticNormalPrior
from torch_lntm.models.topics import Topics


def ctm(
    num_topics: int,
    num_words: int,
    *,
    anchored: bool = False,
    loc: Tensor | None = None,
    covariance: Tensor | None = None,
    topics: Tensor | None = None,
    topic_smoothing: float = 0.05,
    pseudo_documents: float | None = None,
    pseudo_variance: float = 1.0,
    vocabulary: Sequence[str] | None = None,
    dtype: torch.dtype | str = torch.float32,
    seed: int = 0,
) -> TopicModel:
    """The correlated topic model (logistic-normal topic admixture) with full covariance.

    eta_d ~ Normal(loc, covariance), theta_d = softmax(eta_d), each word from a topic drawn from
    theta_d (*Ahmed & Xing 2007, eqs 1–3; Khan & Bouchard 2009, eqs 1–3*).

    Args:
        num_topics: Number of topics K, at least 2.
        num_words: Size of the vocabulary V.
        anchored: K - 1 free components and the last fixed at 0, instead of K.
        loc: ``(latent_dim,)`` prior mean; latent_dim is K, or K - 1 if anchored.
        covariance: ``(latent_dim, latent_dim)`` prior covariance.
        topics: ``(num_topics, num_words)`` word probabilities.
        topic_smoothing: Pseudo-counts of every word in every topic (Dirichlet(1 + smoothing) prior
            at its mode); 0 leaves the topics free.
        pseudo_documents: Weight of the inverse-Wishart prior of the covariance, in documents;
            2K + 2 by default.
        pseudo_variance: Variance that this prior stands for.
        vocabulary: One word per column.
        dtype: Floating-point type of the parameters, ``torch.float32`` or ``torch.float64`` or the
            names of these.
        seed: Seed of the topics' random initial values.

    Returns:
        The model, on the CPU; move it with ``.to(device)``.

    Raises:
        ConfigError: A size, shape or value that cannot be used.
    """
    if num_topics < 2:
        raise ConfigError(f"num_topics is {num_topics}; expected at least 2")
    if num_words < 1:
        raise ConfigError(f"num_words is {num_words}; expected at least 1")
    dtypes = {"float32": torch.float32, "float64": torch.float64}
    name = str(dtype).removeprefix("torch.")
    if name not in dtypes:
        raise ConfigError(f"dtype is {dtype}; expected float32 or float64")
    prior = LogisticNormalPrior(
        num_topics,
        anchored=anchored,
        loc=loc,
        covariance=covariance,
        pseudo_documents=pseudo_documents,
        pseudo_variance=pseudo_variance,
        dtype=dtypes[name],
    )
    generator = torch.Generator().manual_seed(seed)
    phi = Topics(
        num_topics,
        num_words,
        smoothing=topic_smoothing,
        probs=topics,
        dtype=dtypes[name],
        generator=generator,
    )
    return TopicModel(prior, phi, vocabulary)
