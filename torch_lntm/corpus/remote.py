"""Corpora in remote folders. Their files are fetched once to a cache, and are mapped there.

The cache has a folder for each address and manifest. A file appears there after a comparison with
its checksum, so the cache has neither halves of files nor damaged files.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from torch_lntm.corpus.store import (
    ABOUT,
    ARRAYS,
    damaged,
    deal_shards,
    is_store,
    read_manifest,
)
from torch_lntm.errors import ConfigError, FileError, import_extra
from torch_lntm.files.writing import atomic_write, shortened
from torch_lntm.progress import tqdm

#: Kinds of addresses. Other file systems of fsspec may run code from the files they read.
PROTOCOLS = (
    *("http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl"),
    *("file", "memory"),
)
#: Bytes of an ``.npy`` file before its numbers.
_HEADER = 128
#: A server may be silent for this number of seconds, and sends this number of bytes a second.
_SILENCE, _LEAST_RATE = 60.0, 1000
#: Bytes of a manifest, and of the vocabulary for each word.
_ABOUT_BYTES, _WORD_BYTES = 16 << 20, 1 << 10


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
    """Number of shards of a local or remote folder. 0 for other paths."""
    folder = Remote(str(path)).folder() if is_remote(path) else Path(path)
    return len(read_manifest(folder)["shards"]) if is_store(folder) else 0


def fetch_store(address: str, part: tuple[int, int] | None = None) -> Path:
    """Fetches a corpus's remote folder, or the shards of a process.

    Args:
        address: Address of the folder.
        part: Rank and number of the processes. Only the shards of this rank are fetched. ``None``
            fetches all.

    Returns:
        The folder in the cache, for ``read_store``.

    Raises:
        ConfigError: fsspec, or its package for this kind of address, is not installed, or the kind
            is not among :data:`PROTOCOLS`.
        FileError: A file is missing or damaged, or the server stopped.
        CorpusError: There are fewer shards than processes.
    """
    remote = Remote(address)
    folder = remote.folder()
    about = read_manifest(folder)
    first, after = deal_shards(about["shards"], part)
    head = {"folder": ".", "files": about["files"]}
    remote.fetch(folder, [head], limit=(1 << 20) + _WORD_BYTES * about["num_words"])
    remote.fetch(folder, about["shards"][first:after])
    return folder


def fetch_columns(address: str, folder: Path) -> None:
    """Fetches the metadata and covariates of all shards of a remote folder, without their counts.

    Args:
        address: Address of the folder.
        folder: The folder of :func:`fetch_store`. Its manifest must still be the server's.

    Raises:
        ConfigError: As for :func:`fetch_store`.
        FileError: As for :func:`fetch_store`.
    """
    Remote(address).fetch(folder, read_manifest(folder)["shards"], leave_out=[*ARRAYS])


class Remote:
    """A remote folder of a corpus.

    Args:
        address: Address of the folder.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        protocol, options = self.address.partition("://")[0], {}
        if protocol not in PROTOCOLS or "::" in self.address:
            raise ConfigError(
                f"{self.address}: this kind of address cannot be used; expected one of "
                f"{', '.join(PROTOCOLS)} before ://, without a chain of addresses by ::"
            )
        self.fsspec = fsspec = import_extra("fsspec", "files", "a remote corpus")
        if protocol in ("http", "https"):
            aiohttp = import_extra("aiohttp", "files", "an address of http")
            # By default a file may take 5 minutes, however large it is.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SILENCE, sock_read=_SILENCE)
            configured = fsspec.config.conf.get(protocol, {}).get("client_kwargs", {})
            # trust_env: the usual environment variables name a proxy.
            options["client_kwargs"] = {"timeout": timeout, "trust_env": True, **configured}
        try:
            self.files, root = fsspec.core.url_to_fs(self.address, **options)
        except Exception as error:  # packages of all kinds of addresses raise errors of their own
            raise ConfigError(
                f"{self.address}: this kind of address cannot be used ({error}); install fsspec's "
                "package for it, such as s3fs for s3://, or copy the folder to this machine"
            ) from error
        self.root = root.rstrip("/")

    def folder(self) -> Path:
        """The folder of this corpus in the cache, with the server's present manifest.

        The name of the folder above is a digest of the address and the manifest. A server cannot
        choose it.
        """
        with tempfile.TemporaryDirectory() as temporary:
            manifest = self._download(ABOUT, Path(temporary, ABOUT), _ABOUT_BYTES).read_bytes()
        digest = hashlib.sha256(f"{self.address}\n".encode() + manifest).hexdigest()[:32]
        name = re.sub(r"[^\w.-]", "_", self.root.rpartition("/")[2]).lstrip(".")
        folder = cache_folder() / digest / (shortened(name) or "corpus")
        with atomic_write(folder / ABOUT) as file:
            file.write(manifest)
        return folder

    def fetch(
        self,
        folder: Path,
        shards: Sequence[dict[str, Any]],
        leave_out: Sequence[str] = (),
        limit: float = math.inf,
    ) -> None:
        """Fetches the files of shards that are missing in the cache.

        Args:
            folder: The folder in the cache.
            shards: Records of the shards.
            leave_out: Names of files to leave out.
            limit: Maximum number of bytes of a file.

        Raises:
            FileError: A file is missing, damaged or too large, or the server stopped.
        """
        missing = {
            str(PurePosixPath(shard["folder"], name)): checksum
            for shard in shards
            for name, checksum in shard["files"].items()
            if name not in leave_out and not (folder / shard["folder"] / name).exists()
        }
        for name in tqdm(missing, "fetch", unit="file", disable=not missing):
            with atomic_write(folder / name) as file:
                new = self._download(name, Path(file.name), limit)
                if missing[name] not in (None, _checksum(new, name)):
                    raise damaged(f"{self.address}/{name}")

    def _download(self, name: str, target: Path, limit: float) -> Path:
        """Fetches a file of at most ``limit`` bytes to a path."""
        start = time.monotonic()

        def check(size: int | None, done: int, **_: Any) -> None:
            if done > limit:
                raise OSError(f"more than {limit} bytes")
            if time.monotonic() - start > _SILENCE + done / _LEAST_RATE:
                raise OSError(f"fewer than {_LEAST_RATE} bytes a second")

        try:
            callback = self.fsspec.callbacks.Callback(hooks={"check": check})
            self.files.get_file(f"{self.root}/{name}", str(target), callback=callback)
        except Exception as error:
            raise FileError(
                f"{self.address}/{name}: cannot be fetched ({type(error).__name__}: {error}); "
                "check the address of the folder, the connection and the disk, and run again"
            ) from error
        return target


def _checksum(path: Path, name: str) -> int:
    """CRC-32 of a file, or of the numbers of an array."""
    checksum = 0
    with path.open("rb") as file:
        file.seek(_HEADER if name.endswith(".npy") else 0)
        while piece := file.read(1 << 20):
            checksum = zlib.crc32(piece, checksum)
    return checksum
