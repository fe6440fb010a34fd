"""refine, which splits and joins the topics of a fit, moves and forbids words, and goes on."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import ConfigError, require_whole
from torch_lntm.inference.chains.chains import initial_latents
from torch_lntm.inference.chains.document_hmc import DocumentHMC
from torch_lntm.inference.chains.kept import KeptChains, signatures
from torch_lntm.inference.draws import theta_draws
from torch_lntm.inference.em.monte_carlo import MonteCarloEM
from torch_lntm.inference.em.result import MonteCarloResult
from torch_lntm.inference.em.start import rough_statistics
from torch_lntm.inference.fitted import Fitted
from torch_lntm.kernels.mixture import expected_word_counts, word_probabilities
from torch_lntm.models import TopicModel
from torch_lntm.models.constructors import ctm
from torch_lntm.models.names import find_topics, is_named
from torch_lntm.models.registry import find_constructor

#: Epochs of the small model that divides a topic's tokens, and documents at once.
PART_EPOCHS, DOCS_AT_ONCE = 8, 4096


@dataclass(frozen=True, repr=False)
class RefinedResult(MonteCarloResult):
    """Result of :func:`refine`; see :class:`MonteCarloResult`.

    Attributes:
        before: The fit that was refined. ``result.before`` takes the decision back.
        decision: The arguments of :func:`refine` that differ from their defaults, JSON-able.
    """

    before: Fitted = field(kw_only=True)
    decision: dict[str, Any] = field(kw_only=True)

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """All decisions since the first fit, which ``refine(fit, **decision)`` repeats in turn."""
        return [*getattr(self.before, "decisions", ()), self.decision]


@dataclass
class _Topics:
    """What is known of the topics while they change.

    Attributes:
        theta: ``(num_docs, num_topics)`` a draw of the documents' proportions.
        counts: ``(num_topics, num_levels, num_words)`` expected tokens.
        names: Names, or ``None``.
        keywords: Keywords of each topic.
        numbers: Numbers before the change, ``None`` for new parts.
    """

    theta: Tensor
    counts: Tensor
    names: list[str | None]
    keywords: list[list[Any]]
    numbers: list[int | None]

    def select(self, rows: Sequence[int]) -> None:
        """Keep some topics, in this order."""
        self.theta, self.counts = self.theta[:, rows], self.counts[rows]
        for name in ("names", "keywords", "numbers"):
            setattr(self, name, [getattr(self, name)[row] for row in rows])

    def absorb(self, kept: int, *others: int) -> None:
        """Add topics to another, and take them away. All are given by their numbers before."""
        row, *gone = (self.numbers.index(k) for k in (kept, *others))
        for other in gone:
            self.theta[:, row] += self.theta[:, other]
            self.counts[row] += self.counts[other]
            self.keywords[row] += [w for w in self.keywords[other] if w not in self.keywords[row]]
        self.select([k for k in range(len(self.names)) if k not in gone])

    def divide(self, topic: int, shares: Tensor, words: Tensor) -> None:
        """Put parts in the place of a topic: the first in its row, further ones at the end.

        Args:
            topic: Number of the topic before.
            shares: ``(num_docs, num_parts)`` each part's share of the topic in the documents.
            words: ``(num_parts, num_words)`` each part's share of the words' tokens.
        """
        row, new = self.numbers.index(topic), len(words) - 1
        theta, counts = self.theta[:, row, None] * shares, self.counts[row] * words[:, None]
        self.theta[:, row], self.counts[row] = theta[:, 0], counts[0]
        self.theta = torch.cat([self.theta, theta[:, 1:]], 1)
        self.counts = torch.cat([self.counts, counts[1:]])
        self.names += [None] * new
        self.keywords += [[] for _ in range(new)]
        self.numbers += [None] * new

    def move(self, word: Any, column: int, topic: int) -> None:
        """Make a word a keyword of a topic, and of no other."""
        row = self.numbers.index(topic)
        total = self.counts[..., column].sum(0)
        self.counts[..., column] = 0.0
        self.counts[row, :, column] = total
        self.keywords = [[w for w in words if w != word] for words in self.keywords]
        self.keywords[row].append(word)


@torch.no_grad()
def refine(
    fit: Fitted,
    corpus: Corpus | None = None,
    *,
    split: Mapping[int, int] | Mapping[str, int] | None = None,
    absorb: Iterable[Sequence[int | str]] = (),
    forbid: Iterable[str] = (),
    move: Mapping[str, int | str] | None = None,
    num_epochs: int = 5,
    seed: int = 0,
    progress: bool = True,
) -> Any:
    """Change topics of a fit by hand, and let all of them settle in a few epochs.

    Nothing else begins anew: the other topics keep their words and their places in the documents,
    from which the chains go on. The fit that is refined stays as it is, so that a decision can be
    taken back. All topics are named as they are before the change.

    Topics keep their order, and those that an absorption leaves move up. New parts of a topic are
    the last. Topics with keywords come first, because that is their place in every model.

    Args:
        fit: The fit: a result, or a run of :func:`~torch_lntm.load_run`.
        corpus: The documents. Defaults to those of the fit, without the held-out ones.
        split: Numbers of parts by topic, such as ``{7: 3}``. A small model of the topic's tokens
            proposes the parts.
        absorb: Lists of topics. The first of each absorbs the others, with their keywords.
        forbid: Words to leave out of the vocabulary, such as remains of markup.
        move: Topics by word. The word becomes a keyword of its topic, so that topics without
            keywords lose it.
        num_epochs: Number of epochs of Monte-Carlo EM.
        seed: Seed of the draws, the parts and the chains.
        progress: Whether to show a progress bar on standard error.

    Returns:
        A :class:`RefinedResult` with a model of its own; of a run, a new run with it as its result.
        ``before`` is the fit that was refined, and ``decisions`` are all changes since the first.

    Raises:
        ConfigError: A topic or word does not exist, a topic is in two changes, no topic or word is
            left, a topic has too few documents to split, or the model has no registered
            constructor, or no keywords.

    Example:
        >>> refined = lntm.refine(result, absorb=[(0, 1)], split={2: 2}, progress=False)
        >>> refined.model.num_topics == result.model.num_topics
        True
        >>> refined.decisions
        [{'split': {'2': 2}, 'absorb': [[0, 1]]}]
        >>> refined.before is result
        True
    """
    require_whole(1, num_epochs=num_epochs)
    model = fit.model
    if model.construction is None:
        raise ConfigError("the model has no registered constructor; see lntm.models.register")
    corpus = model.encode(fit.training if corpus is None else fit.check_corpus(corpus))
    decision = _Decision.of(model, split or {}, absorb, forbid, move or {})
    with model.topics.cached():
        topics = _topics_of(fit, corpus, seed)
        for word, topic in decision.move.items():
            topics.move(word, decision.columns[word], topic)
        for topic, into in decision.split.items():
            topics.divide(topic, *_parts(model, corpus, topics, topic, into, seed))
    for kept, *others in decision.absorb:
        topics.absorb(kept, *others)
    new, corpus = _new_model(model, corpus, topics, decision.forbid)
    start = _start(new, corpus, topics, seed)
    engine = MonteCarloEM(new, max_epochs=num_epochs, start=start, seed=seed, progress=progress)
    result = engine.fit(corpus)
    of = {item.name: getattr(result, item.name) for item in fields(result)}
    return fit.continued(RefinedResult(**of, before=fit, decision=decision.to_json()))


@dataclass(frozen=True)
class _Decision:
    """The checked arguments of :func:`refine`, with topics by number.

    Attributes:
        columns: Columns of the words.
    """

    split: dict[int, int]
    absorb: list[list[int]]
    forbid: list[str]
    move: dict[str, int]
    columns: dict[str, int]

    @classmethod
    def of(cls, model: TopicModel, split: Any, absorb: Any, forbid: Any, move: Any) -> _Decision:
        """Check the arguments; see :func:`refine`."""
        names = model.topic_names
        absorb = [find_topics(names, topics, "absorb") for topics in absorb]
        parted = find_topics(names, list(split), "split") if split else []
        for into in split.values():
            require_whole(2, split=into)
        if any(len(topics) < 2 for topics in absorb):
            raise ConfigError("absorb has a list of one topic; expected those it absorbs, too")
        changed = [*parted, *(k for topics in absorb for k in topics)]
        if len(set(changed)) < len(changed):
            twice = next(k for k in changed if changed.count(k) > 1)
            raise ConfigError(f"topic {names[twice]} is in two changes; make one after the other")
        if isinstance(forbid, str):
            raise ConfigError(f"forbid is {forbid!r}; expected a list of words, [{forbid!r}]")
        forbid, words = list(forbid), list(move)
        if wrong := [word for word in (*forbid, *words) if not isinstance(word, str)]:
            raise ConfigError(f"forbid and move name {wrong[0]!r:.60}; expected words")
        if (forbid or words) and model.vocabulary is None:
            raise ConfigError("the model has no vocabulary; set model.vocabulary to its words")
        columns = {word: v for v, word in enumerate(model.vocabulary or ())}
        for word in (*forbid, *words):
            if word not in columns:
                close = get_close_matches(word, columns, 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise ConfigError(f"the vocabulary of the model has no word {word!r}{hint}")
        if both := set(forbid) & set(words):
            raise ConfigError(f"the word {min(both)!r} is forbidden and moved; choose one")
        if len(set(forbid)) == model.num_words:
            raise ConfigError("all words are forbidden; leave some")
        to = find_topics(names, list(dict.fromkeys(move.values())), "move") if move else []
        numbers = dict(zip(dict.fromkeys(move.values()), to, strict=True))
        return cls(
            dict(zip(parted, map(int, split.values()), strict=True)),
            absorb,
            forbid,
            {word: numbers[topic] for word, topic in move.items()},
            columns,
        )

    def to_json(self) -> dict[str, Any]:
        """The arguments that say something."""
        split = {str(topic): into for topic, into in self.split.items()}
        all_of = {"split": split, "absorb": self.absorb, "forbid": self.forbid, "move": self.move}
        return {name: value for name, value in all_of.items() if value}


def _topics_of(fit: Fitted, corpus: Corpus, seed: int) -> _Topics:
    """A draw of the proportions, and the tokens that it expects of each topic."""
    model, rows = fit.model, corpus.nonempty
    drawn = theta_draws(fit.source, corpus, 1, rows=rows, seed=seed, progress=False)
    theta = torch.full((len(corpus), model.num_topics), 1.0 / model.num_topics, dtype=model.dtype)
    theta[torch.from_numpy(rows)] = drawn.theta[0].to(theta)
    probs, names = model.topics.probs, model.topic_names
    counts = torch.zeros(probs.shape, dtype=torch.float64)
    for batch in _batches(model, corpus):
        counts += expected_word_counts(theta[batch.positions].to(probs), probs, batch).cpu()
    lists = [] if model.topics.keywords is None else model.topics.keywords.lists.values()
    keywords: list[list[Any]] = [list(x if model.vocabulary else x.values()) for x in lists]
    return _Topics(
        theta,
        counts.unflatten(1, (-1, model.num_words)),
        [name if is_named(names, k) else None for k, name in enumerate(names)],
        keywords + [[] for _ in names[len(keywords) :]],
        list(range(model.num_topics)),
    )


def _batches(model: TopicModel, corpus: Corpus) -> Iterator[DocumentBatch]:
    """Batches of the documents that have words, for a model."""
    options: dict[str, Any] = {"device": model.device, "dtype": model.dtype}
    for batch in corpus.batches(DOCS_AT_ONCE, order=corpus.nonempty, **options):
        yield model.check_batch(batch)


def _parts(
    model: TopicModel, corpus: Corpus, topics: _Topics, topic: int, into: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Parts of a topic: their shares of it in the documents, and of its words; see ``divide``."""
    probs, rng = model.topics.probs, np.random.default_rng(seed)
    size, entries = (len(corpus), model.num_words), []
    for batch in _batches(model, corpus):
        theta = topics.theta[batch.positions].to(probs)
        of_topic = theta[batch.row_index, topic] * probs[topic, batch.word_index]
        share = (of_topic / word_probabilities(theta, probs, batch)).double().cpu().numpy()
        # Each token belongs to the topic or not, by chance.
        drawn = rng.binomial(batch.counts.cpu().numpy().astype(np.int64), share.clip(0.0, 1.0))
        row, word = batch.positions[batch.row_index.cpu()], batch.word_index.cpu()
        entries.append((drawn, row.numpy(), word.numpy() % model.num_words))
    tokens, documents, words = map(np.concatenate, zip(*entries, strict=True))
    matrix = sp.csr_matrix((tokens, (documents, words)), size)
    own = Corpus.from_matrix(matrix, allow_empty=True)
    if own.num_nonempty < 2 * into:
        raise ConfigError(
            f"topic {model.topic_names[topic]} has tokens in {own.num_nonempty} documents; "
            f"expected at least {2 * into} for {into} parts"
        )
    small = ctm(into, own, seed=seed)
    options: dict[str, Any] = {"max_epochs": PART_EPOCHS, "seed": seed, "progress": False}
    found = MonteCarloEM(small, **options).fit(own)
    shares = small.theta(found.means.to(small.dtype)).cpu()
    assert found.statistics is not None
    counts = found.statistics.word_counts.double().cpu()
    # Words that the draw has missed are divided as the whole topic is.
    counts += counts.sum(1, keepdim=True) / counts.sum()
    return shares.to(topics.theta), counts / counts.sum(0)


def _new_model(
    model: TopicModel, corpus: Corpus, topics: _Topics, forbid: Sequence[str]
) -> tuple[TopicModel, Corpus]:
    """A model of the changed topics with all other settings of the old one, and its documents."""
    topics.keywords = [[w for w in words if w not in forbid] for words in topics.keywords]
    # Topics with keywords come first.
    order = sorted(range(len(topics.names)), key=lambda row: not topics.keywords[row])
    topics.select(order)
    keywords = {
        topics.names[row] or f"topic of {words[0]}": words
        for row, words in enumerate(topics.keywords)
        if words
    }
    assert model.construction is not None
    name, settings = model.construction.name, dict(model.construction.settings)
    vocabulary = model.vocabulary
    if forbid:
        vocabulary = tuple(word for word in vocabulary or () if word not in set(forbid))
        kept = torch.tensor([word not in set(forbid) for word in model.vocabulary or ()])
        topics.counts = topics.counts[..., kept]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of the words that shall go
            corpus = corpus.with_vocabulary(vocabulary)
    settings |= {"num_topics": len(order), "num_words": corpus.num_words, "vocabulary": vocabulary}
    if keywords:
        settings["keywords"] = keywords
    else:
        settings = {n: x for n, x in settings.items() if n not in ("keywords", "keyword_strength")}
    vectors = model.topics.word_vectors
    if vectors is not None:
        settings["word_vectors"] = vectors[kept] if forbid else vectors
    new = find_constructor(name)(**settings).to(model.device)
    new.words.load_state_dict(model.words.state_dict())
    new.topic_names = [
        new.topic_names[row] if row < len(keywords) else name
        for row, name in enumerate(topics.names)
    ]
    return new, new.encode(corpus)


def _start(model: TopicModel, corpus: Corpus, topics: _Topics, seed: int) -> KeptChains:
    """Set topics and prior by the changed topics, and place the chains."""
    model.topics.prepare_(corpus)
    counts = topics.counts.to(model.device, model.dtype)
    model.topics.start_(counts.sum(1).mT.contiguous().mT)
    if model.topics.num_levels > 1:
        model.topics.m_step(counts.flatten(1))
    sums: dict[str, Tensor] = {}
    means = []
    for batch in _batches(model, corpus):
        theta = topics.theta[batch.positions].to(model.device)
        rough, part = rough_statistics(model.prior, theta, batch)
        means.append(rough)
        sums = {name: sums[name] + x if sums else x for name, x in part.items()}
    model.prior.start(float(corpus.num_nonempty), **sums)
    latents: dict[str, list[Tensor]] = {}
    for rough, batch in zip(means, _batches(model, corpus), strict=True):
        for site, value in initial_latents(model, batch, rough, 1, seed).items():
            latents.setdefault(site, []).append(value.cpu())
    documents, columns = np.unique(signatures(corpus)[corpus.nonempty], return_index=True)
    together = {site: torch.cat(values, 1) for site, values in latents.items()}
    settings = DocumentHMC(model, num_chains=1, seed=seed).settings
    return KeptChains(model, settings, together, torch.ones(1, len(corpus)), documents, columns, 0)
