"""The state of a running fit, and its file: tensors and JSON, nothing that executes."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from torch_lntm.corpus import Corpus
from torch_lntm.errors import ConfigError
from torch_lntm.files import atomic_write
from torch_lntm.inference.em.statistics import Statistics
from torch_lntm.models import TopicModel

#: Written into every checkpoint. Files of other formats are refused.
FORMAT_VERSION = 5
#: Types of the numbers, texts and lists of :class:`FitState`, and of every record of its history.
_STATE_TYPES = {
    "restart": int,
    "phase": str,
    "step": int,
    "updates": int,
    "seconds": int | float,
    "history": list,
}
_RECORD_TYPES = {"phase": str, "iteration": int, "objective": int | float}


@dataclass
class FitState:
    """All that a fit needs to go on from the end of a step.

    Attributes:
        documents: Tables with a row for each document of the corpus, or for each stored count:
            ``means`` ``(num_docs, latent_dim)``, posterior means; ``sites`` ``(nnz, num_topics)``,
            if the guide starts from more than means; and what Monte-Carlo EM keeps of its chains.
            If several processes share a fit, each has the rows of its own documents, and a
            checkpoint has them all.
        restart: Which restart.
        phase: ``"start"``, ``"stepwise"``, ``"annealing"`` or ``"em"``; of Monte-Carlo EM
            ``"warm-up"``, ``"sampling"`` or ``"averaging"``.
        step: Epochs or iterations of the phase that are done.
        updates: Stochastic updates taken.
        seconds: Time spent.
        history: One record per epoch and iteration.
        word_counts: ``(num_topics, num_words)`` running average of the start.
        theta: ``(num_docs, num_topics)`` proportions of all documents in the start, in every
            process.
        statistics: Those that the next M-step starts from.
        best: Parameters and ``means`` of the best restart so far.
        optimizer: State of the topics' optimiser, where they have one.
    """

    documents: dict[str, Tensor] = field(default_factory=dict)
    restart: int = 0
    phase: str = "start"
    step: int = 0
    updates: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    word_counts: Tensor | None = None
    theta: Tensor | None = None
    statistics: Statistics | None = None
    best: dict[str, Tensor] = field(default_factory=dict)
    optimizer: dict[str, Tensor] = field(default_factory=dict)


def corpus_identity(corpus: Corpus) -> dict[str, Any]:
    """JSON-able fingerprints of the counts of a corpus and of its covariates."""
    return {
        "corpus": corpus.fingerprint(),
        "covariates": {name: _digest(array) for name, array in corpus.batch_covariates.items()},
    }


def model_identity(model: TopicModel) -> dict[str, Any]:
    """JSON-able description of what a fit does not change of a model.

    The constructor's arguments do not say all: a model may be composed of its parts, and their
    settings may have been changed since.
    """
    made = model.construction
    return {
        "model": repr(made and made._replace(settings=made.to_json())),
        "parts": repr(model),
        "fixed": {
            name: _digest(buffer.detach().cpu().numpy())
            for name, buffer in model.named_buffers()
            if name.removeprefix("prior.") not in model.prior.fitted_buffers
        },
    }


def _digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def write_checkpoint(
    path: Path, state: FitState, parameters: dict[str, Tensor], identity: dict[str, Any]
) -> None:
    """Write a checkpoint atomically.

    Args:
        path: The file.
        state: The fit's state.
        parameters: The model's parameters that belong to it.
        identity: JSON-able description of the fit, which a reader must share.
    """
    tensors = {f"model.{name}": value for name, value in parameters.items()}
    record: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "identity": identity,
        "state": {},
        "statistics": None,
    }
    for item in fields(FitState):
        value = getattr(state, item.name)
        if isinstance(value, Tensor):
            tensors[item.name] = value
        elif isinstance(value, dict):
            tensors |= {f"{item.name}.{name}": tensor for name, tensor in value.items()}
        elif isinstance(value, int | float | str | list):
            record["state"][item.name] = value
    if state.statistics is not None:
        statistics = dict(vars(state.statistics))
        tensors["statistics.word_counts"] = statistics.pop("word_counts")
        tensors |= {f"sums.{name}": value for name, value in statistics.pop("sums").items()}
        statistics["objective"] = float(statistics["objective"])
        statistics["num_unconverged"] = int(statistics["num_unconverged"])
        record["statistics"] = statistics
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = json.dumps(record)
    metadata = {"record": text, "checksum": checksum_of(text, contiguous)}
    with atomic_write(path) as file:
        file.write(safetensors.torch.save(contiguous, metadata))


def checksum_of(record: str, tensors: Mapping[str, Tensor]) -> str:
    """A checksum of all that a checkpoint holds.

    Args:
        record: Its record, JSON.
        tensors: Its contiguous tensors, on the CPU.
    """
    checksum = zlib.crc32(record.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        checksum = zlib.crc32(f"{name} {tensor.dtype} {[*tensor.shape]}".encode(), checksum)
        checksum = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, checksum)
    return f"{checksum:08x}"


def read_checkpoint(
    path: Path, identity: dict[str, Any], model: Mapping[str, Tensor]
) -> tuple[FitState, dict[str, Tensor]]:
    """Read what :func:`write_checkpoint` wrote.

    Args:
        path: The file.
        identity: The present fit's description.
        model: The parameters of the model to fit, by name. The file's must have their shapes and
            go to their device.

    Returns:
        The state, and the model's parameters that belong to it.

    Raises:
        ConfigError: The file is damaged, not a checkpoint, or that of another fit.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # The handle is no mapping: it has keys() but cannot be iterated.
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        record = _typed(json.loads(metadata["record"]), {}, "the record")
        version = record.get("format_version")
        if version != FORMAT_VERSION:
            raise ConfigError(
                f"{path} is a checkpoint of another version of torch_lntm (format {version!r:.20}; "
                f"this version reads format {FORMAT_VERSION}); delete it to start the fit anew"
            )
        if metadata["checksum"] != checksum_of(metadata["record"], tensors):
            raise ValueError("its checksum is wrong")
        found = _typed(record["identity"], {}, "the identity")
        different = [name for name in identity if found.get(name) != identity[name]]
        if different:
            raise ConfigError(
                f"{path} is the checkpoint of another fit (it differs in {', '.join(different)}); "
                "delete it, or choose another file"
            )
        return _state_of(record, tensors, model)
    except ConfigError:
        raise
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise ConfigError(
            f"{path}: not a complete checkpoint ({error}); delete it to start the fit anew"
        ) from error


def _state_of(
    record: dict[str, Any], tensors: dict[str, Tensor], model: Mapping[str, Tensor]
) -> tuple[FitState, dict[str, Tensor]]:
    """The state and the parameters of a checkpoint's record and tensors, checked."""
    # Word counts are word by word in memory; sums over words depend on that in the last bit.
    for name in ("word_counts", "statistics.word_counts"):
        if name in tensors:
            tensors[name] = tensors[name].mT.contiguous().mT

    def part(prefix: str) -> dict[str, Any]:
        return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

    shapes = {name: value.shape for name, value in model.items()}
    parameters = part("model.")
    if {name: value.shape for name, value in parameters.items()} != shapes:
        raise ValueError(f"its parameters are not {', '.join(shapes)} of the model's shapes")
    device = next(iter(model.values())).device
    state = FitState(
        documents=part("documents."),
        best=part("best."),
        optimizer=part("optimizer."),
        theta=tensors.get("theta"),
        **_typed(record["state"], _STATE_TYPES, "the state"),
    )
    for row in state.history:
        _typed(row, _RECORD_TYPES, "a record of the history")
    if "word_counts" in tensors:
        state.word_counts = tensors["word_counts"].to(device)
    if record["statistics"] is not None:
        state.statistics = Statistics(
            sums={name: value.to(device) for name, value in part("sums.").items()},
            word_counts=tensors["statistics.word_counts"].to(device),
            **record["statistics"],
        )
    return state, {name: value.to(device) for name, value in parameters.items()}


def _typed(value: Any, types: Mapping[str, Any], what: str) -> dict[str, Any]:
    """A value from JSON, if it is an object with items of some types.

    Raises:
        TypeError: It is not.
    """
    if not isinstance(value, dict):
        raise TypeError(f"{what} is no object")
    for name, kind in types.items():
        if not isinstance(value[name], kind):
            raise TypeError(f"{name} of {what} is no {getattr(kind, '__name__', 'number')}")
    return value
