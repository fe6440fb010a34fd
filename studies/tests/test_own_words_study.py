"""The study of documents' own words: what it measures, and without a peer."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from studies.__main__ import load
from studies.benchmarks import own_words
from studies.benchmarks.frozen import frozen
from studies.measure import measure
from tests.support.corpora import save_counts
from torch_lntm.corpus import Corpus
from torch_lntm.evaluation import paired_difference


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_documents_that_repeat_their_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    base = rng.dirichlet(np.ones(30))
    # Each document's words are drawn around the same, with a concentration of 10.
    counts = np.stack([rng.multinomial(40, rng.dirichlet(10.0 * base)) for _ in range(300)])
    save_counts(Corpus.from_matrix(counts), tmp_path / "repeats.npz")
    missing = own_words.missing_library
    monkeypatch.setattr(
        own_words, "missing_library", lambda s: "topica" if s == "topica LDA" else missing(s)
    )
    chosen = own_words.Settings(
        corpora=(str(tmp_path / "repeats.npz"),),
        num_topics=2,
        seeds=(0, 1),
        systems=("torch_lntm ctm", "topica LDA", "torch_lntm ctm, auto, bursty"),
        tolerance=0.01,
    )
    study = load("own_words")
    rows = measure("own_words", study, chosen, tmp_path / "out", progress=False)
    names = ["unigram", "torch_lntm ctm", "torch_lntm ctm, auto, bursty"]
    assert [(row["system"], row["seed"]) for row in rows] == list(product(names, (0, 1)))
    unigram, ours, bursty = ([row for row in rows if row["system"] == name] for name in names)
    assert all(5 < row["weight"] < 20 for row in (*unigram, *bursty))
    for row in rows:
        scores = [own_words.score_of([row], name) for name in ("own", "alone")]
        assert scores[0].perplexity < scores[1].perplexity
        assert row["within_tolerance"]
    # The unigram's scores, written out.
    split = frozen(str(tmp_path / "repeats.npz"), 0, chosen.max_docs, chosen.max_test_docs)
    observed, held_out = (part.to_scipy().toarray() for part in split.hold_out)
    q = (split.train.word_totals + 1.0) / (split.train.word_totals + 1.0).sum()
    a, lengths = unigram[0]["weight"], observed.sum(1, keepdims=True)
    for name, p in (("alone", q), ("own", (observed + a * q) / (lengths + a))):
        score = (held_out * np.log(p)).sum() / held_out.sum()
        found = own_words.score_of(unigram[:1], name).perplexity
        assert found == pytest.approx(math.exp(-score), rel=1e-5)
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in study.table(rows).splitlines()
        if line.startswith("|")
    ]
    head, row = lines[0], next(line for line in lines if "unigram" in line)
    for column, first in (("1st better by", ours), ("2nd better by", bursty)):
        gain, error = paired_difference(*(own_words.score_of(r, "own") for r in (first, unigram)))
        assert row[head.index(column)] == f"{gain:.4f} ± {error:.4f}"
    values = [row["npmi"] for row in ours]
    row = next(line for line in lines if "torch_lntm ctm" in line)
    assert row[head.index("NPMI")] == f"{np.mean(values):.3g}"
