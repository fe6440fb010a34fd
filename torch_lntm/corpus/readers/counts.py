"""Readers of word counts: LDA-C, UCI bag of words and Matrix Market."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp
from numpy.typing import NDArray

from torch_lntm.corpus.archive import read_arrays
from torch_lntm.corpus.corpus import Corpus
from torch_lntm.corpus.readers.texts import Options
from torch_lntm.errors import FileError
from torch_lntm.files.reading import at_line, iterate_lines, open_bytes, read_errors

_NATURAL = r"\d{1,18}"  # fits an int64
# A possessive repetition (*+) needs no memory per pair.
_LDAC = re.compile(rf"\s*{_NATURAL}(?:\s+{_NATURAL}:{_NATURAL})*+\s*")
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


def read_npz(path: Path, options: Options) -> Corpus:
    """Reads the file of scipy's ``save_npz``.

    Raises:
        FileError: The file is damaged, or holds a matrix of another format.
    """
    names = ("data", "indices", "indptr", "shape")
    arrays = read_arrays(path, *names, optional=("format",))
    if str(arrays.get("format", np.array(b"csr")).astype("U")) != "csr":
        raise FileError(f"{path}: expected a CSR matrix, got {arrays['format']}; save .tocsr()")
    with read_errors(path, "the matrix is malformed; save it again", Exception):
        data, indices, indptr, shape = (arrays[name] for name in names)
        if {indices.dtype.kind, indptr.dtype.kind, shape.dtype.kind} - {"i", "u"}:
            raise ValueError("indices, indptr and shape must be integers")
        matrix = sp.csr_matrix((data, indices, indptr), tuple(shape.tolist()))
        if indptr[-1] != data.size:
            raise ValueError(f"indptr ends with {indptr[-1]}, and there are {data.size} entries")
    return Corpus.from_matrix(matrix)


def read_ldac(path: Path, options: Options) -> Corpus:
    """Reads LDA-C, whose lines hold the number of distinct words and then ``word:count`` pairs."""
    expected = "expected 'M word:count word:count ...' with whole numbers from 0 up"
    lines, pieces, num_docs = _lines(path), [], 0
    while block := list(itertools.islice(lines, _LINES)):
        for number, line in enumerate(block, num_docs + 1):
            if not _LDAC.fullmatch(line):
                raise at_line(path, number, f"{expected}, got {line!r:.60}")
        num_pairs = np.array([line.count(":") for line in block])
        numbers = np.fromstring("\n".join(block).replace(":", " "), np.int64, sep=" ")
        heads = np.cumsum(1 + 2 * num_pairs) - (1 + 2 * num_pairs)
        for d in np.flatnonzero(numbers[heads] != num_pairs):
            message = f"announces {numbers[heads[d]]} words and holds {num_pairs[d]}"
            raise at_line(path, num_docs + 1 + int(d), f"{message}; is it truncated?")
        words, counts = np.delete(numbers, heads).reshape(-1, 2).T
        pieces.append((num_docs + np.repeat(np.arange(len(block)), num_pairs), words, counts))
        num_docs += len(block)
    return _corpus_of(path, options, pieces, num_docs)


def read_uci(path: Path, options: Options) -> Corpus:
    """Reads UCI bags of words: lines with D, W and NNZ, then ``document word count`` from 1."""
    with open_bytes(path) as file:
        sizes = b" ".join(file.readline().strip() for _ in range(3))
        # With this header it is a file of Matrix Market, whose lines keep their numbers.
        header = b"%%MatrixMarket matrix coordinate real general\n%\n" + sizes + b"\n"
        return _by_scipy(path, options, header, file)


def read_matrix_market(path: Path, options: Options) -> Corpus:
    """Reads Matrix Market coordinates."""
    with open_bytes(path) as file:
        # Among integers scipy would read 2.5 as 2.
        header = re.sub(b"integer", b"real", file.readline(), flags=re.IGNORECASE)
        return _by_scipy(path, options, header, file)


def _by_scipy(path: Path, options: Options, header: bytes, file: Any) -> Corpus:
    """Corpus of the first lines of a file of Matrix Market, and of a file of its other lines."""
    first = iter([header])
    stream = SimpleNamespace(read=lambda size: next(first, b"") or file.read(size))
    with read_errors(path, "not a complete file of counts", Exception):
        matrix = sp.coo_matrix(scipy.io.mmread(stream))
    return _corpus_of(path, options, [(matrix.row, matrix.col, matrix.data)], *matrix.shape)


def _lines(path: Path) -> Iterator[str]:
    """Lines of a file without blank lines at the end."""
    num_blank = 0
    for line in iterate_lines(path, "latin-1"):
        if line.strip():
            yield from [""] * num_blank
            yield line
        num_blank = 0 if line.strip() else num_blank + 1
