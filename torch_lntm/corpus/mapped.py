"""Arrays in files that are mapped into memory: written piece by piece, read where they are used."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_lntm.errors import FileError
from torch_lntm.files import open_to_read, path_errors, read_header

#: Entries that are read, checked or written at once.
PART = 1 << 20


class Rows(NamedTuple):
    """Consecutive documents in compressed sparse rows.

    Attributes:
        sizes: ``(num_docs,)`` entries of each document.
        word_index: ``(nnz,)`` column of each entry.
        counts: ``(nnz,)`` tokens of each entry.
    """

    sizes: NDArray[np.integer]
    word_index: NDArray[np.integer]
    counts: NDArray[np.integer]


def parts(
    row_offsets: NDArray[np.integer], max_entries: int | None = None
) -> Iterator[tuple[int, int]]:
    """Yields ranges ``first, last`` of documents with bounded entries, or of a single document.

    Args:
        row_offsets: ``(num_docs + 1,)`` non-descending offsets of the documents' entries.
        max_entries: The most entries of several documents; ``PART`` if not given.
    """
    first, num_docs = 0, row_offsets.size - 1
    max_entries = PART if max_entries is None else max_entries
    while first < num_docs:
        last = int(np.searchsorted(row_offsets, row_offsets[first] + max_entries, "right")) - 1
        last = max(last, first + 1)
        yield first, last
        first = last


# -------------------------------------------------------------------- reading


def map_array(path: Path, dtype: Any) -> NDArray[Any]:
    """The array of one dimension in an ``.npy`` file, mapped into memory and read-only.

    Raises:
        FileError: The file is missing or damaged, or holds something else.
    """
    expected = np.dtype(dtype)
    with open_to_read(path) as file:
        try:
            shape, found = read_header(file)
        except (ValueError, OSError) as error:
            raise FileError(f"{path}: not a complete .npy file ({error})") from error
        if found != expected or len(shape) != 1:
            raise FileError(f"{path}: expected {expected} numbers in a row, got {shape} of {found}")
        start = file.tell()
        size = os.fstat(file.fileno()).st_size - start
        if size != shape[0] * expected.itemsize:
            raise FileError(
                f"{path}: announces {shape[0]} numbers of {expected.itemsize} bytes and holds "
                f"{size} bytes; is it truncated?"
            )
        return _map(file, expected, start, shape[0])


def _map(file: Any, dtype: np.dtype[Any], start: int, size: int) -> NDArray[Any]:
    if not size:  # nothing can be mapped
        return np.empty(0, dtype)
    array = np.memmap(file, dtype, "r", start, (size,))
    if hasattr(os, "preadv"):
        base = _base(array)
        descriptor = os.dup(file.fileno())
        weakref.finalize(base, os.close, descriptor)
        _FILES[base] = (descriptor, start - array.ctypes.data)
    return array


#: For what is mapped, the file's descriptor, and a position in the file less its address.
_FILES: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()


def _base(array: NDArray[Any]) -> Any:
    """What an array lies in: of a mapped one the object that maps the file."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base


def take(
    array: NDArray[Any], starts: NDArray[np.integer], sizes: NDArray[np.integer]
) -> NDArray[Any]:
    """Ranges of an array, one after the other in a new one.

    Of a mapped array they are read from the file: to touch a range that is mapped may take in
    megabytes around it.

    Args:
        array: ``(size,)`` an array, or a slice of one.
        starts: ``(num_ranges,)`` where each range starts.
        sizes: ``(num_ranges,)`` numbers in each.

    Raises:
        FileError: The file has become shorter.
    """
    if not is_mapped(array) or (source := _FILES.get(_base(array))) is None:
        before = np.cumsum(sizes) - sizes
        return np.asarray(array[np.arange(sizes.sum()) + np.repeat(starts - before, sizes)])
    descriptor, shift = source
    found = np.empty(int(sizes.sum()), array.dtype)
    buffer, stop = found.view(np.uint8).data, 0
    positions = (array.ctypes.data + shift + starts * array.itemsize).tolist()
    for position, size in zip(positions, (sizes * array.itemsize).tolist(), strict=True):
        start, stop = stop, stop + size
        if size and os.preadv(descriptor, [buffer[start:stop]], position) != size:
            raise FileError("a file of the corpus has been cut short; read the corpus again")
    return found


def pieces(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yields an array of one dimension in pieces; what is mapped does not stay in memory."""
    for start in range(0, array.size, PART):
        yield array[start : start + PART]
        release(array)


def is_mapped(array: NDArray[Any]) -> bool:
    """Whether an array is, or is a part of, a file that is mapped into memory."""
    return isinstance(array, np.memmap)


def release(*arrays: NDArray[Any]) -> None:
    """Takes what was read of mapped arrays out of this process's memory.

    The system keeps it as long as it has memory to spare, and gives it back at the next use.
    """
    for base in map(_base, arrays):
        if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            base.madvise(mmap.MADV_DONTNEED)


# -------------------------------------------------------------------- writing


class ArrayWriter:
    """An array of one dimension that is written to a file piece by piece.

    Args:
        file: The file, open for writing.
        dtype: Type of the numbers.
    """

    def __init__(self, file: IO[bytes], dtype: Any) -> None:
        self.file = file
        self.dtype = np.dtype(dtype)
        self.size = 0
        self.checksum = 0
        self._write_header(2**62)  # as long as that of any other size
        self._start = file.tell()

    def add(self, numbers: NDArray[Any]) -> None:
        """Writes further numbers."""
        data = np.ascontiguousarray(numbers, self.dtype).data
        self.checksum = zlib.crc32(data, self.checksum)
        self.file.write(data)
        self.size += numbers.size

    def finish(self) -> None:
        """Writes the size, with which the file is an ``.npy`` file."""
        self.file.seek(0)
        self._write_header(self.size)
        assert self.file.tell() == self._start
        self.file.flush()

    def map(self) -> NDArray[Any]:
        """The array, mapped into memory; once it is finished."""
        return _map(self.file, self.dtype, self._start, self.size)

    def _write_header(self, size: int) -> None:
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (size,)}
        np.lib.format.write_array_header_1_0(self.file, header)


class RowsWriter:
    """The arrays of documents in compressed sparse rows, each in its file.

    Args:
        offsets: File of the row offsets, int64.
        words: File of the word indices, int32.
        counts: File of the counts, int32.
    """

    def __init__(self, offsets: IO[bytes], words: IO[bytes], counts: IO[bytes]) -> None:
        self.offsets = ArrayWriter(offsets, np.int64)
        self.words = ArrayWriter(words, np.int32)
        self.counts = ArrayWriter(counts, np.int32)
        self.offsets.add(np.zeros(1, np.int64))

    @property
    def num_docs(self) -> int:
        """Number of documents so far."""
        return self.offsets.size - 1

    @property
    def nnz(self) -> int:
        """Number of entries so far."""
        return self.words.size

    def add(self, rows: Rows) -> None:
        """Writes further documents."""
        self.offsets.add(self.nnz + np.cumsum(rows.sizes, dtype=np.int64))
        self.words.add(rows.word_index)
        self.counts.add(rows.counts)

    def finish(self) -> None:
        """Writes the sizes."""
        for array in (self.offsets, self.words, self.counts):
            array.finish()


def collect(pieces: Iterable[Rows], in_files: bool) -> tuple[NDArray[Any], ...]:
    """Puts documents together: the arrays ``row_offsets``, ``word_index`` and ``counts``.

    Args:
        pieces: Some of the documents after the other.
        in_files: Whether to map the arrays from temporary files, which go with the arrays, and not
            to hold them in memory. They are in the folder that the variable ``TMPDIR`` names.

    Raises:
        FileError: A temporary file cannot be written.
    """
    if not in_files:
        sizes, words, counts = (
            arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
            for arrays in zip(*pieces, strict=True)
        )
        row_offsets = np.zeros(sizes.size + 1, np.int64)
        np.cumsum(sizes, out=row_offsets[1:])
        return row_offsets, words, counts.astype(np.int32, copy=False)
    with _temporary_files(3) as files:
        writer = RowsWriter(*files)
        for rows in pieces:
            writer.add(rows)
        writer.finish()
        return writer.offsets.map(), writer.words.map(), writer.counts.map()


def collect_array(pieces: Iterable[NDArray[Any]], dtype: Any, in_files: bool) -> NDArray[Any]:
    """Puts the pieces of one array together; see ``collect``."""
    if not in_files:
        return np.concatenate([np.asarray(piece, dtype) for piece in pieces])
    with _temporary_files(1) as files:
        writer = ArrayWriter(files[0], dtype)
        for piece in pieces:
            writer.add(piece)
        writer.finish()
        return writer.map()


@contextmanager
def _temporary_files(number: int) -> Iterator[list[IO[bytes]]]:
    """Files without a name, which last as long as they are open or mapped."""
    folder = Path(tempfile.gettempdir())
    with path_errors(folder), ExitStack() as stack:
        yield [stack.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(number)]
