"""Readers of word counts: LDA-C, UCI bag of words and Matrix Market."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from torch_lntm.corpus.corpus import Corpus
from torch_lntm.corpus.readers.texts import Options
from torch_lntm.errors import FileError
from torch_lntm.files.reading import at_line, excerpt, iterate_lines

_NATURAL = r"\d{1,18}"  # fits an int64
# A possessive repetition (*+) needs no memory per pair.
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
# Any file may announce _FREE_SIZE documents or words, and larger ones _SIZE_PER_ENTRY per entry.
_FREE_SIZE, _SIZE_PER_ENTRY = 1 << 20, 100


#: Documents, words and counts of the entries of some lines, each ``(num_entries,)``.
Entries = tuple[NDArray[np.integer], NDArray[np.integer], NDArray[Any]]


def _corpus_of(
    path: Path,
    options: Options,
    pieces: Iterable[Entries],
    num_docs: int,
    num_words: int | None = None,
) -> Corpus:
    """Corpus of all entries of a file.

    Args:
        path: The file.
        options: Options of reading. A vocabulary confirms the number of words.
        pieces: The entries, in any order.
        num_docs: Number of documents.
        num_words: Announced number of words. Defaults to that of the vocabulary, or to the largest
            word plus 1.

    Raises:
        FileError: A word is negative or beyond the vocabulary, or a size is out of proportion to
            the file, so that it would take all memory.
        CorpusError: A count is invalid.
    """
    nothing = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int8))
    rows, words, counts = map(np.concatenate, zip(nothing, *pieces, strict=True))
    width = num_words or options.num_words or max(1, int(words.max(initial=-1)) + 1)
    for i in np.flatnonzero((words < 0) | (words >= width)):
        raise FileError(
            f"{path}: document {rows[i]}, counted from 0, has the word {words[i]}; expected a "
            f"number from 0 to below {width}, the size of the vocabulary"
        )
    check_size(path, words.size, num_docs, width if options.num_words is None else 0)
    return Corpus.from_matrix(sp.coo_matrix((counts, (rows, words)), (num_docs, width)))


def check_size(path: Path, num_entries: int, num_docs: int, num_words: int = 0) -> None:
    """Refuses a header whose sizes are far larger than the file, since they could exhaust memory.

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


def read_ldac(path: Path, options: Options) -> Corpus:
    """Reads LDA-C, whose lines hold the number of distinct words and then ``word:count`` pairs."""
    expected = "expected 'M word:count word:count ...' with whole numbers from 0 up"
    pieces, num_docs = [], 0
    for first, lines in _blocks(path, _lines(path, options), _LDAC, expected):
        num_pairs = np.array([line.count(":") for line in lines])
        numbers = np.fromstring("\n".join(lines).replace(":", " "), np.int64, sep=" ")
        heads = np.cumsum(1 + 2 * num_pairs) - (1 + 2 * num_pairs)
        for d in np.flatnonzero(numbers[heads] != num_pairs):
            message = f"announces {numbers[heads[d]]} words and holds {num_pairs[d]}"
            raise at_line(path, first + int(d), f"{message}; is it truncated?")
        words, counts = np.delete(numbers, heads).reshape(-1, 2).T
        pieces.append((num_docs + np.repeat(np.arange(len(lines)), num_pairs), words, counts))
        num_docs += len(lines)
    return _corpus_of(path, options, pieces, num_docs)


def read_uci(path: Path, options: Options) -> Corpus:
    """Reads UCI bags of words: lines with D, W and NNZ, then ``document word count`` from 1."""
    lines = _lines(path, options)
    sizes = []
    for line, what in enumerate(("D", "W", "NNZ"), 1):
        _, text = next(lines, (line, ""))
        if not re.fullmatch(rf"\s*{_NATURAL}\s*", text):
            raise at_line(path, line, f"expected the number {what}, got {excerpt(text)}")
        sizes.append(int(text))
    return _coordinates(path, options, lines, "integer", sizes)


def read_matrix_market(path: Path, options: Options) -> Corpus:
    """Reads Matrix Market coordinates.

    scipy has a reader too, but it is too lenient: it reads ``2.5`` as 2 in a file of integers, and
    ignores any text after the count.
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
    sizes = [int(size) for size in text.split()]
    return _coordinates(path, options, lines, banner[1].lower(), sizes)


def _coordinates(
    path: Path, options: Options, lines: Iterator[tuple[int, str]], kind: str, sizes: list[int]
) -> Corpus:
    """Reads lines ``row column count``, from 1, or ``row column`` in a file of patterns."""
    num_docs, num_words, num_entries = sizes
    pattern = re.compile(rf"\s*{_NATURAL}\s+{_NATURAL}{_COUNTS[kind]}\s*")
    expected = "expected 'document word count' with whole numbers from 0 up"
    pieces, found = [], 0
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
        pieces.append((rows, words, counts))
    if found != num_entries:
        message = f"{found} entries, and announces {num_entries}; is it truncated?"
        raise FileError(f"{path}: holds {message}")
    return _corpus_of(path, options, pieces, num_docs, num_words)


def _lines(path: Path, options: Options) -> Iterator[tuple[int, str]]:
    """Numbered lines of a file without blank lines at the end."""
    blank: list[tuple[int, str]] = []
    for line in enumerate(iterate_lines(path, "latin-1"), 1):
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
