"""Start of a fit, which finds topics, prior and means by a fast stand-in model.

It matters because it decides which local optimum EM reaches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.budget import release_memory
from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, require_one
from torch_lntm.inference.em.anchors import anchor_topics
from torch_lntm.inference.em.checkpoint import FitState
from torch_lntm.inference.em.documents import DocumentShard, document_bar
from torch_lntm.inference.em.merging import halves, merged_labels
from torch_lntm.inference.em.schedule import MAX_STEP_DOCS, default_step_docs, num_epochs
from torch_lntm.inference.em.table import DocumentTable, new_table
from torch_lntm.kernels import fused
from torch_lntm.kernels.mixture import (
    ExpectedCounts,
    expected_counts,
    expected_topic_counts,
    probability_floor,
)
from torch_lntm.models import Keywords, TopicModel
from torch_lntm.models.priors.prior import MIN_PROPORTION, DocumentPrior
from torch_lntm.posteriors import Draws

StartName = Literal["lda", "documents", "vectors", "model"]

#: Number of random documents in an initial topic, and share of the corpus's word frequencies in it.
SEED_DOCUMENTS = 3
BACKGROUND_SHARE = 0.5
#: The same share in topics from vectors, and largest number of documents that form clusters.
VECTOR_SHARE, CLUSTERED = 0.1, 50_000
#: Approximate largest number of tokens of the documents in which anchor words are searched.
ANCHOR_TOKENS = 2_000_000
#: Dirichlet pseudo-tokens of a document during the start, on the softmax scale: their sum as a
#: share of the mean document's tokens, the largest sum, and the largest number for one topic.
PSEUDO_SHARE, MAX_PSEUDO_TOKENS, MAX_CONCENTRATION = 0.1, 5.0, 0.3
#: Updates of theta at the first visit of a batch, and at later visits.
FIRST_SWEEPS, SWEEPS = 8, 2
#: Smallest scale kept apart from running word counts. Smaller scales are multiplied into them.
MIN_SCALE = 1e-12
#: Exponent of the step size of an update, updates^-exponent. The first update counts as 1.
START_EXPONENT = 0.3
#: Target number of the topics' updates in the start, and bounds on its epochs.
START_UPDATES, START_EPOCHS = 1200, (3, 40)
#: Shares of the epochs before the first and the second merger, and number of documents whose
#: proportions decide which topics merge and how topics split.
MERGERS, MERGE_DOCS = (0.35, 0.6), 4000
#: Smallest mean number of tokens of a document for mergers, because shorter documents cannot tell
#: twice as many topics apart.
MERGER_TOKENS = 40


def check_start(name: str, model: TopicModel) -> None:
    """Raise a ConfigError unless a start has this name and suits the model."""
    require_one(get_args(StartName), start=name)
    if name == "vectors" and model.topics.word_vectors is None:
        raise ConfigError(
            "start 'vectors' is for topics with word vectors, such as those of models.ctm(..., "
            "word_vectors=vectors)"
        )


def document_topics(
    corpus: Corpus, documents: NDArray[np.int64], num_topics: int, seed: int
) -> Tensor:
    """Topics from the words of a few random documents each, mixed with the corpus's frequencies.

    Args:
        corpus: The corpus.
        documents: Positions of the non-empty documents, whose order affects the choice.
        num_topics: Number of topics.
        seed: Seed of the choice of documents.

    Returns:
        ``(num_topics, num_words)`` float64, all positive.
    """
    generator = np.random.default_rng(seed)
    per_topic = min(SEED_DOCUMENTS, len(documents))
    seeds = np.zeros((num_topics, corpus.num_words))
    for topic in seeds:
        chosen = documents[generator.choice(len(documents), per_topic, replace=False)]
        for document in chosen:
            entries = slice(corpus.row_offsets[document], corpus.row_offsets[document + 1])
            topic[corpus.word_index[entries]] += corpus.counts[entries]
    return mixed_topics(corpus, seeds / seeds.sum(1, keepdims=True))


def vector_topics(
    corpus: Corpus,
    documents: NDArray[np.int64],
    vectors: NDArray[np.float64],
    num_topics: int,
    seed: int,
) -> Tensor:
    """Topics from clusters of documents with words of similar meaning.

    A document's vector is the sum of its words' vectors, in which rare words count more.

    Args:
        corpus: The corpus.
        documents: Positions of the non-empty documents, in random order.
        vectors: ``(num_words, R)`` vectors of words, 0 for words without one.
        num_topics: Number of topics.
        seed: Seed of the clusters (k-means).

    Returns:
        ``(n, num_words)`` float64, all positive. n is ``num_topics``, or fewer if the documents
        form fewer clusters.
    """
    from sklearn.cluster import MiniBatchKMeans

    counts, frequency = corpus[documents[:CLUSTERED]].to_scipy(), word_frequencies(corpus)
    num_docs, occurrences = counts.shape[0], np.bincount(counts.indices, minlength=len(vectors))
    rarity, known = np.log((1 + num_docs) / (1 + occurrences)), vectors.any(1)
    mean = frequency @ vectors / np.maximum(frequency @ known, 1e-30)
    sums = counts @ ((rarity * known)[:, None] * (vectors - mean))
    sums /= np.linalg.norm(sums, axis=1, keepdims=True).clip(min=1e-30)
    clusters = MiniBatchKMeans(min(num_topics, num_docs), n_init=3, random_state=seed)
    labels = clusters.fit_predict(sums)
    # Some clusters have lost all documents.
    totals = np.concatenate([counts[labels == label].sum(0) for label in np.unique(labels)])
    topics = np.asarray(totals) + frequency
    return mixed_topics(corpus, topics / topics.sum(1, keepdims=True), VECTOR_SHARE)


def mixed_topics(
    corpus: Corpus, topics: NDArray[np.float64], share: float = BACKGROUND_SHARE
) -> Tensor:
    """Mix topics ``(num_topics, num_words)`` with a share of the corpus's frequencies, in place.

    Returns:
        The topics, all positive.
    """
    topics *= 1 - share
    topics += share * word_frequencies(corpus)
    return torch.from_numpy(topics)


def word_frequencies(corpus: Corpus) -> NDArray[np.float64]:
    """Shares ``(num_words,)`` of the words in a corpus's tokens, all positive."""
    frequency = corpus.word_totals + 1.0
    return np.asarray(frequency / frequency.sum())


def start_concentration(num_topics: int, mean_length: float) -> float:
    """Pseudo-tokens of each topic in a document during the start.

    Short documents get fewer of them, because pseudo-tokens that outweigh a document's own tokens
    would make all proportions, and hence all topics, alike.

    Args:
        num_topics: Number of topics.
        mean_length: Mean number of tokens of a document.
    """
    pseudo_tokens = min(MAX_PSEUDO_TOKENS, PSEUDO_SHARE * mean_length)
    return min(MAX_CONCENTRATION, pseudo_tokens / num_topics)


class RunningTopics:
    """Topics from a running average of word counts, updated only at the words of each batch.

    An update shrinks the counts of all words by the same factor, which is kept in a separate scale
    so that its time does not depend on the size of the vocabulary.

    Args:
        word_counts: ``(num_topics, num_words)`` average, stored word by word. Updates overwrite the
            tensor, which holds the average again after :meth:`apply_scale`.
        smoothing: Pseudo-counts of every word in every topic.
        keywords: Keywords of the first topics, if any. They add pseudo-counts, and a word that they
            exclude from a topic has the count 0 there.
    """

    def __init__(
        self, word_counts: Tensor, smoothing: float, keywords: Keywords | None = None
    ) -> None:
        self._rows, self._scale = word_counts.mT, 1.0
        self._totals = self._rows.sum(0, dtype=torch.float64)
        self._pseudo_totals: float | Tensor = smoothing * len(self._rows)
        self._smoothing = smoothing
        # Without keywords, these tables are empty.
        self._row_of = torch.zeros(0, dtype=torch.int64, device=word_counts.device)
        self._key_rows = self._allowed = self._rows.new_zeros(0, self._rows.shape[1])
        if keywords is not None:
            topics, columns, tokens = (x.to(self._rows.device) for x in keywords.entries)
            different, rows = columns.unique(return_inverse=True)
            # Row 0 is for all further words.
            self._row_of = self._row_of.new_zeros(len(self._rows))
            self._row_of[different] = torch.arange(1, len(different) + 1, device=topics.device)
            self._key_rows = self._rows.new_zeros(len(different) + 1, self._rows.shape[1])
            self._key_rows[rows + 1, topics] = tokens.to(self._key_rows.dtype)
            # Excluded words have no smoothing.
            self._allowed = torch.ones_like(self._key_rows)
            self._allowed[self._row_of[keywords.excluded.to(topics.device)], len(keywords) :] = 0.0
            pseudo = self._key_rows.double() - smoothing * (1.0 - self._allowed.double())
            self._pseudo_totals = self._pseudo_totals + pseudo.sum(0)

    def _form(self) -> tuple[Tensor, ...]:
        """Factor and shift that make probabilities of rows, and the same tables for keywords.

        The tables have the row of a word in the two others, 0 for words without keywords; the
        probabilities that keywords add; and the topics that may have the word.
        """
        dtype = self._rows.dtype
        totals = self._totals + self._pseudo_totals
        inverse = totals.clamp_min(torch.finfo(dtype).tiny).reciprocal()
        smallest = (self._smoothing * inverse).to(dtype).clamp_min_(probability_floor(dtype))
        extra = self._key_rows * inverse.to(dtype)
        return (self._scale * inverse).to(dtype), smallest, self._row_of, extra, self._allowed

    def probs(self, words: Tensor) -> Tensor:
        """Probabilities ``(num_topics, n)`` of the words at positions ``(n,)``."""
        factor, shift, row_of, extra, allowed = self._form()
        probs = torch.addcmul(shift, self._rows.index_select(0, words), factor)
        if len(row_of):
            at = row_of[words]
            probs += extra[at]
            probs.mul_(allowed[at]).clamp_min_(probability_floor(probs.dtype))
        return probs.mT

    def step_(
        self, words: Tensor, batch: DocumentBatch, theta: Tensor, *step: Any, scale: float
    ) -> float:
        """A compiled step of a start, in place of :func:`_lda_counts` and :meth:`blend_`.

        Args:
            words: As for :meth:`blend_`.
            batch: The documents, over these words.
            theta: Proportions of all documents; those of the batch are updated.
            *step: Number of updates of the proportions, pseudo-tokens of each topic, and weight of
                the new counts, which is below 1.
            scale: As for :meth:`blend_`.

        Returns:
            Log likelihood before the last update, nats.
        """
        sweeps, concentration, weight = step
        if self._scale * (1 - weight) < MIN_SCALE:
            self.apply_scale()
        running = self._rows, *self._form(), probability_floor(self._rows.dtype)
        self._scale *= 1 - weight
        factor = weight * scale / self._scale
        value, totals = fused.start_step(
            running, words, batch, theta, sweeps, concentration, factor
        )
        self._totals = (1 - weight) * self._totals + weight * scale * totals
        return value

    def blend_(
        self, words: Tensor, counts: Tensor, totals: Tensor, weight: float, scale: float
    ) -> None:
        """Move the average to (1 − weight) × average + weight × scale × ``counts``.

        Args:
            words: ``(n,)`` different positions of words.
            counts: ``(num_topics, n)`` counts of these words. All other words have count 0.
            totals: ``(num_topics,)`` float64 sums of ``counts`` over words. The sums over documents
                are equal, and take less time.
            weight: Weight of the new counts.
            scale: Factor of the new counts.
        """
        self._totals = (1 - weight) * self._totals + weight * scale * totals
        self._scale *= 1 - weight
        if self._scale < MIN_SCALE:
            self.apply_scale()
        # Words are different, so the order of the additions does not matter on a GPU.
        self._rows.index_add_(0, words, counts.mT, alpha=weight * scale / self._scale)

    def apply_scale(self) -> None:
        """Multiply the scale into the tensor ``word_counts``, which then holds the average."""
        self._rows.mul_(self._scale)
        self._scale = 1.0


class Start:
    """Start of a fit: topics, then the prior, then the documents' means.

    The topics come from stepwise EM with a fast stand-in model, which gives theta a symmetric
    Dirichlet prior so that its mode on the softmax scale is the fixed point theta ∝ topic_counts +
    concentration. Word counts are averaged over batches with step size updates^−exponent (*Cappé &
    Moulines 2009*). The noise of these steps acts as annealing, and finds better topics than many
    more full sweeps would.

    Each initial topic is made of an anchor word's neighbours
    (:mod:`~torch_lntm.inference.em.anchors`), mixed with the word frequencies of the corpus. With
    ``name="documents"``, and in restarts, a few random documents take the place of the neighbours.

    If it began with as many topics as the model has, the start would miss some: two true topics
    would share one while two others became near copies. It therefore begins with twice as many.
    After a third of the epochs similar topics merge (:mod:`~torch_lntm.inference.em.merging`) and
    each then splits in two, and after 60 % they merge for good; until then, the model holds the
    topics with the most tokens. Nothing merges if documents have fewer than 40 tokens on average,
    or if keywords decide which topics there are.

    With ``name="vectors"`` the topics are those of :func:`vector_topics`. They stay, because LDA
    does not know what words mean.

    Every process makes every step, because a step is so small that sharing it would take longer
    than making it. In a large corpus the steps of ``"lda"`` visit a sample of the documents. Prior
    and means come from the final proportions, which each process computes for its own documents.

    Args:
        model: The model. Its topics are set at the end of every epoch, and its prior after the last
            epoch.
        shard: The documents of this process. All processes continue from the counts of the first.
        name: ``"lda"``, or ``"documents"`` or ``"vectors"`` for one epoch.
        epochs: Number of epochs of ``"lda"``. By default there are enough for 1,200 updates,
            between 3 and 40.
        seed: Seed of the order of documents, and of the documents in the initial topics.

    Attributes:
        sample: Documents of the steps.
        order: Positions of their non-empty documents, in the order of their visits.
        step_docs: Number of documents of a step.
        epochs: Number of epochs.
        mergers: Numbers of epochs after which similar topics merge, ascending. After each merger
            but the last, topics split. Empty if nothing merges.
    """

    def __init__(
        self,
        model: TopicModel,
        shard: DocumentShard,
        *,
        name: StartName,
        epochs: int | None = None,
        seed: int,
    ) -> None:
        self.model, self.shard, self.processes = model, shard, shard.processes
        self.name, self.seed = name, seed
        # A single epoch of a sample would have too few steps.
        self.sample = shard
        if name == "lda" or shard.part is not None:
            self.sample = shard.sample(model, seed)
        self.corpus = corpus = self.sample.corpus
        #: Tokens of all documents. The topics' word counts are on this scale.
        self.num_tokens = shard.corpus.whole.num_tokens
        self.order = random_order(corpus, seed)
        num_docs, length = len(self.order), corpus.num_tokens / len(self.order)
        self.step_docs = default_step_docs(num_docs, length, model.num_topics)
        self.concentration = start_concentration(model.num_topics, length)
        self.epochs = 1
        if name == "lda":
            steps = math.ceil(num_docs / self.step_docs)
            self.epochs = epochs or num_epochs(START_UPDATES, steps, START_EPOCHS)
        self.mergers: list[int] = []
        # A merger could join two keyword topics, and further topics would take keywords.
        if self.epochs > 1 and length >= MERGER_TOKENS and model.topics.keywords is None:
            self.mergers = sorted({max(1, round(share * self.epochs)) for share in MERGERS})

    def run(self, state: FitState, progress: bool) -> Iterator[float]:
        """Make the remaining epochs.

        Args:
            state: State of the fit, whose ``step`` is the number of past epochs. After the last one
                it has the table ``means`` of this process's documents.
            progress: Whether to show a progress bar.

        Yields:
            Log likelihood of each epoch in nats per token, accumulated during its updates.
        """
        if state.step == 0:
            self._begin(state)
        with document_bar("start", self.epochs, len(self.order), state.step, progress) as bar:
            # The caller may change state.step at the end of this phase.
            for epoch in range(state.step, self.epochs):
                objective = self._epoch(state, bar) / self.corpus.num_tokens
                state.step = epoch + 1
                bar.set_postfix_str(f"{objective:.4f} nats/token")
                if state.step == self.epochs:
                    # The caller saves the state after the yield, with prior and means.
                    self._finish(state)
                yield objective

    def _begin(self, state: FitState) -> None:
        """Set initial topics from words and documents, and uniform proportions."""
        model = self.model
        num_topics = model.num_topics * (2 if self.mergers else 1)
        topics = self._initial_topics(num_topics, state.restart).to(model.device)
        # Machines may round differently, and find other anchor words.
        self.processes.share({"topics": topics})
        if model.topics.keywords is not None:
            model.topics.keywords.exclude_(topics.mT, 0.0)
            topics = topics / topics.sum(1, keepdim=True)
        model.topics.set_(topics[: model.num_topics])
        # Kernels and topics store the counts word by word.
        counts = topics.new_empty(topics.mT.shape, dtype=model.dtype)
        state.word_counts = counts.copy_(topics.mul_(self.num_tokens / num_topics).mT).mT
        uniform = torch.tensor(1.0 / num_topics, dtype=model.dtype)
        state.theta = new_table(uniform.expand(self.corpus.num_docs, num_topics), model.device)

    def _initial_topics(self, num_topics: int, restart: int) -> Tensor:
        """Initial topics ``(num_topics, num_words)``, float64, all positive.

        Keywords come first, then anchor words, then random documents. In a model with keywords, the
        first free topic gets the word frequencies of the corpus, because anchor words are far from
        the words that all documents share and no topic would begin with them.
        """
        corpus, keywords = self.corpus, self.model.topics.keywords
        parts: list[Tensor] = []
        if keywords is not None:
            parts.append(torch.from_numpy(keywords.initial_topics(corpus)))
        missing = num_topics - sum(map(len, parts))
        vectors = self.model.topics.word_vectors
        if self.name == "vectors" and vectors is not None and missing:
            rows = vectors.cpu().double().numpy()
            parts.append(vector_topics(corpus, self.order, rows, missing, self.seed + restart))
            missing -= len(parts[-1])
        if self.name == "lda" and not restart:
            if keywords is not None and missing:
                parts.append(mixed_topics(corpus, word_frequencies(corpus)[None]))
                missing -= 1
            if missing:
                known = () if keywords is None else keywords.columns
                most = math.ceil(ANCHOR_TOKENS * len(self.order) / corpus.num_tokens)
                (batch,) = self.sample.global_batches(np.sort(self.order[:most]), most)
                parts.append(mixed_topics(corpus, anchor_topics(batch, missing, known)))
                missing -= len(parts[-1])
        if missing:
            parts.append(document_topics(corpus, self.order, missing, self.seed + restart))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _epoch(self, state: FitState, bar: Any) -> float:
        """Visit all documents, and return the log likelihood accumulated on the way, in nats."""
        model, processes = self.model, self.processes
        objective = processes.together(lambda: self._visit(state, bar))
        # Machines may round differently, so everyone continues with the counts of the first
        # process.
        processes.share({"word_counts": state.word_counts})
        self._release_memory()
        if state.step + 1 in self.mergers:
            self._merge(state)
            if state.step + 1 < self.mergers[-1]:
                self._split(state)
        counts = state.word_counts
        if len(counts) > model.num_topics:
            counts = counts[counts.sum(1).topk(model.num_topics).indices.sort().values]
        model.topics.start_(counts)
        return float(processes.gather(objective)[0])

    def _visit(self, state: FitState, bar: Any) -> float:
        """Visit all documents, and update proportions and word counts. See :meth:`_epoch`."""
        objective: float | Tensor = 0.0
        sweeps = SWEEPS if state.step else FIRST_SWEEPS
        topics, theta = self.model.topics, self._table(state)
        running = RunningTopics(state.word_counts, topics.start_smoothing, topics.keywords)
        concentration = self.concentration * (topics.num_topics / len(state.word_counts))
        is_fixed = self.name == "vectors"
        compiled = fused.is_compiled(state.word_counts) and not is_fixed
        for words, batch in self._steps():
            self.processes.poll()
            state.updates += 1
            weight = float(state.updates) ** -START_EXPONENT
            step, scale = (sweeps, concentration), self.num_tokens / batch.num_tokens
            # The first step forgets all earlier counts, which a compiled one cannot.
            if compiled and weight < 1.0:
                objective += running.step_(words, batch, state.theta, *step, weight, scale=scale)
            else:
                counts = _lda_counts(running.probs(words), batch, theta, *step)
                assert counts.word_counts is not None
                objective += counts.log_likelihood.sum().double()
                totals = counts.topic_counts.sum(0, dtype=torch.float64)
                if not is_fixed:
                    running.blend_(words, counts.word_counts, totals, weight, scale)
            bar.update(batch.num_docs)
        running.apply_scale()
        return float(objective)

    def _table(self, state: FitState) -> DocumentTable:
        """Table ``theta`` of all documents of the sample."""
        corpus = self.corpus
        table = DocumentTable(np.arange(len(corpus)), corpus.row_offsets, self.model.device)
        table.tensors["theta"] = state.theta
        return table

    def _release_memory(self) -> None:
        """Return the memory of freed tables to the system."""
        release_memory(len(self.order) + self.model.num_words, self.model.num_topics)

    def _merge(self, state: FitState) -> None:
        """Merge similar topics, until the model's number is left."""
        some = np.sort(self.order[:MERGE_DOCS])
        tokens = state.theta[some].cpu().numpy() * self.corpus.lengths[some, None]
        num_topics = self.model.num_topics
        labels = torch.from_numpy(
            merged_labels(state.word_counts.cpu().numpy(), tokens, num_topics)
        ).to(self.model.device)
        # Machines may round the proportions differently.
        self.processes.share({"labels": labels})
        state.word_counts = _added_up(state.word_counts.mT, labels, num_topics).mT
        # Reordering the entire table would take as much memory again.
        merged = state.theta.new_empty(len(state.theta), num_topics)
        for old, new in zip(state.theta.split(MERGE_DOCS), merged.split(MERGE_DOCS), strict=True):
            new.copy_(_added_up(old, labels, num_topics))
        state.theta = merged

    def _split(self, state: FitState) -> None:
        """Split the words of every topic in two. Every document has both halves alike."""
        self._release_memory()
        some = np.sort(self.order[:MERGE_DOCS])
        (batch,) = self.sample.global_batches(some, MERGE_DOCS)
        running = RunningTopics(state.word_counts, self.model.topics.start_smoothing)
        topics = running.probs(torch.arange(batch.num_words, device=batch.device))
        shares = halves(topics, state.theta[some].to(topics), batch)
        # Machines may round the shares differently.
        self.processes.share({"shares": shares})
        first = (state.word_counts * shares).mT
        state.word_counts = torch.cat([first, state.word_counts.mT - first], 1).mT
        del running, topics, shares, first
        self._release_memory()
        state.theta = state.theta.repeat(1, 2).div_(2)

    def _steps(self) -> Iterator[tuple[Tensor, DocumentBatch]]:
        """All documents in batches: the positions ``(n,)`` of a batch's words, and the batch."""
        batches = self.sample.global_batches(self.order, self.step_docs)
        return self.sample.cached("start", lambda: ((b.words, b.over(b.words)) for b in batches))

    def _finish(self, state: FitState) -> None:
        """Set the prior and the means of this process's documents from the proportions."""
        prior, proportions_of = self.model.prior, self._final_proportions(state)
        documents = state.documents
        size = self.step_docs if self.sample is self.shard else MAX_STEP_DOCS

        def sums() -> dict[str, Tensor]:
            total: dict[str, Tensor] = {}
            for batch in self.shard.local_batches(size):
                latents, part = rough_statistics(prior, proportions_of(batch), batch)
                documents.write("means", batch, latents)
                total = {name: total[name] + x if total else x for name, x in part.items()}
            return total

        num_docs = float(self.shard.corpus.whole.num_nonempty)
        prior.start(num_docs, **self.processes.total(self.processes.together(sums)))
        state.theta = None

    def _final_proportions(self, state: FitState) -> Callable[[DocumentBatch], Tensor]:
        """Function of the final proportions of a batch's documents, on the model's device.

        They come from the table if the stochastic steps have visited all documents. Otherwise they
        are solved under the final topics.
        """
        if self.sample is self.shard:
            return partial(self._table(state).read, "theta")
        topics = self.model.topics
        running = RunningTopics(state.word_counts, topics.start_smoothing, topics.keywords)

        def solve(batch: DocumentBatch) -> Tensor:
            self.processes.poll()
            words = batch.words
            probs, part = running.probs(words), batch.over(words)
            weights = probs.new_full((batch.num_docs, len(probs)), 1.0 / len(probs))
            for _ in range(FIRST_SWEEPS):
                counts = expected_topic_counts(weights, probs, part)
                weights = _updated(counts, self.concentration)
            return weights

        return solve


def rough_statistics(
    prior: DocumentPrior, proportions: Tensor, batch: DocumentBatch
) -> tuple[Tensor, dict[str, Tensor]]:
    """Latent variables of rough proportions, and their sums for ``prior.start``.

    Args:
        prior: The prior.
        proportions: ``(num_docs, num_topics)``.
        batch: The documents.
    """
    latents = prior.start_latents(proportions)
    logits = proportions.clamp_min(MIN_PROPORTION).log()
    weights = logits.new_ones(1, len(logits), dtype=torch.float64)
    moments = Draws({prior.latent: latents[None]}, logits[None], weights)
    return latents, prior.statistics(moments, batch)


def _added_up(columns: Tensor, labels: Tensor, num_labels: int) -> Tensor:
    """Sums ``(n, num_labels)`` of the columns ``(n, many)`` with equal labels ``(many,)``.

    On a GPU, index_add_ adds in an order that changes from run to run.
    """
    labels, rows = labels.cpu(), columns.mT.contiguous()
    groups = ((labels == label).nonzero().squeeze(1) for label in range(num_labels))
    return torch.stack([rows[group.to(rows.device)].sum(0) for group in groups]).mT.contiguous()


def random_order(corpus: Corpus, seed: int) -> NDArray[np.int64]:
    """Positions of a corpus's non-empty documents, in a random order."""
    return np.random.default_rng(seed).permutation(corpus.nonempty)


def _lda_counts(
    topics: Tensor,
    batch: DocumentBatch,
    theta: DocumentTable,
    sweeps: int,
    concentration: float,
) -> ExpectedCounts:
    """Expected counts of a batch's words under LDA. The table of theta is read and updated."""
    weights = theta.read("theta", batch).to(topics)
    for _ in range(sweeps - 1):
        weights = _updated(expected_topic_counts(weights, topics, batch), concentration)
    # The pass for the words' counts also gives the last update of theta.
    counts = expected_counts(weights, topics, batch, word_counts=True)
    theta.write("theta", batch, _updated(counts.topic_counts, concentration))
    return counts


def _updated(tokens: Tensor, concentration: float) -> Tensor:
    """Proportions in proportion to each topic's tokens and pseudo-tokens.

    It is a step towards the mode of a Dirichlet posterior on the softmax scale.
    """
    weights = tokens + concentration
    return weights.div_(weights.sum(-1, keepdim=True))
