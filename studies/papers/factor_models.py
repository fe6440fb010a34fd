"""Settings, true model and models to fit for *Putthividhya et al. 2009, §3.2.1*."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from studies.measure import check_choices, check_numbers
from torch_lntm.corpus import Corpus, synthetic_topics
from torch_lntm.errors import ConfigError
from torch_lntm.models import TopicModel, ctm, iftm, lda


class Candidate(NamedTuple):
    """A model to fit.

    Attributes:
        label: Name in tables and in the figure.
        make: Constructor.
        posterior: Name of the guide.
        options: Options of the constructor.
    """

    label: str
    make: Callable[..., TopicModel]
    posterior: str
    options: dict[str, Any]


#: The models by name. The paper's CTM has no prior on its covariance, and Blei & Lafferty's
#: posterior. This package's default has an inverse-Wishart prior, and Taylor's posterior.
CANDIDATES = {
    "ctm": Candidate("CTM", ctm, "taylor", {}),
    "iftm": Candidate("IFTM-G", iftm, "factor", {}),
    "lda": Candidate("LDA", lda, "vb", {}),
    "ctm-ml": Candidate("CTM, no prior (BL)", ctm, "blei-lafferty", {"pseudo_documents": 0.0}),
    "ctm-taylor-ml": Candidate("CTM, no prior (Taylor)", ctm, "taylor", {"pseudo_documents": 0.0}),
}


@dataclass(frozen=True)
class FactorSettings:
    """Settings of the study.

    The true model has μ ~ N(0, loc_variance · I) and Σ = Q diag(ℓ) Qᵀ. Q is uniform over rotations.
    The i-th largest eigenvalue is ℓ_i ∝ i^−covariance_decay with mean prior_variance. Each topic ~
    symmetric Dirichlet(topic_concentration). Σ is full, and a small number of sources holds only a
    part of it. Documents have Poisson(mean_length) tokens.

    Attributes:
        true_topics: Topics of the true model.
        num_words: Words in the vocabulary.
        num_docs: Documents.
        mean_length: Mean number of tokens.
        folds: Number of parts of the documents; each part is the test set in turn.
        num_topics: Topics of the fitted models.
        completion_topics: The number of topics with varied observed shares.
        observed_shares: Observed shares of each test document's words.
        models: Names of models to fit; see :data:`CANDIDATES`. IFTM has a quarter as many sources
            as topics.
        loc_variance: Variance of the components of μ.
        prior_variance: Mean variance of a component of eta.
        covariance_decay: Exponent of the eigenvalues' decay; 0 makes topics independent.
        topic_concentration: Dirichlet parameter of the topics.
        tolerance: Relative change of the objective at convergence of EM.
        max_iterations: Bound on the EM iterations; absent from the paper.
        num_samples: Draws per document of the importance sampling.
        seed: Seed of everything random.
    """

    true_topics: int = 300
    num_words: int = 625
    num_docs: int = 1000
    mean_length: float = 80.0
    folds: int = 5
    num_topics: tuple[int, ...] = (10, 25, 50, 100, 200)
    completion_topics: int = 100
    observed_shares: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    models: tuple[str, ...] = ("ctm", "iftm", "lda", "ctm-ml")
    loc_variance: float = 1.0
    prior_variance: float = 4.0
    covariance_decay: float = 1.0
    topic_concentration: float = 0.05
    tolerance: float = 1e-5
    max_iterations: int = 60
    num_samples: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is out of range.
        """
        check_numbers(
            self,
            {"true_topics": 2, "num_words": 1, "num_docs": 2, "folds": 2, "num_topics": 2}
            | {"max_iterations": 1, "num_samples": 25, "seed": 0},
            ("mean_length", "prior_variance", "topic_concentration"),
            ("loc_variance", "covariance_decay", "tolerance"),
        )
        if self.folds > self.num_docs:
            raise ConfigError(f"folds is {self.folds}, more than the {self.num_docs} documents")
        if not self.num_topics or self.completion_topics not in self.num_topics:
            raise ConfigError(
                f"completion_topics is {self.completion_topics}; expected one of num_topics "
                f"{list(self.num_topics)}"
            )
        if any(not 0 < share < 1 for share in self.observed_shares):
            raise ConfigError(f"observed_shares are {self.observed_shares}; expected within 0 to 1")
        check_choices(self, "models", CANDIDATES)


def draw_model(settings: FactorSettings) -> TopicModel:
    """The true model, float64, from the distributions in the settings."""
    k = settings.true_topics
    rng = np.random.default_rng([settings.seed, 0])
    loc = math.sqrt(settings.loc_variance) * rng.standard_normal(k)
    # QR of normals is uniform over rotations up to the signs of R's diagonal, and Q diag(ℓ) Qᵀ
    # does not depend on the signs.
    rotation = np.linalg.qr(rng.standard_normal((k, k)))[0]
    values = np.arange(1.0, k + 1.0) ** -settings.covariance_decay
    root = rotation * np.sqrt(values * settings.prior_variance / values.mean())
    return ctm(
        k,
        settings.num_words,
        loc=torch.from_numpy(loc),
        covariance=torch.from_numpy(root @ root.T),
        topics=synthetic_topics(k, settings.num_words, settings.topic_concentration, seed=rng),
        dtype=torch.float64,
    )


def draw_corpus(settings: FactorSettings, truth: TopicModel) -> Corpus:
    """Documents of at least two tokens: one to observe and one to predict."""
    rng = np.random.default_rng([settings.seed, 1])
    lengths = np.maximum(rng.poisson(settings.mean_length, settings.num_docs), 2)
    return truth.generate(lengths.tolist(), seed=settings.seed)[0]


def split_folds(settings: FactorSettings, corpus: Corpus) -> list[tuple[Corpus, Corpus]]:
    """Training and test documents of each fold; every document is in one test set."""
    order = np.random.default_rng([settings.seed, 2]).permutation(corpus.num_docs)
    parts = np.array_split(order, settings.folds)
    return [(corpus[np.setdiff1d(order, test)], corpus[np.sort(test)]) for test in parts]
