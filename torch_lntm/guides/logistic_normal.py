"""Guides for models with a logistic-normal prior: Taylor, Laplace, Blei–Lafferty, Khan–Bouchard."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pyro
import torch
from pyro.distributions import MultivariateNormal, Normal, TorchDistribution
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError, IncompatibleGuideError
from torch_lntm.models import LogisticNormalPrior, TopicModel
from torch_lntm.solvers.blei_lafferty import blei_lafferty
from torch_lntm.solvers.bounds import gaussian_bound
from torch_lntm.solvers.gaussian import GaussianPosterior, GaussianPrior
from torch_lntm.solvers.khan_bouchard import khan_bouchard
from torch_lntm.solvers.laplace import laplace
from torch_lntm.solvers.taylor import taylor


class LogisticNormalGuide:
    """A normal posterior of every document's eta, solved, not learned.

    Called with a batch it is a Pyro guide: it emits the solved posterior at the site ``"eta"`` in
    the plate ``"documents"``. The posterior carries no gradient, so ``SVI`` differentiates the
    model's parameters only, at a posterior that follows them.

    Args:
        model: The model whose posterior to solve; its parameters are read at every call.
        tolerance: Nats at which a document has converged: twice what a Newton step would still gain
            (Taylor, Laplace), or what the last round gained (Blei–Lafferty, Khan–Bouchard).
        max_iterations: Bound on the iterations of each document.

    Raises:
        IncompatibleGuideError: The model's prior is not logistic-normal.
        ConfigError: A setting that is not positive.
    """

    name: ClassVar[str]
    #: What :attr:`GaussianPosterior.objective` is for this guide.
    objective: ClassVar[str]
    _solve: ClassVar[Callable[..., GaussianPosterior]]

    def __init__(
        self, model: TopicModel, *, tolerance: float = 1e-4, max_iterations: int = 100
    ) -> None:
        prior = getattr(model, "prior", None)
        if not isinstance(prior, LogisticNormalPrior):
            raise IncompatibleGuideError(
                f"{type(self).__name__} needs a model with a LogisticNormalPrior; got "
                f"{type(prior if prior is not None else model).__name__}. The models and guides "
                f"that go together: ctm with {', '.join(g.__name__ for g in GUIDES.values())}"
            )
        if not tolerance > 0 or max_iterations < 1:
            raise ConfigError(
                f"guide tolerance is {tolerance} and max_iterations {max_iterations}; expected "
                "both positive"
            )
        self.model = model
        self.tolerance = tolerance
        self.max_iterations = max_iterations

    @torch.no_grad()
    def posterior(
        self,
        batch: DocumentBatch,
        init: Tensor | None = None,
        *,
        temperature: float = 1.0,
        topic_temperature: float = 1.0,
        tolerance: float | None = None,
        max_iterations: int | None = None,
    ) -> GaussianPosterior:
        """Solve the posterior of every document of a batch at the model's present parameters.

        Args:
            batch: The documents, over the model's vocabulary.
            init: ``(num_docs, latent_dim)`` means to start from; the prior mean by default. Any
                start leads to a local mode; a document's own earlier mean is the best one.
            temperature: Inverse temperature of deterministic annealing (*Ahmed & Xing 2007,
                §3.2*); 1 is the posterior itself.
            topic_temperature: The topics' own inverse temperature, φ^T.
            tolerance: Overrides the guide's.
            max_iterations: Overrides the guide's.

        Returns:
            The posterior; documents that did not converge are marked in ``converged``.

        Raises:
            ConfigError: The batch has another vocabulary size than the model, or ``init`` another
                shape or an entry that is not finite.
            NumericalError: A document's posterior could not be computed; names documents.
        """
        batch = self.model.check_batch(batch)
        parameters = self.model.prior
        prior = GaussianPrior(
            parameters.loc.detach(), parameters.scale_tril.detach().double(), parameters.anchored
        )
        topics = self.model.topics.probs
        if topic_temperature != 1.0:
            topics = topics.pow(topic_temperature)
        start = prior.loc.expand(batch.num_docs, prior.dim)
        if init is not None:
            if init.shape != start.shape or not bool(torch.isfinite(init).all()):
                raise ConfigError(
                    f"init of shape {tuple(init.shape)}; expected finite means {tuple(start.shape)}"
                )
            start = init.to(start)
        return type(self)._solve(
            batch,
            topics,
            prior,
            start=start,
            tolerance=self.tolerance if tolerance is None else tolerance,
            max_iterations=self.max_iterations if max_iterations is None else max_iterations,
            temperature=temperature,
        )

    def forward(self, batch: DocumentBatch) -> Tensor:
        """The Pyro guide; returns the sampled eta ``(num_docs, latent_dim)``."""
        posterior = self.posterior(batch)
        q: TorchDistribution
        if posterior.std is not None:
            q = Normal(posterior.mean, posterior.std).to_event(1)
        else:
            q = MultivariateNormal(posterior.mean, scale_tril=posterior.scale_tril)
        with pyro.plate("documents", batch.corpus_size, subsample=batch.index):
            return pyro.sample("eta", q)

    __call__ = forward

    @torch.no_grad()
    def bound(
        self, batch: DocumentBatch, posterior: GaussianPosterior | None = None, kind: str = "tilted"
    ) -> Tensor:
        """Lower bound on each document's log probability.

        Args:
            batch: The documents.
            posterior: Their posterior, solved here if not given.
            kind: ``"tangent"`` or ``"tilted"``, the bound on the expected log normaliser.

        Returns:
            ``(num_docs,)`` float64 nats.
        """
        batch = self.model.check_batch(batch)
        if posterior is None:
            posterior = self.posterior(batch)
        return gaussian_bound(batch, self.model.topics.probs, posterior, kind)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(tolerance={self.tolerance}, "
            f"max_iterations={self.max_iterations})"
        )


class TaylorGuide(LogisticNormalGuide):
    """Full covariance by a second-order Taylor expansion (*Ahmed & Xing 2007, eqs 8–12*).

    The fastest, and the default for training. Its covariance is too narrow, since it leaves out
    the uncertainty of the topic assignments; see :class:`LaplaceGuide`.
    """

    name = "taylor"
    objective = "Laplace approximation of log p(w) with the complete-data information"
    _solve = staticmethod(taylor)


class LaplaceGuide(LogisticNormalGuide):
    """The same mode as Taylor's with the observed information (*Roberts et al. 2016*)."""

    name = "laplace"
    objective = "Laplace approximation of log p(w)"
    _solve = staticmethod(laplace)


class BleiLaffertyGuide(LogisticNormalGuide):
    """Diagonal covariance on the tangent bound (*Ahmed & Xing 2007, §3.3, eqs 13–15*)."""

    name = "blei-lafferty"
    objective = "tangent bound on log p(w)"
    _solve = staticmethod(blei_lafferty)


class KhanBouchardGuide(LogisticNormalGuide):
    """Full covariance on the tangent bound (*Khan & Bouchard 2009, eqs 33–38*)."""

    name = "khan-bouchard"
    objective = "tangent bound on log p(w)"
    _solve = staticmethod(khan_bouchard)


GUIDES: dict[str, type[LogisticNormalGuide]] = {
    guide.name: guide for guide in (TaylorGuide, LaplaceGuide, BleiLaffertyGuide, KhanBouchardGuide)
}


def make_guide(
    posterior: str, model: TopicModel, *, tolerance: float = 1e-4, max_iterations: int = 100
) -> LogisticNormalGuide:
    """The guide of a posterior by its name.

    Args:
        posterior: ``"taylor"``, ``"laplace"``, ``"blei-lafferty"`` or ``"khan-bouchard"``.
        model: The model.
        tolerance: Nats left to gain at which a document has converged.
        max_iterations: Bound on the iterations of each document.

    Raises:
        ConfigError: No posterior of that name.
    """
    if not isinstance(posterior, str) or posterior not in GUIDES:
        raise ConfigError(f"posterior {posterior!r}; expected one of {', '.join(GUIDES)}")
    return GUIDES[posterior](model, tolerance=tolerance, max_iterations=max_iterations)
