"""The library's errors and warnings: one tree of each, and the checks that every room makes.

Each error is also the built-in error that a caller would expect.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from numbers import Integral, Real
from typing import Any

__all__ = [
    "ConfigError",
    "ConvergenceWarning",
    "CorpusError",
    "CorpusWarning",
    "FileError",
    "IncompatibleGuideError",
    "LNTMError",
    "LNTMWarning",
    "MissingColumnError",
    "NotFittedError",
    "NumericalError",
    "ProcessError",
    "SavingWarning",
    "TooFewDocumentsError",
    "UnreliableEstimateWarning",
    "import_extra",
    "require",
    "require_whole",
    "warn",
]


class LNTMError(Exception):
    """Base class of every error this library raises on purpose.

    Attributes:
        shared: All processes of a fit raise it, so that one need report it.
    """

    shared: bool = False


class CorpusError(LNTMError, ValueError):
    """A corpus, file, vocabulary or count matrix that cannot be used; names file, line or index."""


class MissingColumnError(CorpusError, KeyError):
    """Metadata or covariates of a name that the documents do not have; names those they have.

    Args:
        name: What was asked for.
        known: The names there are.
    """

    def __init__(self, name: object, known: Iterable[str]) -> None:
        names = [str(column) for column in known]
        close = get_close_matches(str(name), names, 1)
        advice = "A corpus gets columns by with_covariates({name: array}) and with_metadata({name: "
        advice = f"Did you mean {close[0]!r}?" if close else advice + "values})"
        super().__init__(
            f"the documents have no column {name!r}; there are: {', '.join(names) or 'none'}. "
            f"{advice}"
        )

    def __str__(self) -> str:
        return str(self.args[0])


class ConfigError(LNTMError, ValueError):
    """A parameter, configuration file or run folder that cannot be used."""


class TooFewDocumentsError(ConfigError):
    """Documents that do not determine so many parameters."""


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


class ProcessError(LNTMError, RuntimeError):
    """Another process of a fit failed, is gone, or did not answer in time."""


def no_attribute(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name that a module lacks, with the name that may be meant.

    Args:
        module: The module's full name.
        name: What was asked for.
        known: The names there are, those of its modules with a dot.
    """
    plain = {full.rpartition(".")[2].lower(): full for full in reversed([*known])}
    close = get_close_matches(name.lower(), plain, 1)
    hint = f"; did you mean {module}.{plain[close[0]]}?" if close else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")


class LNTMWarning(UserWarning):
    """Base class of every warning this library gives."""


class CorpusWarning(LNTMWarning):
    """Documents were read or converted with a loss, such as words unknown to a vocabulary."""


class ConvergenceWarning(LNTMWarning):
    """An iteration stopped, or chains were used, before they had converged."""


class UnreliableEstimateWarning(LNTMWarning):
    """An estimate whose standard error cannot be trusted, or is large."""


class UnsharedFitWarning(LNTMWarning):
    """A launcher started several processes, which do not share the fit."""


class SavingWarning(LNTMWarning):
    """A file such as a checkpoint could not be written; the computation goes on."""


def warn(message: str, category: type[LNTMWarning]) -> None:
    """Give a warning that points at the first caller outside this package, torch and pyro.

    Args:
        message: The warning.
        category: Its class.
    """
    inside = (__name__.partition(".")[0], "torch", "pyro")
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in inside:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def require(least: float, **settings: Any) -> None:
    """Check that settings are not too small.

    Args:
        least: The smallest value that may be.
        **settings: Numbers by their names; None, a setting that was not given, always passes.

    Raises:
        ConfigError: A value is below ``least``, NaN, or no number; the message names the setting.
    """
    for name, value in settings.items():
        if value is not None and not (isinstance(value, Real) and float(value) >= least):
            raise ConfigError(f"{name} is {value!r}; expected at least {least}")


def require_whole(least: int, **settings: Any) -> None:
    """Check that settings are whole numbers and not too small.

    Args:
        least: The smallest value that may be.
        **settings: Numbers by their names; None, a setting that was not given, always passes.

    Raises:
        ConfigError: A value is below ``least``, or no whole number; the message names the setting.
    """
    for name, value in settings.items():
        if value is not None and not isinstance(value, Integral):
            raise ConfigError(f"{name} is {value!r}; expected a whole number, at least {least}")
        if value is not None and int(value) >= 2**63:
            raise ConfigError(f"{name} is {value}; expected a whole number below 2**63")
    require(least, **settings)


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an optional dependency.

    Args:
        module: The module's full name.
        extra: The extra of this package that installs it.
        purpose: What needs it, as the beginning of a sentence.

    Raises:
        ConfigError: The module cannot be imported; the message says what to install.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{purpose} needs {module.partition('.')[0]}, which cannot be imported ({error}); "
            f"install it by pip install 'torch-lntm[{extra}]'"
        ) from error
