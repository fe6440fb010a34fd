"""What all estimators share: scikit-learn's conventions around a recipe."""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, ClassVar, Literal, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.checks import check_vocabulary
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.evaluation import (
    CompletionResult,
    LikelihoodEstimate,
    document_completion,
    log_likelihood,
)
from torch_lntm.guides import Guide
from torch_lntm.inference import StepwiseEM, topic_shares, transform
from torch_lntm.inference.interruption import propagate_interrupts
from torch_lntm.models import TopicModel, TopicTable
from torch_lntm.pickles import VersionedPickle
from torch_lntm.posteriors import Posterior
from torch_lntm.recipes import AUTO, FitComponents, Recipe, find_device, guide_of

ScoreMethod = Literal["completion", "importance", "ais"]
E = TypeVar("E", bound="TopicModelEstimator")


def called_by_model_selection() -> bool:
    """Whether a search or a cross-validation of scikit-learn is calling."""
    return any(
        frame.f_globals.get("__name__", "").startswith("sklearn.model_selection")
        for frame, _ in traceback.walk_stack(None)
    )


def _describe_texts(X: Any) -> str | None:
    """What was given instead of counts, in words; None if it may be counts."""
    columns = getattr(X, "columns", ())
    for name, kind in zip(columns, X.dtypes if len(columns) else (), strict=True):
        if str(kind).lower() in ("object", "str", "string") and isinstance(
            next(iter(X[name])), str
        ):
            return f"a data frame with texts in the column {name!r}"
    if getattr(X, "ndim", 1) != 1 or not hasattr(X, "__iter__"):
        return None
    first = next(iter(X), None)
    if isinstance(first, Mapping):
        return "dictionaries"
    return "texts" if isinstance(first, str) else None


class TopicModelEstimator(
    VersionedPickle, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """A topic model as a scikit-learn transformer from word counts to topic proportions.

    A subclass names the model and lists its parameters. Wherever ``X`` is taken, it is
    ``(n_samples, n_features)`` whole counts, a document a row and a word a column: a scipy sparse
    matrix, an array, a data frame whose columns are words, or a
    :class:`~torch_lntm.Corpus`. Sparse counts stay sparse. Documents without a word are allowed;
    they take no part in fits, and their topic proportions are the prior's.

    Attributes:
        model_: The fitted :class:`~torch_lntm.models.TopicModel`. ``lntm.save_model`` writes it.
        recipe_: The :class:`~torch_lntm.recipes.Recipe` it was fitted by; ``"auto"`` is resolved.
        history_: One record per iteration of :meth:`fit`, as in
            :class:`~torch_lntm.inference.FitResult`.
        stop_reason_: ``"converged"``, ``"max_iterations"``, ``"interrupted"`` by Ctrl-C, or of
            chains ``"stopped_early"``, since more epochs would overfit so small a corpus.
        n_iter_: Iterations of EM, or epochs of Monte-Carlo EM.
        n_features_in_: Number of words.
        feature_names_in_: Names of the columns, if ``X`` was a data frame.
    """

    #: The registered constructor of the model, and the posterior if none is chosen.
    _model: ClassVar[str]
    _posterior: ClassVar[str] = AUTO

    def __init__(
        self,
        n_components: int = 10,
        *,
        posterior: str | None = None,
        max_iter: int | None = None,
        vocabulary: Any = None,
        score_method: ScoreMethod = "completion",
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.n_components = n_components
        self.posterior = posterior
        self.max_iter = max_iter
        self.vocabulary = vocabulary
        self.score_method = score_method
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.options = options

    # -- fitting ---------------------------------------------------------------------------------

    def fit(self: E, X: Any, y: Any = None) -> E:
        """Fit the model to documents.

        Ctrl-C ends the fit at the last finished iteration; the estimator is fitted then, and
        ``stop_reason_`` is ``"interrupted"``. It ends a search or a cross-validation of
        scikit-learn as a whole, since these would take an early end for a result.

        Args:
            X: The documents.
            y: Not used.

        Returns:
            The estimator.

        Raises:
            CorpusError: An entry is not a count, or there is not a single token.
            ConfigError: A parameter that cannot be used.
        """
        return self._fit(self._corpus(X, "fit", reset=True))

    def _fit(self: E, corpus: Corpus) -> E:
        """See :meth:`fit`."""
        seed = self._seed()
        # Tensors of inference mode could not be updated by partial_fit outside of it.
        with (
            torch.inference_mode(False),
            propagate_interrupts() if called_by_model_selection() else nullcontext(),
        ):
            recipe, made = self._build(corpus, seed)
            result = made.engine.fit(corpus)
        self.recipe_, self.model_ = recipe, made.model
        self._shares: Tensor | None = topic_shares(self._guide(), corpus)
        self.history_, self.stop_reason_ = result.history, result.stop_reason
        self.n_iter_ = max(1, result.history[-1]["iteration"]) if result.history else 1
        self._stepwise = None
        if result.statistics is not None:
            chains = getattr(made.engine.settings, "chains", None)
            self._stepwise = StepwiseEM(
                made.model, made.guide, result.statistics, chains=chains, seed=seed
            )
        return self

    def partial_fit(self: E, X: Any, y: Any = None) -> E:
        """Learn from more documents, which need not be kept.

        The first call is a :meth:`fit`, so it needs enough documents to tell topics apart: better
        thousands than hundreds. Later calls, and those after :meth:`fit`, are updates by stepwise
        EM (:class:`~torch_lntm.inference.StepwiseEM`), which forgets documents slowly.

        Args:
            X: The documents, over the same words as those before.
            y: Not used.

        Returns:
            The estimator.

        Raises:
            CorpusError: An entry is not a count, or the first documents have no tokens.
            ConfigError: A parameter that cannot be used, or the model has been loaded.
        """
        stepwise: StepwiseEM | None = getattr(self, "_stepwise", None)
        if stepwise is None:
            if hasattr(self, "model_") and not hasattr(self, "_stepwise"):
                raise ConfigError(
                    "partial_fit goes on from the statistics of a fit, which a model from a file "
                    "does not have; call fit"
                )
            return self.fit(X)
        with torch.inference_mode(False):
            stepwise.update(self._fitted_corpus(X, "partial_fit"))
        self._shares = None
        return self

    @classmethod
    def from_model(cls: type[E], model: TopicModel, **params: Any) -> E:
        """A fitted estimator around a model, such as one of ``lntm.load_model``.

        Args:
            model: A fitted model of this estimator's kind, which moves to the estimator's device.
            **params: Parameters of the estimator; ``n_components`` is the model's.

        Raises:
            ConfigError: The model is of another kind.
        """
        if model.name != cls._model:
            raise ConfigError(
                f"{cls.__name__} is an estimator of {cls._model}, and the model is one of "
                f"{model.name}; take the estimator of that, or if there is none, "
                "torch_lntm.inference.transform(guide, corpus) with the guide() of a run"
            )
        estimator = cls(**{**params, "n_components": model.num_topics})
        chosen = estimator._posterior_name
        estimator.recipe_ = Recipe(cls._model, None if chosen == AUTO else chosen)
        estimator.model_ = model.to(find_device(estimator.device))
        estimator.n_features_in_ = model.num_words
        return estimator

    def _build(self, corpus: Corpus, seed: int) -> tuple[Recipe, FitComponents]:
        """The recipe for these documents, and what it makes."""
        require_whole(1, n_components=self.n_components)
        require_whole(1, max_iter=self.max_iter)
        named = Recipe(self._model, self._posterior_name)
        chosen = named.for_corpus(corpus, self.n_components)
        recipe = chosen.recipe
        own: dict[str, Any] = {
            "num_topics": self.n_components,
            "max_epochs" if recipe.samples else "max_iterations": self.max_iter,
            **self._model_options(corpus),
        }
        own = {name: value for name, value in own.items() if value is not None}
        given = {**chosen.options, **own, **(self.options or {})}
        made = recipe.make(
            corpus.num_words,
            corpus.vocabulary or self._words(self.vocabulary),
            seed=seed,
            device=find_device(self.device),
            options={"progress": bool(self.verbose), **given},
        )
        return recipe, made

    @property
    def _posterior_name(self) -> str:
        return self._posterior if self.posterior is None else self.posterior

    def _model_options(self, corpus: Corpus) -> dict[str, Any]:
        """Options of the model by the parameters that only this estimator has."""
        return {}

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    # -- documents -------------------------------------------------------------------------------

    def transform(self, X: Any) -> NDArray[np.floating[Any]]:
        """Topic proportions of documents, at the mode of each one's posterior.

        The mode is that on the softmax scale; of ``AspectModel`` it is the posterior mean. It is
        solved to the tolerance of an E-step. :meth:`posteriors` solves it further.

        Args:
            X: The documents.

        Returns:
            ``(n_samples, n_components)`` in the model's dtype; rows sum to 1.
        """
        corpus = self._fitted_corpus(X, "transform")
        guide = self._guide(**self._guide().em_options)
        return transform(guide, corpus, progress=bool(self.verbose)).theta.numpy()

    def posteriors(self, X: Any) -> Posterior:
        """The posterior distributions of documents: means, covariances, draws, intervals.

        Args:
            X: The documents, not too many at once: a covariance takes n_components² numbers for
                each.

        Returns:
            The posteriors; ``theta_mode()``, ``theta_mean()``, ``theta_interval(0.9)`` and
            ``theta_samples(100)`` are about topic proportions, ``mean`` and ``covariance`` about
            the logits eta (of ``AspectModel`` about theta).
        """
        corpus = self._fitted_corpus(X, "posteriors")
        model = self.model_
        return self._guide().posterior(corpus.batch(device=model.device, dtype=model.dtype))

    def score(self, X: Any, y: Any = None) -> float:
        """Held-out log likelihood of documents, nats per token; higher is better.

        The estimator is ``score_method``, and :meth:`held_out` has its standard error:

        * ``"completion"``, document completion: a random half of each document's tokens is
          observed, and the other half scored at the mode of theta given the first
          (:func:`~torch_lntm.evaluation.document_completion`). It needs documents of two tokens.
          Bursty models predict by the document's own observed words too, which others do not: their
          scores are not to be compared with scores of topics alone.
        * ``"importance"``, importance sampling of log p(document), with theta integrated out
          (:func:`~torch_lntm.evaluation.log_likelihood`). It warns where it is not reliable.
        * ``"ais"``, annealed importance sampling of the same: the most reliable, and slow.

        Args:
            X: The documents.
            y: Not used.
        """
        return self.held_out(X).nats_per_token

    def perplexity(self, X: Any) -> float:
        """exp(−:meth:`score`): as uncertain as a choice among so many equally likely words.

        Args:
            X: The documents.
        """
        return math.exp(-self.score(X))

    def held_out(self, X: Any) -> CompletionResult | LikelihoodEstimate:
        """The estimate behind :meth:`score`, document by document and with standard errors.

        Args:
            X: The documents.

        Raises:
            ConfigError: ``score_method`` is none.
            CorpusError: There is nothing to score.
        """
        corpus = self._fitted_corpus(X, "score")
        if self.score_method == "completion":
            return document_completion(self.model_, self._guide(), corpus)
        if self.score_method not in get_args(ScoreMethod):
            known = ", ".join(get_args(ScoreMethod))
            raise ConfigError(f"score_method is {self.score_method!r}; expected one of {known}")
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

    def topics(self, X: Any = None, *, n_words: int = 10, vocabulary: Any = None) -> TopicTable:
        """The topics in words: the most probable ones, and the topics they come with.

        Args:
            X: Documents whose shares the topics have, the largest first. By default topics keep
                their order, and have the shares of the documents of :meth:`fit` unless
                :meth:`partial_fit` has learned from others since.
            n_words: Words of each topic.
            vocabulary: The words of the columns, as at construction, where the model was not told
                them: in a pipeline, the vectorizer before it.

        Returns:
            The topics, as a table to print.
        """
        check_is_fitted(self, "model_")
        shares = getattr(self, "_shares", None)
        if X is not None:
            corpus = self._fitted_corpus(X, "topics")
            shares = topic_shares(self._guide(), corpus)
        model = self.model_
        if vocabulary is not None:
            model = model.with_parts(vocabulary=self._words(vocabulary))
        table = model.topic_table(shares, num_words=n_words, num_correlated=2)
        return (
            table
            if X is not None
            else TopicTable(tuple(sorted(table, key=lambda topic: topic.topic)))
        )

    @property
    def _n_features_out(self) -> int:
        return self.model_.num_topics

    def _guide(self, **settings: Any) -> Guide[Any]:
        return guide_of(self.recipe_.posterior, self.model_, **settings)

    # -- input -----------------------------------------------------------------------------------

    def _fitted_corpus(self, X: Any, method: str) -> Corpus:
        """Documents for a fitted model."""
        check_is_fitted(self, "model_")
        return self._corpus(X, method, reset=False)

    def _corpus(self, X: Any, method: str, *, reset: bool) -> Corpus:
        """Documents as a corpus, checked as scikit-learn's estimators check them.

        Args:
            X: What was given.
            method: Where, for the message.
            reset: Whether the columns are learned here, or must be those of the fit.
        """
        if isinstance(X, Corpus):
            if reset:
                if hasattr(self, "feature_names_in_"):
                    del self.feature_names_in_
                self.n_features_in_ = X.num_words
            else:
                X = self.model_.encode(X)
            return X
        if found := _describe_texts(X):
            raise ConfigError(
                f"expected counts, got {found}; put a CountVectorizer before the model, and give "
                f"it the texts: make_pipeline(CountVectorizer(), {type(self).__name__}())"
            )
        if not reset and not hasattr(self, "feature_names_in_"):
            self._check_order(getattr(X, "columns", None))
        X = validate_data(self, X, accept_sparse="csr", dtype="numeric", reset=reset)
        check_non_negative(X, f"{type(self).__name__}.{method}")
        return Corpus.from_matrix(X, allow_empty=True)

    def _check_order(self, columns: Any) -> None:
        """Refuse a data frame whose columns are the model's words in another order."""
        words = self.model_.vocabulary
        if columns is None or words is None or tuple(columns) == words:
            return
        if set(columns) == set(words):
            raise ConfigError(
                "the columns are the words of the fit in another order; take "
                "X[list(model_.vocabulary)]"
            )

    def _words(self, words: Any) -> tuple[str, ...] | None:
        """The words of the columns, as far as they are known."""
        if hasattr(words, "get_feature_names_out"):
            try:
                words = words.get_feature_names_out()
            except NotFittedError as error:
                raise ConfigError(
                    "vocabulary is a vectorizer that is not fitted; fit it first, or give its words"
                ) from error
        elif isinstance(words, Mapping):
            words = sorted(words, key=words.__getitem__)
        if words is None:
            words = getattr(self, "feature_names_in_", None)
        return check_vocabulary(words, self.n_features_in_)

    # -- scikit-learn ----------------------------------------------------------------------------

    def __sklearn_clone__(self: E) -> E:
        copy = super().__sklearn_clone__()
        # The clone of a vectorizer would have forgotten its words.
        copy.vocabulary = self.vocabulary
        return copy

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        # Whole numbers: scikit-learn has no other tag that says so.
        tags.input_tags.categorical = True
        tags.transformer_tags.preserves_dtype = []
        return tags
