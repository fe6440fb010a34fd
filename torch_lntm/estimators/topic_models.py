"""The estimators, one for each kind of model."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from torch_lntm.estimators.base import TopicModelEstimator
from torch_lntm.inference.documents import source_prior


class CorrelatedTopicModel(TopicModelEstimator):
    """The correlated topic model as an estimator (:func:`~torch_lntm.models.ctm`).

    Args:
        n_components: Number of topics.
        posterior: Posterior of the documents during the fit. ``"hmc"`` is Monte-Carlo EM by chains.
            ``"taylor"``, ``"laplace"``, ``"blei-lafferty"`` and ``"khan-bouchard"`` are variational
            EM. ``"auto"`` is ``"hmc"``, with fewer epochs for large corpora
            (:meth:`Recipe.for_corpus <torch_lntm.recipes.Recipe.for_corpus>`). Defaults to
            ``"auto"``. :meth:`transform` and :meth:`posteriors` use the same posterior; after
            ``"hmc"``, they use the model's default guide, ``"taylor"``.
        max_iter: Most iterations of EM, or epochs of Monte-Carlo EM. Defaults to the default of the
            engine.
        keywords: Keywords of the first topics by the names of the topics, such as ``{"economy":
            ["tax", "budget"]}``. They are words of ``vocabulary``, or column names of a data frame.
            See :func:`~torch_lntm.models.ctm`.
        vocabulary: Words of the columns: a list or an array, a mapping from words to columns, or a
            fitted ``CountVectorizer``, which clones of the estimator keep. Defaults to the column
            names of a data frame.
        score_method: Method of :meth:`score`: ``"completion"``, ``"importance"`` or ``"ais"``.
        device: ``"auto"`` for a CUDA device if available; ``"cpu"`` or ``"cuda"``.
        random_state: Seed, or a generator, of the fit.
        verbose: Show progress bars on standard error if not 0.

    Example:
        >>> estimator = lntm.CorrelatedTopicModel(3, posterior="taylor", max_iter=1)
        >>> estimator.fit_transform(train.to_scipy()).shape
        (270, 3)
    """

    _model = "ctm"


class LogisticNormalTopicModel(TopicModelEstimator):
    """The logistic-normal topic model as an estimator (:func:`~torch_lntm.models.lntm`).

    Its topics are uncorrelated, and the logits of their words are normal.

    Args:
        n_components: Number of topics.
        posterior: See :class:`CorrelatedTopicModel`. Defaults to ``"hmc"``.
        max_iter: See :class:`CorrelatedTopicModel`.
        keywords: None. Topics with normal logits take no keywords.
        vocabulary: See :class:`CorrelatedTopicModel`.
        score_method: See :class:`CorrelatedTopicModel`.
        device: See :class:`CorrelatedTopicModel`.
        random_state: See :class:`CorrelatedTopicModel`.
        verbose: See :class:`CorrelatedTopicModel`.

    Example:
        >>> estimator = lntm.LogisticNormalTopicModel(3, posterior="taylor", max_iter=1)
        >>> estimator.fit_transform(train.to_scipy()).shape
        (270, 3)
    """

    _model, _posterior = "lntm", "hmc"


class IndependentFactorTopicModel(TopicModelEstimator):
    """The independent factor topic model as an estimator (:func:`~torch_lntm.models.iftm`).

    The logits of its topics depend on a few independent sources.

    Args:
        n_components: Number of topics.
        n_sources: Number of sources, smaller than ``n_components``. Defaults to ``n_components`` /
            4.
        source: ``"gaussian"``, or ``"laplace"`` for sparse, interpretable sources.
        posterior: ``"auto"`` or ``"hmc"`` (see :class:`CorrelatedTopicModel`); ``"factor"`` for
            variational EM; for Gaussian sources also ``"taylor"`` or ``"laplace"``.
        max_iter: See :class:`CorrelatedTopicModel`.
        keywords: See :class:`CorrelatedTopicModel`.
        vocabulary: See :class:`CorrelatedTopicModel`.
        score_method: See :class:`CorrelatedTopicModel`.
        device: See :class:`CorrelatedTopicModel`.
        random_state: See :class:`CorrelatedTopicModel`.
        verbose: See :class:`CorrelatedTopicModel`.

    Example:
        >>> settings = {"n_sources": 1, "posterior": "factor", "max_iter": 1}
        >>> estimator = lntm.IndependentFactorTopicModel(3, **settings)
        >>> estimator.fit_transform(train.to_scipy()).shape
        (270, 3)
    """

    _model = "iftm"
    _own: ClassVar[dict[str, Any]] = {"n_sources": None, "source": "gaussian"}

    @property
    def mixing_(self) -> NDArray[np.floating[Any]]:
        """Loadings of the topics' logits on the sources ``(n_components, n_sources)``."""
        return source_prior(self.model_).mixing.detach().cpu().numpy()


class AspectModel(TopicModelEstimator):
    """The generative aspect model, or latent Dirichlet allocation (:func:`~torch_lntm.models.lda`).

    Args:
        n_components: Number of topics.
        posterior: ``"auto"`` or ``"hmc"`` (see :class:`CorrelatedTopicModel`); ``"vb"`` for fast
            variational EM; ``"ep"`` for expectation propagation, which is more accurate and many
            times slower.
        max_iter: See :class:`CorrelatedTopicModel`.
        keywords: See :class:`CorrelatedTopicModel`.
        vocabulary: See :class:`CorrelatedTopicModel`.
        score_method: See :class:`CorrelatedTopicModel`.
        device: See :class:`CorrelatedTopicModel`.
        random_state: See :class:`CorrelatedTopicModel`.
        verbose: See :class:`CorrelatedTopicModel`.

    Example:
        >>> estimator = lntm.AspectModel(3, posterior="vb", max_iter=1)
        >>> estimator.fit_transform(train.to_scipy()).shape
        (270, 3)
    """

    _model = "lda"
