"""check_topics: the contract of topics with every algorithm."""

from __future__ import annotations

import copy
from typing import Any

import torch
from pyro import poutine
from torch import Tensor

from torch_lntm import noise
from torch_lntm.corpus import DocumentBatch
from torch_lntm.kernels.mixture import probability_floor
from torch_lntm.models import LogisticNormalPrior, TopicModel, Topics
from torch_lntm.testing.checks import check_m_step, equal, finite, nudge_, same, shaped

#: Tokens of each topic in the checks of M-steps.
TOKENS = 500.0
#: Tolerance of an exact M-step, in log density per token.
SLACK = 1e-7


def check_topics(topics: Topics, batch: DocumentBatch, *, exact_m_step: bool = True) -> None:
    """Check that topics, their prior and their M-step agree with the Pyro program.

    Topics with levels also name their levels.

    Args:
        topics: The topics. They stay unchanged: a float64 copy is checked.
        batch: Documents over their vocabulary, with their levels if the topics have levels.
        exact_m_step: Whether the M-step is an exact maximiser. An inexact M-step must keep or raise
            its objective.

    Raises:
        AssertionError: A check fails. The message names the method.

    Example:
        >>> five, _ = lntm.models.ctm(3, 10).generate([20, 30, 25, 40, 10])
        >>> topics = lntm.models.DirichletTopics(3, 10)
        >>> lntm.testing.check_topics(topics, five.batch(dtype=torch.float64))
    """
    topics = copy.deepcopy(topics).double()
    batch = batch.to(dtype=torch.float64)
    _check_sites(topics)
    _check_probs(topics)
    _check_program(topics)
    _check_documents(topics, batch)
    _check_copies(topics)
    _check_levels(topics)
    if any(parameter.requires_grad for parameter in topics.parameters()):
        _check_start(topics)
        _check_gradient(topics)
        counts = _counts(topics, 6)
        check_m_step(
            topics,
            lambda: _log_joint(topics, counts),
            lambda: topics.m_step(counts),
            SLACK * float(counts.sum()),
            exact_m_step,
        )


def _counts(topics: Topics, seed: int = 0) -> Tensor:
    """Random word counts, partly 0, ``(num_topics, num_levels * num_words)`` float64.

    Words that a topic excludes have no counts in it.
    """
    generator = torch.Generator().manual_seed(seed)
    size = (topics.num_topics, topics.num_levels * topics.num_words)
    weights = torch.rand(size, generator=generator, dtype=torch.float64).pow(4)
    weights = torch.where(weights < 0.02, 0.0, weights)
    weights[topics.double_probs.cpu() <= probability_floor(torch.float64)] = 0.0
    return (TOKENS * weights / weights.sum(1, keepdim=True)).to(topics.device)


def _log_joint(topics: Topics, counts: Tensor) -> Tensor:
    """Objective of M-steps."""
    probs, used = topics.double_probs, counts > 0
    return (counts[used] * probs[used].log()).sum() + topics.log_prior()


def _nudged(topics: Topics, seed: int) -> Topics:
    """A copy with every parameter moved by a random step."""
    moved = copy.deepcopy(topics)
    nudge_(moved.parameters(), seed, 0.1)
    return moved


def _check_sites(topics: Topics) -> None:
    """Every site is a single event, and draws the dtype of its parameters."""
    latents, sites = topics.latents(), topics.sites()
    same({*latents}, {*sites}, "the sites of latents(), which are those of sites()")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name, site in sites.items():
            size, dtype, value = tuple(site.batch_shape), site.sample().dtype, latents[name]
            assert not size, (
                f"the site {name} has the batch shape {size}; end the distribution of sites() by "
                f".to_event({value.dim()}), so that Pyro draws the parameter as a whole"
            )
            assert dtype == value.dtype, (
                f"the site {name} draws {dtype} for a parameter in {value.dtype}; make its "
                "distribution from tensors like the parameter, such as torch.zeros_like"
            )


def _check_probs(topics: Topics) -> None:
    """Probabilities have the right shape, and sum to 1 in each level, in both precisions."""
    size = (topics.num_topics, topics.num_levels * topics.num_words)
    for version in (topics, copy.deepcopy(topics).float()):
        probs, name = version.probs, str(version.probs.dtype).removeprefix("torch.")
        shaped(probs, tuple(size), "probs")
        assert (probs >= 0).all(), f"probs has negative entries in {name}"
        total = probs.unflatten(1, (topics.num_levels, topics.num_words)).sum(-1)
        equal(total, torch.ones_like(total), f"probs of a level do not add up to 1 in {name}", 1e-5)
        equal(probs, topics.probs, f"probs in {name} differ from probs in float64", 1e-4)
        same(version.double_probs.dtype, torch.float64, "the dtype of double_probs")
        equal(version.double_probs, topics.probs, f"double_probs differ from probs in {name}", 1e-5)


def _check_program(topics: Topics) -> None:
    """emit() has the sites, and agrees with probs and log_prior() at their values."""
    offsets = []
    for version in (topics, _nudged(topics, 1)):
        latents = {name: value.detach() for name, value in version.latents().items()}
        trace: Any = poutine.trace(poutine.condition(version.emit, data=latents)).get_trace()
        names = [n for n, site in trace.nodes.items() if site["type"] == "sample"]
        same(names, [*version.sites()], "the sites of emit(), which are those of sites()")
        returned = trace.nodes["_RETURN"]["value"]
        equal(returned, version.probs, "emit() at latents() gives other probabilities than probs")
        offsets.append(torch.as_tensor(trace.log_prob_sum()).double() - version.log_prior())
    equal(offsets[0], offsets[1], "log_prior() is not the density of emit()'s sites", 1e-6)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        draw = topics.emit()
    shaped(draw, tuple(topics.probs.shape), "a draw of emit()")
    finite({"a draw": draw}, "emit() gives")


def _check_documents(topics: Topics, batch: DocumentBatch) -> None:
    """Every document's words have the probabilities of its level, in the program and in bind()."""
    model = TopicModel(LogisticNormalPrior(topics.num_topics, dtype=torch.float64), topics)
    target = model.to(batch.device).bind(batch)
    z = target.space.draw(noise.document_keys(0, batch.index, 1))[0].double()
    theta, expected = target.theta(z), torch.zeros(batch.num_docs, dtype=torch.float64)
    rows_of_levels = topics.by_level(batch, topics.double_probs)
    rows = torch.cat([rows for rows, _ in rows_of_levels]).sort().values
    equal(rows, torch.arange(batch.num_docs), "by_level() does not give every document once")
    for rows, probs in rows_of_levels:
        counts = batch.select(rows).to_csr().to_dense().double()
        logs = (theta[rows] @ probs).log()
        expected[rows] = torch.where(counts > 0, counts * logs, 0.0).sum(1).cpu()
    equal(target.log_joint(z)[1].cpu(), expected, "the bound likelihood is not that of by_level()")
    program = poutine.condition(model, data=target.space.latents(z))
    site: Any = poutine.trace(program).get_trace(batch).nodes["counts"]
    traced = site["fn"].log_prob(site["value"])
    equal(traced.cpu(), expected, "the program's likelihood is not that of by_level()")


def _check_copies(topics: Topics) -> None:
    """A state dictionary restores the topics."""
    other = _nudged(topics, 2)
    other.load_state_dict(topics.state_dict())
    equal(other.probs, topics.probs, "a state dictionary does not restore probs")


def _check_levels(topics: Topics) -> None:
    """Each level has the topics of its documents."""
    levels = topics.content
    if levels is None:
        return
    version = _nudged(topics, 7)
    columns = version.double_probs.split(version.num_words, 1)
    for g, level in enumerate(levels.levels):
        equal(version.at(level).double_probs, columns[g], f"at({level!r}) differs from probs")


def _check_start(topics: Topics) -> None:
    """A start gives finite topics with a higher likelihood of its counts than uniform topics."""
    started = copy.deepcopy(topics)
    counts = _counts(started, 4)[:, : started.num_words]
    started.start_(counts)
    finite(dict(started.named_parameters()), "start_() leaves")
    for probs in started.double_probs.split(started.num_words, 1):
        log_likelihood = float((counts * probs.clamp_min(1e-300).log()).sum())
        uniform = -float(counts.sum()) * torch.tensor(float(started.num_words)).log().item()
        found = f"its counts worse than uniform topics: {log_likelihood} < {uniform} nats"
        assert log_likelihood >= uniform, f"start_() explains {found}"


def _check_gradient(topics: Topics) -> None:
    """gradient_() is the gradient of the M-steps' objective."""
    if "gradient" not in topics.updates:
        return
    counts = _counts(topics, 5)
    topics.gradient_(counts)
    written = {name: p.grad for name, p in topics.named_parameters() if p.requires_grad}
    topics.zero_grad(set_to_none=True)
    value = (counts * topics.probs.log()).sum() + topics.log_prior()
    parameters = [p for p in topics.parameters() if p.requires_grad]
    expected = torch.autograd.grad(value, parameters)
    for (name, gradient), slope in zip(written.items(), expected, strict=True):
        assert gradient is not None, f"gradient_() leaves {name} without a gradient"
        equal(gradient, slope, f"gradient_() of {name} is not the gradient of the log joint", 1e-5)
