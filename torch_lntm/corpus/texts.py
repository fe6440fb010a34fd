"""Counting words of texts by scikit-learn's CountVectorizer, and the default choice of words."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from numpy.typing import NDArray

from torch_lntm.corpus.checks import counting_code
from torch_lntm.corpus.metadata import is_table
from torch_lntm.errors import CorpusError, CorpusWarning, warn

#: Options that choose words by frequency.
PRUNING_OPTIONS = ("min_df", "max_df", "max_features")
#: Texts count as English if at least this share of their tokens are English stop words.
_ENGLISH_SHARE = 0.1
#: Characters of texts per counting step.
_CHARACTERS = 1 << 22


class NoWordsError(CorpusError):
    """All texts are empty or contain only words to leave out."""


def check_texts(texts: Any) -> Sequence[str]:
    """Returns the texts as a list.

    Raises:
        CorpusError: The texts are a single string, a table, or contain another type.
    """
    if isinstance(texts, (str, bytes)):
        raise CorpusError(
            "texts must be an iterable of strings, got a single text; wrap it: [text]"
        )
    if isinstance(texts, Path):
        raise CorpusError(
            f"texts must be an iterable of strings, got a path; use read_corpus({str(texts)!r})"
        )
    texts = texts.to_pylist() if hasattr(texts, "to_pylist") and not is_table(texts) else texts
    code = counting_code(texts)
    if is_table(texts) or isinstance(texts, Mapping):  # iterating would yield the names
        named = "frame(frame, text=name)" if is_table(texts) else "texts(table[name])"
        raise CorpusError(
            f"texts must be an iterable of strings, got a {type(texts).__name__} of columns; name "
            f"the column with the texts: {code or f'Corpus.from_{named}'}"
        )
    texts = list(texts)
    for i, text in enumerate(texts):
        if isinstance(text, str):
            continue
        advice = f"; use {code}" if code and isinstance(text, Mapping) else ""
        if np.ndim(text) == 0 and pd.isna(text):
            advice = ", which is a missing value; leave it out, or fill in an empty text"
        elif isinstance(text, (list, tuple)):
            advice = "; join the words of each text by spaces, and give token_pattern=r'\\S+'"
        raise CorpusError(f"text {i} must be a string, got {type(text).__name__}{advice}")
    return texts


def count_words(
    texts: Iterable[str],
    vocabulary: Sequence[str] | None = None,
    stop_words: str | Sequence[str] | None = "auto",
    min_df: int | float | str = "auto",
    **options: Any,
) -> tuple[Iterator[sp.csr_matrix], Sequence[str], str | None]:
    """Counts the words of texts and leaves out uninformative words.

    The texts may be larger than the memory, which holds the distinct words and a part of the texts.
    A first pass finds the words, and a second pass counts them. A list is counted as a single part
    by one pass.

    Args:
        texts: The documents. Every pass must give the same texts.
        vocabulary: Words to count. Further words are dropped with a warning.
        stop_words: As for ``Corpus.from_texts``.
        min_df: As for ``Corpus.from_texts``.
        **options: Further options of ``CountVectorizer``.

    Returns:
        Counts in parts, the words, and a sentence about the words left out automatically, if any.

    Raises:
        CorpusError: An option is invalid, or no word remains.
    """
    # Imported on use, because the import takes longer than counting most corpora.
    from sklearn.feature_extraction.text import CountVectorizer

    if vocabulary is not None:
        refuse_pruning([*options, *(["min_df"] if min_df != "auto" else [])])
        stop_words, min_df = None if stop_words == "auto" else stop_words, 1
    stop_words, settings = _vectorizer_settings(stop_words, min_df, options)
    # Pruning needs the words of all texts. The remaining options define words.
    pruning = {name: settings.pop(name) for name in PRUNING_OPTIONS if name in settings}
    totals: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    num_texts, blank, counts = 0, True, None
    size = math.inf if isinstance(texts, list) else _CHARACTERS
    try:
        vectorizer = CountVectorizer(**settings, **pruning)
        _fit(vectorizer, [])  # checks the options
        vectorizer.set_params(min_df=1, max_df=1.0, max_features=None)
        for part in _parts(texts, size):
            num_texts += len(part)
            blank = blank and not any(text.strip() for text in part)
            counts = _fit(vectorizer, part)
            if counts is not None:
                found = vectorizer.get_feature_names_out()
                sums = np.bincount(counts.indices), np.asarray(counts.sum(0)).ravel()
                for total, values in zip(totals, sums, strict=True):
                    total.update(dict(zip(found, values.tolist(), strict=True)))
        if blank:
            what = f"all {num_texts} of them are blank" if num_texts else "there are none"
            raise NoWordsError(
                f"the texts cannot be counted: {what}; give at least one with a word"
            )
        if not totals[0]:
            raise ValueError("empty vocabulary")
        distinct = np.array(sorted(totals[0]), dtype=object)
        docs, tokens = (np.array([total[word] for word in distinct]) for total in totals)
        kept = np.flatnonzero(_prune(docs, tokens, num_texts, **pruning))
    except (ValueError, TypeError, re.error) as error:
        if isinstance(error, CorpusError):
            raise
        kind = NoWordsError if "empty vocabulary" in str(error) else CorpusError
        reason = _reason(error, num_texts, settings | pruning)
        raise kind(f"the texts cannot be counted: {reason}") from error
    if vocabulary is not None:
        _warn_of_lost(distinct, tokens, set(vocabulary))
        words, note = vocabulary, None
    else:
        limited, numbers = "max_features" in pruning, (docs[kept], tokens[kept], num_texts)
        chosen, note = _choose(vectorizer, limited, distinct[kept], *numbers, stop_words, min_df)
        kept = kept[chosen]
        words = distinct[kept].tolist()
        if isinstance(texts, list) and counts is not None:
            return iter([counts[:, kept]]), words, note
    counter = CountVectorizer(**settings, vocabulary=words)
    return (counter.transform(part) for part in _parts(texts, size)), words, note


def refuse_pruning(options: Iterable[str]) -> None:
    """Refuses options that prune words, for use beside a vocabulary.

    Args:
        options: Names of the user's options.

    Raises:
        CorpusError: An option prunes words.
    """
    pruning = [option for option in options if option in PRUNING_OPTIONS]
    if pruning:
        raise CorpusError(
            f"{', '.join(pruning)} choose words, and so does the given vocabulary; give one"
        )


def _warn_of_lost(
    words: NDArray[Any], num_tokens: NDArray[np.int64], vocabulary: Container[str]
) -> None:
    """Warns of words, with ``num_tokens`` tokens each, that the vocabulary lacks."""
    lost = np.array([word not in vocabulary for word in words])
    if lost.any():
        warn(
            f"dropped {num_tokens[lost].sum()} of {num_tokens.sum()} tokens: {lost.sum()} words "
            "unknown to the vocabulary",
            CorpusWarning,
        )


def english_stop_words(words: Iterable[str], num_tokens: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Mask of the English stop words. It is empty if their share is too low for English texts.

    Args:
        words: ``num_words`` words.
        num_tokens: ``(num_words,)`` tokens of each word.
    """
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    stops = np.array([word.lower() in ENGLISH_STOP_WORDS for word in words], bool)
    return stops & bool(num_tokens[stops].sum() >= _ENGLISH_SHARE * num_tokens.sum())


def _fit(vectorizer: Any, texts: list[str]) -> sp.csr_matrix | None:
    """Counts of texts by a new vocabulary; ``None`` if they have no word."""
    try:
        return sp.csr_matrix(vectorizer.fit_transform(texts))
    except ValueError as error:
        if "empty vocabulary" not in str(error):
            raise
        return None


def _parts(texts: Iterable[str], most: float) -> Iterator[list[str]]:
    """Lists of texts of about ``most`` characters in total."""
    part: list[str] = []
    size = 0
    for text in texts:
        part.append(text)
        size += len(text) + 100  # bounds the number of short texts too
        if size > most:
            yield part
            part, size = [], 0
    if part:
        yield part


def _prune(
    num_docs: NDArray[np.int64],
    num_tokens: NDArray[np.int64],
    num_texts: int,
    min_df: Any = 1,
    max_df: Any = 1.0,
    max_features: int | None = None,
) -> NDArray[np.bool_]:
    """Mask of the words that ``CountVectorizer`` keeps by frequency."""
    least: Any = min_df if isinstance(min_df, Integral) else min_df * num_texts
    most: Any = max_df if isinstance(max_df, Integral) else max_df * num_texts
    if most < least:
        raise ValueError("max_df corresponds to < documents than min_df")
    kept = (num_docs >= least) & (num_docs <= most)
    if max_features is not None and kept.sum() > max_features:
        largest = np.flatnonzero(kept)[(-num_tokens[kept]).argsort()[:max_features]]
        kept = np.zeros_like(kept)
        kept[largest] = True
    if not kept.any():
        raise ValueError("no terms remain")
    return kept


def _vectorizer_settings(
    stop_words: str | Sequence[str] | None, min_df: int | float | str, options: Mapping[str, Any]
) -> tuple[str | Sequence[str] | None, dict[str, Any]]:
    """The checked stop words, and the settings of ``CountVectorizer``."""
    settings = dict(options)
    if isinstance(stop_words, str) and stop_words == "none":
        stop_words = None
    if isinstance(stop_words, str) and stop_words not in ("auto", "english"):
        raise CorpusError(
            f"stop_words must be 'auto', 'english', 'none' or a list of words, got {stop_words!r}"
        )
    if stop_words is not None and stop_words != "auto":
        settings["stop_words"] = stop_words if isinstance(stop_words, str) else list(stop_words)
    if min_df != "auto":
        settings["min_df"] = min_df
    return stop_words, settings


def _choose(
    vectorizer: Any,
    limited: bool,
    words: NDArray[Any],
    num_docs: NDArray[np.integer],
    num_tokens: NDArray[np.integer],
    num_texts: int,
    stop_words: str | Sequence[str] | None,
    min_df: int | float | str,
) -> tuple[NDArray[np.bool_], str | None]:
    """Makes the automatic choices.

    Args:
        vectorizer: The vectorizer of the words.
        limited: Whether an option limits the number of words.
        words: ``(num_words,)`` words.
        num_docs: ``(num_words,)`` texts with each word.
        num_tokens: ``(num_words,)`` tokens of each word.
        num_texts: Number of texts.
        stop_words: As for ``Corpus.from_texts``.
        min_df: As for ``Corpus.from_texts``.

    Returns:
        Mask of the words to keep, and a sentence about the words left out, if any.

    Raises:
        CorpusError: No word remains.
    """
    notes = []
    keep = np.ones(words.size, bool)
    single_words = vectorizer.analyzer == "word" and tuple(vectorizer.ngram_range) == (1, 1)
    if isinstance(stop_words, str) and stop_words == "auto" and single_words:
        stops = english_stop_words(words, num_tokens)
        if stops.any():
            if stops.all():
                raise CorpusError(
                    "the texts cannot be counted: all of their words are English stop words; "
                    "stop_words none keeps them"
                )
            keep &= ~stops
            notes.append(f"{_number(stops, 'English stop word')} (stop_words none keeps them)")
    if min_df == "auto" and not limited:
        least = automatic_min_df(num_texts)
        rare = keep & (num_docs < least)
        if rare.any() and (keep & ~rare).any():
            keep &= ~rare
            notes.append(
                f"{_number(rare, 'word')} in fewer than {least} documents (min_df 1 keeps them)"
            )
    return keep, f"left out {' and '.join(notes)}" if notes else None


def transform_texts(vectorizer: Any, texts: Sequence[str]) -> tuple[sp.csr_matrix, NDArray[Any]]:
    """Counts the words of texts by a fitted vectorizer. Returns the counts and the words.

    Raises:
        CorpusError: The vectorizer is unfitted, or of another class than ``CountVectorizer``.
    """
    from sklearn.exceptions import NotFittedError

    try:
        return sp.csr_matrix(vectorizer.transform(texts)), vectorizer.get_feature_names_out()
    except NotFittedError as error:
        raise CorpusError(
            "the vectorizer is not fitted; fit it to texts, or leave it out to count all words"
        ) from error
    except AttributeError as error:
        raise CorpusError(
            f"vectorizer must be a fitted CountVectorizer, got a {type(vectorizer).__name__}"
        ) from error


def automatic_min_df(num_docs: int) -> int:
    """Default minimum number of documents with a word.

    1 for fewer than 50 documents, 2 from 50, 3 from 500, 4 from 5,000, and so forth.
    """
    return 1 if num_docs < 50 else 2 + int(math.log10(num_docs / 50))


def _number(mask: NDArray[np.bool_], what: str) -> str:
    number = int(mask.sum())
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def _reason(error: Exception, num_texts: int, settings: dict[str, Any]) -> str:
    """scikit-learn's reason, in terms of the user's options."""
    pruning = {name: settings[name] for name in PRUNING_OPTIONS if name in settings}
    no_word = any(
        sign in str(error) for sign in ("no terms remain", "max_df corresponds", "empty vocabulary")
    )
    if not no_word:
        return str(error)
    options = [f"{name}={value!r}" for name, value in pruning.items()]
    if settings.get("stop_words") is not None:
        options.append("stop_words")
    if not options:
        return (
            "they hold no word of two characters or more; check the file's encoding, or give "
            "another token_pattern"
        )
    documents = f"{num_texts} documents" if num_texts != 1 else "1 document"
    return (
        f"no word of {documents} is left with {', '.join(options)}; take a lower min_df, a higher "
        "max_df or fewer stop words"
    )
