"""Settings of the simulation of *Ahmed & Xing 2007, §4.1*, and its random models."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from studies.measure import check_numbers
from torch_lntm.corpus import synthetic_topics
from torch_lntm.errors import ConfigError
from torch_lntm.models import TopicModel, ctm

#: The reference of all comparisons, document by document.
BASELINE = "taylor"
#: All compared posteriors: guides of a correlated topic model, and the paper's own updates.
POSTERIORS = (
    "taylor",
    "laplace",
    "blei-lafferty",
    "khan-bouchard",
    "taylor-as-printed",
    "blei-lafferty-as-printed",
)
#: The varied settings, and their names in the paper.
ASPECTS = {
    "num_topics": "topics K",
    "num_words": "words in the vocabulary M",
    "num_tokens": "tokens in a document N",
    "prior_variance": "prior variance",
}


@dataclass(frozen=True)
class SimulationSettings:
    """Settings of the study.

    In each repetition μ ~ N(0, loc_variance · I), Σ ~ Wishart with 2K degrees of freedom and mean
    prior_variance · I, and each topic ~ symmetric Dirichlet(topic_concentration); documents then
    come from the model itself. Repetitions that differ in N or in the prior's variance alone share
    the rest of their draws.

    Attributes:
        num_topics: Base value of K.
        num_words: Base value of M.
        num_tokens: Base value of N.
        prior_variance: Base value of the mean prior variance of a component of eta.
        vary_num_topics: Values of K.
        vary_num_words: Values of M.
        vary_num_tokens: Values of N.
        vary_prior_variance: Values of the prior's variance. The paper leaves its distributions
            open.
        num_docs: Documents per setting and repetition.
        repetitions: Random models per setting.
        seed: Seed of all draws.
        posteriors: Names of guides, or ``taylor-as-printed`` and ``blei-lafferty-as-printed`` for
            the paper's two algorithms, update by update.
        loc_variance: Variance of the components of μ.
        topic_concentration: Dirichlet parameter of the topics.
        anchored: Fix the last component of eta at 0, as in the paper's §2.2. Otherwise all K are
            free. The distributions of θ stay the same.
        relative_tolerance: Relative change of the objective at convergence of a document. Guides
            have an absolute tolerance in nats: they get the relative tolerance times the average
            ``|log p(w | true θ)|`` of the setting's documents, the scale of every bound.
        max_iterations: Bound on the iterations.
        theta_samples: Draws from each posterior for its mean of θ.
        reference_docs: Documents per setting and repetition that Hamiltonian Monte Carlo samples
            too, from the first on; 0 for none.
        reference_draws: Transitions of the sampler. Step sizes adapt in the first fifth, which is
            dropped.
    """

    num_topics: int = 20
    num_words: int = 200
    num_tokens: int = 200
    prior_variance: float = 4.0
    vary_num_topics: tuple[int, ...] = (5, 10, 20, 40)
    vary_num_words: tuple[int, ...] = (50, 200, 1000)
    vary_num_tokens: tuple[int, ...] = (50, 100, 200, 400, 800)
    vary_prior_variance: tuple[float, ...] = (1.0, 4.0, 16.0)
    num_docs: int = 200
    repetitions: int = 4
    seed: int = 0
    posteriors: tuple[str, ...] = POSTERIORS
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
            ConfigError: A value is out of range.
        """
        least = {"num_topics": 2, "num_words": 1, "num_tokens": 1}
        varied = {f"vary_{name}": value for name, value in least.items()}
        others = {"num_docs": 2, "seed": 0, "reference_docs": 0, "reference_draws": 5}
        ones = dict.fromkeys(("repetitions", "max_iterations", "theta_samples"), 1)
        check_numbers(
            self,
            least | varied | others | ones,
            ("prior_variance", "vary_prior_variance", "topic_concentration", "relative_tolerance"),
            ("loc_variance",),
        )
        if BASELINE not in self.posteriors or not set(self.posteriors) <= set(POSTERIORS):
            raise ConfigError(
                f"posteriors are {', '.join(self.posteriors) or 'none'}; expected {BASELINE}, "
                f"the reference of all comparisons, and any of {', '.join(POSTERIORS)}"
            )
        if self.reference_docs > self.num_docs:
            raise ConfigError(
                f"reference_docs is {self.reference_docs}, more than the {self.num_docs} documents"
            )

    def cells(self) -> list[Cell]:
        """The settings to simulate, each once: the base, then each single change of the base."""
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


def draw_model(settings: SimulationSettings, cell: Cell, repetition: int) -> TopicModel:
    """The true model of a repetition, from the distributions in the settings.

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
    topics = synthetic_topics(k, cell.num_words, settings.topic_concentration, seed=rng)
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
