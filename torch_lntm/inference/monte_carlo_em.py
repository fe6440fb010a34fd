"""Monte-Carlo EM: the documents' posteriors as chains that persist from epoch to epoch."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, CorpusError
from torch_lntm.guides import make_guide
from torch_lntm.inference.checkpoint import FitState, read_checkpoint, write_checkpoint
from torch_lntm.inference.document_hmc import (
    Chains,
    DocumentHMC,
    MassMatrix,
    Progress,
    warn_of_stuck,
)
from torch_lntm.inference.run import STEPWISE_EXPONENT, StopReason
from torch_lntm.inference.statistics import Statistics, sampled_statistics
from torch_lntm.inference.variational_em import FitResult, Start, VariationalEM
from torch_lntm.models import IndependentFactorPrior, NormalTopics, TopicModel
from torch_lntm.solvers.hmc import DualAveraging

TopicUpdate = Literal["exact", "gradient"]

#: Epochs after which the learning rate is half of what it began with.
LEARNING_DELAY = 10.0

#: Transitions without a move, since its step size was frozen or before, of a chain that is stuck.
FEWEST_TRANSITIONS = 10
#: What is kept of the chains' dual averaging.
_ADAPTATION = ("log_step_size", "log_average", "shortfall", "centre")


@dataclass(frozen=True, repr=False)
class MonteCarloResult(FitResult):
    """What Monte-Carlo EM leaves besides the fitted model.

    As :class:`FitResult`, with these differences: ``means`` are the means of the documents' last
    draws over their chains that move, ``num_unconverged`` counts the documents with a stuck chain,
    and a record of ``history`` also has the ``perplexity`` of the documents at their draws,
    ``acceptance``, ``divergences``, ``stuck`` chains, ``step_size``, and ``eta_mean`` and
    ``eta_std``, the mean of eta and its standard deviation over documents, averaged over topics.
    Perplexities at draws are those of the training documents under proportions that know them.

    Attributes:
        chains: ``(num_chains, num_docs, dim)`` the last draws, on the CPU, by the names of the
            sites: ``eta``, with ``source`` under a factor prior. NaN for empty documents.
        moved: ``(num_chains, num_docs)`` bool, the chain accepted a proposal since its step size
            was frozen (since it started, before).
    """

    chains: dict[str, Tensor] = field(default_factory=dict)
    moved: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.bool))

    def __repr__(self) -> str:
        last = self.history[-1] if self.history else {"iteration": 0, "perplexity": math.nan}
        return (
            f"MonteCarloResult({self.stop_reason} after {self.seconds:.1f} s, epoch "
            f"{last['iteration']}, perplexity {last['perplexity']:.2f} at the draws, "
            f"{self.num_unconverged} documents with a stuck chain)"
        )


class MonteCarloEM:
    """Fit a topic model by Monte-Carlo EM, the algorithm of the *ZhuSuan LNTM tutorial*.

    Every document has chains of its own that go on from epoch to epoch. A mini-batch is visited by
    some Hamiltonian transitions of its chains (the E-step; see
    :class:`~torch_lntm.inference.DocumentHMC`) and an M-step follows from where they end. The first
    epoch moves chains only, with one M-step at its end. After it, statistics are a running average
    over mini-batches (*Cappé & Moulines 2009*), each standing for the corpus times
    num_docs/batch. The prior's parameters are at their closed-form maximisers. So are the topics,
    whose word counts have the topic of each word summed out. Normal topics take the tutorial's step
    instead: one of Adam a mini-batch, along the gradient of its word counts times num_docs/batch
    less the prior's (or, ``topic_update="exact"``, they too are at their maximiser).

    Acceptance and step size belong to each chain of each document: they do not depend on how many
    documents share a mini-batch, nor do the chains, but through the M-steps. Step sizes adapt in
    the first epochs and are frozen after them. A chain that has not moved since then, in 10
    transitions or more, takes no part in the statistics; one that has not at the end is reported.

    Args:
        model: The model to fit, in place: ``ctm``, ``lntm`` or ``iftm``.
        num_chains: Chains of each document.
        num_transitions: Transitions of each chain at a visit.
        num_steps: Leapfrog steps of a transition.
        mass_matrix: As of :class:`~torch_lntm.inference.DocumentHMC`. Posterior ones are solved at
            every visit, from their last means, which costs more than it gains (*measured on 800
            documents of* ``ap`` *with 20 topics: four to five times the time of* ``"prior"``, *for
            held-out perplexities within half a per cent*).
        target_accept: Mean acceptance probability that adaptation aims at.
        max_epochs: Visits of every document. The default is few, because on held-out words more of
            them do harm, as further iterations of :class:`VariationalEM` do (*there: perplexity by
            importance sampling 3084, 3095, 3127, 3155 and 3183 after 6, 12, 25, 50 and 100*).
        warmup_epochs: Epochs in which step sizes adapt; half of them by default.
        batch_size: Documents of a mini-batch.
        topic_update: ``"exact"``, or ``"gradient"`` for normal topics, whose default it is
            (*there: held-out perplexities within half a per cent of exact M-steps', which take
            twice the time of an epoch*).
        learning_rate: Of ``"gradient"``: Adam's in the first epoch. In epoch e it is
            learning_rate / (1 + e/10).
        start: ``"lda"``, topics, prior and chains from the start of
            :class:`~torch_lntm.inference.VariationalEM` and one E-step of the model's default
            guide; ``"documents"``, the same from less; ``"model"``, the model as it is and chains
            from prior draws.
        seed: Seed of the start, of the order of documents and of the chains.
        progress: Show a progress bar on standard error.

    Raises:
        IncompatibleGuideError: The model has no eta.
        ConfigError: A setting that cannot be used.
    """

    def __init__(
        self,
        model: TopicModel,
        *,
        num_chains: int = 1,
        num_transitions: int = 5,
        num_steps: int = 5,
        mass_matrix: MassMatrix = "prior",
        target_accept: float = 0.8,
        max_epochs: int = 10,
        warmup_epochs: int | None = None,
        batch_size: int = 100,
        topic_update: TopicUpdate | None = None,
        learning_rate: float = 0.1,
        start: Start = "lda",
        seed: int = 0,
        progress: bool = True,
    ) -> None:
        self.kernel = DocumentHMC(
            model,
            num_chains=num_chains,
            mass_matrix=mass_matrix,
            num_steps=num_steps,
            target_accept=target_accept,
            seed=seed,
        )
        for name, value, least in (
            ("num_transitions", num_transitions, 1),
            ("max_epochs", max_epochs, 1),
            ("warmup_epochs", warmup_epochs, 1),
            ("batch_size", batch_size, 1),
        ):
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}; expected at least {least}")
        if start not in get_args(Start):
            raise ConfigError(f"start {start!r}; expected one of {', '.join(get_args(Start))}")
        normal = isinstance(model.topics, NormalTopics)
        if topic_update is None:
            topic_update = "gradient" if normal else "exact"
        if topic_update not in get_args(TopicUpdate):
            raise ConfigError(
                f"topic_update {topic_update!r}; expected one of {', '.join(get_args(TopicUpdate))}"
            )
        if topic_update == "gradient" and not normal:
            raise ConfigError(
                "topic_update 'gradient' is for normal topics, those of lntm; the others have "
                "closed-form updates"
            )
        if not 0 < learning_rate < math.inf:
            raise ConfigError(f"learning_rate is {learning_rate}; expected a positive number")
        self.model = model
        self.num_transitions = num_transitions
        self.max_epochs = max_epochs
        self.warmup_epochs = (max_epochs + 1) // 2 if warmup_epochs is None else warmup_epochs
        self.batch_size = batch_size
        self.topic_update: TopicUpdate = topic_update
        self.learning_rate = learning_rate
        self.start: Start = start
        self.seed = seed
        self.progress = progress

    @torch.no_grad()
    def fit(
        self,
        corpus: Corpus,
        *,
        checkpoint: str | Path | None = None,
        checkpoint_seconds: float = 60.0,
    ) -> MonteCarloResult:
        """Fit the model to a corpus.

        Ctrl-C ends the fit at the parameters and draws of the last finished epoch, with
        ``stop_reason`` ``"interrupted"``.

        Args:
            corpus: The documents; empty ones take no part.
            checkpoint: A file to save the state of the fit in. If it exists the fit continues from
                there, to the same result as without the interruption. It is left in place.
            checkpoint_seconds: Least time between two saves.

        Returns:
            The result; the fitted parameters are in the model.

        Raises:
            CorpusError: The corpus has no tokens.
            ConfigError: The corpus has another vocabulary than the model, or the checkpoint
                belongs to another fit.
            NumericalError: A parameter, or a density where chains start, left the real numbers;
                names the parameter or the documents.
        """
        if corpus.num_words != self.model.num_words:
            raise ConfigError(
                f"the corpus has {corpus.num_words} words and the model {self.model.num_words}"
            )
        if corpus.num_tokens == 0:
            raise CorpusError("the corpus has no tokens; there is nothing to fit")
        run = _MonteCarloRun(self, corpus)
        path = None if checkpoint is None else Path(checkpoint)
        stop_reason = run.fit(path, checkpoint_seconds)
        return run.result(stop_reason)


class _MonteCarloRun:
    """One fit: the engine's settings applied to the documents of a corpus."""

    def __init__(self, engine: MonteCarloEM, corpus: Corpus) -> None:
        self.engine = engine
        self.model = engine.model
        self.corpus = corpus
        self.occupied = np.flatnonzero(corpus.lengths)
        self.documents = corpus.batch(dtype=self.model.dtype)
        self.num_batches = math.ceil(len(self.occupied) / engine.batch_size)
        self.warmup_steps = engine.warmup_epochs * engine.num_transitions
        self.state = FitState(latent=self._prior_means(), phase="warm-up")
        self.optimizer: torch.optim.Adam | None = None
        if engine.topic_update == "gradient":
            self.optimizer = torch.optim.Adam([self.model.topics.logits], maximize=True)
        self._keep()

    def _prior_means(self) -> Tensor:
        return self.model.prior.mean.detach().cpu().repeat(self.corpus.num_docs, 1)

    # -- epochs and what is kept of them -----------------------------------------------------------

    def fit(self, checkpoint: Path | None, checkpoint_seconds: float) -> StopReason:
        """Run all epochs; on Ctrl-C return with the last finished one's parameters and draws."""
        if checkpoint is not None and checkpoint.exists():
            self._resume(checkpoint)
        began = saved = time.monotonic()
        before = self.state.seconds
        epochs = self._epochs()
        try:
            for record in epochs:
                self.state.seconds = before + time.monotonic() - began
                record = {**record, "seconds": round(self.state.seconds, 3)}
                self.state.history.append(record)
                self._keep()
                if checkpoint is not None and time.monotonic() - saved >= checkpoint_seconds:
                    write_checkpoint(checkpoint, self.state, self._snapshot(), self._identity())
                    saved = time.monotonic()
        except KeyboardInterrupt:
            parameters, self.state.latent, self.state.chains = self._kept
            self.model.load_state_dict(parameters)
            return "interrupted"
        finally:
            epochs.close()
            self.state.seconds = before + time.monotonic() - began
        return "max_iterations"

    def _epochs(self) -> Generator[dict[str, Any]]:
        """Yield a record at the end of every epoch, from the present state on."""
        engine, state = self.engine, self.state
        if not state.step and engine.start != "model":
            self._start()
        num_docs = len(self.occupied)
        with tqdm(
            total=engine.max_epochs * num_docs,
            initial=state.step * num_docs,
            disable=not engine.progress or state.step == engine.max_epochs,
            smoothing=0.1,
            bar_format="{desc} |{bar}| {elapsed}<{remaining}{postfix}",
        ) as bar:
            while state.step < engine.max_epochs:
                bar.set_description_str(f"epoch {state.step + 1}/{engine.max_epochs}")
                record = self._epoch(bar)
                bar.set_postfix_str(
                    f"perplexity {record['perplexity']:.1f}, acc. {record['acceptance']:.2f}, eta "
                    f"{record['eta_mean']:.1f} ± {record['eta_std']:.1f}"
                )
                yield record

    def _start(self) -> None:
        """Topics, prior and the documents' means from the start of variational EM."""
        engine = self.engine
        started = VariationalEM(
            self.model,
            make_guide(None, self.model),
            start=engine.start,
            stepwise_epochs=0,
            max_iterations=0,
            seed=engine.seed,
            progress=engine.progress,
        ).fit(self.corpus)
        self.state.latent = started.means
        self._keep()
        if started.stop_reason == "interrupted":
            raise KeyboardInterrupt

    def _epoch(self, bar: tqdm[Any]) -> dict[str, Any]:
        """Visit every document once."""
        engine, state = self.engine, self.state
        first, tally = state.step == 0, _Tally()
        total: Statistics | None = None
        if state.step == engine.warmup_epochs:
            state.phase = "sampling"
            # Whoever moves with the frozen step size will show it.
            state.chains = {**state.chains, "moved": torch.zeros_like(state.chains["moved"])}
        generator = np.random.default_rng([engine.seed, state.step])
        for rows in np.array_split(generator.permutation(self.occupied), self.num_batches):
            # In the corpus's order: neighbours in memory.
            index = torch.from_numpy(np.sort(rows))
            batch = self.model.check_batch(self.documents.select(index))
            found = self._visit(batch, index, tally)
            total = found if total is None else total + found
            if not first and found.num_docs:
                self._maximise(found)
            bar.update(len(rows))
        assert total is not None
        if first and total.num_docs:
            state.statistics = total.scaled(len(self.occupied) / total.num_docs)
            state.statistics.maximise(self.model)
            state.updates = self.num_batches
        state.step += 1
        objective = total.objective / total.num_tokens if total.num_tokens else math.nan
        eta = state.chains["eta"][:, self.occupied].double().flatten(0, 1)
        return {
            "phase": state.phase,
            "iteration": state.step,
            "objective": objective,
            "unconverged": total.num_unconverged,
            "perplexity": math.exp(-objective),
            **tally.record(),
            "stuck": int((~state.chains["moved"][:, self.occupied]).sum()),
            "eta_mean": float(eta.mean()),
            "eta_std": float(eta.std(0, correction=0).mean()),
        }

    # -- E-step ------------------------------------------------------------------------------------

    def _visit(self, batch: DocumentBatch, index: Tensor, tally: _Tally) -> Statistics:
        """Move the chains of a batch from, and to, what is kept of them."""
        engine, state = self.engine, self.state
        device = self.model.device
        means = state.latent[index].to(device)
        initial, progress, moved = self._first_draws(means), None, None
        if state.step:
            here = {name: value[:, index].to(device) for name, value in state.chains.items()}
            initial, moved = _sites(here), here["moved"]
            done = state.step * engine.num_transitions
            adaptation = {name: here[name] for name in _ADAPTATION}
            progress = Progress(done, DualAveraging(**adaptation, num_updates=done))
        chains = Chains(
            engine.kernel, batch, engine.seed, self.warmup_steps, initial, progress, means
        )
        if moved is None:
            moved = torch.zeros_like(chains.moved)
        for _ in range(engine.num_transitions):
            chains.move()
            moved = moved | tally.add(chains)
        if chains.means is not None:
            state.latent[index] = chains.means.to(state.latent)
        found = {name: getattr(chains.progress.adaptation, name) for name in _ADAPTATION}
        self._store(index, {**chains.latents, **found, "moved": moved})
        # To leave out what a few transitions did not move would favour draws that are easily left.
        patient = self._transitions_since_reset(state.step + 1) < FEWEST_TRANSITIONS
        return sampled_statistics(
            self.model, batch, chains.latents, chains.state.log_likelihood, moved | patient
        )

    def _first_draws(self, means: Tensor) -> dict[str, Tensor] | None:
        """Where the chains start: at the documents' means, or, if None, at prior draws."""
        if self.engine.start == "model":
            return None
        latents = {"eta": means}
        if isinstance(self.model.prior, IndependentFactorPrior):
            prior = self.model.prior.solver_prior()
            latents["source"] = prior.sources(means, prior.source_tril).to(means)
        num_chains = self.engine.kernel.num_chains
        return {site: value.repeat(num_chains, 1, 1) for site, value in latents.items()}

    def _store(self, index: Tensor, values: dict[str, Tensor]) -> None:
        chains = self.state.chains
        for name, value in values.items():
            if name not in chains:
                shape = (len(value), self.corpus.num_docs, *value.shape[2:])
                chains[name] = torch.zeros(shape, dtype=value.dtype)
            chains[name][:, index] = value.cpu()

    # -- M-step ------------------------------------------------------------------------------------

    def _maximise(self, found: Statistics) -> None:
        """Update the parameters from the statistics of a mini-batch."""
        state, topics = self.state, self.model.topics
        found = found.scaled(len(self.occupied) / found.num_docs)
        state.updates += 1
        weight = float(state.updates) ** -STEPWISE_EXPONENT
        before = state.statistics
        state.statistics = found if before is None else before.blended(found, weight)
        if self.optimizer is None:
            state.statistics.maximise(self.model)
            return
        self.model.prior.m_step(state.statistics.num_docs, **state.statistics.sums)
        assert isinstance(topics, NormalTopics)
        rate = self.engine.learning_rate / (1.0 + state.step / LEARNING_DELAY)
        self.optimizer.param_groups[0]["lr"] = rate
        topics.logits.grad = topics.gradient(found.word_counts).to(topics.logits.dtype)
        self.optimizer.step()
        topics.logits.grad = None
        state.optimizer = self.optimizer.state_dict()["state"][0]

    # -- keeping state -----------------------------------------------------------------------------

    def _keep(self) -> None:
        """Remember the end of this epoch, which Ctrl-C goes back to."""
        state = self.state
        chains = {name: value.clone() for name, value in state.chains.items()}
        self._kept = (self._snapshot(), state.latent.clone(), chains)

    def _snapshot(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def _resume(self, checkpoint: Path) -> None:
        self.state, parameters = read_checkpoint(checkpoint, self._identity(), self.model.device)
        self.model.load_state_dict(parameters)
        if self.optimizer is not None and self.state.optimizer:
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict(
                {"state": {0: self.state.optimizer}, "param_groups": groups}
            )
        self._keep()

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint must agree on to be continued by this fit."""
        engine, kernel = self.engine, self.engine.kernel
        return {
            "engine": "MonteCarloEM",
            "corpus": self.corpus.fingerprint(),
            "model": self.model.config,
            **{
                name: getattr(engine, name)
                for name in (
                    *("num_transitions", "warmup_epochs", "batch_size", "topic_update"),
                    *("learning_rate", "start", "seed"),
                )
            },
            **{
                name: getattr(kernel, name)
                for name in ("num_chains", "mass_matrix", "num_steps", "target_accept")
            },
        }

    def result(self, stop_reason: StopReason) -> MonteCarloResult:
        """The result at the present state."""
        state, num_chains = self.state, self.engine.kernel.num_chains
        num_docs = self.corpus.num_docs
        chains = _sites(state.chains)
        empty = torch.from_numpy(self.corpus.lengths == 0)
        for value in chains.values():
            value[:, empty] = torch.nan
        means, moved = state.latent, torch.zeros(num_chains, num_docs, dtype=torch.bool)
        if chains:
            moved = state.chains["moved"]
            weights = moved.to(means) / moved.sum(0).clamp_min(1)
            sampled = (weights[..., None] * chains["eta"].to(means)).sum(0)
            # Documents without a chain that moves keep the means that they started with.
            means = torch.where(moved.any(0)[:, None], sampled, means)
            means[empty] = self._prior_means()[empty]
            index = torch.from_numpy(self.occupied)
            advice = "statistics and means leave them out; use more epochs or num_transitions"
            transitions = self._transitions_since_reset(state.step)
            warn_of_stuck(moved[:, index], index, transitions, advice)
            acceptance, target = state.history[-1]["acceptance"], self.engine.kernel.target_accept
            if acceptance < target / 2.0:
                warnings.warn(
                    f"chains accepted {acceptance:.2f} of their proposals in the last epoch, where "
                    f"{target} was aimed at: posteriors have become sharper since step sizes were "
                    "frozen; use more warmup_epochs",
                    stacklevel=4,  # the decorator of fit is a frame too
                )
        return MonteCarloResult(
            history=state.history,
            stop_reason=stop_reason,
            num_unconverged=state.history[-1]["unconverged"] if chains else len(self.occupied),
            means=means,
            objective_name="log likelihood at draws of eta",
            seconds=state.seconds,
            chains=chains,
            moved=moved,
        )

    def _transitions_since_reset(self, epochs: int) -> int:
        """Transitions that a chain has had to move in by the end of so many epochs."""
        warmup = self.engine.warmup_epochs
        epochs = epochs - warmup if epochs > warmup else epochs
        return epochs * self.engine.num_transitions


def _sites(kept: dict[str, Tensor]) -> dict[str, Tensor]:
    """The latent variables among what is kept of chains."""
    return {name: value for name, value in kept.items() if name in ("eta", "source")}


class _Tally:
    """What the transitions of an epoch did, on average; one wait for the device at its end."""

    def __init__(self) -> None:
        self.acceptance: list[Tensor] = []
        self.divergences: list[Tensor] = []
        self.step_size: list[Tensor] = []

    def add(self, chains: Chains) -> Tensor:
        """Count the last transition; returns which chains it moved."""
        assert chains.last is not None
        self.acceptance.append(chains.last.acceptance.mean())
        self.divergences.append(chains.last.divergent.sum())
        self.step_size.append(chains.step_size.mean())
        return chains.last.accepted

    def record(self) -> dict[str, Any]:
        """The epoch's means and number of divergences, JSON-able."""
        return {
            "acceptance": float(torch.stack(self.acceptance).mean()),
            "divergences": int(torch.stack(self.divergences).sum()),
            "step_size": float(torch.stack(self.step_size).mean()),
        }
