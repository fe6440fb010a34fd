"""Topics, the contract of a model's K distributions over the words of its vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, ClassVar, Literal

import numpy as np
import pyro
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn

from torch_lntm.corpus import Corpus, DocumentBatch, WordVectors
from torch_lntm.errors import ConfigError, lacks, undefined
from torch_lntm.kernels.mixture import probability_floor
from torch_lntm.models.levels import CONTENT, Level, Levels
from torch_lntm.models.parts import Method
from torch_lntm.models.topics.keywords import Keywords

#: Updates of topics in Monte-Carlo EM: ``"exact"`` M-steps, or ``"gradient"`` steps of Adam.
TopicUpdate = Literal["exact", "gradient"]
#: Bounds on the iterations of the default M-step, alone and within :meth:`Topics.updated_often`,
#: and its tolerance: the gradient per token.
MAX_ITERATIONS, OFTEN_ITERATIONS, GRADIENT_TOLERANCE = 200, 5, 1e-6


class Topics(nn.Module):
    """The topics of a model: word probabilities as a function of parameters with a prior.

    A subclass says which priors its parameters have, by :meth:`sites`, and which word probabilities
    follow from them, by :meth:`compute_probs`. These two methods are enough for ``SVI``, NUTS,
    every engine, guide and evaluation, and for saving and loading::

        class EmbeddedTopics(Topics):
            def __init__(self, num_topics, embeddings):
                super().__init__(num_topics, len(embeddings))
                self.register_buffer("embeddings", embeddings)
                self.weights = nn.Parameter(torch.zeros(embeddings.shape[1], num_topics))

            def sites(self):
                return {"weights": Normal(torch.zeros_like(self.weights), 1.0).to_event(2)}

            def compute_probs(self, weights):
                return torch.softmax(self.embeddings @ weights, 0).mT

    ``docs/own_parts.md`` continues the example, and :func:`torch_lntm.testing.check_topics` checks
    a subclass. Where the subclass knows a faster or more exact way, it overrides :meth:`m_step`,
    :meth:`start_`, :meth:`gradient_`, :meth:`log_prior` or :meth:`updated_often`, and with
    :meth:`draw_` it enters joint chains too.

    Pass ``content`` for topics that differ between the levels of a metadata column. Column g ·
    num_words + v of :attr:`probs` then holds word v at level g, and :meth:`assign_levels` moves
    the words of a batch to these columns, which algorithms treat as words of a larger vocabulary.

    Args:
        num_topics: Number of topics K.
        num_words: Size of the vocabulary V.
        content: Levels of documents with different words. Defaults to the same words in all
            documents.

    Attributes:
        num_topics: Number of topics K.
        num_words: Size of the vocabulary V.
        content: The levels, or ``None``.
        keywords: Keywords of the first topics, or ``None``.

    Example:
        >>> indices, probabilities = model.topics.top_words(3)
        >>> indices.shape, bool((probabilities[:, 0] >= probabilities[:, 1]).all())
        (torch.Size([10, 3]), True)
    """

    #: Updates that Monte-Carlo EM may use for these topics. The first is the default.
    updates: ClassVar[tuple[TopicUpdate, ...]] = ("exact", "gradient")
    #: Names of buffers that fits change.
    fitted_buffers: frozenset[str] = frozenset()

    def __init__(self, num_topics: int, num_words: int, content: Levels | None = None) -> None:
        super().__init__()
        self.num_topics = num_topics
        self.num_words = num_words
        self.content = content
        self.keywords: Keywords | None = None
        self._cached: Tensor | None = None
        self._max_iterations = MAX_ITERATIONS

    # -- the generative definition -----------------------------------------------------------------

    def sites(self) -> Mapping[str, TorchDistribution]:
        """Priors of the parameters, by the names of the sites in :meth:`emit`."""
        raise undefined(self, "sites")

    def compute_probs(self, **latents: Tensor) -> Tensor:
        """Word probabilities ``(num_topics, num_levels * num_words)`` from values of the sites.

        Args:
            **latents: Values of the sites, by name. The result is differentiable in them.
        """
        raise undefined(self, "compute_probs")

    def latents(self) -> dict[str, Tensor]:
        """Values of the sites at the current parameters. Defaults to the parameters by name.

        Raises:
            ConfigError: A site has no parameter of its name.
        """
        values: dict[str, Any] = {name: getattr(self, name, None) for name in self.sites()}
        for name, value in values.items():
            if not isinstance(value, Tensor):
                raise ConfigError(
                    f"{type(self).__name__} has a site {name!r} without a parameter of this name; "
                    "name the site after one of the parameters, or define latents(), the values of "
                    "the sites"
                )
        return values

    def forward(self) -> Tensor:
        """Word probabilities at the current parameters; see :attr:`probs`."""
        return self.compute_probs(**self.latents())

    def emit(self) -> Tensor:
        """Sample the parameters as latent variables of a Pyro program.

        Returns:
            Word probabilities ``(num_topics, num_levels * num_words)``.
        """
        drawn = {name: pyro.sample(name, site) for name, site in self.sites().items()}
        return self.compute_probs(**drawn)

    def log_prior(self) -> Tensor:
        """Log prior density at the current parameters, up to a constant (scalar, float64 nats)."""
        values, zero = self.latents(), torch.zeros((), dtype=torch.float64, device=self.device)
        terms = (s.log_prob(values[name]).double().sum() for name, s in self.sites().items())
        return sum(terms, zero)

    # -- word probabilities ------------------------------------------------------------------------

    @property
    def probs(self) -> Tensor:
        """Word probabilities ``(num_topics, num_levels * num_words)``, differentiable.

        In each row, the columns of every level sum to 1.
        """
        return self() if self._cached is None else self._cached

    def probs_and_log_prior(self) -> tuple[Tensor, Tensor]:
        """:attr:`probs` and :meth:`log_prior`; subclasses may compute them in a single pass."""
        return self.probs, self.log_prior()

    @property
    def double_probs(self) -> Tensor:
        """:attr:`probs` computed in float64, detached.

        Held-out likelihoods use these, because models differ by less than the rounding errors of
        float32.
        """
        tensors = chain(self.named_parameters(), self.named_buffers())
        doubles = {n: t.detach().double() for n, t in tensors if t.is_floating_point()}
        with torch.no_grad():
            return torch.func.functional_call(self, doubles, ())

    @property
    def mean_probs(self) -> Tensor:
        """Word probabilities ``(num_topics, num_words)``, averaged over the levels."""
        if self.num_levels == 1:
            return self.probs
        return self.probs.unflatten(1, (self.num_levels, self.num_words)).mean(1)

    @contextmanager
    def cached(self) -> Iterator[None]:
        """A context that computes ``probs`` only once, and must not change the parameters."""
        if self._cached is not None:
            yield
            return
        self._cached = self.probs.detach()
        try:
            yield
        finally:
            self._cached = None

    @torch.no_grad()
    def top_words(self, top_n: int) -> tuple[Tensor, Tensor]:
        """The most probable words of each topic, in decreasing order of probability.

        Args:
            top_n: Number of words per topic. A number above V counts as V.

        Returns:
            Positions in the vocabulary and probabilities, both ``(num_topics, min(top_n,
            self.num_words))`` on the CPU. Ties are in the order of the vocabulary.
        """
        probs, order = self.mean_probs.detach().cpu().sort(dim=-1, descending=True, stable=True)
        return order[:, :top_n], probs[:, :top_n]

    @property
    def num_free_parameters(self) -> int:
        """Number of free parameters, for residual degrees of freedom."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return self._first_tensor().device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the parameters."""
        return self._first_tensor().dtype

    def _first_tensor(self) -> Tensor:
        for tensor in chain(self.parameters(), self.buffers()):
            if tensor.is_floating_point():
                return tensor
        return next(iter(self.latents().values()))  # a parameter that Pyro samples

    # -- levels of documents -----------------------------------------------------------------------

    @property
    def num_levels(self) -> int:
        """Number of levels of documents with different topics; 1 without levels."""
        return 1 if self.content is None else len(self.content.levels)

    def encode(self, corpus: Corpus) -> Corpus:
        """The corpus with the array ``"content"`` of its documents' levels, if topics have levels.

        Args:
            corpus: The documents.
        """
        return corpus if self.content is None else self.content.encode(corpus)

    def assign_levels(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch with its words in the columns of its documents' levels.

        A batch that has its words there already is returned unchanged.

        Raises:
            ConfigError: The batch lacks the levels of its documents.
        """
        if batch.num_words == self.num_levels * self.num_words:
            return batch
        if CONTENT not in batch.covariates:
            raise ConfigError(
                "the batch lacks the levels of its documents, and this model's topics depend on "
                "them; make the batch by model.encode(corpus).batch()"
            )
        return batch.in_blocks(CONTENT, self.num_levels)

    def by_level(self, batch: DocumentBatch, probs: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Rows of the documents and topics of each level.

        Args:
            batch: The documents, before or after :meth:`assign_levels`.
            probs: :attr:`probs` or :attr:`double_probs`.

        Returns:
            A pair for each level with documents: rows of the batch ``(num_docs_of_level,)``, and
            word probabilities ``(num_topics, num_words)``.
        """
        if self.num_levels == 1:
            return [(torch.arange(batch.num_docs, device=batch.device), probs)]
        self.assign_levels(batch)  # checks the levels
        levels, parts = batch.covariates[CONTENT], probs.split(self.num_words, 1)
        return [
            ((levels == g).nonzero().squeeze(1), parts[g]) for g in levels.unique().long().tolist()
        ]

    @property
    def differing_words(self) -> Tensor:
        """``(num_topics, num_words)`` bool: whether a word's probability differs between levels.

        True for all words by default; subclasses exclude words that differ only by normalisation.
        """
        return torch.full((self.num_topics, self.num_words), self.num_levels > 1)

    def at(self, level: Level | None = None) -> FixedTopics:
        """Topics of a single level, or their mean over levels, for models of any documents.

        Args:
            level: Value of the level's column. Defaults to the mean over levels.

        Raises:
            ConfigError: The topics have no levels, or the level is unknown.
        """
        if self.content is None:
            raise ConfigError(
                "these topics are the same for all documents; expected topics with levels, such as "
                "the topics of models.stm(num_topics, corpus, content='party')"
            )
        probs = self.double_probs.unflatten(1, (self.num_levels, self.num_words))
        probs = probs.mean(1) if level is None else probs[:, self.content.position(level)]
        return FixedTopics(probs.to(self.dtype))

    # -- fitting -----------------------------------------------------------------------------------

    def m_step(self, word_counts: Tensor) -> None:
        """Set the parameters to a maximiser of Σ n_kv log φ_kv + :meth:`log_prior`.

        The default implementation climbs from the current parameters by L-BFGS, in float64.

        Args:
            word_counts: ``(num_topics, num_levels * num_words)`` expected tokens n.
        """
        parameters = {n: p for n, p in self.named_parameters() if p.requires_grad}
        if not parameters:
            return
        doubles = {n: p.detach().double().clone().requires_grad_() for n, p in parameters.items()}
        scale = float(word_counts.sum().clamp_min(1.0))
        search = torch.optim.LBFGS(
            list(doubles.values()),
            max_iter=self._max_iterations,
            max_eval=2 * self._max_iterations,
            tolerance_grad=GRADIENT_TOLERANCE,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )

        def loss() -> Tensor:
            search.zero_grad()
            value = -self._log_joint(doubles, word_counts) / scale
            value.backward()
            return value

        with torch.inference_mode(False), torch.enable_grad():
            search.step(loss)
        with torch.no_grad():
            for name, parameter in parameters.items():
                if bool(doubles[name].isfinite().all()):
                    parameter.copy_(doubles[name])

    def gradient_(self, word_counts: Tensor) -> None:
        """Write the gradient of Σ n_kv log φ_kv + :meth:`log_prior` into the parameters' ``grad``.

        Because the log prior is added once, counts of a mini-batch times num_docs / batch size give
        an unbiased estimate of the corpus's gradient.

        Args:
            word_counts: ``(num_topics, num_levels * num_words)`` expected tokens n.
        """
        parameters = {n: p for n, p in self.named_parameters() if p.requires_grad}
        with torch.inference_mode(False), torch.enable_grad():
            doubles = {n: p.detach().double().requires_grad_() for n, p in parameters.items()}
            value = self._log_joint(doubles, word_counts)
            gradients = torch.autograd.grad(value, list(doubles.values()), allow_unused=True)
        for parameter, gradient in zip(parameters.values(), gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.dtype)

    def _log_joint(self, parameters: dict[str, Tensor], word_counts: Tensor) -> Tensor:
        """Objective of M-steps, as a function of parameters in float64."""
        buffers = {n: t.double() for n, t in self.named_buffers() if t.is_floating_point()}
        named = {f"part.{n}": t for n, t in (parameters | buffers).items()}
        counts = word_counts.detach().double().clone()
        return torch.func.functional_call(Method(self, "_log_density"), named, (counts,))

    def _log_density(self, word_counts: Tensor) -> Tensor:
        """Log joint density of the topics and counts, at the current parameters."""
        probs = self().clamp_min(probability_floor(torch.float64))
        return (word_counts * probs.log()).sum() + self.log_prior()

    def prepare_(self, corpus: Corpus) -> None:
        """Note numbers of the training documents. Fits call this method once, at first.

        Args:
            corpus: The documents, encoded for the model. For a part of a corpus, ``corpus.whole``
                has numbers of the whole corpus.
        """
        if self.keywords is not None:
            self.keywords = self.keywords.for_corpus(corpus, self.num_topics)

    @property
    def word_vectors(self) -> Tensor | None:
        """``(num_words, R)`` centred vectors of the words, 0 for words without one, if given."""
        return None

    @property
    def learning_rounds(self) -> int:
        """Number of rounds of :meth:`learn_` after the present epoch. 0 by default."""
        return 0

    def prior_sums(
        self, word_counts: Tensor, documents: Iterable[tuple[DocumentBatch, Tensor]]
    ) -> dict[str, Tensor]:
        """Sums over some documents that :meth:`learn_` needs. None by default.

        Args:
            word_counts: ``(num_topics, num_levels * num_words)`` expected tokens n.
            documents: Batches of documents and their proportions ``(num_docs, num_topics)``.
        """
        return {}

    def learn_(self, word_counts: Tensor, **sums: Tensor) -> None:
        """Learn parameters of the topics' prior, which M-steps keep. Fits do so once an epoch.

        Args:
            word_counts: ``(num_topics, num_levels * num_words)`` expected tokens n.
            **sums: The sums of :meth:`prior_sums`, over documents of all processes.
        """

    def last_sums(self, documents: Iterable[tuple[DocumentBatch, Tensor]]) -> dict[str, Tensor]:
        """Sums over all documents at the end of a fit, for :meth:`settle_`. None by default.

        Args:
            documents: Batches of documents and their proportions ``(num_docs, num_topics)``.
        """
        return {}

    def settle_(self, **sums: Tensor) -> None:
        """Note what the documents of a fit say of the topics' errors.

        Args:
            **sums: The sums of :meth:`last_sums`, over documents of all processes.
        """

    def start_(self, word_counts: Tensor) -> None:
        """Set the topics from the word counts of a start. Defaults to :meth:`m_step` in all levels.

        Args:
            word_counts: ``(num_topics, num_words)`` expected tokens.
        """
        self.m_step(word_counts.repeat(1, self.num_levels) if self.num_levels > 1 else word_counts)

    @property
    def start_smoothing(self) -> float:
        """Pseudo-counts of every word in every topic during the search of a start."""
        return 0.05

    def with_words(self, word_vectors: WordVectors) -> Topics:
        """The topics with further words; see :meth:`~torch_lntm.models.TopicModel.with_words`.

        Args:
            word_vectors: Vectors of the further words.

        Raises:
            ConfigError: The topics have no word vectors, or differ by document.
        """
        raise ConfigError(
            f"{type(self).__name__} cannot take new words; expected topics that all documents "
            "share, with word vectors, such as those of models.ctm(..., word_vectors=vectors)"
        )

    def set_(self, probs: Tensor) -> None:
        """Set the topics in place, as close to the probabilities as the parameters allow.

        Args:
            probs: ``(num_topics, num_words)`` nonnegative. Rows are normalised.

        Raises:
            ConfigError: The shape is different, an entry is negative or not finite, or a topic or a
                word has probability 0 throughout.
        """
        # Tokens per topic by which :meth:`Topics.set_` multiplies word probabilities.
        self.start_(1e6 * self.check_probs(probs))

    def check_probs(self, probs: Tensor) -> Tensor:
        """Check word probabilities ``(num_topics, num_words)`` and normalise them, in float64.

        Raises:
            ConfigError: As for :meth:`set_`.
        """
        probs = torch.as_tensor(probs)
        expected = (self.num_topics, self.num_words)
        if tuple(probs.shape) != expected:
            raise ConfigError(
                f"topics of shape {tuple(probs.shape)}; expected {expected}, topics by words"
            )
        probs = probs.double()
        if not torch.isfinite(probs).all() or (probs < 0).any():
            raise ConfigError("topics must be finite and nonnegative; got NaN, inf or a negative")
        for axis, name, remedy in (
            (1, "topic", "give every topic some mass"),
            (0, "word", "give it a positive probability in some topic, or smooth the topics"),
        ):
            empty = (probs.sum(axis) <= 0).nonzero().flatten().tolist()
            if empty:
                raise ConfigError(f"{name} {empty[0]} has probability zero throughout; {remedy}")
        return probs / probs.sum(1, keepdim=True)

    @contextmanager
    def updated_often(self) -> Iterator[None]:
        """A context for many M-steps in a row, where each may do only part of the work.

        The default M-step then runs at most 5 iterations, each of which raises the objective.
        """
        self._max_iterations = OFTEN_ITERATIONS
        try:
            yield
        finally:
            self._max_iterations = MAX_ITERATIONS

    def draw_(self, word_counts: Tensor, rng: np.random.Generator) -> None:
        """Set the topics to a draw from their posterior given their tokens, for joint chains.

        Args:
            word_counts: ``(num_topics, num_words)`` float64 tokens, on the CPU.
            rng: Random number generator.

        Raises:
            ConfigError: The subclass does not define the draw.
        """
        raise lacks(self, "draw_", "which a joint chain needs")

    def extra_repr(self) -> str:
        """Sizes and levels, for ``repr``."""
        sizes = f"{self.num_topics} topics, {self.num_words} words"
        if self.keywords is not None:
            sizes += f", keywords of {', '.join(self.keywords.names)}"
        if self.content is None:
            return sizes
        return (
            f"{sizes}, levels of {self.content.column}: {', '.join(map(str, self.content.levels))}"
        )


class FixedTopics(Topics):
    """Topics with fixed word probabilities, which have no parameters and which fits leave alone.

    Args:
        probs: ``(num_topics, num_words)`` word probabilities. Rows are normalised.

    Raises:
        ConfigError: As for :meth:`Topics.set_`.

    Example:
        >>> lntm.models.stm(5, posts, content="party").topics.at("left")
        FixedTopics(5 topics, 2132 words)
    """

    def __init__(self, probs: Tensor) -> None:
        super().__init__(*torch.as_tensor(probs).shape)
        # The buffer has this name in saved models.
        self.register_buffer("known", self.check_probs(probs).to(torch.as_tensor(probs).dtype))

    def sites(self) -> Mapping[str, TorchDistribution]:
        """See :meth:`Topics.sites`. The mapping is empty."""
        return {}

    def compute_probs(self, **latents: Tensor) -> Tensor:
        """See :meth:`Topics.compute_probs`."""
        probs: Any = self.known
        return probs

    @property
    def num_free_parameters(self) -> int:
        """See :attr:`Topics.num_free_parameters`. The number is the same as for fitted topics."""
        return self.num_topics * (self.num_words - 1)


def softmax_of_words(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Word probabilities that sum to 1 within rounding, and float64 log normalisers of the topics.

    PyTorch's float32 softmax adds the words one after another, so that over 500,000 words its sums
    are off by up to 1 %. ``sum`` adds in pairs and is exact to the precision of the dtype.

    Args:
        logits: ``(num_words, num_topics)``.
    """
    # The largest logits of the topics. ``amax`` over 16 rows at a time fills whole vector
    # registers, so that it takes a tenth of the time of ``amax(0)``.
    num_words, num_topics = logits.shape
    blocks, rest = logits.detach().split([num_words // 16 * 16, num_words % 16])
    if len(blocks):
        blocks = blocks.reshape(-1, 16 * num_topics).amax(0).reshape(16, num_topics)
    shift = torch.cat([blocks, rest]).amax(0)
    weights = (logits - shift).exp_()
    mass = weights.sum(0)
    return weights / mass, shift.double() + mass.double().log()
