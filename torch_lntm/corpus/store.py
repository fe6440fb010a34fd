"""Corpora in folders. The counts are memory-mapped and may be larger than the memory.

A folder holds ``corpus.json`` (sizes and checksums) and the arrays ``row_offsets.npy``,
``word_index.npy`` and ``counts.npy`` of all documents in compressed sparse rows. Optional files are
``vocabulary.txt`` (a word per line), ``metadata.parquet`` and ``covariates.npz``. Folders of older
versions have ``documents.npz`` in place of the last two.

A folder in shards holds ``corpus.json`` (the manifest: sizes and checksums), ``vocabulary.txt`` and
the folders ``shard-00000``, ``shard-00001`` and so on. Each shard is a folder as above with some
neighbouring documents, and without the vocabulary.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from torch_lntm.corpus.archive import (
    from_parquet,
    is_bare,
    pack_covariates,
    read_json_columns,
    to_parquet,
    unpack_covariates,
)
from torch_lntm.corpus.checks import MAX_COUNT, check_vocabulary
from torch_lntm.corpus.mapped import (
    MappedRange,
    Rows,
    RowsWriter,
    chained,
    map_array,
    parts,
    pieces,
    release,
    set_checksum,
)
from torch_lntm.corpus.metadata import Arrays, FrozenDict, frozen, select_rows
from torch_lntm.corpus.part import Part, fingerprint_of
from torch_lntm.errors import CorpusError, FileError
from torch_lntm.files import (
    as_json,
    as_lines,
    atomic_folder,
    read_arrays,
    read_bytes,
    read_consistent,
    read_text,
)
from torch_lntm.frames import is_default

#: Versions of the format: a folder of arrays, and a folder of shards.
FORMAT_VERSION, SHARDS_VERSION = 3, 4
#: Versions whose metadata are JSON, and whose vocabulary and metadata have no checksums.
_OLD_VERSION, _OLD_SHARDS_VERSION = 1, 2
ABOUT, VOCABULARY = "corpus.json", "vocabulary.txt"
METADATA, COVARIATES, DOCUMENTS = "metadata.parquet", "covariates.npz", "documents.npz"
#: Types of the arrays of a folder without shards.
ARRAYS: dict[str, Any] = {"row_offsets": np.int64, "word_index": np.int32, "counts": np.int32}
_MAX_WORDS, _MAX_ENTRIES = 2**31, 2**62
#: Types of the items of every ``corpus.json``.
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("num_docs", "num_words", "num_entries"), int),
    "vocabulary": bool,
    "preparation": (str, type(None)),
}


class Store(NamedTuple):
    """Contents of a corpus's folder. The attributes are described at ``Documents``."""

    row_offsets: NDArray[np.int64]
    word_index: NDArray[np.integer]
    counts: NDArray[np.int32]
    num_words: int
    vocabulary: tuple[str, ...] | None = None
    table: pd.DataFrame = pd.DataFrame()
    covariates: Arrays = FrozenDict()
    preparation: str | None = None
    part: Part | None = None


def is_store(path: Path) -> bool:
    """Whether a folder holds a corpus."""
    return (path / ABOUT).is_file()


def num_shards(path: Path) -> int:
    """Number of shards of a corpus's folder. 0 for a folder without shards, and for other paths."""
    return len(read_about(path, None).get("shards", ())) if is_store(path) else 0


# -------------------------------------------------------------------- writing


class StoreWriter(RowsWriter):
    """Writes a corpus to a folder: the documents by ``add``, then everything else by ``close``.

    Args:
        folder: An existing folder.
        files: Files of the row offsets, the word indices and the counts.
    """

    def __init__(self, folder: Path, *files: IO[bytes]) -> None:
        super().__init__(*files)
        self.folder = folder

    def close(
        self,
        num_words: int,
        vocabulary: tuple[str, ...] | None = None,
        metadata: pd.DataFrame | None = None,
        covariates: Arrays | None = None,
        preparation: str | None = None,
    ) -> None:
        """Completes the folder: writes the vocabulary, the columns and ``corpus.json``.

        Args:
            num_words: Size of the vocabulary.
            vocabulary: The words.
            metadata: A row for each document.
            covariates: Numeric arrays with a row for each document.
            preparation: Sentence about the words left out.

        Raises:
            CorpusError: The corpus is empty or has too many words.
        """
        self.finish()
        arrays = dict(zip(ARRAYS, (self.offsets, self.words, self.counts), strict=True))
        checksums = {name: array.checksum for name, array in arrays.items()}
        if metadata is not None and not is_bare(metadata):
            checksums[METADATA] = _write(self.folder / METADATA, to_parquet(metadata))
        if covariates:
            packed: dict[str, Any] = pack_covariates(covariates)
            np.savez_compressed(self.folder / COVARIATES, **packed)
            checksums[COVARIATES] = zlib.crc32((self.folder / COVARIATES).read_bytes())
        sizes = (self.num_docs, num_words, self.nnz)
        _describe(self.folder, FORMAT_VERSION, sizes, vocabulary, preparation, checksums)


class ShardsWriter:
    """Writes a corpus to a folder in shards, each a complete folder of some documents.

    The methods are those of :class:`StoreWriter`.

    Args:
        folder: An existing folder.
        shard_size: Number of documents of each shard. The last shard may have fewer.
    """

    def __init__(self, folder: Path, shard_size: int) -> None:
        self.folder, self.shard_size = folder, shard_size
        self.num_docs = self.nnz = 0
        self._shards: list[StoreWriter] = []
        #: Open files of the current shard.
        self.files = ExitStack()

    def add(self, rows: Rows) -> None:
        """Appends documents."""
        offsets = np.concatenate([[0], np.cumsum(rows.sizes, dtype=np.int64)])
        first = 0
        while first < rows.sizes.size:
            room = -self.num_docs % self.shard_size
            if not room:
                self._begin()
                room = self.shard_size
            last = min(first + room, rows.sizes.size)
            entries = slice(int(offsets[first]), int(offsets[last]))
            part = (rows.sizes[first:last], rows.word_index[entries], rows.counts[entries])
            self._shards[-1].add(Rows(*part))
            self.num_docs += last - first
            self.nnz += entries.stop - entries.start
            first = last

    def _begin(self) -> None:
        """Completes the arrays of the current shard and begins the next shard."""
        self.finish()
        folder = self.folder / f"shard-{len(self._shards):05}"
        folder.mkdir()
        self._shards.append(StoreWriter(folder, *_open_arrays(folder, self.files)))

    def finish(self) -> None:
        """Completes and closes the files of the current shard."""
        if self._shards:
            self._shards[-1].finish()
        self.files.close()

    def close(
        self,
        num_words: int,
        vocabulary: tuple[str, ...] | None = None,
        metadata: pd.DataFrame | None = None,
        covariates: Arrays | None = None,
        preparation: str | None = None,
    ) -> None:
        """Completes the shards, and writes the vocabulary and the manifest ``corpus.json``.

        See :meth:`StoreWriter.close`.
        """
        self.finish()
        records, first = [], 0
        metadata = None if is_bare(metadata) else metadata
        for shard in self._shards:
            rows = slice(first, first + shard.num_docs)
            first = rows.stop
            own = None if metadata is None else metadata.iloc[rows]
            shard.close(num_words, None, own, select_rows(covariates or FrozenDict(), rows))
            about = {"folder": shard.folder.name, "num_docs": shard.num_docs}
            checksum = zlib.crc32((shard.folder / ABOUT).read_bytes())
            records.append({**about, "num_entries": shard.nnz, "crc32": checksum})
        sizes = (self.num_docs, num_words, self.nnz)
        _describe(self.folder, SHARDS_VERSION, sizes, vocabulary, preparation, {}, shards=records)


def _describe(
    folder: Path,
    version: int,
    sizes: tuple[int, int, int],
    vocabulary: tuple[str, ...] | None,
    preparation: str | None,
    checksums: dict[str, int],
    **more: Any,
) -> None:
    """Writes the vocabulary and ``corpus.json``.

    Args:
        folder: The folder.
        version: Version of the format.
        sizes: Numbers of documents, words and entries.
        vocabulary: The words.
        preparation: Sentence about the words left out.
        checksums: Checksums of the files.
        **more: Further items of ``corpus.json``.

    Raises:
        CorpusError: The corpus is empty or has too many words.
    """
    num_docs, num_words, num_entries = sizes
    if not num_docs or not 0 < num_words <= _MAX_WORDS:
        raise CorpusError(
            f"a corpus has at least one document, and from 1 to {_MAX_WORDS} words; got "
            f"{num_docs} documents and {num_words} words"
        )
    if vocabulary is not None:
        checksums[VOCABULARY] = _write(
            folder / VOCABULARY, as_lines(vocabulary, "word", VOCABULARY)
        )
    about = {
        "format_version": version,
        "num_docs": num_docs,
        "num_words": num_words,
        "num_entries": num_entries,
        "vocabulary": vocabulary is not None,
        "preparation": preparation,
        "crc32": checksums,
        **more,
    }
    (folder / ABOUT).write_bytes(as_json(about))


def _write(file: Path, content: bytes) -> int:
    """Writes a file, and returns its checksum."""
    file.write_bytes(content)
    return zlib.crc32(content)


@contextmanager
def new_store(path: Path, shard_size: int | None = None) -> Iterator[StoreWriter | ShardsWriter]:
    """Context with a writer of a corpus's folder.

    The complete folder appears at the end of the context and replaces an older corpus.

    Args:
        path: The folder.
        shard_size: Number of documents of each shard. ``None`` writes a folder without shards.

    Raises:
        CorpusError: The path is a file, or a folder with other contents, or ``shard_size`` is below
            1.
        FileError: The folder cannot be written.
    """
    if shard_size is not None and shard_size < 1:
        raise CorpusError(f"shard_size is {shard_size}; expected at least 1 document")
    if not path.name:
        raise CorpusError(f"{path}: is the current folder; name another folder to write")
    if path.exists() and not (path.is_dir() and (is_store(path) or not any(path.iterdir()))):
        raise CorpusError(f"{path}: exists and is not the folder of a corpus; choose another path")
    with atomic_folder(path) as folder, ExitStack() as files:
        if shard_size is not None:
            shards = ShardsWriter(folder, shard_size)
            files.enter_context(shards.files)
            yield shards
        else:
            yield StoreWriter(folder, *_open_arrays(folder, files))
        assert is_store(folder), "the writer was not closed"


def _open_arrays(folder: Path, files: ExitStack) -> list[IO[bytes]]:
    """New files of the arrays, which ``files`` closes."""
    return [files.enter_context((folder / f"{name}.npy").open("xb")) for name in ARRAYS]


# -------------------------------------------------------------------- reading


def read_store(
    path: Path, max_bytes: float | None = None, part: tuple[int, int] | None = None
) -> Store:
    """Reads a corpus's folder. The counts are checked and memory-mapped.

    Args:
        path: The folder.
        max_bytes: Maximum number of bytes of the vocabulary, the metadata and the covariates.
        part: Rank and number of the processes. Only the shards of this rank are opened. ``None``
            opens all.

    Raises:
        FileError: A file is missing, damaged, truncated or too large, or the files belong to
            different corpora.
        CorpusError: There are fewer shards than processes.
    """
    return read_consistent(path, lambda folder: _read(folder, max_bytes, part))


def _read(path: Path, max_bytes: float | None, part: tuple[int, int] | None) -> Store:
    about = read_about(path, max_bytes)
    if "shards" in about:
        return _read_shards(path, about, max_bytes, part)
    if part is not None:
        raise no_shards(path, part[1])
    return read_without_shards(path, about, max_bytes)


def no_shards(path: Path | str, world_size: int) -> CorpusError:
    """Error for a folder without shards that several processes shall read."""
    return CorpusError(
        f"{path}: has no shards for {world_size} processes; write the folder with shards by "
        "convert_corpus(..., shard_size=...), or leave out rank and world_size"
    )


def _read_shards(
    path: Path, about: dict[str, Any], max_bytes: float | None, part: tuple[int, int] | None
) -> Store:
    """Reads all shards of a folder, or those of a process."""
    shards, first, after = about["shards"], 0, len(about["shards"])
    if part is not None:
        first, after = deal_shards([shard["num_entries"] for shard in shards], *part)
    stores = []
    for shard in shards[first:after]:
        folder = path / shard["folder"]
        own = read_about_shard(folder, shard, max_bytes)
        if own["num_words"] != about["num_words"]:
            raise FileError(f"{folder}: is no shard of {path}; make the folder again")
        stores.append(read_without_shards(folder, own, max_bytes))
    words = read_words(path, about, max_bytes)
    place = None
    if part is not None:
        sizes = tuple(shard["num_docs"] for shard in shards)
        fingerprint = fingerprint_of(about["num_words"], words, shards)
        place = Part((first, after), sizes, fingerprint, path.absolute())
    ends = np.cumsum([store.row_offsets[-1] for store in stores])
    offsets = [
        store.row_offsets[1:] + ends[i - 1] if i else store.row_offsets
        for i, store in enumerate(stores)
    ]
    return Store(
        offsets[0] if len(offsets) == 1 else np.concatenate(offsets),
        chained([store.word_index for store in stores]),
        chained([store.counts for store in stores]),
        about["num_words"],
        words,
        *_joined(path, stores, place.first if place else 0),
        about["preparation"],
        place,
    )


def _joined(path: Path, stores: Sequence[Any], first: int) -> tuple[pd.DataFrame, Arrays]:
    """Metadata and covariates of several shards, one after the other.

    Args:
        path: The folder.
        stores: The metadata ``table`` and the ``covariates`` of each shard.
        first: Position of the first document of the shards in the corpus.

    Raises:
        FileError: The shards have different columns.
    """
    kinds = [
        (
            [*store.table.dtypes.items()],
            [(name, x.dtype, x.shape[1:]) for name, x in store.covariates.items()],
        )
        for store in stores
    ]
    if any(kind != kinds[0] for kind in kinds):
        raise FileError(f"{path}: the shards have different columns; make the folder again")
    table = pd.concat([store.table for store in stores])
    if not table.index.is_unique and all(is_default(store.table.index) for store in stores):
        table = table.set_axis(pd.RangeIndex(first, first + len(table)))  # of an older version
    arrays = [store.covariates for store in stores]
    joined = {name: np.concatenate([each[name] for each in arrays]) for name in arrays[0]}
    return table, frozen(joined)


def deal_shards(sizes: Sequence[int], rank: int, world_size: int) -> tuple[int, int]:
    """Neighbouring shards of a process. All processes have about the same number of entries.

    Args:
        sizes: ``(num_shards,)`` number of entries of each shard.
        rank: Rank of the process, from 0.
        world_size: Number of processes.

    Returns:
        The first shard of the process, and the shard after its last shard.

    Raises:
        CorpusError: The rank is out of range, or there are fewer shards than processes.
    """
    if not 0 <= rank < world_size:
        raise CorpusError(
            f"rank is {rank} of a world_size of {world_size}; expected a rank from 0 to below it"
        )
    if len(sizes) < world_size:
        raise CorpusError(
            f"{world_size} processes for {len(sizes)} shards; use at most {len(sizes)} processes, "
            "or convert the corpus again with a smaller shard_size"
        )
    before = np.concatenate([[0], np.cumsum(sizes, dtype=np.float64)])
    cuts = [0]
    for k in range(1, world_size):
        nearest = int(np.abs(before - before[-1] * k / world_size).argmin())
        # Every process has at least one shard.
        cuts.append(min(max(nearest, cuts[-1] + 1), len(sizes) - world_size + k))
    cuts.append(len(sizes))
    return cuts[rank], cuts[rank + 1]


def read_without_shards(path: Path, about: dict[str, Any], max_bytes: float | None) -> Store:
    """Reads and checks the arrays and columns of a folder without shards.

    Args:
        path: The folder.
        about: Contents of its ``corpus.json``.
        max_bytes: As for :func:`read_store`.

    Raises:
        FileError: A file is missing, damaged or too large.
    """
    arrays = {name: map_array(path / f"{name}.npy", dtype) for name, dtype in ARRAYS.items()}
    num_docs, num_words, nnz = (about[n] for n in ("num_docs", "num_words", "num_entries"))
    sizes = {"row_offsets": num_docs + 1, "word_index": nnz, "counts": nnz}
    for name, array in arrays.items():
        if array.size != sizes[name]:
            raise FileError(
                f"{path / name}.npy: holds {array.size} numbers, expected {sizes[name]} by "
                f"{ABOUT}; do the files belong together?"
            )
    _check_offsets(path, arrays["row_offsets"], num_words, nnz)
    _check_entries(path, arrays, num_words)
    for name, array in arrays.items():
        checksum = 0
        for piece in pieces(array):
            checksum = zlib.crc32(piece.data, checksum)
        if checksum != about["crc32"].get(name):
            raise _damaged(path / f"{name}.npy")
        set_checksum(array, path / f"{name}.npy", checksum)
    return Store(
        arrays["row_offsets"],
        arrays["word_index"],
        arrays["counts"],
        num_words,
        read_words(path, about, max_bytes),
        *read_own_columns(path, about, max_bytes),
        about["preparation"],
    )


class Columns(NamedTuple):
    """Metadata and covariates of documents."""

    table: pd.DataFrame
    covariates: Arrays


def read_words(
    path: Path, about: dict[str, Any], max_bytes: float | None
) -> tuple[str, ...] | None:
    """Vocabulary of a folder; ``None`` if it has none.

    Raises:
        FileError: The file is missing, damaged or too large.
    """
    if not about["vocabulary"]:
        return None
    checksum = None if is_old(about) else about["crc32"].get(VOCABULARY, -1)
    return read_vocabulary(path / VOCABULARY, about["num_words"], max_bytes, checksum)


def read_checked(path: Path, name: str, about: dict[str, Any], max_bytes: float | None) -> bytes:
    """Content of a file whose checksum is in ``corpus.json``, except in older versions.

    Raises:
        FileError: The file is missing, damaged or too large.
    """
    content = read_bytes(path / name, max_bytes)
    if zlib.crc32(content) != about["crc32"].get(name) and not is_old(about):
        raise _damaged(path / name)
    return content


def is_old(about: dict[str, Any]) -> bool:
    """Whether a ``corpus.json`` is of an older version of the format."""
    return about["format_version"] in (_OLD_VERSION, _OLD_SHARDS_VERSION)


def _damaged(file: Path) -> FileError:
    return FileError(
        f"{file}: is damaged, or of another corpus: its checksum is not the recorded one; make the "
        "folder again"
    )


def read_own_columns(path: Path, about: dict[str, Any], max_bytes: float | None) -> Columns:
    """Metadata and covariates of a folder without shards; see :func:`read_without_shards`."""
    num_docs = about["num_docs"]
    if about.get("documents"):
        file = path / DOCUMENTS
        packed = read_arrays(file, "documents", max_bytes=max_bytes)["documents"]
        return Columns(*read_json_columns(file, packed, num_docs, max_bytes))
    table, covariates = pd.DataFrame(index=pd.RangeIndex(num_docs)), Arrays()
    if METADATA in about["crc32"]:
        content = read_checked(path, METADATA, about, max_bytes)
        table = from_parquet(path / METADATA, content, num_docs)
    if COVARIATES in about["crc32"]:
        read_checked(path, COVARIATES, about, max_bytes)
        covariates = unpack_covariates(path / COVARIATES, num_docs, max_bytes)
    return Columns(table, covariates)


def read_columns(path: Path) -> Columns:
    """Metadata and covariates of all documents of a folder in shards, without their counts.

    Args:
        path: The folder.

    Raises:
        FileError: A file is missing or damaged, or belongs to another corpus.
    """
    shards = []
    for shard in read_about(path, None)["shards"]:
        folder = path / shard["folder"]
        shards.append(read_own_columns(folder, read_about_shard(folder, shard, None), None))
    return Columns(*_joined(path, shards, 0))


def read_about_shard(
    folder: Path, shard: dict[str, Any], max_bytes: float | None
) -> dict[str, Any]:
    """Contents of a shard's ``corpus.json``, checked against its record in the manifest.

    Args:
        folder: Folder of the shard.
        shard: Its record in the manifest.
        max_bytes: Maximum size of the file in bytes.

    Raises:
        FileError: The file is missing or damaged, or belongs to another corpus.
    """
    if zlib.crc32(read_bytes(folder / ABOUT, max_bytes)) != shard["crc32"]:
        raise FileError(
            f"{folder / ABOUT}: is damaged, or of another corpus: its checksum is not that of the "
            f"manifest, the {ABOUT} of the folder above; make the folder again"
        )
    own = read_about(folder, max_bytes)
    if "shards" in own:
        raise FileError(f"{folder}: is a folder of shards, and no shard; make the folder again")
    if any(own[name] != shard[name] for name in ("num_docs", "num_entries")):
        raise FileError(f"{folder}: has other sizes than in the manifest; make the folder again")
    return own


def map_ranges(parts: Any) -> Any:
    """Maps the ranges of a pickled array again. An array that is no range is returned as it is.

    Args:
        parts: A range, a list of ranges, or an array.

    Raises:
        FileError: A folder is missing, or holds another corpus by now.
    """
    if isinstance(parts, list):
        return chained([_map_range(part) for part in parts])
    return _map_range(parts) if isinstance(parts, MappedRange) else parts


def _map_range(part: MappedRange) -> NDArray[Any]:
    """Maps a range of an array of a corpus's folder again; see :func:`map_ranges`."""
    folder, name = part.path.parent, part.path.stem
    if not is_store(folder):
        raise FileError(
            f"{folder}: the folder of a pickled corpus is missing; a mapped corpus is pickled as "
            "its path and checksum, so every process needs the folder at this path"
        )
    array = map_array(part.path, part.dtype)
    checksum = read_about(folder, None).get("crc32", {}).get(name)
    first = (part.start - (part.path.stat().st_size - array.nbytes)) // array.itemsize
    if checksum != part.checksum or first < 0 or first + part.size > array.size:
        raise FileError(
            f"{folder}: has changed since the corpus was pickled; read the folder again by "
            "read_corpus"
        )
    set_checksum(array, part.path, part.checksum)
    return array[first : first + part.size]


def read_about(path: Path, max_bytes: float | None) -> dict[str, Any]:
    """Contents of a folder's ``corpus.json``, with checked types.

    Args:
        path: The folder.
        max_bytes: Maximum size of the file in bytes.

    Raises:
        FileError: The file is missing, damaged or too large.
    """
    file = path / ABOUT
    try:
        about = json.loads(read_text(file, max_bytes=max_bytes))
    except (ValueError, RecursionError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{file}: not complete JSON ({error}); make the folder again") from error
    version = about.get("format_version") if isinstance(about, dict) else None
    if not isinstance(about, dict) or version not in range(1, SHARDS_VERSION + 1):
        raise FileError(
            f"{file}: format_version is {version!r}; this version of torch_lntm reads 1 to "
            f"{SHARDS_VERSION}"
        )
    in_shards = version in (_OLD_SHARDS_VERSION, SHARDS_VERSION)
    special: dict[str, Any] = {"shards": list} if in_shards else {}
    special |= {} if version == _OLD_SHARDS_VERSION else {"crc32": dict}
    _check_kinds(file, about, _KINDS | special)
    if in_shards:
        _check_shards(file, about)
    if about["num_docs"] < 1 or not 0 < about["num_words"] <= _MAX_WORDS:
        raise FileError(
            f"{file}: expected at least one document, and from 1 to {_MAX_WORDS} words; got "
            f"{about['num_docs']} and {about['num_words']}"
        )
    return about


def _check_kinds(file: Path, about: Any, kinds: Mapping[str, Any]) -> None:
    """Checks the types of the items of a JSON object.

    Raises:
        FileError: The value is no object, or an item is missing or has another type.
    """
    for name, kind in kinds.items():
        value = about.get(name) if isinstance(about, dict) else about
        number = kind is int and (isinstance(value, bool) or not isinstance(value, int))
        if not isinstance(about, dict) or not isinstance(value, kind) or number:
            raise FileError(f"{file}: {name} is {value!r:.60}; make the folder again")
        if name not in about:
            raise FileError(f"{file}: {name} is missing; make the folder again")


def _check_shards(file: Path, about: dict[str, Any]) -> None:
    """Checks the records of the shards in a manifest.

    Raises:
        FileError: A record is damaged, or the sizes do not add up.
    """
    shards = about["shards"]
    kinds = {"folder": str, "num_docs": int, "num_entries": int, "crc32": int}
    for number, shard in enumerate(shards):
        _check_kinds(file, shard, kinds)
        # The names are fixed, so a manifest cannot point to other folders.
        named = shard["folder"] == f"shard-{number:05}"
        if not named or shard["num_docs"] < 1 or not 0 <= shard["num_entries"] < _MAX_ENTRIES:
            raise FileError(f"{file}: the shard {number} is {shard!r:.80}; make the folder again")
    for name in ("num_docs", "num_entries"):
        if sum(shard[name] for shard in shards) != about[name]:
            raise FileError(
                f"{file}: {name} is {about[name]}, and its shards have another sum; make the "
                "folder again"
            )


def _check_offsets(path: Path, offsets: NDArray[np.int64], num_words: int, nnz: int) -> None:
    file = path / "row_offsets.npy"
    if offsets[0] != 0 or offsets[-1] != nnz:
        raise FileError(
            f"{file}: expected offsets from 0 to the {nnz} entries, got {offsets[0]} to "
            f"{offsets[-1]}"
        )
    last = 0  # last offset of the previous piece
    for piece in pieces(offsets):
        sizes = np.diff(piece, prepend=last)
        bad = (piece < 0) | (piece > nnz) | (sizes < 0) | (sizes > num_words)
        if bad.any():
            d = int(np.flatnonzero(bad)[0]) - 1
            raise FileError(
                f"{file}: a document goes from entry {piece[d] if d >= 0 else last} to "
                f"{piece[d + 1]}; expected at most one entry for each of {num_words} words"
            )
        last = int(piece[-1])


def _check_entries(path: Path, arrays: dict[str, NDArray[Any]], num_words: int) -> None:
    """Checks that words are in range and ascend within a document, and that counts are positive."""
    offsets, words, counts = (arrays[name] for name in ARRAYS)
    for first, last in parts(offsets):
        start, stop = int(offsets[first]), int(offsets[last])
        columns, tokens = words[start:stop], counts[start:stop]
        rising = np.ones(columns.size, bool)
        rising[1:] = columns[1:] > columns[:-1]
        begins = np.asarray(offsets[first:last]) - start
        rising[begins[begins < columns.size]] = True
        for name, bad, expected in (
            ("word_index", (columns < 0) | (columns >= num_words), f"words below {num_words}"),
            ("word_index", ~rising, "ascending words in a document"),
            ("counts", tokens < 1, f"counts from 1 to {MAX_COUNT}"),
        ):
            if bad.any():
                i = start + int(np.flatnonzero(bad)[0])
                d = int(np.searchsorted(offsets, i, "right")) - 1
                raise FileError(
                    f"{path / name}.npy: expected {expected}, got {arrays[name][i]} in document "
                    f"{d}, entry {i}; make the folder again"
                )
        release(words, counts)


def read_vocabulary(
    path: Path, num_words: int, max_bytes: float | None = None, checksum: int | None = None
) -> tuple[str, ...] | None:
    """Reads a file with a word per line.

    Args:
        path: The file.
        num_words: Expected number of words.
        max_bytes: Maximum size of the file in bytes.
        checksum: Checksum of the file; ``None`` if unknown.

    Raises:
        FileError: The file is missing or damaged, or the words are no vocabulary of this size.
    """
    content = read_bytes(path, max_bytes)
    if checksum is not None and zlib.crc32(content) != checksum:
        raise _damaged(path)
    try:
        text = content.decode()
        if not text.endswith("\n"):
            raise CorpusError("ends within a line; is it truncated?")
        return check_vocabulary(text.removesuffix("\n").split("\n"), num_words)
    except ValueError as error:
        raise FileError(f"{path}: {error}") from error
