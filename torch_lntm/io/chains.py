"""Saves the last states of a fit's chains, so that reports and effects can continue them."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors.torch
import torch
from safetensors import safe_open

from torch_lntm.files.reading import read_errors
from torch_lntm.inference import DocumentHMC, KeptChains
from torch_lntm.models import TopicModel

#: Maximum number of leapfrog steps in a file, to bound the time of a transition.
MAX_STEPS = 1000
#: Prefix of the tensors of the latent variables.
_LATENT = "latent."
#: Settings of the chains in the file's metadata.
_SETTINGS = ("mass_matrix", "num_steps", "target_accept", "jitter")


def write_chains(path: Path, chains: KeptChains, run: str) -> None:
    """Write the states of chains in float32, with the identity of the run."""
    columns = torch.from_numpy(chains.columns)
    states = {_LATENT + site: value for site, value in chains.latents.items()}
    states["step_size"] = chains.step_size
    tensors = {name: x[:, columns].float().contiguous() for name, x in states.items()}
    tensors["documents"] = torch.from_numpy(chains.documents)
    about = {name: getattr(chains.settings, name) for name in _SETTINGS}
    about |= {"num_transitions": chains.num_transitions, "run": run}
    path.write_bytes(safetensors.torch.save(tensors, {"chains": json.dumps(about)}))


def read_chains(path: Path, model: TopicModel, seed: int, run: str) -> KeptChains:
    """Read the states of chains.

    Args:
        path: The file.
        model: The model of the run.
        seed: Seed of the next transitions.
        run: Identity of the run.

    Raises:
        ConfigError: The file is damaged, or belongs to another model or run.
    """
    what = "not a complete file of the model's chains; delete the file to use new chains"
    with read_errors(path, what, Exception):
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})["chains"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        documents, step_size = tensors.pop("documents"), tensors.pop("step_size")
        latents = {name.removeprefix(_LATENT): value for name, value in tensors.items()}
        num_chains, num_docs = step_size.shape
        widths = {"source": getattr(model.prior, "num_sources", 0)}
        widths[model.prior.latent] = model.latent_dim
        sound = (
            about["run"] == run
            and about["num_steps"] <= MAX_STEPS
            and about["num_transitions"] >= 0
            and (documents.dtype, len(documents)) == (torch.int64, num_docs)
            and latents.keys() == {*model.prior.space_type.sites}
            and all(x.shape == (num_chains, num_docs, widths[s]) for s, x in latents.items())
            and all(bool(x.isfinite().all()) for x in (*latents.values(), step_size))
        )
        if not sound:
            raise ValueError("impossible numbers, or the chains of another run or model")
        settings = {name: about[name] for name in _SETTINGS}
        return KeptChains(
            model,
            DocumentHMC(model, num_chains=num_chains, seed=seed, **settings).settings,
            latents,
            step_size.clamp_min(1e-30),
            documents.numpy(),
            torch.arange(num_docs).numpy(),
            int(about["num_transitions"]),
        )
