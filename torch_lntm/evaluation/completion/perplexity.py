"""Perplexity of held-out tokens for proportions from any library, and for word frequencies."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.corpus import as_corpus
from torch_lntm.errors import ConfigError, CorpusError
from torch_lntm.evaluation.checks import as_probabilities
from torch_lntm.evaluation.completion.result import CompletionResult
from torch_lntm.frames import align
from torch_lntm.kernels.mixture import (
    mixture_log_likelihood,
    probability_floor,
    word_probabilities,
)

_MAX_DOCS = 512


def completion_perplexity(theta: Any, topics: Any, held_out: Corpus) -> CompletionResult:
    """Scores of held-out tokens for topic proportions and topics from any library.

    Args:
        theta: ``(num_docs, num_topics)`` topic proportions; normalised here. The rows of a data
            frame are joined by the documents' names, those of an array or tensor go by position.
        topics: ``(num_topics, num_words)`` word probabilities, array or tensor; normalised here.
        held_out: Held-out tokens of the same documents in the same order, a corpus or a matrix of
            counts.

    Returns:
        The scores.

    Raises:
        ConfigError: The shapes differ, an entry is negative, infinite or NaN, a row is 0, or a
            held-out word has probability 0.
        CorpusError: There is no held-out token.
    """
    held_out = as_corpus(held_out, allow_empty=True)
    if isinstance(theta, pd.DataFrame):
        theta = align(theta, held_out.metadata.index, "theta").to_numpy()
    proportions = as_probabilities(theta, "theta", (held_out.num_docs, None))
    probs = as_probabilities(topics, "topics", (proportions.shape[1], held_out.num_words))
    if held_out.num_tokens == 0:
        raise CorpusError("there is not one held-out token; pass documents that have some")
    scores = []
    for batch in held_out.batches(max_docs=_MAX_DOCS, dtype=torch.float64):
        theta = proportions[batch.index]
        impossible = word_probabilities(theta, probs, batch) <= probability_floor(torch.float64)
        if bool(impossible.any()):
            entry = int(impossible.nonzero()[0])
            raise ConfigError(
                f"held-out word {int(batch.word_index[entry])} of document "
                f"{int(batch.index[batch.row_index[entry]])} has probability zero, which makes the "
                "perplexity infinite; smooth the topics"
            )
        scores.append(mixture_log_likelihood(theta, probs, batch))
    return CompletionResult(
        torch.cat(scores),
        torch.tensor(held_out.lengths),
        "given",
        "given theta and topics",
        corpus_name=held_out.name,
        documents=held_out.metadata.index,
    )


def unigram_perplexity(
    train: Corpus, held_out: Corpus, *, smoothing: float = 1.0
) -> CompletionResult:
    """Scores of tokens for the word frequencies of a training corpus: the baseline of any model.

    Args:
        train: Training documents, a corpus or a matrix of counts.
        held_out: Tokens to score over the same vocabulary, a corpus or a matrix of counts.
        smoothing: Pseudo-count of every word of the vocabulary.

    Returns:
        The scores.

    Raises:
        ConfigError: Smoothing is negative, or it is 0 and a held-out word is not in training.
        CorpusError: The vocabularies differ, or there is no token to score.
    """
    if not 0 <= smoothing < math.inf:
        raise ConfigError(f"smoothing is {smoothing}; expected a number >= 0")
    train, held_out = (as_corpus(each, allow_empty=True) for each in (train, held_out))
    words = train.vocabulary, held_out.vocabulary
    if train.num_words != held_out.num_words or (None not in words and words[0] != words[1]):
        raise CorpusError(
            f"{train!r} and {held_out!r} have different vocabularies; "
            "re-index one by corpus.with_vocabulary(other.vocabulary)"
        )
    counts = train.word_totals + smoothing
    result = completion_perplexity(np.ones((held_out.num_docs, 1)), counts[None], held_out)
    method = (
        f"unigram frequencies of {train.num_docs} training documents, plus {smoothing:g} for each "
        "word"
    )
    return replace(result, theta="unigram", method=method)
