"""Readers of files of word vectors, which parse only the vectors that are asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from torch_lntm.errors import FileError
from torch_lntm.files.reading import at_line, open_bytes

#: A word of a source, and a function that returns its vector.
Word = tuple[str, Callable[[], Any]]
_SIZES = re.compile(rb"(\d{1,12}) (\d{1,6})\s*")
_NUMBER = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|[-+]?(nan|inf)", re.IGNORECASE)
_PIECE = 1 << 20
#: First bytes of files that are refused.
_OTHERS = {
    b"PK": "is a zip archive; unpack it and give one of its files",
    b"\x80": "is a pickle, which may run code; load it by its library and give the KeyedVectors",
    b"\x93NUMPY": "is an array without words; give a dict of words and their vectors in Python",
    b"\xba\x16\x4f\x2f": "is a model of fastText, with parts of words; give its .vec file",
}


def read_words(path: Path) -> Iterator[Word]:
    """Yields all words of a file of vectors; see :func:`~torch_lntm.corpus.read_vectors`.

    Raises:
        FileError: The file is missing, damaged, incomplete or of another format.
    """
    with open_bytes(path) as file:
        first = file.readline().removeprefix(b"\xef\xbb\xbf")
        second = file.readline()
        for start, advice in _OTHERS.items():
            if first.startswith(start):
                raise FileError(f"{path}: {advice}")
        sizes = _SIZES.fullmatch(first)
        num_words, dimension = map(int, sizes.groups()) if sizes else (0, _count_numbers(first))
        if not dimension:
            raise _damaged(path, 1, first, "its numbers, separated by spaces")
        is_text = not sizes or _count_numbers(second) >= dimension
        if is_text:
            lines = enumerate(chain([second] if sizes else [first, second], file), 1 + bool(sizes))
            yield from _text(path, lines, num_words, dimension)
        else:
            pieces = chain([second], iter(partial(file.read1, _PIECE), b""))
            yield from _binary(path, pieces, num_words, dimension)


def _text(
    path: Path, lines: Iterable[tuple[int, bytes]], num_words: int, dimension: int
) -> Iterator[Word]:
    """Words of a text file. Words may hold spaces."""
    count = 0
    for number, line in lines:
        line = line.rstrip()
        if line.count(b" ") == dimension:  # the common case, and the fast one
            word = line[: line.index(b" ")]
        elif line:
            word, *numbers = line.rsplit(None, dimension)
            if len(numbers) < dimension:
                raise _damaged(path, number, line, f"{dimension} numbers")
        else:
            continue
        count += 1
        yield word.decode("utf-8", "replace"), partial(_numbers, path, number, line, dimension)
    if count < num_words:
        raise _incomplete(path, count, num_words)


def _numbers(path: Path, number: int, line: bytes, dimension: int) -> list[float]:
    """The numbers of a line."""
    try:
        return [float(field) for field in line.rsplit(None, dimension)[1:]]
    except ValueError as error:
        raise _damaged(path, number, line, f"{dimension} numbers") from error


def _binary(path: Path, pieces: Iterator[bytes], num_words: int, dimension: int) -> Iterator[Word]:
    """Words of a binary file of word2vec: each word, a space, and single-precision numbers."""
    data, start, size = b"", 0, 4 * dimension
    for count in range(num_words):
        while (space := data.find(b" ", start)) < 0 or len(data) < space + 1 + size:
            piece = next(pieces, b"")
            if not piece:
                raise _incomplete(path, count, num_words)
            data, start = data[start:] + piece, 0
        word = data[start:space].lstrip(b"\n").decode("utf-8", "replace")
        yield word, partial(np.frombuffer, data, "<f4", dimension, space + 1)
        start = space + 1 + size


def _count_numbers(line: bytes) -> int:
    """How many numbers follow the word of a line."""
    return sum(1 for _ in takewhile(_NUMBER.fullmatch, reversed(line.split()[1:])))


def _damaged(path: Path, number: int, line: bytes, numbers: str) -> FileError:
    found = line.decode("utf-8", "replace").strip()
    message = f"expected a word and {numbers}, got {found!r:.60}; is the file complete?"
    return at_line(path, number, message)


def _incomplete(path: Path, count: int, num_words: int) -> FileError:
    message = f"announces {num_words} words, and holds {count}; is it complete?"
    return FileError(f"{path}: {message}")
