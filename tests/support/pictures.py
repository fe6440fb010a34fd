"""Models for tests of pictures."""

from __future__ import annotations

import numpy as np
import torch

import torch_lntm as lntm

WORDS = tuple(f"word{v:02}" for v in range(40))


def make_model(num_topics=6, **options):
    model = lntm.models.ctm(num_topics, len(WORDS), vocabulary=WORDS, **options)
    factor = torch.randn(
        num_topics, num_topics, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    model.prior.set_(covariance=factor @ factor.mT + 0.1 * torch.eye(num_topics))
    return model


def make_factor_model(num_topics=6, num_sources=2, words=WORDS, **options):
    mixing = torch.randn(
        num_topics, num_sources, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    return lntm.models.iftm(
        num_topics, len(words), num_sources, mixing=mixing, vocabulary=words, **options
    )


def small_corpus():
    return lntm.Corpus.from_matrix(np.random.default_rng(0).poisson(1.0, (3, len(WORDS))))
