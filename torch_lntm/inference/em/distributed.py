"""Fits that several processes share: what they sum, what they agree on, and how they fail."""

from __future__ import annotations

import builtins
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
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

T = TypeVar("T")

#: Numbers of a table that are collected from the processes at once, to bound memory.
COLLECTED_NUMBERS = 2**20


class Processes:
    """The processes that share a fit, each of which sees its part of every batch's documents.

    Every process makes such an object, reads the whole corpus and calls the same engine with the
    same settings. An update of the parameters sums the additive statistics over the processes, and
    every process then makes the same M-step. The result is that of one process up to rounding. The
    parameters are the same in all processes, to the last bit.

    Errors are shared: if one process fails in its part of a batch, all of them raise its error.
    Ctrl-C in any of them ends the fit in all at the same update.

    Args:
        group: A process group of ``torch.distributed``. Defaults to the default group if it is
            initialised, else to this process alone.
        alone: This process alone, whatever groups there are.

    Attributes:
        rank: Rank of this process, from 0.
        size: Number of processes.

    Raises:
        ConfigError: This process is not in the group.

    Warns:
        UnsharedFitWarning: A launcher started several processes, and no group is initialised.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, *, alone: bool = False) -> None:
        self.rank, self.size, self._group = 0, 1, group
        self._working = self._pending = self._interrupted = False
        self._device = torch.device("cpu")
        #: Shapes of statistics, which a process needs where it has no documents of a batch.
        self._sizes: dict[str, list[int]] | None = None
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
        config = str(dist.get_backend_config(group))
        self._devices = [pair.partition(":")[0] for pair in config.split(",")]
        # Device of the small things that the processes tell each other.
        self._small = torch.device("cpu" if "cpu" in self._devices else self._devices[0])

    @property
    def alone(self) -> bool:
        """Whether there is one process, in which nothing needs adding up or agreeing on."""
        return self.size == 1

    @property
    def first(self) -> bool:
        """Whether this is the process that prints, warns and writes files."""
        return self.rank == 0

    def __repr__(self) -> str:
        return f"Processes(rank {self.rank} of {self.size})"

    # -- sums ------------------------------------------------------------------------------------

    def add_up(
        self,
        make: Callable[[], Statistics | None],
        dtype: torch.dtype,
        occurs: Tensor | None = None,
    ) -> Statistics:
        """Statistics of the documents of all processes.

        Args:
            make: Makes the statistics of this process's documents; None if it has none of them.
            dtype: Floating-point type in which the processes' word counts are summed.
            occurs: ``(num_words,)`` bool, the words of this process's documents. The word counts of
                words that occur in no process are 0 and need not be sent. Defaults to all words.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed in some process.
            ProcessError: A process is gone, or did not answer in the group's time.
            Exception: The error that ``make`` raised, in whichever process.
        """
        if self.alone:
            found = make()
            assert found is not None
            return found
        # Meanwhile this process's documents are visited.
        marks = None if occurs is None else self._reduce(occurs.to(torch.uint8), dist.ReduceOp.MAX)
        part, error = self._try(make)
        if self._sizes is None:
            known = [x for x in self.gather(None if part is None else _sizes_of(part)) if x]
            if not known:  # no process got any statistics
                self._raise_together(error)
            self._sizes = known[0]
        shapes = dict(self._sizes)
        height, width = shapes.pop("word_counts")
        if part is None:
            sums = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
            counts = torch.zeros(height, width, dtype=dtype, device=self._device)
            part = Statistics(0.0, 0.0, sums, counts.mT, 0.0, 0)
        # As the counts lie in memory, word by word.
        rows = part.word_counts.mT.to(dtype)
        if marks is None:
            reduced = self._reduce(rows.contiguous())
        else:
            words = marks().nonzero().squeeze(1).to(rows.device)
            reduced = self._reduce(rows.index_select(0, words))
        scalars = [part.num_docs, part.num_tokens, float(part.objective), part.num_unconverged]
        told = torch.tensor([*_flags(error), *scalars], dtype=torch.float64)
        sums = self.total({"": told, **{name: part.sums[name] for name in shapes}})
        failed, interrupted, num_docs, num_tokens, objective, unconverged = sums.pop("").tolist()
        rows = (
            reduced() if marks is None else torch.zeros_like(rows).index_copy_(0, words, reduced())
        )
        self._raise_any(bool(failed), bool(interrupted), error)
        return Statistics(num_docs, num_tokens, sums, rows.mT, objective, round(unconverged))

    def total(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sums over the processes, float64, by one all-reduce.

        Args:
            tensors: This process's tensors by name. The other processes have tensors of the same
                names and shapes.
        """
        if self.alone:
            return {name: x.double() for name, x in tensors.items()}
        flat = torch.cat([x.to(self._device, torch.float64).flatten() for x in tensors.values()])
        parts = self._all_reduce(flat).split([x.numel() for x in tensors.values()])
        return {
            name: part.view(x.shape) for (name, x), part in zip(tensors.items(), parts, strict=True)
        }

    def _all_reduce(self, tensor: Tensor, op: Any = None) -> Tensor:
        """The sum over the processes, or another reduction; ``tensor`` may be overwritten."""
        return self._reduce(tensor, op)()

    def _reduce(self, tensor: Tensor, op: Any = None) -> Callable[[], Tensor]:
        """Begin a reduction; the function that is returned waits for its result."""
        device = tensor.device
        if device.type not in self._devices:
            tensor = tensor.to(self._small)
        with self._all_there():
            work = dist.all_reduce(tensor, op or dist.ReduceOp.SUM, self._group, async_op=True)

        def finish() -> Tensor:
            with self._all_there():
                work.wait()
            return tensor.to(device)

        return finish

    @contextmanager
    def _all_there(self) -> Iterator[None]:
        """A context in which errors of the process group say that a process is gone."""
        try:
            yield
        except RuntimeError as error:
            raise ProcessError(
                f"process {self.rank} of {self.size} waited for the others in vain: one of them is "
                f"gone, or did not answer in the time that the process group allows ({error})"
            ) from error

    # -- agreement -------------------------------------------------------------------------------

    def together(self, make: Callable[[], T]) -> T:
        """The value that ``make`` returns here. If it fails in one process, all of them fail.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed in some process of a fit.
            ProcessError: A process is gone, or did not answer in the group's time.
            Exception: The error that ``make`` raised, in whichever process.
        """
        if self.alone:
            return make()
        made, error = self._try(make)
        self._raise_together(error)
        return made  # type: ignore[return-value]

    def _try(self, make: Callable[[], T]) -> tuple[T | None, BaseException | None]:
        """What ``make`` returns, or the error that it raises."""
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
        """Raise in all processes what one of them failed with; one all-reduce of two bytes."""
        told = torch.tensor(_flags(error), dtype=torch.uint8, device=self._small)
        failed, interrupted = self._all_reduce(told, dist.ReduceOp.MAX).bool().tolist()
        self._raise_any(failed, interrupted, error)

    def _raise_any(self, failed: bool, interrupted: bool, error: BaseException | None) -> None:
        """Raise the error of the first process that has one, or Ctrl-C, in all of them.

        Args:
            failed: Some process has an error.
            interrupted: Ctrl-C was pressed in some process.
            error: What this process caught.
        """
        if failed:
            own = None if isinstance(error, KeyboardInterrupt) else error
            found = self.gather(None if own is None else _error_record(own))
            rank = next(i for i, described in enumerate(found) if described is not None)
            shared = own if rank == self.rank and own else _rebuilt_error(**found[rank])
            if isinstance(shared, LNTMError):
                shared.shared = True
            raise shared from (None if shared is own else own)
        if interrupted:
            self._pending, self._interrupted = False, True
            raise KeyboardInterrupt

    def gather(self, value: Any) -> list[Any]:
        """The JSON-able values that the processes give, by rank."""
        if self.alone:
            return [value]
        text = json.dumps(value).encode()
        sizes = torch.zeros(self.size, dtype=torch.int64, device=self._small)
        sizes[self.rank] = len(text)
        sizes = self._all_reduce(sizes).cpu()
        table = torch.zeros(self.size, int(sizes.max()), dtype=torch.uint8)
        table[self.rank, : len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        rows = self._all_reduce(table.to(self._small)).cpu()
        return [
            json.loads(row[:size].numpy().tobytes())
            for row, size in zip(rows, sizes.tolist(), strict=True)
        ]

    def require_same(self, identity: dict[str, Any]) -> None:
        """Check that all processes are about to do the same.

        Raises:
            ConfigError: They are not; names the items that differ.
        """
        found = self.gather(identity)
        different = {
            name for other in found for name in identity if other.get(name) != found[0].get(name)
        }
        if different:
            raise ConfigError(
                f"the {self.size} processes do not make the same fit: they differ in "
                f"{', '.join(sorted(different))}. Give all of them the same corpus, model and "
                "settings, or fit in one process by Processes(alone=True)"
            )

    @torch.no_grad()
    def share(self, tensors: Mapping[str, Tensor]) -> None:
        """Write the first process's values into the tensors of all."""
        if self.alone:
            return
        for tensor in tensors.values():
            tensor.copy_(self._all_reduce(tensor.detach() * int(self.first)))

    def collect(self, rows: Tensor, positions: NDArray[np.int64], height: int) -> Tensor:
        """The rows that the processes have of a table, put together in the first process.

        Args:
            rows: ``(num_rows, ...)`` this process's, on the CPU.
            positions: ``(num_rows,)`` where they belong in the table, ascending.
            height: Rows of the table.

        Returns:
            ``(height, ...)`` on the CPU, zero in rows of no process; ``(0, ...)`` in the processes
            but the first.
        """
        tail = rows.shape[1:]
        table = rows.new_zeros((height if self.first else 0, *tail))
        step = max(1, COLLECTED_NUMBERS // max(1, tail.numel()))
        sent = torch.uint8 if rows.dtype == torch.bool else rows.dtype
        for start in range(0, height, step):
            stop = min(start + step, height)
            begin, end = np.searchsorted(positions, [start, stop])
            part = torch.zeros((stop - start, *tail), dtype=sent)
            part[torch.from_numpy(positions[begin:end] - start)] = rows[begin:end].to(sent)
            part = self._all_reduce(part)
            if self.first:
                table[start:stop] = part.to(rows.dtype)
        return table

    # -- Ctrl-C ----------------------------------------------------------------------------------

    @contextmanager
    def working(self, device: torch.device) -> Iterator[None]:
        """A context in which Ctrl-C waits until the processes agree next, and then ends all alike.

        A process that left at once would leave the others waiting for it. A second Ctrl-C does end
        this process at once.

        Args:
            device: Device of the sums.
        """
        if self.alone or self._working:
            yield
            return
        self._sizes, self._device = None, device
        self._working, self._pending, self._interrupted = True, False, False
        # Who handles Ctrl-C in another way goes on doing so.
        handles = threading.current_thread() is threading.main_thread()
        handles = handles and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if handles:
            signal.signal(signal.SIGINT, self._note)
        try:
            yield
        finally:
            self._working = False
            if handles:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._pending and not self._interrupted:  # after the last agreement
            raise KeyboardInterrupt

    def _note(self, number: int, frame: Any) -> None:
        if self._pending:
            signal.default_int_handler(number, frame)
        self._pending = True

    def poll(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed; only within :meth:`together`."""
        if self._pending:
            raise KeyboardInterrupt


def _sizes_of(part: Statistics) -> dict[str, list[int]]:
    """Shapes of what is summed, by name: of the word counts as they lie in memory."""
    sizes = {name: list(value.shape) for name, value in part.sums.items()}
    return {**sizes, "word_counts": list(part.word_counts.mT.shape)}


def _flags(error: BaseException | None) -> list[bool]:
    """Whether a process has failed, and whether it was interrupted."""
    interrupted = isinstance(error, KeyboardInterrupt)
    return [error is not None and not interrupted, interrupted]


def _warn_without_group() -> None:
    """Warn if a launcher started several processes and none of them has joined a group."""
    size = os.environ.get("WORLD_SIZE", "")
    if size.isdecimal() and int(size) > 1:
        warn(
            f"WORLD_SIZE is {size}, but torch.distributed is not initialised: every process makes "
            "the whole fit by itself. Call torch.distributed.init_process_group() first to share "
            "it, or pass processes=Processes(alone=True) if that is meant",
            UnsharedFitWarning,
        )


def _error_record(error: BaseException) -> dict[str, Any]:
    """An error in JSON."""
    documents = list(getattr(error, "documents", ()))
    return {"name": type(error).__name__, "message": str(error), "documents": documents}


def _rebuilt_error(name: str, message: str, documents: list[int]) -> Exception:
    """An error like that of another process; a ProcessError if it is of a kind not known here."""
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return ProcessError(f"{name} in another process: {message}")
    error = kind.__new__(kind)
    error.args = (message,)
    if documents or hasattr(kind, "documents"):
        vars(error)["documents"] = tuple(documents)
    return error
