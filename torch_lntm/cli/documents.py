"""Base classes of the commands: reading documents, choosing a device, scoring."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_type_hints

import torch_lntm as lntm
from torch_lntm.errors import ConfigError, CorpusError

if TYPE_CHECKING:
    import torch

    from torch_lntm.corpus import Corpus
    from torch_lntm.evaluation.completion.completion import Theta
    from torch_lntm.guides import Guide
    from torch_lntm.inference import DrawSource, KeptChains
    from torch_lntm.io import Run
    from torch_lntm.reports import Score

#: Options for splitting texts into words.
TOKEN_OPTIONS = ("stop_words", "token_pattern", "lowercase")
#: Options for the choice of the vocabulary among the words.
PRUNING_OPTIONS = ("min_df", "max_df")
WORD_OPTIONS = (*TOKEN_OPTIONS, *PRUNING_OPTIONS)
_MOST_THREADS = 1024
#: Names of corpora that are not files: ``lntm.lee_corpus`` and ``lntm.example_corpus``.
EXAMPLES = ("lee", "example")
#: Options of reading a file.
READING_OPTIONS = (
    *("format", "vocabulary", "text_field", "label_field", "delimiter", "encoding"),
    "metadata",
)


@dataclass(kw_only=True)
class Command:
    """Base class of commands.

    Class variables:

    * ``positionals``: Fields for arguments without a flag.
    * ``optional``: Positional arguments with a default.
    * ``required``: Flags without a default.
    * ``headings``: Flags under each heading of the help.
    * ``line_only``: Options refused in configuration files.
    * ``shared``: Whether several processes can share the work.

    Attributes:
        plugin: Python module or .py file to import first. It may register models, guides, readers,
            commands and sections of the report. It runs with your rights, so configuration files
            cannot name it. Repeat the option for several modules.
    """

    positionals: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[tuple[str, ...]] = ()
    required: ClassVar[tuple[str, ...]] = ()
    line_only: ClassVar[tuple[str, ...]] = ("plugin",)
    headings: ClassVar[dict[str, tuple[str, ...]]] = {}
    shared: ClassVar[bool] = False

    plugin: str | None = None

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        raise AssertionError("a command overrides run")


def say(message: str) -> None:
    """Print a message to standard error, separately from the results."""
    print(visible(message), file=sys.stderr)


#: Patterns of advice in the library's messages, and the advice for the command line.
_IN_OPTIONS = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"(?<=[ (])(stop|min|max|text|label|num)_(words|df|field|samples)\b", r"--\1-\2"),
        (
            r"pass the file's encoding, (?:e\.g\.|which \w+ \w+ ?\w*) '([\w-]+)'.*",
            r"try --encoding \1",
        ),
        (r", or give format=\.\.\.", ", give its format by --format, or its plug-in by --plugin"),
        (r"(unknown format '.*'; give one of .*)", r"\1, or the plug-in of the format by --plugin"),
        (
            r"A model of your own is known after lntm\.models\.register\(name, constructor\)",
            "Give the plug-in of another model by --plugin FILE",
        ),
        (
            r"(posterior '.*'; expected one of .*)",
            r"\1. Give the plug-in of another posterior by --plugin FILE",
        ),
        (
            r"; of one object per line, give format='jsonl'",
            "; of one object per line, --format jsonl",
        ),
        (r" \(in Python: corpus\[rows\]\)", " of the file"),
        (r" A corpus gets columns by .*", " A CSV file adds columns: --metadata FILE."),
        (r" \(overwrite=True\)", ""),
        (r", unpack it, or raise max_bytes", ", or unpack it"),
    )
)
#: Control characters. They can move the cursor of a terminal, colour it, or worse.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def in_options(message: str) -> str:
    """Translates a message of the library from Python names to options of the command line."""
    for pattern, plain in _IN_OPTIONS:
        message = pattern.sub(plain, message)
    return message


def visible(text: str) -> str:
    """Escapes control characters, to protect the terminal."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


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
        vocabulary: File with a word per line: the names of the columns of counts, or the words to
            count in texts.
        text_field: Field of .jsonl, or column of .csv or .parquet, with the text. Defaults to
            "text", and to the only column of .parquet.
        label_field: Field or column with the document's label. Defaults to "label".
        delimiter: Character between the columns of .csv. Defaults to the character that fits the
            header.
        encoding: Encoding of text files. Defaults to "utf-8".
        metadata: CSV file with further columns and a record for each document, in order.
    """

    headings: ClassVar[dict[str, tuple[str, ...]]] = {"reading documents": READING_OPTIONS}

    corpus: str | None = None
    format: str | None = None
    vocabulary: str | None = None
    text_field: str | None = None
    label_field: str | None = None
    delimiter: str | None = None
    encoding: str | None = None
    metadata: str | None = None

    def read(self, **options: Any) -> Corpus:
        """Read the corpus.

        Args:
            **options: Options of ``CountVectorizer`` for texts.
        """
        with self.file() as path:
            return self.read_file(path, options)

    def read_file(self, path: str, options: dict[str, Any]) -> Corpus:
        """Read the corpus in a file of :meth:`file`."""
        options = self.reading_options() | with_stop_words(options)
        if self.corpus not in EXAMPLES:
            return lntm.read_corpus(path, **options)
        reading = [name for name in options if name in READING_OPTIONS]
        if reading:
            raise ConfigError(
                f"the corpus {self.corpus} takes no {', '.join(reading)}; leave them out"
            )
        corpus = lntm.lee_corpus if self.corpus == "lee" else lntm.example_corpus
        return corpus(**options)

    def reading_options(self) -> dict[str, Any]:
        """The user's options of reading."""
        return {
            name: value for name in READING_OPTIONS if (value := getattr(self, name)) is not None
        }

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
    if options.get("stop_words") in (None, "auto", "none", "english"):
        return options
    from torch_lntm.files import read_lines

    name = options["stop_words"]
    if not Path(name).exists() and Path(name).name == name and not Path(name).suffix:
        raise ConfigError(
            f"stop_words is {name!r}; expected english, none, or a file with a word per line. "
            "Languages other than English need a file"
        )
    return options | {"stop_words": read_lines(Path(options["stop_words"]))}


@dataclass(kw_only=True)
class ChoosesWords(Command):
    """Base class of commands that split texts into words and choose a vocabulary.

    Attributes:
        stop_words: Words to leave out: "english", "none", or a file with a word per line. Defaults
            to English words for English texts.
        min_df: Minimum number of documents with a word, or share such as 0.01. Defaults to 1 for
            fewer than 50 documents, 2 from 50, 3 from 500, and so forth.
        max_df: Maximum number of documents with a word, or share such as 0.5.
        token_pattern: Regular expression of a word.
        lowercase: Convert words to lower case. Defaults to true.
    """

    stop_words: str | None = None
    min_df: int | float | None = None
    max_df: int | float | None = None
    token_pattern: str | None = None
    lowercase: bool | None = None

    def word_options(self) -> dict[str, Any]:
        """The user's options of words."""
        return {name: value for name in WORD_OPTIONS if (value := getattr(self, name)) is not None}


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

    def __post_init__(self) -> None:
        """Check the seed.

        Raises:
            ConfigError: The seed is out of range.
        """
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed is {self.seed}; expected a number from 0 to 2**63 - 1")

    @property
    def shows_progress(self) -> bool:
        """Whether to show progress bars. They are useless in a file."""
        return self.progress and sys.stderr is not None and sys.stderr.isatty()

    def read_for(self, run: Run) -> Corpus:
        """Read the corpus over the vocabulary of a fitted model.

        Options for reading and counting default to the options of the fit.
        """
        _check_reading(run)
        is_corpus_of_fit = self.corpus == run.config.get("corpus")
        self._inherit(run, is_corpus_of_fit)
        names = (*TOKEN_OPTIONS, *(PRUNING_OPTIONS if is_corpus_of_fit else ()))
        options = {name: run.config[name] for name in names if run.config.get(name) is not None}
        with self.file() as path:
            if self.corpus not in EXAMPLES and not self._holds_texts(path):
                options = {}
            elif not is_corpus_of_fit:
                # The model's vocabulary determines the words.
                options = {"stop_words": "none"} | options
                words = None if self.corpus in EXAMPLES else self.vocabulary or run.model.vocabulary
                options |= {"min_df": 1, "max_df": 1.0} if words is None else {"vocabulary": words}
            corpus = self.read_file(path, options)
        vocabulary, num_words = run.model.vocabulary, run.model.num_words
        if vocabulary is not None:
            return corpus.with_vocabulary(vocabulary)
        if corpus.num_words != num_words:
            raise CorpusError(
                f"{corpus!r} does not have the {num_words} words of the model, which has no "
                "vocabulary to match them by; give counts over the same columns"
            )
        return corpus

    def _inherit(self, run: Run, is_corpus_of_fit: bool) -> None:
        """Use the fit's options of reading as defaults, as far as they apply to this corpus."""
        if self.corpus in EXAMPLES:
            return
        names = list(READING_OPTIONS)
        if not is_corpus_of_fit:
            # Another file may have another format, or no labels. The words are the words of the
            # model.
            of_corpus = ("format", "vocabulary", "label_field", "metadata")
            names = [name for name in names if name not in of_corpus]
            format_of_fit = run.config.get("format") or _format_of(run.config.get("corpus"))
            format = self.format or _format_of(self.corpus)
            if format is None:
                is_text_stream = self.corpus == "-" and format_of_fit == "folder"
                format = self.format = "txt" if is_text_stream else format_of_fit
            if format != format_of_fit:
                names = ["encoding"]
        for name in names:
            if getattr(self, name) is None:
                setattr(self, name, run.config.get(name))

    def _holds_texts(self, path: str) -> bool:
        """Whether the corpus at ``path`` holds texts rather than counts."""
        from torch_lntm.corpus.readers import find_format, holds_texts

        return holds_texts(Path(path), self.format or find_format(path), self.text_field)

    def torch_device(self) -> torch.device:
        """Device of the option. Also sets the number of threads."""
        import torch

        if not 1 <= self.threads <= _MOST_THREADS:
            raise ConfigError(f"threads is {self.threads}; expected 1 to {_MOST_THREADS}")
        torch.set_num_threads(self.threads)
        return lntm.recipes.find_device(self.device)

    def load(self, folder: str) -> tuple[Run, Guide[Any], Corpus]:
        """A run, its guide on the device, and the documents over its vocabulary."""
        from torch_lntm.corpus.remote import is_remote

        device = self.torch_device()
        run = lntm.load_run(folder)
        by_default, corpus_of_fit = self.corpus is None, run.config.get("corpus")
        if by_default:
            if not isinstance(corpus_of_fit, str) or corpus_of_fit == "-":
                raise ConfigError(f"{folder}: does not name the corpus of the fit; give CORPUS")
            named = corpus_of_fit in EXAMPLES or is_remote(corpus_of_fit)
            if not named and not Path(corpus_of_fit).exists():
                raise ConfigError(
                    f"{corpus_of_fit}: no such file or folder, and the corpus of {folder} was read "
                    "from there; name the documents, as CORPUS after the run's folder"
                )
            self.corpus = corpus_of_fit
        run.model.to(device)
        corpus = self.read_for(run)
        fingerprint = run.metadata.get("corpus", {}).get("fingerprint")
        if self.corpus == corpus_of_fit != "-" and fingerprint not in (None, corpus.fingerprint()):
            changed = f"{corpus_of_fit}: the documents or the options of reading have changed"
            if by_default:
                raise ConfigError(
                    f"{changed} since the fit; to use all documents, including training documents, "
                    "name it as CORPUS after the run's folder"
                )
            say(
                f"warning: {changed} since the fit; all documents are used, including training "
                "documents"
            )
        return run, run.guide(), corpus

    def texts(self) -> Iterable[str] | None:
        """Texts of the documents; ``None`` for counts and for standard input."""
        from torch_lntm.corpus.examples import example_file, lee_file
        from torch_lntm.corpus.readers import find_format, holds_texts
        from torch_lntm.corpus.readers.texts import TextOptions, TextStream

        if self.corpus == "-":
            return None
        if self.corpus == "lee":
            return TextStream(lee_file(), "txt", TextOptions())
        if self.corpus == "example":
            return TextStream(example_file(), "jsonl", TextOptions())
        path = Path(str(self.corpus))
        format = self.format or find_format(str(self.corpus))
        if not holds_texts(path, format, self.text_field):
            return None
        names = ("text_field", "label_field", "encoding", "delimiter")
        options = {name: value for name in names if (value := getattr(self, name)) is not None}
        return TextStream(path, format, TextOptions(**options))

    def complete(
        self,
        guide: Guide[Any],
        test: Corpus,
        train: Corpus | None,
        run_of_chains: Path | None,
        *,
        observed_fraction: float = 0.5,
        theta: Theta = "mode",
    ) -> list[Score]:
        """Scores of document completion.

        A bursty model has 2 scores: with repeated words, and by its topics alone.

        Args:
            guide: The guide of the model.
            test: Documents to score.
            train: Documents of the fit, for the score of the unigram model; ``None`` if unknown.
            run_of_chains: Folder of the run after a fit by chains; ``None`` after variational EM.
            observed_fraction: Share of each document's tokens to observe.
            theta: As for :func:`~torch_lntm.evaluation.document_completion`.
        """
        hold_out = test.hold_out_words(observed_fraction, self.seed)
        if hold_out.held_out.num_tokens == 0:
            say("completion needs a document with at least 2 words")
            return []
        cache_weights: list[Any] = [None]
        if guide.model.words.cache_weight is not None and theta != "integrated":
            cache_weights = ["model", None]
        results = [
            lntm.evaluation.document_completion(
                guide.model,
                guide,
                test,
                observed_fraction,
                self.seed,
                theta=theta,
                cache_weight=weight,
                progress=self.shows_progress,
            )
            for weight in cache_weights
        ]
        if run_of_chains is not None and theta != "exact":
            say(
                f"completion uses the posterior of {type(guide).__name__}, an approximation of the "
                f"fit's chains; torch-lntm evaluate {run_of_chains} --theta exact uses chains"
            )
        if train is not None:
            results.append(lntm.evaluation.unigram_perplexity(train, hold_out.held_out))
            if results[-2].perplexity > results[-1].perplexity:
                say(
                    "warning: a unigram model predicts these documents better than the topic "
                    "model; the model may have too many topics, or too few documents"
                )
        return lntm.reports.completion_scores(*results)


@dataclass(kw_only=True)
class DrawsPosteriors(OnDocuments):
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

    def posterior_of(self, run: Run, corpus: Corpus, num_docs: int | None = None) -> DrawSource:
        """Source of draws for a run. Prints the expected time of chains.

        Args:
            run: The run.
            corpus: The documents.
            num_docs: Number of documents to draw. Defaults to all.
        """
        if self.draws == "guide":
            return run.guide()
        auto = self.draws == "auto"
        posterior = run.posterior(self.seed) if auto else chains_of(run, self.seed)
        chains = posterior.kept_chains
        if chains is None:
            return posterior
        draws = lntm.inference.theta_draws(
            chains, corpus, self.num_draws, progress=self.shows_progress
        )
        source = "new chains of each document"
        if chains.num_docs:
            time = _expected_time(chains, run, num_docs or len(corpus), draws.num_draws)
            source = f"the fit's chains{time}"
        say(f"{draws.num_draws} draws by {source}; --draws guide is faster, and approximate")
        return draws


def chains_of(run: Run, seed: int) -> DrawSource:
    """Chains of a run: those of a fit by chains, or new chains."""
    if run.config.get("posterior") in lntm.recipes.SAMPLERS:
        return run.posterior(seed)
    return lntm.inference.DocumentHMC(run.model, seed=seed)


def _expected_time(chains: KeptChains, run: Run, num_docs: int, num_draws: int) -> str:
    """Expected time of continuing chains, in words, from the time of the fit."""
    from torch_lntm.inference.draws.chains import transitions_of

    seconds = run.metadata.get("seconds")
    transitions = chains.num_transitions * chains.num_docs
    if not isinstance(seconds, int | float) or not transitions:
        return ""
    time = seconds / transitions * num_docs * transitions_of(chains, num_draws)
    return f", about {time / 60:.0f} minutes" if time > 90 else f", about {max(time, 1):.0f} s"


def _check_reading(run: Run) -> None:
    """Check the types of the options of reading in a run's configuration.

    Raises:
        ConfigError: An option has another type than on the command line.
    """
    kinds = get_type_hints(ReadsDocuments) | get_type_hints(ChoosesWords)
    for name in (*READING_OPTIONS, *WORD_OPTIONS):
        value = run.config.get(name)
        if not isinstance(value, kinds[name]):
            raise ConfigError(
                f"{run.path / 'config.json'}: {name!r} is {value!r:.60}; expected {kinds[name]}. "
                "Was the file edited?"
            )


def training_documents(run: Run, corpus: Corpus) -> Corpus:
    """The documents of a fit: the corpus without the held-out documents, or another corpus."""
    is_corpus_of_fit = run.metadata.get("corpus", {}).get("fingerprint") == corpus.fingerprint()
    split = run.split(corpus) if is_corpus_of_fit else None
    return corpus if split is None else split.train


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Check that a file may be written.

    Raises:
        ConfigError: The file exists and may not be replaced, or is a symbolic link to itself.
    """
    from torch_lntm.files import resolve_link

    resolve_link(path)
    if path.exists() and not path.is_dir() and not overwrite:
        raise ConfigError(f"{path}: exists already; choose another path, or pass --overwrite")


def is_built_in(model: str) -> bool:
    """Whether a model's name is the package's own. Chains may not suit a model of a plug-in.

    Raises:
        ConfigError: No model has this name.
    """
    constructor = lntm.models.find_constructor(model)
    return constructor.__module__.partition(".")[0] == __name__.partition(".")[0]


def structural_options(
    model: str, prevalence: str | None, content: str | None, corpus: Any
) -> dict[str, Any]:
    """Arguments of the constructor for a formula of prevalence and a column of content.

    The arguments are derived from all documents, because held-out documents may have levels and
    dates that the training documents lack.

    Raises:
        ConfigError: The model is stm, and both options are missing.
    """
    options: dict[str, Any] = {}
    if prevalence is not None:
        options["prevalence"] = lntm.models.Covariates.of(corpus, prevalence)
    if content is not None:
        options["content"] = lntm.models.learn_groups(corpus, content)
    if model == "stm" and not options:
        raise ConfigError(
            "the model stm needs --prevalence, such as --prevalence '~ party', or --content party"
        )
    return options


def _format_of(corpus: object) -> str | None:
    """Format of a corpus by its name; ``None`` if unknown."""
    from torch_lntm.corpus.readers import find_format

    with suppress(CorpusError):
        return find_format(str(corpus))
    return None
