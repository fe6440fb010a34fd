"""Monte-Carlo EM, whose E-steps advance Markov chains that each document keeps between epochs."""

from __future__ import annotations

import math
import sys
from collections.abc import Generator, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_lntm.budget import release_memory
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, knows_its_options, require, require_one, require_whole
from torch_lntm.guides.table import guides_suited
from torch_lntm.inference.chains.chains import (
    FEWEST_TRANSITIONS,
    Chains,
    initial_latents,
    warn_of_low_acceptance,
    warn_of_stuck,
)
from torch_lntm.inference.chains.document_hmc import DocumentHMC
from torch_lntm.inference.chains.kept import KeptChains, signatures
from torch_lntm.inference.em.checkpoint import FitState, model_identity
from torch_lntm.inference.em.distributed import Processes
from torch_lntm.inference.em.documents import shard_of
from torch_lntm.inference.em.epochs import (
    ADAPTATION,
    CHAIN,
    STEP_SIZE,
    EpochStats,
    last_draws,
    mean_draws,
    to_floats,
)
from torch_lntm.inference.em.loop import Engine, ResumableFit
from torch_lntm.inference.em.result import MonteCarloResult, StopReason
from torch_lntm.inference.em.schedule import (
    PhaseSchedule,
    default_batch_docs,
    documents_per_block,
    running_weight,
)
from torch_lntm.inference.em.start import Start, StartName, check_start, random_order
from torch_lntm.inference.em.statistics import Statistics, chain_statistics, sum_statistics
from torch_lntm.kernels import fused
from torch_lntm.kernels.threads import ahead
from torch_lntm.models import TopicModel, Topics
from torch_lntm.models.registry import record_settings
from torch_lntm.models.topics.topics import TopicUpdate
from torch_lntm.progress import tqdm
from torch_lntm.sampling.step_sizes import DualAveraging

#: Smallest number of tokens per vocabulary word for a long search. On a smaller corpus it would
#: overfit, so that predictions of new documents get worse.
WORD_TOKENS = 20
#: Default number of warm-up epochs.
WARMUP_EPOCHS = 10
#: Default of ``min_gain``, without and with keywords. With them, a longer search places documents
#: no better.
MIN_GAIN, KEYWORD_MIN_GAIN = 0.0002, 0.003
#: Number of epochs after which the learning rate has fallen by half.
LEARNING_DELAY = 10.0
#: Number of tokens times topics from which a fit is slow enough for advice about its speed.
SLOW_WORK = 5_000_000
#: Number of mini-batches after which free memory returns to the system.
RELEASED = 16
#: Settings of a fit that must agree with its checkpoint, besides the settings of the chains.
KEPT_SETTINGS = (
    *("num_transitions", "min_gain", "warmup_epochs", "batch_size"),
    *("topic_update", "learning_rate", "start"),
)


class MonteCarloEM(Engine[MonteCarloResult]):
    """Fit a topic model by Monte-Carlo EM, the algorithm of the *ZhuSuan LNTM tutorial*.

    Each document owns one or more Markov chains that persist across epochs. For a mini-batch, the
    E-step advances the chains of its documents by a few Hamiltonian transitions
    (:class:`~torch_lntm.inference.DocumentHMC`), and the M-step plugs the resulting draws into the
    usual sufficient statistics. The chains spend the first epoch moving, with a single M-step at
    its end. From then on every mini-batch is followed by an M-step, which uses a running average of
    the statistics (*Cappé & Moulines 2009*) with each mini-batch scaled up to the whole corpus.

    A fit has three phases. During *warm-up* the chains adapt their step sizes, which are then
    frozen for *sampling*. These two phases search for the topics, so the running average forgets
    quickly; its memory is counted in documents and therefore hardly depends on the mini-batch size.
    Once the objective stops rising (``min_gain``), or after 3/4 of ``max_epochs``, *averaging*
    begins: the memory now grows with every visit, for a third as many epochs as the search took.

    An M-step sets the prior's parameters, and most kinds of topics, to their maximisers in closed
    form, using expected counts that sum out the topic of each word. Normal topics follow the
    tutorial instead: one Adam step per mini-batch, along the gradient of the scaled counts and of
    the topics' prior. Because draws vary more than modes do, the default ``pseudo_variance`` of the
    prior rises to 10; if documents have at least as many tokens as there are topics, it is the
    average variance of the fitted logits, kept between 0.1 and 10.

    Every chain has its own step size, so that the other documents of its mini-batch reach it only
    through the M-steps. A chain that has not moved in 10 or more transitions since its step size
    was frozen is left out of the statistics, and ``fit`` warns of those still stuck at the end,
    naming their documents.

    Args:
        model: The model to fit, in place.
        num_chains: Number of chains of each document.
        num_transitions: Number of transitions each chain makes when its document is visited.
        num_steps: Number of leapfrog steps of a transition. The default is 8, or 16 for Dirichlet
            priors, whose chains mix more slowly.
        mass_matrix: ``"prior"`` or ``"identity"``, as for
            :class:`~torch_lntm.inference.DocumentHMC`. A mass matrix from a posterior would have to
            be solved at every visit, which costs several times the time it saves.
        target_accept: Mean acceptance probability that the adaptation aims at.
        max_epochs: Maximum number of epochs, each of which visits every document once. The default
            is 45, or 60 for Dirichlet priors. As few as four take less time than variational EM and
            predict about as well, or far better if the documents are short.
        min_gain: The search ends when the log likelihood at the draws has risen by less than this,
            in nats per token and epoch, on average over the last five epochs after warm-up. The
            ``stop_reason`` is then ``"converged"``. A corpus with fewer than 20 tokens per word of
            the vocabulary would overfit in a long search, so its search ends as soon as there are
            five such epochs (``"stopped_early"``). 0 runs all ``max_epochs``. The default is
            0.0002, and 0.003 for a model with keywords.
        warmup_epochs: Number of epochs during which step sizes adapt. The default is 10, or half of
            ``max_epochs`` if this is less.
        batch_size: Number of documents in a mini-batch. Small ones give more M-steps, whereas large
            ones take less time per document. The default is 8 % of the corpus, between 320 and
            3,200 documents. If documents are short it grows until a mini-batch has 9,600 tokens,
            but never beyond 1/4 of the corpus.
        topic_update: ``"exact"`` for M-steps, ``"gradient"`` for steps of Adam. The default is the
            first of ``model.topics.updates``: ``"gradient"`` for normal topics, whose exact M-steps
            would double the time of an epoch and predict about as well, and ``"exact"`` for all
            other topics of this library.
        learning_rate: Adam's learning rate for ``"gradient"``. In epoch e, counted from 0, the rate
            is learning_rate / (1 + e/10).
        start: ``"lda"`` takes topics, prior and chains from the start of
            :class:`~torch_lntm.inference.VariationalEM`, and inflates the covariance by
            ``prior.inflate_covariance``. ``"documents"`` makes only one epoch of it, from random
            documents. ``"vectors"`` takes topics from clusters of documents by their word vectors,
            which suits up to some thousand short documents, and texts in several languages.
            ``"model"`` keeps the parameters of the model and draws the chains from the prior. The
            chains of an earlier fit, ``result.chains``, also keep the parameters, and go on in the
            documents that the fit had. Others start from the prior. A few epochs then follow a
            corpus that has changed a little.
        seed: Seed of the start, of the order of documents and of the chains.
        progress: Whether to show a progress bar on standard error.

    Raises:
        IncompatibleGuideError: No guide suits the latent space of the model's prior.
        ConfigError: A setting is invalid.

    Example:
        >>> chain_model = lntm.models.ctm(num_topics=4, num_words=train.num_words, seed=0)
        >>> engine = lntm.inference.MonteCarloEM(chain_model, max_epochs=4, progress=False)
        >>> fit = engine.fit(train[:60])
        >>> fit.stop_reason, len(fit.history)
        ('max_iterations', 4)
        >>> fit.chains  # to continue, for lntm.inference.theta_draws
        KeptChains(1 chains of ... documents)
    """

    @knows_its_options
    def __init__(
        self,
        model: TopicModel,
        *,
        num_chains: int = 1,
        num_transitions: int = 3,
        num_steps: int | None = None,
        mass_matrix: str = "prior",
        target_accept: float = 0.8,
        max_epochs: int | None = None,
        min_gain: float | None = None,
        warmup_epochs: int | None = None,
        batch_size: int | None = None,
        topic_update: TopicUpdate | None = None,
        learning_rate: float = 0.1,
        start: StartName | KeptChains = "lda",
        seed: int = 0,
        progress: bool = True,
    ) -> None:
        require_one(("prior", "identity"), mass_matrix=mass_matrix)
        suited = guides_suited(model)
        kernel = DocumentHMC(
            model,
            num_chains=num_chains,
            mass_matrix=mass_matrix,
            num_steps=suited.leapfrogs if num_steps is None else num_steps,
            target_accept=target_accept,
            seed=seed,
        )
        require_whole(1, num_transitions=num_transitions, max_epochs=max_epochs)
        require_whole(1, warmup_epochs=warmup_epochs, batch_size=batch_size)
        max_epochs = suited.epochs if max_epochs is None else max_epochs
        if min_gain is None:
            min_gain = MIN_GAIN if model.topics.keywords is None else KEYWORD_MIN_GAIN
        require(0, min_gain=min_gain)
        self.kept = start if isinstance(start, KeptChains) else None
        if isinstance(start, KeptChains):
            start.check(model, num_chains)
            start = "model"
        check_start(start, model)
        updates = model.topics.updates
        topic_update = topic_update or updates[0]
        if topic_update not in updates:
            raise ConfigError(
                f"topic_update {topic_update!r}; expected one of {', '.join(updates)} for "
                f"{type(model.topics).__name__}"
            )
        if not 0 < learning_rate < math.inf:
            raise ConfigError(f"learning_rate is {learning_rate}; expected a positive number")
        self.model = model
        self.chains, self.num_transitions = kernel.settings, num_transitions
        self.max_epochs, self.min_gain = max_epochs, min_gain
        self.warmup_epochs = warmup_epochs or min((max_epochs + 1) // 2, WARMUP_EPOCHS)
        self.batch_size, self.start = batch_size, start
        self.topic_update, self.learning_rate = topic_update, learning_rate
        self.seed, self.progress = seed, progress

    def prepare(self, corpus: Corpus, processes: Processes) -> MonteCarloRun:
        """See :meth:`Engine.prepare`."""
        return MonteCarloRun(self, corpus, processes)


class MonteCarloRun(ResumableFit[MonteCarloResult]):
    """One fit of a corpus by :class:`MonteCarloEM`.

    Args:
        engine: The engine.
        corpus: The documents. At least one has words.
        processes: The processes of the fit. Defaults to this process alone.
    """

    averaging = ("warm-up", "sampling", "averaging")
    not_copied = frozenset({"means"})

    def __init__(
        self, engine: MonteCarloEM, corpus: Corpus, processes: Processes | None = None
    ) -> None:
        super().__init__(engine, corpus, processes)
        model, settings = engine.model, engine
        record_settings(model, model.prior.expect_draws())
        self.num_docs = num_docs = corpus.whole.num_nonempty
        self._length = length = corpus.whole.num_tokens / num_docs
        batch_size = settings.batch_size or default_batch_docs(num_docs, length)
        self.num_batches = math.ceil(num_docs / batch_size)
        self.block_docs = documents_per_block(num_docs, length)
        # Chains stay with their process for all mini-batches.
        order = None if corpus.part else random_order(corpus, settings.seed)
        self.shard = shard_of(model, corpus, self.processes, order)
        self.phases = PhaseSchedule(
            settings.max_epochs,
            settings.warmup_epochs,
            settings.min_gain,
            small_corpus=corpus.whole.num_tokens < WORD_TOKENS * corpus.num_words,
        )
        self._columns = None if settings.kept is None else settings.kept.find(corpus)
        self.state = FitState(self.shard.table, phase="warm-up")
        self.ascent: TopicAscent | None = None
        self._visits = 0
        if settings.topic_update == "gradient":
            self.ascent = TopicAscent(model.topics, settings.learning_rate)

    # -- epochs ----------------------------------------------------------------------------------

    def run(self, *args: Any, **options: Any) -> StopReason:
        """See :meth:`ResumableFit.run`. Compiled kernels have all threads."""
        with fused.with_threads(self.model.topics.probs):
            return super().run(*args, **options)

    def steps(self) -> Generator[dict[str, Any]]:
        """See :meth:`ResumableFit.steps`. A step is an epoch."""
        settings, state, num_docs = self.settings, self.state, self.shard.num_docs
        work = self.corpus.whole.num_tokens * self.model.num_topics
        if self.shows_progress and work >= SLOW_WORK:
            advice = fused.advice(self.model.topics.probs)
            if advice is not None:
                tqdm.write(advice, file=sys.stderr)
        if not state.step and settings.start != "model":
            self._start()
        if self.ascent is not None:
            self.ascent.resume(state.optimizer)
        with tqdm(
            total=self._last_epoch * num_docs,
            initial=state.step * num_docs,
            disable=not self.shows_progress or state.step >= self._last_epoch,
            smoothing=0.1,
            bar_format="{desc} |{bar}| {elapsed}<{remaining}{postfix}",
        ) as bar:
            while state.step < self._last_epoch:
                if state.step == settings.warmup_epochs:
                    # From now on, the table counts moves with the frozen step sizes.
                    state.documents.tensors["moved"].zero_()
                state.phase = self.phases.next_phase(state.phase, state.history)
                bar.total = self._last_epoch * num_docs
                bar.set_description_str(f"{state.phase}, epoch {state.step + 1}/{self._last_epoch}")
                record = self._epoch(bar)
                bar.set_postfix_str(
                    f"perplexity {record['perplexity']:.1f}, acc. {record['acceptance']:.2f}"
                )
                yield record

    @property
    def _last_epoch(self) -> int:
        return self.phases.last_epoch(self.state.phase, self.state.history)

    def end_reason(self) -> StopReason:
        """See :meth:`ResumableFit.end_reason`."""
        return self.phases.stop_reason(self.state.phase, self.state.history)

    def _start(self) -> None:
        """Set topics, prior and means by the start."""
        settings, model = self.settings, self.model
        start = Start(model, self.shard, name=settings.start, seed=settings.seed)
        started = FitState(self.state.documents)
        for _ in start.run(started, self.shows_progress):
            self.keep()
        self.shard.clear_cache()
        model.prior.inflate_covariance()
        self.keep()

    def _epoch(self, bar: tqdm) -> dict[str, Any]:
        """Visit every document once, with M-steps on the way."""
        state, stats = self.state, EpochStats(self.num_batches)
        objective: float | Tensor = 0.0
        num_tokens, unconverged = 0.0, 0
        self.learn(CHAIN + self.model.prior.latent)
        with self.model.topics.updated_often(), self.model.prior.following(self._length):
            for new in self._sums(stats, bar):
                objective += new.objective
                num_tokens += new.num_tokens
                unconverged += int(new.num_unconverged)
                self._maximise(new)
                del new  # the next E-step needs the memory
        # The chains have left the means of the start, which nothing reads again.
        state.documents.tensors.pop("means", None)
        # The check makes the host wait for a GPU, so it runs only once per epoch.
        self.model.check_parameters()
        state.step += 1
        moved = state.documents.tensors["moved"]
        stuck = self.shard.num_docs * moved.shape[1] - moved.sum()
        numbers = to_floats({**stats.total(self.processes, stuck), "objective": objective})
        # Without a chain in the statistics, the objective is the mean over all chains.
        log_likelihood, all_tokens = numbers.pop("log_likelihood"), self.corpus.whole.num_tokens
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

    def _sums(self, stats: EpochStats, bar: tqdm) -> Iterator[Statistics]:
        """Statistics for each M-step of an epoch, summed over the processes.

        Usually they cover a mini-batch, but in the first epoch they cover all documents, because
        the chains move for an entire epoch before the first M-step.
        """
        processes, seed, epoch = self.processes, self.settings.seed, self.state.step
        visits = ahead(self.shard.mini_batches(seed, epoch, self.num_batches))
        makers = (partial(self._visit, *visit, stats, bar) for visit in visits)
        if epoch == 0:
            yield processes.add_up(lambda: sum_statistics(x() for x in makers), torch.float64)
            return
        for make in makers:
            yield processes.add_up(make, self.model.dtype)

    def _visit(
        self, batch: DocumentBatch | None, num_docs: int, stats: EpochStats, bar: tqdm
    ) -> Statistics | None:
        """E-step of a mini-batch: move the chains of this process's documents.

        Args:
            batch: This process's documents, or ``None``.
            num_docs: Number of documents of the mini-batch in all processes.
            stats: Statistics of the epoch's transitions. New transitions are added.
            bar: Progress bar over documents.

        Returns:
            The statistics at the last draws. ``None`` without documents.
        """
        self.processes.poll()
        # Not every time, because a mini-batch uses the memory of the last one again.
        self._visits += 1
        if self._visits % RELEASED == 1:
            release_memory(self.shard.num_docs + self.model.num_words, self.model.num_topics)
        if batch is None:
            return None
        documents, chains = self.state.documents, self._chains(batch)
        outcome = chains.advance(self.settings.num_transitions, with_counts=True)
        moved = stats.add(chains, *outcome, batch.num_docs / num_docs)
        if self.state.step:
            moved = moved | self._read("moved", batch)[""]
        tables = {CHAIN: chains.latents, "moved": {"": moved}}
        if self.state.step < self.settings.warmup_epochs:  # later, step sizes stay the same
            tables[ADAPTATION] = chains.progress._asdict()
            del tables[ADAPTATION]["num_updates"]
        for prefix, values in tables.items():
            for name, value in values.items():
                documents.write(prefix + name, batch, value.transpose(0, 1))
        bar.update(batch.num_docs)
        return chain_statistics(self.model, chains, None if self._include_unmoved else moved)

    def _chains(self, batch: DocumentBatch) -> Chains:
        """Chains of a batch in their state after the last visit, or at their start."""
        settings, chains, initial, progress = self.settings, self.settings.chains, None, None
        if self.state.step:
            initial = self._read(CHAIN, batch)
            num_past = self.state.step * settings.num_transitions
            progress = DualAveraging(**self._read(ADAPTATION, batch), num_updates=num_past)
        elif settings.start != "model":
            means = self.state.documents.read("means", batch)
            initial = initial_latents(self.model, batch, means, chains.num_chains, chains.seed)
        elif settings.kept is not None and self._columns is not None:
            first = 0 if self.corpus.part is None else self.corpus.part.first
            columns = self._columns[batch.positions - first]
            initial = settings.kept.latents_in(self.model, batch, columns, chains.seed)
        warmup_steps = settings.warmup_epochs * settings.num_transitions
        return Chains(self.model, chains, batch, warmup_steps, initial, progress)

    def _read(self, prefix: str, batch: DocumentBatch) -> dict[str, Any]:
        """Values ``(num_chains, num_docs, ...)`` of a batch's chains, by name without prefix."""
        documents = self.state.documents
        return {
            name.removeprefix(prefix): documents.read(name, batch).transpose(0, 1)
            for name in documents.tensors
            if name.startswith(prefix)
        }

    def _countable_transitions(self, epochs: int) -> int:
        """Number of transitions that the table ``moved`` covers after ``epochs`` epochs.

        The table is reset when the step sizes are frozen.
        """
        warmup_epochs = self.settings.warmup_epochs
        return (epochs - warmup_epochs * (epochs > warmup_epochs)) * self.settings.num_transitions

    @property
    def _include_unmoved(self) -> bool:
        """Whether chains without a move enter the statistics, known without waiting for a GPU."""
        state = self.state
        # A chain may fail to move in its first transitions by mere chance, and leaving it out would
        # bias the statistics towards states that are easy to leave.
        if self._countable_transitions(state.step + 1) < FEWEST_TRANSITIONS:
            return True
        reset = state.step in (0, self.settings.warmup_epochs)
        return not reset and state.history[-1]["stuck"] == 0

    # -- M-step ----------------------------------------------------------------------------------

    def _maximise(self, new: Statistics) -> None:
        """Update the parameters by the statistics of a mini-batch, or of the first epoch."""
        state, is_first = self.state, self.state.step == 0
        if not new.num_docs:  # all chains are stuck
            return
        scale = self.num_docs / new.num_docs
        state.updates += self.num_batches if is_first else 1
        if state.statistics is None:
            state.statistics = new.scaled(scale)
            # Updates in float64 would take four times as long.
            state.statistics.word_counts = state.statistics.word_counts.to(self.model.dtype)
        else:
            state.statistics.blend_(new, self._weight(), scale)
        ascent = None if is_first else self.ascent
        state.statistics.maximise(self.model, topics=ascent is None)
        if ascent is not None:
            state.optimizer = ascent.step(scale * new.word_counts, state.step)

    def _weight(self) -> float:
        """Weight of the current mini-batch in the running statistics."""
        epochs = self.phases.averaging_start(self.state.phase, self.state.history)
        size = self.num_docs / self.num_batches
        seen = (self.state.updates - 1) * size
        if self.settings.kept is not None:  # nothing is far from its place, so all epochs count
            return size / (seen + size)
        return running_weight(seen, size, self.block_docs, epochs * self.num_docs)

    # -- results ---------------------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        """See :meth:`ResumableFit.identity`."""
        settings = self.settings
        return {
            "engine": "MonteCarloEM",
            **self.shard.identity(),
            **model_identity(self.model),
            **vars(settings.chains),
            **{name: getattr(settings, name) for name in KEPT_SETTINGS},
        }

    def result(self, stop_reason: StopReason) -> MonteCarloResult:
        """Result at the current state."""
        state, prior = self.state, self.model.prior
        tables = self.shard.collect(
            {
                name: table
                for name, table in state.documents.tensors.items()
                if name == STEP_SIZE or not name.startswith(ADAPTATION)
            }
        )
        empty = torch.from_numpy(self.corpus.lengths[: self.shard.num_result_docs] == 0)
        zeros = torch.zeros(len(empty), self.settings.chains.num_chains)
        moved = tables.get("moved", zeros.bool()).mT
        latents = last_draws(tables, empty, prior.canonicalise_())
        # In few transitions, a chain may fail to move by chance.
        few = self._countable_transitions(state.step) < FEWEST_TRANSITIONS
        counted = ~empty.expand_as(moved) if few else moved
        means = tables.get("means")
        if latents:
            means = mean_draws(latents[prior.latent], counted)
            self._warn(counted, ~empty)
        return MonteCarloResult(
            history=state.history,
            stop_reason=stop_reason,
            num_unconverged=state.history[-1]["unconverged"] if latents else self.num_docs,
            means=self.with_prior_means(means),
            objective_name=f"log likelihood at draws of {prior.latent}",
            seconds=state.seconds,
            statistics=state.statistics,
            corpus=self.corpus,
            chains=self._kept_chains(
                latents, tables.get(STEP_SIZE, zeros).mT.exp(), counted.all(0)
            ),
            moved=moved,
        )

    def _kept_chains(
        self, latents: dict[str, Tensor], step_size: Tensor, usable: Tensor
    ) -> KeptChains:
        """Chains of the result. Only chains that have finished their warm-up can be continued."""
        settings, num_epochs = self.settings, self.state.step
        rows = np.flatnonzero(usable.numpy() & (num_epochs > settings.warmup_epochs))
        documents, first = np.unique(signatures(self.corpus)[rows], return_index=True)
        kept = latents, step_size, documents, rows[first]
        transitions = num_epochs * settings.num_transitions
        return KeptChains(self.model, settings.chains, *kept, transitions)

    def _warn(self, counted: Tensor, filled: Tensor) -> None:
        """Warn of stuck chains, which do not count, and of chains with low acceptance.

        Args:
            counted: ``(num_chains, num_docs)`` bool: the chain counts.
            filled: ``(num_docs,)`` bool: the document has words.

        Warns:
            ConvergenceWarning: Chains made no move in 10 or more transitions, or accept less than
                half of the target.
        """
        state = self.state
        rows = (filled & (~counted).any(0)).nonzero().squeeze(1)
        first = 0 if self.corpus.part is None else self.corpus.part.first
        found = self.processes.gather((rows + first, counted[:, rows]))
        if not self.processes.first:
            return
        positions, stuck = (torch.cat(x, -1) for x in zip(*found, strict=True))
        advice = (
            "statistics and means exclude them, unless no chain of a document moved; use more "
            "epochs or num_transitions"
        )
        warn_of_stuck(stuck, positions, self._countable_transitions(state.step), advice)
        acceptance, target = state.history[-1]["acceptance"], self.settings.chains.target_accept
        reason = "posteriors have become sharper since step sizes were frozen; use more"
        warn_of_low_acceptance(acceptance, target, f"{reason} warmup_epochs")


class TopicAscent:
    """Adam for the topics' parameters, along the gradients of mini-batches.

    Args:
        topics: The topics.
        learning_rate: Adam's learning rate in the first epoch.
    """

    def __init__(self, topics: Topics, learning_rate: float) -> None:
        self._topics, self._learning_rate = topics, learning_rate
        self._optimizer = torch.optim.Adam(topics.parameters(), maximize=True)

    def step(self, word_counts: Tensor, epoch: int) -> dict[Any, Any]:
        """Make a step along the gradient at expected counts.

        Args:
            word_counts: ``(num_topics, num_words)`` counts, scaled to the entire corpus.
            epoch: Number of the epoch, from 0. The learning rate falls with this number.

        Returns:
            The optimiser's state: its tensors by name, for the number of each parameter.
        """
        rate = self._learning_rate / (1.0 + epoch / LEARNING_DELAY)
        self._optimizer.param_groups[0]["lr"] = rate
        self._topics.gradient_(word_counts)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return dict(self._optimizer.state_dict()["state"])

    def resume(self, state: dict[Any, Any]) -> None:
        """Continue from a state of :meth:`step`. An empty state changes nothing."""
        found = {int(number): tensors for number, tensors in state.items()}
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": found})
