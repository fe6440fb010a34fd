"""Pickles of models and estimators are read by the version that made them, and by no other."""

from __future__ import annotations

import copy
import copyreg
import io
import pickle

import numpy as np
import pytest
import torch

import torch_lntm as lntm
from torch_lntm import pickles
from torch_lntm.errors import ConfigError

COUNTS = np.random.default_rng(0).poisson(1.0, (12, 6))


def make_model():
    return lntm.models.ctm(3, 6, seed=1)


def make_estimator():
    return lntm.CorrelatedTopicModel(2, posterior="taylor", max_iter=1, random_state=0).fit(COUNTS)


MAKE = pytest.mark.parametrize("make", [make_model, make_estimator])


class FormerPickler(pickle.Pickler):
    """Pickles as Python does without advice, which names no version."""

    def reducer_override(self, value):
        if isinstance(value, pickles.VersionedPickle):
            return copyreg.__newobj__, (type(value),), value.__getstate__()
        return NotImplemented


@MAKE
@pytest.mark.parametrize(
    "clone", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_pickles_and_copies_restore_the_object(make, clone):
    made = make()
    found = clone(made)
    assert type(found) is type(made)
    assert vars(found).keys() == vars(made).keys()
    model, expected = (getattr(x, "model_", x) for x in (found, made))
    assert torch.equal(model.topics.probs, expected.topics.probs)
    assert copy.copy(found)  # a second time as well


@MAKE
def test_a_pickle_of_another_version_is_refused(make, monkeypatch):
    made = make()
    with monkeypatch.context() as patch:
        patch.setattr(pickles, "__version__", "9.8.7")
        data = pickle.dumps(made)
    name = type(made).__name__
    expected = rf"^this \w+ was pickled by torch_lntm 9\.8\.7, and this is {lntm.__version__}; .*$"
    with pytest.raises(ConfigError, match=expected) as error:
        pickle.loads(data)
    assert name in str(error.value)


@MAKE
def test_the_version_is_checked_before_the_content_is_read(make, monkeypatch):
    made = make()
    with monkeypatch.context() as patch:
        patch.setattr(pickles, "__version__", "9.8.7")
        data = pickle.dumps(made)
    unknown = data.replace(b"torch_lntm.models.topics", b"torch_lntm.models.no_such")
    assert unknown != data
    with pytest.raises(ConfigError, match=r"torch_lntm 9\.8\.7"):
        pickle.loads(unknown)


@MAKE
def test_a_pickle_without_a_version_is_refused(make):
    file = io.BytesIO()
    FormerPickler(file).dump(make())
    with pytest.raises(
        ConfigError,
        match=r"was pickled by torch_lntm before its pickles named a version, and this is",
    ):
        pickle.loads(file.getvalue())
