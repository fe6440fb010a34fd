"""Commands in several processes, started by a launcher such as torchrun."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from torch_lntm.inference import Processes

#: How long a process waits for the others. The first one is slower, because it reads corpora and
#: writes checkpoints. If one dies, the others end after this time.
TIMEOUT = timedelta(minutes=30)
#: Exit codes after Ctrl-C and after SIGTERM, by the reason for the end.
STOPPED = {"interrupted": 130, "terminated": 143}


def launched_rank() -> int | None:
    """Rank of this process, from the launcher's variables; ``None`` for a single process."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if not all(os.environ.get(name) for name in names) or int(os.environ["WORLD_SIZE"]) < 2:
        return None
    return int(os.environ["RANK"])


@contextmanager
def first_speaks() -> Iterator[None]:
    """Context in which only the first of several processes prints."""
    if not launched_rank():
        yield
        return
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        yield


@contextmanager
def processes_on(device: torch.device) -> Iterator[Processes]:
    """Context with a process group of all launched processes.

    Args:
        device: Type of the device. With CUDA, each process uses a separate device.
    """
    import torch
    import torch.distributed as dist

    from torch_lntm.inference import Processes

    if launched_rank() is None or dist.is_initialized():
        yield Processes()
        return
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=TIMEOUT)
    try:
        yield Processes()
    finally:
        dist.destroy_process_group()
