"""Sufficient statistics: they add up, are what loops make of posteriors and draws, and M-steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from support.pairs import each_pair, make_counts, make_model, sampled_statistics
from support.problems import make_batch

from torch_lntm.guides import make_guide
from torch_lntm.inference import Statistics
from torch_lntm.inference.em.statistics import expected_statistics


def numbers(statistics: Statistics) -> dict[str, torch.Tensor]:
    """All that adds up."""
    values = {**vars(statistics), **statistics.sums}
    del values["sums"]
    return {name: torch.as_tensor(value, dtype=torch.float64) for name, value in values.items()}


@pytest.mark.slow
@each_pair
def test_statistics_add_up(family: str, name: str) -> None:
    """Documents converge on their own, so their statistics do not depend on their batch."""
    model, counts = make_model(family), make_counts((30, 1, 8, 60, 3, 12))
    guide = make_guide(name, model, tolerance=1e-9, max_iterations=500)
    batch = make_batch(counts)
    whole, first, second = (
        expected_statistics(guide, part, guide.posterior(part))
        for part in (batch, *(batch.select(torch.arange(i, 6, 2)) for i in range(2)))
    )
    total, doubled = numbers(first.add_(second)), numbers(whole.scaled(2.0))
    assert total.keys() == numbers(whole).keys()
    for item, value in numbers(whole).items():
        torch.testing.assert_close(total[item], value, rtol=1e-9, atol=1e-9)
        if item != "num_unconverged":
            torch.testing.assert_close(doubled[item], 2 * value, rtol=0, atol=0)
    assert (whole.num_docs, whole.num_tokens, whole.num_unconverged) == (6, counts.sum(), 0)
    expected = pytest.approx(counts.sum(), rel=0.05 if name == "ep" else 1e-9)
    assert whole.word_counts.sum().item() == expected
    assert whole.objective == pytest.approx(float(guide.posterior(batch).objective.sum()))


def test_a_running_average_is_a_weighted_mean() -> None:
    guide = make_guide("taylor", make_model("ctm"))
    one, other = (
        expected_statistics(guide, batch, guide.posterior(batch))
        for batch in (make_batch(make_counts((30, 1))), make_batch(make_counts((5,), seed=1)))
    )
    before = {item: value * 1.0 for item, value in numbers(one).items()}
    one.blend_(other, 0.25, scale=3.0)
    for item, value in before.items():
        if item != "num_unconverged":
            expected = 0.75 * value + 0.25 * 3.0 * numbers(other)[item]
            torch.testing.assert_close(numbers(one)[item], expected)


def test_maximise_makes_the_m_steps_of_prior_and_topics() -> None:
    model, twin = make_model("ctm"), make_model("ctm")
    guide, batch = make_guide("taylor", model), make_batch(make_counts())
    statistics = expected_statistics(guide, batch, guide.posterior(batch))
    statistics.maximise(model)
    twin.prior.m_step(5.0, **statistics.sums)
    twin.topics.m_step(statistics.word_counts)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("family", ["ctm", "lntm", "iftm(source='laplace')", "lda"])
def test_statistics_of_draws_are_means_over_the_used_chains(family, device) -> None:
    """Summed up in plain loops; the last document has no chain left."""
    model, counts = make_model(family).to(device), make_counts((30, 1, 8, 5))
    rng = np.random.default_rng(1)
    eta, source = rng.normal(size=(3, 4, 4)), rng.normal(size=(3, 4, 2))
    theta, loglik = softmax(eta, -1), rng.normal(size=(3, 4))
    used = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]], dtype=bool)
    sites = {"eta": eta}
    if "iftm" in family:
        sites = {"source": source, "eta": eta}
    if family == "lda":
        sites = {"theta": theta}
    drawn = (
        model,
        make_batch(counts, device),
        {site: torch.from_numpy(value).to(device) for site, value in sites.items()},
        torch.from_numpy(eta).to(device),
        torch.from_numpy(loglik).to(device),
    )
    found = sampled_statistics(*drawn, torch.from_numpy(used).to(device))
    by_default, all_used = (
        numbers(sampled_statistics(*drawn, *chosen))
        for chosen in ((), (torch.ones(3, 4, dtype=torch.bool, device=device),))
    )
    torch.testing.assert_close(by_default, all_used, rtol=0.0, atol=0.0)
    topics = model.topics.probs.detach().cpu().numpy()
    sums: dict[str, Any] = dict.fromkeys(
        ("eta", "square", "outer", "source", "cross", "inner", "log"), 0.0
    )
    words, objective = np.zeros_like(topics), 0.0
    for d in range(3):
        for c in np.flatnonzero(used[:, d]):
            w, e, s = 1 / used[:, d].sum(), eta[c, d], source[c, d]
            sums["eta"] = sums["eta"] + w * e
            sums["square"] = sums["square"] + w * e**2
            sums["outer"] = sums["outer"] + w * np.outer(e, e)
            sums["source"] = sums["source"] + w * s
            sums["cross"] = sums["cross"] + w * np.outer(e, s)
            sums["inner"] = sums["inner"] + w * np.outer(s, s)
            sums["log"] = sums["log"] + w * np.log(theta[c, d])
            joint = theta[c, d][:, None] * topics
            words += w * counts[d] * joint / joint.sum(0)
            objective += w * loglik[c, d]
    expected = {"latent_sum": "eta", "latent_outer": "outer"}
    if family == "lda":
        expected = {"log_theta_sum": "log"}
    if "iftm" in family:
        expected = {"eta_sum": "eta", "eta_square": "square", "source_sum": "source"}
        expected |= {"eta_source": "cross", "source_outer": "inner"}
    assert set(found.sums) == set(expected)
    for name, key in expected.items():
        np.testing.assert_allclose(found.sums[name].tolist(), sums[key], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.word_counts.tolist(), words, rtol=1e-10, atol=1e-12)
    assert (found.num_docs, found.num_tokens) == (3, counts[:3].sum())
    assert float(found.objective) == pytest.approx(objective)
    assert found.num_unconverged == 3
