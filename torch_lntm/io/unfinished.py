"""Unfinished runs: a folder that a killed fit leaves and that the same fit continues from."""

from __future__ import annotations

import glob
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from torch_lntm.errors import ConfigError
from torch_lntm.files import as_json, atomic_write, make_folder, path_errors, shortened, try_lock
from torch_lntm.io.folders import CHECKPOINT, CONFIG, read_json

_LOCK = "lock"


def partial_folder(path: Path) -> Path:
    """The folder that a fit keeps while it runs, for the path where its run will be saved."""
    return path.with_name(f"{shortened(path.name)}.partial")


class UnfinishedRun:
    """The folder ``PATH.partial`` that a fit keeps while it runs, to be continued if it is killed.

    It holds the fit's configuration and its latest checkpoint. While this object is held, no
    other process gets the same folder.

    Args:
        path: Where the run will be saved.
        config: The configuration of the fit, JSON-able.

    Raises:
        ConfigError: A checkpoint of another configuration is there, or something else, or another
            process is at it.
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path = path
        self.folder = partial_folder(path)
        self.checkpoint = self.folder / CHECKPOINT
        with path_errors(self.folder):
            make_folder(self.folder)
            self._refuse_others()
            lock = _lock(self.folder / _LOCK)
        if lock is None:
            raise ConfigError(f"{self.folder}: another fit is writing there; wait for its end")
        self._lock = lock
        try:
            self._claim(json.loads(json.dumps(config)))
        except BaseException:
            self._lock.close()
            raise

    def _refuse_others(self) -> None:
        """Refuse a folder that holds something else, since it is removed in the end."""
        own = (CONFIG, CHECKPOINT, _LOCK)
        for path in self.folder.iterdir():
            if not any(path.name == name or path.name.startswith(f".{name}.") for name in own):
                raise ConfigError(
                    f"{self.folder}: holds {path.name}, which is no part of an unfinished fit; "
                    "choose another path"
                )

    def _claim(self, config: dict[str, Any]) -> None:
        if self.checkpoint.exists():
            found = read_json(self.folder / CONFIG)
            different = [
                f"{name} is {config.get(name)!r}, was {found.get(name)!r}"
                for name in sorted({*config, *found})
                if config.get(name) != found.get(name)
            ]
            if different:
                raise ConfigError(
                    f"{self.folder}: holds an unfinished fit of another configuration "
                    f"({'; '.join(different)}). Run it as it was to continue it, delete the "
                    "folder to start anew, or choose another path"
                )
        with path_errors(self.folder), atomic_write(self.folder / CONFIG) as file:
            file.write(as_json(config))

    @property
    def started(self) -> bool:
        """Whether there is a checkpoint to continue from."""
        return self.checkpoint.exists()

    @staticmethod
    def find(folder: Path, prefix: str, config: Mapping[str, Any]) -> Path | None:
        """Where the newest unfinished run of this very configuration would be saved.

        Args:
            folder: The folder of runs.
            prefix: What the run's name begins with.
            config: The configuration.

        Returns:
            The run's path, or None if there is none that can be continued.
        """
        wanted = json.loads(json.dumps(config))
        for partial in sorted(folder.glob(f"{glob.escape(prefix)}*.partial"), reverse=True):
            try:
                matches = read_json(partial / CONFIG) == wanted
            except ConfigError:
                continue
            if matches and (partial / CHECKPOINT).exists():
                lock = _lock(partial / _LOCK)
                if lock is not None:
                    lock.close()
                    return partial.with_suffix("")
        return None

    def discard(self) -> None:
        """Remove the folder, because the fit is finished."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()

    def __enter__(self) -> UnfinishedRun:
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave the folder for a later run to continue, if there is anything to continue."""
        if not self._lock.closed and not self.started:
            self.discard()
        self._lock.close()


def _lock(path: Path) -> IO[bytes] | None:
    """An open file, locked until it is closed or the process ends; None if another has it."""
    file = open(path, "ab")  # noqa: SIM115 - stays open, and with it the lock
    if try_lock(file.fileno()) is False:  # without locks, two fits of one name are up to the user
        file.close()
        return None
    return file
