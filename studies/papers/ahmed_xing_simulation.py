"""Recovery of topic proportions from simulated documents: *Ahmed & Xing 2007, §4.1*.

For every setting (number of topics K, words in the vocabulary M, tokens in a document N, spread of
the prior) a model is drawn at random, and documents from the model. Each posterior is solved at the
true parameters. The paper's Figure 4 varies K, M and N one at a time. It shows the L2
error of θ at the posterior mean of eta, the difference of the errors of two posteriors document by
document, and the number of iterations. The study takes three minutes on one core.

The paper omits the distributions of μ, Σ and the topics, and the values of K, M and N.
:class:`SimulationSettings` has the choices of this study, whose results are in
``studies/pages/experiments.md``.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from studies.measure import Cells, Study
from studies.papers.ahmed_xing_models import ASPECTS, BASELINE, Cell, SimulationSettings, draw_model
from studies.papers.ahmed_xing_updates import blei_lafferty_as_printed, taylor_as_printed
from studies.tables import entry, mean_and_error, table
from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError
from torch_lntm.guides import make_guide
from torch_lntm.inference import DocumentHMC
from torch_lntm.latents import NormalSpace
from torch_lntm.models import TopicModel
from torch_lntm.posteriors import NormalPosterior

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AS_PRINTED = {
    "taylor-as-printed": taylor_as_printed,
    "blei-lafferty-as-printed": blei_lafferty_as_printed,
}
#: The numbers of a row, with descriptions.
STATISTICS = {
    "error_mode": "L2 error of θ at the posterior mean of eta",
    "error_mean": "L2 error of the posterior mean of θ",
    "error_converged": "L2 error of θ at the posterior mean of eta, converged documents only",
    "difference": "error_mode less the Taylor posterior's, mean over documents",
    "iterations": "iterations until convergence, mean over converged documents",
    "unconverged": "share of documents without convergence",
    "milliseconds": "processor time per document",
    "excess": "error_mode less the error of the sampled posterior mean of θ",
    "distance_mode": "L2 distance of θ at the posterior mean of eta from the sampled mean of θ",
    "distance_mean": "L2 distance of the posterior mean of θ from the sampled mean of θ",
}


@dataclass(frozen=True)
class Row:
    """One posterior in one setting and repetition.

    The numbers are those of :data:`STATISTICS`. Numbers over converged documents are NaN if no
    document converged. Numbers that need the sampled reference are NaN without it. All numbers but
    ``milliseconds`` are equal from run to run.

    Attributes:
        cell: The setting.
        repetition: Number of the repetition.
        posterior: Name of the posterior.
        difference_se: Standard error of ``difference`` over documents.
        reference_error: L2 error of the sampled posterior mean of θ on the reference documents.
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
class SimulationResult:
    """The result of the study.

    Attributes:
        settings: The settings.
        rows: One for each setting, repetition and posterior.
    """

    settings: SimulationSettings
    rows: list[Row]

    def average(self, cell: Cell, posterior: str, statistic: str) -> tuple[float, float]:
        """Mean over repetitions and its standard error (NaN for a single repetition).

        Repetitions without the statistic (no converged document, no reference) are left out.

        Args:
            cell: A setting.
            posterior: Name of a posterior.
            statistic: A numeric field of :class:`Row`.

        Raises:
            ConfigError: The setting and posterior were not measured.
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
        """One statistic as a Markdown table: a line for each setting, a column for each posterior.

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
                entries.append(entry(*self.average(cell, name, statistic), digits))
            rows.append([*map(str, where), *entries])
        return table(["K", "M", "N", "variance", *self.settings.posteriors], rows)

    def tables(self) -> str:
        """Every statistic's table, as Markdown."""
        digits = {"iterations": 1, "unconverged": 3, "milliseconds": 2}
        return "\n\n".join(
            f"{statistic}: {text}\n\n{self.table(statistic, digits.get(statistic, 4))}"
            for statistic, text in STATISTICS.items()
            if self.settings.reference_docs or not statistic.startswith(("excess", "distance"))
        )


def run(settings: SimulationSettings, cells: Cells) -> SimulationResult:
    """Run the simulation, in float64 on the CPU."""

    def simulate(key: tuple[int, int, int, float, int]) -> list[dict[str, Any]]:
        k, m, n, variance, repetition = key
        return [asdict(row) for row in _simulate(settings, Cell(k, m, n, variance), repetition)]

    keys = [
        (cell.num_topics, cell.num_words, cell.num_tokens, cell.prior_variance, repetition)
        for cell in settings.cells()
        for repetition in range(settings.repetitions)
    ]
    found = [row for rows in cells.each(keys, simulate) for row in rows]
    rows = [Row(**{**row, "cell": Cell(**row["cell"])}) for row in found]
    return SimulationResult(settings, rows)


def _simulate(settings: SimulationSettings, cell: Cell, repetition: int) -> list[Row]:
    """All posteriors of one setting and repetition."""
    model = draw_model(settings, cell, repetition)
    key = np.random.SeedSequence([settings.seed, repetition, cell.num_topics])
    seed = int(key.generate_state(1)[0])
    corpus, latents = model.generate([cell.num_tokens] * settings.num_docs, seed=seed)
    batch = corpus.batch(dtype=torch.float64)
    theta = model.theta(latents["eta"]).detach()
    target = model.bind(batch)
    scale = float(target.log_joint(target.space.locate(latents))[1].abs().mean())

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
        mean = posterior.theta_mean(settings.theta_samples, seed=seed)
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
) -> NormalPosterior:
    """The posterior of a name; ``scale`` is the reference of the relative tolerance, in nats."""
    if name in AS_PRINTED:
        space = model.prior.space(batch)
        assert isinstance(space, NormalSpace)
        return AS_PRINTED[name](
            batch,
            model.topics.probs.detach(),
            space,
            relative_tolerance=settings.relative_tolerance,
            max_iterations=settings.max_iterations,
        )
    tolerance = settings.relative_tolerance * scale
    guide = make_guide(name, model, tolerance=tolerance, max_iterations=settings.max_iterations)
    posterior = guide.posterior(batch)
    assert isinstance(posterior, NormalPosterior)
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


def figure(result: SimulationResult) -> Figure:
    """The paper's Figure 4: a column for each aspect; rows of errors, differences and iterations.

    Solid lines are the Taylor posterior's, dotted lines Blei and Lafferty's, as in the paper. Bars
    are one standard error over repetitions.
    """
    from matplotlib.figure import Figure

    # Taylor on top; Laplace has the same mode and shows as a ring around it.
    styles: dict[str, dict[str, Any]] = {
        "taylor": {"color": "#2166ac", "linestyle": "-", "marker": "o", "zorder": 4},
        "laplace": {"color": "#5aae61", "linestyle": "none", "marker": "o", "markersize": 8},
        "blei-lafferty": {"color": "#c25b00", "linestyle": ":", "marker": "^", "zorder": 3},
        "khan-bouchard": {"color": "#762a83", "linestyle": "-.", "marker": "D"},
        "taylor-as-printed": {"color": "#92c5de", "linestyle": "-", "marker": "s"},
        "blei-lafferty-as-printed": {"color": "#f9b26b", "linestyle": ":", "marker": "v"},
    }
    styles["laplace"]["markerfacecolor"] = "none"
    panels = {
        "error_converged": "L2 error of θ\n(converged documents)",
        "difference": "error less Taylor's\n(all documents)",
        "iterations": "iterations",
    }
    aspects = [name for name in ASPECTS if len(result.sweep(name)) > 1] or list(ASPECTS)[:1]
    plot = Figure(figsize=(3.1 * len(aspects) + 0.8, 7.6), layout="constrained")
    axes = plot.subplots(len(panels), len(aspects), squeeze=False, sharex="col", sharey="row")
    for column, aspect in enumerate(aspects):
        values = [value for value, _ in result.sweep(aspect)]
        for row, (statistic, label) in enumerate(panels.items()):
            ax = axes[row, column]
            for name in result.settings.posteriors:
                # An unconverged printed iteration of Taylor would set the scale by its error.
                if statistic == "difference" and name in (BASELINE, "taylor-as-printed"):
                    continue
                cells = [cell for _, cell in result.sweep(aspect)]
                means, errors = zip(
                    *(result.average(cell, name, statistic) for cell in cells), strict=True
                )
                bars = None if any(map(math.isnan, errors)) else errors
                style = {"markersize": 4, "linewidth": 1.4, **styles[name]}
                ax.errorbar(values, means, bars, label=name, **style)
            if statistic == "difference":
                ax.axhline(0.0, color="#4d4d4d", lw=0.8)
            if statistic == "iterations":
                ax.set_yscale("log")
                ax.set_yticks(ticks := [5, 10, 20, 50, 100, 200, 500], [str(t) for t in ticks])
                ax.set_xlabel(ASPECTS[aspect])
            if column == 0:
                ax.set_ylabel(label)
            if max(values) >= 8 * min(values):
                ax.set_xscale("log")
            ax.set_xticks(values, [f"{value:g}" for value in values])
            ax.minorticks_off()
            ax.grid(alpha=0.25)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    plot.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return plot


STUDY = Study(
    SimulationSettings,
    run,
    SimulationResult.tables,
    figure,
    quick={
        "vary_num_topics": (10, 20),
        "vary_num_words": (),
        "vary_num_tokens": (50, 200),
        "vary_prior_variance": (),
        "num_docs": 50,
        "repetitions": 2,
    },
)
