"""Compiled kernels of a CPU against PyTorch's operations: noise and whole visits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from numpy.typing import NDArray
from support.kernels import without_fused_kernels
from support.problems import make_batch
from torch import Tensor

import torch_lntm as lntm
from torch_lntm import noise
from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import ConfigError, NumericalError
from torch_lntm.inference.chains.chains import Chains, HMCSettings
from torch_lntm.inference.chains.joint import JointChain
from torch_lntm.inference.em.statistics import chain_statistics
from torch_lntm.kernels import fused as fused_kernels
from torch_lntm.kernels.mixture import expected_counts
from torch_lntm.latents.metrics import Metric
from torch_lntm.models.topics.normal import NormalTopics
from torch_lntm.sampling import hmc

#: Sizes at which rows need padding, blocks end early, and documents are longer than a block.
NUM_DOCS, NUM_WORDS = 37, 61
F64 = {"seed": 0, "dtype": torch.float64}


def make_corpus(num_docs: int = NUM_DOCS, num_words: int = NUM_WORDS) -> lntm.Corpus:
    """Documents of very different lengths with some columns, one of them empty."""
    rng = np.random.default_rng(0)
    rates = rng.gamma(0.5, size=(num_docs, 1))
    counts = rng.poisson(rates * rng.gamma(0.3, size=(num_docs, num_words)))
    counts[0], counts[4] = 3, 0
    documents = np.arange(num_docs)
    columns = {"party": documents % 3, "year": 2000 + documents % 5, "author": documents % 7}
    vocabulary = [f"w{i}" for i in range(num_words)]
    return lntm.Corpus.from_matrix(counts, vocabulary, metadata=pd.DataFrame(columns))


class Squared(lntm.models.Words):
    """Another likelihood of words, which compiled kernels do not know."""

    def log_terms(self, probability: Tensor, cells: Any) -> Tensor:
        return 2.0 * cells.counts * probability.log()

    def tokens(self, probability: Tensor, cells: Any) -> Tensor:
        return (2.0 * cells.counts).to(probability.dtype).expand_as(probability)


class Squares(lntm.models.DirichletMultinomial):
    """Bursty words with another term for the length."""

    def length_term(self, lengths: Tensor) -> Tensor:
        return 2.0 * super().length_term(lengths)


def with_words(words: lntm.models.Words) -> lntm.models.TopicModel:
    model = lntm.models.ctm(5, NUM_WORDS, **F64)
    return lntm.models.TopicModel(model.prior, model.topics, words=words)


#: Models by name, made for a corpus.
MODELS: dict[str, Callable[[lntm.Corpus], lntm.models.TopicModel]] = {
    "ctm": lambda _: lntm.models.ctm(5, NUM_WORDS, **F64),
    "anchored": lambda _: lntm.models.ctm(17, NUM_WORDS, anchored=True, **F64),
    "lntm": lambda _: lntm.models.lntm(6, NUM_WORDS, **F64),
    "iftm": lambda _: lntm.models.iftm(11, NUM_WORDS, num_sources=3, **F64),
    "laplace sources": lambda _: lntm.models.iftm(
        11, NUM_WORDS, num_sources=3, source="laplace", **F64
    ),
    "lda": lambda _: lntm.models.lda(9, NUM_WORDS, **F64),
    "even lda": lambda _: lntm.models.lda(5, NUM_WORDS, concentration=5e3, **F64),
    "bursty": lambda _: lntm.models.ctm(5, NUM_WORDS, bursty=True, **F64),
    "bursty lda": lambda _: lntm.models.lda(5, NUM_WORDS, bursty=True, **F64),
    "covariates": lambda c: lntm.models.stm(5, c, "~ C(party) + year", **F64),
    "random terms": lambda c: lntm.models.stm(5, c, "~ year + (1 | author)", **F64),
    "levels": lambda c: lntm.models.stm(5, c, content="party", **F64),
    "moving words": lambda c: lntm.models.stm(5, c, "~ year", content="~ rw(year)", **F64),
    "far means": lambda _: lntm.models.ctm(
        12, NUM_WORDS, loc=torch.linspace(-1e3, 1e3, 12, dtype=torch.float64), **F64
    ),
    "keywords": lambda c: lntm.models.ctm(5, c, keywords={"a": ["w3", "w4"], "b": ["w5"]}, **F64),
    "other words": lambda _: with_words(Squared()),
    "other bursts": lambda _: with_words(Squares(dtype=torch.float64)),
    **{
        f"{num_topics} topics": lambda _, k=num_topics: lntm.models.ctm(k, NUM_WORDS, **F64)
        for num_topics in (1, 2, 3, 57, 200)
    },
}
#: Models without a compiled visit.
BY_PYTORCH = ["other words", "other bursts"]


def spread_(model: lntm.models.TopicModel) -> lntm.models.TopicModel:
    """Give a model different topics and correlated logits, in place."""
    rng = np.random.default_rng(1)
    if isinstance(model.topics, lntm.models.DirichletTopics):
        topics = rng.dirichlet(np.full(NUM_WORDS, 0.3), model.num_topics) + 1e-4
        model.topics.set_(torch.from_numpy(topics))
    dim = model.prior.latent_dim
    factor = rng.normal(size=(dim, dim)) / np.sqrt(dim)
    if isinstance(model.prior, lntm.models.LogisticNormalPrior):
        covariance = factor @ factor.T + np.eye(dim)
        is_diagonal = type(model.topics) is NormalTopics
        covariance = np.diag(np.diag(covariance)) if is_diagonal else covariance
        model.prior.set_(covariance=torch.from_numpy(covariance))
    for name, value in model.prior.named_parameters():
        if name in ("slopes", "level_effects"):
            value.data.copy_(torch.from_numpy(0.3 * rng.normal(size=value.shape)))
    return model


@pytest.mark.parametrize("name", ["ctm", "iftm", "lda", "bursty"])
def test_calls_read_nothing_left_in_a_work_space(name, numba, monkeypatch) -> None:
    from torch_lntm.kernels import compiled

    space_of = compiled._space

    def spoiled(kernel: str, *args: Any) -> Any:
        space = space_of(kernel, *args)
        # No call writes the padding of these.
        kept = {"words", "rows", "loc", "" if kernel == "visit" else "theta"}
        for value in (getattr(space, field) for field in set(space._fields) - kept):
            if isinstance(value, np.ndarray) and value.dtype == float:
                value[:] = math.nan
        return space

    monkeypatch.setattr(compiled, "_space", spoiled)
    model, batch = spread_(MODELS[name](make_corpus())), make_corpus().batch(dtype=torch.float64)
    settings = HMCSettings(2, "prior", 3, seed=3)
    require_equal(lambda: visited(model, settings, batch), monkeypatch)


@pytest.mark.parametrize("size", [1, 2, 5, 51])
def test_noise_has_the_same_bits_or_nearly(size: int, numba, monkeypatch) -> None:
    index = torch.tensor([0, 1, 7, 2**40])

    def made() -> tuple[Tensor, ...]:
        keys = noise.split(noise.document_keys(2**62 + 1, index, 3), 2)
        return keys, noise.uniform(keys, size), noise.normal(keys, size)

    compiled = made()
    without_fused_kernels(monkeypatch)
    expected = made()
    assert torch.equal(compiled[0], expected[0])
    assert torch.equal(compiled[1], expected[1])
    torch.testing.assert_close(compiled[2], expected[2], rtol=1e-14, atol=4e-15)


CPU64 = torch.device("cpu"), torch.float64


@pytest.mark.parametrize("rows", [[0, 1, 2], [3, 1, 30], []])
def test_batches_read_from_a_corpus_are_equal_and_sorted(rows, numba) -> None:
    corpus = make_corpus()
    batch = fused_kernels.read(np.array(rows, np.int64), corpus, *CPU64)
    expected = corpus.batch().to(dtype=torch.float64).select(torch.tensor(rows).long())
    for name in ("row_offsets", "word_index", "counts", "index", "lengths", "positions", "by_word"):
        for got, wanted in zip(getattr(batch, name), getattr(expected, name), strict=True):
            assert torch.equal(got, wanted), name
    few = replace(corpus, num_words=int(corpus.word_index.max()))
    with pytest.raises(ConfigError, match="outside of the vocabulary"):
        fused_kernels.read(np.arange(len(corpus)), few, *CPU64)


def visited(
    model: lntm.models.TopicModel, settings: HMCSettings, batch: DocumentBatch
) -> list[Tensor]:
    """Numbers of warm-up, its end and frozen step sizes, in one call each, and a later visit."""
    chains = Chains(model, settings, batch, warmup_steps=4)
    passed = [chains.advance(3), chains.advance(3, with_counts=True)]
    counts = chain_statistics(model, chains).word_counts
    again = Chains(model, settings, batch, 4, chains.latents, chains.progress)
    passed.append(again.advance(2))
    # Diverging chains beside sound ones.
    again.step_size = again.step_size.where(torch.arange(batch.num_docs) % 3 > 0, 1e200)
    passed += [again.advance(), again.advance()]
    values: list[Any] = [*chains.state, *again.state, *again.progress[:4]]
    for info, step_size in passed:
        energy_error = info.energy_error.where(~info.divergent, 0.0)
        values += [info.acceptance, info.accepted, energy_error, info.divergent, step_size]
    return [*values, counts, chains.divergences, chains.moved, chains.mean_acceptance]


def require_equal(run: Callable[[], list[Tensor]], monkeypatch, tolerance: float = 1e-10) -> None:
    """Compare numbers by compiled kernels with those by PyTorch's operations."""
    compiled = run()
    without_fused_kernels(monkeypatch)
    for got, expected in zip(compiled, run(), strict=True):
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("num_chains", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_a_visit_equals_transitions_one_by_one(name, num_chains, numba, monkeypatch) -> None:
    corpus = make_corpus()
    model = spread_(MODELS[name](corpus))
    batch = model.encode(corpus).batch(dtype=torch.float64)
    assert hmc.is_compiled(model.bind(batch)) == (name not in BY_PYTORCH)
    settings = HMCSettings(num_chains, "prior", 5, seed=3)
    # The gradient α − e^x of a large α cancels many digits.
    tolerance = 1e-8 if name == "even lda" else 1e-10
    require_equal(lambda: visited(model, settings, batch), monkeypatch, tolerance)


@pytest.mark.parametrize("metric", ["laplace", "identity"])
@pytest.mark.parametrize("name", ["ctm", "anchored", "covariates", "bursty"])
def test_a_visit_with_mass_matrices_equals_transitions(name, metric, numba, monkeypatch) -> None:
    corpus = make_corpus()
    model = spread_(MODELS[name](corpus))
    batch = model.encode(corpus).batch(dtype=torch.float64)
    settings = HMCSettings(2, metric, 3, seed=3)
    require_equal(lambda: visited(model, settings, batch), monkeypatch, 1e-9)


@pytest.mark.parametrize("metric", ["unit", "common", "own"])
@pytest.mark.parametrize("name", ["ctm", "covariates", "laplace sources", "lda", "bursty"])
def test_a_step_at_another_temperature_is_equal(name, metric, numba, monkeypatch) -> None:
    """Each row has a step size of its own, and documents a metric."""
    corpus = make_corpus()
    model = spread_(MODELS[name](corpus))
    target = model.bind(model.encode(corpus).batch(dtype=torch.float64), padded=True)
    keys = noise.document_keys(0, target.batch.index, 3)
    drawn = hmc.draw(noise.fold_in(keys, 1), target)
    step_size = noise.uniform(noise.fold_in(keys, 2), 1).squeeze(-1)
    rng, dim, size = np.random.default_rng(2), target.dim, target.batch.num_docs
    shape = {"unit": None, "common": (dim, dim), "own": (size, dim, dim)}[metric]
    factor = None if shape is None else torch.from_numpy(np.eye(dim) + 0.1 * rng.normal(size=shape))
    state = hmc.evaluate(target, target.draw_prior(noise.fold_in(keys, 0)))

    def run() -> list[Tensor]:
        new, info = hmc.step(drawn, target, state, 0.5 * step_size, Metric(factor), 4, 0.9, 0.3)
        assert 0 < int(info.accepted.sum()) < info.accepted.numel()
        sound = ~info.divergent
        return [*new, info.acceptance, info.accepted, sound, info.energy_error.where(sound, 0.0)]

    require_equal(run, monkeypatch, 1e-9)


def counts_of(case: str) -> NDArray[Any]:
    """Counts of documents at the edge of what a corpus may hold."""
    row = np.arange(12) % 3
    rows = {
        "none": np.zeros((0, 12)),
        "empty": np.zeros((5, 12)),
        "one word": np.eye(3, 12, dtype=int) * 10_000,
        "one kind of word": np.array([[3], [0], [1]]),
        "many words": np.stack([np.arange(20_000) % 2 + 1, np.arange(20_000) == 7]),
        "huge": np.stack([row * 10**9, row, row * 10**12]),
        "fractions": np.stack([row * 0.3, row + 1e-9, row * 0.0]),
        "one document": row[None],
    }
    return rows[case]


@pytest.mark.parametrize("kind", ["ctm", "lda", "iftm"])
@pytest.mark.parametrize(
    "case",
    [
        *("none", "empty", "one word", "one kind of word", "many words", "huge", "fractions"),
        "one document",
    ],
)
def test_visits_of_extreme_documents_are_equal(case, kind, numba, monkeypatch) -> None:
    """Words that no topic has are among them, whose probability is the floor."""
    counts = counts_of(case)
    num_words, batch = counts.shape[1], make_batch(counts)
    model = getattr(lntm.models, kind)(4, num_words, **F64)
    topics = np.random.default_rng(0).dirichlet(np.full(num_words, 0.01), 4)
    topics[:, num_words // 2 + 1 :] = 0.0
    model.topics.set_(torch.from_numpy(topics + 1e-300))
    settings = HMCSettings(2, "prior", 3, step_size=1e-7 if case == "huge" else 0.3)
    tolerance = 1e-7 if case == "huge" else 1e-10

    def run() -> list[Tensor]:
        chains = Chains(model, settings, batch, warmup_steps=0)
        passed = [chains.advance(2)]
        # One more at which all chains diverge, and another after it.
        chains.step_size = chains.step_size * 1e200
        passed.append(chains.advance())
        chains.step_size = chains.step_size * 1e-200
        passed.append(chains.advance())
        assert not len(counts) or bool(passed[1][0].divergent.all())
        return [*chains.state, *(info.accepted for info, _ in passed)]

    require_equal(run, monkeypatch, tolerance)


@pytest.mark.parametrize(("count", "compiled"), [(2.0, True), (1.5, False), (1e6, False)])
def test_bursty_words_are_compiled_for_whole_small_counts(count, compiled, numba) -> None:
    model = lntm.models.ctm(2, 3, bursty=True, **F64)
    assert hmc.is_compiled(model.bind(make_batch(np.array([[1, count, 0]])))) == compiled


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["ctm", "iftm", "lda", "bursty"])
def test_parameters_that_are_not_finite_give_equal_errors_and_divergences(
    name, value, numba, monkeypatch
) -> None:
    corpus = make_corpus()
    model = spread_(MODELS[name](corpus))
    batch = corpus.batch(dtype=torch.float64)
    settings = HMCSettings(2, "prior", 3, seed=3)
    chains = Chains(model, settings, batch, 2)
    chains.advance(2)
    parameter = model.prior.log_concentration if name == "lda" else model.prior.loc
    parameter.data[0] = value

    def run() -> list[Tensor]:
        with pytest.raises(NumericalError) as error:
            Chains(model, settings, batch, 2)
        start = {site: x.nan_to_num() for site, x in chains.latents.items()}
        again = Chains(model, settings, batch, 2, start, chains.progress)
        info, _ = again.advance()
        assert "finite" in str(error.value)
        return [info.divergent, info.accepted, info.acceptance, again.state.position]

    require_equal(run, monkeypatch)


@pytest.mark.parametrize("name", ["ctm", "covariates", "laplace sources", "lda", "bursty"])
def test_a_transition_in_single_precision_is_equal_to_rounding(name, numba, monkeypatch) -> None:
    corpus = make_corpus()
    model = spread_(MODELS[name](corpus)).to(torch.float32)
    batch = model.encode(corpus).batch()
    settings = HMCSettings(2, "prior", 5, step_size=0.1, seed=3)

    def run() -> list[Tensor]:
        chains = Chains(model, settings, batch, 0)
        info, _ = chains.advance()
        return [*chains.state, info.acceptance, info.accepted, info.divergent]

    require_equal(run, monkeypatch, 1e-4)


@pytest.mark.parametrize("name", ["ctm", "covariates", "bursty", "1 topics"])
def test_a_joint_chain_is_equal(name, numba, monkeypatch) -> None:
    """Its documents, the topics of tokens, and the parts that are drawn given them."""
    corpus = make_corpus()
    model = spread_(MODELS[name](corpus))

    def run() -> list[Tensor]:
        chain = JointChain(model, corpus, warmup_steps=2)
        thetas = [chain.sweep() for _ in range(3)]
        return [*thetas, *(p.detach() for p in chain.model.parameters())]

    require_equal(run, monkeypatch, 1e-8)


def test_topics_of_tokens_need_a_number_for_each_token(numba) -> None:
    batch, words = make_batch(np.array([[2, 1]])), torch.ones(2, 1).double()
    for tokens, num_uniforms in ([2, 1], 2), ([3], 3), ([4, -1], 3):
        with pytest.raises(ConfigError, match="uniform numbers"):
            fused_kernels.draw_topics(
                words[:1], words, batch, torch.tensor(tokens), torch.rand(num_uniforms).double()
            )


def test_kernels_refuse_other_shapes(numba) -> None:
    """They check nothing themselves, and would read other memory."""
    model = lntm.models.ctm(4, 3, **F64)
    batch = make_batch(np.ones((5, 3)))
    target = model.bind(batch)
    words, weights = target.topics.mT.contiguous(), torch.ones(5, 4).double()
    state = hmc.evaluate(target, torch.zeros(1, 5, 4).double())
    numbers = hmc.draw(noise.document_keys(0, batch.index, 1), target)
    form, square, four = target.space.form, torch.eye(3).double(), torch.ones(4).double()
    wide = torch.zeros(1, 5, 900).double()

    def step(start: Any = state, factor: Any = None, drawn: Any = numbers, **form_: Any) -> None:
        other = replace(target, space=SimpleNamespace(form=form._replace(**form_)))
        hmc.step(drawn, other, start, four[0], Metric(factor), 1)

    step()
    step(factor=torch.eye(4).double().expand(5, 4, 4), loc=torch.ones(5, 4).double())
    wrong: list[Callable[[], object]] = [
        lambda: fused_kernels.expected_counts(weights[:, :3], words, batch, 1e-9),
        lambda: fused_kernels.expected_counts(weights[:4], words, batch, 1e-9),
        lambda: fused_kernels.expected_counts(weights, words[:2], batch, 1e-9),
        lambda: fused_kernels.draw_topics(weights[:, :3], words, batch, batch.counts, four),
        lambda: step(state._replace(position=state.position[..., :3])),
        lambda: step(factor=square),
        lambda: step(factor=torch.eye(4).double().expand(4, 4, 4)),
        lambda: step(loading=form.loading[:3]),
        lambda: step(loading=form.loading[:, :3], loc=four[:3]),
        lambda: step(loc=torch.ones(4, 4).double()),
        lambda: step(concentration=four[:3]),
        lambda: step(drawn=numbers._replace(momentum=wide)),
        lambda: step(drawn=numbers._replace(step_uniform=four[None])),
        lambda: step(state._replace(likelihood_gradient=wide)),
        lambda: fused_kernels.word_counts(weights, words, batch, four),
        lambda: fused_kernels.word_counts(weights[:4], words, batch, batch.counts),
        lambda: fused_kernels.expected_counts(weights.float(), words, batch, 1e-9),
        lambda: fused_kernels.expected_counts(weights, words, batch.to(dtype=torch.float32), 1e-9),
    ]
    for call in wrong:
        with pytest.raises(ConfigError):
            call()


def test_models_and_settings_share_their_compiled_kernels(numba) -> None:
    """Another type of an array or a number would cost many seconds of compiling."""
    from torch_lntm.kernels import compiled

    batch, kernel = make_batch(np.ones((5, 6))), compiled.ops.visit

    def move(name: str, jitter: float) -> int:
        model = getattr(lntm.models, name)(4, 6, **F64)
        Chains(model, HMCSettings(1, "prior", 1, jitter=jitter), batch, 1).advance()
        return len(kernel.signatures)

    number = move("ctm", 0.1)
    assert move("iftm", 0.1) == move("lntm", 0) == number


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_counts_at_extreme_weights_are_equal(dtype, numba, monkeypatch) -> None:
    batch, topics = (
        make_batch(np.ones((6, 7)), dtype=dtype),
        torch.linspace(0.1, 0.9, 14).view(2, 7).to(dtype),
    )
    rows = [[1, 2], [math.inf, 1], [math.nan, 1], [0, 0], [1e38, 3e38], [-1, 1e-3]]
    weights = torch.tensor(rows, dtype=dtype)

    def run() -> list[Tensor]:
        counts = expected_counts(weights, topics, batch, word_counts=True)
        assert counts.word_counts is not None
        return list(counts)

    require_equal(run, monkeypatch, 10 * torch.finfo(dtype).eps)


def test_maps_are_diagonal_only_where_their_last_rows_are(numba) -> None:
    from torch_lntm.kernels.compiled import _chart

    diagonal = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 4.0]])
    dense = diagonal + torch.tensor([[0.0], [0.0], [5.0]])
    assert [len(_chart(torch.zeros(2), x).push) for x in (diagonal, dense)] == [1, 3]
    assert _chart(torch.zeros(2), diagonal).scale[:2].tolist() == [3.0, 4.0]


def test_elementary_functions_are_exact_to_rounding(numba) -> None:
    ops = pytest.importorskip("torch_lntm.kernels.numba_ops.vectors")
    from numba import njit

    @njit
    def exp(x):
        for i in range(0, len(x), ops.WIDTH):
            ops.store(x, i, ops.exp(ops.load(x, i)))

    @njit
    def log(x):
        for i in range(0, len(x), ops.WIDTH):
            ops.store(x, i, ops.log(ops.load(x, i)))

    def of_all(function, x):
        padded = np.resize(x, -(-len(x) // ops.WIDTH) * ops.WIDTH)
        function(padded)
        return padded[: len(x)]

    for dtype, error, lowest in ((np.float32, 1.3e-7, -87.0), (np.float64, 3e-16, -708.0)):
        x = np.concatenate([np.linspace(lowest, 0.0, 5001), -np.logspace(-10, 1, 500)])[1:]
        x = x.astype(dtype)
        y = of_all(exp, x)
        exact = np.exp(x.astype(np.longdouble))
        assert np.abs(y / exact - 1).max() < error
        special = np.array([np.nan, -np.inf, -1e30, 0.0], dtype)
        np.testing.assert_array_equal(of_all(exp, special), [np.nan, 0.0, 0.0, 1.0])
        smallest = -28 if dtype == np.float32 else -298
        x = np.concatenate([np.logspace(smallest, 3, 5001), 1 + np.linspace(-1e-3, 1e-3, 501)])
        x = x.astype(dtype)
        y = of_all(log, x)
        exact = np.log(x.astype(np.longdouble))
        assert (np.abs(y - exact) <= error * np.abs(exact)).all()


@pytest.mark.stat
@pytest.mark.parametrize("name", ["ctm", "lntm", "iftm", "laplace sources", "lda", "bursty"])
def test_ranks_of_true_proportions_are_uniform(name, numba) -> None:
    """Simulation-based calibration: 3,000 documents of the model, 19 thinned draws of each."""
    model = spread_(MODELS[name](make_corpus())).to(torch.float32)
    corpus, latents = model.generate(np.random.default_rng(5).integers(2, 80, 3000), seed=11)
    truth = model.theta(latents[model.prior.latent])
    settings = HMCSettings(1, "prior", 8, seed=99)
    chains = Chains(model, settings, corpus.batch(dtype=torch.float32), warmup_steps=100)
    chains.advance(100)
    rank = torch.zeros(truth.shape, dtype=torch.int64)
    for _ in range(19):
        chains.advance(8)
        rank += model.theta(chains.latents[model.prior.latent])[0] < truth
    values = [scipy.stats.chisquare(x.bincount(minlength=20)).pvalue for x in rank.T]
    assert min(values) * len(values) > 1e-3
