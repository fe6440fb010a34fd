"""One run of variational EM: its phases, and what they keep of the documents."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.guides import Effort, Guide
from torch_lntm.inference.em.checkpoint import FitState, corpus_identity, model_identity
from torch_lntm.inference.em.covariances import CovarianceSample, default_stride
from torch_lntm.inference.em.loop import ResumableFit, StopReason
from torch_lntm.inference.em.memory import DocumentTables
from torch_lntm.inference.em.processes import Processes
from torch_lntm.inference.em.schedule import step_documents
from torch_lntm.inference.em.shares import Shares, add_up_words
from torch_lntm.inference.em.start import document_topics, lda_epoch, start_concentration
from torch_lntm.inference.em.statistics import Statistics, added, expected_statistics
from torch_lntm.inference.em.tempering import Annealing
from torch_lntm.models import TopicModel
from torch_lntm.models.priors.prior import MIN_PROPORTION
from torch_lntm.posteriors import Draws
from torch_lntm.progress import tqdm

Start = Literal["lda", "documents", "model"]
B = TypeVar("B", DocumentBatch, tuple[Any, DocumentBatch], tuple[Any, DocumentBatch | None])

#: Step size of the stochastic phases: (updates + 1)^-exponent.
START_EXPONENT = 0.3
STEPWISE_EXPONENT = 0.5
#: Updates that the running statistics count for when the stepwise phase begins.
STEPWISE_OFFSET = 10
#: Updates of the parameters that the stochastic phases aim at, and bounds on their epochs.
START_UPDATES, START_EPOCHS = 1200, (3, 40)
STEPWISE_UPDATES, STEPWISE_EPOCHS = 80, (2, 10)
#: By how much a stochastic step may exceed the documents that are solved at once.
SLACK = 1.25
#: Numbers that warm starts with a row for each stored count may have to be kept between visits.
MAX_KEPT_NUMBERS = 2**28


@dataclass(frozen=True)
class VariationalSettings:
    """The settings of :class:`~torch_lntm.inference.VariationalEM`, whose docstring has them."""

    max_iterations: int
    tolerance: float
    start: Start
    start_epochs: int | None
    stepwise_epochs: int | None
    restarts: int
    annealing: Annealing | None
    covariance_stride: int | None
    max_docs: int | None
    seed: int
    progress: bool


class VariationalRun(ResumableFit):
    """One fit: settings applied to the non-empty documents of a corpus, in a random order.

    Args:
        model: The model, fitted in place.
        guide: The guide whose posterior the E-step solves.
        settings: The settings.
        corpus: The documents; at least one is not empty.
        processes: The processes that share the fit; by default this one alone.
    """

    not_returned_to = frozenset({"sites"})

    def __init__(
        self,
        model: TopicModel,
        guide: Guide[Any],
        settings: VariationalSettings,
        corpus: Corpus,
        processes: Processes | None = None,
    ) -> None:
        self.processes = processes or Processes(alone=True)
        self.model = model
        self.guide = guide
        self.settings = settings
        self.corpus = corpus
        occupied = np.flatnonzero(corpus.lengths)
        self.order: NDArray[np.int64] = np.random.default_rng(settings.seed).permutation(occupied)
        self.num_tokens = float(corpus.num_tokens)
        # How many documents are solved at once bounds memory; how many a stochastic step sees is
        # part of the algorithm, and does not depend on it.
        length = self.num_tokens / len(occupied)
        self.step_docs = step_documents(len(occupied), length, model.num_topics)
        self.start_concentration = start_concentration(model.num_topics, length)
        self.num_batches = math.ceil(len(occupied) / self.step_docs)
        stride = settings.covariance_stride or default_stride(guide, self.step_docs)
        self.covariances = CovarianceSample(guide, corpus, self.order, stride, settings.max_docs)
        self.max_docs = self.covariances.max_docs
        # The sum of two parts of a step, in float64, takes more memory than a few documents.
        if settings.max_docs is None and self.step_docs <= SLACK * self.max_docs:
            self.max_docs = max(self.max_docs, self.step_docs)
        self.shares = Shares(
            corpus,
            self.order,
            self.step_docs,
            self.covariances.stride,
            self.processes,
            device=model.device,
            dtype=model.dtype,
        )
        self.rows = self.shares.rows
        self.state = FitState()
        #: Those of the best restart; a fit that was continued from a file does not know them.
        self._best_statistics: Statistics | None = None

    # -- steps -----------------------------------------------------------------------------------

    def steps(self) -> Generator[dict[str, Any]]:
        """See :meth:`ResumableFit.steps`; the end of an epoch or iteration is one of a step."""
        state = self.state
        while state.phase in ("start", "stepwise"):
            if state.phase == "start":
                yield from self.start()
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

    def _record(self, objective: float, **more: Any) -> dict[str, Any]:
        state = self.state
        return {
            "phase": state.phase,
            "restart": state.restart,
            "iteration": state.step,
            "objective": objective,
            "unconverged": int(state.statistics.num_unconverged) if state.statistics else None,
            **more,
        }

    def _tracked(self, description: str, epochs: int | None, num_docs: int | None = None) -> tqdm:
        """A progress bar over documents, those of earlier epochs counted; None: until it ends."""
        num_docs, done = num_docs or self.shares.num_docs, self.state.step
        return tqdm(
            total=None if epochs is None else epochs * num_docs,
            initial=done * num_docs,
            desc=description,
            unit="doc",
            disable=not (self.settings.progress and self.processes.first) or done == epochs,
            smoothing=0.1,
        )

    @property
    def _documents(self) -> DocumentTables:
        return DocumentTables(self.state.documents, self.rows, self.model.device)

    # -- phases ----------------------------------------------------------------------------------

    def _epochs(self, chosen: int | None, updates: int, bounds: tuple[int, int]) -> int:
        if chosen is not None:
            return chosen
        return min(max(math.ceil(updates / self.num_batches), bounds[0]), bounds[1])

    def start(self) -> Iterator[dict[str, Any]]:
        """The first phase: topics, from the documents' proportions under them the prior, and means.

        Epoch by epoch, as :meth:`steps` goes on from it.
        """
        settings, state, model = self.settings, self.state, self.model
        if settings.start == "model":
            for batch in self.shares.batches(self.step_docs):
                space = model.prior.space(batch)
                start = self.guide.default_start(batch, space)
                if start is None or self.guide.starts_from == "entries":
                    start = space.centre.expand(batch.num_docs, -1)
                self._documents.write("means", batch, start)
            self._enter("stepwise")
            return
        epochs = 1
        if settings.start == "lda":
            epochs = self._epochs(settings.start_epochs, START_UPDATES, START_EPOCHS)
        if state.step == 0:
            seed = settings.seed + state.restart
            topics = document_topics(self.corpus, self.order, model.num_topics, seed)
            topics = topics.to(model.device)
            model.topics.set_(topics)
            # Word by word in memory, as the kernels produce it and the topics keep it.
            counts = topics.mT * (self.num_tokens / model.num_topics)
            state.word_counts = counts.to(model.dtype).contiguous().mT
            even = torch.tensor(1.0 / model.num_topics, dtype=model.dtype)
            self._documents.add("theta", even.expand(self.corpus.num_docs, model.num_topics))
        with self._tracked("start", epochs, len(self.order)) as bar:
            while state.step < epochs:
                assert state.word_counts is not None
                state.updates, objective = lda_epoch(
                    model,
                    self._counted(bar, self.shares.whole_steps()),
                    self._documents,
                    state.word_counts,
                    self.num_tokens,
                    updates=state.updates,
                    exponent=START_EXPONENT,
                    concentration=self.start_concentration,
                    first=state.step == 0,
                    processes=self.processes,
                )
                state.step += 1
                bar.set_postfix_str(f"{objective / self.num_tokens:.4f} nats/token")
                record = self._record(objective / self.num_tokens)
                if state.step == epochs:
                    # Before the record goes out: what is kept with it has a prior, and means.
                    self._start_prior()
                    self._enter("stepwise")
                yield record
                if state.phase == "stepwise":
                    return

    def _start_prior(self) -> None:
        """Set the prior, and the documents' means, from the proportions that the start found."""
        prior, documents, device = self.model.prior, self._documents, self.model.device

        def made() -> dict[str, Tensor]:
            sums: dict[str, Tensor] = {}
            for batch in self.shares.batches(self.step_docs):
                theta = documents.read("theta", batch)
                latents = prior.start_latents(theta)
                documents.write("means", batch, latents)
                logits = theta.clamp_min(MIN_PROPORTION).log()
                weights = torch.ones(1, len(theta), dtype=torch.float64, device=device)
                moments = Draws({prior.latent: latents[None]}, logits[None], weights)
                found = prior.statistics(moments, batch)
                sums = {name: sums[name] + x if sums else x for name, x in found.items()}
            return sums

        prior.start(float(len(self.order)), **self.processes.total("prior", made))
        del self.state.documents["theta"]

    def _stepwise(self) -> Iterator[dict[str, Any]]:
        """Stepwise EM with the model's own posterior."""
        settings, state, model = self.settings, self.state, self.model
        default = None if settings.annealing is None and settings.start != "model" else 0
        chosen = default if settings.stepwise_epochs is None else settings.stepwise_epochs
        epochs = self._epochs(chosen, STEPWISE_UPDATES, STEPWISE_EPOCHS)
        if state.step == 0:
            state.updates = STEPWISE_OFFSET
            state.statistics = None
        with self._tracked("stepwise EM", epochs) as bar:
            while state.step < epochs:
                objective: float | Tensor = 0.0
                unconverged: int | Tensor = 0
                with model.topics.updated_often():
                    for rows, batch in self._counted(bar, self.shares.steps()):
                        parts = batch.split(self.max_docs) if batch is not None else []
                        made = partial(self._expected, parts, self.guide.step_effort)
                        found = add_up_words(self.processes, model, self.corpus, rows, made)
                        objective += found.objective
                        unconverged += found.num_unconverged
                        # Each batch stands for the corpus; statistics are kept per token, so that
                        # batches of long and of short documents weigh alike in the topics.
                        scale = self.num_tokens / found.num_tokens
                        if state.statistics is None:
                            state.statistics = found.scaled(scale)
                        else:
                            step = float(state.updates) ** -STEPWISE_EXPONENT
                            state.statistics.blend_(found, step, scale)
                        state.updates += 1
                        state.statistics.maximise(model)
                state.step += 1
                found_objective = float(objective) / self.num_tokens
                bar.set_postfix_str(f"{found_objective:.4f} nats/token")
                yield self._record(found_objective, unconverged=int(unconverged))

    def _score(self) -> Iterator[dict[str, Any]]:
        """Keep this restart if it is the best so far; go to the next, or on with the best."""
        state = self.state
        state.step = 0
        with self._tracked("score", 1) as bar:
            batches = self._counted(bar, self.shares.batches(self.max_docs))
            state.statistics = statistics = self._sum(batches, self.guide.em_effort)
        score = self._objective(statistics)
        record = self._record(score)
        scores = [*self._objectives("score"), score]
        if scores.index(max(scores)) == state.restart:
            self._best_statistics = statistics
            state.best = {**self.snapshot(), "means": state.documents["means"].clone()}
        # What is kept of the documents is this restart's, whose topics are not the next one's.
        state.documents.clear()
        if state.restart + 1 < self.settings.restarts:
            state.restart, state.updates, state.statistics = state.restart + 1, 0, None
            self._enter("start")
        else:
            state.documents["means"] = state.best.pop("means")
            self.model.load_state_dict(state.best)
            state.statistics, self._best_statistics = self._best_statistics, None
            state.best = {}
            state.restart = scores.index(max(scores))
            self._enter("annealing")
        yield {**record, "phase": "score"}

    def _anneal(self) -> Iterator[dict[str, Any]]:
        """Full EM at rising inverse temperatures."""
        state, annealing = self.state, self.settings.annealing
        steps = annealing.steps if annealing else []
        with self._tracked("annealing", len(steps)) as bar:
            while state.step < len(steps):
                names = ("temperature", "topic_temperature")
                temperatures = dict(zip(names, steps[state.step], strict=True))
                if state.step > 0 and steps[state.step] != steps[state.step - 1]:
                    self._perturb_topics()
                batches = self._counted(bar, self.shares.batches(self.max_docs))
                state.statistics = self._sum(batches, self.guide.em_effort, temperatures)
                state.statistics.maximise(self.model)
                state.step += 1
                bar.set_postfix_str(f"T={temperatures['temperature']:g}")
                yield self._record(self._objective(state.statistics), **temperatures)
        self._enter("em")
        state.statistics = None

    def _perturb_topics(self) -> None:
        """Multiply the topics by noise, a stream of its own for every step of the annealing."""
        state, topics = self.state, self.model.topics
        assert self.settings.annealing is not None
        key = (self.settings.seed, state.restart, state.step)
        topics.set_(self.settings.annealing.perturbed(topics.mean_probs, key))

    def _em(self) -> Iterator[dict[str, Any]]:
        """Full EM; ends after an E-step, so parameters and posteriors belong together."""
        state = self.state
        with self._tracked("EM", None) as bar:
            while state.step <= self.settings.max_iterations:
                if self.converged():
                    return
                if state.statistics is not None:
                    state.statistics.maximise(self.model)
                batches = self._counted(bar, self.shares.batches(self.max_docs))
                state.statistics = self._sum(batches, self.guide.em_effort)
                objective, previous = self._objective(state.statistics), self._objectives("em")
                state.step += 1
                change = f", change {objective - previous[-1]:.1e}" if previous else ""
                bar.set_postfix_str(f"iteration {state.step}, {objective:.4f} nats/token{change}")
                yield self._record(objective)

    def _objectives(self, phase: str) -> list[float]:
        """The objectives of a phase so far, nats per token."""
        return [r["objective"] for r in self.state.history if r["phase"] == phase]

    def converged(self) -> bool:
        """Whether the last EM iteration changed the objective by no more than the tolerance.

        In either direction: the objectives of Taylor, Laplace and expectation propagation are no
        bounds, and an M-step can lower them a little where EM has come to rest.
        """
        match self._objectives("em"):
            case [*_, before, last]:
                return abs(last - before) <= self.settings.tolerance * abs(last)
        return False

    @property
    def averages(self) -> bool:
        """See :attr:`ResumableFit.averages`."""
        return self.state.phase == "stepwise"

    def end_reason(self) -> StopReason:
        """See :meth:`ResumableFit.end_reason`."""
        return "converged" if self.converged() else "max_iterations"

    # -- E-steps ---------------------------------------------------------------------------------

    def _counted(self, bar: tqdm, batches: Iterator[B]) -> Iterator[B]:
        for item in batches:
            yield item
            batch = item[1] if isinstance(item, tuple) else item
            if batch is not None:
                bar.update(batch.num_docs)

    def _expect(
        self, batch: DocumentBatch, temperatures: Mapping[str, Any], effort: Effort
    ) -> Statistics:
        """E-step of one batch from, and to, what is kept of its documents' posteriors."""
        self.processes.poll()
        documents, init = self._documents, None
        if self.guide.starts_from == "documents":
            init = documents.read("means", batch)
        elif "sites" in documents:
            init = documents.read("sites", batch)
        # EM always takes the same sample, so that it has an objective to converge on; the
        # stochastic phases take another at each epoch.
        turn = self.state.step if self.state.phase == "stepwise" else 0
        posterior, moments = self.covariances.solve(batch, init, turn, effort, **temperatures)
        documents.write("means", batch, posterior.mean)
        if self._keeps_entries:
            documents.write("sites", batch, posterior.warm_start)
        return expected_statistics(self.guide, batch, posterior, moments, **temperatures)

    @property
    def _keeps_entries(self) -> bool:
        """Whether there are warm starts with rows for stored counts, and room to keep them."""
        size = self.corpus.nnz * self.model.num_topics
        return self.guide.starts_from == "entries" and size <= MAX_KEPT_NUMBERS

    def _sum(
        self,
        batches: Iterable[DocumentBatch],
        effort: Effort,
        temperatures: Mapping[str, Any] = MappingProxyType({}),
    ) -> Statistics:
        """E-steps of some batches, their statistics added, with those of all processes."""
        made = partial(self._expected, batches, effort, temperatures)
        return self.processes.add_up("model", made, torch.float64)

    def _expected(
        self,
        batches: Iterable[DocumentBatch],
        effort: Effort,
        temperatures: Mapping[str, Any] = MappingProxyType({}),
    ) -> Statistics | None:
        """E-steps of some batches, their statistics added; None of no batch."""
        with self.model.topics.fixed():
            return added(self._expect(batch, temperatures, effort) for batch in batches)

    def _objective(self, statistics: Statistics) -> float:
        """Objective of the documents plus the parameters' log prior, nats per token."""
        return (float(statistics.objective) + float(self.model.log_prior())) / self.num_tokens

    # -- what an interruption goes back to -------------------------------------------------------

    def restore(self) -> None:
        """Go back to the best restart that has been scored, else to what was kept last."""
        super().restore()
        state = self.state
        if best := dict(state.best):
            state.documents.clear()
            state.documents["means"] = best.pop("means")
            self.model.load_state_dict(best)
            state.phase, state.statistics = "score", self._best_statistics
            scored = (r for r in state.history if r["phase"] == "score")
            state.history.append(max(scored, key=lambda r: r["objective"]))

    def identity(self) -> dict[str, Any]:
        """See :meth:`ResumableFit.identity`."""
        settings = self.settings
        return {
            **corpus_identity(self.corpus),
            **model_identity(self.model),
            "guide": repr(self.guide),
            "start": settings.start,
            "start_epochs": settings.start_epochs,
            "stepwise_epochs": settings.stepwise_epochs,
            "restarts": settings.restarts,
            "annealing": repr(settings.annealing),
            "stride": self.covariances.stride,
            "seed": settings.seed,
        }
