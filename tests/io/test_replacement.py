"""What is loaded while it is replaced is the old or the new, never a mixture."""

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
from torch_lntm.files.reading import read_consistent
from torch_lntm.files.writing import atomic_folder
from torch_lntm.io import load_model, load_run, save_model, save_run
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


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_model_replaced_between_two_reads_is_the_new_model(tmp_path, monkeypatch, number):
    path = save_model(MODELS[0], tmp_path / "model")
    opened = between_reads(monkeypatch, number, lambda: save_model(MODELS[1], path, overwrite=True))
    assert which(load_model(path)) == 1
    assert len(opened) in (5, 6)  # the checksum of a mixture is wrong


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_a_run_replaced_between_two_reads_is_the_new_run(tmp_path, monkeypatch, number):
    path = tmp_path / "run"

    def save(i):
        save_run(path, MODELS[i], make_result(seconds=i), {"i": i}, overwrite=True)

    save(0)
    between_reads(monkeypatch, number, lambda: save(1))
    run = load_run(path)
    assert (which(run.model), run.config["i"], run.metadata["seconds"]) == (1, 1, 1)


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


@pytest.mark.parametrize("number", range(1, 5))
def test_a_corpus_replaced_between_two_reads_is_the_new_corpus(tmp_path, monkeypatch, number):
    counts = np.arange(10).reshape(2, 5)
    corpora = [
        lntm.Corpus.from_matrix(counts, words).with_covariates({"x": [float(i), 0.0]})
        for i, words in enumerate(VOCABULARIES)
    ]
    corpora[0].save(tmp_path / "corpus")
    opened = between_reads(monkeypatch, number, lambda: corpora[1].save(tmp_path / "corpus"))
    found = lntm.read_corpus(tmp_path / "corpus")
    assert found.vocabulary == VOCABULARIES[1]
    assert found.covariates["x"][0] == 1.0
    assert len(opened) > 4  # a reading opens 4 files that are not mapped


def test_a_link_changed_between_two_reads_gives_the_new_model(tmp_path, monkeypatch):
    for i, model in enumerate(MODELS):
        save_model(model, tmp_path / str(i))
    link = tmp_path / "link"
    link.symlink_to("0")

    def turn():
        (tmp_path / "new").symlink_to("1")
        (tmp_path / "new").replace(link)

    between_reads(monkeypatch, 2, turn)
    assert which(load_model(link)) == 1


@pytest.mark.slow
def test_a_folder_replaced_at_every_attempt_is_refused(tmp_path):
    def read(path):
        with atomic_folder(path) as folder:
            (folder / "a").touch()

    read(tmp_path / "x")
    with pytest.raises(FileError, match="x: is replaced again and again while it is read"):
        read_consistent(tmp_path / "x", read)


def test_a_removed_and_recreated_folder_counts_as_replaced(tmp_path):
    """File systems give the number of a removed folder to the next one, if they may."""
    (tmp_path / "x").mkdir()
    reads = []

    def read(path):
        reads.append(path)
        if len(reads) == 1:
            path.rmdir()
            path.mkdir()
        return len(reads)

    assert read_consistent(tmp_path / "x", read) == 2
