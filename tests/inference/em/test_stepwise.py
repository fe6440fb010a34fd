"""StepwiseEM: running averages of statistics over documents that come in parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import torch_lntm as lntm
from torch_lntm.errors import ConfigError
from torch_lntm.inference import MonteCarloEM, StepwiseEM, VariationalEM
from torch_lntm.inference.em.statistics import expected_statistics


def documents(num_docs: int, seed: int) -> lntm.Corpus:
    model = lntm.models.ctm(3, 12, topics=TOPICS, covariance=torch.eye(3))
    return model.generate([20] * num_docs, seed=seed)[0]


TOPICS = torch.full((3, 12), 0.01) + torch.eye(3).repeat_interleave(4, 1)


def started(num_docs: int = 40, model: lntm.models.TopicModel | None = None):
    model = model or lntm.models.ctm(3, 12, topics=TOPICS, dtype="float64")
    guide = lntm.guides.make_guide(None, model)
    engine = VariationalEM(model, guide, start="model", max_iterations=1, progress=False)
    return model, guide, engine.fit(documents(num_docs, 0)).statistics


def test_a_decay_of_one_gives_all_tokens_equal_weights():
    model, guide, statistics = started()
    engine = StepwiseEM(model, guide, statistics, decay=1.0)
    new = documents(10, 1)
    # The E-step is at the maximiser of the average, which an M-step of it gives.
    twin, its_guide, _ = started()
    statistics.maximise(twin)
    batch = new.batch(dtype=torch.float64)
    posterior = its_guide.solve(batch, its_guide.em_options)
    expected = statistics.scaled(1.0).add_(expected_statistics(its_guide, batch, posterior))
    engine.update(new)
    found = engine.statistics
    assert found.num_tokens == expected.num_tokens
    assert found.num_docs == pytest.approx(expected.num_docs)
    torch.testing.assert_close(found.word_counts, expected.word_counts)
    for name, value in expected.sums.items():
        torch.testing.assert_close(found.sums[name], value)
    expected.maximise(twin)
    torch.testing.assert_close(model.topics.probs, twin.topics.probs)
    torch.testing.assert_close(model.prior.covariance, twin.prior.covariance)


def test_the_weight_of_new_tokens_is_their_share_to_the_power_of_decay():
    _, _, statistics = started(30)
    new = documents(10, 1)
    results = []
    for decay in (1.0, 0.5):
        engine = StepwiseEM(*started(30)[:2], statistics, decay=decay)
        engine.update(new)
        results.append(engine.statistics.word_counts / engine.statistics.num_tokens)
    old = statistics.word_counts / statistics.num_tokens
    # 10 of 40 documents of equal length: a quarter, and the root of that.
    torch.testing.assert_close((results[1] - old) / (results[0] - old), torch.full_like(old, 2.0))
    assert statistics.num_tokens == 600  # those given are not changed


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [False, True])
def test_a_stream_adds_new_words_to_topics(sampled, device):
    corpus = documents(60, 2)
    half = lntm.Corpus.from_matrix(corpus.to_scipy()[:, :8])  # without the third topic's words
    narrow = lntm.Corpus.from_matrix(np.pad(half.to_scipy().toarray(), ((0, 0), (0, 4))))
    model = lntm.models.ctm(3, 12).to(device)
    guide = lntm.guides.TaylorGuide(model)
    # In one mini-batch, since what several stand for is the corpus on average only.
    engine = MonteCarloEM(model, max_epochs=2, batch_size=60, progress=False)
    result = engine.fit(narrow)
    chains = engine.chains if sampled else None
    stream = StepwiseEM(model, guide, result.statistics, chains=chains)
    before = model.topics.probs[:, 8:].sum()
    for seed in range(3, 6):
        stream.update(documents(30, seed))
    assert before < 0.1
    assert model.topics.probs[:, 8:].sum() > 0.5
    assert stream.num_updates == 3
    assert stream.statistics.num_tokens == narrow.num_tokens + 3 * 600


def test_sources_follow_the_order_of_the_statistics():
    def made():
        model = lntm.models.iftm(3, 12, 2, source="laplace", topics=TOPICS, dtype="float64")
        return started(model=model)

    model, guide, statistics = made()
    twin, its_guide, _ = made()
    # The same model with its sources in another order and with other signs.
    with torch.no_grad():
        twin.prior.mixing.copy_(-twin.prior.mixing.flip(1))
    for m, g in ((model, guide), (twin, its_guide)):
        StepwiseEM(m, g, statistics).update(documents(10, 1))
    torch.testing.assert_close(model.prior.mixing, twin.prior.mixing)


def test_empty_documents_change_nothing_and_unknown_words_are_refused():
    model, guide, statistics = started()
    before = model.topics.probs
    stream = StepwiseEM(model, guide, statistics)
    stream.update(np.zeros((2, 12)))
    assert torch.equal(model.topics.probs, before)
    with pytest.raises(ConfigError, match="11 words"):
        stream.update(np.ones((2, 11)))
    for decay in (0.0, 1.5):
        with pytest.raises(ConfigError, match="decay"):
            StepwiseEM(model, guide, statistics, decay=decay)
