"""State of a running fit, and its files of tensors and JSON. Loading executes no code."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

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
#: Table of the best restart's means, beside the tables of the current restart.
BEST_MEANS = "best.means"
#: Tensors by name, in fields of :class:`FitState` and in files.
Tensors = dict[str, Tensor]


@dataclass
class FitState:
    """State of a fit at the end of a step, complete for its continuation.

    Attributes:
        model: Parameters and buffers of the model, in a state that is kept.
        documents: Tensors with a row for each of this process's documents, or for each of their
            stored counts: ``means`` ``(num_docs, latent_dim)``, the posterior means; ``sites``
            ``(nnz, num_topics)``, for guides whose warm starts have a row for each stored count;
            and the tensors of Monte-Carlo EM's chains.
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
        best: Parameters of the best restart so far.
        optimizer: State of the topics' optimiser, if there is one.
        rows: Name of the files with the rows of documents beside a checkpoint. Empty if the rows
            of all documents are in the checkpoint.
    """

    model: Tensors = field(default_factory=dict)
    documents: Tensors = field(default_factory=dict)
    restart: int = 0
    phase: str = "start"
    step: int = 0
    updates: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    word_counts: Tensor | None = None
    theta: Tensor | None = None
    statistics: Statistics | None = None
    best: Tensors = field(default_factory=dict)
    optimizer: Tensors = field(default_factory=dict)
    rows: str = ""

    def contents(self) -> tuple[Tensors, dict[str, Any]]:
        """All tensors by name, and all other values in a JSON-able record."""
        tensors: Tensors = {}
        plain: dict[str, Any] = {}
        for item in fields(FitState):
            value = getattr(self, item.name)
            if isinstance(value, dict):
                tensors |= {f"{item.name}.{name}": tensor for name, tensor in value.items()}
            elif isinstance(value, Tensor):
                tensors[item.name] = value
            elif isinstance(value, int | float | str | list):
                plain[item.name] = value
        if self.statistics is None:
            return tensors, {"state": plain, "statistics": None}
        numbers = dict(vars(self.statistics))
        tensors["statistics.word_counts"] = numbers.pop("word_counts")
        tensors |= {f"sums.{name}": value for name, value in numbers.pop("sums").items()}
        numbers = {name: float(value) for name, value in numbers.items()}
        return tensors, {"state": plain, "statistics": numbers}

    @classmethod
    def of(cls, tensors: Tensors, record: dict[str, Any], device: torch.device) -> Self:
        """State with some :meth:`contents`.

        Args:
            tensors: The tensors, on the CPU.
            record: The record.
            device: Device of the model. Tensors with rows for documents stay on the CPU.
        """
        parts: dict[str, Any] = {}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            # Word counts are stored word by word. The order in memory affects the last bit of sums.
            by_word = name in ("word_counts", "statistics.word_counts")
            value = tensor.mT.contiguous().mT if by_word else tensor
            is_large = part in ("documents", "theta", "optimizer")
            parts.setdefault(part, {})[rest] = value if is_large else value.to(device)
        parts |= {name: parts[name][""] for name in ("word_counts", "theta") if name in parts}
        statistics = parts.pop("statistics", {}) | {"sums": parts.pop("sums", {})}
        state = cls(**parts, **record["state"])
        if record["statistics"] is not None:
            state.statistics = Statistics(**statistics, **record["statistics"])
        return state


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


def folder_of(checkpoint: Path) -> Path:
    """Folder beside a checkpoint, with files of rows by the processes of a fit."""
    return checkpoint.with_name(f"{checkpoint.name}.rows")


def write_checkpoint(path: Path, state: FitState, identity: dict[str, Any]) -> None:
    """Write a checkpoint atomically.

    Args:
        path: The file.
        state: The fit's state, with the model's parameters.
        identity: JSON-able description of the fit. Only a fit of equal description can read it.
    """
    tensors, record = state.contents()
    _write(path, tensors, {"format_version": FORMAT_VERSION, "identity": identity, **record})


def write_rows(
    path: Path, index: NDArray[np.int64], offsets: NDArray[np.int64], tensors: Tensors
) -> None:
    """Write the rows of some documents atomically, beside a checkpoint.

    Args:
        path: The file.
        index: ``(num_docs,)`` ascending positions of the documents in the whole corpus.
        offsets: ``(num_docs + 1,)`` offsets of their stored counts.
        tensors: Tensors with rows for the documents, or for their stored counts.
    """
    path.parent.mkdir(exist_ok=True)
    places = {"index": torch.tensor(index), "offsets": torch.tensor(offsets)}
    _write(path, {**places, **{f"documents.{name}": x for name, x in tensors.items()}}, {})


def _write(path: Path, tensors: Tensors, record: dict[str, Any]) -> None:
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = json.dumps(record)
    metadata = {"record": text, "checksum": checksum_of(text, contiguous)}
    with atomic_write(path) as file:
        file.write(safetensors.torch.save(contiguous, metadata))


def checksum_of(record: str, tensors: Mapping[str, Tensor]) -> str:
    """Checksum of a file's content.

    Args:
        record: JSON record of the file.
        tensors: Contiguous tensors of the file, on the CPU.
    """
    checksum = zlib.crc32(record.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        checksum = zlib.crc32(f"{name} {tensor.dtype} {[*tensor.shape]}".encode(), checksum)
        checksum = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, checksum)
    return f"{checksum:08x}"


def _read(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """Tensors and record of a file.

    Raises:
        FileError: The file is missing, damaged, or not of this kind.
        ConfigError: The file belongs to another version.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # The handle has keys(), but is not iterable.
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        record: dict[str, Any] = json.loads(metadata["record"])
        version = record.get("format_version", FORMAT_VERSION)
        if version != FORMAT_VERSION:
            raise ConfigError(
                f"{path} is a checkpoint of another version of torch_lntm (format {version!r:.20}; "
                f"this version reads format {FORMAT_VERSION}); delete it to start the fit anew"
            )
        if metadata["checksum"] != checksum_of(metadata["record"], tensors):
            raise ValueError("its checksum is wrong")
    except ConfigError:
        raise
    except (SafetensorError, KeyError, TypeError, ValueError, OSError, AttributeError) as error:
        raise FileError(
            f"{path}: not a complete checkpoint ({error}); delete it to start the fit anew"
        ) from error
    return tensors, record


def read_rows(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64], Tensors]:
    """Index, offsets and tensors of a file of :func:`write_rows`.

    Raises:
        FileError: The file is damaged.
    """
    tensors, _ = _read(path)
    index, offsets = (tensors.pop(name).numpy() for name in ("index", "offsets"))
    return index, offsets, {n.removeprefix("documents."): x for n, x in tensors.items()}


def read_checkpoint(path: Path, identity: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Contents of the state in a file of :func:`write_checkpoint`.

    Args:
        path: The file.
        identity: Description of the current fit.

    Raises:
        FileError: The file is damaged or is no checkpoint.
        ConfigError: The file belongs to another fit or another version.
    """
    tensors, record = _read(path)
    saved = record.get("identity", {})
    different = [name for name in identity if saved.get(name) != identity[name]]
    if different:
        raise ConfigError(
            f"{path} is the checkpoint of another fit (it differs in {', '.join(different)}); "
            "delete it, or choose another file"
        )
    return tensors, record
