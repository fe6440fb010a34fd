"""BagOfWords: densities by enumeration, draws by their frequencies."""

from __future__ import annotations

import numpy as np
import pyro
import pytest
import torch
from oracles.mixture import enumerate_assignments
from scipy import stats
from support.problems import make_batch

from torch_lntm.distributions import BagOfWords, WordCounts

RNG = np.random.default_rng(0)
THETA = RNG.dirichlet(np.ones(3), 4)
TOPICS = RNG.dirichlet(np.full(6, 0.7), 3)
COUNTS = np.array(
    [[0, 2, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0], [5, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1.0]]
)


def bags(device: torch.device, lengths: list[int] | None = None) -> BagOfWords:
    return BagOfWords(
        torch.from_numpy(THETA).to(device),
        torch.from_numpy(TOPICS).to(device),
        None if lengths is None else torch.tensor(lengths, device=device),
    )


def test_log_prob_sums_over_topic_assignments_for_every_type_of_counts(device) -> None:
    expected = torch.from_numpy(enumerate_assignments(THETA, TOPICS, COUNTS)[0])
    batch = make_batch(COUNTS, device)
    dense = torch.from_numpy(COUNTS).to(device)
    for value in (batch, dense, dense.to_sparse_csr(), batch.to(dtype=torch.float32)):
        torch.testing.assert_close(bags(device).log_prob(value).cpu(), expected)


def test_leading_dimensions_of_theta_topics_and_counts_broadcast(device) -> None:
    theta = torch.from_numpy(RNG.dirichlet(np.ones(3), (5, 2, 4))).to(device)
    topics = torch.from_numpy(RNG.dirichlet(np.ones(6), (2, 1, 3))).to(device)
    counts = torch.from_numpy(RNG.poisson(1.0, (5, 1, 4, 6)).astype(float)).to(device)
    got = BagOfWords(theta, topics).log_prob(counts)
    assert got.shape == (5, 2, 4)
    words = (theta @ topics.squeeze(1)).log()
    torch.testing.assert_close(got, (counts * words).sum(-1))


def test_draws_have_the_requested_shape(device) -> None:
    lengths = [30, 0, 4, 9]
    draws = bags(device, lengths).expand([2, 4]).sample(torch.Size([3]))
    assert draws.shape == (3, 2, 4, 6)
    assert draws.to_dense().sum(-1).tolist() == [[lengths] * 2] * 3
    # The draws are different.
    assert len({tuple(draw.to_dense().flatten().tolist()) for row in draws for draw in row}) == 6


def test_bags_of_words_work_as_a_pyro_site(device) -> None:
    theta = torch.from_numpy(THETA).to(device).requires_grad_()
    topics = torch.from_numpy(TOPICS).to(device)
    batch = make_batch(COUNTS, device)

    def program() -> None:
        with pyro.plate("documents", 40, subsample=torch.arange(4, device=device)):
            pyro.sample("counts", BagOfWords(theta, topics), obs=WordCounts(batch))

    trace = pyro.poutine.trace(program).get_trace()
    expected = 10 * bags(device).log_prob(batch).sum()
    torch.testing.assert_close(trace.log_prob_sum().detach(), expected)
    trace.log_prob_sum().backward()
    assert bool(theta.grad[0].all())


def test_sampled_words_have_the_frequencies_of_the_mixture(device, generator) -> None:
    lengths = [20_000, 1, 5_000, 0]
    csr = bags(device, lengths).sample_counts(generator)
    assert csr.layout == torch.sparse_csr
    counts = csr.to_dense().cpu().numpy()
    assert counts.sum(1).tolist() == lengths
    for d in (0, 2):
        p_value = stats.chisquare(counts[d], lengths[d] * THETA[d] @ TOPICS).pvalue
        # Fails by chance twice in 10⁶ runs over both documents.
        assert p_value > 1e-6


def test_sampling_is_determined_by_its_generator(device) -> None:
    q = bags(device, [30, 0, 4, 9])
    draws = [q.sample_counts(torch.Generator(device).manual_seed(s)).to_dense() for s in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    pyro.set_rng_seed(3)
    first = q.sample().to_dense()
    pyro.set_rng_seed(3)
    assert torch.equal(first, q.sample().to_dense())


def test_topics_of_probability_zero_are_never_drawn(device, generator) -> None:
    theta = torch.tensor([[0.0, 1.0, 0.0]], device=device)
    q = BagOfWords(theta, torch.eye(3, device=device), torch.tensor([5000], device=device))
    assert q.sample_counts(generator).to_dense().tolist() == [[0, 5000, 0]]


def test_invalid_arguments_are_refused(device) -> None:
    theta, topics = torch.from_numpy(THETA).to(device), torch.from_numpy(TOPICS).to(device)
    with pytest.raises(ValueError, match=r"theta has 2 topics .* topics has 3 rows"):
        BagOfWords(theta[:, :2], topics)
    with pytest.raises(ValueError, match="Simplex"):
        BagOfWords(2 * theta, topics, validate_args=True)
    for shape in ((4, 5), (3, 6)):
        with pytest.raises(ValueError, match=rf"\({shape[0]}, {shape[1]}\) .* \(4, 6\)"):
            bags(device).log_prob(torch.ones(shape, dtype=torch.float64, device=device))
    with pytest.raises(ValueError, match="needs lengths"):
        bags(device).sample()
    with pytest.raises(ValueError, match="one bag per document"):
        bags(device, [1, 1, 1, 1]).expand([2, 4]).sample_counts(torch.Generator(device))
    with pytest.raises(ValueError, match="all documents share their topics"):
        BagOfWords(theta, topics.expand(4, -1, -1))
