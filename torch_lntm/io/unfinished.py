"""Unfinished runs: the folder of a running or killed fit, to continue from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_lntm.errors import ConfigError
from torch_lntm.files import writing
from torch_lntm.io.models import read_json
from torch_lntm.io.runs import CONFIG

CHECKPOINT, _LOCK = "checkpoint.safetensors", "lock"


def partial_folder(path: Path) -> Path:
    """Folder of a running fit, for the final path of the run."""
    return path.with_name(f"{writing.shortened(path.name)}.partial")


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
        self.path, self.folder = path, partial_folder(path)
        self.checkpoint = self.folder / CHECKPOINT
        with writing.path_errors(self.folder):
            writing.make_folder(self.folder)
            # The folder is removed at the end, so it may hold nothing else.
            own = (CONFIG, CHECKPOINT, _LOCK)
            for file in self.folder.iterdir():
                if not file.name.removeprefix(".").startswith(own):
                    raise ConfigError(
                        f"{self.folder}: holds {file.name}, which is no part of an unfinished fit; "
                        "choose another path"
                    )
            self._lock = open(self.folder / _LOCK, "ab")  # noqa: SIM115 - it keeps the lock
        try:
            # None, where locks are unsupported, counts as success.
            if writing.try_lock(self._lock.fileno()) is False:
                raise ConfigError(f"{self.folder}: another fit is writing there; wait for its end")
            self._claim(json.loads(json.dumps(config)))
        except BaseException:
            self._lock.close()
            raise

    def _claim(self, config: dict[str, Any]) -> None:
        """Write the configuration, after a comparison with that of the checkpoint."""
        old = read_json(self.folder / CONFIG) if self.started else config
        names = [n for n in sorted({*config, *old}) if config.get(n) != old.get(n)]
        if names:
            different = "; ".join(f"{n} is {config.get(n)!r}, was {old.get(n)!r}" for n in names)
            raise ConfigError(
                f"{self.folder}: holds an unfinished fit of another configuration ({different}). "
                "Use the old configuration to continue, delete the folder to start anew, or choose "
                "another path"
            )
        with writing.atomic_write(self.folder / CONFIG) as file:
            file.write(writing.as_json(config))

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
