"""Small pieces of work for the study ``versus``, in a process with one checkout.

    PYTHONPATH=CHECKOUT python studies/benchmarks/workloads.py COUNTS.npz NUM_TOPICS

The module imports nothing of ``studies``, which the other checkout may lack, and only parts of the
package common to both checkouts. Each line of standard input names a workload. The process does the
work once and answers with a line of JSON: CPU seconds and a computed number. The first answer names
the imported package.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyro
import scipy.sparse as sp
import torch
from pyro import poutine
from pyro.optim import PyroOptim
from torch import Tensor

import torch_lntm as lntm
from torch_lntm.evaluation import AIS, document_completion, log_likelihood
from torch_lntm.inference import DocumentHMC, MonteCarloEM, VariationalEM
from torch_lntm.kernels.mixture import expected_topic_counts, mixture_log_likelihood

Work = Callable[[], float]

#: Repetitions of short workloads, and documents of workloads with a long time per document.
OFTEN = 20
FEW_DOCS = 20
#: Models by name: the constructor, and its options beside the parameters.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "ctm": ("ctm", {}),
    "iftm": ("iftm", {"source": "gaussian"}),
    "iftm, Laplace": ("iftm", {"source": "laplace"}),
    "lda": ("lda", {}),
}
#: Solved posteriors and fits, each a model and a guide.
POSTERIORS = (
    *(("ctm", name) for name in ("taylor", "laplace", "blei-lafferty", "khan-bouchard")),
    *(("iftm", name) for name in ("taylor", "factor")),
    ("iftm, Laplace", "factor"),
    *(("lda", name) for name in ("vb", "ep")),
)
FITS = (("ctm", "taylor"), ("iftm", "factor"), ("lda", "vb"))
#: Chains: the model, the mass matrix and the leapfrog steps.
CHAINS = (("ctm", "prior", 10), ("ctm", "laplace", 5), ("iftm", "prior", 10))


class Workloads:
    """Workloads over the documents of one corpus.

    Every model has the same topics, made of a few random documents each, and a prior of some
    spread. No workload depends on a version's own fit.

    Args:
        counts: ``(num_docs, num_words)`` counts without empty documents.
        num_topics: Number of topics.
    """

    def __init__(self, counts: sp.csr_matrix, num_topics: int) -> None:
        self.corpus = lntm.Corpus.from_matrix(counts)
        self.num_topics = num_topics
        rng = np.random.default_rng(0)
        rows = [rng.choice(counts.shape[0], 3) for _ in range(num_topics)]
        words = np.stack([counts[row].sum(0).A1 for row in rows]).astype(float)
        words = words / words.sum(1, keepdims=True) + 1.0 / counts.shape[1]
        probs = torch.from_numpy(words / words.sum(1, keepdims=True))
        # Word by word, in the layout of every model.
        self.topics = probs.mT.contiguous().mT
        root = rng.standard_normal((num_topics, 2 * num_topics)) / np.sqrt(2 * num_topics)
        self.covariance = torch.from_numpy(2.0 * root @ root.T)
        self.mixing = torch.from_numpy(rng.standard_normal((num_topics, max(1, num_topics // 4))))

    @cached_property
    def batch(self) -> Any:
        """All documents."""
        return self.corpus.batch()

    def model(self, name: str, fitted: bool = True) -> Any:
        """A model with these parameters, or as it is before a fit."""
        kind, options = MODELS[name]
        if fitted:
            prior = {"ctm": {"covariance": self.covariance}, "iftm": {"mixing": self.mixing}}
            options = {**options, "topics": self.topics, **prior.get(kind, {})}
        make = getattr(lntm.models, kind)
        return make(self.num_topics, self.corpus.num_words, **options).requires_grad_(not fitted)

    def gradients(self) -> Work:
        """The log likelihoods and their gradients in both arguments."""
        weights = torch.full((self.batch.num_docs, self.num_topics), 1.0 / self.num_topics)
        weights, topics = weights.requires_grad_(), self.topics.float().requires_grad_()

        def work() -> float:
            for _ in range(OFTEN):
                total = mixture_log_likelihood(weights, topics, self.batch).sum()
                torch.autograd.grad(total, (weights, topics))
            return float(total)

        return work

    def topic_counts(self) -> Work:
        """Expected topic counts, the work of a posterior's iteration."""
        weights = torch.full((self.batch.num_docs, self.num_topics), 1.0 / self.num_topics)
        topics = self.topics.float()

        def work() -> float:
            for _ in range(OFTEN):
                found = expected_topic_counts(weights, topics, self.batch)
            return float(found[:, 0].sum())

        return work

    def posterior(self, name: str, guide: str) -> Work:
        """An E-step from the prior mean (VB: equal proportions; EP: of a few documents)."""
        solver = lntm.guides.make_guide(guide, self.model(name))
        batch = self.corpus[:FEW_DOCS].batch() if guide == "ep" else self.batch
        start = None
        if guide == "vb":
            start = torch.full((batch.num_docs, self.num_topics), 1.0 / self.num_topics)
        return lambda: float(solver.posterior(batch, start).objective.sum())

    def fit(self, name: str, guide: str) -> Work:
        """Variational EM with a fixed number of iterations."""

        def work() -> float:
            model = self.model(name, fitted=False)
            VariationalEM(
                model,
                lntm.guides.make_guide(guide, model),
                start_epochs=3,
                stepwise_epochs=2,
                max_iterations=3,
                tolerance=1e-12,
                progress=False,
            ).fit(self.corpus)
            return _spread(model)

        return work

    def monte_carlo_fit(self) -> Work:
        """Epochs of Monte-Carlo EM from the model as it is."""

        def work() -> float:
            model = self.model("ctm")
            MonteCarloEM(model, max_epochs=2, start="model", progress=False).fit(self.corpus)
            return _spread(model)

        return work

    def chains(self, name: str, metric: str, num_steps: int) -> Work:
        """Transitions of Hamiltonian chains with a given step size."""
        kernel = DocumentHMC(
            self.model(name), mass_matrix=metric, num_steps=num_steps, step_size=0.1
        )
        return lambda: float(kernel.run(self.batch, 20, 0, progress=False).acceptance.mean())

    def warm_up(self) -> Work:
        """The search for a step size, and its adaptation."""
        kernel = DocumentHMC(self.model("ctm"), mass_matrix="prior", num_steps=5)
        return lambda: float(kernel.run(self.batch, 1, 20, progress=False).step_size.mean())

    def annealing(self, name: str) -> Work:
        """Annealed importance sampling of a few documents."""
        model, ais = self.model(name), AIS(num_chains=4, num_temperatures=50)
        return lambda: float(log_likelihood(model, self.corpus[:FEW_DOCS], ais).total)

    def importance(self, name: str) -> Work:
        """Importance sampling of a few documents."""
        model = self.model(name)
        return lambda: float(log_likelihood(model, self.corpus[:FEW_DOCS], num_draws=200).total)

    def completion(self) -> Work:
        """Document completion."""
        model = self.model("ctm")
        guide = lntm.guides.TaylorGuide(model)
        return lambda: float(
            document_completion(model, self.corpus, theta="mode", guide=guide).nats_per_token
        )

    def program(self) -> Work:
        """Log density of the traced program and its gradient in eta, as in stock samplers."""
        model = self.model("ctm").requires_grad_(True)
        eta = torch.zeros(self.batch.num_docs, self.num_topics, requires_grad=True)
        conditioned = poutine.condition(model, {"eta": eta})

        def work() -> float:
            for _ in range(OFTEN):
                total = poutine.trace(conditioned).get_trace(self.batch).log_prob_sum()
                assert isinstance(total, Tensor)
                torch.autograd.grad(total, eta)
            return float(total)

        return work

    def svi(self) -> Work:
        """Steps of stochastic variational inference."""

        def work() -> float:
            pyro.clear_param_store()
            pyro.set_rng_seed(0)
            model = self.model("ctm").requires_grad_(True)
            guide = lntm.guides.TaylorGuide(model)
            optimiser = PyroOptim(torch.optim.Adam, {"lr": 0.01})
            svi = pyro.infer.SVI(model, guide, optimiser, pyro.infer.Trace_ELBO())
            for _ in range(5):
                loss = svi.step(self.batch)
            return float(loss)

        return work

    def by_name(self) -> dict[str, Callable[[], Work]]:
        """The function that prepares each workload."""
        parts: dict[str, Callable[[], Work]] = {
            "sparse operation, gradients": self.gradients,
            "sparse operation, topic counts": self.topic_counts,
        }
        for pair in POSTERIORS:
            parts[f"E-step, {pair[0]}, {pair[1]}"] = partial(self.posterior, *pair)
        for pair in FITS:
            parts[f"fit, {pair[0]}, {pair[1]}"] = partial(self.fit, *pair)
        parts["Monte-Carlo EM, ctm"] = self.monte_carlo_fit
        for name, metric, steps in CHAINS:
            parts[f"HMC, {name}, {metric}"] = partial(self.chains, name, metric, steps)
        parts["HMC, ctm, warm-up"] = self.warm_up
        for name in MODELS:
            parts[f"AIS, {name}"] = partial(self.annealing, name)
        for name in MODELS:
            parts[f"importance sampling, {name}"] = partial(self.importance, name)
        parts["completion, ctm"] = self.completion
        parts["program and gradient, ctm"] = self.program
        parts["SVI, ctm"] = self.svi
        return parts


def _spread(model: Any) -> float:
    """A number that depends on all topics."""
    probs: Tensor = model.topics.probs.detach()
    return float(probs.double().square().sum())


def answers(workloads: Workloads, lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Do the work named by each line. The first time, an untimed run prepares it."""
    parts, ready = workloads.by_name(), dict[str, Work]()
    yield {"package": lntm.__file__, "workloads": list(parts)}
    for line in lines:
        name = line.strip()
        try:
            if name not in ready:
                ready[name] = parts[name]()
            began = time.process_time()
            value = ready[name]()
            yield {"cpu_seconds": time.process_time() - began, "value": value}
        except Exception as error:  # the parent process reads every error
            yield {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Answers until the input ends."""
    torch.set_num_threads(1)
    counts = sp.csr_matrix(sp.load_npz(sys.argv[1]))
    for answer in answers(Workloads(counts, int(sys.argv[2])), iter(sys.stdin.readline, "")):
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
