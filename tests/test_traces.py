"""How far a reader walks: functions and depth of one EM iteration, hops of words and of a column.

Only functions of the package count. `pytest tests/test_traces.py -s` prints each walk.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import issparse

import torch_lntm as lntm
from torch_lntm.corpus import DocumentBatch
from torch_lntm.effects.design import Design
from torch_lntm.inference import Statistics

PACKAGE = str(Path(lntm.__file__).parent)
#: Functions that a reader sees at the place of their call.
INLINE = {"<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>"}
#: Most functions and depth of an EM iteration, and most hops of words and of a column. They are
#: today's numbers; whoever shortens a walk lowers them too.
MOST_FUNCTIONS, DEEPEST, MOST_HOPS, MOST_COLUMN_HOPS = 95, 19, 34, 34


class Call(NamedTuple):
    """A call of a function of the package: its place, its depth, and whether it got the data."""

    place: str
    depth: int
    is_hop: bool


def trace(run: Callable[[], Any], carries: Callable[[Any], bool] = lambda _: False) -> list[Call]:
    """The calls that ``run`` makes, in order; a hop is one with an argument that ``carries``."""
    calls: list[Call] = []
    depth = 0

    def follow(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return
        if event == "call":
            depth += 1
            if code.co_name not in INLINE:
                place = (
                    f"{code.co_filename[len(PACKAGE) + 1 :]}:{code.co_firstlineno} {code.co_name}"
                )
                given = [v for k, v in frame.f_locals.items() if k not in ("self", "cls")]
                calls.append(Call(place, depth, any(map(carries, given))))
        elif event == "return":
            depth -= 1

    before = sys.getprofile()
    sys.setprofile(follow)
    try:
        run()
    finally:
        sys.setprofile(before)
    return calls


def added(one: list[Call], two: list[Call]) -> list[Call]:
    """The calls of functions that are called more often in ``two`` than in ``one``."""
    more = Counter(c.place for c in two) - Counter(c.place for c in one)
    return [call for call in two if call.place in more]


def shown(title: str, calls: list[Call]) -> list[str]:
    """Print the distinct functions of calls in the order of their first call, and return them."""
    functions = list(dict.fromkeys(call.place for call in calls))
    print(f"\n{title}: {len(functions)} functions", *functions, sep="\n  ")
    return functions


@pytest.fixture
def posts(tmp_path: Path) -> Path:
    """A CSV file of 60 documents with two columns beside the text."""
    counts = np.random.default_rng(0).poisson(0.4, (60, 40)).clip(0, 2)
    path = tmp_path / "posts.csv"
    rows = [
        " ".join(f"word{j}" for j in np.repeat(np.arange(40), row))
        + f",{'ab'[i % 2]},{2000 + i % 7}"
        for i, row in enumerate(counts)
    ]
    path.write_text("\n".join(["text,party,year", *rows]) + "\n")
    return path


def fit(corpus: lntm.Corpus, iterations: int) -> None:
    """Fit a small model by Taylor's approximation."""
    model = lntm.models.ctm(3, corpus.num_words)
    engine = lntm.inference.VariationalEM(
        model, lntm.guides.TaylorGuide(model), max_iterations=iterations, progress=False
    )
    engine.fit(corpus)


@pytest.mark.slow
def test_an_em_iteration_is_short(posts: Path, monkeypatch) -> None:
    monkeypatch.setenv("LNTM_COMPILED", "0")
    corpus = lntm.read_corpus(posts)
    fit(corpus, 2)
    calls = added(*(trace(lambda n=n: fit(corpus, n)) for n in (1, 2)))
    depth = max(call.depth for call in calls)
    assert len(shown(f"an EM iteration, depth {depth}", calls)) <= MOST_FUNCTIONS
    assert depth <= DEEPEST


@pytest.mark.slow
def test_words_reach_the_m_step_soon(posts: Path) -> None:
    """The file, its counts, the corpus, a batch or its statistics is an argument of each hop."""

    def carries(value: Any) -> bool:
        if isinstance(value, str | Path):
            return str(value) == str(posts)
        return issparse(value) or isinstance(value, (lntm.Corpus, DocumentBatch, Statistics))

    corpus = lntm.read_corpus(posts)
    fit(corpus, 2)
    reading = trace(lambda: lntm.read_corpus(posts), carries)
    iteration = added(*(trace(lambda n=n: fit(corpus, n), carries) for n in (1, 2)))
    hops = [call for call in reading + iteration if call.is_hop]
    assert len(shown("words from a file to the M-step", hops)) <= MOST_HOPS


def test_a_column_reaches_its_effect_soon(posts: Path) -> None:
    """The corpus, columns, their values or the design is an argument of each hop."""

    def carries(value: Any) -> bool:
        if isinstance(value, Mapping | pd.DataFrame):
            return "party" in value
        if isinstance(value, np.ndarray | pd.Series | list):
            return len(value) == 60 and (np.ndim(value) == 2 or value[0] == "a")
        return isinstance(value, lntm.Corpus | Design)

    def effect() -> None:
        corpus = lntm.read_corpus(posts)
        lntm.effects.estimate(model, guide, corpus, "~ party + year", progress=False)

    model = lntm.models.stm(3, lntm.read_corpus(posts), prevalence="~ party + year")
    guide = lntm.guides.TaylorGuide(model)
    effect()
    hops = [call for call in trace(effect, carries) if call.is_hop]
    assert len(shown("a column from a file to its effect", hops)) <= MOST_COLUMN_HOPS
