"""whole_or_nothing: Ctrl-C for those who run many fits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_WHOLE: ContextVar[bool] = ContextVar("whole_or_nothing", default=False)


@contextmanager
def whole_or_nothing() -> Iterator[None]:
    """A context in which Ctrl-C ends whoever runs a fit or chains, not these alone.

    Elsewhere they end early, at the best so far. But what compares many of them would take an early
    end for a result, and go on.
    """
    token = _WHOLE.set(True)
    try:
        yield
    finally:
        _WHOLE.reset(token)


def ends_early() -> bool:
    """Whether Ctrl-C ends the present fit or chains early; else it is to be passed on."""
    return not _WHOLE.get()
