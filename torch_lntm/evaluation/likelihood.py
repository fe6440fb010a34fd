"""Held-out log likelihood of documents with their topic proportions integrated out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal, get_args

import torch
from torch import Tensor
from tqdm.auto import tqdm

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, IncompatibleGuideError, NumericalError
from torch_lntm.evaluation.annealing import AIS, anneal_corpus, summarise_chains
from torch_lntm.evaluation.integrals import DocumentIntegral, Proposal, document_integral
from torch_lntm.evaluation.ratio import per_token
from torch_lntm.guides import Guide, Posterior
from torch_lntm.models import TopicModel
from torch_lntm.solvers.importance import MIN_SAMPLES, summarise_weights

Method = Literal["importance", "quadrature", "ais"]

#: Pareto k̂ above which an importance estimate is not to be trusted.
PARETO_K_LIMIT = 0.7
#: Chains that count, below which one has more than half of the weight: neither the mean weight nor
#: its standard error is then to be trusted.
LEAST_CHAINS = 2.0
#: Numerical error of a document's quadrature, nats, above which there is a warning.
QUADRATURE_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False, repr=False)
class LikelihoodEstimate:
    """Estimates of log p(w_d) in nats, the probability of the tokens in a given order.

    Attributes:
        log_likelihood: ``(num_docs,)`` float64 nats; 0 for an empty document.
        standard_error: ``(num_docs,)`` error of each estimate alone, nats: the standard error over
            draws or chains (importance, ais), or the change from half the points per axis
            (quadrature).
        effective_sample_size: ``(num_docs,)`` draws or chains that count; None for quadrature.
        pareto_k: ``(num_docs,)`` tail shape of the weights, ``-inf`` for an empty document; an
            estimate is unreliable above 0.7. Importance sampling only, else None.
        lengths: ``(num_docs,)`` int64 tokens.
        method: ``"importance"``, ``"quadrature"`` or ``"ais"``.
        proposal: What was drawn from, or the path and its transitions, in words; None for
            quadrature.
        num_samples: Draws or chains per document, or points of the grid.
        seed: Seed of the draws; None for quadrature.
        corpus_name: Name of the corpus.
        acceptance: ``(num_docs,)`` mean acceptance probability of the chains' transitions, 1 for an
            empty document. Annealed importance sampling only, else None.
    """

    log_likelihood: Tensor
    standard_error: Tensor
    effective_sample_size: Tensor | None
    pareto_k: Tensor | None
    lengths: Tensor
    method: Method
    proposal: str | None
    num_samples: int
    seed: int | None
    corpus_name: str | None
    acceptance: Tensor | None = None

    @property
    def num_docs(self) -> int:
        """Documents with tokens, those that per-token figures are about."""
        return int((self.lengths > 0).sum())

    @property
    def total(self) -> float:
        """Σ_d log p(w_d), nats."""
        return float(self.log_likelihood.sum())

    @property
    def total_error(self) -> float:
        """Error of ``total`` that more draws or points would remove, nats.

        Standard errors of independent draws add in squares; numerical errors add up.
        """
        if self.method == "quadrature":
            return float(self.standard_error.sum())
        return float(self.standard_error.square().sum().sqrt())

    @property
    def nats_per_token(self) -> float:
        """Σ_d log p(w_d) / Σ_d N_d."""
        return per_token(self.log_likelihood, self.lengths)[0]

    @property
    def nats_per_token_standard_error(self) -> float:
        """Standard error of ``nats_per_token`` over documents; infinite for a single one."""
        return per_token(self.log_likelihood, self.lengths)[1]

    @property
    def perplexity(self) -> float:
        """exp(−Σ_d log p(w_d) / Σ_d N_d) (*Ahmed & Xing 2007, eq. 16*)."""
        return math.exp(-self.nats_per_token)

    @property
    def perplexity_standard_error(self) -> float:
        """Standard error of ``perplexity`` over documents; infinite for a single one."""
        return self.perplexity * self.nats_per_token_standard_error

    def __repr__(self) -> str:
        where = f" of {self.corpus_name}" if self.corpus_name else ""
        how = {
            "quadrature": f"quadrature on {self.num_samples} points",
            "importance": f"importance sampling, {self.num_samples} draws of {self.proposal}",
            "ais": f"annealed importance sampling, {self.num_samples} chains, {self.proposal}",
        }[self.method]
        if self.seed is not None:
            how += f", seed {self.seed}"
        error = "numerical" if self.method == "quadrature" else "Monte Carlo s.e."
        text = (
            f"LikelihoodEstimate: log p(w){where} by {how}\n"
            f"  total       {self.total:.1f} nats ± {self.total_error:.2g} ({error}), "
            f"{self.num_docs} documents, {int(self.lengths.sum())} tokens\n"
            f"  per token   {self.nats_per_token:.4f} nats ± "
            f"{self.nats_per_token_standard_error:.2g} (s.e. over documents)\n"
            f"  perplexity  {self.perplexity:.1f} ± {self.perplexity_standard_error:.2g} "
            "(s.e. over documents)"
        )
        diagnostics = self._diagnostics() if self.num_docs else ""
        return f"{text}\n{diagnostics}" if diagnostics else text

    def _diagnostics(self) -> str:
        """A line about the draws or chains."""
        if self.effective_sample_size is None:
            return ""
        used = self.lengths > 0
        ess = self.effective_sample_size[used]
        digits = 0 if self.method == "importance" else 1
        text = f"effective sample size {float(ess.median()):.{digits}f} in the median, "
        text += f"{float(ess.min()):.{digits}f} at least"
        if self.pareto_k is not None:
            k = self.pareto_k[used]
            return (
                f"  draws       {text}; Pareto k {float(k.median()):.2f} in the median, "
                f"above {PARETO_K_LIMIT} in {int((k > PARETO_K_LIMIT).sum())} documents"
            )
        assert self.acceptance is not None
        accepted = self.acceptance[used]
        return (
            f"  chains      {text}; acceptance {float(accepted.median()):.2f} in the median, "
            f"{float(accepted.min()):.2f} at least"
        )


@dataclass(frozen=True, eq=False)
class _Document:
    """One document, and where its posterior is."""

    position: int
    posterior: Posterior
    row: int
    words: Tensor
    counts: Tensor


@torch.no_grad()
def log_likelihood(
    model: TopicModel,
    corpus: Corpus,
    method: Method | AIS = "importance",
    guide: Guide | None = None,
    *,
    num_samples: int = 1000,
    proposal: Proposal | None = None,
    degrees_of_freedom: float = 5.0,
    num_points: int = 201,
    seed: int = 0,
    max_docs: int = 256,
    progress: bool = False,
) -> LikelihoodEstimate:
    """Estimates log p(w_d) of every document under a model.

    *Importance sampling* (*Ahmed & Xing 2007, §4.2*) draws around the guide's posterior. The
    estimate of p(w_d) is unbiased, that of its log low by about half the squared standard error.
    Compare methods of inference by this number, not by their own bounds.

    * ctm, and iftm with Gaussian sources: the K − 1 contrasts of eta that the likelihood depends
      on, with the sources integrated out. A normal proposal narrower than the posterior has weights
      of infinite variance; the Student-t of the same centre and scale has not.
    * iftm with Laplace sources: the sources and the contrasts of eta together, from a Student-t at
      the guide's means with the covariance that Laplace's method gives there; no normal has weights
      of finite variance. (Measured on the Lee articles, 10 topics and 3 sources: in the median 16 %
      of the draws count, with the mean field's own covariance 8 %; on synthetic documents with 30
      topics and 5 sources 13 % and 1 %.)
    * lda: theta, from the guide's Dirichlet (``"dirichlet"``), or from a mixture around it in which
      every topic may be absent (``"sticks"``). A Dirichlet has too little mass where a topic that
      some words may have come from is absent, the more so the smaller the prior's concentration.
      (Measured around expectation propagation's on the Lee articles, 10 topics: in the median 93 %
      of the draws count, with the Dirichlet 38 %, which missed 21 nats of 100 documents together
      where its standard error was 1.6.)

    *Annealed importance sampling* (*Neal 2001*) takes chains from the prior to the posterior, with
    transitions that are tuned beforehand. It needs no posterior that is near the true one, so it
    judges them all; it also works where no proposal covers the posterior. The estimate of p(w_d) is
    unbiased as well, that of its log a stochastic lower bound; :func:`ais_bracket` bounds it from
    the other side. Ctrl-C ends it without a result: a partial sum would be of other documents.

    *Quadrature*, for 2 or 3 topics but not for Laplace sources, is exact to many digits; see
    ``standard_error`` of the result.

    A document's draws depend on the seed and its position in the corpus alone, not on batches,
    device or other documents. Memory is bounded by the batch's posterior covariances and the draws
    of one document.

    Args:
        model: The model; computed on its device, in float64.
        corpus: Documents over the model's vocabulary.
        method: ``"importance"``, ``"quadrature"`` or ``"ais"``; or :class:`AIS` with settings.
        guide: Posterior to draw from, or to centre the grid on. By default ``LaplaceGuide(model)``,
            whose covariance takes account of the topic assignments; ``FactorGuide(model)`` with
            Laplace sources, and ``EPGuide(model)`` for lda. ``"ais"`` has no use for one.
        num_samples: Draws per document of importance sampling, at least 25.
        proposal: ``"student_t"`` (default) or ``"gaussian"``, both with the posterior's centre and
            scale, and only the first with Laplace sources; for lda ``"sticks"`` (default) or
            ``"dirichlet"``.
        degrees_of_freedom: Of the Student-t.
        num_points: Points of the quadrature on each of its K − 1 axes, odd.
        seed: Seed of the draws.
        max_docs: Documents whose posteriors are solved, or that are annealed, at once; annealing
            may take fewer, to bound memory.
        progress: Show a progress bar.

    Returns:
        The estimates, with their errors and diagnostics.

    Raises:
        ConfigError: A setting that cannot be used, or a corpus over another vocabulary.
        IncompatibleGuideError: The guide belongs to another model, or the model has another prior
            than those above.
        NumericalError: A posterior that could not be computed; names documents.

    Warns:
        UserWarning: Documents whose Pareto k̂ is above 0.7, or quadrature error above 0.001 nats; or
            whose chains have an effective sample size below 2, or never moved.
    """
    if isinstance(method, AIS) or method == "ais":
        settings = method if isinstance(method, AIS) else AIS()
        _check_settings(model, "ais", num_samples, degrees_of_freedom, num_points, seed, max_docs)
        if guide is not None:
            raise ConfigError("annealed importance sampling has no use for a guide; leave it out")
        return _by_annealing(model, corpus, settings, seed, max_docs, progress)
    _check_settings(model, method, num_samples, degrees_of_freedom, num_points, seed, max_docs)
    integral = document_integral(model, proposal, degrees_of_freedom)
    if method == "quadrature" and not integral.has_quadrature:
        raise ConfigError(
            f"quadrature is not for {model.prior.family}, which has an integral over its sources "
            "too; take method='importance' or 'ais'"
        )
    guide = _checked_guide(model, guide, integral)
    documents = _documents(model, corpus, guide, integral, max_docs, progress)
    if method == "quadrature":
        return _by_quadrature(model, corpus, integral, documents, num_points)
    described = f"{type(guide).__name__}'s {integral.describe()}"
    return _by_importance(corpus, integral, documents, described, num_samples, seed)


def _by_importance(
    corpus: Corpus,
    integral: DocumentIntegral,
    documents: Iterator[list[_Document]],
    described: str,
    num_samples: int,
    seed: int,
) -> LikelihoodEstimate:
    values = torch.zeros(corpus.num_docs, dtype=torch.float64)
    errors = torch.zeros_like(values)
    ess = torch.full_like(values, float(num_samples))
    pareto = torch.full_like(values, -math.inf)
    for of_batch in documents:
        weights = [
            integral.log_weights(
                d.posterior, d.row, d.words, d.counts, num_samples, (seed, d.position)
            ).cpu()
            for d in of_batch
        ]
        rows = [d.position for d in of_batch]
        summary = summarise_weights(torch.stack(weights))
        values[rows], errors[rows] = summary.log_mean, summary.standard_error
        ess[rows], pareto[rows] = summary.effective_sample_size, summary.pareto_k
    _warn(
        pareto > PARETO_K_LIMIT,
        corpus,
        f"importance weights with Pareto k above {PARETO_K_LIMIT}",
        "raise num_samples, or draw from another guide's posterior or proposal",
    )
    lengths = torch.tensor(corpus.lengths)
    return LikelihoodEstimate(
        values,
        errors,
        ess,
        pareto,
        lengths,
        "importance",
        described,
        num_samples,
        seed,
        corpus.name,
    )


def _by_annealing(
    model: TopicModel, corpus: Corpus, settings: AIS, seed: int, max_docs: int, progress: bool
) -> LikelihoodEstimate:
    values = torch.zeros(corpus.num_docs, dtype=torch.float64)
    errors = torch.zeros_like(values)
    ess = torch.full_like(values, float(settings.num_chains))
    acceptance = torch.ones_like(values)
    stuck = torch.zeros_like(values, dtype=torch.bool)
    batches = anneal_corpus(
        model, corpus, settings, seed=seed, max_docs=max_docs, progress=progress
    )
    for of_batch in batches:
        rows, summary = of_batch.rows, summarise_chains(of_batch.log_weights)
        values[rows], errors[rows] = summary.log_mean, summary.standard_error
        ess[rows] = summary.effective_sample_size
        acceptance[rows], stuck[rows] = of_batch.acceptance, of_batch.stuck
    warn_of_chains(corpus, settings, ess, stuck, "log likelihoods", stacklevel=5)
    lengths = torch.tensor(corpus.lengths)
    return LikelihoodEstimate(
        values,
        errors,
        ess,
        None,
        lengths,
        "ais",
        settings.describe(),
        settings.num_chains,
        seed,
        corpus.name,
        acceptance,
    )


def warn_of_chains(
    corpus: Corpus, settings: AIS, size: Tensor, stuck: Tensor, what: str, stacklevel: int
) -> None:
    """Name the documents whose annealed chains are not to be trusted.

    Args:
        corpus: The documents.
        settings: What the chains were annealed with.
        size: ``(num_docs,)`` their effective sample sizes.
        stuck: ``(num_docs,)`` bool, whether a chain never moved.
        what: What was estimated, in words.
        stacklevel: Frames up from here to whoever called the public function.
    """
    # Two chains that differ at all have less than two.
    least = min(LEAST_CHAINS, settings.num_chains / 2.0)
    small = (size < least) & ~stuck
    problem = f"an effective sample size below {least:g} chains"
    cure, up = "raise num_temperatures, or num_chains", stacklevel + 1
    _warn(small, corpus, problem, cure, what, up)
    _warn(stuck, corpus, "chains that never moved", "raise num_temperatures", what, up)


def _by_quadrature(
    model: TopicModel,
    corpus: Corpus,
    integral: DocumentIntegral,
    documents: Iterator[list[_Document]],
    num_points: int,
) -> LikelihoodEstimate:
    values = torch.zeros(corpus.num_docs, dtype=torch.float64)
    errors = torch.zeros_like(values)
    for d in chain.from_iterable(documents):
        value, error = integral.quadrature(d.posterior, d.row, d.words, d.counts, num_points)
        values[d.position], errors[d.position] = value.cpu(), error.cpu()
    _warn(errors > QUADRATURE_TOLERANCE, corpus, "a quadrature error", "raise num_points")
    points = num_points ** (model.num_topics - 1)
    lengths = torch.tensor(corpus.lengths)
    return LikelihoodEstimate(
        values, errors, None, None, lengths, "quadrature", None, points, None, corpus.name
    )


def _checked_guide(model: TopicModel, guide: Guide | None, integral: DocumentIntegral) -> Guide:
    """The guide, of this model."""
    if guide is None:
        return integral.default_guide(model)
    if guide.model is not model:
        raise IncompatibleGuideError(
            f"{type(guide).__name__} was made for another model; make one for this: "
            f"{type(guide).__name__}(model)"
        )
    return guide


def _check_settings(
    model: TopicModel,
    method: str,
    num_samples: int,
    degrees_of_freedom: float,
    num_points: int,
    seed: int,
    max_docs: int,
) -> None:
    if method not in get_args(Method):
        raise ConfigError(f"method is {method!r}; expected one of {', '.join(get_args(Method))}")
    if num_samples < MIN_SAMPLES:
        raise ConfigError(
            f"num_samples is {num_samples}; expected at least {MIN_SAMPLES}, the fewest that show "
            "whether the weights have a heavy tail, and better 1000"
        )
    if not 0 < degrees_of_freedom < math.inf:
        raise ConfigError(
            f"degrees_of_freedom is {degrees_of_freedom}; expected a positive number "
            "(for infinitely many take proposal='gaussian')"
        )
    if num_points < 11 or num_points % 2 == 0:
        raise ConfigError(f"num_points is {num_points}; expected an odd number from 11 up")
    if seed < 0:
        raise ConfigError(f"seed is {seed}; expected a number >= 0")
    if max_docs < 1:
        raise ConfigError(f"max_docs is {max_docs}; expected at least 1")
    if method == "quadrature" and model.num_topics > 3:
        raise ConfigError(
            f"quadrature is for 2 or 3 topics, the model has {model.num_topics}; "
            "take method='importance' or 'ais'"
        )


def _documents(
    model: TopicModel,
    corpus: Corpus,
    guide: Guide,
    integral: DocumentIntegral,
    max_docs: int,
    progress: bool,
) -> Iterator[list[_Document]]:
    """Yields the non-empty documents of each batch that has some, with their posteriors."""
    words = model.topics.double_probs.mT
    with tqdm(total=corpus.num_docs, disable=not progress, unit="doc") as bar:
        for batch in corpus.batches(max_docs=max_docs, device=model.device, dtype=model.dtype):
            posterior = guide.posterior(batch)
            bad = ~integral.proper(posterior)
            if bool(bad.any()):
                positions = batch.index[bad].tolist()
                raise NumericalError(
                    f"{type(guide).__name__} gave no proper posterior for {len(positions)} "
                    f"document(s), first at position {positions[0]}; expected finite means and "
                    "covariances of full rank",
                    positions,
                )
            offsets = batch.row_offsets.tolist()
            counts = batch.counts.double()
            documents = []
            for row, position in enumerate(batch.index.tolist()):
                entries = slice(offsets[row], offsets[row + 1])
                if entries.start < entries.stop:
                    of_document = words[batch.word_index[entries]]
                    documents.append(
                        _Document(position, posterior, row, of_document, counts[entries])
                    )
            if documents:
                yield documents
            bar.update(batch.num_docs)


def _warn(
    bad: Tensor,
    corpus: Corpus,
    problem: str,
    cure: str,
    what: str = "log likelihoods",
    stacklevel: int = 5,  # the method and the decorator are frames too
) -> None:
    """One warning that counts and names the documents concerned."""
    positions = bad.nonzero().flatten().tolist()
    if positions:
        some = ", ".join(map(str, positions[:5])) + (", …" if len(positions) > 5 else "")
        warnings.warn(
            f"{len(positions)} of {corpus.num_docs} documents have {problem} (positions {some}): "
            f"their {what} are not reliable; {cure}",
            UserWarning,
            stacklevel=stacklevel,
        )
