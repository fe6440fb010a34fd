"""Every model, guide, engine and evaluation on an accelerator, against the same on the CPU.

Without ``--device cuda`` the accelerator is the pretend one, which refuses what CUDA refuses: a
tensor of the wrong device anywhere in these calls is an error here. The documents are few and
short, for every operation is slow there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pytest
import torch
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from support.pretend import suspended
from torch import Tensor

import torch_lntm as lntm
from torch_lntm import noise
from torch_lntm.cli import main
from torch_lntm.evaluation import AIS, ais_bracket, document_completion, log_likelihood

pytestmark = [
    pytest.mark.long,
    # So few documents and draws are unreliable, as the package says by warnings.
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

NUM_TOPICS, NUM_WORDS = 3, 15
CPU = torch.device("cpu")
#: The guides of each family. The first is the family's own.
GUIDES = {
    "ctm": ("TaylorGuide", "LaplaceGuide", "BleiLaffertyGuide", "KhanBouchardGuide"),
    "anchored ctm": ("TaylorGuide", "KhanBouchardGuide"),
    "lntm": ("TaylorGuide", "LaplaceGuide", "BleiLaffertyGuide", "KhanBouchardGuide"),
    "gaussian iftm": ("FactorGuide", "TaylorGuide", "LaplaceGuide"),
    "laplace iftm": ("FactorGuide",),
    "lda": ("DirichletGuide", "EPGuide"),
}
WITH_ETA = [family for family in GUIDES if family != "lda"]
each_family = pytest.mark.parametrize("family", GUIDES)
each_pair = pytest.mark.parametrize(
    ("family", "guide"), [(family, guide) for family in GUIDES for guide in GUIDES[family]]
)

Values = dict[str, Any]
#: What belongs on the device of the work, and what on the CPU.
Both = tuple[Values, Values]


def make_corpus() -> lntm.Corpus:
    rng = np.random.default_rng(0)
    lengths = (9, 14, 0, 6, 1, 11, 8, 12)
    counts = [rng.multinomial(n, rng.dirichlet(np.ones(NUM_WORDS))) for n in lengths]
    corpus = lntm.Corpus.from_matrix(np.stack(counts), [f"w{v}" for v in range(NUM_WORDS)])
    return corpus.with_metadata({"party": ["Left", "Right"] * 4})


CORPUS = make_corpus()


def make_model(family: str, device: torch.device) -> Any:
    rng = np.random.default_rng(1)
    topics = torch.from_numpy(rng.dirichlet(np.full(NUM_WORDS, 0.5), NUM_TOPICS) + 1e-2)
    options: Values = {"dtype": "float64", "vocabulary": CORPUS.vocabulary}
    options["topics"] = topics / topics.sum(1, keepdim=True)
    kind, _, name = family.rpartition(" ")
    sizes: tuple[int, ...] = (NUM_TOPICS, NUM_WORDS)
    if kind == "anchored":
        options["anchored"] = True
    elif kind:
        options["source"], sizes = kind, (*sizes, 2)
    return getattr(lntm.models, name)(*sizes, **options).to(device)


def make_guide(model: Any, name: str) -> Any:
    return getattr(lntm.guides, name)(model)


def check(found: Values, place: torch.device, expected: Values | None = None) -> None:
    """Finite values in their place that agree with the CPU's."""
    assert found
    for name, value in found.items():
        if isinstance(value, Tensor):
            assert value.device.type == place.type, f"{name} is on {value.device}"
            value = value.detach().cpu()
        tensor = torch.as_tensor(value).double()
        assert bool(tensor.isfinite().all()), f"{name} is {value}"
        if expected is not None:
            same = torch.as_tensor(expected[name]).double().detach()
            torch.testing.assert_close({name: tensor}, {name: same}, rtol=1e-6, atol=1e-8)


def compare(accelerator: torch.device, work: Callable[[torch.device], Both]) -> None:
    """Compare work on both devices: what stays on the device, and what is on the CPU."""
    there, host = work(accelerator)
    with suspended():
        expected_there, expected_host = work(CPU)
    if there:
        check(there, accelerator, expected_there)
    if host:
        check(host, CPU, expected_host)


def batch_of(num_docs: int, device: torch.device) -> lntm.corpus.DocumentBatch:
    return CORPUS[:num_docs].batch(device=device, dtype=torch.float64)


@each_pair
def test_posteriors_and_what_is_computed_from_them(accelerator, family, guide) -> None:
    def work(device: torch.device) -> Both:
        model = make_model(family, device)
        solver, batch = make_guide(model, guide), batch_of(4, device)
        posterior = solver.posterior(batch)
        there = {
            "mean": posterior.mean,
            "covariance": posterior.covariance,
            "mode": posterior.theta_mode(),
            "theta": posterior.theta_mean(20, seed=1),
            "samples": posterior.theta_samples(3, seed=1),
            "interval": torch.stack(tuple(posterior.theta_interval(0.8, 20, seed=1))),
            "bound": solver.bound(batch),
        }
        sampled = log_likelihood(model, CORPUS[:3], method="importance", guide=solver, num_draws=25)
        host = {"importance": sampled.log_likelihood, "error": sampled.standard_error}
        for theta in ("mode", "mean"):
            completion = document_completion(
                model, CORPUS[:4], guide=solver, theta=theta, num_draws=5
            )
            host[theta] = completion.log_predictive
        return there, host

    compare(accelerator, work)


@each_pair
def test_variational_em_continues_from_its_checkpoint(accelerator, family, guide, tmp_path) -> None:
    def work(device: torch.device) -> Both:
        model = make_model(family, device)
        for tolerance in (1e9, 1e-9):  # the second fit goes on where the first one ends
            options = {"max_iterations": 2, "tolerance": tolerance, "stepwise_epochs": 1, "seed": 1}
            engine = lntm.inference.VariationalEM(
                model, make_guide(model, guide), start="documents", progress=False, **options
            )
            result = engine.fit(CORPUS, checkpoint=tmp_path / device.type, checkpoint_seconds=0.0)
        objective = [record["objective"] for record in result.history if record["phase"] == "em"]
        return dict(model.named_parameters()), {"means": result.means, "objective": objective}

    compare(accelerator, work)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("ctm", {"annealing": lntm.inference.Annealing((0.5, 1.0), (0.5, 1.0), iterations=1)}),
        *((family, {"restarts": 2}) for family in ("ctm", "laplace iftm", "lda")),
    ],
)
def test_annealing_and_restarts(accelerator, family, options) -> None:
    def work(device: torch.device) -> Both:
        model = make_model(family, device)
        engine = lntm.inference.VariationalEM(
            model, make_guide(model, GUIDES[family][0]), max_iterations=1, start_epochs=1,
            stepwise_epochs=1, progress=False, **options,
        )  # fmt: skip
        return dict(model.named_parameters()), {"means": engine.fit(CORPUS).means}

    compare(accelerator, work)


@pytest.mark.parametrize("family", WITH_ETA)
def test_monte_carlo_em_continues_from_its_checkpoint(accelerator, family, tmp_path) -> None:
    def work(device: torch.device) -> Both:
        model = make_model(family, device)
        for _ in range(2):
            engine = lntm.inference.MonteCarloEM(
                model, num_chains=2, num_transitions=1, num_steps=2, max_epochs=2, batch_size=4,
                start="documents", progress=False,
            )  # fmt: skip
            result = engine.fit(CORPUS, checkpoint=tmp_path / device.type, checkpoint_seconds=0.0)
        chains = {name: value.nan_to_num(7.0) for name, value in result.chains.latents.items()}
        return dict(model.named_parameters()), {"means": result.means, **chains}

    compare(accelerator, work)


@pytest.mark.parametrize(
    ("family", "metric"),
    [
        *((family, metric) for family in WITH_ETA for metric in ("identity", "prior")),
        *((family, "laplace") for family in WITH_ETA if not family.endswith("iftm")),
    ],
)
def test_document_hmc(accelerator, family, metric) -> None:
    def work(device: torch.device) -> Both:
        kernel = lntm.inference.DocumentHMC(
            make_model(family, device), num_chains=2, mass_matrix=metric, num_steps=2, seed=1
        )
        samples = kernel.run(
            CORPUS[:3].batch(device=device), num_draws=4, warmup_steps=2, progress=False
        )
        names = ("index", "acceptance", "step_size", "moved")
        found = {**samples.latents, "theta": samples.theta()}
        return {}, found | {name: getattr(samples, name) for name in names}

    compare(accelerator, work)


@each_family
def test_densities_evidence_files_and_reports(accelerator, family, tmp_path) -> None:
    def work(device: torch.device) -> Both:
        model = make_model(family, device)
        batch = batch_of(3, device)
        target = model.bind(batch)
        z = target.draw_prior(noise.document_keys(0, batch.index, 2))
        there = {
            "joint": torch.stack(target.log_joint(z)),
            "gradient": target.likelihood(z)[1],
            "correlation": model.topic_correlation(),
        }
        settings = AIS(2, num_temperatures=4, num_steps=1)
        estimate = log_likelihood(model, CORPUS[:3], method=settings, seed=1)
        guide = make_guide(model, GUIDES[family][0])
        host = {
            "evidence": estimate.log_likelihood,
            "error": estimate.standard_error,
            "theta": lntm.inference.transform(guide, CORPUS[:4]).theta,
            "mean": lntm.inference.transform(guide, CORPUS[:4], estimate="mean", num_draws=5).theta,
            "shares": lntm.inference.topic_shares(guide, CORPUS[:4]),
            "coherence": lntm.reports.topic_scores(model, CORPUS, top_n=3)["value"].tolist(),
        }
        if family.endswith("iftm"):
            sources = lntm.inference.transform(make_guide(model, "FactorGuide"), CORPUS[:4]).sources
            host |= {"sources": sources.mean, "deviations": sources.std}
        lntm.save_model(model, tmp_path / device.type)
        loaded = lntm.load_model(tmp_path / device.type)
        return there, host | dict(loaded.named_parameters())

    compare(accelerator, work)
    model = make_model(family, accelerator)
    check(
        {"gap": ais_bracket(model, [4, 6], AIS(2, num_temperatures=4, num_steps=1), seed=1).gap},
        CPU,
    )
    corpus, latents = model.generate([5, 0, 9], seed=2)
    assert corpus.lengths.tolist() == [5, 0, 9]
    check(latents, accelerator)


@each_family
def test_pyro_trains_predicts_and_samples(accelerator, family) -> None:
    pyro.clear_param_store()
    model = make_model(family, accelerator)
    guide = make_guide(model, GUIDES[family][0])
    batch, latent = batch_of(2, accelerator), model.prior.latent
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    draws = Predictive(model, guide=guide, num_samples=1, return_sites=(latent,))(batch)
    assert draws[latent].shape == (1, 2, model.latent_dim)
    check(draws, accelerator)
    kernels = [NUTS(model, max_tree_depth=2)]
    if family != "lda":  # Hamiltonian chains move eta
        kernels.append(lntm.inference.DocumentHMC(model, num_steps=2))
    for kernel in kernels:
        mcmc = MCMC(kernel, num_samples=1, warmup_steps=1, disable_progbar=True)
        pyro.set_rng_seed(0)
        mcmc.run(batch)
        check(mcmc.get_samples(), accelerator)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    check({"losses": [svi.step(batch), svi.evaluate_loss(batch)]}, CPU)
    check(dict(model.named_parameters()), accelerator)
    assert any(bool((value != before[name]).any()) for name, value in model.named_parameters())


@each_pair
def test_svi_takes_documents_on_the_cpu(accelerator, family, guide) -> None:
    pyro.clear_param_store()
    model, batch = make_model(family, accelerator), batch_of(2, CPU)
    svi = SVI(model, make_guide(model, guide), pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    check({"loss": svi.step(batch)}, CPU)


def test_structural_topic_models_and_their_effects(accelerator) -> None:
    topics = torch.from_numpy(np.random.default_rng(1).dirichlet(np.ones(NUM_WORDS), NUM_TOPICS))
    options = {"topics": topics, "word_vectors": np.eye(NUM_WORDS, 4) + 1.0, "dtype": "float64"}

    def work(device: torch.device) -> Both:
        model = lntm.models.stm(NUM_TOPICS, CORPUS, "~ party", **options)
        guide = lntm.guides.TaylorGuide(model.to(device))
        engine = lntm.inference.VariationalEM(
            model, guide, start="vectors", max_iterations=2, progress=False
        )
        engine.fit(CORPUS)
        found = lntm.effects.estimate(model, guide, CORPUS, "~ party", num_draws=3)
        there = {
            "coefficients": model.prior.coefficients,
            "covariance": model.prior.coefficient_covariance(),
            "penalty": model.prior.penalty,
            "strength": model.topics.meaning.strength,
            "topic_vectors": model.topics.meaning.topic_vectors,
            "new_words": model.with_words(["new"], {"new": np.ones(4)}).topics.probs,
            "averaged": model.prior.averaged().to(device).covariance,
        }
        return there, {"effects": found.table()[["estimate", "std_error"]].to_numpy()}

    compare(accelerator, work)


@pytest.mark.parametrize(
    ("model", "posterior"), [("ctm", "taylor"), ("lntm", "hmc"), ("iftm", "factor"), ("lda", "ep")]
)
def test_command_line(accelerator, model, posterior, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    CORPUS.save("counts")
    CORPUS[:2].save("others")
    common = ["--device", "cuda", "--no-progress"]
    sizes = ["--num-topics", "3", "--start", "model"]
    sizes += ["--max-epochs", "1"] if posterior == "hmc" else ["--max-iterations", "0"]
    sizes += ["--num-sources", "2"] if model == "iftm" else []
    fit = ["fit", "counts", "--model", model, "--posterior", posterior, "--out", "run"]
    assert main([*fit, *sizes, *common]) == 0
    assert json.loads(Path("run", "config.json").read_text())["device"] == "cuda"
    assert main(["transform", "run", "others", "--out", "theta.csv", *common]) == 0
    theta = pd.read_csv("theta.csv").filter(like="topic_").to_numpy()
    assert theta.shape == (2, 3)
    np.testing.assert_allclose(theta.sum(1), 1.0, rtol=1e-5)
    # The chains of exact completion take minutes on the pretend device after a fit by chains.
    completion = ["--theta", "exact" if model == "ctm" else "mode"]
    assert main(["evaluate", "run", "others", *completion, *common]) == 0
    assert "perplexity" in capsys.readouterr().out
    assert main(["topics", "run"]) == 0
