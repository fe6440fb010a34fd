"""Saves runs: fitted models with their configuration, history and scores."""

from __future__ import annotations

import json
import platform
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from torch_lntm.corpus import Corpus
from torch_lntm.corpus.splits import Split, load_split
from torch_lntm.corpus.texts import options_of_file, saved_options
from torch_lntm.errors import ConfigError
from torch_lntm.files import writing
from torch_lntm.files.reading import read_consistent, read_errors, read_text
from torch_lntm.guides import Guide
from torch_lntm.inference import DocumentHMC, FitResult, KeptChains
from torch_lntm.inference.fitted import Fitted
from torch_lntm.inference.steering import RefinedResult
from torch_lntm.io.card import is_unedited, model_card, settings_of, signed
from torch_lntm.io.chains import read_chains, write_chains
from torch_lntm.io.models import (
    CARD,
    MODEL,
    check_saveable,
    check_target,
    load_model,
    read_json,
    read_model,
    write_model,
)
from torch_lntm.models import TopicModel
from torch_lntm.models.names import labels, name_words
from torch_lntm.recipes import SAMPLERS, guide_of

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

#: Further files of a run's folder.
CONFIG, METADATA, HISTORY = "config.json", "metadata.json", "history.jsonl"
SPLIT, EVALUATION, CHAINS = "split.npz", "evaluation.json", "chains.safetensors"


@dataclass(frozen=True, eq=False)
class Run(Fitted):
    """A finished fit with its configuration: fresh from :func:`torch_lntm.fit`, or from a folder.

    What you want to know next are its attributes and methods: :attr:`topics`, :attr:`documents`,
    :meth:`transform`, :meth:`effects`, :meth:`report` and :meth:`save`. A run from a folder has
    everything except its documents; where a method needs them, give these to the method or to
    :func:`load_run`.

    Attributes:
        path: The folder; ``None`` for a fresh run.
        model: The fitted model. From a folder it comes to the CPU.
        config: The resolved configuration of the fit.
        metadata: Facts about the fit: ``stop_reason``, ``topic_shares``, ``corpus``, ``versions``,
            ``date`` and others.
        history: A record per iteration; see :class:`~torch_lntm.inference.FitResult`.
        corpus: The documents of the fit, with those that it held out, if they are known.
        result: The result of the fit, if it is fresh.
        texts: Texts of the documents, if they are known, for reports.
        before: The run that :func:`~torch_lntm.refine` changed, if any.
    """

    path: Path | None
    model: TopicModel
    config: dict[str, Any]
    metadata: dict[str, Any]
    history: list[dict[str, Any]] = field(repr=False)
    corpus: Corpus | None = None
    result: FitResult | None = None
    texts: Iterable[str] | None = None
    _split: Split[Corpus] | None = None
    _scores: pd.DataFrame | None = None
    before: Run | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        where = "" if self.path is None else f"{str(self.path)!r}, "
        return f"Run({where}{self.model.name}, {self.model.num_topics} topics)"

    def __str__(self) -> str:
        topics = self.topics
        width = max(4, topics["name"].str.len().max())
        lines = [f"{self!r}", "", f"topic   share   {'name':<{width}}   top words"]
        for row in topics.itertuples():
            lines.append(f"{row.topic:>5}  {row.share:>6.1%}   {row.name:<{width}}   {row.words}")
        if (scores := self.scores) is not None:
            of_method = [
                f"{row.value:.1f} ± {row.std_error:.1f} by {row.method.partition(',')[0]}"
                for row in scores.itertuples()
            ]
            held_out = f"{scores['metric'][0]} of {scores['documents'][0]} held-out documents"
            lines += ["", f"{held_out}: {', '.join(of_method)}"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The topics as a table, for notebooks."""
        shown = self.topics.drop(columns=["lower", "upper"])
        return shown.style.format({"share": "{:.1%}"}).hide(axis="index").to_html()

    @property
    def topics(self) -> pd.DataFrame:
        """A row for each topic, the largest first.

        The columns are ``topic``, ``name``, ``share``, the ends ``lower`` and ``upper`` of its 95 %
        interval (:attr:`FitResult.topic_intervals`), and ``words``. A topic without a name of its
        own is named by words that tell it from the others. The ends are NaN where they are unknown.
        """
        frame = self.topic_table(top_n=10).frame()[["topic", "name", "share", "words"]]
        words = name_words(self.model.topics.mean_probs, self.model.words_at, 3)
        names = labels(self.model.topic_names, words, numbered=False)
        frame["name"] = [names[topic] for topic in frame["topic"]]
        ends = self.metadata.get("topic_intervals") or np.full((2, len(frame)), np.nan)
        frame[["lower", "upper"]] = np.transpose(ends)[frame["topic"]]
        return frame[["topic", "name", "share", "lower", "upper", "words"]]

    @property
    def scores(self) -> pd.DataFrame | None:
        """Scores on the documents that the fit held out, a row for each; ``None`` without them.

        See :func:`~torch_lntm.reports.score_table`.
        """
        from torch_lntm.reports import scores

        return self.read(EVALUATION, scores.read_scores) if self._scores is None else self._scores

    @cached_property
    def documents(self) -> pd.DataFrame:
        """A row for each document of the fit: its columns, tokens and topic proportions."""
        return self.document_table()

    @property
    def reading(self) -> Mapping[str, Any]:
        """Options by which the texts of the fit became words, and the column that they were in."""
        if self.result is not None:
            found = dict(super().reading)
        else:
            given = {name: x for name, x in self.config.items() if x is not None}
            counting = self.metadata.get("corpus", {}).get("counting")
            found = options_of_file(given) | options_of_file(counting)
        field = self.config.get("text_field")
        return found if field is None else found | {"text_field": field}

    def guide(self, **settings: Any) -> Guide[Any]:
        """The guide of the fit, or the default guide of the model after a fit by chains.

        Args:
            **settings: Settings of the guide, such as ``tolerance``.

        Raises:
            ConfigError: The posterior in the configuration is unknown.
            IncompatibleGuideError: The posterior belongs to another kind of model.
        """
        return guide_of(self.config.get("posterior"), self.model, **settings)

    def chains(self, *, seed: int = 0) -> DocumentHMC | KeptChains:
        """Chains of the documents, which continue those that the fit kept, if any.

        Args:
            seed: Seed of the chains.

        Raises:
            ConfigError: The file of the chains is damaged.
        """
        if self.result is not None and isinstance(self.result.source, KeptChains):
            return self.result.source
        if self.sampled and self.path is not None and (self.path / CHAINS).is_file():
            return read_chains(self.path / CHAINS, self.model, seed, _identity(self.metadata))
        return DocumentHMC(self.model, seed=seed)

    @property
    def sampled(self) -> bool:
        """Whether chains drew the documents' proportions in the fit, rather than a guide."""
        return self.config.get("posterior") in SAMPLERS

    @property
    def source(self) -> Guide[Any] | DocumentHMC | KeptChains:
        """What draws theta after this fit: its :meth:`guide`, or its :meth:`chains`."""
        if self.result is not None:
            return self.result.source
        return self.chains() if self.sampled else self.guide()

    @property
    def topic_shares(self) -> Sequence[float] | None:
        """Shares of the topics in the documents of the fit, ``(num_topics,)``."""
        return self.metadata.get("topic_shares")

    def report(
        self, path: str | Path | None = None, corpus: Corpus | None = None, **options: Any
    ) -> Path:
        """Write a page about the fit; see :func:`~torch_lntm.reports.report`."""
        if corpus is None and self.texts is not None:
            options = {"texts": self.texts, **options}
        return super().report(path, corpus, **options)

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write a fresh run to a folder, for :func:`load_run` and the command line.

        Args:
            path: The folder.
            **options: ``keep_chains`` and ``overwrite`` of :func:`save_run`.

        Raises:
            ConfigError: The run comes from a folder. See also :func:`save_run`.
        """
        if self.result is None:
            raise ConfigError(f"the run is in {self.path} already; copy this folder")
        from torch_lntm.reports import scores

        of_test = None if self._scores is None else scores.score_records(self._scores)
        facts = {"metadata": self.metadata, "split": self._split, "evaluation": of_test, **options}
        return save_run(path, self.model, self.result, self.config, **facts)

    def continued(self, refined: RefinedResult) -> Run:
        """The run of a refined fit to the same documents, without the words that it forbids."""
        corpus, split, texts = refined.check_corpus(), None, None
        if self.corpus is not None:
            own, words = self.corpus, refined.model.vocabulary
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of the forbidden words
                own = own if words is None else own.with_vocabulary(words)
            of_fit = self.split_documents(self.corpus)
            of_fit = None if of_fit is None else replace(of_fit, corpus=own)
            training = own if of_fit is None else of_fit.train
            if training.fingerprint() == corpus.fingerprint():  # and not those of another corpus
                corpus, split, texts = own, of_fit, self.texts
        config = {"num_topics": refined.model.num_topics, "posterior": "hmc"}
        config |= {} if split else {"test_fraction": 0.0}
        return fresh_run(refined, self.config | config, corpus, split, None, texts, self)

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """What was changed by :func:`~torch_lntm.inference.refine` since the first fit."""
        return list(self.metadata.get("decisions", ()))

    def settings(self) -> dict[str, Any]:
        """Settings and results of the fit by name, for a report."""
        return settings_of(self.config, self.metadata)

    def split_documents(self, corpus: Corpus) -> Split[Corpus] | None:
        """Split of the fit: training and held-out documents. ``None`` for a fit to all documents.

        Args:
            corpus: The corpus of the run.

        Raises:
            CorpusError: The corpus is different, or the file is damaged.
            ConfigError: Documents were held out, and the file is missing.
        """
        split = self._split or self.read(SPLIT, lambda path: load_split(path, corpus))
        if split is None and self.config.get("test_fraction"):
            raise ConfigError(
                f"{self.path}/{SPLIT}: no such file, but documents were held out; is the folder "
                "complete?"
            )
        return split

    @property
    def training(self) -> Corpus:
        """The documents of the fit, without those that it held out."""
        split = self.split_documents(self.check_corpus())
        return self.check_corpus() if split is None else split.train

    def read(self, name: str, reader: Callable[[Path], T]) -> T | None:
        """Read a file of the run's folder.

        Args:
            name: Name of the file.
            reader: Reads the file.

        Returns:
            The result of ``reader``; ``None`` if the file is missing.

        Raises:
            ConfigError: The folder now holds another run. Errors of ``reader`` are passed on.
        """
        if self.path is None:
            return None

        def read(folder: Path) -> T | None:
            if _identity(read_json(folder / METADATA)) != _identity(self.metadata):
                raise ConfigError(f"{folder}: holds another run by now; load it again")
            return reader(folder / name) if (folder / name).exists() else None

        return read_consistent(self.path, read)


def save_run(
    path: str | Path,
    model: TopicModel,
    result: FitResult,
    config: Mapping[str, Any],
    *,
    metadata: Mapping[str, Any] | None = None,
    split: Split[Corpus] | None = None,
    evaluation: Sequence[Mapping[str, Any]] | None = None,
    keep_chains: bool = True,
    overwrite: bool = False,
) -> Path:
    """Write a fit to a folder, completely or not at all.

    The folder holds everything that :func:`load_run` needs to study the fit later, and a
    ``README.md`` that tells people what the model is. ``torch-lntm fit`` writes the same kind of
    folder.

    Args:
        path: The folder to write.
        model: The fitted model.
        result: The result of the fit.
        config: The configuration of the fit, JSON-able.
        metadata: Further facts to record, JSON-able. The card shows ``"licence"``.
        split: The training and the held-out documents.
        evaluation: Scores on the held-out documents, from
            :func:`torch_lntm.reports.scores.score_records`.
        keep_chains: Save the last states of the chains, for reports and effects to continue. They
            take 4 bytes per document, topic and chain.
        overwrite: Replace an existing model or run.

    Returns:
        The folder.

    Raises:
        ConfigError: The folder exists and ``overwrite`` is false, writing fails, or
            :func:`check_saveable` refuses the model.

    Example:
        >>> folder = lntm.io.save_run("run", model, result, {"model": "ctm"})
        >>> lntm.load_run(folder)
        Run('run', ctm, 10 topics)
    """
    check_saveable(model)
    about = facts_of(result) | dict(metadata or {})
    history = "".join(json.dumps(record) + "\n" for record in result.history)
    card = signed(model_card(model, config, about, evaluation or ()))
    files = {CONFIG: writing.as_json(dict(config)), METADATA: writing.as_json(about), CARD: card}
    if evaluation is not None:
        files[EVALUATION] = writing.as_json(list(evaluation))
    check_target(Path(path), overwrite)
    with writing.atomic_folder(Path(path)) as folder:
        write_model(folder, model)
        for name, data in (files | {HISTORY: history.encode()}).items():
            (folder / name).write_bytes(data)
        if split is not None:
            split.save(folder / SPLIT)
        chains = result.source
        if keep_chains and isinstance(chains, KeptChains) and chains.num_docs:
            write_chains(folder / CHAINS, chains, _identity(about))
    return Path(path)


def fresh_run(
    result: FitResult,
    config: dict[str, Any],
    corpus: Corpus,
    split: Split[Corpus] | None,
    scores: pd.DataFrame | None,
    texts: Iterable[str] | None = None,
    before: Run | None = None,
) -> Run:
    """The run of a fit to documents; the arguments are what :class:`Run` holds."""
    whole = corpus.whole
    about: dict[str, Any] = {"name": corpus.name, "num_docs": whole.num_docs}
    about |= {"num_words": corpus.num_words, "num_tokens": whole.num_tokens}
    about |= {"counting": saved_options(corpus.counting)} if corpus.counting else {}
    # A part goes by the fingerprint of the manifest, because no process reads all counts.
    if corpus.part is None:
        about["fingerprint"] = corpus.fingerprint()
    else:
        about["manifest"] = corpus.part.fingerprint
    facts = facts_of(result) | {"corpus": about}
    known = (result.history, corpus, result, texts, split, scores, before)
    return Run(None, result.model, config, facts, *known)


def facts_of(result: FitResult) -> dict[str, Any]:
    """What a run says about its fit: the content of ``metadata.json``."""
    shares, intervals = result.topic_shares, result.topic_intervals
    versions = {name: version(name) for name in ("torch_lntm", "torch", "pyro-ppl", "numpy")}
    facts = {
        "stop_reason": result.stop_reason,
        "num_unconverged": result.num_unconverged,
        "objective_name": result.objective_name,
        "objective": result.history[-1]["objective"] if result.history else None,
        "seconds": round(result.seconds, 3),
        "topic_shares": None if shares is None else shares.tolist(),
        "topic_intervals": None if intervals is None else intervals.tolist(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **versions},
    }
    if isinstance(result, RefinedResult):
        facts["decisions"] = result.decisions
    return facts


def write_topic_names(folder: str | Path, names: Any) -> tuple[str, ...]:
    """Set the names of the topics of a saved model or run.

    Args:
        folder: The folder.
        names: The names; see :attr:`TopicModel.topic_names`.

    Returns:
        The names of all topics.

    Raises:
        ConfigError: The folder cannot be read or written, or a name is refused.

    Example:
        >>> folder = lntm.save_model(model, "model")
        >>> lntm.io.write_topic_names(folder, {0: "fires"})[0]
        'fires'
    """
    path = Path(folder)
    run = load_run(path) if (path / METADATA).is_file() else None
    model = load_model(path) if run is None else run.model
    model.topic_names = names
    named = model.topic_names if model.has_topic_names else None
    files = {MODEL: writing.as_json(read_json(path / MODEL) | {"topic_names": named})}
    # People edit cards, for instance to add a licence, so an edited card is left alone.
    if not (path / CARD).is_file() or is_unedited((path / CARD).read_bytes()):
        facts: tuple[Any, ...] = ()
        if run is not None:
            scores = run.read(EVALUATION, lambda file: read_json(file, list))
            facts = run.config, run.metadata, scores or ()
        with read_errors(path / EVALUATION, "not a list of scores", (AttributeError, TypeError)):
            files[CARD] = signed(model_card(model, *facts))
    for name, data in files.items():
        writing.write_file(path / name, data)
    return model.topic_names


def _identity(metadata: Mapping[str, Any]) -> str:
    """Identity of a run, to detect the replacement of a folder between two readings."""
    return " ".join(str(metadata.get(name)) for name in ("date", "seconds", "objective"))


def load_run(path: str | Path, corpus: Corpus | None = None) -> Run:
    """Read a fit from its folder, written by :func:`save_run` or by ``torch-lntm fit``.

    Loading only reads tensors, JSON and text and never executes code, so a stranger's run is safe
    to open.

    Args:
        path: The folder.
        corpus: The documents of the fit, which the folder does not hold. Methods such as
            ``run.report()`` and ``run.effects(formula)`` then use them by default.

    Returns:
        The run, with the model on the CPU.

    Raises:
        ConfigError: A file is missing or damaged, or two files contradict. The message names the
            file.

    Example:
        >>> folder = lntm.io.save_run("saved", model, result, {"model": "ctm"})
        >>> run = lntm.load_run(folder)
        >>> run.model.num_topics, len(run.history) == len(result.history)
        (10, True)
    """
    return replace(read_consistent(Path(path), _read_run), corpus=corpus)


def _read_run(folder: Path) -> Run:
    """Read a run from a folder that stays unchanged; see :func:`load_run`."""
    model = read_model(folder)
    metadata = read_json(folder / METADATA)
    with read_errors(folder / HISTORY, "not complete JSON", (ValueError, RecursionError)):
        history = [json.loads(line) for line in read_text(folder / HISTORY).splitlines()]
        if not all(isinstance(record, dict) for record in history):
            raise ValueError("a line is no JSON object")
    return Run(folder, model, read_json(folder / CONFIG), metadata, history)


# -- unfinished runs -----------------------------------------------------------------------------

CHECKPOINT, _LOCK = "checkpoint.safetensors", "lock"


def partial_folder(path: Path) -> Path:
    """Folder of a running fit, for the final path of the run."""
    return path.with_name(f"{writing.shortened(path.name)}.partial")


class UnfinishedRun:
    """Folder ``PATH.partial`` of a running fit, from which a killed fit can continue.

    It holds the configuration and the latest checkpoint. While this object is in use, it locks the
    folder against other processes.

    Args:
        path: Final path of the run.
        config: The configuration of the fit, JSON-able.

    Raises:
        ConfigError: The folder holds a checkpoint of another configuration or foreign files, or is
            locked by another process.
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path, self.folder = path, partial_folder(path)
        self.checkpoint = self.folder / CHECKPOINT
        with writing.path_errors(self.folder):
            writing.make_folder(self.folder)
            # The folder is removed at the end, so it may hold nothing else.
            own = (CONFIG, CHECKPOINT, f"{CHECKPOINT}.rows", _LOCK)
            for file in self.folder.iterdir():
                # Killed writers leave hidden names.
                if re.sub(r"^\.(.+)\.[0-9a-f]{32}\.new$", r"\1", file.name) not in own:
                    raise ConfigError(
                        f"{self.folder}: holds {file.name}, which is no part of an unfinished fit; "
                        "choose another path"
                    )
            self._lock = open(self.folder / _LOCK, "ab")  # noqa: SIM115 - it keeps the lock
        try:
            # None, where locks are unsupported, counts as success.
            if writing.try_lock(self._lock.fileno()) is False:
                raise ConfigError(f"{self.folder}: another fit is writing there; wait for its end")
            self._claim(json.loads(json.dumps(config)))
        except BaseException:
            self._lock.close()
            raise

    def _claim(self, config: dict[str, Any]) -> None:
        """Write the configuration, after a comparison with that of the checkpoint."""
        old = read_json(self.folder / CONFIG) if self.started else config
        names = [n for n in sorted({*config, *old}) if config.get(n) != old.get(n)]
        if names:
            different = "; ".join(f"{n} is {config.get(n)!r}, was {old.get(n)!r}" for n in names)
            raise ConfigError(
                f"{self.folder}: holds an unfinished fit of another configuration ({different}). "
                "Use the old configuration to continue, delete the folder to start anew, or choose "
                "another path"
            )
        writing.write_file(self.folder / CONFIG, writing.as_json(config))

    @property
    def started(self) -> bool:
        """Whether the folder has a checkpoint."""
        return self.checkpoint.exists()

    def discard(self) -> None:
        """Remove the folder after the fit."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()

    def __enter__(self) -> UnfinishedRun:
        return self

    def __exit__(self, *exception: object) -> None:
        """Keep the folder for a later run if it has a checkpoint; remove it otherwise."""
        if not self._lock.closed and not self.started:
            self.discard()
        self._lock.close()
