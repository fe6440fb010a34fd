"""Costs of the parts of a fit on the tests' pretend device, by the names of the parts."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyro
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import PyroOptim

import torch_lntm as lntm
from studies.benchmarks.launch_costs import Cost, CountingDevice
from torch_lntm.kernels.mixture import expected_counts

#: The family of the model and the name of the guide.
PAIRS = (
    *(
        ("ctm", guide)
        for guide in ("TaylorGuide", "LaplaceGuide", "BleiLaffertyGuide", "KhanBouchardGuide")
    ),
    *(("gaussian iftm", guide) for guide in ("TaylorGuide", "LaplaceGuide", "FactorGuide")),
    ("laplace iftm", "FactorGuide"),
    *(("lda", guide) for guide in ("DirichletGuide", "EPGuide")),
)
#: The family and the metric.
CHAINS = (
    *(("ctm", metric) for metric in ("prior", "taylor", "laplace")),
    ("gaussian iftm", "prior"),
    ("laplace iftm", "prior"),
)


@dataclass(frozen=True)
class Shape:
    """Sizes of the corpus and the models.

    Attributes:
        num_docs: Documents.
        num_words: Words of the vocabulary.
        num_topics: Topics.
        num_sources: Sources of factor models.
        length: Tokens of a document.
    """

    num_docs: int = 64
    num_words: int = 200
    num_topics: int = 10
    num_sources: int = 3
    length: int = 60


class Parts:
    """The parts of a fit. Each method returns the cost of a part.

    The cost of an iteration, a leapfrog step, a transition or an epoch is the difference between
    two runs, one with one more of them. The difference leaves out the work around the loop.

    Args:
        device: The pretend device.
        shape: Sizes.
        corpus: The documents. Defaults to random documents of the shape.
    """

    def __init__(
        self, device: CountingDevice, shape: Shape, corpus: lntm.Corpus | None = None
    ) -> None:
        self._device, self._shape = device, shape
        if corpus is not None:
            self._shape = replace(shape, num_docs=corpus.num_docs, num_words=corpus.num_words)
            self._corpus = corpus
            return
        topics = lntm.corpus.synthetic_topics(shape.num_topics, shape.num_words, 0.1, seed=0)
        covariance = 0.5 + torch.eye(shape.num_topics)
        truth = lntm.models.ctm(
            shape.num_topics, shape.num_words, covariance=covariance, topics=topics
        )
        self._corpus, _ = truth.generate([shape.length] * shape.num_docs, seed=0)

    def model(self, family: str) -> Any:
        """A model with random topics, on the device."""
        shape = self._shape
        sizes: tuple[int, ...] = (shape.num_topics, shape.num_words)
        topics = lntm.corpus.synthetic_topics(shape.num_topics, shape.num_words, 0.1, seed=1)
        options: dict[str, Any] = {"topics": 0.5 * topics + 0.5 / shape.num_words}
        source, _, name = family.rpartition(" ")
        if source:
            sizes, options = (*sizes, shape.num_sources), options | {"source": source}
        model = getattr(lntm.models, name)(*sizes, **options)
        return model.to("cuda")

    def _batch(self) -> Any:
        return self._corpus.batch(device="cuda")

    def _cost(self, work: Callable[[], object]) -> Cost:
        with warnings.catch_warnings(), self._device.measure() as cost:
            warnings.simplefilter("ignore", UserWarning)
            work()
        return cost

    def _one_more(self, work: Callable[[int], Callable[[], object]], number: int) -> Cost:
        """Cost of one more repetition. ``work(n)`` prepares and returns a call of n repetitions."""
        more, less = self._cost(work(number + 1)), self._cost(work(number))
        return more - less

    def expected_counts(self, word_counts: bool = False) -> Cost:
        """The sparse operation. The batch's order by words is prepared beforehand."""
        batch, shape = self._batch(), self._shape
        _ = batch.by_word, batch.row_index
        weights = torch.full((batch.num_docs, shape.num_topics), 0.1, device="cuda")
        topics = self.model("ctm").topics.probs.detach()
        with torch.no_grad():
            return self._cost(
                lambda: expected_counts(weights, topics, batch, word_counts=word_counts)
            )

    def iteration(self, family: str, guide: str) -> Cost:
        """The third iteration of a solver."""

        def work(number: int) -> Callable[[], object]:
            model, batch = self.model(family), self._batch()
            solver = getattr(lntm.guides, guide)(model, tolerance=1e-30, max_iterations=number)
            return lambda: solver.posterior(batch)

        return self._one_more(work, 2)

    def e_step(self, family: str, guide: str) -> Cost:
        """The posteriors of a batch, from the prior mean until the guide's tolerance."""
        model, batch = self.model(family), self._batch()
        solver = getattr(lntm.guides, guide)(model)
        return self._cost(lambda: solver.posterior(batch))

    def _chains(self, family: str, metric: str, num_steps: int, num: int) -> Callable[[], object]:
        kernel = lntm.inference.DocumentHMC(
            self.model(family),
            num_chains=2,
            mass_matrix=metric,
            num_steps=num_steps,
            step_size=0.01,  # small: every proposal is accepted, and no chain stuck
        )
        batch = self._batch()
        # Count in warm-up: its draws are not copied to the CPU.
        return lambda: kernel.run(batch, num_draws=1, warmup_steps=num, progress=False)

    def leapfrog(self, family: str, metric: str) -> Cost:
        """A leapfrog step of all chains."""
        return self._one_more(lambda steps: self._chains(family, metric, steps, 0), 4)

    def transition(self, family: str, metric: str, num_steps: int = 5) -> Cost:
        """A transition of all chains."""
        return self._one_more(lambda num: self._chains(family, metric, num_steps, num), 2)

    def stochastic_epoch(self, family: str, guide: str) -> Cost:
        """An epoch of the stepwise phase. Each document starts from its last posterior."""

        def work(epochs: int) -> Callable[[], object]:
            model = self.model(family)
            engine = lntm.inference.VariationalEM(
                model,
                getattr(lntm.guides, guide)(model),
                start="model",
                stepwise_epochs=epochs,
                max_iterations=0,
                progress=False,
            )
            return lambda: engine.fit(self._corpus)

        return self._one_more(work, 2)

    def monte_carlo_epoch(self, family: str) -> Cost:
        """An epoch of Monte-Carlo EM, in a single mini-batch."""

        def work(epochs: int) -> Callable[[], object]:
            engine = lntm.inference.MonteCarloEM(
                self.model(family),
                start="model",
                max_epochs=epochs,
                warmup_epochs=1,
                batch_size=self._shape.num_docs,
                progress=False,
            )
            return lambda: engine.fit(self._corpus)

        return self._one_more(work, 2)

    def svi_step(self, family: str, guide: str) -> Cost:
        """A step of SVI."""
        pyro.clear_param_store()
        model, batch = self.model(family), self._batch()
        svi = SVI(
            model,
            getattr(lntm.guides, guide)(model),
            PyroOptim(torch.optim.Adam, {"lr": 0.01}),
            Trace_ELBO(),
        )
        svi.step(batch)
        return self._cost(lambda: svi.step(batch))

    def fit(self, family: str, posterior: str) -> Cost:
        """A whole fit with the default settings."""
        model = self.model(family)
        engine: Any = lntm.inference.MonteCarloEM(model, progress=False)
        if posterior != "MonteCarloEM":
            guide = getattr(lntm.guides, posterior)(model)
            engine = lntm.inference.VariationalEM(model, guide, progress=False)
        return self._cost(lambda: engine.fit(self._corpus))

    def by_name(self) -> dict[str, Callable[[], Cost]]:
        """Functions that count the cost of each part."""
        parts: dict[str, Callable[[], Cost]] = {
            "expected counts": self.expected_counts,
            "expected counts, words' too": partial(self.expected_counts, word_counts=True),
        }
        for pair in CHAINS:
            name = "{}, {} metric".format(*pair)
            parts[f"leapfrog, {name}"] = partial(self.leapfrog, *pair)
            parts[f"transition, {name}"] = partial(self.transition, *pair)
        for pair in PAIRS:
            name = ", ".join(pair)
            parts[f"iteration, {name}"] = partial(self.iteration, *pair)
            parts[f"E-step, {name}"] = partial(self.e_step, *pair)
            parts[f"stochastic epoch, {name}"] = partial(self.stochastic_epoch, *pair)
        for family in ("ctm", "lntm", "gaussian iftm"):
            parts[f"Monte-Carlo EM epoch, {family}"] = partial(self.monte_carlo_epoch, family)
        parts["SVI step, ctm, TaylorGuide"] = partial(self.svi_step, "ctm", "TaylorGuide")
        for posterior in ("TaylorGuide", "MonteCarloEM"):
            parts[f"fit, ctm, {posterior}"] = partial(self.fit, "ctm", posterior)
        return parts
