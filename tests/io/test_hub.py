"""Models and codebooks come back from repositories of the Hub, which a folder stands in for."""

from __future__ import annotations

import fnmatch
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from support.folders import make_model

import torch_lntm as lntm

hub = pytest.importorskip("huggingface_hub")
MODEL_FILES = {"README.md", "config.json", "model.json", "model.safetensors", "vocabulary.txt"}
load = lntm.models.TopicModel.from_pretrained


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """The calls of the Hub's interface, whose repositories are folders."""
    calls, remote, local = [], tmp_path / "remote", tmp_path / "local"

    class Api:
        def __init__(self, token=None):
            calls.append(("token", token))

        def create_repo(self, repo_id, private, exist_ok):
            calls.append(("create", repo_id, private, exist_ok))
            return type("Url", (), {"repo_id": repo_id})

        def upload_folder(self, repo_id, folder_path, revision, **options):
            calls.append(("upload", repo_id, revision, options["commit_message"]))
            shutil.copytree(folder_path, remote / repo_id, dirs_exist_ok=True)
            return f"https://hub/{repo_id}/commit/1"

    def download(repo_id, filename, **options):
        return str(remote / repo_id / filename)

    def snapshot(repo_id, allow_patterns, **options):
        calls.append(("download", repo_id, options))
        for file in (remote / repo_id).iterdir():
            if any(fnmatch.fnmatch(file.name, pattern) for pattern in allow_patterns):
                (local / repo_id).mkdir(parents=True, exist_ok=True)
                shutil.copy(file, local / repo_id)
        return str(local / repo_id)

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Api)
    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", download)
    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    return calls


def test_a_model_comes_back_and_options_pass_through(calls, tmp_path):
    model = make_model()
    options = {"private": True, "token": "t", "branch": "draft", "commit_message": "first"}
    assert model.push_to_hub("me/news", **options) == "https://hub/me/news/commit/1"
    assert calls == [
        ("token", "t"),
        ("create", "me/news", True, True),
        ("upload", "me/news", "draft", "first"),
    ]
    remote = tmp_path / "remote" / "me" / "news"
    assert {file.name for file in remote.iterdir()} == MODEL_FILES
    (remote / "evil.py").write_text("1 / 0")
    (remote / "config.json").write_text('{"local_dir": "elsewhere", "name": "other"}')
    back = load("me/news", revision="abc", token="t")
    given = {"revision": "abc", "token": "t", "cache_dir": None}
    given |= {"force_download": False, "local_files_only": False}
    assert calls[-1] == ("download", "me/news", given)
    files = {file.name for file in (tmp_path / "local" / "me" / "news").iterdir()}
    assert files == {"model.json", "model.safetensors", "vocabulary.txt"}
    assert (back.vocabulary, back.topic_names) == (model.vocabulary, model.topic_names)
    assert all(map(torch.equal, back.state_dict().values(), model.state_dict().values()))


def test_what_was_downloaded_loads_without_a_network(calls, tmp_path, monkeypatch):
    make_model().push_to_hub("me/news")
    monkeypatch.undo()  # the library's own functions, on a cache as it lays it out
    cache, commit = tmp_path / "cache" / "models--me--news", "0" * 40
    shutil.copytree(tmp_path / "remote" / "me" / "news", cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    back = load("me/news", cache_dir=tmp_path / "cache", local_files_only=True)
    assert back.vocabulary == make_model().vocabulary


def test_the_card_is_the_models_own_with_the_metadata_of_the_hub(calls, tmp_path):
    make_model().push_to_hub("me/news")
    remote = tmp_path / "remote" / "me" / "news"
    card = hub.ModelCard.load(remote / "README.md")
    assert card.data.library_name == "torch_lntm"
    assert set(card.data.tags) == {"topic-model", "model_hub_mixin"}
    own = lntm.save_model(make_model(), tmp_path / "model") / "README.md"
    assert card.text.strip() == own.read_text().strip()
    about = json.loads((remote / "config.json").read_text())
    assert about == {"library_name": "torch_lntm", "model_type": make_model().name}


def test_a_codebook_comes_back_with_its_hash(calls, tmp_path):
    book = lntm.codebook(make_model(), names={1: "sport"}, decisions=["1 is sport"])
    book.push_to_hub("me/book")
    remote = tmp_path / "remote" / "me" / "book"
    files = {file.name for file in remote.iterdir()}
    assert files == {"README.md", "config.json", "codebook.safetensors"}
    assert "lntm.Codebook.from_pretrained" in (remote / "README.md").read_text()
    back = lntm.Codebook.from_pretrained("me/book")
    assert (back.hash, back.decisions) == (book.hash, book.decisions)
    assert lntm.Codebook.from_pretrained(remote).hash == book.hash


def test_folders_need_no_library_and_repositories_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    folder = lntm.save_model(make_model(), tmp_path / "model")
    assert load(folder).num_topics == load(str(folder)).num_topics == 3
    for call in (load, make_model().push_to_hub, lntm.Codebook.from_pretrained):
        with pytest.raises(lntm.ConfigError, match=r"Hub needs huggingface_hub.*torch-lntm\[files"):
            call("me/news")
    assert not list(Path(tmp_path).glob("me*"))


def test_damaged_files_are_refused(calls, tmp_path):
    make_model().push_to_hub("me/news")
    (tmp_path / "remote" / "me" / "news" / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(lntm.ConfigError, match=r"model.safetensors: is damaged"):
        load("me/news")
