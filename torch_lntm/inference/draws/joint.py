"""joint_draws: draws of documents, topics and prior together."""

from __future__ import annotations

import copy

import torch

from torch_lntm.corpus import Corpus
from torch_lntm.errors import require_whole
from torch_lntm.inference.chains.joint import JointChain
from torch_lntm.inference.draws.theta import FIXED, ThetaDraws
from torch_lntm.models import TopicModel
from torch_lntm.progress import tqdm


@torch.no_grad()
def joint_draws(
    model: TopicModel,
    corpus: Corpus,
    *,
    num_draws: int = 100,
    thinning: int = 5,
    warmup_steps: int = 300,
    topics: bool = True,
    prior: bool = True,
    seed: int = 0,
    progress: bool = False,
) -> ThetaDraws:
    """Draws of the training documents' proportions together with topics and prior.

    Intervals from these draws include the uncertainty of proportions, topics and prior. The
    uncertainty of topics and prior matters if documents are short or few (``docs/structural.md``).
    One :class:`~torch_lntm.inference.JointChain` makes the draws. All documents move at once, which
    needs memory for a few times ``num_docs × num_topics`` numbers.

    Args:
        model: The fitted model. It stays unchanged.
        corpus: The documents of the fit.
        num_draws: Number of draws of each document.
        thinning: Sweeps of the chain from one draw to the next.
        warmup_steps: Sweeps before the first draw.
        topics: Whether to draw the topics too. If False, they stay fixed. Topics by ``content`` and
            the topics of ``lntm`` have no posterior of a known form, and have to stay fixed.
        prior: Whether to draw the prior's parameters too. If False, they stay fixed. The
            concentration of ``lda`` has to stay fixed: it has no prior distribution, and therefore
            no proper posterior.
        seed: Seed of the chain.
        progress: Whether to show a progress bar on standard error.

    Returns:
        The draws of the documents with words, float32. Their ``model`` has the mean of the drawn
        topics. Label the topics of this model: the chain may move the topics away from a poor fit.

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
    require_whole(1, num_draws=num_draws, thinning=thinning)
    chain = JointChain(
        model, corpus, warmup_steps=warmup_steps, topics=topics, prior=prior, seed=seed
    )
    theta = torch.empty(num_draws, len(chain.rows), model.num_topics)
    probs = torch.zeros_like(model.topics.double_probs)
    for sweep in tqdm(range(warmup_steps + num_draws * thinning), disable=not progress):
        proportions = chain.sweep()
        draw, remainder = divmod(sweep - warmup_steps + 1, thinning)
        if draw > 0 and remainder == 0:
            theta[draw - 1] = proportions.cpu().float()
            probs += chain.model.topics.double_probs / num_draws
    mean_model = copy.deepcopy(model)
    if topics:
        mean_model.topics.set_(probs)
    proportions_of = "the documents' proportions"
    drawn = (f"{proportions_of} and their prior" if prior else proportions_of, "the topics' words")
    return ThetaDraws.of(
        theta,
        mean_model,
        chain.rows,
        name="joint",
        description="one chain over documents, prior and topics",
        sources_of_uncertainty=drawn if topics else drawn[:1],
        fixed=(*(() if topics else FIXED[:1]), *(() if prior else ("the prior's parameters",))),
    )
