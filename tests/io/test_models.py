"""Models come back from their folders as they were, or are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support.folders import (
    WORDS,
    edit_json,
    edit_settings,
    edit_tensors,
    make_aspect_model,
    make_factor_model,
    make_model,
    make_result,
)

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.io import load_model, save_model, save_run
from torch_lntm.models import register
from torch_lntm.models.registry import CONSTRUCTORS, find_constructor


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (make_model, {"topic_smoothing": 0.3}),
        (make_model, {"anchored": True, "dtype": "float64", "vocabulary": None}),
        (make_factor_model, {"source": "laplace", "pseudo_variance": 0.5, "dtype": "float64"}),
        (make_aspect_model, {"symmetric": True, "dtype": "float64"}),
        (make_aspect_model, {"learn_concentration": False, "vocabulary": None}),
    ],
)
def test_a_saved_model_is_loaded_unchanged(tmp_path, make, settings):
    model = make(**settings)
    if model.name == "iftm":
        model.prior.set_(loc=torch.arange(4.0), noise_precision=torch.arange(1.0, 5.0))
    elif model.name == "lda":
        model.prior.set_(torch.tensor([0.7] * 3 if settings.get("symmetric") else [0.3, 0.7, 2.0]))
    else:
        dim = model.latent_dim
        model.prior.set_(loc=torch.arange(float(dim)), covariance=0.5 * torch.eye(dim) + 0.2)
    assert save_model(model, tmp_path / "model") == tmp_path / "model"
    loaded = load_model(tmp_path / "model")
    assert loaded.name == model.name
    assert loaded.config == model.config
    vocabulary = settings.get("vocabulary", WORDS)
    assert loaded.vocabulary == vocabulary
    assert (tmp_path / "model" / "vocabulary.txt").exists() == (vocabulary is not None)
    expected = model.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    for name, tensor in loaded.state_dict().items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor, expected[name])
    assert [n for n, _ in loaded.named_parameters()] == [n for n, _ in model.named_parameters()]
    # The density is the same too, whatever of it the tensors do not hold.
    corpus, _ = model.generate([3, 5], seed=1)
    target, again = (m.bind(corpus.batch(), dtype=torch.float64) for m in (model, loaded))
    z = torch.linspace(-1, 1, 2 * target.space.dim, dtype=torch.float64).reshape(2, -1)
    for ours, theirs in zip(target.log_joint(z), again.log_joint(z), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(loaded.log_prior(), model.log_prior())


def test_only_folders_of_models_and_runs_are_replaced(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="not a run folder"):
        save_model(make_model(), tmp_path / "thesis", overwrite=True)
    with pytest.raises(ConfigError, match="not a run folder"):
        save_model(make_model(), tmp_path / "thesis" / "chapter.txt", overwrite=True)
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    "changes", [{"format_version": 2}, {"kind": "lsa"}, {"kind": ["ctm"]}, {"config": None}]
)
def test_model_json_needs_version_kind_and_settings(folder, changes):
    edit_json(folder / "model.json", **changes)
    with pytest.raises(ConfigError, match=r"model\.json: "):
        load_model(folder)


@pytest.mark.parametrize(
    ("make", "changes", "file"),
    [
        (make_model, {"num_topics": 4}, "safetensors"),
        (make_model, {"num_words": 10**8}, "json: .* topics and words are impossible"),
        (make_model, {"num_topics": 10**8}, "json: .* topics and words are impossible"),
        (make_model, {"dtype": "float64"}, "safetensors"),
        (make_model, {"topic_smoothing": -1.0}, "json"),
        (make_model, {"colour": "red"}, "json"),
        (make_factor_model, {"num_sources": 1}, "safetensors"),
        (make_aspect_model, {"concentration": [1, 1]}, "json"),
    ],
)
def test_settings_that_contradict_the_parameters_are_refused(tmp_path, make, changes, file):
    folder = save_model(make(), tmp_path / "model")
    edit_settings(folder / "model.json", **changes)
    with pytest.raises(ConfigError, match=rf"model\.{file}"):
        load_model(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prior__loc": None}, "prior.loc"),
        ({"topics__logits": torch.zeros(3, 5)}, "topics.logits"),
        ({"prior__loc": torch.zeros(4)}, "prior.loc"),
        ({"prior__loc": torch.zeros(3).double()}, "prior.loc of torch.float64"),
        ({"prior__loc": torch.tensor([0.0, float("nan"), 0.0])}, "prior.loc .* holds NaN"),
        ({"extra": torch.zeros(1)}, "extra"),
    ],
)
def test_wrong_parameters_are_refused(folder, changes, message):
    edit_tensors(folder / "model.safetensors", **changes)
    with pytest.raises(ConfigError, match=rf"(?s)model\.safetensors: .*{message}"):
        load_model(folder)


@pytest.mark.parametrize("words", ["abcd", "abcdef", "abacd"])
def test_a_vocabulary_of_another_size_is_refused(folder, words):
    edit_json(folder / "model.json", checksums=None)
    (folder / "vocabulary.txt").write_text("".join(f"{word}\n" for word in words))
    with pytest.raises(ConfigError, match=r"vocabulary\.txt"):
        load_model(folder)


FORMAT_1 = Path(__file__).parent / "format_1"
EXPECTED = json.loads((FORMAT_1 / "expected.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("folder", EXPECTED)
def test_models_of_the_first_format_are_read(folder):
    """Folders that version 0.1.0 wrote, with what it said of the models."""
    model, expected = load_model(FORMAT_1 / folder), EXPECTED[folder]
    assert model.name == expected["name"]
    assert model.num_topics == expected["num_topics"]
    assert str(model.dtype) == f"torch.{expected['dtype']}"
    assert model.vocabulary == (tuple(expected["vocabulary"]) if expected["vocabulary"] else None)
    close = {"rtol": 1e-6, "atol": 1e-7}
    found = model.topics.probs.detach().numpy()
    np.testing.assert_allclose(found, expected["topics"], **close)
    prior = model.prior
    concentration = getattr(prior, "concentration", None)
    mean = prior.loc if concentration is None else concentration / concentration.sum()
    np.testing.assert_allclose(mean.detach().numpy(), expected["mean"], **close)
    covariance = prior.contrast_covariance().detach().numpy()
    np.testing.assert_allclose(covariance, expected["contrast_covariance"], **close)
    assert float(model.log_prior().detach()) == pytest.approx(expected["log_prior"], rel=1e-5)


def test_exchanged_words_and_flipped_bits_are_refused_with_the_path(folder):
    """Any word is a word, and any finite number a parameter: only checksums tell."""
    words, tensors = folder / "vocabulary.txt", folder / "model.safetensors"
    lines, data = words.read_text().splitlines(), bytearray(tensors.read_bytes())
    for changed in ([lines[1], lines[0], *lines[2:]], [lines[0] + "e", *lines[1:]]):
        words.write_text("\n".join(changed) + "\n")
        with pytest.raises(ConfigError, match=r"run/vocabulary\.txt: is damaged, or of another"):
            load_model(folder)
    words.write_text("\n".join(lines) + "\n")
    load_model(folder)
    data[-1] ^= 1
    tensors.write_bytes(bytes(data))
    with pytest.raises(ConfigError, match=r"run/model\.safetensors: is damaged, .*its checksum"):
        load_model(folder)


# -------------------------------------------------------------------- models of one's own


@pytest.fixture
def own_names():
    """Names registered in a test are forgotten after it."""
    before = dict(CONSTRUCTORS)
    yield
    CONSTRUCTORS.clear()
    CONSTRUCTORS.update(before)


class ScaledPrior(lntm.models.priors.logistic_normal.DiagonalNormalPrior):
    """A prior that is not the library's, with a parameter and a buffer more."""

    def __init__(self, num_topics, scale=1.0):
        super().__init__(num_topics)
        self.extra = torch.nn.Parameter(torch.full((2,), scale))
        self.register_buffer("design", torch.zeros(3))


def make_own(num_topics, num_words, *, scale=1.0, loc=None, shape=(1, 2), vocabulary=None):
    prior = ScaledPrior(num_topics, scale)
    if loc is not None:
        prior.loc.data.copy_(loc)
    return lntm.models.TopicModel(
        prior, lntm.models.DirichletTopics(num_topics, num_words), vocabulary
    )


def test_a_registered_model_is_loaded_unchanged(tmp_path, own_names):
    register("own")(make_own)
    model = find_constructor("own")(num_topics=3, num_words=5, scale=2.0, loc=torch.arange(3.0))
    model.prior.design.fill_(7.0)
    model.vocabulary = WORDS
    path = save_model(model, tmp_path / "own")
    found = load_model(path)
    assert type(found.prior) is ScaledPrior
    assert found.name == "own"
    assert found.vocabulary == WORDS
    assert found.config == model.config
    assert found.config == {"num_topics": 3, "num_words": 5, "scale": 2.0, "shape": [1, 2]}
    for name, tensor in model.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor)
    CONSTRUCTORS.pop("own")
    with pytest.raises(ConfigError, match=r"model 'own'; .* after lntm\.models\.register\(name"):
        load_model(path)


def test_models_that_could_not_be_loaded_are_refused_before_writing(tmp_path):
    model = make_own(3, 5)
    with pytest.raises(ConfigError, match=r"lntm\.models\.register\('mine'\)\(mine\)"):
        save_model(model, tmp_path / "model")
    with pytest.raises(ConfigError, match=r"lntm\.models\.register"):
        save_run(tmp_path / "run", model, make_result(), {})
    assert list(tmp_path.iterdir()) == []


def changed_topics():
    model = make_model()
    model.topics = lntm.models.topics.normal.NormalTopics(3, 5)
    return model


def of_more_words():
    model = make_model()
    model.topics = lntm.models.DirichletTopics(3, 7)
    return model


def unlike_its_class():
    """The parameters of the model's own prior, read in another way."""
    model = make_model()
    model.prior.__class__ = type("Other", (type(model.prior),), {})
    return model


def of_a_tensor():
    @register("needs-tensor")
    def needs_tensor(num_topics, num_words, loc):
        return make_own(num_topics, num_words, loc=loc)

    return needs_tensor(3, 5, torch.zeros(3))


def of_broken_words():
    return make_model(vocabulary=("a", "b", "\ud800", "c", "d"))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (changed_topics, "topics is NormalTopics, not DirichletTopics"),
        (of_more_words, "size mismatch"),
        (unlike_its_class, "prior is Other, not LogisticNormalPrior"),
        (of_a_tensor, "missing.*'loc'"),
        (of_broken_words, "can't encode character"),
    ],
)
def test_a_model_that_would_come_back_as_another_is_refused(tmp_path, own_names, make, reason):
    with pytest.raises(ConfigError, match=f"(?s)cannot be made again .*{reason}"):
        save_model(make(), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
