"""A disk that loses unsynced writes, to list the possible contents of a folder after a crash."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_lntm.files import writing

#: A folder after a crash: pairs of a name, and a file's bytes or another folder.
Tree = tuple[tuple[str, Any], ...]

_STEPS = ("fsync", "mkdir", "remove", "rename", "replace", "rmdir", "unlink")


class ForgetfulDisk:
    """Recorder of a writer's steps, with the folders that a crash after each step can leave.

    After a crash a file has the content of its last sync, or everything that was written since. A
    folder has the names of its last sync, or the names of any later moment. Folders are independent
    of each other.

    Args:
        root: The folder to record. Its present content counts as synced.
        monkeypatch: The fixture of pytest. It replaces the system calls of the writer.
    """

    def __init__(self, root: Path, monkeypatch: Any) -> None:
        self.root = root
        self.left: list[set[Tree]] = []
        self._numbers: dict[int, int] = {}
        self._counter = itertools.count()
        self._names: dict[int, list[dict[str, int]]] = {}
        self._synced: dict[int, bytes] = {}
        self._content: dict[int, bytes] = {}
        self._look()
        self._names = {number: names[-1:] for number, names in self._names.items()}
        self._synced = dict(self._content)
        self._keep()
        for name in _STEPS:
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))
        monkeypatch.setattr(writing, "_exchange", self._watched("exchange", writing._exchange))

    @property
    def finally_left(self) -> set[Tree]:
        """Folders that a crash can leave after the last step."""
        return self.left[-1]

    @property
    def ever_left(self) -> set[Tree]:
        """Folders that a crash can leave after any step."""
        return set().union(*self.left)

    def _watched(self, name: str, real: Any) -> Any:
        def step(*arguments: Any, **options: Any) -> Any:
            self._look()  # files have appeared, and were written to, since the last step
            result = real(*arguments, **options)
            self._look()
            if name == "fsync":
                self._sync(arguments[0])
            self._keep()
            return result

        return step

    def _sync(self, descriptor: int) -> None:
        number = self._numbers.get(os.fstat(descriptor).st_ino)
        if number in self._names:
            self._names[number] = self._names[number][-1:]
        elif number is not None:
            self._synced[number] = self._content[number]

    def _look(self) -> None:
        """Record the present names and contents."""
        seen: set[int] = set()
        self._look_at(self.root, seen)
        # The system may give the number of a removed file to a later file.
        self._numbers = {inode: n for inode, n in self._numbers.items() if inode in seen}

    def _look_at(self, path: Path, seen: set[int]) -> int:
        status = path.stat()
        seen.add(status.st_ino)
        number = self._numbers.setdefault(status.st_ino, next(self._counter))
        if not stat.S_ISDIR(status.st_mode):
            self._content[number] = path.read_bytes()
            return number
        names = {name: self._look_at(path / name, seen) for name in sorted(os.listdir(path))}
        known = self._names.setdefault(number, [{}])
        if known[-1] != names:
            known.append(names)
        return number

    def _keep(self) -> None:
        root = self._numbers[self.root.stat().st_ino]
        left = {tree for content in ({}, self._content) for tree in self._trees(root, content)}
        self.left.append(left)

    def _trees(self, number: int, unsynced: dict[int, bytes]) -> Iterator[Tree]:
        for names in self._names[number]:
            choices = [
                list(self._trees(child, unsynced))
                if child in self._names
                else [unsynced.get(child, self._synced.get(child, b""))]
                for child in names.values()
            ]
            for chosen in itertools.product(*choices):
                yield tuple(zip(names, chosen, strict=True))


def make(tree: Tree, folder: Path) -> Path:
    """Write the content of a folder after a crash."""
    folder.mkdir()
    for name, content in tree:
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            make(content, folder / name)
    return folder
