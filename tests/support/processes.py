"""Running functions in several processes that form a process group."""

from __future__ import annotations

import functools
import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

#: Seconds that a process may wait for the other processes.
TIMEOUT = 60

#: Result of :func:`in_processes` for a process that ended without a result.
GONE = "gone"


@functools.cache
def _context() -> Any:
    """Processes forked from a server that has done the imports. Imports take most of the time."""
    context = multiprocessing.get_context("forkserver")
    # Import torch._dynamo here, because optimisers import it later.
    context.set_forkserver_preload(["torch_lntm.inference", "torch._dynamo"])
    return context


def _run(
    rank: int, size: int, store: str, pipe: Any, work: Callable[..., Any], arguments: Any
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=TIMEOUT),
    )
    try:
        pipe.send((work(*arguments), None))
    except BaseException:
        pipe.send((None, traceback.format_exc()))
    dist.destroy_process_group()


def in_processes(size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Results of ``work(*arguments)`` in each process of a gloo group.

    Args:
        size: The number of processes.
        work: A function from a module that the processes can import.
        *arguments: Arguments of ``work``. Arguments and results are pickled, and hold no tensors.
    """
    context = _context()
    pipes, started = [], []
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder, "store"))
        for rank in range(size):
            pipe, end = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(rank, size, store, end, work, arguments))
            process.start()
            end.close()
            pipes.append(pipe)
            started.append(process)
        found = []
        for pipe in pipes:
            try:
                found.append(pipe.recv())
            except EOFError:
                found.append((GONE, None))
        for process in started:
            process.join()
    for rank, (_, error) in enumerate(found):
        assert error is None, f"process {rank}: {error}"
    return [value for value, _ in found]
