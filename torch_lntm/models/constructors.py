"""Constructors of the models, each of which combines a prior, topics and a word likelihood."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral
from typing import Annotated, Any, cast

import torch
from torch import Tensor
from typing_extensions import TypedDict, Unpack

from torch_lntm.corpus import Corpus, WordVectors
from torch_lntm.errors import ConfigError
from torch_lntm.models.levels import Levels, Periods, learn_levels
from torch_lntm.models.model import TopicModel
from torch_lntm.models.priors.covariates import PREVALENCE, Covariates
from torch_lntm.models.priors.dirichlet import DirichletPrior
from torch_lntm.models.priors.factor import IndependentFactorPrior, Source
from torch_lntm.models.priors.logistic_normal import DiagonalNormalPrior, LogisticNormalPrior
from torch_lntm.models.priors.mixed import MixedPrior
from torch_lntm.models.priors.prior import DocumentPrior
from torch_lntm.models.priors.structural import StructuralPrior
from torch_lntm.models.registry import register
from torch_lntm.models.topics.content import ContentTopics
from torch_lntm.models.topics.dirichlet import DirichletTopics
from torch_lntm.models.topics.dynamic import DynamicTopics
from torch_lntm.models.topics.keywords import Keywords
from torch_lntm.models.topics.normal import NormalTopics
from torch_lntm.models.topics.topics import Topics
from torch_lntm.models.words.dirichlet_multinomial import DirichletMultinomial


class ModelOptions(TypedDict, total=False):
    """Options of every model, with their defaults.

    Args:
        topics: ``(num_topics, num_words)`` word probabilities.
        bursty: Let documents repeat their words (*Doyle & Elkan 2009*). Every document then has its
            own word distribution, which varies around its mixture of topics by an amount that the
            fit estimates, so that single documents influence the topics less; see
            ``docs/choosing.md``.
        vocabulary: Words of the vocabulary, in the order of the columns. Defaults to the words of
            the training documents, if the model is given these.
        dtype: Floating-point type of the parameters: ``torch.float32``, ``torch.float64`` or their
            names.
        seed: Seed of the random initial values.
    """

    topics: Annotated[Tensor | None, None]
    bursty: Annotated[bool, False]
    vocabulary: Annotated[Sequence[str] | None, None]
    dtype: Annotated[torch.dtype | str, torch.float32]
    seed: Annotated[int, 0]


class NormalOptions(ModelOptions, total=False):
    """Further options of models whose topic proportions are logistic-normal.

    Args:
        pseudo_documents: Weight of the prior of the covariance, or of the sources' mixing, in
            documents. Defaults to 2K + 2, and with sources to 2. A large weight shrinks the mixing
            of most Laplace sources to almost 0. 0 gives maximum likelihood.
        pseudo_variance: Variance of the logits in the pseudo-documents. By default it suits the
            engine; see :class:`LogisticNormalPrior`.
    """

    pseudo_documents: Annotated[float | None, None]
    pseudo_variance: Annotated[float | None, None]


class KeywordOptions(ModelOptions, total=False):
    """Further options of models whose topics have a Dirichlet prior.

    Args:
        topic_smoothing: Pseudo-counts of every word in every topic (Dirichlet(1 + smoothing) prior
            at its mode). 0 gives maximum likelihood.
        keywords: Keywords of the first topics by the names of the topics, such as ``{"economy":
            ["tax", "budget"]}``, looked up in ``vocabulary`` (``docs/keywords.md``). ``num_topics``
            counts keyword topics and free topics, and by default all are free.
        keyword_strength: Pseudo-tokens on the keywords of each keyword topic. Defaults to 2 % of
            the training documents' tokens per topic.
        exclusive_keywords: Whether the keywords are absent from free topics. If False, and the
            strength is 0, keywords affect the start of the fit only.
        word_vectors: Vectors of the words, by which topics expect words of similar meaning: an
            array by column, a mapping or frame by word, gensim's KeyedVectors, a function of a list
            of words, or a file (:func:`~torch_lntm.corpus.read_vectors`). By default, words have
            none.
        vector_strength: Pseudo-tokens that the vectors give each topic. Defaults to a number that
            the fit learns.
    """

    topic_smoothing: Annotated[float, 0.05]
    keywords: Annotated[Keywords | Mapping[str, Any] | None, None]
    keyword_strength: Annotated[float | None, None]
    exclusive_keywords: Annotated[bool, True]
    word_vectors: Annotated[Any, None]
    vector_strength: Annotated[float | None, None]


class _Options(NormalOptions, KeywordOptions, total=False):
    """Options of logistic-normal models whose topics have a Dirichlet prior."""


def _learn_words(
    keywords: Keywords | Mapping[str, Any] | None = None,
    keyword_strength: float | None = None,
    exclusive_keywords: bool = True,
    word_vectors: Any = None,
    vocabulary: Sequence[str] | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Arguments of a constructor about words, looked up in the vocabulary."""
    found: dict[str, Any] = {}
    if keywords is not None:
        of = keywords, vocabulary, keyword_strength, exclusive_keywords
        found["keywords"] = Keywords.of(*of)
    elif keyword_strength is not None:
        raise ConfigError("keyword_strength is for keywords; give keywords, too")
    if word_vectors is not None:
        is_saved = isinstance(word_vectors, Mapping) and set(word_vectors) == {"size"}
        read = WordVectors.from_json if is_saved else partial(WordVectors.of, vocabulary=vocabulary)
        found["word_vectors"] = read(word_vectors)
    return found


@register("ctm", learn=_learn_words)
def ctm(
    num_topics: int,
    num_words: int | Corpus,
    *,
    anchored: bool = False,
    loc: Tensor | None = None,
    covariance: Tensor | None = None,
    **options: Unpack[_Options],
) -> TopicModel:
    """The correlated topic model, or logistic-normal topic admixture, with full covariance.

    Every document has logits eta_d ~ Normal(loc, covariance), whose softmax theta_d gives its topic
    proportions, and each of its words comes from a topic drawn from theta_d (*Ahmed & Xing 2007,
    eqs 1–3; Khan & Bouchard 2009, eqs 1–3*). The covariance says which topics occur together and
    which avoid each other, neither of which the Dirichlet prior of :func:`lda` can express.

    Args:
        num_topics: Number of topics K. K = 1 is a unigram model.
        num_words: The training documents, or the size of the vocabulary V.
        anchored: Fix the last component of eta at 0, so that K - 1 components are free instead of
            K.
        loc: ``(latent_dim,)`` prior mean. The latent_dim is K, or K - 1 if anchored.
        covariance: ``(latent_dim, latent_dim)`` prior covariance.

    Returns:
        The model, on the CPU. ``.to(device)`` moves it.

    Raises:
        ConfigError: A size, shape or value is out of range.

    Example:
        >>> ctm = lntm.models.ctm(10, corpus)
        >>> tuple(ctm.topics.probs.shape), tuple(ctm.prior.covariance.shape)
        ((10, 2132), (10, 10))
    """
    prior = LogisticNormalPrior(
        num_topics,
        anchored=anchored,
        loc=loc,
        covariance=covariance,
        **_of_prior(options),
    )
    return _with_topics(prior, num_words, options)


@register("lntm")
def lntm(
    num_topics: int,
    num_words: int | Corpus,
    *,
    loc: Tensor | None = None,
    std: Tensor | None = None,
    topic_scale: float = 10.0,
    **options: Unpack[NormalOptions],
) -> TopicModel:
    """The logistic-normal topic model, with independent logits of theta and normal topic logits.

    This is the model of the *ZhuSuan LNTM tutorial*: eta_d ~ Normal(loc, diag std²), theta_d =
    softmax(eta_d), and each word comes from a topic drawn from theta_d. Its topics are softmax(b_k)
    with b_k ~ Normal(0, topic_scale² I), so that a fit follows gradients where :func:`ctm` has a
    closed form.

    Args:
        num_topics: Number of topics K. K = 1 is a unigram model.
        num_words: The training documents, or the size of the vocabulary V.
        loc: ``(num_topics,)`` prior mean. Defaults to 0.
        std: ``(num_topics,)`` prior standard deviations. Defaults to 1.
        topic_scale: Prior standard deviation of the topics' logits, the tutorial's δ.

    Returns:
        The model, on the CPU. ``.to(device)`` moves it.

    Raises:
        ConfigError: A size, shape or value is out of range.

    Example:
        >>> lntm.models.lntm(10, corpus).topics
        NormalTopics(10 topics, 2132 words, scale=10.0)
    """
    prior = DiagonalNormalPrior(
        num_topics,
        loc=loc,
        std=std,
        **_of_prior(options),
    )
    return _with_topics(prior, num_words, options, partial(NormalTopics, scale=topic_scale))


@register("iftm", learn=_learn_words)
def iftm(
    num_topics: int,
    num_words: int | Corpus,
    num_sources: int | None = None,
    *,
    source: Source = "gaussian",
    loc: Tensor | None = None,
    mixing: Tensor | None = None,
    noise_precision: Tensor | None = None,
    **options: Unpack[_Options],
) -> TopicModel:
    """The independent factor topic model: a few independent sources correlate the topics.

    A document's logits follow from its few independent sources s_d, eta_d ~ Normal(A s_d + loc,
    Λ⁻¹); theta_d = softmax(eta_d), and each word comes from a topic drawn from theta_d
    (*Putthividhya et al. 2009, §2.1*). A source is a theme above the topics, whose column of A says
    which of them it raises and which it lowers. Because there are far fewer sources than pairs of
    topics, large models stay fast and readable.

    Args:
        num_topics: Number of topics K. K = 1 is a unigram model.
        num_words: The training documents, or the size of the vocabulary V.
        num_sources: Number of sources L: less than K, or 1 if K = 1. Defaults to K // 4, and at
            least 1.
        source: ``"gaussian"`` (standard normal) or ``"laplace"`` (density ½ exp(−abs(s))). Laplace
            sources are sparse and easier to interpret.
        loc: ``(num_topics,)`` mean of eta.
        mixing: ``(num_topics, num_sources)`` A. Defaults to small random numbers.
        noise_precision: ``(num_topics,)`` diagonal of Λ.

    Returns:
        The model, on the CPU. ``.to(device)`` moves it.

    Raises:
        ConfigError: A size, shape or value is out of range.

    Example:
        >>> iftm = lntm.models.iftm(12, corpus, num_sources=3, source="laplace")
        >>> tuple(iftm.prior.mixing.shape)
        (12, 3)
    """
    prior = IndependentFactorPrior(
        num_topics,
        max(1, num_topics // 4) if num_sources is None else num_sources,
        source=source,
        loc=loc,
        mixing=mixing,
        noise_precision=noise_precision,
        **_of_prior(options),
        generator=_generator(options),
    )
    return _with_topics(prior, num_words, options)


@register("lda", learn=_learn_words)
def lda(
    num_topics: int,
    num_words: int | Corpus,
    *,
    concentration: float | Sequence[float] | Tensor | None = None,
    symmetric: bool = False,
    learn_concentration: bool = True,
    **options: Unpack[KeywordOptions],
) -> TopicModel:
    """The generative aspect model: latent Dirichlet allocation with point-estimated topics.

    theta_d ~ Dirichlet(concentration), and each word comes from a topic drawn from theta_d (*Minka
    & Lafferty 2002, §2*).

    Args:
        num_topics: Number of topics (aspects) K. K = 1 is a unigram model.
        num_words: The training documents, or the size of the vocabulary V.
        concentration: ``(num_topics,)`` positive numbers, or a single number for all topics.
            Defaults to 1/K. Fits that learn the concentration begin with it only if
            ``start="model"``, because all other starts estimate a new one.
        symmetric: Learn a single number for all topics.
        learn_concentration: Whether fits change the concentration.

    Returns:
        The model, on the CPU. ``.to(device)`` moves it.

    Raises:
        ConfigError: A size, shape or value is out of range.

    Example:
        >>> lda = lntm.models.lda(4, corpus.num_words, concentration=0.5)
        >>> lda.prior.concentration.tolist()
        [0.5, 0.5, 0.5, 0.5]
    """
    prior = DirichletPrior(
        num_topics,
        concentration=concentration,
        symmetric=symmetric,
        learn_concentration=learn_concentration,
        dtype=cast(torch.dtype, options["dtype"]),  # the registry has looked up names
    )
    return _with_topics(prior, num_words, options)


def _learn_columns(
    num_words: int | Corpus,
    prevalence: str | Covariates | Mapping[str, Any] | None = None,
    content: str | Levels | Mapping[str, Any] | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Arguments of :func:`stm` with the covariates learned from the training documents."""
    if not isinstance(num_words, Corpus):
        if isinstance(prevalence, str) or isinstance(content, str):
            raise ConfigError(
                f"stm got a {type(num_words).__name__} for the corpus; its covariates are learned "
                "from the training documents: stm(num_topics, corpus, prevalence='~ party')"
            )
        return _learn_words(**arguments)
    corpus, learned = num_words, _learn_words(**arguments)
    if content is not None and not isinstance(content, Levels | Mapping):
        learned["content"] = learn_levels(corpus, content)
    if prevalence is None and PREVALENCE not in corpus.covariates:
        if content is None:
            raise ConfigError("stm needs prevalence, such as '~ party', or content")
    elif not isinstance(prevalence, Covariates | Mapping):
        learned["prevalence"] = Covariates.of(corpus, prevalence)
    return learned


@register("stm", learn=_learn_columns)
def stm(
    num_topics: int,
    num_words: int | Corpus,
    prevalence: str | Covariates | Mapping[str, Any] | None = None,
    content: str | Levels | Mapping[str, Any] | None = None,
    *,
    anchored: bool = False,
    penalty: float | None = None,
    content_penalty: float = 3.0,
    content_scale: float | None = None,
    **options: Unpack[_Options],
) -> TopicModel:
    """The structural topic model, whose topic proportions and words depend on metadata.

    It is a :func:`ctm` whose prior mean is linear in a document's covariates x_d: eta_d ~
    Normal(Γᵀ(1, x_d), covariance), theta_d = softmax(eta_d), and each word comes from a topic drawn
    from theta_d (*Roberts, Stewart & Airoldi 2016*). With ``content`` the words of a topic vary
    too, between the levels of a column or over time; see :class:`ContentTopics` and
    :class:`DynamicTopics`.

    Args:
        num_topics: Number of topics K. K = 1 is a unigram model.
        num_words: The training documents, from whose metadata the model learns formula and levels.
            If ``prevalence`` and ``content`` are learned already, the size of the vocabulary V
            suffices.
        prevalence: A formula over the metadata, such as ``"~ party + bs(date, df=6)"``, which may
            have random terms such as ``(1 | author)`` (``docs/structural.md``). Defaults to the
            array ``x`` ``(num_docs, num_columns)`` of ``corpus.with_covariates({"prevalence":
            x})``, without an intercept; with ``content`` and without such an array, the mean of eta
            is constant. Learned :class:`Covariates` are accepted too.
        content: Name of a metadata column, or a formula such as ``"~ rw(year)"``, ``"~ rw(date,
            bins='month')"`` or ``"~ rw(day, width=7)"``, with which words move with time. By
            default all documents share the same topics. Learned :class:`Levels` and
            :class:`Periods` are accepted too.
        anchored: As for :func:`ctm`.
        penalty: Precision of the slopes' prior. By default, fits estimate it by maximising the
            evidence (marginal likelihood).
        content_penalty: Precision of the prior of the levels' deviations; see
            :class:`ContentTopics`.
        content_scale: Standard deviation of the steps of words between periods, see
            :class:`DynamicTopics`. Defaults to a deviation for each word, by evidence.

    Returns:
        The model, on the CPU. It keeps all levels and knots, so that it encodes further corpora
        exactly as it encoded the training documents.

    Raises:
        ConfigError: The formula is invalid, a size or value is out of range, or the data of
            covariates or levels are damaged.
        CorpusError: A column is missing, or lacks values.

    Example:
        >>> stm = lntm.models.stm(10, posts, "~ party + year", content="party")
        >>> stm.prior.names, stm.topics.num_levels
        (('Intercept', 'party[T.right]', 'year'), 2)
    """
    if not isinstance(prevalence, Covariates):
        none = Covariates((), (), ())
        prevalence = none if prevalence is None else Covariates.from_json(prevalence)
    kind = MixedPrior if prevalence.random else StructuralPrior
    prior = kind(
        num_topics,
        prevalence,
        anchored=anchored,
        penalty=penalty,
        **_of_prior(options),
    )
    topics = _kind_of_topics(content, content_penalty, content_scale)
    return _with_topics(prior, num_words, options, topics)


def _of_prior(options: Any) -> dict[str, Any]:
    """Options of a normal prior."""
    return {name: options[name] for name in ("pseudo_documents", "pseudo_variance", "dtype")}


def _generator(options: Any) -> torch.Generator:
    if not isinstance(options["seed"], Integral):
        raise ConfigError(f"seed is {options['seed']!r}; expected a whole number")
    return torch.Generator().manual_seed(int(options["seed"]))


def _with_topics(
    prior: DocumentPrior,
    num_words: int | Corpus,
    options: Any,
    kind: Callable[..., Topics] = DirichletTopics,
) -> TopicModel:
    settings = {"probs": options["topics"], "dtype": options["dtype"]}
    if "keywords" in options:
        of_words = ("keywords", "word_vectors", "vector_strength")
        settings |= {"smoothing": options["topic_smoothing"]}
        settings |= {name: options[name] for name in of_words}
    topics = kind(prior.num_topics, num_words, generator=_generator(options), **settings)
    words = DirichletMultinomial(dtype=options["dtype"]) if options["bursty"] else None
    return TopicModel(prior, topics, options["vocabulary"], words)


def _kind_of_topics(content: Any, penalty: float, scale: float | None) -> Callable[..., Topics]:
    """Kind of topics of :func:`stm`: shared by all documents, by level, or moving over periods."""
    if content is None:
        return DirichletTopics
    levels = content if isinstance(content, Levels) else Levels.from_json(content)
    if isinstance(levels, Periods):
        return partial(DynamicTopics, periods=levels, scale=scale)
    return partial(ContentTopics, content=levels, penalty=penalty)
