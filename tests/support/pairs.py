"""Small models of every family, and the guides that fit each family."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pyro import poutine
from support.problems import make_batch

from torch_lntm.corpus import DocumentBatch
from torch_lntm.guides import GUIDES
from torch_lntm.inference import Statistics
from torch_lntm.inference.em.statistics import chain_statistics
from torch_lntm.models import TopicModel, ctm, iftm, lda, lntm
from torch_lntm.noise import document_keys
from torch_lntm.posteriors import Draws

NUM_TOPICS, NUM_WORDS, NUM_SOURCES = 4, 15, 2
FAMILIES = ("ctm", "lntm", "iftm(source='gaussian')", "iftm(source='laplace')", "lda")


def make_model(family: str, seed: int = 0, **options: object) -> TopicModel:
    """A model of a family with random parameters. ``dtype`` defaults to float64."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(NUM_WORDS, 0.5), NUM_TOPICS)
    settings: dict[str, object] = {
        "topics": torch.from_numpy(topics + 1e-3),
        "dtype": "float64",
        **options,
    }
    sizes = (NUM_TOPICS, NUM_WORDS)
    loc = torch.from_numpy(rng.normal(size=NUM_TOPICS))
    mixing = torch.from_numpy(rng.normal(size=(NUM_TOPICS, NUM_SOURCES)))
    precision = torch.from_numpy(rng.gamma(2.0, size=NUM_TOPICS))
    if family == "lda":
        settings.setdefault("concentration", torch.from_numpy(rng.gamma(2.0, size=NUM_TOPICS)))
        return lda(*sizes, **settings)  # type: ignore[arg-type]
    if family == "ctm":
        covariance = mixing @ mixing.mT + precision.reciprocal().diag()
        return ctm(*sizes, loc=loc, covariance=covariance, **settings)  # type: ignore[arg-type]
    if family == "lntm":
        std = precision.rsqrt()
        return lntm(*sizes, loc=loc, std=std, **settings)  # type: ignore[arg-type]
    return iftm(  # type: ignore[arg-type]
        *sizes,
        NUM_SOURCES,
        source="gaussian" if "gaussian" in family else "laplace",
        loc=loc,
        mixing=mixing,
        noise_precision=precision,
        **settings,
    )


def make_counts(lengths: tuple[int, ...] = (30, 1, 8, 60, 3), seed: int = 0) -> np.ndarray:
    """Documents ``(num_docs, NUM_WORDS)`` of random words."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.multinomial(n, rng.dirichlet(np.ones(NUM_WORDS))) for n in lengths])


#: The package's guides for each family. ``GUIDES`` may also hold guides that other tests register.
PAIRS = [
    (family, name)
    for name, guide in GUIDES.items()
    for family in FAMILIES
    if guide.__module__.startswith("torch_lntm.") and guide.fits(make_model(family))
]

each_pair = pytest.mark.parametrize(("family", "name"), PAIRS)


def prior_draws(
    model: TopicModel, num_draws: int, device: torch.device | str = "cpu", seed: int = 0
) -> dict[str, torch.Tensor]:
    """Draws ``(num_draws, dim)`` from the prior of one document, by site name."""
    batch = make_batch(np.ones((1, model.num_words)), device, model.dtype)
    space = model.prior.space(batch)
    latents = space.latents(space.draw(document_keys(seed, batch.index, num_draws)))
    return {site: value[:, 0] for site, value in latents.items()}


def start_prior(model: TopicModel, theta: torch.Tensor) -> torch.Tensor:
    """Start a prior from proportions ``(num_docs, num_topics)``. Returns the latent variables."""
    latents = model.prior.start_latents(theta)
    weights = torch.ones(1, len(theta), dtype=torch.float64)
    draws = Draws({model.prior.latent: latents[None]}, theta.log()[None], weights)
    batch = make_batch(np.ones((len(theta), model.num_words)))
    model.prior.start(float(len(theta)), **model.prior.statistics(draws, batch))
    return latents


def prior_log_prob(
    model: TopicModel, batch: DocumentBatch, latents: dict[str, torch.Tensor]
) -> torch.Tensor:
    """Log density ``(num_docs,)`` of the program's latent sites at given values."""
    trace = poutine.trace(poutine.condition(model, latents)).get_trace(batch)
    return sum(trace.nodes[name]["fn"].log_prob(trace.nodes[name]["value"]) for name in latents)


def sampled_statistics(
    model: TopicModel,
    batch: DocumentBatch,
    latents: Any,
    logits: Any,
    values: Any,
    used: Any = None,
) -> Statistics:
    """Statistics at given draws instead of those of chains."""
    batch = model.check_batch(batch)
    target = SimpleNamespace(batch=batch, rows=batch.repeat)
    state = SimpleNamespace(log_likelihood=values)
    draws: Any = SimpleNamespace(latents=latents, logits=logits, state=state, counts=None)
    draws.target = target
    return chain_statistics(model, draws, used)
