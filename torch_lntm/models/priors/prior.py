"""DocumentPrior: the prior of a document's topic proportions, as every algorithm meets it."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.latents import IdentifiedSpace, LatentSpace
from torch_lntm.posteriors import Moments

#: Smallest proportion that a start takes logs of.
MIN_PROPORTION = 1e-4
#: Average variance of the centred logits of theta under a wide normal prior.
WIDE_VARIANCE = 10.0


class DocumentPrior(nn.Module):
    """The prior of a document's topic proportions, with its parameters.

    A document's proportions are a function of one latent variable, eta or theta itself, at the
    site that :attr:`latent` names; there may be other sites above it. A prior says

    * in :meth:`emit`, how these sites are drawn, as a Pyro program: the definition of the model;
    * in :meth:`space` and :meth:`identified`, the same in coordinates at the present parameters,
      for solvers, samplers and integrals;
    * in :meth:`statistics` and :meth:`m_step`, what an M-step needs of the documents' posteriors,
      and what it does with it;
    * in :meth:`start_latents` and :meth:`start`, how to begin from rough proportions.

    ``torch_lntm.testing.check_prior`` checks that these agree. A normal prior of eta derives from
    :class:`~torch_lntm.models.NormalPrior`, which has most of them.

    Attributes:
        num_topics: Number of topics K.
        num_sources: Number of sources, which topics come and go with; 0 where there are none. A
            prior that has them has their site, ``source``, and their ``mixing``.
    """

    #: The site that :meth:`theta` is a function of.
    latent: ClassVar[str]
    #: Name of the guide to take where none is chosen.
    default_posterior: ClassVar[str]
    #: Buffers that a fit changes, as it does the parameters.
    fitted_buffers: ClassVar[frozenset[str]] = frozenset()
    num_topics: int
    num_sources: int = 0

    @property
    def latent_dim(self) -> int:
        """Dimension of the variable at the site :attr:`latent`."""
        return self.num_topics

    @property
    def space_type(self) -> type[LatentSpace]:
        """The class of what :meth:`space` returns, by which guides and samplers know what fits."""
        raise self._undefined("space_type")

    def encode(self, corpus: Corpus) -> Corpus:
        """The corpus with the covariates that this prior reads from its batches.

        A prior that derives them from the metadata does so by :meth:`Corpus.with_encoding`, once.

        Args:
            corpus: The documents.

        Returns:
            The corpus itself if the prior reads none, or if the corpus has them already.

        Raises:
            CorpusError: The documents lack what the covariates are made of.
        """
        return corpus

    def space(self, batch: DocumentBatch) -> LatentSpace:
        """Whitened coordinates of the documents' latent variables at the present parameters.

        Args:
            batch: The documents; a prior that depends on covariates reads ``batch.covariates``.

        Returns:
            The space, without gradients.
        """
        raise self._undefined("space")

    def identified(self, batch: DocumentBatch) -> IdentifiedSpace:
        """Coordinates of what the likelihood can see, for integrals; float64.

        Args:
            batch: As for :meth:`space`.
        """
        raise self._undefined("identified")

    def emit(self, batch: DocumentBatch) -> Tensor:
        """Emit the documents' sites as a Pyro program, within their plate.

        Args:
            batch: As for :meth:`space`.

        Returns:
            The value of the site :attr:`latent`, ``(num_docs, latent_dim)``.
        """
        raise self._undefined("emit")

    def theta(self, latent: Tensor) -> Tensor:
        """Topic proportions ``(..., num_topics)`` from the latent ``(..., latent_dim)``."""
        raise self._undefined("theta")

    def log_prior(self) -> Tensor:
        """Log density, up to a constant, of the parameters' own prior (scalar, float64 nats)."""
        return torch.zeros((), dtype=torch.float64)

    def statistics(self, moments: Moments, batch: DocumentBatch) -> dict[str, Tensor]:
        """What :meth:`m_step` needs of some documents, as sums over them.

        Args:
            moments: Expectations of their latent variables, from a posterior or from draws.
            batch: The documents.

        Returns:
            Float64 tensors by names of the prior's choice; sums of disjoint sets add up.
        """
        raise self._undefined("statistics")

    def m_step(self, num_docs: float, **sums: Tensor) -> None:
        """Set the parameters to their maximisers.

        Args:
            num_docs: Number of documents summed over (not counting empty ones).
            **sums: What :meth:`statistics` gave, added over documents.
        """
        raise self._undefined("m_step")

    def start_latents(self, theta: Tensor) -> Tensor:
        """The latent variables ``(num_docs, latent_dim)`` that rough proportions belong to.

        Args:
            theta: ``(num_docs, num_topics)`` positive proportions.
        """
        raise self._undefined("start_latents")

    def start(self, num_docs: float, **sums: Tensor) -> None:
        """Set the parameters from rough latent variables; by default as :meth:`m_step` does.

        Args:
            num_docs: Number of documents summed over.
            **sums: What :meth:`statistics` made of :meth:`start_latents`, taken for certain.
        """
        self.m_step(num_docs, **sums)

    def inflate_covariance(self) -> None:
        """Let theta vary more than rough proportions of a start say, for chains to start under.

        The proportions are too sure. From their variance EM would take hundreds of transitions to
        find that of short documents, and blur the topics meanwhile (``docs/decisions.md``). By
        default the prior stays as it is.
        """

    def expect_draws(self) -> dict[str, float]:
        """Choose what was left open for a fit whose M-steps see draws of the latents, not modes.

        Returns:
            The settings chosen, by their names in the constructor; none by default.
        """
        return {}

    def contrast_covariance(self) -> Tensor:
        """Covariance ``(num_topics, num_topics)`` of the centred logits of theta, float64.

        Centring removes the shift that softmax ignores, so this is identified. Its rows sum to 0.
        Where the prior mean depends on the document, this is the covariance around it.
        """
        raise self._undefined("contrast_covariance")

    def regressors(self, batch: DocumentBatch) -> tuple[Tensor, Tensor] | None:
        """What the prior mean of a normal eta is linear in, with coefficients that a fit learns.

        Args:
            batch: As for :meth:`space`.

        Returns:
            Rows ``(num_docs, num_rows)``, float64, and the penalties ``(num_rows,)`` of their
            coefficients, the precisions of these relative to the covariance; None where there is no
            such mean.
        """
        return None

    def _undefined(self, what: str) -> NotImplementedError:
        """The error of a part of the contract that a subclass has left out."""
        return NotImplementedError(
            f"{type(self).__name__} does not define {what}; the docstrings of DocumentPrior and "
            "NormalPrior say what it is, and docs/own_prior.md has examples"
        )

    def canonicalise_(self) -> dict[str, Tensor]:
        """Choose, among parameters that mean the same, those that are stated as the convention.

        Returns:
            What follows for the documents' latent variables: by the names of the sites that change,
            the matrix ``(dim, dim)`` that rows of their values are to be multiplied by.
        """
        return {}


def is_up_to_date(part: object, method: str, *others: str) -> bool:
    """Whether a part of a model has a method that is no older than others that it must agree with.

    A class that has, say, another mean than its base must not draw its parameters as the base does.

    Args:
        part: A prior, topics or words.
        method: The method.
        *others: Those that it has to agree with.
    """
    classes = type(part).__mro__

    def defined_at(name: str) -> int:
        return next((i for i, one in enumerate(classes) if name in vars(one)), len(classes))

    return defined_at(method) < len(classes) and all(
        defined_at(method) <= defined_at(other) for other in others
    )


def centred_logits(theta: Tensor) -> Tensor:
    """Log proportions with mean 0, ``(..., num_topics)``, of proportions of at least 1e-4."""
    logits = theta.clamp_min(MIN_PROPORTION).log()
    return logits - logits.mean(-1, keepdim=True)


def inflation_factor(covariance: Tensor) -> float:
    """Factor of at least 1 by which a start inflates a covariance of centred logits.

    The average variance becomes at least 10. The factor is 1 if it is larger, or if there is a
    single topic, whose variance is 0.

    Args:
        covariance: ``(num_topics, num_topics)``.
    """
    narrow = float(covariance.diagonal().mean())
    return max(1.0, WIDE_VARIANCE / narrow) if narrow > 0.0 else 1.0


def check_tensor(value: Tensor, what: str, *shape: int, positive: bool = False) -> Tensor:
    """A tensor that was given for a parameter.

    Raises:
        ConfigError: Another shape, or an entry that is not finite, or not positive where it must.
    """
    tensor = torch.as_tensor(value)
    fits = tuple(tensor.shape) == shape and bool(torch.isfinite(tensor).all())
    if not fits or (positive and not (tensor > 0).all()):
        raise ConfigError(
            f"{what}: got shape {tuple(tensor.shape)}; expected {shape} "
            f"{'positive ' if positive else ''}finite numbers"
        )
    return tensor
