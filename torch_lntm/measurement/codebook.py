"""Codebook: a model frozen after discovery, with groups, names, decisions and a hash."""

from __future__ import annotations

import copy
import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.checks import check_vocabulary
from torch_lntm.corpus.corpus import as_corpus
from torch_lntm.corpus.readers import over
from torch_lntm.effects import Effects
from torch_lntm.errors import ConfigError
from torch_lntm.files.reading import read_errors
from torch_lntm.files.writing import check_file, write_file
from torch_lntm.frames import is_default
from torch_lntm.inference import DocumentHMC, theta_draws
from torch_lntm.inference.chains.kept import signatures
from torch_lntm.inference.fitted import Fitted
from torch_lntm.io.hub import BOOK, pull, push
from torch_lntm.io.models import check_saveable, remake_model
from torch_lntm.measurement.debias import debias
from torch_lntm.measurement.intrusion import Intrusion, Kind, intrusion
from torch_lntm.measurement.measured import Measurement
from torch_lntm.models import TopicGroups, TopicModel
from torch_lntm.models.model import require_model
from torch_lntm.models.topic_groups import as_groups

FORMAT_VERSION = 2
#: Key of the file's metadata, and the tensor with the fingerprints of the discovery documents.
_ABOUT, _SEEN = "codebook", "discovery.documents"
#: What the file's description has of the codebook.
_KEPT = ("hash", "content", "decisions", "versions", "discovery")


@dataclass(frozen=True, eq=False, repr=False)
class Codebook(Fitted):
    """Topics, prior, groups and names, frozen after discovery: how documents are measured.

    :func:`codebook` makes one from a fit. It measures other documents without learning from them
    (:meth:`measure`), so that what a share means depends neither on their words nor on an analysis
    of them (*Egami et al. 2022*). It refuses the documents of the discovery, which it knows by
    fingerprints; it holds no texts.

    Attributes:
        model: A copy of the model, which must not be changed.
        content: What :attr:`hash` covers, as JSON-able data: the call of the model's constructor,
            its vocabulary, names and groups, and sums of its parameters.
        decisions: What the researcher decided, each with its ``date`` and ``text``.
        versions: Versions of the packages that made it.
        discovery: Fingerprint and number of the documents of the discovery, if they are known.
        fingerprints: ``(num_docs, 2)`` int64 fingerprints of the words and of the names of the
            documents of the discovery.
        groups: Groups of topics, if any.
        corpus: None, because a codebook has no documents.
    """

    model: TopicModel
    content: dict[str, Any]
    decisions: tuple[dict[str, str], ...]
    versions: dict[str, str]
    discovery: dict[str, Any] | None
    fingerprints: Tensor
    groups: TopicGroups | None = None
    corpus: None = None
    frozen = True

    @property
    def hash(self) -> str:
        """SHA-256 of topics, prior, vocabulary, names and groups, in hexadecimal.

        Equal hashes mean equal measurements. Decisions do not change it.
        """
        return _sha256(self.content)

    @property
    def source(self) -> DocumentHMC:
        """New chains, which draw from the exact posteriors of documents."""
        return DocumentHMC(self.model)

    @property
    def topic_shares(self) -> None:
        """A codebook has no documents, and no shares."""
        return

    def settings(self) -> dict[str, Any]:
        """The hash, for a report."""
        return {"codebook": self.hash}

    def decide(self, *decisions: str) -> Codebook:
        """The codebook with further decisions of the researcher, dated now.

        Args:
            *decisions: Sentences, such as ``"3 and 7 are both about the economy"``.

        Raises:
            ConfigError: A decision is empty or no text.

        Example:
            >>> book = lntm.codebook(model).decide("topic 4 is boilerplate, and is left out")
            >>> book.decisions[0]["text"]
            'topic 4 is boilerplate, and is left out'
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        for text in decisions:
            if not isinstance(text, str) or not text.strip():
                raise ConfigError(f"decision {text!r:.60}; expected a sentence")
        new = ({"date": now, "text": text.strip()} for text in decisions)
        return replace(self, decisions=(*self.decisions, *new))

    def seen(self, corpus: Corpus) -> pd.Series:
        """Whether documents are among those of the discovery.

        A document is if it has the same words, as often, and the same name. Where one of the two
        corpora has no names, the words decide. Documents without words are not.

        Args:
            corpus: Documents over any vocabulary, whose words other than the model's do not count.

        Returns:
            A truth value for each document, by name, so that ``corpus[~book.seen(corpus)]`` are the
            others.

        Raises:
            ConfigError: The documents of the discovery are unknown.
        """
        if self.discovery is None:
            raise ConfigError(
                "the documents of the discovery are unknown; give them to lntm.codebook as "
                "discovery=corpus"
            )
        corpus, names = over(corpus, self.model.vocabulary), corpus.metadata.index
        # A sum of the fingerprints of the words and of the name is one of both.
        parts = 1 if is_default(names) or not self.discovery["named"] else 2
        both = (_fingerprints(corpus), self.fingerprints.numpy())
        same = np.isin(*(found[:, :parts].sum(1) for found in both))
        return pd.Series(same & (corpus.lengths > 0), names)

    def check_corpus(self, corpus: Any = None, *, allow_discovery: bool = False) -> Corpus:
        """Documents over the model's vocabulary that are not those of the discovery.

        Args:
            corpus: The documents.
            allow_discovery: Accept documents of the discovery.

        Raises:
            ConfigError: There are none, some are documents of the discovery, or the model was
                changed.
        """
        if corpus is None:
            raise ConfigError("a codebook has no documents; give the documents to measure")
        if sorted(_sums(self.model.state_dict()).values()) != self.content["tensors"]:
            raise ConfigError(
                f"the parameters of the codebook's model are not those of its hash {self.hash}: "
                "they were changed; make a new codebook, or load it again"
            )
        documents = over(as_corpus(corpus, allow_empty=True), self.model.vocabulary)
        if self.discovery is None or allow_discovery or not (seen := self.seen(documents)).any():
            return documents
        raise ConfigError(
            f"{seen.sum()} of {len(seen)} documents are documents of the discovery, the first of "
            f"them {seen.idxmax()}. Topics fit those better than others, so measure "
            "others: divide documents first (corpus.split_for_discovery), leave these out "
            "(corpus[~book.seen(corpus)]), or, to describe them only, "
            "book.measure(corpus, allow_discovery=True)"
        )

    def measure(
        self,
        corpus: Corpus,
        *,
        allow_discovery: bool = False,
        num_draws: int = 100,
        seed: int = 0,
        progress: bool = True,
    ) -> Measurement:
        """Measure documents: draws from their exact posteriors at the frozen topics and prior.

        Nothing is refitted. Words that the codebook lacks are dropped, with a warning.

        Args:
            corpus: The documents. A model with formulas needs their columns.
            allow_discovery: Accept documents of the discovery.
            num_draws: Number of draws of each document. With 50, intervals of 95 % hold 93 %.
            seed: Seed of the chains.
            progress: Show a progress bar on standard error.

        Returns:
            The measurement: frames with intervals, effects, a report.

        Raises:
            ConfigError: Some documents are those of the discovery, the corpus has words and the
                model has none, or the model was changed.

        Example:
            >>> book = lntm.codebook(result, groups={"news": [3, 7]})
            >>> book.measure(test)
            Measurement(30 documents, 100 draws, by codebook ...)
            >>> book.measure(train)
            Traceback (most recent call last):
            ...
            torch_lntm.errors.ConfigError: 270 of 270 documents are documents of the discovery...
        """
        corpus = self.check_corpus(corpus, allow_discovery=allow_discovery)
        number = int(self.seen(corpus).sum()) if allow_discovery and self.discovery else 0
        chains = DocumentHMC(self.model, seed=seed)
        draws = theta_draws(chains, corpus, num_draws, seed=seed, progress=progress)
        return Measurement(self.model, corpus, draws, self.hash, self.groups, number)

    def intrusion(
        self, kind: Kind = "words", corpus: Corpus | Measurement | None = None, **options: Any
    ) -> Intrusion:
        """Tasks in which people find an intruder, which is easy if topics mean something to them.

        Equal arguments give equal tasks, so that the answers need not be kept.

        Args:
            kind: ``"words"``: five words of a topic, and one that is frequent in another topic but
                rare in this one (*Chang et al. 2009*). ``"word sets"``: three sets of four words
                from a topic's 20 most probable, and a set of another topic (*Ying, Montgomery &
                Stewart 2021*). ``"documents"``: a document, its three largest topics and one of
                its smaller half, each by eight words.
            corpus: Documents to show, or a measurement of them, for ``"documents"``.
            **options: ``topics``: topics to ask about, by number or name, by default all.
                ``per_topic``: most tasks for each topic, by default 3, where a document counts for
                its largest topic. ``texts``: texts of the documents, of which the beginning is
                shown in place of their most frequent words: a series, joined by the documents'
                names, or other texts in order. ``seed``: of the random choices and orders.

        Returns:
            The tasks, to save for raters, and to read their ratings.

        Raises:
            ConfigError: A setting is refused, or there are too few topics or words.

        Example:
            >>> tasks = lntm.codebook(result).intrusion("words", seed=1)
            >>> tasks
            Intrusion(30 tasks of words, 10 topics)
            >>> file = tasks.save("words.csv")  # for raters; read_ratings reads their copies
            >>> list(tasks.frame())
            ['task', 'a', 'b', 'c', 'd', 'e', 'f', 'answer', 'rater']
        """
        measured = self._measured(corpus, allow_discovery=True) if kind == "documents" else None
        return intrusion(self.model, self.hash, kind, measured, **options)

    def debias(
        self, labels: Any, corpus: Corpus | Measurement, formula: str = "~ 1", **options: Any
    ) -> Effects:
        """Effects of columns on what people code, from a few coded documents and all shares.

        A regression of model shares, or of labels by a language model, is biased even where 85 % of
        the labels are right. Here they only help: a document's outcome is f + R/π (label − f),
        where f is a line in its share, R says whether it is coded, and π is the probability of
        coding it. Its mean is the label's whatever the shares are, so effects are unbiased, and
        good shares make them more precise (*Egami, Hinck, Stewart & Wei 2023*; *Angelopoulos et al.
        2023*).

        Args:
            labels: Labels of documents drawn at random and coded by hand: a series or a data frame
                whose index has the names of coded documents. A column is named by a topic or group,
                and holds numbers, or truth values; missing ones are not coded.
            corpus: All documents, or a measurement of them.
            formula: Columns of the metadata. ``"~ 1"`` gives the mean label.
            **options: ``surrogate``: values of all documents that stand for the labels instead of
                the model's shares: a column's name, a series, or a data frame with the columns of
                the labels, such as labels by a language model. ``probabilities``: of coding each
                document, as a number, values or a column's name; they default to equal ones, which
                is a simple random sample. ``clusters``: as for
                :func:`~torch_lntm.effects.estimate`. ``num_folds``: parts of the documents for
                which the line is fitted in the others. ``seed``: of the folds.

        Returns:
            Effects on a linear scale, whose names are those of the columns of the labels.

        Raises:
            ConfigError: There are fewer than 10 coded documents, or a setting is refused.
            CorpusError: The labels have names of other documents.

        Example:
            >>> import pandas as pd
            >>> coded = test.metadata.sample(12, random_state=0).index
            >>> labels = pd.Series([0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1], coded, name="news")
            >>> book = lntm.codebook(result, groups={"news": [3, 7]})
            >>> book.debias(labels, test).table()[["topic", "term"]].values.tolist()
            [['news', 'Intercept']]
        """
        return debias(self._measured(corpus), labels, formula, **options)

    def _measured(self, corpus: Any, **options: Any) -> Measurement:
        """A measurement by this codebook."""
        if not isinstance(corpus, Measurement):
            return self.measure(corpus, **options)
        if corpus.hash != self.hash:
            raise ConfigError("the measurement is by another codebook; measure by this one")
        return corpus

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the codebook to one file, of JSON and tensors.

        Args:
            path: The file, such as ``"book.safetensors"``.
            overwrite: Replace an existing file.

        Returns:
            The file.

        Raises:
            ConfigError: The file exists and ``overwrite`` is false, or cannot be written.

        Example:
            >>> path = lntm.codebook(result).save("book.safetensors")
            >>> lntm.Codebook.load(path).hash == lntm.codebook(result).hash
            True
        """
        path = Path(path)
        check_file(path, overwrite)
        tensors = {name: x.contiguous() for name, x in self.model.state_dict().items()}
        tensors[_SEEN] = self.fingerprints
        about = {"format_version": FORMAT_VERSION, "tensors": _sums(tensors)}
        about |= {name: getattr(self, name) for name in _KEPT}
        # A single text, because the order of several in the file would vary.
        header = {_ABOUT: _as_text({"about": about, "sha256": _sha256(about)})}
        write_file(path, safetensors.torch.save(tensors, header))
        return path

    def push_to_hub(self, name: str, **options: Any) -> str:
        """Upload the codebook's file to a repository of the Hugging Face Hub.

        Args:
            name: Name of the repository, such as ``"user/name"``.
            **options: As for :meth:`TopicModel.push_to_hub`.

        Returns:
            Address of the commit.

        Raises:
            ConfigError: The extra ``files`` is not installed.
        """
        return push(lambda folder: self.save(folder / BOOK), self.model.name, name, **options)

    @staticmethod
    def from_pretrained(name: str | Path, **options: Any) -> Codebook:
        """Load a codebook from a repository of the Hugging Face Hub, or from a copy of its folder.

        Args:
            name: Name of the repository, such as ``"user/name"``, or the path of the folder.
            **options: As for :meth:`TopicModel.from_pretrained`. A ``revision`` fixes a version,
                and :attr:`hash` tells whether it is the registered one.

        Returns:
            The codebook, on the CPU.

        Raises:
            ConfigError: The extra ``files`` is not installed, or as for :meth:`load`.
        """
        return Codebook.load(pull(name, **options) / BOOK)

    @classmethod
    def load(cls, path: str | Path) -> Codebook:
        """Read a codebook from its file. Nothing in the file is executed.

        Args:
            path: The file.

        Returns:
            The codebook, on the CPU.

        Raises:
            ConfigError: The file is missing, damaged, altered or of a later version.
        """
        path = Path(path)
        with read_errors(path, "is no complete codebook, or was altered", Exception):
            with safe_open(path, "pt") as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            sealed = json.loads(header[_ABOUT])
            about = sealed["about"]
            if about["format_version"] != FORMAT_VERSION:
                raise ValueError(f"format {about['format_version']!r}; expected {FORMAT_VERSION}")
            content, seen = about["content"], tensors.pop(_SEEN)
            sums = _sums(tensors)
            found = (_sha256(about), _sha256(content), sums | _sums({_SEEN: seen}))
            recorded = (sealed["sha256"], about["hash"], about["tensors"])
            if found != recorded or sorted(sums.values()) != content["tensors"]:
                raise ValueError("its tensors or its description have other hashes")
            model = remake_model(content, tensors, path, path).requires_grad_(False)
            model.vocabulary = check_vocabulary(content["vocabulary"], model.num_words)
            further = as_groups(model, content["groups"])
            _, _, decisions, versions, discovery = (about[name] for name in _KEPT)
            return cls(model, content, tuple(decisions), versions, discovery, seen, further)

    def __repr__(self) -> str:
        groups = f", {len(self.groups)} groups" if self.groups else ""
        number = self.discovery and self.discovery["num_docs"]
        found = f"found in {number} documents" if number else "documents of discovery unknown"
        return (
            f"Codebook({self.model.name}, {self.model.num_topics} topics{groups}, {found}, "
            f"{len(self.decisions)} decisions, hash {self.hash[:12]})"
        )


def codebook(
    result: Fitted | TopicModel,
    *,
    groups: Mapping[str, Sequence[int | str]] | TopicGroups | None = None,
    names: Sequence[str | None] | Mapping[int, str] | None = None,
    decisions: Sequence[str] = (),
    discovery: Corpus | None = None,
) -> Codebook:
    """Freeze topics after discovery, to measure other documents by them.

    Args:
        result: The result of a fit, a run, or a model. It is copied.
        groups: Groups of topics, such as ``{"economy": [3, 7]}``; see
            :class:`~torch_lntm.models.TopicGroups`.
        names: Names of the topics, as for ``model.topic_names``. Defaults to the model's.
        decisions: Sentences about what was decided during discovery, which are dated now.
        discovery: The documents of the discovery. Defaults to those of the result.

    Returns:
        The codebook.

    Raises:
        ConfigError: A group or a name is refused, or the model could not be made again from a file
            (:func:`~torch_lntm.io.check_saveable`).

    Example:
        >>> lntm.codebook(result, groups={"news": [3, 7]}, names={1: "sport"})
        Codebook(ctm, 10 topics, 1 groups, found in 270 documents, 0 decisions, hash ...)
    """
    if isinstance(result, Fitted):
        discovery = result.corpus if discovery is None else discovery
        result = result.model
    require_model(result)
    model = copy.deepcopy(result).cpu().requires_grad_(False)
    if names is not None:
        model.topic_names = names
    check_saveable(model)
    assert model.construction is not None
    found = as_groups(model, groups)
    content = {
        "kind": model.construction.name,
        "config": model.construction.to_json(),
        "vocabulary": model.vocabulary,
        "topic_names": model.topic_names if model.has_topic_names else None,
        "groups": None if found is None else dict(zip(found.names, found.members, strict=True)),
        # Without their names, which a later version may change.
        "tensors": sorted(_sums(model.state_dict()).values()),
    }
    content = json.loads(_as_text(content))  # as a file holds it
    versions = {name: version(name) for name in ("torch_lntm", "torch", "numpy")}
    versions["python"] = platform.python_version()
    none = torch.zeros(0, 2, dtype=torch.int64)
    book = Codebook(model, content, (), versions, None, none, found).decide(*decisions)
    if discovery is None:
        return book
    about = {
        "fingerprint": discovery.fingerprint(),
        "num_docs": discovery.num_docs,
        "named": not is_default(discovery.metadata.index),
    }
    known = torch.from_numpy(_fingerprints(over(discovery, model.vocabulary)))
    return replace(book, discovery=about, fingerprints=known)


def _as_text(value: Any) -> str:
    """A value as JSON, always the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _sha256(value: Any) -> str:
    """SHA-256 of JSON-able data."""
    return hashlib.sha256(_as_text(value).encode()).hexdigest()


def _sums(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """SHA-256 of each tensor by name."""
    found = {}
    for name, tensor in tensors.items():
        digest = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        found[name] = digest.hexdigest()
    return found


def _hashed(texts: Sequence[Any]) -> NDArray[np.int64]:
    """64 bits of a hash of each text."""
    digests = (hashlib.blake2b(str(text).encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), "<i8")


def _fingerprints(corpus: Corpus) -> NDArray[np.int64]:
    """Fingerprints ``(num_docs, 2)`` of each document's words and counts, and of its name."""
    codes = _hashed(corpus.vocabulary or range(corpus.num_words))
    return np.stack([signatures(corpus, codes), _hashed(corpus.metadata.index)], 1)
