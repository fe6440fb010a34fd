"""Constructors of models by name, and the record of a model's construction."""

from __future__ import annotations

import copy
import pickle
import re

import numpy as np
import pytest
import torch

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.models import register
from torch_lntm.models.registry import CONSTRUCTORS, find_constructor


def make(num_topics, num_words, *, knob=1.0, dtype=torch.float32, vocabulary=None, **more):
    """A user model."""
    return lntm.models.ctm(num_topics, num_words, dtype=dtype, vocabulary=vocabulary)


def test_all_models_of_the_library_are_registered():
    assert list(CONSTRUCTORS) == ["ctm", "lntm", "iftm", "lda", "stm"]
    for name, constructor in CONSTRUCTORS.items():
        assert find_constructor(name) is constructor
        assert constructor is getattr(lntm.models, name)
        model = find_constructor(name)(num_topics=4, num_words=5)
        assert model.name == name
        assert model.construction.name == name


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_a_model_takes_sizes_and_words_from_a_corpus(name):
    corpus = lntm.Corpus.from_texts(["a cat", "a dog"] * 5, metadata={"kind": ["cat", "dog"] * 5})
    options = {"prevalence": "~ kind"} if name == "stm" else {}
    model = CONSTRUCTORS[name](2, corpus, **options)
    assert model.num_words == len(corpus.vocabulary)
    assert model.vocabulary == corpus.vocabulary
    again = find_constructor(name)(**model.config, vocabulary=model.vocabulary)
    assert again.config == model.config
    other = [word.upper() for word in corpus.vocabulary]
    assert CONSTRUCTORS[name](2, corpus, vocabulary=other, **options).vocabulary == tuple(other)


def test_a_user_model_takes_a_corpus_too():
    corpus = lntm.Corpus.from_texts(["cat tax", "dog tax"])

    @register("wordless")
    def wordless(num_topics, num_words):
        return lntm.models.ctm(num_topics, num_words)

    model = wordless(2, corpus)
    assert model.config == {"num_topics": 2, "num_words": corpus.num_words}
    assert model.vocabulary == corpus.vocabulary


def test_a_model_records_its_jsonable_arguments():
    options = {"vocabulary": "abcde", "dtype": torch.float64, "topics": torch.full((3, 5), 0.2)}
    model = lntm.models.lda(3, num_words=np.int64(5), concentration=(0.1, 0.2, 0.3), **options)
    expected = {"num_topics": 3, "num_words": 5, "concentration": [0.1, 0.2, 0.3]}
    expected |= {"symmetric": False, "learn_concentration": True, "topic_smoothing": 0.05}
    expected |= {"exclusive_keywords": True, "bursty": False, "dtype": "float64", "seed": 0}
    assert model.config == expected
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.construction == model.construction


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ctm", {"anchored": True, "bursty": True, "pseudo_variance": 2.0}),
        ("lntm", {"topic_scale": 3.0, "pseudo_documents": 0.0}),
        ("iftm", {"source": "gaussian", "bursty": True}),
        *(
            ("lda", {"symmetric": s, "learn_concentration": learn, "concentration": 2.0})
            for s in (False, True)
            for learn in (False, True)
        ),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_recorded_settings_rebuild_the_model(name, options, dtype, tmp_path):
    model = find_constructor(name)(num_topics=3, num_words=5, dtype=dtype, **options)
    state = model.state_dict()
    model.load_state_dict({n: x + 0.1 * (n != "prior.tril") for n, x in state.items()})
    twin = find_constructor(name)(**model.config)
    twin.load_state_dict(model.state_dict())
    for again in (twin, lntm.load_model(lntm.save_model(model, tmp_path / "model"))):
        assert again.config == model.config
        assert again.log_prior().item() == model.log_prior().item()
        assert dict(again.named_parameters()).keys() == dict(model.named_parameters()).keys()
        assert again.state_dict().keys() == model.state_dict().keys()
        for key, value in model.state_dict().items():
            assert torch.equal(again.state_dict()[key], value), key


def test_a_user_constructor_may_wrap_a_library_constructor():
    own = register("own")(make)
    assert own.__name__ == "make"
    model = own(3, 5, knob=np.float64(2.5), colour="red")
    assert model.name == "own"
    expected = {"num_topics": 3, "num_words": 5, "knob": 2.5, "dtype": "float32", "colour": "red"}
    assert model.config == expected
    assert make(3, 5).name == "ctm"
    # None is recorded, unless it is the default.
    sizes = {"num_topics": 3, "num_words": 5, "dtype": "float32"}
    assert own(3, 5, knob=None, vocabulary=None).config == sizes | {"knob": None}


def test_register_works_as_a_decorator_and_replaces_earlier_registrations():
    @register("mine")
    def mine(num_topics, num_words):
        return make(num_topics, num_words)

    assert CONSTRUCTORS["mine"] is mine
    again = register("mine")(make)  # as if a cell of a notebook ran twice
    assert CONSTRUCTORS["mine"] is again


@pytest.mark.parametrize(
    ("name", "constructor", "message"),
    [
        ("ctm", make, "model name 'ctm' is one of torch_lntm's own; choose another"),
        ("two words", make, "model name 'two words'; expected a word"),
        ("", make, "model name ''; expected a word"),
        ("own", lambda num_topics: None, "expected the arguments num_topics and num_words"),
        ("own", lambda num_topics, num_words, /: None, "and every argument by name"),
        ("own", lambda num_topics, num_words, *rest: None, "and every argument by name"),
    ],
)
def test_unsuitable_constructors_are_refused(name, constructor, message):
    before = dict(CONSTRUCTORS)
    with pytest.raises(ConfigError, match=message):
        register(name)(constructor)
    assert before == CONSTRUCTORS


def test_learned_arguments_reach_the_constructor_and_the_record():
    def learned(num_words, knob="none", **others):
        return {"num_words": len(num_words), "knob": f"{knob} of {len(num_words)}"}

    @register("learner", learn=learned)
    def learner(num_topics, num_words, *, knob="none"):
        assert knob == "half of 5"
        return make(num_topics, num_words)

    model = learner(3, "abcde", knob="half")
    assert model.num_words == 5
    assert model.config == {"num_topics": 3, "num_words": 5, "knob": "half of 5"}


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ctm", {"num_topics": 0}, "num_topics is 0; expected at least 1"),
        ("ctm", {"num_topics": 10**20}, "expected a whole number below 2**63"),
        ("ctm", {"num_topics": True}, "num_topics is True; expected a whole number"),
        ("ctm", {"num_words": None}, "num_words is None; expected a whole number"),
        ("ctm", {"seed": None}, "seed is None; expected a whole number"),
        ("ctm", {"dtype": torch.float16}, "expected float32 or float64"),
        ("ctm", {"loc": torch.zeros(2)}, "prior mean: got shape (2,); expected (3,)"),
        ("ctm", {"loc": torch.tensor([0, NAN, 0])}, "expected (3,) finite"),
        ("ctm", {"covariance": torch.eye(4)}, "got shape (4, 4); expected (3, 3)"),
        ("ctm", {"covariance": torch.eye(3) * INF}, "expected (3, 3) finite"),
        ("ctm", {"covariance": torch.ones(3, 3)}, "definite: its leading block of size 2"),
        ("ctm", {"covariance": torch.ones(3, 3).triu() + torch.eye(3)}, "not symmetric"),
        ("ctm", {"topic_smoothing": NAN}, "topic smoothing is nan"),
        ("ctm", {"pseudo_documents": -1.0}, "pseudo_documents=-1.0"),
        ("ctm", {"pseudo_variance": 0.0}, "pseudo_variance=0.0"),
        ("ctm", {"vocabulary": ["a", "b"]}, "the vocabulary has 2 words; expected 4"),
        (
            "iftm",
            {"num_sources": 3},
            "is 3; expected 1 to 2: 3 topics have 2 contrasts",
        ),
        ("iftm", {"num_sources": 0}, "num_sources is 0; expected 1 to 2"),
        ("iftm", {"source": "cauchy"}, "source is 'cauchy'; expected one of gaussian, laplace"),
        ("iftm", {"mixing": torch.ones(2, 4)}, "mixing: got shape (2, 4); expected (3, 2)"),
        ("iftm", {"mixing": torch.full((3, 2), NAN)}, "expected (3, 2) finite"),
        ("iftm", {"mixing": torch.eye(3, 2) * torch.tensor([1, 0])}, "column of source 1 is 0"),
        ("iftm", {"noise_precision": torch.tensor([1.0, 0, 1])}, "positive finite"),
        ("iftm", {"noise_precision": torch.tensor([1e39] * 3, dtype=torch.float64)}, "finite"),
        ("iftm", {"noise_precision": torch.ones(2)}, "noise_precision: got shape (2,)"),
        ("lda", {"concentration": 1e39}, "positive finite numbers"),
        ("lda", {"concentration": 0.0}, "positive finite numbers"),
        ("lda", {"concentration": NAN}, "positive finite numbers"),
        ("lda", {"concentration": torch.ones(2)}, "concentration: got shape (2,); expected"),
        ("lda", {"concentration": [1, 2, 3], "symmetric": True}, "different entries"),
        ("lntm", {"topic_scale": INF}, "topic scale is inf"),
        ("lntm", {"std": torch.ones(2)}, "prior std: got shape (2,)"),
        ("lntm", {"std": torch.tensor([1.0, 0.0, 1.0])}, "positive finite"),
    ],
)
def test_invalid_arguments_are_refused(name, options, message):
    sizes = {"num_topics": 3, "num_words": 4} | ({"num_sources": 2} if name == "iftm" else {})
    with pytest.raises(ConfigError, match=re.escape(message)):
        CONSTRUCTORS[name](**sizes | options)


@pytest.mark.parametrize("number", [0.0, -1.0, NAN, INF, torch.tensor([2.0, 3.0])])
def test_a_concentration_of_words_must_be_a_positive_number(number):
    with pytest.raises(ConfigError, match=r"concentration is .*; expected one positive number"):
        lntm.models.DirichletMultinomial(number)
