"""Parameters learned from simulated documents: *Ahmed & Xing 2007, §4.1, Figure 6*.

Three topics over 32 words, 400 documents of 200 words each. Models are drawn at random, and EM
learns topics, μ and Σ of each from its documents, by the Taylor, the Blei–Lafferty and further
posteriors. EM starts from random topics, with and without the paper's deterministic annealing, and
from this package's own start, topics by LDA. The paper has one model. It reports an error of θ of
13 % and 19 %, and a divergence of topics of 0.02 and 0.09, for Taylor and Blei–Lafferty. The study
``ahmed_xing_fig5`` has its picture of the learned parameters, Figure 5.

The paper stops if the relative change of the bound is below 10⁻³. A second, tighter tolerance
separates the effect of the posterior from the effect of an early stop.
"""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from studies.measure import Cells, Study, check_choices, check_numbers
from studies.papers.ahmed_xing_models import Cell, SimulationSettings, draw_model
from studies.papers.texts import POSTERIORS
from studies.tables import table, with_error
from tests.oracles.grids import Quadrature
from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, UnreliableEstimateWarning
from torch_lntm.evaluation import log_likelihood
from torch_lntm.guides import Guide, make_guide
from torch_lntm.inference import VariationalEM
from torch_lntm.models import TopicModel, ctm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Starts of EM, with descriptions: random topics, random topics with annealing, or LDA's topics.
STARTS = {"random": "", "annealed": ", annealed", "lda": ", from LDA"}
#: The same for figures.
START_NAMES = {"random": "random", "annealed": "random,\nannealed", "lda": "LDA"}
#: The reference of all comparisons.
BASELINE = "taylor"
#: The errors, with descriptions.
ERRORS = {
    "theta": "½ Σ_k |θ_k − true θ_k|, mean over documents",
    "topics": "Kullback–Leibler divergence of a learned topic from the truth, mean over topics",
    "density": "Kullback–Leibler divergence of the learned density of θ from the truth, nats",
    "likelihood": "log p(w) at the learned less log p(w) at the true parameters, nats a document",
}
#: EM is stuck above this divergence of topics: two topics have become alike.
STUCK = 0.5
#: Documents with a computed exact likelihood.
LIKELIHOOD_DOCS = 100
#: Topics K.
NUM_TOPICS = 3


@dataclass(frozen=True)
class LearningSettings:
    """Settings of the study.

    Attributes:
        num_words: Words of the vocabulary M.
        num_tokens: Tokens of a document N.
        num_docs: Documents of each model.
        prior_variance: Mean prior variance of a component of eta.
        topic_concentration: Dirichlet parameter of the true topics.
        repetitions: Number of random models.
        posteriors: Names of guides.
        starts: Starts of EM: ``random``, ``annealed`` or ``lda``.
        tolerances: Relative changes of the bound at convergence of EM, the paper's first.
        max_iterations: Bound on the iterations of EM.
        seed: Seed of everything random.
    """

    num_words: int = 32
    num_tokens: int = 200
    num_docs: int = 400
    prior_variance: float = 1.0
    topic_concentration: float = 0.1
    repetitions: int = 6
    posteriors: tuple[str, ...] = ("taylor", "laplace", "blei-lafferty", "khan-bouchard")
    starts: tuple[str, ...] = ("random", "annealed", "lda")
    tolerances: tuple[float, ...] = (1e-3, 1e-5)
    max_iterations: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is out of range.
        """
        ones = dict.fromkeys(("num_words", "num_tokens", "repetitions", "max_iterations"), 1)
        check_numbers(
            self,
            {"num_docs": 2, "seed": 0, **ones},
            ["prior_variance", "topic_concentration", "tolerances"],
        )
        check_choices(self, "posteriors", [name for name in POSTERIORS if name != "lda"])
        check_choices(self, "starts", STARTS)
        if BASELINE not in self.posteriors or not self.tolerances:
            raise ConfigError(
                f"posteriors are {', '.join(self.posteriors)} and tolerances {self.tolerances}; "
                f"expected {BASELINE} among them, and at least one tolerance"
            )


@dataclass(frozen=True)
class Learned:
    """Parameters learned by one EM for one model, with their errors.

    Attributes:
        repetition: Number of the model; its draws depend on the number alone.
        posterior: Name of the guide.
        start: Start of EM.
        tolerance: Tolerance of EM.
        theta: See :data:`ERRORS`.
        topics: See :data:`ERRORS`.
        density: See :data:`ERRORS`.
        likelihood: See :data:`ERRORS`.
        iterations: Iterations of EM, with those of annealing.
        probs: The learned topics, in the order of the true topics.
        loc: Mean of the two log ratios of θ to its last component.
        covariance: Covariance of the log ratios.
    """

    repetition: int
    posterior: str
    start: str
    tolerance: float
    theta: float
    topics: float
    density: float
    likelihood: float
    iterations: int
    probs: list[list[float]]
    loc: list[float]
    covariance: list[list[float]]

    @property
    def method(self) -> tuple[str, str, float]:
        """The method: posterior, start and tolerance."""
        return self.posterior, self.start, self.tolerance


@dataclass(frozen=True)
class LearningResult:
    """The result of the study.

    Attributes:
        settings: The settings.
        rows: One for each model and method.
    """

    settings: LearningSettings
    rows: list[Learned]

    def errors(self, method: tuple[str, str, float], error: str) -> list[float]:
        """An error of :data:`ERRORS` of every model.

        Raises:
            ConfigError: The error was not measured.
        """
        found = [float(getattr(row, error)) for row in self.rows if row.method == method]
        if not found:
            raise ConfigError(f"nothing was measured for {method}")
        return found

    @property
    def methods(self) -> list[tuple[str, str, float]]:
        """The methods, grouped by tolerance."""
        return sorted(dict.fromkeys(row.method for row in self.rows), key=lambda m: -m[2])

    def stuck(self, method: tuple[str, str, float]) -> list[bool]:
        """Whether EM ended with two topics alike, for every model."""
        return [error > STUCK for error in self.errors(method, "topics")]

    def tables(self) -> str:
        """Every error by method, and its difference to the baseline's, model by model."""
        rows, gaps = [], []
        for method in self.methods:
            posterior, start, tolerance = method
            name = f"{POSTERIORS[posterior]['label']}{STARTS[start]}, {tolerance:g}"
            stuck = self.stuck(method)
            middle = [f"{median(self.errors(method, error)):.3f}" for error in ERRORS]
            iterations = f"{median(self.errors(method, 'iterations')):.0f}"
            rows.append([name, *middle, f"{sum(stuck)} of {len(stuck)}", iterations])
            baseline = (BASELINE, start, tolerance)
            if method == baseline:
                continue
            both = [not (a or b) for a, b in zip(stuck, self.stuck(baseline), strict=True)]
            differences = []
            for error in ERRORS:
                pairs = zip(
                    self.errors(method, error), self.errors(baseline, error), both, strict=True
                )
                differences.append(with_error([a - b for a, b, fine in pairs if fine], 3))
            gaps.append([name, *differences, str(sum(both))])
        header = ["learned by, until", *ERRORS]
        meaning = "\n".join(f"* {name}: {text}" for name, text in ERRORS.items())
        return "\n\n".join(
            [
                f"Medians over models; stuck: the topics' divergence is above {STUCK}",
                meaning,
                table([*header, "stuck", "iterations"], rows),
                "Less Taylor's from the same start, mean over the models where neither is stuck",
                table([*header, "models"], gaps),
            ]
        )


def run(settings: LearningSettings, cells: Cells) -> LearningResult:
    """Draw the models and learn their parameters, in float64."""

    def measure(key: tuple[int, str, str, float]) -> Learned:
        return learn(settings, *key)

    keys = [
        (repetition, posterior, start, tolerance)
        for repetition in range(settings.repetitions)
        for posterior in settings.posteriors
        for start in settings.starts
        for tolerance in settings.tolerances
    ]
    return LearningResult(settings, [Learned(**row) for row in cells.each(keys, measure)])


def draw(settings: LearningSettings, repetition: int) -> tuple[TopicModel, Corpus, Tensor]:
    """A true model, its documents, and their proportions ``(num_docs, 3)``."""
    simulation = SimulationSettings(
        topic_concentration=settings.topic_concentration, seed=settings.seed
    )
    cell = Cell(NUM_TOPICS, settings.num_words, settings.num_tokens, settings.prior_variance)
    truth = draw_model(simulation, cell, repetition)
    lengths = [settings.num_tokens] * settings.num_docs
    corpus, latents = truth.generate(lengths, seed=settings.seed + repetition)
    return truth, corpus, truth.theta(latents["eta"]).detach()


def learn(
    settings: LearningSettings, repetition: int, posterior: str, start: str, tolerance: float
) -> Learned:
    """Learn a model's parameters from its documents."""
    truth, corpus, theta = draw(settings, repetition)
    # The paper learns parameters by maximum likelihood.
    model = ctm(
        NUM_TOPICS,
        corpus.num_words,
        topic_smoothing=0.0,
        pseudo_documents=0.0,
        dtype=torch.float64,
        seed=settings.seed + repetition,
    )
    guide: Guide[Any] = make_guide(posterior, model)
    engine = VariationalEM(
        model,
        guide,
        start="lda" if start == "lda" else "model",
        annealing="ahmed-xing" if start == "annealed" else None,
        tolerance=0.0,
        max_iterations=settings.max_iterations,
        seed=settings.seed + repetition,
        progress=False,
    )
    history = engine.fit(corpus, callback=RelativeChange(tolerance)).history
    order = match(model.topics.probs.detach(), truth.topics.probs.detach())
    probs = model.topics.probs.detach()[order]
    batch = corpus.batch(dtype=torch.float64)
    estimated = guide.posterior(batch, covariances=False).theta_mode()[:, order]
    loc, covariance = contrasts(model, order)
    true_loc, true_covariance = contrasts(truth, torch.arange(NUM_TOPICS))
    true_probs = truth.topics.probs.detach()
    ratios = true_probs.log() - probs.clamp_min(1e-12).log()
    return Learned(
        repetition,
        posterior,
        start,
        tolerance,
        theta=float((estimated - theta).abs().sum(1).mean()) / 2,
        topics=float((true_probs * ratios).sum(1).mean()),
        density=normal_divergence(true_loc, true_covariance, loc, covariance),
        likelihood=evidence(model, corpus) - evidence(truth, corpus),
        iterations=sum(record["phase"] in ("em", "annealing") for record in history),
        probs=[[round(p, 5) for p in row] for row in probs.tolist()],
        loc=loc.tolist(),
        covariance=covariance.tolist(),
    )


@dataclass
class RelativeChange:
    """A callback that ends EM at a small relative change of the bound, the paper's rule.

    Attributes:
        tolerance: The relative change.
        before: Bound of the last iteration.
    """

    tolerance: float
    before: float = math.inf

    def __call__(self, record: dict[str, Any]) -> bool:
        """Whether the change is small. Phases before EM count as no change."""
        if record["phase"] != "em":
            return False
        before, self.before = self.before, record["objective"]
        return abs(self.before - before) <= self.tolerance * abs(self.before)


def evidence(model: TopicModel, corpus: Corpus) -> float:
    """Exact log p(w), mean over the first documents, nats."""
    some = corpus[:LIKELIHOOD_DOCS]
    with warnings.catch_warnings():
        # A stuck EM has a nearly singular covariance; quadrature then needs the exact form.
        warnings.simplefilter("ignore", UnreliableEstimateWarning)
        return log_likelihood(model, some, Quadrature()).total / some.num_docs


def match(probs: Tensor, truth: Tensor) -> Tensor:
    """The order of learned topics closest to the true topics, in total variation."""
    orders = [torch.tensor(order) for order in itertools.permutations(range(len(truth)))]
    return min(orders, key=lambda order: float((probs[order] - truth).abs().sum()))


def contrasts(model: TopicModel, order: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the log ratios of θ, its topics in some order, to the last topic."""
    prior: Any = model.prior
    contrast = torch.eye(NUM_TOPICS, dtype=torch.float64)[:-1]
    contrast[:, -1] = -1.0
    loc, covariance = prior.loc.detach()[order], prior.covariance.detach()[order][:, order]
    return contrast @ loc, contrast @ covariance @ contrast.T


def normal_divergence(loc: Tensor, covariance: Tensor, other: Tensor, spread: Tensor) -> float:
    """KL divergence of Normal(other, spread) from Normal(loc, covariance), nats.

    The divergence of the logistic normals is equal: they are the normals after a change of
    variables.
    """
    from torch.distributions import MultivariateNormal, kl_divergence

    return float(
        kl_divergence(MultivariateNormal(loc, covariance), MultivariateNormal(other, spread))
    )


def figure(result: LearningResult) -> Figure:
    """Errors of every model by start and posterior, until the paper's tolerance; bars are medians.

    Divergences are on a logarithmic axis.
    """
    from matplotlib.figure import Figure

    settings = result.settings
    plot = Figure(figsize=(11.0, 3.9), layout="constrained")
    titles = {
        "theta": "error of θ",
        "topics": "divergence of topics, nats",
        "density": "divergence of the density of θ, nats",
    }
    for ax, (error, title) in zip(plot.subplots(1, len(titles)), titles.items(), strict=True):
        for number, posterior in enumerate(settings.posteriors):
            style = POSTERIORS[posterior]
            shift = 0.19 * (number - (len(settings.posteriors) - 1) / 2)
            for place, start in enumerate(settings.starts):
                values = result.errors((posterior, start, settings.tolerances[0]), error)
                ax.plot(
                    [place + shift] * len(values),
                    values,
                    color=style["color"],
                    marker=style["marker"],
                    markersize=5,
                    alpha=0.75,
                    linestyle="none",
                    label=style["label"] if place == 0 else None,
                )
                middle = median(values)
                ends = (place + shift - 0.08, place + shift + 0.08)
                ax.plot(ends, (middle, middle), color=style["color"], linewidth=2.2)
        ax.set_xticks(
            range(len(settings.starts)), [f"from {START_NAMES[name]}" for name in settings.starts]
        )
        ax.set_title(title, fontsize=10)
        ax.grid(axis="y", alpha=0.25)
        if error == "theta":
            ax.set_ylim(0)
        else:
            ax.set_yscale("log")
    handles, labels = plot.axes[0].get_legend_handles_labels()
    plot.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return plot


STUDY = Study(
    LearningSettings,
    run,
    LearningResult.tables,
    figure,
    quick={"repetitions": 2, "num_docs": 100, "max_iterations": 30, "tolerances": (1e-3,)},
)
