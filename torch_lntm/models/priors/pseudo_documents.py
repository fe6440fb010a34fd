"""The prior of a normal prior's own parameters, written as documents that were never seen."""

from __future__ import annotations

from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.models.priors.prior import WIDE_VARIANCE

#: Variance of independent logits that the prior stands for until chains are to fit the model.
NARROW_VARIANCE = 1.0


class PseudoDocuments:
    """``pseudo_documents`` documents of independent logits of the variance ``pseudo_variance``.

    Where the variance is not given it is 1, until chains are to fit the model: modes of the
    documents' logits vary about as much, draws ten times as much, and a prior of variance 1 would
    blur the topics of short documents (``docs/decisions.md``).

    Attributes:
        pseudo_documents: The prior's weight, in documents.
        pseudo_variance: The variance that it stands for.
    """

    pseudo_documents: float
    pseudo_variance: float
    _variance_is_given: bool

    def _set_pseudo_documents(self, what: str, documents: float, variance: float | None) -> None:
        """Set both.

        Raises:
            ConfigError: A number that cannot be used; calls the prior that of ``what``.
        """
        self._variance_is_given = variance is not None
        self.pseudo_documents = float(documents)
        self.pseudo_variance = NARROW_VARIANCE if variance is None else float(variance)
        if not self.pseudo_documents >= 0 or not self.pseudo_variance > 0:
            raise ConfigError(
                f"the prior of {what} has pseudo_documents={self.pseudo_documents} and "
                f"pseudo_variance={self.pseudo_variance}; expected >= 0 and > 0"
            )

    def _should_check(self, info: Tensor) -> bool:
        """Whether to ask what a factorisation in the M-step came to.

        With a prior of some weight it succeeds unless the sums are not finite, or beyond all
        reason, and then parameters are not finite either: not worth waiting for a GPU.
        """
        return self.pseudo_documents * self.pseudo_variance < 1.0 or not info.is_cuda

    def expect_draws(self) -> dict[str, float]:
        """See :meth:`DocumentPrior.expect_draws`; a wide ``pseudo_variance``."""
        # It may have been set since the prior was made, which is a choice too.
        if self._variance_is_given or self.pseudo_variance != NARROW_VARIANCE:
            return {}
        self.pseudo_variance = WIDE_VARIANCE
        return {"pseudo_variance": WIDE_VARIANCE}
