"""The estimators: one for each kind of model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.estimators.base import ScoreMethod, TopicModelEstimator
from torch_lntm.inference import source_prior
from torch_lntm.models.priors.factor import Source


class CorrelatedTopicModel(TopicModelEstimator):
    """The correlated topic model, whose topics may occur together (:func:`~torch_lntm.models.ctm`).

    Args:
        n_components: Number of topics.
        posterior: How documents' posteriors are found while fitting: ``"auto"``, the default,
            which takes chains, of fewer epochs for very large corpora, but for the largest
            (:meth:`Recipe.for_corpus <torch_lntm.recipes.Recipe.for_corpus>`); ``"hmc"`` for
            chains, by Monte-Carlo EM; ``"taylor"``, ``"laplace"``, ``"blei-lafferty"`` or
            ``"khan-bouchard"`` for variational EM. :meth:`transform` and :meth:`posteriors` take
            the same, and the model's default guide, here Taylor's, after ``"hmc"``.
        max_iter: Bound on the iterations of EM, or the epochs of Monte-Carlo EM; by default the
            engine's.
        vocabulary: The words of the columns: a list or an array, a mapping from words to columns,
            or a fitted ``CountVectorizer``, which clones of the estimator keep. By default the
            column names of a data frame, where that is what is given.
        score_method: The estimator of :meth:`score`: ``"completion"``, ``"importance"`` or
            ``"ais"``.
        device: ``"auto"`` for a CUDA device if there is one; ``"cpu"``, ``"cuda"``.
        random_state: Seed, or a generator, of the fit.
        verbose: Whether to show progress bars on standard error.
        options: Further options of the model, the posterior and the engine by name, such as
            ``{"topic_smoothing": 0.01, "restarts": 3}``.
    """

    _model = "ctm"


class LogisticNormalTopicModel(TopicModelEstimator):
    """The logistic-normal topic model, fitted by Monte-Carlo EM (:func:`~torch_lntm.models.lntm`).

    Its topics are independent, and their words have normal logits.

    Args:
        n_components: Number of topics.
        posterior: As for :class:`CorrelatedTopicModel`, but always chains by default: ``"hmc"``.
        max_iter: As there.
        vocabulary: As there.
        score_method: As there.
        device: As there.
        random_state: As there.
        verbose: As there.
        options: As there, such as ``{"topic_scale": 3.0, "num_chains": 2}``.
    """

    _model, _posterior = "lntm", "hmc"


class IndependentFactorTopicModel(TopicModelEstimator):
    """The independent factor topic model (:func:`~torch_lntm.models.iftm`).

    Its topics come and go with a few independent sources.

    Args:
        n_components: Number of topics.
        n_sources: Number of sources, fewer than topics; a quarter of them by default.
        source: ``"gaussian"``, or ``"laplace"`` for sparse sources, which can be read.
        posterior: As for :class:`CorrelatedTopicModel`; for variational EM ``"factor"``, and for
            Gaussian sources also ``"taylor"`` or ``"laplace"``.
        max_iter: As for :class:`CorrelatedTopicModel`.
        vocabulary: As there.
        score_method: As there.
        device: As there.
        random_state: As there.
        verbose: As there.
        options: As there.
    """

    _model = "iftm"

    def __init__(
        self,
        n_components: int = 10,
        *,
        n_sources: int | None = None,
        source: Source = "gaussian",
        posterior: str | None = None,
        max_iter: int | None = None,
        vocabulary: Any = None,
        score_method: ScoreMethod = "completion",
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            n_components,
            posterior=posterior,
            max_iter=max_iter,
            vocabulary=vocabulary,
            score_method=score_method,
            device=device,
            random_state=random_state,
            verbose=verbose,
            options=options,
        )
        self.n_sources = n_sources
        self.source = source

    def _model_options(self, corpus: Corpus) -> dict[str, Any]:
        return {"num_sources": self.n_sources, "source": self.source}

    @property
    def mixing_(self) -> NDArray[np.floating[Any]]:
        """How much of each topic comes with each source ``(n_components, n_sources)``."""
        return source_prior(self.model_).mixing.detach().cpu().numpy()


class AspectModel(TopicModelEstimator):
    """The generative aspect model, latent Dirichlet allocation (:func:`~torch_lntm.models.lda`).

    Args:
        n_components: Number of topics.
        posterior: As for :class:`CorrelatedTopicModel`; for variational EM ``"vb"``, which is
            fast, or ``"ep"``, expectation propagation, which is closer to the exact posterior and
            takes many times as long.
        max_iter: As for :class:`CorrelatedTopicModel`.
        vocabulary: As there.
        score_method: As there.
        device: As there.
        random_state: As there.
        verbose: As there.
        options: As there, such as ``{"symmetric": True}``.
    """

    _model = "lda"
