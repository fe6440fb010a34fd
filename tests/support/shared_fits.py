"""Fits that several processes share."""

from __future__ import annotations

from support.fits import fit, make_corpus


def fitted(posterior, family, options):
    corpus = make_corpus(60, empty=(3,))
    model, result = fit(corpus, posterior, family, **options)
    return {
        "history": result.history,
        "means": result.means.numpy(),
        "stop": result.stop_reason,
        "parameters": {n: x.detach().numpy() for n, x in model.state_dict().items()},
    }
