"""Word vectors of a vocabulary, from arrays, tables, encoders and files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus.checks import check_vocabulary
from torch_lntm.corpus.metadata import as_frame, is_table, listed
from torch_lntm.corpus.readers.vectors import Word, read_words
from torch_lntm.errors import ConfigError
from torch_lntm.frames import is_default

#: Characters within a word that a source may write otherwise.
_JOINTS = str.maketrans(dict.fromkeys("-_'’‐‑\u00a0", " "))
#: Fewest letters of a word that takes the vectors of longer words, and most longer words.
_STEM, _MOST = 4, 10


@dataclass(frozen=True, eq=False, repr=False)
class WordVectors:
    """Vectors of the words of a vocabulary, which say what the words mean.

    Attributes:
        vectors: ``(num_words, dimension)`` float32; rows of NaN are words without a vector.

    Example:
        >>> lntm.corpus.WordVectors.of({"cat": [1.0, 0.0], "dogs": [0.9, 0.1]}, ["Cat", "tree"])
        WordVectors(num_words=2, dimension=2, 1 with a vector)
    """

    vectors: NDArray[np.float32]

    @classmethod
    def of(
        cls,
        source: Any,
        vocabulary: Iterable[str] | None,
        num_words: int | None = None,
        required: bool = True,
    ) -> WordVectors:
        """Finds the vectors of a vocabulary's words.

        A word that a source by words lacks gets the vector of the same word in another case, or
        with other hyphens, underscores, spaces or apostrophes. If there is none, it gets the mean
        vector of the parts between these, provided that all parts are there. Otherwise, if it has
        at least four letters, it gets the mean of the first ten words that begin with it and are at
        most three letters longer, so that a stem such as ``economi`` has a vector too. Of a word
        that a source has twice, the first vector counts.

        Args:
            source: Vectors by column ``(num_words, dimension)``, as an array or tensor. Vectors by
                word may be a mapping, a data frame with the words in its index or first column,
                ``KeyedVectors`` of gensim, or a file (see :func:`read_vectors`). An encoder takes a
                list of words and returns an array, by itself or by its method ``encode``. Rows of
                NaN or zeros are no vectors.
            vocabulary: Words in the order of the columns. Vectors by column do without.
            num_words: Number of words. Defaults to that of the vocabulary.
            required: Whether to refuse a source in which no word has a vector.

        Raises:
            ConfigError: The source is of another kind or size, a vector is not finite or of another
                length, no word has a vector, or the vocabulary is missing.
        """
        words = check_vocabulary(vocabulary, num_words)
        where = str(source) if isinstance(source, str | Path) else "the word vectors"
        by_word, encode = _by_word(source), getattr(source, "encode", source)
        if isinstance(source, WordVectors):
            rows = source.vectors
        elif by_word is None and not callable(encode):
            rows = _floats(source, where)
        elif words is None:
            raise ConfigError(
                "vectors by word need the words of the columns; give a corpus with a vocabulary, "
                "or an array of vectors by column"
            )
        elif by_word is None:
            rows = _floats(encode(list(words)), where)
        else:
            rows = _search(by_word, words, where)
        size = num_words if words is None else len(words)
        if rows.ndim != 2 or not rows.size or size not in (None, len(rows)):
            raise ConfigError(
                f"{where}: expected one row for each of {size or 'the'} words, got an array of "
                f"the shape {rows.shape}"
            )
        if isinstance(source, WordVectors):  # as it is, since a saved model fills its zeros
            return source
        return cls(_checked(rows, words or range(len(rows)), where, required))

    @cached_property
    def found(self) -> NDArray[np.bool_]:
        """``(num_words,)`` whether a word has a vector."""
        return ~np.isnan(self.vectors[:, 0])

    def share_found(self, word_totals: Any = None) -> float:
        """Share of the words with a vector.

        Args:
            word_totals: ``(num_words,)`` tokens of each word, for the share of the tokens.
        """
        totals = np.ones(len(self.found)) if word_totals is None else np.asarray(word_totals)
        return float(totals[self.found].sum() / max(totals.sum(), 1))

    def to_json(self) -> dict[str, list[int]]:
        """The size, since a saved model has the numbers."""
        return {"size": list(self.vectors.shape)}

    @classmethod
    def from_json(cls, data: Any) -> WordVectors:
        """Vectors of zeros, of the size in the data of :meth:`to_json`.

        Raises:
            ConfigError: The data are damaged.
        """
        size = data.get("size") if isinstance(data, Mapping) else None
        if not isinstance(size, list) or [type(n) for n in size] != [int, int] or min(size) < 1:
            raise ConfigError(f"word vectors are {data!r:.80}; expected a size of two numbers")
        return cls(np.zeros(size, np.float32))

    def __repr__(self) -> str:
        """Sizes in a line."""
        num_words, dimension = self.vectors.shape
        return f"WordVectors({num_words=}, {dimension=}, {self.found.sum()} with a vector)"


def read_vectors(path: str | Path, vocabulary: Iterable[str] | None) -> WordVectors:
    r"""Reads the vectors of a vocabulary's words from a file, and no others.

    These formats may be gzipped:

    * Text of GloVe: a word and its numbers on each line.
    * Text of word2vec and fastText (``.vec``): the same under a line with two sizes.
    * Binary files of word2vec.

    A file is read in one pass, with memory for the vectors that serve.

    Args:
        path: The file.
        vocabulary: Words in the order of the columns, such as ``corpus.vocabulary``.

    Returns:
        The vectors. :meth:`WordVectors.of` says what words get that the file lacks.

    Raises:
        FileError: The file is missing, damaged, incomplete or of another format.
        ConfigError: A vector is not finite, or no word has a vector.

    Example:
        >>> from pathlib import Path
        >>> size = Path("small.txt").write_text("cat 1.0 0.0\ndog 0.9 0.1\n")
        >>> lntm.corpus.read_vectors("small.txt", ["cat", "tree"]).found
        array([ True, False])
    """
    return WordVectors.of(Path(path), vocabulary)


def _by_word(source: Any) -> Iterable[Word] | None:
    """The words of a source with their vectors; ``None`` for a source without words."""
    if isinstance(source, str | Path):
        return read_words(Path(source))
    if is_table(source):
        frame = as_frame(source)
        frame = frame.set_index(frame.columns[0]) if is_default(frame.index) else frame
        source = dict(zip(frame.index, frame.to_numpy(), strict=True))
    source = getattr(source, "wv", source)  # of a Word2Vec model of gensim
    if hasattr(source, "key_to_index"):
        places = source.key_to_index.items()
        return ((word, partial(source.vectors.__getitem__, i)) for word, i in places)
    if isinstance(source, Mapping):
        return ((word, partial(source.__getitem__, word)) for word in source)
    return None


def _search(source: Iterable[Word], vocabulary: Sequence[str], where: str) -> NDArray[np.float32]:
    """Vectors of a vocabulary's words, in one pass over a source."""
    parts = {word: word.translate(_JOINTS).split() for word in vocabulary}
    wanted = {*vocabulary, *chain(*parts.values())}
    # Vectors by word, and by word without case and joints; sums of the vectors of longer words.
    exact: dict[str, Any] = dict.fromkeys(wanted)
    plain: dict[str, Any] = dict.fromkeys(map(_plain, wanted))
    longer: dict[str, tuple[int, Any]] = {
        stem: (0, 0.0)
        for stem in map(_plain, vocabulary)
        if len(stem) >= _STEM and not any(map(str.isdigit, stem))
    }
    shape = None
    for word, get in source:
        if not isinstance(word, str):
            raise ConfigError(f"{where}: a word is {word!r}; expected text")
        key = _plain(word)
        is_new, is_alike = exact.get(word, 0) is None, plain.get(key, 0) is None
        stems = [x for x in (key[:-1], key[:-2], key[:-3]) if longer.get(x, (_MOST,))[0] < _MOST]
        if not (is_new or is_alike or stems):
            continue
        vector = _floats(get(), f"{where}: the vector of {word!r}")
        if not vector.any() or np.isnan(vector).all():
            continue
        shape = shape or vector.shape
        if vector.ndim != 1 or vector.shape != shape or not np.isfinite(vector).all():
            raise ConfigError(
                f"{where}: the vector of {word!r} has the shape {vector.shape} or numbers that are "
                f"not finite; expected finite numbers of the shape {shape}, as of earlier words"
            )
        if is_new:
            exact[word] = vector
        if is_alike:
            plain[key] = vector
            longer.pop(key, None)
        for stem in stems:
            longer[stem] = (longer[stem][0] + 1, longer[stem][1] + vector)
    rows = np.full((len(vocabulary), *(shape or (1,))), math.nan, np.float32)
    for i, word in enumerate(vocabulary):
        whole, *pieces = (
            plain[_plain(x)] if exact[x] is None else exact[x] for x in (word, *parts[word])
        )
        count, total = longer.get(_plain(word), (0, 0.0))
        if whole is not None:
            rows[i] = whole
        elif pieces and all(piece is not None for piece in pieces):
            rows[i] = np.mean(pieces, 0)
        elif count:
            rows[i] = total / count
    return rows


def _plain(word: str) -> str:
    """A word without case, with a space for each joint."""
    return word.translate(_JOINTS).casefold()


def _floats(value: Any, what: str) -> NDArray[np.float32]:
    """A new array of single precision."""
    try:
        with np.errstate(over="ignore"):
            value = value.detach().cpu().float().numpy() if isinstance(value, Tensor) else value
            return np.array(value, np.float32)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what}: expected numbers, got {value!r:.80} ({error})") from error


def _checked(
    rows: NDArray[np.float32], names: Sequence[Any], where: str, required: bool
) -> NDArray[np.float32]:
    """Vectors by column, with NaN for words without one."""
    rows[~rows.any(1)] = math.nan
    blank = np.isnan(rows).all(1)
    for i in np.flatnonzero(~blank & ~np.isfinite(rows).all(1)).tolist():
        raise ConfigError(
            f"{where}: the vector of word {names[i]!r} has numbers that are not finite; give only "
            "finite numbers, or only NaN for a word without a vector"
        )
    if required and blank.all():
        raise ConfigError(
            f"{where}: none of the {len(rows)} words has a vector, among them "
            f"{listed(map(repr, names[:3]))}; give vectors of the language of the texts"
        )
    return rows
