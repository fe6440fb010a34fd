"""``torch-lntm convert``, and the other commands on what it wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.commands import QUICK, tensors

import torch_lntm as lntm
from torch_lntm.cli import main


def test_texts_become_a_folder(texts, capsys):
    assert main(["convert", texts, "corpus", "--min-df", "2"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    expected = lntm.read_corpus(texts, min_df=2)
    found = lntm.read_corpus("corpus")
    assert found.fingerprint() == expected.fingerprint()
    assert "(stop_words none keeps them)" in printed.err
    sizes = (expected.num_docs, expected.num_words, expected.num_tokens)
    said = "wrote {} documents of {} words, {} tokens, to corpus".format(*sizes)
    assert said in printed.err


def test_existing_files_are_not_replaced(counts, capsys):
    Path("notes").mkdir()
    Path("notes", "a.txt").write_text("precious")
    assert main(["convert", counts, "notes", "--overwrite"]) == 1
    assert "notes: exists and is not the folder of a corpus" in capsys.readouterr().err
    assert main(["convert", counts, "corpus"]) == 0
    assert main(["convert", counts, "corpus"]) == 1
    assert "pass --overwrite" in capsys.readouterr().err
    assert main(["convert", counts, "corpus", "--overwrite"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("shards", [[], ["--shard-size", "9"]])
def test_a_fit_of_the_folder_is_the_fit_of_the_file(counts, run_folder, shards):
    assert main(["convert", counts, "corpus", *shards]) == 0
    assert len(list(Path("corpus").glob("shard-*"))) == (5 if shards else 1)
    assert main(["fit", "corpus", "--out", "other", *QUICK]) == 0
    for name, tensor in tensors("other").items():
        assert torch.equal(tensor, tensors(run_folder)[name])
    assert main(["evaluate", "other", "--metrics", "completion", "--theta", "mode"]) == 0
    assert main(["transform", "other", "corpus", "--out", "theta.csv"]) == 0
