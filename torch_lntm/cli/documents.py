"""What the commands have in common: reading documents, choosing a device, scoring."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
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

#: The options of how texts are cut into words.
TOKEN_OPTIONS = ("stop_words", "token_pattern", "lowercase")
#: The options of which of these words make the vocabulary.
PRUNING_OPTIONS = ("min_df", "max_df")
WORD_OPTIONS = (*TOKEN_OPTIONS, *PRUNING_OPTIONS)
_MOST_THREADS = 1024
#: Corpora that are named by a word: ``lntm.lee_corpus``, ``lntm.example_corpus``.
EXAMPLES = ("lee", "example")
#: The options of how a file is read.
READING_OPTIONS = ("format", "vocabulary", "text_field", "label_field", "delimiter", "encoding")


@dataclass(kw_only=True)
class Command:
    """A command.

    ``positionals`` names the fields that are arguments without a flag, of which ``optional`` may be
    left out, ``required`` the flags that may not be left out, ``groups`` the flags under each
    heading of the help, ``line_only`` those that may not stand in a configuration file, and
    ``shared`` says whether several processes can share the work.

    Attributes:
        plugin: Python module, or .py file, to import first. It may register models, guides,
            readers, commands and sections of the report. It runs with your rights, so it cannot
            come from a configuration file.
    """

    positionals: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[tuple[str, ...]] = ()
    required: ClassVar[tuple[str, ...]] = ()
    line_only: ClassVar[tuple[str, ...]] = ("plugin",)
    groups: ClassVar[dict[str, tuple[str, ...]]] = {}
    shared: ClassVar[bool] = False

    plugin: str | None = None

    def run(self) -> int:
        """Run the command. Returns the exit code."""
        raise AssertionError("every command runs in its own way")


def say(message: str) -> None:
    """Print a message about the work, apart from its results."""
    print(visible(message), file=sys.stderr)


#: Advice of the library's messages, and the same in the command line's words.
_IN_OPTIONS = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"(?<=[ (])(stop|min|max|text|label|num)_(words|df|field|samples)\b", r"--\1-\2"),
        (
            r"pass the file's encoding, (?:e\.g\.|which \w+ \w+ ?\w*) '([\w-]+)'.*",
            r"try --encoding \1",
        ),
        (r"give format=\.\.\.", "give its format by --format"),
        (
            r"; of one object per line, give format='jsonl'",
            "; of one object per line, --format jsonl",
        ),
        (r" \(in Python: corpus\[rows\]\)", " of the file"),
        (r" A corpus gets columns by .*", " Check the file's columns."),
        (r" \(overwrite=True\)", ""),
        (r", unpack it, or raise max_bytes", ", or unpack it"),
    )
)
#: Characters that move a terminal's cursor, colour it, or worse.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def in_options(message: str) -> str:
    """A message of the library, such as a corpus's ``preparation``, in the command line's words."""
    for pattern, plain in _IN_OPTIONS:
        message = pattern.sub(plain, message)
    return message


def visible(text: str) -> str:
    """A text whose control characters are written out, so that no terminal obeys them."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


@dataclass(kw_only=True)
class ReadsDocuments(Command):
    """Commands that read documents.

    Attributes:
        corpus: File or folder of documents (.npz, .ldac, .dat, docword.*.txt, .mtx, .h5ad,
            .parquet, .txt, .jsonl, .csv, also gzipped; a folder of texts, or one that convert
            wrote), - for standard input, or a word: example for 75 short texts of this package, lee
            for the 300 news articles of gensim's package.
        format: Format of the corpus, where the name does not tell it: txt (a document per line),
            jsonl, json, csv, folder, npz, ldac, uci, mtx, h5ad, parquet or store. Standard input
            has that of the fit's corpus, or txt where that is a folder of texts.
        vocabulary: File with a word per line: the names of the columns of counts, or the words to
            count in texts.
        text_field: Field of .jsonl, or column of .csv or .parquet, with the text; if not given
            "text", or the only column of .parquet.
        label_field: Field or column with the document's label; "label" if not given.
        delimiter: Character between the columns of .csv; found out if not given.
        encoding: Encoding of text files; "utf-8" if not given.
    """

    groups: ClassVar[dict[str, tuple[str, ...]]] = {"reading documents": READING_OPTIONS}

    corpus: str | None = None
    format: str | None = None
    vocabulary: str | None = None
    text_field: str | None = None
    label_field: str | None = None
    delimiter: str | None = None
    encoding: str | None = None

    def read(self, **options: Any) -> Corpus:
        """The corpus.

        Args:
            **options: For texts, ``CountVectorizer`` options.
        """
        with self.file() as path:
            return self.read_file(path, options)

    def read_file(self, path: str, options: dict[str, Any]) -> Corpus:
        """The corpus in a file of :meth:`file`."""
        given = self.reading_options() | with_stop_words(options)
        if self.corpus not in EXAMPLES:
            return lntm.read_corpus(path, **given)
        reading = [name for name in given if name in READING_OPTIONS]
        if reading:
            raise ConfigError(
                f"the corpus {self.corpus} takes no {', '.join(reading)}; leave them out"
            )
        return lntm.lee_corpus(**given) if self.corpus == "lee" else lntm.example_corpus(**given)

    def reading_options(self) -> dict[str, Any]:
        """The options of how the file is read that were given."""
        return {
            name: value for name in READING_OPTIONS if (value := getattr(self, name)) is not None
        }

    @contextmanager
    def file(self) -> Iterator[str]:
        """The corpus's path; that of a temporary file for standard input."""
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
    """The options, with the stop words of a file instead of its name."""
    if options.get("stop_words") in (None, "auto", "none", "english"):
        return options
    from torch_lntm.files import read_lines

    name = options["stop_words"]
    if not Path(name).exists() and Path(name).name == name and not Path(name).suffix:
        raise ConfigError(
            f"stop_words is {name!r}; expected english, none, or a file with a word per line. "
            "Other languages need such a file"
        )
    return options | {"stop_words": read_lines(Path(options["stop_words"]))}


@dataclass(kw_only=True)
class ChoosesWords(Command):
    """Commands that cut texts into words and choose among them.

    Attributes:
        stop_words: Words not to count: "english", "none", or a file with a word per line.
        min_df: Least documents a word must be in, a number or a share such as 0.01.
        max_df: Most documents a word may be in, a number or a share such as 0.5.
        token_pattern: Regular expression of a word.
        lowercase: Turn words to lower case, which is done if not given.
    """

    stop_words: str | None = None
    min_df: int | float | None = None
    max_df: int | float | None = None
    token_pattern: str | None = None
    lowercase: bool | None = None

    def word_options(self) -> dict[str, Any]:
        """The options that were given."""
        return {name: value for name in WORD_OPTIONS if (value := getattr(self, name)) is not None}


@dataclass(kw_only=True)
class OnDocuments(ReadsDocuments):
    """Commands that read documents and compute.

    Attributes:
        device: Device to compute on; auto takes a CUDA device if there is one.
        threads: Threads to compute with on the CPU. While nothing else runs, a second one saves
            nearly half of the time from some 20,000 documents on, and a tenth for 2,000; it can
            cost far more than it saves where something does.
        seed: Seed of everything random.
        progress: Show progress bars, where standard error is a terminal.
    """

    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        **ReadsDocuments.groups,
        "computation": ("device", "threads", "seed", "progress"),
    }

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = 1
    seed: int = 0
    progress: bool = True

    def __post_init__(self) -> None:
        """Check what every command takes.

        Raises:
            ConfigError: The seed cannot be one.
        """
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed is {self.seed}; expected a number from 0 to 2**63 - 1")

    @property
    def shows_progress(self) -> bool:
        """Whether to show progress bars: a file of their states would be of no use."""
        return self.progress and sys.stderr is not None and sys.stderr.isatty()

    def read_for(self, run: Run) -> Corpus:
        """The corpus over the vocabulary of a fitted model, read and counted as for its fit.

        Options that were given here count more than the fit's.
        """
        _check_reading(run)
        same = self.corpus == run.config.get("corpus")
        self._inherit(run, same)
        names = (*TOKEN_OPTIONS, *(PRUNING_OPTIONS if same else ()))
        options = {name: run.config[name] for name in names if run.config.get(name) is not None}
        with self.file() as path:
            if self.corpus not in EXAMPLES and not self._holds_texts(path):
                options = {}
            elif not same:
                # The model's vocabulary chooses the words.
                options = {"stop_words": "none"} | options
                known = None if self.corpus in EXAMPLES else self.vocabulary or run.model.vocabulary
                options |= {"min_df": 1, "max_df": 1.0} if known is None else {"vocabulary": known}
            corpus = self.read_file(path, options)
        words, num_words = run.model.vocabulary, run.model.num_words
        if words is not None:
            return corpus.with_vocabulary(words)
        if corpus.num_words != num_words:
            raise CorpusError(
                f"{corpus!r} does not have the {num_words} words of the model, which has no "
                "vocabulary to match them by; give counts over the same columns"
            )
        return corpus

    def _inherit(self, run: Run, same: bool) -> None:
        """Take over how the fit's corpus was read, as far as that holds for this one."""
        if self.corpus in EXAMPLES:
            return
        names = list(READING_OPTIONS)
        if not same:
            # Another file has another format, may be without labels, and has the model's words.
            names = [n for n in names if n not in ("format", "vocabulary", "label_field")]
            theirs = run.config.get("format") or _format_of(run.config.get("corpus"))
            ours = self.format or _format_of(self.corpus)
            if ours is None:
                # A stream is no folder.
                stream = self.corpus == "-" and theirs == "folder"
                ours = self.format = "txt" if stream else theirs
            if ours != theirs:
                names = ["encoding"]
        for name in names:
            if getattr(self, name) is None:
                setattr(self, name, run.config.get(name))

    def _holds_texts(self, path: str) -> bool:
        """Whether the corpus, which is at a path, holds texts, not counts."""
        from torch_lntm.corpus.readers import find_format, holds_texts

        return holds_texts(Path(path), self.format or find_format(Path(path)), self.text_field)

    def torch_device(self) -> torch.device:
        """The device asked for; sets the number of threads too."""
        import torch

        if not 1 <= self.threads <= _MOST_THREADS:
            raise ConfigError(f"threads is {self.threads}; expected 1 to {_MOST_THREADS}")
        torch.set_num_threads(self.threads)
        return lntm.recipes.find_device(self.device)

    def load(self, folder: str) -> tuple[Run, Guide[Any], Corpus]:
        """A run, the guide of its model on the device, and the documents over its vocabulary."""
        device = self.torch_device()
        run = lntm.load_run(folder)
        own, of_fit = self.corpus is None, run.config.get("corpus")
        if own:
            if not isinstance(of_fit, str) or of_fit == "-":
                raise ConfigError(f"{folder}: does not say what its corpus was; give CORPUS")
            if of_fit not in EXAMPLES and not Path(of_fit).exists():
                raise ConfigError(
                    f"{of_fit}: no such file or folder, and it is where {folder} had its corpus "
                    "from; name the documents, as CORPUS after the run's folder"
                )
            self.corpus = of_fit
        run.model.to(device)
        corpus = self.read_for(run)
        then = run.metadata.get("corpus", {}).get("fingerprint")
        if self.corpus == of_fit != "-" and then not in (None, corpus.fingerprint()):
            changed = f"{of_fit}: no longer holds the documents of the fit, or is read otherwise"
            if own:
                raise ConfigError(
                    f"{changed}; to take all that it holds, also what was trained on, name it as "
                    "CORPUS after the run's folder"
                )
            say(f"warning: {changed}; all documents are taken, also those that were trained on")
        return run, run.guide(), corpus

    def complete(
        self,
        guide: Guide[Any],
        test: Corpus,
        train: Corpus | None,
        sampled: Path | None,
        *,
        observed_fraction: float = 0.5,
        theta: Theta = "mode",
    ) -> list[Score]:
        """Scores of document completion.

        A bursty model has 2 scores: with the documents' own words, and by its topics alone.

        Args:
            guide: The guide of the model.
            test: Documents to score.
            train: Documents of the fit, for the score of the unigram model; None if not known.
            sampled: Folder of the run after a fit by chains; None after other fits.
            observed_fraction: Share of each document's tokens to observe.
            theta: As for :func:`~torch_lntm.evaluation.document_completion`.
        """
        hold_out = test.hold_out_words(observed_fraction, self.seed)
        if hold_out.held_out.num_tokens == 0:
            say("no document has two words or more: there is nothing to complete")
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
        if sampled is not None and theta != "exact":
            say(
                f"completion takes theta from {type(guide).__name__}'s posterior, which "
                "approximates the fit's chains; "
                f"torch-lntm evaluate {sampled} --theta exact takes it from chains"
            )
        if train is not None:
            results.append(lntm.evaluation.unigram_perplexity(train, hold_out.held_out))
            if results[-2].perplexity > results[-1].perplexity:
                say(
                    "warning: words alone, without topics, predict these documents better than "
                    "the model does; it may have too many topics, or too few documents"
                )
        return lntm.reports.completion_scores(*results)


@dataclass(kw_only=True)
class DrawsPosteriors(OnDocuments):
    """Commands that draw from the documents' posteriors.

    Attributes:
        draws: Source of the draws. guide: the approximation that the run's posterior names, or the
            model's usual one after posterior hmc. chains: chains of each document, which
            approximate nothing and take longer; after posterior hmc they continue the fit's. auto:
            chains after posterior hmc, the guide otherwise.
        num_draws: Draws of each document's posterior; 25 to 50, fewer for larger corpora, if not
            given.
    """

    draws: Literal["auto", "guide", "chains"] = "auto"
    num_draws: int | None = None

    def posterior_of(self, run: Run, corpus: Corpus) -> DrawSource:
        """Source of the draws of a run that was loaded; says how long chains take."""
        if self.draws == "guide":
            return run.guide()
        if self.draws == "auto" or run.config.get("posterior") in lntm.recipes.SAMPLERS:
            posterior = run.posterior(self.seed)
        else:
            posterior = lntm.inference.DocumentHMC(run.model, seed=self.seed)
        chains = posterior.kept_chains
        if chains is None:
            return posterior
        drawn = lntm.inference.theta_draws(
            chains, corpus, self.num_draws, progress=self.shows_progress
        )
        how = "new chains of each document"
        if chains.num_docs:
            how = f"the fit's chains{_expected_time(chains, run, corpus, drawn.num_draws)}"
        say(f"{drawn.num_draws} draws by {how}; --draws guide is faster, and approximate")
        return drawn


def _expected_time(chains: KeptChains, run: Run, corpus: Corpus, num_draws: int) -> str:
    """How long chains take to continue, in words, by what the fit took."""
    from torch_lntm.inference.draws.chains import transitions_of

    seconds = run.metadata.get("seconds")
    made = chains.num_transitions * chains.num_docs
    if not isinstance(seconds, int | float) or not made:
        return ""
    found = seconds / made * len(corpus) * transitions_of(chains, num_draws)
    return f", about {found / 60:.0f} minutes" if found > 90 else f", about {max(found, 1):.0f} s"


def _check_reading(run: Run) -> None:
    """Refuse a configuration whose options of reading are of other types than the command line's.

    Raises:
        ConfigError: An option is.
    """
    kinds = get_type_hints(ReadsDocuments) | get_type_hints(ChoosesWords)
    for name in (*READING_OPTIONS, *WORD_OPTIONS):
        value = run.config.get(name)
        if not isinstance(value, kinds[name]):
            raise ConfigError(
                f"{run.path / 'config.json'}: {name!r} is {value!r:.60}; expected {kinds[name]}. "
                "Was the file edited?"
            )


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Refuse to replace a file, unless asked to.

    Raises:
        ConfigError: The file exists, or is a symbolic link that leads back to itself.
    """
    from torch_lntm.files import behind_links

    behind_links(path)
    if path.exists() and not path.is_dir() and not overwrite:
        raise ConfigError(f"{path}: exists already; choose another path, or pass --overwrite")


def structural_options(
    model: str, prevalence: str | None, content: str | None, corpus: Any
) -> dict[str, Any]:
    """The constructor's arguments that a formula of prevalence and a column of content stand for.

    They are learned from all documents: the ones held out may have levels and dates of their own.

    Raises:
        ConfigError: The model is stm and there is neither.
    """
    options: dict[str, Any] = {}
    if prevalence is not None:
        options["prevalence"] = lntm.models.Covariates.of(corpus, prevalence)
    if content is not None:
        options["content"] = lntm.models.Groups.of(corpus, content)
    if model == "stm" and not options:
        raise ConfigError(
            "the model stm needs --prevalence, such as --prevalence '~ party', or --content party"
        )
    return options


def _format_of(corpus: object) -> str | None:
    """The format that the name of a corpus tells, if any."""
    from torch_lntm.corpus.readers import find_format

    with suppress(CorpusError):
        return find_format(Path(str(corpus)))
    return None
