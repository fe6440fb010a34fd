"""Readers of word counts: LDA-C, UCI bag of words and Matrix Market.

A reader of counts yields :class:`Entries`: the counts of consecutive documents, in pieces.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray

from torch_lntm.corpus.readers.texts import Options
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
_BANNER = re.compile(
    r"%%MatrixMarket\s+matrix\s+coordinate\s+(pattern|integer|real)\s+general\s*", re.IGNORECASE
)
#: Lines per reading step.
_LINES = 1 << 15
# Any file may have _FREE_SIZE documents or words, larger files _SIZE_PER_ENTRY for each entry.
_FREE_SIZE, _SIZE_PER_ENTRY = 1 << 20, 100


class Entries(NamedTuple):
    """Consecutive entries of a file.

    Attributes:
        num_docs: Number of documents that are complete with these entries.
        rows: ``(num_entries,)`` document of each entry, counted from 0.
        words: ``(num_entries,)`` word of each entry, counted from 0.
        counts: ``(num_entries,)`` tokens of each entry.
        num_words: Number of words; ``None`` to take the largest word plus 1.
        vocabulary: The words, if the file has them.
        metadata: A row for each document of the entries, if the file has columns.
    """

    num_docs: int
    rows: NDArray[np.int64]
    words: NDArray[np.int64]
    counts: NDArray[Any]
    num_words: int | None = None
    vocabulary: list[str] | None = None
    metadata: pd.DataFrame | None = None

    @property
    def width(self) -> int:
        """Number of words as far as it is known."""
        return int(self.words.max(initial=-1)) + 1 if self.num_words is None else self.num_words

    def matrix(self, num_words: int) -> sp.coo_matrix:
        """The counts as a matrix ``(num_docs, num_words)`` of at least one column."""
        entries = (self.counts, (self.rows, self.words))
        return sp.coo_matrix(entries, (self.num_docs, max(1, num_words)))


#: No documents yet.
NOTHING = Entries(0, np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int8))


def joined(pieces: Iterable[Entries]) -> Entries:
    """All entries of a file."""
    found = [NOTHING, *pieces]
    rows, words, counts = (np.concatenate(arrays) for arrays in list(zip(*found, strict=True))[1:4])
    tables = [piece.metadata for piece in found if piece.metadata is not None]
    table = pd.concat(tables, ignore_index=True) if tables else None
    return found[-1]._replace(rows=rows, words=words, counts=counts, metadata=table)


def in_order(path: Path, pieces: Iterable[Entries]) -> Iterator[Entries]:
    """Pieces of complete documents in order, which count only the documents of the piece.

    Raises:
        FileError: The documents are out of order.
    """
    first, rest = 0, NOTHING[1:4]
    for piece in pieces:
        rows, words, counts = map(np.concatenate, zip(rest, piece[1:4], strict=True))
        if rows.size and (rows[0] < first or (rows[1:] < rows[:-1]).any()):
            raise FileError(
                f"{path}: the documents are not in order; sort the lines by document, or read the "
                "file by read_corpus, which takes more memory, and save the corpus"
            )
        done = int(np.searchsorted(rows, piece.num_docs))
        rest = (rows[done:], words[done:], counts[done:])
        if piece.num_docs > first:
            whole = (rows[:done] - first, words[:done], counts[:done])
            yield Entries(piece.num_docs - first, *whole, *piece[4:])
            first = piece.num_docs


def check_words(path: Path, pieces: Iterable[Entries]) -> Iterator[Entries]:
    """The pieces of a file, whose words are checked.

    Raises:
        FileError: A word is negative or beyond the vocabulary.
    """
    for piece in pieces:
        most = np.inf if piece.num_words is None else piece.num_words
        for i in np.flatnonzero((piece.words < 0) | (piece.words >= most)):
            raise FileError(
                f"{path}: document {piece.rows[i]} has the word {piece.words[i]}; expected a "
                f"number from 0 to below {most}, the size of the vocabulary"
            )
        yield piece


def check_size(path: Path, num_entries: int, num_docs: int, num_words: int = 0) -> None:
    """Refuses announced sizes far larger than the file, which would take all memory.

    Args:
        path: The file.
        num_entries: Number of entries in the file.
        num_docs: Announced number of documents.
        num_words: Announced number of words, if no vocabulary confirms it.

    Raises:
        FileError: A size is out of proportion to the entries.
    """
    for size, what in ((num_docs, "documents"), (num_words, "words")):
        if size > max(_FREE_SIZE, _SIZE_PER_ENTRY * num_entries):
            raise FileError(
                f"{path}: {size} {what} are out of proportion to its {num_entries} entries; check "
                "the file" + (", or give its vocabulary" if what == "words" else "")
            )


def read_ldac(path: Path, options: Options) -> Iterator[Entries]:
    """LDA-C. A line has the number of distinct words and ``word:count`` pairs."""
    expected = "expected 'M word:count word:count ...' with whole numbers from 0 up"
    for first, lines in _blocks(path, _lines(path, options), _LDAC, expected):
        num_pairs = np.array([line.count(":") for line in lines])
        numbers = np.fromstring("\n".join(lines).replace(":", " "), np.int64, sep=" ")
        heads = np.cumsum(1 + 2 * num_pairs) - (1 + 2 * num_pairs)
        for d in np.flatnonzero(numbers[heads] != num_pairs):
            message = f"announces {numbers[heads[d]]} words and holds {num_pairs[d]}"
            raise at_line(path, first + int(d), f"{message}; is it truncated?")
        words, counts = np.delete(numbers, heads).reshape(-1, 2).T
        rows = first - 1 + np.repeat(np.arange(len(lines)), num_pairs)
        yield Entries(first - 1 + len(lines), rows, words, counts, options.num_words)


def read_uci(path: Path, options: Options) -> Iterator[Entries]:
    """UCI: lines with D, W and NNZ, then ``document word count`` from 1."""
    lines = _lines(path, options)
    sizes = []
    for line, what in enumerate(("D", "W", "NNZ"), 1):
        _, text = next(lines, (line, ""))
        if not re.fullmatch(rf"\s*{_NATURAL}\s*", text):
            raise at_line(path, line, f"expected the number {what}, got {excerpt(text)}")
        sizes.append(int(text))
    return _coordinates(path, lines, "integer", sizes)


def read_matrix_market(path: Path, options: Options) -> Iterator[Entries]:
    """Matrix Market coordinates.

    scipy's reader is too lenient: it reads ``2.5`` as 2 in a file of integers, and ignores text
    after the count.
    """
    lines = _lines(path, options)
    line, text = next(lines, (1, ""))
    banner = _BANNER.fullmatch(text)
    if banner is None:
        expected = "'%%MatrixMarket matrix coordinate integer general' (or real, or pattern)"
        raise at_line(path, 1, f"expected {expected}, got {excerpt(text)}")
    while not text.strip() or text.startswith("%"):
        line, text = next(lines, (line + 1, "end of the file"))
    if not re.fullmatch(rf"(\s*{_NATURAL}\s*){{3}}", text):
        message = f"expected the numbers of rows, columns and entries, got {excerpt(text)}"
        raise at_line(path, line, message)
    return _coordinates(path, lines, banner[1].lower(), [int(size) for size in text.split()])


def _coordinates(
    path: Path, lines: Iterator[tuple[int, str]], kind: str, sizes: list[int]
) -> Iterator[Entries]:
    """Lines ``row column count`` from 1. Lines of a pattern are ``row column``."""
    num_docs, num_words, num_entries = sizes
    pattern = re.compile(rf"\s*{_NATURAL}\s+{_NATURAL}{_COUNTS[kind]}\s*")
    expected = "expected 'document word count' with whole numbers from 0 up"
    line, found = 0, 0
    for line, block in _blocks(path, lines, pattern, expected):
        dtype = np.float64 if kind == "real" else np.int64
        numbers = np.fromstring("\n".join(block), dtype, sep=" ").reshape(len(block), -1)
        places = numbers[:, :2].astype(np.int64)
        for i in np.flatnonzero(((places < 1) | (places > sizes[:2])).any(1)):
            message = f"expected a document from 1 to {num_docs} and a word from 1 to {num_words}"
            raise at_line(path, line + int(i), f"{message}, got {excerpt(block[i])}")
        rows, words = places.T - 1
        counts = np.ones(len(block)) if kind == "pattern" else numbers[:, 2]
        found += len(block)
        # The last document may continue in the next lines.
        yield Entries(int(rows[-1]), rows, words, counts, num_words)
    if found != num_entries:
        message = f"{found} entries, and announces {num_entries}; is it truncated?"
        raise FileError(f"{path}: holds {message}")
    yield NOTHING._replace(num_docs=num_docs, num_words=num_words)


def _lines(path: Path, options: Options) -> Iterator[tuple[int, str]]:
    """Numbered lines of a file without blank lines at the end."""
    blank: list[tuple[int, str]] = []
    for line in enumerate(iterate_lines(path, "latin-1", options.max_bytes), 1):
        if not line[1].strip():
            blank.append(line)
            continue
        yield from blank
        yield line
        blank = []


def _blocks(
    path: Path, lines: Iterator[tuple[int, str]], pattern: re.Pattern[str], expected: str
) -> Iterator[tuple[int, list[str]]]:
    """Blocks of lines of a pattern, each with the number of its first line."""
    while block := list(itertools.islice(lines, _LINES)):
        for line, text in block:
            if not pattern.fullmatch(text):
                raise at_line(path, line, f"{expected}, got {excerpt(text)}")
        yield block[0][0], [text for _, text in block]
