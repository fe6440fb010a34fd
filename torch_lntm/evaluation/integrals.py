"""What a document's probability is an integral over, and how to draw from it, for each model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from torch_lntm.errors import ConfigError, IncompatibleGuideError
from torch_lntm.guides import EPGuide, FactorGuide, Guide, LaplaceGuide
from torch_lntm.models import (
    DirichletPrior,
    IndependentFactorPrior,
    LogisticNormalPrior,
    TopicModel,
)
from torch_lntm.solvers.contrasts import ContrastPrior, log_likelihood_at
from torch_lntm.solvers.dirichlet import DirichletPosterior
from torch_lntm.solvers.dirichlet_proposals import dirichlet_draws, stick_draws
from torch_lntm.solvers.dirichlet_quadrature import dirichlet_marginal_by_quadrature
from torch_lntm.solvers.factor import FactorPosterior, FactorPrior
from torch_lntm.solvers.gaussian import GaussianPosterior, GaussianPrior
from torch_lntm.solvers.importance import draw_noise, noise_log_density
from torch_lntm.solvers.quadrature import marginal_by_quadrature
from torch_lntm.solvers.source_contrasts import SourceContrasts

Proposal = Literal["student_t", "gaussian", "sticks", "dirichlet"]


class DocumentIntegral(ABC):
    """The integral over a document's latent variables that its probability is."""

    #: The proposals that draws can come from; the first is the default.
    proposals: ClassVar[tuple[Proposal, ...]]
    #: The guide whose posterior the draws are around by default.
    default_guide: ClassVar[type[Guide]]
    #: Whether there is :meth:`quadrature`, for 2 or 3 topics.
    has_quadrature: ClassVar[bool] = True

    @abstractmethod
    def proper(self, posterior: Any) -> Tensor:
        """Whether each document's posterior can be drawn from, ``(num_docs,)`` bool."""

    @abstractmethod
    def log_weights(
        self,
        posterior: Any,
        row: int,
        words: Tensor,
        counts: Tensor,
        num_samples: int,
        key: tuple[int, int],
    ) -> Tensor:
        """Log p(document, latent) − log q(latent) at draws of the proposal q.

        Args:
            posterior: What the guide made of the document's batch.
            row: The document's place in it.
            words: ``(nnz, num_topics)`` probabilities of its words under each topic.
            counts: ``(nnz,)`` their counts.
            num_samples: Draws.
            key: What the draws are a function of.

        Returns:
            ``(num_samples,)`` float64 nats.
        """

    def quadrature(
        self, posterior: Any, row: int, words: Tensor, counts: Tensor, num_points: int
    ) -> tuple[Tensor, Tensor]:
        """The log of the integral by quadrature, and its numerical error (scalars, nats).

        Args:
            posterior: What the guide made of the document's batch, which places the grid.
            row: The document's place in it.
            words: ``(nnz, num_topics)`` probabilities of its words under each topic.
            counts: ``(nnz,)`` their counts.
            num_points: Points on each axis, odd.
        """
        raise NotImplementedError

    @abstractmethod
    def describe(self) -> str:
        """The proposal, in words that follow the guide's name."""


class NormalIntegral(DocumentIntegral):
    """Over the contrasts of eta, which has a normal prior.

    Args:
        prior: The prior.
        degrees_of_freedom: Of a Student-t with the posterior's centre and scale as the proposal;
            infinite for the normal posterior itself.
    """

    proposals = ("student_t", "gaussian")
    default_guide = LaplaceGuide

    def __init__(self, prior: GaussianPrior, degrees_of_freedom: float) -> None:
        self.degrees_of_freedom = degrees_of_freedom
        self._space = ContrastPrior(prior)

    def proper(self, posterior: GaussianPosterior) -> Tensor:
        """See :meth:`DocumentIntegral.proper`."""
        tril = posterior.scale_tril
        finite = torch.isfinite(posterior.mean).all(1) & torch.isfinite(tril).all(2).all(1)
        return finite & (tril.diagonal(dim1=-2, dim2=-1) > 0).all(1)

    def log_weights(
        self,
        posterior: GaussianPosterior,
        row: int,
        words: Tensor,
        counts: Tensor,
        num_samples: int,
        key: tuple[int, int],
    ) -> Tensor:
        """See :meth:`DocumentIntegral.log_weights`."""
        loc, tril = self._project(posterior, row)
        w, log_q = _normal_draws(loc, tril, num_samples, key, self.degrees_of_freedom)
        likelihood = log_likelihood_at(self._space.logits(w), words, counts)
        return likelihood + noise_log_density(w) - log_q

    def quadrature(
        self, posterior: GaussianPosterior, row: int, words: Tensor, counts: Tensor, num_points: int
    ) -> tuple[Tensor, Tensor]:
        """See :meth:`DocumentIntegral.quadrature`."""
        loc, tril = self._project(posterior, row)
        return marginal_by_quadrature(self._space, loc, tril, words, counts, num_points)

    def _project(self, posterior: GaussianPosterior, row: int) -> tuple[Tensor, Tensor]:
        rows = slice(row, row + 1)
        loc, tril = self._space.project(posterior.mean[rows], posterior.scale_tril[rows])
        return loc[0], tril[0]

    def describe(self) -> str:
        """See :meth:`DocumentIntegral.describe`."""
        return _family(self.degrees_of_freedom)


class SourceIntegral(DocumentIntegral):
    """Over Laplace sources and the contrasts of eta.

    Draws are of both together, around the means of a :class:`~torch_lntm.guides.FactorGuide`'s
    posterior but not with its covariance: under the mean field neither sources and eta nor eta's
    components move together, under :meth:`SourceContrasts.approximate` they do. A joint normal or
    Student-t may be read either way round, as sources and then eta given them (*Putthividhya et
    al. 2009, §3.2.1*) or as eta first. There is no normal proposal: against Laplace sources its
    weights never have a finite variance.

    Args:
        prior: The prior.
        degrees_of_freedom: Of the Student-t.
    """

    proposals = ("student_t",)
    default_guide = FactorGuide
    has_quadrature = False

    def __init__(self, prior: FactorPrior, degrees_of_freedom: float) -> None:
        self.degrees_of_freedom = degrees_of_freedom
        self._space = SourceContrasts(prior)

    def proper(self, posterior: FactorPosterior) -> Tensor:
        """See :meth:`DocumentIntegral.proper`."""
        # A sum is finite only where all of its terms are.
        second = self._second_moment(posterior)
        total = posterior.mean.sum(1).double() + posterior.source_mean.sum(1) + second.sum(1)
        return torch.isfinite(total) & (second > 0).all(1)

    def log_weights(
        self,
        posterior: FactorPosterior,
        row: int,
        words: Tensor,
        counts: Tensor,
        num_samples: int,
        key: tuple[int, int],
    ) -> Tensor:
        """See :meth:`DocumentIntegral.log_weights`."""
        loc, tril = self._space.approximate(
            posterior.mean[row].double(),
            posterior.source_mean[row].double(),
            self._second_moment(posterior)[row].sqrt(),
            words,
            counts,
        )
        u, log_q = _normal_draws(loc, tril, num_samples, key, self.degrees_of_freedom)
        likelihood = log_likelihood_at(self._space.logits(u), words, counts)
        return likelihood + self._space.log_density(u) - log_q

    @staticmethod
    def _second_moment(posterior: FactorPosterior) -> Tensor:
        """E s² ``(num_docs, num_sources)``, float64."""
        return posterior.source_mean.double().square() + posterior.source_root.square().sum(-1)

    def describe(self) -> str:
        """See :meth:`DocumentIntegral.describe`."""
        return f"{_family(self.degrees_of_freedom)} of sources and eta"


class DirichletIntegral(DocumentIntegral):
    """Over theta, which has a Dirichlet prior.

    Args:
        concentration: ``(num_topics,)`` float64 of the prior.
        proposal: ``"dirichlet"``, the posterior itself, or ``"sticks"``, a mixture around it in
            which every topic may be absent.
    """

    proposals = ("sticks", "dirichlet")
    default_guide = EPGuide

    def __init__(self, concentration: Tensor, proposal: Proposal) -> None:
        self.concentration = concentration
        self.proposal = proposal

    def proper(self, posterior: DirichletPosterior) -> Tensor:
        """See :meth:`DocumentIntegral.proper`."""
        return (torch.isfinite(posterior.gamma) & (posterior.gamma > 0)).all(1)

    def log_weights(
        self,
        posterior: DirichletPosterior,
        row: int,
        words: Tensor,
        counts: Tensor,
        num_samples: int,
        key: tuple[int, int],
    ) -> Tensor:
        """See :meth:`DocumentIntegral.log_weights`."""
        draws = stick_draws if self.proposal == "sticks" else dirichlet_draws
        gamma = posterior.gamma[row].double()
        log_theta, log_ratio = draws(self.concentration, gamma, num_samples, key)
        return log_likelihood_at(log_theta, words, counts) + log_ratio

    def quadrature(
        self,
        posterior: DirichletPosterior,
        row: int,
        words: Tensor,
        counts: Tensor,
        num_points: int,
    ) -> tuple[Tensor, Tensor]:
        """See :meth:`DocumentIntegral.quadrature`."""
        gamma = posterior.gamma[row].double()
        return dirichlet_marginal_by_quadrature(
            self.concentration, gamma, words, counts, num_points
        )

    def describe(self) -> str:
        """See :meth:`DocumentIntegral.describe`."""
        return "stick-breaking mixture" if self.proposal == "sticks" else "Dirichlet"


def document_integral(
    model: TopicModel, proposal: Proposal | None, degrees_of_freedom: float
) -> DocumentIntegral:
    """The integral of a model's documents at its present parameters.

    Args:
        model: The model.
        proposal: What to draw from; the default of the model's kind if None.
        degrees_of_freedom: Of a Student-t.

    Raises:
        ConfigError: The proposal is not one for this kind of model.
        IncompatibleGuideError: A prior that there is no integral for.
    """
    prior = model.prior
    if isinstance(prior, DirichletPrior):
        kind: type[DocumentIntegral] = DirichletIntegral
    elif isinstance(prior, IndependentFactorPrior) and prior.source == "laplace":
        kind = SourceIntegral
    elif isinstance(prior, IndependentFactorPrior | LogisticNormalPrior):
        kind = NormalIntegral
    else:
        raise IncompatibleGuideError(
            f"log_likelihood is not for a {type(prior).__name__}; expected a model of "
            "lntm.models.ctm, iftm or lda"
        )
    chosen = proposal or kind.proposals[0]
    if chosen not in kind.proposals:
        raise ConfigError(
            f"proposal is {proposal!r}; expected one of {', '.join(kind.proposals)} for "
            f"{prior.family} (student_t is for ctm and iftm, gaussian for both but with Laplace "
            "sources, sticks and dirichlet for lda)"
        )
    nu = degrees_of_freedom if chosen == "student_t" else torch.inf
    if isinstance(prior, DirichletPrior):
        return DirichletIntegral(prior.concentration.detach().double(), chosen)
    if kind is SourceIntegral:
        assert isinstance(prior, IndependentFactorPrior)
        return SourceIntegral(prior.solver_prior(), nu)
    return NormalIntegral(prior.solver_prior().marginal(), nu)


def _normal_draws(
    loc: Tensor, tril: Tensor, num_samples: int, key: tuple[int, int], degrees_of_freedom: float
) -> tuple[Tensor, Tensor]:
    """Draws ``(num_samples, dim)`` of a normal or Student-t, and their log densities."""
    noise = draw_noise(num_samples, len(loc), key, degrees_of_freedom).to(loc.device)
    log_density = noise_log_density(noise, degrees_of_freedom) - tril.diagonal().log().sum()
    return loc + noise @ tril.mT, log_density


def _family(degrees_of_freedom: float) -> str:
    if degrees_of_freedom == torch.inf:
        return "normal"
    return f"Student-t({degrees_of_freedom:g})"
