"""State of a running fit, and its file of tensors and JSON. Loading executes no code."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Mapping
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
from torch_lntm.errors import ConfigError, FileError
from torch_lntm.files.writing import atomic_write
from torch_lntm.inference.em.statistics import Statistics
from torch_lntm.models import TopicModel

#: Format number of every checkpoint. Files of a different format are refused.
FORMAT_VERSION = 6
#: Types of the plain values of :class:`FitState`, and of the values in the records of its history.
_STATE_TYPES = {
    "restart": int,
    "phase": str,
    "step": int,
    "updates": int,
    "seconds": int | float,
    "history": list,
    "rows": str,
}
_RECORD_TYPES = {"phase": str, "iteration": int, "objective": int | float}


@dataclass
class FitState:
    """State of a fit at the end of a step, complete for its continuation.

    Attributes:
        documents: Tables with a row for each document of the corpus, or for each stored count:
            ``means`` ``(num_docs, latent_dim)``, the posterior means; ``sites``
            ``(nnz, num_topics)``, for guides whose warm starts have a row for each stored count;
            and the tables of Monte-Carlo EM's chains. Each process of a shared fit has the rows of
            its own documents. A checkpoint has all rows.
        restart: Number of the restart, from 0.
        phase: ``"start"``, ``"stepwise"``, ``"annealing"`` or ``"em"`` of variational EM;
            ``"warm-up"``, ``"sampling"`` or ``"averaging"`` of Monte-Carlo EM.
        step: Number of past epochs or iterations of the phase.
        updates: Number of stochastic updates.
        seconds: Time of the fit so far.
        history: One record for each epoch or iteration.
        word_counts: ``(num_topics, num_words)`` running average of the start.
        theta: ``(num_docs, num_topics)`` proportions of all documents during the start, in every
            process.
        statistics: Statistics for the next M-step.
        best: Parameters and ``means`` of the best restart so far.
        optimizer: State of the topics' optimiser, if there is one.
        rows: Name of the files with the tables of documents beside a checkpoint of a corpus in
            parts. Empty if the tables are in the checkpoint.
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
    rows: str = ""


def corpus_identity(corpus: Corpus) -> dict[str, Any]:
    """JSON-able fingerprints of the counts of a corpus and of its covariates."""
    return {
        "corpus": corpus.fingerprint(),
        "covariates": {name: digest(array) for name, array in corpus.batch_covariates.items()},
    }


def model_identity(model: TopicModel) -> dict[str, Any]:
    """JSON-able description of a model's constant parts.

    The constructor's arguments are not enough, because a model may be composed of parts, and the
    settings of the parts may have changed since the call.
    """
    construction = model.construction
    fitted = {f"prior.{name}" for name in model.prior.fitted_buffers}
    fitted |= {f"topics.{name}" for name in model.topics.fitted_buffers}
    return {
        "model": repr(construction and construction._replace(settings=construction.to_json())),
        "parts": repr(model),
        "fixed": {
            name: digest(buffer.detach().cpu().numpy())
            for name, buffer in model.named_buffers()
            if name not in fitted
        },
    }


def digest(array: NDArray[Any]) -> str:
    """SHA-256 of an array's numbers, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def write_checkpoint(
    path: Path, state: FitState, parameters: dict[str, Tensor], identity: dict[str, Any]
) -> None:
    """Write a checkpoint atomically.

    Args:
        path: The file.
        state: The fit's state.
        parameters: The model's parameters at this state.
        identity: JSON-able description of the fit. Only a fit of equal description can read it.
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


def write_rows(path: Path, tables: Mapping[str, Tensor]) -> None:
    """Write the rows of some documents atomically, beside a checkpoint.

    Args:
        path: The file.
        tables: Tables by name.
    """
    tensors = {name: table.detach().cpu().contiguous() for name, table in tables.items()}
    with atomic_write(path) as file:
        file.write(safetensors.torch.save(tensors, {"checksum": checksum_of("", tensors)}))


def read_rows(path: Path, height: Callable[[str], int]) -> dict[str, Tensor]:
    """Read a file of :func:`write_rows`.

    Args:
        path: The file.
        height: Function of the number of rows of a table, by its name.

    Raises:
        FileError: The file is missing or damaged, or has rows for other documents.
    """
    try:
        with safe_open(path, framework="pt") as file:
            checksum = (file.metadata() or {})["checksum"]
            tables = {name: file.get_tensor(name) for name in list(file.keys())}
        if checksum != checksum_of("", tables):
            raise ValueError("its checksum is wrong")
        if any(table.shape[0] != height(name) for name, table in tables.items()):
            raise ValueError("it has the rows of other documents")
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise FileError(
            f"{path}: not a complete part of a checkpoint ({error}); delete the checkpoint to "
            "start the fit anew"
        ) from error
    return tables


def checksum_of(record: str, tensors: Mapping[str, Tensor]) -> str:
    """Checksum of a checkpoint's content.

    Args:
        record: JSON record of the checkpoint.
        tensors: Contiguous tensors of the checkpoint, on the CPU.
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
    """Read a checkpoint of :func:`write_checkpoint`.

    Args:
        path: The file.
        identity: Description of the current fit.
        model: Parameters of the model by name. The file's parameters must have equal shapes, and
            are loaded to the same device.

    Returns:
        The state, and the model's parameters at this state.

    Raises:
        FileError: The file is damaged or is no checkpoint.
        ConfigError: The file belongs to another fit or another version.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # The handle has keys(), but is not iterable.
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
        saved = _typed(record["identity"], {}, "the identity")
        different = [name for name in identity if saved.get(name) != identity[name]]
        if different:
            raise ConfigError(
                f"{path} is the checkpoint of another fit (it differs in {', '.join(different)}); "
                "delete it, or choose another file"
            )
        return _state_of(record, tensors, model)
    except ConfigError:
        raise
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise FileError(
            f"{path}: not a complete checkpoint ({error}); delete it to start the fit anew"
        ) from error


def _state_of(
    record: dict[str, Any], tensors: dict[str, Tensor], model: Mapping[str, Tensor]
) -> tuple[FitState, dict[str, Tensor]]:
    """Checked state and parameters from a checkpoint's record and tensors.

    Raises:
        KeyError: An item is missing.
        TypeError: An item has the wrong type.
        ValueError: The parameters have the wrong names or shapes.
    """
    # Word counts are stored word by word. The order in memory affects the last bit of sums.
    for name in ("word_counts", "statistics.word_counts"):
        if name in tensors:
            tensors[name] = tensors[name].mT.contiguous().mT

    def part(prefix: str) -> dict[str, Any]:
        return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

    shapes = {name: value.shape for name, value in model.items()}
    parameters = part("model.")
    if {name: value.shape for name, value in parameters.items()} != shapes:
        raise ValueError(f"expected the parameters {', '.join(shapes)} in the model's shapes")
    plain = [tensor for name, tensor in tensors.items() if not name.startswith("model.")]
    if not all(x.is_floating_point() or x.dtype == torch.bool for x in plain):
        raise ValueError("a table holds whole numbers")
    device = next(iter(model.values())).device
    state = FitState(
        documents=part("documents."),
        best=part("best."),
        optimizer=part("optimizer."),
        theta=tensors.get("theta"),
        **_typed(record["state"], _STATE_TYPES, "the state"),
    )
    if not all(0 <= n < 2**31 for n in (state.restart, state.step, state.updates)):
        raise ValueError("a count of the state is out of its range")
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
    """JSON object with items of given types.

    Args:
        value: The value from JSON.
        types: Required types by name of the item.
        what: Name of the value for messages.

    Raises:
        KeyError: An item is missing.
        TypeError: The value is not a JSON object, or an item has the wrong type.
    """
    if not isinstance(value, dict):
        raise TypeError(f"{what} is no object")
    for name, kind in types.items():
        if not isinstance(value[name], kind):
            raise TypeError(f"{name} of {what} is no {getattr(kind, '__name__', 'number')}")
    return value
