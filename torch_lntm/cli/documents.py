"""The documents of a command: options of reading, of words and of the computation."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch_lntm as lntm
from torch_lntm.cli.command import given, known_options, say, takes
from torch_lntm.cli.values import read_option
from torch_lntm.errors import ConfigError, CorpusError, require_whole

if TYPE_CHECKING:
    import torch

    from torch_lntm.corpus import Corpus
    from torch_lntm.inference import DrawSource
    from torch_lntm.io import Run

READING = "format vocabulary text_field label_field delimiter encoding metadata"
_MOST_THREADS = 1024


@dataclass(kw_only=True)
class Computation:
    """Options of the computation.

    Attributes:
        device: Device of the computation. auto uses a CUDA device if available.
        threads: Number of CPU threads. By default compiled kernels use all cores that this process
            may use, and PyTorch one, because its threads use a processor even while they wait. The
            number changes the time, but not the results of compiled kernels.
        seed: Seed of all random numbers.
        progress: Show progress bars if standard error is a terminal.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = None
    seed: int = 0
    progress: bool = True

    def __post_init__(self) -> None:
        self.progress = self.progress and sys.stderr is not None  # None if closed

    @property
    def random(self) -> dict[str, Any]:
        """The arguments ``seed`` and ``progress`` of a function."""
        return {"seed": self.seed, "progress": self.progress}

    def start(self) -> torch.device:
        """Set the number of threads, and return the device."""
        from torch_lntm.budget import find_device
        from torch_lntm.kernels.threads import set_threads

        require_whole(0, seed=self.seed)
        require_whole(1, threads=self.threads)
        set_threads(self.threads and min(self.threads, _MOST_THREADS))
        return find_device(self.device)


@dataclass(kw_only=True)
class Words:
    """Options for splitting texts into words and choosing a vocabulary.

    Attributes:
        stop_words: Words to leave out: english, none, or a file with a word per line. By default
            the English words are left out of English texts.
        min_df: Minimum number of documents with a word, or share such as 0.01. auto is 1 for fewer
            than 50 documents, 2 from 50, 3 from 500, and so forth.
        max_df: Maximum number of documents with a word, or share such as 0.5.
        token_pattern: Regular expression of a word.
        lowercase: Whether to convert words to lower case. Defaults to true.
    """

    stop_words: str = "auto"
    min_df: int | float | str = "auto"
    max_df: int | float | None = None
    token_pattern: str | None = None
    lowercase: bool | None = None


@takes("corpus:read_corpus", READING)
class Documents:
    """Documents that a command reads.

    Args:
        corpus: File or folder of documents. Files may be gzipped: .npz, .ldac, .dat, docword.*.txt,
            .mtx, .parquet, .txt, .jsonl, .csv. Folders hold texts or .parquet files, or were
            written by convert. The names example and lee stand for 75 short texts of this package
            and 300 news articles in gensim's package.
        format: Format of the corpus: one of txt (a document per line), jsonl, json, csv, folder,
            npz, ldac, uci, mtx, parquet and store. Defaults to the format that the name suggests.
    """

    def __init__(self, corpus: str, *, words: Words, **reading: Any) -> None:
        self.corpus = corpus
        #: The options of reading, and of words, that the user gives.
        self.given = given(Documents, reading) | given(Words, vars(words))

    @property
    def path(self) -> Path:
        """The file or folder."""
        return Path(self._located[0])

    @property
    def _located(self) -> tuple[Any, dict[str, Any]]:
        from torch_lntm.corpus.examples import located

        return located(self.corpus)

    @property
    def options(self) -> dict[str, Any]:
        """Options of :func:`~torch_lntm.read_corpus`: the given ones, and those of an example."""
        options = self._located[1]
        if "vocabulary" in self.given:  # which chooses the words
            options = {n: v for n, v in options.items() if n not in ("min_df", "max_df")}
        return options | self.given

    def read(self) -> Corpus:
        """Read the corpus."""
        return lntm.read_corpus(self.path, **self.options)

    def texts(self) -> Iterable[str] | None:
        """Texts of the documents; ``None`` for counts."""
        from torch_lntm.corpus.readers import texts_of

        return texts_of(self.path, self.options)


class RunDocuments(Documents):
    """A run, and its documents or other documents.

    Args:
        run_folder: The run's folder.
        corpus: Documents, as for fit. Defaults to the corpus of the fit.
        format: Format of the corpus, as for fit. Where the name suggests none, it defaults to the
            format of the fit's corpus.
    """

    def __init__(
        self,
        run_folder: str,
        corpus: str | None = None,
        *,
        computation: Computation,
        **reading: Any,
    ) -> None:
        super().__init__(corpus or "", words=Words(), **reading)
        self.run_folder, self.computation = run_folder, computation
        #: The arguments ``seed`` and ``progress`` of a function.
        self.random = computation.random

    def load(self) -> tuple[Run, Corpus]:
        """The run, with its model on the device, and its documents over its vocabulary."""
        device = self.computation.start()
        run = lntm.load_run(self.run_folder)
        run.model.to(device)
        by_default, corpus_of_fit = not self.corpus, run.config.get("corpus")
        if by_default:
            self.corpus = str(corpus_of_fit)
            if not self.path.exists():
                raise ConfigError(
                    f"{corpus_of_fit}: no such file or folder, and the corpus of {self.run_folder} "
                    "was read from there; name the documents, as CORPUS"
                )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            corpus = self._read_for(run)
        known = run.metadata.get("corpus", {}).get("fingerprint")
        self.are_of_fit = known == corpus.fingerprint()
        for warning in () if self.are_of_fit else caught:  # the fit has given the warnings
            warnings.warn(warning.message, warning.category, stacklevel=2)
        if not self.are_of_fit and self.corpus == corpus_of_fit and known is not None:
            changed = f"{corpus_of_fit}: the documents or the options of reading have changed"
            used = "all documents, including training documents,"
            if by_default:
                raise ConfigError(f"{changed} since the fit; to use {used} name it as CORPUS")
            say(f"warning: {changed} since the fit; {used} are used")
        return replace(run, corpus=corpus), corpus

    def _read_for(self, run: Run) -> Corpus:
        """Read the corpus over the vocabulary of the fitted model.

        Options for reading and splitting default to the options of the fit.
        """
        vocabulary, config, chosen = run.model.vocabulary, _reading_of(run), self.given
        self.given = self._of_fit(config) | chosen
        if vocabulary is not None and self.texts() is not None:
            # The vocabulary of the model chooses the words, also of the documents of the fit.
            tokens = {n: option for n, option in run.reading.items() if n != "text_field"}
            self.given |= {"vocabulary": vocabulary} | tokens | chosen
        corpus = self.read()
        return corpus if vocabulary is None else corpus.with_vocabulary(vocabulary)

    def _of_fit(self, config: dict[str, Any]) -> dict[str, Any]:
        """The fit's options of reading, as far as they apply to this corpus."""
        if self.corpus == config.get("corpus"):
            return {n: config[n] for n in READING.split() if n in config}
        if self._located[1]:  # an example
            return {}
        # Another file may differ in format or lack labels, and the words are those of the model.
        of_fit = config.get("format") or _format_of(config.get("corpus"))
        form = self.given.get("format") or _format_of(self.corpus) or of_fit
        names = ("text_field", "delimiter", "encoding") if form == of_fit else ("encoding",)
        return {"format": form} | {n: config[n] for n in names if n in config}


def _reading_of(run: Run) -> dict[str, Any]:
    """The corpus and the given options of reading and words in the configuration of a run."""
    path, config = Path(str(run.path)) / "config.json", run.config
    options = known_options(Documents).items()
    return given(Documents, {n: read_option(o, config.get(n), path) for n, o in options})


def _format_of(corpus: object) -> str | None:
    """Format of a corpus by its name; ``None`` if unknown."""
    from torch_lntm.corpus.readers.formats import format_name

    with suppress(CorpusError):
        return format_name(Path(str(corpus)))
    return None


def source_of(run: Run, source: str, seed: int) -> DrawSource:
    """What draws the proportions of documents: ``"guide"``, ``"chains"``, or ``"auto"``, the run's.

    The seed is that of chains.
    """
    by_chains = run.sampled if source == "auto" else source == "chains"
    return run.chains(seed=seed) if by_chains else run.guide()
