"""document_completion: a part of each document predicts the rest of it, under any model.

How theta is taken matters as much as the model. A plug-in of theta favours one family of priors or
another, by up to 18 % of the perplexity on short documents. ``theta="exact"`` integrates it out:
p(w | observed) = Σ_k E[theta_k | observed] φ_kw, by chains that run until their own error is small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus, DocumentBatch, WordHoldOut
from torch_lntm.errors import ConfigError, CorpusError, require_whole
from torch_lntm.evaluation.checks import check_arguments
from torch_lntm.evaluation.completion.exact import SHORT, checked, score_by_chains
from torch_lntm.evaluation.completion.modes import theta_modes
from torch_lntm.evaluation.completion.own_words import (
    OwnWordsWeight,
    best_topic_tokens,
    entries,
    held_out_words,
    note_of,
    weight_of,
)
from torch_lntm.evaluation.completion.result import CompletionResult, ExactCompletion
from torch_lntm.evaluation.draws import theta_draws, theta_means
from torch_lntm.guides import Guide, require_guide
from torch_lntm.kernels import SparseWords
from torch_lntm.models import DirichletMultinomial, TopicModel, Topics, ctm, lda
from torch_lntm.models.words.dirichlet_multinomial import HIGHEST
from torch_lntm.posteriors import Posterior
from torch_lntm.progress import tqdm

Theta = Literal["mode", "mean", "integrated", "exact"]
#: A Dirichlet's concentration ``(num_topics,)``; or a logistic normal's mean and covariance, of K
#: logits or of K − 1 with the last logit at 0; or a model of this package, with its own topics.
Prior: TypeAlias = "TopicModel | tuple[Any, Any] | Any"

#: Descriptions in a result of the ways to take theta from a guide's posterior.
_DESCRIBED = {
    "mode": "theta at the mode of eta",
    "mean": "theta at its mean",
    "integrated": "theta integrated over all held-out tokens of a document together",
}
#: Draws of a guide's posterior, and the first draws of each chain.
_GUIDE_DRAWS, _CHAIN_DRAWS = 500, 100


@torch.no_grad()
def document_completion(
    model: TopicModel,
    guide: Guide[Any] | None,
    corpus: Corpus | WordHoldOut[Corpus],
    observed_fraction: float = 0.5,
    seed: int = 0,
    *,
    theta: Theta = "mode",
    num_samples: int | None = None,
    tolerance: float = 1e-3,
    num_chains: int = 4,
    max_samples: int = 6400,
    max_docs: int = 256,
    own_words: OwnWordsWeight = "model",
    fingerprint: str | None = None,
    progress: bool = False,
) -> CompletionResult:
    """Scores a part of each document's tokens given the rest of them (*IFTM §3.2.1*).

    ``theta`` says what stands for the document's topic proportions θ, given the observed tokens:

    * ``"mode"``: Σ_v c_v log Σ_k θ_k φ_kv at θ = softmax of the guide's posterior mean of eta. (A
      Dirichlet posterior has its mode on that scale, that of log θ, at the mean of θ.) Without a
      guide, θ is the mode of its own posterior on the softmax scale.
    * ``"mean"``: the same at the guide's posterior mean of θ. As Σ_k θ_k φ_kv is linear in θ, this
      is also the average of the word's probability over the posterior, each token by itself. Exact
      for a Dirichlet posterior, which takes no draws, and by draws for others.
    * ``"integrated"``: log of the average over the guide's posterior of Π_v (Σ_k θ_k φ_kv)^c_v, all
      held-out tokens together, so that one tells about the next. Biased low where draws are few.
    * ``"exact"``: the posterior mean of θ without a guide, by chains of each document: collapsed
      Gibbs sampling of the tokens' topics under a Dirichlet prior, else Hamiltonian Monte Carlo.
      Their lengths are doubled until the Monte-Carlo standard error over all documents is within
      ``tolerance``, and so is the bias that the logarithm of an average has, or until
      ``max_samples``. The bias is then taken off, by the jackknife over chains. It compares models
      of any kind on equal terms; the others tell partly of the family of the prior.

    Words repeat within documents. With ``own_words`` = a, a held-out word of probability q by the
    topics has (c + a q) / (N + a), c of the document's N observed tokens being that word: the
    prediction of a Dirichlet-multinomial document (*Doyle & Elkan 2009*).
    :func:`~torch_lntm.evaluation.fit_own_words` finds a.

    Args:
        model: The model.
        guide: A posterior for it; None for ``"exact"``, or for the mode of θ's own posterior.
        corpus: Documents over the model's vocabulary, or a frozen hold-out of their tokens.
        observed_fraction: Share of each document's tokens to observe; not used with a hold-out.
        seed: Seed of the hold-out and of all draws.
        theta: ``"mode"``, ``"mean"``, ``"integrated"`` or ``"exact"``.
        num_samples: Draws of each document for ``"mean"`` and ``"integrated"``. Defaults to 500.
            For ``"exact"``, draws of each chain to start with, after as many of warm-up; at least
            4. Defaults to 100.
        tolerance: Nats per token that the error of ``"exact"`` is to reach.
        num_chains: Chains of each document for ``"exact"``, at least 2.
        max_samples: Most draws of each chain to keep for ``"exact"``.
        max_docs: Documents computed at once. The chains of a batch judge together whether they
            suffice.
        own_words: Tokens that the topics weigh as much as, beside the document's own observed
            words; None for the topics alone. By default the concentration of a bursty model, and
            the topics alone of others. Not with ``"integrated"``.
        fingerprint: The ``fingerprint()`` that the hold-out must have, so that others score the
            same tokens.
        progress: Show a progress bar on standard error.

    Returns:
        The scores; an :class:`ExactCompletion` for ``"exact"``. Documents without held-out tokens
        take no part in them. Two results over the same hold-out compare document by document, see
        :func:`paired_difference`.

    Raises:
        ConfigError: A setting that cannot be used, no guide where one is needed, or a corpus over
            another vocabulary.
        CorpusError: There is not one held-out token, or these are other tokens than
            ``fingerprint`` says.
        IncompatibleGuideError: The guide belongs to another model.

    Warns:
        UnreliableEstimateWarning: The error of ``"exact"`` is above ``tolerance``.
    """
    if theta not in get_args(Theta):
        raise ConfigError(f"theta is {theta!r}; expected one of {', '.join(get_args(Theta))}")
    if not tolerance > 0:
        raise ConfigError(f"tolerance is {tolerance}; expected a positive number of nats per token")
    require_whole(2, num_chains=num_chains)
    exact = theta == "exact"
    if num_samples is None:
        num_samples = _CHAIN_DRAWS if exact else _GUIDE_DRAWS
    require_whole(4 if exact else 1, num_samples=num_samples, max_samples=max_samples)
    hold_out = _hold_out(model, corpus, observed_fraction, seed, max_docs)
    if guide is not None or theta in ("mean", "integrated"):
        require_guide(guide, model)
    weight = weight_of(model, own_words)
    if weight is not None and theta == "integrated":
        raise ConfigError(
            "own_words are for tokens each by itself; take theta 'mode', 'mean' or 'exact', not "
            "'integrated', or own_words=None for the topics alone"
        )
    given = isinstance(corpus, WordHoldOut)
    about: dict[str, Any] = {
        "held_out_tokens": torch.tensor(hold_out.held_out.lengths),
        "theta": theta,
        "observed_fraction": None if given else observed_fraction,
        "seed": None if given else seed,
        "corpus_name": hold_out.corpus.name,
        "fingerprint": (
            hold_out.check_fingerprint(fingerprint) if fingerprint else hold_out.fingerprint()
        ),
    }
    batches = _Batches(model, hold_out, max_docs, progress, by_length=exact or guide is None)
    if not exact:
        score = partial(_scores, model, guide, theta, weight, num_samples, seed)
        about |= batches.collect(score, weight)
        return CompletionResult(**about)
    precision: dict[str, Any] = {"tolerance": tolerance, "num_chains": num_chains}
    draws: dict[str, Any] = {"num_samples": num_samples, "max_samples": max_samples, "seed": seed}
    tokens = hold_out.held_out.num_tokens
    score = partial(score_by_chains, model, weight, tokens, **precision, **draws)
    about |= precision | batches.collect(score, weight)
    return checked(ExactCompletion(**about))


def completion_of(
    prior: Prior,
    topics: Any,
    hold_out: WordHoldOut[Corpus],
    theta: Theta = "exact",
    *,
    concentration: float | None = None,
    **settings: Any,
) -> CompletionResult:
    """:func:`document_completion` of a prior and topics, whichever library they are from.

    Args:
        prior: A Dirichlet's concentration ``(num_topics,)``; or the mean and covariance of a
            logistic normal, a tuple, of all logits or of all but the last, which is then 0; or a
            model of this package.
        topics: ``(num_topics, num_words)`` word probabilities, array or tensor; normalised here.
            None for a model, which has its own.
        hold_out: The documents' observed and held-out tokens.
        theta: ``"exact"``, or ``"mode"`` for a plug-in on the softmax scale.
        concentration: Concentration of documents that repeat their words, beside a prior and topics
            (:class:`~torch_lntm.models.DirichletMultinomial`); a model has its own.
        **settings: As for :func:`document_completion`.

    Returns:
        The scores of every document.

    Raises:
        ConfigError: A prior, topics or number that cannot be used, or another number of words.
        CorpusError: As for :func:`document_completion`.
    """
    model = _model_of(prior, topics, concentration)
    return document_completion(model, None, _given(hold_out), theta=theta, **settings)


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
        hold_out: Hold-out on which to estimate a. Use the observed fraction of the hold-out that
            you will score, and other documents. Documents of the fit are acceptable; a is then
            somewhat too large.
        max_docs: Documents solved at once.
        progress: Show a progress bar on standard error.

    Returns:
        a, between 0.01 and 1e7.

    Raises:
        ConfigError: A prior, topics or number that cannot be used, or another number of words.
        CorpusError: There is not one held-out token.
    """
    model = _model_of(prior, topics)
    hold_out = _hold_out(model, _given(hold_out), 0.5, 0, max_docs)
    batches = _Batches(model, hold_out, max_docs, progress, by_length=True)
    found = [entries(model, theta_modes(model, seen), seen, unseen) for seen, unseen in batches]
    return best_topic_tokens(torch.cat(found, 1))


class _Batches:
    """Observed and held-out tokens of the same documents, batch by batch.

    Args:
        model: The model, whose device and dtype the observed tokens have.
        hold_out: All tokens.
        max_docs: Documents of a batch, at most.
        progress: Show a progress bar.
        by_length: Whether documents come by their observed tokens, those of up to ``SHORT`` in
            batches of their own; else in the order of the corpus.

    Attributes:
        back: ``(num_docs,)`` places of the corpus's documents among those of the batches.
    """

    def __init__(
        self,
        model: TopicModel,
        hold_out: WordHoldOut[Corpus],
        max_docs: int,
        progress: bool,
        by_length: bool,
    ) -> None:
        self._model, self._hold_out = model, hold_out
        self._max_docs, self._progress = max_docs, progress
        lengths = hold_out.observed.lengths
        self._orders: list[NDArray[np.int64]] = [np.arange(len(lengths))]
        if by_length:
            order = lengths.argsort(kind="stable")
            groups = np.split(order, [int((lengths <= SHORT).sum())])
            self._orders = [group for group in groups if len(group)]
        self.back = torch.from_numpy(np.concatenate(self._orders)).argsort()

    def __iter__(self) -> Iterator[tuple[DocumentBatch, DocumentBatch]]:
        device = self._model.device
        with tqdm(total=len(self.back), unit="doc", disable=not self._progress) as bar:
            for order in self._orders:
                observed, held_out = (
                    part.batches(self._max_docs, order=order, device=device, dtype=dtype)
                    for part, dtype in zip(
                        self._hold_out, (self._model.dtype, torch.float64), strict=True
                    )
                )
                for seen, unseen in zip(observed, held_out, strict=True):
                    yield seen, unseen
                    bar.update(seen.num_docs)

    def collect(
        self,
        score: Callable[[DocumentBatch, DocumentBatch], tuple[dict[str, Tensor], str]],
        own_words: float | None,
    ) -> dict[str, Any]:
        """Tensors of all documents, by their names, and the method."""
        found = [score(seen, unseen) for seen, unseen in self]
        tensors = {
            name: torch.cat([part[name].cpu() for part, _ in found])[self.back]
            for name in found[0][0]
        }
        return tensors | {"method": found[0][1] + note_of(own_words)}


def _scores(
    model: TopicModel,
    guide: Guide[Any] | None,
    theta: Theta,
    own_words: float | None,
    num_samples: int,
    seed: int,
    seen: DocumentBatch,
    unseen: DocumentBatch,
) -> tuple[dict[str, Tensor], str]:
    """Log probabilities of held-out tokens by a plug-in or draws, and a description."""
    if guide is None:
        at, method = (
            theta_modes(model, seen),
            f"{model.name}, theta at its mode on the softmax scale",
        )
    else:
        posterior = (guide.means if theta == "mode" else guide.posterior)(seen)
        draws = "" if theta == "mode" else f", {num_samples} draws"
        described = f"{_DESCRIBED[theta]}{draws}"
        if theta != "integrated" and posterior.has_exact_theta_mean:
            described = "theta at its exact mean"
        method = f"{type(guide).__name__}'s posterior, {described}"
        if theta == "integrated":
            score = _integrated(posterior, model.topics, unseen, num_samples, seed)
            return {"log_predictive": score}, method
        # A known mean is the mode on the softmax scale too.
        at = posterior.theta(posterior.mean.double())
        if theta == "mean":
            at = theta_means(posterior, num_samples, seed)
    words = held_out_words(model, seen, unseen, own_words)
    return {"log_predictive": words.log_likelihood(at)}, method


def _integrated(
    posterior: Posterior, topics: Topics, held_out: DocumentBatch, num_samples: int, seed: int
) -> Tensor:
    """Log of the average over draws of the probability of all held-out tokens ``(num_docs,)``."""
    placed, probs = topics.assign_groups(held_out), topics.double_probs
    longest = int(placed.row_offsets.diff().max())
    scores = [
        SparseWords(probs, placed.select(rows)).log_likelihood(theta).logsumexp(0)
        for rows, theta in theta_draws(posterior, num_samples, seed, longest)
    ]
    return torch.cat(scores) - math.log(num_samples)


def _hold_out(
    model: TopicModel,
    corpus: Corpus | WordHoldOut[Corpus],
    observed_fraction: float,
    seed: int,
    max_docs: int,
) -> WordHoldOut[Corpus]:
    """The hold-out of a corpus, or the one given, with what the model reads; checked."""
    if isinstance(corpus, WordHoldOut):
        hold_out = corpus.of(check_arguments(model, corpus.corpus, seed=seed, max_docs=max_docs))
    else:
        ready = check_arguments(model, corpus, seed=seed, max_docs=max_docs)
        hold_out = ready.hold_out_words(observed_fraction, seed)
    if hold_out.held_out.num_tokens == 0:
        raise CorpusError(
            "there is not one held-out token; a document needs at least two tokens to have one"
        )
    return hold_out


def _given(hold_out: WordHoldOut[Corpus]) -> WordHoldOut[Corpus]:
    """The hold-out, if it is one."""
    if not isinstance(hold_out, WordHoldOut):
        raise ConfigError(
            f"hold_out is a {type(hold_out).__name__}; expected the hold-out that "
            "corpus.hold_out_words() returns"
        )
    return hold_out


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
