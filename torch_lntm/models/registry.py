"""Registered constructors of models, and the record of each constructor call."""

from __future__ import annotations

import functools
import inspect
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, bind, require_whole
from torch_lntm.models.model import Construction, TopicModel

Arguments = ParamSpec("Arguments")

#: Registered constructors by their names in files and on the command line.
CONSTRUCTORS: dict[str, Callable[..., TopicModel]] = {}

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def register(
    name: str, *, learn: Callable[..., Mapping[str, Any]] | None = None
) -> Callable[[Callable[Arguments, TopicModel]], Callable[Arguments, TopicModel]]:
    """Register a constructor of models under a name, so that its models can be saved and loaded.

    From then on ``save_model``, ``load_model``, recipes and the command line know the name, and the
    constructor accepts a corpus in place of the number of words. A saved model holds the name and
    the arguments of the call as JSON, so that loading calls the constructor again. An argument with
    methods ``to_json`` and ``from_json`` is written by ``to_json``, and the constructor must accept
    the written form too. Tensors and arrays are left out, because parameters and buffers are saved
    anyway; such arguments must be optional, with defaults that make parameters of the same shapes,
    which ``save_model`` checks by a second call.

    Args:
        name: The name, without spaces. A second registration replaces the first, but the names of
            this library are reserved.
        learn: Function that is called before the constructor, with the same arguments by name. It
            returns new values of some arguments, such as a fitted formula instead of its text. The
            record of the call holds the new values.

    Returns:
        A decorator of a function that returns a :class:`TopicModel`. The arguments of the function
        include ``num_topics`` and ``num_words``, and all can be passed by name. Options that it
        takes as ``**options: Unpack[Options]``, for a typed dictionary with annotations
        ``Annotated[type, default]``, become parameters of their own. Its models carry the record of
        the call.

    Raises:
        ConfigError: The name is empty, contains spaces or is reserved, or the constructor lacks an
            argument or has arguments that cannot be passed by name.

    Example:
        >>> @lntm.models.register("small")
        ... def small(num_topics, num_words, *, smoothing=0.1):
        ...     return lntm.models.ctm(num_topics, num_words, topic_smoothing=smoothing)
        >>> small(3, 50).name, small(3, 50).config
        ('small', {'num_topics': 3, 'num_words': 50, 'smoothing': 0.1})
    """
    if not isinstance(name, str) or not name or name != "".join(name.split()):
        raise ConfigError(f"model name {name!r}; expected a word")
    library = __name__.partition(".")[0]
    if name in CONSTRUCTORS and CONSTRUCTORS[name].__module__.partition(".")[0] == library:
        raise ConfigError(f"model name {name!r} is one of {library}'s own; choose another")

    def decorate(constructor: Callable[Arguments, TopicModel]) -> Callable[Arguments, TopicModel]:
        signature, text = _with_options(constructor)
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
        nameless = any(p.kind in by_position for p in signature.parameters.values())
        if nameless or not {"num_topics", "num_words"} <= set(signature.parameters):
            raise ConfigError(
                f"the constructor of {name!r} has the signature {signature}; expected the "
                "arguments num_topics and num_words, and every argument by name"
            )

        @functools.wraps(constructor)
        def recorded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> TopicModel:
            bound = bind(name, signature, args, kwargs)
            corpus = bound.arguments["num_words"]
            if isinstance(corpus, Corpus) and "vocabulary" in signature.parameters:
                bound.arguments.setdefault("vocabulary", corpus.vocabulary)
            bound.apply_defaults()
            values = bound.arguments
            if learn is not None:
                values |= learn(**values)
            if isinstance(corpus, Corpus):
                values["num_words"] = corpus.num_words
            _check(values)
            model = constructor(*bound.args, **bound.kwargs)
            if isinstance(corpus, Corpus) and "vocabulary" not in signature.parameters:
                model.vocabulary = corpus.vocabulary
            model.construction = Construction(name, _settings(bound))
            return model

        recorded.__signature__, recorded.__doc__ = signature, text  # type: ignore[attr-defined]
        CONSTRUCTORS[name] = recorded
        return recorded

    return decorate


def _with_options(constructor: Callable[..., TopicModel]) -> tuple[inspect.Signature, str | None]:
    """Signature and docstring of a constructor with a parameter for each of its shared options."""
    signature, text = inspect.signature(constructor), constructor.__doc__
    *parameters, last = signature.parameters.values()
    if last.kind is not inspect.Parameter.VAR_KEYWORD or "Unpack[" not in str(last.annotation):
        return signature, text
    kinds = get_type_hints(constructor, include_extras=True)[last.name].__args__[0]
    for name, hint in get_type_hints(kinds, include_extras=True).items():
        kind, default = get_args(hint)
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
            )
        )
    lines = "".join(_arguments(kinds))
    text = inspect.cleandoc(text or "").replace("\n\nReturns:", lines + "\n\nReturns:", 1)
    return signature.replace(parameters=parameters), text


def _arguments(kinds: Any) -> dict[str, None]:
    """Lines on the options in the docstrings of a typed dictionary and its bases, each once."""
    bases = [_arguments(base) for base in getattr(kinds, "__orig_bases__", ())]
    own = inspect.cleandoc(kinds.__doc__ or "").partition("Args:")[2]
    return dict.fromkeys([*itertools.chain(*bases), own])


def _check(arguments: dict[str, Any]) -> None:
    """Check the sizes of a model. A type that is given by its name, as in files, is looked up."""
    for name in ("num_topics", "num_words"):
        if arguments[name] is None or isinstance(arguments[name], bool):
            raise ConfigError(f"{name} is {arguments[name]}; expected a whole number")
        require_whole(1, **{name: arguments[name]})
    if "dtype" in arguments:
        name = str(arguments["dtype"]).removeprefix("torch.")
        if name not in _DTYPES:
            raise ConfigError(f"dtype is {name}; expected float32 or float64")
        arguments["dtype"] = _DTYPES[name]


def record_settings(model: TopicModel, settings: Mapping[str, Any]) -> None:
    """Add settings of a fit to the record of a model's construction.

    Args:
        model: The model.
        settings: Arguments by name. Names unknown to the constructor are skipped.
    """
    record = model.construction
    if record is not None and record.name in CONSTRUCTORS:
        parameters = inspect.signature(CONSTRUCTORS[record.name]).parameters
        new = {name: value for name, value in settings.items() if name in parameters}
        model.construction = record._replace(settings=record.settings | new)


def find_constructor(name: str) -> Callable[..., TopicModel]:
    """The constructor with a registered name.

    Raises:
        ConfigError: The name is unknown.

    Example:
        >>> lntm.models.registry.find_constructor("ctm")(num_topics=3, num_words=50).name
        'ctm'
    """
    if not isinstance(name, str) or name not in CONSTRUCTORS:
        raise ConfigError(
            f"model {name!r}; expected one of {', '.join(CONSTRUCTORS)}. A model of your own is "
            "known after lntm.models.register(name)(constructor)"
        )
    return CONSTRUCTORS[name]


def _settings(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Arguments of a call as a file stores them, including defaults."""
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= arguments.pop(name)
        elif arguments[name] is None and parameter.default is None:
            del arguments[name]
    arguments.pop("vocabulary", None)  # saved in a separate file
    return {
        name: _plain(value)
        for name, value in arguments.items()
        if not isinstance(value, Tensor | np.ndarray)
    }


def _plain(value: Any) -> Any:
    """A value after a round trip through JSON. Objects that JSON cannot hold stay unchanged."""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, np.generic):
        return value.item()
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return value  # save_model raises an error if it cannot convert the value either
