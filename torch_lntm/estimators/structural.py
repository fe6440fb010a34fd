"""StructuralTopicModel, the estimator whose topics depend on the documents' metadata."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, cast

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

    def _corpus(self, X: Any, method: str, metadata: Any = None, **others: Any) -> Corpus:
        """Documents with their metadata, joined by the index of ``X``."""
        corpus = super()._corpus(X, method, **others)
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
