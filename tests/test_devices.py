"""Every model, guide, engine and evaluation on an accelerator, against the same on the CPU.

Without ``--device cuda`` the accelerator is the pretend one, which refuses what CUDA refuses: a
tensor of the wrong device anywhere in these calls is an error here. The documents are few and
short, for every operation is slow there.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pytest
import torch
from oracles.grids import Quadrature
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from support.pretend import suspended
from torch import Tensor

import torch_lntm as lntm
from studies.scores.accuracy import posterior_accuracy
from torch_lntm import noise
from torch_lntm.cli import main
from torch_lntm.evaluation import AIS, ais_bracket, document_completion, log_likelihood

# On the CPU these repeat what other tests do.
pytestmark = pytest.mark.slow

NUM_TOPICS, NUM_WORDS, NUM_SOURCES = 3, 15, 2
CPU = torch.device("cpu")

PAIRS = [
    *(
        (family, guide)
        for family in ("ctm", "lntm")
        for guide in ("TaylorGuide", "LaplaceGuide", "BleiLaffertyGuide", "KhanBouchardGuide")
    ),
    *(("anchored ctm", guide) for guide in ("TaylorGuide", "KhanBouchardGuide")),
    *(("gaussian iftm", guide) for guide in ("TaylorGuide", "LaplaceGuide", "FactorGuide")),
    ("laplace iftm", "FactorGuide"),
    *(("lda", guide) for guide in ("DirichletGuide", "EPGuide")),
]
DEFAULTS = {
    "ctm": "TaylorGuide",
    "anchored ctm": "TaylorGuide",
    "lntm": "TaylorGuide",
    "gaussian iftm": "FactorGuide",
    "laplace iftm": "FactorGuide",
    "lda": "DirichletGuide",
}
WITH_ETA = [family for family in DEFAULTS if family != "lda"]

each_pair = pytest.mark.parametrize(("family", "guide"), PAIRS)
each_family = pytest.mark.parametrize("family", DEFAULTS)
each_family_with_eta = pytest.mark.parametrize("family", WITH_ETA)

Values = dict[str, Any]
#: What belongs on the device of the work, and what on the CPU.
Both = tuple[Values, Values]


def make_corpus() -> lntm.Corpus:
    rng = np.random.default_rng(0)
    counts = np.stack([rng.multinomial(n, rng.dirichlet(np.ones(NUM_WORDS)))
                       for n in (9, 14, 0, 6, 1, 11, 8, 12)])  # fmt: skip
    return lntm.Corpus.from_matrix(counts, [f"w{v}" for v in range(NUM_WORDS)])


CORPUS = make_corpus()


def make_model(family: str, device: torch.device, num_topics: int = NUM_TOPICS) -> Any:
    rng = np.random.default_rng(1)
    sizes = (num_topics, NUM_WORDS)
    topics = torch.from_numpy(rng.dirichlet(np.full(NUM_WORDS, 0.5), num_topics) + 1e-2)
    options: Values = {"dtype": "float64", "vocabulary": CORPUS.vocabulary}
    options["topics"] = topics / topics.sum(1, keepdim=True)
    if family.endswith("ctm"):
        model = lntm.models.ctm(*sizes, anchored=family.startswith("anchored"), **options)
    elif family == "lntm":
        model = lntm.models.lntm(*sizes, **options)
    elif family.endswith("iftm"):
        options["source"] = family.split()[0]
        model = lntm.models.iftm(*sizes, min(NUM_SOURCES, num_topics - 1), **options)
    else:
        model = lntm.models.lda(*sizes, **options)
    return model.to(device)


def make_guide(name: str, model: Any) -> Any:
    return getattr(lntm.guides, name)(model)


@pytest.fixture(autouse=True)
def few_draws_are_expected() -> Iterator[None]:
    """So few documents and draws are unreliable, as the package says by warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The tensors and numbers in what a call returned, by name."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from flat(item, f"{name}[{i}]")
    elif value is not None:
        yield name, value


def check(found: Values, expected: Values | None, place: torch.device) -> None:
    """Finite values in their place that agree with the CPU's."""
    reference = dict(flat(expected, "")) if expected is not None else {}
    values = dict(flat(found, ""))
    assert values
    if expected is not None:
        assert values.keys() == reference.keys()
    for name, value in values.items():
        if isinstance(value, Tensor):
            assert value.device.type == place.type, f"{name} is on {value.device}"
            value = value.detach().cpu()
        if isinstance(value, str):
            assert expected is None or value == reference[name]
            continue
        tensor = torch.as_tensor(value).double()
        assert bool(tensor.isfinite().all()), f"{name} is {value}"
        if expected is not None:
            same = torch.as_tensor(reference[name]).double()
            torch.testing.assert_close({name: tensor}, {name: same}, rtol=1e-6, atol=1e-8)


def compared(work: Callable[..., Both]) -> Callable[..., None]:
    """A test that works on both devices, and returns what stays there and what is on the CPU."""

    @functools.wraps(work)
    def test(accelerator: torch.device, **arguments: Any) -> None:
        pyro.clear_param_store()
        there, host = work(accelerator, **arguments)
        with suspended():
            expected_there, expected_host = work(CPU, **arguments)
        if there:
            check(there, expected_there, accelerator)
        if host:
            check(host, expected_host, CPU)

    return test


# -- guides and engines ------------------------------------------------------------------------


@each_pair
@compared
def test_posterior(accelerator: torch.device, family: str, guide: str) -> Both:
    model = make_model(family, accelerator)
    solver = make_guide(guide, model)
    batch = CORPUS[:4].batch(device=accelerator, dtype=torch.float64)
    posterior = solver.posterior(batch)
    values = {
        "mean": posterior.mean,
        "covariance": posterior.covariance,
        "mode": posterior.theta_mode(),
        "theta": posterior.theta_mean(20, seed=1),
        "samples": posterior.theta_samples(3, seed=1),
        "interval": posterior.theta_interval(0.8, 20, seed=1),
        "bound": solver.bound(batch),
    }
    return values, {}


@each_pair
@compared
def test_variational_em_continues_from_its_checkpoint(
    accelerator: torch.device, family: str, guide: str, tmp_path: Path
) -> Both:
    model = make_model(family, accelerator)
    path = tmp_path / accelerator.type
    for tolerance in (1e9, 1e-9):  # the second fit goes on where the first one ends
        options = {"max_iterations": 2, "tolerance": tolerance, "stepwise_epochs": 1, "seed": 1}
        engine = lntm.inference.VariationalEM(
            model, make_guide(guide, model), start="documents", progress=False, **options
        )
        result = engine.fit(CORPUS, checkpoint=path, checkpoint_seconds=0.0)
    objective = [record["objective"] for record in result.history if record["phase"] == "em"]
    return dict(model.named_parameters()), {"means": result.means, "objective": objective}


@pytest.mark.parametrize(
    ("family", "options"),
    [
        *(
            (family, {"annealing": lntm.inference.Annealing((0.5, 1.0), (0.5, 1.0), iterations=1)})
            for family in ("ctm", "lntm")
        ),
        *((family, {"restarts": 2}) for family in ("ctm", "laplace iftm", "lda")),
    ],
)
@compared
def test_annealing_and_restarts(accelerator: torch.device, family: str, options: Values) -> Both:
    model = make_model(family, accelerator)
    engine = lntm.inference.VariationalEM(
        model, make_guide(DEFAULTS[family], model), max_iterations=1, start_epochs=1,
        stepwise_epochs=1, progress=False, **options,
    )  # fmt: skip
    result = engine.fit(CORPUS)
    return dict(model.named_parameters()), {"means": result.means}


@each_pair
def test_svi(accelerator: torch.device, family: str, guide: str) -> None:
    pyro.clear_param_store()
    model = make_model(family, accelerator)
    svi = SVI(model, make_guide(guide, model), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    pyro.set_rng_seed(0)
    batch = CORPUS[3:5].batch(device=accelerator, dtype=torch.float64)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    losses = [svi.step(batch), svi.evaluate_loss(batch)]
    check({"losses": losses}, None, CPU)
    check(dict(model.named_parameters()), None, accelerator)
    assert any(bool((value != before[name]).any()) for name, value in model.named_parameters())


@each_family
def test_predictive(accelerator: torch.device, family: str) -> None:
    model = make_model(family, accelerator)
    batch = CORPUS[:3].batch(device=accelerator, dtype=torch.float64)
    latent = model.prior.latent
    guide = make_guide(DEFAULTS[family], model)
    draws = Predictive(model, guide=guide, num_samples=1, return_sites=(latent,))(batch)
    assert draws[latent].shape == (1, 3, model.latent_dim)
    check(draws, None, accelerator)


@each_family_with_eta
@compared
def test_monte_carlo_em_continues_from_its_checkpoint(
    accelerator: torch.device, family: str, tmp_path: Path
) -> Both:
    model = make_model(family, accelerator)
    for _ in range(2):
        engine = lntm.inference.MonteCarloEM(
            model, num_chains=2, num_transitions=1, num_steps=2, max_epochs=2, batch_size=4,
            start="documents", progress=False,
        )  # fmt: skip
        result = engine.fit(CORPUS, checkpoint=tmp_path / accelerator.type, checkpoint_seconds=0.0)
    chains = {name: value.nan_to_num(7.0) for name, value in result.chains.latents.items()}
    return dict(model.named_parameters()), {"means": result.means, "chains": chains}


@pytest.mark.parametrize(
    ("family", "metric"),
    [
        *((family, metric) for family in WITH_ETA for metric in ("identity", "prior", "taylor")),
        *((family, "laplace") for family in WITH_ETA if not family.endswith("iftm")),
    ],
)
@compared
def test_document_hmc(accelerator: torch.device, family: str, metric: str) -> Both:
    model = make_model(family, accelerator)
    kernel = lntm.inference.DocumentHMC(
        model, num_chains=2, mass_matrix=metric, num_steps=2, seed=1
    )
    samples = kernel.run(
        CORPUS[:3].batch(device=accelerator), num_draws=4, warmup_steps=2, progress=False
    )
    names = ("index", "acceptance", "step_size", "moved")
    return {}, {**samples.latents, **{name: getattr(samples, name) for name in names}}


@each_family_with_eta
def test_diagnostics_of_document_hmc(accelerator: torch.device, family: str) -> None:
    model = make_model(family, accelerator)
    kernel = lntm.inference.DocumentHMC(model, num_chains=2, num_steps=2)
    samples = kernel.run(CORPUS[:2].batch(device=accelerator), 8, warmup_steps=4, progress=False)
    moved = samples.moved.any(0)
    quantities = ("theta", *samples.latents)
    # Theta is a function of the model's, as draws are kept on the CPU.
    for quantity in quantities:
        summaries = {
            name: getattr(samples, name)(quantity)[moved]
            for name in ("mean", "std", "effective_sample_size", "mcse")
        }
        check(summaries, None, CPU)
    assert samples.theta().shape == (2, 8, 2, NUM_TOPICS)


@each_family
@pytest.mark.parametrize("kernel", ["nuts", "hmc"])
def test_mcmc(accelerator: torch.device, family: str, kernel: str) -> None:
    if kernel == "hmc" and family == "lda":
        pytest.skip("Hamiltonian chains move eta")
    model = make_model(family, accelerator)
    made = NUTS(model, max_tree_depth=2)
    if kernel == "hmc":
        made = lntm.inference.DocumentHMC(model, num_steps=2)
    mcmc = MCMC(made, num_samples=1, warmup_steps=1, disable_progbar=True)
    pyro.set_rng_seed(0)
    mcmc.run(CORPUS[:2].batch(device=accelerator, dtype=torch.float64))
    check(mcmc.get_samples(), None, accelerator)


@each_family
@compared
def test_bound_density(accelerator: torch.device, family: str) -> Both:
    model = make_model(family, accelerator)
    batch = CORPUS[:3].batch(device=accelerator, dtype=torch.float64)
    target = model.bind(batch)
    z = target.draw_prior(noise.document_keys(0, batch.index, 2))
    correlation = model.topic_correlation()
    return {
        "joint": target.log_joint(z),
        "gradient": target.likelihood(z)[1],
        "correlation": correlation,
    }, {}


# -- evaluation --------------------------------------------------------------------------------


@pytest.mark.parametrize("predictive", ["mode", "mean", "integrated"])
@each_pair
@compared
def test_completion(accelerator: torch.device, family: str, guide: str, predictive: str) -> Both:
    model = make_model(family, accelerator)
    result = document_completion(
        model, CORPUS[:4], guide=make_guide(guide, model), theta=predictive, num_draws=5
    )
    return {}, {"scores": result.log_predictive, "perplexity": result.perplexity}


def estimated(estimate: Any) -> Values:
    return {
        "values": estimate.log_likelihood,
        "errors": estimate.standard_error,
        "total": estimate.nats_per_token,
    }


@pytest.mark.parametrize(
    ("family", "guide", "num_topics"),
    [
        *((*pair, NUM_TOPICS) for pair in PAIRS),
        *((family, None, n) for family in DEFAULTS if family != "laplace iftm" for n in (2, 3)),
    ],
)
@compared
def test_importance_sampling_and_quadrature(
    accelerator: torch.device, family: str, guide: str | None, num_topics: int
) -> Both:
    model = make_model(family, accelerator, num_topics)
    if guide is None:
        return {}, estimated(log_likelihood(model, CORPUS[:2], method=Quadrature(41)))
    sampled = {"method": "importance", "guide": make_guide(guide, model), "num_draws": 25}
    return {}, estimated(log_likelihood(model, CORPUS[:3], **sampled))


@each_family
@compared
def test_annealed_importance_sampling(accelerator: torch.device, family: str) -> Both:
    model, settings = make_model(family, accelerator), AIS(2, num_temperatures=4, num_steps=1)
    estimate = log_likelihood(model, CORPUS[:3], method=settings, seed=1)
    bracket = ais_bracket(model, [4, 6], settings, seed=1)
    check({"gap": bracket.gap}, None, CPU)
    return {}, estimated(estimate)


@pytest.mark.parametrize("family", ["ctm", "gaussian iftm", "lda"])  # the slowest test
def test_posterior_accuracy(accelerator: torch.device, family: str) -> None:
    model = make_model(family, accelerator)
    guides = {guide: make_guide(guide, model) for of, guide in PAIRS if of == family}
    found = posterior_accuracy(
        model, guides, CORPUS, num_docs=1, num_chains=2, num_draws=100, warmup_steps=2
    )
    errors = {name: accuracy.mean_error for name, accuracy in found.guides.items()}
    assert errors.keys() == guides.keys()
    check({"errors": errors, "noise": found.noise.total_variation}, None, CPU)


# -- documents, files and the command line -----------------------------------------------------


@each_family
def test_generate(accelerator: torch.device, family: str) -> None:
    model = make_model(family, accelerator)
    corpus, latents = model.generate([5, 0, 9], seed=2)
    assert corpus.lengths.tolist() == [5, 0, 9]
    check(latents, None, accelerator)
    again, _ = model.generate([5, 0, 9], seed=2)
    assert (again.to_scipy() != corpus.to_scipy()).nnz == 0


@each_family
def test_saving_and_loading(accelerator: torch.device, family: str, tmp_path: Path) -> None:
    model = make_model(family, accelerator)
    lntm.save_model(model, tmp_path / "model")
    loaded = lntm.load_model(tmp_path / "model")
    check(dict(loaded.named_parameters()), dict(model.cpu().named_parameters()), CPU)


@each_family
@compared
def test_reports(accelerator: torch.device, family: str) -> Both:
    report = lntm.reports
    model = make_model(family, accelerator)
    guide = make_guide(DEFAULTS[family], model)
    documents = lntm.inference.transform(guide, CORPUS[:4])
    mean = lntm.inference.transform(guide, CORPUS[:4], estimate="mean", num_draws=5)
    shares = lntm.inference.topic_shares(guide, CORPUS[:4])
    scores = [*report.coherence_scores(model, CORPUS, 3), report.diversity_score(model, 3)]
    host = {
        "theta": documents.theta,
        "mean": mean.theta,
        "shares": shares,
        "topics": str(model.topic_table(shares, num_correlated=2)),
        "scores": lntm.frames.Rows(scores).frame().to_csv(),
    }
    if family.endswith("iftm"):
        host["sources"] = str(report.summarise_sources(model))
        for name in (guide for of, guide in PAIRS if of == family):
            activity = lntm.inference.transform(make_guide(name, model), CORPUS[:4]).sources
            host[name] = [activity.mean, activity.std]
    return {}, host


@each_family
def test_pictures(accelerator: torch.device, family: str) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    model = make_model(family, accelerator)
    posterior = make_guide(DEFAULTS[family], model).posterior(CORPUS[:2].batch(device=accelerator))
    labels = lntm.reports.topic_labels(model)
    assert labels == lntm.reports.topic_labels(make_model(family, CPU))
    assert lntm.plotting.correlation_graph(model).texts
    assert len(lntm.plotting.document_proportions(posterior, 1, labels=labels).lines) > 0
    if family.endswith("iftm"):
        assert lntm.plotting.source_plot(model).has_data()
    pyplot.close("all")


@compared
def test_structural_topic_models_and_their_effects(
    accelerator: torch.device,
) -> Both:
    corpus = CORPUS.with_metadata({"party": ["Left", "Right"] * 4})
    topics = torch.from_numpy(np.random.default_rng(1).dirichlet(np.ones(NUM_WORDS), NUM_TOPICS))
    model = lntm.models.stm(NUM_TOPICS, corpus, "~ party", topics=topics, dtype="float64")
    guide = lntm.guides.TaylorGuide(model.to(accelerator))
    engine = lntm.inference.VariationalEM(
        model, guide, start="model", max_iterations=2, progress=False
    )
    engine.fit(corpus)
    found = lntm.effects.estimate(model, guide, corpus, "~ party", num_draws=3)
    there = {
        "coefficients": model.prior.coefficients,
        "covariance": model.prior.coefficient_covariance(),
        "penalty": model.prior.penalty,
        "averaged": model.prior.averaged().to(accelerator).covariance,
    }
    numbers = found.frame()[["estimate", "std_error"]].to_numpy()
    return there, {"effects": torch.from_numpy(numbers)}


@pytest.mark.parametrize(
    ("model", "posteriors"),
    [
        ("ctm", ("taylor", "laplace", "blei-lafferty", "khan-bouchard", "hmc")),
        ("lntm", ("taylor", "hmc")),
        ("iftm", ("factor", "taylor", "hmc")),
        ("lda", ("vb", "ep")),
    ],
)
def test_command_line(
    accelerator: torch.device,
    model: str,
    posteriors: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    CORPUS.save("counts.npz")
    CORPUS[:2].save("others.npz")
    common = ["--device", "cuda", "--no-progress"]
    for posterior in posteriors:
        length = ["--max-iterations", "0"] if posterior != "hmc" else ["--max-epochs", "1"]
        fit = ["fit", "counts.npz", "--model", model, "--posterior", posterior, "--out", posterior]
        sources = ["--num-sources", "2"] if model == "iftm" else []
        sizes = ["--num-topics", "3", "--start", "model", *sources, *length]
        assert main([*fit, *sizes, *common]) == 0
        config = json.loads(Path(posterior, "config.json").read_text())
        assert config["device"] == "cuda"
    last = posteriors[-1]
    assert main(["transform", last, "others.npz", "--out", "theta.csv", *common]) == 0
    theta = pd.read_csv("theta.csv").filter(like="topic_").to_numpy()
    assert theta.shape == (2, 3)
    np.testing.assert_allclose(theta.sum(1), 1.0, rtol=1e-5)
    assert "Empty" not in capsys.readouterr().out  # a table without scores
    assert main(["evaluate", last, "others.npz", *common]) == 0
    assert "perplexity" in capsys.readouterr().out
    assert main(["topics", last]) == 0
