"""Document completion: the observed tokens of each document predict its held-out tokens.

How theta is estimated matters as much as the model. A plug-in estimate favours some families of
priors, by up to 18 % of the perplexity of short documents. ``theta="exact"`` avoids this: it
integrates theta out, p(w | observed) = Σ_k E[theta_k | observed] φ_kw, with chains that run until
their error is small.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from torch_lntm.corpus import Corpus, DocumentBatch, WordHoldOut
from torch_lntm.corpus.corpus import as_corpus
from torch_lntm.errors import (
    ConfigError,
    CorpusError,
    UnreliableEstimateWarning,
    require_one,
    require_whole,
    warn,
)
from torch_lntm.evaluation.checks import check_arguments
from torch_lntm.evaluation.completion.cache import (
    CacheWeight,
    held_out_words,
    resolve_cache_weight,
)
from torch_lntm.evaluation.completion.exact import SHORT, score_by_chains
from torch_lntm.evaluation.completion.result import CompletionResult, ExactCompletion
from torch_lntm.evaluation.completion.theta import theta_means, theta_modes
from torch_lntm.guides import Guide
from torch_lntm.guides.guide import require_guide
from torch_lntm.models import TopicModel
from torch_lntm.progress import tqdm

Theta = Literal["mode", "mean", "exact"]
#: Default draws of a guide's posterior, and of each chain at first.
_GUIDE_DRAWS, _CHAIN_DRAWS = 500, 100


@torch.no_grad()
def document_completion(
    model: TopicModel,
    corpus: Corpus | WordHoldOut[Corpus],
    *,
    theta: Theta = "exact",
    guide: Guide[Any] | None = None,
    observed_fraction: float = 0.5,
    num_draws: int | None = None,
    tolerance: float = 5e-3,
    num_chains: int = 4,
    max_draws: int = 6400,
    max_docs: int = 256,
    cache_weight: CacheWeight = "model",
    seed: int = 0,
    progress: bool = True,
) -> CompletionResult:
    """Held-out scores of documents, given their observed tokens (*IFTM §3.2.1*).

    Part of each document's tokens is observed. From these, the model infers the document's topic
    proportions θ, and from them it predicts the remaining tokens. ``theta`` selects how θ is
    estimated:

    * ``"exact"``: the posterior mean of θ, from chains for each document and without a guide. Since
      Σ_k θ_k φ_kv is linear in θ, each token gets its probability under the whole posterior. The
      chains use collapsed Gibbs sampling for a Dirichlet prior and Hamiltonian Monte Carlo for
      other priors. They double in length until the Monte-Carlo standard error over all documents is
      within ``tolerance``, or until ``max_draws``. The logarithm of an average is also biased; this
      bias must be within ``tolerance`` too, and the jackknife over chains then removes it.
    * ``"mode"``: θ is the softmax of the guide's posterior mean of eta, or the mean of a Dirichlet
      posterior, which is the mode of log θ. Without a guide, it is the softmax of the true
      posterior's mode of the logits: the mode on the softmax scale.
    * ``"mean"``: the guide's posterior mean of θ, which is exact for a Dirichlet posterior, and
      estimated by draws for others.

    Only ``"exact"`` compares models of any kind on equal terms. The other scores are faster, but
    they also depend on the family of the prior. To score a fit of another library, make a model of
    its topics and prior, such as ``lntm.models.lda(*topics.shape, topics=topics,
    concentration=alpha)``.

    Words tend to repeat within a document, and a cache language model predicts these repetitions.
    With ``cache_weight`` = a, a held-out word whose probability under the topics is q gets the
    probability (c + a q) / (N + a), if it occurs c times among the document's N observed tokens.
    This is the prediction for Dirichlet-multinomial counts (*Doyle & Elkan 2009*).

    Args:
        model: The model.
        corpus: Documents over the model's vocabulary, or a frozen hold-out of their tokens.
        theta: ``"exact"``, ``"mode"`` or ``"mean"``.
        guide: A guide of the model, which ``"mean"`` needs and ``"exact"`` does not take.
        observed_fraction: Share of each document's tokens to observe, unless a hold-out has settled
            it.
        num_draws: Draws of each document for ``"mean"``. Defaults to 500. For ``"exact"``, the
            first number of kept draws of each chain, at least 4; warm-up has the same length.
            Defaults to 100.
        tolerance: Largest error of ``"exact"``, nats per token.
        num_chains: Chains of each document for ``"exact"``, at least 2.
        max_draws: Most draws of each chain to keep for ``"exact"``.
        max_docs: Number of documents computed at once, whose chains stop together.
        cache_weight: Weight a of the topics relative to the document's observed words, in tokens,
            or None for the topics alone. The default, ``"model"``, is the concentration of a bursty
            model and None for other models.
        seed: Seed of the hold-out and of all draws.
        progress: Show a progress bar on standard error.

    Returns:
        The scores; an :class:`ExactCompletion` for ``"exact"``. Documents without held-out tokens
        are left out. :func:`paired_difference` compares two results over the same hold-out.

    Raises:
        ConfigError: A setting is out of range, a guide is missing or not wanted, or the corpus has
            another vocabulary.
        CorpusError: There is no held-out token.
        IncompatibleGuideError: The guide belongs to another model.

    Warns:
        UnreliableEstimateWarning: The error of ``"exact"`` is above ``tolerance``.

    Example:
        >>> result = lntm.evaluation.document_completion(model, test, theta="mode", guide=guide)
        >>> result.theta, result.num_docs
        ('mode', ...)
    """
    require_one(get_args(Theta), theta=theta)
    if not tolerance > 0:
        raise ConfigError(f"tolerance is {tolerance}; expected a positive number of nats per token")
    exact = theta == "exact"
    require_whole(2, num_chains=num_chains)
    require_whole(4 if exact else 1, num_draws=num_draws, max_draws=max_draws)
    num_draws = num_draws or (_CHAIN_DRAWS if exact else _GUIDE_DRAWS)
    hold_out = _hold_out(model, corpus, observed_fraction, seed, max_docs)
    if exact and guide is not None:
        raise ConfigError(
            "theta='exact' runs chains and has no guide; leave it out, or take theta='mode'"
        )
    if guide is not None or theta == "mean":
        require_guide(guide, model)
    weight = resolve_cache_weight(model, cache_weight)
    about: dict[str, Any] = {
        "held_out_tokens": torch.tensor(hold_out.held_out.lengths),
        "theta": theta,
        "corpus_name": hold_out.corpus.name,
        "documents": hold_out.corpus.metadata.index,
        "fingerprint": hold_out.fingerprint(),
    }
    if not isinstance(corpus, WordHoldOut):
        about |= {"observed_fraction": observed_fraction, "seed": seed}
    score: Any = partial(_scores, model, guide, theta, weight, num_draws, seed)
    precision: Any = {"tolerance": tolerance, "num_chains": num_chains}
    if exact:
        draws: Any = {"num_draws": num_draws, "max_draws": max_draws, "seed": seed} | precision
        score = partial(score_by_chains, model, weight, hold_out.held_out.num_tokens, **draws)
    batches = _batches(model, hold_out, exact or guide is None, max_docs, progress)
    found = [(*score(seen, unseen), seen.positions) for seen, unseen in batches]
    parts, methods, rows = zip(*found, strict=True)
    place = torch.cat(rows).argsort()
    for name in parts[0]:
        about[name] = torch.cat([part[name].cpu() for part in parts])[place]
    own = "" if weight is None else f", and the documents' own words (a = {weight:.4g})"
    about["method"] = methods[0] + own
    return _checked(ExactCompletion(**about, **precision)) if exact else CompletionResult(**about)


def _checked(result: ExactCompletion) -> ExactCompletion:
    """The same result; warns if its error is above the tolerance."""
    if not result.within_tolerance:
        warn(
            f"the simulation's error is {result.simulation_error:.2g} nats per token and its bias "
            f"{result.simulation_bias:.2g}, not within {result.tolerance:g}, after "
            f"{int(result.num_draws.max())} draws of each chain; raise max_draws",
            UnreliableEstimateWarning,
        )
    return result


def _batches(
    model: TopicModel, hold_out: WordHoldOut[Corpus], by_length: bool, max_docs: int, progress: bool
) -> Iterator[tuple[DocumentBatch, DocumentBatch]]:
    """Observed and held-out tokens of the same documents, batch by batch.

    Args:
        model: The model.
        hold_out: All tokens.
        by_length: Sort the documents by their observed tokens, and let no batch have both documents
            of up to ``SHORT`` tokens and longer ones.
        max_docs: Most documents of a batch.
        progress: Show a progress bar.
    """
    lengths = hold_out.observed.lengths
    orders = [np.arange(len(lengths))]
    if by_length:
        orders = np.split(lengths.argsort(kind="stable"), [int((lengths <= SHORT).sum())])
    with tqdm(total=len(lengths), unit="doc", disable=not progress) as bar:
        for order in filter(len, orders):
            observed, held_out = (
                part.batches(max_docs, order=order, device=model.device, dtype=dtype)
                for part, dtype in zip(hold_out, (model.dtype, torch.float64), strict=True)
            )
            for seen, unseen in zip(observed, held_out, strict=True):
                yield seen, unseen
                bar.update(seen.num_docs)


def _scores(
    model: TopicModel,
    guide: Guide[Any] | None,
    theta: Theta,
    cache_weight: float | None,
    num_draws: int,
    seed: int,
    seen: DocumentBatch,
    unseen: DocumentBatch,
) -> tuple[dict[str, Tensor], str]:
    """Log probabilities of held-out tokens by a plug-in or by draws, and the method in words."""
    if guide is None:
        proportions = theta_modes(model, seen)
        method = f"{model.name}, theta at its mode on the softmax scale"
    else:
        posterior = guide.posterior(seen, covariances=theta != "mode")
        at = "the mode of eta" if theta == "mode" else f"its mean, {num_draws} draws"
        at = "its exact mean" if posterior.has_exact_theta_mean else at
        method = f"{type(guide).__name__}'s posterior, theta at {at}"
        # For an exact (Dirichlet) posterior, theta at the mean is the mode of log theta.
        proportions = posterior.theta(posterior.mean.double())
        if theta == "mean":
            proportions = theta_means(posterior, num_draws, seed)
    words = held_out_words(model, seen, unseen, cache_weight)
    return {"log_predictive": words.log_likelihood(proportions)}, method


def _hold_out(
    model: TopicModel,
    corpus: Corpus | WordHoldOut[Corpus],
    observed_fraction: float,
    seed: int,
    max_docs: int,
) -> WordHoldOut[Corpus]:
    """A checked hold-out with the covariates of the model. A plain corpus is split here."""
    frozen = corpus if isinstance(corpus, WordHoldOut) else None
    whole = corpus if frozen is None else frozen.corpus
    ready = check_arguments(model, whole, seed=seed, max_docs=max_docs)
    hold_out = frozen.of(ready) if frozen else ready.hold_out_words(observed_fraction, seed=seed)
    _require_tokens(hold_out.held_out)
    return hold_out


def unigram_perplexity(
    train: Corpus, held_out: Corpus, *, smoothing: float = 1.0
) -> CompletionResult:
    """Scores tokens by the word frequencies of a training corpus, a baseline for any model.

    Args:
        train: Training documents, a corpus or a matrix of counts.
        held_out: Tokens to score over the same vocabulary, a corpus or a matrix of counts.
        smoothing: Pseudo-count of every word of the vocabulary, positive.

    Returns:
        The scores.

    Raises:
        ConfigError: Smoothing is not positive.
        CorpusError: The vocabularies differ, or there is no token to score.
    """
    if not 0 < smoothing < math.inf:
        raise ConfigError(f"smoothing is {smoothing}; expected a positive number")
    train, held_out = (as_corpus(each, allow_empty=True) for each in (train, held_out))
    words = train.vocabulary, held_out.vocabulary
    if train.num_words != held_out.num_words or (None not in words and words[0] != words[1]):
        raise CorpusError(
            f"{train!r} and {held_out!r} have different vocabularies; "
            "re-index one by corpus.with_vocabulary(other.vocabulary)"
        )
    _require_tokens(held_out)
    counts = train.word_totals + smoothing
    scores = held_out.to_scipy() @ np.log(counts / counts.sum())
    return CompletionResult(
        torch.from_numpy(scores),
        torch.tensor(held_out.lengths),
        "unigram",
        f"unigram frequencies of {train.num_docs} training documents, plus {smoothing:g} for each "
        "word",
        corpus_name=held_out.name,
        documents=held_out.metadata.index,
    )


def _require_tokens(held_out: Corpus) -> None:
    """Refuse documents without a token to score.

    Raises:
        CorpusError: There is none.
    """
    if held_out.num_tokens == 0:
        raise CorpusError(
            "there is not one held-out token; a document needs at least two tokens to have one"
        )
