"""theta_draws: draws of documents' topic proportions from any source."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.errors import IncompatibleGuideError, require_whole
from torch_lntm.guides.guide import require_guide
from torch_lntm.inference.chains.kept import KeptChains
from torch_lntm.inference.draws.chains import WARMUP_STEPS, ChainDraws
from torch_lntm.inference.draws.guides import GuideDraws
from torch_lntm.inference.draws.theta import Positions, ThetaDraws, enough_draws
from torch_lntm.models import TopicModel


@runtime_checkable
class DrawSource(Protocol):
    """Source of draws of documents' topic proportions.

    Guides, :class:`~torch_lntm.inference.DocumentHMC`, the chains of a fit
    (:class:`~torch_lntm.inference.KeptChains`) and :class:`ThetaDraws` are sources.
    """

    @property
    def model(self) -> TopicModel:
        """The model."""

    @property
    def kept_chains(self) -> KeptChains | None:
        """Chains to draw from. ``None`` for guides and existing draws."""

    @property
    def existing_draws(self) -> ThetaDraws | None:
        """Existing draws. ``None`` for guides and chains."""


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
    warmup_steps: int = WARMUP_STEPS,
    thinning: int | None = None,
    max_docs: int | None = None,
    keep: bool = True,
    progress: bool = False,
) -> ThetaDraws:
    """Draws of the documents' topic proportions from their posteriors.

    The draws are made at the first access to the result. The draws of a document depend on the
    model, the document, its position in the corpus and the seed.

    Args:
        source: Source of the draws. A guide draws from approximate posteriors.
            ``DocumentHMC(model)`` runs new chains, which are exact but slower. ``result.posterior``
            of a Monte-Carlo EM fit continues its chains. Existing :class:`ThetaDraws` are reused.
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
        >>> draws = lntm.inference.theta_draws(result.posterior, train, num_draws=25)
        >>> theta = draws.theta.numpy()  # (num_draws, num_docs, num_topics)
        >>> theta.shape == (25, len(train), model.num_topics)
        True
    """
    require_whole(1, max_docs=max_docs, thinning=thinning)
    require_whole(0, seed=seed, warmup_steps=warmup_steps)
    if num_draws is not None:
        require_whole(1, num_draws=num_draws)
    source = require_source(source, model)
    if source.existing_draws is not None:
        return source.existing_draws.take(rows, num_draws, keep=keep)
    corpus = source.model.encode(corpus)
    if rows is None:
        rows = np.arange(corpus.num_docs)
    if num_draws is None:
        num_draws = enough_draws(len(rows))
    maker: ChainDraws | GuideDraws
    max_draws, chains = None, source.kept_chains
    if chains is not None:
        maker = ChainDraws(chains, corpus, warmup_steps, thinning, max_docs, progress)
    else:
        maker = GuideDraws(require_guide(source), corpus, seed, means, max_docs, progress)
        if coefficients and maker.draw_coefficients(rows, num_draws):
            max_draws = num_draws
    return ThetaDraws(
        maker.draw,
        source.model,
        rows,
        num_draws,
        name=maker.name,
        description=maker.description,
        sources_of_uncertainty=maker.sources_of_uncertainty,
        max_draws=max_draws,
        keep=keep,
    )


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
    if not isinstance(source, DrawSource):
        return require_guide(source, model)  # raises an error, because every guide is a source
    if source.existing_draws is not None:
        return source
    if source.kept_chains is None:
        return require_guide(source, model)
    if model is not None and source.model is not model:
        raise IncompatibleGuideError(
            f"{type(source).__name__} was made for another model; make a source for this model: "
            "DocumentHMC(model)"
        )
    return source
