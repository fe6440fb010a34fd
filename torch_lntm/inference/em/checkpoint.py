"""State of a running fit, and its files of tensors and JSON. Loading executes no code."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from torch_lntm.errors import ConfigError, FileError
from torch_lntm.files.writing import atomic_write
from torch_lntm.inference.em.statistics import Statistics
from torch_lntm.inference.em.table import DocumentTable, placed
from torch_lntm.models import TopicModel

#: Format number of every checkpoint. Files of a different format are refused.
FORMAT_VERSION = 8
#: Table of the best restart's means, beside the tables of the current restart.
BEST_MEANS = "best.means"
#: Name of the tensors that are stored word by word.
_WORD_COUNTS = "word_counts"
#: Separator of the names in a path, which the names of a model's own parameters hardly have.
_WITHIN = "//"
#: Tensors by name, in fields of :class:`FitState` and in files.
Tensors = dict[str, Tensor]


@dataclass
class FitState:
    """State of a fit at the end of a step, complete for its continuation.

    Attributes:
        documents: Rows of this process's documents: ``means`` ``(num_docs, latent_dim)``, the
            posterior means; ``sites`` ``(nnz, num_topics)``, for guides whose warm starts have a
            row for each stored count; and the tensors of Monte-Carlo EM's chains.
        model: Parameters and buffers of the model, in a state that is kept.
        restart: Number of the restart, from 0.
        phase: ``"start"``, ``"stepwise"``, ``"annealing"`` or ``"em"`` of variational EM;
            ``"warm-up"``, ``"sampling"`` or ``"averaging"`` of Monte-Carlo EM.
        step: Number of past epochs or iterations of the phase.
        updates: Number of stochastic updates.
        seconds: Time of the fit so far.
        history: One record for each epoch or iteration.
        word_counts: ``(num_topics, num_words)`` running average of the start, or ``None`` before
            it.
        theta: ``(num_docs, num_topics)`` proportions of all documents in every process, or ``None``
            outside of the start.
        statistics: Statistics for the next M-step.
        best: Parameters of the best restart so far.
        optimizer: State of the topics' optimiser, if there is one: tensors by name for the number
            of each parameter.
    """

    documents: DocumentTable
    model: Tensors = field(default_factory=dict)
    restart: int = 0
    phase: str = "start"
    step: int = 0
    updates: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    word_counts: Any = None
    theta: Any = None
    statistics: Statistics | None = None
    best: Tensors = field(default_factory=dict)
    optimizer: dict[Any, Any] = field(default_factory=dict)

    def contents(self) -> tuple[Tensors, dict[str, Any]]:
        """All tensors but those of documents, and all other values, JSON-able: each by its path."""
        values = {name: x for name, x in vars(self).items() if name != "documents"}
        if self.statistics is not None:
            values["statistics"] = vars(self.statistics)
        tensors, record = {}, {}
        for path, value in _leaves(values):
            if not isinstance(value, Tensor):
                record[path] = value
            # Word counts are stored word by word, and the order in memory affects the last bit of
            # sums.
            else:
                name = path.split(_WITHIN)[-1]
                tensors[path] = value.mT if name == _WORD_COUNTS else value
        return tensors, record

    def load(self, tensors: Tensors, record: dict[str, Any], device: torch.device) -> None:
        """Set all values but the rows of documents to some :meth:`contents`.

        Args:
            tensors: The tensors, on the CPU.
            record: The record.
            device: Device of the model.
        """
        found: dict[str, Any] = {name: {} for name in ("model", "best", "optimizer")}
        for path, value in {**tensors, **record}.items():
            *parents, name = path.split(_WITHIN)
            values = found
            for parent in parents:
                values = values.setdefault(parent, {})
            if isinstance(value, Tensor):
                value = placed(value, device)
                value = value.mT if name == _WORD_COUNTS else value
            values[name] = value
        if found["statistics"] is not None:
            found["statistics"] = Statistics(**{"sums": {}, **found["statistics"]})
        vars(self).update(found)


def _leaves(values: Mapping[str, Any], parents: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of nested dictionaries with their paths, such as ``model//prior.loc``."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{parents}{name}{_WITHIN}")
        else:
            yield parents + name, value


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


# -- files -----------------------------------------------------------------------------------------


def folder_of(checkpoint: Path) -> Path:
    """Folder beside a checkpoint, with a file of documents' rows by each process of the fit."""
    return checkpoint.with_name(f"{checkpoint.name}.rows")


def write_checkpoint(path: Path, state: FitState, identity: dict[str, Any], rows: str) -> None:
    """Write a checkpoint atomically.

    Args:
        path: The file.
        state: The fit's state, with the model's parameters.
        identity: JSON-able description of the fit. Only a fit of equal description can read it.
        rows: Beginning of the names of the files of :func:`write_rows`.
    """
    tensors, record = state.contents()
    about = {"format_version": FORMAT_VERSION, "identity": identity, "rows": rows}
    _write(path, tensors, {**about, "state": record})


def write_rows(path: Path, table: DocumentTable) -> None:
    """Write the rows of some documents atomically, beside a checkpoint."""
    path.parent.mkdir(exist_ok=True)
    places = {"index": torch.tensor(table.index), "offsets": torch.tensor(table.offsets)}
    _write(path, {**places, **{f"documents.{name}": x for name, x in table.tensors.items()}}, {})


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
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # The handle has keys(), but is not iterable.
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        record: dict[str, Any] = json.loads(metadata["record"])
        if metadata["checksum"] != checksum_of(metadata["record"], tensors):
            raise ValueError("its checksum is wrong")
    except (SafetensorError, KeyError, TypeError, ValueError, OSError, AttributeError) as error:
        raise FileError(
            f"{path}: not a complete checkpoint ({error}); delete it to start the fit anew"
        ) from error
    return tensors, record


def read_rows(checkpoint: Path, rows: str, table: DocumentTable) -> None:
    """Read a table's rows from the files of all processes, of any number of them.

    Args:
        checkpoint: The file of the checkpoint.
        rows: As for :func:`write_checkpoint`.
        table: Table of this process's documents, without tensors.

    Raises:
        FileError: A file is missing or damaged.
    """
    found = np.diff(table.offsets) == 0
    for file in sorted(folder_of(checkpoint).glob(f"{rows}-*.safetensors")):
        tensors, _ = _read(file)
        index, offsets = (tensors.pop(name).numpy() for name in ("index", "offsets"))
        other = DocumentTable(index, offsets, torch.device("cpu"))
        other.tensors = {name.removeprefix("documents."): x for name, x in tensors.items()}
        found |= table.copy_rows(other)
    if not found.all():
        raise FileError(
            f"{folder_of(checkpoint)}: the rows of some documents are missing; delete {checkpoint} "
            "to start the fit anew"
        )
    table.tensors = {name: placed(x, table.device) for name, x in table.tensors.items()}


def read_checkpoint(path: Path, identity: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Tensors and record of a file of :func:`write_checkpoint`.

    Args:
        path: The file.
        identity: Description of the current fit.

    Raises:
        FileError: The file is damaged or is no checkpoint.
        ConfigError: The file belongs to another fit or another version.
    """
    tensors, record = _read(path)
    version, saved = record.get("format_version"), record.get("identity", {})
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"{path} is a checkpoint of another version of torch_lntm (format {version!r:.20}; "
            f"this version reads format {FORMAT_VERSION}); delete it to start the fit anew"
        )
    different = [name for name in identity if saved.get(name) != identity[name]]
    if different:
        raise ConfigError(
            f"{path} is the checkpoint of another fit (it differs in {', '.join(different)}); "
            "delete it, or choose another file"
        )
    return tensors, record
