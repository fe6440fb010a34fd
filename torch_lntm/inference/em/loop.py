"""The loop under both engines: steps that can be interrupted, saved and continued."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import Tensor

from torch_lntm.errors import ConfigError, NumericalError, SavingWarning, warn
from torch_lntm.inference.em.checkpoint import FitState, read_checkpoint, write_checkpoint
from torch_lntm.inference.em.memory import DocumentRows, placed
from torch_lntm.inference.em.processes import Processes
from torch_lntm.inference.em.statistics import Statistics
from torch_lntm.inference.interruption import ends_early
from torch_lntm.models import TopicModel

StopReason = Literal["converged", "stopped_early", "max_iterations", "interrupted"]


class ResumableFit(ABC):
    """A fit in steps, each of which ends in a record and in a state that can be returned to.

    Attributes:
        model: The model, fitted in place.
        state: All that the fit needs to go on from the end of a step.
        rows: Which rows of the state's tables belong to which documents of the corpus.
        processes: The processes that share the fit.
    """

    model: TopicModel
    state: FitState
    rows: DocumentRows
    processes: Processes
    #: Tables of documents that Ctrl-C need not go back to, because no result is made of them.
    not_returned_to: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def steps(self) -> Generator[dict[str, Any]]:
        """Do one step after the other, from the present state on, and yield a record at each end.

        A record is JSON-able and has at least ``phase``, ``iteration`` and ``objective``.
        """

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """JSON-able description that a checkpoint must share to be continued by this fit."""

    def end_reason(self) -> StopReason:
        """Why the fit has ended, once its steps have."""
        return "max_iterations"

    def resumed(self) -> None:  # noqa: B027
        """Take note that the state and the parameters have been read from a checkpoint."""

    def keep(self) -> None:
        """Remember the end of this step, which Ctrl-C goes back to."""
        tables = {
            name: table
            for name, table in self.state.documents.items()
            if name not in self.not_returned_to
        }
        state = replace(
            self.state,
            documents=dict_of_clones(tables),
            statistics=self._kept_statistics(),
            history=list(self.state.history),
            best=dict(self.state.best),
        )
        # In one assignment: Ctrl-C can come at any moment, also while the copies are made.
        self._kept = self.snapshot(), state

    def _kept_statistics(self) -> Statistics | None:
        """The statistics, copied where the next step will change them in place."""
        statistics = self.state.statistics
        if statistics is None or not self.averages:
            return statistics
        return replace(statistics, word_counts=statistics.word_counts.clone())

    @property
    def averages(self) -> bool:
        """Whether the present phase moves its statistics, instead of making them anew."""
        return False

    def restore(self) -> None:
        """Go back to what was kept last, which ends the fit."""
        parameters, self.state = self._kept
        self.model.load_state_dict(parameters)

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of the model's parameters."""
        return dict_of_clones(self.model.state_dict())

    def run(self, checkpoint: Path | None, checkpoint_seconds: float) -> StopReason:
        """Run all steps; on Ctrl-C return to the end of the last finished one.

        Where several processes share the fit, all of them run it. They start from the parameters
        of the first, whose clock counts and which alone writes the checkpoint.

        Args:
            checkpoint: A file to save the state in; if it exists the fit continues from there.
            checkpoint_seconds: Least time between two saves.

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
                self.state.seconds, due = processes.of_first(before + now - began, waited)
                record = {**record, "seconds": round(self.state.seconds, 3)}
                if not math.isfinite(record["objective"]):
                    raise NumericalError(
                        f"the objective became {record['objective']} in phase {record['phase']}, "
                        f"iteration {record['iteration']}"
                    )
                self.state.history.append(record)
                self.keep()
                if checkpoint is not None and due:
                    self._save(checkpoint, identity)
                    saved = time.monotonic()
            reason = self.end_reason()
        except KeyboardInterrupt:
            self.restore()
            if not ends_early():
                raise
            reason = "interrupted"
        finally:
            steps.close()
            self.state.seconds = before + time.monotonic() - began
        [self.state.seconds] = processes.of_first(self.state.seconds)
        return reason

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
        self.state, parameters = self.processes.together(
            lambda: read_checkpoint(checkpoint, identity, self.model.device)
        )
        self.state.documents = placed(self.rows.select(self.state.documents), self.model.device)
        best = self.rows.select(self._best_documents())
        self.state.best |= placed(best, self.model.device)
        self.model.load_state_dict(parameters)
        self.resumed()

    def _best_documents(self) -> dict[str, Tensor]:
        """The tables of documents among what is kept of the best restart."""
        return {name: table for name, table in self.state.best.items() if name == "means"}

    def _save(self, checkpoint: Path, identity: dict[str, Any]) -> None:
        state = replace(
            self.state,
            documents=self.rows.collect(self.state.documents, self.processes),
            best=self.state.best | self.rows.collect(self._best_documents(), self.processes),
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
