"""The loop under the engines: steps that can be interrupted, saved and continued."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, NumericalError, SavingWarning, warn
from torch_lntm.inference.em.checkpoint import FitState, read_checkpoint, write_checkpoint
from torch_lntm.inference.em.distributed import Processes
from torch_lntm.inference.em.documents import (
    DocumentShard,
    DocumentTables,
    corpus_to_fit,
    to_device,
)
from torch_lntm.inference.em.result import FitResult, StopReason
from torch_lntm.inference.em.statistics import Statistics
from torch_lntm.inference.interruption import stops_on_interrupt
from torch_lntm.models import TopicModel

#: Documents whose prior means are found at once.
MAX_FILLED_DOCS = 1024

R = TypeVar("R", bound=FitResult)
#: A function that is called with each record of a fit. It returns True to end the fit.
Callback = Callable[[dict[str, Any]], Any]


class ResumableFit(ABC, Generic[R]):
    """A fit in steps, each of which ends in a record and in a state that can be returned to.

    Attributes:
        model: The model, fitted in place.
        settings: The engine's settings.
        corpus: The documents.
        shard: The documents that belong to this process.
        processes: The processes that share the fit.
        state: All that the fit needs to go on from the end of a step.
    """

    model: TopicModel
    settings: Any
    corpus: Corpus
    shard: DocumentShard
    processes: Processes
    state: FitState
    #: Tables of documents that Ctrl-C need not go back to, because no result is made of them.
    not_restored: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def steps(self) -> Generator[dict[str, Any]]:
        """Make one step after the other, from the present state on, and yield a record at each end.

        A record is JSON-able and has at least ``phase``, ``iteration`` and ``objective``.
        """

    @abstractmethod
    def result(self, stop_reason: StopReason) -> R:
        """The result at the present state."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """JSON-able description that a checkpoint must share to be continued by this fit."""

    def end_reason(self) -> StopReason:
        """Why the fit has ended, once its steps have."""
        return "max_iterations"

    def after_resume(self) -> None:
        """Take note that the state and the parameters have been read from a checkpoint."""

    @property
    def documents(self) -> DocumentTables:
        """The state's tables, to be read and written by batches."""
        return DocumentTables(self.state.documents, self.shard.rows, self.model.device)

    @property
    def shows_progress(self) -> bool:
        """Whether progress bars are wanted, and this process shows them."""
        return self.settings.progress and self.processes.first

    @property
    def is_averaging(self) -> bool:
        """Whether the present phase moves its statistics, instead of making them anew."""
        return False

    # -- sums and means ----------------------------------------------------------------------------

    def add_up_batch(
        self, batch: DocumentBatch | None, make: Callable[[], Statistics | None]
    ) -> Statistics:
        """Statistics of a mini-batch; its words' counts alone travel between processes.

        Args:
            batch: This process's documents of the mini-batch; None if it has none.
            make: Makes their statistics; None if there are none.
        """
        model, occurs = self.model, None
        if not self.processes.alone:
            num_columns = model.topics.num_groups * model.num_words
            occurs = torch.zeros(num_columns, dtype=torch.bool, device=model.device)
            if batch is not None:
                occurs[model.topics.assign_groups(batch).word_index] = True
        return self.processes.add_up(make, model.dtype, occurs)

    def collect(self, *names: str) -> dict[str, Tensor]:
        """Some of the state's tables, if it has them, as :meth:`DocumentRows.collect` does."""
        found = {name: self.state.documents[name] for name in names if name in self.state.documents}
        return self.shard.rows.collect(found, self.processes)

    def with_prior_means(self, means: Tensor | None) -> Tensor:
        """The documents' means for a result, with the prior's where they have no posterior.

        Args:
            means: ``(num_docs, latent_dim)`` means of all non-empty documents in the first process,
                overwritten; None if there are none yet.

        Returns:
            ``(num_docs, latent_dim)``; ``(0, latent_dim)`` in the processes but the first.
        """
        corpus, model = self.corpus, self.model
        rows = np.flatnonzero(corpus.lengths == 0)
        if means is None:
            rows = np.arange(corpus.num_docs)
            height = corpus.num_docs if self.processes.first else 0
            means = torch.zeros(height, model.latent_dim, dtype=model.dtype)
        if len(rows) and self.processes.first:
            for batch in corpus.batches(MAX_FILLED_DOCS, order=rows, dtype=model.dtype):
                centre = model.prior.space(model.check_batch(batch)).centre
                means[batch.positions] = centre.expand(batch.num_docs, -1).to(means)
        return means

    # -- state -------------------------------------------------------------------------------------

    @property
    def constant_tables(self) -> frozenset[str]:
        """Tables of documents that no later step writes; Ctrl-C goes back to them uncopied."""
        return frozenset()

    def keep(self) -> None:
        """Remember the end of this step, which Ctrl-C goes back to."""
        tables = {
            name: table if name in self.constant_tables else table.clone()
            for name, table in self.state.documents.items()
            if name not in self.not_restored
        }
        state = replace(
            self.state,
            documents=tables,
            statistics=self._kept_statistics(),
            history=list(self.state.history),
            best=dict(self.state.best),
        )
        # In one assignment: Ctrl-C can come at any moment, also while the copies are made.
        self._kept = self.snapshot(), state

    def _kept_statistics(self) -> Statistics | None:
        """The statistics, copied if the next step will change them in place."""
        statistics = self.state.statistics
        if statistics is None or not self.is_averaging:
            return statistics
        return replace(statistics, word_counts=statistics.word_counts.clone())

    def restore(self) -> None:
        """Go back to what was kept last, which ends the fit."""
        parameters, self.state = self._kept
        self.model.load_state_dict(parameters)

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of the model's parameters."""
        return dict_of_clones(self.model.state_dict())

    def run(
        self,
        checkpoint: Path | None,
        checkpoint_seconds: float,
        callback: Callback | None = None,
    ) -> StopReason:
        """Run all steps; on Ctrl-C return to the end of the last finished one.

        If several processes share the fit, all of them run it. They start from the parameters of
        the first, whose clock counts and which alone writes the checkpoint.

        Args:
            checkpoint: A file to save the state in; if it exists the fit continues from there.
            checkpoint_seconds: Least time between two saves.
            callback: As for :meth:`Engine.fit`.

        Raises:
            ConfigError: The checkpoint is damaged, or that of another fit, or the processes are not
                about to make the same fit.
            NumericalError: The objective left the real numbers.
        """
        processes = self.processes
        identity: dict[str, Any] = {}
        if checkpoint is not None or not processes.alone:
            identity = self.identity()
            processes.require_same(identity)
        processes.share(self.model.state_dict())
        if checkpoint is not None:
            self._resume(checkpoint, identity)
        self.keep()
        began = saved = time.monotonic()
        before = self.state.seconds
        steps = self.steps()
        try:
            for record in steps:
                now = time.monotonic()
                waited = now - saved >= checkpoint_seconds
                told = processes.gather([before + now - began, waited, callback is not None])
                self.state.seconds, due, _ = told[0]
                self._finish_step({**record, "seconds": round(self.state.seconds, 3)})
                called = any(has_callback for *_, has_callback in told)
                stopped = called and self._stopped_by(callback, checkpoint, identity)
                if checkpoint is not None and (due or stopped):
                    self._save(checkpoint, identity)
                    saved = time.monotonic()
                if stopped:
                    self.restore()
                    reason: StopReason = "stopped_by_callback"
                    break
            else:
                reason = self.end_reason()
        except KeyboardInterrupt:
            self.restore()
            if not stops_on_interrupt():
                raise
            reason = "interrupted"
        finally:
            steps.close()
            self.state.seconds = before + time.monotonic() - began
            del self._kept  # the result needs the memory
        self.state.seconds = processes.gather(self.state.seconds)[0]
        return reason

    def _finish_step(self, record: dict[str, Any]) -> None:
        """Add a step's record to the history and keep the state at its end.

        Raises:
            NumericalError: The objective left the real numbers.
        """
        if not math.isfinite(record["objective"]):
            raise NumericalError(
                f"the objective became {record['objective']} in phase {record['phase']}, "
                f"iteration {record['iteration']}"
            )
        self.state.history.append(record)
        self.keep()

    def _stopped_by(
        self, callback: Callback | None, checkpoint: Path | None, identity: dict[str, Any]
    ) -> bool:
        """Call the callback with the last record in the first process; whether it ends the fit.

        If the callback fails, the checkpoint is saved first, so that the fit can be continued.
        """
        record = dict(self.state.history[-1])
        try:
            stops = self.processes.together(
                lambda: callback is not None and self.processes.first and callback(record) is True
            )
        except Exception:
            if checkpoint is not None:
                self._save(checkpoint, identity)
            raise
        return any(self.processes.gather(stops))

    def _resume(self, checkpoint: Path, identity: dict[str, Any]) -> None:
        """Go on from a checkpoint, if it exists, whichever processes wrote it."""
        found = self.processes.gather(checkpoint.exists())
        if not any(found):
            return
        if not all(found):
            raise ConfigError(
                f"{checkpoint} is not there for process {found.index(False)} of {len(found)}; put "
                "it on a file system that all processes see"
            )
        device, rows = self.model.device, self.shard.rows
        self.state, parameters = self.processes.together(
            lambda: read_checkpoint(checkpoint, identity, self.model.state_dict())
        )
        self.state.documents = to_device(rows.select(self.state.documents), device)
        self.state.best |= to_device(rows.select(self._best_documents()), device)
        if self.state.theta is not None:
            self.state.theta = to_device({"": self.state.theta}, device)[""]
        self.model.load_state_dict(parameters)
        self.after_resume()

    def _best_documents(self) -> dict[str, Tensor]:
        """The tables of documents among what is kept of the best restart."""
        return {name: table for name, table in self.state.best.items() if name == "means"}

    def _save(self, checkpoint: Path, identity: dict[str, Any]) -> None:
        state = replace(
            self.state,
            documents=self.collect(*self.state.documents),
            best=self.state.best | self.shard.rows.collect(self._best_documents(), self.processes),
        )
        if not self.processes.first:
            return
        try:
            write_checkpoint(checkpoint, state, self.snapshot(), identity)
        except OSError as error:
            # A full disk need not end a fit that runs in memory.
            warn(
                f"the checkpoint {checkpoint} could not be written ({error.strerror or error}); "
                "the fit goes on. Free space there, so that it can be continued if it is killed",
                SavingWarning,
            )


def dict_of_clones(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors by name."""
    return {name: value.clone() for name, value in tensors.items()}


class Engine(ABC, Generic[R]):
    """An algorithm that fits a model to a corpus, with its settings.

    Attributes:
        model: The model to fit, in place.
    """

    model: TopicModel

    @abstractmethod
    def prepare(self, corpus: Corpus, processes: Processes) -> ResumableFit[R]:
        """One fit, before its first step.

        Args:
            corpus: The documents, encoded for the model; at least one is not empty.
            processes: The processes that share the fit.
        """

    @torch.no_grad()
    def fit(
        self,
        corpus: Corpus,
        *,
        checkpoint: str | Path | None = None,
        checkpoint_seconds: float = 60.0,
        callback: Callback | None = None,
        processes: Processes | None = None,
    ) -> R:
        """Fit the model to a corpus.

        Where ``torch.distributed`` has been initialised with several processes, all of them call
        this with the same corpus, model and settings, and share the fit
        (``docs/several_processes.md``): it starts from the first process's parameters and ends in
        the same parameters and result in all.

        Ctrl-C ends the fit at the parameters, and draws, of the last finished epoch or iteration,
        with ``stop_reason`` ``"interrupted"``.

        Args:
            corpus: The documents, or a matrix of counts; empty ones take no part.
            checkpoint: A file to save the state of the fit in. If it exists the fit continues from
                there, to the same result as without the interruption, in any number of processes.
                It is left in place. Variational EM can go on with more iterations. Monte-Carlo EM
                can go on with more epochs, unless it averages already or its warm-up, which is half
                of up to 20 epochs, would be longer.
            checkpoint_seconds: Least time between two saves.
            callback: Function that is called with each record of ``result.history`` as soon as the
                record exists, for logs and trackers (``docs/callbacks.md``). The model then has the
                parameters of this step. The fit ends if the function returns True, with
                ``stop_reason`` ``"stopped_by_callback"``. If the function raises an error, the
                checkpoint is saved, and the error ends the fit. In several processes, the first
                one calls the function.
            processes: The processes that share the fit. Defaults to those of the default group of
                ``torch.distributed``, or to this one alone.

        Returns:
            The result; the fitted parameters are in the model.

        Raises:
            CorpusError: The corpus has no tokens.
            ConfigError: The corpus has another vocabulary than the model, the checkpoint belongs to
                another fit, or there are more processes than documents.
            NumericalError: The objective, a parameter, or a density where chains start, left the
                real numbers; names the parameter or the documents.
            ProcessError: A process of the fit is gone, or did not answer in its group's time.
        """
        processes = processes or Processes()
        corpus = processes.together(lambda: corpus_to_fit(self.model, corpus))
        run = self.prepare(corpus, processes)
        path = None if checkpoint is None else Path(checkpoint)
        with processes.working(self.model.device):
            return run.result(run.run(path, checkpoint_seconds, callback))
