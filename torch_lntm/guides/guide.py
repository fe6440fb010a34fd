"""What every guide offers: solved posteriors, a Pyro face, and which priors it is for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar, Generic, TypedDict

import torch
from torch import Tensor
from typing_extensions import TypeVar

from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError, IncompatibleGuideError
from torch_lntm.guides.memory import WarmStarts
from torch_lntm.guides.surrogates import solve_by_surrogates
from torch_lntm.kernels import expected_word_counts, surrogate, word_probabilities
from torch_lntm.kernels.uncompiled import uncompiled
from torch_lntm.latents import EtaSpace, LatentSpace
from torch_lntm.models import TopicModel
from torch_lntm.models.model import require_model
from torch_lntm.models.snapshot import Snapshot
from torch_lntm.posteriors import Posterior
from torch_lntm.posteriors.posterior import WarmStartRows


class SolverOptions(TypedDict):
    """Settings of :meth:`Guide.posterior`: when to stop."""

    tolerance: float
    max_iterations: int


#: Numbers for each topic and stored count of a document that solving for its mean holds at a time.
MEAN_TABLES = 8
P = TypeVar("P", bound=Posterior, default=Posterior)
#: The guides by name: every subclass of :class:`Guide` that has one.
GUIDES: dict[str, type[Guide[Any]]] = {}


class Guide(ABC, Generic[P]):
    """A posterior of every document, solved, not learned.

    Called with a batch it is a Pyro guide: it emits the solved posterior at the sites of the
    model's prior in the plate ``"documents"``. The posterior carries no gradient, so ``SVI``
    differentiates the model's parameters only, at a posterior that follows them. From call to call
    it remembers where it left the documents, by their positions in the corpus, and starts there.

    A subclass defines :meth:`_solve`, :meth:`forward` and :meth:`bound`.

    Args:
        model: The model whose posterior to solve; its parameters are read at every call.
        tolerance: Where a document has converged; the subclass says in which unit.
        max_iterations: Bound on the iterations of each document.

    Raises:
        IncompatibleGuideError: The model's prior does not offer what this posterior needs.
        ConfigError: A setting that is not positive.
    """

    #: The name that :func:`make_guide`, files and the command line know the guide by.
    name: ClassVar[str]
    #: What the posterior's ``objective`` is for this guide.
    objective: ClassVar[str]
    #: The kind of latent space that it solves posteriors in, and that in words.
    space_type: ClassVar[type[LatentSpace]]
    needs: ClassVar[str]
    #: What a warm start has a row for.
    warm_start_rows: ClassVar[WarmStartRows] = "documents"
    #: Whether its posterior can be solved at other temperatures than 1.
    anneals: ClassVar[bool] = False
    #: Chains to draw by, in the place of the posterior: a guide has none.
    kept_chains: ClassVar[None] = None
    #: Draws that exist already: a guide has none.
    existing_draws: ClassVar[None] = None
    #: Solver settings of an iteration of EM, and of a stochastic step, which revisits documents.
    em_options: ClassVar[SolverOptions] = {"tolerance": 1e-2, "max_iterations": 50}
    step_options: ClassVar[SolverOptions] = {"tolerance": 1e-2, "max_iterations": 3}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in vars(cls):
            GUIDES[cls.name] = cls

    def __init__(
        self, model: TopicModel, *, tolerance: float = 1e-4, max_iterations: int = 100
    ) -> None:
        require_model(model)
        if not self.fits(model):
            prior = type(model.prior).__name__
            raise IncompatibleGuideError(
                f"{type(self).__name__} needs {self.needs}, which {prior} does not have; "
                f"guides for it: {', '.join(guides_for(model)) or 'none'}"
            )
        _check_options(tolerance, max_iterations)
        self.model = model
        self.tolerance = tolerance
        self.max_iterations = max_iterations
        self._warm_starts = WarmStarts(self.warm_start_rows)
        self._last: tuple[DocumentBatch, Snapshot, P] | None = None

    @classmethod
    def fits(cls, model: TopicModel) -> bool:
        """Whether the model's prior offers what this posterior needs."""
        offered = getattr(getattr(model, "prior", None), "space_type", None)
        return offered is not None and issubclass(offered, cls.space_type)

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
    ) -> P:
        """Solve the posterior of every document of a batch at the model's present parameters.

        Args:
            batch: The documents, over the model's vocabulary.
            init: Where to start: the ``warm_start`` of an earlier posterior of these documents,
                which is the best start, or any means ``(num_docs, latent_dim)``. By default the
                guide's own choice.
            temperature: Inverse temperature of deterministic annealing (*Ahmed & Xing 2007,
                §3.2*); 1 is the posterior itself.
            topic_temperature: The topics' own inverse temperature, φ^T.
            tolerance: Overrides the guide's.
            max_iterations: Overrides the guide's.

        Returns:
            The posterior; documents that did not converge are marked in ``converged``.

        Raises:
            ConfigError: The batch has another vocabulary size than the model, ``init`` another
                shape or an entry that cannot be, a setting is not positive, or this guide does not
                have that temperature.
            NumericalError: A document's posterior could not be computed; names documents.
        """
        return self._run(
            self._solve,
            batch,
            init,
            temperature=temperature,
            topic_temperature=topic_temperature,
            tolerance=tolerance,
            max_iterations=max_iterations,
        )

    @property
    def separates_means(self) -> bool:
        """Whether :meth:`means` costs less than :meth:`posterior`, by num_topics³ a document."""
        return False

    @torch.no_grad()
    def means(self, batch: DocumentBatch, init: Tensor | None = None, **settings: Any) -> Posterior:
        """As :meth:`posterior`, for whoever takes nothing but the means.

        Where these do not depend on the covariances, the covariances are left out, and the
        result is a :class:`~torch_lntm.posteriors.ModePosterior`.

        Args:
            batch: The documents.
            init: Where to start.
            **settings: Those of :meth:`posterior`.
        """
        return self._run(self._solve_means, batch, init, **settings)

    def _run(
        self,
        solve: Callable[..., Any],
        batch: DocumentBatch,
        init: Tensor | None,
        *,
        temperature: float = 1.0,
        topic_temperature: float = 1.0,
        tolerance: float | None = None,
        max_iterations: int | None = None,
    ) -> Any:
        batch = self.model.check_batch(batch)
        if not self.anneals and (temperature, topic_temperature) != (1.0, 1.0):
            raise ConfigError(
                f"{type(self).__name__} has no other temperature than 1; annealing is for "
                f"{', '.join(g.__name__ for g in GUIDES.values() if g.anneals)}"
            )
        tolerance = self.tolerance if tolerance is None else tolerance
        max_iterations = self.max_iterations if max_iterations is None else max_iterations
        _check_options(tolerance, max_iterations)
        with torch.autocast(batch.device.type, enabled=False):
            space = self.model.prior.space(batch)
            if not self.model.words.independent:
                solve = partial(solve_by_surrogates, self, solve, self._solve_means)
            return solve(
                batch,
                self._topics(topic_temperature),
                space,
                start=self._start(batch, space, init),
                temperature=temperature,
                tolerance=tolerance,
                max_iterations=max_iterations,
            )

    @torch.no_grad()
    def word_probabilities(self, batch: DocumentBatch, posterior: Posterior) -> Tensor:
        """Probabilities of the words of a batch under a posterior, as its bound takes them.

        Args:
            batch: The documents.
            posterior: Their posterior.

        Returns:
            ``(nnz,)`` Σ_k t_k φ_kv at the stored counts, in the model's dtype.
        """
        batch = self.model.check_batch(batch)
        weights = self._geometric_mean(posterior).to(batch.counts)
        return word_probabilities(weights, self.model.topics.probs, batch)

    def _geometric_mean(self, posterior: Any) -> Tensor:
        """Weights t ``(num_docs, num_topics)``: log Σ_k t_k φ_kv is at most E log Σ_k theta_k φ_kv.

        Of guides that have such a bound; else the topic weights.
        """
        return posterior.topic_weights()

    @torch.no_grad()
    def as_independent(
        self, batch: DocumentBatch, posterior: Posterior
    ) -> tuple[DocumentBatch, Tensor]:
        """Documents of independent draws in place of documents whose tokens are no such draws.

        Args:
            batch: The documents.
            posterior: Their posterior, where the bound below is tight.

        Returns:
            The documents with surrogate counts (:mod:`torch_lntm.kernels.likelihood`), and
            ``(num_docs,)`` float64 nats: the log likelihood of the surrogates plus the nats bounds
            the log likelihood of the documents from below. Where tokens are independent draws, the
            documents themselves and 0.
        """
        batch = self.model.check_batch(batch)
        if self.model.words.independent:
            return batch, torch.zeros((), dtype=torch.float64, device=batch.device)
        return surrogate(self.model.words, self.word_probabilities(batch, posterior), batch)

    def _require_current(self, batch: DocumentBatch, space: Any) -> None:
        """Refuse a posterior in the coordinates of other parameters than the prior has now.

        Args:
            batch: The documents.
            space: The latent space of their posterior.

        Raises:
            ConfigError: The prior's parameters have changed since.
        """
        now: Any = self.model.prior.space(batch)
        if isinstance(now, EtaSpace) and type(now) is not type(space):
            now = now.marginal()
        names = [one.name for one in fields(now)] if type(now) is type(space) else []
        pairs = [(getattr(now, name), getattr(space, name)) for name in names]
        same = [torch.equal(*pair) for pair in pairs if isinstance(pair[0], Tensor)]
        if not same or not all(same):
            raise ConfigError(
                "the posterior was solved at other parameters of the prior; solve it again by "
                "guide.posterior(batch)"
            )

    @abstractmethod
    def _solve(
        self,
        batch: DocumentBatch,
        topics: Tensor,
        space: Any,
        *,
        start: Tensor | None,
        temperature: float,
        tolerance: float,
        max_iterations: int,
    ) -> P:
        """Solve the posteriors; without gradients, and with all arguments checked.

        Args:
            batch: The documents, on the model's device and in its dtype.
            topics: ``(num_topics, num_words)``, tempered if that was asked for.
            space: The prior's latent space for these documents.
            start: What :meth:`default_start` gave, or the caller's ``init``.
            temperature: Inverse temperature; 1 unless the guide anneals.
            tolerance: Where a document has converged.
            max_iterations: Bound on the iterations of each document, and of each round where tokens
                are no independent draws (:mod:`torch_lntm.guides.surrogates`).
        """

    def _solve_means(self, *args: Any, **settings: Any) -> Posterior:
        """As :meth:`_solve`, for :meth:`means`."""
        return self._solve(*args, **settings)

    def default_start(self, batch: DocumentBatch, space: LatentSpace) -> Tensor | None:
        """Where to start without a warm start: the prior mean ``(num_docs, latent_dim)``."""
        return space.centre.expand(batch.num_docs, -1)

    def _start(
        self, batch: DocumentBatch, space: LatentSpace, init: Tensor | None
    ) -> Tensor | None:
        """The start, checked."""
        if init is None:
            return self.default_start(batch, space)
        init = torch.as_tensor(init)
        rows, what = batch.num_docs, self.model.prior.latent_dim
        if self.warm_start_rows == "entries":
            rows, what = batch.nnz, self.model.num_topics
        if tuple(init.shape) != (rows, what) or not bool(torch.isfinite(init).all()):
            raise ConfigError(
                f"init of shape {tuple(init.shape)}; expected finite numbers {(rows, what)}, a row "
                f"for each {'document' if self.warm_start_rows == 'documents' else 'stored count'}"
            )
        return init.to(batch.device, space.dtype)

    def _topics(self, temperature: float = 1.0) -> Tensor:
        topics = self.model.topics.probs
        return topics if temperature == 1.0 else topics.pow(temperature)

    @abstractmethod
    def forward(self, batch: DocumentBatch) -> Tensor:
        """The Pyro guide; returns the sampled eta or theta ``(num_docs, latent_dim)``."""

    @uncompiled
    def __call__(self, batch: DocumentBatch) -> Tensor:
        """As :meth:`forward`, whose precision ``torch.autocast`` does not lower."""
        with torch.autocast(self.model.device.type, enabled=False):
            return self.forward(batch)

    def _cached_posterior(self, batch: DocumentBatch) -> P:
        """The posterior, started where the last one of these documents ended.

        Called again for the same batch at the same parameters, as by ``Predictive`` for each of its
        samples, it is the same posterior.
        """
        batch = self.model.check_batch(batch)
        values = (*self.model.parameters(), *self.model.buffers())
        if self._last is not None and self._last[0] is batch and self._last[1].holds(values):
            return self._last[2]
        posterior = self.posterior(batch, self._warm_starts.read(batch))
        self._warm_starts.write(batch, posterior.warm_start)
        self._last = (batch, Snapshot(values), posterior)
        return posterior

    @abstractmethod
    def bound(self, batch: DocumentBatch, posterior: P | None = None) -> Tensor:
        """Lower bound on each document's log probability.

        Args:
            batch: The documents.
            posterior: Their posterior, solved here if not given.

        Returns:
            ``(num_docs,)`` float64 nats.
        """

    @torch.no_grad()
    def word_counts(
        self,
        batch: DocumentBatch,
        posterior: P,
        *,
        temperature: float = 1.0,
        topic_temperature: float = 1.0,
    ) -> Tensor:
        """Expected tokens of each word under each topic, what the topics' M-step takes.

        Under responsibilities ∝ t_k φ_kv^T′, t the posterior's topic weights at temperature T.

        Args:
            batch: The documents.
            posterior: Their posterior.
            temperature: Inverse temperature T of annealing.
            topic_temperature: Inverse temperature T′ of the topics.

        Returns:
            ``(num_topics, num_words)`` in the model's dtype, stored word by word. They sum to the
            number of tokens, of a bursty model to that of their tables, except for the second-order
            counts of :class:`~torch_lntm.guides.EPGuide`.
        """
        batch, _ = self.as_independent(batch, posterior)
        weights = posterior.topic_weights(temperature).to(batch.counts)
        return expected_word_counts(weights, self._topics(topic_temperature), batch)

    def memory_of_means(self, entries: float) -> float:
        """Approximate number of floats needed to solve the mean alone of one document.

        Args:
            entries: Stored counts of a document, on average.
        """
        return MEAN_TABLES * (self.model.num_topics + entries)

    def memory_per_document(self, entries: float) -> float:
        """Approximate number of floats needed to solve one document; by default for its mean.

        Used to choose how many documents to solve at once.

        Args:
            entries: Stored counts of a document, on average.
        """
        return self.memory_of_means(entries)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(tolerance={self.tolerance}, "
            f"max_iterations={self.max_iterations})"
        )


def _check_options(tolerance: float, max_iterations: int) -> None:
    if not tolerance > 0 or max_iterations < 1:
        raise ConfigError(
            f"guide tolerance is {tolerance} and max_iterations {max_iterations}; expected "
            "both positive"
        )


def require_guide(guide: Any, model: TopicModel | None = None) -> Guide[Any]:
    """The guide, if it is one, and one of a model.

    Args:
        guide: What was given as a guide.
        model: The model that it has to belong to; any by default.

    Raises:
        ConfigError: It is no guide, or the model is none.
        IncompatibleGuideError: It belongs to another model.
    """
    if not isinstance(guide, Guide):
        swapped = isinstance(guide, TopicModel)
        shown = "a TopicModel" if swapped else f"{guide!r:.80}"
        raise ConfigError(
            f"guide is {shown}; expected a guide of this model, such as "
            "torch_lntm.guides.make_guide(None, model)"
            + ("; or are model and guide swapped?" if swapped else "")
        )
    if model is not None:
        require_model(model)
    if model is not None and guide.model is not model:
        raise IncompatibleGuideError(
            f"{type(guide).__name__} was made for another model; make one for this: "
            f"{type(guide).__name__}(model)"
        )
    return guide


def guides_for(model: TopicModel) -> list[str]:
    """Names of the guides that fit a model."""
    return [name for name, guide in GUIDES.items() if guide.fits(model)]


def make_guide(posterior: str | None, model: TopicModel, **settings: Any) -> Guide[Any]:
    """The guide of a posterior by its name.

    Args:
        posterior: One of :data:`GUIDES`: ``"taylor"``, ``"laplace"``, ``"blei-lafferty"``,
            ``"khan-bouchard"``, ``"factor"``, ``"vb"`` or ``"ep"``; None for the prior's default.
        model: The model.
        **settings: The guide's own, as ``tolerance`` and ``max_iterations``.

    Raises:
        ConfigError: No posterior of that name, or a setting that cannot be used.
        IncompatibleGuideError: The posterior is not one of this kind of model.
    """
    name = model.prior.default_posterior if posterior is None else posterior
    if not isinstance(name, str) or name not in GUIDES:
        raise ConfigError(f"posterior {posterior!r}; expected one of {', '.join(GUIDES)}")
    return GUIDES[name](model, **settings)
