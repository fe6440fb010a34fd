"""The loop that all engines share: steps that can be interrupted, saved and continued."""

from __future__ import annotations

import math
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from copy import copy, deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from torch_lntm.budget import release_memory
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.corpus.corpus import as_corpus
from torch_lntm.errors import (
    ConfigError,
    NumericalError,
    SavingWarning,
    warn,
)
from torch_lntm.guides import make_guide
from torch_lntm.inference.em.checkpoint import (
    FitState,
    folder_of,
    read_checkpoint,
    read_rows,
    write_checkpoint,
    write_rows,
)
from torch_lntm.inference.em.distributed import Processes
from torch_lntm.inference.em.documents import DocumentShard, corpus_to_fit, join_parts
from torch_lntm.inference.em.result import FitResult, StopReason
from torch_lntm.inference.interruption import Terminated, stops_on_interrupt
from torch_lntm.models import TopicModel
from torch_lntm.models.registry import record_settings

#: Largest number of documents in a batch whose prior means are computed.
MAX_FILLED_DOCS = 1024
#: Approximate number of tokens of the documents from which topics learn their prior.
LEARNING_TOKENS = 2_000
R = TypeVar("R", bound=FitResult)
#: Function that is called with each record of a fit, and ends the fit by returning True.
Callback = Callable[[dict[str, Any]], Any]


class ResumableFit(ABC, Generic[R]):
    """A fit in steps, each of which leaves a record and a state that can be restored.

    Args:
        engine: The engine.
        corpus: The documents. At least one has words.
        processes: The processes of the fit. Defaults to this process alone.

    Attributes:
        model: The model, fitted in place.
        settings: The engine, with its settings as attributes.
        corpus: The documents.
        shard: This process's documents.
        processes: The processes of the fit.
        state: State from which the fit continues after a step.
    """

    shard: DocumentShard
    state: FitState
    #: Tensors of documents that need no copy in a kept state, because the next step does not change
    #: them or they do not affect the result.
    not_copied: frozenset[str] = frozenset()
    #: Phases in which the statistics are a running average.
    averaging: ClassVar[tuple[str, ...]] = ()
    #: File of the state, and description of the fit for it.
    _checkpoint: Path | None = None
    _identity: dict[str, Any]

    def __init__(self, engine: Any, corpus: Corpus, processes: Processes | None = None) -> None:
        self.settings, self.model, self.corpus = engine, engine.model, corpus
        self.processes = processes or Processes(alone=True)

    @abstractmethod
    def steps(self) -> Generator[dict[str, Any]]:
        """Make all steps from the current state on.

        Yields:
            A JSON-able record at the end of each step, with at least ``phase``, ``iteration`` and
            ``objective``.
        """

    @abstractmethod
    def result(self, stop_reason: StopReason) -> R:
        """Result at the current state."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """JSON-able description of the fit, which a checkpoint must match to continue it."""

    def end_reason(self) -> StopReason:
        """Reason for the end of the fit after its last step."""
        return "max_iterations"

    @property
    def shows_progress(self) -> bool:
        """Whether this process shows progress bars."""
        return self.settings.progress and self.processes.first

    def with_prior_means(self, means: Tensor | None) -> Tensor:
        """Means of the documents for a result, from the prior where there is no posterior.

        Args:
            means: ``(num_result_docs, latent_dim)`` means of all non-empty documents, whose other
                rows are overwritten. ``None`` before the first E-step.

        Returns:
            ``(num_result_docs, latent_dim)``: all documents in the first process and none
            elsewhere. In a fit of parts, each process's own documents.
        """
        corpus, model = self.corpus, self.model
        height = self.shard.num_result_docs
        rows = np.flatnonzero(corpus.lengths[:height] == 0)
        if means is None:
            rows = np.arange(height)
            means = torch.zeros(height, model.latent_dim, dtype=model.dtype)
        if len(rows):
            options = {"device": model.device, "dtype": model.dtype}
            for batch in corpus.batches(MAX_FILLED_DOCS, order=rows, **options):
                centre = model.prior.space(batch).centre
                means[batch.positions] = centre.expand(batch.num_docs, -1).to(means)
        return means

    def learn(self, latent: str) -> None:
        """Let the topics learn their prior, by the last statistics and some documents.

        Args:
            latent: Name of the documents' latent variables in their table.
        """
        topics, processes, statistics = self.model.topics, self.processes, self.state.statistics
        rounds = topics.learning_rounds if statistics is not None else 0
        if statistics is None or not rounds:
            return
        number = max(1, self.corpus.whole.num_tokens // LEARNING_TOKENS)
        batch, _ = next(self.shard.mini_batches(self.settings.seed, 0, number))

        def sums() -> dict[str, Tensor]:
            documents = []
            if batch is not None:
                values = self.state.documents.read(latent, batch)
                values = values[:, 0] if values.dim() == 3 else values  # of the first chain
                documents.append((batch, self.model.theta(values)))
            return topics.prior_sums(statistics.word_counts, documents)

        for _ in range(rounds):
            topics.learn_(statistics.word_counts, **processes.total(processes.together(sums)))

    def settle(self) -> None:
        """Let the topics note at the end of a fit what all documents say of their errors."""

        def documents() -> Iterator[tuple[DocumentBatch, Tensor]]:
            guide = make_guide(None, self.model)
            for batch in self.shard.local_batches(MAX_FILLED_DOCS):
                yield batch, guide.posterior(batch).theta_mode()

        sums = self.processes.together(lambda: self.model.topics.last_sums(documents()))
        if sums:
            self.model.topics.settle_(**self.processes.total(sums))

    # -- state -------------------------------------------------------------------------------------

    def keep(self) -> None:
        """Keep the state at the end of a step, for :meth:`restore` and the checkpoint.

        Where the next step changes tensors in place, the fit goes on with copies of them.
        """
        state = self.state
        # Ctrl-C can interrupt the copying at any moment. Assigning at once also drops the tensors
        # kept before, so that no tensor exists three times.
        self._kept = kept = replace(
            state,
            model={name: x.clone() for name, x in self.model.state_dict().items()},
            documents=copy(state.documents),
            history=list(state.history),
            # The topics' optimiser has references to its tensors.
            optimizer=deepcopy(state.optimizer),
        )
        state.documents.tensors = {
            name: table if name in self.not_copied else table.clone()
            for name, table in kept.documents.tensors.items()
        }
        state.word_counts, state.theta = (
            None if x is None else x.clone() for x in (kept.word_counts, kept.theta)
        )
        if kept.statistics is not None and kept.phase in self.averaging:
            counts = kept.statistics.word_counts.clone()
            state.statistics = replace(kept.statistics, word_counts=counts)
        release_memory(self.shard.num_docs + self.model.num_words, self.model.num_topics)

    def restore(self) -> None:
        """Restore the state of the last :meth:`keep`."""
        self.state = self._kept
        self.model.load_state_dict(self.state.model)

    def run(
        self, checkpoint: Path | None, checkpoint_seconds: float, callback: Callback | None = None
    ) -> StopReason:
        """Run all steps. Ctrl-C restores the state at the end of the last step.

        All processes of a shared fit run this method and start from the parameters of the first,
        which also measures the time and writes the checkpoint.

        Args:
            checkpoint: File for the state. If it exists, the fit continues from it.
            checkpoint_seconds: Minimum time between two saves.
            callback: As for :meth:`Engine.fit`.

        Raises:
            ConfigError: The checkpoint is damaged or belongs to another fit, or the processes
                do not make the same fit.
            NumericalError: The objective is not finite.
        """
        processes, self._checkpoint = self.processes, checkpoint
        if checkpoint is not None or not processes.alone:
            self._identity = self.identity()
            processes.require_same(self._identity)
        processes.share(self.model.state_dict())
        self._resume()
        self.keep()
        has_callback = any(processes.gather(callback is not None))
        saved = time.monotonic()
        start = saved - self.state.seconds
        steps = self.steps()
        try:
            for record in steps:
                now = time.monotonic()
                waited = now - saved >= checkpoint_seconds
                self.state.seconds, due = processes.gather((now - start, waited))[0]
                if not math.isfinite(record["objective"]):
                    raise NumericalError(
                        f"the objective became {record['objective']} in phase {record['phase']}, "
                        f"iteration {record['iteration']}"
                    )
                record["seconds"] = round(self.state.seconds, 3)
                self.state.history.append(record)
                self.keep()
                stopped = has_callback and self._stopped_by(callback)
                if due or stopped:
                    self._save()
                    saved = time.monotonic()
                if stopped:
                    self.restore()
                    reason: StopReason = "stopped_by_callback"
                    break
            else:
                reason = self.end_reason()
        except KeyboardInterrupt as interrupt:
            self.restore()
            self._save()
            if not stops_on_interrupt():
                raise
            reason = "terminated" if isinstance(interrupt, Terminated) else "interrupted"
        finally:
            steps.close()
            self.state.seconds = time.monotonic() - start
            del self._kept  # the result needs the memory
        self.state.seconds = processes.gather(self.state.seconds)[0]
        return reason

    def _stopped_by(self, callback: Callback | None) -> bool:
        """Call the callback with the last record, in the processes that have one.

        If it fails, the checkpoint is saved first, so that the fit can be continued.

        Returns:
            Whether the callback ends the fit.
        """
        record = dict(self.state.history[-1])
        try:
            stops = self.processes.together(
                lambda: callback is not None and callback(record) is True
            )
        except Exception:
            self._save()
            raise
        return any(self.processes.gather(stops))

    # -- checkpoints -------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Continue from the checkpoint, if there is one, however many processes wrote it.

        Raises:
            ConfigError: Some processes lack the file, it is damaged, or it belongs to another fit.
        """
        path = self._checkpoint
        exists = self.processes.gather(path is not None and path.exists())
        if path is None or not any(exists):
            return
        if not all(exists):
            raise ConfigError(
                f"process {exists.index(False)} of {len(exists)} cannot find {path}; put it on a "
                "file system that all processes share"
            )
        together, documents = self.processes.together, self.state.documents
        tensors, record = together(lambda: read_checkpoint(path, self._identity))
        together(lambda: read_rows(path, record["rows"], documents))  # before the model changes
        self.state.load(tensors, record["state"], self.model.device)
        self.model.load_state_dict(self.state.model)

    def _save(self) -> None:
        """Write the kept state to the checkpoint, if there is one."""
        path, state = self._checkpoint, self._kept
        if path is None:
            return
        # The files of rows get a new name, so that the old checkpoint stays complete until the new
        # one replaces it.
        folder, name = folder_of(path), self.processes.gather(secrets.token_hex(8))[0]
        file = folder / f"{name}-{self.processes.rank}.safetensors"
        try:
            self.processes.together(partial(write_rows, file, state.documents))
            if self.processes.first:
                write_checkpoint(path, state, self._identity, name)
                for old in folder.glob("*.safetensors"):
                    if not old.name.startswith(f"{name}-"):
                        old.unlink(missing_ok=True)
        except OSError as error:
            # The fit runs in memory, and can continue even if the disk is full.
            if self.processes.first:
                warn(
                    f"the checkpoint {path} could not be written ({error.strerror or error}); the "
                    "fit goes on. Free space there, so that a killed fit can be continued",
                    SavingWarning,
                )


class Engine(ABC, Generic[R]):
    """An algorithm that fits a model to a corpus, together with its settings.

    Attributes:
        model: The model. Fits change it in place.
    """

    model: TopicModel

    @abstractmethod
    def prepare(self, corpus: Corpus, processes: Processes) -> ResumableFit[R]:
        """A fit, before its first step, of documents already encoded for the model."""

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

        Processes of ``torch.distributed`` share a fit if they all call this method with the same
        model and settings, and with the same corpus or each its own part of one in shards
        (``docs/several_processes.md``). The fit starts from the first process's parameters, and all
        of them end with the same parameters and the same result.

        Ctrl-C saves the checkpoint and ends the fit at the last finished epoch or iteration, with
        ``stop_reason`` ``"interrupted"``. SIGTERM, by which schedulers stop a process, does the
        same with ``"terminated"``.

        Args:
            corpus: The documents, or a matrix of counts. Empty documents are skipped.
            checkpoint: File for the state of the fit; the rows of its documents go to a folder
                beside it. If the file exists, the fit continues from it, even with another number
                of processes, and ends as if it had never been interrupted. The file stays after the
                fit, so that a finished fit can be continued with more iterations (variational EM)
                or more epochs (Monte-Carlo EM). Monte-Carlo EM refuses more epochs once averaging
                has begun, and after a ``max_epochs`` below 20, because the default warm-up would
                become longer.
            checkpoint_seconds: Minimum time between two saves.
            callback: Function to call with each record of ``result.history`` as soon as the record
                exists, for logs and trackers (``docs/plugins.md``). The model then has the
                parameters of this step. If the function returns True, the fit ends with
                ``stop_reason`` ``"stopped_by_callback"``; if it raises an error, the checkpoint is
                saved and the error ends the fit. Of several processes, each calls its own function.
            processes: The processes of the fit. Defaults to the default group of
                ``torch.distributed``, or to this process alone.

        Returns:
            The result. The fitted parameters are in the model.

        Raises:
            CorpusError: The corpus has no tokens.
            ConfigError: The corpus has a different vocabulary, the checkpoint belongs to another
                fit, there are more processes than documents, or a part of the corpus is missing or
                is there twice.
            NumericalError: The objective, a parameter, or a density at the start of chains is not
                finite. The message names the parameter or the documents.
            ProcessError: A process of the fit is lost, or did not answer within its group's
                timeout.
        """
        from torch_lntm import __version__

        processes = processes or Processes()
        processes.require_same({"version": __version__})
        corpus = join_parts(processes.together(lambda: as_corpus(corpus)), processes)
        corpus = processes.together(lambda: corpus_to_fit(self.model, corpus))
        topics = self.model.topics
        topics.prepare_(corpus)
        if topics.keywords is not None:
            record_settings(self.model, {"keyword_strength": topics.keywords.strength})
        keywords = topics.keywords if processes.first else None
        if keywords is not None:
            keywords.check_corpus(corpus)
        run = self.prepare(corpus, processes)
        path = None if checkpoint is None else Path(checkpoint)
        with processes.working(self.model.device):
            stop_reason = run.run(path, checkpoint_seconds, callback)
            run.settle()
            result = run.result(stop_reason)
            if corpus.part is not None:
                rows = corpus.nonempty
                own = processes.together(lambda: len(rows) * result.shares_of(rows))
                shares = processes.total({"": own})[""] / corpus.whole.num_nonempty
                result = replace(result, whole_shares=shares)
        if keywords is not None:
            keywords.check_topics(topics.mean_probs.detach())
        return result
