"""Guides of the generative aspect model: variational Bayes and expectation propagation."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal, get_args

import pyro
import torch
from pyro.distributions import Dirichlet
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.guides.guide import Guide
from torch_lntm.kernels import expected_counts
from torch_lntm.models import DirichletPrior, TopicModel
from torch_lntm.solvers.dirichlet import DirichletPosterior, expected_log_theta
from torch_lntm.solvers.ep import ep
from torch_lntm.solvers.second_order import second_order_word_counts
from torch_lntm.solvers.vb import dirichlet_bound, vb

TopicsUpdate = Literal["bound", "second-order"]


class _AspectGuide(Guide):
    """A Dirichlet posterior of every document's theta; see :class:`Guide`.

    Args:
        model: The model whose posterior to solve; its parameters are read at every call.
        topics_update: Expected word counts of the topics' M-step: ``"bound"`` (*Minka & Lafferty
            2002, eq. 27*, which maximises VB's bound) or ``"second-order"`` (*eqs 32–34*).
        tolerance: Where a document has converged; see the class.
        max_iterations: Bound on the iterations of each document.

    Raises:
        IncompatibleGuideError: The model's prior is not Dirichlet.
        ConfigError: A setting that cannot be used.
    """

    families = ("lda",)

    def __init__(
        self,
        model: TopicModel,
        *,
        topics_update: TopicsUpdate,
        tolerance: float,
        max_iterations: int,
    ) -> None:
        super().__init__(model, tolerance=tolerance, max_iterations=max_iterations)
        if topics_update not in get_args(TopicsUpdate):
            raise ConfigError(
                f"topics_update {topics_update!r}; expected one of "
                f"{', '.join(get_args(TopicsUpdate))}"
            )
        self.topics_update = topics_update

    @abstractmethod
    def posterior(
        self,
        batch: DocumentBatch,
        init: Tensor | None = None,
        *,
        tolerance: float | None = None,
        max_iterations: int | None = None,
    ) -> DirichletPosterior: ...

    def _concentration(self) -> Tensor:
        assert isinstance(self.model.prior, DirichletPrior)
        return self.model.prior.concentration.detach()

    def forward(self, batch: DocumentBatch) -> Tensor:
        """The Pyro guide; returns the sampled theta ``(num_docs, num_topics)``."""
        gamma = self.posterior(batch).gamma.to(self.model.dtype)
        with pyro.plate("documents", batch.corpus_size, subsample=batch.index):
            return pyro.sample("theta", Dirichlet(gamma))

    @torch.no_grad()
    def bound(self, batch: DocumentBatch, posterior: DirichletPosterior | None = None) -> Tensor:
        """Lower bound on each document's log probability (*Minka & Lafferty 2002, eqs 6–9*).

        That of variational Bayes, for any Dirichlet; see
        :func:`torch_lntm.solvers.vb.dirichlet_bound`.

        Args:
            batch: The documents.
            posterior: Their posterior, solved here if not given.

        Returns:
            ``(num_docs,)`` float64 nats.
        """
        batch = self.model.check_batch(batch)
        if posterior is None:
            posterior = self.posterior(batch)
        return dirichlet_bound(
            batch, self.model.topics.probs, self._concentration(), posterior.gamma
        )

    @torch.no_grad()
    def word_counts(self, batch: DocumentBatch, posterior: DirichletPosterior) -> Tensor:
        """Expected tokens of each word under each topic; see :meth:`Guide.word_counts`."""
        batch = self.model.check_batch(batch)
        topics = self.model.topics.probs
        if self.topics_update == "second-order":
            return second_order_word_counts(posterior.gamma, topics, batch).double()
        expected = expected_log_theta(posterior.gamma)
        weights = torch.softmax(expected, -1).to(batch.counts)
        found = expected_counts(weights, topics, batch, word_counts=True)
        assert found.word_counts is not None
        return found.word_counts.double()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(topics_update={self.topics_update!r}, "
            f"tolerance={self.tolerance}, max_iterations={self.max_iterations})"
        )


class DirichletGuide(_AspectGuide):
    """Variational Bayes (*Minka & Lafferty 2002, eqs 10–11; Blei et al. 2003*).

    A lower bound on log p(w), and its optimum. It is too narrow, and EM with it makes the topics
    too different from each other; see :class:`EPGuide`.

    Args:
        model: The model whose posterior to solve; its parameters are read at every call.
        topics_update: Expected word counts of the topics' M-step: ``"bound"`` (*Minka & Lafferty
            2002, eq. 27*, which maximises this guide's bound) or ``"second-order"`` (*eqs 32–34*).
        tolerance: Where a document has converged; see :func:`torch_lntm.solvers.vb.vb`.
        max_iterations: Bound on the iterations of each document.

    Raises:
        IncompatibleGuideError: The model's prior is not Dirichlet.
        ConfigError: A setting that cannot be used.
    """

    name = "vb"
    objective = "variational bound on log p(w)"

    def __init__(
        self,
        model: TopicModel,
        *,
        topics_update: TopicsUpdate = "bound",
        tolerance: float = 1e-4,
        max_iterations: int = 1000,
    ) -> None:
        super().__init__(
            model, topics_update=topics_update, tolerance=tolerance, max_iterations=max_iterations
        )

    @torch.no_grad()
    def posterior(
        self,
        batch: DocumentBatch,
        init: Tensor | None = None,
        *,
        tolerance: float | None = None,
        max_iterations: int | None = None,
    ) -> DirichletPosterior:
        """Solve the posterior of every document; see :meth:`Guide.posterior`.

        ``init`` holds means of theta, positive.
        """
        batch = self.model.check_batch(batch)
        start = self._start(batch, init)
        if not bool((start > 0).all()):
            raise ConfigError("init has entries that are not positive; expected means of theta")
        return vb(
            batch,
            self.model.topics.probs,
            self._concentration(),
            start=start,
            tolerance=self.tolerance if tolerance is None else tolerance,
            max_iterations=self.max_iterations if max_iterations is None else max_iterations,
        )


class EPGuide(_AspectGuide):
    """Expectation propagation (*Minka & Lafferty 2002, §4.2, eqs 12–25*).

    Mean and variance of theta match those of the exact posterior term by term. No bound, but its
    evidence and its mean are closer to the exact ones than variational Bayes', and EM with it finds
    topics that are no more different than the documents say.

    Args:
        model: The model whose posterior to solve; its parameters are read at every call.
        topics_update: Expected word counts of the topics' M-step: ``"second-order"`` (*Minka &
            Lafferty 2002, eqs 32–34*) or ``"bound"`` (*eq. 27*).
        tolerance: Where a document has converged; see :func:`torch_lntm.solvers.ep.ep`.
        max_iterations: Bound on the passes over each document's words.

    Raises:
        IncompatibleGuideError: The model's prior is not Dirichlet.
        ConfigError: A setting that cannot be used.
    """

    name = "ep"
    objective = "expectation propagation's estimate of log p(w)"
    keeps_sites = True

    def __init__(
        self,
        model: TopicModel,
        *,
        topics_update: TopicsUpdate = "second-order",
        tolerance: float = 1e-4,
        max_iterations: int = 100,
    ) -> None:
        super().__init__(
            model, topics_update=topics_update, tolerance=tolerance, max_iterations=max_iterations
        )

    @torch.no_grad()
    def posterior(
        self,
        batch: DocumentBatch,
        init: Tensor | None = None,
        *,
        tolerance: float | None = None,
        max_iterations: int | None = None,
    ) -> DirichletPosterior:
        """Solve the posterior of every document; see :meth:`Guide.posterior`.

        Args:
            batch: The documents, over the model's vocabulary.
            init: ``(nnz, num_topics)`` the ``sites`` of an earlier posterior of the same
                documents; none by default.
            tolerance: Overrides the guide's.
            max_iterations: Overrides the guide's.

        Returns:
            The posterior, with its ``sites``.

        Raises:
            ConfigError: The batch has another vocabulary size than the model, or ``init`` another
                shape or an entry that is not finite.
        """
        batch = self.model.check_batch(batch)
        expected = (batch.nnz, self.model.num_topics)
        if init is not None and (
            tuple(init.shape) != expected or not bool(torch.isfinite(init).all())
        ):
            raise ConfigError(
                f"init of shape {tuple(init.shape)}; expected finite sites {expected}, a row for "
                "each stored count"
            )
        return ep(
            batch,
            self.model.topics.probs,
            self._concentration(),
            init=init,
            tolerance=self.tolerance if tolerance is None else tolerance,
            max_iterations=self.max_iterations if max_iterations is None else max_iterations,
        )

    def numbers_per_document(self, entries: float) -> float:
        """A row of numbers for each stored count."""
        return (entries + 1.0) * self.model.num_topics
