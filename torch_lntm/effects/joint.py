"""Draws of documents, topics and prior together, for effects that hold what a fit leaves open."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.effects.composition import LEFT_OPEN
from torch_lntm.errors import require_whole
from torch_lntm.inference import JointChain
from torch_lntm.models import TopicModel
from torch_lntm.progress import tqdm


@dataclass(frozen=True, eq=False)
class JointDraws:
    """Draws of the documents' proportions from one chain over documents, prior and topics.

    Attributes:
        theta: ``(num_draws, num_docs, num_topics)`` float32, on the CPU; of a document without
            words, which takes no part in effects, all topics are equal.
        model: The fitted model, with the mean of the topics drawn. Where the fit's topics were
            poor, these are other ones: label them anew.
        topics: Whether the topics were drawn too; else they were taken as known.
    """

    theta: Tensor
    model: TopicModel
    topics: bool

    @property
    def propagated(self) -> tuple[str, ...]:
        """What the draws are of, in words."""
        drawn = ("the documents' proportions and their prior", "the topics' words")
        return drawn if self.topics else drawn[:1]

    @property
    def left_open(self) -> tuple[str, ...]:
        """What the fit leaves open and is not in the draws."""
        return () if self.topics else LEFT_OPEN[:1]


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
) -> JointDraws:
    """Draws of the training documents' proportions, topics and prior drawn too, for ``estimate``.

    They hold what the corpus leaves open of all of these, which matters where documents are short
    or few (``docs/structural.md``): see :class:`~torch_lntm.inference.JointChain`. All documents
    move at once, in memory of a few times ``num_docs × num_topics`` numbers.

    Args:
        model: The fitted model, which is not changed.
        corpus: The documents that it was fitted to.
        num_draws: Draws of each document.
        thinning: Sweeps of the chain from one draw to the next.
        warmup_steps: Sweeps before the first draw.
        topics: Whether to draw the topics too; else they are known.
        seed: Seed of the chain.
        progress: Show a progress bar on standard error.

    Returns:
        The draws.

    Raises:
        ConfigError: A number that cannot be used, or a corpus over other words.
        CorpusError: No document has words.
        IncompatibleGuideError: The prior or the topics have no posterior to draw from.
    """
    require_whole(1, num_draws=num_draws, thinning=thinning)
    chain = JointChain(model, corpus, warmup_steps=warmup_steps, topics=topics, seed=seed)
    theta = torch.full((num_draws, corpus.num_docs, model.num_topics), 1.0 / model.num_topics)
    probs = torch.zeros_like(model.topics.double_probs)
    for sweep in tqdm(range(warmup_steps + num_draws * thinning), disable=not progress):
        found = chain.sweep()
        draw, rest = divmod(sweep - warmup_steps + 1, thinning)
        if draw > 0 and rest == 0:
            theta[draw - 1, chain.rows] = found.cpu().float()
            probs += chain.model.topics.double_probs / num_draws
    fitted = copy.deepcopy(model)
    if topics:
        fitted.topics.set_(probs)
    return JointDraws(theta, fitted, topics)
