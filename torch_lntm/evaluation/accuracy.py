"""How far the posteriors of guides are from long chains of the same documents."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from pyro.ops.stats import split_gelman_rubin
from torch import Tensor
from tqdm.auto import tqdm

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, IncompatibleGuideError
from torch_lntm.guides import Guide, Posterior
from torch_lntm.inference.document_hmc import DocumentHMC, effective_sample_size
from torch_lntm.models import (
    DirichletPrior,
    IndependentFactorPrior,
    LogisticNormalPrior,
    TopicModel,
)
from torch_lntm.solvers.dirichlet import DirichletPosterior
from torch_lntm.solvers.gibbs import gibbs

#: What the chains of a document must reach to judge a posterior (*Vehtari et al. 2021, §4*).
LARGEST_RHAT = 1.01
SMALLEST_EFFECTIVE_SAMPLE_SIZE = 400.0
#: Sweeps of Gibbs sampling from draw to draw.
_SWEEPS = 5
#: Draws of a guide's theta, of which only the mean is used.
_GUIDE_DRAWS = 10_000
#: The chains' own line in a table.
_NOISE = "noise"
#: Stretches of each chain that are compared with each other.
_STRETCHES = 10
#: E|x| of a standard normal x.
_MEAN_ABSOLUTE = math.sqrt(2.0 / math.pi)


@dataclass(frozen=True, eq=False)
class Accuracy:
    """Distances of posteriors from the chains' draws, of each document.

    They are of the K centred logits of theta (the softmax ignores their mean), in units of their
    prior standard deviations; under a Dirichlet prior, of theta itself in such units.

    Attributes:
        mean_error: ``(num_docs,)`` root mean square over topics of the difference of the means.
        std_ratio: ``(num_docs,)`` geometric mean over topics of the ratio of standard deviations,
            guide to chains: below 1 the guide is too sure.
        covariance_error: ``(num_docs,)`` Frobenius norm of the difference of the covariances, as a
            part of that of the chains' covariance.
        total_variation: ``(num_docs,)`` ½ Σ_k |E_q theta_k − E_p theta_k|, the share of a
            document's tokens that the guide gives to other topics.
    """

    mean_error: Tensor
    std_ratio: Tensor
    covariance_error: Tensor
    total_variation: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class PosteriorAccuracy:
    """What :func:`posterior_accuracy` found; ``print`` shows it as a table.

    Attributes:
        guides: The distances by the names of the guides, of all documents drawn.
        noise: What Monte-Carlo error alone, the chains' and that of a guide's own draws of theta,
            makes of each distance: about what a posterior that is exactly right would show. Its
            ``std_ratio`` is that one standard error above 1. Errors of the mean and covariance add
            to it in squares.
        unconverged: Documents that a guide's solver did not finish, by the names of the guides.
        index: ``(num_docs,)`` positions of the documents in the corpus.
        lengths: ``(num_docs,)`` their tokens.
        rhat: ``(num_docs,)`` split R-hat of the worst topic.
        effective_sample_size: ``(num_docs,)`` of the slowest topic's mean.
        reliable: ``(num_docs,)`` bool, R-hat is at most 1.01, the effective sample size at least
            400, and all chains moved; the others are left out of the table and of all averages.
        variable: What was compared, ``"centred logits"`` or ``"theta"``.
        method: What drew the chains, in words.
        corpus_name: Name of the corpus.
    """

    guides: dict[str, Accuracy]
    noise: Accuracy
    unconverged: dict[str, int]
    index: Tensor
    lengths: Tensor
    rhat: Tensor
    effective_sample_size: Tensor
    reliable: Tensor
    variable: str
    method: str
    corpus_name: str | None

    def average(self, name: str) -> dict[str, tuple[float, float]]:
        """Means over the reliable documents, with standard errors over documents.

        Args:
            name: Of a guide, or ``"noise"``.

        Returns:
            ``(mean, standard error)`` by the names of :class:`Accuracy`; of ``std_ratio`` the
            geometric mean, its error relative to 1. NaN where there are too few documents.
        """
        result = {}
        accuracy = self.noise if name == _NOISE else self.guides[name]
        for field in fields(Accuracy):
            values = getattr(accuracy, field.name)[self.reliable]
            ratio = field.name == "std_ratio"
            values = values.log() if ratio else values
            mean = float(values.mean()) if len(values) else math.nan
            error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
            result[field.name] = (math.exp(mean) if ratio else mean, error)
        return result

    def __repr__(self) -> str:
        where = f" on {self.corpus_name}" if self.corpus_name else ""
        used = int(self.reliable.sum())
        lines = [
            f"PosteriorAccuracy{where}: {used} of {len(self.reliable)} documents, against "
            f"{self.method}",
            f"means over documents ± s.e.; mean errors in prior s.d. of {self.variable}",
        ]
        header = ["posterior", "mean error", "s.d. ratio", "covariance error", "TV of theta"]
        rows = [[*header, "TV of 90 %", "unconverged"]]
        for name, accuracy in [*self.guides.items(), (_NOISE, self.noise)]:
            cells = [f"{m:.3f} ± {e:.3f}" for m, e in self.average(name).values()]
            distances = accuracy.total_variation[self.reliable]
            tail = float(distances.quantile(0.9)) if used else math.nan
            label, ends = name, str(self.unconverged.get(name, ""))
            if name == _NOISE:
                label = "(chains' noise)"
                cells = [cell.split(" ± ")[0] for cell in cells]
                ratio = self.average(name)["std_ratio"][0]
                cells[1] = f"1 ± {ratio - 1:.3f}"
            rows.append([label, *cells, f"{tail:.3f}", ends])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for label, *cells in rows:
            padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            lines.append("  ".join([label.ljust(widths[0]), *padded]).rstrip())
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON-able numbers, per document and averaged; None for a NaN average."""
        guides = {
            name: {
                "average": {
                    key: {"mean": _or_none(mean), "standard_error": _or_none(error)}
                    for key, (mean, error) in self.average(name).items()
                },
                "unconverged": self.unconverged.get(name, 0),
                "documents": {
                    field.name: getattr(accuracy, field.name).tolist() for field in fields(Accuracy)
                },
            }
            for name, accuracy in [*self.guides.items(), (_NOISE, self.noise)]
        }
        chains = ("index", "lengths", "rhat", "effective_sample_size", "reliable")
        return {
            "corpus": self.corpus_name,
            "variable": self.variable,
            "method": self.method,
            "num_reliable": int(self.reliable.sum()),
            "posteriors": guides,
            "chains": {name: getattr(self, name).tolist() for name in chains},
        }


def _or_none(value: float) -> float | None:
    """What JSON has for NaN."""
    return None if math.isnan(value) else value


@torch.no_grad()
def posterior_accuracy(
    model: TopicModel,
    guide: Guide | Mapping[str, Guide],
    corpus: Corpus,
    *,
    num_docs: int = 100,
    num_chains: int = 4,
    num_samples: int = 1000,
    warmup_steps: int = 500,
    seed: int = 0,
    max_docs: int = 32,
    progress: bool = False,
) -> PosteriorAccuracy:
    """Compares guides' posteriors with long chains, on a random sample of a corpus's documents.

    The chains are Hamiltonian Monte Carlo's of each document (:class:`DocumentHMC`); for lda,
    Gibbs sampling of theta and the tokens' topics. They start from draws of the prior (of
    a uniform one for lda) and are drawn once for all guides. What is compared is identified: see
    :class:`Accuracy`.

    A document's chains depend on the seed and its position in the corpus, not on ``max_docs``.

    Args:
        model: The model, at whose parameters all posteriors are judged.
        guide: A guide, or several by name.
        corpus: Documents over the model's vocabulary.
        num_docs: Documents to compare, drawn at random among those with tokens; all if there are
            fewer.
        num_chains: Chains of each document, at least 2.
        num_samples: Draws of each chain, at least 100.
        warmup_steps: Transitions, or sweeps, before them.
        seed: Seed of the choice of documents and of all draws.
        max_docs: Documents whose chains are held at once.
        progress: Show a progress bar.

    Returns:
        The distances, and what the chains' own noise makes of them.

    Raises:
        ConfigError: A number below its least, no guide, a corpus over
            another vocabulary, or without tokens.
        IncompatibleGuideError: A guide belongs to another model.
        NumericalError: A parameter is not finite, or a posterior could not be computed; names the
            parameter or the documents.

    Warns:
        UserWarning: Documents whose chains are not to be trusted; they are left out.
    """
    for name, value, least in (
        ("num_docs", num_docs, 1),
        ("num_chains", num_chains, 2),
        ("num_samples", num_samples, 100),
        ("warmup_steps", warmup_steps, 0),
        ("seed", seed, 0),
        ("max_docs", max_docs, 1),
    ):
        if value < least:
            raise ConfigError(f"{name} is {value}; expected at least {least}")
    guides = guide if isinstance(guide, Mapping) else {guide.name: guide}
    if not guides or _NOISE in guides:
        raise ConfigError(f"guides are named {', '.join(guides)}; expected some, none {_NOISE!r}")
    for each in guides.values():
        if each.model is not model:
            raise IncompatibleGuideError(
                f"{type(each).__name__} was made for another model; make one for this: "
                f"{type(each).__name__}(model)"
            )
    model.check_parameters()
    # The mean of a Dirichlet's theta is known.
    guide_draws = math.inf if isinstance(model.prior, DirichletPrior) else _GUIDE_DRAWS
    transform = _identified(model)
    draw, method = _chains(model, num_chains, num_samples, warmup_steps, seed)
    documents = _sample_documents(corpus, num_docs, seed)
    found: dict[str, list[Accuracy]] = {name: [] for name in (*guides, _NOISE)}
    references, unconverged = [], dict.fromkeys(guides, 0)
    with tqdm(total=len(documents), disable=not progress, unit="doc") as bar:
        for batch in _batches(model, corpus, documents, max_docs):
            reference = _Reference.of(*draw(batch), transform, model)
            references.append(reference)
            found[_NOISE].append(reference.noise(guide_draws))
            for name, each in guides.items():
                posterior = each.posterior(batch)
                found[name].append(reference.distance(posterior, transform, batch.index, seed))
                unconverged[name] += int((~posterior.converged).sum())
            bar.update(batch.num_docs)
    accuracies = {name: _joined(parts) for name, parts in found.items()}
    rhat, size, moved = (
        torch.cat([getattr(part, name) for part in references])
        for name in ("rhat", "effective_sample_size", "moved")
    )
    reliable = moved & (rhat <= LARGEST_RHAT) & (size >= SMALLEST_EFFECTIVE_SAMPLE_SIZE)
    if not bool(reliable.all()):
        left_out = documents[~reliable.numpy()].tolist()
        some = ", ".join(map(str, left_out[:5])) + (", …" if len(left_out) > 5 else "")
        warnings.warn(
            f"the chains of {len(left_out)} of {len(documents)} documents (positions {some}) have "
            f"an R-hat above {LARGEST_RHAT}, an effective sample size below "
            f"{SMALLEST_EFFECTIVE_SAMPLE_SIZE:.0f}, or one that never moved, and are left out; "
            "raise num_samples or warmup_steps",
            UserWarning,
            stacklevel=3,  # the decorator is a frame too
        )
    return PosteriorAccuracy(
        noise=accuracies.pop(_NOISE),
        guides=accuracies,
        unconverged=unconverged,
        index=torch.from_numpy(documents),
        lengths=torch.tensor(corpus.lengths[documents]),
        rhat=rhat,
        effective_sample_size=size,
        reliable=reliable,
        variable="theta" if isinstance(model.prior, DirichletPrior) else "centred logits",
        method=method,
        corpus_name=corpus.name,
    )


def _joined(parts: list[Accuracy]) -> Accuracy:
    """The distances of all batches' documents."""
    names = [field.name for field in fields(Accuracy)]
    return Accuracy(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def _sample_documents(corpus: Corpus, num_docs: int, seed: int) -> np.ndarray:
    """Positions of some documents with tokens, ascending."""
    documents = np.flatnonzero(corpus.lengths)
    if not len(documents):
        raise ConfigError("the corpus has no document with tokens")
    if len(documents) > num_docs:
        documents = np.random.default_rng(seed).choice(documents, num_docs, replace=False)
    return np.sort(documents)


def _batches(
    model: TopicModel, corpus: Corpus, documents: np.ndarray, max_docs: int
) -> Iterator[DocumentBatch]:
    """The documents in batches, each with its positions in the whole corpus."""
    whole = model.check_batch(corpus.batch())
    for rows in torch.from_numpy(documents).split(max_docs):
        yield whole.select(rows.to(whole.device))


# -- what is compared ----------------------------------------------------------------------------


def _identified(model: TopicModel) -> Tensor:
    """J ``(latent_dim, num_topics)`` float64 of x = latent·J: what is compared, in prior s.d.

    The centred logits; theta itself under a Dirichlet prior. On the CPU.
    """
    prior = model.prior
    if isinstance(prior, DirichletPrior):
        alpha = prior.concentration.detach().double().cpu()
        mean = alpha / alpha.sum()
        return ((alpha.sum() + 1.0) / (mean * (1.0 - mean))).sqrt().diag()
    assert isinstance(prior, LogisticNormalPrior | IndependentFactorPrior)
    logits = prior.solver_prior().lift(torch.eye(prior.latent_dim, dtype=torch.float64))
    centred = logits - logits.mean(-1, keepdim=True)
    return centred / prior.contrast_covariance().detach().diagonal().sqrt().cpu()


Draw = Callable[[DocumentBatch], tuple[Tensor, Tensor]]


def _chains(
    model: TopicModel, num_chains: int, num_samples: int, warmup_steps: int, seed: int
) -> tuple[Draw, str]:
    """What draws the latent variable of a batch's documents, and its name.

    It returns draws ``(num_chains, num_samples, num_docs, latent_dim)`` and which documents' chains
    all moved.
    """
    size = f"{num_chains} chains of {num_samples} draws"
    if isinstance(model.prior, DirichletPrior):
        concentration, topics = model.prior.concentration.detach(), model.topics.probs

        def sweep(batch: DocumentBatch) -> tuple[Tensor, Tensor]:
            draws = gibbs(
                batch,
                topics,
                concentration,
                num_chains=num_chains,
                num_samples=num_samples,
                warmup_sweeps=warmup_steps,
                sweeps=_SWEEPS,
                seed=seed,
            )
            return draws, torch.ones(batch.num_docs, dtype=torch.bool)

        return sweep, f"{size} by Gibbs sampling, every {_SWEEPS}th sweep"
    kernel = DocumentHMC(model, num_chains=num_chains, seed=seed)

    def move(batch: DocumentBatch) -> tuple[Tensor, Tensor]:
        samples = kernel.run(batch, num_samples, warmup_steps, progress=False)
        return samples.eta, samples.moved.all(0)

    described = f"{kernel.num_steps} leapfrogs, mass matrix {kernel.mass_matrix!r}"
    return move, f"{size} by DocumentHMC ({described})"


@dataclass(frozen=True, eq=False)
class _Reference:
    """Moments of the chains of a batch's documents, float64 on the CPU.

    Attributes:
        mean: ``(num_docs, num_topics)`` of x.
        covariance: ``(num_docs, num_topics, num_topics)`` of x.
        theta: ``(num_docs, num_topics)`` mean.
        theta_variance: ``(num_docs, num_topics)`` of theta's draws.
        mean_error: ``(num_docs, num_topics)`` Monte-Carlo standard errors of ``mean``.
        theta_error: ``(num_docs, num_topics)`` the same of ``theta``.
        covariance_error: ``(num_docs,)`` root of the sum of the squared ones of ``covariance``.
        log_std_error: ``(num_docs,)`` that of the mean over topics of log standard deviations.
        rhat: ``(num_docs,)`` of the worst topic.
        effective_sample_size: ``(num_docs,)`` of the slowest topic.
        moved: ``(num_docs,)`` bool.
    """

    mean: Tensor
    covariance: Tensor
    theta: Tensor
    theta_variance: Tensor
    mean_error: Tensor
    theta_error: Tensor
    covariance_error: Tensor
    log_std_error: Tensor
    rhat: Tensor
    effective_sample_size: Tensor
    moved: Tensor

    @classmethod
    def of(cls, latent: Tensor, moved: Tensor, transform: Tensor, model: TopicModel) -> _Reference:
        """From draws ``(num_chains, num_samples, num_docs, latent_dim)``."""
        theta = model.theta(latent).double()
        x = latent.double() @ transform
        mean, size = x.mean((0, 1)), effective_sample_size(x)
        centred = x - mean
        # A covariance of each stretch about the common mean: how they differ is their error.
        length = x.shape[1] // _STRETCHES
        stretches = (
            centred[:, : length * _STRETCHES].unflatten(1, (_STRETCHES, length)).flatten(0, 1)
        )
        by_stretch = torch.einsum("csdi,csdj->cdij", stretches, stretches) / length
        flat = centred.flatten(0, 1)
        covariance = torch.einsum("sdi,sdj->dij", flat, flat) / (len(flat) - 1)
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        # How a draw moves the mean of log standard deviations, to first order.
        influence = 0.5 * (centred.square() / variance).mean(-1)
        theta_variance = theta.flatten(0, 1).var(0)
        return cls(
            mean=mean,
            covariance=covariance,
            theta=theta.mean((0, 1)),
            theta_variance=theta_variance,
            mean_error=(variance / size).sqrt(),
            theta_error=(theta_variance / effective_sample_size(theta)).sqrt(),
            covariance_error=(by_stretch.var(0).sum((-2, -1)) / len(by_stretch)).sqrt(),
            log_std_error=influence.flatten(0, 1).std(0) / effective_sample_size(influence).sqrt(),
            rhat=split_gelman_rubin(x).max(-1).values,
            effective_sample_size=size.min(-1).values,
            moved=moved,
        )

    @property
    def std(self) -> Tensor:
        """Standard deviations ``(num_docs, num_topics)`` of x."""
        return self.covariance.diagonal(dim1=-2, dim2=-1).sqrt()

    def noise(self, guide_draws: float) -> Accuracy:
        """What :meth:`distance` would be of an exact posterior whose theta takes draws."""
        theta_error = (self.theta_error.square() + self.theta_variance / guide_draws).sqrt()
        return Accuracy(
            mean_error=self.mean_error.square().mean(-1).sqrt(),
            std_ratio=self.log_std_error.exp(),
            covariance_error=self.covariance_error / self.covariance.norm(dim=(-2, -1)),
            total_variation=0.5 * _MEAN_ABSOLUTE * theta_error.sum(-1),
        )

    def distance(
        self, posterior: Posterior, transform: Tensor, index: Tensor, seed: int
    ) -> Accuracy:
        """How far a guide's posteriors of the same documents are."""
        mean = posterior.mean.double().cpu() @ transform
        covariance = transform.mT @ posterior.covariance.double().cpu() @ transform
        std = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
        difference = (covariance - self.covariance).norm(dim=(-2, -1))
        theta = _theta_mean(posterior, index, seed)
        return Accuracy(
            mean_error=(mean - self.mean).square().mean(-1).sqrt(),
            std_ratio=(std.log() - self.std.log()).mean(-1).exp(),
            covariance_error=difference / self.covariance.norm(dim=(-2, -1)),
            total_variation=0.5 * (theta - self.theta).abs().sum(-1),
        )


def _theta_mean(posterior: Posterior, index: Tensor, seed: int) -> Tensor:
    """Posterior means of theta ``(num_docs, num_topics)``, exact or by draws."""
    if isinstance(posterior, DirichletPosterior):
        return posterior.mean.double().cpu()
    means = [
        posterior.draw_theta(row, _GUIDE_DRAWS, (seed, position)).mean(0)
        for row, position in enumerate(index.tolist())
    ]
    return torch.stack(means).double().cpu()
