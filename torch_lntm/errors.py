"""The library's errors and warnings, and checks of settings.

All errors derive from LNTMError and all warnings from LNTMWarning. Each error is also one of
Python's built-in errors, for example a ValueError.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

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
]


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class LNTMError(Exception):
    """Base class of the library's errors.

    Attributes:
        shared: Whether all processes of a fit raise the error, in which case only the first reports
            it.
    """

    shared: bool = False


class CorpusError(LNTMError, ValueError):
    """Invalid corpus, file, vocabulary or count matrix. The message names file, line or index."""


class MissingColumnError(CorpusError, KeyError):
    """Unknown column of metadata or covariates. The message lists the existing columns.

    Args:
        name: The unknown column.
        columns: Names of the existing columns.
    """

    def __init__(self, name: object, columns: Iterable[str]) -> None:
        names = [str(column) for column in columns]
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
    """Invalid parameter, configuration file or run folder."""


class TooFewDocumentsError(ConfigError):
    """Too few documents for the number of parameters."""


class FileError(CorpusError, ConfigError, OSError):
    """Unreadable, unwritable or damaged file. The message names the file, and the line if any.

    Since a file may hold a corpus or a configuration, the error is both a ``CorpusError`` and a
    ``ConfigError``. Code that reads a corpus therefore needs to catch only the former, and code
    that reads a configuration only the latter.
    """


class IncompatibleGuideError(LNTMError, TypeError):
    """Guide that does not support the model. The message lists the guides that do."""


class NotFittedError(LNTMError, ValueError, AttributeError):
    """Access to an estimator's results before ``fit``."""


class NumericalError(LNTMError, ArithmeticError):
    """NaN, infinity, or an invalid number in a computation.

    Attributes:
        documents: Positions of the affected documents in the corpus. May be empty.
    """

    def __init__(self, message: str, documents: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.documents: tuple[int, ...] = tuple(int(d) for d in documents)


class ProcessError(LNTMError, RuntimeError):
    """Failed, lost or unresponsive process of a fit that several processes share."""


def no_attribute(module: str, name: str, names: Iterable[str]) -> AttributeError:
    """Error for an unknown name of a module, with the closest existing name.

    Args:
        module: The module's full name.
        name: The unknown name.
        names: Existing names, with dots for names in submodules.
    """
    plain = {full.rpartition(".")[2].lower(): full for full in reversed([*names])}
    close = get_close_matches(name.lower(), plain, 1)
    hint = f"; did you mean {module}.{plain[close[0]]}?" if close else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")


#: Names of arguments in R's stm, Pyro, scikit-learn and others, and ours.
_ELSEWHERE = {
    **dict.fromkeys(("K", "n_topics", "nr_topics", "num_topics"), ("num_topics", "n_components")),
    **dict.fromkeys(("max_em_its", "n_iter", "passes"), ("max_epochs", "max_iterations")),
    **dict.fromkeys(("batch_size", "chunksize"), ("batch_size", "max_docs")),
    **dict.fromkeys(("num_samples", "nsims"), ("num_draws",)),
}


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown name, with the most similar known one, if any.

    A name of another library has ours. One of several parts, such as ``text_field``, is also
    similar to each of them.
    """
    names = [*names]
    close = [ours for ours in _ELSEWHERE.get(name, ()) if ours in names]
    close = close or get_close_matches(name, names, 1)
    close = close or [n for n in names if name in n.split("_") or n in name.split("_")]
    return f"; did you mean {close[0]}?" if close else ""


def bind(
    what: str,
    signature: inspect.Signature,
    positional: Sequence[Any],
    named: Mapping[str, Any],
    others: Iterable[str] = (),
) -> inspect.BoundArguments:
    """Bind the arguments of a call.

    Args:
        what: What is called, for the message.
        signature: Its signature.
        positional: Arguments by position.
        named: Arguments by name.
        others: Further names to suggest, which a caller takes out.

    Raises:
        TypeError: An argument is unknown or missing. The message has the most similar name.
    """
    takes = signature.parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()):
        for name in (name for name in named if name not in takes):
            raise TypeError(f"{what} takes no {name}{did_you_mean(name, [*takes, *others])}")
    try:
        return signature.bind(*positional, **named)
    except TypeError as error:
        raise TypeError(f"{what}: {error}") from None


def knows_its_options(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorator of a function or ``__init__``, whose errors suggest names of arguments."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        is_init = function.__name__ == "__init__"
        bind(type(args[0]).__name__ if is_init else function.__name__, signature, args, kwargs)
        return function(*args, **kwargs)

    return checked


class LNTMWarning(UserWarning):
    """Base class of the library's warnings."""


class CorpusWarning(LNTMWarning):
    """Loss while reading or converting documents: words outside of the vocabulary, for example."""


class KeywordWarning(LNTMWarning):
    """Keyword that is unknown, rare or shared, or a topic that lost its keywords."""


class NamingWarning(LNTMWarning):
    """Topics without a suitable name from a language model."""


class ConvergenceWarning(LNTMWarning):
    """Results of iterations or chains that have not converged."""


class UnreliableEstimateWarning(LNTMWarning):
    """Estimate with a large or unreliable standard error."""


class UnsharedFitWarning(LNTMWarning):
    """Processes of one launcher, such as torchrun, make separate fits instead of a shared fit."""


class SavingWarning(LNTMWarning):
    """Failure to write a file, for example a checkpoint. The computation continues without it."""


def warn(message: str, category: type[LNTMWarning]) -> None:
    """Issue a warning that points at the first caller outside of this package, torch and pyro.

    Args:
        message: Text of the warning.
        category: Class of the warning.
    """
    inside = (__name__.partition(".")[0], "torch", "pyro")
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in inside:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def refuse_other_owner(what: str, name: str, owner: Any, value: Any) -> None:
    """Refuse to register a name that belongs to another function or class.

    Registering the same function again is allowed, so that a notebook cell can be run twice. Two
    functions count as the same if their modules and qualified names are equal.

    Args:
        what: Kind of the name, such as ``"reader"``; the message begins with it.
        name: The name.
        owner: The function or class registered under this name. ``None`` if the name is free.
        value: The function or class to register.

    Raises:
        ConfigError: The name belongs to another function or class.
    """
    names = [
        f"{x.__module__}.{getattr(x, '__qualname__', '')}" for x in (owner, value) if x is not None
    ]
    if len(set(names)) > 1:
        raise ConfigError(f"{what} {name!r} is registered already, by {names[0]}; choose another")


def require(least: float, **settings: Any) -> None:
    """Check the lower bound of settings.

    Args:
        least: Smallest valid value.
        **settings: Numbers by the settings' names. ``None`` stands for a default and is valid.

    Raises:
        ConfigError: A value is below ``least``, NaN, or not a number. The message names the
            setting.
    """
    for name, value in settings.items():
        if value is not None and not (isinstance(value, Real) and float(value) >= least):
            raise ConfigError(f"{name} is {value!r}; expected at least {least}")


def require_whole(least: int, **settings: Any) -> None:
    """Check that settings are whole numbers, and check their lower bound.

    Args:
        least: Smallest valid value.
        **settings: Numbers by the settings' names. ``None`` stands for a default and is valid,
            except as a ``seed``.

    Raises:
        ConfigError: A value is below ``least``, is 2**63 or more, or is not a whole number. The
            message names the setting.
    """
    for name, value in settings.items():
        if value is None and name != "seed":
            continue
        if not isinstance(value, Integral):
            raise ConfigError(f"{name} is {value!r}; expected a whole number, at least {least}")
        if int(value) >= 2**63:
            raise ConfigError(f"{name} is {value}; expected a whole number below 2**63")
    require(least, **settings)


def require_one(known: Iterable[Any], **settings: Any) -> None:
    """Check that settings are among known values, of which None is not named.

    Raises:
        ConfigError: A value is unknown. The message names the setting.
    """
    for name, value in settings.items():
        if value not in (values := [*known]):
            names = ", ".join(map(str, filter(None, values)))
            raise ConfigError(f"{name} is {value!r:.80}; expected one of {names}")


def require_level(level: float) -> None:
    """Check the probability of an interval.

    Raises:
        ConfigError: It is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; expected a probability between 0 and 1")


def undefined(part: object, method: str) -> NotImplementedError:
    """The error for a method of a contract that a subclass lacks.

    Args:
        part: A prior, topics, words or a guide.
        method: Name of the method.
    """
    return NotImplementedError(
        f"{type(part).__name__} does not define {method}; the docstring of its base class says "
        "what it is, and docs/own_parts.md has examples"
    )


def lacks(part: object, method: str, purpose: str) -> ConfigError:
    """The error for an optional method that a subclass lacks.

    Args:
        part: Topics or words.
        method: Name of the method.
        purpose: What needs the method, with its verb.
    """
    return ConfigError(f"{type(part).__name__} has no method {method}, {purpose}; define it")


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an optional dependency.

    Args:
        module: The module's full name.
        extra: Name of the extra of this package that installs the dependency.
        purpose: Feature that needs the module. It is the subject of the error message.

    Raises:
        ConfigError: The import fails. The message says how to install the module.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{purpose} needs {module.partition('.')[0]}, which cannot be imported ({error}); "
            f"install it by pip install 'torch-lntm[{extra}]'"
        ) from error
