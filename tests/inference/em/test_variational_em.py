"""Variational EM: fixed points, monotonicity, recovery, interruption and continuation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.pairs import each_pair
from torch import Tensor

from torch_lntm.corpus import Corpus, DocumentBatch, synthetic_topics
from torch_lntm.errors import ConfigError, CorpusError, NumericalError
from torch_lntm.guides import GUIDES, BleiLaffertyGuide, EPGuide, TaylorGuide, make_guide
from torch_lntm.inference import Annealing, FitResult, VariationalEM, expected_statistics
from torch_lntm.models import TopicModel, ctm, iftm, lda, lntm

EXACT = {"tolerance": 1e-12, "max_iterations": 300}


def make_corpus(num_docs: int = 120, num_words: int = 40, length: int = 80) -> Corpus:
    covariance = torch.tensor([[1.5, 0.9, 0.0], [0.9, 1.5, 0.0], [0.0, 0.0, 1.5]])
    truth = ctm(
        3, num_words, covariance=covariance, topics=synthetic_topics(3, num_words, 0.2, seed=7)
    )
    lengths = torch.randint(1, 2 * length, (num_docs,), generator=torch.Generator().manual_seed(0))
    return truth.generate(lengths, seed=1)[0]


def make_model(family: str, num_topics: int, num_words: int, **options: Any) -> TopicModel:
    if family == "ctm":
        return ctm(num_topics, num_words, **options)
    if family == "lda":
        return lda(num_topics, num_words, **options)
    if family == "lntm":
        return lntm(num_topics, num_words, **options)
    source: Any = "gaussian" if "gaussian" in family else "laplace"
    return iftm(num_topics, num_words, 2, source=source, **options)


def fit(
    corpus: Corpus,
    posterior: str = "taylor",
    family: str = "ctm",
    device: torch.device | str = "cpu",
    **options: Any,
) -> tuple[TopicModel, FitResult]:
    fit_options = {k: options.pop(k) for k in ("checkpoint", "checkpoint_seconds") if k in options}
    model_options = {k: options.pop(k) for k in ("num_topics", "dtype", "anchored") if k in options}
    num_topics = model_options.pop("num_topics", 3)
    model = make_model(
        family, num_topics, corpus.num_words, **{"dtype": "float64", **model_options}
    ).to(device)
    guide = make_guide(posterior, model, tolerance=1e-8, max_iterations=200)
    return model, VariationalEM(model, guide, progress=False, **options).fit(corpus, **fit_options)


def parameters(model: TopicModel) -> list[Tensor]:
    state = model.state_dict()
    return [model.topics.probs, *(state[name] for name in sorted(state) if "prior" in name)]


def assert_same(a: TopicModel, b: TopicModel, **tolerances: float) -> None:
    for x, y in zip(parameters(a), parameters(b), strict=True):
        torch.testing.assert_close(x, y, **tolerances)


@each_pair
def test_batching_does_not_change_an_em_iteration(
    family: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GUIDES[name], "em_effort", EXACT)
    corpus = make_corpus()
    options = {"start": "model", "max_iterations": 2, "tolerance": 0.0}
    whole, a = fit(corpus, name, family, **options)
    parts, b = fit(corpus, name, family, max_docs=17, **options)
    # The solver stops anywhere within its tolerance of the posterior.
    assert_same(whole, parts, rtol=1e-5, atol=1e-6)
    assert a.history[-1]["objective"] == pytest.approx(b.history[-1]["objective"], rel=1e-9)


def test_a_whole_fit_does_not_depend_on_the_documents_solved_at_once() -> None:
    corpus = make_corpus()
    options = {"start_epochs": 3, "stepwise_epochs": 3, "max_iterations": 2, "tolerance": 0.0}
    assert_same(
        fit(corpus, **options)[0], fit(corpus, max_docs=7, **options)[0], rtol=1e-9, atol=1e-10
    )


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("ctm", "blei-lafferty"),
        ("ctm", "khan-bouchard"),
        ("iftm(source='gaussian')", "factor"),
        ("iftm(source='laplace')", "factor"),
        ("lda", "vb"),
    ],
)
def test_em_never_lowers_the_bound(family: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GUIDES[name], "em_effort", EXACT)
    _, result = fit(make_corpus(), name, family, max_iterations=15, tolerance=0.0)
    objectives = [r["objective"] for r in result.history if r["phase"] == "em"]
    assert len(objectives) == 16
    steps = np.diff(objectives)
    assert (steps > -1e-9).all()
    assert steps[0] > 1e-6


def matched_error(found: Tensor, truth: Tensor) -> float:
    """Mean total variation between topics under the best matching."""
    distance = 0.5 * (found[:, None] - truth[None]).abs().sum(-1)
    return min(
        sum(distance[i, j].item() for i, j in enumerate(p)) / len(truth)
        for p in itertools.permutations(range(len(truth)))
    )


def assert_topics_recovered(model: TopicModel) -> None:
    truth = synthetic_topics(3, 40, 0.2, seed=7)
    apart = 0.5 * (truth[:, None] - truth[None]).abs().sum(-1)
    closest = (apart + torch.eye(3)).min().item()
    assert matched_error(model.topics.probs.detach().double(), truth) < 0.1 * closest


@each_pair
def test_topics_are_recovered_by_every_guide(family: str, name: str) -> None:
    model, _ = fit(make_corpus(num_docs=600, length=150), name, family)
    assert_topics_recovered(model)


@each_pair
def test_a_fit_is_the_same_on_every_device(family: str, name: str, device: torch.device) -> None:
    corpus = make_corpus(60)
    options = {"start_epochs": 3, "stepwise_epochs": 1, "max_iterations": 1}
    there, a = fit(corpus, name, family, device, **options)
    here, b = fit(corpus, name, family, "cpu", **options)
    assert there.device.type == device.type
    assert a.means.device.type == "cpu"
    objectives = [[record["objective"] for record in result.history] for result in (a, b)]
    np.testing.assert_allclose(*objectives, rtol=1e-8)
    assert_same(there.cpu(), here, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("anchored", [False, True])
def test_topics_and_correlations_are_recovered(anchored: bool) -> None:
    corpus = make_corpus(num_docs=600, length=150)
    model, result = fit(corpus, anchored=anchored, tolerance=1e-5)
    assert result.stop_reason == "converged"
    assert_topics_recovered(model)
    # Topics 0 and 1 of the truth share a covariance of 0.9; the third is independent.
    pairs = model.topic_correlation()[tuple(torch.triu_indices(3, 3, 1))].sort().values
    assert pairs[2] > pairs[1] + 0.2


def centred(matrix: Tensor) -> Tensor:
    return matrix - matrix.mean(0)


@pytest.mark.parametrize("name", ["factor", "taylor"])
def test_the_covariance_of_gaussian_sources_is_recovered(name: str) -> None:
    """Its contrasts: neither A alone nor the shift of all logits is identified."""
    truth = source_truth("gaussian")
    corpus, _ = truth.generate([400] * 1500, seed=2)
    model = fit_from(truth, corpus, name)
    expected, found = truth.prior.contrast_covariance(), model.prior.contrast_covariance()
    assert (found - expected).norm() < 0.2 * expected.norm()
    correlation = truth.topic_correlation()
    pairs = tuple(torch.triu_indices(6, 6, 1))
    assert (model.topic_correlation()[pairs] - correlation[pairs]).abs().mean() < 0.1


def test_laplace_sources_are_recovered_up_to_sign_and_order() -> None:
    truth = source_truth("laplace")
    corpus, _ = truth.generate([400] * 1500, seed=2)
    model = fit_from(truth, corpus, "factor")
    truth.prior.canonicalise_()
    columns, expected = model.prior.centred_mixing(), truth.prior.centred_mixing()
    cosine = (columns.mT @ expected) / columns.norm(dim=0)[:, None] / expected.norm(dim=0)
    assert cosine.abs().max(0).values.min() > 0.95
    assert sorted(cosine.abs().argmax(0).tolist()) == [0, 1]
    # A rotation by 45 degrees, which Gaussian sources could not tell, would leave 0.71.
    norms = columns.norm(dim=0)[cosine.abs().argmax(0)]
    torch.testing.assert_close(norms, expected.norm(dim=0), rtol=0.25, atol=0.0)


def source_truth(source: Any) -> TopicModel:
    """Six topics in words of their own, two sources that mix them differently."""
    topics = 0.02 / 30 + 0.98 * torch.eye(6).repeat_interleave(5, 1) / 5
    mixing = torch.tensor([[1.5, 0.0], [1.5, 0.0], [-1.5, 0], [0, 1.2], [0, -1.2], [0, 0]])
    return iftm(
        6, 30, 2, source=source, mixing=mixing + 1e-3, noise_precision=torch.full((6,), 10.0),
        topics=topics, dtype="float64",
    )  # fmt: skip


def fit_from(truth: TopicModel, corpus: Corpus, name: str) -> TopicModel:
    """A fit that knows the topics' number and where they are, not the prior."""
    model = iftm(
        6, 30, 2, source=truth.prior.source, topics=truth.topics.probs.detach(), dtype="float64",
        pseudo_documents=1.0,
    )  # fmt: skip
    guide = make_guide(name, model)
    VariationalEM(
        model, guide, start="model", max_iterations=150, tolerance=1e-7, progress=False
    ).fit(corpus)
    return model


def test_annealing_at_temperature_one_is_plain_em() -> None:
    corpus = make_corpus()
    options = {"start": "documents", "stepwise_epochs": 0, "tolerance": 0.0}
    plain, _ = fit(corpus, max_iterations=5, **options)
    annealed, _ = fit(corpus, max_iterations=2, annealing=Annealing((1.0,), (1.0,), 3), **options)
    assert_same(plain, annealed, rtol=0, atol=0)


def test_the_papers_annealing_runs_its_schedule_and_parts_the_topics_again() -> None:
    model, result = fit(make_corpus(), annealing="ahmed-xing", start="documents", max_iterations=3)
    apart = 0.5 * (model.topics.probs[:, None] - model.topics.probs[None]).abs().sum(-1)
    assert (apart + torch.eye(3)).min() > 0.2
    steps = [
        (r["temperature"], r["topic_temperature"])
        for r in result.history
        if r["phase"] == "annealing"
    ]
    assert [pair for pair, _ in itertools.groupby(steps)] == [
        (0.1, 0.25),
        (0.25, 0.75),
        (0.5, 1.0),
        (1.0, 1.0),
    ]
    assert not any(r["phase"] == "stepwise" for r in result.history)


@pytest.mark.parametrize(("family", "name"), [("ctm", "taylor"), ("lda", "ep"), ("lda", "vb")])
def test_empty_documents_take_no_part_and_stay_in_the_output(family: str, name: str) -> None:
    corpus = make_corpus(60)
    rows = corpus.to_scipy().toarray()
    padded = Corpus.from_matrix(np.insert(rows, [0, 30, 60], 0, axis=0))
    a, _ = fit(corpus, name, family, max_iterations=2)
    b, result = fit(padded, name, family, max_iterations=2)
    assert_same(a, b, rtol=0, atol=0)
    assert result.means.shape == (63, 3)
    assert torch.equal(result.means[0], b.prior.loc.detach())


@each_pair
def test_statistics_add_up(family: str, name: str) -> None:
    corpus = make_corpus(50)
    model = make_model(family, 3, corpus.num_words, dtype="float64")
    guide = make_guide(name, model, tolerance=1e-12, max_iterations=500)
    batch = corpus.batch(dtype=torch.float64)
    whole = expected_statistics(guide, batch, guide.posterior(batch))
    halves = [batch.select(torch.arange(0, 50, 2)), batch.select(torch.arange(1, 50, 2))]
    first, second = (expected_statistics(guide, h, guide.posterior(h)) for h in halves)
    total, doubled = first + second, whole.scaled(2.0)
    assert total.sums.keys() == whole.sums.keys()
    for item, value in {**vars(whole), **whole.sums}.items():
        if item == "sums":
            continue
        found = {**vars(total), **total.sums}[item]
        torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(value))
        twice = {**vars(doubled), **doubled.sums}[item]
        if item != "num_unconverged":
            torch.testing.assert_close(torch.as_tensor(twice), 2 * torch.as_tensor(value))
    assert whole.word_counts.sum().item() == pytest.approx(
        corpus.num_tokens, rel=0.05 if name == "ep" else 1e-9
    )


def test_the_same_seed_gives_the_same_fit_and_another_one_does_not() -> None:
    corpus = make_corpus()
    assert_same(fit(corpus, seed=3)[0], fit(corpus, seed=3)[0], rtol=0, atol=0)
    assert not torch.equal(fit(corpus, seed=3)[0].topics.probs, fit(corpus, seed=4)[0].topics.probs)


def test_restarts_keep_the_best_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaylorGuide, "em_effort", EXACT)
    corpus = make_corpus()
    options = {"start_epochs": 1, "stepwise_epochs": 1, "max_iterations": 0}
    _, several = fit(corpus, restarts=3, **options)
    scores = [r["objective"] for r in several.history if r["phase"] == "score"]
    assert len(scores) == 3
    assert len(set(scores)) == 3
    # EM's first E-step continues the best restart from its own means.
    assert several.history[-1]["objective"] == pytest.approx(max(scores), rel=1e-6)


class Interrupting(TaylorGuide):
    """A guide that raises once, at a chosen call."""

    calls = 0
    at = 0
    error: type[BaseException] = KeyboardInterrupt

    def posterior(self, batch: DocumentBatch, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        return super().posterior(batch, *args, **kwargs)


@pytest.mark.parametrize("at", [3, 60, 100])
def test_a_killed_fit_continues_to_the_same_result(tmp_path: Path, at: int) -> None:
    """Killed in the stepwise phase of either restart, or in EM; the checkpoint does the rest."""
    corpus = make_corpus()
    path = tmp_path / "fit.safetensors"

    def engine(guide_class: Callable[..., Any], **attributes: Any) -> VariationalEM:
        model = ctm(3, corpus.num_words, dtype="float64")
        guide = guide_class(model, tolerance=1e-8)
        guide.__dict__.update(attributes)
        guide.__class__.__repr__ = TaylorGuide.__repr__
        return VariationalEM(
            model, guide, restarts=2, start_epochs=3, stepwise_epochs=3, max_iterations=30,
            tolerance=0.0, max_docs=10, progress=False,
        )  # fmt: skip

    straight = engine(TaylorGuide)
    expected = straight.fit(corpus)
    killed = engine(Interrupting, at=at, error=RuntimeError)
    with pytest.raises(RuntimeError):
        killed.fit(corpus, checkpoint=path, checkpoint_seconds=0.0)
    # A guide's repr names its class, which a checkpoint compares.
    continued = engine(Interrupting)
    result = continued.fit(corpus, checkpoint=path)
    assert_same(straight.model, continued.model, rtol=0, atol=0)
    assert result.stop_reason == expected.stop_reason
    assert torch.equal(expected.means, result.means)
    keys = ("phase", "restart", "iteration", "objective")
    assert [[r[k] for k in keys] for r in result.history] == [
        [r[k] for k in keys] for r in expected.history
    ]


class Failing(EPGuide):
    """Expectation propagation that fails at a chosen batch."""

    calls = 0
    at = 40

    def posterior(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise RuntimeError
        return super().posterior(*args, **kwargs)


def test_a_killed_fit_goes_on_with_its_sites(tmp_path: Path) -> None:
    corpus, path = make_corpus(60), tmp_path / "fit.safetensors"

    def engine(guide_class: type[EPGuide]) -> VariationalEM:
        model = lda(3, corpus.num_words, dtype="float64")
        guide = guide_class(model, tolerance=1e-6)
        guide.__class__.__repr__ = EPGuide.__repr__  # type: ignore[method-assign]
        return VariationalEM(
            model, guide, start_epochs=3, stepwise_epochs=3, max_iterations=8, tolerance=0.0,
            max_docs=10, progress=False,
        )  # fmt: skip

    straight = engine(EPGuide)
    straight.fit(corpus)
    killed = engine(Failing)
    with pytest.raises(RuntimeError):
        killed.fit(corpus, checkpoint=path, checkpoint_seconds=0.0)
    continued = engine(Failing)
    continued.guide.at = 0  # type: ignore[attr-defined]
    result = continued.fit(corpus, checkpoint=path)
    assert_same(straight.model, continued.model, rtol=0, atol=0)
    assert result.stop_reason == "max_iterations"


def test_kept_sites_make_later_iterations_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them expectation propagation starts from nothing in each iteration."""
    passes: list[int] = []
    solve = EPGuide.posterior

    def counting(self: EPGuide, *args: Any, **kwargs: Any) -> Any:
        posterior = solve(self, *args, **kwargs)
        passes.append(int(posterior.iterations.sum()))
        return posterior

    monkeypatch.setattr(EPGuide, "posterior", counting)
    monkeypatch.setattr(EPGuide, "em_effort", {"tolerance": 1e-3, "max_iterations": 100})
    corpus = make_corpus(60)
    options = {"start": "model", "max_iterations": 10, "tolerance": 0.0}
    _, kept = fit(corpus, "ep", "lda", **options)
    with_sites = sum(passes)
    passes.clear()
    monkeypatch.setattr("torch_lntm.inference.em.phases.MAX_KEPT_NUMBERS", 0)
    _, cold = fit(corpus, "ep", "lda", **options)
    assert with_sites < 0.7 * sum(passes)
    # One M-step on, both fits are in the same place. Later, documents whose propagation has not
    # converged end at sites that depend on where it started, and the fits part.
    first, second = ([record["objective"] for record in r.history[:2]] for r in (kept, cold))
    torch.testing.assert_close(torch.tensor(first), torch.tensor(second), rtol=0.0, atol=1e-4)


def test_ctrl_c_keeps_the_last_finished_iteration() -> None:
    corpus = make_corpus()
    model = ctm(3, corpus.num_words)
    guide = Interrupting(model)
    guide.at = 12
    engine = VariationalEM(
        model, guide, start="model", max_docs=30, tolerance=0.0, max_iterations=50, progress=False
    )
    result = engine.fit(corpus)
    assert result.stop_reason == "interrupted"
    # Four batches an iteration: two whole ones before the twelfth call broke the third.
    assert [r["iteration"] for r in result.history] == [1, 2]
    short = ctm(3, corpus.num_words)
    VariationalEM(
        short, TaylorGuide(short), start="model", max_docs=30, tolerance=0.0, max_iterations=1,
        progress=False,
    ).fit(corpus)  # fmt: skip
    assert_same(model, short, rtol=0, atol=0)


def test_ctrl_c_in_a_restart_keeps_the_best_one_scored() -> None:
    corpus = make_corpus()
    model = ctm(3, corpus.num_words, dtype="float64")
    guide = Interrupting(model)
    engine = VariationalEM(
        model, guide, restarts=3, start_epochs=2, stepwise_epochs=2, progress=False
    )
    # Two stepwise epochs of eight batches and one scoring pass make up a restart.
    guide.at = 20
    result = engine.fit(corpus)
    single = ctm(3, corpus.num_words, dtype="float64")
    VariationalEM(
        single, TaylorGuide(single), start_epochs=2, stepwise_epochs=2, max_iterations=0,
        progress=False,
    ).fit(corpus)  # fmt: skip
    assert result.stop_reason == "interrupted"
    assert result.history[-1]["phase"] == "score"
    assert_same(model, single, rtol=0, atol=0)
    assert result.means.std(0).min() > 0.1


def test_a_continued_fit_honours_a_tighter_tolerance(tmp_path: Path) -> None:
    corpus = make_corpus(40)
    path = tmp_path / "fit.safetensors"
    _, loose = fit(corpus, checkpoint=path, checkpoint_seconds=0.0, tolerance=1e-2)
    _, tight = fit(corpus, checkpoint=path, tolerance=1e-6)
    assert loose.stop_reason == tight.stop_reason == "converged"
    assert len(tight.history) > len(loose.history)


def test_a_checkpoint_of_a_finished_fit_is_the_result(tmp_path: Path) -> None:
    corpus = make_corpus(30)
    path = tmp_path / "fit.safetensors"
    first, expected = fit(corpus, checkpoint=path, checkpoint_seconds=0.0)
    second, result = fit(corpus, checkpoint=path)
    assert_same(first, second, rtol=0, atol=0)
    assert result.stop_reason == expected.stop_reason == "converged"
    assert result.history == expected.history


def test_a_foreign_or_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    corpus = make_corpus(30)
    path = tmp_path / "fit.safetensors"
    fit(corpus, checkpoint=path, checkpoint_seconds=0.0, max_iterations=1)
    with pytest.raises(ConfigError, match=r"another fit \(it differs in seed\)"):
        fit(corpus, checkpoint=path, seed=1)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="not a complete checkpoint"):
        fit(corpus, checkpoint=path)


@pytest.mark.parametrize(
    "rows", [[[5]], [[1, 0]], [[0, 0], [1, 1]], np.eye(4, 6, dtype=int).tolist()]
)
@each_pair
def test_tiny_corpora_fit_without_nan(rows: list[list[int]], family: str, name: str) -> None:
    corpus = Corpus.from_matrix(np.array(rows))
    model, result = fit(corpus, name, family, num_topics=5, dtype="float32")
    assert all(torch.isfinite(value).all() for value in parameters(model))
    assert torch.isfinite(result.means).all()
    torch.testing.assert_close(model.topics.probs.sum(1), torch.ones(5))


def test_bad_settings_are_refused() -> None:
    model, other = ctm(3, 40), ctm(3, 40)
    guide = TaylorGuide(model)
    with pytest.raises(ConfigError, match="another model"):
        VariationalEM(other, guide)
    for options, match in (
        ({"max_iterations": -1}, "max_iterations is -1; expected at least 0"),
        ({"tolerance": float("nan")}, "tolerance is nan"),
        ({"start": "spectral"}, "start 'spectral'; expected one of lda, documents, model"),
        ({"annealing": "slow"}, "annealing 'slow'; expected one of ahmed-xing"),
        ({"restarts": 0}, "restarts is 0"),
        ({"restarts": 2, "start": "model"}, "all the same"),
    ):
        with pytest.raises(ConfigError, match=match):
            VariationalEM(model, guide, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="temperatures"):
        Annealing((0.5, 0.9), (1.0, 1.0))
    with pytest.raises(ConfigError, match="the corpus has 4 words and the model 40"):
        VariationalEM(model, guide).fit(Corpus.from_matrix(np.eye(4, dtype=int)))
    empty = make_corpus(10)
    empty = empty.with_counts(np.zeros_like(empty.counts))
    with pytest.raises(CorpusError, match="no tokens"):
        VariationalEM(model, guide).fit(empty)


def test_annealing_is_refused_where_a_guide_has_none() -> None:
    model = lda(3, 40)
    with pytest.raises(ConfigError, match=r"annealing is for .*TaylorGuide.*; got DirichletGuide"):
        VariationalEM(model, make_guide("vb", model), annealing="ahmed-xing")


def test_a_non_finite_objective_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = make_corpus(20)
    model = ctm(3, corpus.num_words)
    guide = BleiLaffertyGuide(model)
    solve = guide.posterior

    def broken(*args: Any, **kwargs: Any) -> Any:
        posterior = solve(*args, **kwargs)
        posterior.objective[0] = float("nan")
        return posterior

    monkeypatch.setattr(guide, "posterior", broken)
    with pytest.raises(NumericalError, match="objective became nan"):
        VariationalEM(model, guide, progress=False).fit(corpus)
