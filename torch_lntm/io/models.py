"""Saves a model as the name and arguments of its constructor, together with its parameters."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from torch_lntm.corpus.store import read_checked, read_vocabulary
from torch_lntm.errors import ConfigError
from torch_lntm.files.reading import read_consistent, read_errors, read_text
from torch_lntm.files.writing import as_json, as_lines, atomic_folder, check_folder
from torch_lntm.io.card import model_card, signed
from torch_lntm.models import TopicModel
from torch_lntm.models.model import require_model
from torch_lntm.models.registry import CONSTRUCTORS, find_constructor

#: Files of a model's folder. Those of a run's folder are in runs.py.
MODEL, TENSORS, VOCABULARY = "model.json", "model.safetensors", "vocabulary.txt"
CARD = "README.md"
FORMAT_VERSION = 1
#: Word probabilities of a model that any folder may hold. Larger models have up to 64 for each
#: stored parameter, since embedded topics are products of small tables.
LEAST_PROBABILITIES = 2**24
#: What invalid values from a file raise.
_INVALID = (TypeError, ValueError, RuntimeError, KeyError)
#: Parameters that had other names in versions before 0.3.0.
_RENAMED = {
    "bursts.log_concentration": "words.log_concentration",
    "topics.groups": "topics.levels",
}


def save_model(model: TopicModel, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write a model to a folder, completely or not at all.

    The folder holds the name and arguments of the model's constructor, its parameters and its
    vocabulary. :func:`load_model` rebuilds the model from these, so a constructor of your own must
    be registered. To save a whole fit, with its history and scores, use
    :func:`~torch_lntm.io.save_run`.

    Args:
        model: The model, on any device.
        path: The folder to write.
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
    require_model(model)
    check_saveable(model)
    check_target(Path(path), overwrite)
    with atomic_folder(Path(path)) as folder:
        write_model(folder, model)
        (folder / CARD).write_bytes(signed(model_card(model)))
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
            "function that makes such models, mine = lntm.models.register('mine')(mine), and make "
            "the model by mine(...)"
        )
    try:
        twin = find_constructor(call.name)(**json.loads(json.dumps(call.to_json())))
        twin.load_state_dict(model.state_dict())
        "".join(model.vocabulary or ()).encode()
        for (name, part), new in zip(model.named_modules(), twin.modules(), strict=True):
            if type(part) is not type(new):
                raise TypeError(f"{name} is {type(part).__name__}, not {type(new).__name__}")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"the model {call.name} cannot be made again from a file ({error}). Its constructor "
            "must take numbers, texts or lists, have defaults for tensors, and make the same "
            "parts; words must be Unicode. Register a constructor of this kind of model: "
            "lntm.models.register(name)(constructor)"
        ) from error


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
        >>> folder = lntm.save_model(model, "saved")
        >>> lntm.load_model(folder).num_topics
        10
    """
    return read_consistent(Path(path), read_model)


def read_model(folder: Path) -> TopicModel:
    """Read a model from a folder that stays unchanged; see :func:`load_model`."""
    if not any((folder / name).exists() for name in (MODEL, TENSORS)):
        raise ConfigError(f"{folder} is no folder of a model or run: it has no {MODEL}")
    about, file = read_json(folder / MODEL), folder / MODEL
    if about.get("format_version") != FORMAT_VERSION:
        raise ConfigError(
            f"{file}: format_version is {about.get('format_version')!r}; this version of "
            f"torch_lntm reads {FORMAT_VERSION}"
        )
    checksums = about.get("checksums") or {}  # versions before 0.3.0 wrote none
    data = read_checked(folder / TENSORS, checksums.get(TENSORS))
    what = "not a complete safetensors file"
    with read_errors(folder / TENSORS, what, (SafetensorError, KeyError)):
        tensors = safetensors.torch.load(data)
    model = remake_model(about, tensors, file, folder / TENSORS)
    if about.get("vocabulary"):
        with read_errors(file, "is damaged", _INVALID):
            words = folder / VOCABULARY, model.num_words, checksums.get(VOCABULARY)
            model.vocabulary = read_vocabulary(*words)
    return model


def remake_model(
    about: dict[str, Any], tensors: dict[str, Tensor], file: Path, tensor_file: Path
) -> TopicModel:
    """Make a model from its description and parameters, except for its vocabulary.

    Args:
        about: Name of the constructor, ``kind``; its arguments, ``config``; and ``topic_names``.
        tensors: The parameters, by the names of any version.
        file: File of the description, for messages.
        tensor_file: File of the parameters, for messages.

    Raises:
        FileError: The description or a parameter is invalid, or they contradict each other.
    """
    settings: Any = about.get("config")
    kind: Any = about.get("kind")
    tensors = {_RENAMED.get(name, name): x for name, x in tensors.items()}
    # Sizes out of proportion to the parameters are refused before memory is reserved.
    most = max(LEAST_PROBABILITIES, 64 * sum(tensor.numel() for tensor in tensors.values()))
    with read_errors(file, "is damaged", _INVALID):
        if not 0 < settings["num_topics"] * settings["num_words"] <= most:
            raise ValueError("the numbers of topics and words are impossible")
        model = find_constructor(kind)(**settings)
        model.topic_names = about.get("topic_names")  # files before 0.3.0 lack it
    with read_errors(tensor_file, f"contradicts {file.name}", _INVALID):
        dtypes = {name: x.dtype for name, x in model.state_dict().items()}
        for name, x in tensors.items():
            if x.dtype != dtypes.get(name, x.dtype) or not torch.isfinite(x).all():
                raise RuntimeError(f"{name} of {x.dtype} holds NaN or is no {dtypes.get(name)}")
        model.load_state_dict(tensors)
    return model


def write_model(folder: Path, model: TopicModel) -> None:
    """Write the files of a model into a folder. Call :func:`check_saveable` first."""
    assert model.construction is not None
    tensors = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    files = {TENSORS: safetensors.torch.save(tensors)}
    if model.vocabulary is not None:
        files[VOCABULARY] = as_lines(model.vocabulary, "word", VOCABULARY)
    about = {
        "format_version": FORMAT_VERSION,
        "kind": model.construction.name,
        "config": model.construction.to_json(),
        "vocabulary": model.vocabulary is not None,
        "topic_names": model.topic_names if model.has_topic_names else None,
        "checksums": {name: zlib.crc32(data) for name, data in files.items()},
    }
    files[MODEL] = as_json(about)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def check_target(path: Path, overwrite: bool) -> None:
    """Check that a folder may be written.

    Args:
        path: The folder.
        overwrite: Whether an existing model or run may be replaced.

    Raises:
        ConfigError: The path is a file or another kind of folder, or holds a model or run and
            ``overwrite`` is false.
    """
    check_folder(path, MODEL, "a run folder", overwrite)


def read_json(path: Path, kind: type = dict) -> Any:
    """Read a JSON object, or a value of another kind, from a file.

    Raises:
        ConfigError: The file is missing or damaged, or holds a value of another kind.
    """
    with read_errors(path, "not complete JSON", (ValueError, RecursionError)):
        value = json.loads(read_text(path))
    if not isinstance(value, kind):
        raise ConfigError(f"{path}: not a {kind.__name__} but a {type(value).__name__}")
    return value
