"""StructuralTopicModel, the estimator whose topics depend on the documents' metadata."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.metadata import describe
from torch_lntm.errors import ConfigError
from torch_lntm.estimators.base import TopicModelEstimator
from torch_lntm.models import StructuralPrior
from torch_lntm.models.priors.covariates import PREVALENCE

#: The metadata that a method requests from scikit-learn's metadata routing by default.
_REQUEST = {"metadata": True}


class StructuralTopicModel(TopicModelEstimator):
    """The structural topic model (:func:`~torch_lntm.models.stm`) as an estimator.

    The topic proportions depend on the documents' metadata through a formula, ``prevalence``, and
    the topics' words may differ between the levels of a column, ``content``. The methods therefore
    take metadata beside ``X``: a data frame, or a mapping of column names to values, with a row for
    each document. If ``X`` is a :class:`~torch_lntm.Corpus`, it brings its own.

    To route ``metadata`` through scikit-learn's pipelines and searches, call
    ``sklearn.set_config(enable_metadata_routing=True)`` first. ``fit``, ``partial_fit``,
    ``transform`` and ``score`` request it by default.

    Args:
        n_components: Number of topics.
        prevalence: Formula of the columns that the proportions of topics depend on, such as
            ``"~ party + bs(date, df=6)"``. Defaults to None: the array ``"prevalence"`` among the
            covariates of the corpus, if there is one, and otherwise a constant mean, as in
            :class:`CorrelatedTopicModel`.
        content: Column between whose levels the words of topics differ. Or a
            formula such as ``"~ rw(year)"``, for words that move with time. Defaults to None:
            equal words in all documents.
        posterior: See :class:`CorrelatedTopicModel`.
        max_iter: See :class:`CorrelatedTopicModel`.
        keywords: See :class:`CorrelatedTopicModel`.
        vocabulary: See :class:`CorrelatedTopicModel`.
        score_method: See :class:`CorrelatedTopicModel`.
        device: See :class:`CorrelatedTopicModel`.
        random_state: See :class:`CorrelatedTopicModel`.
        verbose: See :class:`CorrelatedTopicModel`.

    Example:
        >>> party = {"party": ["left", "right"] * 135}
        >>> stm = lntm.StructuralTopicModel(3, prevalence="~ party", posterior="taylor", max_iter=1)
        >>> stm.fit_transform(train.to_scipy(), metadata=party).shape
        (270, 3)
        >>> stm.coefficient_names_, stm.coefficients_.shape
        (('Intercept', 'party[T.right]'), (2, 3))
    """

    _model = "stm"
    _own: ClassVar[dict[str, Any]] = {"prevalence": None, "content": None}
    __metadata_request__fit = _REQUEST
    __metadata_request__partial_fit = _REQUEST
    __metadata_request__transform = _REQUEST
    __metadata_request__score = _REQUEST

    # -- fitting ---------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, metadata: Any = None) -> Self:
        """Fit the model to documents; see :meth:`TopicModelEstimator.fit`.

        The levels and knots of the formula and of content are learned from these documents.

        Args:
            X: The documents.
            y: Ignored.
            metadata: Columns with a value for each document.

        Returns:
            The estimator.

        Raises:
            CorpusError: A count is invalid, or a column is missing or has missing values.
            ConfigError: A parameter or the formula is invalid, or the documents lack metadata.
        """
        return self._fit(self._corpus(X, "fit", metadata))

    def partial_fit(self, X: Any, y: Any = None, metadata: Any = None) -> Self:
        """Learn from more documents; see :meth:`TopicModelEstimator.partial_fit`.

        The first documents must have all levels of the columns.

        Args:
            X: The documents, over the same words as the documents before.
            y: Ignored.
            metadata: Columns with a value for each document.

        Returns:
            The estimator.

        Raises:
            CorpusError: As for :meth:`fit`, or a level is new.
            ConfigError: As for :meth:`fit`, or the model has been loaded from a file.
        """
        return self._partial_fit(X, metadata=metadata)

    def fit_transform(
        self, X: Any, y: Any = None, metadata: Any = None
    ) -> NDArray[np.floating[Any]]:
        """Fit the model to documents, and return their topic proportions.

        Args:
            X: The documents.
            y: Ignored.
            metadata: Columns with a value for each document.

        Returns:
            ``(n_samples, n_components)`` in the model's dtype. Rows sum to 1.

        Raises:
            CorpusError: As for :meth:`fit`.
            ConfigError: As for :meth:`fit`.
        """
        self.fit(X, metadata=metadata)
        return self._proportions(X, self._corpus(X, "transform", metadata))

    # -- documents -------------------------------------------------------------------------------

    def transform(self, X: Any, metadata: Any = None) -> NDArray[np.floating[Any]]:
        """Topic proportions of documents; see :meth:`TopicModelEstimator.transform`.

        Args:
            X: The documents.
            metadata: Columns with a value for each document. Documents without the columns of
                ``prevalence`` get the prior averaged over the training documents, with a warning.

        Returns:
            ``(n_samples, n_components)`` in the model's dtype. Rows sum to 1.

        Raises:
            CorpusError: A column of ``prevalence`` or ``content`` is missing or has missing values,
                or a level is new.
        """
        # scikit-learn wraps transform, and a wrapped call inside another would lose the index.
        return self._proportions(X, self._corpus(X, "transform", metadata))

    def score(self, X: Any, y: Any = None, metadata: Any = None) -> float:
        """Held-out log likelihood in nats per token; see :meth:`TopicModelEstimator.score`.

        Args:
            X: The documents.
            y: Ignored.
            metadata: As for :meth:`transform`.
        """
        return self.held_out(X, metadata=metadata).nats_per_token

    # -- topics ----------------------------------------------------------------------------------

    @property
    def coefficients_(self) -> NDArray[np.floating[Any]]:
        """Coefficients of the logits' mean ``(1 + n_columns, n_components)``, intercept first."""
        return cast(StructuralPrior, self.model_.prior).coefficients.detach().cpu().numpy()

    @property
    def coefficient_names_(self) -> tuple[str, ...]:
        """Names of the rows of :attr:`coefficients_`."""
        return cast(StructuralPrior, self.model_.prior).names

    # -- input -----------------------------------------------------------------------------------

    def _corpus(self, X: Any, method: str, metadata: Any = None) -> Corpus:
        """Documents with their metadata, joined by the index of ``X``."""
        corpus = super()._corpus(X, method)
        if metadata is None:
            return corpus
        if isinstance(X, Corpus):
            return corpus.with_metadata(metadata)
        return replace(corpus, table=describe(X, corpus.num_docs, metadata))

    def _learned_from(self, corpus: Corpus) -> Corpus | int:
        """The documents, from which the model learns its columns, if there are any."""
        given = [n for n in ("prevalence", "content") if getattr(self, n) is not None]
        if given and not list(corpus.metadata):
            raise ConfigError(
                f"{given[0]} is {getattr(self, given[0])!r} and the documents have no metadata; "
                "pass the columns: fit(X, metadata=frame)"
            )
        return corpus if given or PREVALENCE in corpus.covariates else corpus.num_words
