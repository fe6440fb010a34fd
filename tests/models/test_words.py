"""Likelihoods of words: refused arguments, single tokens, and bound densities."""

from __future__ import annotations

import pytest
import torch

from torch_lntm.corpus import Corpus
from torch_lntm.kernels.likelihood import CellRows, CountLikelihood
from torch_lntm.latents.metrics import Metric
from torch_lntm.models import DirichletMultinomial, ctm
from torch_lntm.sampling import hmc


class Repeats(DirichletMultinomial):
    """Repeated words with the default likelihood of single tokens."""

    for_single_tokens = CountLikelihood.for_single_tokens


@pytest.mark.parametrize("kind", [Repeats, DirichletMultinomial])
def test_single_tokens_have_the_likelihood_of_one_token_documents(kind) -> None:
    words, counts = kind(3.0, dtype=torch.float64), torch.tensor([2.0, 1.0, 4.0])
    s = torch.tensor([0.2, 0.5, 0.01], dtype=torch.float64)
    cells = CellRows(counts.double(), torch.arange(3))
    each = words.for_single_tokens()
    # A document's only token is an independent draw.
    torch.testing.assert_close(each.log_terms(s, cells).detach(), counts * s.log())
    step = 1e-6
    slope = (each.log_terms(s * (1 + step), cells) - each.log_terms(s, cells)) / step
    torch.testing.assert_close(each.tokens(s, cells), slope.detach(), rtol=1e-5, atol=1e-5)


def test_a_bound_density_keeps_its_concentration() -> None:
    model = ctm(2, 3, bursty=True, dtype="float64")
    batch = Corpus.from_matrix([[3, 0, 1], [0, 2, 2]]).batch(dtype=torch.float64)
    target = model.bind(batch)
    z = torch.zeros(2, target.dim, dtype=torch.float64)
    before = target.log_joint(z)[1]
    with torch.no_grad():
        model.words.log_concentration.fill_(0.0)
    assert torch.equal(target.log_joint(z)[1], before)
    assert not torch.equal(model.bind(batch).log_joint(z)[1], before)


def test_fused_transitions_need_independent_draws() -> None:
    batch = Corpus.from_matrix([[3, 0, 1], [0, 2, 2]]).batch(dtype=torch.float64)
    plain, bursty = (ctm(2, 3, bursty=b, dtype="float64").bind(batch) for b in (False, True))
    assert hmc._suits_triton(plain, Metric())
    assert not hmc._suits_triton(bursty, Metric())
