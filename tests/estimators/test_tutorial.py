"""The code of docs/scikit_learn.md runs."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

#: Replacements of slow code.
SHORTER = {
    "(n_components=10, random_state=0)": "(n_components=10, random_state=0, max_iter=10)",
    "CorrelatedTopicModel(random_state=0)": "CorrelatedTopicModel(random_state=0, max_iter=20)",
    "cv=3": "cv=2",
    "vocabulary=vectorizer, random_state=0": "vocabulary=vectorizer, random_state=0, max_iter=20",
}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "scikit_learn.md"


@pytest.mark.slow
def test_the_page_on_scikit_learn_runs(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    code = "\n".join(blocks)
    for long, short in SHORTER.items():
        assert long in code
        code = code.replace(long, short)
    rng = np.random.default_rng(0)
    labels = [0, 1] * 60
    words = [[f"word{v}" for v in range(8 * label, 8 * label + 8)] for label in (0, 1)]
    names = {"texts": [" ".join(rng.choice(words[label], 12)) for label in labels]}
    names["labels"] = labels
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        exec(compile(code, str(PAGE), "exec"), names)
    assert names["best"].n_components == 2
    assert names["theta"].shape == (300, 10)
    np.testing.assert_allclose(names["again"].transform(names["X"]).sum(1), 1.0, rtol=1e-5)
