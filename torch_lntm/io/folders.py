"""Folders that appear complete or not at all, and the files in them."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_lntm.errors import ConfigError, CorpusError, LNTMError
from torch_lntm.files import atomic_folder, atomic_write, read_text

#: The files of a model's folder and of a run's.
MODEL, TENSORS, VOCABULARY = "model.json", "model.safetensors", "vocabulary.txt"
CONFIG, METADATA, HISTORY = "config.json", "metadata.json", "history.jsonl"
SPLIT, EVALUATION, CHECKPOINT = "split.npz", "evaluation.json", "checkpoint.safetensors"

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def check_target(path: Path, overwrite: bool) -> None:
    """Check that a folder may be written here.

    Args:
        path: The folder.
        overwrite: Whether a model or run may be replaced.

    Raises:
        ConfigError: The path is a file or a folder of something else, or holds a model or run that
            may not be replaced.
    """
    if not path.name:
        raise ConfigError(f"{path}: is the present folder; name one to write")
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not path.is_dir() or not (path / MODEL).is_file():
        raise ConfigError(f"{path}: exists and is not a run folder; choose another path")
    if not overwrite:
        raise ConfigError(
            f"{path}: exists already; choose another path, or pass --overwrite (overwrite=True)"
        )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A context in which errors of the operating system name ``path`` and say what to do.

    Raises:
        ConfigError: Such an error happened.
    """
    try:
        yield
    except LNTMError:
        raise
    except OSError as error:
        full = error.errno in _FULL
        advice = "free some space there and run again" if full else "choose another path"
        reason = error.strerror or error
        raise ConfigError(f"{path}: cannot be written ({reason}); {advice}") from error


@contextlib.contextmanager
def new_folder(path: Path, overwrite: bool) -> Iterator[Path]:
    """A folder to fill, which takes its name only when it is complete."""
    check_target(path, overwrite)
    with writing(path), atomic_folder(path) as folder:
        yield folder


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, atomically."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    with atomic_write(path) as file:
        # A lone surrogate, as of a file name that is not UTF-8, becomes its JSON escape.
        file.write(text.encode("utf-8", "backslashreplace"))


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object of a file.

    Raises:
        ConfigError: The file is missing, damaged, or holds something else.
    """
    value = parse_json(path, read_json_text(path))
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def read_json_text(path: Path) -> str:
    """The text of a file.

    Raises:
        ConfigError: The file is missing or is not text.
    """
    try:
        return read_text(path)
    except CorpusError as error:
        raise ConfigError(str(error)) from error


def parse_json(path: Path, text: str) -> Any:
    """The value of a JSON text from a file.

    Raises:
        ConfigError: The text is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not complete JSON ({error})") from error
