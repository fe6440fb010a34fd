"""DocumentHMC against quadrature, alone and inside Pyro, and what it says of bad runs."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pyro
import pytest
import torch
from pyro.infer import MCMC, NUTS
from pyro.ops.stats import effective_sample_size, split_gelman_rubin
from scipy import stats
from scipy.special import gammaln, softmax
from support.pairs import NUM_WORDS, make_counts, make_model
from support.problems import Problem, make_batch, random_problem

from torch_lntm import noise
from torch_lntm.corpus import DocumentBatch
from torch_lntm.errors import (
    ConfigError,
    ConvergenceWarning,
    NumericalError,
    UnreliableEstimateWarning,
)
from torch_lntm.inference.chains.chains import Chains
from torch_lntm.inference.chains.document_hmc import DocumentHMC
from torch_lntm.inference.chains.samples import DocumentSamples
from torch_lntm.inference.chains.samples import effective_sample_size as sample_size
from torch_lntm.models import TopicModel, iftm, lda
from torch_lntm.sampling.collapsed import CollapsedGibbs

pytestmark = pytest.mark.usefixtures("back_end")

#: At most 24 means a test, of chains whose effective sample size is at least 200, at 5 standard
#: errors: false-failure rate 2e-5 a test, and some for the errors' own.
ERRORS = 5.0


def quiet(kernel: DocumentHMC, *args: object, **options: object) -> DocumentSamples:
    return kernel.run(*args, progress=False, **options)  # type: ignore[arg-type]


def check_theta(samples: DocumentSamples, problem: Problem) -> None:
    """Means of theta and its squares within Monte-Carlo error of the grid's."""
    assert float(samples.rhat().max()) < 1.05
    drawn = samples.theta().double()
    draws = torch.cat([drawn, drawn.square()], -1)
    # Antithetic chains are better than independent draws, by how much they cannot tell themselves.
    size = sample_size(draws).clamp_max(draws[:, :, 0, 0].numel())
    assert float(size.min()) > 200
    mean, error = draws.mean((0, 1)), draws.flatten(0, 1).std(0) / size.sqrt()
    _, theta, weights = problem.grid()
    expected = torch.from_numpy(weights @ np.hstack([theta, theta**2]))
    assert bool(((mean - expected).abs() < ERRORS * error).all())


# -- exactness -----------------------------------------------------------------------------------


@pytest.mark.stat
@pytest.mark.parametrize(
    ("mass_matrix", "num_steps"), [("identity", 8), ("prior", 8), ("taylor", 5), ("laplace", 5)]
)
def test_moments_agree_with_quadrature(
    mass_matrix: str, num_steps: int, device: torch.device
) -> None:
    """One-word documents under a wide prior are skewed; the empty one has the prior."""
    problem = random_problem(3, lengths=(30, 1, 0, 3), scale=2.0)
    kernel = DocumentHMC(
        problem.model(device), num_chains=20, mass_matrix=mass_matrix, num_steps=num_steps
    )
    check_theta(quiet(kernel, problem.batch(device), 100, 80), problem)


def test_anchored_and_free_models_have_the_same_theta(device: torch.device) -> None:
    free = random_problem(3, lengths=(20, 0, 2), seed=1)
    difference = np.hstack([np.eye(2), -np.ones((2, 1))])
    anchored = Problem(
        free.counts, free.topics, difference @ free.loc, difference @ free.covariance @ difference.T
    )
    samples = quiet(DocumentHMC(anchored.model(device), num_chains=20), free.batch(device), 100, 80)
    assert samples.latents["eta"].shape == (20, 100, 3, 2)
    check_theta(samples, free)


def test_moments_in_single_precision_agree_with_quadrature(device: torch.device) -> None:
    problem = random_problem(3, lengths=(40, 0, 2), seed=2)
    kernel = DocumentHMC(problem.model(device, torch.float32), num_chains=20)
    samples = quiet(kernel, problem.batch(device), 100, 80)
    assert samples.latents["eta"].dtype == torch.float32
    check_theta(samples, problem)


@pytest.mark.long
def test_moments_agree_with_pyros_nuts() -> None:
    """With more topics than a grid can hold."""
    model = make_model("ctm")
    batch = make_batch(make_counts((25, 3)))
    samples = quiet(DocumentHMC(model, num_chains=20, num_steps=8), batch, 100, 80)
    pyro.set_rng_seed(0)
    mcmc = MCMC(NUTS(model), num_samples=300, warmup_steps=100, disable_progbar=True)
    mcmc.run(batch)
    both = [samples.theta().double(), model.theta(mcmc.get_samples()["eta"])[None].double()]
    means, errors = [], []
    for theta in both:
        draws = torch.cat([theta, theta.square()], -1)
        size = sample_size(draws).clamp_max(draws[:, :, 0, 0].numel())
        assert float(size.min()) > 100
        means.append(draws.mean((0, 1)))
        errors.append(draws.flatten(0, 1).std(0) / size.sqrt())
    # 16 means at 5 standard errors: false-failure rate 1e-5.
    bound = ERRORS * (errors[0].square() + errors[1].square()).sqrt()
    assert bool(((means[0] - means[1]).abs() < bound).all())


@pytest.mark.slow
@pytest.mark.stat
@pytest.mark.parametrize("source", ["gaussian", "laplace"])
@pytest.mark.parametrize(("mass_matrix", "num_steps"), [("identity", 15), ("prior", 8)])
def test_sources_agree_with_quadrature(
    source: str, mass_matrix: str, num_steps: int, device: torch.device
) -> None:
    """Two topics, one source: theta is a function of x = eta_0 − eta_1, x given s is normal."""
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(6, 0.5), 2) + 0.02
    topics /= topics.sum(1, keepdims=True)
    loc, mixing, precision = np.array([0.4, -0.2]), np.array([[1.5], [-0.5]]), np.array([4.0, 2.0])
    lengths = (25, 1, 0, 4)
    counts = np.stack([rng.multinomial(n, topics[d % 2]) for d, n in enumerate(lengths)])
    tensors = {
        name: torch.from_numpy(value)
        for name, value in (("loc", loc), ("mixing", mixing), ("noise_precision", precision))
    }
    model = iftm(
        2, 6, 1, source=source, topics=torch.from_numpy(topics), dtype="float64", **tensors
    ).to(device)
    kernel = DocumentHMC(model, num_chains=20, mass_matrix=mass_matrix, num_steps=num_steps)
    samples = quiet(kernel, make_batch(counts, device), 120, 80)

    s = np.linspace(-16, 16, 2001)
    x = np.linspace(-30, 30, 1201)
    prior = stats.norm if source == "gaussian" else stats.laplace
    centre = loc[0] - loc[1] + (mixing[0] - mixing[1]) * s
    noise = np.sqrt((1 / precision).sum())
    log_prior = prior.logpdf(s)[:, None] + stats.norm(centre[:, None], noise).logpdf(x)
    theta = 1 / (1 + np.exp(-x))
    words = np.log(theta[:, None] * topics[0] + (1 - theta[:, None]) * topics[1])
    found = {name: (samples.mean(name), samples.mcse(name)) for name in ("source", "theta")}
    squared = {**samples.latents, "source": samples.latents["source"].square()}
    squares = replace(samples, latents=squared)
    found["square"] = (squares.mean("source"), squares.mcse("source"))
    assert float(samples.effective_sample_size("source", "mean").min()) > 200
    for document, bag in enumerate(counts):
        weights = softmax(log_prior + words @ bag)
        expected = {
            "source": weights.sum(1) @ s,
            "square": weights.sum(1) @ s**2,
            "theta": weights.sum(0) @ theta,
        }
        for name, value in expected.items():
            mean, error = (float(part[document, 0]) for part in found[name])
            assert abs(mean - value) < ERRORS * error, (name, document)


def enumerated_theta(alpha: np.ndarray, topics: np.ndarray, bag: np.ndarray) -> np.ndarray:
    """Means of theta and its squares under lda, by every assignment of the tokens to topics."""
    tokens = np.repeat(np.arange(len(bag)), bag)
    total, mean = 0.0, np.zeros((2, len(alpha)))
    for z in np.ndindex(*[len(alpha)] * len(tokens)):
        assigned = np.array(z, dtype=int)
        gamma = alpha + np.bincount(assigned, minlength=len(alpha))
        p = np.prod(topics[assigned, tokens]) * np.exp(gammaln(gamma).sum())
        total += p
        mean += p * np.stack([gamma, gamma * (gamma + 1) / (gamma.sum() + 1)]) / gamma.sum()
    return (mean / total).ravel()


@pytest.mark.slow
@pytest.mark.stat
@pytest.mark.parametrize("alpha", [[0.7, 2.0, 0.3], [0.1, 0.05, 0.2]])
def test_lda_agrees_with_enumeration(alpha: list[float], device: torch.device) -> None:
    """The empty document has the prior; under small concentrations theta is at the corners.

    24 means at 5 standard errors between 30 chains, Student-t: false-failure rate 7e-4 a case.
    """
    topics = np.random.default_rng(0).dirichlet(np.full(5, 0.5), 3)
    counts = np.array([[3, 0, 1, 0, 2], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 1, 0, 4, 1]])
    model = lda(
        3, 5, concentration=torch.tensor(alpha), topics=torch.from_numpy(topics), dtype="float64"
    ).to(device)
    kernel = DocumentHMC(model, num_chains=30, num_steps=8)
    samples = quiet(kernel, make_batch(counts, device), 250, 100)
    theta = samples.theta()
    torch.testing.assert_close(theta.sum(-1), torch.ones_like(theta[..., 0]))
    chains = torch.cat([theta, theta.square()], -1).mean(1)
    error = chains.std(0) / math.sqrt(len(chains))
    assert float(error.max()) < 0.02
    phi = model.topics.probs.detach().cpu().numpy()
    concentration = model.prior.space(make_batch(counts, device)).concentration.cpu().numpy()
    expected = np.stack([enumerated_theta(concentration, phi, bag) for bag in counts])
    assert bool(((chains.mean(0) - torch.from_numpy(expected)).abs() < ERRORS * error).all())


@pytest.mark.slow
@pytest.mark.stat
def test_lda_agrees_with_gibbs_sampling() -> None:
    """In longer documents than an enumeration can hold.

    20 means at 5 standard errors between 20 chains each: false-failure rate 2e-4.
    """
    model, batch = make_model("lda"), make_batch(make_counts())
    by_hmc = quiet(DocumentHMC(model, num_chains=20, num_steps=8), batch, 200, 100)
    topics, alpha = model.topics.probs.detach(), model.prior.space(batch).concentration
    chains = CollapsedGibbs(batch, topics, alpha, num_chains=20)
    by_gibbs = torch.stack([chains.sweep() for _ in range(250)][50:], 1)
    assert float(by_hmc.rhat().max()) < 1.05
    torch.testing.assert_close(by_hmc.mean(), by_hmc.theta().mean((0, 1)))
    means = [theta.mean(1) for theta in (by_hmc.theta(), by_gibbs)]
    off = (means[0].mean(0) - means[1].mean(0)).abs()
    assert bool((off < ERRORS * ((means[0].var(0) + means[1].var(0)) / 20).sqrt()).all())


# -- documents are on their own ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("family", ["ctm", "iftm(source='laplace')", "lda"])
@pytest.mark.parametrize("settings", [{"mass_matrix": "prior"}, {"step_size": 0.3}])
def test_draws_of_a_document_do_not_depend_on_its_batch(
    family: str, settings: dict, device: torch.device
) -> None:
    """Adaptation included, or long steps, in trajectories too short to magnify the last digits."""
    settings = {"num_steps": 8, **settings}
    model = make_model(family).to(device)
    batch = make_batch(make_counts(), device)
    rows = torch.tensor([3, 1], device=device)

    def draw(part: DocumentBatch, num_chains: int = 2, seed: int = 7) -> DocumentSamples:
        return quiet(DocumentHMC(model, num_chains=num_chains, seed=seed, **settings), part, 15, 25)

    def latents(samples: DocumentSamples) -> torch.Tensor:
        return torch.cat(list(samples.latents.values()), -1)

    together, apart = draw(batch), draw(batch.select(rows))
    # A GPU's matrix products round by their shape, and 40 transitions magnify the last digits.
    tolerance = 1e-10 if device.type == "cpu" else 1e-5
    exact = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(latents(apart), latents(together)[:, :, rows.cpu()], **exact)
    torch.testing.assert_close(apart.step_size, together.step_size[:, rows.cpu()], **exact)
    # More chains are more of the same.
    torch.testing.assert_close(latents(draw(batch, 3))[:2], latents(together), **exact)
    assert not torch.allclose(latents(draw(batch, seed=8)), latents(together))
    assert not torch.allclose(latents(together)[0], latents(together)[1])


@pytest.mark.slow
@pytest.mark.stat
def test_step_sizes_reach_the_target_acceptance(device: torch.device) -> None:
    """Documents that differ a hundredfold in length, one step size each."""
    problem = random_problem(4, lengths=(5, 50, 500, 0))
    batch = problem.batch(device)
    rates = []
    for target in (0.6, 0.9):
        kernel = DocumentHMC(
            problem.model(device),
            num_chains=8,
            mass_matrix="identity",
            num_steps=5,
            target_accept=target,
        )
        samples = quiet(kernel, batch, 150, 200)
        rates.append(samples.acceptance.mean(0))
        # The acceptance at the average step size is above the average acceptance.
        assert bool((rates[-1] > target - 0.03).all())
        assert bool((rates[-1] < target + 0.2).all())
        scale = samples.step_size.mean(0)
        assert bool((scale[[3, 0, 1]] > scale[[0, 1, 2]]).all())
    assert bool((rates[1] > rates[0]).all())


@pytest.mark.long
@pytest.mark.parametrize("mass_matrix", ["prior", "laplace"])
def test_trajectories_are_at_most_a_third_of_a_period(
    mass_matrix: str, device: torch.device
) -> None:
    """Of a posterior that is the prior, with which leapfrogs of any length would be accepted."""
    problem = random_problem(4, lengths=(0, 40))
    for num_steps in (2, 5, 12):
        kernel = DocumentHMC(
            problem.model(device), num_chains=4, mass_matrix=mass_matrix, num_steps=num_steps
        )
        samples = quiet(kernel, problem.batch(device), 400, 100)
        length = samples.step_size * num_steps
        assert float(length.max()) <= 2.0 * math.pi / 3.0 + 1e-9
        assert float(length[:, 0].min()) > 1.2
        # Trajectories of such lengths nearly forget where they began.
        assert float(samples.effective_sample_size("eta")[0].min()) > 800


# -- what the samples say ------------------------------------------------------------------------


def make_samples(seed: int = 0, num_chains: int = 3, num_draws: int = 60) -> DocumentSamples:
    """Autocorrelated draws with repeats, as rejections leave them."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_chains, num_draws, 5, 4)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    eta = noise.cumsum(1) * 0.1 + noise
    eta[:, 1::7] = eta[:, 0::7][:, : eta[:, 1::7].shape[1]]
    chains = torch.ones(num_chains, 5, dtype=torch.float64)
    return DocumentSamples(
        model=make_model("ctm"),
        latents={"eta": eta},
        index=torch.arange(5),
        acceptance=chains,
        step_size=chains,
        divergences=torch.zeros(5, dtype=torch.int64),
        moved=chains.bool(),
    )


@pytest.mark.parametrize("num_draws", [60, 61, 63])
def test_diagnostics_agree_with_pyros_for_split_chains(num_draws: int) -> None:
    samples = make_samples(num_draws=num_draws)
    theta = torch.softmax(samples.latents["eta"], -1)
    torch.testing.assert_close(samples.theta(), theta)
    torch.testing.assert_close(samples.mean(), theta.mean((0, 1)))
    torch.testing.assert_close(samples.mean("eta"), samples.latents["eta"].mean((0, 1)))
    torch.testing.assert_close(samples.rhat(), split_gelman_rubin(theta))
    half = num_draws // 2

    def split_size(draws: torch.Tensor) -> torch.Tensor:
        return effective_sample_size(torch.cat([draws[:, :half], draws[:, -half:]]))

    size = samples.effective_sample_size("theta", "mean")
    torch.testing.assert_close(size, split_size(theta))
    torch.testing.assert_close(samples.mcse(), theta.flatten(0, 1).std(0) / size.sqrt())
    flat = theta.flatten(0, 1).numpy()
    scores = stats.norm.ppf((stats.rankdata(flat, axis=0) - 0.375) / (len(flat) + 0.25))
    scores = torch.from_numpy(scores).view_as(theta)
    torch.testing.assert_close(samples.effective_sample_size(), split_size(scores))
    with pytest.raises(ConfigError, match=r"theta, eta$"):
        samples.mean("source")


def test_stuck_chains_are_reported_and_left_out_of_means(device: torch.device) -> None:
    model = make_model("ctm").to(device)
    batch = make_batch(make_counts(), device)
    batch = replace(batch, index=batch.index + 40)
    step_size = torch.full((2, 5), 0.3)
    step_size[1, 2] = step_size[:, 4] = 1e6
    kernel = DocumentHMC(model, num_chains=2, step_size=step_size)
    with pytest.warns(ConvergenceWarning, match=r"3 chain\(s\) of 2 .* at positions 42, 44"):
        samples = quiet(kernel, batch, 30, 10)
    assert samples.moved.tolist() == [[True] * 4 + [False], [True, True, False, True, False]]
    assert samples.divergences.tolist() == [0, 0, 30, 0, 60]
    assert "3 stuck chains" in repr(samples)
    theta = samples.theta()
    expected = theta.mean((0, 1))
    expected[2] = theta[0, :, 2].mean(0)
    expected[4] = torch.nan
    torch.testing.assert_close(samples.mean(), expected, equal_nan=True)
    for values in (samples.rhat(), samples.mcse(), samples.effective_sample_size()):
        assert bool(values[:4].isfinite().all())
        assert bool(values[4].isnan().all())
    # The stuck chain stays in R-hat, which is the reason to look at it.
    torch.testing.assert_close(samples.rhat()[2], split_gelman_rubin(theta[:, :, 2]))
    assert float(samples.rhat()[2].max()) > 1.2


@pytest.mark.parametrize(("calls", "drawn"), [(27, 7), (12, 0)])
def test_an_interrupted_run_keeps_its_draws(
    calls: int, drawn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = make_model("ctm"), make_batch(make_counts())
    whole = quiet(DocumentHMC(model, step_size=0.3), batch, 30, 20)
    advance, count = Chains.advance, 0

    def interrupted(*args: object, **options: object) -> object:
        nonlocal count
        count += 1
        if count > calls:
            raise KeyboardInterrupt
        return advance(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Chains, "advance", interrupted)
    samples = quiet(DocumentHMC(model, step_size=0.3), batch, 30, 20)
    assert samples.interrupted
    assert not whole.interrupted
    assert samples.num_draws == drawn
    assert torch.equal(samples.latents["eta"], whole.latents["eta"][:, :drawn])
    if drawn == 0:
        with pytest.raises(ConfigError, match="0 draws"):
            samples.rhat()


# -- inside Pyro ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("num_chains", [1, 2])
@pytest.mark.parametrize("family", ["ctm", "iftm(source='gaussian')", "lda"])
def test_document_hmc_is_a_kernel_of_pyros_mcmc(
    family: str, num_chains: int, device: torch.device
) -> None:
    model = make_model(family).to(device)
    batch = make_batch(make_counts(), device)

    def run() -> MCMC:
        pyro.set_rng_seed(0)
        kernel = DocumentHMC(model, num_chains=num_chains)
        mcmc = MCMC(kernel, num_samples=12, warmup_steps=8, disable_progbar=True)
        mcmc.run(batch)
        return mcmc

    mcmc = run()
    chains = () if num_chains == 1 else (num_chains,)
    shapes = {site: tuple(draws.shape) for site, draws in mcmc.get_samples().items()}
    expected = {model.prior.latent: (12, *chains, 5, 4)}
    if "source" in family:
        expected["source"] = (12, *chains, 5, 2)
    assert shapes == expected
    again = run().get_samples()
    for site, draws in mcmc.get_samples().items():
        assert torch.equal(draws, again[site])
        assert len({float(draw.square().sum()) for draw in draws}) > 6
    diagnostics = mcmc.diagnostics()
    assert diagnostics["divergences"]["chain 0"] == []
    assert diagnostics["acceptance rate"]["chain 0"].shape == (num_chains, 5)


def test_divergences_are_sample_numbers_as_in_pyro() -> None:
    """One document of two diverges at every transition; nobody counts warm-up."""
    batch = make_batch(make_counts((30, 4)))
    batch = replace(batch, index=batch.index + 40)
    kernel = DocumentHMC(make_model("ctm"), step_size=torch.tensor([[0.3, 1e6]]))
    mcmc = MCMC(kernel, num_samples=5, warmup_steps=3, disable_progbar=True)
    with pytest.warns(ConvergenceWarning, match="at positions 41"):
        mcmc.run(batch)
    found = mcmc.diagnostics()
    assert found["divergences"]["chain 0"] == [0, 1, 2, 3, 4]
    assert found["divergent"]["chain 0"] == found["stuck"]["chain 0"] * 5 == [41] * 5


def test_chains_are_the_same_inside_and_outside_of_pyro() -> None:
    model, batch = make_model("ctm"), make_batch(make_counts())
    samples = quiet(DocumentHMC(model, seed=3), batch, 6, 4)
    kernel = DocumentHMC(model, seed=3)
    # Zero in place of Pyro's part of the seed.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randint", lambda *_: torch.zeros((), dtype=torch.int64))
        mcmc = MCMC(kernel, num_samples=6, warmup_steps=4, disable_progbar=True)
        mcmc.run(batch)
    torch.testing.assert_close(mcmc.get_samples()["eta"], samples.latents["eta"][0])


def test_chains_of_pyro_differ_from_each_other() -> None:
    """Pyro sets up one kernel again for each of its chains."""
    kernel, batch = DocumentHMC(make_model("ctm")), make_batch(make_counts())
    pyro.set_rng_seed(0)
    starts = []
    for _ in range(2):
        kernel.setup(3, batch)
        starts.append(kernel.initial_params["eta"])
        kernel.cleanup()
    assert not torch.allclose(*starts)


def test_chains_start_at_the_initial_params() -> None:
    model, batch = make_model("iftm(source='laplace')"), make_batch(make_counts())
    space = model.prior.space(batch)
    params = space.latents(space.draw(noise.document_keys(0, batch.index, 1))[0])
    # In Pyro the momentum is drawn from the global generator: no momentum may move this far.
    kernel = DocumentHMC(model, step_size=1e-12)
    samples = quiet(kernel, batch, 1, 0, initial_params=params)
    torch.testing.assert_close(samples.latents["eta"][0, 0], params["eta"])
    torch.testing.assert_close(samples.latents["source"][0, 0], params["source"])
    mcmc = MCMC(kernel, 2, 0, initial_params=params, disable_progbar=True)
    mcmc.run(batch)
    torch.testing.assert_close(mcmc.get_samples()["eta"][0], params["eta"])
    with pytest.raises(ConfigError, match="expected eta, source"):
        quiet(kernel, batch, 1, 0, initial_params={"eta": params["eta"]})
    with pytest.raises(ConfigError, match=r"initial eta of shape \(4, 4\)"):
        quiet(kernel, batch, 1, 0, initial_params={**params, "eta": params["eta"][1:]})


def test_initial_proportions_are_restored_from_their_coordinates() -> None:
    """Of lda, where many coordinates have the same proportions."""
    model, batch = make_model("lda"), make_batch(make_counts())
    theta = torch.from_numpy(np.random.default_rng(0).dirichlet(np.ones(4), (2, 5)))
    kernel = DocumentHMC(model, num_chains=2, step_size=1e-9)
    samples = quiet(kernel, batch, 1, 0, initial_params={"theta": theta})
    torch.testing.assert_close(samples.latents["theta"][:, 0], theta)


@pytest.mark.parametrize("family", ["ctm", "iftm(source='laplace')", "lda"])
def test_continued_chains_make_the_same_draws_as_uninterrupted_chains(family: str) -> None:
    """From latent variables and progress alone, as the chains of Monte-Carlo EM do."""
    model, batch = make_model(family), make_batch(make_counts())
    kernel = DocumentHMC(model, num_chains=2, num_steps=3, mass_matrix="prior", seed=5)

    def chains(**earlier: object) -> Chains:
        return Chains(model, kernel.settings, batch, 4, **earlier)  # type: ignore[arg-type]

    whole = chains()
    whole.advance(3)
    later = chains(initial=whole.latents, progress=whole.progress)
    whole.advance(3)
    later.advance(3)
    theta = model.theta(later.latents[model.prior.latent])
    torch.testing.assert_close(torch.softmax(later.logits, -1), theta)
    assert later.progress.num_updates == 6
    if family != "lda":  # many of its coordinates have the same theta, and one is drawn
        for site, values in whole.latents.items():
            torch.testing.assert_close(later.latents[site], values)
        torch.testing.assert_close(later.step_size, whole.step_size)


# -- bad input -----------------------------------------------------------------------------------


def test_the_error_for_a_nan_names_the_parameter_or_the_documents() -> None:
    model: TopicModel = make_model("ctm")
    batch = make_batch(make_counts())
    batch = replace(batch, index=batch.index + 7)
    eta = torch.zeros(5, 4, dtype=torch.float64)
    eta[3, 1] = math.nan
    with pytest.raises(NumericalError, match="position 10") as error:
        quiet(DocumentHMC(model), batch, 1, 0, initial_params={"eta": eta})
    assert error.value.documents == (10,)
    # The map to the coordinates of lda would hide it.
    theta = torch.full((5, 4), 0.25, dtype=torch.float64)
    for value in (math.nan, -math.inf):
        theta[2, 0] = value
        with pytest.raises(NumericalError, match=r"initial theta of 1 .* position 9") as error:
            quiet(DocumentHMC(make_model("lda")), batch, 1, 0, initial_params={"theta": theta})
        assert error.value.documents == (9,)
    with torch.no_grad():
        # A standard deviation of 0 leaves all densities finite.
        model.prior.unconstrained_tril[0, 0] = -math.inf
    with pytest.raises(NumericalError, match=r"prior\.unconstrained_tril"):
        quiet(DocumentHMC(model, mass_matrix="prior"), batch, 1, 0)
    with torch.no_grad():
        model.prior.loc[0] = math.nan
    with pytest.raises(NumericalError, match=r"prior\.loc"):
        quiet(DocumentHMC(model), batch, 1, 0)


@pytest.mark.parametrize(("share", "warned"), [(0.99, False), (1.01, True)])
def test_documents_too_long_for_the_dtype_are_warned_of(share: float, warned: bool) -> None:
    """Which is 0.05 nats; several documents of fewer tokens each are not."""
    bound = 0.05 / np.finfo(np.float32).eps
    model, counts = make_model("ctm", dtype="float32"), np.zeros((2, NUM_WORDS))
    counts[:, 0] = np.floor(share * bound), np.floor(0.9 * bound)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        quiet(DocumentHMC(model, step_size=1e-9), make_batch(counts), 1, 0)
    assert any(w.category is UnreliableEstimateWarning for w in said) is warned


def test_invalid_models_batches_and_settings_are_refused() -> None:
    model = make_model("ctm")
    with pytest.raises(ConfigError, match=f"over {NUM_WORDS + 1} words"):
        quiet(DocumentHMC(model), make_batch(np.ones((2, NUM_WORDS + 1))))
    for family in ("iftm(source='gaussian')", "lda"):
        with pytest.raises(ConfigError, match="'laplace'; expected one of prior, identity"):
            DocumentHMC(make_model(family), mass_matrix="laplace")
    with pytest.raises(ConfigError, match=r"'identity' does not exist .* expected one of prior"):
        quiet(DocumentHMC(make_model("lda"), mass_matrix="identity"), make_batch(make_counts()))
    for settings, named in (
        ({"mass_matrix": "full"}, "mass_matrix 'full'"),
        ({"num_chains": 0}, "num_chains is 0"),
        ({"num_steps": 0}, "num_steps is 0"),
        ({"target_accept": 1.0}, "target_accept is 1.0"),
        ({"jitter": 1.0}, "jitter 1.0"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"step_size": 0.0}, "step_size is 0.0"),
    ):
        with pytest.raises(ConfigError, match=named):
            DocumentHMC(model, **settings)  # type: ignore[arg-type]
    batch = make_batch(make_counts())
    with pytest.raises(ConfigError, match="num_draws is 0"):
        quiet(DocumentHMC(model), batch, 0)
    with pytest.raises(ConfigError, match="warmup_steps is -1"):
        quiet(DocumentHMC(model), batch, 1, -1)
    with pytest.raises(ConfigError, match="no chains yet"):
        DocumentHMC(model).sample({})


def test_theta_intervals_are_quantiles_of_the_moving_chains() -> None:
    model = lda(3, 5)
    draws = torch.distributions.Dirichlet(torch.ones(3, dtype=torch.float64)).sample((2, 101, 4))
    ones = torch.ones(2, 4)
    moved = ones.bool()
    moved[1, 2] = False  # the second chain of the third document is stuck
    samples = DocumentSamples(model, {"theta": draws}, torch.arange(4), ones, ones, ones[0], moved)
    lower, upper = samples.theta_interval(0.8)
    theta = samples.theta().double().numpy()
    expected = np.quantile(theta.reshape(-1, 4, 3), [0.1, 0.9], axis=0)
    expected[:, 2] = np.quantile(theta[0, :, 2], [0.1, 0.9], axis=0)
    np.testing.assert_allclose(lower, expected[0], rtol=1e-6)
    np.testing.assert_allclose(upper, expected[1], rtol=1e-6)
    with pytest.raises(ConfigError, match="level is 1"):
        samples.theta_interval(1.0)
