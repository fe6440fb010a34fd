"""``log_likelihood``: methods by name and as objects, with their options."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from oracles.grids import Quadrature
from support.pairs import FAMILIES, make_model

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError, CorpusError, IncompatibleGuideError, NumericalError
from torch_lntm.evaluation import (
    AIS,
    Importance,
    LikelihoodEstimate,
    LikelihoodMethod,
    log_likelihood,
)
from torch_lntm.guides import DirichletGuide, FactorGuide, TaylorGuide
from torch_lntm.models import TopicModel, ctm
from torch_lntm.models.priors.normal import NormalPrior
from torch_lntm.models.priors.prior import DocumentPrior


def some_documents(model: TopicModel) -> Corpus:
    return model.generate([3, 0, 9], seed=0)[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*are not reliable:UserWarning")
@pytest.mark.parametrize("family", FAMILIES)
def test_a_name_with_options_equals_the_method_object(family: str) -> None:
    model = make_model(family)
    corpus = some_documents(model)
    for name, options, method in [
        ("importance", {"num_draws": 50}, Importance(num_draws=50)),
        ("ais", {"num_chains": 3, "num_temperatures": 6}, AIS(num_chains=3, num_temperatures=6)),
    ]:
        by_name = log_likelihood(model, corpus, name, seed=3, **options)
        by_object = log_likelihood(model, corpus, method, seed=3)
        itself = method.estimate(model, corpus, seed=3)
        assert torch.equal(by_name.log_likelihood, by_object.log_likelihood)
        assert torch.equal(by_name.log_likelihood, itself.log_likelihood)
        assert by_name.description == itself.description
        assert by_name.method == name
        assert by_name.seed == 3


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((), {"num_draws": 24}, "num_draws is 24; expected at least 25"),
        (("exact",), {}, "method is 'exact'; expected one of importance, ais"),
        ((), {"proposal": "normal"}, "proposal is 'normal'; expected one of student_t, gaussian"),
        ((), {"seed": -1}, "seed is -1"),
        ((), {"max_docs": 0}, "max_docs is 0"),
        ((), {"num_chains": 2}, "num_chains is no option of method importance"),
        (("ais",), {"num_draws": 50}, "num_draws is no option of method ais"),
        (("ais",), {"guide": "any"}, "guide is no option of method ais; expected some of num_ch"),
        ((AIS(),), {"num_chains": 2}, r"num_chains given beside .* give them to AIS"),
    ],
)
def test_invalid_settings_are_refused(arguments: tuple, settings: dict, message: str) -> None:
    model = make_model("ctm")
    with pytest.raises(ConfigError, match=message):
        log_likelihood(model, some_documents(model), *arguments, **settings)


def test_model_and_corpus_in_the_wrong_order_are_refused() -> None:
    model = make_model("ctm")
    corpus = some_documents(model)
    for method in ("importance", "ais"):
        with pytest.raises(ConfigError, match="got a Corpus; the model comes first"):
            log_likelihood(corpus, model, method)
        with pytest.raises(ConfigError, match="expected a topic model, got a str"):
            log_likelihood("model", corpus, method)
        with pytest.raises(CorpusError, match=r"counts must be a matrix .* got a TopicModel"):
            log_likelihood(model, model, method)
        with pytest.raises(ConfigError, match="the corpus has 3 words and the model 15"):
            log_likelihood(model, np.ones((2, 3), int), method)


#: For each kind of space: a model, a guide, the tensor of its posterior's centre, a change of it
#: after which the posterior is improper, and one after which it is astray.
SPACES = {
    "ctm": (TaylorGuide, "mean", lambda x: x.fill_(math.nan), lambda x: x.add_(20.0 * x.sign())),
    "laplace iftm": (
        FactorGuide,
        "source_mean",
        lambda x: x.fill_(math.inf),
        lambda x: x.add_(9.0),
    ),
    "lda": (DirichletGuide, "gamma", lambda x: x.fill_(-0.1), lambda x: x.mul_(100.0)),
}


def changed_guide(kind: type, name: str, change: Callable, rows: slice) -> type:
    """A guide whose posteriors of some documents are changed."""

    class Changed(kind):
        def posterior(self, batch, init=None, **kwargs):
            found = super().posterior(batch, init, **kwargs)
            change(getattr(found, name)[rows])
            return found

    return Changed


@pytest.mark.parametrize("family", SPACES)
def test_guides_and_posteriors_that_cannot_be_drawn_from_are_refused(family: str) -> None:
    kind, name, spoil, _ = SPACES[family]
    model, other = make_model(family), make_model(family)
    corpus, _ = model.generate([5, 9, 4], seed=0)
    with pytest.raises(IncompatibleGuideError, match=rf"another model.*{kind.__name__}\(model\)"):
        log_likelihood(model, corpus, guide=kind(other))
    broken = changed_guide(kind, name, spoil, slice(1, 2))(model)
    with pytest.raises(NumericalError, match="first at position 1") as caught:
        log_likelihood(model, corpus, guide=broken)
    assert caught.value.documents == (1,)
    with torch.no_grad():
        next(model.prior.parameters()).view(-1)[0] = math.nan
    with pytest.raises(NumericalError, match=r"parameter prior\.\w+ is not finite"):
        log_likelihood(model, corpus, AIS(num_temperatures=5))


@pytest.mark.parametrize("family", SPACES)
def test_heavy_tailed_weights_give_a_warning(family: str) -> None:
    kind, name, _, astray = SPACES[family]
    model = make_model(family)
    corpus, _ = model.generate([40] * 10, seed=0)
    proposal = "dirichlet" if family == "lda" else None
    with pytest.warns(UserWarning, match=r"of 10 documents have .*Pareto k above 0.7") as caught:
        log_likelihood(
            model,
            corpus,
            guide=changed_guide(kind, name, astray, slice(None))(model),
            proposal=proposal,
        )
    assert caught[0].filename == __file__


@pytest.mark.filterwarnings("ignore:.*are not reliable:UserWarning")
@pytest.mark.parametrize("proposal", [None, "dirichlet"])
@pytest.mark.parametrize("family", FAMILIES)
def test_estimates_depend_on_the_seed_but_not_on_batch_and_device(
    family: str, proposal: str | None, device: torch.device
) -> None:
    if proposal and family != "lda":
        pytest.skip("a proposal for Dirichlet priors")
    model = make_model(family)
    corpus, _ = model.generate([3, 0, 9, 20, 1, 0, 7, 12, 2, 30], seed=0)
    options = {"num_draws": 100, "proposal": proposal}
    base = log_likelihood(model, corpus, **options)
    parts = log_likelihood(model, corpus, max_docs=7, **options)
    other = log_likelihood(model, corpus, seed=1, **options)
    there = log_likelihood(model.to(device), corpus, **options)
    torch.testing.assert_close(base.log_likelihood, parts.log_likelihood, atol=1e-5, rtol=0)
    torch.testing.assert_close(base.log_likelihood, there.log_likelihood, atol=1e-5, rtol=0)
    assert not torch.allclose(base.log_likelihood, other.log_likelihood, atol=1e-5)
    assert base.log_likelihood[[1, 5]].tolist() == [0.0, 0.0]


def test_a_method_from_outside_the_package_works() -> None:
    class Certain(LikelihoodMethod):
        name = "certain"

        def compute(self, model, corpus, seed, max_docs, progress):
            zeros = torch.zeros(corpus.num_docs)
            return LikelihoodEstimate(zeros, zeros, zeros, self.name, "none", max_docs, seed)

    model = make_model("ctm")
    found = log_likelihood(model, some_documents(model), Certain(), seed=5, max_docs=2)
    assert (found.method, found.seed, found.num_draws) == ("certain", 5, 2)
    with pytest.raises(ConfigError, match="expected a topic model"):
        Certain().estimate("model", some_documents(model))


def test_a_prior_without_identified_coordinates_is_refused() -> None:
    class Silent(DocumentPrior):
        num_topics = 4

    model = make_model("ctm")
    corpus = some_documents(model)
    model.prior = Silent()
    with pytest.raises(NotImplementedError, match="Silent does not define identified"):
        log_likelihood(model, corpus)


def test_float32_topics_over_a_long_vocabulary_are_normalised() -> None:
    # A softmax in float32 over so many words does not add up to 1 by more than rounding.
    num_words = 30_000
    model = ctm(2, num_words)
    model.topics.m_step(torch.tensor(np.random.default_rng(0).poisson(0.01, (2, num_words)) * 1.0))
    single = torch.zeros(1, num_words)
    single[0, 0] = 1.0
    words = torch.softmax(model.topics.logits.detach().double(), 0).mT
    estimate = log_likelihood(model, Corpus.from_matrix(single.int().numpy()), Quadrature())
    # The prior is symmetric in the topics, so that each has probability 1/2.
    expected = words[:, 0].mean().log()
    torch.testing.assert_close(estimate.log_likelihood[0], expected, atol=1e-9, rtol=0)


class Shifted(NormalPrior):
    """A prior that is not in the package: its mean is the documents' covariate times a slope."""

    kind = "shifted"

    def __init__(self) -> None:
        super().__init__(3)
        self.slope = torch.nn.Parameter(torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64))
        self.std = torch.tensor([0.7, 1.3, 1.0], dtype=torch.float64)

    def location(self, batch):
        return batch.covariates["x"][:, None] * self.slope

    @property
    def scale_tril(self):
        return self.std.diag()


@pytest.mark.filterwarnings("ignore:.*are not reliable:UserWarning")
def test_a_prior_with_covariates_scores_each_document_by_its_own_mean() -> None:
    # False-failure rate under 1e-4: eight z-scores below 4.5.
    topics = torch.tensor(np.random.default_rng(0).dirichlet(np.ones(8), 3))
    inner = ctm(3, 8, topics=topics, dtype="float64")
    model = TopicModel(Shifted(), inner.topics)
    x = np.array([-1.0, 0.0, 0.5, 2.0])
    counts = np.random.default_rng(1).poisson(2.0, (4, 8))
    corpus = Corpus.from_matrix(counts).with_covariates({"x": x})
    truth = log_likelihood(model, corpus, Quadrature(), max_docs=3).log_likelihood
    for d in range(4):
        alone = ctm(
            3,
            8,
            loc=model.prior.slope.detach() * float(x[d]),
            covariance=model.prior.std.square().diag(),
            topics=topics,
            dtype="float64",
        )
        expected = log_likelihood(alone, counts[d : d + 1], Quadrature()).log_likelihood
        torch.testing.assert_close(truth[d : d + 1], expected, atol=1e-8, rtol=0)
    for method in (Importance(), AIS(num_chains=40, num_temperatures=15)):
        estimate = method.estimate(model, corpus, max_docs=3)
        z = (estimate.log_likelihood - truth).expm1() / estimate.standard_error
        assert float(z.abs().max()) < 4.5
