"""Commands that a launcher such as torchrun starts in several processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from torch_lntm.inference import Processes

#: How long a process waits for the others: reading a corpus or writing a checkpoint takes the first
#: one longer, and this long after one of them has gone the others end.
TIMEOUT = timedelta(minutes=30)


def launched_rank() -> int | None:
    """Which of several processes this is, as the launcher says; None if it is the only one."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if not all(os.environ.get(name) for name in names) or int(os.environ["WORLD_SIZE"]) < 2:
        return None
    return int(os.environ["RANK"])


@contextmanager
def first_speaks() -> Iterator[None]:
    """A context in which nothing is printed, but by the first of several processes."""
    if not launched_rank():
        yield
        return
    with ExitStack() as stack, open(os.devnull, "w") as nothing:
        stack.enter_context(redirect_stdout(nothing))
        stack.enter_context(redirect_stderr(nothing))
        yield


@contextmanager
def processes_on(device: torch.device) -> Iterator[Processes]:
    """The processes that were launched, as a process group for as long as the context lasts.

    Args:
        device: The kind of device to compute on; of CUDA's each process takes its own.
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
