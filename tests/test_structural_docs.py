"""The code of docs/structural.md runs on a small file of posts."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import torch_lntm as lntm

PAGE = Path(__file__).resolve().parent.parent / "docs" / "structural.md"
#: Replacements of slow code.
SHORTER = {
    "stm(20,": "stm(3,",
    "num_permutations=99": "num_permutations=1, num_draws=2",
    "[10, 20, 50], num_seeds=3": "[2, 3], num_seeds=1",
    "DocumentHMC(model), corpus)": "DocumentHMC(model), corpus, 2, warmup_steps=5)",
    "joint_draws(model, corpus)": "joint_draws(model, corpus, num_draws=2, warmup_steps=5)",
    "topics=[3]": "topics=[1]",
}


@pytest.mark.slow
def test_the_page_on_structural_models_runs(tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    words = ["tax", "war", "vote", "poll", "court", "oil"]
    rows = ["text,party,date,blog"]
    for d in range(50):
        party = ("Conservative", "Liberal")[d % 2]
        day = np.datetime64("2004-01-01") + rng.integers(0, 360)
        weights = rng.dirichlet(np.ones(6))
        rows.append(f"{' '.join(rng.choice(words, 20, p=weights))},{party},{day},{d % 9}")
    Path("posts.csv").write_text("\n".join(rows))
    code = "\n\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL))
    for long, short in SHORTER.items():
        assert long in code
        code = code.replace(long, short)
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lntm.errors.LNTMWarning)
        exec(compile(code, str(PAGE), "exec"), names)
    plt.close("all")
    assert "party[T.Liberal]" in capsys.readouterr().out
    assert isinstance(names["selection"], lntm.selection.Selection)
