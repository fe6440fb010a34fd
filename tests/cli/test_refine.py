"""``torch-lntm refine`` writes a refined run, which every other command takes."""

from __future__ import annotations

import numpy as np
import pytest

import torch_lntm as lntm
from torch_lntm.cli import main


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:dropped 47 of 611 tokens")
def test_a_run_is_refined_and_keeps_its_documents_and_decisions(run_folder, counts, capsys):
    quiet = ["--no-progress", "--num-epochs", "2"]
    changes = ["--split", "2=2", "--absorb", "0,1", "--forbid", "w3, w4"]
    assert main(["refine", run_folder, "--out", "second", *changes, *quiet]) == 0
    assert "The refined run is in second" in capsys.readouterr().out
    assert main(["refine", "second", "--out", "third", "--move", "w5=1", *quiet]) == 0
    first, third = lntm.load_run(run_folder), lntm.load_run("third")
    assert third.decisions == [
        {"split": {"2": 2}, "absorb": [[0, 1]], "forbid": ["w3", "w4"]},
        {"move": {"w5": 1}},
    ]
    assert (third.model.num_topics, third.model.num_words) == (3, 28)
    assert third.config["num_topics"] == 3
    corpus = lntm.read_corpus(counts)
    splits = [
        run.split_documents(corpus.with_vocabulary(run.model.vocabulary)) for run in (first, third)
    ]
    assert np.array_equal(splits[0].test_index, splits[1].test_index)
    assert third.chains().num_docs == splits[0].train.num_nonempty
    capsys.readouterr()
    assert main(["evaluate", "third", "--metrics", "diversity"]) == 0
    assert "topic diversity" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--split", "2=x"], "split is 'x'; expected a whole number"),
        (["--absorb", "2"], "list of one topic"),
        (["--forbid", "w99"], "no word 'w99'"),
        (["other", "--absorb", "0,1"], "needs the documents of the fit"),
    ],
)
def test_wrong_changes_are_named(run_folder, options, message, capsys):
    corpus = lntm.read_corpus("counts.npz")
    corpus[:5].save("other")
    capsys.readouterr()
    assert main(["refine", run_folder, *options, "--out", "new", "--no-progress"]) == 1
    assert message in capsys.readouterr().err
