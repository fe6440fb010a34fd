"""Model and run folders: they come back as they were saved, and say what is wrong with them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.inference import FitResult
from torch_lntm.io import UnfinishedRun, load_model, load_run, save_model, save_run

WORDS = ("alpha", "beta", "γάμμα", "two words", "#")


def make_model(**options):
    options = {"vocabulary": WORDS, "seed": 3} | options
    return lntm.models.ctm(3, len(WORDS), **options)


def make_factor_model(**options):
    options = {"vocabulary": WORDS, "seed": 3} | options
    return lntm.models.iftm(4, len(WORDS), 2, **options)


def make_aspect_model(**options):
    options = {"vocabulary": WORDS, "seed": 3} | options
    return lntm.models.lda(3, len(WORDS), **options)


def make_result(**changes):
    history = [{"phase": "em", "iteration": 1, "objective": -1.5, "seconds": 0.1, "unconverged": 0}]
    result = FitResult(history, "converged", 0, torch.zeros(4, 3), "some objective", 0.25)
    return replace(result, **changes)


@pytest.fixture
def corpus():
    counts = np.random.default_rng(0).poisson(2.0, (8, len(WORDS)))
    return lntm.Corpus.from_matrix(counts, WORDS, name="tiny")


@pytest.fixture
def folder(tmp_path):
    return save_run(tmp_path / "run", make_model(), make_result(), {"num_topics": 3})


@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("vocabulary", [WORDS, None])
def test_a_model_comes_back_as_it_was(tmp_path, anchored, dtype, vocabulary):
    model = make_model(anchored=anchored, dtype=dtype, vocabulary=vocabulary, topic_smoothing=0.3)
    dim = model.latent_dim
    model.prior.set_(loc=torch.arange(float(dim)), covariance=0.5 * torch.eye(dim) + 0.2)
    assert save_model(tmp_path / "model", model) == tmp_path / "model"
    loaded = load_model(tmp_path / "model")
    assert loaded.config == model.config
    assert loaded.vocabulary == vocabulary
    expected = model.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    for name, tensor in loaded.state_dict().items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor, expected[name])
    assert (tmp_path / "model" / "vocabulary.txt").exists() == (vocabulary is not None)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (make_factor_model, {"source": "gaussian", "pseudo_documents": 3.0}),
        (make_factor_model, {"source": "laplace", "pseudo_variance": 0.5, "dtype": "float64"}),
        (make_aspect_model, {"symmetric": False}),
        (make_aspect_model, {"symmetric": True, "dtype": "float64"}),
        (make_aspect_model, {"learn_concentration": False}),
    ],
)
def test_other_models_come_back_as_they_were(tmp_path, make, settings):
    model = make(**settings)
    if model.name == "iftm":
        model.prior.set_(loc=torch.arange(4.0), noise_precision=torch.arange(1.0, 5.0))
    else:
        values = [0.7] * 3 if settings.get("symmetric") else [0.3, 0.7, 2.0]
        model.prior.set_(torch.tensor(values))
    loaded = load_model(save_model(tmp_path / "model", model))
    assert json.loads((tmp_path / "model" / "model.json").read_text())["kind"] == model.name
    assert loaded.config == model.config
    assert loaded.config | settings == loaded.config
    expected = model.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    for name, tensor in loaded.state_dict().items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor, expected[name])
    assert [name for name, _ in loaded.named_parameters()] == [
        name for name, _ in model.named_parameters()
    ]
    # The density is the same too, whatever of it the tensors do not hold.
    _, latents = model.generate([3, 5], seed=1)
    assert torch.equal(loaded.prior.log_prob(latents), model.prior.log_prob(latents))
    assert torch.equal(loaded.log_prior(), model.log_prior())


def test_a_run_comes_back_as_it_was(tmp_path, corpus):
    split = corpus.split(0.25, seed=1)
    result = make_result(stop_reason="interrupted", num_unconverged=2)
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
    assert run.metadata["versions"]["torch"] == torch.__version__
    assert run.model.vocabulary == WORDS
    again = run.split(corpus)
    assert again.test_index.tolist() == split.test_index.tolist()


def test_a_run_without_a_split_has_none(folder, corpus):
    assert load_run(folder).split(corpus) is None


def test_a_history_may_hold_what_is_no_number(tmp_path):
    history = [{"objective": float("-inf")}, {"objective": float("nan")}]
    path = save_run(tmp_path / "run", make_model(), make_result(history=history), {})
    first, second = load_run(path).history
    assert first["objective"] == float("-inf")
    assert second["objective"] != second["objective"]


def test_nothing_that_executes_is_written(folder):
    suffixes = {path.suffix for path in folder.iterdir()}
    assert suffixes == {".json", ".jsonl", ".safetensors", ".txt"}


def test_a_run_is_not_replaced_unless_asked_to(folder):
    before = (folder / "metadata.json").read_bytes()
    with pytest.raises(ConfigError, match="exists already"):
        save_run(folder, make_model(), make_result(), {})
    assert (folder / "metadata.json").read_bytes() == before
    save_run(folder, make_model(), make_result(seconds=9.0), {}, overwrite=True)
    assert load_run(folder).metadata["seconds"] == 9.0
    assert [path.name for path in folder.parent.iterdir()] == ["run"]


def test_what_is_no_run_is_never_replaced(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="not a run folder"):
        save_model(tmp_path / "thesis", make_model(), overwrite=True)
    with pytest.raises(ConfigError, match="not a run folder"):
        save_model(tmp_path / "thesis" / "chapter.txt", make_model(), overwrite=True)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"


@pytest.mark.parametrize("existing", [False, True])
def test_a_failure_leaves_no_half_written_folder(tmp_path, existing):
    target = tmp_path / "run"
    if existing:
        save_run(target, make_model(), make_result(), {"old": True})
    with pytest.raises(TypeError):
        save_run(target, make_model(), make_result(), {"bad": object()}, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == (["run"] if existing else [])
    if existing:
        assert load_run(target).config == {"old": True}


# -------------------------------------------------------------------- damaged folders


def edit_json(path, **changes):
    value = json.loads(path.read_text())
    for key, change in changes.items():
        if change is None:
            del value[key]
        else:
            value[key] = change
    path.write_text(json.dumps(value))


def edit_settings(path, **changes):
    settings = json.loads(path.read_text())["config"] | changes
    edit_json(path, config=settings)


def edit_tensors(path, **changes):
    tensors = safetensors.torch.load_file(path)
    for name, change in changes.items():
        name = name.replace("__", ".")
        if change is None:
            del tensors[name]
        else:
            tensors[name] = change
    safetensors.torch.save_file(tensors, path)


@pytest.mark.parametrize(
    "name",
    [
        *("model.json", "model.safetensors", "vocabulary.txt"),
        *("config.json", "metadata.json", "history.jsonl"),
    ],
)
@pytest.mark.parametrize("damage", ["missing", "cut", "garbage", "folder"])
def test_a_damaged_file_is_named(folder, name, damage):
    path = folder / name
    data = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(data[: len(data) - 7])
    elif damage == "garbage":
        path.write_bytes(b"\xff\xfe\x00garbage")
    elif damage == "folder":
        path.mkdir()
    with pytest.raises(ConfigError, match=name):
        load_run(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "format_version is 2"),
        ({"format_version": None}, "format_version is None"),
        ({"kind": "lsa"}, "model kind 'lsa'; expected ctm, lntm, iftm, lda"),
        ({"kind": "lda"}, "unusable settings"),
        ({"kind": ["ctm"]}, "model kind"),
        ({"config": None}, "lacks 'config'"),
        ({"config": [3]}, "lacks 'config'"),
        ({"vocabulary": None}, "lacks 'config' or 'vocabulary'"),
    ],
)
def test_a_model_file_must_say_what_it_is(folder, changes, message):
    edit_json(folder / "model.json", **changes)
    with pytest.raises(ConfigError, match=rf"model\.json: .*{message}"):
        load_model(folder)


@pytest.mark.parametrize(
    ("changes", "file"),
    [
        ({"num_topics": 4}, "model.safetensors"),
        ({"num_words": 10**12}, "model.safetensors"),
        ({"num_topics": "3"}, "model.safetensors"),
        ({"anchored": True}, "model.safetensors"),
        ({"dtype": "float64"}, "model.safetensors"),
        ({"dtype": "float16"}, "model.json"),
        ({"topic_smoothing": -1.0}, "model.json"),
        ({"colour": "red"}, "model.json"),
    ],
)
def test_settings_must_fit_the_parameters(folder, changes, file):
    edit_settings(folder / "model.json", **changes)
    with pytest.raises(ConfigError, match=file):
        load_model(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prior__loc": None}, "prior.loc is missing"),
        ({"topics__logits": None}, "topics.logits is missing"),
        ({"topics__logits": torch.zeros(3, 5)}, "topics.logits is"),
        ({"prior__loc": torch.zeros(4)}, r"prior.loc is \(4,\)"),
        ({"prior__loc": torch.zeros(3).double()}, "torch.float64; expected"),
        ({"prior__loc": torch.tensor([0.0, float("nan"), 0.0])}, "NaN or infinity"),
        ({"extra": torch.zeros(1)}, "extra is not a parameter"),
    ],
)
def test_parameters_must_be_the_models(folder, changes, message):
    edit_tensors(folder / "model.safetensors", **changes)
    with pytest.raises(ConfigError, match=rf"model\.safetensors: .*{message}"):
        load_model(folder)


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (make_factor_model, {"num_sources": 1}, r"prior\.mixing is \(4, 2\).*expected \(4, 1\)"),
        (
            make_factor_model,
            {"num_sources": 10**12},
            r"model\.json: .*num_sources is 1000000000000",
        ),
        (make_factor_model, {"num_sources": 0}, r"model\.json: .*num_sources is 0"),
        (make_factor_model, {"num_sources": "2"}, r"model\.json: unusable settings"),
        (make_factor_model, {"num_sources": 2.0}, r"model\.json: unusable settings"),
        (make_factor_model, {"num_topics": 10**12}, r"model\.safetensors: topics\.logits is"),
        (make_factor_model, {"source": "cauchy"}, r"model\.json: .*source 'cauchy'"),
        (make_factor_model, {"anchored": True}, r"model\.json: unusable settings"),
        (make_aspect_model, {"symmetric": True}, r"prior\.log_concentration is \(3,\)"),
        (make_aspect_model, {"num_topics": 4}, r"model\.safetensors: topics\.logits is"),
        (make_aspect_model, {"concentration": [1, 1]}, r"model\.json: .*concentration of shape"),
        (make_aspect_model, {"num_sources": 2}, r"model\.json: unusable settings"),
    ],
)
def test_settings_of_other_models_must_fit_the_parameters(tmp_path, make, changes, message):
    folder = save_model(tmp_path / "model", make())
    edit_settings(folder / "model.json", **changes)
    with pytest.raises(ConfigError, match=message):
        load_model(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prior__mixing": None}, "prior.mixing is missing"),
        ({"prior__mixing": torch.zeros(4, 3)}, r"prior.mixing is \(4, 3\).*expected \(4, 2\)"),
        ({"prior__log_noise_precision": torch.zeros(3)}, r"prior.log_noise_precision is \(3,\)"),
        ({"prior__mixing": torch.full((4, 2), float("inf"))}, "prior.mixing holds NaN or inf"),
        ({"prior__unconstrained_tril": torch.zeros(4, 4)}, "is not a parameter of this model"),
    ],
)
def test_parameters_of_a_factor_model_must_be_its_own(tmp_path, changes, message):
    folder = save_model(tmp_path / "model", make_factor_model())
    edit_tensors(folder / "model.safetensors", **changes)
    with pytest.raises(ConfigError, match=rf"model\.safetensors: .*{message}"):
        load_model(folder)


@pytest.mark.parametrize("words", [WORDS[:4], (*WORDS, "more"), ("a", "b", "a", "c", "d")])
def test_the_vocabulary_must_fit(folder, words):
    (folder / "vocabulary.txt").write_text("".join(f"{word}\n" for word in words))
    with pytest.raises(ConfigError, match=r"vocabulary\.txt"):
        load_model(folder)


def test_no_folder(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        load_run(tmp_path / "nowhere")


# -------------------------------------------------------------------- unfinished runs


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


def test_another_configuration_does_not_continue_it(tmp_path):
    leave_checkpoint(tmp_path / "run", {"num_topics": 3, "seed": 0})
    with pytest.raises(ConfigError, match=r"num_topics is 4, was 3\)"):
        UnfinishedRun(tmp_path / "run", {"num_topics": 4, "seed": 0})
    assert leave_checkpoint(tmp_path / "run", {"num_topics": 3, "seed": 0}).started


def test_two_fits_do_not_share_a_folder(tmp_path):
    pytest.importorskip("fcntl")
    with (
        UnfinishedRun(tmp_path / "run", {}),
        pytest.raises(ConfigError, match="another fit is writing"),
    ):
        UnfinishedRun(tmp_path / "run", {})


def test_the_newest_unfinished_run_of_a_configuration_is_found(tmp_path):
    pytest.importorskip("fcntl")
    for name, config in (
        ("a-1", {"k": 1}),
        ("a-2", {"k": 1}),
        ("a-3", {"k": 2}),
        ("b-4", {"k": 1}),
    ):
        leave_checkpoint(tmp_path / name, config)
    assert UnfinishedRun.find(tmp_path, "a-", {"k": 1}) == tmp_path / "a-2"
    assert UnfinishedRun.find(tmp_path, "a-", {"k": 3}) is None
    with UnfinishedRun(tmp_path / "a-2", {"k": 1}):
        assert UnfinishedRun.find(tmp_path, "a-", {"k": 1}) == tmp_path / "a-1"
    (tmp_path / "a-2.partial" / "config.json").write_text("{")
    assert UnfinishedRun.find(tmp_path, "a-", {"k": 1}) == tmp_path / "a-1"
