"""Threads of the compiled kernels, which share work dynamically and sleep when there is none.

PyTorch's own threads spin while they wait for the next operation. Between short operations, beside
other work on the machine, this costs many times what a second thread saves. The threads here take
whole pieces of a kernel's documents, from a kernel that releases the interpreter's lock, and wait
in the operating system.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch

#: Pieces of work for each thread. More pieces divide the work more evenly, and each takes 30 µs.
PIECES = 8
#: Least effort for each thread, in multiplications. A smaller share takes less time than waking it.
LEAST_EFFORT = 2**19

#: Number of threads of the kernels while PyTorch has only one; see :func:`kernels_only`.
_number: int | None = None


@contextmanager
def kernels_only() -> Iterator[None]:
    """Give PyTorch's number of threads to the compiled kernels alone, and one to PyTorch."""
    global _number
    if _number is not None:
        yield
        return
    _number = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(_number)
        _number = None


def share(work: Callable[[int, int], Any], size: int, effort: float) -> None:
    """Call ``work(first, end)`` for consecutive pieces of ``range(size)``, in several threads.

    Args:
        work: Function that releases the interpreter's lock. Its pieces may run in any order.
        size: Number of items.
        effort: Approximate number of multiplications.
    """
    number = torch.get_num_threads() if _number is None else _number
    number = min(number, size, 1 + int(effort / LEAST_EFFORT))
    if number <= 1:
        if size:
            work(0, size)
        return
    bounds = np.linspace(0, size, min(size, PIECES * number) + 1).astype(int).tolist()
    pieces, lock = itertools.pairwise(bounds), threading.Lock()

    def run() -> None:
        while True:
            with lock:
                piece = next(pieces, None)
            if piece is None:
                return
            work(*piece)

    helpers = [_pool(number - 1).submit(run) for _ in range(number - 1)]
    run()
    for helper in helpers:
        helper.result()


@cache
def _pool(size: int) -> ThreadPoolExecutor:
    """Threads besides the caller's."""
    return ThreadPoolExecutor(size, thread_name_prefix="torch_lntm")
