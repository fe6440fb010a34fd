"""Learned topics and densities of θ on the simplex: *Ahmed & Xing 2007, §4.1, Figure 5*.

Three topics over 32 words, 400 documents of 200 words each. The figure shows the topics and the
density of θ of a true model, and those that EM learned by the Taylor and the Blei–Lafferty
posterior. The paper has one model, and says that Blei–Lafferty's density "puts no mass at areas
where the ground truth puts high probability mass". This study has several models, learned from
random topics and from LDA's topics. ``ahmed_xing_learning`` has errors over more models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import MultivariateNormal

from studies.measure import Cells, Study, check_numbers
from studies.papers.ahmed_xing_learning import (
    NUM_TOPICS,
    START_NAMES,
    STARTS,
    STUCK,
    Learned,
    LearningResult,
    LearningSettings,
    contrasts,
    draw,
)
from studies.papers.ahmed_xing_learning import run as learn_all
from studies.papers.texts import POSTERIORS
from studies.tables import table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Draws from the true density, to measure the mass missed by a learned density.
DRAWS = 20_000
#: Points along a side of the triangle of the pictures.
STEPS = 120
#: Corners of the triangle: θ is all of topic 0, 1 and 2.
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])


@dataclass(frozen=True)
class DensitySettings:
    """Settings of the study.

    Attributes:
        num_words: Words of the vocabulary M.
        num_tokens: Tokens of a document N.
        num_docs: Documents of each model.
        models: Number of random models.
        posteriors: Names of guides, ``taylor`` among them.
        starts: Starts of EM: ``random``, ``annealed`` or ``lda``.
        tolerance: Relative change of the bound at convergence of EM, the paper's.
        max_iterations: Bound on the iterations of EM.
        seed: Seed of everything random.
    """

    num_words: int = 32
    num_tokens: int = 200
    num_docs: int = 400
    models: int = 3
    posteriors: tuple[str, ...] = ("taylor", "blei-lafferty")
    starts: tuple[str, ...] = ("random", "lda")
    tolerance: float = 1e-3
    max_iterations: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is out of range.
        """
        check_numbers(self, {"models": 1}, ["tolerance"])
        _ = self.learning  # checks the rest

    @property
    def learning(self) -> LearningSettings:
        """The same settings for the study of learning."""
        return LearningSettings(
            num_words=self.num_words,
            num_tokens=self.num_tokens,
            num_docs=self.num_docs,
            repetitions=self.models,
            posteriors=self.posteriors,
            starts=self.starts,
            tolerances=(self.tolerance,),
            max_iterations=self.max_iterations,
            seed=self.seed,
        )


def run(settings: DensitySettings, cells: Cells) -> LearningResult:
    """Draw the models and learn them again."""
    return learn_all(settings.learning, cells)


def missed(loc: Tensor, covariance: Tensor, other: Tensor, spread: Tensor) -> float:
    """Share of the mass of Normal(loc, covariance) outside Normal(other, spread).

    It is 1 − ∫ min(p, q), from 0 for equal densities to 1 for disjoint ones. The share is the same
    for the logistic normals, which are the normals after a change of variables.
    """
    truth, learned = MultivariateNormal(loc, covariance), MultivariateNormal(other, spread)
    normal = torch.randn(DRAWS, len(loc), generator=torch.Generator().manual_seed(0)).to(loc)
    drawn = loc + normal @ torch.linalg.cholesky(covariance).T
    ratio = (learned.log_prob(drawn) - truth.log_prob(drawn)).exp()
    return float((1.0 - ratio).clamp_min(0.0).mean())


def tables(result: LearningResult) -> str:
    """Every model's errors by each posterior and start."""
    rows = []
    for repetition, learned in by_model(result).items():
        loc, covariance = contrasts(draw(result.settings, repetition)[0], torch.arange(NUM_TOPICS))
        for row in learned:
            mass = missed(loc, covariance, _tensor(row.loc), _tensor(row.covariance))
            rows.append(
                [
                    f"{repetition}: {POSTERIORS[row.posterior]['label']}{STARTS[row.start]}",
                    f"{row.theta:.3f}",
                    f"{row.topics:.3f}",
                    f"{row.density:.3f}",
                    f"{mass:.3f}",
                    f"{row.likelihood:.2f}",
                    "yes" if row.topics > STUCK else "no",
                ]
            )
    header = [
        "model: learned by",
        "error of θ",
        "divergence of topics",
        "of the density of θ",
        "mass missed",
        "likelihood",
        "stuck",
    ]
    title = (
        "Errors of ahmed_xing_learning, and the share of the true density's mass missed by the "
        f"learned density; stuck: the topics' divergence is above {STUCK}"
    )
    return f"{title}\n\n{table(header, rows)}"


def by_model(result: LearningResult) -> dict[int, list[Learned]]:
    """Learned parameters of each model, in the order of starts and then of posteriors."""
    order = result.settings.starts
    return {
        repetition: sorted(
            (row for row in result.rows if row.repetition == repetition),
            key=lambda row: order.index(row.start),
        )
        for repetition in range(result.settings.repetitions)
    }


def _tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def density(loc: Tensor, covariance: Tensor, theta: Tensor) -> Tensor:
    """Density of θ ``(..., 3)`` with respect to its first two components."""
    ratios = (theta[..., :-1] / theta[..., -1:]).log()
    normal = MultivariateNormal(loc, covariance)
    return (normal.log_prob(ratios) - theta.log().sum(-1)).exp()


def simplex_grid(steps: int) -> NDArray[np.float64]:
    """Points inside the simplex ``(num_points, 3)``, evenly spaced."""
    inside = [
        (i + 1 / 3, j + 1 / 3, steps - i - j - 2 / 3)
        for i in range(steps)
        for j in range(steps - i)
    ]
    return np.array(inside) / steps


def figure(result: LearningResult) -> Figure:
    """The paper's Figure 5, two rows a model: its topics, and below the density of θ.

    The first column is the truth. The colours of a model's row have the scale of the truth.
    """
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    colours = LinearSegmentedColormap.from_list(
        "paper", ("#ffffff", "#92c5de", "#2166ac", "#123c69")
    )
    models = by_model(result)
    columns = 1 + len(models[0])
    plot = Figure(figsize=(2.3 * columns, 2.9 * len(models)), layout="constrained")
    ratios = [ratio for _ in models for ratio in (1.0, 2.4)]
    axes = plot.subplots(2 * len(models), columns, height_ratios=ratios, squeeze=False)
    grid = torch.from_numpy(simplex_grid(STEPS))
    points = grid.numpy() @ CORNERS
    for repetition, learned in models.items():
        truth = draw(result.settings, repetition)[0]
        loc, covariance = contrasts(truth, torch.arange(NUM_TOPICS))
        shown = [("true", truth.topics.probs.detach(), loc, covariance)]
        for row in learned:
            name = f"{POSTERIORS[row.posterior]['label']},\nfrom {START_NAMES[row.start]}"
            shown.append((name, _tensor(row.probs), _tensor(row.loc), _tensor(row.covariance)))
        highest = float(density(loc, covariance, grid).max())
        most = float(shown[0][1].max())
        for column, (name, probs, mean, spread) in enumerate(shown):
            top, triangle = axes[2 * repetition : 2 * repetition + 2, column]
            top.imshow(probs.numpy(), cmap=colours, vmin=0.0, vmax=most, aspect="auto")
            top.set_xticks([])
            top.set_yticks(range(NUM_TOPICS), map(str, range(NUM_TOPICS)), fontsize=8)
            top.tick_params(length=0)
            if column == 0:
                top.set_ylabel("topic", fontsize=8)
            if repetition == 0:
                top.set_title(name, fontsize=10)
            # Densities above the truth's highest value have the darkest colour.
            shape = {"levels": np.linspace(0.0, highest, 13), "cmap": colours, "extend": "max"}
            triangle.tricontourf(*points.T, density(mean, spread, grid).numpy(), **shape)
            triangle.plot(*CORNERS[[0, 1, 2, 0]].T, color="#4d4d4d", linewidth=0.8)
            for k, (x, y) in enumerate(CORNERS):
                across, up = ((-0.06, -0.02), (0.06, -0.02), (0.0, 0.07))[k]
                triangle.text(x + across, y + up, str(k), ha="center", va="center", fontsize=8)
            triangle.set_aspect("equal")
            triangle.set_axis_off()
    return plot


STUDY = Study(
    DensitySettings,
    run,
    tables,
    figure,
    quick={"models": 1, "num_docs": 100, "max_iterations": 30},
)
