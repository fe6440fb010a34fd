"""Names of the files of models and runs, and checks of folders to write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch_lntm.errors import ConfigError
from torch_lntm.files.reading import read_text
from torch_lntm.files.writing import resolve_link

#: Files of a model's folder and of a run's folder.
MODEL, TENSORS, VOCABULARY = "model.json", "model.safetensors", "vocabulary.txt"
CONFIG, METADATA, HISTORY = "config.json", "metadata.json", "history.jsonl"
SPLIT, EVALUATION, CHECKPOINT = "split.npz", "evaluation.json", "checkpoint.safetensors"
CHAINS, CARD, NAMES = "chains.safetensors", "README.md", "names.json"


def check_target(path: Path, overwrite: bool) -> None:
    """Check that a folder may be written.

    Args:
        path: The folder.
        overwrite: Whether an existing model or run may be replaced.

    Raises:
        ConfigError: The path is a file or another kind of folder, or holds a model or run and
            ``overwrite`` is false.
    """
    if not path.name:
        raise ConfigError(f"{path}: is the current folder; name another folder to write")
    resolve_link(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not path.is_dir() or not (path / MODEL).is_file():
        raise ConfigError(f"{path}: exists and is not a run folder; choose another path")
    if not overwrite:
        raise ConfigError(
            f"{path}: exists already; choose another path, or pass --overwrite (overwrite=True)"
        )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
        ConfigError: The file is missing or damaged, or holds another value.
    """
    value = parse_json(path, read_text(path))
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def parse_json(path: Path, text: str) -> Any:
    """Parse a JSON text from a file.

    Raises:
        ConfigError: The text is invalid.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not complete JSON ({error})") from error
