"""theta_draws: draws of documents' proportions by whatever posterior is given."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.errors import IncompatibleGuideError, require_whole
from torch_lntm.guides import Guide, require_guide
from torch_lntm.inference.chains.document_hmc import DocumentHMC
from torch_lntm.inference.chains.kept import KeptChains
from torch_lntm.inference.draws.chains import WARMUP_STEPS, ChainDraws
from torch_lntm.inference.draws.guides import GuideDraws
from torch_lntm.inference.draws.theta import Positions, ThetaDraws, enough_draws
from torch_lntm.models import TopicModel

#: Sources of draws of documents' proportions.
DrawSource = Guide[Any] | DocumentHMC | KeptChains | ThetaDraws


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

    Nothing is drawn before the result is asked for its draws. A document's draws are functions of
    the model, the document, its position in the corpus and the seed. For example::

        draws = lntm.inference.theta_draws(result.posterior, corpus)
        theta = draws.theta.numpy()  # (num_draws, num_docs, num_topics)

    Args:
        source: A guide over the model, whose posteriors approximate; new chains,
            ``DocumentHMC(model)``, which approximate nothing and take longer; ``result.posterior``
            of a fit by chains, which continues the fit's chains; draws that exist already.
        corpus: The documents, over the model's vocabulary.
        num_draws: Draws of each document. Defaults to 25 to 50, fewer for larger corpora, by
            :func:`enough_draws`; and to all of draws that exist already.
        model: The model that the source has to belong to. Defaults to the source's own.
        rows: ``(num_docs,)`` positions of the documents to draw. Defaults to all.
        seed: Seed of a guide's draws. Chains have their own.
        means: ``(num_docs, latent_dim)`` where a guide's solver starts, such as ``result.means`` of
            a fit to the corpus.
        coefficients: Draw the coefficients of the prior's mean too, where a guide's prior has any.
        warmup_steps: Transitions of a new chain before its first draw.
        thinning: Transitions of a chain from one draw to the next. Defaults to 4, and to 2 of a
            fit's chains.
        max_docs: Documents computed together, which bounds memory. Defaults to what fits.
        keep: Keep the draws in memory for later passes over them, up to 256 MB of float32.
        progress: Show a progress bar on standard error.

    Returns:
        The draws.

    Raises:
        ConfigError: The source cannot draw, a number is out of range, or the corpus has other
            words or another number of documents.
        IncompatibleGuideError: The source belongs to another model.
    """
    require_whole(1, max_docs=max_docs, thinning=thinning)
    require_whole(0, seed=seed, warmup_steps=warmup_steps)
    if num_draws is not None:
        require_whole(1, num_draws=num_draws)
    source = require_source(source, model)
    # Draws that exist are not made: they alone take none of the settings of their making.
    if isinstance(source, ThetaDraws):
        return source.take(rows, num_draws, keep=keep)
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
        maker.make,
        source.model,
        rows,
        num_draws,
        name=maker.name,
        description=maker.description,
        sources_of_uncertainty=maker.sources_of_uncertainty,
        max_draws=max_draws,
        keep=keep,
    )


def require_source(source: DrawSource, model: TopicModel | None = None) -> DrawSource:
    """The source itself, if draws can come from it.

    Args:
        source: The source.
        model: The model that a guide or chains have to belong to. Defaults to any.

    Raises:
        ConfigError: The source cannot draw.
        IncompatibleGuideError: The source belongs to another model.
    """
    # What a user gives may be no source at all.
    if isinstance(source, ThetaDraws):
        return source
    if not isinstance(source, DocumentHMC | KeptChains):
        return require_guide(source, model)
    if model is not None and source.model is not model:
        raise IncompatibleGuideError(
            f"{type(source).__name__} was made for another model; make one for this: "
            "DocumentHMC(model)"
        )
    return source
