"""Runs come back as they were, a damaged file is named, and unfinished runs go on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from support.folders import WORDS, make_model, make_result

from torch_lntm.cli import main
from torch_lntm.corpus import read_corpus
from torch_lntm.errors import ConfigError
from torch_lntm.inference import DocumentHMC, transform
from torch_lntm.io import UnfinishedRun, load_run, save_run
from torch_lntm.io.runs import SPLIT, check_target
from torch_lntm.reports.scores import read_scores


def test_a_saved_run_is_loaded_unchanged(tmp_path, corpus):
    split = corpus.split(0.25, seed=1)
    history = [{"objective": float("-inf")}, {"objective": -1.5}]
    result = make_result(stop_reason="interrupted", num_unconverged=2, history=history)
    config = {"num_topics": 3, "out": "wörter", "tolerance": float("inf"), "x": None}
    path = save_run(
        tmp_path / "deep" / "run", make_model(), result, config, metadata={"seed": 7}, split=split
    )
    run = load_run(path)
    assert run.config == config
    assert run.history == result.history
    assert run.metadata["stop_reason"] == "interrupted"
    assert run.metadata["num_unconverged"] == 2
    assert run.metadata["objective"] == -1.5
    assert run.metadata["seed"] == 7
    assert torch.__version__.startswith(run.metadata["versions"]["torch"])  # less "+cu130"
    assert run.model.vocabulary == WORDS
    again = run.split_documents(corpus)
    assert again.test_index.tolist() == split.test_index.tolist()


def test_a_missing_split_is_an_error_if_documents_were_held_out(tmp_path, corpus):
    split, config = corpus.split(0.25, seed=1), {"test_fraction": 0.25}
    path = save_run(tmp_path / "run", make_model(), make_result(), config, split=split)
    (path / SPLIT).unlink()
    with pytest.raises(ConfigError, match="no such file, but documents were held out"):
        load_run(path).split_documents(corpus)


def test_a_run_is_replaced_only_with_overwrite(folder):
    before = (folder / "metadata.json").read_bytes()
    with pytest.raises(ConfigError, match="exists already"):
        save_run(folder, make_model(), make_result(), {})
    assert (folder / "metadata.json").read_bytes() == before
    save_run(folder, make_model(), make_result(seconds=9.0), {}, overwrite=True)
    assert load_run(folder).metadata["seconds"] == 9.0
    assert [path.name for path in folder.parent.iterdir()] == ["run"]


@pytest.mark.parametrize(
    "name",
    [
        *("model.json", "model.safetensors", "vocabulary.txt"),
        *("config.json", "metadata.json", "history.jsonl"),
    ],
)
@pytest.mark.parametrize("damage", ["missing", "cut", "garbage", "folder", "numbers"])
def test_a_damaged_file_is_named(folder, corpus, name, damage):
    assert load_run(folder).split_documents(corpus) is None
    path = folder / name
    data = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(data[: len(data) - 7])
    elif damage == "garbage":
        path.write_bytes(b"\xff\xfe\x00garbage")
    elif damage == "folder":
        path.mkdir()
    elif damage == "numbers":
        path.write_text("[1]\n2\n")
    with pytest.raises(ConfigError, match=name):
        load_run(folder)


@pytest.mark.parametrize(
    ("posterior", "guide"), [("laplace", "laplace"), ("hmc", "taylor"), (None, "taylor")]
)
def test_a_run_knows_its_guide(tmp_path, posterior, guide):
    path = save_run(tmp_path / "run", make_model(), make_result(), {"posterior": posterior})
    run = load_run(path)
    found = run.guide(tolerance=1e-6)
    assert found.name == guide
    assert run.chains(seed=3).settings.seed == 3
    assert isinstance(run.source, DocumentHMC) if posterior == "hmc" else run.source.name == guide
    assert found.model is run.model
    assert found.tolerance == 1e-6
    assert repr(run) == f"Run({str(path)!r}, ctm, 3 topics)"


def test_a_configuration_may_name_files_that_are_not_unicode(tmp_path):
    config = {"corpus": "w\udcf6rter.npz", "name": "wörter"}
    path = save_run(tmp_path / "run", make_model(), make_result(), config)
    assert load_run(path).config == config
    with pytest.raises(ConfigError, match="nowhere is no folder of a model or run"):
        load_run(tmp_path / "nowhere")
    assert "wörter" in (path / "config.json").read_text(encoding="utf-8")


def test_writing_to_the_current_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="current folder"):
        check_target(Path(), overwrite=False)


FITS = Path(__file__).parent / "format_1_fits"
EXPECTED = json.loads((FITS / "expected.json").read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_runs_of_the_first_format_are_read(name):
    """Run folders that version 0.1.0 wrote, with what it found by them."""
    run, expected = load_run(FITS / name), EXPECTED[name]
    corpus = read_corpus(FITS / "posts.csv", min_df=1)
    assert run.metadata["versions"]["torch_lntm"] == "0.1.0"
    assert run.metadata["corpus"]["fingerprint"] == corpus.fingerprint()
    assert len(run.history) == expected["iterations"]
    assert run.history[-1]["objective"] == expected["objective"]
    assert run.split_documents(corpus).test_index.tolist() == expected["test_index"]
    scores = read_scores(FITS / name / "evaluation.json")[["metric", "value"]].to_numpy().tolist()
    assert scores == expected["scores"]
    theta = transform(run.guide(), corpus).theta[:6]
    torch.testing.assert_close(theta, torch.tensor(expected["theta"]), rtol=0, atol=1e-3)


def test_the_command_line_reads_runs_of_the_first_format(tmp_path, capsys):
    shutil.copytree(FITS / "stm", tmp_path / "run")
    posts, run = str(FITS / "posts.csv"), str(tmp_path / "run")
    assert main(["topics", run]) == 0
    assert main(["transform", run, posts, "--out", str(tmp_path / "theta.csv")]) == 0
    assert main(["effects", run, posts, "--num-draws", "5"]) == 0
    assert "bs(age, df=4)[4]" in capsys.readouterr().out


def leave_checkpoint(path, config):
    with UnfinishedRun(path, config) as unfinished:
        unfinished.checkpoint.write_bytes(b"state")
        for name in ("checkpoint.safetensors.rows", f".config.json.{32 * 'a'}.new"):  # of a kill
            (unfinished.folder / name).mkdir(exist_ok=True)
    return unfinished


def test_an_unfinished_run_is_kept_until_it_is_discarded(tmp_path):
    with UnfinishedRun(tmp_path / "run", {}) as unfinished:
        assert not unfinished.started
    assert list(tmp_path.iterdir()) == []  # nothing without a checkpoint
    config = {"num_topics": 3, "tolerance": 1e-4, "pair": (1, 2)}
    kept = leave_checkpoint(tmp_path / "run", config)
    assert kept.checkpoint.exists()
    with UnfinishedRun(tmp_path / "run", config) as unfinished:
        assert unfinished.started
        unfinished.discard()
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_run_of_another_configuration_is_refused(tmp_path):
    leave_checkpoint(tmp_path / "run", {"num_topics": 3, "seed": 0})
    with pytest.raises(ConfigError, match=r"num_topics is 4, was 3\)"):
        UnfinishedRun(tmp_path / "run", {"num_topics": 4, "seed": 0})
    assert leave_checkpoint(tmp_path / "run", {"num_topics": 3, "seed": 0}).started


def test_a_folder_with_foreign_files_is_refused(tmp_path):
    (tmp_path / "run.partial").mkdir()
    (tmp_path / "run.partial" / "config.json.bak").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds config\.json\.bak, which is no part"):
        UnfinishedRun(tmp_path / "run", {})
    assert (tmp_path / "run.partial" / "config.json.bak").read_text() == "mine"


def test_two_fits_do_not_share_a_folder(tmp_path):
    pytest.importorskip("fcntl")
    with (
        UnfinishedRun(tmp_path / "run", {}),
        pytest.raises(ConfigError, match="another fit is writing"),
    ):
        UnfinishedRun(tmp_path / "run", {})
