"""check_words: the contract of a likelihood of words with every algorithm."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.kernels.chains import PaddedWords, SparseWords
from torch_lntm.kernels.likelihood import CountLikelihood, surrogate
from torch_lntm.kernels.mixture import mixture_log_likelihood, word_probabilities
from torch_lntm.models import Words
from torch_lntm.models.parts import is_up_to_date
from torch_lntm.testing.checks import ATOL, STANDARD_ERRORS, check_m_step, check_sums, equal

#: Number of drawn documents, and of draws of the topics' tokens.
DRAWN_DOCS, DRAWS = 20_000, 2_000
#: First words of the pairs of tokens that are enumerated.
MOST_WORDS = 30
#: Number of M-steps that must suffice to reach the maximum.
M_STEPS = 60
#: Methods that define the distribution of the counts.
DENSITY = ("log_terms", "tokens", "length_term")


def check_words(words: Words, batch: DocumentBatch) -> None:
    """Check that a likelihood is a distribution, and that its methods agree with it.

    Args:
        words: The likelihood. It stays unchanged: a float64 copy is checked.
        batch: Documents over at least three words. Some documents must repeat words.

    Raises:
        AssertionError: A check fails. The message names the method.

    Example:
        >>> five, _ = lntm.models.ctm(3, 10).generate([20, 30, 25, 40, 10])
        >>> words = lntm.models.DirichletMultinomial()
        >>> lntm.testing.check_words(words, five.batch(dtype=torch.float64))
    """
    words = copy.deepcopy(words).double().to(batch.device)
    batch = batch.to(dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    theta = torch.rand(batch.num_docs, 3, generator=generator, dtype=torch.float64) + 0.05
    topics = torch.rand(3, batch.num_words, generator=generator, dtype=torch.float64).pow(3) + 0.01
    theta, topics = ((x / x.sum(1, keepdim=True)).to(batch.device) for x in (theta, topics))
    _check_terms(words, theta, topics, batch)
    _check_layouts(words, theta, topics, batch)
    _check_bound(words, theta, topics, batch)
    _check_distribution(words, topics[0])
    _check_m_step(words, theta, topics, batch)
    _check_draws(words, theta, topics, batch)


def _check_terms(words: Words, theta: Tensor, topics: Tensor, batch: DocumentBatch) -> None:
    """tokens() are the derivatives of log_terms() in the log probabilities."""
    log_s = word_probabilities(theta, topics, batch).log().requires_grad_()
    terms = words.log_terms(log_s.exp(), batch)
    shapes = f"{tuple(terms.shape)}; expected {tuple(batch.counts.shape)}"
    assert terms.shape == batch.counts.shape, f"log_terms() has the shape {shapes}"
    (slope,) = torch.autograd.grad(terms.sum(), log_s)
    s = log_s.detach().exp()
    tokens = words.tokens(s, batch)
    equal(tokens, slope, "tokens() are not the derivatives of log_terms() in log s")
    equal(words.slopes(s, batch), slope / s, "slopes() are not the derivatives in s")
    assert (tokens >= 0).all(), f"tokens() has negative entries, such as {float(tokens.min()):.6g}"
    assert (tokens <= batch.counts + ATOL).all(), "tokens() are more than the counts"
    if words.independent:
        equal(tokens, batch.counts, "independent, but tokens() are not the counts")
        equal(terms, batch.counts * s.log(), "independent, but log_terms() are not c log s")


def _check_layouts(words: Words, theta: Tensor, topics: Tensor, batch: DocumentBatch) -> None:
    """Padded documents and float32 have the likelihood of the batch."""
    expected = mixture_log_likelihood(theta, topics, batch, words)
    assert expected.isfinite().all(), f"the log likelihood has NaN or inf: {expected.tolist()}"
    empty = batch.row_offsets.diff() == 0
    equal(expected[empty], torch.zeros_like(expected[empty]), "an empty document has a likelihood")
    chains = torch.stack([theta, theta.flip(1)])
    sparse = SparseWords(topics, batch, words).expected_counts(chains)
    padded = PaddedWords(topics, batch, words).expected_counts(chains)
    for expected_part, part, name in zip(sparse, padded, ("likelihood", "counts"), strict=True):
        equal(
            part, expected_part, f"the {name} of padded documents differ; are zero counts left out?"
        )
    equal(sparse[0][0], expected, "expected_counts() has another likelihood")
    single = batch.to(dtype=torch.float32)
    in_float32 = mixture_log_likelihood(theta.float(), topics.float(), single, words)
    equal(in_float32, expected, "the likelihood in float32 differs", 1e-4)


def _check_bound(words: Words, theta: Tensor, topics: Tensor, batch: DocumentBatch) -> None:
    """Independent draws of tokens() bound the likelihood from below, tightly at their own theta."""
    exact = mixture_log_likelihood(theta, topics, batch, words)
    for other in (theta, theta.flip(1), theta.square() / theta.square().sum(1, keepdim=True)):
        surrogates, offset = surrogate(words, word_probabilities(other, topics, batch), batch)
        bound = mixture_log_likelihood(theta, topics, surrogates) + offset
        assert (bound <= exact + 1e-8).all(), (
            "independent draws of tokens() do not bound the likelihood: terms are not convex in "
            "log s"
        )
        if other is theta:
            equal(bound, exact, "the bound is loose at its own theta")


def _of_documents(words: CountLikelihood, counts: Tensor, s: Tensor) -> Tensor:
    """Probabilities ``(num_docs,)`` of dense counts ``(num_docs, num_words)`` at the mixture s."""
    batch = DocumentBatch.from_csr(counts.to_sparse_csr())
    weights = s.new_ones(len(counts), 1)
    return mixture_log_likelihood(weights, s[None], batch, words).exp().detach()


def _of_pairs(words: Words, s: Tensor) -> Tensor:
    """Probabilities ``(num_first, num_words)`` of two tokens in order, from the mixture s.

    The first token is one of the first words, because the pairs of all need the words' cube.
    """
    one = torch.eye(len(s), dtype=torch.float64, device=s.device)
    return torch.stack([_of_documents(words, one + first, s) for first in one[:MOST_WORDS]])


def _check_distribution(words: Words, s: Tensor) -> None:
    """Probabilities of single tokens and of pairs sum to 1, and agree with the predictions."""
    identity = torch.eye(len(s), dtype=torch.float64, device=s.device)
    first, alone = (_of_documents(x, identity, s) for x in (words, words.for_single_tokens()))
    total = first.new_ones(())
    equal(first.sum(), total, "probabilities of a document's only token do not add up to 1")
    equal(alone, first, "for_single_tokens() is not the likelihood of a document's only token")
    pairs = _of_pairs(words, s)
    known = len(pairs)
    message = "probabilities of a document's two tokens do not add up to those of the first"
    equal(pairs.sum(1), first[:known], message)
    after = pairs / first[:known, None]
    expected = first.expand_as(after)
    if words.cache_weight is not None:
        expected = (identity[:known] + words.cache_weight * s) / (1 + words.cache_weight)
    equal(after, expected, "the next token contradicts cache_weight")
    if is_up_to_date(words, "overdispersion", *DENSITY):
        # Counts of two tokens: 2 s, s² + …, by enumeration.
        both, mean = pairs.diagonal(), 2 * first[:known]
        variance = mean + 2 * both - mean.square()
        found = words.overdispersion(s.new_full((1,), 2.0)) * mean * (1 - first[:known])
        equal(found, variance, "overdispersion() is not the ratio of the variances")


def _check_m_step(words: Words, theta: Tensor, topics: Tensor, batch: DocumentBatch) -> None:
    """Statistics add up over documents, and M-steps reach a maximum of the likelihood."""
    words = copy.deepcopy(words)
    if not any(parameter.requires_grad for parameter in words.parameters()):
        return
    s = word_probabilities(theta, topics, batch)
    sums = words.statistics(s, batch)
    assert sums, "statistics() is empty; expected sums for m_step(), or no learned parameters"
    rows = torch.arange(batch.num_docs, device=batch.device)
    parts = []
    for some in rows.split(max(1, batch.num_docs // 2)):
        part = batch.select(some)
        parts.append(words.statistics(word_probabilities(theta[some], topics, part), part))
    weighted = words.statistics(s, batch, torch.full_like(theta[:, 0], 0.5))
    check_sums(sums, parts)
    for name, value in sums.items():
        equal(2 * weighted[name], value, f"the statistic {name} does not follow the weights")

    def density() -> Tensor:
        return mixture_log_likelihood(theta, topics, batch, words).sum() + words.log_prior()

    def m_steps() -> None:
        for _ in range(M_STEPS):
            words.m_step(**words.statistics(s, batch))

    slack = 1e-6 * abs(float(density().detach()))
    check_m_step(words, density, m_steps, slack, remedy=f", after {M_STEPS} calls")


def _check_draws(words: Words, theta: Tensor, topics: Tensor, batch: DocumentBatch) -> None:
    """Drawn words have the right probabilities, and drawn tokens the mean of tokens()."""
    s, num_words = topics[0], topics.shape[1]
    if is_up_to_date(words, "draw_words", *DENSITY):
        generator = torch.Generator(s.device).manual_seed(0)
        document = torch.arange(DRAWN_DOCS, device=s.device).repeat_interleave(2)
        drawn = torch.multinomial(s, 2 * DRAWN_DOCS, replacement=True, generator=generator)
        pairs = words.draw_words(drawn, document, generator).view(-1, 2)
        cells = torch.bincount(pairs[:, 0] * num_words + pairs[:, 1], minlength=num_words**2)
        expected = _of_pairs(words, s)
        error = (expected * (1 - expected) / DRAWN_DOCS).sqrt() + 1.0 / DRAWN_DOCS
        found = cells.view(num_words, num_words)[: len(expected)] / DRAWN_DOCS
        distance = (found - expected).abs()
        assert (distance <= STANDARD_ERRORS * error).all(), (
            "draw_words() has other probabilities than the likelihood, by up to "
            f"{float((distance / error).max()):.1f} standard errors"
        )
    if is_up_to_date(words, "draw_tokens", *DENSITY):
        rng = np.random.default_rng(0)
        q = word_probabilities(theta, topics, batch)
        draws = torch.stack([words.draw_tokens(q, batch, rng) for _ in range(DRAWS)]).double()
        assert (draws <= batch.counts).all(), "draw_tokens() draws more than the counts"
        mean = words.tokens(q, batch)
        error = draws.std(0) / DRAWS**0.5 + 1e-3
        assert ((draws.mean(0) - mean).abs() <= STANDARD_ERRORS * error).all(), (
            "draw_tokens() has another mean than tokens()"
        )
