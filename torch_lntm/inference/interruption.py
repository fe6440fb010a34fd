"""Interruption of fits: Ctrl-C, SIGTERM, and callers that run many fits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

_PROPAGATES: ContextVar[bool] = ContextVar("propagate_interrupts", default=False)


class Terminated(KeyboardInterrupt):
    """SIGTERM during a fit: a scheduler such as Slurm or Kubernetes stops the process."""


#: Signals that end a fit, with the handlers that a fit may replace, and the exceptions they raise.
_SIGNALS: dict[int, tuple[Any, type[KeyboardInterrupt]]] = {
    signal.SIGINT: (signal.default_int_handler, KeyboardInterrupt),
    signal.SIGTERM: (signal.SIG_DFL, Terminated),
}
#: Functions in which Python drops exceptions, the last ones of Numba's compiler. Signals wait.
_LOSE_EXCEPTIONS = ("__del__", "_raw_object_cache_notify", "_raw_object_cache_getbuffer")


@contextmanager
def handled_signals(handle: Callable[[type[KeyboardInterrupt]], None]) -> Iterator[None]:
    """Context in which Ctrl-C and SIGTERM call a function with the exception that they stand for.

    Only the main thread can handle signals. A caller's own handlers stay in place.

    Args:
        handle: The function. It may raise the exception.
    """

    def on_signal(number: int, frame: Any) -> None:
        while frame is not None:
            if frame.f_code.co_name in _LOSE_EXCEPTIONS:
                threading.Timer(0.05, signal.raise_signal, [number]).start()
                return
            frame = frame.f_back
        handle(_SIGNALS[number][1])

    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            for number, (default, _) in _SIGNALS.items():
                if signal.getsignal(number) is default:
                    signal.signal(number, on_signal)
                    stack.callback(signal.signal, number, default)
        yield


@contextmanager
def propagate_interrupts() -> Iterator[None]:
    """Context in which Ctrl-C raises KeyboardInterrupt out of fits and chains.

    Outside this context fits and chains stop early on Ctrl-C and return their best state so far. A
    caller that compares many fits would take such a state for a result, and continue.
    """
    token = _PROPAGATES.set(True)
    try:
        yield
    finally:
        _PROPAGATES.reset(token)


def stops_on_interrupt() -> bool:
    """Whether fits and chains stop early on Ctrl-C instead of raising it."""
    return not _PROPAGATES.get()
