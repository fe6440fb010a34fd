"""DocumentPrior, the contract of a prior of topic proportions, and pseudo-documents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, NumericalError, undefined
from torch_lntm.latents import LatentSpace
from torch_lntm.latents.identified import IdentifiedSpace
from torch_lntm.posteriors import Moments

#: Lower bound of the proportions of a start, before their logarithms are taken.
MIN_PROPORTION = 1e-4
#: Average variance of the centred logits of theta under an inflated normal prior.
INFLATED_VARIANCE = 10.0


class DocumentPrior(nn.Module):
    """Prior of a document's topic proportions, with its parameters.

    The proportions follow from a single latent variable, eta or theta, at the site that
    :attr:`latent` names; other sites, such as sources, may come before it. A prior says what it is
    once, as a program, and offers the algorithms what they need of it:

    * :meth:`emit` is the Pyro program of these sites, and thereby the definition of the model;
    * :meth:`space` and :meth:`identified` give coordinates of the sites at the current parameters,
      in which solvers, samplers and integrals meet the prior;
    * :meth:`statistics` are sums over the documents' posteriors, from which :meth:`m_step` sets the
      parameters;
    * :meth:`start_latents` and :meth:`start` make initial parameters of rough proportions.

    :func:`torch_lntm.testing.check_prior` checks that they agree. If eta is normal, derive from
    :class:`~torch_lntm.models.NormalPrior`, which has most of these methods already.

    Attributes:
        num_topics: Number of topics K.
        num_sources: Number of sources of correlation between topics, 0 by default. Priors with
            sources have the site ``source`` and the parameter ``mixing``.

    Example:
        >>> model.prior.latent, model.prior.latent_dim, type(model.prior.space(batch)).__name__
        ('eta', 10, 'NormalSpace')
    """

    #: Name of the main site, from which :meth:`theta` follows.
    latent: ClassVar[str]
    #: Names of buffers that fits change.
    fitted_buffers: ClassVar[frozenset[str]] = frozenset()
    #: Names of statistics that need a document's whole posterior, such as its covariance. All other
    #: statistics are expectations over single draws.
    posterior_statistics: ClassVar[frozenset[str]] = frozenset()
    #: Whether :meth:`contrast_covariance` has parameters for the topics' correlations.
    has_correlations: ClassVar[bool] = False
    num_topics: int
    num_sources: int = 0
    #: Number of coefficients that :meth:`draw_changes` draws. 0 for priors without this method.
    num_changes: int = 0

    @property
    def latent_dim(self) -> int:
        """Dimension of the variable at the site :attr:`latent`."""
        return self.num_topics

    @property
    def space_type(self) -> type[LatentSpace]:
        """Class of the result of :meth:`space`, by which guides tell whether they fit the prior."""
        raise undefined(self, "space_type")

    def encode(self, corpus: Corpus) -> Corpus:
        """The corpus with the covariates that batches carry for this prior.

        A prior derives covariates from the metadata once, by :meth:`Corpus.with_encoding`.

        Args:
            corpus: The documents.

        Returns:
            The encoded corpus. It is ``corpus`` itself if nothing has to be added.

        Raises:
            CorpusError: The documents lack a column of the covariates.
        """
        return corpus

    def space(self, batch: DocumentBatch) -> LatentSpace:
        """Whitened coordinates of the documents' latent variables at the current parameters.

        Args:
            batch: The documents. Priors with covariates read ``batch.covariates``.

        Returns:
            The space, detached from the parameters.
        """
        raise undefined(self, "space")

    def identified(self, batch: DocumentBatch) -> IdentifiedSpace:
        """Coordinates of the part that the likelihood identifies, for integrals; float64.

        Args:
            batch: As for :meth:`space`.
        """
        raise undefined(self, "identified")

    def emit(self, batch: DocumentBatch) -> Tensor:
        """Emit the documents' sites as a Pyro program, within their plate.

        Args:
            batch: As for :meth:`space`.

        Returns:
            The value of the site :attr:`latent`, ``(num_docs, latent_dim)``.
        """
        raise undefined(self, "emit")

    def theta(self, latent: Tensor) -> Tensor:
        """Topic proportions ``(..., num_topics)`` from the latent ``(..., latent_dim)``."""
        raise undefined(self, "theta")

    def log_prior(self) -> Tensor:
        """Log density, up to a constant, of the parameters' own prior (scalar, float64 nats)."""
        return torch.zeros((), dtype=torch.float64)

    def statistics(self, moments: Moments, batch: DocumentBatch) -> dict[str, Tensor]:
        """Sums over documents for :meth:`m_step`.

        Args:
            moments: Expectations of the latent variables, from a posterior or from draws.
            batch: The documents.

        Returns:
            Float64 tensors, by names of the prior's choice. Sums of disjoint sets add up.
        """
        raise undefined(self, "statistics")

    def m_step(self, num_docs: float, **sums: Tensor) -> None:
        """Set the parameters to their maximisers.

        Args:
            num_docs: Number of documents in the sums, without empty documents.
            **sums: Results of :meth:`statistics`, added over documents.
        """
        raise undefined(self, "m_step")

    def start_latents(self, theta: Tensor) -> Tensor:
        """Latent variables ``(num_docs, latent_dim)`` of rough proportions.

        Args:
            theta: ``(num_docs, num_topics)`` positive proportions.
        """
        raise undefined(self, "start_latents")

    def start(self, num_docs: float, **sums: Tensor) -> None:
        """Set the parameters from rough latent variables. Defaults to :meth:`m_step`.

        Args:
            num_docs: Number of documents in the sums.
            **sums: Results of :meth:`statistics` for :meth:`start_latents`, taken as exact.
        """
        self.m_step(num_docs, **sums)

    def inflate_covariance(self) -> None:
        """Increase the variance of theta after a start, for chains.

        The rough proportions of a start vary too little. If Monte-Carlo EM began with their
        variance, it would need hundreds of transitions to reach that of short documents, and would
        blur the topics in the meantime. By default nothing happens.
        """

    def expect_draws(self) -> dict[str, float]:
        """Switch default settings to those for fits from draws, as opposed to modes.

        Settings that the caller has chosen stay as they are.

        Returns:
            The new settings, by their names in the constructor. Empty by default.
        """
        return {}

    @contextmanager
    def following(self, length: float) -> Iterator[None]:
        """Context of an epoch of chains, in which default settings may follow the parameters.

        Afterwards the settings are as before.

        Args:
            length: Mean number of tokens of a document.
        """
        yield

    def contrast_covariance(self) -> Tensor:
        """Covariance ``(num_topics, num_topics)`` of the centred logits of theta, float64.

        Centring removes the shift that softmax ignores, so that the covariance is identified and
        its rows sum to 0. A prior mean that depends on the document is subtracted first.
        """
        raise undefined(self, "contrast_covariance")

    def regressors(
        self, batch: DocumentBatch, *, of_levels: bool = True
    ) -> tuple[Tensor, Tensor] | None:
        """Regressors of a normal eta's prior mean, if fits learn its coefficients.

        Args:
            batch: As for :meth:`space`.
            of_levels: Whether levels of random terms belong to them. Priors with random terms then
                have no regressors, because a dense design would be too large.

        Returns:
            Regressors ``(num_docs, num_rows)``, float64, and penalties ``(num_rows,)``, which are
            the prior precisions of the rows of coefficients, relative to the covariance. ``None``
            for priors without regressors.
        """
        return None

    def mean_shift(self, batch: DocumentBatch, changes: Tensor) -> Tensor:
        """Changes of the documents' prior means with the coefficients.

        Args:
            batch: As for :meth:`space`.
            changes: ``(num_draws, num_rows, latent_dim)`` changes of the coefficients.

        Returns:
            ``(num_draws, num_docs, latent_dim)``, for the design of :meth:`regressors`.
        """
        regressors = self.regressors(batch)
        assert regressors is not None
        return regressors[0] @ changes

    def draw_changes(self, observed: Tensor, white: Tensor) -> Tensor:
        """Draws of the coefficients less their mean, for priors without a dense design.

        Args:
            observed: ``(latent_dim, latent_dim)`` information of a document about its prior mean,
                averaged over documents.
            white: ``(num_draws, num_changes, latent_dim)`` standard normal numbers.

        Returns:
            ``(num_draws, num_changes, latent_dim)``, for :meth:`mean_shift`.
        """
        raise undefined(self, "draw_changes")

    def canonicalise_(self) -> dict[str, Tensor]:
        """Replace the parameters by equivalent ones that follow a convention.

        The distribution that the model describes stays the same.

        Returns:
            Matrices ``(dim, dim)``, by the names of the sites with new coordinates. A row vector
            ``x`` of such a site becomes ``x @ matrix``.
        """
        return {}


def centred_logits(theta: Tensor) -> Tensor:
    """Log proportions ``(..., num_topics)`` with mean 0. Proportions below 1e-4 count as 1e-4."""
    logits = theta.clamp_min(MIN_PROPORTION).log()
    return logits - logits.mean(-1, keepdim=True)


def inflation_factor(covariance: Tensor) -> float:
    """Factor of at least 1 by which a start inflates a covariance of centred logits.

    It raises the average variance to 10. The factor is 1 if the variance is larger already, and for
    a single topic, which has variance 0.

    Args:
        covariance: ``(num_topics, num_topics)``.
    """
    variance = float(covariance.diagonal().mean())
    return max(1.0, INFLATED_VARIANCE / variance) if variance > 0.0 else 1.0


def check_tensor(value: Tensor, name: str, *shape: int, positive: bool = False) -> Tensor:
    """Check the value of a parameter and return it as a tensor.

    Args:
        value: The value.
        name: Name of the parameter, for the error.
        *shape: Expected shape.
        positive: Whether the entries must be positive.

    Raises:
        ConfigError: The shape is different, or an entry is not finite, or not positive.
    """
    tensor = torch.as_tensor(value)
    fits = tuple(tensor.shape) == shape and bool(torch.isfinite(tensor).all())
    if not fits or (positive and not (tensor > 0).all()):
        raise ConfigError(
            f"{name}: got shape {tuple(tensor.shape)}; expected {shape} "
            f"{'positive ' if positive else ''}finite numbers"
        )
    return tensor


#: Default variance of the imaginary logits in other fits than those by chains.
DEFAULT_VARIANCE = 1.0
#: Lowest variance in fits by chains, which keeps the covariance well conditioned. The highest is
#: ``INFLATED_VARIANCE``.
LOWEST_VARIANCE = 0.1


class PseudoDocuments(DocumentPrior):
    """Prior of a document prior's parameters, as imaginary documents of independent logits.

    There are ``pseudo_documents`` documents, and their logits have variance ``pseudo_variance``,
    whose default follows the table of :class:`~torch_lntm.models.LogisticNormalPrior`. Posterior
    modes of logits have a variance of about 1 and draws one of about 10, so a prior variance of 1
    would blur the topics of short documents in a fit by draws. Where documents are long enough to
    tell the variance, 10 would in turn inflate the covariances of few topics, which is why the
    prior then takes its scale from the fit (``studies/pages/decisions.md``).

    Attributes:
        pseudo_documents: Weight of the prior, in documents.
        pseudo_variance: Variance of the imaginary logits.
    """

    def _set_pseudo_documents(self, name: str, documents: float, variance: float | None) -> None:
        """Set the number of pseudo-documents and their variance.

        Args:
            name: Name of the parameters, for the error.
            documents: The number.
            variance: The variance, or ``None`` for the default.

        Raises:
            ConfigError: The number is negative, or the variance is not positive.
        """
        self._has_default_variance = variance is None
        self.pseudo_documents = float(documents)
        self.pseudo_variance = DEFAULT_VARIANCE if variance is None else float(variance)
        if not self.pseudo_documents >= 0 or not self.pseudo_variance > 0:
            raise ConfigError(
                f"the prior of {name} has pseudo_documents={self.pseudo_documents} and "
                f"pseudo_variance={self.pseudo_variance}; expected pseudo_documents >= 0 and "
                "pseudo_variance > 0"
            )

    def _draw_variance(self, count: float, total: float, rng: np.random.Generator) -> None:
        """Draw a default ``pseudo_variance``, whose prior in joint chains is Gamma(½, ½).

        A constant would decide the scale of short documents' logits, about which their words say
        little, whereas draws leave it to all documents together.

        Args:
            count: Number of logits that the imaginary documents' prior is worth. Without a positive
                one, the prior of the parameters is improper, and the variance stays.
            total: Sum of the imaginary logits' squares at variance 1, in units of their variances.
            rng: Random number generator.
        """
        # Fits by draws record their default as a setting, which files keep.
        if count > 0 and (self._has_default_variance or self.pseudo_variance == INFLATED_VARIANCE):
            self._has_default_variance = True
            self.pseudo_variance = rng.gamma(0.5 + 0.5 * count) / (0.5 + 0.5 * total)

    def _improper(self, num_docs: float, parameters: str) -> NumericalError:
        """The error for too few documents, which leave the parameters without a posterior."""
        return NumericalError(
            f"{num_docs:g} documents and pseudo_documents={self.pseudo_documents:g} leave "
            f"{parameters} without a proper posterior; raise pseudo_documents"
        )

    def _check_solved(self, info: Tensor, num_docs: float, parameters: str) -> None:
        """Raise if too few documents made a system singular, as the code ``info`` tells.

        Under a prior of some weight, only sums that are extreme or not finite do so. The parameters
        then become NaN, which fits report, so that a GPU need not wait.
        """
        is_weak = self.pseudo_documents * self.pseudo_variance < 1.0
        if (is_weak or not info.is_cuda) and int(info) != 0:
            raise self._improper(num_docs, parameters)

    def extra_repr(self) -> str:
        """Sizes and prior, for ``repr``."""
        return (
            f"{self.num_topics} topics, pseudo_documents={self.pseudo_documents}, "
            f"pseudo_variance={self.pseudo_variance}"
        )

    def expect_draws(self) -> dict[str, float]:
        """See :meth:`DocumentPrior.expect_draws`. Chooses a ``pseudo_variance`` of 10."""
        # A value that the caller has set after construction stays too.
        if not self._has_default_variance or self.pseudo_variance != DEFAULT_VARIANCE:
            return {}
        self.pseudo_variance = INFLATED_VARIANCE
        return {"pseudo_variance": INFLATED_VARIANCE}

    @contextmanager
    def following(self, length: float) -> Iterator[None]:
        """See :meth:`DocumentPrior.following`. Replaces a default ``pseudo_variance``.

        The imaginary documents get the average variance of the fitted logits, like the target of
        *Ledoit & Wolf 2004*, so that the prior shrinks correlations and leaves the scale alone.
        Documents with fewer tokens than topics hardly determine this variance, so they keep 10.
        """
        before = self.pseudo_variance
        # A value that the caller has set between two fits stays.
        follows = self._has_default_variance and before == INFLATED_VARIANCE
        if follows and 2 <= self.num_topics <= length:
            # Centring K independent logits of variance v leaves v (K − 1)/K of their variance.
            total = float(self.contrast_covariance().diagonal().sum())
            variance = total / (self.num_topics - 1)
            self.pseudo_variance = min(max(variance, LOWEST_VARIANCE), INFLATED_VARIANCE)
        try:
            yield
        finally:
            self.pseudo_variance = before
