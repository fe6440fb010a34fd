"""What commands have written outlasts a crash, and what they replace is lost to none."""

from __future__ import annotations

import itertools
import os
import shutil
import struct
import subprocess

import numpy as np
import pytest
import safetensors.numpy
import torch
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


# -------------------------------------------------------------------- a file system that is cut off


@pytest.fixture
def power(workplace):
    """A file system, and what cuts its power and mounts what is left."""
    fcntl = pytest.importorskip("fcntl")
    image, folder = workplace / "image", workplace / "mounted"
    folder.mkdir()
    mount = ["mount", "-o", "loop", str(image), str(folder)]
    if not shutil.which("mkfs.ext4"):
        pytest.skip("there is no mkfs.ext4 to make a file system with")
    with open(image, "wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not permitted here")

    def cut():
        descriptor = os.open(folder, os.O_RDONLY)
        without_log = struct.pack("I", 2)
        fcntl.ioctl(descriptor, 0x8004587D, without_log)  # EXT4_IOC_SHUTDOWN
        os.close(descriptor)
        subprocess.run(["umount", str(folder)], check=True)
        subprocess.run(mount, check=True)

    yield folder, cut
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_written_files_survive_a_power_cut(counts, power, monkeypatch):
    folder, cut = power
    corpus = lntm.read_corpus(counts)
    model = lntm.models.ctm(3, 30, vocabulary=corpus.vocabulary)
    lntm.save_model(lntm.models.ctm(3, 30, seed=8), folder / "model")
    lntm.save_model(model, folder / "model", overwrite=True)
    corpus.save(folder / "corpus")
    corpus.split(0.5, seed=0).save(folder / "new" / "split.npz")
    lntm.reports.scores.write_scores(folder / "scores.json", [])
    cut()
    assert topics(lntm.load_model(folder / "model")) == topics(model)
    assert lntm.load_model(folder / "model").vocabulary == corpus.vocabulary
    assert lntm.read_corpus(folder / "corpus").fingerprint() == corpus.fingerprint()
    assert lntm.corpus.load_split(folder / "new" / "split.npz", corpus)
    assert lntm.reports.scores.read_scores(folder / "scores.json") == []
    left = {path.name for path in folder.iterdir()} - {"lost+found"}
    assert left == {"corpus", "model", "new", "scores.json"}


@pytest.mark.slow
def test_a_fit_survives_a_power_cut(counts, power, capsys, monkeypatch):
    folder, cut = power
    command = ["fit", counts, "--out", str(folder / "run"), *FIT]
    fit = lntm.inference.VariationalEM.fit

    def killed(self, *arguments, **options):
        fit(self, *arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lntm.inference.VariationalEM, "fit", killed)
        assert main(command) == 130
    cut()
    assert main(command) == 0
    assert "continuing the unfinished fit" in capsys.readouterr().err
    run = lntm.load_run(folder / "run")
    cut()
    again = lntm.load_run(folder / "run")
    assert again.history == run.history
    assert torch.equal(again.model.topics.probs, run.model.topics.probs)
    table = folder / "table.npz"
    assert main(["transform", str(folder / "run"), counts, "--out", str(table)]) == 0
    page = folder / "page.html"
    assert main(["report", str(folder / "run"), counts, "--out", str(page)]) == 0
    expected = page.read_bytes()
    cut()
    assert np.load(table)["theta"].shape == (40, 3)
    assert page.read_bytes() == expected
