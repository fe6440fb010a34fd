"""Pyro sites of a model: its parameters and their priors, and checks of Pyro's handlers."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

import pyro
import torch
from pyro.distributions import constraints
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from pyro.ops.jit import CompiledFunction
from pyro.poutine.runtime import Message, apply_stack
from torch import Tensor, nn
from torch.utils.weak import WeakIdRef

from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError

Part = TypeVar("Part", bound=nn.Module)


class _WeakKey(WeakIdRef):
    """Dictionary key that equals its parameter, without keeping it alive."""

    __hash__ = WeakIdRef.__hash__

    def __eq__(self, other: object) -> bool:
        return other is self or (other is not None and other is self())


def param_site(parameter: nn.Parameter, name: str) -> tuple[Tensor | None, bool]:
    """Emit a Pyro param site for a parameter of a module, bypassing the parameter store.

    ``SVI`` collects the parameters to optimise from these sites, by ``value.unconstrained()``.
    Because the parameter store is global and keyed by name, a second model would get the values of
    the first. Only the names are stored, then, for as long as the parameters exist, because
    optimisers look up each parameter's settings and state by its name.

    Args:
        parameter: The parameter.
        name: Name of the site.

    Returns:
        The value from a handler, or ``None`` if the parameter keeps its own. And whether the value
        is a draw from a prior of the caller, as under ``poutine.lift``.

    Raises:
        ConfigError: A handler gave the site a value of another shape.
    """
    names: dict[Any, str] = pyro.get_param_store()._param_to_name
    if names.get(parameter) != name:
        names[_WeakKey(parameter, lambda key: names.pop(key, None))] = name
    view: Any = parameter.view_as(parameter)
    view.unconstrained = lambda: parameter
    site = Message(
        type="param",
        name=name,
        fn=lambda value, constraint: value,
        is_observed=False,
        args=(view,),
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
    if value is view:
        return None, is_drawn
    if value.shape != parameter.shape:
        raise ConfigError(
            f"the param site {name!r} was given a value of shape {tuple(value.shape)}; expected "
            f"{tuple(parameter.shape)}. Give a prior this shape by .expand(...).to_event(...); "
            "several values at once, as in a vectorised plate, are not supported"
        )
    return value.to(parameter.dtype), is_drawn


def draw_pyro_samples(module: nn.Module) -> set[str]:
    """Draw the parameters declared as ``PyroSample``, and return their names.

    Pyro draws such a parameter at its first read, which within the documents' plate would draw a
    value for each document.
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
    """A copy of a part that keeps the parameter values of the running program.

    They include values from handlers and draws, which would otherwise be gone from the module when
    Pyro computes the densities of a site after the program has run. Gradients reach the original
    parameters through the copy.

    Args:
        part: The document prior, topics or words.
        take: Function of the name and value of a parameter, which returns the tensor that the copy
            holds instead. Defaults to the value.
        path: Prefix of the names.
    """
    twin = copy.copy(part)
    names = [name for name, _ in part.named_parameters(recurse=False)]
    for name in [*names, *getattr(part, "_pyro_samples", ())]:
        # Modules keep parameters in a dictionary. Python finds an attribute of the instance first.
        vars(twin)[name] = take(path + name, getattr(part, name))
    vars(twin)["_modules"] = {
        name: capture(inner, take, f"{path}{name}.") for name, inner in part.named_children()
    }
    return twin


def log_prior_counts(part: nn.Module, name: str, drawn: set[str]) -> bool:
    """Whether the program adds a part's own log prior, if the caller gave some parameters priors.

    A prior of the caller replaces that of the part, whose log prior is left out if it depends on
    the drawn parameters and added if it depends on none of them.

    Args:
        part: The document prior, topics or words.
        name: Name of the part in the model.
        drawn: Names in the model of the parameters drawn from priors of the caller.

    Raises:
        ConfigError: The log prior depends on drawn parameters and on others.
    """
    drawn_here = {full.removeprefix(f"{name}.") for full in drawn if full.startswith(f"{name}.")}
    if not drawn_here:
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
    read = {key for key, slope in zip(values, slopes, strict=True) if slope is not None}
    with_prior = read & drawn_here
    if with_prior and read - drawn_here:
        raise ConfigError(
            f"{', '.join(sorted(with_prior))} of model.{name} got a prior by lift or PyroSample, "
            f"and the log prior of {type(part).__name__} is one density of "
            f"{', '.join(sorted(read))}; give all of them priors, or leave the model's own priors "
            "out by model(batch, log_prior=False) and add the missing ones by pyro.factor"
        )
    return not with_prior


def prior_factor(name: str, log_prior: Tensor, documents: pyro.plate) -> None:
    """Emit the log prior of parameters as a factor that counts once for all documents.

    Under a mask of documents, a single factor would be added once per unmasked document, so every
    such document gets an equal share of it instead, within the plate.
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
    """Raise if a guide's plate holds other documents than the batch.

    Args:
        documents: The plate ``"documents"``.
        index: ``(num_docs,)`` positions of the batch's documents.

    Raises:
        ConfigError: The documents differ. The message says how to give the guide the right ones.
    """
    positions: Any
    with documents as positions:
        pass
    if positions is index or torch.equal(positions, index):
        return
    raise ConfigError(
        f"the guide's plate 'documents' holds documents {positions[:3].tolist()}..., the batch "
        f"{index[:3].tolist()}...: an autoguide draws its own documents, and would fit their "
        "parameters to the words of this batch. Give it the documents of the batch by "
        "AutoNormal(model, create_plates=model.plate), or the same argument of another autoguide"
    )


def check_callers(batch: DocumentBatch) -> None:
    """Raise if ``torch.jit`` runs the program, or a kernel of ``pyro.infer.mcmc`` a mini-batch.

    The plate scales the documents of a mini-batch up to the corpus, which makes the ELBO of ``SVI``
    unbiased but would make a sampler draw from posteriors that are far too narrow.

    Args:
        batch: The documents.

    Raises:
        ConfigError: ``torch.jit`` would trace the program. Or the batch is a part of its corpus,
            and a kernel is on the call stack.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        is_method = frame.f_code.co_varnames[:1] == ("self",)
        caller = frame.f_locals.get("self") if is_method else None
        if isinstance(caller, CompiledFunction) or torch.jit.is_tracing():  # type: ignore[attr-defined]
            raise ConfigError(
                "torch.jit cannot trace the program of a topic model; use Trace_ELBO instead of "
                "JitTrace_ELBO, and NUTS or HMC without jit_compile"
            )
        if isinstance(caller, MCMCKernel) and batch.num_docs < batch.corpus_size:
            raise ConfigError(
                f"{type(caller).__name__} was given {batch.num_docs} documents of a corpus of "
                f"{batch.corpus_size}. The program weighs the documents of a mini-batch up to the "
                "whole corpus, so a sampler would draw from posteriors that are too narrow; give "
                "it a corpus of these documents, corpus[rows].batch(), or for their latent "
                "variables alone use MCMC(DocumentHMC(model))"
            )
        frame = frame.f_back
