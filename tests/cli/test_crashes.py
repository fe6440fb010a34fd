"""What commands have written outlasts a crash, and what they replace is lost to none."""

from __future__ import annotations

import itertools

import pytest
import safetensors.numpy
from support.commands import QUICK
from support.crashes import ForgetfulDisk, make

import torch_lntm as lntm
from torch_lntm.cli import main

FIT = [*QUICK, "--posterior", "taylor", "--start", "model", "--checkpoint-seconds", "0"]


@pytest.fixture
def root(workplace):
    (workplace / "root").mkdir()
    return workplace / "root"


def reader(folder, name, read):
    """Reads what crashes left under a name, the same only once; None where nothing is left."""
    known, names = {}, (folder / f"left-{i}" for i in itertools.count())

    def found(tree):
        if tree not in known:
            there = make(tree, next(names)) / name
            known[tree] = read(there) if there.exists() else None
        return known[tree]

    return found


def topics(model):
    return model.topics.probs.detach().numpy().tobytes()


def test_a_model_that_replaces_another(root, workplace, monkeypatch):
    old, new = (lntm.models.ctm(3, 5, vocabulary=list("abcde"), seed=seed) for seed in (0, 1))
    lntm.save_model(old, root / "x")
    disk = ForgetfulDisk(root, monkeypatch)
    lntm.save_model(new, root / "x", overwrite=True)
    monkeypatch.undo()
    found = reader(workplace, "x", lambda path: topics(lntm.load_model(path)))
    assert {found(tree) for tree in disk.ever_left} == {topics(old), topics(new)}
    assert {found(tree) for tree in disk.finally_left} == {topics(new)}


@pytest.mark.parametrize("name", ["corpus", "corpus.npz"])
def test_a_converted_corpus(counts, root, workplace, monkeypatch, name):
    corpus = lntm.read_corpus(counts)
    disk = ForgetfulDisk(root, monkeypatch)
    corpus.save(root / name)
    monkeypatch.undo()
    found = reader(workplace, name, lambda path: lntm.read_corpus(path).fingerprint())
    assert {found(tree) for tree in disk.finally_left} == {corpus.fingerprint()}
    assert {found(tree) for tree in disk.ever_left} == {None, corpus.fingerprint()}


def test_a_table_of_documents(run_folder, counts, root, monkeypatch):
    disk = ForgetfulDisk(root, monkeypatch)
    assert main(["transform", run_folder, counts, "--out", str(root / "x.csv")]) == 0
    table = (root / "x.csv").read_bytes()
    assert {dict(tree).get("x.csv") for tree in disk.ever_left} == {None, table}
    assert disk.finally_left == {(("x.csv", table),)}


@pytest.mark.slow
@pytest.mark.parametrize("replaced", [False, True])
def test_a_fit_is_never_lost(counts, root, workplace, monkeypatch, replaced):
    """A checkpoint or the run is there since the first checkpoint; an old run, till the new is."""
    command = ["fit", counts, "--out", str(root / "run"), *FIT]
    if replaced:
        assert main([*command, "--seed", "1"]) == 0
        command.append("--overwrite")
    disk = ForgetfulDisk(root, monkeypatch)
    assert main(command) == 0
    monkeypatch.undo()
    run = reader(workplace, "run", lambda path: lntm.load_run(path).config["seed"])

    def checkpoint(tree):
        data = dict(dict(tree).get("run.partial", ())).get("checkpoint.safetensors")
        return data and len(safetensors.numpy.load(data))

    kept = [all(map(checkpoint, left)) for left in disk.left]
    assert any(kept)
    for left in disk.left[kept.index(True) :]:
        assert all(run(tree) == 0 or checkpoint(tree) for tree in left)
    assert {run(tree) for tree in disk.ever_left} == {1 if replaced else None, 0}
    assert {run(tree) for tree in disk.finally_left} == {0}
