"""Corpora and topics to try things on."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_lntm.corpus.corpus import Corpus
from torch_lntm.corpus.readers import read_corpus
from torch_lntm.errors import ConfigError, CorpusError


def lee_corpus(**options: Any) -> Corpus:
    """The Lee background corpus: 300 news articles that come with gensim, so nothing is downloaded.

    Args:
        **options: Options of ``Corpus.from_texts`` instead of the defaults: words of three or more
            letters in at least 3 and at most half of the articles, without English stop words.

    Returns:
        The corpus, with vocabulary.

    Raises:
        CorpusError: gensim is not installed.
    """
    defaults = {
        "token_pattern": r"(?u)\b[^\W\d_]{3,}\b",
        "stop_words": "english",
        "min_df": 3,
        "max_df": 0.5,
    }
    return read_corpus(lee_file(), format="txt", **{**defaults, **options})


def lee_file() -> Path:
    """The file of the Lee background corpus, with an article in each line.

    Raises:
        CorpusError: gensim is not installed.
    """
    gensim = find_spec("gensim")  # its folder will do; importing it takes seconds
    if gensim is None or not gensim.submodule_search_locations:
        raise CorpusError(
            "the Lee corpus comes with gensim, which is not installed; "
            "install it by pip install 'torch-lntm[demo]'"
        )
    return Path(gensim.submodule_search_locations[0], "test", "test_data", "lee_background.cor")


def synthetic_topics(
    num_topics: int,
    num_words: int,
    concentration: float = 0.1,
    seed: int | np.random.Generator = 0,
) -> Tensor:
    """Topics drawn from a symmetric Dirichlet distribution.

    Args:
        num_topics: Number of topics, K.
        num_words: Size of the vocabulary, V.
        concentration: The Dirichlet parameter; the smaller, the fewer words a topic has.
        seed: A number, or the generator to draw from.

    Returns:
        ``(num_topics, num_words)`` float64 probabilities, all positive, rows summing to one.

    Raises:
        ConfigError: A size or the concentration is not positive.
    """
    if min(num_topics, num_words, concentration) <= 0:
        raise ConfigError(
            "num_topics, num_words and concentration must be positive, got "
            f"{num_topics}, {num_words} and {concentration}"
        )
    alpha = np.full(num_words, float(concentration))
    topics = np.random.default_rng(seed).dirichlet(alpha, size=num_topics)
    # Small parameters underflow to zero, which no document's log-likelihood survives.
    topics = np.maximum(topics, np.finfo(np.float32).tiny)
    return torch.from_numpy(topics / topics.sum(1, keepdims=True))
