"""PseudoDocuments: a prior of the parameters, written as imaginary documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from torch_lntm.errors import ConfigError, NumericalError
from torch_lntm.models.priors.prior import INFLATED_VARIANCE

#: Default variance of the imaginary logits in other fits than those by chains.
DEFAULT_VARIANCE = 1.0
#: Lowest variance in fits by chains, which keeps the covariance well conditioned. The highest is
#: ``INFLATED_VARIANCE``.
LOWEST_VARIANCE = 0.1


class PseudoDocuments:
    """Prior of a document prior's parameters, as imaginary documents of independent logits.

    There are ``pseudo_documents`` documents, and their logits have variance ``pseudo_variance``.
    The variance defaults to 1, and to 10 in fits by chains. Posterior modes of logits have a
    variance of about 1, and draws a variance of about 10. With draws, a prior variance of 1 would
    blur the topics of short documents. A variance of 10 would inflate the covariances of few
    topics. In fits by chains of documents with at least a token for every topic, the default is
    therefore the average variance of the fitted logits, between 0.1 and 10 (``docs/decisions.md``).

    Attributes:
        pseudo_documents: Weight of the prior, in documents.
        pseudo_variance: Variance of the imaginary logits.
    """

    num_topics: int
    contrast_covariance: Callable[[], Tensor]
    pseudo_documents: float
    pseudo_variance: float
    _has_default_variance: bool
    #: Whether a fit by chains chooses the variance.
    _follows_fit: bool = False

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

    def _should_check(self, info: Tensor) -> bool:
        """Whether to check the success of a factorisation in the M-step.

        If the prior weighs enough, the factorisation only fails for sums that are infinite, NaN or
        extremely large. The parameters then become infinite or NaN too, and fits report this. On a
        GPU the check is therefore left out, because the host would wait for its result.
        """
        return self.pseudo_documents * self.pseudo_variance < 1.0 or not info.is_cuda

    def _improper(self, num_docs: float, parameters: str) -> NumericalError:
        """The error for too few documents, which leave the parameters without a posterior."""
        return NumericalError(
            f"{num_docs:g} documents and pseudo_documents={self.pseudo_documents:g} leave "
            f"{parameters} without a proper posterior; raise pseudo_documents"
        )

    def expect_draws(self) -> dict[str, float]:
        """See :meth:`DocumentPrior.expect_draws`. Chooses a ``pseudo_variance`` of 10."""
        # A caller may also have set the attribute after construction. This value stays too.
        if not self._has_default_variance or self.pseudo_variance != DEFAULT_VARIANCE:
            return {}
        self._follows_fit = True
        self.pseudo_variance = INFLATED_VARIANCE
        return {"pseudo_variance": INFLATED_VARIANCE}

    @contextmanager
    def following(self, length: float) -> Iterator[None]:
        """See :meth:`DocumentPrior.following`. Replaces a default ``pseudo_variance``.

        The imaginary documents get the average variance of the fitted logits, as the target of
        *Ledoit & Wolf 2004* has. The prior then shrinks correlations, and leaves the scale alone.
        Documents with fewer tokens than topics hardly determine this variance, and keep 10.
        """
        before = self.pseudo_variance
        # A value that the caller has set between two fits stays.
        follows = self._follows_fit and before == INFLATED_VARIANCE
        if follows and 2 <= self.num_topics <= length:
            # Centring K independent logits of variance v leaves v (K − 1)/K of their variance.
            total = float(self.contrast_covariance().diagonal().sum())
            variance = total / (self.num_topics - 1)
            self.pseudo_variance = min(max(variance, LOWEST_VARIANCE), INFLATED_VARIANCE)
        try:
            yield
        finally:
            self.pseudo_variance = before
