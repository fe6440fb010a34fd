"""Differences between repeated fits under changed conditions, and between seeds.

Each fit runs in a process of its own. The first fit is the reference. Each further fit changes one
condition: the process, the number of threads, the instructions of the processor, the order of the
documents, the seed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torch_lntm as lntm
from studies.machine import ROOT
from studies.measure import Cells, Study, check_numbers, corpus_file
from studies.tables import table_of

#: Changes of the reference's conditions, by their names in the table.
CONDITIONS: dict[str, dict[str, Any]] = {
    "a second process": {},
    "two threads instead of one": {"threads": 2},
    "vector instructions off": {"capability": "default"},
    "documents in reversed order": {"reverse": True},
    "another seed": {"seed": 1},
}


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        corpora: Names of corpora in the folder of data, or paths of files, or lee.
        posteriors: Posteriors to fit by.
        dtypes: Floating-point types of the models.
        num_topics: Topics.
    """

    corpora: tuple[str, ...] = ("lee", "cora")
    posteriors: tuple[str, ...] = ("taylor", "hmc")
    dtypes: tuple[str, ...] = ("float32", "float64")
    num_topics: int = 20

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_numbers(self, {"num_topics": 2})


def read(name: str) -> lntm.Corpus:
    """The corpus of a name."""
    return lntm.lee_corpus() if name == "lee" else lntm.read_corpus(corpus_file(name))


def fit(
    corpus: str,
    posterior: str,
    dtype: str,
    num_topics: int,
    out: Path,
    *,
    seed: int = 0,
    reverse: bool = False,
) -> None:
    """Fit nine tenths of a corpus, and write topics, proportions and the held-out perplexity.

    Args:
        corpus: Name of the corpus.
        posterior: Posterior to fit by.
        dtype: Floating-point type of the model.
        num_topics: Topics.
        out: File to write.
        seed: Seed of the fit.
        reverse: Whether to fit the documents in reversed order.
    """
    train, test = read(corpus).split(test_fraction=0.1, seed=0)
    order = slice(None, None, -1 if reverse else 1)
    recipe = lntm.recipes.Recipe("ctm", posterior).for_corpus(train, num_topics)
    parts = recipe.make(
        train.num_words,
        seed=seed,
        options={"num_topics": num_topics, "dtype": dtype, "progress": False},
    )
    parts.engine.fit(train[order])
    completion = lntm.evaluation.document_completion(
        parts.model, test, theta="mode", guide=parts.guide
    )
    np.savez(
        out,
        topics=parts.model.topics.probs.detach().numpy(),
        theta=lntm.inference.transform(parts.guide, train).theta.numpy(),
        perplexity=completion.perplexity,
    )


def run_fit(corpus: str, posterior: str, dtype: str, num_topics: int, **changes: Any) -> Any:
    """The arrays of :func:`fit` in a process of its own.

    Args:
        corpus: Name of the corpus.
        posterior: Posterior to fit by.
        dtype: Floating-point type of the model.
        num_topics: Topics.
        **changes: Options of :func:`fit`; ``threads`` and ``capability``, the instructions that
            PyTorch may use.
    """
    threads = str(changes.pop("threads", 1))
    capability = changes.pop("capability", None)
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if capability:
        environment["ATEN_CPU_CAPABILITY"] = capability
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "fit.npz"
        arguments = f"{corpus!r}, {posterior!r}, {dtype!r}, {num_topics}, Path({str(out)!r})"
        code = (
            "from pathlib import Path\n"
            "from studies.benchmarks.reproducibility import fit\n"
            f"fit({arguments}, **{changes!r})"
        )
        subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, check=True)
        with np.load(out) as arrays:
            return dict(arrays)


def run(settings: Settings, cells: Cells) -> list[dict[str, Any]]:
    """Compare every fit with its reference."""

    @cache
    def reference(corpus: str, posterior: str, dtype: str) -> Any:
        return run_fit(corpus, posterior, dtype, settings.num_topics)

    def compare(key: tuple[str, str, str, str]) -> dict[str, Any]:
        corpus, posterior, dtype, condition = key
        first = reference(corpus, posterior, dtype)
        changes = CONDITIONS[condition]
        other = run_fit(corpus, posterior, dtype, settings.num_topics, **changes)
        topics = [torch.from_numpy(arrays["topics"]) for arrays in (first, other)]
        alignment = lntm.evaluation.align_topics(*topics)
        equal = all(np.array_equal(first[name], other[name]) for name in first)
        return {
            "corpus": corpus,
            "posterior": posterior,
            "dtype": dtype,
            "condition": condition,
            "bit-equal": equal,
            "largest difference of a word's probability": float(
                np.abs(first["topics"] - other["topics"]).max()
            ),
            "similarity of topics": float(alignment.similarity.mean()),
            "perplexity": [float(first["perplexity"]), float(other["perplexity"])],
        }

    return cells.each(
        [
            (corpus, posterior, dtype, condition)
            for corpus in settings.corpora
            for posterior in settings.posteriors
            for dtype in settings.dtypes
            for condition in CONDITIONS
        ],
        compare,
    )


def tables(rows: list[dict[str, Any]]) -> str:
    """A row for each condition."""
    texts = []
    for row in rows:
        first, other = row["perplexity"]
        difference = row["largest difference of a word's probability"]
        texts.append(
            {
                "fit": f"{row['corpus']}, {row['posterior']}, {row['dtype']}",
                "condition": row["condition"],
                "bit-equal": "yes" if row["bit-equal"] else "no",
                "largest difference": "0" if difference == 0 else f"{difference:.0e}",
                "similarity": f"{row['similarity of topics']:.3f}",
                "perplexity": f"{100 * (other / first - 1):+.2f} %",
            }
        )
    return table_of(texts)


STUDY = Study(
    Settings,
    run,
    tables,
    quick={"corpora": ("lee",), "posteriors": ("taylor",), "dtypes": ("float32",)},
)
