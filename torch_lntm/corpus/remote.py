"""Corpora in remote folders. Their files are fetched once to a cache, and are mapped there.

The cache has a folder for each address and manifest. Fetched files appear there after all checks,
so the cache has no half of a file.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch_lntm.corpus.store import (
    ABOUT,
    ARRAYS,
    VOCABULARY,
    column_files,
    deal_shards,
    no_shards,
    num_shards,
    read_about,
    read_about_shard,
    read_own_columns,
    read_without_shards,
    read_words,
)
from torch_lntm.errors import ConfigError, FileError, LNTMError, import_extra
from torch_lntm.files.reading import readable_bytes
from torch_lntm.files.writing import atomic_folder, make_folder, path_errors, shortened, try_lock
from torch_lntm.progress import tqdm

#: Kinds of addresses. Other file systems of fsspec may run code from the files they read.
PROTOCOLS = (
    *("http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl"),
    *("file", "memory"),
)
#: Maximum number of bytes of a manifest (some 120,000 shards), of the header of an array, and of a
#: word on average.
_ABOUT_BYTES, _HEADER_BYTES, _WORD_BYTES = 16 << 20, 128, 1 << 10
#: A server may be silent for this number of seconds, and then sends as many bytes a second.
_SILENCE, _LEAST_RATE = 60.0, 1000
#: Seconds between two attempts at a lock.
_PAUSE = 0.1


def is_remote(path: object) -> bool:
    """Whether a path is the address of a remote folder, such as ``https://host/folder``."""
    return isinstance(path, str) and "://" in path


def cache_folder() -> Path:
    """Folder of all fetched files.

    The environment variable ``LNTM_CACHE`` names the folder. It defaults to ``torch_lntm`` in
    ``XDG_CACHE_HOME`` or ``~/.cache``.
    """
    if named := os.environ.get("LNTM_CACHE"):
        return Path(named).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "torch_lntm")


def count_shards(path: str | Path) -> int:
    """Number of shards of a local or remote folder. 0 for a folder without shards and for files."""
    if is_remote(path):
        return len(_Remote(str(path)).about.get("shards", ()))
    return num_shards(Path(path))


def fetch_store(
    address: str, part: tuple[int, int] | None = None, max_bytes: float | None = None
) -> Path:
    """Fetches a corpus's remote folder, or the shards of a process.

    Args:
        address: Address of the folder.
        part: Rank and number of the processes. Only the shards of this rank are fetched. ``None``
            fetches all.
        max_bytes: Maximum number of bytes of the vocabulary, and of the columns of a shard.

    Returns:
        The folder in the cache, for ``read_store``.

    Raises:
        ConfigError: fsspec, or its package for this kind of address, is not installed, or the kind
            is not among :data:`PROTOCOLS`.
        FileError: A file is missing, damaged or too large, or the server stopped.
        CorpusError: There are fewer shards than processes.
    """
    remote = _Remote(address, max_bytes=max_bytes)
    folder = remote.place("corpus")
    if "shards" not in remote.about:
        if part is not None:
            raise no_shards(address, part[1])
        with _bar([] if folder.exists() else [remote.about]) as bar:
            _make_once(folder, lambda new: remote.fill(new, "", remote.about, bar))
        return folder
    shards = remote.about["shards"]
    if part is not None:
        first, after = deal_shards([shard["num_entries"] for shard in shards], *part)
        shards = shards[first:after]
    _make_once(folder, remote.fill_head)
    missing = [shard for shard in shards if not (folder / shard["folder"]).exists()]
    with _bar(missing) as bar:
        for shard in missing:
            _make_once(folder / shard["folder"], remote.shard_filler(shard, bar))
    return folder


def fetch_columns(address: str, folder: Path) -> Path:
    """Fetches the metadata and covariates of all shards of a remote folder, without their counts.

    Args:
        address: Address of the folder.
        folder: The folder of :func:`fetch_store`. Its manifest must still be the server's.

    Returns:
        A folder in the cache, for ``read_columns``.

    Raises:
        ConfigError: As for :func:`fetch_store`.
        FileError: As for :func:`fetch_store`.
    """
    remote = _Remote(address, (folder / ABOUT).read_bytes())
    columns = remote.place("columns")
    _make_once(columns, remote.write_manifest)
    shards = remote.about["shards"]
    missing = [shard for shard in shards if not (columns / shard["folder"]).exists()]
    for shard in tqdm(missing, desc="fetch columns", unit="shard", disable=not missing):
        _make_once(columns / shard["folder"], remote.shard_filler(shard, None))
    return columns


class _Remote:
    """A remote folder of a corpus.

    Args:
        address: Address of the folder.
        manifest: Contents of its ``corpus.json``. Defaults to the server's.
        max_bytes: As for :func:`fetch_store`.
    """

    def __init__(
        self, address: str, manifest: bytes | None = None, max_bytes: float | None = None
    ) -> None:
        self.address, self.max_bytes = address.rstrip("/"), max_bytes
        #: Maximum size of a file of columns.
        self.limit = readable_bytes() if max_bytes in (None, math.inf) else float(max_bytes)
        self.files, self.root = self._connect()
        with tempfile.TemporaryDirectory() as folder, self.named(Path(folder)):
            file = Path(folder, ABOUT)
            if manifest is None:
                self.fetch(ABOUT, file, _ABOUT_BYTES)
            else:
                file.write_bytes(manifest)
            self.about = read_about(Path(folder), _ABOUT_BYTES)
            self.manifest = file.read_bytes()

    def _connect(self) -> tuple[Any, str]:
        """The file system of the address, and the path of the folder there.

        Raises:
            ConfigError: The kind of address is unknown, or its package is not installed.
        """
        protocol = self.address.partition("://")[0]
        if protocol not in PROTOCOLS or "::" in self.address:
            raise ConfigError(
                f"{self.address}: this kind of address cannot be used; expected one of "
                f"{', '.join(PROTOCOLS)} before ://, without a chain of addresses by ::"
            )
        self.fsspec = import_extra("fsspec", "files", "a remote corpus")
        options: dict[str, Any] = {}
        if protocol in ("http", "https"):
            aiohttp = import_extra("aiohttp", "files", "an address of http")
            # By default a file may take 5 minutes, however large it is.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SILENCE, sock_read=_SILENCE)
            configured = self.fsspec.config.conf.get(protocol, {}).get("client_kwargs", {})
            # trust_env: the usual environment variables name a proxy.
            options["client_kwargs"] = {"timeout": timeout, "trust_env": True, **configured}
        try:
            files, root = self.fsspec.core.url_to_fs(self.address, **options)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"{self.address}: this kind of address cannot be used ({error}); install fsspec's "
                "package for it, such as s3fs for s3://, or copy the folder to this machine"
            ) from error
        except Exception as error:
            raise self._failed(self.address, error) from error
        return files, root.rstrip("/")

    def place(self, kind: str) -> Path:
        """Folder of this corpus in the cache, for the contents of this kind.

        The name of the folder above is a digest of the address and the manifest. A server cannot
        choose it.
        """
        key = f"{kind}\n{self.address}\n".encode() + self.manifest
        name = re.sub(r"[^\w.-]", "_", self.root.rpartition("/")[2]).lstrip(".")
        digest = hashlib.sha256(key).hexdigest()[:32]
        return cache_folder() / digest / (shortened(name) or "corpus")

    @contextmanager
    def named(self, folder: Path, below: str = "") -> Iterator[None]:
        """A context whose errors name the remote folder in place of a temporary folder."""
        try:
            yield
        except FileError as error:
            place = f"{self.address}/{below}".rstrip("/")
            raise FileError(str(error).replace(str(folder), place)) from error

    def fetch(self, name: str, target: Path, limit: float, bar: Any = None) -> None:
        """Fetches a file.

        Args:
            name: Its path in the folder.
            target: The file to write.
            limit: Maximum number of bytes.
            bar: Progress bar that counts the bytes.

        Raises:
            FileError: The file is missing or too large, or the server stopped.
        """
        place, done, start = f"{self.address}/{name}", 0, time.monotonic()

        def check(size: int | None, value: int, **_: Any) -> None:
            nonlocal done
            if value > limit:
                raise FileError(
                    f"{place}: holds more than {limit:.0f} bytes, the most that this file may have "
                    "here; check the address"
                )
            if time.monotonic() - start > _SILENCE + value / _LEAST_RATE:
                slow = TimeoutError(f"fewer than {_LEAST_RATE} bytes a second")
                raise self._failed(place, slow)
            if bar is not None:
                bar.update(value - done)
            done = value

        try:
            callback = self.fsspec.callbacks.Callback(hooks={"check": check})
            self.files.get_file(f"{self.root}/{name}", str(target), callback=callback)
        except LNTMError:
            raise
        except FileNotFoundError as error:
            raise FileError(
                f"{place}: no such file; give the address of a folder that was written by "
                "convert_corpus or Corpus.save"
            ) from error
        except Exception as error:
            raise self._failed(place, error) from error

    def _failed(self, place: str, error: Exception) -> FileError:
        return FileError(
            f"{place}: cannot be fetched ({type(error).__name__}: {error}); check the address, the "
            f"connection and the disk of {cache_folder()}, and run again. Complete shards are kept"
        )

    def write_manifest(self, folder: Path) -> None:
        """Writes the manifest to a folder."""
        (folder / ABOUT).write_bytes(self.manifest)

    def fill_head(self, folder: Path) -> None:
        """Writes the manifest, and fetches and checks the vocabulary."""
        self.write_manifest(folder)
        if self.about["vocabulary"]:
            num_words = self.about["num_words"]
            with self.named(folder):
                limit = min(self.limit, (1 << 20) + _WORD_BYTES * num_words)
                self.fetch(VOCABULARY, folder / VOCABULARY, limit)
                read_words(folder, self.about, self.max_bytes)

    def fill(self, folder: Path, below: str, about: dict[str, Any], bar: Any) -> None:
        """Fetches and checks a folder without shards; only its columns if there is no ``bar``."""
        if not below:
            self.fill_head(folder)
        with self.named(folder, below):
            for name in column_files(about):
                self.fetch(f"{below}{name}", folder / name, self.limit)
            if bar is None:
                read_own_columns(folder, about, self.max_bytes)
                return
            for name, size in _sizes(about).items():
                self.fetch(f"{below}{name}.npy", folder / f"{name}.npy", size, bar)
            read_without_shards(folder, about, self.max_bytes)

    def shard_filler(self, shard: dict[str, Any], bar: Any) -> Callable[[Path], None]:
        """Function that fetches and checks a shard; see :meth:`fill`."""

        def fill(folder: Path) -> None:
            below = f"{shard['folder']}/"
            with self.named(folder, below):
                self.fetch(f"{below}{ABOUT}", folder / ABOUT, _ABOUT_BYTES)
                own = read_about_shard(folder, shard, _ABOUT_BYTES)
            self.fill(folder, below, own, bar)

        return fill


def _bar(folders: Iterable[dict[str, Any]]) -> Any:
    """Progress bar for the bytes of the arrays of folders without shards, or of shards."""
    total = sum(sum(_sizes(about).values()) for about in folders)
    return tqdm(total=total, desc="fetch", unit="B", unit_scale=True, disable=not total)


def _sizes(about: dict[str, Any]) -> dict[str, int]:
    """Bytes of the files of the arrays of a folder without shards."""
    numbers = {"row_offsets": about["num_docs"] + 1}
    return {
        name: _HEADER_BYTES + numbers.get(name, about["num_entries"]) * dtype().itemsize
        for name, dtype in ARRAYS.items()
    }


def _make_once(target: Path, fill: Callable[[Path], None]) -> None:
    """Makes a folder, unless it exists. Other processes wait for a process that makes it.

    Args:
        target: The folder. It appears when it is complete.
        fill: Writes the files to a folder.
    """
    if target.exists():
        return
    with path_errors(target):
        make_folder(target.parent)
        with target.with_name(f"{target.name}.lock").open("wb") as file:
            while try_lock(file.fileno()) is False:
                time.sleep(_PAUSE)
            if not target.exists():
                with atomic_folder(target) as folder:
                    fill(folder)
