"""Base class of the estimators, which wraps a recipe in scikit-learn's conventions."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data
from torch import Tensor

from torch_lntm.budget import find_device
from torch_lntm.corpus import Corpus
from torch_lntm.corpus.checks import check_order, check_vocabulary
from torch_lntm.errors import ConfigError, bind, require_one, require_whole
from torch_lntm.evaluation import (
    CompletionResult,
    LikelihoodEstimate,
    document_completion,
    log_likelihood,
)
from torch_lntm.guides import Guide
from torch_lntm.inference import StepwiseEM, topic_shares, transform
from torch_lntm.inference.interruption import propagate_interrupts
from torch_lntm.models import TopicModel
from torch_lntm.models.names import is_named
from torch_lntm.models.topic_table import TopicTable
from torch_lntm.options import (
    GUIDES,
    MODELS,
    SAMPLED,
    VARIATIONAL,
    Option,
    fit_options,
    options_of,
)
from torch_lntm.posteriors import Posterior
from torch_lntm.recipes import AUTO, FitComponents, Recipe, guide_of

ScoreMethod = Literal["completion", "importance", "ais"]

#: Parameters of every estimator, with their defaults.
_COMMON: dict[str, Any] = {
    "posterior": None,
    "max_iter": None,
    "keywords": None,
    "vocabulary": None,
    "score_method": "completion",
    "device": "auto",
    "random_state": None,
    "verbose": 0,
}
#: Options of models and engines that an estimator renames or does not offer.
_RENAMED = (
    *("num_topics", "num_words", "num_sources", "max_iterations", "max_epochs"),
    *("seed", "progress"),
)


def _refuse_texts(X: Any, name: str) -> None:
    """Refuse documents that are not counts, with advice.

    Raises:
        ConfigError: The documents are texts, dictionaries or corpora.
    """
    if hasattr(X, "columns"):
        first: Any = np.asarray(X[:1], object).ravel()
    else:
        is_list = getattr(X, "ndim", 1) == 1 and hasattr(X, "__iter__")
        first = [next(iter(X), None)] if is_list else []
    if any(isinstance(x, Corpus) for x in first):
        raise ConfigError(
            "got a list of corpora, as scikit-learn's searches and splits make of a Corpus; "
            "give them corpus.to_scipy(), and the estimator vocabulary=corpus.vocabulary"
        )
    if any(isinstance(x, str | Mapping) for x in first):
        raise ConfigError(
            "expected counts, got texts or dictionaries; put a CountVectorizer before the model, "
            f"and give it the texts: make_pipeline(CountVectorizer(), {name}())"
        )


class TopicModelEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """A topic model as a scikit-learn transformer from word counts to topic proportions.

    ``X`` holds whole counts ``(n_samples, n_features)`` with a row for each document and a column
    for each word, such as a ``CountVectorizer`` returns. It may be a scipy sparse matrix, which
    stays sparse, an array, a data frame whose columns are words, or a :class:`~torch_lntm.Corpus`.
    Documents without words do not affect the fit, and get the proportions at the prior's mean. Each
    subclass names its model and lists its parameters.

    Attributes:
        model_: The fitted :class:`~torch_lntm.models.TopicModel`. ``lntm.save_model`` writes it.
        recipe_: The :class:`~torch_lntm.recipes.Recipe` of the fit, ``"auto"`` resolved.
        history_: Records of the iterations of :meth:`fit`, as in
            :class:`~torch_lntm.inference.FitResult`.
        stop_reason_: Why the fit ended: ``"converged"``, ``"max_iterations"``, ``"interrupted"`` by
            Ctrl-C, ``"terminated"`` by SIGTERM, or ``"stopped_early"``, which keeps chains on a
            small corpus from overfitting.
        n_iter_: Iterations of EM, or epochs of Monte-Carlo EM.
        n_features_in_: Number of words.
        feature_names_in_: Names of the columns, if ``X`` was a data frame.
    """

    #: Name of the model's registered constructor, its default posterior, and further parameters.
    _model: ClassVar[str]
    _posterior: ClassVar[str] = AUTO
    _own: ClassVar[dict[str, Any]] = {}
    _options: ClassVar[dict[str, Option]]
    #: Whether scikit-learn has cloned the estimator, as its searches do before every fit.
    _is_clone = False

    if TYPE_CHECKING:

        def __init__(self, n_components: int = 10, **parameters: Any) -> None: ...

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give the class the options of its model and of the engines as parameters."""
        super().__init_subclass__(**kwargs)
        engines = {**VARIATIONAL, **SAMPLED, **(GUIDES if cls._model == "lda" else {})}
        wanted = options_of(MODELS[cls._model]).keys()
        cls._options = {
            name: option
            for heading, group in fit_options((*_RENAMED, *_COMMON, *cls._own)).items()
            for name, option in group.items()
            if name in wanted or heading in (*engines, "fit")
        }
        defaults = {name: option.default for name, option in cls._options.items()}
        usual, by_name = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter("self", usual)]
        parameters += [inspect.Parameter("n_components", usual, default=10)]
        for name, default in {**cls._own, **_COMMON, **defaults}.items():
            parameters += [inspect.Parameter(name, by_name, default=default)]
        signature = inspect.Signature(parameters)

        def __init__(self: Any, *arguments: Any, **options: Any) -> None:
            bound = bind(cls.__name__, signature, (self, *arguments), options)
            bound.apply_defaults()
            vars(self).update({n: v for n, v in bound.arguments.items() if n != "self"})

        cls.__init__ = __init__  # type: ignore[method-assign]
        vars(cls.__init__)["__signature__"] = signature
        text = ""
        for name, option in cls._options.items():
            lines = textwrap.wrap(f"{name}: {option.help}", 84)
            text += textwrap.indent("\n    ".join(lines), " " * 4) + "\n"
        # Python 3.13 itself takes the indentation away.
        head, mark, example = inspect.cleandoc(cls.__doc__ or "").partition("\nExample:")
        cls.__doc__ = f"{head.rstrip()}\n{text}{mark}{example}"

    # -- fitting ---------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, **metadata: Any) -> Self:
        """Fit the model to documents.

        Ctrl-C ends the fit at the last finished iteration; the estimator then counts as fitted, and
        ``stop_reason_`` is ``"interrupted"``. A clone, however, lets Ctrl-C through. scikit-learn's
        searches and cross-validations fit clones, and a shortened fit would distort their
        comparison.

        Args:
            X: The documents.
            y: Ignored.
            **metadata: Of :class:`StructuralTopicModel` only: ``metadata``, columns with a value
                for each document, from which the model learns levels and knots.

        Returns:
            The estimator.

        Raises:
            CorpusError: A count is invalid, there are no tokens, or a column is missing or has
                missing values.
            ConfigError: A parameter or a formula is invalid, or the documents lack metadata.
        """
        corpus = self._corpus(X, "fit", **metadata)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        # partial_fit cannot update tensors that were created in inference mode.
        with (
            torch.inference_mode(False),
            propagate_interrupts() if self._is_clone else nullcontext(),
        ):
            recipe, components = self._build(corpus, seed)
            result = components.engine.fit(corpus)
        self.recipe_, self.model_ = recipe, components.model
        self._shares: Tensor | None = topic_shares(self._guide(), corpus)
        self.history_, self.stop_reason_ = result.history, result.stop_reason
        self.n_iter_ = max(1, result.history[-1]["iteration"]) if result.history else 1
        self._stepwise: Any = None
        if result.statistics is not None:
            chains = getattr(components.engine, "chains", None)
            self._stepwise = StepwiseEM(
                components.model, components.guide, result.statistics, chains=chains, seed=seed
            )
        return self

    def partial_fit(self, X: Any, y: Any = None, **metadata: Any) -> Self:
        """Update the model with more documents; the earlier ones are no longer needed.

        The first call is a :meth:`fit`, so it needs enough documents to tell the topics apart,
        preferably thousands. Later calls, and calls after :meth:`fit`, update the model by stepwise
        EM (:class:`~torch_lntm.inference.StepwiseEM`), which slowly forgets earlier documents.

        Args:
            X: The documents, over the words of the earlier documents.
            y: Ignored.
            **metadata: As for :meth:`fit`. The first documents must have all levels of the columns.

        Returns:
            The estimator.

        Raises:
            CorpusError: As for :meth:`fit`, or a level is new.
            ConfigError: As for :meth:`fit`, or the model comes from a file.
        """
        if getattr(self, "_stepwise", None) is None:
            if hasattr(self, "model_") and not hasattr(self, "_stepwise"):
                raise ConfigError(
                    "partial_fit continues from the statistics of a fit, and a model from a file "
                    "has none; call fit"
                )
            return self.fit(X, **metadata)
        with torch.inference_mode(False):
            self._stepwise.update(self._corpus(X, "partial_fit", **metadata))
        self._shares = None
        return self

    @classmethod
    def from_model(cls, model: TopicModel, **params: Any) -> Self:
        """A fitted estimator around a model, for example from ``lntm.load_model``.

        Args:
            model: A fitted model of the estimator's kind. It moves to the estimator's device.
            **params: Parameters of the estimator. ``n_components`` comes from the model.

        Raises:
            ConfigError: The model is of another kind.
        """
        if model.name != cls._model:
            raise ConfigError(
                f"{cls.__name__} is an estimator of {cls._model}, and the model is one of "
                f"{model.name}; take the estimator of {model.name}, or "
                "torch_lntm.inference.transform(guide, corpus) with the guide() of a run"
            )
        estimator = cls(**{**params, "n_components": model.num_topics})
        posterior = estimator._posterior_name
        estimator.recipe_ = Recipe(cls._model, None if posterior == AUTO else posterior)
        estimator.model_ = model.to(find_device(estimator.device))
        estimator.n_features_in_ = model.num_words
        return estimator

    def _build(self, corpus: Corpus, seed: int) -> tuple[Recipe, FitComponents]:
        """The resolved recipe for the documents, with its model, guide and engine."""
        if self.n_components is None:
            raise ConfigError("n_components is None; expected a number of topics")
        require_whole(1, n_components=self.n_components, max_iter=self.max_iter)
        recipe = Recipe(self._model, self._posterior_name).for_corpus(corpus, self.n_components)
        options: dict[str, Any] = {
            "num_topics": self.n_components,
            "max_epochs" if recipe.samples else "max_iterations": self.max_iter,
            "keywords": self.keywords,
            **{n.replace("n_", "num_"): getattr(self, n) for n in self._own},
            **self._given(),
        }
        options = {name: value for name, value in options.items() if value is not None}
        components = recipe.make(
            self._learned_from(corpus),
            corpus.vocabulary or self._words(self.vocabulary),
            seed=seed,
            device=find_device(self.device),
            options={"progress": bool(self.verbose), **options},
        )
        return recipe, components

    def _learned_from(self, corpus: Corpus) -> Corpus | int:
        """The documents if the constructor learns from them, else the size of the vocabulary."""
        return corpus.num_words

    def _given(self) -> dict[str, Any]:
        """The options of model and engine that differ from their defaults."""
        return {
            name: getattr(self, name)
            for name, option in self._options.items()
            if not np.isscalar(getattr(self, name)) or getattr(self, name) != option.default
        }

    @property
    def _posterior_name(self) -> str:
        return self._posterior if self.posterior is None else self.posterior

    # -- documents -------------------------------------------------------------------------------

    def fit_transform(self, X: Any, y: Any = None, **metadata: Any) -> NDArray[np.floating[Any]]:
        """Fit the model to documents, and return their topic proportions.

        Args:
            X: The documents.
            y: Ignored.
            **metadata: As for :meth:`fit`.

        Returns:
            As for :meth:`transform`.
        """
        self.fit(X, **metadata)
        # scikit-learn wraps transform, and a wrapped call inside another would lose the index.
        return self._proportions(X, self._corpus(X, "transform", **metadata))

    def transform(self, X: Any, **metadata: Any) -> NDArray[np.floating[Any]]:
        """Topic proportions of documents, at their posterior modes.

        The mode is the softmax of the posterior mode of the logits, except for ``AspectModel``,
        which returns the posterior mean. The solver stops at the tolerance of an E-step, so use
        :meth:`posteriors` if you need more precision.

        Args:
            X: The documents.
            **metadata: Of :class:`StructuralTopicModel` only: ``metadata``, columns with a value
                for each document. Documents without the columns of ``prevalence`` get the prior
                averaged over the training documents, with a warning.

        Returns:
            ``(n_samples, n_components)`` in the model's dtype; rows sum to 1.

        Raises:
            CorpusError: A column is missing or has missing values, or a level is new.
        """
        return self._proportions(X, self._corpus(X, "transform", **metadata))

    def _proportions(self, X: Any, corpus: Corpus) -> Any:
        """See :meth:`transform`. Under pandas output, a corpus gives the names of its documents."""
        em = self._guide().em_options
        guide = self._guide(tolerance=em.tolerance, max_iterations=em.max_iterations)
        theta = transform(guide, corpus, progress=bool(self.verbose)).theta.numpy()
        named = isinstance(X, Corpus) and _get_output_config("transform", self)["dense"] == "pandas"
        return pd.DataFrame(theta, index=corpus.metadata.index) if named else theta

    def posteriors(self, X: Any, **metadata: Any) -> Posterior:
        """Posterior distributions of documents: means, covariances, draws and intervals.

        Args:
            X: The documents. Each covariance has n_components² numbers, so pass large corpora in
                parts.
            **metadata: Of :class:`StructuralTopicModel` only: ``metadata``, as for ``transform``.

        Returns:
            The posteriors. ``theta_mode()``, ``theta_mean()``, ``theta_interval(0.9)`` and
            ``theta_samples(100)`` describe topic proportions. ``mean`` and ``covariance`` describe
            the logits eta (for ``AspectModel``, theta).
        """
        corpus, model = self._corpus(X, "posteriors", **metadata), self.model_
        batch = model.encode(corpus).batch(device=model.device, dtype=model.dtype)
        return self._guide().posterior(batch)

    def score(self, X: Any, y: Any = None, **metadata: Any) -> float:
        """Held-out log likelihood of documents, nats per token; higher is better.

        The parameter ``score_method`` selects the method. :meth:`held_out` also gives the standard
        error.

        * ``"completion"``: document completion. A random half of each document's tokens is
          observed, and the other half is scored at the exact mean of theta
          (:func:`~torch_lntm.evaluation.document_completion`, within 0.005 nats per token), so
          documents need two tokens. Bursty models also predict from the document's observed words,
          so compare them only with each other.
        * ``"importance"``: importance sampling of log p(document), with theta integrated out
          (:func:`~torch_lntm.evaluation.log_likelihood`). It warns of unreliable estimates.
        * ``"ais"``: annealed importance sampling of log p(document), reliable and slow.

        Args:
            X: The documents.
            y: Ignored.
            **metadata: Of :class:`StructuralTopicModel` only: ``metadata``, as for ``transform``.
        """
        return self.held_out(X, **metadata).nats_per_token

    def perplexity(self, X: Any, **metadata: Any) -> float:
        """exp(−:meth:`score`): the equivalent number of equally likely words.

        Args:
            X: The documents.
            **metadata: Of :class:`StructuralTopicModel` only: ``metadata``, as for ``transform``.
        """
        return self.held_out(X, **metadata).perplexity

    def held_out(self, X: Any, **metadata: Any) -> CompletionResult | LikelihoodEstimate:
        """The estimate behind :meth:`score`, with standard errors and a value for each document.

        Args:
            X: The documents.
            **metadata: Of :class:`StructuralTopicModel` only: ``metadata``, as for ``transform``.

        Raises:
            ConfigError: ``score_method`` is unknown.
            CorpusError: The documents have no tokens to score.
        """
        corpus = self._corpus(X, "score", **metadata)
        if self.score_method == "completion":
            return document_completion(self.model_, corpus, progress=bool(self.verbose))
        require_one(get_args(ScoreMethod), score_method=self.score_method)
        return log_likelihood(self.model_, corpus, self.score_method)

    # -- topics ----------------------------------------------------------------------------------

    @property
    def components_(self) -> NDArray[np.floating[Any]]:
        """Word probabilities of the topics ``(n_components, n_features)``; rows sum to 1."""
        return self.model_.topics.mean_probs.detach().cpu().numpy()

    @property
    def topic_correlation_(self) -> NDArray[np.float64]:
        """Correlations ``(n_components, n_components)`` of the topics' centred logits."""
        return self.model_.topic_correlation().cpu().numpy()

    def topics(
        self, X: Any = None, *, top_n: int = 10, vocabulary: Any = None, **metadata: Any
    ) -> TopicTable:
        """Table of the topics: most probable words, shares and correlated topics.

        Args:
            X: Documents for the shares. Defaults to the documents of :meth:`fit`. After
                :meth:`partial_fit` there are no shares, and the topics stand in their order.
            top_n: Words of each topic.
            vocabulary: Words of the columns if the model has none, in the forms of the parameter
                ``vocabulary``; in a pipeline, the vectorizer before the model.
            **metadata: Of :class:`StructuralTopicModel` only: ``metadata``, as for ``transform``.

        Returns:
            The topics, the largest first; ``print`` shows a table.
        """
        check_is_fitted(self, "model_")
        shares = getattr(self, "_shares", None)
        if X is not None:
            shares = topic_shares(self._guide(), self._corpus(X, "topics", **metadata))
        model = self.model_
        if vocabulary is not None:
            model = model.with_parts(vocabulary=self._words(vocabulary))
        return model.topic_table(shares, top_n=top_n, num_correlated=2)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Names of the columns of :meth:`transform`: the names of the topics.

        As in scikit-learn, a topic without a name goes by the name of the class and its number.

        Args:
            input_features: Ignored.
        """
        numbered = super().get_feature_names_out(input_features)
        names = self.model_.topic_names
        return np.array(
            [names[k] if is_named(names, k) else name for k, name in enumerate(numbered)], object
        )

    @property
    def _n_features_out(self) -> int:
        return self.model_.num_topics

    def _guide(self, **settings: Any) -> Guide[Any]:
        return guide_of(self.recipe_.posterior, self.model_, **settings)

    # -- input -----------------------------------------------------------------------------------

    def _corpus(self, X: Any, method: str, **metadata: Any) -> Corpus:
        """Documents as a corpus, with scikit-learn's checks.

        Args:
            X: The caller's argument.
            method: Name of the calling method. ``"fit"`` learns the columns from ``X``; for others
                they must be those of the fit.
            **metadata: Options of the calling method that the estimator does not take.
        """
        if metadata:
            raise TypeError(
                f"{type(self).__name__}.{method} takes no {', '.join(metadata)}; columns of "
                "documents are metadata=, of StructuralTopicModel"
            )
        fits = method == "fit"
        if not fits:
            check_is_fitted(self, "model_")
        if isinstance(X, Corpus):
            if fits:
                self.__dict__.pop("feature_names_in_", None)
                self.n_features_in_ = X.num_words
            return X
        X = X.to_pandas() if isinstance(X, pa.Table) else X
        _refuse_texts(X, type(self).__name__)
        rows = X.index if isinstance(X, pd.DataFrame) else None
        if not fits and hasattr(X, "columns") and not hasattr(self, "feature_names_in_"):
            words = self.model_.vocabulary
            if words is not None and list(X.columns) != list(words):
                raise ConfigError(
                    "the columns are not the words of the fit in their order; take "
                    "X.reindex(columns=model_.vocabulary, fill_value=0)"
                )
            X = X if words is None else X.to_numpy()
        X = validate_data(self, X, accept_sparse="csr", dtype="numeric", reset=fits)
        check_non_negative(X, f"{type(self).__name__}.{method}")
        corpus = Corpus.from_matrix(X, allow_empty=True)
        return corpus if rows is None else replace(corpus, table=pd.DataFrame(index=rows))

    def _words(self, words: Any) -> tuple[str, ...] | None:
        """Words of the columns from a vocabulary, a vectorizer or the fit; None if unknown."""
        if hasattr(words, "get_feature_names_out"):
            words = words.get_feature_names_out()
        elif isinstance(words, Mapping):
            words = sorted(words, key=words.__getitem__)
        names = getattr(self, "feature_names_in_", None)
        words = check_vocabulary(names if words is None else words, self.n_features_in_)
        check_order(words, () if names is None else names)
        return words

    # -- scikit-learn ----------------------------------------------------------------------------

    def __sklearn_clone__(self) -> Self:
        copy = super().__sklearn_clone__()
        # Cloning a vectorizer would lose its words.
        copy.vocabulary = self.vocabulary
        copy._is_clone = True
        return copy

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        # The only tag of scikit-learn for whole numbers.
        tags.input_tags.categorical = True
        tags.transformer_tags.preserves_dtype = []
        return tags
