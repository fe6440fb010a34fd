"""Example corpora and topics."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_lntm.corpus.corpus import Corpus
from torch_lntm.corpus.readers import read_corpus
from torch_lntm.errors import ConfigError, CorpusError

#: Options of ``Corpus.from_texts`` that both example corpora share.
_WORDS = {"token_pattern": r"(?u)\b[^\W\d_]{3,}\b", "stop_words": "english", "max_df": 0.5}


def example_corpus(**options: Any) -> Corpus:
    """75 short texts about 6 themes, which come with this package.

    Each has about 50 words on a garden, a kitchen, the stars, the sea, football or music, and the
    metadata have the columns ``theme`` and ``season``. The texts were written for this library and
    are free to use under its licence.

    Args:
        **options: Options of ``Corpus.from_texts`` in place of the defaults. The defaults keep
            words of three or more letters in at least 2 and at most half of the texts, without
            English stop words.

    Returns:
        The corpus, with vocabulary and metadata.

    Example:
        >>> lntm.example_corpus()
        Corpus('example', num_docs=75, num_words=354, num_tokens=1497, columns: theme, season)
    """
    path, defaults = located("example")
    return read_corpus(path, **{**defaults, **options})


def example_file() -> Path:
    """Path of the texts of :func:`example_corpus`, a file with a JSON object per line."""
    return Path(__file__).with_name("data") / "example.jsonl"


def lee_corpus(**options: Any) -> Corpus:
    """The Lee background corpus: 300 news articles, read offline from gensim's package.

    Args:
        **options: Options of ``Corpus.from_texts`` in place of the defaults. The defaults keep
            words of three or more letters in at least 3 and at most half of the articles, without
            English stop words.

    Returns:
        The corpus, with vocabulary.

    Raises:
        CorpusError: gensim is not installed.

    Example:
        >>> lntm.lee_corpus()
        Corpus('lee_background', num_docs=300, num_words=2132, num_tokens=23520)
    """
    path, defaults = located("lee")
    return read_corpus(path, **{**defaults, **options})


def lee_file() -> Path:
    """Path of the Lee background corpus, a text file with an article per line.

    Raises:
        CorpusError: gensim is not installed.
    """
    gensim = find_spec("gensim")  # finds the folder without the slow import
    if gensim is None or not gensim.submodule_search_locations:
        raise CorpusError(
            "the Lee corpus comes with gensim, which is not installed; "
            "install it by pip install 'torch-lntm[demo]'"
        )
    return Path(gensim.submodule_search_locations[0], "test", "test_data", "lee_background.cor")


#: The example corpora by the names that the command line knows: what returns the path of the
#: texts, and options of ``read_corpus`` that suit them.
EXAMPLES: dict[str, tuple[Callable[[], Path], dict[str, Any]]] = {
    "example": (example_file, {**_WORDS, "min_df": 2}),
    "lee": (lee_file, {**_WORDS, "min_df": 3, "format": "txt"}),
}


def located(documents: Any) -> tuple[Any, dict[str, Any]]:
    """Documents and options to read them by: for the name of an example, its file and options."""
    if not isinstance(documents, str) or documents not in EXAMPLES:
        return documents, {}
    file, options = EXAMPLES[documents]
    return file(), dict(options)


def synthetic_topics(
    num_topics: int,
    num_words: int,
    concentration: float = 0.1,
    *,
    seed: int | np.random.Generator = 0,
) -> Tensor:
    """Draws topics from a symmetric Dirichlet distribution.

    Args:
        num_topics: Number of topics, K.
        num_words: Size of the vocabulary, V.
        concentration: The Dirichlet parameter. Smaller values give topics of fewer words.
        seed: Seed of the random numbers, or a generator.

    Returns:
        ``(num_topics, num_words)`` positive float64 probabilities. Each row sums to 1.

    Raises:
        ConfigError: A size or the concentration is not positive.
    """
    if min(num_topics, num_words, concentration) <= 0:
        given = f"{num_topics}, {num_words} and {concentration}"
        raise ConfigError(f"num_topics, num_words and concentration must be positive, got {given}")
    alpha = np.full(num_words, float(concentration))
    topics = np.random.default_rng(seed).dirichlet(alpha, size=num_topics)
    # With small parameters some draws underflow to 0, which would make log-likelihoods -inf.
    topics = np.maximum(topics, np.finfo(np.float32).tiny)
    return torch.from_numpy(topics / topics.sum(1, keepdims=True))
