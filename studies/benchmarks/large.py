"""A corpus of millions of documents in a folder: writing, opening, passes of batches, a fit.

The fit is that of ``torch-lntm fit``: Monte-Carlo EM with the number of epochs that it takes for a
corpus of this size.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from studies.machine import ROOT, Stopwatch, memory_mb, thread_environment
from studies.measure import Cells, Study, check_numbers
from studies.tables import table
from torch_lntm.corpus import Corpus, read_corpus
from torch_lntm.corpus.mapped import Rows
from torch_lntm.recipes import Recipe

#: Documents drawn at once.
_DRAWN = 10_000


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        num_docs: Documents.
        num_words: Words of the vocabulary, with frequencies that fall as in texts.
        tokens_per_doc: Mean tokens of a document.
        batch_size: Documents of a batch of the passes.
        num_topics: Topics of the fit.
        seed: Seed of the documents and of their order.
        folder: Folder of the corpus, which takes 8 bytes for each entry and is removed at the end.
            Defaults to a temporary folder.
    """

    num_docs: int = 2_000_000
    num_words: int = 50_000
    tokens_per_doc: int = 80
    batch_size: int = 1024
    num_topics: int = 20
    seed: int = 0
    folder: str | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        ones = ("num_docs", "num_words", "tokens_per_doc", "batch_size")
        check_numbers(self, {**dict.fromkeys(ones, 1), "num_topics": 2, "seed": 0})


def run(settings: Settings, cells: Cells) -> Any:
    """Run every step in a process of its own, to measure its memory alone."""
    steps = ("open", "batches", "split", "fit")
    with tempfile.TemporaryDirectory(dir=settings.folder) as folder:
        if any(step not in cells.done for step in steps):
            # The corpus of an interrupted study is gone.
            written = in_process(settings, "write", folder)
            cells.one("write", lambda: written)
        measured = cells.each(steps, lambda step: in_process(settings, step, folder))
    return {"write": cells.one("write", dict), **dict(zip(steps, measured, strict=True))}


def in_process(settings: Settings, step: str, folder: str) -> dict[str, Any]:
    """Measurements of a step in a new process."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "studies.benchmarks.large"),
            *(json.dumps(asdict(settings)), step, str(Path(folder, "corpus"))),
        ],
        cwd=ROOT,
        env=thread_environment(1),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{step} failed: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(settings: Settings, step: str, path: Path) -> None:
    """Measure a step in this process, and print the measurements as JSON."""
    about: dict[str, Any] = {}
    imported_mb = memory_mb()
    with Stopwatch() as stopwatch:
        if step == "write":
            write(settings, path)
        else:
            corpus = read_corpus(path)
            about = {"num_docs": corpus.num_docs, "entries": corpus.nnz}
            if step == "batches":
                about["entries_of_batches"] = one_pass(settings, corpus)
            if step == "split":
                train, test = corpus.split(0.1, seed=settings.seed)
                about["entries_of_batches"] = one_pass(settings, train) + test.nnz
            if step == "fit":
                about |= fit(settings, corpus)
    about |= {
        "wall_seconds": stopwatch.wall_seconds,
        "cpu_seconds": stopwatch.cpu_seconds,
        "peak_mb": memory_mb(peak=True),
        "peak_mb_beyond_imports": memory_mb(peak=True) - imported_mb,
    }
    print(json.dumps(about))


def write(settings: Settings, path: Path) -> None:
    """Write documents of independent words to a folder."""
    corpus_of(draw(settings), settings.num_words).save(path)


def corpus_of(parts: Iterable[Rows], num_words: int) -> Corpus:
    """The corpus of drawn documents, which come in parts."""
    sizes, words, counts = map(np.concatenate, zip(*parts, strict=True))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Corpus.from_matrix(csr_matrix((counts, words, offsets), (len(sizes), num_words)))


def draw(settings: Settings) -> Iterator[Rows]:
    """Documents of independent words, with frequencies that fall as one over the rank."""
    rng = np.random.default_rng(settings.seed)
    below = np.cumsum(1 / np.arange(10, settings.num_words + 10))
    below /= below[-1]
    for start in range(0, settings.num_docs, _DRAWN):
        num_docs = min(_DRAWN, settings.num_docs - start)
        lengths = rng.poisson(settings.tokens_per_doc, num_docs)
        words = np.searchsorted(below, rng.random(lengths.sum()))
        rows = np.repeat(np.arange(num_docs), lengths)
        entries, counts = np.unique(rows * settings.num_words + words, return_counts=True)
        sizes = np.bincount(entries // settings.num_words, minlength=num_docs)
        yield Rows(sizes, entries % settings.num_words, counts)


def one_pass(settings: Settings, corpus: Corpus) -> int:
    """Number of entries of all batches in a random order."""
    batches = corpus.batches(settings.batch_size, shuffle=True, seed=settings.seed)
    return sum(batch.nnz for batch in batches)


def fit(settings: Settings, corpus: Corpus) -> dict[str, Any]:
    """Fit a ctm by the default recipe."""
    chosen = Recipe("ctm", "auto").for_corpus(corpus, settings.num_topics)
    options = {"num_topics": settings.num_topics, "progress": False}
    made = chosen.make(corpus.num_words, seed=settings.seed, options=options)
    result = made.engine.fit(corpus)
    return {"phases": [record["phase"] for record in result.history]}


def tables(found: dict[str, Any]) -> str:
    """A row per step."""
    rows = [
        [
            step,
            f"{cell['wall_seconds']:.1f}",
            f"{cell['cpu_seconds']:.1f}",
            f"{cell['peak_mb']:.0f}",
            f"{cell['peak_mb_beyond_imports']:.0f}",
        ]
        for step, cell in found.items()
    ]
    columns = ["", "wall seconds", "CPU seconds", "peak MB", "beyond imports"]
    opened = found["open"]
    return f"{opened['num_docs']} documents, {opened['entries']} entries\n\n{table(columns, rows)}"


STUDY = Study(Settings, run, tables, quick={"num_docs": 20_000, "num_words": 5_000})

if __name__ == "__main__":
    main(Settings(**json.loads(sys.argv[1])), sys.argv[2], Path(sys.argv[3]))
