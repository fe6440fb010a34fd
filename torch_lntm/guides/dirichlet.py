"""Guides of the generative aspect model: variational Bayes and expectation propagation."""

from __future__ import annotations

from typing import ClassVar, Literal, cast, get_args

import pyro
import torch
from pyro.distributions import Dirichlet
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError, require_one
from torch_lntm.guides.guide import Guide
from torch_lntm.latents import GammaSpace, LatentSpace
from torch_lntm.models import TopicModel
from torch_lntm.posteriors import DirichletPosterior
from torch_lntm.solvers.ep import ep
from torch_lntm.solvers.options import DEFAULTS, SolveOptions
from torch_lntm.solvers.vb import dirichlet_bound, second_order_word_counts, vb

TopicsUpdate = Literal["bound", "second-order"]


class _AspectGuide(Guide[DirichletPosterior]):
    """Dirichlet posterior of every document's theta; see :class:`Guide`.

    Args:
        model: The model. Its parameters are read at every call.
        topics_update: Expected word counts for the topics' M-step: ``"bound"`` (*Minka & Lafferty
            2002, eq. 27*, which maximises VB's bound) or ``"second-order"`` (*eqs 32–34*).
        tolerance: Convergence tolerance of a document; see the subclass.
        max_iterations: Bound on the iterations of each document.

    Raises:
        IncompatibleGuideError: The model's prior is not Dirichlet.
        ConfigError: A setting is out of range.
    """

    space_type = GammaSpace
    needs = "a Dirichlet prior of theta"

    #: Defaults of ``topics_update`` and ``max_iterations``.
    defaults: ClassVar[tuple[TopicsUpdate, int]]

    def __init__(
        self,
        model: TopicModel,
        *,
        topics_update: TopicsUpdate | None = None,
        tolerance: float = 1e-4,
        max_iterations: int | None = None,
    ) -> None:
        default_update, most = self.defaults
        iterations = most if max_iterations is None else max_iterations
        super().__init__(model, tolerance=tolerance, max_iterations=iterations)
        topics_update = default_update if topics_update is None else topics_update
        require_one(get_args(TopicsUpdate), topics_update=topics_update)
        self.topics_update = topics_update

    def forward(self, batch: DocumentBatch) -> Tensor:
        """Emit the posterior as a Pyro guide.

        Returns:
            The draw of theta ``(num_docs, num_topics)``.
        """
        gamma = self._cached_posterior(batch).gamma.to(self.model.dtype)
        with self.model.plate(batch):
            return pyro.sample("theta", Dirichlet(gamma))

    @torch.no_grad()
    def bound(self, batch: DocumentBatch, posterior: DirichletPosterior | None = None) -> Tensor:
        """Lower bound on each document's log probability (*Minka & Lafferty 2002, eqs 6–9*).

        This is the bound of variational Bayes, which holds for any Dirichlet posterior; see
        :func:`torch_lntm.solvers.vb.dirichlet_bound`.

        Args:
            batch: The documents.
            posterior: Their posterior. Defaults to a new solution.

        Returns:
            ``(num_docs,)`` float64 nats.
        """
        batch = self.model.check_batch(batch)
        if posterior is None:
            posterior = self.posterior(batch)
        batch, offset = self.as_independent(batch, posterior)
        topics, space = self.model.topics.probs, cast(GammaSpace, self.model.prior.space(batch))
        return dirichlet_bound(batch, topics, space.concentration, posterior.gamma) + offset

    @torch.no_grad()
    def word_counts(
        self,
        batch: DocumentBatch,
        posterior: DirichletPosterior,
        options: SolveOptions = DEFAULTS,
    ) -> Tensor:
        """Expected tokens of each word under each topic; see :meth:`Guide.word_counts`."""
        if self.topics_update == "bound":
            return super().word_counts(batch, posterior, options)
        # The sums below read any column, so they would not notice another vocabulary.
        batch, _ = self.as_independent(self.model.check_batch(batch), posterior)
        return second_order_word_counts(posterior.gamma, self.model.topics.probs, batch)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(topics_update={self.topics_update!r}, "
            f"tolerance={self.tolerance}, max_iterations={self.max_iterations})"
        )


class DirichletGuide(_AspectGuide):
    """Dirichlet posterior by variational Bayes (*Minka & Lafferty 2002, eqs 10–11*).

    This is the method of *Blei et al. 2003*, whose posterior maximises a lower bound on log p(w).
    It is too narrow, so that topics fitted with it differ too much from each other;
    :class:`EPGuide` avoids that.

    Args:
        model: The model. Its parameters are read at every call.
        topics_update: Expected word counts for the topics' M-step: ``"bound"`` (*Minka & Lafferty
            2002, eq. 27*, which maximises this guide's bound) or ``"second-order"`` (*eqs 32–34*).
            Defaults to ``"bound"``.
        tolerance: Convergence tolerance of a document; see :func:`torch_lntm.solvers.vb.vb`.
        max_iterations: Bound on the iterations of each document. Defaults to 1000.

    Raises:
        IncompatibleGuideError: The model's prior is not Dirichlet.
        ConfigError: A setting is out of range.

    Example:
        >>> lda = lntm.models.lda(10, corpus)
        >>> lntm.guides.DirichletGuide(lda).posterior(batch)
        DirichletPosterior(5 documents, 10 topics, 0 not converged)
    """

    name = "vb"
    defaults = ("bound", 1000)
    objective = "variational bound on log p(w)"

    def default_start(self, batch: DocumentBatch, space: LatentSpace) -> Tensor:
        """Equal proportions, because a topic that starts near 0 would stay there."""
        size, model = (batch.num_docs, space.num_topics), self.model
        return torch.full(size, 1.0 / space.num_topics, dtype=model.dtype, device=model.device)

    def _geometric_mean(self, posterior: DirichletPosterior) -> Tensor:
        return posterior.expected_log_theta().exp()

    def _solve(
        self, batch: DocumentBatch, topics: Tensor, space: GammaSpace, options: SolveOptions
    ) -> DirichletPosterior:
        if not bool((options.start > 0).all()):
            raise ConfigError("init has entries that are not positive; expected means of theta")
        return vb(batch, topics, space.concentration, options)


class EPGuide(_AspectGuide):
    """Dirichlet posterior by expectation propagation (*Minka & Lafferty 2002, §4.2, eqs 12–25*).

    Each word's factor of the exact posterior is approximated so that mean and variance of theta
    match. The objective estimates log p(w) and may lie above or below it. Both it and the posterior
    mean are closer to the exact values than under variational Bayes, and EM with this guide does
    not exaggerate the differences between topics.

    It suits models of few topics. With hundreds of topics and short documents, many documents need
    more than the default number of passes and some never converge, as ``converged`` tells. Their
    second-order word counts can then fall noticeably short of the documents' tokens.

    Args:
        model: The model. Its parameters are read at every call.
        topics_update: Expected word counts for the topics' M-step: ``"second-order"`` (*Minka &
            Lafferty 2002, eqs 32–34*) or ``"bound"`` (*eq. 27*). Defaults to ``"second-order"``.
        tolerance: Convergence tolerance of a document; see :func:`torch_lntm.solvers.ep.ep`.
        max_iterations: Bound on the passes over each document's words. Defaults to 100.

    Raises:
        IncompatibleGuideError: The model's prior is not Dirichlet.
        ConfigError: A setting is out of range.

    Example:
        >>> lda = lntm.models.lda(10, corpus)
        >>> lntm.guides.EPGuide(lda).posterior(batch).theta_mean().shape
        torch.Size([5, 10])
    """

    name = "ep"
    defaults = ("second-order", 100)
    objective = "expectation propagation's estimate of log p(w)"
    warm_start_rows = "entries"

    def default_start(self, batch: DocumentBatch, space: LatentSpace) -> Tensor:
        """The prior, with all words' factors at 1."""
        return batch.counts.new_zeros(batch.nnz, space.num_topics)

    def _solve(
        self, batch: DocumentBatch, topics: Tensor, space: GammaSpace, options: SolveOptions
    ) -> DirichletPosterior:
        return ep(batch, topics, space.concentration, options)

    def memory_per_document(self, entries: float) -> float:
        """See :meth:`Guide.memory_per_document`. A number per topic for each stored count."""
        return (entries + 1.0) * self.model.num_topics
