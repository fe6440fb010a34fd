"""Monte-Carlo EM: the documents' posteriors as chains that persist from epoch to epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, ConvergenceWarning, require, require_whole, warn
from torch_lntm.inference.chains.chains import FEWEST_TRANSITIONS, warn_of_stuck
from torch_lntm.inference.chains.document_hmc import DocumentHMC
from torch_lntm.inference.chains.kept import KeptChains
from torch_lntm.inference.chains.settings import HMCSettings, space_type_of
from torch_lntm.inference.em.chain_e_step import (
    ChainEStep,
    EpochStats,
    LastDraws,
    latent_spread,
    to_floats,
)
from torch_lntm.inference.em.checkpoint import FitState, corpus_identity, model_identity
from torch_lntm.inference.em.distributed import Processes
from torch_lntm.inference.em.documents import DocumentShard
from torch_lntm.inference.em.loop import MAX_FILLED_DOCS, Engine, ResumableFit
from torch_lntm.inference.em.result import MonteCarloResult, StopReason
from torch_lntm.inference.em.schedule import (
    PhaseSchedule,
    StepSizes,
    default_batch_docs,
    documents_per_block,
)
from torch_lntm.inference.em.start import Start, StartName
from torch_lntm.inference.em.statistics import Statistics, sum_statistics
from torch_lntm.inference.em.topic_ascent import TopicAscent
from torch_lntm.models import TopicModel
from torch_lntm.models.registry import record_settings
from torch_lntm.models.topics.topics import TopicUpdate
from torch_lntm.progress import tqdm

#: Makes the statistics of this process's documents of a mini-batch; None if it has none of them.
EStep = Callable[[EpochStats], Statistics | None]

#: The running statistics forget soon while chains and topics still depend on where they started.
MEMORY_EXPONENT = 0.3
#: Tokens per word of the vocabulary below which the search ends early: a higher objective would
#: cost other documents more than it gains.
WORD_TOKENS = 20
#: Epochs of a fit at most, unless asked otherwise, and of its warm-up.
MAX_EPOCHS, WARMUP_EPOCHS = 60, 10
#: Settings, besides those of the chains, that a fit must share with a checkpoint to continue it.
KEPT_SETTINGS = (
    *("num_transitions", "min_gain", "warmup_epochs", "batch_size"),
    *("topic_update", "learning_rate", "start"),
)


@dataclass(frozen=True)
class MonteCarloSettings:
    """The settings of :class:`MonteCarloEM`, whose docstring has them, and those of its chains."""

    chains: HMCSettings
    num_transitions: int
    max_epochs: int
    min_gain: float
    warmup_epochs: int
    batch_size: int | None
    topic_update: TopicUpdate
    learning_rate: float
    start: StartName
    progress: bool

    @property
    def seed(self) -> int:
        """Seed of the start, of the order of documents and of the chains."""
        return self.chains.seed


class MonteCarloEM(Engine[MonteCarloResult]):
    """Fit a topic model by Monte-Carlo EM, the algorithm of the *ZhuSuan LNTM tutorial*.

    Every document has chains of its own that go on from epoch to epoch. A mini-batch is visited by
    some Hamiltonian transitions of its chains (the E-step; see
    :class:`~torch_lntm.inference.DocumentHMC`) and an M-step follows from where they end. The first
    epoch moves chains only, with one M-step at its end. After it, statistics are a running average
    over mini-batches (*Cappé & Moulines 2009*), each standing for the corpus times
    num_docs/batch. It forgets fast at first, by documents, so that it hardly matters how many a
    mini-batch has. Once five epochs have gained little, or three quarters of ``max_epochs`` have
    gone by, its memory grows with every visit, for a third as many epochs as there were. The
    prior's parameters are at their closed-form maximisers. So are the topics, whose word counts
    have the topic of each word summed out. Normal topics take the tutorial's step instead: one of
    Adam a mini-batch, along the gradient of its word counts times num_docs/batch less the prior's
    (or, ``topic_update="exact"``, they too are at their maximiser).
    Where the model was given no ``pseudo_variance``, it has 10 from now on: draws vary more than
    modes, and M-steps are not to shrink them.

    Acceptance and step size belong to each chain of each document. They do not depend on how
    many documents share a mini-batch, and the chains depend on it through the M-steps alone.
    Step sizes adapt in the first epochs and are frozen after them. A chain that has not moved
    since then, in 10 transitions or more, takes no part in the statistics; one that has not at
    the end is reported.

    Args:
        model: The model to fit, in place.
        num_chains: Chains of each document.
        num_transitions: Transitions of each chain at a visit.
        num_steps: Leapfrog steps of a transition; by default the latent space's ``leapfrogs``, 8,
            or 16 under Dirichlet priors, whose chains mix more slowly.
        mass_matrix: As for :class:`~torch_lntm.inference.DocumentHMC`. Posterior ones are solved at
            every visit, from their last means, which costs several times as much as it gains.
        target_accept: Mean acceptance probability that adaptation aims at.
        max_epochs: Visits of every document at most. Four take about as long as variational EM,
            and predict about as well or, where documents are short, far better.
        min_gain: Nats a token by which the log likelihood at the draws must have risen in each of
            the last five epochs, on average, for the search to go on. Where it has not in five
            after the warm-up, what is left is averaging, and the result is ``"converged"``. Of a
            corpus with fewer than 20 tokens a word the search ends then in any case, since it
            would go on to fit these documents at the cost of others; the result is then
            ``"stopped_early"``. With 0 there are ``max_epochs`` epochs.
        warmup_epochs: Epochs in which step sizes adapt; by default 10, or half of ``max_epochs`` if
            that is less.
        batch_size: Documents of a mini-batch: small ones give more M-steps, large ones take less
            time a document. By default 320, or a quarter of the corpus if that is less; from 4,000
            documents on 8 % of it, up to 3,200; and more where documents are so short that these
            have fewer than 9,600 tokens.
        topic_update: ``"exact"``, or ``"gradient"`` for normal topics, whose default it is: exact
            M-steps take twice the time of an epoch and predict about as well.
        learning_rate: Adam's learning rate with ``"gradient"``. In epoch e, counted from 0, it is
            learning_rate / (1 + e/10).
        start: ``"lda"``, topics, prior and chains from the start of
            :class:`~torch_lntm.inference.VariationalEM`, with the covariance of the prior inflated
            by ``prior.inflate_covariance``; ``"documents"``, the same from less; ``"model"``, the
            model as it is and chains from prior draws.
        seed: Seed of the start, of the order of documents and of the chains.
        progress: Show a progress bar on standard error.

    Raises:
        IncompatibleGuideError: The model's prior has no latent space to sample in.
        ConfigError: A setting that cannot be used.
    """

    def __init__(
        self,
        model: TopicModel,
        *,
        num_chains: int = 1,
        num_transitions: int = 3,
        num_steps: int | None = None,
        mass_matrix: str = "prior",
        target_accept: float = 0.8,
        max_epochs: int = MAX_EPOCHS,
        min_gain: float = 0.003,
        warmup_epochs: int | None = None,
        batch_size: int | None = None,
        topic_update: TopicUpdate | None = None,
        learning_rate: float = 0.1,
        start: StartName = "lda",
        seed: int = 0,
        progress: bool = True,
    ) -> None:
        kernel = DocumentHMC(
            model,
            num_chains=num_chains,
            mass_matrix=mass_matrix,
            num_steps=space_type_of(model).leapfrogs if num_steps is None else num_steps,
            target_accept=target_accept,
            seed=seed,
        )
        require_whole(1, num_transitions=num_transitions, max_epochs=max_epochs)
        require_whole(1, warmup_epochs=warmup_epochs, batch_size=batch_size)
        require(0, min_gain=min_gain)
        if start not in get_args(StartName):
            raise ConfigError(f"start {start!r}; expected one of {', '.join(get_args(StartName))}")
        topic_update = TopicAscent.check(model.topics, topic_update)
        if not 0 < learning_rate < math.inf:
            raise ConfigError(f"learning_rate is {learning_rate}; expected a positive number")
        self.model = model
        self.settings = MonteCarloSettings(
            chains=kernel.settings,
            num_transitions=num_transitions,
            max_epochs=max_epochs,
            min_gain=min_gain,
            warmup_epochs=warmup_epochs or min((max_epochs + 1) // 2, WARMUP_EPOCHS),
            batch_size=batch_size,
            topic_update=topic_update,
            learning_rate=learning_rate,
            start=start,
            progress=progress,
        )

    def prepare(self, corpus: Corpus, processes: Processes) -> MonteCarloRun:
        """See :meth:`Engine.prepare`."""
        return MonteCarloRun(self.model, self.settings, corpus, processes)


class MonteCarloRun(ResumableFit[MonteCarloResult]):
    """One fit: settings applied to the documents of a corpus.

    Args:
        model: The model, fitted in place.
        settings: The settings.
        corpus: The documents; at least one is not empty.
        processes: The processes that share the fit. Defaults to this one alone.
    """

    def __init__(
        self,
        model: TopicModel,
        settings: MonteCarloSettings,
        corpus: Corpus,
        processes: Processes | None = None,
    ) -> None:
        self.processes = processes or Processes(alone=True)
        self.model = model
        record_settings(model, model.prior.expect_draws())
        self.settings = settings
        self.corpus = corpus
        self.num_docs = num_docs = len(corpus.nonempty)
        length = corpus.num_tokens / num_docs
        batch_size = settings.batch_size or default_batch_docs(num_docs, length)
        self.num_batches = math.ceil(num_docs / batch_size)
        self.block_docs = documents_per_block(num_docs, length)
        # Chains stay with their process, whichever mini-batches their documents come in.
        self.shard = DocumentShard(model, corpus, corpus.nonempty, self.processes)
        self._positions = torch.from_numpy(self.shard.order).to(model.device)
        transitions = settings.num_transitions, settings.warmup_epochs
        from_prior = settings.start == "model"
        self.e_step = ChainEStep(model, settings.chains, *transitions, from_prior=from_prior)
        self.phases = PhaseSchedule(
            settings.max_epochs,
            settings.warmup_epochs,
            settings.min_gain,
            small_corpus=corpus.num_tokens < WORD_TOKENS * corpus.num_words,
        )
        self.state = FitState(phase="warm-up")
        self.ascent: TopicAscent | None = None
        if settings.topic_update == "gradient":
            self.ascent = TopicAscent(model.topics, settings.learning_rate)

    # -- epochs ----------------------------------------------------------------------------------

    def steps(self) -> Generator[dict[str, Any]]:
        """See :meth:`ResumableFit.steps`; an epoch is a step."""
        settings, state, num_docs = self.settings, self.state, self.shard.num_docs
        if not state.step:
            self._start()
        with tqdm(
            total=self._last_epoch * num_docs,
            initial=state.step * num_docs,
            disable=not self.shows_progress or state.step >= self._last_epoch,
            smoothing=0.1,
            bar_format="{desc} |{bar}| {elapsed}<{remaining}{postfix}",
        ) as bar:
            while state.step < self._last_epoch:
                if state.step == settings.warmup_epochs:
                    # Whoever moves with the frozen step size will show it.
                    state.documents["moved"] = torch.zeros_like(state.documents["moved"])
                state.phase = self.phases.next_phase(state.phase, state.history)
                bar.total = self._last_epoch * num_docs
                bar.set_description_str(f"{state.phase}, epoch {state.step + 1}/{self._last_epoch}")
                record = self._epoch(bar)
                bar.set_postfix_str(
                    f"perplexity {record['perplexity']:.1f}, acc. {record['acceptance']:.2f}, "
                    f"mean {self.model.prior.latent} {record['latent_mean']:.1f} ± "
                    f"{record['latent_std']:.1f}"
                )
                yield record

    @property
    def _last_epoch(self) -> int:
        """The last epoch, as far as is known."""
        return self.phases.last_epoch(self.state.phase, self.state.history)

    @property
    def is_averaging(self) -> bool:
        """See :attr:`ResumableFit.is_averaging`."""
        return True

    @property
    def constant_tables(self) -> frozenset[str]:
        """See :attr:`ResumableFit.constant_tables`; solvers of mass matrices move the means."""
        shared = self.settings.chains.mass_matrix not in space_type_of(self.model).posterior_metrics
        return frozenset({"means"} if shared else ())

    def end_reason(self) -> StopReason:
        """See :meth:`ResumableFit.end_reason`."""
        return self.phases.stop_reason(self.state.phase, self.state.history)

    def _start(self) -> None:
        """Topics, prior and means from a start, or the means alone from the model."""
        settings, model, state = self.settings, self.model, self.state
        if settings.start == "model":
            for batch in self.corpus.batches(
                MAX_FILLED_DOCS, order=self.shard.order, device=model.device, dtype=model.dtype
            ):
                centre = model.prior.space(model.check_batch(batch)).centre
                self.documents.write("means", batch, centre.expand(batch.num_docs, -1))
            return
        start = Start(model, self.shard, self.processes, name=settings.start, seed=settings.seed)
        started = FitState()
        for _ in start.run(started, self.shows_progress):
            self.keep()
        state.documents |= started.documents
        self.shard.clear_cache()
        model.prior.inflate_covariance()
        self.keep()

    def _epoch(self, bar: tqdm) -> dict[str, Any]:
        """Visit every document once."""
        state, processes = self.state, self.processes
        stats, e_steps = EpochStats(self.num_batches), self._e_steps(bar)
        objective: float | Tensor = 0.0
        num_tokens, unconverged = 0.0, 0
        with self.model.topics.updated_often():
            if state.step == 0:
                # Chains move for a whole epoch before the first M-step.
                found = processes.add_up(
                    lambda: sum_statistics(e_step(stats) for _, e_step in e_steps), torch.float64
                )
                objective, num_tokens = found.objective, found.num_tokens
                unconverged = int(found.num_unconverged)
                self._begin_average(found)
            else:
                for batch, e_step in e_steps:
                    found = self.add_up_batch(batch, partial(e_step, stats))
                    objective += found.objective
                    num_tokens += found.num_tokens
                    unconverged += int(found.num_unconverged)
                    if found.num_docs:
                        self._maximise(found)
        # Once an epoch, since the host waits for a GPU. Chains do not move meanwhile.
        self.model.check_parameters()
        state.step += 1
        numbers = to_floats(
            {**stats.total(processes), **self._latent_spread(), "objective": objective}
        )
        # Where no chain takes part, that of all chains.
        log_likelihood, all_tokens = numbers.pop("log_likelihood"), self.corpus.num_tokens
        mean = numbers["objective"] / num_tokens if num_tokens else log_likelihood / all_tokens
        return {
            "phase": state.phase,
            "iteration": state.step,
            **numbers,
            **{name: int(numbers[name]) for name in ("divergences", "stuck")},
            "objective": mean,
            "perplexity": math.exp(-mean),
            "unconverged": unconverged,
        }

    def _e_steps(self, bar: tqdm) -> Iterator[tuple[DocumentBatch | None, EStep]]:
        """This process's documents of each mini-batch of an epoch, and what visits them."""
        generator = np.random.default_rng([self.settings.seed, self.state.step])
        order = generator.permutation(self.corpus.nonempty)
        # In the corpus's order: neighbours in memory.
        parts = [np.sort(part) for part in np.array_split(order, self.num_batches)]
        for part, batch in zip(parts, self.shard.batches(parts), strict=True):
            yield batch, partial(self._run_e_step, batch, len(part))
            if batch is not None:
                bar.update(batch.num_docs)

    def _run_e_step(
        self, batch: DocumentBatch | None, num_docs: int, stats: EpochStats
    ) -> Statistics | None:
        """Statistics of this process's documents of a mini-batch; None of no document."""
        self.processes.poll()
        if batch is None:
            return None
        share = batch.num_docs / num_docs
        everyone = self._include_unmoved
        return self.e_step.run(batch, self.documents, self.state.step, stats, share, everyone)

    @property
    def _include_unmoved(self) -> bool:
        """Whether no chain of this epoch can be stuck, as known without asking a GPU."""
        state = self.state
        # After only a few transitions, a chain that has not moved may just have been unlucky.
        # Dropping it would bias the statistics toward states that are easy to leave.
        if self.e_step.countable_transitions(state.step + 1) < FEWEST_TRANSITIONS:
            return True
        reset = state.step in (0, self.settings.warmup_epochs)
        return not reset and state.history[-1]["stuck"] == 0

    def _latent_spread(self) -> dict[str, Tensor]:
        """How the latent variables of all documents spread."""
        rows = self.shard.rows.find(self._positions)
        share = self.shard.num_docs / self.num_docs
        return latent_spread(
            self.state.documents, self.model.prior.latent, rows, share, self.processes
        )

    # -- M-step ----------------------------------------------------------------------------------

    def _begin_average(self, found: Statistics) -> None:
        """Set the parameters from the statistics of the first epoch."""
        state = self.state
        if found.num_docs:
            state.statistics = found.scaled(self.num_docs / found.num_docs)
            # In the type of mini-batches': in float64 updates take four times as long.
            state.statistics.word_counts = state.statistics.word_counts.to(self.model.dtype)
            state.statistics.maximise(self.model)
            state.updates = self.num_batches

    def _maximise(self, found: Statistics) -> None:
        """Update the parameters from the statistics of a mini-batch."""
        state = self.state
        scale = self.num_docs / found.num_docs
        state.updates += 1
        if state.statistics is None:
            state.statistics = found.scaled(scale)
        else:
            state.statistics.blend_(found, self._weight(), scale)
        if self.ascent is None:
            state.statistics.maximise(self.model)
            return
        state.statistics.maximise_prior(self.model)
        state.optimizer = self.ascent.step(scale * found.word_counts, state.step)

    def _weight(self) -> float:
        """The weight of the present mini-batch in the running statistics."""
        start = self.phases.averaging_start(self.state.phase, self.state.history)
        until = math.inf if start is None else start * self.num_docs
        size = self.num_docs / self.num_batches
        step_sizes = StepSizes(self.block_docs, MEMORY_EXPONENT, until)
        return step_sizes.weight((self.state.updates - 1) * size, size)

    # -- keeping state ---------------------------------------------------------------------------

    def after_resume(self) -> None:
        """Hand the optimiser its state back."""
        if self.ascent is not None:
            self.ascent.resume(self.state.optimizer)

    def identity(self) -> dict[str, Any]:
        """See :meth:`ResumableFit.identity`."""
        settings = self.settings
        return {
            "engine": "MonteCarloEM",
            **corpus_identity(self.corpus),
            **model_identity(self.model),
            **vars(settings.chains),
            **{name: getattr(settings, name) for name in KEPT_SETTINGS},
        }

    def result(self, stop_reason: StopReason) -> MonteCarloResult:
        """The result at the present state."""
        state, prior = self.state, self.model.prior
        tables = self.collect("means", *(name for name in state.documents if LastDraws.needs(name)))
        empty = torch.from_numpy(self.corpus.lengths == 0)
        if not self.processes.first:
            empty = empty[:0]
        found = LastDraws.of(tables, empty, self.settings.chains.num_chains)
        found.rotate(prior.canonicalise_())
        means = self.with_prior_means(found.means(tables.get("means"), prior.latent))
        if found.latents and self.processes.first:
            self._warn(found.moved)
        return MonteCarloResult(
            history=state.history,
            stop_reason=stop_reason,
            num_unconverged=state.history[-1]["unconverged"] if found.latents else self.num_docs,
            means=means,
            objective_name=f"log likelihood at draws of {prior.latent}",
            seconds=state.seconds,
            statistics=state.statistics,
            posterior=self._kept_chains(found),
            corpus=self.corpus,
            chains=found.latents,
            moved=found.moved,
        )

    def _kept_chains(self, found: LastDraws) -> KeptChains:
        """The chains, to be continued where they have gone on after their warm-up."""
        settings, num_epochs = self.settings, self.state.step
        usable = found.moved.all(0)
        if num_epochs <= settings.warmup_epochs:
            usable = torch.zeros_like(usable)
        num_transitions = num_epochs * settings.num_transitions
        last = found.latents, found.step_size, usable, num_transitions
        return KeptChains.of(self.model, settings.chains, self.corpus, *last)

    def _warn(self, moved: Tensor) -> None:
        """Warn of chains that are stuck, and of step sizes that no longer fit."""
        state, index = self.state, torch.from_numpy(self.corpus.nonempty)
        advice = "statistics and means leave them out; use more epochs or num_transitions"
        num_transitions = self.e_step.countable_transitions(state.step)
        warn_of_stuck(moved[:, index], index, num_transitions, advice)
        acceptance = state.history[-1]["acceptance"]
        target = self.settings.chains.target_accept
        if acceptance < target / 2.0:
            warn(
                f"chains accepted {acceptance:.2f} of their proposals in the last epoch, where "
                f"{target} was aimed at: posteriors have become sharper since step sizes were "
                "frozen; use more warmup_epochs",
                ConvergenceWarning,
            )
