"""Threads of the compiled kernels, which share work dynamically and sleep when there is none.

PyTorch's own threads spin while they wait for the next operation. Between short operations, beside
other work on the machine, this costs many times what a second thread saves. The threads here take
whole pieces of a kernel's documents, from a kernel that releases the interpreter's lock, and wait
in the operating system.

Kernels have as many threads as PyTorch, whose number ``torch.set_num_threads`` and the environment
variable ``OMP_NUM_THREADS`` set, but no more than the cores this process may use. In a process that
another Python process has started, usually as one of several, they have one unless these set it.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import islice
from typing import Any, TypeVar

import joblib
import torch

T = TypeVar("T")
#: Smallest pieces of work for each thread. Large pieces come first, because each takes 10 µs more,
#: and small ones last, so that threads end together.
PIECES = 32
#: Least effort for each thread, in multiplications. A smaller share takes less time than waking it,
#: and than moving its memory from the cache of another core.
LEAST_EFFORT = 6 * 2**20
#: Largest effort of a piece, a few hundredths of a second. Ctrl-C waits for a piece to end.
MOST_EFFORT = 2**28

#: Python threads inside of :func:`kernels_only`, and PyTorch's number of threads before them.
_users: set[int] = set()
_entry = threading.Lock()
_number = 1
#: Number of threads by :func:`set_threads`; None for PyTorch's.
_chosen: int | None = None
#: Code of the functions given to :func:`share` whose kernels have been called.
_called: set[Any] = set()
#: What a helper of the next kernel does first.
_later: list[Callable[[], Any]] = []


def set_threads(number: int | None) -> None:
    """Set the number of threads for this process, as a command does.

    Args:
        number: Number for PyTorch and for compiled kernels. None gives the kernels the cores that
            this process may use, and PyTorch one thread.
    """
    global _chosen
    _chosen = _torch_threads() if number is None else number
    torch.set_num_threads(1 if number is None else number)


@cache
def _torch_threads() -> int:
    """PyTorch's number of threads before this process changes it."""
    return torch.get_num_threads()


@contextmanager
def kernels_only() -> Iterator[None]:
    """Give PyTorch's number of threads to the compiled kernels alone, and one to PyTorch.

    Fits in several Python threads have the threads of the kernels together. PyTorch's number
    returns at the end, in each Python thread that was here.
    """
    global _number
    user = threading.get_ident()
    if user in _users:
        yield
        return
    with _entry:
        # The first call in a Python thread would take a number that others set later.
        before = torch.get_num_threads()
        _number = _number if _users else before
        _users.add(user)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        _users.discard(user)
        torch.set_num_threads(_number)


def num_threads() -> int:
    """Number of threads that a kernel has now."""
    number = _chosen or (_number if _users else torch.get_num_threads())
    if (
        _chosen is None
        and multiprocessing.parent_process() is not None
        and "OMP_NUM_THREADS" not in os.environ
        and number >= _cores(physical=True)
    ):
        number = 1  # siblings use the other cores, and nobody has set another number
    return max(1, min(number, _cores()) // max(1, len(_users)))


@cache
def _cores(physical: bool = False) -> int:
    """Cores that this process may use by its affinity and its control group."""
    with warnings.catch_warnings():
        # Without the command lscpu, joblib takes all cores for physical ones, and warns.
        warnings.simplefilter("ignore")
        return int(joblib.cpu_count(only_physical_cores=physical))


def share(work: Callable[[int, int], Any], size: int, effort: float) -> None:
    """Call ``work(first, end)`` for consecutive pieces of ``range(size)``, in several threads.

    Args:
        work: Function that releases the interpreter's lock. Its pieces may run in any order.
        size: Number of items.
        effort: Approximate number of multiplications.
    """
    if not size:
        return
    number = min(num_threads(), size, 1 + int(effort / LEAST_EFFORT))
    most = max(1, int(size * min(1.0, MOST_EFFORT / max(1.0, effort))))
    least = math.ceil(size / (PIECES * number)) if number > 1 else size
    bounds = [0]
    while bounds[-1] < size:
        piece = max(least, (size - bounds[-1]) // (2 * number))
        bounds.append(min(size, bounds[-1] + min(piece, most)))
    pieces = list(zip(bounds[-2::-1], bounds[:0:-1], strict=True))

    def run(task: Callable[[], Any] | None = None) -> None:
        if task is not None:
            task()
        while pieces:
            try:
                piece = pieces.pop()
            except IndexError:  # another thread was faster
                return
            work(*piece)

    helpers: list[Future[None]] = []
    try:
        if number > 1:
            code = getattr(work, "__code__", None)
            if code not in _called:
                # A first call may compile for seconds, which Ctrl-C ends in the main thread only.
                work(0, 0)
                _called.add(code)
            task = _later.pop() if _later else None
            helpers = _start(partial(run, task), 1) + _start(run, number - 2)
        run()
    finally:
        pieces.clear()
        for helper in helpers:
            # Threads that are busy with another caller's work have nothing left to do here.
            if not helper.cancel():
                helper.result()


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made by a helper of a kernel that works on the item before it.

    Without kernels of several threads, they are made when they are needed.

    Args:
        items: The items. Different threads ask for them, one after another.
    """
    made: list[T] = []
    lock = threading.Lock()

    def make() -> None:
        with lock:
            made.extend(islice(items, 1 - len(made)))

    while True:
        make()
        if not made:
            return
        _later.append(make)
        try:
            yield made.pop()
        finally:
            with suppress(ValueError):  # a kernel has begun with it
                _later.remove(make)


def _start(run: Callable[[], None], number: int) -> list[Future[None]]:
    """Start a function in some threads; none while the interpreter shuts down."""
    helpers: list[Future[None]] = []
    try:
        for _ in range(number):
            helpers.append(_pool().submit(run))
    except RuntimeError:
        pass
    return helpers


@cache
def _pool() -> ThreadPoolExecutor:
    """Threads besides the callers'. They start when they are needed."""
    return ThreadPoolExecutor(max(1, _cores()), thread_name_prefix="torch_lntm")


def _forget() -> None:
    """Begin anew in a forked process, which has none of its parent's other threads.

    PyTorch would wait for its threads forever, so it has one from now on, and the kernels too.
    """
    global _chosen, _entry, _number
    _chosen, _entry, _number = None, threading.Lock(), 1
    _users.clear()
    _later.clear()
    _pool.cache_clear()
    _cores.cache_clear()
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
