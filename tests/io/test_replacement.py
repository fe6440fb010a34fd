"""What is loaded while it is replaced is the old or the new, or refused, never a mixture."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from support.folders import make_model, make_result

import torch_lntm as lntm
from torch_lntm.corpus import archive
from torch_lntm.errors import ConfigError, FileError
from torch_lntm.files import reading
from torch_lntm.io import load_run, save_run
from torch_lntm.reports.scores import as_scores, read_scores, score_records

VOCABULARIES = (tuple("abcde"), tuple("vwxyz"))
MODELS = tuple(make_model(vocabulary=words, seed=i) for i, words in enumerate(VOCABULARIES))


def which(model):
    """Which of the two models this is; fails for a mixture."""
    i = VOCABULARIES.index(model.vocabulary)
    assert torch.equal(model.topics.probs, MODELS[i].topics.probs)
    return i


def between_reads(monkeypatch, number, act):
    """Lets something happen once, after so many files were opened."""
    real, opened = reading.open_bytes, []

    @contextmanager
    def open_bytes(path):
        with real(path) as contents:
            opened.append(path)
            if len(opened) == number:
                act()
            yield contents

    for module in (archive, reading):
        monkeypatch.setattr(module, "open_bytes", open_bytes)
    return opened


@pytest.mark.parametrize("number", range(1, 7))
def test_a_run_replaced_between_two_reads_is_old_or_refused(tmp_path, monkeypatch, number):
    path = tmp_path / "run"

    def save(i):
        save_run(path, MODELS[i], make_result(seconds=i), {"i": i}, overwrite=True)

    save(0)
    opened = between_reads(monkeypatch, number, lambda: save(1))
    with pytest.raises(ConfigError, match=r"checksum|was replaced while it was read"):
        load_run(path)
    assert len(opened) >= number
    assert which(load_run(path).model) == 1


def test_a_run_refuses_split_and_scores_of_another_run(tmp_path):
    corpus = lntm.Corpus.from_matrix(np.ones((8, 5), int), VOCABULARIES[0])
    rows = [("perplexity", 2.0, None, "per token", None, None, "importance")]
    scores = as_scores(rows)
    for seconds in (1.0, 2.0):
        split = corpus.split(0.25, seed=int(seconds))
        result = make_result(seconds=seconds)
        given = {"split": split, "evaluation": score_records(scores), "overwrite": True}
        save_run(tmp_path / "run", MODELS[0], result, {}, **given)
        if seconds == 1.0:
            run = load_run(tmp_path / "run")
            assert run.split_documents(corpus).test_index.tolist() == split.test_index.tolist()
            assert run.read("evaluation.json", read_scores).equals(scores)
    with pytest.raises(ConfigError, match="run: holds another run by now; load it again"):
        run.split_documents(corpus)
    with pytest.raises(ConfigError, match="run: holds another run by now; load it again"):
        lntm.report(run, corpus, num_draws=2)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_corpus_replaced_between_two_reads_is_refused(tmp_path, monkeypatch, number):
    counts = np.arange(10).reshape(2, 5)
    corpora = [
        lntm.Corpus.from_matrix(counts, words).with_covariates({"x": [float(i), 0.0]})
        for i, words in enumerate(VOCABULARIES)
    ]
    corpora[0].save(tmp_path / "corpus")
    between_reads(monkeypatch, number, lambda: corpora[1].save(tmp_path / "corpus"))
    with pytest.raises(FileError, match="its checksum differs"):
        lntm.read_corpus(tmp_path / "corpus")
