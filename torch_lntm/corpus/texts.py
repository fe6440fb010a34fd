"""Counts words with scikit-learn's CountVectorizer, and chooses by default which ones to keep."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray

from torch_lntm.corpus.checks import ADVICE, check_vocabulary
from torch_lntm.corpus.metadata import is_table, listed
from torch_lntm.errors import CorpusError, LNTMError, bind
from torch_lntm.files.reading import read_lines

#: Options that make words of a text, which new texts share with those of a fit.
TOKENS = (
    *("stop_words", "token_pattern", "lowercase", "tokenizer", "ngram_range", "preprocessor"),
    *("strip_accents", "analyzer"),
)
#: Names of lists of stop words, and of the choice between them.
STOP_LISTS = ("auto", "none", "english")
#: Texts count as English if at least this share of their tokens are English stop words.
_ENGLISH_SHARE = 0.1
#: Characters of texts per counting step.
_CHARACTERS = 1 << 25


def stop_list(stop_words: Any) -> str | list[str] | None:
    """Stop words as a list, of which a path names the file; names of lists stay.

    Raises:
        CorpusError: There is no such file.
    """
    if stop_words is None or (isinstance(stop_words, str) and stop_words in STOP_LISTS):
        return stop_words
    if not isinstance(stop_words, str | Path):
        return [*stop_words]
    if not Path(stop_words).is_file():
        expected = "english, none, or a file with a word per line; in Python also a list"
        raise CorpusError(f"stop_words is {str(stop_words)!r}; expected {expected}")
    return read_lines(Path(stop_words))


def options_of_file(found: Any) -> dict[str, Any]:
    """Options of a saved corpus or run, which nobody may trust: none of them opens a file.

    The path of a file of stop words is left out. A model's vocabulary lacks these words anyway.
    """
    found = found if isinstance(found, Mapping) else {}
    known = {name: found[name] for name in TOKENS if name in found}
    words = known.get("stop_words", "auto")
    if isinstance(words, str) and words not in STOP_LISTS:
        del known["stop_words"]
    return known


def saved_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that a file can hold. In place of a function they have words, which texts refuse."""
    saved: dict[str, Any] = {}
    for name, value in options.items():
        if callable(value):
            value = (
                f"{getattr(value, '__name__', value)}, a function, which no file holds; instead of "
                f"texts, give Corpus.from_texts(texts, model.vocabulary, {name}=...)"
            )
        if isinstance(value, Iterable) and not isinstance(value, str):
            value = [*value]
        saved[name] = value
    return saved


def check_texts(texts: Any) -> list[str]:
    """Returns the texts as a list.

    Raises:
        CorpusError: The texts are a single string, a table, or contain another type.
    """
    # Iterating over a table or a mapping would give its column names instead of texts.
    if isinstance(texts, (str, bytes, Path, Mapping)) or is_table(texts):
        raise CorpusError(
            f"texts must be an iterable of strings, got a single {type(texts).__name__}; wrap one "
            f"text: [text]; {ADVICE}"
        )
    found = list(texts.to_pylist() if hasattr(texts, "to_pylist") else texts)
    wrong = [i for i, text in enumerate(found) if not isinstance(text, str)]
    if wrong:
        names = texts.index[wrong] if isinstance(texts, pd.Series) else wrong
        raise CorpusError(
            f"{len(wrong)} of {len(found)} documents have no text, which must be a string: "
            f"{listed(names)} (got {found[wrong[0]]!r:.60}); leave missing values out, or fill in "
            "an empty text; join the words of a list by spaces, and give token_pattern=r'\\S+'; "
            f"{ADVICE}"
        )
    if not found:
        raise CorpusError("the texts cannot be counted: there are none")
    return found


def count_words(
    texts: Iterable[str],
    vocabulary: Iterable[str] | None = None,
    stop_words: str | list[str] | None = "auto",
    min_df: int | float | str = "auto",
    **options: Any,
) -> tuple[sp.csr_matrix, Sequence[str], str | None]:
    """Counts the words of texts and leaves out uninformative words.

    The texts are read only once, and may be larger than memory, because only the counts and a small
    part of the texts are held at a time.

    Args:
        texts: The documents.
        vocabulary: Words that the counts will be reduced to, so that no other choice is made. Only
            English stop words are left out, if the caller leaves them to be chosen.
        stop_words: The result of :func:`stop_list`.
        min_df: As for ``Corpus.from_texts``.
        **options: Further options of ``CountVectorizer``.

    Returns:
        The counts, the words, and a sentence about the words left out automatically, if any.

    Raises:
        CorpusError: An option is invalid, or no word remains.
    """
    # Imported only when used, because the import takes longer than counting most corpora.
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, CountVectorizer

    # The remaining options define words. Pruning needs the words of all texts.
    settings = dict(options) if min_df == "auto" else {"min_df": min_df, **options}
    names = [name for name in ("min_df", "max_df", "max_features") if name in settings]
    pruning = {name: settings.pop(name) for name in names}
    if stop_words not in ("auto", "none", None):
        settings["stop_words"] = stop_words
    if isinstance(settings.get("ngram_range"), list):  # of a file
        settings["ngram_range"] = (*settings["ngram_range"],)
    try:
        named = dict(settings) | pruning
        others = ("text", "metadata")  # of Corpus.from_frame and from_texts
        bind("CountVectorizer", inspect.signature(CountVectorizer), (), named, others)
        vectorizer = CountVectorizer(**settings, **pruning)
        _fit(vectorizer, [])  # checks the options
        vectorizer.set_params(min_df=1, max_df=1.0, max_features=None)
        if vocabulary is not None and pruning:
            raise CorpusError(
                f"{', '.join(pruning)} choose words, and so does the given vocabulary; give one"
            )
        counts, found = _count(vectorizer, texts)
        if vocabulary is not None:
            lacks = found.index.isin(ENGLISH_STOP_WORDS) & ~found.index.isin([*vocabulary])
            kept = np.flatnonzero(~lacks | (stop_words != "auto"))
            return counts[:, kept], [*found.index[kept]], None
        single_words = vectorizer.analyzer == "word" and (*vectorizer.ngram_range,) == (1, 1)
        english = stop_words == "auto" and single_words
        kept, note = _choose(found.sort_index(), counts.shape[0], english, **pruning)
        words = check_vocabulary(kept.index, None) or ()
        return counts[:, kept["column"].to_numpy()], words, note
    except LNTMError:
        raise
    except (ValueError, TypeError, re.error) as error:
        raise CorpusError(f"the texts cannot be counted: {error}") from error


def _count(vectorizer: Any, texts: Iterable[str]) -> tuple[sp.csr_matrix, pd.DataFrame]:
    """Counts of all texts, and the column and the numbers of documents and tokens of each word."""
    columns: dict[str, int] = {}
    parts = []
    for part in _parts(texts):
        counts, words = _fit(vectorizer, part)
        at = [columns.setdefault(word, len(columns)) for word in words]
        parts.append((counts.data.astype(np.int32), np.array(at)[counts.indices], counts.indptr))
    matrices = [sp.csr_matrix(part, (len(part[2]) - 1, len(columns))) for part in parts]
    counts = matrices[0] if len(matrices) == 1 else sp.vstack(matrices, "csr")
    docs = np.bincount(counts.indices, minlength=len(columns))
    numbers = {"docs": docs, "tokens": np.asarray(counts.sum(0)).ravel()}
    words = pd.Index([*columns], dtype=object)
    return counts, pd.DataFrame({**numbers, "column": range(len(columns))}, words)


def _fit(vectorizer: Any, texts: list[str]) -> tuple[sp.csr_matrix, Any]:
    """Counts of texts, and their words."""
    try:
        return sp.csr_matrix(vectorizer.fit_transform(texts)), vectorizer.get_feature_names_out()
    except ValueError as error:
        if "empty vocabulary" not in str(error):
            raise
    return sp.csr_matrix(np.zeros((len(texts), 0), np.int64)), []


def _parts(texts: Iterable[str]) -> Iterator[list[str]]:
    """Lists of texts of about ``_CHARACTERS`` in total; an empty list without texts."""
    part: list[str] = []
    size = 0
    for text in texts:
        part.append(text)
        size += len(text) + 100  # bounds the number of short texts too
        if size > _CHARACTERS:
            yield part
            part, size = [], 0
    if part or not size:
        yield part


def _choose(
    found: pd.DataFrame,
    num_texts: int,
    english: bool,
    min_df: Any = None,
    max_df: Any = 1.0,
    max_features: int | None = None,
) -> tuple[pd.DataFrame, str | None]:
    """The words that ``CountVectorizer`` keeps by frequency, less those left out by default.

    Args:
        found: Numbers of documents and tokens of each word.
        num_texts: Number of texts.
        english: Whether to leave out the stop words of English texts.
        min_df: As for ``CountVectorizer``; ``None`` leaves out rare words.
        max_df: As for ``CountVectorizer``.
        max_features: As for ``CountVectorizer``.

    Returns:
        The rows of the words, and a sentence about the words left out, if any.

    Raises:
        CorpusError: No word remains.
    """
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    least, most = (
        x if isinstance(x, Integral) else x * num_texts
        for x in (1 if min_df is None else min_df, max_df)
    )
    kept, notes = found[(found["docs"] >= least) & (found["docs"] <= most)], []
    if max_features is not None and len(kept) > max_features:
        largest = (-kept["tokens"].to_numpy()).argsort()[:max_features]
        kept = kept.iloc[np.sort(largest)]
    if english and len(kept):
        tokens = kept["tokens"].to_numpy()
        stops = np.array([word.lower() in ENGLISH_STOP_WORDS for word in kept.index], bool)
        stops &= tokens[stops].sum() >= _ENGLISH_SHARE * tokens.sum()
        kept = kept[~stops]
        if stops.any():
            notes.append(f"{_number(stops, 'English stop word')} (stop_words none keeps them)")
    if not len(kept):
        without = f" without {notes[0]}" if notes else ""
        raise CorpusError(
            f"the texts cannot be counted: no word of {num_texts} documents is left{without}; "
            "check the texts, their encoding and token_pattern, and take a lower min_df, a higher "
            "max_df or fewer stop_words"
        )
    least = automatic_min_df(num_texts)
    rare = (kept["docs"] < least).to_numpy()
    if min_df is None and max_features is None and rare.any() and not rare.all():
        kept = kept[~rare]
        notes.append(
            f"{_number(rare, 'word')} in fewer than {least} documents (min_df 1 keeps them)"
        )
    return kept, f"left out {' and '.join(notes)}" if notes else None


def automatic_min_df(num_docs: int) -> int:
    """Default minimum number of documents with a word.

    1 for fewer than 50 documents, 2 from 50, 3 from 500, 4 from 5,000, and so forth.
    """
    return 1 if num_docs < 50 else 2 + int(math.log10(num_docs / 50))


def _number(mask: NDArray[np.bool_], what: str) -> str:
    number = int(mask.sum())
    return f"{number:,} {what}{'s' if number != 1 else ''}"
