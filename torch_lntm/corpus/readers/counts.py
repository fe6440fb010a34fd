"""Readers of word counts in text files: LDA-C, UCI bag of words, Matrix Market."""

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
from torch_lntm.errors import FileError
from torch_lntm.files import at_line, check_proportion, excerpt, read_pieces, readable_bytes

_NATURAL = rb"\d{1,18}"  # fits an int64
_LDAC_HEAD = re.compile(rb"\s*%s" % _NATURAL)
# At most 4096 pairs per match, because each repetition takes 200 bytes of memory.
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
#: Lines per reading step.
_LINES = 1 << 15
# Any file may announce _FREE_SIZE documents or words, larger files _SIZE_PER_ENTRY per entry.
_FREE_SIZE, _SIZE_PER_ENTRY = 1 << 20, 100


def check_size(
    path: Path, num_docs: int, num_words: int, num_entries: int, vocabulary_size: int | None
) -> None:
    """Refuses announced sizes far larger than the file.

    A damaged file could otherwise take all memory.

    Args:
        path: The file.
        num_docs: Announced number of documents.
        num_words: Announced number of words.
        num_entries: Number of entries in the file.
        vocabulary_size: Size of the file's vocabulary, if any.

    Raises:
        FileError: A size is out of proportion to the entries and differs from the vocabulary's.
    """
    limit = max(_FREE_SIZE, _SIZE_PER_ENTRY * num_entries)
    sizes = (("documents", num_docs, None), ("words", num_words, vocabulary_size))
    for what, size, trusted_size in sizes:
        if size > limit and size != trusted_size:
            raise FileError(
                f"{path}: {size} {what} are out of proportion to its {num_entries} entries; check "
                "the file" + (", or give its vocabulary" if what == "words" else "")
            )


class Entries(NamedTuple):
    """Consecutive entries of a file.

    Attributes:
        num_docs: Number of documents completed by these entries.
        rows: ``(num_entries,)`` document of each entry, counted from 0.
        words: ``(num_entries,)`` word of each entry, counted from 0.
        counts: ``(num_entries,)`` tokens of each entry.
    """

    num_docs: int
    rows: NDArray[np.int64]
    words: NDArray[np.int64]
    counts: NDArray[Any]


@dataclass
class CountStream:
    """Stream of word counts in pieces.

    Attributes:
        pieces: The entries. The iterator can be used once.
        num_docs: Number of documents; ``None`` to take it from the last piece.
        num_words: Number of words; ``None`` to take the largest word plus 1.
        vocabulary: The words, if the file has them.
        metadata: Columns of the file by name, complete after the last piece.
    """

    pieces: Iterator[Entries]
    num_docs: int | None
    num_words: int | None
    vocabulary: list[str] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


def assemble(path: Path, stream: CountStream) -> Archive:
    """Reads all counts of a stream into a matrix, with the metadata."""
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
    return Archive(matrix, stream.metadata)


def stream_ldac(path: Path, num_words: int | None, max_bytes: float | None) -> CountStream:
    """Stream of an LDA-C file. A line has the number of distinct words and ``word:count`` pairs."""
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
    """Whether a line is a number followed by pairs of numbers."""
    end, match = 0, _LDAC_HEAD.match(line)
    while match:
        end = match.end()
        match = _LDAC_PAIRS.match(line, end)
    return end > 0 and not line[end:].strip()


def stream_uci(path: Path, num_words: int | None, max_bytes: float | None) -> CountStream:
    """Stream of a UCI file: lines with D, W and NNZ, then ``document word count`` from 1."""
    lines = _lines(path, max_bytes)
    sizes = []
    for line, what in enumerate(("D", "W", "NNZ"), 1):
        text = next(lines, b"")
        if not re.fullmatch(rb"\s*%s\s*" % _NATURAL, text):
            raise at_line(path, line, f"expected the number {what}, got {excerpt(text)}")
        sizes.append(int(text))
    return _coordinates(path, _blocks(lines, 4), 4, "integer", sizes, num_words)


def stream_matrix_market(path: Path, num_words: int | None, max_bytes: float | None) -> CountStream:
    """Stream of a Matrix Market file of coordinates.

    scipy's reader is too lenient: it reads ``2.5`` as 2 in a file of integers, and ignores text
    after the count.
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
    for line, text in enumerate(lines, 2):  # noqa: B007 - up to the first line of content
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
    vocabulary_size: int | None,
) -> CountStream:
    """Stream of lines ``row column count`` from 1. Lines of a pattern are ``row column``."""
    num_rows, num_columns, num_entries = sizes
    check_size(path, num_rows, num_columns, num_entries, vocabulary_size)

    def pieces() -> Iterator[Entries]:
        num_lines = 0
        for line, lines in blocks:
            yield _entries(path, lines, line, kind, num_rows, num_columns)
            num_lines += len(lines)
        if num_lines != num_entries:
            message = f"ends after {num_lines} of {num_entries} announced entries"
            raise at_line(path, first_line + num_lines - 1, f"{message}; is it truncated?")

    return CountStream(pieces(), num_rows, num_columns)


def _entries(
    path: Path, lines: list[bytes], first_line: int, kind: str, num_rows: int, num_columns: int
) -> Entries:
    """Entries of lines of coordinates."""
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
    # The last document may continue in the next lines.
    return Entries(int(rows[-1]) - 1, rows - 1, columns - 1, counts)


def _lines(path: Path, max_bytes: float | None) -> Iterator[bytes]:
    """Lines of a file without blank lines at the end. Line ends of old Macs are accepted."""
    blank = 0
    for line in _raw_lines(path, max_bytes):
        if not line.strip():
            blank += 1
            continue
        yield from itertools.repeat(b"", blank)
        blank = 0
        yield line


def _raw_lines(path: Path, max_bytes: float | None) -> Iterator[bytes]:
    """Lines of a file, including an unfinished last line."""
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
    """Blocks of lines, each with the number of its first line."""
    while block := list(itertools.islice(lines, _LINES)):
        yield first_line, block
        first_line += len(block)


def _line_blocks(path: Path, max_bytes: float | None) -> Iterator[tuple[int, list[bytes]]]:
    return _blocks(_lines(path, max_bytes), 1)


def _check_lines(
    path: Path,
    lines: list[bytes],
    is_valid: Callable[[bytes], object],
    expected: str,
    first_line: int,
) -> None:
    """Raises an error for the first invalid line."""
    if not all(map(is_valid, lines)):
        for line, text in enumerate(lines, first_line):
            if not is_valid(text):
                raise at_line(path, line, f"{expected}, got {excerpt(text)}")


#: Functions by format that make a stream from a path, the number of words (``None`` if unknown) and
#: the maximum number of bytes.
COUNT_STREAMS: dict[str, Callable[[Path, int | None, float | None], CountStream]] = {
    "ldac": stream_ldac,
    "uci": stream_uci,
    "mtx": stream_matrix_market,
}
