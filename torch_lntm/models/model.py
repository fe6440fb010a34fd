"""TopicModel: the one Pyro program, composed of a document prior, topics and words."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyro
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from torch_lntm import noise
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.distributions import BagOfWords, WordCounts
from torch_lntm.errors import ConfigError, NumericalError, require_whole
from torch_lntm.kernels.uncompiled import uncompiled
from torch_lntm.latents import DocumentTarget
from torch_lntm.models.priors.prior import DocumentPrior
from torch_lntm.models.sites import (
    capture,
    check_documents,
    check_tools,
    draw_pyro_samples,
    log_prior_counts,
    param_site,
    prior_factor,
)
from torch_lntm.models.topic_table import TopicSummary, TopicTable
from torch_lntm.models.topics.topics import Topics
from torch_lntm.models.words.multinomial import Multinomial
from torch_lntm.models.words.words import Words
from torch_lntm.pickles import VersionedPickle


class Construction(NamedTuple):
    """The record of how a model was made, from which a file rebuilds it.

    Attributes:
        name: The name that its constructor is registered by.
        settings: The constructor's arguments, without tensors and the vocabulary.
    """

    name: str
    settings: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The settings as a file holds them: objects such as fitted formulas as JSON-able data."""
        return {
            name: value.to_json() if hasattr(type(value), "from_json") else value
            for name, value in self.settings.items()
        }


class _Program(nn.Module):
    """The program of a model after its param sites, as a module for ``functional_call``."""

    def __init__(self, model: TopicModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any) -> Tensor:
        return self.model._documents(*args)


class TopicModel(VersionedPickle, nn.Module):
    """A topic model: theta of every document from a prior, and words from the topics.

    >>> import torch_lntm as lntm
    >>> prior = lntm.models.LogisticNormalPrior(10)
    >>> topics = lntm.models.DirichletTopics(10, 500)
    >>> lntm.models.TopicModel(prior, topics, words=lntm.models.DirichletMultinomial()).name
    'LogisticNormalPrior'

    Calling the model with a batch runs it as a Pyro program with the prior's sites (``"eta"``;
    ``"source"`` and ``"eta"``; or ``"theta"``) and ``"counts"`` in the plate ``"documents"``, plus
    one factor each for the priors of the parameters. Parameters appear as Pyro param sites, so
    ``SVI`` optimises them, but they live in this module alone and never in the global parameter
    store: two models share nothing. Handlers may replace them (``poutine.substitute``,
    ``poutine.lift``), and the program runs at the replaced values.

    ``poutine.mask`` with a mask ``(num_docs,)`` leaves documents out.

    Args:
        prior: The document prior.
        topics: The topics.
        vocabulary: One word per column, or None.
        words: The likelihood of a document's words given the mixture of its topics. Defaults to
            :class:`Multinomial`, independent draws.

    Attributes:
        construction: The record of the registered constructor that made this model; None if none
            did. See :func:`torch_lntm.models.register`.

    Raises:
        ConfigError: Prior and topics disagree on the number of topics, or the vocabulary's length
            is not the number of words.
    """

    def __init__(
        self,
        prior: DocumentPrior,
        topics: Topics,
        vocabulary: Sequence[str] | None = None,
        words: Words | None = None,
    ) -> None:
        super().__init__()
        if prior.num_topics != topics.num_topics:
            raise ConfigError(
                f"the prior has {prior.num_topics} topics and the topics are {topics.num_topics}; "
                "make both with the same num_topics"
            )
        if vocabulary is not None and len(vocabulary) != topics.num_words:
            raise ConfigError(
                f"the vocabulary has {len(vocabulary)} words; expected {topics.num_words}"
            )
        self.prior = prior
        self.topics = topics
        self.words = Multinomial() if words is None else words
        self.vocabulary = None if vocabulary is None else tuple(vocabulary)
        self.construction: Construction | None = None

    @property
    def name(self) -> str:
        """The name of the constructor that made this model, else that of the prior's class."""
        return type(self.prior).__name__ if self.construction is None else self.construction.name

    @property
    def num_topics(self) -> int:
        """Number of topics K."""
        return self.topics.num_topics

    @property
    def num_words(self) -> int:
        """Size of the vocabulary V."""
        return self.topics.num_words

    @property
    def latent_dim(self) -> int:
        """Dimension of the latent variable that theta is a function of."""
        return self.prior.latent_dim

    @property
    def is_conjugate(self) -> bool:
        """Whether Gibbs sampling of the tokens' topics draws documents' theta."""
        return self.prior.space_type.conjugate and self.words.independent

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.topics.device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the parameters."""
        return self.topics.dtype

    @property
    def config(self) -> dict[str, Any]:
        """JSON-able description: the settings of the constructor, else what the parts print."""
        if self.construction is None:
            return {name: repr(part) for name, part in self.named_children()}
        return self.construction.to_json()

    def with_parts(
        self,
        prior: DocumentPrior | None = None,
        topics: Topics | None = None,
        vocabulary: Sequence[str] | None = None,
    ) -> TopicModel:
        """A model of other parts, which has all that is not given in common with this one.

        For documents whose columns are not known take ``model.with_parts(model.prior.averaged())``;
        for the topics of one group ``model.with_parts(topics=model.topics.in_group("Liberal"))``.

        Args:
            prior: The document prior.
            topics: The topics.
            vocabulary: One word per column.

        Raises:
            ConfigError: As for the class.
        """
        return TopicModel(
            self.prior if prior is None else prior,
            self.topics if topics is None else topics,
            self.vocabulary if vocabulary is None else vocabulary,
            self.words,
        )

    def theta(self, latent: Tensor) -> Tensor:
        """Topic proportions ``(..., num_topics)`` from eta or theta ``(..., latent_dim)``."""
        return self.prior.theta(latent)

    def plate(self, batch: DocumentBatch, *args: Any, **kwargs: Any) -> pyro.plate:
        """The plate ``"documents"`` of a batch, at the documents' positions in the corpus.

        Autoguides need it for mini-batches: ``AutoNormal(model, create_plates=model.plate)``.
        Without it they draw documents of their own.

        Args:
            batch: The documents.
            *args: The program's other arguments, which do not matter here.
            **kwargs: As ``args``.
        """
        return pyro.plate("documents", batch.corpus_size, subsample=batch.index)

    @uncompiled
    def forward(
        self, batch: DocumentBatch, sample_topics: bool = False, log_prior: bool = True
    ) -> Tensor:
        """The Pyro program.

        Args:
            batch: The documents.
            sample_topics: Make the topics a latent variable, the site ``"topics"``, in place of
                their parameters and the prior of these. ``MCMC(NUTS(model)).run(batch,
                sample_topics=True)`` then draws topics and documents together, which is for small
                corpora. The topics can change places: posterior draws agree up to a permutation.
            log_prior: Count the log priors of the parameters, by the factors ``"topics_prior"`` and
                ``"document_prior"``. A program that calls one model several times counts them at
                one of the calls. Defaults to True.

        Returns:
            eta or theta ``(num_docs, latent_dim)``.

        Raises:
            ConfigError: One of these holds. The batch has another vocabulary. The model's dtype is
                of low precision. A handler gives a param site a value of another shape. A guide's
                plate holds other documents than the batch. A prior of the caller's was put on some
                of the parameters that share a log prior. ``torch.jit`` runs the program, or an
                enumerating ELBO runs the program of a float32 model.
        """
        check_tools(self.dtype)
        batch = self.check_batch(batch)
        replaced, drawn = {}, set()
        for name, parameter in self.named_parameters():
            if sample_topics and name.startswith("topics."):
                continue
            site = param_site(parameter, name)
            if site.value is not None:
                replaced[f"model.{name}"] = site.value
            if site.is_drawn:
                drawn.add(name)
        arguments = (batch, sample_topics, log_prior, drawn)
        with torch.autocast(self.device.type, enabled=False):
            if not replaced:
                return self._documents(*arguments)
            return torch.func.functional_call(_Program(self), replaced, arguments)

    def _documents(
        self, batch: DocumentBatch, sample_topics: bool, log_prior: bool, drawn: set[str]
    ) -> Tensor:
        """The program at the present parameters, of which those called ``drawn`` are draws."""
        drawn = drawn | draw_pyro_samples(self)
        documents = self.plate(batch)
        check_documents(documents, batch.index)
        if sample_topics:
            topics = self.topics.emit()
        else:
            topics, topics_prior = self.topics.probs_and_log_prior()
            if log_prior and log_prior_counts(self.topics, "topics", drawn):
                prior_factor("topics_prior", topics_prior, documents)
        if log_prior and log_prior_counts(self.prior, "prior", drawn):
            prior_factor("document_prior", self.prior.log_prior(), documents)
        flat = type(self.words).log_prior is Words.log_prior
        if log_prior and not flat and log_prior_counts(self.words, "words", drawn):
            prior_factor("words_prior", self.words.log_prior(), documents)
        with documents:
            latent = self.prior.emit(batch)
            # Columns of other groups are no words that the document could have; generate() draws.
            lengths = batch.lengths if self.topics.num_groups == 1 else None
            words = BagOfWords(self.theta(latent), topics, lengths, capture(self.words))
            pyro.sample("counts", words, obs=WordCounts(batch))
        return latent

    @torch.no_grad()
    def bind(
        self, batch: DocumentBatch, *, dtype: torch.dtype | None = None, padded: bool = False
    ) -> DocumentTarget:
        """This model's density of some documents, in the coordinates of the prior's latent space.

        Args:
            batch: The documents.
            dtype: Floating-point type to compute in; by default the model's.
            padded: As for :class:`~torch_lntm.latents.DocumentTarget`.

        Returns:
            The target, at the present parameters: ``log_joint(z)`` is the program's density, times
            the Jacobian of its sites in z, beside the log likelihood.
        """
        batch = self.check_batch(batch)
        dtype = self.dtype if dtype is None else dtype
        space = self.prior.space(batch).to(dtype)
        topics = self.topics.probs.detach().to(dtype)
        words = copy.deepcopy(self.words).requires_grad_(False)
        return DocumentTarget(space, topics, batch.to(dtype=dtype), words, padded)

    def log_prior(self) -> Tensor:
        """Log prior density of the parameters, up to a constant (scalar, nats)."""
        return self.topics.log_prior() + self.prior.log_prior() + self.words.log_prior()

    @torch.no_grad()
    def generate(
        self,
        lengths: Sequence[int] | Tensor,
        *,
        seed: int = 0,
        covariates: Mapping[str, Any] | None = None,
    ) -> tuple[Corpus, dict[str, Tensor]]:
        """Draw a corpus from the model.

        A document's latent variables are a function of the seed and its position alone: they do
        not depend on the device, nor on how many documents there are.

        Args:
            lengths: ``(num_docs,)`` tokens of each document.
            seed: Seed.
            covariates: ``(num_docs, ...)`` arrays by name, where prior or topics have covariates.
                The corpus has them too.

        Returns:
            The corpus, and the documents' latent variables ``(num_docs, dim)`` by the names of
            their sites.

        Raises:
            ConfigError: A length is no whole number from 0 up, or the model's dtype is of low
                precision.
            CorpusError: There are no documents, or covariates are not one row for each of them.
        """
        self._check_dtype()
        # A corpus's lengths are read-only, which only a copy of them may forget.
        given = lengths if isinstance(lengths, Tensor) else torch.tensor(lengths)
        bad = ~(given >= 0) | (given != given.round())
        if given.dim() != 1 or bool(bad.any()):
            raise ConfigError(
                f"lengths of shape {tuple(given.shape)}, the first that cannot be one "
                f"{given[bad].tolist()[:1]}; expected a whole number of tokens for each document"
            )
        sizes = given.to(self.device, torch.int64)
        no_words = Corpus.from_matrix(
            sp.csr_matrix((len(sizes), self.num_words)), allow_empty=True
        ).with_covariates(covariates or {})
        empty = no_words.batch(device=self.device, dtype=self.dtype)
        space = self.prior.space(empty)
        latents = space.latents(space.draw(noise.document_keys(seed, empty.index, 1))[0])
        generator = torch.Generator(self.device).manual_seed(seed)
        theta, places, parts = self.theta(latents[self.prior.latent]), [], []
        for rows, topics in self.topics.by_group(empty, self.topics.probs):
            words = BagOfWords(theta[rows], topics, sizes[rows], self.words)
            counts = words.sample_counts(generator)
            places.append(rows.cpu())
            parts.append(Corpus.from_matrix(counts, allow_empty=True).to_scipy())
        order = torch.cat(places).argsort().numpy()
        corpus = Corpus.from_matrix(sp.vstack(parts, "csr")[order], vocabulary=self.vocabulary)
        return corpus.with_covariates(no_words.covariates), latents

    def topic_correlation(self) -> Tensor:
        """Correlations ``(num_topics, num_topics)`` of the centred logits of theta, float64.

        From the covariance projected on the contrasts, which is what the data identify.
        """
        covariance = self.prior.contrast_covariance()
        scale = covariance.diagonal().clamp_min(torch.finfo(torch.float64).tiny).sqrt()
        return (covariance / scale[:, None] / scale).fill_diagonal_(1.0)

    def words_at(self, positions: Sequence[int]) -> tuple[str, ...]:
        """The words at some positions of the vocabulary; ``#17`` if there is no vocabulary."""
        words = self.vocabulary
        return tuple(f"#{v}" if words is None else words[v] for v in positions)

    @torch.no_grad()
    def topic_table(
        self,
        shares: Sequence[float] | Tensor | None = None,
        *,
        num_words: int = 8,
        num_correlated: int = 0,
    ) -> TopicTable:
        """The topics in words, as a table to print.

        A model knows no documents, so it has no shares of its own. ``result.topic_table()`` of a
        fit and ``lntm.load_run(folder).topic_table()`` have them.

        Args:
            shares: ``(num_topics,)`` mean proportions, by which topics are sorted, the largest
                first. Defaults to None: the topics keep their order.
            num_words: Words of each topic.
            num_correlated: Number of the most positively correlated topics listed with each topic,
                and of the most negatively correlated ones.

        Returns:
            The table.

        Raises:
            ConfigError: ``shares`` has another length, or a number is below 0.

        Example:
            >>> print(lntm.models.ctm(2, 3, vocabulary=["cat", "dog", "owl"]).topic_table())
            topic   top words
                0   ...
                1   ...
        """
        if shares is not None and len(shares) != self.num_topics:
            raise ConfigError(
                f"{len(shares)} shares for {self.num_topics} topics; expected as many"
            )
        require_whole(1, num_words=num_words)
        require_whole(0, num_correlated=num_correlated)
        positions, probabilities = self.topics.top_words(num_words)
        correlation = self.topic_correlation().cpu()
        order = correlation.fill_diagonal_(0.0).argsort(stable=True, dim=-1, descending=True)
        rows = []
        for k, at in enumerate(positions.tolist()):
            pairs = [(j, float(correlation[k, j])) for j in order[k].tolist()]
            rows.append(
                TopicSummary(
                    topic=k,
                    share=None if shares is None else float(shares[k]),
                    words=self.words_at(at),
                    probabilities=tuple(probabilities[k].tolist()),
                    correlated=tuple((j, r) for j, r in pairs if r > 0)[:num_correlated],
                    opposed=tuple((j, r) for j, r in reversed(pairs) if r < 0)[:num_correlated],
                )
            )
        return TopicTable(tuple(sorted(rows, key=lambda row: -(row.share or 0.0))))

    def check_parameters(self) -> None:
        """Raise if a parameter is not finite.

        Raises:
            NumericalError: It names the parameter.
        """
        parameters = dict(self.named_parameters())
        if not parameters:
            return
        finite = torch.stack([parameter.isfinite().all() for parameter in parameters.values()])
        # A list at once: the host waits for a GPU each time that it asks.
        for name, is_finite in zip(parameters, finite.tolist(), strict=True):
            if not is_finite:
                raise NumericalError(f"the model's parameter {name} is not finite")

    def encode(self, corpus: Corpus) -> Corpus:
        """Check that a corpus fits the model, and derive what its batches need to carry.

        Prior and topics derive arrays from the documents' metadata: the design of a formula, the
        positions of groups. The arrays travel with the corpus through selection and splits. Encode
        a corpus once if several functions take it, and before you make batches::

            corpus = model.encode(corpus)
            batch = corpus.batch()

        Engines, evaluators and reports encode whatever corpus they get. An encoded corpus costs
        them nothing.

        Args:
            corpus: The documents. Arrays that another model derived are replaced.

        Returns:
            The corpus, encoded. It is the same object if it was encoded already, or if prior and
            topics derive nothing.

        Raises:
            ConfigError: It has another number of words; or where both have a vocabulary, other
                words or another order; or the model's dtype is of low precision.
            CorpusError: The documents lack what the covariates are made of.
        """
        self._check_dtype()
        cure = "re-index the corpus with corpus.with_vocabulary(model.vocabulary)"
        if corpus.num_words != self.num_words:
            raise ConfigError(
                f"the corpus has {corpus.num_words} words and the model {self.num_words}; {cure}"
            )
        if None in (corpus.vocabulary, self.vocabulary) or corpus.vocabulary == self.vocabulary:
            return self.prior.encode(self.topics.encode(corpus))
        pairs = enumerate(zip(corpus.vocabulary or (), self.vocabulary or (), strict=True))
        column, (theirs, ours) = next((v, pair) for v, pair in pairs if pair[0] != pair[1])
        raise ConfigError(
            f"the corpus has other words than the model, or has them in another order: column "
            f"{column} is {theirs!r}, in the model {ours!r}; {cure}"
        )

    def _check_dtype(self) -> None:
        if self.dtype not in (torch.float32, torch.float64):
            raise ConfigError(
                f"the model's parameters are of type {self.dtype}; expected torch.float32 or "
                "torch.float64: take model.float()"
            )

    def check_batch(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch on this model's device, in its dtype, with words in the topics' columns.

        Raises:
            ConfigError: It is no batch, it has another vocabulary size, or the model's dtype is of
                low precision.
        """
        if not isinstance(batch, DocumentBatch):
            raise ConfigError(
                f"documents given as {type(batch).__name__}; expected a DocumentBatch, which "
                "corpus.batch() makes, or corpus.batches() in parts"
            )
        self._check_dtype()
        if batch.num_words not in (self.num_words, self.topics.num_groups * self.num_words):
            raise ConfigError(
                f"documents over {batch.num_words} words given to a model of {self.num_words}; "
                "re-index the corpus with corpus.with_vocabulary(model.vocabulary)"
            )
        return self.topics.assign_groups(batch.to(self.device, self.dtype))


def require_model(model: Any) -> None:
    """Raise if something else was given for the model, such as the corpus.

    Raises:
        ConfigError: It says so.
    """
    if not isinstance(model, TopicModel):
        swapped = "; the model comes first, then the corpus" if isinstance(model, Corpus) else ""
        raise ConfigError(f"expected a topic model, got a {type(model).__name__}{swapped}")
