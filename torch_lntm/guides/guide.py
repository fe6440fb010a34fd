"""What every guide offers: solved posteriors, a Pyro face, and which models it is for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError, IncompatibleGuideError
from torch_lntm.models import TopicModel
from torch_lntm.solvers.dirichlet import DirichletPosterior
from torch_lntm.solvers.gaussian import GaussianPosterior

Posterior = GaussianPosterior | DirichletPosterior


class Effort(TypedDict):
    """Settings of :meth:`Guide.posterior`: when to stop."""

    tolerance: float
    max_iterations: int


#: The guides by name: every subclass of :class:`Guide` that has one.
GUIDES: dict[str, type[Guide]] = {}


class Guide(ABC):
    """A posterior of every document, solved, not learned.

    Called with a batch it is a Pyro guide: it emits the solved posterior at the sites of the
    model's prior in the plate ``"documents"``. The posterior carries no gradient, so ``SVI``
    differentiates the model's parameters only, at a posterior that follows them.

    Args:
        model: The model whose posterior to solve; its parameters are read at every call.
        tolerance: Where a document has converged; in which unit is for the guide to say.
        max_iterations: Bound on the iterations of each document.

    Raises:
        IncompatibleGuideError: The posterior is not one of this kind of model.
        ConfigError: A setting that is not positive.
    """

    #: The name that :func:`make_guide`, files and the command line know the guide by.
    name: ClassVar[str]
    #: What the posterior's ``objective`` is for this guide.
    objective: ClassVar[str]
    #: The families of models that it is for; see :attr:`torch_lntm.models.DocumentPrior.family`.
    families: ClassVar[tuple[str, ...]]
    #: Whether its posterior starts best from its own ``sites`` instead of its means.
    keeps_sites: ClassVar[bool] = False
    #: Whether its posterior can be solved at other temperatures than 1.
    anneals: ClassVar[bool] = False
    #: Solver settings of an iteration of EM, and of a stochastic step, which revisits documents.
    em_effort: ClassVar[Effort] = {"tolerance": 1e-2, "max_iterations": 50}
    step_effort: ClassVar[Effort] = {"tolerance": 1e-2, "max_iterations": 3}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in vars(cls):
            GUIDES[cls.name] = cls

    def __init__(
        self, model: TopicModel, *, tolerance: float = 1e-4, max_iterations: int = 100
    ) -> None:
        family = getattr(getattr(model, "prior", None), "family", None)
        if family not in self.families:
            raise IncompatibleGuideError(
                f"{type(self).__name__} is not for {family or type(model).__name__}. The models "
                f"and guides that go together: {compatible_pairs()}"
            )
        if not tolerance > 0 or max_iterations < 1:
            raise ConfigError(
                f"guide tolerance is {tolerance} and max_iterations {max_iterations}; expected "
                "both positive"
            )
        self.model = model
        self.tolerance = tolerance
        self.max_iterations = max_iterations

    @abstractmethod
    def posterior(
        self,
        batch: DocumentBatch,
        init: Tensor | None = None,
        *,
        tolerance: float | None = None,
        max_iterations: int | None = None,
    ) -> Posterior:
        """Solve the posterior of every document of a batch at the model's present parameters.

        Args:
            batch: The documents, over the model's vocabulary.
            init: Where to start from: ``(num_docs, latent_dim)`` means, of the prior by default.
                A document's own earlier mean is the best start.
            tolerance: Overrides the guide's.
            max_iterations: Overrides the guide's.

        Returns:
            The posterior; documents that did not converge are marked in ``converged``.

        Raises:
            ConfigError: The batch has another vocabulary size than the model, or ``init`` another
                shape or an entry that cannot be.
            NumericalError: A document's posterior could not be computed; names documents.
        """

    @abstractmethod
    def forward(self, batch: DocumentBatch) -> Tensor:
        """The Pyro guide; returns the sampled eta or theta ``(num_docs, latent_dim)``."""

    def __call__(self, batch: DocumentBatch) -> Tensor:
        """As :meth:`forward`."""
        return self.forward(batch)

    @abstractmethod
    def bound(self, batch: DocumentBatch, posterior: Any = None) -> Tensor:
        """Lower bound on each document's log probability.

        Args:
            batch: The documents.
            posterior: Their posterior, solved here if not given.

        Returns:
            ``(num_docs,)`` float64 nats.
        """

    @abstractmethod
    def word_counts(self, batch: DocumentBatch, posterior: Any) -> Tensor:
        """Expected tokens of each word under each topic, what the topics' M-step takes.

        Args:
            batch: The documents.
            posterior: Their posterior.

        Returns:
            ``(num_topics, num_words)`` float64, summing to about the number of tokens.
        """

    def numbers_per_document(self, entries: float) -> float:
        """Numbers that solving one document takes memory for, to choose the size of batches.

        Args:
            entries: Stored counts of a document, on average.
        """
        return float(self.model.num_topics)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(tolerance={self.tolerance}, "
            f"max_iterations={self.max_iterations})"
        )

    def _start(self, batch: DocumentBatch, init: Tensor | None) -> Tensor:
        """Means to start from, checked."""
        mean = self.model.prior.mean.detach()
        start = mean.expand(batch.num_docs, len(mean))
        if init is None:
            return start
        if init.shape != start.shape or not bool(torch.isfinite(init).all()):
            raise ConfigError(
                f"init of shape {tuple(init.shape)}; expected finite means {tuple(start.shape)}"
            )
        return init.to(start)


def compatible_pairs() -> str:
    """Which guides go with which models, in words."""
    families: dict[str, list[str]] = {}
    for guide in GUIDES.values():
        for family in guide.families:
            families.setdefault(family, []).append(f"{guide.__name__} ({guide.name})")
    return "; ".join(f"{family} with {', '.join(names)}" for family, names in families.items())


#: The posterior of each kind of model, where none is chosen.
DEFAULT_POSTERIORS = {"ctm": "taylor", "lntm": "taylor", "iftm": "factor", "lda": "vb"}


def make_guide(posterior: str | None, model: TopicModel, **settings: Any) -> Guide:
    """The guide of a posterior by its name.

    Args:
        posterior: One of :data:`GUIDES`: ``"taylor"``, ``"laplace"``, ``"blei-lafferty"``,
            ``"khan-bouchard"``, ``"factor"``, ``"vb"`` or ``"ep"``; None for the model's default.
        model: The model.
        **settings: The guide's own, as ``tolerance`` and ``max_iterations``.

    Raises:
        ConfigError: No posterior of that name, or a setting that cannot be used.
        IncompatibleGuideError: The posterior is not one of this kind of model.
    """
    name = DEFAULT_POSTERIORS.get(model.prior.kind) if posterior is None else posterior
    if not isinstance(name, str) or name not in GUIDES:
        raise ConfigError(f"posterior {posterior!r}; expected one of {', '.join(GUIDES)}")
    return GUIDES[name](model, **settings)
