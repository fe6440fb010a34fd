"""Base classes of commands that read documents, compute, and score."""

from __future__ import annotations

import functools
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch_lntm as lntm
from torch_lntm.cli.command import Command, say
from torch_lntm.cli.mappings import read_value
from torch_lntm.errors import ConfigError, CorpusError, require_whole

if TYPE_CHECKING:
    import torch

    from torch_lntm.corpus import Corpus
    from torch_lntm.guides import Guide
    from torch_lntm.inference import DrawSource
    from torch_lntm.io import Run
    from torch_lntm.reports import Score

READER, TEXTS = "corpus:read_corpus", "corpus:Corpus.from_texts"
READING_OPTIONS = (
    *("format", "vocabulary", "text_field", "label_field", "delimiter", "encoding"),
    "metadata",
)
#: Options for splitting texts into words, and all options of words.
TOKEN_OPTIONS = ("stop_words", "token_pattern", "lowercase")
WORD_OPTIONS = (*TOKEN_OPTIONS, "min_df", "max_df")
#: Names of corpora that are not files: ``lntm.lee_corpus`` and ``lntm.example_corpus``.
EXAMPLES = ("lee", "example")
_MOST_THREADS = 1024


@dataclass(kw_only=True)
class ReadsDocuments(Command):
    """Base class of commands that read documents.

    Attributes:
        corpus: File or folder of documents. Files may be gzipped: .npz, .ldac, .dat, docword.*.txt,
            .mtx, .h5ad, .parquet, .txt, .jsonl, .csv. Folders hold texts or .parquet files, or were
            written by convert. The folder may be remote: https://host/posts or s3://bucket/posts.
            Use - for standard input, example for 75 short texts of this package, and lee for 300
            news articles in gensim's package.
        format: Format of the corpus: one of txt, jsonl, json, csv, folder, npz, ldac, uci, mtx,
            h5ad, parquet and store. txt has a document per line. Defaults to the format of the
            name. For standard input, it defaults to the format of the fit's corpus, and to txt if
            the fit read a folder of texts.
    """

    takes: ClassVar[dict[str, str]] = {READER: " ".join(READING_OPTIONS)}
    headings: ClassVar[dict[str, tuple[str, ...]]] = {"reading documents": READING_OPTIONS}

    corpus: str | None = None

    def read(self, **options: Any) -> Corpus:
        """Read the corpus.

        Args:
            **options: Options of ``CountVectorizer`` for texts.
        """
        with self.file() as path:
            return self.read_file(path, options)

    def read_file(self, path: str, options: dict[str, Any]) -> Corpus:
        """Read the corpus in a file of :meth:`file`."""
        options = self.given(READING_OPTIONS) | with_stop_words(options)
        if self.corpus not in EXAMPLES:
            return lntm.read_corpus(path, **options)
        if reading := ", ".join(self.given(READING_OPTIONS)):
            raise ConfigError(f"the corpus {self.corpus} takes no {reading}; leave them out")
        corpus = lntm.lee_corpus if self.corpus == "lee" else lntm.example_corpus
        return corpus(**options)

    @contextmanager
    def file(self) -> Iterator[str]:
        """Context with the path of the corpus. Standard input is copied to a temporary file."""
        if self.corpus != "-":
            yield str(self.corpus)
            return
        if self.format is None:
            raise ConfigError("the corpus - is standard input; name its format, as in --format txt")
        if sys.stdin is None:
            raise ConfigError("the corpus - is standard input, which is closed")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "stdin")
            with open(path, "wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
            try:
                yield str(path)
            except CorpusError as error:
                raise CorpusError(str(error).replace(str(path), "standard input")) from error


def with_stop_words(options: dict[str, Any]) -> dict[str, Any]:
    """Replaces the name of a file of stop words by its words."""
    name = options.get("stop_words")
    if name in (None, "auto", "none", "english"):
        return options
    from torch_lntm.files.reading import read_lines

    if not Path(name).exists() and Path(name).name == name and not Path(name).suffix:
        expected = "english, none, or a file with a word per line"
        raise ConfigError(f"stop_words is {name!r}; expected {expected}")
    return options | {"stop_words": read_lines(Path(name))}


@dataclass(kw_only=True)
class ChoosesWords(ReadsDocuments):
    """Base class of commands that split texts into words and choose a vocabulary.

    Attributes:
        stop_words: Words to leave out: english, none, or a file with a word per line. By default
            the English words are left out of English texts.
        max_df: Maximum number of documents with a word, or share such as 0.5.
        token_pattern: Regular expression of a word.
        lowercase: Convert words to lower case. Defaults to true.
    """

    takes: ClassVar[dict[str, str]] = {TEXTS: "stop_words min_df"}
    headings: ClassVar[dict[str, tuple[str, ...]]] = {
        **ReadsDocuments.headings,
        "words of texts": WORD_OPTIONS,
    }

    max_df: int | float | None = None
    token_pattern: str | None = None
    lowercase: bool | None = None

    def word_options(self) -> dict[str, Any]:
        """The user's options of words."""
        return self.given(WORD_OPTIONS)


@dataclass(kw_only=True)
class OnDocuments(ReadsDocuments):
    """Base class of commands that read documents and compute.

    Attributes:
        device: Device of the computation. auto uses a CUDA device if available.
        threads: Number of CPU threads. On an idle machine a second thread saves nearly half of the
            time for 20,000 documents and more, and a tenth for 2,000. On a busy machine a second
            thread can cost far more than it saves.
        seed: Seed of all random numbers.
        progress: Show progress bars if standard error is a terminal.
    """

    headings: ClassVar[dict[str, tuple[str, ...]]] = {
        **ReadsDocuments.headings,
        "computation": ("device", "threads", "seed", "progress"),
    }

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = 1
    seed: int = 0
    progress: bool = True

    @property
    def shows_progress(self) -> bool:
        """Whether to show progress bars. They are useless in a file."""
        return self.progress and sys.stderr is not None and sys.stderr.isatty()

    @property
    def random(self) -> dict[str, Any]:
        """The arguments ``seed`` and ``progress`` of a function."""
        return {"seed": self.seed, "progress": self.shows_progress}

    def torch_device(self) -> torch.device:
        """Device of the option. Also sets the number of threads."""
        import torch

        require_whole(0, seed=self.seed)
        require_whole(1, threads=self.threads)
        torch.set_num_threads(min(self.threads, _MOST_THREADS))
        return lntm.recipes.find_device(self.device)

    def load(self, folder: str) -> tuple[Run, Guide[Any], Corpus]:
        """A run, its guide on the device, and the documents over its vocabulary."""
        device = self.torch_device()
        run = lntm.load_run(folder)
        by_default, corpus_of_fit = self.corpus is None, run.config.get("corpus")
        if by_default:
            self.corpus = _local_corpus(folder, corpus_of_fit)
        run.model.to(device)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            corpus = self.read_for(run)
        known = run.metadata.get("corpus", {}).get("fingerprint")
        if known == corpus.fingerprint():
            return run, run.guide(), corpus  # the fit has given the warnings
        for warning in caught:
            warnings.warn(warning.message, warning.category, stacklevel=2)
        if self.corpus == corpus_of_fit != "-" and known is not None:
            changed = f"{corpus_of_fit}: the documents or the options of reading have changed"
            used = "all documents, including training documents,"
            if by_default:
                raise ConfigError(f"{changed} since the fit; to use {used} name it as CORPUS")
            say(f"warning: {changed} since the fit; {used} are used")
        return run, run.guide(), corpus

    def read_for(self, run: Run) -> Corpus:
        """Read the corpus over the vocabulary of a fitted model.

        Options for reading and splitting default to the options of the fit.
        """
        vocabulary, config = run.model.vocabulary, _reading(run)
        self._inherit(config)
        with self.file() as path:
            options: dict[str, Any] = {}
            if self.corpus in EXAMPLES or self._holds_texts(path):
                # The vocabulary of the model chooses the words, also of the documents of the fit.
                chosen = {name: config[name] for name in TOKEN_OPTIONS if name in config}
                options = {"stop_words": "none"} | chosen
                words = None if self.corpus in EXAMPLES else self.vocabulary or vocabulary
                options |= {"min_df": 1, "max_df": 1.0} if words is None else {"vocabulary": words}
            corpus = self.read_file(path, options)
        if vocabulary is not None:
            return corpus.with_vocabulary(vocabulary)
        if corpus.num_words != run.model.num_words:
            words = f"{run.model.num_words} words of the model, which has no vocabulary"
            raise CorpusError(f"{corpus!r} does not have the {words}; give counts over its columns")
        return corpus

    def _inherit(self, config: dict[str, Any]) -> None:
        """Use the fit's options of reading as defaults, as far as they apply to this corpus."""
        names: tuple[str, ...] = () if self.corpus in EXAMPLES else READING_OPTIONS
        if names and (self.corpus != config.get("corpus") or self.corpus == "-"):
            # Another file may have another format, or no labels. The words are those of the model.
            of_fit = config.get("format") or _format_of(config.get("corpus"))
            if self.format is None and _format_of(self.corpus) is None:
                is_text_stream = self.corpus == "-" and of_fit == "folder"
                vars(self)["format"] = "txt" if is_text_stream else of_fit
            is_alike = (self.format or _format_of(self.corpus)) == of_fit
            names = ("text_field", "delimiter", "encoding") if is_alike else ("encoding",)
        given = self.given(READING_OPTIONS)
        vars(self).update({n: config[n] for n in names if n in config and n not in given})

    def _holds_texts(self, path: str) -> bool:
        """Whether the corpus at ``path`` holds texts rather than counts."""
        from torch_lntm.corpus.readers.formats import find_format, format_of

        format = self.format or find_format(path)
        return format_of(Path(path), format, self.text_field).holds == "texts"

    def texts(self) -> Iterable[str] | None:
        """Texts of the documents; ``None`` for counts and for standard input."""
        from torch_lntm.corpus.examples import example_file, lee_file
        from torch_lntm.corpus.readers.formats import FORMATS, find_format
        from torch_lntm.corpus.readers.texts import Options, TextStream

        if self.corpus == "-":
            return None
        if self.corpus in EXAMPLES:
            is_lee = self.corpus == "lee"
            file, form = (lee_file(), "txt") if is_lee else (example_file(), "jsonl")
            return TextStream(file, FORMATS[form].read, Options())
        if not self._holds_texts(str(self.corpus)):
            return None
        options = self.given(("text_field", "label_field", "encoding", "delimiter"))
        format = self.format or find_format(str(self.corpus))
        return TextStream(Path(str(self.corpus)), FORMATS[format].read, Options(**options))


@dataclass(kw_only=True)
class OnRun(OnDocuments):
    """Base class of commands on a run and its documents, or other documents.

    Attributes:
        run_folder: The run's folder.
    """

    positionals = ("run_folder", "corpus")
    optional: ClassVar[tuple[str, ...]] = ("corpus",)

    run_folder: str | None = None


@dataclass(kw_only=True)
class DrawsPosteriors(OnRun):
    """Base class of commands that draw from the documents' posteriors.

    Attributes:
        draws: Source of the draws. guide: The approximation of the run's posterior, or the model's
            default guide after posterior hmc. chains: Chains of each document, which are exact and
            slower. After a fit by hmc, they continue its chains. auto: chains after posterior hmc,
            and guide otherwise.
        num_draws: Number of draws from each document's posterior. Defaults to 50, and to fewer for
            large corpora, but at least 25.
    """

    draws: Literal["auto", "guide", "chains"] = "auto"
    num_draws: int | None = None

    def posterior_of(self, run: Run, corpus: Corpus) -> DrawSource:
        """Source of draws for a run."""
        if self.draws == "guide":
            return run.guide()
        source = run.posterior(self.seed) if self.draws == "auto" else chains_of(run, self.seed)
        if isinstance(source, lntm.guides.Guide):
            return source
        progress = self.shows_progress
        draws = lntm.inference.theta_draws(source, corpus, self.num_draws, progress=progress)
        continued = isinstance(source, lntm.inference.KeptChains) and source.num_docs
        origin = "the fit's chains" if continued else "new chains of each document"
        say(f"{draws.num_draws} draws by {origin}; --draws guide is faster, and approximate")
        return draws


def chains_of(run: Run, seed: int) -> DrawSource:
    """Chains of a run: those of a fit by chains, or new chains."""
    if run.config.get("posterior") in lntm.recipes.SAMPLERS:
        return run.posterior(seed)
    return lntm.inference.DocumentHMC(run.model, seed=seed)


def training_documents(run: Run, corpus: Corpus) -> Corpus:
    """The documents of a fit: the corpus without the held-out documents, or another corpus."""
    is_corpus_of_fit = run.metadata.get("corpus", {}).get("fingerprint") == corpus.fingerprint()
    split = run.split(corpus) if is_corpus_of_fit else None
    return corpus if split is None else split.train


def completion(
    guide: Guide[Any],
    test: Corpus,
    train: Corpus | None,
    run_of_chains: Path | None,
    *,
    observed_fraction: float = 0.5,
    theta: Any = "mode",
    **random: Any,
) -> list[Score]:
    """Scores of document completion.

    A bursty model has 2 scores: with repeated words, and by its topics alone.

    Args:
        guide: The guide of the model.
        test: Documents to score.
        train: Documents of the fit, for the score of the unigram model; ``None`` if unknown.
        run_of_chains: Folder of the run after a fit by chains; ``None`` after variational EM.
        observed_fraction: As for :func:`~torch_lntm.evaluation.document_completion`.
        theta: As for :func:`~torch_lntm.evaluation.document_completion`.
        **random: The arguments ``seed`` and ``progress``.
    """
    hold_out = test.hold_out_words(observed_fraction, random["seed"])
    if hold_out.held_out.num_tokens == 0:
        say("completion needs a document with at least 2 words")
        return []
    bursty = guide.model.words.cache_weight is not None and theta != "integrated"
    weights: list[Any] = ["model", None] if bursty else [None]
    score = functools.partial(lntm.evaluation.document_completion, guide.model, guide, test)
    options = {"observed_fraction": observed_fraction, "theta": theta, **random}
    results = [score(cache_weight=weight, **options) for weight in weights]
    if run_of_chains is not None and theta != "exact":
        way = f"the posterior of {type(guide).__name__}, an approximation of the fit's chains"
        exactly = f"torch-lntm evaluate {run_of_chains} --theta exact uses chains"
        say(f"completion uses {way}; {exactly}")
    if train is not None:
        results.append(lntm.evaluation.unigram_perplexity(train, hold_out.held_out))
        if results[-2].perplexity > results[-1].perplexity:
            better = "a unigram model predicts these documents better than the topic model"
            say(f"warning: {better}; the model may have too many topics, or too few documents")
    return lntm.reports.completion_scores(*results)


def structural_options(
    model: str, prevalence: str | None, content: str | None, corpus: Any
) -> dict[str, Any]:
    """Arguments of the constructor for a formula of prevalence and a column of content.

    The arguments are derived from all documents, because held-out documents may have levels and
    dates that the training documents lack.

    Raises:
        ConfigError: The model is stm, and both options are missing.
    """
    from torch_lntm.models.groups import learn_groups

    options: dict[str, Any] = {}
    if prevalence is not None:
        options["prevalence"] = lntm.models.Covariates.of(corpus, prevalence)
    if content is not None:
        options["content"] = learn_groups(corpus, content)
    if model == "stm" and not options:
        raise ConfigError("the model stm needs prevalence, such as '~ party', or content")
    return options


def is_built_in(model: str) -> bool:
    """Whether a model's name is the package's own. Chains may not suit a model of a plug-in.

    Raises:
        ConfigError: No model has this name.
    """
    from torch_lntm.models.registry import find_constructor

    constructor = find_constructor(model)
    return constructor.__module__.partition(".")[0] == __name__.partition(".")[0]


def _reading(run: Run) -> dict[str, Any]:
    """The corpus and the given options of reading and words in the configuration of a run.

    Raises:
        ConfigError: An option has another type than on the command line. Or an option names an
            address, from which nothing is fetched unasked, because a run may be a stranger's.
    """
    known, config = ChoosesWords.known(), {}
    for name in ("corpus", *READING_OPTIONS, *WORD_OPTIONS):
        value, where = run.config.get(name), f"{run.path / 'config.json'}: {name}"
        if isinstance(value, str) and ("://" in value or "::" in value) and name != "corpus":
            raise ConfigError(f"{where} is the address {value}; give it on the command line")
        try:
            value = None if value is None else read_value(where, known[name].kinds, value)
        except ValueError as error:
            raise ConfigError(f"{str(error)[:200]}. Was the file edited?") from error
        if value not in (None, known[name].default):
            config[name] = value
    return config


def _local_corpus(folder: str, corpus: object) -> str:
    """The corpus that a run's configuration names: a local path or an example.

    Raises:
        ConfigError: There is none, or it is an address.
    """
    problem = "the documents of the fit are no file"
    if isinstance(corpus, str) and corpus != "-":
        if corpus in EXAMPLES or Path(corpus).exists():
            return corpus
        is_address = "://" in corpus or "::" in corpus
        problem = "nothing is fetched unasked" if is_address else "no such file or folder"
    source = f"the corpus of {folder} was read from there"
    raise ConfigError(f"{corpus}: {problem}, and {source}; name the documents, as CORPUS")


def _format_of(corpus: object) -> str | None:
    """Format of a corpus by its name; ``None`` if unknown."""
    from torch_lntm.corpus.readers.formats import find_format

    with suppress(CorpusError):
        return find_format(str(corpus))
    return None
