"""The study of reproducibility: fits in processes of their own, and their differences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from studies.benchmarks.reproducibility import CONDITIONS, STUDY, Settings
from studies.measure import Cells
from tests.support.corpora import save_counts
from torch_lntm.corpus import Corpus


@pytest.mark.slow
def test_fits_are_equal_in_two_processes_and_differ_between_seeds(tmp_path: Path) -> None:
    path = tmp_path / "tiny.npz"
    counts = np.random.default_rng(0).poisson(1.0, (40, 30))
    save_counts(Corpus.from_matrix(counts), path)
    settings = Settings(
        corpora=(str(path),), posteriors=("taylor",), dtypes=("float64",), num_topics=2
    )
    rows = STUDY.run(settings, Cells())
    by_condition = {row["condition"]: row for row in rows}
    assert list(by_condition) == list(CONDITIONS)
    assert by_condition["a second process"]["bit-equal"]
    seed = by_condition["another seed"]
    assert not seed["bit-equal"]
    assert seed["largest difference of a word's probability"] > 1e-3
    text = STUDY.table(rows)
    assert text.count("\n") == 1 + len(CONDITIONS)
    assert " yes |" in text
