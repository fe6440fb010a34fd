"""Models in folders: a constructor's name and arguments, and the parameters."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from torch_lntm.corpus.store import read_vocabulary
from torch_lntm.errors import ConfigError
from torch_lntm.files import (
    as_json,
    as_lines,
    atomic_folder,
    read_bytes,
    read_consistent,
)
from torch_lntm.io.card import model_card
from torch_lntm.io.folders import CARD, MODEL, TENSORS, VOCABULARY, check_target, read_json
from torch_lntm.models import CONSTRUCTORS, TopicModel, construct, find_constructor

FORMAT_VERSION = 1
#: Word probabilities that a folder may ask memory for: this number, or so many for each parameter.
LEAST_PROBABILITIES, PROBABILITIES_PER_PARAMETER = 2**24, 64


def save_model(
    model: TopicModel | str | Path, path: str | Path | TopicModel, *, overwrite: bool = False
) -> Path:
    """Write a model's folder, which appears complete or not at all.

    Args:
        model: The model, on any device.
        path: The folder to write. The two may be given in either order.
        overwrite: Replace a model or run that is there already.

    Returns:
        The folder.

    Raises:
        ConfigError: The folder exists and may not be replaced, cannot be written, or would not give
            the model back; see :func:`check_saveable`.
    """
    if isinstance(path, TopicModel):
        model, path = path, model
    if not isinstance(model, TopicModel) or isinstance(path, TopicModel):
        raise ConfigError(
            f"save_model got {type(model).__name__} and {type(path).__name__}; expected a model "
            "and a path"
        )
    check_saveable(model)
    check_target(Path(path), overwrite)
    with atomic_folder(Path(path)) as folder:
        write_model(folder, model)
        (folder / CARD).write_bytes(model_card(model).encode())
    return Path(path)


def check_saveable(model: TopicModel) -> None:
    """Check that a model's folder would give the model back.

    Args:
        model: The model.

    Raises:
        ConfigError: No registered constructor made the model, one of its arguments cannot be
            written as JSON, the same call makes another kind of model, or a word cannot be written.
    """
    made = model.construction
    if made is None or made.name not in CONSTRUCTORS:
        raise ConfigError(
            f"no registered constructor made this model of {type(model.prior).__name__} and "
            f"{type(model.topics).__name__}, so a file of it could not be loaded. Register the "
            "function that makes such models, mine = lntm.models.register('mine', mine), and make "
            "the model by mine(...)"
        )
    settings = made.to_json()
    for name, value in settings.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise ConfigError(
                f"the model {made.name} has the argument {name} of type {type(value).__name__}, "
                "which JSON cannot hold; let the constructor take numbers, texts or lists"
            ) from None
    try:
        twin = construct(made.name, **settings)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"the model {made.name} cannot be made again from its arguments without tensors "
            f"({error}); give those of the constructor defaults"
        ) from error
    kinds, again = ({n: type(m) for n, m in one.named_modules()} for one in (model, twin))
    changed = next((name or "it" for name in kinds if again.get(name) is not kinds[name]), None)
    state, expected = model.state_dict(), twin.state_dict()
    for name in sorted({*state, *expected}):
        found = state.get(name)
        if changed is None and _mismatch(expected.get(name), found, finite=False):
            changed = name
    if changed is not None:
        raise ConfigError(
            f"the model is no longer what its constructor {made.name} makes: {changed} is another. "
            "Register the function that makes such models: lntm.models.register(name, constructor)"
        )
    for position, word in enumerate(model.vocabulary or ()):
        try:
            word.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"word {position} of the vocabulary, {word!r}, is not Unicode text and cannot be "
                "written; drop or replace it"
            ) from None


def load_model(path: str | Path) -> TopicModel:
    """Read a model from its folder, or from a run's.

    Args:
        path: The folder.

    Returns:
        The model, on the CPU, with the very parameters that were saved.

    Raises:
        ConfigError: A file is missing, damaged, does not fit the others or is of a later version,
            or the model's constructor is not registered; the message names the file.
    """
    return read_consistent(Path(path), read_model)


def read_model(folder: Path) -> TopicModel:
    """The model of a folder that stays as it is meanwhile; see :func:`load_model`."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; expected one with a {MODEL}")
    about = read_json(folder / MODEL)
    if about.get("format_version") != FORMAT_VERSION:
        raise ConfigError(
            f"{folder / MODEL}: format_version is {about.get('format_version')!r}; this "
            f"version of torch_lntm reads {FORMAT_VERSION}"
        )
    name = about.get("kind")
    try:
        find_constructor(name)  # type: ignore[arg-type]
    except ConfigError as error:
        raise ConfigError(f"{folder / MODEL}: {error}") from None
    settings = about.get("config")
    if not isinstance(settings, dict) or "vocabulary" not in about:
        raise ConfigError(f"{folder / MODEL}: lacks 'config' or 'vocabulary'; is it complete?")
    tensors = _renamed(_read_tensors(folder / TENSORS))
    _check_sizes(folder, settings, tensors)
    vocabulary = (
        read_vocabulary(folder / VOCABULARY, settings["num_words"]) if about["vocabulary"] else None
    )
    try:
        model = construct(str(name), **settings)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{folder / MODEL}: unusable settings ({error})") from error
    model.vocabulary = vocabulary
    expected = model.state_dict()
    for name in sorted({*expected, *tensors}):
        problem = _mismatch(expected.get(name), tensors.get(name))
        if problem:
            raise ConfigError(f"{folder / TENSORS}: {name} {problem}")
    model.load_state_dict(tensors)
    return model


def write_model(folder: Path, model: TopicModel) -> None:
    """Write the files of a model, which :func:`check_saveable` accepts, into a folder."""
    assert model.construction is not None
    about = {
        "format_version": FORMAT_VERSION,
        "kind": model.construction.name,
        "config": model.construction.to_json(),
        "vocabulary": model.vocabulary is not None,
    }
    (folder / MODEL).write_bytes(as_json(about))
    tensors = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    (folder / TENSORS).write_bytes(safetensors.torch.save(tensors))
    if model.vocabulary is not None:
        (folder / VOCABULARY).write_bytes(as_lines(model.vocabulary, "word", VOCABULARY))


def _mismatch(expected: Tensor | None, found: Tensor | None, finite: bool = True) -> str | None:
    """What is wrong with a tensor of a model's file, if anything is."""
    if expected is None:
        return "is not a parameter of this model; do the files belong together?"
    if found is None:
        return "is missing; is the file complete?"
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return (
            f"is {tuple(found.shape)} {found.dtype}; expected {tuple(expected.shape)} "
            f"{expected.dtype} by {MODEL}"
        )
    return None if not finite or torch.isfinite(found).all() else "holds NaN or infinity"


def _check_sizes(folder: Path, settings: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Refuse sizes out of proportion to the parameters, before memory is taken for them.

    Topics of a model need not be stored as such: embedded topics are products of small tables.
    """
    sizes: list[Any] = [settings.get(name) for name in ("num_topics", "num_words")]
    if not all(type(size) is int and size > 0 for size in sizes):
        raise ConfigError(
            f"{folder / MODEL}: num_topics and num_words are {sizes}; expected whole numbers from 1"
        )
    stored = sum(tensor.numel() for tensor in tensors.values())
    most = max(LEAST_PROBABILITIES, PROBABILITIES_PER_PARAMETER * stored)
    if math.prod(sizes) > most:
        raise ConfigError(
            f"{folder / MODEL}: num_topics and num_words are {sizes}, but {TENSORS} holds {stored} "
            "numbers; expected parameters of all topics and words. Do the files belong together?"
        )


def _renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters by their present names: before 0.2.0 the words of a bursty model were `bursts`."""
    old = "bursts.log_concentration"
    return {"words.log_concentration" if n == old else n: x for n, x in tensors.items()}


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(read_bytes(path))
    except (SafetensorError, KeyError) as error:
        raise ConfigError(f"{path}: not a complete safetensors file ({error})") from error
