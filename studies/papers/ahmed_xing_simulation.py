r"""How well posteriors recover topic proportions of simulated documents: *Ahmed & Xing 2007, §4.1*.

For every setting (number of topics K, words in the vocabulary M, tokens in a document N, spread of
the prior) a model is drawn at random, documents are drawn from it, and each posterior is solved at
the model's true parameters. The paper's Figure 4 varies K, M and N one at a time and shows the L2
error of θ at the posterior mean of eta, the difference of the errors of two posteriors document by
document, and the number of iterations. Run it by

    python -m torch_lntm.experiments.ahmed_xing_simulation \
        --config configs/ahmed_xing_simulation.yaml --out runs/ahmed_xing_simulation

The paper does not print what it drew μ, Σ and the topics from, nor the values of K, M and N.
:class:`SimulationSettings` says what is drawn here; ``docs/experiments.md`` says what came out.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from torch_lntm.corpus import DocumentBatch, synthetic_topics
from torch_lntm.errors import ConfigError, LNTMError
from torch_lntm.experiments._result import Result, command, mean_and_error, table
from torch_lntm.experiments.ahmed_xing_updates import blei_lafferty_as_printed, taylor_as_printed
from torch_lntm.guides import GUIDES, GaussianPosterior, make_guide
from torch_lntm.inference import DocumentHMC
from torch_lntm.models import LogisticNormalPrior, TopicModel, ctm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What every other posterior is compared with, document by document.
BASELINE = "taylor"
AS_PRINTED = {
    "taylor-as-printed": taylor_as_printed,
    "blei-lafferty-as-printed": blei_lafferty_as_printed,
}
#: All that can be compared: the guides of a correlated topic model, and these.
POSTERIORS = (*(name for name, guide in GUIDES.items() if "ctm" in guide.families), *AS_PRINTED)
#: What is varied, and its name in the paper.
ASPECTS = {
    "num_topics": "topics K",
    "num_words": "words in the vocabulary M",
    "num_tokens": "tokens in a document N",
    "prior_variance": "prior variance",
}
#: What a row measures, and what it says.
STATISTICS = {
    "error_mode": "L2 error of θ at the posterior mean of eta",
    "error_mean": "L2 error of the posterior mean of θ",
    "error_converged": "L2 error of θ at the posterior mean of eta, converged documents only",
    "difference": "error_mode less that of the Taylor posterior, mean over documents",
    "iterations": "iterations until convergence, mean over converged documents",
    "unconverged": "share of documents that did not converge",
    "milliseconds": "processor time per document",
    "excess": "error_mode less the error of the sampled posterior mean of θ",
    "distance_mode": "L2 distance of θ at the posterior mean of eta from the sampled mean of θ",
    "distance_mean": "L2 distance of the posterior mean of θ from the sampled mean of θ",
}


@dataclass(frozen=True)
class SimulationSettings:
    """What to simulate.

    In each repetition μ ~ N(0, loc_variance · I), Σ ~ Wishart with 2K degrees of freedom and mean
    prior_variance · I, and each topic ~ symmetric Dirichlet(topic_concentration); documents then
    come from the model itself. Repetitions that differ in N or in the prior's variance alone share
    their draws of the rest.

    Attributes:
        num_topics: K where it is not varied.
        num_words: M where it is not varied.
        num_tokens: N where it is not varied.
        prior_variance: Mean prior variance of a component of eta where it is not varied.
        vary_num_topics: Values of K.
        vary_num_words: Values of M.
        vary_num_tokens: Values of N.
        vary_prior_variance: Values of the prior's variance. Not in the paper, which leaves the
            distributions that it drew from open.
        num_docs: Documents per setting and repetition.
        repetitions: Models drawn per setting.
        seed: Seed of everything.
        posteriors: Names of guides, or ``taylor-as-printed`` and ``blei-lafferty-as-printed`` for
            the paper's two algorithms, update by update.
        loc_variance: Variance of the components of μ.
        topic_concentration: Dirichlet parameter of the topics.
        anchored: Fix the last component of eta at 0, as the paper's §2.2 says, instead of leaving
            all K free. The distributions of θ that models are drawn from stay the same.
        relative_tolerance: Relative change of the objective at which a document has converged.
            Guides have an absolute tolerance in nats; they get this times the average
            ``|log p(w | true θ)|`` of the setting's documents, which is the scale of every bound.
        max_iterations: Bound on the iterations.
        theta_samples: Draws from each posterior for its mean of θ.
        reference_docs: Documents per setting and repetition, the first ones, whose posterior is
            also sampled by Hamiltonian Monte Carlo; 0 for none.
        reference_draws: Transitions of the sampler; step sizes adapt in the first fifth, which is
            dropped.
    """

    num_topics: int = 20
    num_words: int = 200
    num_tokens: int = 200
    prior_variance: float = 4.0
    vary_num_topics: list[int] | tuple[int, ...] = (5, 10, 20, 40)
    vary_num_words: list[int] | tuple[int, ...] = (50, 200, 1000)
    vary_num_tokens: list[int] | tuple[int, ...] = (50, 100, 200, 400, 800)
    vary_prior_variance: list[float] | tuple[float, ...] = (1.0, 4.0, 16.0)
    num_docs: int = 200
    repetitions: int = 4
    seed: int = 0
    posteriors: list[str] | tuple[str, ...] = POSTERIORS
    loc_variance: float = 1.0
    topic_concentration: float = 0.1
    anchored: bool = False
    relative_tolerance: float = 1e-6
    max_iterations: int = 500
    theta_samples: int = 100
    reference_docs: int = 20
    reference_draws: int = 200

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value that cannot be used.
        """
        smallest = {"num_topics": 2, "num_docs": 2, "seed": 0, "reference_docs": 0}
        whole = ("num_words", "num_tokens", "repetitions", "max_iterations", "theta_samples")
        for name in (*smallest, *whole, "reference_draws"):
            least = 5 if name == "reference_draws" else smallest.get(name, 1)
            for value in (getattr(self, name), *getattr(self, f"vary_{name}", ())):
                if not isinstance(value, int) or isinstance(value, bool) or value < least:
                    raise ConfigError(f"{name} is {value!r}; expected a whole number >= {least}")
        positive = ("prior_variance", "topic_concentration", "relative_tolerance")
        for name in (*positive, "loc_variance"):
            for value in (getattr(self, name), *getattr(self, f"vary_{name}", ())):
                number = isinstance(value, int | float) and math.isfinite(value)
                if not number or value < 0 or (value == 0 and name in positive):
                    raise ConfigError(f"{name} is {value!r}; expected a positive number")
        if (
            any(name not in POSTERIORS for name in self.posteriors)
            or BASELINE not in self.posteriors
        ):
            raise ConfigError(
                f"posteriors are {', '.join(self.posteriors) or 'none'}; expected {BASELINE}, "
                f"which the others are compared with, and any of {', '.join(POSTERIORS)}"
            )
        if self.reference_docs > self.num_docs:
            raise ConfigError(
                f"reference_docs is {self.reference_docs}, more than the {self.num_docs} documents"
            )

    def cells(self) -> list[Cell]:
        """The settings to simulate, each once: the base, then those that differ in one way."""
        base = Cell(self.num_topics, self.num_words, self.num_tokens, self.prior_variance)
        varied = [
            replace(base, **{aspect: value})
            for aspect in ASPECTS
            for value in getattr(self, f"vary_{aspect}")
        ]
        return list(dict.fromkeys([base, *varied]))


@dataclass(frozen=True)
class Cell:
    """One setting: K, M, N and the prior's variance."""

    num_topics: int
    num_words: int
    num_tokens: int
    prior_variance: float


@dataclass(frozen=True)
class Row:
    """One posterior in one setting and repetition.

    Attributes:
        cell: The setting.
        repetition: Number of the repetition.
        posterior: Name of the posterior.
        error_mode: See :data:`STATISTICS`, as for all that follow.
        error_mean: See there.
        error_converged: See there; NaN if no document converged.
        difference: See there.
        difference_se: Standard error of ``difference`` over documents.
        iterations: See there; NaN if no document converged.
        unconverged: See there.
        milliseconds: See there; the only numbers that differ from run to run.
        reference_error: L2 error of the sampled posterior mean of θ on the reference documents;
            NaN without a reference, as the following.
        excess: See there, on the reference documents.
        distance_mode: See there.
        distance_mean: See there.
    """

    cell: Cell
    repetition: int
    posterior: str
    error_mode: float
    error_mean: float
    error_converged: float
    difference: float
    difference_se: float
    iterations: float
    unconverged: float
    milliseconds: float
    reference_error: float
    excess: float
    distance_mode: float
    distance_mean: float


@dataclass(frozen=True)
class SimulationResult(Result):
    """What a simulation measured.

    Attributes:
        settings: What was asked for.
        rows: One per setting, repetition and posterior.
        seconds: Wall-clock time.
    """

    settings: SimulationSettings
    rows: list[Row]
    seconds: float

    def average(self, cell: Cell, posterior: str, statistic: str) -> tuple[float, float]:
        """Mean over repetitions and its standard error (NaN for a single repetition).

        Repetitions without the statistic (no document converged, no reference) are left out.

        Args:
            cell: A setting.
            posterior: Name of a posterior.
            statistic: A numeric field of :class:`Row`.

        Raises:
            ConfigError: Nothing was measured for that setting and posterior.
        """
        chosen = [row for row in self.rows if row.cell == cell and row.posterior == posterior]
        if not chosen:
            raise ConfigError(f"nothing was measured for {posterior!r} at {cell}")
        values = [v for row in chosen if not math.isnan(v := float(getattr(row, statistic)))]
        return mean_and_error(values) if values else (math.nan, math.nan)

    def sweep(self, aspect: str) -> list[tuple[float, Cell]]:
        """The values of one aspect in ascending order, each with its setting."""
        base = self.settings.cells()[0]
        values = sorted(getattr(self.settings, f"vary_{aspect}"))
        return [(value, replace(base, **{aspect: value})) for value in values]

    def table(self, statistic: str, digits: int = 4) -> str:
        """One statistic as a Markdown table: a line per setting, a column per posterior.

        Args:
            statistic: A numeric field of :class:`Row`.
            digits: Digits after the point.

        Returns:
            The table; each entry with its standard error over repetitions in parentheses.
        """
        rows = []
        for cell in self.settings.cells():
            where = (cell.num_topics, cell.num_words, cell.num_tokens, f"{cell.prior_variance:g}")
            entries = []
            for name in self.settings.posteriors:
                mean, error = self.average(cell, name, statistic)
                text = "–" if math.isnan(mean) else f"{mean:.{digits}f}"
                entries.append(text if math.isnan(error) else f"{text} ({error:.{digits}f})")
            rows.append([*map(str, where), *entries])
        return table(["K", "M", "N", "variance", *self.settings.posteriors], rows)

    def report(self) -> str:
        """Every statistic's table, as Markdown."""
        digits = {"iterations": 1, "unconverged": 3, "milliseconds": 2}
        return "\n\n".join(
            f"{statistic}: {text}\n\n{self.table(statistic, digits.get(statistic, 4))}"
            for statistic, text in STATISTICS.items()
            if self.settings.reference_docs or not statistic.startswith(("excess", "distance"))
        )

    def figure(self) -> Figure:
        """The paper's Figure 4."""
        from torch_lntm.experiments.ahmed_xing_figure import figure

        return figure(self)


def run(settings: SimulationSettings | None = None, *, progress: bool = True) -> SimulationResult:
    """Run the simulation, in float64 on the CPU.

    Args:
        settings: What to simulate; the defaults if not given.
        progress: Show a progress bar.

    Returns:
        The result; the same for the same settings, but for processor times.
    """
    settings = SimulationSettings() if settings is None else settings
    start = time.perf_counter()
    rows: list[Row] = []
    work = [(cell, r) for cell in settings.cells() for r in range(settings.repetitions)]
    for cell, repetition in tqdm(work, desc="simulations", disable=not progress):
        rows += _simulate(settings, cell, repetition)
    return SimulationResult(settings, rows, time.perf_counter() - start)


def draw_model(settings: SimulationSettings, cell: Cell, repetition: int) -> TopicModel:
    """The true model of a repetition, from the distributions that the settings state.

    Args:
        settings: The settings.
        cell: The setting.
        repetition: Number of the repetition.

    Returns:
        A float64 model.
    """
    k = cell.num_topics
    rng = np.random.default_rng([settings.seed, repetition, k, cell.num_words])
    loc = math.sqrt(settings.loc_variance) * rng.standard_normal(k)
    root = rng.standard_normal((k, 2 * k)) * math.sqrt(cell.prior_variance / (2 * k))
    topics = synthetic_topics(k, cell.num_words, settings.topic_concentration, rng)
    if settings.anchored:
        loc, root = loc[:-1] - loc[-1], root[:-1] - root[-1]
    return ctm(
        k,
        cell.num_words,
        anchored=settings.anchored,
        loc=torch.from_numpy(loc),
        covariance=torch.from_numpy(root @ root.T),
        topics=topics,
        dtype=torch.float64,
    )


def _simulate(settings: SimulationSettings, cell: Cell, repetition: int) -> list[Row]:
    """All posteriors of one setting and repetition."""
    model = draw_model(settings, cell, repetition)
    key = np.random.SeedSequence([settings.seed, repetition, cell.num_topics])
    seed = int(key.generate_state(1)[0])
    corpus, latents = model.generate([cell.num_tokens] * settings.num_docs, seed=seed)
    batch = corpus.batch(dtype=torch.float64)
    theta = model.theta(latents["eta"]).detach()
    scale = float(model.bind(batch).log_joint(latents)[1].detach().abs().mean())

    solved = {}
    for name in settings.posteriors:
        began = time.process_time()
        posterior = _solve(settings, name, model, batch, scale)
        solved[name] = posterior, 1e3 * (time.process_time() - began) / settings.num_docs

    first = slice(settings.reference_docs)
    reference, reference_error = None, torch.full((1,), math.nan)
    if settings.reference_docs:
        some = batch.select(torch.arange(settings.reference_docs))
        reference = sampled_mean(model, some, settings.reference_draws, seed)
        reference_error = _distance(reference, theta[first])

    baseline = _distance(solved[BASELINE][0].theta_mode(), theta)
    rows = []
    for name, (posterior, milliseconds) in solved.items():
        mode = posterior.theta_mode()
        mean = posterior.theta_mean(settings.theta_samples, seed)
        error, done = _distance(mode, theta), posterior.converged
        difference = error - baseline
        known = reference is not None
        rows.append(
            Row(
                cell,
                repetition,
                name,
                error_mode=float(error.mean()),
                error_mean=float(_distance(mean, theta).mean()),
                error_converged=float(error[done].mean()),
                difference=float(difference.mean()),
                difference_se=float(difference.std()) / math.sqrt(settings.num_docs),
                iterations=float(posterior.iterations[done].double().mean()),
                unconverged=float((~done).double().mean()),
                milliseconds=milliseconds,
                reference_error=float(reference_error.mean()),
                excess=float((error[first] - reference_error).mean()) if known else math.nan,
                distance_mode=_mean_distance(mode[first], reference),
                distance_mean=_mean_distance(mean[first], reference),
            )
        )
    return rows


def _solve(
    settings: SimulationSettings, name: str, model: TopicModel, batch: DocumentBatch, scale: float
) -> GaussianPosterior:
    """The posterior of a name; ``scale`` is the nats that the relative tolerance is relative to."""
    if name in AS_PRINTED:
        assert isinstance(model.prior, LogisticNormalPrior)
        return AS_PRINTED[name](
            batch,
            model.topics.probs.detach(),
            model.prior.solver_prior(),
            relative_tolerance=settings.relative_tolerance,
            max_iterations=settings.max_iterations,
        )
    tolerance = settings.relative_tolerance * scale
    guide = make_guide(name, model, tolerance=tolerance, max_iterations=settings.max_iterations)
    posterior = guide.posterior(batch)
    assert isinstance(posterior, GaussianPosterior)
    return posterior


def sampled_mean(model: TopicModel, batch: DocumentBatch, draws: int, seed: int) -> Tensor:
    """The exact posterior means of θ ``(num_docs, num_topics)``, up to Monte Carlo error."""
    sampler = DocumentHMC(model, seed=seed)
    warmup = draws // 5
    return sampler.run(batch, draws - warmup, warmup, progress=False).mean()


def _distance(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.vector_norm(a - b, dim=-1)


def _mean_distance(theta: Tensor, reference: Tensor | None) -> float:
    return math.nan if reference is None else float(_distance(theta, reference).mean())


def main(argv: Sequence[str] | None = None) -> SimulationResult:
    """Run from the command line; writes the result and prints its tables.

    Args:
        argv: Arguments instead of the process's own.

    Returns:
        The result.

    Raises:
        ConfigError: Settings that cannot be used, or an output folder that holds a result.
    """
    return command("ahmed_xing_simulation", SimulationSettings, run, argv)


if __name__ == "__main__":
    try:
        main()
    except LNTMError as error:
        sys.exit(f"error: {error}")
