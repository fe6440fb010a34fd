"""Memory-mapped arrays, which are read from disk only as they are used."""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Entries per piece of reading, checking and writing.
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
    row_offsets: NDArray[np.integer], max_entries: int | None = None, max_docs: int | None = None
) -> Iterator[tuple[int, int]]:
    """Yields ranges ``(first, last)`` of documents with a bounded number of entries.

    Args:
        row_offsets: ``(num_docs + 1,)`` ascending offsets of the documents' entries.
        max_entries: Maximum number of entries in a range. A document with more entries is a range
            alone. Defaults to ``PART``.
        max_docs: Maximum number of documents in a range, if any.
    """
    first, num_docs = 0, row_offsets.size - 1
    max_entries = PART if max_entries is None else max_entries
    while first < num_docs:
        last = int(np.searchsorted(row_offsets, row_offsets[first] + max_entries, "right")) - 1
        last = min(max(last, first + 1), first + (max_docs or num_docs))
        yield first, last
        first = last


class Chain(np.lib.mixins.NDArrayOperatorsMixin):
    """Several mapped arrays end to end, which read like a single one-dimensional array.

    Slices stay mapped, whereas other selections and arithmetic give arrays in memory.

    Args:
        links: The arrays, of one type.
    """

    def __init__(self, links: Sequence[NDArray[Any]]) -> None:
        self.links, self.dtype = tuple(links), links[0].dtype
        #: ``(num_links + 1,)`` positions of the links' first numbers, and the size.
        self.begins = np.cumsum([0, *map(len, links)])
        self.size = int(self.begins[-1])

    def __len__(self) -> int:
        return self.size

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.concatenate(self.links, dtype=dtype, casting="unsafe")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = [np.asarray(x) if isinstance(x, Chain) else x for x in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice) and key.step in (None, 1):
            start, stop, _ = key.indices(self.size)
            begins = self.begins[:-1].tolist()
            return chained(
                [
                    link[max(start - begin, 0) : max(stop - begin, 0)]
                    for link, begin in zip(self.links, begins, strict=True)
                ]
            )
        if not isinstance(key, np.ndarray) or key.dtype.kind not in "iu":
            return np.asarray(self)[key]
        found, order = np.empty(key.shape, self.dtype), np.argsort(key, kind="stable")
        ends = np.searchsorted(key, self.begins[1:-1], sorter=order)
        for link, begin, own in zip(self.links, self.begins, np.split(order, ends), strict=False):
            if own.size:
                found[own] = link[key[own] - begin]
        return found


def chained(links: Sequence[NDArray[Any]]) -> Any:
    """A chain of the arrays that are not empty, or the array itself if only one is left."""
    filled = [link for link in links if link.size]
    return Chain(filled) if len(filled) > 1 else [*filled, *links][0]


def take(array: Any, starts: NDArray[np.integer], sizes: NDArray[np.integer]) -> NDArray[Any]:
    """Copies ranges of an array into a new array.

    Args:
        array: ``(size,)`` array.
        starts: ``(num_ranges,)`` start of each range.
        sizes: ``(num_ranges,)`` size of each range.
    """
    ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    copy = np.empty(ends[-1], array.dtype)
    _advise(array, "MADV_RANDOM")  # else the system reads far around each range
    for first, last in parts(ends):  # because positions take more memory than the numbers
        begin, end = ends[first], ends[last]
        offsets = np.repeat(starts[first:last] - ends[first:last], sizes[first:last])
        copy[begin:end] = array[np.arange(begin, end) + offsets]
    _advise(array, "MADV_NORMAL")
    release(array)
    return copy


def release(*arrays: Any) -> None:
    """Drops the pages of mapped arrays from this process's memory.

    The operating system still caches them while it has memory to spare, so using them again is
    cheap.
    """
    for array in arrays:
        _advise(array, "MADV_DONTNEED")


def _advise(array: Any, advice: str) -> None:
    for link in array.links if isinstance(array, Chain) else (array,):
        while isinstance(link, np.ndarray):
            link = link.base
        if isinstance(link, mmap.mmap) and hasattr(mmap, advice):
            link.madvise(getattr(mmap, advice))


def pieces(array: Any) -> Iterator[NDArray[Any]]:
    """Yields a one-dimensional array in pieces, and drops mapped ones from memory after use."""
    for start in range(0, array.size, PART):
        yield np.asarray(array[start : start + PART])
        release(array)


def checksum_of(array: NDArray[Any]) -> int:
    """CRC-32 of the numbers of an array."""
    checksum = 0
    for piece in pieces(array):
        checksum = zlib.crc32(piece.data, checksum)
    return checksum
