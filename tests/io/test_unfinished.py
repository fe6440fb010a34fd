"""Unfinished runs are kept for the same fit to continue, and for no other."""

from __future__ import annotations

import pytest

from torch_lntm.errors import ConfigError
from torch_lntm.io import UnfinishedRun


def leave_checkpoint(path, config):
    with UnfinishedRun(path, config) as unfinished:
        unfinished.checkpoint.write_bytes(b"state")
    return unfinished


def test_an_unfinished_run_is_kept_until_it_is_discarded(tmp_path):
    config = {"num_topics": 3, "tolerance": 1e-4, "pair": (1, 2)}
    kept = leave_checkpoint(tmp_path / "run", config)
    assert kept.checkpoint.exists()
    with UnfinishedRun(tmp_path / "run", config) as unfinished:
        assert unfinished.started
        unfinished.discard()
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_run_without_a_checkpoint_leaves_nothing(tmp_path):
    with UnfinishedRun(tmp_path / "run", {}) as unfinished:
        assert not unfinished.started
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_run_of_another_configuration_is_refused(tmp_path):
    leave_checkpoint(tmp_path / "run", {"num_topics": 3, "seed": 0})
    with pytest.raises(ConfigError, match=r"num_topics is 4, was 3\)"):
        UnfinishedRun(tmp_path / "run", {"num_topics": 4, "seed": 0})
    assert leave_checkpoint(tmp_path / "run", {"num_topics": 3, "seed": 0}).started


def test_a_folder_with_foreign_files_is_refused(tmp_path):
    (tmp_path / "run.partial").mkdir()
    (tmp_path / "run.partial" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds mine.txt, which is no part"):
        UnfinishedRun(tmp_path / "run", {})
    assert (tmp_path / "run.partial" / "mine.txt").read_text() == "mine"


def test_two_fits_do_not_share_a_folder(tmp_path):
    pytest.importorskip("fcntl")
    with (
        UnfinishedRun(tmp_path / "run", {}),
        pytest.raises(ConfigError, match="another fit is writing"),
    ):
        UnfinishedRun(tmp_path / "run", {})
