"""Corpora in folders, whose counts are mapped into memory.

Each folder has a manifest, ``corpus.json``, with sizes and checksums. Beside it may lie
``vocabulary.txt``, with a word per line, and there are one or more shards: ``shard-00000``,
``shard-00001`` and so on. A shard holds a run of consecutive documents. Their counts are in
compressed sparse rows, namely the arrays ``row_offsets.npy``, ``word_index.npy`` and
``counts.npy``, with ``metadata.parquet`` and ``covariates.npz`` where the corpus has them. Most
folders need only one shard; with several, each process can read just its own.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray

from torch_lntm.corpus.archive import from_parquet, pack_covariates, read_covariates, to_parquet
from torch_lntm.corpus.checks import check_vocabulary
from torch_lntm.corpus.mapped import chained, checksum_of, parts, pieces, release
from torch_lntm.corpus.metadata import Arrays, frozen, select_rows
from torch_lntm.corpus.part import Part
from torch_lntm.corpus.texts import options_of_file, saved_options
from torch_lntm.errors import CorpusError, FileError, require_whole
from torch_lntm.files.reading import read_bytes, read_consistent, read_errors
from torch_lntm.files.writing import as_json, as_lines, atomic_folder, check_folder
from torch_lntm.frames import is_default

#: Version of the format.
FORMAT_VERSION = 5
ABOUT, VOCABULARY = "corpus.json", "vocabulary.txt"
METADATA, COVARIATES = "metadata.parquet", "covariates.npz"
#: Types of the arrays of a shard.
ARRAYS: dict[str, Any] = {
    "row_offsets.npy": np.int64,
    "word_index.npy": np.int32,
    "counts.npy": np.int32,
}
_MAX_WORDS = 2**31


def is_store(path: Path) -> bool:
    """Whether a folder holds a corpus."""
    return (path / ABOUT).is_file()


def count_shards(path: str | Path) -> int:
    """Number of shards of a corpus's folder. 0 for other paths."""
    return len(read_manifest(Path(path))["shards"]) if is_store(Path(path)) else 0


# -------------------------------------------------------------------- writing


def check_target(path: Path, overwrite: bool) -> None:
    """Checks that a corpus may be written to a folder.

    Raises:
        CorpusError: The path has a suffix, is a file, is a folder with other contents, or holds a
            corpus that may not be replaced.
    """
    if path.suffix:
        raise CorpusError(f"{path}: a corpus is saved in a folder; name one without a suffix")
    check_folder(path, ABOUT, "the folder of a corpus", overwrite)


def write_store(path: Path, corpus: Any, shard_size: int | None = None) -> None:
    """Writes a corpus to a folder, which appears when complete and replaces an older corpus.

    Args:
        path: The folder.
        corpus: The corpus, of the class ``Corpus``, whose module imports this one.
        shard_size: Number of documents of each shard. The last shard may have fewer. Defaults to a
            single shard.

    Raises:
        CorpusError: As for :func:`check_target`.
        ConfigError: ``shard_size`` is no whole number from 1.
        FileError: The folder cannot be written.
    """
    require_whole(1, shard_size=shard_size)
    check_target(path, overwrite=True)
    files, size = {}, shard_size or corpus.num_docs
    with atomic_folder(path) as folder:
        starts = range(0, corpus.num_docs, size)
        shards = [_write_shard(folder / _name(i), corpus, d, size) for i, d in enumerate(starts)]
        if corpus.vocabulary is not None:
            words = as_lines(corpus.vocabulary, "word", VOCABULARY)
            files[VOCABULARY] = _write(folder / VOCABULARY, words)
        about = {
            "format_version": FORMAT_VERSION,
            "num_docs": corpus.num_docs,
            "num_words": corpus.num_words,
            "preparation": corpus.preparation,
            "counting": saved_options(corpus.counting),
            "files": files,
            "shards": shards,
        }
        _write(folder / ABOUT, as_json(about))


def _write_shard(folder: Path, corpus: Any, first: int, size: int) -> dict[str, Any]:
    """Writes up to ``size`` documents from the first, and returns the record of the shard."""
    folder.mkdir()
    rows = slice(first, first + size)
    offsets = corpus.row_offsets[first : first + size + 1]
    entries = slice(int(offsets[0]), int(offsets[-1]))
    numbers = (offsets - offsets[0], corpus.word_index[entries], corpus.counts[entries])
    files = {}
    for (name, dtype), array in zip(ARRAYS.items(), numbers, strict=True):
        with (folder / name).open("wb") as file:
            header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (array.size,)}
            np.lib.format.write_array_header_1_0(file, header)
            files[name] = 0
            for piece in pieces(array):
                data = np.ascontiguousarray(piece, dtype).data
                file.write(data)
                files[name] = zlib.crc32(data, files[name])
    table = to_parquet(corpus.table.iloc[rows])
    if table is not None:
        files[METADATA] = _write(folder / METADATA, table)
    if corpus.covariates:
        packed = pack_covariates(select_rows(corpus.covariates, rows))
        np.savez_compressed(folder / COVARIATES, **packed)
        files[COVARIATES] = zlib.crc32((folder / COVARIATES).read_bytes())
    num_docs, num_entries = offsets.size - 1, entries.stop - entries.start
    return {"num_docs": num_docs, "num_entries": num_entries, "files": files}


def _name(number: int) -> str:
    """Name of a shard's folder, which is fixed so that a manifest cannot point elsewhere."""
    return f"shard-{number:05}"


def _write(file: Path, content: bytes) -> int:
    """Writes a file, and returns its checksum."""
    file.write_bytes(content)
    return zlib.crc32(content)


# -------------------------------------------------------------------- reading


def read_store(path: Path, part: tuple[int, int] | None = None) -> dict[str, Any]:
    """Reads a corpus's folder. The counts are checked and memory-mapped.

    Args:
        path: The folder.
        part: Rank and number of the processes. Only the shards of this rank are opened. ``None``
            opens all.

    Returns:
        The parts of a ``Corpus`` by name.

    Raises:
        FileError: A file is missing, damaged or truncated, or the files belong to different
            corpora.
        CorpusError: There are fewer shards than processes.
    """

    def read(folder: Path) -> dict[str, Any]:
        about = read_manifest(folder)
        first, after = deal_shards(about["shards"], part)
        sizes = [shard["num_docs"] for shard in about["shards"]]
        shards = about["shards"][first:after]
        arrays = [_read_arrays(folder, shard, about["num_words"]) for shard in shards]
        ends = np.cumsum([0, *(offsets[-1] for offsets, *_ in arrays)])
        offsets = [x[i > 0 :] + ends[i] if i else x for i, (x, *_) in enumerate(arrays)]
        table, covariates = read_columns(folder, shards, sum(sizes[:first]))
        words = None
        for name, checksum in about["files"].items():
            words = read_vocabulary(folder / name, about["num_words"], checksum)
        text = json.dumps([about["num_words"], words, about["shards"]], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        place = Part((first, after), tuple(sizes), digest, path.absolute())
        return {
            "row_offsets": offsets[0] if len(offsets) == 1 else np.concatenate(offsets),
            "word_index": chained([words for _, words, _ in arrays]),
            "counts": chained([counts for *_, counts in arrays]),
            "num_words": about["num_words"],
            "vocabulary": words,
            "table": table,
            "covariates": covariates,
            "preparation": about["preparation"],
            "counting": options_of_file(about.get("counting")),
            "part": None if part is None else place,
        }

    return read_consistent(path, read)


def read_manifest(path: Path) -> dict[str, Any]:
    """Contents of a folder's ``corpus.json``.

    Raises:
        FileError: The file is missing or damaged, or another version wrote it.
    """
    file = path / ABOUT
    with read_errors(file, "is damaged; make the folder again", Exception):
        about: dict[str, Any] = json.loads(read_bytes(file))
        version = about["format_version"]
        if version != FORMAT_VERSION:
            raise FileError(
                f"{file}: format_version is {version!r}; this version of torch_lntm reads "
                f"{FORMAT_VERSION}; read the documents again, and save them by corpus.save"
            )
        about["shards"] = [x | {"folder": _name(i)} for i, x in enumerate(about["shards"])]
        sizes = [shard[name] for shard in about["shards"] for name in ("num_docs", "num_entries")]
        names = {name for shard in about["shards"] for name in shard["files"]} | {*about["files"]}
        if {int} != {*map(type, sizes)} or not 0 < int(about["num_words"]) <= _MAX_WORDS:
            raise ValueError("sizes are whole numbers, and a corpus has documents and words")
        if names - {*ARRAYS, METADATA, COVARIATES, VOCABULARY}:
            raise ValueError(f"the names of the files are {', '.join(sorted(names))}")
        return about


def deal_shards(shards: Sequence[dict[str, Any]], part: tuple[int, int] | None) -> tuple[int, int]:
    """Deals consecutive shards to a process, so that all get about the same number of entries.

    Args:
        shards: Records of the shards.
        part: Rank and number of the processes. ``None`` takes all shards.

    Returns:
        The first shard of the process, and the shard after its last shard.

    Raises:
        CorpusError: The rank is out of range, or there are fewer shards than processes.
    """
    rank, world_size = (0, 1) if part is None else part
    if not 0 <= rank < world_size <= len(shards):
        raise CorpusError(
            f"rank {rank} of a world_size of {world_size}, for {len(shards)} shards; give a rank "
            "from 0, and at most one process for each shard. Write smaller shards by "
            "corpus.save(folder, shard_size=...)"
        )
    sizes = [shard["num_entries"] for shard in shards]
    before = np.concatenate([[0], np.cumsum(sizes, dtype=np.float64)])
    cuts = [0]
    for k in range(1, world_size):
        nearest = int(np.abs(before - before[-1] * k / world_size).argmin())
        # Every process has at least one shard.
        cuts.append(min(max(nearest, cuts[-1] + 1), len(sizes) - world_size + k))
    cuts.append(len(sizes))
    return cuts[rank], cuts[rank + 1]


def _read_arrays(path: Path, shard: dict[str, Any], num_words: int) -> list[NDArray[Any]]:
    """The checked and mapped arrays of a shard."""
    arrays, folder = [], path / shard["folder"]
    sizes = dict.fromkeys(ARRAYS, shard["num_entries"]) | {"row_offsets.npy": shard["num_docs"] + 1}
    for name, size in sizes.items():
        with read_errors(folder / name, "not a complete .npy file; is it truncated?", Exception):
            array: NDArray[Any] = np.load(folder / name, mmap_mode="r")
        is_whole = array.dtype == ARRAYS[name] and array.shape == (size,)
        if not is_whole or checksum_of(array) != shard["files"][name]:
            raise damaged(folder / name)
        arrays.append(array)
    offsets, words, counts = arrays
    is_good = offsets[0] == 0 and offsets[-1] == words.size and bool((np.diff(offsets) >= 0).all())
    for first, last in parts(offsets) if is_good else ():
        entries = slice(int(offsets[first]), int(offsets[last]))
        rows = (counts[entries], words[entries], offsets[first : last + 1] - entries.start)
        matrix = sp.csr_matrix(rows, (last - first, num_words))
        is_good &= matrix.data.min(initial=1) > 0 and matrix.has_canonical_format
        is_good &= 0 <= matrix.indices.min(initial=0) <= matrix.indices.max(initial=0) < num_words
        release(words, counts)
    if not is_good:
        raise FileError(
            f"{folder}: expected documents of ascending words below {num_words}, with positive "
            "counts; make the folder again"
        )
    return arrays


def damaged(file: Path | str) -> FileError:
    """Error for a file whose size or checksum is not the recorded one."""
    problem = "is damaged, or of another corpus: its checksum differs; make the folder again"
    return FileError(f"{file}: {problem}")


def read_checked(file: Path, checksum: int | None) -> bytes:
    """Contents of a file with this checksum; ``None`` if unknown, as for old models.

    Raises:
        FileError: The file is missing, or has another checksum.
    """
    content = read_bytes(file)
    if checksum not in (None, zlib.crc32(content)):
        raise damaged(file)
    return content


def read_columns(
    path: Path, shards: Sequence[dict[str, Any]], first: int = 0
) -> tuple[pd.DataFrame, Arrays]:
    """Metadata and covariates of neighbouring shards, without their counts.

    Args:
        path: The folder.
        shards: Records of the shards.
        first: Position of their first document in the corpus.

    Raises:
        FileError: A file is missing or damaged, or belongs to another corpus.
    """
    tables, covariates = [], []
    for shard in shards:
        files, num_docs = shard["files"], shard["num_docs"]
        table, own = pd.DataFrame(index=pd.RangeIndex(num_docs)), Arrays()
        if METADATA in files:
            file = path / shard["folder"] / METADATA
            content = read_checked(file, files[METADATA])
            with read_errors(file, "is damaged; save the corpus again", Exception):
                table = from_parquet(content, num_docs)
        if COVARIATES in files:
            file = path / shard["folder"] / COVARIATES
            read_checked(file, files[COVARIATES])
            own = read_covariates(file, num_docs)
        tables.append(table)
        covariates.append(own)
    table = tables[0] if len(tables) == 1 else pd.concat(tables)
    if all(is_default(each.index) for each in tables):
        table = table.set_axis(pd.RangeIndex(first, first + len(table)))
    names = covariates[0]
    return table, frozen({n: np.concatenate([each[n] for each in covariates]) for n in names})


def read_vocabulary(path: Path, num_words: int, checksum: int | None) -> tuple[str, ...] | None:
    """Reads a file with a word per line.

    Args:
        path: The file.
        num_words: Expected number of words.
        checksum: Checksum of the file; ``None`` if unknown, as for old models.

    Raises:
        FileError: The file is missing or damaged, or the words are no vocabulary of this size.
    """
    content = read_checked(path, checksum)
    with read_errors(path, "is no vocabulary; is it truncated?", ValueError):
        *words, rest = content.decode().split("\n")
        return check_vocabulary([*words, rest] if rest else words, num_words)
