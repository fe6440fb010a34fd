"""Unfinished runs: the folder of a running or killed fit, to continue from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from torch_lntm.errors import ConfigError
from torch_lntm.files.writing import (
    as_json,
    atomic_write,
    make_folder,
    path_errors,
    shortened,
    try_lock,
)
from torch_lntm.io.models import read_json
from torch_lntm.io.runs import CONFIG

CHECKPOINT, _LOCK = "checkpoint.safetensors", "lock"


def partial_folder(path: Path) -> Path:
    """Folder of a running fit, for the final path of the run."""
    return path.with_name(f"{shortened(path.name)}.partial")


class UnfinishedRun:
    """Folder ``PATH.partial`` of a running fit, to continue from after a kill.

    The folder holds the configuration and the latest checkpoint. This object locks the folder
    against further processes.

    Args:
        path: Final path of the run.
        config: The configuration of the fit, JSON-able.

    Raises:
        ConfigError: The folder holds a checkpoint of another configuration or foreign files, or is
            locked by another process.
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path = path
        self.folder = partial_folder(path)
        self.checkpoint = self.folder / CHECKPOINT
        with path_errors(self.folder):
            make_folder(self.folder)
            # The folder is removed at the end, so it may hold nothing else. A fit of a corpus in
            # parts keeps rows of documents beside its checkpoint.
            own = (CONFIG, CHECKPOINT, _LOCK, f"{CHECKPOINT}.rows")
            for file in self.folder.iterdir():
                if not any(file.name == n or file.name.startswith(f".{n}.") for n in own):
                    raise ConfigError(
                        f"{self.folder}: holds {file.name}, which is no part of an unfinished fit; "
                        "choose another path"
                    )
            lock = _lock(self.folder / _LOCK)
        if lock is None:
            raise ConfigError(f"{self.folder}: another fit is writing there; wait for its end")
        self._lock = lock
        try:
            self._claim(json.loads(json.dumps(config)))
        except BaseException:
            self._lock.close()
            raise

    def _claim(self, config: dict[str, Any]) -> None:
        old = read_json(self.folder / CONFIG) if self.started else config
        pairs = {name: (config.get(name), old.get(name)) for name in sorted({*config, *old})}
        different = [f"{name} is {x!r}, was {y!r}" for name, (x, y) in pairs.items() if x != y]
        if different:
            raise ConfigError(
                f"{self.folder}: holds an unfinished fit of another configuration "
                f"({'; '.join(different)}). Use the old configuration to continue, delete the "
                "folder to start anew, or choose another path"
            )
        with path_errors(self.folder), atomic_write(self.folder / CONFIG) as file:
            file.write(as_json(config))

    @property
    def started(self) -> bool:
        """Whether the folder has a checkpoint."""
        return self.checkpoint.exists()

    def discard(self) -> None:
        """Remove the folder after the fit."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()

    def __enter__(self) -> UnfinishedRun:
        return self

    def __exit__(self, *exception: object) -> None:
        """Keep the folder for a later run if it has a checkpoint; remove it otherwise."""
        if not self._lock.closed and not self.started:
            self.discard()
        self._lock.close()


def _lock(path: Path) -> IO[bytes] | None:
    """Open and lock a file, until it is closed; ``None`` if another process has the lock."""
    file = open(path, "ab")  # noqa: SIM115 - the open file keeps the lock
    if try_lock(file.fileno()) is False:  # None (locks are unsupported) counts as success
        file.close()
        return None
    return file
