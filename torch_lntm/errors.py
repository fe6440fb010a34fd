"""The library's errors: one tree, each also the built-in error that a caller would expect."""

from __future__ import annotations

from collections.abc import Sequence


class LNTMError(Exception):
    """Base class of every error this library raises on purpose."""


class CorpusError(LNTMError, ValueError):
    """A corpus, file, vocabulary or count matrix that cannot be used; names file, line or index."""


class ConfigError(LNTMError, ValueError):
    """A parameter, configuration file or run folder that cannot be used."""


class FileError(CorpusError, ConfigError, OSError):
    """A file that cannot be read or written, or is damaged; names it, and the line.

    It is a ``CorpusError`` and a ``ConfigError`` as well, because a file holds the one or the
    other: a caller that reads a corpus, or a run, has one error to catch.
    """


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
