"""Readers of word counts in text files: LDA-C, UCI bag of words, Matrix Market."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from torch_lntm.corpus.archive import Archive
from torch_lntm.errors import FileError
from torch_lntm.files.reading import at_line, excerpt, iterate_lines

_NATURAL = r"\d{1,18}"  # fits an int64
# A possessive repetition (*+) takes no memory for each pair.
_LDAC = re.compile(rf"\s*{_NATURAL}(?:\s+{_NATURAL}:{_NATURAL})*+\s*")
_COUNTS = {
    "pattern": "",
    "integer": rf"\s+{_NATURAL}",
    "real": r"\s+\d+(?:\.\d*)?(?:[eE]\+?\d+)?",
}
_MATRIX_MARKET_BANNER = re.compile(
    r"%%MatrixMarket\s+matrix\s+coordinate\s+(pattern|integer|real)\s+general\s*", re.IGNORECASE
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


def no_entries(num_docs: int) -> Entries:
    """The end of documents, without further entries."""
    none = np.empty(0, np.int64)
    return Entries(num_docs, none, none, np.empty(0, np.int8))


@dataclass
class CountStream:
    """Stream of word counts in pieces.

    Attributes:
        pieces: The entries. The iterator can be used once.
        num_words: Number of words; ``None`` to take the largest word plus 1.
        vocabulary: The words, if the file has them.
        metadata: Columns of the file by name, complete after the last piece.
    """

    pieces: Iterator[Entries]
    num_words: int | None
    vocabulary: list[str] | None = None
    metadata: Any = field(default_factory=dict)


def assemble(path: Path, stream: CountStream) -> Archive:
    """Reads all counts of a stream into a matrix, with the metadata."""
    pieces = [no_entries(0), *stream.pieces]
    rows, words, counts = (np.concatenate(arrays) for arrays in list(zip(*pieces, strict=True))[1:])
    num_docs, num_words = pieces[-1].num_docs, stream.num_words
    if num_words is None:
        num_words = int(words.max(initial=-1)) + 1
        check_size(path, num_docs, num_words, words.size, None)
    matrix = sp.coo_matrix((counts, (rows, words)), (num_docs, num_words))
    return Archive(matrix, stream.metadata)


def stream_ldac(path: Path, num_words: int | None, max_bytes: float | None) -> CountStream:
    """Stream of an LDA-C file. A line has the number of distinct words and ``word:count`` pairs."""
    return CountStream(_ldac(path, num_words, max_bytes), num_words)


def _ldac(path: Path, num_words: int | None, max_bytes: float | None) -> Iterator[Entries]:
    expected = "expected 'M word:count word:count ...' with whole numbers from 0 up"
    for first, lines in _blocks(path, _lines(path, max_bytes), 1, _LDAC.fullmatch, expected):
        num_pairs = np.array([line.count(":") for line in lines])
        numbers = np.fromstring("\n".join(lines).replace(":", " "), np.int64, sep=" ")
        heads = np.cumsum(1 + 2 * num_pairs) - (1 + 2 * num_pairs)
        for d in np.flatnonzero(numbers[heads] != num_pairs):
            message = f"announces {numbers[heads[d]]} words and holds {num_pairs[d]}"
            raise at_line(path, int(d) + first, f"{message}; is it truncated?")
        words, counts = np.delete(numbers, heads).reshape(-1, 2).T
        rows = first - 1 + np.repeat(np.arange(len(lines)), num_pairs)
        for i in np.flatnonzero(words >= (np.inf if num_words is None else num_words)):
            message = f"word {words[i]} is not among the {num_words} of the vocabulary"
            raise at_line(path, int(rows[i]) + 1, f"{message} (0 is the first)")
        yield Entries(first - 1 + len(lines), rows, words, counts)


def stream_uci(path: Path, num_words: int | None, max_bytes: float | None) -> CountStream:
    """Stream of a UCI file: lines with D, W and NNZ, then ``document word count`` from 1."""
    lines = _lines(path, max_bytes)
    sizes = []
    for line, what in enumerate(("D", "W", "NNZ"), 1):
        text = next(lines, "")
        if not re.fullmatch(rf"\s*{_NATURAL}\s*", text):
            raise at_line(path, line, f"expected the number {what}, got {excerpt(text)}")
        sizes.append(int(text))
    return _coordinates(path, lines, 4, "integer", sizes, num_words)


def stream_matrix_market(path: Path, num_words: int | None, max_bytes: float | None) -> CountStream:
    """Stream of a Matrix Market file of coordinates.

    scipy's reader is too lenient: it reads ``2.5`` as 2 in a file of integers, and ignores text
    after the count.
    """
    lines = _lines(path, max_bytes)
    first = next(lines, "")
    banner = _MATRIX_MARKET_BANNER.fullmatch(first)
    if banner is None:
        expected = "'%%MatrixMarket matrix coordinate integer general' (or real, or pattern)"
        raise at_line(path, 1, f"expected {expected}, got {excerpt(first)}")
    line, text = 1, "%"
    while not text.strip() or text.startswith("%"):
        line, text = line + 1, next(lines, "end of the file")
    if not re.fullmatch(rf"(\s*{_NATURAL}\s*){{3}}", text):
        message = f"expected the numbers of rows, columns and entries, got {excerpt(text)}"
        raise at_line(path, line, message)
    sizes = [int(number) for number in text.split()]
    return _coordinates(path, lines, line + 1, banner[1].lower(), sizes, num_words)


def _coordinates(
    path: Path,
    lines: Iterator[str],
    first_line: int,
    kind: str,
    sizes: list[int],
    vocabulary_size: int | None,
) -> CountStream:
    """Stream of lines ``row column count`` from 1. Lines of a pattern are ``row column``."""
    num_rows, num_columns, num_entries = sizes
    check_size(path, num_rows, num_columns, num_entries, vocabulary_size)
    is_valid = re.compile(rf"\s*{_NATURAL}\s+{_NATURAL}{_COUNTS[kind]}\s*").fullmatch
    expected = "expected 'document word count' with whole numbers from 0 up"

    def pieces() -> Iterator[Entries]:
        end = first_line
        for first, block in _blocks(path, lines, first_line, is_valid, expected):
            dtype = np.float64 if kind == "real" else np.int64
            numbers = np.fromstring("\n".join(block), dtype, sep=" ").reshape(len(block), -1)
            rows, columns = numbers[:, :2].astype(np.int64).T
            counts = np.ones(len(block)) if kind == "pattern" else numbers[:, 2]
            for what, at, size in (("document", rows, num_rows), ("word", columns, num_columns)):
                for i in np.flatnonzero((at < 1) | (at > size)):
                    message = f"{what} {at[i]} is not among the announced 1 to {size}"
                    raise at_line(path, first + int(i), message)
            for i in np.flatnonzero(counts != np.floor(counts)):
                raise at_line(path, first + int(i), f"expected a whole count, got {counts[i]}")
            # The last document may continue in the next lines.
            yield Entries(int(rows[-1]) - 1, rows - 1, columns - 1, counts)
            end = first + len(block)
        if end - first_line != num_entries:
            message = f"ends after {end - first_line} of {num_entries} announced entries"
            raise at_line(path, end - 1, f"{message}; is it truncated?")
        yield no_entries(num_rows)

    return CountStream(pieces(), num_columns)


def _lines(path: Path, max_bytes: float | None) -> Iterator[str]:
    """Lines of a file without blank lines at the end."""
    blank = 0
    for line in iterate_lines(path, "latin-1", max_bytes):
        if line.strip():
            yield from itertools.repeat("", blank)
            yield line
        blank = 0 if line.strip() else blank + 1


def _blocks(
    path: Path,
    lines: Iterator[str],
    first_line: int,
    is_valid: Callable[[str], object],
    expected: str,
) -> Iterator[tuple[int, list[str]]]:
    """Blocks of valid lines, each with the number of its first line."""
    while block := list(itertools.islice(lines, _LINES)):
        if not all(map(is_valid, block)):
            i = next(i for i, line in enumerate(block) if not is_valid(line))
            raise at_line(path, first_line + i, f"{expected}, got {excerpt(block[i])}")
        yield first_line, block
        first_line += len(block)


#: Functions by format that make a stream from a path, the number of words (``None`` if unknown) and
#: the maximum number of bytes.
COUNT_STREAMS: dict[str, Callable[[Path, int | None, float | None], CountStream]] = {
    "ldac": stream_ldac,
    "uci": stream_uci,
    "mtx": stream_matrix_market,
}
