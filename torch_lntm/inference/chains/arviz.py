"""Samples for ArviZ: pip install 'torch-lntm[arviz]'."""

from __future__ import annotations

from typing import Any

from torch_lntm.errors import import_extra
from torch_lntm.inference.chains.samples import DocumentSamples


def to_arviz(samples: DocumentSamples) -> Any:
    """Draws and diagnostics of chains for ArviZ's summaries, diagnostics and plots.

    The group ``posterior`` has ``theta`` and the program's sites (``eta``, ``source``). Their
    dimensions are ``chain``, ``draw``, ``document``, and a last dimension. The last dimension is
    ``topic`` for theta, and for a main site with a component for each topic. For other sites it is
    the site's name with ``_dim``. The group ``sample_stats`` has ``acceptance_rate``, ``step_size``
    and ``moved`` by ``chain`` and ``document``, and ``divergences`` by ``document``. ``moved`` is
    false for stuck chains. ArviZ's averages include stuck chains. Documents are labelled by their
    positions in the corpus, and topics by their names if the model has names.

    Chains of Pyro, ``mcmc = MCMC(DocumentHMC(model), num_samples=500, num_chains=4)``, need no
    conversion: ``mcmc.get_samples(group_by_chain=True)`` has ArviZ's axes. In ArviZ 0.x, pass its
    values as NumPy arrays to ``arviz.from_dict(posterior=...)``.

    Args:
        samples: The draws.

    Returns:
        ``arviz.InferenceData``, or its successor ``xarray.DataTree`` from ArviZ 1.0 on.

    Raises:
        ConfigError: ArviZ is missing.
    """
    arviz, xarray = (
        import_extra(module, "arviz", "the export to ArviZ") for module in ("arviz", "xarray")
    )
    num_chains, num_draws = samples.num_chains, samples.num_draws
    coords = {
        "chain": range(num_chains),
        "draw": range(num_draws),
        "document": samples.index.numpy(),
    }
    prior = samples.model.prior
    draws = {"theta": (samples.theta(), "topic")}
    for site, values in samples.latents.items():
        of_topics = site == prior.latent and prior.latent_dim == prior.num_topics
        draws[site] = (values, "topic" if of_topics else f"{site}_dim")
    posterior = {
        name: (("chain", "draw", "document", last), values.detach().numpy())
        for name, (values, last) in draws.items()
    }
    chains = ("chain", "document")
    statistics = {
        "acceptance_rate": (chains, samples.acceptance.numpy()),
        "step_size": (chains, samples.step_size.numpy()),
        "moved": (chains, samples.moved.numpy()),
        "divergences": (("document",), samples.divergences.numpy()),
    }
    by_last: dict[str, Any] = {last: range(values.shape[-1]) for values, last in draws.values()}
    if samples.model.has_topic_names:
        by_last["topic"] = list(samples.model.topic_names)
    groups = {
        "posterior": xarray.Dataset(posterior, {**coords, **by_last}),
        "sample_stats": xarray.Dataset(
            statistics, {name: coords[name] for name in ("chain", "document")}
        ),
    }
    for group in groups.values():
        group.attrs["inference_library"] = "torch_lntm"
    if hasattr(arviz, "InferenceData"):
        return arviz.InferenceData(**groups)
    return xarray.DataTree.from_dict(groups)
