"""Corpora in folders. The counts are memory-mapped and may be larger than the memory.

A folder holds ``corpus.json`` (sizes and checksums) and the arrays ``row_offsets.npy``,
``word_index.npy`` and ``counts.npy`` of all documents in compressed sparse rows. Optional files are
``vocabulary.txt`` (a word per line) and ``documents.npz`` (metadata and covariates).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_lntm.corpus.archive import pack_documents, unpack_documents
from torch_lntm.corpus.checks import MAX_COUNT, check_vocabulary
from torch_lntm.corpus.columns import Arrays, FrozenDict
from torch_lntm.corpus.mapped import (
    MappedRange,
    RowsWriter,
    map_array,
    parts,
    pieces,
    release,
    set_checksum,
)
from torch_lntm.errors import CorpusError, FileError
from torch_lntm.files import (
    as_json,
    as_lines,
    atomic_folder,
    read_arrays,
    read_consistent,
    read_text,
)

FORMAT_VERSION = 1
ABOUT, VOCABULARY, DOCUMENTS = "corpus.json", "vocabulary.txt", "documents.npz"
_ARRAYS = {"row_offsets": np.int64, "word_index": np.int32, "counts": np.int32}
_MAX_WORDS = 2**31


class Store(NamedTuple):
    """Contents of a corpus's folder. The attributes are described at ``Documents``."""

    row_offsets: NDArray[np.int64]
    word_index: NDArray[np.integer]
    counts: NDArray[np.int32]
    num_words: int
    vocabulary: tuple[str, ...] | None = None
    metadata: Arrays = FrozenDict()
    covariates: Arrays = FrozenDict()
    preparation: str | None = None


def is_store(path: Path) -> bool:
    """Whether a folder holds a corpus."""
    return (path / ABOUT).is_file()


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
        metadata: Arrays | None = None,
        covariates: Arrays | None = None,
        preparation: str | None = None,
    ) -> None:
        """Completes the folder: writes the vocabulary, the columns and ``corpus.json``.

        Args:
            num_words: Size of the vocabulary.
            vocabulary: The words.
            metadata: Columns with a value for each document.
            covariates: Numeric arrays with a row for each document.
            preparation: Sentence about the words left out.

        Raises:
            CorpusError: The corpus is empty or has too many words.
        """
        if not self.num_docs or not 0 < num_words <= _MAX_WORDS:
            raise CorpusError(
                f"a corpus has at least one document, and from 1 to {_MAX_WORDS} words; got "
                f"{self.num_docs} documents and {num_words} words"
            )
        self.finish()
        if vocabulary is not None:
            words = as_lines(vocabulary, "word", VOCABULARY)
            (self.folder / VOCABULARY).write_bytes(words)
        if metadata or covariates:
            columns = (metadata or FrozenDict(), covariates or FrozenDict())
            packed: dict[str, Any] = pack_documents(*columns)
            np.savez_compressed(self.folder / DOCUMENTS, **packed)
        arrays = dict(zip(_ARRAYS, (self.offsets, self.words, self.counts), strict=True))
        about = {
            "format_version": FORMAT_VERSION,
            "num_docs": self.num_docs,
            "num_words": num_words,
            "num_entries": self.nnz,
            "vocabulary": vocabulary is not None,
            "documents": bool(metadata or covariates),
            "preparation": preparation,
            "crc32": {name: array.checksum for name, array in arrays.items()},
        }
        (self.folder / ABOUT).write_bytes(as_json(about))


@contextmanager
def new_store(path: Path) -> Iterator[StoreWriter]:
    """Context with a writer of a corpus's folder.

    The complete folder appears at the end of the context and replaces an older corpus.

    Raises:
        CorpusError: The path is a file, or a folder with other contents.
        FileError: The folder cannot be written.
    """
    if not path.name:
        raise CorpusError(f"{path}: is the current folder; name another folder to write")
    if path.exists() and not (path.is_dir() and (is_store(path) or not any(path.iterdir()))):
        raise CorpusError(f"{path}: exists and is not the folder of a corpus; choose another path")
    with atomic_folder(path) as folder:
        offsets, words, counts = (folder / f"{name}.npy" for name in _ARRAYS)
        with open(offsets, "xb") as a, open(words, "xb") as b, open(counts, "xb") as c:
            yield StoreWriter(folder, a, b, c)
        assert is_store(folder), "the writer was not closed"


# -------------------------------------------------------------------- reading


def read_store(path: Path, max_bytes: float | None = None) -> Store:
    """Reads a corpus's folder. The counts are checked and memory-mapped.

    Args:
        path: The folder.
        max_bytes: Maximum number of bytes of the vocabulary, the metadata and the covariates.

    Raises:
        FileError: A file is missing, damaged, truncated or too large, or the files belong to
            different corpora.
    """
    return read_consistent(path, lambda folder: _read(folder, max_bytes))


def _read(path: Path, max_bytes: float | None) -> Store:
    about = _about(path, max_bytes)
    arrays = {name: map_array(path / f"{name}.npy", dtype) for name, dtype in _ARRAYS.items()}
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
            raise FileError(
                f"{path / name}.npy: is damaged, or of another corpus: its checksum is not that "
                f"of {ABOUT}; make the folder again"
            )
        set_checksum(array, path / f"{name}.npy", checksum)
    metadata = covariates = FrozenDict[NDArray[Any]]()
    if about["documents"]:
        file = path / DOCUMENTS
        packed = read_arrays(file, "documents", max_bytes=max_bytes)["documents"]
        metadata, covariates = unpack_documents(file, packed, num_docs, max_bytes)
    return Store(
        arrays["row_offsets"],
        arrays["word_index"],
        arrays["counts"],
        num_words,
        read_vocabulary(path / VOCABULARY, num_words, max_bytes) if about["vocabulary"] else None,
        metadata,
        covariates,
        about["preparation"],
    )


def map_range(part: MappedRange) -> NDArray[Any]:
    """Maps a range of an array of a corpus's folder again, for a pickled corpus.

    Raises:
        FileError: The folder is missing, or holds another corpus by now.
    """
    folder, name = part.path.parent, part.path.stem
    if not is_store(folder):
        raise FileError(
            f"{folder}: the folder of a pickled corpus is missing; a mapped corpus is pickled as "
            "its path and checksum, so every process needs the folder at this path"
        )
    array = map_array(part.path, part.dtype)
    checksum = _about(folder, None)["crc32"].get(name)
    first = (part.start - (part.path.stat().st_size - array.nbytes)) // array.itemsize
    if checksum != part.checksum or first < 0 or first + part.size > array.size:
        raise FileError(
            f"{folder}: has changed since the corpus was pickled; read the folder again by "
            "read_corpus"
        )
    set_checksum(array, part.path, part.checksum)
    return array[first : first + part.size]


def _about(path: Path, max_bytes: float | None) -> dict[str, Any]:
    """Contents of ``corpus.json``, with checked types."""
    file = path / ABOUT
    try:
        about = json.loads(read_text(file, max_bytes=max_bytes))
    except (ValueError, RecursionError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{file}: not complete JSON ({error}); make the folder again") from error
    if not isinstance(about, dict) or about.get("format_version") != FORMAT_VERSION:
        version = about.get("format_version") if isinstance(about, dict) else None
        raise FileError(
            f"{file}: format_version is {version!r}; this version of torch_lntm reads "
            f"{FORMAT_VERSION}"
        )
    kinds: dict[str, Any] = {
        **dict.fromkeys(("num_docs", "num_words", "num_entries"), int),
        **dict.fromkeys(("vocabulary", "documents"), bool),
        "preparation": (str, type(None)),
        "crc32": dict,
    }
    for name, kind in kinds.items():
        value = about.get(name)
        number = kind is int and (isinstance(value, bool) or not isinstance(value, int))
        if name not in about or not isinstance(value, kind) or number:
            raise FileError(f"{file}: {name} is {value!r:.60}; make the folder again")
    if about["num_docs"] < 1 or not 0 < about["num_words"] <= _MAX_WORDS:
        raise FileError(
            f"{file}: expected at least one document, and from 1 to {_MAX_WORDS} words; got "
            f"{about['num_docs']} and {about['num_words']}"
        )
    return about


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
    offsets, words, counts = (arrays[name] for name in _ARRAYS)
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
    path: Path, num_words: int, max_bytes: float | None = None
) -> tuple[str, ...] | None:
    """Reads a file with a word per line.

    Args:
        path: The file.
        num_words: Expected number of words.
        max_bytes: Maximum size of the file in bytes.

    Raises:
        FileError: The file is missing or damaged, or the words are no vocabulary of this size.
    """
    text = read_text(path, max_bytes=max_bytes)
    if not text.endswith("\n"):
        raise FileError(f"{path}: ends within a line; is it truncated?")
    try:
        return check_vocabulary(text.removesuffix("\n").split("\n"), num_words)
    except CorpusError as error:
        raise FileError(f"{path}: {error}") from error
