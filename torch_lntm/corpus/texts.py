"""Words of texts: scikit-learn's CountVectorizer, and which words are left out by default."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from torch_lntm.errors import CorpusError

#: Options that choose words by how frequent they are.
PRUNING_OPTIONS = ("min_df", "max_df", "max_features")
#: Texts are taken to be English if at least this share of their tokens are English stop words.
_ENGLISH_SHARE = 0.1


def check_texts(texts: Iterable[str]) -> Sequence[str]:
    """Returns the texts as a list.

    Raises:
        CorpusError: They are a single text, or one of them is not a string.
    """
    if isinstance(texts, (str, bytes)):
        raise CorpusError(
            "texts must be an iterable of strings, got a single text; wrap it: [text]"
        )
    texts = list(texts)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise CorpusError(f"text {i} must be a string, got {type(text).__name__}")
    return texts


def count_words(
    texts: Sequence[str],
    stop_words: str | Sequence[str] | None = "auto",
    min_df: int | float | str = "auto",
    **options: Any,
) -> tuple[sp.csr_matrix, NDArray[Any], str | None]:
    """Counts the words of some texts and leaves out those that say little about topics.

    Args:
        texts: The documents.
        stop_words: As for ``Corpus.from_texts``.
        min_df: As for ``Corpus.from_texts``.
        **options: Other options of ``CountVectorizer``.

    Returns:
        ``(num_docs, num_words)`` counts, the words, and a sentence on what the automatic choices
        left out; ``None`` where they left out nothing.

    Raises:
        CorpusError: An option is not valid, or no word remains.
    """
    # Here and not above: it takes longer to import than to count most corpora.
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, CountVectorizer

    if not any(text.strip() for text in texts):
        what = f"all {len(texts)} of them are blank" if texts else "there are none"
        raise CorpusError(f"the texts cannot be counted: {what}; give at least one with a word")
    given = dict(options)
    if stop_words == "none":
        stop_words = None
    if isinstance(stop_words, str) and stop_words not in ("auto", "english"):
        raise CorpusError(
            f"stop_words must be 'auto', 'english', 'none' or a list of words, got {stop_words!r}"
        )
    if stop_words is not None and stop_words != "auto":
        given["stop_words"] = stop_words if isinstance(stop_words, str) else list(stop_words)
    if min_df != "auto":
        given["min_df"] = min_df
    try:
        vectorizer = CountVectorizer(**given)
        counts = sp.csr_matrix(vectorizer.fit_transform(texts))
    except (ValueError, TypeError, re.error) as error:
        raise CorpusError(
            f"the texts cannot be counted: {_reason(error, len(texts), given)}"
        ) from error
    words = vectorizer.get_feature_names_out()

    notes = []
    single_words = vectorizer.analyzer == "word" and tuple(vectorizer.ngram_range) == (1, 1)
    if stop_words == "auto" and single_words:
        stops = np.array([word.lower() in ENGLISH_STOP_WORDS for word in words])
        if counts[:, stops].sum() >= _ENGLISH_SHARE * counts.sum():
            if stops.all():
                raise CorpusError(
                    "the texts cannot be counted: all of their words are English stop words; "
                    "stop_words=None keeps them"
                )
            counts, words = counts[:, ~stops], words[~stops]
            notes.append(f"{_number(stops, 'English stop word')} (stop_words none keeps them)")
    if min_df == "auto" and "max_features" not in options:
        least = automatic_min_df(len(texts))
        rare = np.bincount(counts.indices, minlength=words.size) < least
        if rare.any() and not rare.all():
            counts, words = counts[:, ~rare], words[~rare]
            notes.append(
                f"{_number(rare, 'word')} in fewer than {least} documents (min_df 1 keeps them)"
            )
    return counts, words, f"left out {' and '.join(notes)}" if notes else None


def transform_texts(vectorizer: Any, texts: Sequence[str]) -> tuple[sp.csr_matrix, NDArray[Any]]:
    """Counts the words of some texts by a fitted vectorizer; returns the counts and the words.

    Raises:
        CorpusError: The vectorizer is not fitted, or is no ``CountVectorizer``.
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
    """Returns the fewest documents that a word must be in by default.

    It is 1 for fewer than 50 documents, 2 from 50 on, 3 from 500 on, and so forth.
    """
    return 1 if num_docs < 50 else 2 + int(math.log10(num_docs / 50))


def _number(chosen: NDArray[np.bool_], what: str) -> str:
    number = int(chosen.sum())
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def _reason(error: Exception, num_texts: int, given: dict[str, Any]) -> str:
    """What scikit-learn refused, in terms of what was given."""
    pruned = {name: given[name] for name in PRUNING_OPTIONS if name in given}
    no_word = any(
        sign in str(error) for sign in ("no terms remain", "max_df corresponds", "empty vocabulary")
    )
    if not no_word:
        return str(error)
    options = [f"{name}={value!r}" for name, value in pruned.items()]
    if given.get("stop_words") is not None:
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
