"""theta_draws and topic_shares, which draw documents' topic proportions from any source."""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.errors import IncompatibleGuideError, knows_its_options, require_whole
from torch_lntm.guides.guide import Guide, require_guide
from torch_lntm.guides.theta_draws import DrawOptions, Positions, ThetaDraws
from torch_lntm.models import TopicModel

#: Topic shares: target number of draws of all documents together, and largest number of draws of
#: one document.
SHARE_DRAWS, MOST_DRAWS = 10_000, 50


@runtime_checkable
class DrawSource(Protocol):
    """Anything that can draw documents' topic proportions.

    Guides can, and so can :class:`~torch_lntm.inference.DocumentHMC`, the chains of a fit
    (:class:`~torch_lntm.inference.KeptChains`) and existing :class:`ThetaDraws`.
    """

    @property
    def model(self) -> TopicModel:
        """The model."""

    def theta_draws(
        self, corpus: Corpus, num_draws: int | None, rows: Positions | None, options: DrawOptions
    ) -> ThetaDraws:
        """Draws of the documents; see :func:`theta_draws`."""


@knows_its_options
def theta_draws(
    source: DrawSource,
    corpus: Corpus,
    num_draws: int | None = None,
    *,
    model: TopicModel | None = None,
    rows: Positions | None = None,
    seed: int = 0,
    means: Tensor | None = None,
    coefficients: bool = False,
    warmup_steps: int = DrawOptions.warmup_steps,
    thinning: int | None = None,
    max_docs: int | None = None,
    keep: bool = True,
    progress: bool = True,
) -> ThetaDraws:
    """Draw the documents' topic proportions from their posteriors.

    Nothing is drawn until the result is first used. A document's draws depend on the model, the
    document, its position in the corpus and the seed, but not on the other documents.

    Args:
        source: Source of the draws. A guide draws from approximate posteriors, whereas
            ``DocumentHMC(model)`` runs new chains, which are exact but slower. ``result.source`` of
            a Monte-Carlo EM fit continues its chains, and existing :class:`ThetaDraws` are reused.
        corpus: The documents, over the model's vocabulary.
        num_draws: Number of draws of each document. Defaults to 25 to 50, fewer for larger corpora
            (:func:`enough_draws`). Existing :class:`ThetaDraws` default to all their draws.
        model: Model to which a guide or chains must belong. By default, every model is accepted.
        rows: ``(num_docs,)`` positions of the documents to draw. Defaults to all documents.
        seed: Seed of a guide's draws. Chains have their own seed.
        means: ``(num_docs, latent_dim)`` starting points of a guide's solver, such as
            ``result.means`` of a fit to the corpus. By default the guide chooses.
        coefficients: Whether to draw the coefficients of the prior's mean too. Only guides draw
            them, for priors with coefficients.
        warmup_steps: Transitions of a new chain before its first draw.
        thinning: Transitions of a chain from one draw to the next. Defaults to 4, and to 2 for the
            chains of a fit.
        max_docs: Number of documents computed together, to bound memory. Defaults to the number
            that fits in memory.
        keep: Whether to keep the draws in memory for later passes, up to 256 MB of float32.
        progress: Whether to show a progress bar on standard error.

    Returns:
        The draws.

    Raises:
        ConfigError: The source cannot draw, a number is out of range, or the corpus has a different
            vocabulary or number of documents.
        IncompatibleGuideError: The source belongs to another model.

    Example:
        >>> draws = lntm.inference.theta_draws(result.source, train, num_draws=25)
        >>> theta = draws.theta.numpy()  # (num_draws, num_docs, num_topics)
        >>> theta.shape == (25, len(train), model.num_topics)
        True
    """
    require_whole(1, num_draws=num_draws, max_docs=max_docs, thinning=thinning)
    require_whole(0, seed=seed, warmup_steps=warmup_steps)
    options = DrawOptions(
        seed=seed,
        means=means,
        coefficients=coefficients,
        warmup_steps=warmup_steps,
        thinning=thinning,
        max_docs=max_docs,
        keep=keep,
        progress=progress,
    )
    return require_source(source, model).theta_draws(corpus, num_draws, rows, options)


def require_source(source: object, model: TopicModel | None = None) -> DrawSource:
    """Check that draws can come from a source.

    Args:
        source: A source, or any object of a caller.
        model: Model to which a guide or chains must belong. By default, every model is accepted.

    Returns:
        The source.

    Raises:
        ConfigError: The source cannot draw.
        IncompatibleGuideError: The source belongs to another model.
    """
    if not isinstance(source, DrawSource) or isinstance(source, Guide):
        return require_guide(source, model)  # an error, unless it is a guide of this model
    if model is not None and source.model is not model and not isinstance(source, ThetaDraws):
        raise IncompatibleGuideError(
            f"{type(source).__name__} was made for another model; make a source for this model: "
            "DocumentHMC(model)"
        )
    return source


@torch.no_grad()
def topic_shares(
    source: DrawSource,
    corpus: Corpus,
    *,
    rows: NDArray[np.int64] | None = None,
    means: Tensor | None = None,
) -> Tensor:
    """Shares of the topics: posterior means of their proportions, averaged over documents.

    Every document counts the same, and the Monte-Carlo standard error of a share is at most about
    0.1 percentage points. Reports estimate the same shares from more draws, and add intervals.

    Args:
        source: Source of draws of the documents' proportions; see :func:`theta_draws`.
        corpus: The documents.
        rows: ``(num_rows,)`` positions of the documents to average over. Defaults to the documents
            with words.
        means: ``(num_docs, latent_dim)`` start of a guide's solver, such as ``result.means``.

    Returns:
        ``(num_topics,)`` float64, summing to 1.

    Example:
        >>> lntm.inference.topic_shares(guide, test).shape
        torch.Size([10])
    """
    if rows is None:
        rows = np.flatnonzero(corpus.lengths)
    num_draws = min(math.ceil(SHARE_DRAWS / len(rows)), MOST_DRAWS)
    total = torch.zeros((), dtype=torch.float64)
    for part in theta_draws(
        source, corpus, num_draws, rows=rows, means=means, keep=False, progress=False
    ):
        total = total + part.theta.double().mean(0).sum(0)
    return total / len(rows)
