"""The constructors of models by name, and the record that a model keeps of its own construction."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, overload

import numpy as np
import torch
from torch import Tensor

from torch_lntm.errors import ConfigError
from torch_lntm.models.model import Construction, TopicModel

Arguments = ParamSpec("Arguments")

#: The registered constructors by the names that files and the command line know them by.
CONSTRUCTORS: dict[str, Callable[..., TopicModel]] = {}

#: Arguments that every registered constructor takes.
_SIZES = ("num_topics", "num_words")


@overload
def register(
    name: str,
    constructor: Callable[Arguments, TopicModel],
    *,
    learn: Callable[..., Mapping[str, Any]] | None = None,
) -> Callable[Arguments, TopicModel]: ...


@overload
def register(
    name: str,
    constructor: None = None,
    *,
    learn: Callable[..., Mapping[str, Any]] | None = None,
) -> Callable[[Callable[Arguments, TopicModel]], Callable[Arguments, TopicModel]]: ...


def register(
    name: str,
    constructor: Callable[..., TopicModel] | None = None,
    *,
    learn: Callable[..., Mapping[str, Any]] | None = None,
) -> Any:
    """Make a constructor of models known by a name, so that its models can be saved and loaded.

    ``save_model``, ``load_model``, recipes and the command line know the models that the returned
    constructor makes::

        @lntm.models.register("mine")
        def mine(num_topics, num_words, *, knob=1.0): ...

    or ``mine = lntm.models.register("mine", mine)``. A model's file holds the name and the
    arguments of the call that can be written as JSON. Arguments of a class with the methods
    ``to_json`` and ``from_json`` are written by the first; the constructor reads them by the
    second. Tensors and arrays are left out, because parameters and buffers are saved as such. They
    must therefore be optional arguments, whose defaults make parameters of the same shapes.
    ``save_model`` checks that the model can be made again.

    Args:
        name: The name. A constructor that is registered again under the same name replaces the
            first, unless that is one of this library's.
        constructor: A function that returns a :class:`TopicModel`. It takes ``num_topics`` and
            ``num_words``, and all its arguments can be given by name. Left out, ``register`` is a
            decorator.
        learn: Called before the constructor with the arguments of a call, by name. It returns the
            arguments to put in their place, which are recorded too: a formula that was fitted to a
            corpus in place of its text.

    Returns:
        The constructor, whose models remember how they were made.

    Raises:
        ConfigError: A name or a constructor that cannot be used.
    """
    if constructor is None:
        return functools.partial(register, name, learn=learn)
    if not isinstance(name, str) or not name or name != "".join(name.split()):
        raise ConfigError(f"model name {name!r}; expected a word")
    own = __name__.partition(".")[0]
    if name in CONSTRUCTORS and CONSTRUCTORS[name].__module__.partition(".")[0] == own:
        raise ConfigError(f"model name {name!r} is one of {own}'s own; choose another")
    if not callable(constructor):
        raise ConfigError(f"constructor {constructor!r}; expected a function that makes a model")
    signature = inspect.signature(constructor)
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
    nameless = [p.name for p in signature.parameters.values() if p.kind in by_position]
    missing = [size for size in _SIZES if size not in signature.parameters]
    if nameless or missing:
        raise ConfigError(
            f"the constructor of {name!r} has the signature {signature}; expected the arguments "
            f"{' and '.join(_SIZES)}, and every argument by name"
        )

    @functools.wraps(constructor)
    def recorded(*args: Any, **kwargs: Any) -> TopicModel:
        bound = signature.bind(*args, **kwargs)
        if learn is not None:
            bound.arguments |= learn(**bound.arguments)
        model = constructor(*bound.args, **bound.kwargs)
        if not isinstance(model, TopicModel):
            raise ConfigError(f"the constructor of {name!r} made {type(model).__name__}, no model")
        model.construction = Construction(name, _settings(bound))
        return model

    CONSTRUCTORS[name] = recorded
    return recorded


def construct(name: str, **settings: Any) -> TopicModel:
    """A model by the name of its constructor.

    Args:
        name: One of :data:`CONSTRUCTORS`.
        **settings: The constructor's arguments.

    Raises:
        ConfigError: No constructor has that name, or an argument that cannot be used.
    """
    if isinstance(settings.get("dtype"), str):
        # Recorded by its name, because files hold JSON.
        settings["dtype"] = getattr(torch, settings["dtype"].removeprefix("torch."), None)
    return find_constructor(name)(**settings)


def record_settings(model: TopicModel, settings: Mapping[str, Any]) -> None:
    """Keep settings that were chosen since with the record of a model's construction.

    Args:
        model: The model.
        settings: Arguments by name; those that the model's constructor does not name are left out.
    """
    made = model.construction
    if made is not None and made.name in CONSTRUCTORS:
        takes = inspect.signature(CONSTRUCTORS[made.name]).parameters
        chosen = {name: value for name, value in settings.items() if name in takes}
        model.construction = made._replace(settings=made.settings | chosen)


def find_constructor(name: str) -> Callable[..., TopicModel]:
    """The constructor of that name.

    Raises:
        ConfigError: No constructor has that name.
    """
    if not isinstance(name, str) or name not in CONSTRUCTORS:
        raise ConfigError(
            f"model {name!r}; expected one of {', '.join(CONSTRUCTORS)}. A model of your own is "
            "known after lntm.models.register(name, constructor)"
        )
    return CONSTRUCTORS[name]


def _settings(bound: inspect.BoundArguments) -> dict[str, Any]:
    """The arguments of a call that a file holds, with the defaults of those not given."""
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= arguments.pop(name)
        elif arguments[name] is None and parameter.default is None:
            del arguments[name]
    arguments.pop("vocabulary", None)  # has a file of its own
    return {
        name: _plain(value)
        for name, value in arguments.items()
        if not isinstance(value, Tensor | np.ndarray)
    }


def _plain(value: Any) -> Any:
    """A value as JSON gives it back, where JSON can hold it; objects that know their JSON stay."""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, np.generic):
        return value.item()
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return value  # save_model says that it cannot be saved
