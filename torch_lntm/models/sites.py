"""Pyro's sites of a model: its parameters, their priors, and the tools that cannot run them."""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import pyro
import torch
from pyro.distributions import constraints
from pyro.ops.jit import CompiledFunction
from pyro.poutine.enum_messenger import EnumMessenger
from pyro.poutine.runtime import _PYRO_STACK, Message, apply_stack
from torch import Tensor, nn

from torch_lntm.errors import ConfigError

Part = TypeVar("Part", bound=nn.Module)


class _WeakKey(weakref.ref[nn.Parameter]):
    """A key of a dictionary, found by a parameter and removed with it."""

    _hash: int

    def __new__(cls, parameter: nn.Parameter) -> _WeakKey:
        key = super().__new__(cls, parameter, _forget)
        key._hash = hash(parameter)
        return key

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        parameter = self()
        return other is self or (parameter is not None and other is parameter)


def _forget(key: Any) -> None:
    pyro.get_param_store()._param_to_name.pop(key, None)


class ParamSite(NamedTuple):
    """A parameter's value within the program.

    Attributes:
        value: The value of a handler; None if the parameter keeps its own.
        is_drawn: Whether the value is a draw from a prior of the caller's, as ``poutine.lift`` has.
    """

    value: Tensor | None
    is_drawn: bool


def param_site(parameter: nn.Parameter, name: str) -> ParamSite:
    """Emit a Pyro param site for a module's own parameter, which no parameter store holds.

    ``SVI`` collects what to optimise from such sites by ``value.unconstrained()``. A store, global
    and keyed by name, would hand a second model the first one's values. It learns the names only,
    for as long as the parameters live: optimisers ask it for them, to find settings and state of
    each parameter.

    Raises:
        ConfigError: A handler gave the site a value of another shape.
    """
    names = pyro.get_param_store()._param_to_name
    if names.get(parameter) != name:
        key: Any = _WeakKey(parameter)
        names[key] = name
    own: Any = parameter.view_as(parameter)
    own.unconstrained = lambda: parameter
    site = Message(
        type="param",
        name=name,
        fn=lambda value, constraint: value,
        is_observed=False,
        args=(own,),
        kwargs={"constraint": constraints.real},
        value=None,
        scale=1.0,
        mask=None,
        cond_indep_stack=(),
        done=False,
        stop=False,
        continuation=None,
        infer={},
    )
    apply_stack(site)
    value: Any = site["value"]
    is_drawn = site["type"] == "sample"
    if value is own:
        return ParamSite(None, is_drawn)
    if value.shape != parameter.shape:
        raise ConfigError(
            f"the param site {name!r} was given a value of shape {tuple(value.shape)}; expected "
            f"{tuple(parameter.shape)}. Give a prior that shape by .expand(...).to_event(...); "
            "several values at once, as in a vectorised plate, are not supported"
        )
    return ParamSite(value.to(parameter.dtype), is_drawn)


def draw_pyro_samples(module: nn.Module) -> set[str]:
    """Draw the parameters that are Pyro samples, and return their names.

    Pyro draws them when they are read. That must not be first within the documents' plate, which
    would draw one for each document.
    """
    drawn = set()
    for prefix, part in module.named_modules():
        for name in getattr(part, "_pyro_samples", ()):
            getattr(part, name)
            drawn.add(f"{prefix}.{name}" if prefix else name)
    return drawn


def capture(
    part: Part, take: Callable[[str, Tensor], Tensor] = lambda _, value: value, path: str = ""
) -> Part:
    """A part with the parameters that the program has now, drawn or given ones too.

    Pyro asks a site's distribution for densities after the program has run, when a handler's values
    are gone from the module. The captured part shares the parameters, and gradients reach them.

    Args:
        part: The part.
        take: Returns the tensor to read in place of a parameter, given its name and value. Defaults
            to the value.
        path: What the names begin with.
    """
    twin = copy.copy(part)
    own = [name for name, _ in part.named_parameters(recurse=False)]
    for name in [*own, *getattr(part, "_pyro_samples", ())]:
        # Modules keep parameters elsewhere; an attribute of the instance is found before them.
        vars(twin)[name] = take(path + name, getattr(part, name))
    vars(twin)["_modules"] = {
        name: capture(inner, take, f"{path}{name}.") for name, inner in part.named_children()
    }
    return twin


def log_prior_counts(part: nn.Module, name: str, drawn: set[str]) -> bool:
    """Whether a part's log prior counts beside the priors that its parameters were drawn from.

    A prior of the caller's replaces the part's: where the log prior is a function of drawn
    parameters alone, it does not count. It counts in full where it is a function of others.

    Args:
        part: The document prior or the topics.
        name: The part's name in the model.
        drawn: Names in the model of the parameters that were drawn.

    Raises:
        ConfigError: The log prior is a function of drawn parameters and of others.
    """
    own = {one.removeprefix(f"{name}.") for one in drawn if one.startswith(f"{name}.")}
    if not own:
        return True
    values: dict[str, Tensor] = {}

    def copied(name: str, value: Tensor) -> Tensor:
        values[name] = value.detach().clone().requires_grad_()
        return values[name]

    with torch.inference_mode(False), torch.enable_grad():
        log_prior: Tensor = capture(part, copied).log_prior()  # type: ignore[operator]
        if not log_prior.requires_grad:
            return True
        slopes = torch.autograd.grad(log_prior, list(values.values()), allow_unused=True)
    read = {one for one, slope in zip(values, slopes, strict=True) if slope is not None}
    if read & own and read - own:
        raise ConfigError(
            f"{', '.join(sorted(read & own))} of model.{name} got a prior by lift or PyroSample, "
            f"and the log prior of {type(part).__name__} is one density of "
            f"{', '.join(sorted(read))}; give all of them priors, or leave the model's own priors "
            "out by model(batch, log_prior=False) and add the missing ones by pyro.factor"
        )
    return not read & own


def prior_factor(name: str, log_prior: Tensor, documents: pyro.plate) -> None:
    """Emit the log prior of parameters as a factor, once for all documents.

    A mask of documents would turn it into one for each of them. There it is shared out among the
    unmasked ones within their plate, so that it counts once.
    """
    mask = pyro.poutine.get_mask()
    if not isinstance(mask, Tensor) or mask.dim() == 0:
        pyro.factor(name, log_prior)
        return
    num_docs = documents.subsample_size
    unmasked = mask.expand(*mask.shape[:-1], num_docs).sum(-1, keepdim=True).clamp_min(1)
    share = log_prior / (unmasked * (documents.size / num_docs))
    with documents:
        pyro.factor(name, share.expand(*mask.shape[:-1], num_docs))


def check_documents(documents: pyro.plate, index: Tensor) -> None:
    """Raise if the guide's plate holds other documents than the batch.

    Raises:
        ConfigError: It says how the guide gets the batch's.
    """
    chosen: Any
    with documents as chosen:
        pass
    if chosen is index or torch.equal(chosen, index):
        return
    raise ConfigError(
        f"the guide's plate 'documents' holds documents {chosen[:3].tolist()}..., the batch "
        f"{index[:3].tolist()}...: an autoguide draws documents of its own, whose parameters it "
        "would fit to these words. Give it the batch's by AutoNormal(model, "
        "create_plates=model.plate), and by the same argument to any other autoguide"
    )


def check_tools(dtype: torch.dtype) -> None:
    """Raise if a tool runs the program that cannot run it.

    Args:
        dtype: The model's floating-point type.

    Raises:
        ConfigError: The tool is ``torch.jit``, or an enumerating ELBO and the model is not float64.
    """
    if torch.jit.is_tracing() or _is_called_by(CompiledFunction.__call__):  # type: ignore[attr-defined]
        raise ConfigError(
            "torch.jit cannot trace the program of a topic model; use Trace_ELBO instead of "
            "JitTrace_ELBO, and NUTS or HMC without jit_compile"
        )
    # Samplers enumerate too, at a dimension that they choose first; an ELBO takes the guide's.
    enumerates = any(
        isinstance(one, EnumMessenger) and one.first_available_dim is None for one in _PYRO_STACK
    )
    if enumerates and dtype != torch.float64:
        raise ConfigError(
            f"TraceEnum_ELBO multiplies log probabilities of one floating-point type, and the "
            f"words of a {dtype} model have them in float64, its documents in {dtype}; take "
            "model.double(), or Trace_ELBO if nothing is enumerated"
        )


def _is_called_by(function: Callable[..., Any]) -> bool:
    """Whether a Python function is among those that are running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None
