"""Document completion: how well a part of each document predicts the rest of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from torch_lntm.corpus import Corpus, DocumentBatch, WordHoldOut, as_corpus
from torch_lntm.errors import ConfigError, CorpusError, require_whole
from torch_lntm.evaluation.checks import check_arguments, simplex
from torch_lntm.evaluation.draws import theta_draws, theta_means
from torch_lntm.evaluation.own_words import (
    OwnWordsWeight,
    held_out_words,
    note_of,
    weight_of,
)
from torch_lntm.evaluation.per_token import per_token
from torch_lntm.guides import Guide, require_guide
from torch_lntm.kernels import SparseWords, mixture_log_likelihood
from torch_lntm.models import TopicModel
from torch_lntm.posteriors import Posterior

Predictive = Literal["mode", "mean", "integrated"]

#: How each predictive is described in a result.
_DESCRIBED = {
    "mode": "theta plugged in at the mode of eta",
    "mean": "theta integrated token by token (its posterior mean)",
    "integrated": "theta integrated over all held-out tokens of a document together",
}
_DESCRIBED_EXACT = "theta integrated token by token (its posterior mean, exact)"
_MAX_DOCS = 512


@dataclass(frozen=True, eq=False, repr=False)
class CompletionResult:
    """Scores of held-out tokens.

    Attributes:
        log_predictive: ``(num_docs,)`` float64 nats of each document's held-out tokens; 0 where
            there are none.
        held_out_tokens: ``(num_docs,)`` int64.
        predictive: ``"mode"``, ``"mean"`` or ``"integrated"`` (see :func:`document_completion`),
            ``"given"`` for proportions given, or ``"unigram"``.
        method: What predicted them, in words.
        observed_fraction: Share of each document's tokens that was observed; None if not known.
        seed: Seed of the hold-out; None if not known.
        corpus_name: Name of the corpus.
        fingerprint: SHA-256 of the tokens scored and observed, of :meth:`WordHoldOut.fingerprint`;
            None if not known.
    """

    log_predictive: Tensor
    held_out_tokens: Tensor
    predictive: str
    method: str
    observed_fraction: float | None = None
    seed: int | None = None
    corpus_name: str | None = None
    fingerprint: str | None = None

    @property
    def num_docs(self) -> int:
        """Documents with held-out tokens."""
        return int((self.held_out_tokens > 0).sum())

    @property
    def nats_per_token(self) -> float:
        """Σ_d log p(held-out of d) / Σ_d held-out tokens of d."""
        return per_token(self.log_predictive, self.held_out_tokens)[0]

    @property
    def nats_per_token_standard_error(self) -> float:
        """Standard error of ``nats_per_token`` over documents; infinite for a single one."""
        return per_token(self.log_predictive, self.held_out_tokens)[1]

    @property
    def perplexity(self) -> float:
        """exp(−nats per token): as uncertain as a choice among so many equally likely words."""
        return math.exp(-self.nats_per_token)

    @property
    def standard_error(self) -> float:
        """Standard error of ``perplexity`` over documents; infinite for a single one."""
        return self.perplexity * self.nats_per_token_standard_error

    def __repr__(self) -> str:
        where = f" of {self.corpus_name}" if self.corpus_name else ""
        split = "a given hold-out"
        if self.observed_fraction is not None:
            split = f"{self.observed_fraction:.0%} observed, seed {self.seed}"
        return (
            f"CompletionResult: held-out tokens{where} by {self.method}; {split}\n"
            f"  perplexity  {self.perplexity:.1f} ± {self.standard_error:.2g} "
            f"(s.e. over documents), {self.num_docs} documents, "
            f"{int(self.held_out_tokens.sum())} held-out tokens\n"
            f"  per token   {self.nats_per_token:.4f} nats ± "
            f"{self.nats_per_token_standard_error:.2g}"
        )


@torch.no_grad()
def document_completion(
    model: TopicModel,
    guide: Guide[Any],
    corpus: Corpus | WordHoldOut[Corpus],
    observed_fraction: float = 0.5,
    seed: int = 0,
    *,
    predictive: Predictive = "mode",
    num_samples: int = 500,
    max_docs: int = 256,
    own_words: OwnWordsWeight = "model",
) -> CompletionResult:
    """Fits theta on a part of each document's tokens and scores the rest (*IFTM §3.2.1*).

    ``predictive`` says what is done with the posterior given the observed tokens:

    * ``"mode"``: Σ_v c_v log Σ_k θ_k φ_kv at θ = softmax of the posterior mean of eta. (A Dirichlet
      posterior has its mode on that scale, that of log θ, at the mean of θ.)
    * ``"mean"``: the same at the posterior mean of θ. As Σ_k θ_k φ_kv is linear in θ, this is also
      the average of the word's probability over the posterior, each token by itself. Exact for a
      Dirichlet posterior, which takes no draws, and by draws for others.
    * ``"integrated"``: log of the average over the posterior of Π_v (Σ_k θ_k φ_kv)^c_v, all
      held-out tokens together, so that one tells about the next. Biased low where draws are few.

    Words repeat within documents. With ``own_words`` = a, a held-out word of probability q by the
    topics has (c + a q) / (N + a), c of the document's N observed tokens being that word: the
    prediction of a Dirichlet-multinomial document (*Doyle & Elkan 2009*).
    :func:`~torch_lntm.evaluation.fit_own_words` finds a.

    Args:
        model: The model.
        guide: A posterior for it.
        corpus: Documents over the model's vocabulary, or a frozen hold-out of their tokens.
        observed_fraction: Share of each document's tokens to observe; not used with a hold-out.
        seed: Seed of the hold-out and of the draws.
        predictive: ``"mode"``, ``"mean"`` or ``"integrated"``.
        num_samples: Draws per document for the latter two.
        max_docs: Documents whose posteriors are solved at once.
        own_words: Tokens that the topics weigh as much as, beside the document's own observed
            words; None for the topics alone. By default what the model says: the concentration of
            a bursty model, and of others the topics alone. Not with ``"integrated"``.

    Returns:
        The scores. Documents without held-out tokens take no part in them.

    Raises:
        ConfigError: A setting that cannot be used, or a corpus over another vocabulary.
        CorpusError: There is not one held-out token.
        IncompatibleGuideError: The guide belongs to another model.
    """
    if predictive not in get_args(Predictive):
        raise ConfigError(
            f"predictive is {predictive!r}; expected one of {', '.join(get_args(Predictive))}"
        )
    require_whole(1, num_samples=num_samples)
    given = isinstance(corpus, WordHoldOut)
    if isinstance(corpus, WordHoldOut):
        ready = check_arguments(model, corpus.corpus, seed=seed, max_docs=max_docs)
        hold_out = corpus.of(ready)
    else:
        corpus = check_arguments(model, corpus, seed=seed, max_docs=max_docs)
        hold_out = corpus.hold_out_words(observed_fraction, seed)
    require_guide(guide, model)
    weight = weight_of(model, own_words)
    if weight is not None and predictive == "integrated":
        raise ConfigError(
            "own_words are for tokens each by itself; take predictive 'mode' or 'mean', not "
            "'integrated', or own_words=None for the topics alone"
        )
    check_any_tokens(hold_out.held_out)
    topics, exact = model.topics.double_probs, False
    scores = []
    observed = hold_out.observed.batches(max_docs=max_docs, device=model.device, dtype=model.dtype)
    held_out = hold_out.held_out.batches(
        max_docs=max_docs, device=model.device, dtype=torch.float64
    )
    for seen, unseen in zip(observed, held_out, strict=True):
        posterior = (guide.means if predictive == "mode" else guide.posterior)(seen)
        # A known mean is the mode on the softmax scale too.
        exact = posterior.has_exact_theta_mean and predictive != "integrated"
        if predictive == "integrated":
            placed = model.topics.place(unseen)
            scores.append(_integrated(posterior, topics, placed, num_samples, seed).cpu())
            continue
        theta = posterior.theta(posterior.mean.double())
        if predictive == "mean":
            theta = theta_means(posterior, num_samples, seed)
        words = held_out_words(model, seen, unseen, weight)
        scores.append(words.log_likelihood(theta).cpu())
    described = _DESCRIBED_EXACT if exact else _DESCRIBED[predictive]
    method = f"{type(guide).__name__}, {described}"
    if predictive != "mode" and not exact:
        method += f", {num_samples} draws"
    method += note_of(weight)
    return CompletionResult(
        torch.cat(scores),
        torch.tensor(hold_out.held_out.lengths),
        predictive,
        method,
        None if given else observed_fraction,
        None if given else seed,
        hold_out.corpus.name,
        hold_out.fingerprint(),
    )


def _integrated(
    posterior: Posterior, topics: Tensor, held_out: DocumentBatch, num_samples: int, seed: int
) -> Tensor:
    """Log of the average over draws of the probability of all held-out tokens ``(num_docs,)``."""
    longest = int(held_out.row_offsets.diff().max())
    scores = [
        SparseWords(topics, held_out.select(rows)).log_likelihood(theta).logsumexp(0)
        for rows, theta in theta_draws(posterior, num_samples, seed, longest)
    ]
    return torch.cat(scores) - math.log(num_samples)


def completion_perplexity(theta: Any, topics: Any, held_out: Corpus) -> CompletionResult:
    """Scores held-out tokens under given topic proportions and topics, from any library.

    Args:
        theta: ``(num_docs, num_topics)`` topic proportions, array or tensor; normalised here.
        topics: ``(num_topics, num_words)`` word probabilities, array or tensor; normalised here.
        held_out: The held-out tokens of the same documents, in the same order: a corpus, or a
            matrix of counts.

    Returns:
        The scores.

    Raises:
        ConfigError: Shapes that do not fit, negative or non-finite entries, rows without mass, or
            a held-out word that has probability zero.
        CorpusError: There is not one held-out token.
    """
    held_out = as_corpus(held_out, allow_empty=True)
    proportions = simplex(theta, "theta", (held_out.num_docs, None))
    probs = simplex(topics, "topics", (proportions.shape[1], held_out.num_words))
    check_any_tokens(held_out)
    floor = math.log(torch.finfo(torch.float64).tiny)
    scores = []
    for batch in held_out.batches(max_docs=_MAX_DOCS, dtype=torch.float64):
        score = mixture_log_likelihood(proportions[batch.index], probs, batch)
        # A probability of zero scores as the floor; a possible one never comes near it.
        if bool((score <= 0.5 * floor).any()):
            _check_possible(proportions, probs, batch.index[score <= 0.5 * floor], held_out)
        scores.append(score)
    return CompletionResult(
        torch.cat(scores),
        torch.tensor(held_out.lengths),
        "given",
        "given theta and topics",
        corpus_name=held_out.name,
    )


def _check_possible(theta: Tensor, topics: Tensor, suspects: Tensor, held_out: Corpus) -> None:
    """Raises if a held-out word of a suspect document has probability zero."""
    for d in suspects.tolist():
        entries = slice(held_out.row_offsets[d], held_out.row_offsets[d + 1])
        words = torch.tensor(held_out.word_index[entries], dtype=torch.int64)
        impossible = words[(theta[d] @ topics[:, words]) == 0]
        if len(impossible):
            raise ConfigError(
                f"held-out word {int(impossible[0])} of document {d} has probability zero, which "
                "makes the perplexity infinite; smooth the topics"
            )


def unigram_perplexity(
    train: Corpus, held_out: Corpus, *, smoothing: float = 1.0
) -> CompletionResult:
    """Scores tokens under the word frequencies of a training corpus, the baseline to beat.

    Args:
        train: Training documents, a corpus or a matrix of counts.
        held_out: The tokens to score, over the same vocabulary, in either form.
        smoothing: Pseudo-count of every word of the vocabulary.

    Returns:
        The scores.

    Raises:
        ConfigError: Negative smoothing, or none and a held-out word that training lacks.
        CorpusError: The vocabularies differ, or there is not one token to score.
    """
    if not 0 <= smoothing < math.inf:
        raise ConfigError(f"smoothing is {smoothing}; expected a number >= 0")
    train, held_out = (as_corpus(each, allow_empty=True) for each in (train, held_out))
    same_words = None in (train.vocabulary, held_out.vocabulary) or (
        train.vocabulary == held_out.vocabulary
    )
    if train.num_words != held_out.num_words or not same_words:
        raise CorpusError(
            f"{train!r} and {held_out!r} have different vocabularies; "
            "re-index one by corpus.with_vocabulary(other.vocabulary)"
        )
    counts = train.word_totals + smoothing
    result = completion_perplexity(np.ones((held_out.num_docs, 1)), counts[None], held_out)
    return CompletionResult(
        result.log_predictive,
        result.held_out_tokens,
        "unigram",
        f"unigram frequencies of {train.num_docs} training documents + {smoothing:g}",
        corpus_name=held_out.name,
    )


def check_any_tokens(held_out: Corpus) -> None:
    """Raises ``CorpusError`` if there is nothing to score."""
    if held_out.num_tokens == 0:
        raise CorpusError(
            "there is not one held-out token; a document needs at least two tokens to have one"
        )
