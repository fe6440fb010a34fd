"""The tutorial from scikit-learn runs as it stands."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scikit_learn.md"


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path, monkeypatch):
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    rng = np.random.default_rng(0)
    labels = [0, 1] * 60
    words = [[f"word{v}" for v in range(8 * label, 8 * label + 8)] for label in (0, 1)]
    names = {"texts": [" ".join(rng.choice(words[label], 12)) for label in labels]}
    names["labels"] = labels
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        exec(compile("\n".join(code), str(PAGE), "exec"), names)
    assert names["best"].n_components == 2
    assert names["theta"].shape == (300, 10)
    np.testing.assert_allclose(names["again"].transform(names["X"]).sum(1), 1.0, rtol=1e-5)
