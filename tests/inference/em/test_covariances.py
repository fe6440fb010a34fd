"""The random sample of documents whose covariances M-steps see."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.pairs import make_counts, make_model

import torch_lntm as lntm
from torch_lntm.guides import make_guide
from torch_lntm.inference.em.covariances import CovarianceSample
from torch_lntm.solvers.options import SolveOptions

OPTIONS = SolveOptions(tolerance=1e-6, max_iterations=100)


def solved(max_docs: int | None):
    guide = make_guide("taylor", make_model("ctm"))
    corpus = lntm.Corpus.from_matrix(make_counts((30, 1, 8, 60, 3, 12, 7, 5)))
    sample = CovarianceSample(guide, corpus, np.arange(8), 2, max_docs)
    return sample.sampled(corpus.batch(dtype=guide.model.dtype), OPTIONS, 1)


def test_moments_do_not_depend_on_the_documents_solved_at_once() -> None:
    (modes, whole), (_, parts) = solved(None), solved(1)
    assert bool(whole.covariance_sum().diagonal().gt(0).all())
    torch.testing.assert_close(parts.covariance_sum(), whole.covariance_sum())
    assert float(parts.objective()) == pytest.approx(float(whole.objective()), rel=1e-9)
    assert float(whole.objective()) != pytest.approx(float(modes.objective.sum()), rel=1e-3)


@pytest.mark.parametrize("num_docs", [3, 16, 20])
def test_the_sum_over_a_sample_is_scaled_to_all_documents(num_docs) -> None:
    """Of documents that are alike, a sample has the sum of all, whatever its offset."""
    model = lntm.models.ctm(3, 4, dtype="float64")
    guide = make_guide("taylor", model)
    corpus = lntm.Corpus.from_matrix(np.ones((num_docs, 4)))
    batch = corpus.batch(dtype=torch.float64)
    options = SolveOptions(tolerance=1e-9, max_iterations=50)
    expected = guide.solve(batch, options).outer_sum()
    sample = CovarianceSample(guide, corpus, np.arange(num_docs), 8)
    for offset in range(min(num_docs, 8)):
        _, moments = sample.sampled(batch, options, offset)
        torch.testing.assert_close(moments.outer_sum(), expected)
