"""Processes, through which the processes of a shared fit communicate."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm import errors
from torch_lntm.errors import ConfigError, LNTMError, ProcessError, UnsharedFitWarning, warn
from torch_lntm.inference.em.statistics import Statistics
from torch_lntm.inference.interruption import Terminated, handled_signals

T = TypeVar("T")

#: Largest number of values that are collected from the processes at once, to bound memory.
COLLECTED_NUMBERS = 2**20


class Processes:
    """The processes of a shared fit, each of which solves its part of every batch.

    Every process makes this object, reads the entire corpus or its own part of it
    (:func:`~torch_lntm.inference.join_parts`), and calls the same engine with the same settings.
    Because statistics add up, the processes sum theirs and then each make the same M-step. Their
    parameters are thus equal to the last bit, and up to rounding equal to those of a single
    process.

    They share their errors too: if one fails in its part of a batch, all raise its error. Likewise,
    Ctrl-C or SIGTERM in one process ends the fit in all of them at the same update.

    Args:
        group: Process group of ``torch.distributed``. Defaults to the default group if it is
            initialised, and to this process alone otherwise.
        alone: Whether to fit in this process alone, and ignore all groups.

    Attributes:
        rank: Rank of this process, from 0.
        size: Number of processes.
        alone: Whether this is the only process of the fit.
        first: Whether this process prints, warns and writes files.

    Raises:
        ConfigError: This process is not in the group.

    Warns:
        UnsharedFitWarning: A launcher started several processes, and no group is initialised.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        alone: bool = False,
    ) -> None:
        self.rank, self.size, self.alone, self.first = 0, 1, True, True
        self._group = group
        self._working = self._interrupted = False
        #: Exception of a signal that has arrived and has not taken effect yet.
        self._pending: type[KeyboardInterrupt] | None = None
        self._device = torch.device("cpu")
        #: Statistics for batches without documents of this process.
        self._nothing: Statistics | None = None
        if alone:
            return
        if not (dist.is_available() and dist.is_initialized()):
            _warn_without_group()
            return
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ConfigError(
                "this process is not in the group of the fit; fit in the group's processes only"
            )
        self.alone, self.first = self.size == 1, self.rank == 0
        config = str(dist.get_backend_config(group))
        self._devices = [pair.partition(":")[0] for pair in config.split(",")]
        # Device of small messages between the processes.
        self._small = torch.device("cpu" if "cpu" in self._devices else self._devices[0])

    def __repr__(self) -> str:
        return f"Processes(rank {self.rank} of {self.size})"

    # -- sums ------------------------------------------------------------------------------------

    def add_up(self, make: Callable[[], Statistics | None], dtype: torch.dtype) -> Statistics:
        """Sum the statistics over all processes.

        Args:
            make: Function that computes the statistics of this process's documents. It returns
                ``None`` without documents.
            dtype: Floating-point type for the sum of the word counts.

        Returns:
            The statistics of the documents of all processes.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed in some process.
            ProcessError: A process is lost, or did not answer within the group's timeout.
            Exception: ``make`` raised this error in some process.
        """
        if self.alone:
            statistics = make()
            assert statistics is not None
            return statistics
        part, error = self._try(make)
        if self._nothing is None:
            found = [x for x in self.gather(part and _nothing_like(part)) if x]
            if not found:  # every process has failed
                self._raise_together(error)
            self._nothing = found[0]
        part = part or self._nothing
        # The counts are stored word by word. Only words with counts are sent, because a mini-batch
        # of short documents has few words of a large vocabulary.
        rows = part.word_counts.mT.to(self._device, dtype).contiguous()
        has_counts = rows.sum(1).bool().to(torch.uint8)
        words = self._all_reduce(has_counts, dist.ReduceOp.MAX).nonzero().squeeze(1)
        rows.index_copy_(0, words, self._all_reduce(rows.index_select(0, words)))
        scalars = [part.num_docs, part.num_tokens, float(part.objective), int(part.num_unconverged)]
        message = torch.tensor([*_flags(error), *scalars], dtype=torch.float64)
        sums = self.total({"": message, **{name: part.sums[name] for name in self._nothing.sums}})
        *flags, num_docs, num_tokens, objective, unconverged = sums.pop("").tolist()
        self._raise_any(flags, error)
        return Statistics(num_docs, num_tokens, sums, rows.mT, objective, round(unconverged))

    def total(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sum tensors over the processes in float64, by a single all-reduce.

        Args:
            tensors: This process's tensors by name. Names and shapes are equal in all processes.
        """
        if self.alone:
            return {name: x.double() for name, x in tensors.items()}
        flat = torch.cat([x.to(self._device, torch.float64).flatten() for x in tensors.values()])
        parts = self._all_reduce(flat).split([x.numel() for x in tensors.values()])
        return {
            name: part.view(x.shape) for (name, x), part in zip(tensors.items(), parts, strict=True)
        }

    def _all_reduce(self, tensor: Tensor, op: Any = None) -> Tensor:
        """Sum over the processes, or a different reduction. ``tensor`` may be overwritten."""
        device = tensor.device
        if device.type not in self._devices:
            tensor = tensor.to(self._small)
        with self._all_there():
            dist.all_reduce(tensor, op or dist.ReduceOp.SUM, self._group)
        return tensor.to(device)

    @contextmanager
    def _all_there(self) -> Iterator[None]:
        """Context to convert errors of the process group to a ProcessError.

        Raises:
            ProcessError: A process is lost, or did not answer within the group's timeout.
        """
        try:
            yield
        except RuntimeError as error:
            raise ProcessError(
                f"process {self.rank} of {self.size} lost the other processes: one of them has "
                f"ended, or did not answer within the timeout of the process group ({error})"
            ) from error

    # -- agreement -------------------------------------------------------------------------------

    def together(self, make: Callable[[], T]) -> T:
        """Call a function in every process. If it fails in one process, all processes fail.

        Args:
            make: The function.

        Returns:
            The value of ``make`` in this process.

        Raises:
            KeyboardInterrupt: A signal came in some process of a fit.
            ProcessError: A process is lost, or did not answer within the group's timeout.
            Exception: ``make`` raised this error in some process.
        """
        if self.alone:
            return make()
        value, error = self._try(make)
        self._raise_together(error)
        return value  # type: ignore[return-value]

    def _try(self, make: Callable[[], T]) -> tuple[T | None, BaseException | None]:
        """Value and error of ``make``. One of the two is ``None``."""
        try:
            self.poll()
            return make(), None
        except KeyboardInterrupt as interrupt:
            if not self._working:
                raise
            return None, interrupt
        except Exception as error:
            return None, error

    def _raise_together(self, error: BaseException | None) -> None:
        """Raise an error of one process in all processes, after one all-reduce of two bytes."""
        flags = torch.tensor(_flags(error), dtype=torch.uint8, device=self._small)
        self._raise_any(self._all_reduce(flags, dist.ReduceOp.MAX).tolist(), error)

    def _raise_any(self, flags: Sequence[float], error: BaseException | None) -> None:
        """Raise the first process's error, Ctrl-C or SIGTERM in all processes.

        Args:
            flags: Sums or maxima of :func:`_flags` over the processes.
            error: Error of this process, if any.
        """
        failed, interrupted, terminated = flags
        if failed:
            own = None if isinstance(error, KeyboardInterrupt) else error
            records = self.gather(None if own is None else _error_record(own))
            rank = next(i for i, record in enumerate(records) if record is not None)
            shared = own if rank == self.rank and own else _rebuilt_error(*records[rank])
            if isinstance(shared, LNTMError):
                shared.shared = True
            raise shared from (None if shared is own else own)
        if interrupted:
            self._pending, self._interrupted = None, True
            raise Terminated if terminated else KeyboardInterrupt

    def gather(self, value: Any) -> list[Any]:
        """Values of all processes, by rank."""
        if self.alone:
            return [value]
        values: list[Any] = [None] * self.size
        with self._all_there():
            dist.all_gather_object(values, value, self._group)
        return values

    def require_same(self, identity: dict[str, Any]) -> None:
        """Check that all processes make the same fit.

        Args:
            identity: JSON-able description of this process's fit.

        Raises:
            ConfigError: The descriptions differ. The message names the differing items.
        """
        first, *rest = self.gather(identity)
        different = {
            name for other in rest for name in identity if other.get(name) != first.get(name)
        }
        if different:
            raise ConfigError(
                f"the {self.size} processes do not make the same fit: they differ in "
                f"{', '.join(sorted(different))}. Give all of them the same corpus, model, "
                "settings and version of torch_lntm, or fit in one process by "
                "Processes(alone=True)"
            )

    @torch.no_grad()
    def share(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the first process's values into the tensors of all processes."""
        if self.alone:
            return
        for tensor in tensors.values():
            tensor.copy_(self._all_reduce(tensor.detach() * int(self.first)))

    def collect(self, rows: Tensor, positions: NDArray[np.int64], height: int) -> Tensor:
        """Collect the rows of a table from all processes in the first process.

        Args:
            rows: ``(num_rows, ...)`` rows of this process, on the CPU.
            positions: ``(num_rows,)`` ascending positions of the rows in the table.
            height: Number of rows of the table.

        Returns:
            ``(height, ...)`` table on the CPU of the first process, with zeros in missing rows.
            ``(0, ...)`` elsewhere.
        """
        sent = torch.uint8 if rows.dtype == torch.bool else rows.dtype
        tail = rows.shape[1:]
        table = rows.new_zeros((height if self.first else 0, *tail))
        # Some rows at a time, so that only the first process needs memory for all of them.
        step = max(1, COLLECTED_NUMBERS // max(1, tail.numel()))
        for start in range(0, height, step):
            part = torch.zeros((min(step, height - start), *tail), dtype=sent)
            begin, end = np.searchsorted(positions, [start, start + step])
            part[torch.from_numpy(positions[begin:end] - start)] = rows[begin:end].to(sent)
            part = self._all_reduce(part)
            if self.first:
                table[start : start + step] = part
        return table

    # -- signals ---------------------------------------------------------------------------------

    @contextmanager
    def working(self, device: torch.device) -> Iterator[None]:
        """Context in which Ctrl-C and SIGTERM end the fit.

        They take effect in all processes together, at their next exchange, because the others would
        wait for a process that stopped at once. A second signal does end this process at once. A
        single process stops at once.

        Args:
            device: Device of the sums.
        """
        self._nothing, self._device = None, device
        self._working, self._pending, self._interrupted = True, None, False
        try:
            with handled_signals(self._on_signal):
                yield
        finally:
            self._working = False
        if not self._interrupted:  # a signal may have come after the last exchange
            self.poll()

    def _on_signal(self, kind: type[KeyboardInterrupt]) -> None:
        """Handle a signal: the first waits for the next exchange, the second acts at once."""
        if self.alone or self._pending:
            raise kind
        self._pending = kind

    def poll(self) -> None:
        """Raise the exception of a signal. Call it within :meth:`together` only.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed, or SIGTERM has arrived.
        """
        if self._pending:
            raise self._pending


def _nothing_like(part: Statistics) -> Statistics:
    """Statistics of no documents, in the shapes of others. All of its numbers are one zero."""
    zero = torch.zeros((), dtype=torch.float64)
    sums = {name: zero.expand(x.shape) for name, x in part.sums.items()}
    return Statistics(0.0, 0.0, sums, zero.expand(part.word_counts.shape), 0.0, 0)


def _flags(error: BaseException | None) -> list[bool]:
    """Whether a process has failed, whether a signal came, and whether this was SIGTERM."""
    interrupted = isinstance(error, KeyboardInterrupt)
    failed = error is not None and not interrupted
    return [failed, interrupted, isinstance(error, Terminated)]


def _warn_without_group() -> None:
    """Warn of several processes from a launcher without a process group.

    Warns:
        UnsharedFitWarning: The environment names several processes.
    """
    size = os.environ.get("WORLD_SIZE", "")
    if size.isdecimal() and int(size) > 1:
        warn(
            f"WORLD_SIZE is {size}, but torch.distributed is not initialised: every process makes "
            "the whole fit by itself. Call torch.distributed.init_process_group() first to share "
            "the fit, or pass processes=Processes(alone=True) to keep separate fits",
            UnsharedFitWarning,
        )


def _error_record(error: BaseException) -> tuple[str, str, tuple[int, ...]]:
    """Class, message and documents of an error. Not every error can be sent itself."""
    return type(error).__name__, str(error), getattr(error, "documents", ())


def _rebuilt_error(name: str, message: str, documents: tuple[int, ...]) -> Exception:
    """Copy of another process's error, or a ProcessError if it is not made of its message."""
    kind: Any = getattr(errors, name, None) or getattr(builtins, name, None)
    try:
        error: Exception = kind(message)
    except TypeError:
        return ProcessError(f"{name} in another process: {message}")
    vars(error).update({"documents": documents} if documents else {})
    return error
