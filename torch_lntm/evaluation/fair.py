"""One score of held-out tokens for the models of every library: exact given prior and topics.

A plug-in of theta favours one family of priors or another, by up to 18 % of the perplexity on short
documents. Here theta is integrated out: p(w | observed) = Σ_k E[theta_k | observed] φ_kw, the
posterior mean by chains that are run until their own error is small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus, DocumentBatch, WordHoldOut
from torch_lntm.errors import ConfigError, UnreliableEstimateWarning, require_whole, warn
from torch_lntm.evaluation.checks import check_arguments
from torch_lntm.evaluation.completion import CompletionResult, check_any_tokens
from torch_lntm.evaluation.modes import theta_modes
from torch_lntm.evaluation.own_words import (
    OwnWordsWeight,
    best_topic_tokens,
    entries,
    held_out_words,
    note_of,
    weight_of,
)
from torch_lntm.evaluation.per_token import per_token
from torch_lntm.evaluation.theta_chains import SHORT, ChainScores, chains_of, scores_of
from torch_lntm.kernels import SparseWords
from torch_lntm.models import DirichletMultinomial, TopicModel, ctm, lda
from torch_lntm.models.words.dirichlet_multinomial import HIGHEST
from torch_lntm.progress import tqdm

Method = Literal["mean", "mode"]
R = TypeVar("R")
#: A Dirichlet's concentration ``(num_topics,)``; or a logistic normal's mean and covariance, of K
#: logits or of K − 1 with the last logit at 0; or a model of this package, with its own topics.
Prior: TypeAlias = "TopicModel | tuple[Any, Any] | Any"

#: Split R-hat above which a document's chains have not met.
LARGEST_RHAT = 1.05


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ExactCompletion(CompletionResult):
    """Scores of held-out tokens at the exact posterior mean of theta, and how exact they are.

    Attributes:
        tolerance: Nats per token that ``simulation_error`` and ``simulation_bias`` were to reach.
        variance: ``(num_docs,)`` float64 Monte-Carlo variance of ``log_predictive``, nats².
        bias: ``(num_docs,)`` float64 nats that the score at the chains' mean of theta is off by on
            average, as the logarithm is concave. The jackknife over chains finds it;
            ``log_predictive`` is without it.
        rhat: ``(num_docs,)`` float64 split R-hat of the held-out tokens' log probability.
        num_samples: ``(num_docs,)`` int64 draws of each chain, after as many of warm-up.
        num_chains: Chains of each document.
    """

    tolerance: float
    variance: Tensor
    bias: Tensor
    rhat: Tensor
    num_samples: Tensor
    num_chains: int

    @property
    def simulation_error(self) -> float:
        """Monte-Carlo standard error of ``nats_per_token``, from independent chains."""
        return float(self.variance.sum().sqrt() / self.held_out_tokens.sum())

    @property
    def simulation_bias(self) -> float:
        """Nats per token of bias that the jackknife found, and that was taken off."""
        return float(self.bias.sum() / self.held_out_tokens.sum())

    @property
    def within_tolerance(self) -> bool:
        """Whether the error, and the bias taken off, are as small as asked for."""
        return max(self.simulation_error, abs(self.simulation_bias)) <= self.tolerance

    @property
    def max_rhat(self) -> float:
        """Largest R-hat of a document with held-out tokens."""
        return float(self.rhat[self.held_out_tokens > 0].max())

    @property
    def share_above_rhat(self) -> float:
        """Share of the documents with held-out tokens whose R-hat is above 1.05."""
        return float((self.rhat[self.held_out_tokens > 0] > LARGEST_RHAT).double().mean())

    def __repr__(self) -> str:
        reached = "" if self.within_tolerance else f", NOT within {self.tolerance:g}"
        return (
            f"{super().__repr__()}\n"
            f"  simulation  s.e. {self.simulation_error:.2g}, bias removed "
            f"{self.simulation_bias:.2g} nats per token{reached}; {self.num_chains} chains of up "
            f"to {int(self.num_samples.max())} draws\n"
            f"  R-hat       at most {self.max_rhat:.3f}; above {LARGEST_RHAT} in "
            f"{self.share_above_rhat:.1%} of the documents"
        )


@torch.no_grad()
def completion_of(
    prior: Prior,
    topics: Any,
    hold_out: WordHoldOut[Corpus],
    method: Method = "mean",
    *,
    tolerance: float = 1e-3,
    num_chains: int = 4,
    num_samples: int = 100,
    max_samples: int = 6400,
    max_docs: int = 256,
    own_words: OwnWordsWeight = "model",
    concentration: float | None = None,
    seed: int = 0,
    fingerprint: str | None = None,
    progress: bool = False,
) -> CompletionResult:
    """Scores held-out tokens given the observed ones, by the same rule for every model.

    What a model is, here, is its topics and its prior of theta, whichever library they are from.
    With ``"mean"`` a held-out token w has probability Σ_k E[theta_k | observed] φ_kw, theta
    integrated out token by token. The posterior mean comes from chains of each document: under a
    Dirichlet prior collapsed Gibbs sampling of the tokens' topics, else Hamiltonian Monte Carlo of
    the logits. The lengths of the chains are doubled until the Monte-Carlo standard error over all
    documents is within ``tolerance``, and so is the bias that the logarithm of an average has, or
    until ``max_samples``; the result says which (an :class:`ExactCompletion`). The bias is then
    taken off, by the jackknife over chains.

    With ``"mode"`` theta is plugged in at the mode of its posterior on the softmax scale, for
    comparison: where documents are short it tells more of the family of the prior than of the fit.

    Args:
        prior: A Dirichlet's concentration ``(num_topics,)``; or the mean and covariance of a
            logistic normal, a tuple, of all logits or of all but the last, which is then 0; or a
            model of this package.
        topics: ``(num_topics, num_words)`` word probabilities, array or tensor; normalised here.
            None for a model, which has its own.
        hold_out: The documents, of which some tokens are observed.
        method: ``"mean"`` or ``"mode"``.
        tolerance: Nats per token.
        num_chains: Chains of each document, at least 2.
        num_samples: Draws of each chain to start with, after as many of warm-up; at least 4.
        max_samples: Most draws of each chain to keep.
        max_docs: Documents whose chains move together, and judge together whether they suffice.
        own_words: As for :func:`document_completion`; theta is still that of the model.
        concentration: Concentration of documents that repeat their words, beside a prior and topics
            (:class:`~torch_lntm.models.DirichletMultinomial`); a model has its own.
        seed: Seed of all draws.
        fingerprint: What ``hold_out.fingerprint()`` must be, so that others score the same tokens.
        progress: Show a progress bar on standard error.

    Returns:
        The scores of every document; two results over the same hold-out compare document by
        document, see :func:`paired_difference`.

    Raises:
        ConfigError: A prior, topics or number that cannot be used, or another number of words.
        CorpusError: There is not one held-out token, or these are other tokens than
            ``fingerprint`` says.

    Warns:
        UnreliableEstimateWarning: The simulation's error is above ``tolerance``.
    """
    if method not in get_args(Method):
        raise ConfigError(f"method is {method!r}; expected one of {', '.join(get_args(Method))}")
    if not tolerance > 0:
        raise ConfigError(f"tolerance is {tolerance}; expected a positive number of nats per token")
    require_whole(2, num_chains=num_chains)
    require_whole(4, num_samples=num_samples, max_samples=max_samples)
    _checked(hold_out)
    model = _model_of(prior, topics, concentration)
    weight = weight_of(model, own_words)
    hold_out = hold_out.of(check_arguments(model, hold_out.corpus, seed=seed, max_docs=max_docs))
    found = hold_out.check_fingerprint(fingerprint) if fingerprint else hold_out.fingerprint()
    check_any_tokens(hold_out.held_out)
    lengths = torch.tensor(hold_out.held_out.lengths)

    batches = _batches(hold_out, max_docs)
    back = torch.from_numpy(np.concatenate(batches)).argsort()

    def each(score: Callable[[DocumentBatch, SparseWords], R]) -> list[R]:
        found = []
        for rows in tqdm(batches, disable=not progress):
            seen = hold_out.observed.batch(rows, model.device, model.dtype)
            unseen = hold_out.held_out.batch(rows, model.device, torch.float64)
            found.append(score(seen, held_out_words(model, seen, unseen, weight)))
        return found

    if method == "mode":
        modes = each(lambda s, words: words.log_likelihood(theta_modes(model, s)).cpu())
        return CompletionResult(
            torch.cat(modes)[back],
            lengths,
            "mode",
            f"{model.name}, theta plugged in at its mode on the softmax scale" + note_of(weight),
            corpus_name=hold_out.corpus.name,
            fingerprint=found,
        )

    def score(seen: DocumentBatch, words: SparseWords) -> ChainScores:
        draw = chains_of(model, seen, num_chains, num_samples, seed)
        return scores_of(draw, words, num_samples, max_samples, tolerance, int(lengths.sum()))

    parts = each(score)

    def joined(name: str) -> Tensor:
        return torch.cat([getattr(part, name).cpu() for part in parts])[back]

    kind = "collapsed Gibbs" if model.is_conjugate else "Hamiltonian"
    result = ExactCompletion(
        log_predictive=joined("log_predictive"),
        held_out_tokens=lengths,
        predictive="mean",
        method=f"{model.name}, exact posterior mean of theta by {kind} chains" + note_of(weight),
        corpus_name=hold_out.corpus.name,
        tolerance=tolerance,
        variance=joined("variance"),
        bias=joined("bias"),
        rhat=joined("rhat"),
        num_samples=joined("num_samples"),
        num_chains=num_chains,
        fingerprint=found,
    )
    if not result.within_tolerance:
        warn(
            f"the simulation's error is {result.simulation_error:.2g} nats per token and its bias "
            f"{result.simulation_bias:.2g}, not within {tolerance:g}, after "
            f"{int(result.num_samples.max())} draws of each chain; raise max_samples",
            UnreliableEstimateWarning,
        )
    return result


@torch.no_grad()
def fit_own_words(
    prior: Prior,
    topics: Any,
    hold_out: WordHoldOut[Corpus],
    *,
    max_docs: int = 256,
    progress: bool = False,
) -> float:
    """How many tokens the topics weigh as much as, beside a document's own observed words.

    The a of :func:`document_completion`'s ``own_words`` under which the held-out tokens are most
    probable, theta at its mode on the softmax scale. Where words repeat no more than the topics
    say, it is as large as it may be, 1e7.

    Args:
        prior: As for :func:`completion_of`.
        topics: As for :func:`completion_of`.
        hold_out: Documents, of which some tokens are observed, as many of them as where a is used.
            Not those that scores are then made of. Documents of the fit will do: the topics
            predict them better than others, so that a is somewhat larger.
        max_docs: Documents solved at once.
        progress: Show a progress bar on standard error.

    Returns:
        a, between 0.01 and 1e7.

    Raises:
        ConfigError: A prior, topics or number that cannot be used, or another number of words.
        CorpusError: There is not one held-out token.
    """
    model = _model_of(prior, topics)
    _checked(hold_out)
    hold_out = hold_out.of(check_arguments(model, hold_out.corpus, seed=0, max_docs=max_docs))
    check_any_tokens(hold_out.held_out)
    found = []
    for rows in tqdm(_batches(hold_out, max_docs), disable=not progress):
        seen = hold_out.observed.batch(rows, model.device, model.dtype)
        unseen = hold_out.held_out.batch(rows, model.device, torch.float64)
        found.append(entries(model, theta_modes(model, seen), seen, unseen))
    return best_topic_tokens(torch.cat(found, 1))


def paired_difference(ours: CompletionResult, other: CompletionResult) -> tuple[float, float]:
    """Nats per held-out token that one result is better by, on the same tokens.

    Args:
        ours: Scores of a hold-out.
        other: Scores of the same.

    Returns:
        The difference, and its standard error over documents.

    Raises:
        ConfigError: The results are of other tokens.
    """
    prints = ours.fingerprint, other.fingerprint
    different = None not in prints and prints[0] != prints[1]
    if different or not torch.equal(ours.held_out_tokens, other.held_out_tokens):
        raise ConfigError("the results are of different held-out tokens; score one hold-out")
    return per_token(ours.log_predictive - other.log_predictive, ours.held_out_tokens)


def _checked(hold_out: WordHoldOut[Corpus]) -> WordHoldOut[Corpus]:
    """The hold-out, if it is one."""
    if not isinstance(hold_out, WordHoldOut):
        raise ConfigError(
            f"hold_out is a {type(hold_out).__name__}; expected the hold-out that "
            "corpus.hold_out_words() returns"
        )
    return hold_out


def _batches(hold_out: WordHoldOut[Corpus], max_docs: int) -> list[NDArray[np.int64]]:
    """Positions of the documents of each batch, by their observed tokens; short ones apart."""
    lengths = hold_out.observed.lengths
    order = lengths.argsort(kind="stable")
    short = int((lengths <= SHORT).sum())
    return [
        group[start : start + max_docs]
        for group in (order[:short], order[short:])
        for start in range(0, len(group), max_docs)
    ]


def _model_of(prior: Prior, topics: Any, concentration: float | None = None) -> TopicModel:
    """A model in float64 with these parameters, or the model that was given."""
    if isinstance(prior, TopicModel):
        for name, value in {"topics": topics, "concentration": concentration}.items():
            if value is not None:
                raise ConfigError(f"{name} given beside a model, which has its own; pass None")
        return prior
    if concentration is not None and not 0 < concentration <= HIGHEST:
        raise ConfigError(
            f"concentration is {concentration}; expected a positive number up to {HIGHEST:g}, or "
            "None for words that are independent draws, which they nearly are long before"
        )
    model = _independent_model_of(prior, topics)
    if concentration is not None:
        model.words = DirichletMultinomial(concentration, dtype=torch.float64)
    return model


def _independent_model_of(prior: Prior, topics: Any) -> TopicModel:
    """The model of a prior and topics, whose documents' words are independent draws."""
    phi = _numbers("topics", topics)
    if phi.dim() != 2:
        raise ConfigError(
            f"topics have shape {tuple(phi.shape)}; expected two dimensions, topics by words"
        )
    if isinstance(prior, tuple):
        if len(prior) != 2:
            raise ConfigError(
                f"prior is a tuple of {len(prior)}; expected the mean and the covariance of a "
                "logistic normal, or a vector of a Dirichlet's concentrations"
            )
        loc, covariance = (_numbers("prior", part) for part in prior)
        num_topics, anchored = len(phi), loc.shape == (len(phi) - 1,)
        if not anchored and loc.shape != (num_topics,):
            raise ConfigError(
                f"the prior's mean has shape {tuple(loc.shape)}; expected ({num_topics},), or "
                f"({num_topics - 1},) with the last logit at 0"
            )
        return ctm(
            *phi.shape,
            anchored=anchored,
            loc=loc,
            covariance=covariance,
            topics=phi,
            dtype=torch.float64,
        )
    alpha = _numbers("prior", prior)
    if alpha.shape != phi.shape[:1]:
        raise ConfigError(
            f"prior has shape {tuple(alpha.shape)}; expected {tuple(phi.shape[:1])} concentrations "
            "of a Dirichlet, a tuple (mean, covariance) of a logistic normal, or a model"
        )
    return lda(*phi.shape, concentration=alpha, topics=phi, dtype=torch.float64)


def _numbers(name: str, given: Any) -> Tensor:
    """A float64 tensor of an array or tensor."""
    try:
        return torch.as_tensor(given).detach().cpu().double()
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(
            f"{name} is a {type(given).__name__}; expected arrays of numbers, or a model as the "
            "prior and None as its topics"
        ) from None
