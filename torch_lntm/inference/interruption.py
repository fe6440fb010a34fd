"""propagate_interrupts: Ctrl-C for callers that run many fits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_PROPAGATES: ContextVar[bool] = ContextVar("propagate_interrupts", default=False)


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
