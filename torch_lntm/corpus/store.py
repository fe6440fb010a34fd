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
from typing import Any, NamedTuple

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
from torch_lntm.corpus.checks import check_vocabulary
from torch_lntm.corpus.mapped import (
    Rows,
    RowsWriter,
    chained,
    checksum_of,
    map_array,
    parts,
    release,
)
from torch_lntm.corpus.metadata import Arrays, frozen, select_rows
from torch_lntm.corpus.part import Part, fingerprint_of
from torch_lntm.errors import CorpusError, FileError
from torch_lntm.files.arrays import read_arrays
from torch_lntm.files.reading import read_bytes, read_consistent
from torch_lntm.files.writing import as_json, as_lines, atomic_folder
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
#: Types of the items of every ``corpus.json``, and of the record of a shard in it.
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("format_version", "num_docs", "num_words", "num_entries"), int),
    "vocabulary": bool,
    "preparation": (str, type(None)),
}
_SHARD_KINDS = {"folder": str, "num_docs": int, "num_entries": int, "crc32": int}


class Columns(NamedTuple):
    """Metadata and covariates of documents. The attributes are described at ``Documents``."""

    table: pd.DataFrame
    covariates: Arrays


class Store(NamedTuple):
    """Contents of a corpus's folder. The attributes are described at ``Documents``."""

    row_offsets: NDArray[np.int64]
    word_index: NDArray[np.integer]
    counts: NDArray[np.int32]
    num_words: int
    vocabulary: tuple[str, ...] | None
    table: pd.DataFrame
    covariates: Arrays
    preparation: str | None = None
    part: Part | None = None


def is_store(path: Path) -> bool:
    """Whether a folder holds a corpus."""
    return (path / ABOUT).is_file()


def num_shards(path: Path) -> int:
    """Number of shards of a corpus's folder. 0 for a folder without shards, and for other paths."""
    return len(read_about(path, None).get("shards", ())) if is_store(path) else 0


# -------------------------------------------------------------------- writing


class StoreWriter:
    """Writes a corpus to a folder: the documents by ``add``, then everything else by ``close``.

    Args:
        folder: An existing folder.
        files: The writer's open files.
        shard_size: Number of documents of each shard. The last shard may have fewer. ``None``
            writes a folder without shards.
    """

    def __init__(self, folder: Path, files: ExitStack, shard_size: int | None) -> None:
        self.folder, self.files, self.shard_size = folder, files, shard_size
        self.num_docs = self.nnz = 0
        self._shards: list[RowsWriter] = []
        if shard_size is None:
            self._begin(folder)

    def _place(self, number: int) -> Path:
        return self.folder if self.shard_size is None else self.folder / f"shard-{number:05}"

    def _begin(self, folder: Path) -> None:
        self._finish()
        folder.mkdir(exist_ok=True)
        opened = [(folder / f"{name}.npy").open("xb") for name in ARRAYS]
        self._shards.append(RowsWriter(*map(self.files.enter_context, opened)))

    def _finish(self) -> None:
        if self._shards:
            self._shards[-1].finish()
        self.files.close()

    def add(self, rows: Rows) -> None:
        """Appends documents."""
        offsets = np.concatenate([[0], np.cumsum(rows.sizes, dtype=np.int64)])
        first, num_docs = 0, rows.sizes.size
        while first < num_docs:
            room = num_docs if self.shard_size is None else -self.num_docs % self.shard_size
            if not room and self.shard_size is not None:
                self._begin(self._place(len(self._shards)))
                room = self.shard_size
            last = min(first + room, num_docs)
            entries = slice(int(offsets[first]), int(offsets[last]))
            part = (rows.sizes[first:last], rows.word_index[entries], rows.counts[entries])
            self._shards[-1].add(Rows(*part))
            self.num_docs += last - first
            self.nnz += entries.stop - entries.start
            first = last

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
        self._finish()
        if not self.num_docs or not 0 < num_words <= _MAX_WORDS:
            raise CorpusError(
                f"a corpus has at least one document, and from 1 to {_MAX_WORDS} words; got "
                f"{self.num_docs} documents and {num_words} words"
            )
        about: dict[str, Any] = {
            "format_version": SHARDS_VERSION,
            "num_docs": self.num_docs,
            "num_words": num_words,
            "num_entries": self.nnz,
            "vocabulary": vocabulary is not None,
            "preparation": preparation,
            "crc32": {},
        }
        metadata = None if is_bare(metadata) else metadata
        shards, first = [], 0
        for number, shard in enumerate(self._shards):
            rows, folder = slice(first, first + shard.num_docs), self._place(number)
            first = rows.stop
            own = {"num_docs": shard.num_docs, "num_entries": shard.nnz}
            plain = {"format_version": FORMAT_VERSION, "vocabulary": False, "preparation": None}
            checksums = {
                name: array.checksum
                for name, array in zip(
                    ARRAYS, (shard.offsets, shard.words, shard.counts), strict=True
                )
            }
            table = None if metadata is None else metadata.iloc[rows]
            checksums |= _write_columns(folder, table, select_rows(covariates or Arrays(), rows))
            if self.shard_size is None:
                about |= {"format_version": FORMAT_VERSION, "crc32": checksums}
                break
            content = as_json(about | plain | own | {"crc32": checksums})
            record = {"folder": folder.name, **own, "crc32": _write(folder / ABOUT, content)}
            shards.append(record)
        if vocabulary is not None:
            content = as_lines(vocabulary, "word", VOCABULARY)
            about["crc32"] |= {VOCABULARY: _write(self.folder / VOCABULARY, content)}
        more = {} if self.shard_size is None else {"shards": shards}
        _write(self.folder / ABOUT, as_json(about | more))


def _write_columns(
    folder: Path, metadata: pd.DataFrame | None, covariates: Arrays
) -> dict[str, int]:
    """Writes the metadata and the covariates, if any. Returns the checksums by name."""
    checksums = {}
    if metadata is not None:
        checksums[METADATA] = _write(folder / METADATA, to_parquet(metadata))
    if covariates:
        packed: dict[str, Any] = pack_covariates(covariates)
        np.savez_compressed(folder / COVARIATES, **packed)
        checksums[COVARIATES] = zlib.crc32((folder / COVARIATES).read_bytes())
    return checksums


def _write(file: Path, content: bytes) -> int:
    """Writes a file, and returns its checksum."""
    file.write_bytes(content)
    return zlib.crc32(content)


@contextmanager
def new_store(path: Path, shard_size: int | None = None) -> Iterator[StoreWriter]:
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
        yield StoreWriter(folder, files, shard_size)
        assert is_store(folder), "the writer was not closed"


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


def _joined(path: Path, stores: Sequence[Store | Columns], first: int) -> Columns:
    """Metadata and covariates of several shards, one after the other.

    Args:
        path: The folder.
        stores: The shards.
        first: Position of the first document of the shards in the corpus.

    Raises:
        FileError: The shards have different columns.
    """
    tables, arrays = [store.table for store in stores], [store.covariates for store in stores]
    kinds = [
        ([*table.dtypes.items()], [(name, x.dtype, x.shape[1:]) for name, x in each.items()])
        for table, each in zip(tables, arrays, strict=True)
    ]
    if any(kind != kinds[0] for kind in kinds):
        raise FileError(f"{path}: the shards have different columns; make the folder again")
    table = pd.concat(tables)
    # No names, or of an older version, whose ids may repeat.
    if all(is_default(each.index) for each in tables) or not table.index.is_unique:
        table = table.set_axis(pd.RangeIndex(first, first + len(table)))
    joined = {name: np.concatenate([each[name] for each in arrays]) for name in arrays[0]}
    return Columns(table, frozen(joined))


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
    for name, size in (("row_offsets", num_docs + 1), ("word_index", nnz), ("counts", nnz)):
        if arrays[name].size != size:
            raise FileError(
                f"{path / name}.npy: holds {arrays[name].size} numbers, expected {size} by "
                f"{ABOUT}; do the files belong together?"
            )
        if checksum_of(arrays[name]) != about["crc32"].get(name):
            raise _damaged(path / f"{name}.npy")
    _check_entries(path, arrays, num_words)
    return Store(
        arrays["row_offsets"],
        arrays["word_index"],
        arrays["counts"],
        num_words,
        read_words(path, about, max_bytes),
        *read_own_columns(path, about, max_bytes),
        about["preparation"],
    )


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


def is_old(about: dict[str, Any]) -> bool:
    """Whether a ``corpus.json`` is of an older version of the format."""
    return about["format_version"] in (_OLD_VERSION, _OLD_SHARDS_VERSION)


def _damaged(file: Path) -> FileError:
    return FileError(
        f"{file}: is damaged, or of another corpus: its checksum is not the recorded one; make the "
        "folder again"
    )


def column_files(about: dict[str, Any]) -> list[str]:
    """Names of the files of the metadata and covariates of a folder without shards."""
    if is_old(about):
        return [DOCUMENTS] if about.get("documents") else []
    return [name for name in (METADATA, COVARIATES) if name in about["crc32"]]


def read_own_columns(path: Path, about: dict[str, Any], max_bytes: float | None) -> Columns:
    """Metadata and covariates of a folder without shards; see :func:`read_without_shards`."""
    num_docs = about["num_docs"]
    table, covariates = pd.DataFrame(index=pd.RangeIndex(num_docs)), Arrays()
    for name in column_files(about):
        content = read_bytes(path / name, max_bytes)
        if name != DOCUMENTS and zlib.crc32(content) != about["crc32"][name]:
            raise _damaged(path / name)
        if name == METADATA:
            table = from_parquet(path / name, content, num_docs)
        elif name == COVARIATES:
            covariates = unpack_covariates(path / name, num_docs, max_bytes)
        else:
            packed = read_arrays(path / name, "documents", max_bytes=max_bytes)["documents"]
            return Columns(*read_json_columns(path / name, packed, num_docs, max_bytes))
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
    return _joined(path, shards, 0)


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
        raise _damaged(folder / ABOUT)
    own = read_about(folder, max_bytes)
    if "shards" in own or any(own[name] != shard[name] for name in ("num_docs", "num_entries")):
        raise FileError(f"{folder}: is not the shard of the manifest; make the folder again")
    return own


def read_about(path: Path, max_bytes: float | None) -> dict[str, Any]:
    """Contents of a folder's ``corpus.json``, with checked types and sizes.

    Args:
        path: The folder.
        max_bytes: Maximum size of the file in bytes.

    Raises:
        FileError: The file is missing, damaged or too large.
    """
    file = path / ABOUT
    try:
        about = json.loads(read_bytes(file, max_bytes))
        _check_kinds(about, _KINDS)
        version, shards = about["format_version"], about.get("shards", ())
        in_shards = version in (_OLD_SHARDS_VERSION, SHARDS_VERSION)
        if version not in range(1, SHARDS_VERSION + 1):
            raise ValueError(
                f"format_version is {version!r}; this version of torch_lntm reads 1 to "
                f"{SHARDS_VERSION}"
            )
        if version != _OLD_SHARDS_VERSION:
            _check_kinds(about, {"crc32": dict})
        if in_shards:
            _check_kinds(about, {"shards": list})
        elif "shards" in about:
            raise ValueError("shards are of another version")
        for number, shard in enumerate(shards):
            _check_kinds(shard, _SHARD_KINDS)
            # The names are fixed, so a manifest cannot point to other folders.
            in_bounds = shard["num_docs"] >= 1 and 0 <= shard["num_entries"] < _MAX_ENTRIES
            if shard["folder"] != f"shard-{number:05}" or not in_bounds:
                raise ValueError(f"the shard {number} is {shard!r:.80}")
        for name in ("num_docs", "num_entries") if in_shards else ():
            if sum(shard[name] for shard in shards) != about[name]:
                raise ValueError(f"{name} is {about[name]}, and its shards have another sum")
        if about["num_docs"] < 1 or not 0 < about["num_words"] <= _MAX_WORDS:
            raise ValueError(
                f"expected at least one document, and from 1 to {_MAX_WORDS} words; got "
                f"{about['num_docs']} and {about['num_words']}"
            )
    except FileError:
        raise
    except (ValueError, RecursionError) as error:
        raise FileError(f"{file}: {error}; make the folder again") from error
    return dict(about)


def _check_kinds(about: Any, kinds: Mapping[str, Any]) -> None:
    """Raises ValueError if a JSON value is no object, or an item lacks or has another type."""
    for name, kind in kinds.items():
        value = about.get(name) if isinstance(about, dict) else about
        missing = not isinstance(about, dict) or name not in about
        if missing or not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ValueError(f"{name} is {value!r:.60}")


def _check_entries(path: Path, arrays: dict[str, NDArray[Any]], num_words: int) -> None:
    """Checks that offsets ascend, that words ascend within a document, and the counts."""
    offsets, words, counts = (arrays[name] for name in ARRAYS)
    sizes = np.diff(offsets)
    if offsets[0] or offsets[-1] != words.size or (sizes < 0).any() or (sizes > num_words).any():
        raise FileError(
            f"{path / 'row_offsets.npy'}: expected ascending offsets from 0 to the {words.size} "
            f"entries, at most one for each of {num_words} words in a document; make the folder "
            "again"
        )
    for first, last in parts(offsets):
        start, stop = int(offsets[first]), int(offsets[last])
        columns = words[start:stop]
        rising = np.ones(columns.size, bool)
        rising[1:] = columns[1:] > columns[:-1]
        begins = np.asarray(offsets[first:last]) - start
        rising[begins[begins < columns.size]] = True
        bad = (columns < 0) | (columns >= num_words) | ~rising | (counts[start:stop] < 1)
        if bad.any():
            i = start + int(np.flatnonzero(bad)[0])
            raise FileError(
                f"{path}: entry {i} is word {words[i]} with count {counts[i]}; expected ascending "
                f"words below {num_words} in a document, and positive counts; make the folder again"
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
        if not content.endswith(b"\n"):
            raise CorpusError("ends within a line; is it truncated?")
        lines = content.count(b"\n")  # counted before lines take ten times the memory
        if lines != num_words:
            raise CorpusError(
                f"the vocabulary must have one word for each of the {num_words} columns, got "
                f"{lines}"
            )
        return check_vocabulary(content.decode()[:-1].split("\n"), num_words)
    except ValueError as error:
        raise FileError(f"{path}: {error}") from error
