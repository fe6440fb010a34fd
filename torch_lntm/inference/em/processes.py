"""The processes that share a fit: what they add up, what they agree on, and how they fail."""

from __future__ import annotations

import builtins
import json
import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm import errors
from torch_lntm.errors import ConfigError, LNTMError, ProcessError
from torch_lntm.inference.em.packing import Layout, layout_of, pack, unpack
from torch_lntm.inference.em.statistics import Statistics

T = TypeVar("T")

#: Numbers that are collected from the processes at once, to bound memory.
COLLECTED_NUMBERS = 2**24
#: Words that counts are added up of are rounded up to a multiple of so many.
ROUNDED_WORDS = 1024
#: The name of what processes tell each other beside their sums: failed, interrupted.
_FLAGS = "flags"


class Processes:
    """The processes that share a fit, each of which sees its part of every batch's documents.

    Every process makes such an object, reads the whole corpus and calls the same engine with the
    same settings; the engines do the rest. An update of the parameters takes one all-reduce of the
    additive statistics, and every process then does the same M-step. The result is that of one
    process up to rounding, and the same in all of them.

    Errors are shared: where one process fails in its part of a batch, all of them raise that error.
    Ctrl-C in any of them ends the fit in all at the same update.

    Args:
        group: A process group of ``torch.distributed``; by default the default group if it is
            initialised, else this process alone.
        alone: This process alone, whatever groups there are.

    Attributes:
        rank: Which of the processes this is, from 0.
        size: How many they are.

    Raises:
        ConfigError: This process is not in the group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, *, alone: bool = False) -> None:
        self.rank, self.size, self._group = 0, 1, group
        self._layouts: dict[str, Layout] = {}
        self._working = self._pending = self._interrupted = False
        self._device = torch.device("cpu")
        if alone or not (dist.is_available() and dist.is_initialized()):
            return
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ConfigError(
                "this process is not in the group of the fit; fit in the group's processes only"
            )
        config = str(dist.get_backend_config(group))
        self._devices = [pair.partition(":")[0] for pair in config.split(",")]
        # Where small things that the processes tell each other are.
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
        kind: str,
        make: Callable[[], Statistics | None],
        dtype: torch.dtype,
        num_words: int | None = None,
    ) -> Statistics:
        """Statistics of the documents of all processes, by one all-reduce.

        Args:
            kind: As for :meth:`total`.
            make: Makes the statistics of this process's documents; None if it has none.
            dtype: The type in which the word counts are added up. One process keeps theirs.
            num_words: Words that they are of, where these are others at every call.
        """
        if self.alone:
            found = make()
            assert found is not None
            return found

        num_rows = num_words
        if num_words is not None:
            # Rounded up, so that there are few layouts to agree on.
            num_rows = ROUNDED_WORDS * math.ceil(num_words / ROUNDED_WORDS)
            kind = f"{kind}, {num_rows} words"

        def tensors() -> dict[str, Tensor] | None:
            part = make()
            if part is None:
                return None
            scalars = [part.num_docs, part.num_tokens]
            scalars += [float(part.objective), float(part.num_unconverged)]
            # As it lies in memory, word by word.
            rows = part.word_counts.mT.to(dtype)
            if num_rows is not None:
                rows = F.pad(rows, (0, 0, 0, num_rows - len(rows)))
            return {
                "scalars": torch.tensor(scalars, dtype=torch.float64),
                "word_counts": rows,
                **{f"sums.{name}": value for name, value in part.sums.items()},
            }

        total = self.total(f"{kind}, {dtype}", tensors)
        num_docs, num_tokens, objective, num_unconverged = total.pop("scalars").tolist()
        word_counts = total.pop("word_counts")[:num_words].mT
        sums = {name.removeprefix("sums."): value for name, value in total.items()}
        return Statistics(
            num_docs, num_tokens, sums, word_counts, objective, round(num_unconverged)
        )

    def total(
        self, kind: str, make: Callable[[], Mapping[str, Tensor] | None]
    ) -> dict[str, Tensor]:
        """Sums over the processes, by one all-reduce.

        The first of a kind in a fit takes two small all-reduces more, in which the processes tell
        each other what they add up.

        Args:
            kind: A name for what is added up: all of one name have the same layout in a fit.
            make: Makes this process's tensors by name, float32 or float64; None if it has none.

        Returns:
            Their sums by name.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed in some process.
            ProcessError: A process is gone, or did not answer in the group's time.
            Exception: Whatever ``make`` raised, in whichever process.
        """
        if self.alone:
            found = make()
            assert found is not None
            return dict(found)
        found, error, interrupted = None, None, False
        try:
            self.poll()
            found = make()
        except KeyboardInterrupt:
            interrupted = True
        except Exception as exception:
            error = exception
        if kind not in self._layouts:
            known = [x for x in self.gather(None if found is None else layout_of(found)) if x]
            # Nothing is known where every process failed or was interrupted.
            self._layouts[kind] = known[0] if known else {}
        layout = self._layouts[kind]
        if found is None:
            found = {
                name: torch.zeros(shape, dtype=torch.float64 if wide else torch.float32)
                for name, (wide, shape) in layout.items()
            }
        told = torch.tensor([error is not None, interrupted], dtype=torch.float64)
        parts = {_FLAGS: told, **{name: found[name] for name in layout}}
        flat = self._all_reduce(pack({name: x.to(self._device) for name, x in parts.items()}))
        total = unpack(flat, {_FLAGS: (True, [2]), **layout})
        num_failed, num_interrupted = total.pop(_FLAGS).tolist()
        # NaN, of sums that are not finite, cannot be here: flags are, and pieces do not mix.
        if num_failed or num_interrupted:
            del self._layouts[kind]
        if num_failed:
            self._raise_any(error)
        if num_interrupted:
            self._pending, self._interrupted = False, True
            raise KeyboardInterrupt
        return total

    def _all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over the processes; ``tensor`` itself may be overwritten."""
        device = tensor.device
        if device.type not in self._devices:
            tensor = tensor.to(self._small)
        try:
            dist.all_reduce(tensor, group=self._group)
        except RuntimeError as error:
            raise ProcessError(
                f"process {self.rank} of {self.size} waited for the others in vain: one of them is "
                f"gone, or did not answer in the time that the process group allows ({error})"
            ) from error
        return tensor.to(device)

    # -- agreement -------------------------------------------------------------------------------

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

    def of_first(self, *values: float) -> list[float]:
        """Numbers, those of the first process."""
        if self.alone:
            return list(values)
        told = torch.tensor(values, dtype=torch.float64, device=self._small)
        return self._all_reduce(told * float(self.first)).tolist()

    @contextmanager
    def same(self) -> Iterator[None]:
        """A context in which all processes do the same work, and add nothing up.

        Ctrl-C in one of them, and errors, reach all at its end, as those of :meth:`total` do.
        """
        if self.alone:
            yield
            return
        error: BaseException | None = None
        try:
            yield
        except (Exception, KeyboardInterrupt) as raised:
            error = raised

        def told() -> dict[str, Tensor]:
            if error is not None:
                raise error
            return {}

        self.total("same", told)

    def together(self, make: Callable[[], T]) -> T:
        """What ``make`` returns here; if it fails in one of the processes, all of them fail."""
        if self.alone:
            return make()
        made, error = None, None
        try:
            made = make()
        except Exception as exception:
            error = exception
        self._raise_any(error)
        return made  # type: ignore[return-value]

    def _raise_any(self, error: Exception | None) -> None:
        """Raise the error of the first process that has one, in all of them; nothing if none."""
        found = self.gather(None if error is None else _described(error))
        failed = [rank for rank, described in enumerate(found) if described is not None]
        if not failed:
            return
        shared = error if failed[0] == self.rank and error else _made_again(**found[failed[0]])
        if isinstance(shared, LNTMError):
            shared.shared = True
        raise shared from (None if shared is error else error)

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

    def collect(
        self, rows: Tensor, positions: NDArray[np.int64], height: int, everywhere: bool
    ) -> Tensor:
        """The rows that the processes have of a table, put together.

        Args:
            rows: ``(num_rows, ...)`` this process's, on the CPU.
            positions: ``(num_rows,)`` where they belong in the table, ascending.
            height: Rows of the table.
            everywhere: All processes get the table; else only the first, and the others nothing.

        Returns:
            ``(height, ...)``, on the CPU; rows of no process are 0.
        """
        tail = rows.shape[1:]
        table = rows.new_zeros((height if everywhere or self.first else 0, *tail))
        step = max(1, COLLECTED_NUMBERS // max(1, tail.numel()))
        sent = torch.uint8 if rows.dtype == torch.bool else rows.dtype
        for start in range(0, height, step):
            stop = min(start + step, height)
            begin, end = np.searchsorted(positions, [start, stop])
            part = torch.zeros((stop - start, *tail), dtype=sent)
            part[torch.from_numpy(positions[begin:end] - start)] = rows[begin:end].to(sent)
            part = self._all_reduce(part)
            if len(table):
                table[start:stop] = part.to(rows.dtype)
        return table

    # -- Ctrl-C ----------------------------------------------------------------------------------

    @contextmanager
    def working(self, device: torch.device) -> Iterator[None]:
        """A context in which Ctrl-C waits for the next sum, and ends all processes there alike.

        A process that left at once would leave the others waiting for it. A second Ctrl-C is not
        kept waiting.

        Args:
            device: Where sums are made, and wanted.
        """
        if self.alone or self._working:
            yield
            return
        self._layouts, self._device = {}, device
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
        if self._pending and not self._interrupted:  # after the last sum
            raise KeyboardInterrupt

    def _note(self, number: int, frame: Any) -> None:
        if self._pending:
            signal.default_int_handler(number, frame)
        self._pending = True

    def poll(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed; only where a sum is being made."""
        if self._pending:
            raise KeyboardInterrupt


def _described(error: Exception) -> dict[str, Any]:
    """An error in JSON."""
    documents = list(getattr(error, "documents", ()))
    return {"name": type(error).__name__, "message": str(error), "documents": documents}


def _made_again(name: str, message: str, documents: list[int]) -> Exception:
    """An error like that of another process; a ProcessError if it is of a kind not known here."""
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return ProcessError(f"{name} in another process: {message}")
    error = kind.__new__(kind)
    error.args = (message,)
    if documents or hasattr(kind, "documents"):
        vars(error)["documents"] = tuple(documents)
    return error
