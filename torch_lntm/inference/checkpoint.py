"""Checkpoints of a running fit: tensors and JSON in one safetensors file, nothing that executes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from torch_lntm.corpus.files import atomic_write
from torch_lntm.errors import ConfigError


def write_checkpoint(path: Path, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
    """Write tensors and a JSON-able record atomically."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_write(path) as file:
        file.write(safetensors.torch.save(contiguous, {"record": json.dumps(record)}))


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`write_checkpoint` wrote, onto the CPU.

    Raises:
        ConfigError: The file is damaged or not a checkpoint.
    """
    try:
        with safe_open(path, framework="pt") as file:
            record = json.loads((file.metadata() or {})["record"])
            return {name: file.get_tensor(name) for name in file.keys()}, record
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise ConfigError(
            f"{path}: not a complete checkpoint ({error}); delete it to start the fit anew"
        ) from error
