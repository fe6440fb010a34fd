"""Accuracy of guides' posteriors: distances from long chains of the same documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from studies.scores.accuracy.gibbs import gibbs
from studies.scores.accuracy.reference import (
    LARGEST_RHAT,
    SMALLEST_EFFECTIVE_SAMPLE_SIZE,
    Reference,
)
from studies.scores.accuracy.result import NOISE, Accuracy, PosteriorAccuracy, concatenate
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, ConvergenceWarning, require_whole, warn
from torch_lntm.evaluation.checks import check_arguments, corpus_space, format_positions
from torch_lntm.guides import Guide
from torch_lntm.guides.guide import require_guide
from torch_lntm.inference import DocumentHMC, DocumentSamples
from torch_lntm.latents.contrasts import SourceContrastSpace
from torch_lntm.latents.sticks import StickSpace
from torch_lntm.models import TopicModel
from torch_lntm.progress import tqdm

#: Sweeps of Gibbs sampling from one draw to the next.
SWEEPS = 5


@torch.no_grad()
def posterior_accuracy(
    model: TopicModel,
    guide: Guide[Any] | Mapping[str, Guide[Any]],
    corpus: Corpus,
    *,
    num_docs: int = 100,
    num_chains: int = 4,
    num_draws: int = 1000,
    warmup_steps: int = 500,
    seed: int = 0,
    max_docs: int = 32,
    progress: bool = False,
) -> PosteriorAccuracy:
    """Distances of guides' posteriors from long chains, on a random sample of documents.

    Each document has chains of Hamiltonian Monte Carlo (:class:`DocumentHMC`), or of Gibbs sampling
    of theta and the tokens' topics under a Dirichlet prior. The chains start from draws of the
    prior, or of uniform proportions. All guides are compared with the same chains, in identified
    coordinates (see :class:`Accuracy`).

    A document's chains depend on the seed and its position in the corpus alone.

    Args:
        model: The model. All posteriors use its present parameters.
        guide: A guide, or several guides by name.
        corpus: Documents over the model's vocabulary.
        num_docs: Documents to compare, drawn at random among the documents with tokens; all if the
            corpus has fewer.
        num_chains: Chains of each document, at least 2.
        num_draws: Draws of each chain, at least 100.
        warmup_steps: Transitions, or sweeps, of each chain before its draws.
        seed: Seed of the choice of documents and of all draws.
        max_docs: Documents whose chains are held at once.
        progress: Show a progress bar.

    Returns:
        The distances, and the part of the distances that comes from the noise of the chains.

    Raises:
        ConfigError: A number is too small, there is no guide, or the corpus has another vocabulary
            or no tokens.
        IncompatibleGuideError: A guide belongs to another model, or the prior does not define
            identified coordinates.
        NumericalError: A parameter is infinite or NaN, or a posterior failed; names the parameter
            or the documents.

    Warns:
        ConvergenceWarning: Some chains are unreliable. Their documents are left out.

    Example:
        >>> settings = {"num_docs": 1, "num_draws": 2000}
        >>> accuracy = posterior_accuracy(model, guide, test, **settings)
        >>> accuracy.guides["taylor"].total_variation.shape
        torch.Size([1])
    """
    corpus = check_arguments(model, corpus, seed=seed, max_docs=max_docs)
    require_whole(1, num_docs=num_docs)
    require_whole(2, num_chains=num_chains)
    require_whole(100, num_draws=num_draws)
    require_whole(0, warmup_steps=warmup_steps)
    guides = _guides_by_name(guide, model)
    model.check_parameters()
    space = corpus_space(model, corpus)
    standardiser = standardising(space).cpu()
    documents = _sample_documents(corpus, num_docs, seed)
    accuracies: dict[str, list[Accuracy]] = {name: [] for name in (*guides, NOISE)}
    references, unconverged = [], dict.fromkeys(guides, 0)
    batches = corpus.batches(max_docs, order=documents, device=model.device, dtype=model.dtype)
    with tqdm(total=len(documents), disable=not progress, unit="doc") as bar:
        for batch in batches:
            samples, method = _chains(model, batch, num_chains, num_draws, warmup_steps, seed)
            reference = Reference.from_samples(samples, standardiser)
            references.append(reference)
            exact = True
            for name, each in guides.items():
                posterior = each.posterior(batch)
                exact &= posterior.has_exact_theta_mean
                accuracies[name].append(reference.distance(posterior, standardiser, seed))
                unconverged[name] += int((~posterior.converged).sum())
            accuracies[NOISE].append(reference.noise(exact))
            bar.update(batch.num_docs)
    rhat, size, reliable = (
        torch.cat([getattr(part, name) for part in references])
        for name in ("rhat", "effective_sample_size", "reliable")
    )
    index = torch.from_numpy(documents)
    _warn_of_chains(index, reliable)
    return PosteriorAccuracy(
        noise=concatenate(accuracies[NOISE]),
        guides={name: concatenate(accuracies[name]) for name in guides},
        unconverged=unconverged,
        index=index,
        lengths=torch.tensor(corpus.lengths[documents]),
        rhat=rhat,
        effective_sample_size=size,
        reliable=reliable,
        variable="theta" if isinstance(space, StickSpace) else "centred logits",
        method=f"{num_chains} chains of {num_draws} draws by {method}",
        corpus_name=corpus.name,
    )


def standardising(space: Any) -> Tensor:
    """Matrix J ``(latent_dim, num_topics)`` float64; the main site times J is identified.

    The product, theta or the centred logits, is in units of its prior standard deviations.

    Args:
        space: A prior's identified space.
    """
    if isinstance(space, StickSpace):
        alpha = space.concentration
        mean = alpha / alpha.sum()
        return ((alpha.sum() + 1.0) / (mean * (1.0 - mean))).sqrt().diag()
    variance = space.loading.square()
    if isinstance(space, SourceContrastSpace):
        variance[: space.num_sources] *= 2.0  # of a Laplace source
    contrasts = space.basis[:, :-1] if getattr(space, "anchored", False) else space.basis
    return contrasts.mT @ space.basis / variance.sum(0).sqrt()


def _chains(
    model: TopicModel,
    batch: DocumentBatch,
    num_chains: int,
    num_draws: int,
    warmup_steps: int,
    seed: int,
) -> tuple[DocumentSamples, str]:
    """Draws by chains, and the method in words."""
    if not model.is_conjugate:
        kernel = DocumentHMC(model, num_chains=num_chains, seed=seed)
        settings = kernel.settings
        method = (
            f"DocumentHMC ({settings.num_steps} leapfrogs, mass matrix {settings.mass_matrix!r})"
        )
        return kernel.run(batch, num_draws, warmup_steps, progress=False), method
    space: Any = model.prior.space(batch)
    draws = gibbs(
        model.topics.assign_levels(batch),
        model.topics.double_probs,
        space.concentration,
        num_chains=num_chains,
        num_draws=num_draws,
        warmup_sweeps=warmup_steps,
        sweeps=SWEEPS,
        seed=seed,
    )
    accepted = torch.ones(num_chains, batch.num_docs, dtype=torch.float64)
    samples = DocumentSamples(
        model=model,
        latents={model.prior.latent: draws.cpu()},
        index=batch.index.cpu(),
        acceptance=accepted,
        step_size=torch.full_like(accepted, torch.nan),
        divergences=torch.zeros(batch.num_docs, dtype=torch.int64),
        moved=accepted.bool(),
    )
    return samples, f"Gibbs sampling, every {SWEEPS}th sweep"


def _guides_by_name(
    guide: Guide[Any] | Mapping[str, Guide[Any]], model: TopicModel
) -> Mapping[str, Guide[Any]]:
    """Checked guides by name."""
    guides = guide if isinstance(guide, Mapping) else {require_guide(guide, model).name: guide}
    if not guides or NOISE in guides:
        raise ConfigError(
            f"guides are named {', '.join(guides)}; expected at least one name, other than "
            f"{NOISE!r}"
        )
    for each in guides.values():
        require_guide(each, model)
    return guides


def _warn_of_chains(index: Tensor, reliable: Tensor) -> None:
    """Warn of unreliable chains; ``index`` has the documents' positions in the corpus."""
    left_out = index[~reliable]
    if len(left_out):
        warn(
            f"the chains of {len(left_out)} of {len(index)} documents (positions "
            f"{format_positions(left_out)}) have an R-hat above {LARGEST_RHAT}, an effective "
            f"sample size below {SMALLEST_EFFECTIVE_SAMPLE_SIZE:.0f}, or a chain that never "
            "moved, and are left out; raise num_draws or warmup_steps",
            ConvergenceWarning,
        )


def _sample_documents(corpus: Corpus, num_docs: int, seed: int) -> np.ndarray:
    """Positions of randomly drawn documents with tokens, ascending."""
    documents = corpus.nonempty
    if not len(documents):
        raise ConfigError("the corpus has no document with tokens")
    if len(documents) > num_docs:
        documents = np.random.default_rng(seed).choice(documents, num_docs, replace=False)
    return np.sort(documents)
