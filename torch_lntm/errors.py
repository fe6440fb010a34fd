"""The library's errors: one tree, each also the built-in error that a caller would expect."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from types import FrameType


class LNTMError(Exception):
    """Base class of every error this library raises on purpose."""


class CorpusError(LNTMError, ValueError):
    """A corpus, file, vocabulary or count matrix that cannot be used; names file, line or index."""


class ConfigError(LNTMError, ValueError):
    """A parameter, configuration file or run folder that cannot be used."""


class IncompatibleGuideError(LNTMError, TypeError):
    """A guide that does not implement a posterior of the given model; names the pairs that do."""


class NotFittedError(LNTMError, ValueError, AttributeError):
    """An estimator was asked for results before ``fit``."""


class NumericalError(LNTMError, ArithmeticError):
    """A computation left the numbers it can work with.

    Attributes:
        documents: Positions in the corpus of the documents concerned; may be empty.
    """

    def __init__(self, message: str, documents: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.documents: tuple[int, ...] = tuple(int(d) for d in documents)


class ConvergenceWarning(UserWarning):
    """An iteration or a chain ended before it had converged; its result is returned."""


class UnreliableEstimate(UserWarning):
    """A number whose error is larger, or less well known, than it says."""


#: Packages whose frames a warning passes over: this one, and those that call it in a user's name.
_NOT_THE_CALLER = ("torch_lntm", "torch", "pyro")


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line of the user's code that called this library.

    Args:
        message: What happened, to which documents, what to do.
        category: Class of the warning.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _package(frame) in _NOT_THE_CALLER:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _package(frame: FrameType) -> str:
    """The top-level package of the code in a frame."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
