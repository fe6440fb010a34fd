"""Document completion for the topics of any library, which become a model of this package."""

from __future__ import annotations

from typing import Any, TypeAlias

import pandas as pd
import torch
from torch import Tensor

from torch_lntm.corpus import Corpus, WordHoldOut
from torch_lntm.corpus.corpus import as_corpus
from torch_lntm.errors import ConfigError, CorpusError
from torch_lntm.evaluation import document_completion
from torch_lntm.evaluation.checks import as_matrix, as_probabilities
from torch_lntm.evaluation.completion.result import CompletionResult
from torch_lntm.frames import align
from torch_lntm.kernels.mixture import (
    mixture_log_likelihood,
    probability_floor,
    word_probabilities,
)
from torch_lntm.models import DirichletMultinomial, TopicModel, ctm, lda

#: Concentration ``(num_topics,)`` of a Dirichlet; mean and covariance of a logistic normal, for K
#: logits or for the first K − 1 with the last logit at 0; or a model with its own topics.
Prior: TypeAlias = "TopicModel | tuple[Any, Any] | Any"
_MAX_DOCS = 512


def check_hold_out(hold_out: WordHoldOut[Corpus], expected: str) -> None:
    """Check that a hold-out has the fingerprint of the intended one.

    Raises:
        CorpusError: The two differ.
    """
    found = hold_out.fingerprint()
    if found != expected:
        raise CorpusError(
            f"the fingerprint of the hold-out of {hold_out.corpus!r} is {found[:12]}…, expected "
            f"{expected[:12]}…; make it from the same corpus with the same seeds"
        )


def completion_of(
    prior: Prior,
    topics: Any,
    hold_out: WordHoldOut[Corpus],
    theta: Any = "exact",
    *,
    concentration: float | None = None,
    fingerprint: str | None = None,
    **settings: Any,
) -> CompletionResult:
    """Held-out scores of a prior and topics from any library; see :func:`document_completion`.

    Args:
        prior: Concentration ``(num_topics,)`` of a Dirichlet; or a tuple with the mean and the
            covariance of a logistic normal, for all logits or for the first K − 1 with the last
            logit at 0; or a model of this package.
        topics: ``(num_topics, num_words)`` word probabilities, array or tensor, normalised here.
            None if the prior is a model.
        hold_out: The documents' observed and held-out tokens.
        theta: ``"exact"``, or ``"mode"`` for a plug-in on the softmax scale.
        concentration: Concentration of a Dirichlet-multinomial likelihood of words
            (:class:`~torch_lntm.models.DirichletMultinomial`). Defaults to independent words. Leave
            it out if the prior is a model.
        fingerprint: Expected ``fingerprint()`` of the hold-out, to be sure that two people score
            the same tokens.
        **settings: Settings of :func:`document_completion`.

    Returns:
        The scores of every document.

    Raises:
        ConfigError: The prior, the topics or a number cannot be used, or the numbers of words
            differ.
        CorpusError: See :func:`document_completion`.
    """
    if fingerprint is not None:
        check_hold_out(hold_out, fingerprint)
    model = model_of(prior, topics, concentration)
    return document_completion(model, hold_out, theta=theta, **settings)


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
    proportions = probabilities(theta, "theta", (held_out.num_docs, None))
    probs = probabilities(topics, "topics", (proportions.shape[1], held_out.num_words))
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


def probabilities(values: Any, name: str, shape: tuple[int | None, int | None]) -> Tensor:
    """Rows of probabilities of a shape; see :func:`torch_lntm.evaluation.checks.as_probabilities`.

    Raises:
        ConfigError: The shape is different, where None stands for any size.
    """
    rows = as_probabilities(values, name)
    if any(size not in (None, real) for size, real in zip(shape, rows.shape, strict=True)):
        raise ConfigError(
            f"{name} has shape {tuple(rows.shape)}; expected sizes "
            f"{', '.join('any' if size is None else str(size) for size in shape)}"
        )
    return rows


def model_of(prior: Prior, topics: Any, concentration: float | None = None) -> TopicModel:
    """The prior if it is a model, otherwise a float64 model with these parameters."""
    if isinstance(prior, TopicModel):
        if topics is not None or concentration is not None:
            raise ConfigError(
                "topics or a concentration given beside a model, which has its own; pass None"
            )
        return prior
    phi = as_matrix(topics, "topics")
    settings: dict[str, Any] = {"topics": phi, "dtype": torch.float64}
    try:
        parts = [
            torch.as_tensor(part).detach().cpu().double()
            for part in (prior if isinstance(prior, tuple) else (prior,))
        ]
        if isinstance(prior, tuple):
            loc, covariance = parts
            anchored = loc.shape == (len(phi) - 1,)
            model = ctm(*phi.shape, anchored=anchored, loc=loc, covariance=covariance, **settings)
        else:
            model = lda(*phi.shape, concentration=parts[0], **settings)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"prior is {prior!r:.60} ({error}); expected concentrations of a Dirichlet, a tuple "
            "(mean, covariance) of a logistic normal, or a model, with None as its topics"
        ) from error
    if concentration is not None:
        model.words = DirichletMultinomial(concentration, dtype=torch.float64)
    return model
