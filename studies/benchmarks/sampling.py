"""Effective samples per CPU-second: DocumentHMC beside Pyro's HMC and NUTS on the same program.

    python -m benchmarks.sampling [--num-topics 50] [--num-docs 1000] [--stock-seconds 60]

All in one run, with one thread, on the same documents under the same parameters. *DocumentHMC* has
chains, step sizes and metrics for every document. *Pyro HMC* and *Pyro NUTS* are
``pyro.infer.MCMC`` of the model itself, as a user would call it: one chain of all documents'
eta at once from the Laplace means, with one acceptance, step size and diagonal mass matrix, which
adapt in a short warm-up; then they draw for the seconds given. Every figure is of the slowest topic
of a document (eta centred, the softmax ignores its mean), the median over documents; warm-up is not
counted in anyone's seconds.

*NUTS per document* is Pyro's NUTS on one document at a time in the coordinates in which the
document's Laplace posterior is standard normal, what a NUTS with a tree for every document would do
at its best. It is compared by effective samples per gradient, to which no waste of lockstep trees
belongs.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from benchmarks.common import (
    DATA,
    RESULTS,
    Stopwatch,
    corpus_path,
    describe,
    print_table,
    write_json,
)
from pyro.infer import HMC, MCMC, NUTS
from torch import Tensor

import torch_lntm as lntm
from torch_lntm.corpus import DocumentBatch
from torch_lntm.inference import DocumentHMC
from torch_lntm.inference.document_hmc import MassMatrix, effective_sample_size
from torch_lntm.kernels import expected_topic_counts, mixture_log_likelihood
from torch_lntm.models import TopicModel
from torch_lntm.solvers import hmc

#: Metrics, and leapfrog steps that suit them.
SETTINGS: tuple[tuple[MassMatrix, int], ...] = (
    ("identity", 20),
    ("prior", 20),
    ("taylor", 10),
    ("laplace", 5),
)
WARMUP_STEPS = 150
REPEATS = 20


def centred(eta: Tensor) -> Tensor:
    """What the likelihood depends on of eta ``(..., num_topics)``, float64."""
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
        name: Of the sampler.
        eta: The draws.
        cpu_seconds: What the draws took, warm-up left out.
        gradients: Gradients of each document and chain that they took.
        **more: Other things to keep.
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
    model: TopicModel, batch: DocumentBatch, metric: MassMatrix, num_steps: int, num_samples: int
) -> dict[str, Any]:
    """DocumentHMC's figures; two runs from one warm-up, so that only the draws are timed."""
    warm = DocumentHMC(model, mass_matrix=metric, num_steps=num_steps).run(
        batch, 1, WARMUP_STEPS, progress=False
    )
    kernel = DocumentHMC(model, mass_matrix=metric, num_steps=num_steps, step_size=warm.step_size)
    start = {"eta": warm.eta[:, -1]}
    with Stopwatch() as watch:
        samples = kernel.run(batch, num_samples, 0, initial_params=start, progress=False)
    return record_of(
        f"DocumentHMC {metric}",
        samples.eta,
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
    """A stock kernel of the model's own program, for some CPU seconds after its warm-up."""
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
            # The first draw's time and gradients are those of the last transition of warm-up.
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


def nuts_of_one(target: hmc.DocumentTarget, factor: Tensor, num_samples: int) -> tuple[Tensor, int]:
    """Pyro's NUTS on one document in coordinates r, z = W r: eta's draws, and their gradients."""
    calls = first = 0

    def potential(params: dict[str, Tensor]) -> Tensor:
        nonlocal calls
        calls += 1
        z = params["r"] @ factor.mT
        theta = torch.softmax(target.prior.lift(target.prior.unwhiten(z)), -1)
        words = mixture_log_likelihood(theta[None], target.topics, target.batch)
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
    return target.prior.unwhiten(mcmc.get_samples()["r"] @ factor.mT), calls - first


def per_gradient(model: TopicModel, batch: DocumentBatch, num_samples: int) -> list[dict[str, Any]]:
    """Effective samples per gradient of DocumentHMC and of NUTS with the same metric."""
    pyro.set_rng_seed(0)
    metric = hmc.posterior_metric(lntm.guides.LaplaceGuide(model).posterior(batch))
    sizes, gradients = [], []
    for row in range(batch.num_docs):
        one = batch.select(torch.tensor([row]))
        target = hmc.DocumentTarget(one, model.topics.probs.detach(), model.prior.solver_prior())
        eta, count = nuts_of_one(target, metric.factor[row], num_samples)
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
        each = slowest(samples.eta) / (num_samples * num_steps)
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
    target = hmc.DocumentTarget(batch, topics, model.prior.solver_prior())
    state = hmc.init(target, torch.zeros(1, batch.num_docs, target.dim))
    momentum, step_size = torch.zeros_like(state.position), torch.full_like(state.log_prior, 0.1)
    laplace = hmc.posterior_metric(lntm.guides.LaplaceGuide(model).posterior(batch))
    for name, metric in (("prior", hmc.UnitMetric()), ("laplace", laplace)):

        def steps(count: int, metric: hmc.Metric = metric) -> None:
            hmc.leapfrog(target, state, momentum, step_size, metric, count)

        # The difference leaves out what a trajectory costs at its end.
        result[name] = (milliseconds(lambda: steps(9)) - milliseconds(lambda: steps(1))) / 8
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, default=DATA / "ap.npz")
    parser.add_argument("--num-topics", type=int, default=50)
    parser.add_argument("--num-docs", type=int, default=1000)
    parser.add_argument("--num-samples", type=int, default=200)
    parser.add_argument("--stock-seconds", type=float, default=60.0)
    parser.add_argument("--nuts-docs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/sampling-CORPUS.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    corpus = lntm.read_corpus(corpus_path(args.corpus))
    record = describe(
        corpus=repr(corpus),
        num_topics=args.num_topics,
        num_docs=args.num_docs,
        num_samples=args.num_samples,
        stock_seconds=args.stock_seconds,
        nuts_docs=args.nuts_docs,
        seed=args.seed,
        threads=1,
    )
    model = lntm.models.ctm(args.num_topics, corpus.num_words, seed=args.seed)
    guide = lntm.guides.TaylorGuide(model)
    lntm.inference.VariationalEM(model, guide, seed=args.seed, progress=False).fit(corpus)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    whole = corpus.batch()
    order = torch.from_numpy(np.random.default_rng(args.seed).permutation(corpus.num_docs))
    batch = whole.select(order[: args.num_docs])

    start = lntm.guides.LaplaceGuide(model).posterior(batch).mean
    rows = []
    for metric, num_steps in SETTINGS:
        rows.append(document_hmc(model, batch, metric, num_steps, args.num_samples))
        print(rows[-1], flush=True)
    stock_settings: tuple[tuple[Callable[..., Any], int], ...] = ((HMC, 20), (NUTS, 20))
    for make, warmup_steps in stock_settings:
        rows.append(stock(model, batch, make, warmup_steps, args.stock_seconds, start))
        print(rows[-1], flush=True)
    best_stock = max(row["per_cpu_second"] for row in rows if row["sampler"].startswith("Pyro"))
    record["samplers"] = rows
    print_table(
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
            for row in rows
        ]
    )
    record["per_gradient"] = per_gradient(model, batch.select(torch.arange(args.nuts_docs)), 400)
    print_table(
        [
            {
                "same documents": row["sampler"],
                "gradients a draw": f"{row['num_steps']:.1f}",
                "effective / gradient": f"{row['per_gradient']:.4f}",
            }
            for row in record["per_gradient"]
        ]
    )
    record["leapfrog_ms"] = leapfrog_cost(model, batch)
    print_table(
        [
            {
                f"{args.num_docs} documents": name,
                "ms": f"{value:.2f}",
                "of bare": f"{value / record['leapfrog_ms']['sparse operation']:.2f}",
            }
            for name, value in record["leapfrog_ms"].items()
        ]
    )
    record["by_num_docs"] = []
    for num_docs in (1, 10, 100, 1000, corpus.num_docs):
        samples = DocumentHMC(model, mass_matrix="laplace").run(
            whole.select(order[:num_docs]), 100, 200, progress=False
        )
        first = samples.acceptance[0, 0], samples.step_size[0, 0]
        record["by_num_docs"].append(
            {
                "num_docs": num_docs,
                "acceptance": float(samples.acceptance.mean()),
                "step_size": float(samples.step_size.mean()),
                "acceptance_of_first": float(first[0]),
                "step_size_of_first": float(first[1]),
            }
        )
    print_table(
        [
            {
                "documents": str(row["num_docs"]),
                "acceptance": f"{row['acceptance']:.3f}",
                "step size": f"{row['step_size']:.3f}",
                "acceptance of the first": f"{row['acceptance_of_first']:.3f}",
                "its step size": f"{row['step_size_of_first']:.3f}",
            }
            for row in record["by_num_docs"]
        ]
    )
    write_json(args.out or RESULTS / f"sampling-{args.corpus.stem}.json", record)


if __name__ == "__main__":
    main()
