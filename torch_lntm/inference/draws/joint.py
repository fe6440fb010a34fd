"""Draws of documents, topics and prior together, whose intervals take nothing as fitted."""

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
    seed: int = 0,
    progress: bool = False,
) -> ThetaDraws:
    """Draws of the training documents' proportions, with topics and prior drawn too.

    Intervals by these draws hold what the corpus leaves open of proportions, topics and prior,
    which matters where documents are short or few (``docs/structural.md``): see
    :class:`~torch_lntm.inference.JointChain`. All documents move at once, in memory of a few times
    ``num_docs × num_topics`` numbers.

    Args:
        model: The fitted model, which is not changed.
        corpus: The documents that it was fitted to.
        num_draws: Draws of each document.
        thinning: Sweeps of the chain from one draw to the next.
        warmup_steps: Sweeps before the first draw.
        topics: Draw the topics too; otherwise they are taken as known.
        seed: Seed of the chain.
        progress: Show a progress bar on standard error.

    Returns:
        The draws of the documents with words, float32. Their ``model`` has the mean of the topics
        drawn. Topics of a poor fit move to better ones: label the topics of that model.

    Raises:
        ConfigError: A number is out of range, or the corpus has other words.
        CorpusError: No document has words.
        IncompatibleGuideError: The prior or the topics have no posterior to draw from.
    """
    require_whole(1, num_draws=num_draws, thinning=thinning)
    chain = JointChain(model, corpus, warmup_steps=warmup_steps, topics=topics, seed=seed)
    theta = torch.empty(num_draws, len(chain.rows), model.num_topics)
    probs = torch.zeros_like(model.topics.double_probs)
    for sweep in tqdm(range(warmup_steps + num_draws * thinning), disable=not progress):
        found = chain.sweep()
        draw, rest = divmod(sweep - warmup_steps + 1, thinning)
        if draw > 0 and rest == 0:
            theta[draw - 1] = found.cpu().float()
            probs += chain.model.topics.double_probs / num_draws
    fitted = copy.deepcopy(model)
    if topics:
        fitted.topics.set_(probs)
    drawn = ("the documents' proportions and their prior", "the topics' words")
    return ThetaDraws.of(
        theta,
        fitted,
        chain.rows,
        name="joint",
        description="one chain over documents, prior and topics",
        sources_of_uncertainty=drawn if topics else drawn[:1],
        fixed=() if topics else FIXED[:1],
    )
