"""One run of Monte-Carlo EM: epochs of chains that persist, and what is kept of them."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConvergenceWarning, warn
from torch_lntm.guides import make_guide
from torch_lntm.inference.chains.chains import Chains, Progress, latents_at, warn_of_stuck
from torch_lntm.inference.chains.kept import KeptChains
from torch_lntm.inference.chains.settings import HMCSettings
from torch_lntm.inference.em.batches import CorpusBatches
from torch_lntm.inference.em.checkpoint import FitState, corpus_identity, model_identity
from torch_lntm.inference.em.loop import ResumableFit, StopReason
from torch_lntm.inference.em.memory import DocumentRows, DocumentTables, placed
from torch_lntm.inference.em.phases import Start, VariationalRun
from torch_lntm.inference.em.processes import Processes
from torch_lntm.inference.em.result import MonteCarloResult
from torch_lntm.inference.em.schedule import Forgetting, batch_documents, unit_documents
from torch_lntm.inference.em.shares import add_up_words, owners
from torch_lntm.inference.em.start import fill_prior_means
from torch_lntm.inference.em.statistics import Statistics, added, sampled_statistics
from torch_lntm.inference.em.tally import Tally, as_numbers, spread
from torch_lntm.inference.em.variational_em import VariationalEM
from torch_lntm.models import TopicModel
from torch_lntm.models.registry import record_settings
from torch_lntm.progress import tqdm
from torch_lntm.sampling.step_sizes import DualAveraging

TopicUpdate = Literal["exact", "gradient"]

#: Epochs after which the learning rate is half of what it began with.
LEARNING_DELAY = 10.0

#: The running statistics forget soon where chains and topics come from, until the objective has
#: gained little over so many epochs. Then, and for a last share of all epochs, they are an average,
#: which holds several visits of every document in the end.
FORGETTING_EXPONENT, GAIN_EPOCHS, AVERAGED_SHARE = 0.3, 5, 0.25
#: Tokens a word of the vocabulary. With fewer, the search ends after these epochs at any rate: what
#: the objective would go on to gain is gained at the cost of other documents.
WORD_TOKENS = 20

#: Transitions without a move, since its step size was frozen or before, of a chain that is stuck.
FEWEST_TRANSITIONS = 10
#: Prefixes of the tables with the chains' latent variables and with their adaptation.
_CHAIN, _ADAPTATION = "chain.", "adaptation."


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
    start: Start
    progress: bool

    @property
    def seed(self) -> int:
        """Seed of the start, of the order of documents and of the chains."""
        return self.chains.seed


class MonteCarloRun(ResumableFit):
    """One fit: settings applied to the documents of a corpus.

    Args:
        model: The model, fitted in place.
        settings: The settings.
        corpus: The documents; at least one is not empty.
        processes: The processes that share the fit; by default this one alone.
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
        self.occupied: NDArray[np.int64] = np.flatnonzero(corpus.lengths)
        num_docs = len(self.occupied)
        length = corpus.num_tokens / num_docs
        batch_size = settings.batch_size or batch_documents(num_docs, length)
        self.num_batches = math.ceil(num_docs / batch_size)
        self.unit = unit_documents(num_docs, length)
        # Chains stay with their process, whichever mini-batches their documents come in.
        self.mine = np.ones(corpus.num_docs, dtype=np.bool_)
        self.owned: NDArray[np.int64] = self.occupied
        if not self.processes.alone:
            sizes = np.diff(corpus.row_offsets)[self.occupied]
            self.owned = self.occupied[owners(sizes, self.processes) == self.processes.rank]
            self.mine = np.isin(np.arange(corpus.num_docs), self.owned)
        self._owned_positions = torch.from_numpy(self.owned).to(model.device)
        self.rows = DocumentRows(corpus.row_offsets, None if self.processes.alone else self.owned)
        self.batches = CorpusBatches(corpus, model.device, model.dtype)
        self.warmup_steps = settings.warmup_epochs * settings.num_transitions
        means = torch.zeros(corpus.num_docs, model.latent_dim, dtype=model.dtype)
        fill_prior_means(model, corpus, np.arange(corpus.num_docs), means)
        documents = placed(self.rows.select({"means": means}), model.device)
        self.state = FitState(documents=documents, phase="warm-up")
        self.optimizer: torch.optim.Adam | None = None
        if settings.topic_update == "gradient":
            self.optimizer = torch.optim.Adam([model.topics.logits], maximize=True)

    @property
    def _documents(self) -> DocumentTables:
        return DocumentTables(self.state.documents, self.rows, self.model.device)

    # -- epochs ----------------------------------------------------------------------------------

    def steps(self) -> Generator[dict[str, Any]]:
        """See :meth:`ResumableFit.steps`; an epoch is a step."""
        settings, state = self.settings, self.state
        if not state.step and settings.start != "model":
            self._start()
        num_docs = len(self.owned)
        with tqdm(
            total=self._last_epoch * num_docs,
            initial=state.step * num_docs,
            disable=not (settings.progress and self.processes.first)
            or state.step >= self._last_epoch,
            smoothing=0.1,
            bar_format="{desc} |{bar}| {elapsed}<{remaining}{postfix}",
        ) as bar:
            while state.step < self._last_epoch:
                self._enter_phase()
                bar.total = self._last_epoch * num_docs
                bar.set_description_str(f"{state.phase}, epoch {state.step + 1}/{self._last_epoch}")
                record = self._epoch(bar)
                bar.set_postfix_str(
                    f"perplexity {record['perplexity']:.1f}, acc. {record['acceptance']:.2f}, "
                    f"mean {self.model.prior.latent} {record['latent_mean']:.1f} ± "
                    f"{record['latent_std']:.1f}"
                )
                yield record

    def _enter_phase(self) -> None:
        """The phase of the next epoch: warm-up, sampling until little is gained, averaging."""
        settings, state = self.settings, self.state
        if state.step == settings.warmup_epochs:
            state.phase = "sampling"
            # Whoever moves with the frozen step size will show it.
            state.documents["moved"] = torch.zeros_like(state.documents["moved"])
        if state.phase != "averaging" and self._searched_enough:
            state.phase = "averaging"

    @property
    def _turn(self) -> int | None:
        """Epochs after which averaging began; None before."""
        if self.state.phase != "averaging":
            return None
        return sum(record["phase"] != "averaging" for record in self.state.history)

    @property
    def _searched_enough(self) -> bool:
        """Whether the next epoch is to be the first that averages."""
        step = self.state.step
        if step >= self._most_searched:
            return True
        few = self.corpus.num_tokens < WORD_TOKENS * self.corpus.num_words
        return self._gain(step) < (math.inf if few else self.settings.min_gain)

    @property
    def _most_searched(self) -> float:
        """Epochs after which averaging begins at any rate."""
        settings = self.settings
        return max((1.0 - AVERAGED_SHARE) * settings.max_epochs, settings.warmup_epochs)

    def _gain(self, epochs: int) -> float:
        """What the last of so many epochs gained each, nats a token.

        Infinite where ``min_gain`` is 0, or too few of them came after the warm-up.
        """
        first, history = epochs - GAIN_EPOCHS, self.state.history
        if not self.settings.min_gain or first < self.settings.warmup_epochs:
            return math.inf
        gained = history[epochs - 1]["objective"] - history[first - 1]["objective"]
        return float(gained) / GAIN_EPOCHS

    @property
    def averages(self) -> bool:
        """See :attr:`ResumableFit.averages`."""
        return True

    def end_reason(self) -> StopReason:
        """See :meth:`ResumableFit.end_reason`; why the search, before the averages, ended."""
        turn = self._turn
        if turn is None:
            return "max_iterations"
        if self._gain(turn) < self.settings.min_gain:
            return "converged"
        return "stopped_early" if turn < self._most_searched else "max_iterations"

    @property
    def _last_epoch(self) -> int:
        """The last epoch, as far as is known."""
        most, turn = self.settings.max_epochs, self._turn
        return most if turn is None else min(most, math.ceil(turn / (1.0 - AVERAGED_SHARE)))

    def _start(self) -> None:
        """Topics, prior and the documents' means from the start of variational EM."""
        settings, model = self.settings, self.model
        engine = VariationalEM(
            model,
            make_guide(None, model),
            start=settings.start,
            seed=settings.seed,
            progress=settings.progress,
        )
        run = VariationalRun(model, engine.guide, engine.settings, self.corpus, self.processes)
        for _ in run.start():
            self.keep()
        own = {"means": run.state.documents["means"]}
        means = self.rows.select(run.rows.collect(own, self.processes, everywhere=True))
        self.state.documents |= placed(means, model.device)
        model.prior.widen()
        self.keep()

    def _epoch(self, bar: tqdm) -> dict[str, Any]:
        """Visit every document once."""
        state = self.state
        tally = Tally()
        objective: float | Tensor = 0.0
        num_tokens, unconverged = 0.0, 0
        visits = self._visits(bar, tally)
        with self.model.topics.updated_often():
            if state.step == 0:
                # Chains move for a whole epoch before the first M-step.
                total = self.processes.add_up("epoch", lambda: added(visits), torch.float64)
                objective, num_tokens = total.objective, total.num_tokens
                unconverged = int(total.num_unconverged)
            else:
                for rows in self._mini_batches():
                    found = add_up_words(
                        self.processes, self.model, self.corpus, rows, lambda: next(visits)
                    )
                    objective += found.objective
                    num_tokens += found.num_tokens
                    unconverged += int(found.num_unconverged)
                    if found.num_docs:
                        self._maximise(found)
        if state.step == 0 and total.num_docs:
            state.statistics = total.scaled(len(self.occupied) / total.num_docs)
            # In the type of mini-batches': in float64 updates take four times as long.
            state.statistics.word_counts = state.statistics.word_counts.to(self.model.dtype)
            state.statistics.maximise(self.model)
            state.updates = self.num_batches
        # Once an epoch, since the host waits for a GPU. Chains do not move meanwhile.
        self.model.check_parameters()
        state.step += 1
        numbers = as_numbers(
            {
                **tally.add_up(self.processes, self.num_batches),
                **self._latents(),
                "objective": objective,
            }
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

    def _mini_batches(self) -> list[NDArray[np.int64]]:
        """The documents of each mini-batch of an epoch, all processes' together."""
        generator = np.random.default_rng([self.settings.seed, self.state.step])
        return np.array_split(generator.permutation(self.occupied), self.num_batches)

    def _visits(self, bar: tqdm, tally: Tally) -> Iterator[Statistics | None]:
        """Statistics of this process's part of each mini-batch of an epoch; None of no document."""
        everyone = self._mini_batches()
        # In the corpus's order: neighbours in memory.
        parts = [np.sort(rows[self.mine[rows]]) for rows in everyone]
        batches = self.batches.of(rows for rows in parts if len(rows))
        for rows, mine in zip(everyone, parts, strict=True):
            if not len(mine):
                yield None
                continue
            self.processes.poll()
            tally.share = len(mine) / len(rows)
            found = self._visit(next(batches), tally)
            bar.update(len(mine))
            yield found

    def _latents(self) -> dict[str, Tensor]:
        """How the latent variables of all documents spread."""
        documents = self.state.documents
        main, moved = documents[_CHAIN + self.model.prior.latent], documents["moved"]
        rows = self.rows.find(self._owned_positions)
        share = len(self.owned) / len(self.occupied)
        return spread(
            main[rows.to(main.device)], moved[rows.to(moved.device)], share, self.processes
        )

    # -- E-step ----------------------------------------------------------------------------------

    def _visit(self, batch: DocumentBatch, tally: Tally) -> Statistics:
        """Move the chains of a batch from, and to, what is kept of them."""
        settings, state, documents = self.settings, self.state, self._documents
        means = documents.read("means", batch)
        progress, moved = None, None
        if state.step:
            initial: dict[str, Tensor] | None = self._read(batch, _CHAIN)
            moved = self._read(batch, "moved")[""]
            done = state.step * settings.num_transitions
            adaptation = DualAveraging(**self._read(batch, _ADAPTATION), num_updates=done)
            progress = Progress(done, adaptation)
        else:
            initial = self._first_draws(batch, means)
        chains = Chains(
            self.model,
            settings.chains,
            batch,
            settings.seed,
            self.warmup_steps,
            initial,
            progress,
            means,
        )
        if moved is None:
            moved = torch.zeros_like(chains.moved)
        for remaining in range(settings.num_transitions, 0, -1):
            chains.move(remaining)
            moved = moved | tally.add(chains)
        if chains.means is not None:
            documents.write("means", batch, chains.means)
        self._write(batch, _CHAIN, chains.latents)
        adapted = chains.progress.adaptation._asdict()
        del adapted["num_updates"]
        self._write(batch, _ADAPTATION, adapted)
        self._write(batch, "moved", {"": moved})
        tally.add_draws(chains)
        return sampled_statistics(
            self.model,
            batch,
            chains.latents,
            chains.logits,
            chains.state.log_likelihood,
            None if self._all_take_part else moved,
        )

    @property
    def _all_take_part(self) -> bool:
        """Whether no chain of this epoch can be stuck, as known without asking a GPU."""
        state = self.state
        # After only a few transitions, a chain that has not moved may just have been unlucky.
        # Dropping it would bias the statistics toward states that are easy to leave.
        if self._transitions_since_reset(state.step + 1) < FEWEST_TRANSITIONS:
            return True
        reset = state.step in (0, self.settings.warmup_epochs)
        return not reset and state.history[-1]["stuck"] == 0

    def _first_draws(self, batch: DocumentBatch, means: Tensor) -> dict[str, Tensor] | None:
        """Where the chains start: at the documents' means, or, if None, at prior draws."""
        if self.settings.start == "model":
            return None
        num_chains = self.settings.chains.num_chains
        return latents_at(self.model, batch, means, num_chains, self.settings.seed)

    def _read(self, batch: DocumentBatch, prefix: str) -> dict[str, Tensor]:
        """Chains' values ``(num_chains, num_docs, ...)`` of a batch, by name without the prefix."""
        return {
            name.removeprefix(prefix): self._documents.read(name, batch).transpose(0, 1)
            for name in self.state.documents
            if name.startswith(prefix)
        }

    def _write(self, batch: DocumentBatch, prefix: str, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self._documents.write(prefix + name, batch, value.transpose(0, 1))

    # -- M-step ----------------------------------------------------------------------------------

    def _maximise(self, found: Statistics) -> None:
        """Update the parameters from the statistics of a mini-batch."""
        state, topics = self.state, cast(Any, self.model.topics)
        scale = len(self.occupied) / found.num_docs
        state.updates += 1
        if state.statistics is None:
            state.statistics = found.scaled(scale)
        else:
            state.statistics.blend_(found, self._weight(), scale)
        if self.optimizer is None:
            state.statistics.maximise(self.model)
            return
        state.statistics.maximise_prior(self.model)
        rate = self.settings.learning_rate / (1.0 + state.step / LEARNING_DELAY)
        self.optimizer.param_groups[0]["lr"] = rate
        topics.logits.grad = topics.gradient(scale * found.word_counts).to(topics.logits.dtype)
        self.optimizer.step()
        topics.logits.grad = None
        state.optimizer = self.optimizer.state_dict()["state"][0]

    def _weight(self) -> float:
        """The weight of the present mini-batch in the running statistics."""
        num_docs, turn = len(self.occupied), self._turn
        size = num_docs / self.num_batches
        until = math.inf if turn is None else turn * num_docs
        forgetting = Forgetting(self.unit, FORGETTING_EXPONENT, until)
        return forgetting.weight((self.state.updates - 1) * size, size)

    # -- keeping state ---------------------------------------------------------------------------

    def resumed(self) -> None:
        """Hand the optimiser its state back."""
        if self.optimizer is not None and self.state.optimizer:
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict(
                {"state": {0: self.state.optimizer}, "param_groups": groups}
            )

    def identity(self) -> dict[str, Any]:
        """See :meth:`ResumableFit.identity`."""
        settings = self.settings
        return {
            "engine": "MonteCarloEM",
            **corpus_identity(self.corpus),
            **model_identity(self.model),
            **vars(settings.chains),
            **{
                name: getattr(settings, name)
                for name in (
                    "num_transitions",
                    "min_gain",
                    "warmup_epochs",
                    "batch_size",
                    "topic_update",
                    "learning_rate",
                    "start",
                )
            },
        }

    def result(self, stop_reason: StopReason) -> MonteCarloResult:
        """The result at the present state."""
        state, num_chains = self.state, self.settings.chains.num_chains
        num_docs = self.corpus.num_docs
        step_size = _ADAPTATION + "log_average"
        wanted = ("means", "moved", step_size)
        tables = self.rows.collect(
            {n: x for n, x in state.documents.items() if n in wanted or n.startswith(_CHAIN)},
            self.processes,
            everywhere=True,
        )
        empty = torch.from_numpy(self.corpus.lengths == 0)
        chains = {
            name.removeprefix(_CHAIN): table.transpose(0, 1).clone()
            for name, table in tables.items()
            if name.startswith(_CHAIN)
        }
        for site, turn in self.model.prior.canonicalise_().items():
            if site in chains:
                chains[site] = chains[site] @ turn.to(chains[site])
        for value in chains.values():
            value[:, empty] = torch.nan
        means, moved = tables["means"], torch.zeros(num_chains, num_docs, dtype=torch.bool)
        if chains:
            moved = tables["moved"].mT
            weights = moved.to(means) / moved.sum(0).clamp_min(1)
            sampled = (weights[..., None] * chains[self.model.prior.latent].to(means)).sum(0)
            # Documents without a chain that moves keep the means that they started with.
            means = torch.where(moved.any(0)[:, None], sampled, means)
        fill_prior_means(self.model, self.corpus, np.flatnonzero(empty.numpy()), means)
        if chains and self.processes.first:
            self._warn(moved)
        return MonteCarloResult(
            history=state.history,
            stop_reason=stop_reason,
            num_unconverged=state.history[-1]["unconverged"] if chains else len(self.occupied),
            means=means,
            objective_name=f"log likelihood at draws of {self.model.prior.latent}",
            seconds=state.seconds,
            statistics=state.statistics,
            posterior=self._kept_chains(chains, tables.get(step_size), moved),
            chains=chains,
            moved=moved,
        )

    def _kept_chains(
        self, chains: dict[str, Tensor], log_step_size: Tensor | None, moved: Tensor
    ) -> KeptChains:
        """The chains, to be continued where they have gone on after their warm-up."""
        settings, state = self.settings, self.state
        usable = moved.all(0)
        if log_step_size is None or state.step <= settings.warmup_epochs:
            log_step_size, usable = torch.zeros(moved.mT.shape), torch.zeros_like(usable)
        return KeptChains.of(
            self.model,
            settings.chains,
            self.corpus,
            chains,
            log_step_size.mT.exp(),
            usable,
            state.step * settings.num_transitions,
        )

    def _warn(self, moved: Tensor) -> None:
        """Tell of chains that are stuck, and of step sizes that no longer fit."""
        state, index = self.state, torch.from_numpy(self.occupied)
        advice = "statistics and means leave them out; use more epochs or num_transitions"
        warn_of_stuck(moved[:, index], index, self._transitions_since_reset(state.step), advice)
        acceptance = state.history[-1]["acceptance"]
        target = self.settings.chains.target_accept
        if acceptance < target / 2.0:
            warn(
                f"chains accepted {acceptance:.2f} of their proposals in the last epoch, where "
                f"{target} was aimed at: posteriors have become sharper since step sizes were "
                "frozen; use more warmup_epochs",
                ConvergenceWarning,
            )

    def _transitions_since_reset(self, epochs: int) -> int:
        """Transitions that a chain has had to move in by the end of so many epochs."""
        warmup = self.settings.warmup_epochs
        epochs = epochs - warmup if epochs > warmup else epochs
        return epochs * self.settings.num_transitions
