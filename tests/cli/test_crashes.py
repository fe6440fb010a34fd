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


@pytest.mark.long
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
