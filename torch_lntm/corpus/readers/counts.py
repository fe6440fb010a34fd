"""Readers of word counts in lines: LDA-C, UCI bag of words, Matrix Market."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from torch_lntm.corpus.archive import Archive
from torch_lntm.corpus.columns import FrozenDict
from torch_lntm.errors import FileError
from torch_lntm.files import at_line, check_proportion, excerpt, read_pieces, readable_bytes

_NATURAL = rb"\d{1,18}"  # fits an int64
_LDAC_HEAD = re.compile(rb"\s*%s" % _NATURAL)
# Some pairs at a time: a repetition without end takes 200 bytes of memory for each.
_LDAC_PAIRS = re.compile(rb"(?:\s+%s:%s){1,4096}" % (_NATURAL, _NATURAL))
_COORDINATES = rb"\s*%s\s+%s" % (_NATURAL, _NATURAL)
_COORDINATE_LINES = {
    "pattern": re.compile(_COORDINATES + rb"\s*"),
    "integer": re.compile(_COORDINATES + rb"\s+%s\s*" % _NATURAL),
    "real": re.compile(_COORDINATES + rb"\s+\d+(?:\.\d*)?(?:[eE]\+?\d+)?\s*"),
}
_MATRIX_MARKET_BANNER = re.compile(
    rb"%%MatrixMarket\s+matrix\s+coordinate\s+(pattern|integer|real)\s+general\s*", re.IGNORECASE
)
#: Lines that are read at once.
_LINES = 1 << 15
# Any file may announce _FREE_SIZE documents or words, a large one _SIZE_PER_ENTRY for each entry.
_FREE_SIZE, _SIZE_PER_ENTRY = 1 << 20, 100


def check_size(
    path: Path, num_docs: int, num_words: int, num_entries: int, num_known: int | None
) -> None:
    """Refuses sizes for which a damaged file would take all memory.

    Args:
        path: The file.
        num_docs: Documents that it announces.
        num_words: Words that it announces.
        num_entries: Entries that it holds.
        num_known: Words of the vocabulary that comes with it, if any.

    Raises:
        FileError: A size is out of proportion to the entries, or is not the vocabulary's.
    """
    most = max(_FREE_SIZE, _SIZE_PER_ENTRY * num_entries)
    for what, size, known in (("documents", num_docs, None), ("words", num_words, num_known)):
        if size > most and size != known:
            raise FileError(
                f"{path}: {size} {what} are out of proportion to its {num_entries} entries; check "
                "the file" + (", or give its vocabulary" if what == "words" else "")
            )


class Entries(NamedTuple):
    """Some entries of a file, and how many documents it has told completely up to them.

    Attributes:
        num_docs: Documents that no later entry belongs to.
        rows: ``(num_entries,)`` document of each entry, from 0.
        words: ``(num_entries,)`` word of each entry, from 0.
        counts: ``(num_entries,)`` tokens of each entry.
    """

    num_docs: int
    rows: NDArray[np.int64]
    words: NDArray[np.int64]
    counts: NDArray[Any]


@dataclass
class CountStream:
    """Counts that are read piece by piece.

    Attributes:
        pieces: The entries, to be gone through once.
        num_docs: Number of documents; None for those that the pieces tell.
        num_words: Number of words; None for one more than the largest.
        vocabulary: The words, if the file has them.
        metadata: What the file says of the documents; complete after the last piece.
    """

    pieces: Iterator[Entries]
    num_docs: int | None
    num_words: int | None
    vocabulary: list[str] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


def assemble(path: Path, stream: CountStream) -> Archive:
    """All counts of a stream as one matrix, with what is known of the documents."""
    pieces = list(stream.pieces)
    rows, words, counts = (
        np.concatenate([piece[i] for piece in pieces]) if pieces else np.empty(0, np.int64)
        for i in (1, 2, 3)
    )
    num_docs = stream.num_docs
    if num_docs is None:
        num_docs = pieces[-1].num_docs if pieces else 0
    num_words = stream.num_words
    if num_words is None:
        num_words = int(words.max(initial=-1)) + 1
        check_size(path, num_docs, num_words, words.size, None)
    matrix = sp.coo_matrix((counts, (rows, words)), (num_docs, num_words))
    return Archive(matrix, FrozenDict(stream.metadata))


def stream_ldac(path: Path, num_words: int | None, max_bytes: float | None) -> CountStream:
    """LDA-C: each line has the number of distinct words, then ``word:count`` pairs."""
    return CountStream(_ldac(path, num_words, max_bytes), None, num_words)


def _ldac(path: Path, num_words: int | None, max_bytes: float | None) -> Iterator[Entries]:
    expected = "expected 'M word:count word:count ...' with whole numbers from 0 up"
    for first_line, lines in _line_blocks(path, max_bytes):
        _check_lines(path, lines, _is_ldac, expected, first_line)
        num_pairs = np.array([line.count(b":") for line in lines])
        numbers = np.fromstring(b"\n".join(lines).replace(b":", b" "), np.int64, sep=" ")
        heads = np.cumsum(1 + 2 * num_pairs) - (1 + 2 * num_pairs)
        wrong = np.flatnonzero(numbers[heads] != num_pairs)
        if wrong.size:
            d = wrong[0]
            message = (
                f"announces {numbers[heads[d]]} words and holds {num_pairs[d]}; is it truncated?"
            )
            raise at_line(path, int(d) + first_line, message)
        words, counts = np.delete(numbers, heads).reshape(-1, 2).T
        rows = first_line - 1 + np.repeat(np.arange(len(lines)), num_pairs)
        outside = np.flatnonzero(words >= num_words) if num_words is not None else words[:0]
        if outside.size:
            i = outside[0]
            message = (
                f"word {words[i]} is not among the {num_words} of the vocabulary (0 is the first)"
            )
            raise at_line(path, int(rows[i]) + 1, message)
        yield Entries(first_line - 1 + len(lines), rows, words, counts)


def _is_ldac(line: bytes) -> bool:
    """Whether a line is a number and pairs of numbers."""
    end, match = 0, _LDAC_HEAD.match(line)
    while match:
        end = match.end()
        match = _LDAC_PAIRS.match(line, end)
    return end > 0 and not line[end:].strip()


def stream_uci(path: Path, num_words: int | None, max_bytes: float | None) -> CountStream:
    """UCI: lines with D, W and the number of entries, then ``document word count`` from 1."""
    lines = _lines(path, max_bytes)
    sizes = []
    for line, what in enumerate(("D", "W", "NNZ"), 1):
        text = next(lines, b"")
        if not re.fullmatch(rb"\s*%s\s*" % _NATURAL, text):
            raise at_line(path, line, f"expected the number {what}, got {excerpt(text)}")
        sizes.append(int(text))
    return _coordinates(path, _blocks(lines, 4), 4, "integer", sizes, num_words)


def stream_matrix_market(path: Path, num_words: int | None, max_bytes: float | None) -> CountStream:
    """Matrix Market coordinates.

    Scipy's reader is not used here. It takes ``2.5`` for 2 in a file of integers, and overlooks
    what follows the count on a line.
    """
    lines = _lines(path, max_bytes)
    first = next(lines, b"")
    banner = _MATRIX_MARKET_BANNER.fullmatch(first)
    if banner is None:
        raise at_line(
            path,
            1,
            "expected '%%MatrixMarket matrix coordinate integer general' (or real, or pattern), "
            f"got {excerpt(first)}",
        )
    line, text = 1, b"%"
    for line, text in enumerate(lines, 2):  # noqa: B007 - the first that says something
        if text.strip() and not text.startswith(b"%"):
            break
    else:
        line, text = line + 1, b""
    if not _COORDINATE_LINES["integer"].fullmatch(text):
        message = f"expected the numbers of rows, columns and entries, got {excerpt(text)}"
        raise at_line(path, line, message)
    sizes = [int(number) for number in text.split()]
    kind = banner[1].decode().lower()
    return _coordinates(path, _blocks(lines, line + 1), line + 1, kind, sizes, num_words)


def _coordinates(
    path: Path,
    blocks: Iterator[tuple[int, list[bytes]]],
    first_line: int,
    kind: str,
    sizes: list[int],
    num_known: int | None,
) -> CountStream:
    """The entries of lines ``row column count`` (of a pattern, ``row column``), counted from 1."""
    num_rows, num_columns, num_entries = sizes
    check_size(path, num_rows, num_columns, num_entries, num_known)

    def pieces() -> Iterator[Entries]:
        found = 0
        for line, lines in blocks:
            yield _entries(path, lines, line, kind, num_rows, num_columns)
            found += len(lines)
        if found != num_entries:
            message = f"ends after {found} of {num_entries} announced entries"
            raise at_line(path, first_line + found - 1, f"{message}; is it truncated?")

    return CountStream(pieces(), num_rows, num_columns)


def _entries(
    path: Path, lines: list[bytes], first_line: int, kind: str, num_rows: int, num_columns: int
) -> Entries:
    """The entries of some lines of coordinates."""
    expected = "expected 'document word count' with whole numbers from 0 up"
    _check_lines(path, lines, _COORDINATE_LINES[kind].fullmatch, expected, first_line)
    dtype = np.float64 if kind == "real" else np.int64
    columns_per_line = 2 if kind == "pattern" else 3
    entries = np.fromstring(b"\n".join(lines), dtype, sep=" ").reshape(-1, columns_per_line)
    rows, columns = entries[:, 0].astype(np.int64), entries[:, 1].astype(np.int64)
    counts = np.ones(len(lines)) if kind == "pattern" else entries[:, 2]
    for what, position, size in (("document", rows, num_rows), ("word", columns, num_columns)):
        outside = np.flatnonzero((position < 1) | (position > size))
        if outside.size:
            i = int(outside[0])
            message = f"{what} {position[i]} is not among the announced 1 to {size}"
            raise at_line(path, first_line + i, message)
    fractional = np.flatnonzero(counts != np.floor(counts))
    if fractional.size:
        i = int(fractional[0])
        raise at_line(path, first_line + i, f"expected a whole count, got {counts[i]}")
    # The last document may go on in the next lines.
    return Entries(int(rows[-1]) - 1, rows - 1, columns - 1, counts)


def _lines(path: Path, max_bytes: float | None) -> Iterator[bytes]:
    """The lines of a file without blank ones at its end; lines may end as on old Macs."""
    blank = 0
    for line in _raw_lines(path, max_bytes):
        if not line.strip():
            blank += 1
            continue
        yield from itertools.repeat(b"", blank)
        blank = 0
        yield line


def _raw_lines(path: Path, max_bytes: float | None) -> Iterator[bytes]:
    """The lines of a file, and what follows its last line end."""
    limit, end = readable_bytes(), b""
    pending: list[bytes] = []
    size = num_lines = 0
    for piece in read_pieces(path, max_bytes):
        if not end:
            end = b"\n" if b"\n" in piece or b"\r" not in piece else b"\r"
        *lines, last = piece.split(end)
        num_lines += len(lines)
        check_proportion(path, num_lines, "lines")
        if lines:
            lines[0] = b"".join([*pending, lines[0]])
            pending, size = [], 0
            yield from lines
        pending.append(last)
        size += len(last)
        if size > limit:
            raise at_line(path, 1, "a line does not fit into memory; check the file")
    yield b"".join(pending).rstrip()


def _blocks(lines: Iterator[bytes], first_line: int) -> Iterator[tuple[int, list[bytes]]]:
    """Some lines at a time, with the number of the first."""
    while block := list(itertools.islice(lines, _LINES)):
        yield first_line, block
        first_line += len(block)


def _line_blocks(path: Path, max_bytes: float | None) -> Iterator[tuple[int, list[bytes]]]:
    return _blocks(_lines(path, max_bytes), 1)


def _check_lines(
    path: Path,
    lines: list[bytes],
    is_right: Callable[[bytes], object],
    expected: str,
    first_line: int,
) -> None:
    """Raises for the first line that is not right."""
    if not all(map(is_right, lines)):
        for line, text in enumerate(lines, first_line):
            if not is_right(text):
                raise at_line(path, line, f"{expected}, got {excerpt(text)}")


#: Streams by format: of a path, the number of words where known, and the most bytes to read.
COUNT_STREAMS: dict[str, Callable[[Path, int | None, float | None], CountStream]] = {
    "ldac": stream_ldac,
    "uci": stream_uci,
    "mtx": stream_matrix_market,
}
