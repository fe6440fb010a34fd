"""One run of variational EM: its phases, what it keeps of them, and where it goes on from."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import NumericalError
from torch_lntm.guides import DirichletPosterior, Effort
from torch_lntm.inference.checkpoint import FitState, read_checkpoint, write_checkpoint
from torch_lntm.inference.start import document_topics, lda_epoch
from torch_lntm.inference.statistics import Statistics, sufficient_statistics

if TYPE_CHECKING:
    from torch_lntm.inference.variational_em import VariationalEM

StopReason = Literal["converged", "max_iterations", "interrupted"]

#: Step size of the stochastic phases: (updates + 1)^-exponent.
START_EXPONENT = 0.3
STEPWISE_EXPONENT = 0.5
#: Updates that the running statistics count for when the stepwise phase begins.
STEPWISE_OFFSET = 10
#: Updates of the parameters that the stochastic phases aim at, and bounds on their epochs.
START_UPDATES, START_EPOCHS = 320, (3, 40)
STEPWISE_UPDATES, STEPWISE_EPOCHS = 80, (2, 10)
#: Batches of a stochastic epoch at least, and documents of one at most.
MIN_BATCHES, MAX_STEP_DOCS = 8, 1024
#: Numbers, such as covariances' entries, that the documents solved at once may need by default.
MAX_NUMBERS = 2**23
#: Numbers that posteriors' sites may have to be kept between visits of their documents.
MAX_KEPT_NUMBERS = 2**28
#: Corpora with at most this many stored counts keep their batches between epochs.
MAX_CACHED_COUNTS = 4_000_000


class FitRun:
    """One fit: the engine's settings applied to the documents of a corpus in a given order."""

    def __init__(self, engine: VariationalEM, corpus: Corpus, order: np.ndarray) -> None:
        self.engine = engine
        self.model = engine.model
        self.guide = engine.guide
        self.source = corpus
        self.corpus = corpus = corpus[order]
        self.num_tokens = float(corpus.num_tokens)
        # How many documents are solved at once bounds memory; how many a stochastic step sees is
        # part of the algorithm, and does not depend on it.
        size = self.guide.numbers_per_document(corpus.nnz / corpus.num_docs)
        self.max_docs = engine.max_docs or min(max(16, int(MAX_NUMBERS / size)), MAX_STEP_DOCS)
        self.step_docs = min(MAX_STEP_DOCS, math.ceil(corpus.num_docs / MIN_BATCHES))
        self.num_batches = math.ceil(corpus.num_docs / self.step_docs)
        self._batches: dict[int, list[DocumentBatch]] = {}
        self.state = self._fresh(0)
        self._kept: tuple[dict[str, Tensor], Tensor, str] = ({}, self.state.latent, "start")

    # -- epochs, iterations and what is kept of them -------------------------------------------

    def fit(self, checkpoint: Path | None, checkpoint_seconds: float) -> StopReason:
        """Run all phases; on Ctrl-C return with the last finished step's parameters."""
        if checkpoint is not None and checkpoint.exists():
            self.state, parameters = read_checkpoint(
                checkpoint, self._identity(), self.model.device
            )
            self.model.load_state_dict(parameters)
        self._keep()
        began = saved = time.monotonic()
        before = self.state.seconds
        stop_reason: StopReason = "max_iterations"
        steps = self._steps()
        try:
            for record in steps:
                self.state.seconds = before + time.monotonic() - began
                record = {**record, "seconds": round(self.state.seconds, 3)}
                if not math.isfinite(record["objective"]):
                    raise NumericalError(
                        f"the objective became {record['objective']} in phase {record['phase']}, "
                        f"iteration {record['iteration']}"
                    )
                self.state.history.append(record)
                self._keep()
                if checkpoint is not None and time.monotonic() - saved >= checkpoint_seconds:
                    write_checkpoint(checkpoint, self.state, self._snapshot(), self._identity())
                    saved = time.monotonic()
            if self._converged():
                stop_reason = "converged"
        except KeyboardInterrupt:
            self._restore()
            stop_reason = "interrupted"
        finally:
            steps.close()
        self.state.seconds = before + time.monotonic() - began
        return stop_reason

    def _steps(self) -> Generator[dict[str, Any]]:
        """Yield a record at the end of every epoch and iteration, from the present state on."""
        engine, state = self.engine, self.state
        while state.phase in ("start", "stepwise"):
            if state.phase == "start":
                yield from self._start()
            yield from self._stepwise()
            if engine.restarts > 1:
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
            "unconverged": state.statistics.num_unconverged if state.statistics else None,
            **more,
        }

    def batches(self, max_docs: int) -> Iterator[DocumentBatch]:
        """All documents, in batches on the model's device."""
        if max_docs in self._batches:
            return iter(self._batches[max_docs])
        made = self.corpus.batches(
            max_docs=max_docs, device=self.model.device, dtype=self.model.dtype
        )
        if self.corpus.nnz <= MAX_CACHED_COUNTS:
            # One partition at a time: the stochastic phases' gives way to EM's.
            self._batches = {max_docs: list(made)}
            return iter(self._batches[max_docs])
        return iter(made)

    def _tracked(self, description: str, epochs: int | None) -> tqdm[Any]:
        """A progress bar over documents, those of earlier epochs counted; None: until it ends."""
        num_docs, done = self.corpus.num_docs, self.state.step
        return tqdm(
            total=None if epochs is None else epochs * num_docs,
            initial=done * num_docs,
            desc=description,
            unit="doc",
            disable=not self.engine.progress or done == epochs,
            smoothing=0.1,
        )

    # -- phases --------------------------------------------------------------------------------

    def _fresh(self, restart: int) -> FitState:
        num_docs, num_topics = self.corpus.num_docs, self.model.num_topics
        theta = torch.full((num_docs, num_topics), 1.0 / num_topics, dtype=self.model.dtype)
        return FitState(latent=theta, restart=restart)

    def _epochs(self, chosen: int | None, updates: int, bounds: tuple[int, int]) -> int:
        if chosen is not None:
            return chosen
        return min(max(math.ceil(updates / self.num_batches), bounds[0]), bounds[1])

    def _start(self) -> Iterator[dict[str, Any]]:
        """Topics, and from the documents' proportions under them the prior."""
        engine, state, model = self.engine, self.state, self.model
        if engine.start == "model":
            state.latent = model.prior.mean.detach().cpu().repeat(self.corpus.num_docs, 1)
            self._enter("stepwise")
            return
        epochs = 1
        if engine.start == "lda":
            epochs = self._epochs(engine.start_epochs, START_UPDATES, START_EPOCHS)
        if state.step == 0:
            seed = engine.seed + state.restart
            topics = document_topics(self.corpus, model.num_topics, seed).to(model.device)
            model.topics.set_(topics)
            # Word by word in memory, as the kernels produce it and the topics keep it.
            state.word_counts = (topics.mT * (self.num_tokens / model.num_topics)).contiguous().mT
        with self._tracked("start", epochs) as bar:
            while state.step < epochs:
                assert state.word_counts is not None
                state.updates, objective = lda_epoch(
                    model,
                    self._counted(bar, self.step_docs),
                    state.latent,
                    state.word_counts,
                    self.num_tokens,
                    updates=state.updates,
                    exponent=START_EXPONENT,
                    first=state.step == 0,
                )
                state.step += 1
                bar.set_postfix_str(f"{objective / self.num_tokens:.4f} nats/token")
                record = self._record(objective / self.num_tokens)
                if state.step == epochs:
                    # Before the record goes out: what is kept with it has a prior, and means.
                    state.latent = model.prior.start_from_theta(state.latent)
                    self._enter("stepwise")
                    yield record
                    return
                yield record

    def _stepwise(self) -> Iterator[dict[str, Any]]:
        """Stepwise EM with the model's own posterior."""
        engine, state, model = self.engine, self.state, self.model
        default = None if engine.annealing is None and engine.start != "model" else 0
        chosen = default if engine.stepwise_epochs is None else engine.stepwise_epochs
        epochs = self._epochs(chosen, STEPWISE_UPDATES, STEPWISE_EPOCHS)
        if state.step == 0:
            state.updates = STEPWISE_OFFSET
            state.statistics = None
        with self._tracked("stepwise EM", epochs) as bar:
            while state.step < epochs:
                objective, unconverged = 0.0, 0
                for batch in self._counted(bar, self.step_docs):
                    found = self._sum(batch.split(self.max_docs), self.guide.step_effort)
                    objective += found.objective
                    unconverged += found.num_unconverged
                    # Each batch stands for the corpus; statistics are kept per token, so that
                    # batches of long and of short documents weigh alike in the topics.
                    scale = self.num_tokens / found.num_tokens
                    if state.statistics is None:
                        state.statistics = found.scaled(scale)
                    else:
                        step = float(state.updates) ** -STEPWISE_EXPONENT
                        state.statistics = state.statistics.blended(found.scaled(scale), step)
                    state.updates += 1
                    state.statistics.maximise(model)
                state.step += 1
                bar.set_postfix_str(f"{objective / self.num_tokens:.4f} nats/token")
                yield self._record(objective / self.num_tokens, unconverged=unconverged)

    def _score(self) -> Iterator[dict[str, Any]]:
        """Keep this restart if it is the best so far; go to the next, or on with the best."""
        state = self.state
        state.step = 0
        with self._tracked("score", 1) as bar:
            batches = self._counted(bar, self.max_docs)
            state.statistics = statistics = self._sum(batches, self.guide.em_effort)
        score = self._objective(statistics)
        record = self._record(score)
        scores = [*self._objectives("score"), score]
        if scores.index(max(scores)) == state.restart:
            state.best = {**self._snapshot(), "latent": state.latent.clone()}
        if state.restart + 1 < self.engine.restarts:
            fresh = self._fresh(state.restart + 1)
            state.latent, state.restart, state.updates = fresh.latent, fresh.restart, 0
            state.statistics = state.sites = None
            self._enter("start")
        else:
            state.latent = state.best.pop("latent")
            self.model.load_state_dict(state.best)
            # The sites are the last restart's, whose topics are not these.
            state.best, state.sites = {}, None
            state.restart = scores.index(max(scores))
            self._enter("annealing")
        yield {**record, "phase": "score"}

    def _anneal(self) -> Iterator[dict[str, Any]]:
        """Full EM at rising inverse temperatures."""
        state = self.state
        steps = self.engine.annealing.steps if self.engine.annealing else []
        with self._tracked("annealing", len(steps)) as bar:
            while state.step < len(steps):
                names = ("temperature", "topic_temperature")
                temperatures = dict(zip(names, steps[state.step], strict=True))
                if state.step > 0 and steps[state.step] != steps[state.step - 1]:
                    self._perturb_topics()
                state.statistics = self._sum(
                    self._counted(bar, self.max_docs), self.guide.em_effort, temperatures
                )
                state.statistics.maximise(self.model)
                state.step += 1
                bar.set_postfix_str(f"T={temperatures['temperature']:g}")
                yield self._record(self._objective(state.statistics), **temperatures)
        self._enter("em")
        state.statistics = None

    def _perturb_topics(self) -> None:
        """Multiply the topics by noise, a stream of its own for every step of the annealing."""
        engine, topics = self.engine, self.model.topics
        assert engine.annealing is not None
        generator = np.random.default_rng([engine.seed, self.state.restart, self.state.step])
        noise = torch.from_numpy(generator.standard_normal(tuple(topics.probs.shape)))
        topics.set_(topics.probs * (engine.annealing.noise * noise).exp().to(topics.probs))

    def _em(self) -> Iterator[dict[str, Any]]:
        """Full EM; ends after an E-step, so parameters and posteriors belong together."""
        engine, state = self.engine, self.state
        with self._tracked("EM", None) as bar:
            while state.step <= engine.max_iterations:
                if self._converged():
                    return
                if state.statistics is not None:
                    state.statistics.maximise(self.model)
                batches = self._counted(bar, self.max_docs)
                state.statistics = self._sum(batches, self.guide.em_effort)
                objective, previous = self._objective(state.statistics), self._objectives("em")
                state.step += 1
                change = f", change {objective - previous[-1]:.1e}" if previous else ""
                bar.set_postfix_str(f"iteration {state.step}, {objective:.4f} nats/token{change}")
                yield self._record(objective)

    def _objectives(self, phase: str) -> list[float]:
        """The objectives of a phase so far, nats per token."""
        return [r["objective"] for r in self.state.history if r["phase"] == phase]

    def _converged(self) -> bool:
        """Whether the last EM iteration changed the objective by no more than the tolerance."""
        objectives = self._objectives("em")
        if len(objectives) < 2:
            return False
        change = abs(objectives[-1] - objectives[-2])
        return change <= self.engine.tolerance * abs(objectives[-1])

    # -- E-steps -------------------------------------------------------------------------------

    def _counted(self, bar: tqdm[Any], max_docs: int) -> Iterator[DocumentBatch]:
        for batch in self.batches(max_docs):
            yield batch
            bar.update(batch.num_docs)

    def _expect(
        self,
        batch: DocumentBatch,
        temperatures: Mapping[str, Any],
        effort: Effort,
    ) -> Statistics:
        """E-step of one batch from, and to, what is kept of its documents' posteriors."""
        rows = batch.index.cpu()
        sites = self._sites(rows)
        if self.guide.keeps_sites:
            init = None if sites is None else sites.to(self.model.device)
        else:
            init = self.state.latent[rows]
        posterior = self.guide.posterior(batch, init, **temperatures, **effort)
        self.state.latent[rows] = posterior.mean.to(self.state.latent)
        if sites is not None and isinstance(posterior, DirichletPosterior):
            assert posterior.sites is not None
            sites.copy_(posterior.sites)
        return sufficient_statistics(self.guide, batch, posterior, **temperatures)

    def _sites(self, rows: Tensor) -> Tensor | None:
        """The kept sites of the documents ``rows``, which follow one another, to read and write.

        None where the guide keeps none, or there would be too many to keep.
        """
        state, size = self.state, (self.corpus.nnz, self.model.num_topics)
        if not self.guide.keeps_sites or size[0] * size[1] > MAX_KEPT_NUMBERS:
            return None
        if state.sites is None:
            state.sites = torch.zeros(size, dtype=self.model.dtype)
        offsets = self.corpus.row_offsets
        return state.sites[int(offsets[rows[0]]) : int(offsets[rows[-1] + 1])]

    def _sum(
        self,
        batches: Iterable[DocumentBatch],
        effort: Effort,
        temperatures: Mapping[str, Any] = MappingProxyType({}),
    ) -> Statistics:
        """E-steps of some batches, their statistics added."""
        with self.model.topics.fixed():
            parts = (self._expect(batch, temperatures, effort) for batch in batches)
            return reduce(Statistics.__add__, parts)

    def _objective(self, statistics: Statistics) -> float:
        """Objective of the documents plus the parameters' log prior, nats per token."""
        return (statistics.objective + float(self.model.log_prior())) / self.num_tokens

    # -- keeping state -------------------------------------------------------------------------

    def _keep(self) -> None:
        """Remember the end of this epoch or iteration, which Ctrl-C goes back to."""
        self._kept = (self._snapshot(), self.state.latent.clone(), self.state.phase)

    def _restore(self) -> None:
        """Go back to the best restart that has been scored, else to what was kept last."""
        state = self.state
        if state.best:
            best = dict(state.best)
            self._kept = (best, best.pop("latent"), "score")
            scored = [r for r in state.history if r["phase"] == "score"]
            state.history.append(max(scored, key=lambda r: r["objective"]))
        parameters, state.latent, state.phase = self._kept
        self.model.load_state_dict(parameters)

    def _snapshot(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint must agree on to be continued by this fit."""
        engine = self.engine
        return {
            "corpus": self.source.fingerprint(),
            "model": self.model.config,
            "guide": repr(self.guide),
            "start": engine.start,
            "start_epochs": engine.start_epochs,
            "stepwise_epochs": engine.stepwise_epochs,
            "restarts": engine.restarts,
            "annealing": repr(engine.annealing),
            "seed": engine.seed,
        }
