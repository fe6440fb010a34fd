"""TopicModel: the one Pyro program, composed of a document prior and topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import pyro
import torch
from pyro.poutine.runtime import effectful
from torch import Tensor, nn

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.distributions import BagOfWords
from torch_lntm.errors import ConfigError, NumericalError
from torch_lntm.models.prior import DocumentPrior
from torch_lntm.models.topics import Topics


def _own_parameter(parameter: Tensor, name: str) -> Tensor:
    """A Pyro param site for a module's own parameter, which no parameter store gets to know.

    ``SVI`` collects what to optimise from such sites by ``value.unconstrained()``. A store, global
    and keyed by name, would hand a second model the first one's values. It learns the names only,
    by tensor, which optimisers with settings or state per parameter ask it for.
    """
    pyro.get_param_store()._param_to_name[parameter] = name
    value: Any = parameter.view_as(parameter)
    value.unconstrained = lambda: parameter
    return value


_param_site: Any = effectful(_own_parameter, type="param")


class Construction(NamedTuple):
    """The record of how a model was made, from which a file rebuilds it.

    Attributes:
        name: The name that its constructor is registered by.
        settings: The constructor's arguments, but for tensors and the vocabulary.
    """

    name: str
    settings: dict[str, Any]


class BoundModel:
    """The model's density of the documents of one batch, as plain tensor functions.

    Args:
        model: The model; its present topics are read once, its prior's parameters at each call.
        batch: The documents.
    """

    def __init__(self, model: TopicModel, batch: DocumentBatch) -> None:
        self.model = model
        self.batch = batch
        self.topics = model.topics.probs

    def log_joint(self, latents: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Log prior density and log likelihood at given latent variables.

        Args:
            latents: ``(..., num_docs, dim)`` values by the names of their sites: ``eta``, with
                ``source`` under an independent factor prior, or ``theta`` under a Dirichlet.

        Returns:
            ``(log_prior, log_likelihood)``, each ``(..., num_docs)`` nats.
        """
        prior = self.model.prior
        theta = prior.theta(latents[prior.latent])
        words = BagOfWords(theta, self.topics, validate_args=False)
        return prior.log_prob(latents), words.log_prob(self.batch)


class TopicModel(nn.Module):
    """A topic model: documents' theta from a prior, words from the topics.

    Calling the model with a batch runs it as a Pyro program with the prior's sites (``"eta"``;
    ``"source"`` and ``"eta"``; or ``"theta"``) and ``"counts"`` in the plate ``"documents"``, plus
    one factor each for the priors of the parameters. Parameters appear as Pyro param sites, so
    ``SVI`` optimises them, but they live in this module alone and never in the global parameter
    store: two models share nothing.

    Args:
        prior: The document prior.
        topics: The topics.
        vocabulary: One word per column, or None.

    Attributes:
        construction: The record of the registered constructor that made this model; None if none
            did. See :func:`torch_lntm.models.register`.

    Raises:
        ConfigError: Prior and topics disagree on the number of topics, or the vocabulary's length
            is not the number of words.
    """

    def __init__(
        self,
        prior: DocumentPrior,
        topics: Topics,
        vocabulary: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if prior.num_topics != topics.num_topics:
            raise ConfigError(
                f"the prior has {prior.num_topics} topics and the topics are {topics.num_topics}"
            )
        if vocabulary is not None and len(vocabulary) != topics.num_words:
            raise ConfigError(
                f"the vocabulary has {len(vocabulary)} words; expected {topics.num_words}"
            )
        self.prior = prior
        self.topics = topics
        self.vocabulary = None if vocabulary is None else tuple(vocabulary)
        self.construction: Construction | None = None

    @property
    def name(self) -> str:
        """The name of the constructor that made this model, else that of the prior's class."""
        return type(self.prior).__name__ if self.construction is None else self.construction.name

    @property
    def num_topics(self) -> int:
        """Number of topics K."""
        return self.topics.num_topics

    @property
    def num_words(self) -> int:
        """Size of the vocabulary V."""
        return self.topics.num_words

    @property
    def latent_dim(self) -> int:
        """Dimension of the latent variable that theta is a function of."""
        return self.prior.latent_dim

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.topics.logits.device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the parameters."""
        return self.topics.logits.dtype

    @property
    def config(self) -> dict[str, Any]:
        """JSON-able description: the settings of the constructor, else what the parts print."""
        if self.construction is None:
            return {"prior": repr(self.prior), "topics": repr(self.topics)}
        return dict(self.construction.settings)

    def theta(self, latent: Tensor) -> Tensor:
        """Topic proportions ``(..., num_topics)`` from eta or theta ``(..., latent_dim)``."""
        return self.prior.theta(latent)

    def forward(self, batch: DocumentBatch, sample_topics: bool = False) -> Tensor:
        """The Pyro program.

        Args:
            batch: The documents.
            sample_topics: Make the topics a latent variable, the site ``"topics"``, in place of
                their parameters and the prior of these. ``MCMC(NUTS(model)).run(batch,
                sample_topics=True)`` then draws topics and documents together, which is for small
                corpora. The topics can change places: posterior draws agree up to a permutation.

        Returns:
            eta or theta ``(num_docs, latent_dim)``.
        """
        module: nn.Module = self.prior if sample_topics else self
        for name, parameter in module.named_parameters(prefix="prior" * sample_topics):
            _param_site(parameter, name, name=name)
        if sample_topics:
            topics = self.topics.sample()
        else:
            pyro.factor("topics_prior", self.topics.log_prior())
            topics = self.topics.probs
        pyro.factor("document_prior", self.prior.log_prior())
        with pyro.plate("documents", batch.corpus_size, subsample=batch.index):
            latent = self.prior.sample()
            pyro.sample(
                "counts",
                BagOfWords(self.theta(latent), topics, batch.lengths),
                obs=cast(Tensor, batch),
            )
        return latent

    def bind(self, batch: DocumentBatch) -> BoundModel:
        """This model's density of the documents of ``batch`` at its present parameters."""
        return BoundModel(self, batch)

    def log_prior(self) -> Tensor:
        """Log prior density of the parameters, up to a constant (scalar, nats)."""
        return self.topics.log_prior() + self.prior.log_prior()

    @torch.no_grad()
    def generate(
        self, lengths: Sequence[int] | Tensor, *, seed: int = 0
    ) -> tuple[Corpus, dict[str, Tensor]]:
        """Draw a corpus from the model.

        Args:
            lengths: ``(num_docs,)`` tokens of each document.
            seed: Seed of a generator of its own.

        Returns:
            The corpus, and the documents' latent variables ``(num_docs, dim)`` by the names of
            their sites.

        Raises:
            ConfigError: A length is negative.
        """
        generator = torch.Generator(self.device).manual_seed(seed)
        sizes = torch.as_tensor(lengths, dtype=torch.int64, device=self.device)
        if bool((sizes < 0).any()):
            raise ConfigError(f"lengths are as small as {int(sizes.min())}; expected none below 0")
        latents = self.prior.draw(sizes.numel(), generator)
        theta = self.theta(latents[self.prior.latent])
        bags = BagOfWords(theta, self.topics.probs, sizes)
        return Corpus.from_matrix(
            bags.sample_counts(generator), vocabulary=self.vocabulary
        ), latents

    def topic_correlation(self) -> Tensor:
        """Correlations ``(num_topics, num_topics)`` of the centred logits of theta, float64.

        From the covariance projected on the contrasts, which is what the data identify.
        """
        covariance = self.prior.contrast_covariance()
        scale = covariance.diagonal().clamp_min(torch.finfo(torch.float64).tiny).sqrt()
        return (covariance / scale[:, None] / scale).fill_diagonal_(1.0)

    def check_parameters(self) -> None:
        """Raise if a parameter is not finite.

        Raises:
            NumericalError: It names the parameter.
        """
        for name, parameter in self.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise NumericalError(f"the model's parameter {name} is not finite")

    def check_batch(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch on this model's device and in its dtype.

        Raises:
            ConfigError: The batch has another vocabulary size.
        """
        if batch.num_words != self.num_words:
            raise ConfigError(
                f"documents over {batch.num_words} words given to a model of {self.num_words}; "
                "re-index the corpus with corpus.with_vocabulary(model.vocabulary)"
            )
        return batch.to(self.device, self.dtype)
