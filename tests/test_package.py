"""The package's public names, which load nothing before they are used."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import torch_lntm as lntm

HEAVY = "heavy = {%s} & set(sys.modules)\nassert not heavy, heavy\n"
IMPORT = "import sys, torch_lntm, torch_lntm.cli\n" + HEAVY % (
    "'torch', 'pyro', 'numpy', 'scipy', 'sklearn', 'matplotlib'"
)
FIT = (
    """
import sys, numpy as np, torch_lntm as lntm
corpus = lntm.Corpus.from_matrix(np.random.default_rng(0).poisson(1.0, (20, 10)))
guide = lntm.guides.TaylorGuide(lntm.models.ctm(2, 10))
lntm.inference.VariationalEM(guide.model, guide, max_iterations=1).fit(corpus)
"""
    + HEAVY % "'sklearn.feature_extraction', 'scipy.stats'"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "code", [IMPORT, pytest.param(FIT, marks=pytest.mark.long)], ids=["import", "fit"]
)
def test_nothing_heavy_is_loaded_before_it_is_used(code):
    subprocess.run([sys.executable, "-c", code], check=True)


def test_python_beside_a_clone_imports_the_package_and_not_the_folder(tmp_path):
    (tmp_path / "torch_lntm" / "tests").mkdir(parents=True)
    code = "import torch_lntm; assert torch_lntm.__version__"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_every_public_name_exists():
    names = [name for name in dir(lntm) if not name.startswith("_")]
    assert {"Corpus", "read_corpus", "models", "guides", "inference", "evaluation"} <= set(names)
    assert {"LNTMError", "CorpusError", "ConfigError", "load_model", "plotting"} <= set(names)
    for name in names:
        assert getattr(lntm, name) is not None
    assert lntm.Corpus is lntm.corpus.Corpus
    assert issubclass(lntm.ConfigError, lntm.LNTMError)
    assert lntm.__version__.count(".") == 2


@pytest.mark.slow
def test_progress_bars_are_for_terminals(terminal, capsys, monkeypatch):
    corpus = lntm.Corpus.from_matrix(np.random.default_rng(0).poisson(1.0, (20, 10)))
    guide = lntm.guides.TaylorGuide(lntm.models.ctm(2, 10))

    def shown() -> str:
        lntm.inference.VariationalEM(guide.model, guide, max_iterations=1).fit(corpus)
        lntm.inference.DocumentHMC(guide.model).run(corpus.batch(), 2, warmup_steps=2)
        return capsys.readouterr().err

    assert "nats/token" in shown()
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda stream: False)
    assert shown() == ""
