"""What the commands have in common: reading documents, choosing a device, scoring."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch_lntm as lntm
from torch_lntm.errors import ConfigError, CorpusError

if TYPE_CHECKING:
    import torch

    from torch_lntm.corpus import Corpus
    from torch_lntm.guides import Guide
    from torch_lntm.io import Run
    from torch_lntm.report import Score

#: The name of the posterior that is sampled, by Monte-Carlo EM.
SAMPLED = "hmc"
#: How texts are cut into words.
TOKEN_OPTIONS = ("stop_words", "token_pattern", "lowercase")
#: Which of these a vocabulary is made of.
PRUNING_OPTIONS = ("min_df", "max_df")


@dataclass(kw_only=True)
class Command:
    """A command; ``positionals`` and ``required`` name fields."""

    positionals: ClassVar[tuple[str, ...]] = ()
    required: ClassVar[tuple[str, ...]] = ()

    def run(self) -> int:
        """Run it; returns the exit code."""
        raise AssertionError("every command runs in its own way")


def say(message: str) -> None:
    """A message about the work, apart from its results."""
    print(message, file=sys.stderr)


@dataclass(kw_only=True)
class OnDocuments(Command):
    """Commands that read documents and compute.

    Attributes:
        corpus: A file or folder of documents (.npz, .ldac, .dat, docword.*.txt, .mtx, .txt, .jsonl,
            .csv, also gzipped; a folder of .txt files), or the word lee for the 300 news articles
            that come with gensim.
        format: The format, where the name does not tell it.
        vocabulary: File with a word per line: the names of the columns of counts, or of texts the
            words to count.
        text_field: Field of .jsonl or column of .csv with the text; "text" if not given.
        encoding: Encoding of text files; "utf-8" if not given.
        device: Where to compute; auto takes a CUDA device if there is one.
        threads: Threads to compute with on the CPU; all cores if not given. For small corpora and
            on busy machines one is the fastest.
        seed: Seed of everything random.
        progress: Show progress bars on standard error.
    """

    corpus: str | None = None
    format: str | None = None
    vocabulary: str | None = None
    text_field: str | None = None
    encoding: str | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = None
    seed: int = 0
    progress: bool = True

    def __post_init__(self) -> None:
        """Check what every command takes.

        Raises:
            ConfigError: The seed cannot be one.
        """
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed is {self.seed}; expected a number from 0 to 2**63 - 1")

    def read(self, options: dict[str, Any]) -> Corpus:
        """The corpus; of texts, the words chosen by ``CountVectorizer`` options."""
        given = {
            name: value
            for name in ("format", "vocabulary", "text_field", "encoding")
            if (value := getattr(self, name)) is not None
        }
        stop_words = options.get("stop_words")
        if stop_words not in (None, "auto", "none", "english"):
            from torch_lntm.files import read_lines

            options = {**options, "stop_words": read_lines(Path(stop_words))}
        if self.corpus != "lee":
            return lntm.read_corpus(str(self.corpus), **given, **options)
        if given:
            raise ConfigError(f"the corpus lee takes no {', '.join(given)}; leave them out")
        return lntm.lee_corpus(**options)

    def read_for(self, run: Run) -> Corpus:
        """The corpus over the vocabulary of a fitted model, texts counted as for its fit."""
        same = self.corpus == run.config.get("corpus")
        names = (*TOKEN_OPTIONS, *(PRUNING_OPTIONS if same else ()))
        options = {name: run.config[name] for name in names if run.config.get(name) is not None}
        if self.corpus != "lee" and not self._holds_texts():
            options = {}
        elif not same:
            # The model's vocabulary chooses the words.
            options = {"stop_words": "none"} | options | {"min_df": 1, "max_df": 1.0}
        corpus = self.read(options)
        words, num_words = run.model.vocabulary, run.model.num_words
        if words is not None:
            return corpus.with_vocabulary(words)
        if corpus.num_words != num_words:
            raise CorpusError(
                f"{corpus!r} has not the {num_words} words of the model, which has no vocabulary "
                "to match them by; give counts over the same columns"
            )
        return corpus

    def _holds_texts(self) -> bool:
        """Whether the corpus is of texts, not of counts."""
        from torch_lntm.corpus.readers import TEXT_FORMATS, find_format

        return (self.format or find_format(Path(str(self.corpus)))) in TEXT_FORMATS

    def torch_device(self) -> torch.device:
        """The device asked for; sets the number of threads too."""
        import torch

        if self.threads is not None:
            if self.threads < 1:
                raise ConfigError(f"threads is {self.threads}; expected at least 1")
            torch.set_num_threads(self.threads)
        found = torch.cuda.is_available()
        if self.device == "cuda" and not found:
            raise ConfigError("device cuda: torch finds no CUDA device here; use auto or cpu")
        return torch.device("cuda" if found and self.device != "cpu" else "cpu")

    def load(self, folder: str) -> tuple[Run, Guide, Corpus]:
        """A run, the guide of its model on the device, and the documents over its vocabulary.

        A model that was fitted to samples gets the default guide of its kind.
        """
        device = self.torch_device()
        run = lntm.load_run(folder)
        run.model.to(device)
        posterior = run.config.get("posterior")
        guide = lntm.guides.make_guide(None if posterior == SAMPLED else posterior, run.model)
        return run, guide, self.read_for(run)

    def complete(
        self,
        guide: Guide,
        test: Corpus,
        train: Corpus | None,
        observed_fraction: float = 0.5,
        predictive: Literal["mode", "mean", "integrated"] = "mode",
    ) -> list[Score]:
        """Document completion, beside the unigram model's where training documents are known."""
        hold_out = test.hold_out_words(observed_fraction, self.seed)
        if hold_out.held_out.num_tokens == 0:
            say("no document has two words or more: there is nothing to complete")
            return []
        results = [
            lntm.evaluation.document_completion(
                guide.model, guide, test, observed_fraction, self.seed, predictive=predictive
            )
        ]
        if train is not None:
            results.append(lntm.evaluation.unigram_perplexity(train, hold_out.held_out))
        return lntm.report.completion_scores(*results)
