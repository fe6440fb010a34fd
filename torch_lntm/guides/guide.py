"""Guide, the base class of guides, and the table of guides by name."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar, Generic

import torch
from torch import Tensor
from typing_extensions import TypeVar

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, IncompatibleGuideError, knows_its_options, require_one
from torch_lntm.guides.draws import GuideDraws, WarmStarts
from torch_lntm.guides.table import guides_suited
from torch_lntm.guides.theta_draws import DrawOptions, Positions, ThetaDraws, wanted_draws
from torch_lntm.kernels.contraction import document_sums
from torch_lntm.kernels.likelihood import surrogate
from torch_lntm.kernels.mixture import expected_word_counts, word_probabilities
from torch_lntm.kernels.uncompiled import uncompiled
from torch_lntm.latents import EtaSpace, LatentSpace
from torch_lntm.models import TopicModel
from torch_lntm.models.model import require_model
from torch_lntm.posteriors import Posterior
from torch_lntm.posteriors.posterior import WarmStartRows
from torch_lntm.solvers.options import DEFAULTS, SolveOptions

#: Tolerance of a document's surrogate counts between rounds, in tokens. The objective changes by
#: about its square.
MAX_CHANGE = 1e-2
P = TypeVar("P", bound=Posterior, default=Posterior)
#: Guides by name: all subclasses of :class:`Guide` with a ``name``.
GUIDES: dict[str, type[Guide[Any]]] = {}


class Guide(ABC, Generic[P]):
    """Approximate posterior of every document, found by a solver, as a Pyro guide.

    A guide learns nothing: it solves each document's posterior anew at the model's current
    parameters. A call with a batch emits these posteriors at the sites of the model's prior, in the
    plate ``"documents"``. They carry no gradient, so that ``SVI`` differentiates the model's
    parameters alone. Because a document changes little between two visits, the guide remembers its
    solution by its position in the corpus and starts from it the next time.

    A subclass defines :meth:`_solve`, :meth:`forward` and :meth:`bound`, as ``docs/own_parts.md``
    shows by an example.

    Args:
        model: The model. Its parameters are read at every call.
        tolerance: Convergence tolerance of a document, in the unit of the subclass.
        max_iterations: Bound on the iterations of each document.

    Raises:
        IncompatibleGuideError: The model's prior lacks the latent space that the guide needs.
        ConfigError: A setting is zero or negative.

    Example:
        >>> import pyro
        >>> pyro.infer.Trace_ELBO().loss(model, lntm.guides.TaylorGuide(model), batch) > 0
        True
    """

    #: Name of the guide for :func:`make_guide`, in files and on the command line.
    name: ClassVar[str]
    #: Description of the posterior's ``objective``.
    objective: ClassVar[str]
    #: Class of latent space that the prior must offer, and its description for errors.
    space_type: ClassVar[type[LatentSpace]]
    needs: ClassVar[str]
    #: Rows of a warm start: documents, or stored counts ("entries").
    warm_start_rows: ClassVar[WarmStartRows] = "documents"
    #: Whether the guide supports inverse temperatures other than 1.
    anneals: ClassVar[bool] = False
    #: Solver options of an EM iteration, and of a stochastic step. A stochastic fit visits a
    #: document many times, so few iterations per visit suffice.
    em_options: ClassVar[SolveOptions] = SolveOptions(tolerance=1e-2, max_iterations=50)
    step_options: ClassVar[SolveOptions] = SolveOptions(tolerance=1e-2, max_iterations=3)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in vars(cls):
            GUIDES[cls.name] = cls

    @knows_its_options
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
        self._starts = WarmStarts(self, 0)
        self._last: tuple[DocumentBatch, list[Tensor], P] | None = None

    @classmethod
    def fits(cls, model: TopicModel) -> bool:
        """Whether the model's prior has the latent space that the guide needs.

        Example:
            >>> guide.fits(model), guide.fits(lntm.models.lda(3, 50))
            (True, False)
        """
        return issubclass(model.prior.space_type, cls.space_type)

    @torch.no_grad()
    def posterior(
        self,
        batch: DocumentBatch,
        init: Tensor | None = None,
        *,
        covariances: bool = True,
        inverse_temperature: float = 1.0,
        inverse_topic_temperature: float = 1.0,
        tolerance: float | None = None,
        max_iterations: int | None = None,
    ) -> P:
        """Solve the posterior of every document of a batch at the model's current parameters.

        Args:
            batch: The documents, over the model's vocabulary.
            init: Initial values, for which the ``warm_start`` of an earlier posterior of these
                documents is best. All guides except :class:`~torch_lntm.guides.EPGuide` also accept
                any means ``(num_docs, latent_dim)``. Defaults to :meth:`default_start`.
            covariances: Whether the covariances are needed. Without them, a guide whose means do
                not depend on them returns a :class:`~torch_lntm.posteriors.ModePosterior`, which
                saves num_topics³ operations per document; see :attr:`separates_means`.
            inverse_temperature: Inverse temperature of deterministic annealing (*Ahmed & Xing
                2007, §3.2*). Defaults to 1, the posterior itself.
            inverse_topic_temperature: Inverse temperature T of the topics, φ^T. Defaults to 1.
            tolerance: Convergence tolerance. Defaults to the tolerance of the guide.
            max_iterations: Bound on the iterations. Defaults to the bound of the guide.

        Returns:
            The posterior. ``converged`` marks documents that reached the tolerance.

        Raises:
            ConfigError: The batch has another vocabulary size, ``init`` has a wrong shape or an
                invalid entry, a setting is zero or negative, or this guide only supports
                inverse temperature 1.
            NumericalError: The solver failed for a document. The message names the documents.

        Example:
            >>> guide.posterior(batch)
            NormalPosterior(5 documents, 10 topics, 0 not converged)
        """
        batch = self.model.check_batch(batch)
        if not self.anneals and (inverse_temperature, inverse_topic_temperature) != (1.0, 1.0):
            raise ConfigError(
                f"{type(self).__name__} only has inverse temperature 1; annealing is for "
                f"{', '.join(g.__name__ for g in GUIDES.values() if g.anneals)}"
            )
        tolerance = self.tolerance if tolerance is None else tolerance
        max_iterations = self.max_iterations if max_iterations is None else max_iterations
        _check_options(tolerance, max_iterations)
        start = None if init is None else self._checked_start(batch, init)
        temperatures = (inverse_temperature, inverse_topic_temperature)
        options = SolveOptions(start, tolerance, max_iterations, *temperatures)
        return self.solve(batch, options, covariances=covariances)

    @torch.no_grad()
    def solve(self, batch: DocumentBatch, options: SolveOptions, *, covariances: bool = True) -> P:
        """:meth:`posterior` without its checks, for engines that have checked their batches.

        Args:
            batch: The documents, as ``model.check_batch`` returns them.
            options: Settings of the solver. Without a start, :meth:`default_start` is taken.
            covariances: As for :meth:`posterior`.
        """
        with torch.autocast(batch.device.type, enabled=False):
            space, start = self.model.prior.space(batch), options.start
            if start is None:
                start = self.default_start(batch, space)
            options = options._replace(start=start.to(batch.device, space.dtype))
            topics = self._topics(options.inverse_topic_temperature)
            solve = self._solve if covariances else self._solve_means
            if self.model.words.independent:
                return solve(batch, topics, space, options)
            return self._solve_by_surrogates(solve, batch, topics, space, options)

    @property
    def separates_means(self) -> bool:
        """Whether means alone are cheaper than means and covariances; see :meth:`posterior`."""
        return False

    @torch.no_grad()
    def word_probabilities(self, batch: DocumentBatch, posterior: Posterior) -> Tensor:
        """Probabilities of a batch's words under a posterior, as in the guide's bound.

        Args:
            batch: The documents, as ``model.check_batch`` returns them.
            posterior: Their posterior.

        Returns:
            ``(nnz,)`` Σ_k t_k φ_kv at the stored counts, in the model's dtype.
        """
        weights = self._geometric_mean(posterior).to(batch.counts)
        return word_probabilities(weights, self.model.topics.probs, batch)

    def _geometric_mean(self, posterior: Any) -> Tensor:
        """Weights t ``(num_docs, num_topics)`` with log Σ_k t_k φ_kv ≤ E log Σ_k theta_k φ_kv.

        Guides without such a bound return the topic weights.
        """
        return posterior.topic_weights()

    @torch.no_grad()
    def as_independent(
        self, batch: DocumentBatch, posterior: Posterior
    ) -> tuple[DocumentBatch, Tensor]:
        """Replace documents that repeat words by documents of independent tokens.

        Args:
            batch: The documents, as ``model.check_batch`` returns them.
            posterior: Their posterior. The bound below is tight at this posterior.

        Returns:
            The documents with surrogate counts (:mod:`torch_lntm.kernels.likelihood`), and offsets
            ``(num_docs,)`` in float64 nats. The log likelihood of the surrogates plus the offset
            bounds the log likelihood of the documents from below. If the model's tokens are
            independent draws already, the batch itself and 0.
        """
        if self.model.words.independent:
            return batch, torch.zeros((), dtype=torch.float64, device=batch.device)
        return surrogate(self.model.words, self.word_probabilities(batch, posterior), batch)

    def _require_current(self, batch: DocumentBatch, space: Any) -> None:
        """Raise if a posterior was solved at other parameters of the prior.

        Args:
            batch: The documents.
            space: The latent space of their posterior.

        Raises:
            ConfigError: The prior's parameters have changed.
        """
        now: Any = self.model.prior.space(batch)
        if isinstance(now, EtaSpace) and type(now) is not type(space):
            now = now.marginal()
        values = [[getattr(x, field.name) for field in fields(x)] for x in (now, space)]
        tensors = ([x for x in parts if isinstance(x, Tensor)] for parts in values)
        if type(now) is not type(space) or not all(map(torch.equal, *tensors)):
            raise ConfigError(
                "the posterior was solved at other parameters of the prior; solve it again by "
                "guide.posterior(batch)"
            )

    @abstractmethod
    def _solve(self, batch: DocumentBatch, topics: Tensor, space: Any, options: SolveOptions) -> P:
        """Solve the posteriors, from checked arguments and without gradients.

        A guide that needs none of its own settings may assign a solver, as ``staticmethod(...)``.

        Args:
            batch: The documents, on the model's device and in its dtype.
            topics: ``(num_topics, num_words)``, at the topics' temperature.
            space: The prior's latent space for these documents.
            options: The start is the result of :meth:`default_start`, or the caller's ``init``. The
                inverse temperature is always 1 unless the guide anneals. Documents that repeat
                words are solved in rounds, and the bound on the iterations is for each round.
        """

    def _solve_means(
        self, batch: DocumentBatch, topics: Tensor, space: Any, options: SolveOptions
    ) -> Any:
        """:meth:`_solve` for means alone."""
        return self._solve(batch, topics, space, options)

    def _solve_by_surrogates(
        self,
        solve: Callable[..., Any],
        batch: DocumentBatch,
        topics: Tensor,
        space: Any,
        options: SolveOptions,
    ) -> Any:
        """Solve documents that repeat words, by posteriors of independent draws.

        A round updates the surrogate counts at the posterior, and then the posterior at these
        counts. Both raise the same bound on the log likelihood
        (:mod:`torch_lntm.kernels.likelihood`). Rounds go on for documents whose counts still
        change, and a last one solves all documents so that none depends on the others.

        Args:
            solve: Solver for independent draws, for the last round. The other rounds need means
                alone.
            batch: As for :meth:`_solve`.
            topics: As for :meth:`_solve`.
            space: As for :meth:`_solve`.
            options: As for :meth:`_solve`, in each round. Surrogate counts have converged if they
                change by less than the square root of the tolerance, in tokens, and by less than
                ``MAX_CHANGE``. There are at most a quarter as many rounds as iterations, plus the
                last round.
        """
        words = self.model.words
        max_change = min(math.sqrt(options.tolerance), MAX_CHANGE)
        by_documents = self.warm_start_rows == "documents"
        latent = options.start if by_documents else space.centre.expand(batch.num_docs, -1)
        theta = self.model.theta(latent).to(topics)
        probability = word_probabilities(theta, self.model.topics.probs, batch)
        start = options.start.clone()
        rows = torch.arange(batch.num_docs, device=batch.device)
        iterations = torch.zeros_like(rows)
        # A round counts as four iterations; with fewer, the surrogate counts are the start's.
        for _ in range(options.max_iterations // 4):
            entries, _ = batch.entries(rows)
            part = batch.select(rows, len(entries))
            at = rows if by_documents else entries
            surrogates, _ = surrogate(words, probability[entries], part)
            part_options = options._replace(start=start[at])
            means = self._solve_means(surrogates, topics, space.select(rows), part_options)
            start[at] = means.warm_start.to(start)
            iterations[rows] += means.iterations
            probability[entries] = self.word_probabilities(part, means)
            change = (words.tokens(probability[entries], part) - surrogates.counts).abs()
            rows = rows[document_sums(change, part) > max_change]
            if not len(rows):
                break
        surrogates, offset = surrogate(words, probability, batch)
        posterior = solve(surrogates, topics, space, options._replace(start=start))
        tokens = words.tokens(self.word_probabilities(batch, posterior), batch)
        change = (tokens - surrogates.counts).abs()
        posterior.converged &= document_sums(change, batch) <= max_change
        posterior.iterations = posterior.iterations + iterations
        posterior.objective = posterior.objective + offset
        return posterior

    def default_start(self, batch: DocumentBatch, space: LatentSpace) -> Tensor:
        """Initial values without a warm start: the prior mean ``(num_docs, latent_dim)``."""
        return space.centre.expand(batch.num_docs, -1)

    def _checked_start(self, batch: DocumentBatch, init: Tensor) -> Tensor:
        init = torch.as_tensor(init)
        shape = (batch.num_docs, self.model.prior.latent_dim)
        if self.warm_start_rows == "entries":
            shape = (batch.nnz, self.model.num_topics)
        if tuple(init.shape) != shape or not bool(torch.isfinite(init).all()):
            raise ConfigError(
                f"init of shape {tuple(init.shape)}; expected finite numbers {shape}, a row "
                f"for each {'document' if self.warm_start_rows == 'documents' else 'stored count'}"
            )
        return init

    def _topics(self, inverse_temperature: float) -> Tensor:
        topics = self.model.topics.probs
        return topics if inverse_temperature == 1.0 else topics.pow(inverse_temperature)

    @abstractmethod
    def forward(self, batch: DocumentBatch) -> Tensor:
        """Emit the posterior as a Pyro guide.

        Args:
            batch: The documents, as ``model.check_batch`` returns them.

        Returns:
            The draw of eta or theta ``(num_docs, latent_dim)``.
        """

    @uncompiled
    def __call__(self, batch: DocumentBatch) -> Tensor:
        """Check the batch, and call :meth:`forward` at full precision, even in autocast."""
        with torch.autocast(self.model.device.type, enabled=False):
            return self.forward(self.model.check_batch(batch))

    def _cached_posterior(self, batch: DocumentBatch) -> P:
        """The posterior, started from the last solution of these documents.

        At unchanged parameters, repeated calls for a batch return the same object, because
        ``Predictive`` calls once for each sample.
        """
        # Optimisers that write to ``.data``, such as Pyro's, leave version counters unchanged, so
        # values are compared.
        values = [x.detach() for x in (*self.model.parameters(), *self.model.buffers())]
        last = self._last
        if last is not None and last[0] is batch and all(map(torch.equal, values, last[1])):
            return last[2]
        if self._starts.num_docs != batch.corpus_size:
            self._starts = WarmStarts(self, batch.corpus_size)
        posterior = self.posterior(batch, self._starts.read(batch))
        self._starts.write(batch.positions, batch.lengths, posterior.mean)
        self._last = (batch, [x.clone() for x in values], posterior)
        return posterior

    @abstractmethod
    def bound(self, batch: DocumentBatch, posterior: P | None = None) -> Tensor:
        """Lower bound on each document's log probability.

        Args:
            batch: The documents.
            posterior: Their posterior. Defaults to a new solution.

        Returns:
            ``(num_docs,)`` float64 nats.
        """

    @torch.no_grad()
    def word_counts(
        self, batch: DocumentBatch, posterior: P, options: SolveOptions = DEFAULTS
    ) -> Tensor:
        """Expected tokens of each word under each topic, for the topics' M-step.

        Responsibilities are ∝ t_k φ_kv^T′, for the posterior's topic weights t at T.

        Args:
            batch: The documents, as ``model.check_batch`` returns them.
            posterior: Their posterior.
            options: The inverse temperatures T and T′ of annealing, as for :meth:`solve`.

        Returns:
            ``(num_topics, num_words)`` in the model's dtype, stored word by word. The counts sum to
            the number of tokens; in bursty models, to the expected number of tokens that come from
            the topics. The second-order counts of :class:`~torch_lntm.guides.EPGuide` may have a
            smaller sum.
        """
        if not self.model.words.independent:
            batch, _ = self.as_independent(batch, posterior)
        weights = posterior.topic_weights(options.inverse_temperature).to(batch.counts)
        topics = self._topics(options.inverse_topic_temperature)
        return expected_word_counts(weights, topics, batch)

    def memory_of_means(self, entries: float) -> float:
        """Approximate number of floats needed to solve the mean of a document.

        Args:
            entries: Average number of stored counts per document.
        """
        # Numbers in memory per topic and per stored count of a document, while its mean is solved.
        return 8 * (self.model.num_topics + entries)

    def memory_per_document(self, entries: float) -> float:
        """Approximate number of floats needed to solve a document.

        Engines use it to choose how many documents a step solves. Defaults to
        :meth:`memory_of_means`.

        Args:
            entries: Average number of stored counts per document.
        """
        return self.memory_of_means(entries)

    def theta_draws(
        self, corpus: Corpus, num_draws: int | None, rows: Positions | None, options: DrawOptions
    ) -> ThetaDraws:
        """Draws from the posteriors of documents; see :func:`torch_lntm.inference.theta_draws`."""
        maker = GuideDraws(self, self.model.encode(corpus), options)
        rows, num_draws = wanted_draws(corpus.num_docs, rows, num_draws)
        drawn = options.coefficients and maker.draw_coefficients(rows, num_draws)
        name = self.name or type(self).__name__
        return ThetaDraws(
            maker.draw,
            self.model,
            rows,
            num_draws,
            name,
            f"the posterior {name}",
            maker.sources_of_uncertainty,
            max_draws=num_draws if drawn else None,
            keep=options.keep,
            corpus=corpus,
        )

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
    """Check that the argument is a guide, and belongs to a model, and return it.

    Args:
        guide: The argument.
        model: The model. By default, guides of all models are accepted.

    Raises:
        ConfigError: The argument or ``model`` has another type.
        IncompatibleGuideError: The guide belongs to another model.
    """
    if not isinstance(guide, Guide):
        swapped = isinstance(guide, TopicModel)
        argument = "a TopicModel" if swapped else f"{guide!r:.80}"
        if inspect.ismethod(guide):
            argument = f"the method {guide.__name__}; call it as {guide.__name__}()"
        raise ConfigError(
            f"guide is {argument}; expected a guide of this model, such as "
            "torch_lntm.guides.make_guide(None, model)"
            + ("; or are model and guide swapped?" if swapped else "")
        )
    if model is not None:
        require_model(model)
    if model is not None and guide.model is not model:
        raise IncompatibleGuideError(
            f"{type(guide).__name__} was made for another model; make a guide for this model: "
            f"{type(guide).__name__}(model)"
        )
    return guide


def guides_for(model: TopicModel) -> list[str]:
    """Names of the guides that fit a model.

    Example:
        >>> lntm.guides.guides_for(model)
        ['taylor', 'laplace', 'blei-lafferty', 'khan-bouchard']
    """
    return [name for name, guide in GUIDES.items() if guide.fits(model)]


def make_guide(posterior: str | None, model: TopicModel, **settings: Any) -> Guide[Any]:
    """A guide for a model, by the name of its posterior.

    Args:
        posterior: A key of :data:`GUIDES`: ``"taylor"``, ``"laplace"``, ``"blei-lafferty"``,
            ``"khan-bouchard"``, ``"factor"``, ``"vb"`` or ``"ep"``. ``None`` chooses the default
            of the prior (:mod:`torch_lntm.guides.table`).
        model: The model.
        **settings: Settings of the guide, such as ``tolerance`` and ``max_iterations``.

    Raises:
        ConfigError: The name is unknown, or a setting is out of range.
        IncompatibleGuideError: The guide does not fit the model's prior.

    Example:
        >>> lntm.guides.make_guide("laplace", model, tolerance=1e-6)
        LaplaceGuide(tolerance=1e-06, max_iterations=100)
    """
    name = guides_suited(model).default if posterior is None else posterior
    require_one(GUIDES, posterior=name)
    return GUIDES[name](model, **settings)
