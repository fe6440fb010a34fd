"""Permutation tests: a column with an effect, and one without."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import torch_lntm as lntm
from torch_lntm.corpus import Corpus
from torch_lntm.effects import permutation_test
from torch_lntm.errors import ConfigError
from torch_lntm.guides import TaylorGuide
from torch_lntm.inference import VariationalEM

TOPICS = torch.tensor([[0.3, 0.3, 0.3, 0.05, 0.05], [0.05, 0.05, 0.3, 0.3, 0.3]])


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    rng = np.random.default_rng(0)
    party = rng.permutation(np.repeat(["Left", "Right"], 30))
    share = np.where(party == "Left", 0.8, 0.2)[:, None]
    probs = share * TOPICS[0].numpy() + (1 - share) * TOPICS[1].numpy()
    counts = np.stack([rng.multinomial(30, p / p.sum()) for p in probs.astype(float)])
    metadata = {"party": party, "sign": rng.permutation(np.repeat(["a", "b", "c"], 20))}
    return Corpus.from_matrix(counts, metadata=metadata)


def fit_to(corpus: Corpus):
    """A fit that starts from the topics, so that a test is fast."""
    model = lntm.models.stm(2, corpus, "~ party + sign", topics=TOPICS)
    guide = TaylorGuide(model)
    VariationalEM(model, guide, start="model", max_iterations=3, progress=False).fit(corpus)
    return model, guide


@pytest.mark.long
def test_only_a_column_with_an_effect_has_large_statistics(corpus) -> None:
    options = {"num_permutations": 9, "num_draws": 5}
    found = permutation_test(fit_to, corpus, "~ party + sign", "party", **options)
    assert found.permuted.shape == found.similarity.shape == (9, 2)
    np.testing.assert_allclose(found.p_values, 0.1)
    assert (found.observed > 5 * found.permuted.max(0)).all()
    assert (found.similarity > 0.9).all()
    other = permutation_test(fit_to, corpus, "~ party + sign", "sign", **options)
    # Two coefficients of the column, with no effect: their statistic has mean 1.
    assert other.observed.max() < 0.1 * found.observed.max()


def test_invalid_arguments_are_refused(corpus) -> None:
    with pytest.raises(ConfigError, match="no fixed term of 'sign'"):
        permutation_test(fit_to, corpus, "~ party", "sign", num_draws=2)
    for option in ({"topics": [0]}, {"groups": {"a": [0, 1], "b": [1]}}):
        with pytest.raises(ConfigError, match="tests all topics"):
            permutation_test(fit_to, corpus, "~ party", "party", **option)
