"""Sites of a model's program, for the checks."""

from __future__ import annotations

from typing import Any

import pyro
from pyro import poutine
from torch import Tensor

from torch_lntm.corpus import DocumentBatch
from torch_lntm.models import TopicModel


def latent_sites(model: TopicModel, batch: DocumentBatch) -> dict[str, Any]:
    """The documents' latent sites of the program, in its order."""
    trace: Any = poutine.trace(model).get_trace(batch)
    return {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample"
        and not site["is_observed"]
        and not isinstance(site["fn"], pyro.poutine.subsample_messenger._Subsample)
        and name not in ("topics_prior", "document_prior", "words_prior")
    }


def traced_likelihood(
    model: TopicModel, batch: DocumentBatch, latents: dict[str, Tensor]
) -> Tensor:
    """Log likelihood ``(num_docs,)`` of the program's words at values of its latent sites."""
    conditioned = poutine.condition(model, data=latents)
    trace: Any = poutine.trace(conditioned).get_trace(batch)
    counts = trace.nodes["counts"]
    log_likelihood: Tensor = counts["fn"].log_prob(counts["value"])
    return log_likelihood
