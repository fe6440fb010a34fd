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

#: Seconds that a process may wait for the others.
TIMEOUT = 60


@functools.cache
def _context() -> Any:
    """Processes forked from one that has done the imports, which take longer than all else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch_lntm", "torch_lntm.inference"])
    return context


def _run(
    rank: int, size: int, store: str, results: Any, work: Callable[..., Any], arguments: Any
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
        results.put((rank, work(*arguments), None))
    except BaseException:
        results.put((rank, None, traceback.format_exc()))
    # No process leaves while another may still be reading from it.
    dist.barrier()
    dist.destroy_process_group()


def in_processes(size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What ``work(*arguments)`` returns in each of some processes that form a gloo group.

    Args:
        size: The number of processes.
        work: A function of a module that other processes can import.
        *arguments: Its arguments; they and the results are pickled, tensors by value.
    """
    context = _context()
    with tempfile.TemporaryDirectory() as folder:
        results = context.SimpleQueue()
        store = str(Path(folder, "store"))
        started = [
            context.Process(target=_run, args=(rank, size, store, results, work, arguments))
            for rank in range(size)
        ]
        for process in started:
            process.start()
        found = sorted((results.get() for _ in started), key=lambda result: result[0])
        for process in started:
            process.join()
    for rank, _, error in found:
        assert error is None, f"process {rank}: {error}"
    return [value for _, value, _ in found]
