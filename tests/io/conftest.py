"""A small corpus, and a run over its words."""

from __future__ import annotations

import numpy as np
import pytest
from support.folders import WORDS, make_model, make_result

import torch_lntm as lntm
from torch_lntm.io import save_run


@pytest.fixture
def corpus():
    counts = np.random.default_rng(0).poisson(2.0, (8, len(WORDS)))
    return lntm.Corpus.from_matrix(counts, WORDS, name="tiny")


@pytest.fixture
def folder(tmp_path):
    return save_run(tmp_path / "run", make_model(), make_result(), {"num_topics": 3})
