"""Simulation-based calibration of DocumentHMC: draws rank the truth as draws of the posterior do.

Latent variables and words come from the model. Given the words, the truth is then one more draw of
the posterior: among independent others its rank is uniform (*Talts et al. 2018, §4*). The
chains' draws are thinned until they are as good as independent, which the tests check. What leaves
the target alone but wastes trajectories, as a wrong gradient does, fails there, not in the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import torch
from scipy import stats

from torch_lntm.inference.chains.document_hmc import DocumentHMC
from torch_lntm.inference.chains.samples import DocumentSamples, effective_sample_size
from torch_lntm.models import TopicModel, ctm, iftm, lda, lntm

NUM_DOCS, NUM_WORDS, NUM_CHAINS = 960, 12, 2
#: Draws that a truth is ranked among, and the transitions from one to the next.
NUM_RANKED, THINNING = 15, 12
#: Least p-value, of 22 quantities with 3 tests each: false-failure rate 4e-4 for all of them.
LEAST_PVALUE = 5e-6


def make_model(family: str, device: torch.device) -> TopicModel:
    rng = np.random.default_rng(0)
    topics = torch.from_numpy(rng.dirichlet(np.full(NUM_WORDS, 0.4), 3) + 0.01)
    loc, mixing = torch.tensor([0.5, -0.5, 0.0]), torch.tensor([[1.5], [-0.8], [0.4]])
    precision = torch.tensor([1.0, 2.0, 1.5])
    options = {"loc": loc, "topics": topics, "dtype": "float64"}
    if family == "ctm":
        covariance = mixing @ mixing.mT + precision.reciprocal().diag()
        return ctm(3, NUM_WORDS, covariance=covariance, **options).to(device)
    if family == "lda":
        concentration = torch.tensor([0.9, 0.4, 0.6])
        options = {"topics": topics, "dtype": "float64"}
        return lda(3, NUM_WORDS, concentration=concentration, **options).to(device)
    if family == "lntm":
        return lntm(3, NUM_WORDS, std=precision.rsqrt(), **options).to(device)
    factors = {"mixing": mixing, "noise_precision": precision, "source": family.split("-")[1]}
    return iftm(3, NUM_WORDS, 1, **factors, **options).to(device)


def quantities(
    model: TopicModel, counts: torch.Tensor, latents: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """What is ranked, ``(..., num_docs)`` of latent variables ``(..., num_docs, dim)``."""
    main = latents[model.prior.latent]
    theta = main if model.prior.latent == "theta" else torch.softmax(main, -1)
    logits = theta.log() - theta.log().mean(-1, keepdim=True)
    yield from (("first logit", logits[..., 0]), ("second logit", logits[..., 1]))
    if "eta" in latents:
        loc = model.prior.loc.detach().cpu()
        yield "spread", (logits - loc + loc.mean()).square().sum(-1)
    else:
        yield "spread", theta.square().sum(-1)
    # Of the data too: a sampler that took no notice of them would rank the others evenly.
    words = theta @ model.topics.probs.detach().cpu()
    yield "log likelihood", (counts * words.log()).sum(-1)
    if "source" in latents:
        yield "source", latents["source"][..., 0]


def simulate(
    family: str, device: torch.device, **settings: object
) -> tuple[TopicModel, torch.Tensor, dict[str, torch.Tensor], DocumentSamples]:
    model = make_model(family, device)
    lengths = np.random.default_rng(1).integers(1, 40, NUM_DOCS).tolist()
    corpus, truth = model.generate(lengths)
    counts = torch.from_numpy(corpus.to_scipy().toarray()).double()
    kernel = DocumentHMC(model, num_chains=NUM_CHAINS, **settings)  # type: ignore[arg-type]
    batch = corpus.batch(device=device, dtype=torch.float64)
    samples = kernel.run(batch, NUM_RANKED * THINNING, 80, progress=False)
    return model, counts, {name: value.cpu() for name, value in truth.items()}, samples


def uniformity(ranks: np.ndarray) -> dict[str, float]:
    """P-values of even ranks from 0 to NUM_RANKED: by histogram, by mean, by spread."""
    observed = np.bincount(ranks, minlength=NUM_RANKED + 1)
    result = {"histogram": float(stats.chisquare(observed).pvalue)}
    values = np.arange(NUM_RANKED + 1) - NUM_RANKED / 2
    for name, of in (("mean", values), ("spread", values**2)):
        z = (of[ranks].mean() - of.mean()) / of.std() * np.sqrt(len(ranks))
        result[name] = float(2 * stats.norm.sf(abs(z)))
    return result


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("ctm", {"mass_matrix": "laplace"}),
        ("lntm", {"mass_matrix": "taylor"}),
        ("iftm-gaussian", {"mass_matrix": "prior", "num_steps": 10}),
        ("iftm-laplace", {"mass_matrix": "prior", "num_steps": 10}),
        ("lda", {"num_steps": 10}),
    ],
)
def test_true_values_have_uniform_ranks_among_draws(
    family: str, settings: dict[str, object], device: torch.device
) -> None:
    model, counts, truth, samples = simulate(family, device, **settings)
    assert bool(samples.moved.all())
    truths = dict(quantities(model, counts, truth))
    for name, values in quantities(model, counts, samples.latents):
        # All chains judge the thinning, one is ranked: all have the same truth.
        size = effective_sample_size(values)
        assert float(size.quantile(0.05)) > NUM_CHAINS * NUM_RANKED, name
        drawn = values[0, THINNING - 1 :: THINNING]
        assert len(drawn) == NUM_RANKED
        ranks = (drawn < truths[name]).sum(0).numpy()
        for which, pvalue in uniformity(ranks).items():
            assert pvalue > LEAST_PVALUE, (name, which, np.bincount(ranks))
