"""Variational EM for topic models, over any guide."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, knows_its_options, require, require_whole
from torch_lntm.guides import GUIDES, Guide
from torch_lntm.guides.guide import require_guide
from torch_lntm.inference.em.checkpoint import BEST_MEANS, FitState, model_identity
from torch_lntm.inference.em.covariances import CovarianceSample, default_stride, ranks_of
from torch_lntm.inference.em.distributed import Processes
from torch_lntm.inference.em.documents import (
    document_bar,
    shard_of,
    visiting_ranks,
)
from torch_lntm.inference.em.loop import Engine, ResumableFit
from torch_lntm.inference.em.result import StopReason, VariationalResult
from torch_lntm.inference.em.schedule import (
    Annealing,
    default_step_docs,
    num_epochs,
)
from torch_lntm.inference.em.start import Start, StartName, check_start, random_order
from torch_lntm.inference.em.statistics import Statistics
from torch_lntm.models import TopicModel
from torch_lntm.progress import tqdm
from torch_lntm.solvers.options import SolveOptions

#: Stepwise phase: exponent of the step size updates^-exponent, and count of the updates at its
#: beginning.
STEPWISE_EXPONENT, STEPWISE_OFFSET = 0.5, 10
#: Target number of updates of the parameters in the stepwise phase, and bounds on its epochs.
STEPWISE_UPDATES, STEPWISE_EPOCHS = 80, (2, 10)
#: Largest number of values in warm starts with a row for each stored count. Larger warm starts are
#: not kept between visits.
MAX_KEPT_NUMBERS = 2**28
#: Settings of a fit that must agree with its checkpoint.
KEPT_SETTINGS = ("start", "start_epochs", "stepwise_epochs", "restarts", "seed")


class VariationalEM(Engine[VariationalResult]):
    """Fit a topic model by variational EM.

    EM ends in the nearest local optimum, so it needs good topics to begin with, and a fit has three
    phases. The *start* finds topics with a stand-in model, LDA with a Dirichlet prior, whose
    updates take only a few sparse passes. The *stepwise* phase then solves the posterior of the
    model itself on mini-batches, and makes an M-step after each of them from a running average of
    the statistics (*Cappé & Moulines 2009*). The noise of these small steps is what keeps the fit
    out of poor local optima. Finally, *EM* alternates full E-steps and M-steps (*Khan & Bouchard
    2009, eqs 39–42*) until an iteration changes the objective by no more than ``tolerance``. An EM
    iteration does not depend on how the documents are divided into batches.

    Args:
        model: The model to fit, in place.
        guide: Guide of the E-step, over the same model.
        max_iterations: Maximum number of M-steps of EM. An E-step follows the last of them, so with
            0 the fit ends after the stochastic phases and an E-step.
        tolerance: EM has converged when an iteration changes the objective by at most this much, in
            nats per token. The default means that the next iteration would improve the perplexity
            of the training documents by about 0.1 %. Since the gains fall slowly, the objective
            could still rise by many times the tolerance; use 1e-5 for its optimum.
        start: ``"lda"`` for a stochastic fit of LDA, whose topics begin with the neighbours of
            anchor words, and in restarts with the words of random documents. ``"documents"`` makes
            only one epoch of it, from random documents. ``"vectors"`` takes topics from clusters of
            documents by their word vectors, and ``"model"`` continues from the parameters of the
            model.
        start_epochs: Number of epochs of ``"lda"``. The default makes about 1,200 updates, in 3 to
            40 epochs.
        stepwise_epochs: Number of epochs of the stepwise phase, which 0 skips. The default makes
            about 80 updates, in 2 to 10 epochs; with annealing or ``start="model"`` it is 0.
        restarts: Number of runs of the first two phases, each with its own seed. EM carries on from
            the run with the best objective.
        annealing: An :class:`~torch_lntm.inference.Annealing` schedule between the stepwise phase
            and EM, or ``"ahmed-xing"`` for the schedule of the paper.
        covariance_stride: The M-step uses the covariance of one in so many documents, because under
            Taylor's and Laplace's posteriors a covariance costs more than a mean. The effect on a
            fit is smaller than that of a new seed. The default is 1 below 32 topics, 8 below 200
            topics, and 8 more for each further 100 topics; it is smaller for small mini-batches.
        max_docs: Number of documents solved at once, which bounds memory and changes results by
            rounding only. Defaults to the number that fits in memory.
        seed: Seed of the start's documents and of the order of the documents.
        progress: Whether to show progress bars on standard error.

    Raises:
        ConfigError: A setting is invalid.
        IncompatibleGuideError: The guide belongs to another model.

    Example:
        >>> small = lntm.models.ctm(num_topics=4, num_words=train.num_words, seed=0)
        >>> engine = lntm.inference.VariationalEM(
        ...     small, lntm.guides.TaylorGuide(small), max_iterations=2, progress=False
        ... )
        >>> fit = engine.fit(train[:60])
        >>> fit.history[-1]["phase"], fit.means.shape
        ('em', torch.Size([60, 4]))
    """

    @knows_its_options
    def __init__(
        self,
        model: TopicModel,
        guide: Guide[Any],
        *,
        max_iterations: int = 100,
        tolerance: float = 1e-3,
        start: StartName = "lda",
        start_epochs: int | None = None,
        stepwise_epochs: int | None = None,
        restarts: int = 1,
        annealing: Annealing | str | None = None,
        covariance_stride: int | None = None,
        max_docs: int | None = None,
        seed: int = 0,
        progress: bool = True,
    ) -> None:
        require_guide(guide, model)
        check_start(start, model)
        if isinstance(annealing, str):
            if annealing != "ahmed-xing":
                raise ConfigError(f"annealing {annealing!r}; expected 'ahmed-xing' or a schedule")
            annealing = Annealing()
        if annealing is not None and not guide.anneals:
            raise ConfigError(
                f"annealing is for {', '.join(g.__name__ for g in GUIDES.values() if g.anneals)}; "
                f"got {type(guide).__name__}"
            )
        require_whole(0, max_iterations=max_iterations, stepwise_epochs=stepwise_epochs, seed=seed)
        require_whole(1, start_epochs=start_epochs, restarts=restarts)
        require_whole(1, covariance_stride=covariance_stride, max_docs=max_docs)
        require(0, tolerance=tolerance)
        if start_epochs is not None and start != "lda":
            raise ConfigError(
                f"start_epochs is an option of start='lda'; leave it out with start={start!r}"
            )
        if restarts > 1 and start == "model":
            raise ConfigError("restarts with start='model' are all the same; use restarts=1")
        self.model = model
        self.guide = guide
        self.max_iterations, self.tolerance, self.annealing = max_iterations, tolerance, annealing
        self.start, self.restarts = start, restarts
        self.start_epochs, self.stepwise_epochs = start_epochs, stepwise_epochs
        self.covariance_stride, self.max_docs = covariance_stride, max_docs
        self.seed, self.progress = seed, progress

    def prepare(self, corpus: Corpus, processes: Processes) -> VariationalRun:
        """See :meth:`Engine.prepare`."""
        return VariationalRun(self, corpus, processes)


class VariationalRun(ResumableFit[VariationalResult]):
    """One fit by :class:`VariationalEM`, of the non-empty documents in a random order.

    Args:
        engine: The engine.
        corpus: The documents. At least one has words.
        processes: The processes of the fit. Defaults to this process alone.
    """

    averaging = ("stepwise",)
    not_copied = frozenset({"sites", BEST_MEANS})  # warm starts do not affect the result

    def __init__(
        self, engine: VariationalEM, corpus: Corpus, processes: Processes | None = None
    ) -> None:
        super().__init__(engine, corpus, processes)
        self.guide = guide = engine.guide
        model, settings, whole = engine.model, engine, corpus.whole
        self.num_docs, self.num_tokens = whole.num_nonempty, float(whole.num_tokens)
        # max_docs merely bounds memory, whereas step_docs is part of the algorithm and must not
        # depend on how much memory there is.
        length = self.num_tokens / self.num_docs
        self.step_docs = default_step_docs(self.num_docs, length, model.num_topics)
        stride = settings.covariance_stride or default_stride(guide, self.step_docs)
        order, seed = None if corpus.part else random_order(corpus, settings.seed), settings.seed
        ranks = visiting_ranks(corpus, seed) if order is None else ranks_of(order, corpus.num_docs)
        self.covariances = CovarianceSample(guide, corpus, ranks, stride, settings.max_docs)
        self.max_docs = self.covariances.max_docs
        rank = np.arange(self.num_docs)
        groups = rank // self.step_docs, rank % self.covariances.stride
        self.shard = shard_of(model, corpus, self.processes, order, *groups)
        self.state = FitState(self.shard.table)
        #: Whether to keep warm starts with rows for stored counts.
        self._keeps_entries = (
            guide.warm_start_rows == "entries" and whole.nnz * model.num_topics <= MAX_KEPT_NUMBERS
        )

    # -- steps -----------------------------------------------------------------------------------

    def steps(self) -> Generator[dict[str, Any]]:
        """See :meth:`ResumableFit.steps`. A step is an epoch or an iteration."""
        state = self.state
        while state.phase in ("start", "stepwise"):
            if state.phase == "start":
                yield from self._start()
            yield from self._stepwise()
            if self.settings.restarts > 1:
                yield from self._score()
            else:
                self._enter("annealing")
        if state.phase == "annealing":
            yield from self._anneal()
        yield from self._em()

    def _enter(self, phase: str) -> None:
        self.state.phase, self.state.step = phase, 0

    def _record(self, objective: float | None = None, **more: Any) -> dict[str, Any]:
        """Record of a step; the objective is that of the last E-step of all documents by default.

        It is the objective of the documents plus the parameters' log prior, nats per token.
        """
        state = self.state
        if objective is None:
            assert state.statistics is not None
            nats = float(state.statistics.objective) + float(self.model.log_prior())
            objective = nats / self.num_tokens
        return {
            "phase": state.phase,
            "restart": state.restart,
            "iteration": state.step,
            "objective": objective,
            "unconverged": int(state.statistics.num_unconverged) if state.statistics else None,
            **more,
        }

    def _bar(self, description: str, epochs: int | None) -> tqdm:
        done, num_docs = self.state.step, self.shard.num_docs
        return document_bar(description, epochs, num_docs, done, self.shows_progress)

    # -- phases ----------------------------------------------------------------------------------

    def _start(self) -> Iterator[dict[str, Any]]:
        """Set topics, prior and means by the start, or only the means if it is "model"."""
        settings, state, guide = self.settings, self.state, self.guide
        if settings.start != "model":
            options: dict[str, Any] = {"epochs": settings.start_epochs, "seed": settings.seed}
            start = Start(self.model, self.shard, name=settings.start, **options)
            for objective in start.run(state, self.shows_progress):
                record = self._record(objective)
                if state.step == start.epochs:
                    self._enter("stepwise")
                yield record
            return
        if guide.warm_start_rows == "documents":
            for batch in self.shard.local_batches(self.step_docs):
                means = guide.default_start(batch, self.model.prior.space(batch))
                state.documents.write("means", batch, means)
        self._enter("stepwise")

    def _stepwise(self) -> Iterator[dict[str, Any]]:
        """Stepwise EM with the model's own posterior."""
        settings, state, model = self.settings, self.state, self.model
        steps = -(-self.num_docs // self.step_docs)
        epochs = settings.stepwise_epochs
        if epochs is None:
            skipped = settings.annealing is not None or settings.start == "model"
            epochs = 0 if skipped else num_epochs(STEPWISE_UPDATES, steps, STEPWISE_EPOCHS)
        if state.step == 0:
            state.updates, state.statistics = STEPWISE_OFFSET, None
        with self._bar("stepwise EM", epochs) as bar:
            while state.step < epochs:
                objective: float | Tensor = 0.0
                unconverged: int | Tensor = 0
                self.learn("means")
                with model.topics.updated_often():
                    batches = self.shard.step_batches(settings.seed, self.step_docs)
                    for batch in batches:
                        new = self._step(batch, bar)
                        objective += new.objective
                        unconverged += new.num_unconverged
                state.step += 1
                per_token = float(objective) / self.num_tokens
                bar.set_postfix_str(f"{per_token:.4f} nats/token")
                yield self._record(per_token, unconverged=int(unconverged))

    def _step(self, batch: DocumentBatch | None, bar: tqdm) -> Statistics:
        """Update the parameters once, and return the statistics of the step's documents."""
        state = self.state
        parts = batch.split(self.max_docs) if batch is not None else []
        make = partial(self._expected, parts, self.guide.step_options, bar)
        new = self.processes.add_up(make, self.model.dtype)
        # Each batch stands for the whole corpus. It is scaled by tokens, so that long and short
        # documents weigh the topics equally.
        scale = self.num_tokens / new.num_tokens
        if state.statistics is None:
            state.statistics = new.scaled(scale)
        else:
            step = float(state.updates) ** -STEPWISE_EXPONENT
            state.statistics.blend_(new, step, scale)
        state.updates += 1
        state.statistics.maximise(self.model)
        return new

    def _score(self) -> Iterator[dict[str, Any]]:
        """Score this restart, keep the best, and begin the next restart or continue the best."""
        state = self.state
        state.step = 0
        with self._bar("score", 1) as bar:
            state.statistics = self._e_step(bar, self.guide.em_options)
        record = {**self._record(), "phase": "score"}
        scores = [r["objective"] for r in [*state.history, record] if r["phase"] == "score"]
        means = state.documents.tensors["means"]
        # The rows of the documents fit the topics of this restart only.
        for name in state.documents.tensors.keys() - {BEST_MEANS}:
            del state.documents.tensors[name]
        if scores.index(max(scores)) == state.restart:
            state.best = deepcopy(self.model.state_dict())
            state.documents.tensors = {BEST_MEANS: means}
        if state.restart + 1 < self.settings.restarts:
            state.restart, state.updates, state.statistics = state.restart + 1, 0, None
            self._enter("start")
        else:
            self._continue_best()
            state.restart = scores.index(max(scores))
            self._enter("annealing")
        yield record

    def _continue_best(self) -> None:
        """Set the parameters and means of the best restart, whose statistics are not kept."""
        state = self.state
        state.documents.tensors = {"means": state.documents.tensors[BEST_MEANS]}
        self.model.load_state_dict(state.best)
        state.best, state.statistics = {}, None

    def _anneal(self) -> Iterator[dict[str, Any]]:
        """Full EM at rising inverse temperatures."""
        state, topics, annealing = self.state, self.model.topics, self.settings.annealing
        steps = annealing.steps if annealing else []
        with self._bar("annealing", len(steps)) as bar:
            while state.step < len(steps):
                names = ("inverse_temperature", "inverse_topic_temperature")
                temperatures = dict(zip(names, steps[state.step], strict=True))
                if state.step > 0 and steps[state.step] != steps[state.step - 1]:
                    key = (self.settings.seed, state.restart, state.step)
                    topics.set_(annealing.perturbed(topics.mean_probs, key))
                options = self.guide.em_options._replace(**temperatures)
                state.statistics = self._e_step(bar, options)
                state.statistics.maximise(self.model)
                state.step += 1
                bar.set_postfix_str(f"T={temperatures['inverse_temperature']:g}")
                yield self._record(**temperatures)
        self._enter("em")
        state.statistics = None

    def _em(self) -> Iterator[dict[str, Any]]:
        """Full EM, which ends after an E-step so that posteriors match the parameters."""
        state = self.state
        with self._bar("EM", None) as bar:
            while state.step <= self.settings.max_iterations:
                if self.converged():
                    return
                if state.statistics is not None:
                    # Without stepwise epochs, the topics have not learned yet.
                    if state.step == 1 and self.model.topics.learning_rounds > 1:
                        self.learn("means")
                    state.statistics.maximise(self.model)
                state.statistics = self._e_step(bar, self.guide.em_options)
                state.step += 1
                record, change = self._record(), ""
                objective = record["objective"]
                if state.step > 1:
                    change = f", change {objective - state.history[-1]['objective']:.1e}"
                bar.set_postfix_str(f"iteration {state.step}, {objective:.4f} nats/token{change}")
                yield record

    def converged(self) -> bool:
        """Whether the last EM iteration changed the objective by at most the tolerance.

        A small decrease counts too, because the objectives of Taylor, Laplace and expectation
        propagation are not bounds and an M-step near convergence can lower them a little.
        """
        match self.state.history[-2:]:
            case [{"phase": "em", "objective": before}, {"phase": "em", "objective": last}]:
                return abs(last - before) <= self.settings.tolerance
        return False

    def end_reason(self) -> StopReason:
        """See :meth:`ResumableFit.end_reason`."""
        return "converged" if self.converged() else "max_iterations"

    # -- E-steps ---------------------------------------------------------------------------------

    def _e_step(self, bar: tqdm, options: SolveOptions) -> Statistics:
        """E-step of all documents, whose statistics are summed over the processes."""
        batches = self.shard.local_batches(self.max_docs)
        return self.processes.add_up(partial(self._expected, batches, options, bar), torch.float64)

    def _expected(
        self, batches: Iterable[DocumentBatch], options: SolveOptions, bar: tqdm
    ) -> Statistics | None:
        """E-steps of batches, with the sum of their statistics; None without batches.

        Each E-step starts from the rows of its documents, and updates them.
        """
        documents, topics, total = self.state.documents, self.model.topics, None
        warm_starts = "means" if self.guide.warm_start_rows == "documents" else "sites"
        # EM keeps one sample for all iterations, so that its objective can converge, whereas the
        # stochastic phases take another at each epoch.
        offset = self.state.step if self.state.phase == "stepwise" else 0
        with topics.cached():
            for batch in batches:
                self.processes.poll()
                if warm_starts in documents.tensors:
                    options = options._replace(start=documents.read(warm_starts, batch))
                batch = topics.assign_levels(batch)
                posterior, new = self.covariances.expect(batch, options, offset)
                documents.write("means", batch, posterior.mean)
                if self._keeps_entries:
                    documents.write("sites", batch, posterior.warm_start)
                total = new if total is None else total.add_(new)
                del posterior, new  # the next E-step needs the memory
                bar.update(batch.num_docs)
        return total

    # -- results ---------------------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        """See :meth:`ResumableFit.identity`."""
        settings = self.settings
        return {
            **self.shard.identity(),
            **model_identity(self.model),
            "guide": repr(self.guide),
            **{name: getattr(settings, name) for name in KEPT_SETTINGS},
            "annealing": repr(settings.annealing),
            "stride": self.covariances.stride,
        }

    def result(self, stop_reason: StopReason) -> VariationalResult:
        """Result at the present state, or the best restart of a fit that has ended before EM."""
        state = self.state
        if state.best:
            self._continue_best()
            state.phase = "score"
            scored = (r for r in state.history if r["phase"] == "score")
            state.history.append(max(scored, key=lambda r: r["objective"]))
        documents = state.documents.tensors
        tables = self.shard.collect({x: documents[x] for x in documents.keys() & {"means"}})
        self.model.prior.canonicalise_()
        unconverged = state.history[-1]["unconverged"] if state.history else None
        return VariationalResult(
            history=state.history,
            stop_reason=stop_reason,
            num_unconverged=self.num_docs if unconverged is None else unconverged,
            means=self.with_prior_means(tables.get("means")),
            objective_name=self.guide.objective,
            seconds=state.seconds,
            statistics=state.statistics,
            guide=self.guide,
            corpus=self.corpus,
        )
