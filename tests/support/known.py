"""Small models with known topics."""

from __future__ import annotations

import numpy as np
import torch

import torch_lntm as lntm

WORDS = ("ant", "bee", "cat", "dog")
TOPICS = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 0.3, 0.2]])
MIXING = torch.tensor([[3.0, 0.5], [1.0, 0.6], [2.0, 0.1]], dtype=torch.float64)


def make_model(**options):
    return lntm.models.ctm(3, 4, topics=TOPICS, **({"vocabulary": WORDS} | options))


def make_factor_model(source="gaussian", **options):
    settings = {
        "mixing": MIXING,
        "loc": torch.tensor([0.3, -0.2, 0.5]),
        "noise_precision": torch.tensor([1.0, 2.0, 4.0]),
        "topics": TOPICS,
        "vocabulary": WORDS,
        "dtype": "float64",
    }
    return lntm.models.iftm(3, 4, 2, source=source, **(settings | options))


def make_corpus():
    """Nine documents. The fifth document is empty."""
    counts = np.random.default_rng(0).poisson(2.0, (9, 4))
    counts[4] = 0
    return lntm.Corpus.from_matrix(counts, WORDS)
