"""``torch-lntm report``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch_lntm as lntm
from torch_lntm.cli.documents import OnDocuments, say
from torch_lntm.errors import ConfigError

if TYPE_CHECKING:
    from torch_lntm.io import Run

#: What of a run's configuration is of no interest, or stands on the page already.
_UNTOLD = (
    *("out", "overwrite", "progress", "threads", "num_words", "checkpoint_seconds"),
    *("model", "posterior", "num_topics"),
)


@dataclass(kw_only=True)
class Report(OnDocuments):
    """Write a page on a run: topics, map, correlations, documents, prevalence and scores.

    The page is one HTML file that opens in any browser, without a network. Without CORPUS the run's
    own corpus is read again, with its texts, which the page quotes.

    Attributes:
        run_folder: The run's folder.
        out: File to write; report.html in the run's folder if not given.
        by: Columns of the documents to show the topics' prevalence by, with commas between; if not
            given the first six that put documents into groups, and for none an empty text.
        effects: Formula of effects to show, such as "~ party"; none if not given.
        title: Title of the page.
        num_words: Top words of each topic.
        num_docs: Documents to show of each topic.
        num_samples: Draws of each document's posterior, for the intervals.
        overwrite: Replace a file that is there already.
    """

    positionals = ("run_folder", "corpus")
    optional = ("corpus",)

    run_folder: str | None = None
    out: str | None = None
    by: str | None = None
    effects: str | None = None
    title: str | None = None
    num_words: int = 12
    num_docs: int = 4
    num_samples: int = 50
    overwrite: bool = False

    def run(self) -> int:
        """Run it; returns the exit code."""
        from torch_lntm.files import atomic_write
        from torch_lntm.io.folders import writing

        out = Path(str(self.run_folder), "report.html") if self.out is None else Path(self.out)
        if out.is_dir():
            raise ConfigError(f"{out}: is a folder; name a file to write the page to")
        if self.out is not None and out.exists() and not self.overwrite:
            raise ConfigError(f"{out}: exists already; choose another path, or pass --overwrite")
        run, guide, corpus = self.load(str(self.run_folder))
        effects = None
        if self.effects is not None:
            effects = lntm.effects.estimate(
                run.model, guide, corpus, self.effects, num_draws=self.num_samples, seed=self.seed
            )
        page = lntm.reports.html_report(
            guide,
            corpus,
            by=None if self.by is None else [c.strip() for c in self.by.split(",") if c.strip()],
            texts=self.texts(),
            effects=effects,
            scores=_scores(run),
            settings=_settings(run),
            title=self.title,
            num_words=self.num_words,
            num_docs=self.num_docs,
            num_samples=self.num_samples,
            seed=self.seed,
            progress=self.shows_progress,
        )
        with writing(out), atomic_write(out) as file:
            file.write(page.encode("utf-8", "replace"))
        say(f"wrote {out}")
        return 0

    def texts(self) -> Iterable[str] | None:
        """The documents' texts, where the corpus has them and can be read twice."""
        from torch_lntm.corpus.examples import lee_file
        from torch_lntm.corpus.readers import find_format
        from torch_lntm.corpus.readers.texts import TEXT_READERS, TextOptions, TextStream

        if self.corpus == "-":
            return None
        if self.corpus == "lee":
            return TextStream(lee_file(), "txt", TextOptions())
        path = Path(str(self.corpus))
        format = self.format or find_format(path)
        if format not in TEXT_READERS:
            return None
        names = ("text_field", "label_field", "encoding", "delimiter")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return TextStream(path, format, TextOptions(**given))


def _scores(run: Run) -> list[Any]:
    """The scores that were saved with a run."""
    path = run.path / "evaluation.json"
    return list(lntm.reports.read_scores(path)) if path.exists() else []


def _settings(run: Run) -> dict[str, Any]:
    """What to tell of how a run was fitted."""
    told = {
        name: value
        for name, value in run.config.items()
        if name not in _UNTOLD and value is not None
    }
    about = run.metadata
    told |= {"stopped": str(about.get("stop_reason", "")).replace("_", " ")}
    told |= {name: about[name] for name in ("date", "seconds") if name in about}
    told |= {f"version of {name}": value for name, value in about.get("versions", {}).items()}
    return told
