"""Models in folders: name and arguments of the constructor, and the parameters."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
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
    read_text,
)
from torch_lntm.io.card import model_card
from torch_lntm.io.folders import (
    CARD,
    MODEL,
    NAMES,
    TENSORS,
    VOCABULARY,
    check_target,
    parse_json,
    read_json,
)
from torch_lntm.models import CONSTRUCTORS, NameRecord, TopicModel, construct, find_constructor

FORMAT_VERSION = 1
#: Bounds on the number of word probabilities of a folder's model: a number for any folder, and a
#: number per stored parameter.
LEAST_PROBABILITIES, PROBABILITIES_PER_PARAMETER = 2**24, 64


def save_model(
    model: TopicModel | str | Path, path: str | Path | TopicModel, *, overwrite: bool = False
) -> Path:
    """Write a model to a folder atomically.

    Args:
        model: The model, on any device.
        path: The folder to write. ``model`` and ``path`` are accepted in either order.
        overwrite: Replace an existing model or run.

    Returns:
        The folder.

    Raises:
        ConfigError: The folder exists and ``overwrite`` is false, writing fails, or
            :func:`check_saveable` refuses the model.

    Example:
        >>> folder = lntm.save_model(model, "model")
        >>> torch.equal(lntm.load_model(folder).topics.probs, model.topics.probs)
        True
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
    """Check that a model can be restored from a folder.

    Args:
        model: The model.

    Raises:
        ConfigError: The model's constructor is unregistered or now makes another kind of model, an
            argument has a type outside of JSON, or a word is invalid Unicode.
    """
    call = model.construction
    if call is None or call.name not in CONSTRUCTORS:
        raise ConfigError(
            f"no registered constructor made this model of {type(model.prior).__name__} and "
            f"{type(model.topics).__name__}, so a file of it could not be loaded. Register the "
            "function that makes such models, mine = lntm.models.register('mine', mine), and make "
            "the model by mine(...)"
        )
    settings = call.to_json()
    for name, value in settings.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise ConfigError(
                f"the model {call.name} has the argument {name} of type {type(value).__name__}, "
                "which JSON cannot hold; let the constructor take numbers, texts or lists"
            ) from None
    try:
        twin = construct(call.name, **settings)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"the model {call.name} cannot be made again without its tensor arguments "
            f"({error}); give tensor arguments of the constructor defaults"
        ) from error
    types, twin_types = ({n: type(m) for n, m in x.named_modules()} for x in (model, twin))
    changed = next((n or "the model" for n in types if twin_types.get(n) is not types[n]), None)
    state, expected = model.state_dict(), twin.state_dict()
    for name in sorted({*state, *expected}):
        tensor = state.get(name)
        if changed is None and _mismatch(expected.get(name), tensor, finite=False):
            changed = name
    if changed is not None:
        raise ConfigError(
            f"the model differs from a new model of its constructor {call.name}: {changed} has "
            "changed. Register the function for this kind of model: "
            "lntm.models.register(name, constructor)"
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
    """Read a model from the folder of a model or a run.

    Args:
        path: The folder.

    Returns:
        The model, on the CPU, with the saved parameters unchanged.

    Raises:
        ConfigError: A file is missing, damaged or of a later version, two files contradict, or the
            constructor is unknown. The message names the file.

    Example:
        >>> folder = lntm.save_model(model, "model")
        >>> lntm.load_model(folder).num_topics
        10
    """
    return read_consistent(Path(path), read_model)


def read_model(folder: Path) -> TopicModel:
    """Read a model from a folder that stays unchanged; see :func:`load_model`."""
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
    try:
        model.topic_names = about.get("topic_names")  # files before 0.3.0 lack it
    except ConfigError as error:
        raise ConfigError(f"{folder / MODEL}: {error}") from None
    model.add_name_records(_read_records(folder / NAMES, model.num_topics))
    expected = model.state_dict()
    for name in sorted({*expected, *tensors}):
        problem = _mismatch(expected.get(name), tensors.get(name))
        if problem:
            raise ConfigError(f"{folder / TENSORS}: {name} {problem}")
    model.load_state_dict(tensors)
    return model


def _read_records(path: Path, num_topics: int) -> list[NameRecord]:
    """Records of names that a language model gave; none if there is no file."""
    if not path.is_file():
        return []
    records = parse_json(path, read_text(path))
    try:
        if not isinstance(records, list) or len(records) > num_topics:
            raise ConfigError(f"expected a list of at most {num_topics} records")
        return [NameRecord.from_json(record, num_topics) for record in records]
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def describe_model(model: TopicModel) -> bytes:
    """Content of a model's JSON file. Call :func:`check_saveable` first."""
    assert model.construction is not None
    about = {
        "format_version": FORMAT_VERSION,
        "kind": model.construction.name,
        "config": model.construction.to_json(),
        "vocabulary": model.vocabulary is not None,
        "topic_names": model.topic_names if model.has_topic_names else None,
    }
    return as_json(about)


def write_model(folder: Path, model: TopicModel) -> None:
    """Write the files of a model into a folder. Call :func:`check_saveable` first."""
    (folder / MODEL).write_bytes(describe_model(model))
    if model.name_records:
        (folder / NAMES).write_bytes(as_json([asdict(r) for r in model.name_records]))
    tensors = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    (folder / TENSORS).write_bytes(safetensors.torch.save(tensors))
    if model.vocabulary is not None:
        (folder / VOCABULARY).write_bytes(as_lines(model.vocabulary, "word", VOCABULARY))


def _mismatch(expected: Tensor | None, tensor: Tensor | None, finite: bool = True) -> str | None:
    """Problem of a tensor in a model's file; ``None`` for a correct tensor."""
    if expected is None:
        return "is not a parameter of this model; do the files belong together?"
    if tensor is None:
        return "is missing; is the file complete?"
    if tensor.shape != expected.shape or tensor.dtype != expected.dtype:
        return (
            f"is {tuple(tensor.shape)} {tensor.dtype}; expected {tuple(expected.shape)} "
            f"{expected.dtype} by {MODEL}"
        )
    return None if not finite or torch.isfinite(tensor).all() else "holds NaN or infinity"


def _check_sizes(folder: Path, settings: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Refuse sizes out of proportion to the parameters, before allocating memory.

    Word probabilities may exceed the stored parameters: embedded topics are products of small
    tables.
    """
    sizes: list[Any] = [settings.get(name) for name in ("num_topics", "num_words")]
    if not all(type(size) is int and size > 0 for size in sizes):
        raise ConfigError(
            f"{folder / MODEL}: num_topics and num_words are {sizes}; expected whole numbers from 1"
        )
    stored = sum(tensor.numel() for tensor in tensors.values())
    limit = max(LEAST_PROBABILITIES, PROBABILITIES_PER_PARAMETER * stored)
    if math.prod(sizes) > limit:
        raise ConfigError(
            f"{folder / MODEL}: num_topics and num_words are {sizes}, but {TENSORS} holds {stored} "
            "numbers; expected parameters of all topics and words. Do the files belong together?"
        )


def _renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters by current names. Before 0.2.0, ``words`` of a bursty model was ``bursts``."""
    old = "bursts.log_concentration"
    return {"words.log_concentration" if n == old else n: x for n, x in tensors.items()}


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(read_bytes(path))
    except (SafetensorError, KeyError) as error:
        raise ConfigError(f"{path}: not a complete safetensors file ({error})") from error
