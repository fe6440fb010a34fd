"""JointChain and joint_draws, which run one Markov chain over documents, topics and prior."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_lntm.corpus import Corpus, DocumentBatch
from torch_lntm.errors import CorpusError, IncompatibleGuideError, require_whole
from torch_lntm.guides import make_guide
from torch_lntm.guides.theta_draws import FIXED, ThetaDraws
from torch_lntm.inference.chains.chains import Chains, initial_latents
from torch_lntm.inference.chains.document_hmc import DocumentHMC
from torch_lntm.inference.em.variational import VariationalEM
from torch_lntm.kernels import fused
from torch_lntm.kernels.mixture import draw_topics, word_probabilities
from torch_lntm.models import TopicModel
from torch_lntm.models.parts import is_up_to_date
from torch_lntm.models.topics.pairs import pair_topics
from torch_lntm.posteriors.posterior import Draws
from torch_lntm.progress import tqdm
from torch_lntm.sampling.step_sizes import DualAveraging

#: Leapfrog steps of the documents' transitions, in coordinates with a standard normal prior.
NUM_STEPS = 5
#: Difference of the seeds of two chains.
CHAIN_SEEDS = 1000
#: Parts with draws of their own posterior, for errors.
_PRIORS = "the priors of ctm, iftm, lntm and stm"
_TOPICS = "topics without groups or periods, and with a Dirichlet prior,"


class JointChain:
    """One Markov chain over all unknown quantities: eta of the documents, topics, and the prior.

    Draws at a fitted model treat its topics and prior as known, although they were estimated from
    the same documents. This chain samples them as well, so its draws carry their uncertainty too.
    One sweep draws each quantity given all the others:

    * Each document makes a Hamiltonian transition.
    * Every token draws its topic, and each topic is then drawn given the words of its tokens, by
      ``draw_`` of the topics, which also documents their prior. For bursty words, ``draw_tokens``
      of the words first draws which tokens came from the topics.
    * The prior's parameters are drawn given the documents' latent variables, by ``draw_`` of the
      prior.

    Parameters of the words, such as the concentration of bursty words, stay fixed.

    The chain starts at the fitted model and leaves it unchanged. Topics keep their order along the
    chain, although poor topics of the fit may improve.

    Args:
        model: A fitted model.
        corpus: The documents of the fit, with the model's columns of covariates.
        warmup_steps: Number of sweeps with adapting step sizes.
        topics: Whether to draw the topics, rather than keep them fixed.
        prior: Whether to draw the prior's parameters, rather than keep them fixed.
        seed: Seed of the chain.

    Attributes:
        model: Copy of the model with the chain's current parameters.
        rows: ``(num_rows,)`` positions of the documents with words.

    Raises:
        ConfigError: A number is out of range, or the corpus has a different vocabulary.
        IncompatibleGuideError: The prior or the topics have no posterior to draw from.
        CorpusError: No document has words.

    Example:
        >>> chain = lntm.inference.JointChain(model, train[:50], warmup_steps=2)
        >>> theta = chain.sweep()  # proportions; chain.model has the drawn topics and prior
        >>> theta.shape
        torch.Size([50, 10])
    """

    def __init__(
        self,
        model: TopicModel,
        corpus: Corpus,
        *,
        warmup_steps: int,
        topics: bool = True,
        prior: bool = True,
        seed: int = 0,
    ) -> None:
        # Sweeps after warm-up need adapted step sizes, and hence at least one sweep of warm-up.
        require_whole(1, warmup_steps=warmup_steps)
        require_whole(0, seed=seed)
        corpus = model.encode(corpus)
        _require_draws(model, topics, prior)
        self.rows = corpus.nonempty
        if not len(self.rows):
            raise CorpusError("no document has words")
        self.model = copy.deepcopy(model)
        self._observe(corpus.batch(self.rows, device=model.device, dtype=model.dtype))
        self._warmup_steps = warmup_steps
        self._topics, self._prior = topics, prior
        sampler = DocumentHMC(model, mass_matrix="prior", num_steps=NUM_STEPS, seed=seed)
        self._settings = sampler.settings
        self._rng = np.random.default_rng(seed)
        means = make_guide(None, model).posterior(self._batch).mean
        self._latents = initial_latents(model, self._batch, means, 1, seed)
        self._progress: DualAveraging | None = None

    def _observe(self, batch: DocumentBatch) -> None:
        self._batch = self.model.check_batch(batch)

    @torch.no_grad()
    def sweep(self) -> Tensor:
        """Draw each quantity once.

        Returns:
            ``(num_rows, num_topics)`` float64 proportions of the documents with words.
        """
        self._move()
        theta = torch.softmax(self._logits[0].double(), -1)
        if self._topics:
            self._draw_topics(theta)
        if self._prior:
            self._draw_prior()
        return theta

    def _move(self) -> None:
        """Let each document make a Hamiltonian transition, at the present topics and prior."""
        chains = Chains(
            self.model,
            self._settings,
            self._batch,
            self._warmup_steps,
            self._latents,
            self._progress,
        )
        chains.advance()
        self._latents, self._logits, self._progress = chains.latents, chains.logits, chains.progress

    def _draw_prior(self) -> None:
        """Draw the prior's parameters given the documents' latent variables."""
        weights = torch.ones_like(self._logits[..., 0], dtype=torch.float64)
        draws = Draws(self._latents, self._logits, weights)
        prior: Any = self.model.prior
        prior.draw_(self._batch.num_docs, self._rng, **prior.statistics(draws, self._batch))

    def _draw_topics(self, theta: Tensor) -> None:
        """Draw the topic of every token, then the topics given their counts of words."""
        if not bool(theta.isfinite().all()):
            self.model.check_parameters()
        topics, batch = self.model.topics, self._batch.to(dtype=torch.float64)
        q = word_probabilities(theta, topics.double_probs, batch)
        tokens = self.model.words.draw_tokens(q, batch, self._rng)
        uniforms = torch.from_numpy(self._rng.random(int(tokens.sum())))
        words = topics.double_probs.mT.contiguous()
        counts = draw_topics(theta, words, batch, tokens, uniforms)
        topics.draw_(counts.mT.cpu(), self._rng)


@torch.no_grad()
@fused.threaded
def joint_draws(
    model: TopicModel,
    corpus: Corpus,
    *,
    num_draws: int = 100,
    num_chains: int = 1,
    thinning: int = 5,
    warmup_steps: int = 300,
    topics: bool = True,
    prior: bool = True,
    seed: int = 0,
    progress: bool = True,
) -> ThetaDraws:
    """Draw the training documents' proportions together with topics and prior.

    Intervals from these draws cover the uncertainty of topics and prior as well as that of the
    proportions, which matters if documents are short or few (``docs/structural.md``). The draws
    come from a :class:`~torch_lntm.inference.JointChain`, which moves all documents at once, so
    that memory must hold a few times ``num_docs × num_topics`` numbers.

    A chain can stay at a poor arrangement of topics. With ``num_chains``, the first chain starts at
    the topics of the model, and each other chain at those of a new fit to documents drawn with
    replacement, because fits of other seeds start from the same anchor words. All chains run on all
    documents. Effects of their draws say how well the chains agree.

    Args:
        model: The fitted model. It stays unchanged.
        corpus: The documents of the fit.
        num_draws: Number of draws of each document, from all chains together.
        num_chains: Number of chains, one after another. The topics of each are paired with those of
            the first.
        thinning: Sweeps of a chain from one draw to the next.
        warmup_steps: Sweeps before the first draw.
        topics: Whether to draw the topics too, rather than keep them fixed. Topics by ``content``
            and the topics of ``lntm`` have to stay fixed, because their posterior has no known
            form.
        prior: Whether to draw the prior's parameters too, rather than keep them fixed. The
            concentration of ``lda`` has to stay fixed, because without a prior distribution it has
            no proper posterior.
        seed: Seed of the chain.
        progress: Whether to show a progress bar on standard error.

    Returns:
        The draws of the documents with words, float32. Their ``model`` has the mean of the drawn
        topics. Label the topics of this model, because the chain may move them away from a poor
        fit.

    Raises:
        ConfigError: A number is out of range, or the corpus has other words.
        CorpusError: No document has words.
        IncompatibleGuideError: The prior or the topics have no posterior to draw from.

    Example:
        >>> draws = lntm.inference.joint_draws(
        ...     model, train[:50], num_draws=4, thinning=1, warmup_steps=3
        ... )
        >>> draws.num_draws, len(draws.rows), draws.name
        (4, 50, 'joint')
    """
    require_whole(1, num_draws=num_draws, thinning=thinning, num_chains=num_chains)
    each = math.ceil(num_draws / num_chains)
    bar = tqdm(total=num_chains * (warmup_steps + each * thinning), disable=not progress)
    options: dict[str, Any] = {"warmup_steps": warmup_steps, "topics": topics, "prior": prior}
    drawn: list[Tensor] = []
    means: list[Tensor] = []
    for number in range(num_chains):
        own_seed = seed + CHAIN_SEEDS * number
        start = _started_elsewhere(model, corpus, own_seed) if number and topics else model
        chain = JointChain(start, corpus, seed=own_seed, **options)
        theta = torch.empty(each, len(chain.rows), model.num_topics)
        probs = torch.zeros_like(model.topics.double_probs)
        for sweep in range(warmup_steps + each * thinning):
            proportions = chain.sweep()
            draw, remainder = divmod(sweep - warmup_steps + 1, thinning)
            if draw > 0 and remainder == 0:
                theta[draw - 1] = proportions.cpu().float()
                probs += chain.model.topics.double_probs / each
            bar.update()
        if number and topics:
            partner, _ = pair_topics(means[0], probs)
            theta, probs = theta[..., partner], probs[partner]
        drawn.append(theta)
        means.append(probs)
    bar.close()
    mean_model = copy.deepcopy(model)
    if topics:
        mean_model.topics.set_(torch.stack(means).mean(0))
    proportions_of = "the documents' proportions"
    sources = (
        f"{proportions_of} and their prior" if prior else proportions_of,
        "the topics' words",
    )
    chains = "one chain" if num_chains == 1 else f"{num_chains} chains"
    return replace(
        ThetaDraws.of(torch.stack(drawn, 1).flatten(0, 1), mean_model, chain.rows),
        name="joint",
        description=f"{chains} over documents, prior and topics",
        num_chains=num_chains,
        corpus=corpus,
        sources_of_uncertainty=sources if topics else sources[:1],
        fixed=(*(() if topics else FIXED[:1]), *(() if prior else ("the prior's parameters",))),
    )


def _started_elsewhere(model: TopicModel, corpus: Corpus, seed: int) -> TopicModel:
    """The model with the topics of a new fit to documents drawn with replacement."""
    corpus = model.encode(corpus)
    rows = np.random.default_rng(seed).choice(corpus.nonempty, len(corpus.nonempty))
    twin, start = copy.deepcopy(model), copy.deepcopy(model)
    engine = VariationalEM(twin, make_guide(None, twin), seed=seed, progress=False)
    with torch.enable_grad():
        engine.fit(corpus[np.sort(rows)])
    probs = twin.topics.double_probs
    start.topics.set_(probs[pair_topics(model.topics.double_probs, probs)[0]])
    return start


def _require_draws(model: TopicModel, topics: bool, prior: bool) -> None:
    """Check that the drawn parts have draws of their own posteriors.

    Raises:
        IncompatibleGuideError: A part has no draws, or a subclass changes the part and inherits the
            draws of its base class.
    """
    of_topics = ("sites", "compute_probs", "forward", "log_prior", "m_step", "set_")
    of_words = ("log_terms", "tokens", "length_term")
    for wanted, name, part, method, others, which in (
        (prior, "prior", model.prior, "draw_", ("location", "statistics"), _PRIORS),
        (topics, "topics", model.topics, "draw_", of_topics, _TOPICS),
        (topics, "topics", model.words, "draw_tokens", of_words, _TOPICS),
    ):
        if wanted and not is_up_to_date(part, method, *others):
            raise IncompatibleGuideError(
                f"{type(part).__name__} has no method {method} of its own, which a joint chain "
                f"needs; {which} have it. Use joint_draws(..., {name}=False) in Python to keep the "
                f"{name} fixed"
            )
