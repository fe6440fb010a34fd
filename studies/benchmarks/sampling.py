"""Effective samples per CPU second: DocumentHMC beside Pyro's HMC and NUTS on the same program.

All samplers run at once, with one thread, on the same documents under equal parameters.
*DocumentHMC* has chains, step sizes and metrics for every document. *Pyro HMC* and *Pyro NUTS* are
``pyro.infer.MCMC`` of the model itself, as a user calls it: one chain of all documents' eta at
once from the Laplace means, with one acceptance, step size and diagonal mass matrix. The step size
adapts in a short warm-up; then the sampler draws for the given seconds. Every figure is the median
over documents for the slowest topic of a document, with eta centred because softmax ignores its
mean. No figure counts seconds of warm-up. The study takes 15 minutes.

*NUTS per document* is Pyro's NUTS on one document at a time, in coordinates that make the
document's Laplace posterior standard normal. It is the best case of a NUTS with a tree for every
document. The comparison is by effective samples per gradient, free of the waste of trees in
lockstep.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro
import torch
from pyro.infer import HMC, MCMC, NUTS
from torch import Tensor

import torch_lntm as lntm
from studies.machine import Stopwatch
from studies.measure import Cells, Study, check_numbers, corpus_file
from studies.tables import table_of
from torch_lntm.corpus import DocumentBatch
from torch_lntm.inference import DocumentHMC
from torch_lntm.inference.chains.samples import effective_sample_size
from torch_lntm.kernels.mixture import expected_topic_counts, mixture_log_likelihood
from torch_lntm.latents import DocumentTarget
from torch_lntm.latents.metrics import Metric
from torch_lntm.models import TopicModel
from torch_lntm.sampling import hmc

#: Metrics, with suitable numbers of leapfrog steps.
METRICS: tuple[tuple[str, int], ...] = (
    ("identity", 20),
    ("prior", 20),
    ("taylor", 10),
    ("laplace", 5),
)
WARMUP_STEPS = 150
REPEATS = 20


def centred(eta: Tensor) -> Tensor:
    """Eta ``(..., num_topics)`` without its mean, which the likelihood ignores; float64."""
    eta = eta.double()
    return eta - eta.mean(-1, keepdim=True)


def slowest(eta: Tensor) -> Tensor:
    """Effective sample size of the slowest topic ``(num_docs,)`` of draws ``(C, S, D, K)``."""
    parts = [effective_sample_size(part) for part in centred(eta).split(50, 2)]
    return torch.cat(parts).min(-1).values


def record_of(
    name: str, eta: Tensor, cpu_seconds: float, gradients: int, **more: Any
) -> dict[str, Any]:
    """Figures of draws ``(num_chains, num_samples, num_docs, num_topics)``.

    Args:
        name: Name of the sampler.
        eta: The draws.
        cpu_seconds: CPU seconds of the draws, without warm-up.
        gradients: Gradients for each document and chain.
        **more: Further figures to keep.
    """
    size = float(slowest(eta).median())
    return {
        "sampler": name,
        "draws": eta.shape[0] * eta.shape[1],
        "effective_samples": size,
        "cpu_seconds": cpu_seconds,
        "per_cpu_second": size / cpu_seconds,
        "per_gradient": size / (gradients * eta.shape[0]),
        **more,
    }


def document_hmc(
    model: TopicModel, batch: DocumentBatch, metric: str, num_steps: int, num_samples: int
) -> dict[str, Any]:
    """Figures of DocumentHMC. Two runs from one warm-up time the draws alone."""
    warm = DocumentHMC(model, mass_matrix=metric, num_steps=num_steps).run(
        batch, 1, WARMUP_STEPS, progress=False
    )
    kernel = DocumentHMC(model, mass_matrix=metric, num_steps=num_steps, step_size=warm.step_size)
    start = {"eta": warm.latents["eta"][:, -1]}
    with Stopwatch() as watch:
        samples = kernel.run(batch, num_samples, 0, initial_params=start, progress=False)
    return record_of(
        f"DocumentHMC {metric}",
        samples.latents["eta"],
        watch.cpu_seconds,
        num_samples * num_steps,
        num_steps=num_steps,
        acceptance=float(samples.acceptance.mean()),
        step_size=float(samples.step_size.median()),
    )


class _OutOfTime(Exception):
    pass


def stock(
    model: TopicModel,
    batch: DocumentBatch,
    make: Callable[..., Any],
    warmup_steps: int,
    seconds: float,
    start: Tensor,
) -> dict[str, Any]:
    """Figures of a stock kernel on the model's program, for some CPU seconds after warm-up."""
    pyro.set_rng_seed(0)
    calls, draws = 0, []
    begin, first = math.inf, 0

    def program(batch: DocumentBatch) -> Tensor:
        nonlocal calls
        calls += 1
        return model(batch)

    def hook(kernel: Any, params: dict[str, Tensor], stage: str, count: int) -> None:
        nonlocal begin, first
        if not stage.startswith("Sample"):
            # The first draw has the time and gradients of the last warm-up transition.
            begin, first = time.process_time(), calls
            return
        draws.append(params["eta"].detach().clone())
        if time.process_time() - begin > seconds:
            raise _OutOfTime

    kernel = make(program)
    mcmc = MCMC(
        kernel,
        num_samples=10_000,
        warmup_steps=warmup_steps,
        initial_params={"eta": start},
        hook_fn=hook,
        disable_progbar=True,
    )
    with Stopwatch() as whole, contextlib.suppress(_OutOfTime):
        mcmc.run(batch)
    taken = time.process_time() - begin
    return record_of(
        f"Pyro {make.__name__}",
        torch.stack(draws)[None],
        taken,
        calls - first,
        warmup_cpu_seconds=whole.cpu_seconds - taken,
        step_size=float(kernel.step_size),
    )


def laplace_metric(model: TopicModel, batch: DocumentBatch) -> Metric:
    """The mass matrices of DocumentHMC's ``"laplace"``."""
    return lntm.guides.LaplaceGuide(model).posterior(batch).metric()


def nuts_of_one(target: DocumentTarget, factor: Tensor, num_samples: int) -> tuple[Tensor, int]:
    """Pyro's NUTS on one document in coordinates r, z = W r: draws of eta, and gradients."""
    calls = first = 0

    def potential(params: dict[str, Tensor]) -> Tensor:
        nonlocal calls
        calls += 1
        z = params["r"] @ factor.mT
        words = mixture_log_likelihood(target.theta(z[None]), target.topics, target.batch)
        return (0.5 * z.square().sum() - words.sum()).to(z.dtype)

    def hook(kernel: Any, params: dict[str, Tensor], stage: str, count: int) -> None:
        nonlocal first
        if not stage.startswith("Sample"):
            first = calls

    mcmc = MCMC(
        NUTS(potential_fn=potential, adapt_mass_matrix=False),
        num_samples=num_samples,
        warmup_steps=100,
        initial_params={"r": factor.new_zeros(len(factor))},
        hook_fn=hook,
        disable_progbar=True,
    )
    mcmc.run()
    z = mcmc.get_samples()["r"] @ factor.mT
    return target.space.latents(z[:, None])["eta"][:, 0], calls - first


def per_gradient(model: TopicModel, batch: DocumentBatch, num_samples: int) -> list[dict[str, Any]]:
    """Effective samples per gradient of DocumentHMC and of NUTS with the same metric."""
    pyro.set_rng_seed(0)
    factor = laplace_metric(model, batch).factor
    assert factor is not None
    sizes, gradients = [], []
    for row in range(batch.num_docs):
        one = batch.select(torch.tensor([row]))
        eta, count = nuts_of_one(model.bind(one), factor[row], num_samples)
        sizes.append(float(slowest(eta[None, :, None])))
        gradients.append(count)
    ratio = np.array(sizes) / gradients
    rows = [
        {
            "sampler": "NUTS per document",
            "num_steps": float(np.mean(gradients)) / num_samples,
            "per_gradient": float(np.median(ratio)),
            "each": ratio.tolist(),
        }
    ]
    for num_steps in (3, 5, 8, 12, 20):
        samples = DocumentHMC(model, mass_matrix="laplace", num_steps=num_steps).run(
            batch, num_samples, 300, progress=False
        )
        each = slowest(samples.latents["eta"]) / (num_samples * num_steps)
        rows.append(
            {
                "sampler": f"DocumentHMC, {num_steps} steps",
                "num_steps": num_steps,
                "per_gradient": float(each.median()),
                "each": each.tolist(),
            }
        )
    return rows


def leapfrog_cost(model: TopicModel, batch: DocumentBatch) -> dict[str, float]:
    """CPU milliseconds of a leapfrog step with each metric, and of the bare sparse operation."""
    topics = model.topics.probs.detach()
    theta = torch.full((batch.num_docs, model.num_topics), 1.0 / model.num_topics)

    def milliseconds(run: Callable[[], object]) -> float:
        best = math.inf
        for _ in range(5):
            with Stopwatch() as watch:
                for _ in range(REPEATS):
                    run()
            best = min(best, watch.cpu_seconds)
        return 1e3 * best / REPEATS

    result = {"sparse operation": milliseconds(lambda: expected_topic_counts(theta, topics, batch))}
    target = model.bind(batch)
    state = hmc.init(target, torch.zeros(1, batch.num_docs, target.dim))
    momentum, step_size = torch.zeros_like(state.position), torch.full_like(state.log_prior, 0.1)
    metrics: dict[str, Metric] = {"prior": Metric(), "laplace": laplace_metric(model, batch)}
    for name, metric in metrics.items():

        def steps(count: int, metric: Metric = metric) -> None:
            hmc.leapfrog(target, state, momentum, step_size, metric, count)

        # The difference cancels the cost of a trajectory's end.
        result[name] = (milliseconds(lambda: steps(9)) - milliseconds(lambda: steps(1))) / 8
    return result


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpus: Name of a corpus in the folder of data, or a path.
        num_topics: Topics.
        num_docs: Documents, drawn at random.
        num_samples: Draws of DocumentHMC for each document.
        stock_seconds: CPU seconds of drawing for each of Pyro's samplers.
        stock_warmup: Warm-up draws of Pyro's samplers.
        nuts_docs: Documents of the runs of NUTS on one document.
        nuts_samples: Draws of each of these runs.
        seed: Seed of the fit and of the choice of documents.
    """

    corpus: str = "ap"
    num_topics: int = 50
    num_docs: int = 1000
    num_samples: int = 200
    stock_seconds: float = 400.0
    stock_warmup: int = 20
    nuts_docs: int = 20
    nuts_samples: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        ones = ("num_docs", "stock_warmup", "nuts_docs")
        least = {"num_topics": 2, "num_samples": 4, "nuts_samples": 4, "seed": 0}
        check_numbers(self, least | dict.fromkeys(ones, 1), ["stock_seconds"])


@dataclass(frozen=True)
class Result:
    """The result of the study.

    Attributes:
        num_docs: Documents of the first and third part.
        samplers: Effective samples per second and gradient of each sampler.
        per_gradient: Effective samples per gradient, NUTS on one document at a time among them.
        leapfrog_ms: CPU milliseconds of a leapfrog, by metric.
        by_num_docs: Acceptance and step size by the number of documents sampled together.
    """

    num_docs: int
    samplers: list[dict[str, Any]]
    per_gradient: list[dict[str, Any]]
    leapfrog_ms: dict[str, float]
    by_num_docs: list[dict[str, Any]]


def run(settings: Settings, cells: Cells) -> Result:
    """Fit a model and sample under it."""
    torch.set_num_threads(1)
    corpus = lntm.read_corpus(corpus_file(settings.corpus))
    model = lntm.models.ctm(settings.num_topics, corpus.num_words, seed=settings.seed)
    guide = lntm.guides.TaylorGuide(model)
    lntm.inference.VariationalEM(model, guide, seed=settings.seed, progress=False).fit(corpus)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    whole = corpus.batch()
    order = torch.from_numpy(np.random.default_rng(settings.seed).permutation(corpus.num_docs))
    batch = whole.select(order[: settings.num_docs])
    # Pyro's samplers need a corpus of these documents: the program scales a mini-batch up.
    alone = corpus[order[: settings.num_docs].numpy()].batch()
    kernels = {"HMC": HMC, "NUTS": NUTS}
    steps = dict(METRICS)

    def sampler(key: tuple[str, Any]) -> dict[str, Any]:
        kind, name = key
        if kind == "DocumentHMC":
            return document_hmc(model, batch, name, steps[name], settings.num_samples)
        start = lntm.guides.LaplaceGuide(model).posterior(batch).mean
        make, warmup = kernels[name], settings.stock_warmup
        return stock(model, alone, make, warmup, settings.stock_seconds, start)

    def together(key: tuple[str, int]) -> dict[str, Any]:
        samples = DocumentHMC(model, mass_matrix="laplace").run(
            whole.select(order[: key[1]]), 100, 200, progress=False
        )
        return {
            "num_docs": key[1],
            "acceptance": float(samples.acceptance.mean()),
            "step_size": float(samples.step_size.mean()),
            "acceptance_of_first": float(samples.acceptance[0, 0]),
            "step_size_of_first": float(samples.step_size[0, 0]),
        }

    keys = [("DocumentHMC", name) for name in steps] + [("Pyro", name) for name in kernels]
    some = batch.select(torch.arange(min(settings.nuts_docs, batch.num_docs)))
    sizes = sorted({min(size, corpus.num_docs) for size in (1, 10, 100, 1000, corpus.num_docs)})
    return Result(
        batch.num_docs,
        cells.each(keys, sampler),
        cells.one("per gradient", lambda: per_gradient(model, some, settings.nuts_samples)),
        cells.one("leapfrog", lambda: leapfrog_cost(model, batch)),
        cells.each([("documents", size) for size in sizes], together),
    )


def tables(result: Result) -> str:
    """The four parts."""
    stock_rows = [row for row in result.samplers if row["sampler"].startswith("Pyro")]
    best_stock = max(row["per_cpu_second"] for row in stock_rows)
    bare = result.leapfrog_ms["sparse operation"]
    parts = [
        [
            {
                "sampler": row["sampler"],
                "draws": str(row["draws"]),
                "effective": f"{row['effective_samples']:.1f}",
                "CPU s": f"{row['cpu_seconds']:.1f}",
                "effective / CPU s": f"{row['per_cpu_second']:.3f}",
                "effective / gradient": f"{row['per_gradient']:.4f}",
                "of best stock": f"{row['per_cpu_second'] / best_stock:.0f}",
            }
            for row in result.samplers
        ],
        [
            {
                "same documents": row["sampler"],
                "gradients a draw": f"{row['num_steps']:.1f}",
                "effective / gradient": f"{row['per_gradient']:.4f}",
            }
            for row in result.per_gradient
        ],
        [
            {
                f"leapfrog, {result.num_docs} documents": name,
                "ms": f"{value:.2f}",
                "of bare": f"{value / bare:.2f}",
            }
            for name, value in result.leapfrog_ms.items()
        ],
        [
            {
                "documents": str(row["num_docs"]),
                "acceptance": f"{row['acceptance']:.3f}",
                "step size": f"{row['step_size']:.3f}",
                "acceptance of the first": f"{row['acceptance_of_first']:.3f}",
                "its step size": f"{row['step_size_of_first']:.3f}",
            }
            for row in result.by_num_docs
        ],
    ]
    return "\n\n".join(table_of(rows) for rows in parts)


STUDY = Study(
    Settings,
    run,
    tables,
    quick={
        "num_topics": 10,
        "num_docs": 100,
        "stock_seconds": 5.0,
        "nuts_docs": 2,
        "nuts_samples": 100,
    },
)
