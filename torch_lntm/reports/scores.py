"""Scores of a model as tables, each with method, unit and standard error."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.splits import Split
from torch_lntm.errors import CorpusWarning, warn
from torch_lntm.evaluation import (
    CompletionResult,
    LikelihoodEstimate,
    coherence,
    document_completion,
    topic_diversity,
    unigram_perplexity,
)
from torch_lntm.evaluation.completion.result import ExactCompletion
from torch_lntm.files.reading import read_errors
from torch_lntm.frames import is_missing
from torch_lntm.guides import Guide
from torch_lntm.io.models import read_json
from torch_lntm.kernels.fused import with_threads
from torch_lntm.models import TopicModel

#: Types of the columns of a table of scores.
_TYPES = {
    "metric": "str",
    "value": "float",
    "std_error": "float",
    "unit": "str",
    "documents": "Int64",
    "tokens": "Int64",
    "method": "str",
}


def score_table(*results: CompletionResult | LikelihoodEstimate) -> pd.DataFrame:
    """Scores of held-out documents, from results of completion and estimates of the likelihood.

    Args:
        *results: Results of ``evaluation.document_completion`` and ``evaluation.log_likelihood``.

    Returns:
        A row for each score: ``metric``, ``value``, ``std_error`` over documents, ``unit``, numbers
        of ``documents`` and ``tokens``, and ``method``. A likelihood has two rows, as perplexity
        and in nats per token.

    Example:
        >>> completion = lntm.evaluation.document_completion(model, test, theta="mode", guide=guide)
        >>> lntm.reports.score_table(completion)["metric"].tolist()
        ['completion perplexity']
    """
    rows: list[tuple[Any, ...]] = []
    for result in results:
        perplexity = (result.perplexity, result.perplexity_standard_error)
        if isinstance(result, LikelihoodEstimate):
            about = (result.num_docs, int(result.lengths.sum()), result.description)
            rows.append(("perplexity", *perplexity, "per token", *about))
            nats = (result.nats_per_token, result.nats_per_token_standard_error)
            rows.append(("log likelihood", *nats, "nats per token", *about))
            continue
        method = result.method
        if result.observed_fraction is not None:
            method += f"; {result.observed_fraction:.0%} observed, seed {result.seed}"
        if isinstance(result, ExactCompletion):
            method += f"; simulation error {result.simulation_error:.2g}"
        about = (result.num_docs, int(result.held_out_tokens.sum()), method)
        rows.append(("completion perplexity", *perplexity, "per held-out token", *about))
    return as_scores(rows)


def completion(
    guide: Guide[Any],
    test: Corpus,
    train: Corpus | None,
    *,
    observed_fraction: float = 0.5,
    theta: Any = "exact",
    **random: Any,
) -> list[CompletionResult]:
    """Results of document completion, for :func:`score_table`.

    A bursty model has 2 results: with repeated words, and by its topics alone.

    Args:
        guide: The guide of the model.
        test: Documents to score.
        train: Documents of the fit, for the score of the unigram model; ``None`` if unknown.
        observed_fraction: As for :func:`~torch_lntm.evaluation.document_completion`.
        theta: As for :func:`~torch_lntm.evaluation.document_completion`.
        **random: The arguments ``seed`` and ``progress``.

    Warns:
        CorpusWarning: No document has 2 words, so there is no result, or a unigram model predicts
            better.
    """
    hold_out = test.hold_out_words(observed_fraction, seed=random["seed"])
    if hold_out.held_out.num_tokens == 0:
        warn("completion needs a document with at least 2 words", CorpusWarning)
        return []
    bursty = guide.model.words.cache_weight is not None
    weights: list[Any] = ["model", None] if bursty else [None]
    options = {"observed_fraction": observed_fraction, "theta": theta, **random}
    options["guide"] = None if theta == "exact" else guide
    with with_threads(guide.model.topics.probs):
        results: list[CompletionResult] = [
            document_completion(guide.model, test, cache_weight=weight, **options)
            for weight in weights
        ]
    if train is not None:
        results.append(unigram_perplexity(train, hold_out.held_out))
        if results[-2].perplexity > results[-1].perplexity:
            better = "a unigram model predicts these documents better than the topic model"
            advice = "the model may have too many topics, or too few documents"
            warn(f"{better}; {advice}", CorpusWarning)
    return results


def held_out_scores(
    guide: Guide[Any], split: Split[Corpus] | None, **random: Any
) -> pd.DataFrame | None:
    """Scores of the documents that a fit holds out, by :func:`completion`; ``None`` without any."""
    results = completion(guide, split.test, split.train, **random) if split is not None else []
    return score_table(*results) if results else None


def topic_scores(
    model: TopicModel, corpus: Corpus | None = None, *, top_n: int = 10
) -> pd.DataFrame:
    """Diversity of the topics' top words, and their mean coherence in documents.

    Args:
        model: The model.
        corpus: Documents in which to count how often top words occur together, for the coherence by
            NPMI and by UMass with standard errors over topics. Without them, only the diversity is
            computed, which is the share of distinct words among the top words of all topics.
        top_n: Top words of each topic.

    Returns:
        A table like that of :func:`score_table`.

    Example:
        >>> lntm.reports.topic_scores(model)["metric"].tolist()
        ['topic diversity']
    """
    words = model.topics.top_words(top_n)[0].tolist()
    rows: list[tuple[Any, ...]] = []
    if corpus is not None:
        about = (corpus.num_docs, corpus.num_tokens, f"top {top_n} words, together in documents")
        for name in ("NPMI", "UMass"):
            values = coherence(words, corpus, name.lower(), top_n)
            numbers = (float(values.mean()), float(values.std() / math.sqrt(len(values))))
            rows.append((f"coherence {name}", *numbers, "mean over topics", *about))
    diversity = (topic_diversity(words, top_n), None, "share of distinct words")
    rows.append(("topic diversity", *diversity, None, None, f"top {top_n} words"))
    return as_scores(rows)


def as_scores(rows: Any) -> pd.DataFrame:
    """A table of scores from its rows."""
    return pd.DataFrame(rows, columns=list(_TYPES)).astype(_TYPES)


def score_records(scores: pd.DataFrame) -> list[dict[str, Any]]:
    """Scores as records for JSON, in which an unknown or infinite number is None."""
    records = scores.rename(columns={"std_error": "standard_error"}).to_dict("records")
    return [
        {str(name): None if is_missing(x) or x == math.inf else x for name, x in record.items()}
        for record in records
    ]


def read_scores(path: str | Path) -> pd.DataFrame:
    """Read scores from a JSON list of the objects of :func:`score_records`.

    Args:
        path: The file.

    Raises:
        ConfigError: The file is missing or damaged, or has other contents.
    """
    fields = [name.replace("std_error", "standard_error") for name in _TYPES]
    invalid = (LookupError, TypeError, ValueError, OverflowError)
    with read_errors(Path(path), "not a list of scores", invalid):
        rows = [[record[name] for name in fields] for record in read_json(Path(path), list)]
        scores = as_scores(rows)
        if scores[["metric", "value"]].isna().any(axis=None):
            raise ValueError("a score lacks its metric or its value")
    return scores
