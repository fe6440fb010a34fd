"""``torch-lntm names`` sets names, and other commands show and accept them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import torch_lntm as lntm
from torch_lntm.cli import main


def test_names_are_set_changed_and_removed(run_folder, capsys):
    assert main(["names", run_folder, "--set", "0=economy; 1=foreign affairs"]) == 0
    assert "foreign affairs" in capsys.readouterr().out
    assert main(["names", run_folder, "--set", "economy=budget; 1="]) == 0
    names = lntm.load_run(run_folder).model.topic_names
    assert names[:2] == ("budget", "1")
    Path("names.json").write_text(json.dumps({"1": "war", "budget": None}))
    assert main(["names", run_folder, "--set", "names.json"]) == 0
    capsys.readouterr()
    for value, message in (("economy", "expected pairs such as"), ("0=a; 0=b", "is given twice")):
        assert main(["names", run_folder, "--set", value]) == 1
        assert message in capsys.readouterr().err
    assert lntm.load_run(run_folder).model.topic_names[:2] == ("0", "war")
    assert main(["names", run_folder, "--clear", "--print-as", "csv"]) == 0
    assert not lntm.load_run(run_folder).model.has_topic_names


@pytest.mark.slow
def test_columns_of_documents_have_names(run_folder, counts):
    guide = lntm.load_run(run_folder).guide()
    theta = lntm.inference.transform(guide, lntm.read_corpus(counts)).theta.numpy()
    assert main(["names", run_folder, "--set", "0==economy; 1=tokens"]) == 0
    assert main(["transform", run_folder, counts, "--out", "theta.csv"]) == 0
    frame = pd.read_csv("theta.csv")
    facts = ["document", "label", "tokens", "converged"]
    assert list(frame) == [*facts, "'=economy", "topic_tokens", "topic_2"]
    np.testing.assert_allclose(frame.iloc[:, 4:], theta, rtol=1e-4)
