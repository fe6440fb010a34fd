"""TopicModel, a Pyro program composed of a document prior, topics and words."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyro
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from torch_lntm import noise
from torch_lntm.budget import find_device
from torch_lntm.corpus import Corpus, DocumentBatch, WordVectors
from torch_lntm.distributions import BagOfWords, WordCounts
from torch_lntm.errors import ConfigError, NumericalError, require_whole
from torch_lntm.kernels.uncompiled import uncompiled
from torch_lntm.latents import DocumentTarget
from torch_lntm.models.names import check_topic_names, is_named, labels, name_words
from torch_lntm.models.parts import Method
from torch_lntm.models.priors.prior import DocumentPrior
from torch_lntm.models.sites import (
    capture,
    check_callers,
    check_documents,
    draw_pyro_samples,
    log_prior_counts,
    param_site,
    prior_factor,
)
from torch_lntm.models.topic_table import TopicSummary, TopicTable
from torch_lntm.models.topics.topics import Topics
from torch_lntm.models.words.words import Multinomial, Words


class Construction(NamedTuple):
    """The constructor call that made a model, by name and settings.

    Saved models hold this record, so that loading can call the constructor again.

    Attributes:
        name: Registered name of the constructor.
        settings: Arguments of the call, except for tensors and the vocabulary.
    """

    name: str
    settings: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON-able data. Objects such as fitted formulas are converted."""
        return {
            name: value.to_json() if hasattr(type(value), "from_json") else value
            for name, value in self.settings.items()
        }


class TopicModel(nn.Module):
    """A topic model: a prior of each document's theta, the topics, and a likelihood of words.

    A model is a Pyro program. Called with a batch, it runs the plate ``"documents"``, which holds
    the sites of the prior (``"eta"``; ``"source"`` and ``"eta"``; or ``"theta"``) and the observed
    site ``"counts"``, and it adds the log priors of the parameters as factors. The parameters are
    param sites, so that ``SVI`` optimises them, but their values live in this module: the global
    parameter store holds only their names, and two models never share values. Handlers such as
    ``poutine.substitute`` and ``poutine.lift`` replace the values, and ``poutine.mask`` with a mask
    ``(num_docs,)`` leaves documents out.

    Args:
        prior: The document prior.
        topics: The topics.
        vocabulary: The word of each column, or ``None``.
        words: Likelihood of a document's words given its mixture of topics. Defaults to
            :class:`Multinomial`, independent draws.

    Attributes:
        construction: Record of the registered constructor call; see
            :func:`torch_lntm.models.register`. ``None`` for a model made directly by this class.

    Raises:
        ConfigError: Prior and topics differ in the number of topics, or the length of the
            vocabulary differs from the number of words.

    Example:
        >>> prior = lntm.models.LogisticNormalPrior(10)
        >>> topics = lntm.models.DirichletTopics(10, 500)
        >>> bursty = lntm.models.TopicModel(prior, topics, words=lntm.models.DirichletMultinomial())
        >>> bursty.num_topics, bursty.num_words
        (10, 500)
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
        keywords = topics.keywords
        names = None if keywords is None else keywords.topic_names(topics.num_topics)
        self._topic_names = check_topic_names(names, topics.num_topics)
        self.construction: Construction | None = None

    @property
    def name(self) -> str:
        """Registered name of the constructor, or the class name of the prior."""
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
    def topic_names(self) -> tuple[str, ...]:
        """Names of the topics, where a topic without one has its number as text.

        Tables, plots, reports and exports show the names, and saved models keep them, but no number
        depends on them. Set a name (or None) for each topic, in order; or the names of some topics
        by number, which removes all others; or None to remove every name. A name has at most 80
        printable characters, of which at least one is not a digit. White space at its ends is
        removed.

        Raises:
            ConfigError: The number of names is wrong, a name is unsuitable, or two topics have the
                same name.

        Example:
            >>> named = lntm.models.ctm(3, 500)
            >>> named.topic_names = {1: "economy"}
            >>> named.topic_names
            ('0', 'economy', '2')
        """
        return self._topic_names

    @topic_names.setter
    def topic_names(self, names: Sequence[str | None] | Mapping[int, str] | None) -> None:
        self._topic_names = check_topic_names(names, self.num_topics)

    @property
    def has_topic_names(self) -> bool:
        """Whether at least one topic has a name."""
        return any(is_named(self._topic_names, k) for k in range(self.num_topics))

    @property
    def latent_dim(self) -> int:
        """Dimension of the latent variable that determines theta."""
        return self.prior.latent_dim

    @property
    def is_conjugate(self) -> bool:
        """Whether theta can be drawn by Gibbs sampling, given the topics of the tokens."""
        return self.prior.space_type.conjugate and self.words.independent

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return self.topics.device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the parameters."""
        return self.topics.dtype

    @property
    def config(self) -> dict[str, Any]:
        """JSON-able settings of the registered constructor, or else the ``repr`` of each part."""
        if self.construction is None:
            return {name: repr(part) for name, part in self.named_children()}
        return self.construction.to_json()

    def with_parts(
        self,
        prior: DocumentPrior | None = None,
        topics: Topics | None = None,
        vocabulary: Sequence[str] | None = None,
    ) -> TopicModel:
        """A model with some parts replaced, which shares the others with this one.

        The names of the topics stay, unless the number of topics changes.

        ``model.with_parts(model.prior.averaged())`` accepts documents with unknown covariates.
        ``model.with_parts(topics=model.topics.at("Liberal"))`` has the topics of a single
        level.

        Args:
            prior: The new document prior.
            topics: The new topics.
            vocabulary: The new vocabulary.

        Raises:
            ConfigError: The parts differ in the number of topics, or in the number of words.

        Example:
            >>> content = lntm.models.stm(5, posts, content="party")
            >>> content.with_parts(topics=content.topics.at("left")).topics
            FixedTopics(5 topics, 2132 words)
        """
        model = TopicModel(
            self.prior if prior is None else prior,
            self.topics if topics is None else topics,
            self.vocabulary if vocabulary is None else vocabulary,
            self.words,
        )
        if model.num_topics == self.num_topics:
            model.topic_names = self.topic_names
        return model

    def with_words(self, words: Sequence[str], vectors: Any) -> TopicModel:
        """The model with further words, which its topics know by their vectors only.

        A topic expects a word near its own vector, also if the training documents lack it. Words
        without a vector are left out, as are words that the model has. If no word is left, it
        returns the model itself.

        Args:
            words: The words.
            vectors: Their vectors, of the source and dimension of the model's own, in any form that
                ``word_vectors`` of :func:`~torch_lntm.models.ctm` takes.

        Raises:
            ConfigError: The topics have no word vectors or differ by document, or the vectors have
                another dimension.

        Example:
            >>> vectors = {word: [len(word), word.count("e")] for word in corpus.vocabulary}
            >>> model = lntm.models.ctm(3, corpus, word_vectors=vectors)
            >>> longer = model.with_words(["zygote"], {"zygote": [6.0, 2.0]})
            >>> longer.num_words - model.num_words, longer.vocabulary[-1]
            (1, 'zygote')
        """
        if self.vocabulary is None:
            raise ConfigError("the model has no vocabulary; set model.vocabulary to its words")
        known = set(self.vocabulary)
        new = [word for word in dict.fromkeys(words) if word not in known]
        found = WordVectors.of(vectors, new, required=False) if new else None
        if found is None or not found.found.any():
            return self
        new = [word for word, has in zip(new, found.found, strict=True) if has]
        topics = self.topics.with_words(WordVectors(found.vectors[found.found]))
        model = self.with_parts(topics=topics, vocabulary=[*self.vocabulary, *new])
        if self.construction is not None:
            size = {"size": [topics.num_words, found.vectors.shape[1]]}
            settings = {"num_words": topics.num_words, "word_vectors": size}
            old = self.construction
            model.construction = old._replace(settings=old.settings | settings)
        return model

    def push_to_hub(self, name: str, **options: Any) -> str:
        """Upload the model to a repository of the Hugging Face Hub, which is made if it is missing.

        It gets the files of :func:`~torch_lntm.io.save_model`, with the card as its page. The
        vocabulary is among them, so look at the words before you publish them.

        Args:
            name: Name of the repository, such as ``"user/name"``.
            **options: Options of ``huggingface_hub.ModelHubMixin.push_to_hub``, such as
                ``private=True``, ``token``, ``branch`` and ``commit_message``.

        Returns:
            Address of the commit.

        Raises:
            ConfigError: The extra ``files`` is not installed, or the model cannot be saved.
        """
        from torch_lntm.io.hub import push_model

        return push_model(self, name, **options)

    @staticmethod
    def from_pretrained(name: str | Path, **options: Any) -> TopicModel:
        """Load a model from a repository of the Hugging Face Hub, or from a folder.

        Only tensors, JSON and words are downloaded, and no code is executed. If the model's
        constructor is of a plug-in, import the plug-in first.

        Args:
            name: Name of the repository, such as ``"user/name"``, or the path of a folder.
            **options: Options of ``huggingface_hub.ModelHubMixin.from_pretrained``, such as
                ``revision``, ``token`` and ``local_files_only=True``.

        Returns:
            The model, on the CPU.

        Raises:
            ConfigError: The extra ``files`` is not installed, or the files are damaged or missing.

        Example:
            >>> folder = lntm.save_model(model, "model")
            >>> lntm.models.TopicModel.from_pretrained(folder).num_topics
            10
        """
        from torch_lntm.io.hub import pull_model

        return pull_model(name, **options)

    def theta(self, latent: Tensor) -> Tensor:
        """Topic proportions ``(..., num_topics)`` from eta or theta ``(..., latent_dim)``."""
        return self.prior.theta(latent)

    def plate(self, batch: DocumentBatch, *args: Any, **kwargs: Any) -> pyro.plate:
        """The plate ``"documents"`` for a batch, indexed by the documents' positions in the corpus.

        Autoguides need this plate for mini-batches, ``AutoNormal(model,
        create_plates=model.plate)``; without it they would draw their own subsample of documents.

        Args:
            batch: The documents.
            *args: Further arguments of the program, ignored.
            **kwargs: As ``args``.
        """
        return pyro.plate("documents", batch.corpus_size, subsample=batch.index)

    @uncompiled
    def forward(
        self, batch: DocumentBatch, sample_topics: bool = False, log_prior: bool = True
    ) -> Tensor:
        """Run the model as a Pyro program.

        Args:
            batch: The documents.
            sample_topics: Whether to sample the topics at the sites of ``model.topics.sites()``,
                such as ``"topics"``, instead of their param sites and log prior. For small corpora,
                ``MCMC(NUTS(model)).run(batch, sample_topics=True)`` then draws topics and documents
                together. Draws are identified up to a permutation of the topics.
            log_prior: Whether to add the log priors of the parameters, as the factors
                ``"topics_prior"``, ``"document_prior"`` and, for words with a prior,
                ``"words_prior"``. If a program calls the model several times, add them in a single
                call.

        Returns:
            eta or theta ``(num_docs, latent_dim)``.

        Raises:
            ConfigError: The batch has another vocabulary size, or the model's dtype is neither
                float32 nor float64. A handler gives a param site a value of another shape. The
                plate of a guide holds other documents than the batch. A kernel of
                ``pyro.infer.mcmc`` scores a mini-batch. The caller's priors cover
                only some of the parameters of a log prior. ``torch.jit`` runs the program.
        """
        batch = self.check_batch(batch)
        check_callers(batch)
        replaced, drawn = {}, set()
        for name, parameter in self.named_parameters():
            if sample_topics and name.startswith("topics."):
                continue
            value, is_drawn = param_site(parameter, name)
            if value is not None:
                replaced[f"part.{name}"] = value
            if is_drawn:
                drawn.add(name)
        arguments = (batch, sample_topics, log_prior, drawn)
        with torch.autocast(self.device.type, enabled=False):
            if not replaced:
                return self._documents(*arguments)
            return torch.func.functional_call(Method(self, "_documents"), replaced, arguments)

    def _documents(
        self, batch: DocumentBatch, sample_topics: bool, log_prior: bool, drawn: set[str]
    ) -> Tensor:
        """Run the program at the current parameters.

        Args:
            batch: The documents.
            sample_topics: As for :meth:`forward`.
            log_prior: As for :meth:`forward`.
            drawn: Names of the parameters drawn from priors of the caller.
        """
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
        has_flat_prior = type(self.words).log_prior is Words.log_prior
        if log_prior and not has_flat_prior and log_prior_counts(self.words, "words", drawn):
            prior_factor("words_prior", self.words.log_prior(), documents)
        with documents:
            latent = self.prior.emit(batch)
            # Without lengths the site cannot be sampled. With levels, a sample would hold words in
            # the columns of other levels, so lengths are left out. generate() draws by level.
            lengths = batch.lengths if self.topics.num_levels == 1 else None
            words = BagOfWords(self.theta(latent), topics, lengths, capture(self.words))
            pyro.sample("counts", words, obs=WordCounts(batch))
        return latent

    @torch.no_grad()
    def bind(
        self, batch: DocumentBatch, *, dtype: torch.dtype | None = None, padded: bool = False
    ) -> DocumentTarget:
        """The density of a batch's documents, in the coordinates of the prior's latent space.

        Args:
            batch: The documents.
            dtype: Floating-point type of the computation. Defaults to the dtype of the model.
            padded: As for :class:`~torch_lntm.latents.DocumentTarget`.

        Returns:
            The target at the current parameters. Its ``log_joint(z)`` gives the log prior density
            of z and the log likelihood, each ``(..., num_docs)``. The prior density of z is the
            program's density of the sites times the Jacobian determinant of the sites in z.
        """
        batch = self.check_batch(batch)
        dtype = self.dtype if dtype is None else dtype
        space = self.prior.space(batch).to(dtype)
        topics = self.topics.probs.detach().to(dtype)
        words = self.words
        if not words.independent:  # it has parameters, which later M-steps change
            words = copy.deepcopy(words).requires_grad_(False)
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

        A document's latent variables depend only on the seed and on its position, so they are the
        same on all devices, up to rounding, and for any number of documents.

        Args:
            lengths: ``(num_docs,)`` number of tokens of each document.
            seed: Seed of the draws.
            covariates: ``(num_docs, ...)`` arrays by name, for priors and topics with covariates.
                The corpus carries them too.

        Returns:
            The corpus, and the latent variables ``(num_docs, dim)`` by the names of their sites.

        Raises:
            ConfigError: A length or the seed is no whole number from 0, or the model's dtype is
                neither float32 nor float64.
            CorpusError: There are no documents, or the covariates have another number of rows.

        Example:
            >>> corpus, latents = model.generate([50, 80, 20], seed=1)
            >>> corpus.num_docs, corpus.num_tokens, tuple(latents["eta"].shape)
            (3, 150, (3, 10))
        """
        self._check_dtype()
        require_whole(0, seed=seed)
        values = np.asarray(lengths.tolist() if isinstance(lengths, Tensor) else lengths)
        numbers = values.astype(float)  # as whole numbers, 10**19 would overflow
        bad = ~((numbers >= 0) & (numbers < 2**63)) | (numbers != numbers.round())
        bad |= values.dtype == bool
        if values.ndim != 1 or bad.any():
            raise ConfigError(
                f"lengths of shape {tuple(values.shape)}, first invalid length "
                f"{values[bad].tolist()[:1]}; expected a whole number of tokens for each document"
            )
        sizes = torch.tensor(values.astype(np.int64), device=self.device)
        no_words = Corpus.from_matrix(
            sp.csr_matrix((len(sizes), self.num_words)), allow_empty=True
        ).with_covariates(covariates or {})
        empty = no_words.batch(device=self.device, dtype=self.dtype)
        space = self.prior.space(empty)
        latents = space.latents(space.draw(noise.document_keys(seed, empty.index, 1))[0])
        generator = torch.Generator(self.device).manual_seed(seed)
        theta, positions, parts = self.theta(latents[self.prior.latent]), [], []
        for rows, topics in self.topics.by_level(empty, self.topics.probs):
            words = BagOfWords(theta[rows], topics, sizes[rows], self.words)
            counts = words.sample_counts(generator)
            positions.append(rows.cpu())
            parts.append(Corpus.from_matrix(counts, allow_empty=True).to_scipy())
        order = torch.cat(positions).argsort().numpy()
        corpus = Corpus.from_matrix(sp.vstack(parts, "csr")[order], vocabulary=self.vocabulary)
        return corpus.with_covariates(no_words.covariates), latents

    def topic_correlation(self) -> Tensor:
        """Correlations ``(num_topics, num_topics)`` of the centred logits of theta, float64.

        They come from the covariance of the contrasts, because that is the only part of the prior
        covariance that data identify.
        """
        covariance = self.prior.contrast_covariance()
        scale = covariance.diagonal().clamp_min(torch.finfo(torch.float64).tiny).sqrt()
        return (covariance / scale[:, None] / scale).fill_diagonal_(1.0)

    def words_at(self, positions: Sequence[int]) -> tuple[str, ...]:
        """The words at some positions. Without a vocabulary, word 17 reads as ``#17``.

        Args:
            positions: Positions in the vocabulary.
        """
        words = self.vocabulary
        return tuple(f"#{v}" if words is None else words[v] for v in positions)

    @torch.no_grad()
    def topic_table(
        self,
        shares: Sequence[float] | Tensor | None = None,
        *,
        top_n: int = 8,
        num_correlated: int = 0,
    ) -> TopicTable:
        """The topics in words, as a table to print.

        Prefer ``result.topic_table()`` or ``lntm.load_run(folder).topic_table()`` after a fit,
        because they also know the topics' shares of the documents.

        Args:
            shares: ``(num_topics,)`` mean proportions, by which the table lists the largest topic
                first. Without them it lists the topics by number.
            top_n: Number of words for each topic.
            num_correlated: Largest number of positively correlated topics to list for each topic,
                and of negatively correlated topics.

        Returns:
            The table.

        Raises:
            ConfigError: ``shares`` has another length, ``top_n`` is below 1, or
                ``num_correlated`` is below 0.

        Example:
            >>> print(lntm.models.ctm(2, 3, vocabulary=["cat", "dog", "owl"]).topic_table())
            topic   top words
                0   ...
                1   ...
        """
        if shares is not None and len(shares) != self.num_topics:
            raise ConfigError(
                f"{len(shares)} shares for {self.num_topics} topics; expected one for each topic"
            )
        require_whole(1, top_n=top_n)
        require_whole(0, num_correlated=num_correlated)
        positions, probabilities = self.topics.top_words(top_n)
        correlation = self.topic_correlation().cpu()
        order = correlation.fill_diagonal_(0.0).argsort(stable=True, dim=-1, descending=True)
        rows = []
        for k, at in enumerate(positions.tolist()):
            pairs = [(j, float(correlation[k, j])) for j in order[k].tolist()]
            rows.append(
                TopicSummary(
                    topic=k,
                    name=self.topic_names[k],
                    share=None if shares is None else float(shares[k]),
                    words=self.words_at(at),
                    probabilities=tuple(probabilities[k].tolist()),
                    correlated=tuple((j, r) for j, r in pairs if r > 0)[:num_correlated],
                    opposed=tuple((j, r) for j, r in reversed(pairs) if r < 0)[:num_correlated],
                )
            )
        rows.sort(key=lambda row: -(row.share or 0.0))
        words = name_words(
            self.topics.mean_probs, self.words_at, 0 if self.vocabulary is None else 1
        )
        return TopicTable(rows, labels(self.topic_names, words))

    def check_parameters(self) -> None:
        """Raise if a parameter is not finite.

        Raises:
            NumericalError: A parameter contains NaN or infinity. The message names the parameter.
        """
        parameters = {name: x.detach() for name, x in self.named_parameters() if x.numel()}
        # An extreme of values with NaN is itself NaN, and takes a tenth of the time of all flags.
        finite = [torch.stack(x.aminmax()).isfinite().all() for x in parameters.values()]
        # One transfer of all flags: the host waits for a GPU at each transfer.
        flags = torch.stack(finite).tolist() if finite else []
        for name, is_finite in zip(parameters, flags, strict=True):
            if not is_finite:
                raise NumericalError(f"the model's parameter {name} is not finite")

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move the model, as ``torch.nn.Module.to`` does.

        Raises:
            ConfigError: The device is missing.
        """
        for value in (*args, *kwargs.values()):
            if isinstance(value, (str, torch.device)):
                find_device(value)
        return super().to(*args, **kwargs)

    def encode(self, corpus: Corpus) -> Corpus:
        """Check a corpus and add the arrays for this model's batches.

        The arrays are the design matrix of a formula and the documents' levels, which the prior and
        the topics derive from the metadata. Engines, evaluators and reports encode their corpus
        themselves. Do so yourself before you make batches by hand, or once before several calls
        that need the arrays, since encoding twice costs nothing. Selections and splits of the
        corpus keep the arrays.

        Args:
            corpus: The documents. Arrays derived by another model are replaced.

        Returns:
            The encoded corpus. It is ``corpus`` itself if nothing has to be added.

        Raises:
            ConfigError: The corpus has another number of words, other words, or another order of
                words, or the model's dtype is neither float32 nor float64.
            CorpusError: The documents lack a column of the covariates.

        Example:
            >>> by_party = lntm.models.stm(5, posts, "~ party")
            >>> by_party.encode(posts).batch().covariates["prevalence"].shape
            torch.Size([270, 1])
        """
        self._check_dtype()
        remedy = "re-index the corpus with corpus.with_vocabulary(model.vocabulary)"
        if corpus.num_words != self.num_words:
            raise ConfigError(
                f"the corpus has {corpus.num_words} words and the model {self.num_words}; {remedy}"
            )
        if None in (corpus.vocabulary, self.vocabulary) or corpus.vocabulary == self.vocabulary:
            return self.prior.encode(self.topics.encode(corpus))
        pairs = enumerate(zip(corpus.vocabulary or (), self.vocabulary or (), strict=True))
        column, (word, expected) = next((v, pair) for v, pair in pairs if pair[0] != pair[1])
        raise ConfigError(
            f"the corpus has other words than the model, or has them in another order: column "
            f"{column} is {word!r}, in the model {expected!r}; {remedy}"
        )

    def _check_dtype(self) -> None:
        if self.dtype not in (torch.float32, torch.float64):
            raise ConfigError(
                f"the model's parameters are of type {self.dtype}; expected torch.float32 or "
                "torch.float64: use model.float()"
            )

    def check_batch(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch on this model's device, in its dtype, with words in the topics' columns.

        Raises:
            ConfigError: The argument is not a batch, its vocabulary has another size, or the
                model's dtype is neither float32 nor float64.
        """
        if not isinstance(batch, DocumentBatch):
            raise ConfigError(
                f"documents given as {type(batch).__name__}; expected a DocumentBatch: make one "
                "with corpus.batch(), or several with corpus.batches()"
            )
        self._check_dtype()
        if batch.num_words not in (self.num_words, self.topics.num_levels * self.num_words):
            raise ConfigError(
                f"documents over {batch.num_words} words given to a model of {self.num_words}; "
                "re-index the corpus with corpus.with_vocabulary(model.vocabulary)"
            )
        return self.topics.assign_levels(batch.to(self.device, self.dtype))


def require_model(model: Any) -> None:
    """Raise unless the argument is a model.

    Raises:
        ConfigError: The argument has another type. The message names it.
    """
    if not isinstance(model, TopicModel):
        swapped = "; the model comes first, then the corpus" if isinstance(model, Corpus) else ""
        raise ConfigError(f"expected a topic model, got a {type(model).__name__}{swapped}")
