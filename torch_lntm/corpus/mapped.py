"""Memory-mapped arrays: written to files in pieces, read from the files on use."""

from __future__ import annotations

import mmap
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torch_lntm.errors import FileError
from torch_lntm.files.reading import open_to_read
from torch_lntm.files.writing import path_errors

#: Entries per piece of reading, checking and writing.
PART = 1 << 20
#: Bytes that the system maps around a single access, and bytes to keep mapped. Pages that stay
#: mapped are read again four times as fast.
_TOUCHED_AT_ONCE, _MOST_TOUCHED = 1 << 16, 1 << 28
_touched = 0


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
    """Yields ranges ``(first, last)`` of documents with a bounded number of entries.

    Args:
        row_offsets: ``(num_docs + 1,)`` ascending offsets of the documents' entries.
        max_entries: Maximum number of entries in a range. A document with more entries is a range
            alone. Defaults to ``PART``.
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
    """Read-only, memory-mapped array of the one-dimensional ``.npy`` file.

    Raises:
        FileError: The file is missing or damaged, or the array has another type or shape.
    """
    open_to_read(path).close()
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # numpy raises errors of many kinds
        raise FileError(f"{path}: not a complete .npy file ({error}); is it truncated?") from error
    if array.dtype != dtype or array.ndim != 1:
        raise FileError(
            f"{path}: expected {np.dtype(dtype)} numbers in a row, got {array.shape} of "
            f"{array.dtype}"
        )
    return array


def checksum_of(array: NDArray[Any]) -> int:
    """CRC-32 of the numbers of an array."""
    checksum = 0
    for piece in pieces(array):
        checksum = zlib.crc32(piece.data, checksum)
    return checksum


class MappedRange(NamedTuple):
    """Range of numbers in the file of a mapped array, as a pickle holds it.

    Attributes:
        path: Absolute path of the file.
        dtype: Type of the numbers.
        start: Position of the first number in bytes.
        size: Number of numbers.
        checksum: Checksum of the numbers.
    """

    path: str
    dtype: str
    start: int
    size: int
    checksum: int


def range_of(array: Any) -> MappedRange | list[MappedRange] | None:
    """Range of a mapped array in its file; ``None`` for arrays in memory or in temporary files.

    A chain has a list of ranges.
    """
    if isinstance(array, Chain):
        ranges = [range_of(link) for link in array.links if link.size]
        found = [x for x in ranges if isinstance(x, MappedRange)]
        return found if found and len(found) == len(ranges) else None
    name = getattr(array, "filename", None)
    if name is None or not array.size or array.strides != (array.itemsize,):
        return None
    mapping = array._mmap
    begin = array.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
    begin += array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    return MappedRange(str(name), array.dtype.str, begin, array.size, checksum_of(array))


def map_ranges(ranges: Any) -> Any:
    """Maps the ranges of a pickled array again. An array that is no range is returned as it is.

    Raises:
        FileError: A folder is missing, or holds another corpus by now.
    """
    if isinstance(ranges, list):
        return chained([map_ranges(each) for each in ranges])
    if not isinstance(ranges, MappedRange):
        return ranges
    path, dtype, start, size, checksum = ranges
    folder = Path(path).parent
    if not Path(path).exists():
        raise FileError(
            f"{folder}: the folder of a pickled corpus is missing; a mapped corpus is pickled as "
            "its path and checksum, so every process needs the folder at this path"
        )
    try:
        array = np.memmap(path, dtype, "r", start, (size,))
    except ValueError:
        array = None
    if array is None or checksum_of(array) != checksum:
        raise FileError(
            f"{folder}: has changed since the corpus was pickled; read the folder again by "
            "read_corpus"
        )
    return array


def take(array: Any, starts: NDArray[np.integer], sizes: NDArray[np.integer]) -> NDArray[Any]:
    """Copies ranges of an array into a new array.

    Args:
        array: ``(size,)`` array or slice of an array.
        starts: ``(num_ranges,)`` start of each range.
        sizes: ``(num_ranges,)`` size of each range.
    """
    if isinstance(array, Chain):
        return array.take(starts, sizes)
    global _touched
    before = np.cumsum(sizes) - sizes
    _advise(array, "MADV_RANDOM")  # else the system reads far around each range
    copy = np.asarray(array[np.arange(sizes.sum()) + np.repeat(starts - before, sizes)])
    _advise(array, "MADV_NORMAL")
    _touched += len(starts) * _TOUCHED_AT_ONCE
    if _touched > _MOST_TOUCHED:
        release(array)
        _touched = 0
    return copy


def pieces(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yields a one-dimensional array in pieces. Mapped pieces leave memory after use."""
    for start in range(0, array.size, PART):
        yield array[start : start + PART]
        release(array)


def is_mapped(array: Any) -> bool:
    """Whether an array is a memory-mapped file, a part of it, or a chain of such arrays."""
    return isinstance(array, (np.memmap, Chain))


def release(*arrays: Any) -> None:
    """Removes the pages of mapped arrays from this process's memory.

    The system caches the pages as long as it has free memory, and returns them on the next use.
    """
    for array in arrays:
        for link in array.links if isinstance(array, Chain) else (array,):
            _advise(link, "MADV_DONTNEED")


def _advise(array: Any, advice: str) -> None:
    mapping = getattr(array, "_mmap", None)
    if mapping is not None and hasattr(mmap, advice):
        mapping.madvise(getattr(mmap, advice))


# -------------------------------------------------------------------- chains


class Chain(np.lib.mixins.NDArrayOperatorsMixin):
    """Mapped arrays one after the other, read like a single one-dimensional array.

    Selections and arithmetic give arrays in memory. :func:`cut` gives a part that stays mapped.

    Args:
        links: The arrays, of one type. At least two.
    """

    ndim = 1

    def __init__(self, links: Sequence[NDArray[Any]]) -> None:
        self.links = tuple(links)
        self.dtype = self.links[0].dtype
        #: ``(num_links + 1,)`` positions of the links' first numbers, and the size.
        self.begins = np.concatenate([[0], np.cumsum([link.size for link in links])])
        self.size = int(self.begins[-1])
        self.shape = (self.size,)
        self.nbytes = self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            start, stop, step = key.indices(self.size)
            if step == 1:
                return np.asarray(self.cut(start, stop))
        positions = np.atleast_1d(np.arange(self.size)[key])
        found = self.take(positions, np.ones_like(positions))
        return found[0] if np.ndim(key) == 0 and not isinstance(key, slice) else found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.concatenate(self.links, dtype=dtype, casting="unsafe")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = [np.asarray(x) if isinstance(x, Chain) else x for x in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def astype(self, dtype: Any, copy: bool = True) -> NDArray[Any]:
        """The numbers in memory, as another type."""
        return self.__array__(dtype)

    def setflags(self, write: bool) -> None:
        """Does nothing. Mapped arrays are read-only."""

    def cut(self, start: int, stop: int) -> Any:
        """Numbers ``start`` to ``stop``, still mapped."""
        links = [
            link[max(start - begin, 0) : stop - begin]
            for link, begin in zip(self.links, self.begins[:-1].tolist(), strict=True)
            if begin < stop and start < begin + link.size
        ]
        return chained(links) if links else self.links[0][:0]

    def take(self, starts: NDArray[np.integer], sizes: NDArray[np.integer]) -> NDArray[Any]:
        """Copies ranges, as :func:`take` does. Each range lies in one link."""
        at = np.searchsorted(self.begins, starts, "right") - 1
        at = at.clip(max=len(self.links) - 1)  # an empty range at the end
        runs = np.split(np.arange(len(starts)), np.flatnonzero(np.diff(at)) + 1)
        copies = [
            take(self.links[at[run[0]]], starts[run] - self.begins[at[run[0]]], sizes[run])
            for run in runs
            if len(run)
        ]
        return np.concatenate([*copies, np.empty(0, self.dtype)])


def chained(links: Sequence[NDArray[Any]]) -> Any:
    """Several arrays as a chain, and a single array as it is."""
    return links[0] if len(links) == 1 else Chain(links)


def cut(array: Any, entries: slice) -> NDArray[Any]:
    """Neighbouring numbers of an array, without a copy. A part of a mapped array is mapped."""
    part: NDArray[Any]
    part = array.cut(entries.start, entries.stop) if isinstance(array, Chain) else array[entries]
    return part


# -------------------------------------------------------------------- writing


class ArrayWriter:
    """Writes a one-dimensional array to a ``.npy`` file in pieces.

    Args:
        file: The file, open for writing.
        dtype: Type of the numbers.
    """

    def __init__(self, file: IO[bytes], dtype: Any) -> None:
        self.file = file
        self.dtype = np.dtype(dtype)
        self.size = self.checksum = 0
        self._write_header(2**62)  # the header has this length for every size
        self._start = file.tell()

    def add(self, numbers: NDArray[Any]) -> None:
        """Appends numbers."""
        data = np.ascontiguousarray(numbers, self.dtype).data
        self.checksum = zlib.crc32(data, self.checksum)
        self.file.write(data)
        self.size += numbers.size

    def finish(self) -> None:
        """Writes the size into the header, which completes the file."""
        self.file.seek(0)
        self._write_header(self.size)
        assert self.file.tell() == self._start
        self.file.flush()

    def map(self) -> NDArray[Any]:
        """Memory-mapped array of the finished file."""
        return np.memmap(self.file, self.dtype, "r", self._start, (self.size,))

    def _write_header(self, size: int) -> None:
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (size,)}
        np.lib.format.write_array_header_1_0(self.file, header)


class RowsWriter:
    """Writes documents in compressed sparse rows, each array to a file.

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
        """Number of documents written so far."""
        return self.offsets.size - 1

    @property
    def nnz(self) -> int:
        """Number of entries written so far."""
        return self.words.size

    def add(self, rows: Rows) -> None:
        """Appends documents."""
        self.offsets.add(self.nnz + np.cumsum(rows.sizes, dtype=np.int64))
        self.words.add(rows.word_index)
        self.counts.add(rows.counts)

    def finish(self) -> None:
        """Completes the three files."""
        for array in (self.offsets, self.words, self.counts):
            array.finish()


def collect(pieces: Iterable[Rows], in_files: bool) -> tuple[NDArray[Any], ...]:
    """Joins documents to the arrays ``row_offsets``, ``word_index`` and ``counts``.

    Args:
        pieces: Consecutive documents.
        in_files: Map the arrays from temporary files instead of memory. The files are in the folder
            of the environment variable ``TMPDIR`` and disappear with the arrays.

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
    """Joins the pieces of an array; see ``collect``."""
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
    """Unnamed files. They exist as long as they are open or mapped."""
    folder = Path(tempfile.gettempdir())
    with path_errors(folder), ExitStack() as stack:
        yield [stack.enter_context(tempfile.TemporaryFile(dir=folder)) for _ in range(number)]
