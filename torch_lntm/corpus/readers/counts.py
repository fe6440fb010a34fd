"""Readers of word counts: NumPy archives, LDA-C, UCI bag of words, Matrix Market."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from torch_lntm.corpus.archive import Archive, read_archive
from torch_lntm.errors import CorpusError
from torch_lntm.files import at_line, excerpt, read_bytes

_NATURAL = rb"\d{1,18}"  # fits an int64
_LDAC_LINE = re.compile(rb"\s*%s(?:\s+%s:%s)*\s*" % (_NATURAL, _NATURAL, _NATURAL))
_COORDINATES = rb"\s*%s\s+%s" % (_NATURAL, _NATURAL)
_COORDINATE_LINES = {
    "pattern": re.compile(_COORDINATES + rb"\s*"),
    "integer": re.compile(_COORDINATES + rb"\s+%s\s*" % _NATURAL),
    "real": re.compile(_COORDINATES + rb"\s+\d+(?:\.\d*)?(?:[eE]\+?\d+)?\s*"),
}
_MATRIX_MARKET_BANNER = re.compile(
    rb"%%MatrixMarket\s+matrix\s+coordinate\s+(pattern|integer|real)\s+general\s*", re.IGNORECASE
)
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
        CorpusError: A size is out of proportion to the entries, or is not the vocabulary's.
    """
    most = max(_FREE_SIZE, _SIZE_PER_ENTRY * num_entries)
    for what, size, known in (("documents", num_docs, None), ("words", num_words, num_known)):
        if size > most and size != known:
            raise CorpusError(
                f"{path}: {size} {what} are out of proportion to its {num_entries} entries; check "
                "the file" + (", or give its vocabulary" if what == "words" else "")
            )


def read_npz(path: Path, num_words: int | None, max_bytes: int | None) -> Archive:
    """The arrays of a scipy CSR matrix, and the metadata that ``Corpus.save`` puts beside them."""
    archive = read_archive(path, max_bytes)
    matrix = archive.matrix
    check_size(path, matrix.shape[0], matrix.shape[1], matrix.nnz, num_words)
    return archive


def read_ldac(path: Path, num_words: int | None, max_bytes: int | None) -> Archive:
    """LDA-C: each line has the number of distinct words, then ``word:count`` pairs."""
    data = _read_rows(path, max_bytes)
    lines = data.split(b"\n")
    expected = "expected 'M word:count word:count ...' with whole numbers from 0 up"
    _check_lines(path, lines, _LDAC_LINE, expected, first_line=1)
    num_pairs = np.array([line.count(b":") for line in lines])
    numbers = np.fromstring(data.replace(b":", b" "), np.int64, sep=" ")
    heads = np.cumsum(1 + 2 * num_pairs) - (1 + 2 * num_pairs)
    wrong = np.flatnonzero(numbers[heads] != num_pairs)
    if wrong.size:
        d = wrong[0]
        message = f"announces {numbers[heads[d]]} words and holds {num_pairs[d]}; is it truncated?"
        raise at_line(path, int(d) + 1, message)
    words, counts = np.delete(numbers, heads).reshape(-1, 2).T
    rows = np.repeat(np.arange(len(lines)), num_pairs)
    if num_words is None:
        num_words = int(words.max(initial=-1)) + 1
        check_size(path, len(lines), num_words, len(words), None)
    outside = np.flatnonzero(words >= num_words)
    if outside.size:
        i = outside[0]
        message = f"word {words[i]} is not among the {num_words} of the vocabulary (0 is the first)"
        raise at_line(path, int(rows[i]) + 1, message)
    return Archive(sp.coo_matrix((counts, (rows, words)), (len(lines), num_words)))


def read_uci(path: Path, num_words: int | None, max_bytes: int | None) -> Archive:
    """UCI: lines with D, W and the number of entries, then ``document word count`` from 1."""
    lines = _read_rows(path, max_bytes).split(b"\n")
    for line, what in enumerate(("D", "W", "NNZ"), 1):
        text = lines[line - 1] if line <= len(lines) else b""
        if not re.fullmatch(rb"\s*%s\s*" % _NATURAL, text):
            raise at_line(path, line, f"expected the number {what}, got {excerpt(text)}")
    return _coordinates(path, lines[3:], 4, "integer", b" ".join(lines[:3]), num_words)


def read_matrix_market(path: Path, num_words: int | None, max_bytes: int | None) -> Archive:
    """Matrix Market coordinates.

    Scipy's reader is not used here. It takes ``2.5`` for 2 in a file of integers, and overlooks
    what follows the count on a line.
    """
    lines = _read_rows(path, max_bytes).split(b"\n")
    banner = _MATRIX_MARKET_BANNER.fullmatch(lines[0])
    if banner is None:
        raise at_line(
            path,
            1,
            "expected '%%MatrixMarket matrix coordinate integer general' (or real, or pattern), "
            f"got {excerpt(lines[0])}",
        )
    size = 1
    while size < len(lines) and (lines[size].startswith(b"%") or not lines[size].strip()):
        size += 1
    text = lines[size] if size < len(lines) else b""
    if not _COORDINATE_LINES["integer"].fullmatch(text):
        message = f"expected the numbers of rows, columns and entries, got {excerpt(text)}"
        raise at_line(path, size + 1, message)
    field = banner[1].decode().lower()
    return _coordinates(path, lines[size + 1 :], size + 2, field, text, num_words)


def _coordinates(
    path: Path,
    lines: list[bytes],
    first_line: int,
    field: str,
    size: bytes,
    num_known: int | None,
) -> Archive:
    """The matrix of lines ``row column count`` (of a pattern, ``row column``), counted from 1."""
    num_rows, num_columns, num_entries = map(int, size.split())
    expected = "expected 'document word count' with whole numbers from 0 up"
    _check_lines(path, lines, _COORDINATE_LINES[field], expected, first_line)
    if len(lines) != num_entries:
        message = f"ends after {len(lines)} of {num_entries} announced entries"
        raise at_line(path, first_line + len(lines) - 1, f"{message}; is it truncated?")
    check_size(path, num_rows, num_columns, num_entries, num_known)
    dtype = np.float64 if field == "real" else np.int64
    columns_per_line = 2 if field == "pattern" else 3
    entries = np.fromstring(b"\n".join(lines), dtype, sep=" ").reshape(-1, columns_per_line)
    rows, columns = entries[:, 0].astype(np.int64), entries[:, 1].astype(np.int64)
    counts = np.ones(num_entries) if field == "pattern" else entries[:, 2]
    for what, position, size_ in (("document", rows, num_rows), ("word", columns, num_columns)):
        outside = np.flatnonzero((position < 1) | (position > size_))
        if outside.size:
            i = int(outside[0])
            message = f"{what} {position[i]} is not among the announced 1 to {size_}"
            raise at_line(path, first_line + i, message)
    fractional = np.flatnonzero(counts != np.floor(counts))
    if fractional.size:
        i = int(fractional[0])
        raise at_line(path, first_line + i, f"expected a whole count, got {counts[i]}")
    return Archive(sp.coo_matrix((counts, (rows - 1, columns - 1)), (num_rows, num_columns)))


def _read_rows(path: Path, max_bytes: int | None) -> bytes:
    """The bytes of a file without blank lines at its end; lines may end as on old Macs."""
    data = read_bytes(path, max_bytes).rstrip()
    return data if b"\n" in data else data.replace(b"\r", b"\n")


def _check_lines(
    path: Path, lines: list[bytes], pattern: re.Pattern[bytes], expected: str, first_line: int
) -> None:
    """Raises for the first line that does not match."""
    if not all(map(pattern.fullmatch, lines)):
        for line, text in enumerate(lines, first_line):
            if not pattern.fullmatch(text):
                raise at_line(path, line, f"{expected}, got {excerpt(text)}")


#: Readers by format: of a path, the number of words where known, and the most bytes to read.
COUNT_READERS = {
    "npz": read_npz,
    "ldac": read_ldac,
    "uci": read_uci,
    "mtx": read_matrix_market,
}
