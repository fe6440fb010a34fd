"""Models and runs in folders: safetensors, JSON and text, nothing that executes when loaded.

A model's folder holds ``model.json`` (what kind, with which settings), ``model.safetensors`` (its
parameters) and ``vocabulary.txt``. A run's holds these and ``config.json`` (what was asked for),
``metadata.json`` (what came of it, and under which versions), ``history.jsonl`` (a record per
iteration) and, where documents were held out, ``split.npz``.
"""

from __future__ import annotations

import contextlib
import glob
import json
import platform
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from torch_lntm.corpus import Corpus, Split, load_split
from torch_lntm.corpus.checks import check_vocabulary
from torch_lntm.errors import ConfigError, CorpusError
from torch_lntm.files import atomic_write, read_lines, read_text, write_lines
from torch_lntm.inference import FitResult
from torch_lntm.models import MODELS, TopicModel

FORMAT_VERSION = 1

_MODEL, _TENSORS, _VOCABULARY = "model.json", "model.safetensors", "vocabulary.txt"
_CONFIG, _METADATA, _HISTORY = "config.json", "metadata.json", "history.jsonl"
_SPLIT, _CHECKPOINT = "split.npz", "checkpoint.safetensors"


@dataclass(frozen=True, eq=False)
class Run:
    """A finished fit, as a run folder holds it.

    Attributes:
        path: The folder.
        model: The fitted model, on the CPU.
        config: The resolved configuration of the fit.
        metadata: ``stop_reason``, ``topic_shares``, ``corpus``, ``versions``, ``date`` and so on.
        history: One record per iteration; see :class:`~torch_lntm.inference.FitResult`.
    """

    path: Path
    model: TopicModel
    config: dict[str, Any]
    metadata: dict[str, Any]
    history: list[dict[str, Any]] = field(repr=False)

    def split(self, corpus: Corpus) -> Split[Corpus] | None:
        """The training and the held-out documents of this run, if any were held out.

        Args:
            corpus: The corpus that the run was given.

        Raises:
            CorpusError: It is another corpus, or the file is damaged.
            ConfigError: The file is missing though documents were held out.
        """
        path = self.path / _SPLIT
        if not path.exists() and self.config.get("test_fraction"):
            raise ConfigError(
                f"{path}: no such file, but documents were held out; is the folder complete?"
            )
        return load_split(path, corpus) if path.exists() else None


# -------------------------------------------------------------------- models


def save_model(path: str | Path, model: TopicModel, *, overwrite: bool = False) -> Path:
    """Write a model's folder, which appears complete or not at all.

    Args:
        path: The folder to write.
        model: The model, on whatever device.
        overwrite: Replace a model or run that is there already.

    Returns:
        The folder.

    Raises:
        ConfigError: The folder exists and may not be replaced, or the model is of no known kind.
    """
    with _new_folder(Path(path), overwrite) as folder:
        _write_model(folder, model)
    return Path(path)


def load_model(path: str | Path) -> TopicModel:
    """Read a model from its folder, or from a run's.

    Args:
        path: The folder.

    Returns:
        The model, on the CPU, with the very parameters that were saved.

    Raises:
        ConfigError: A file is missing, damaged, does not fit the others or is of a later version;
            the message names it.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; expected one with a {_MODEL}")
    about = _read_json(folder / _MODEL)
    if about.get("format_version") != FORMAT_VERSION:
        raise ConfigError(
            f"{folder / _MODEL}: format_version is {about.get('format_version')!r}; this "
            f"version of torch_lntm reads {FORMAT_VERSION}"
        )
    kind = about.get("kind")
    if not isinstance(kind, str) or kind not in MODELS:
        raise ConfigError(f"{folder / _MODEL}: model kind {kind!r}; expected {', '.join(MODELS)}")
    settings = about.get("config")
    if not isinstance(settings, dict) or "vocabulary" not in about:
        raise ConfigError(f"{folder / _MODEL}: lacks 'config' or 'vocabulary'; is it complete?")
    tensors = _read_tensors(folder / _TENSORS)
    _check_sizes(folder, settings, tensors)
    vocabulary = _read_vocabulary(folder / _VOCABULARY, settings) if about["vocabulary"] else None
    try:
        model = MODELS[kind](**settings, vocabulary=vocabulary)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{folder / _MODEL}: unusable settings ({error})") from error
    expected = model.state_dict()
    for name in sorted({*expected, *tensors}):
        problem = _mismatch(expected.get(name), tensors.get(name))
        if problem:
            raise ConfigError(f"{folder / _TENSORS}: {name} {problem}")
    model.load_state_dict(tensors)
    return model


def _write_model(folder: Path, model: TopicModel) -> None:
    about = {
        "format_version": FORMAT_VERSION,
        "kind": model.prior.kind,
        "config": model.config,
        "vocabulary": model.vocabulary is not None,
    }
    _write_json(folder / _MODEL, about)
    tensors = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    with atomic_write(folder / _TENSORS) as file:
        file.write(safetensors.torch.save(tensors))
    if model.vocabulary is not None:
        write_lines(folder / _VOCABULARY, model.vocabulary, "word")


def _mismatch(expected: Tensor | None, found: Tensor | None) -> str | None:
    """What is wrong with a tensor of a model's file, if anything is."""
    if expected is None:
        return "is not a parameter of this model; do the files belong together?"
    if found is None:
        return "is missing; is the file complete?"
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return (
            f"is {tuple(found.shape)} {found.dtype}; expected {tuple(expected.shape)} "
            f"{expected.dtype} by {_MODEL}"
        )
    return None if torch.isfinite(found).all() else "holds NaN or infinity"


def _check_sizes(folder: Path, settings: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Refuse sizes that the parameters do not have, before memory is taken for them."""
    topics = tensors.get("topics.logits")
    sizes = (settings.get("num_words"), settings.get("num_topics"))
    if topics is None or tuple(topics.shape) != sizes:
        found = "missing" if topics is None else tuple(topics.shape)
        raise ConfigError(
            f"{folder / _TENSORS}: topics.logits is {found}; expected (num_words, num_topics) = "
            f"{sizes} by {_MODEL}"
        )


def _read_vocabulary(path: Path, settings: dict[str, Any]) -> tuple[str, ...] | None:
    try:
        if not read_text(path).endswith("\n"):
            raise CorpusError(f"{path}: ends within a line; is it truncated?")
        return check_vocabulary(read_lines(path), settings["num_words"])
    except CorpusError as error:
        prefix = "" if str(error).startswith(str(path)) else f"{path}: "
        raise ConfigError(f"{prefix}{error}") from error


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; is the folder complete?") from None
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise ConfigError(f"{path}: not a complete safetensors file ({error})") from error


# -------------------------------------------------------------------- runs


def save_run(
    path: str | Path,
    model: TopicModel,
    result: FitResult,
    config: Mapping[str, Any],
    *,
    metadata: Mapping[str, Any] | None = None,
    split: Split[Corpus] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a run's folder, which appears complete or not at all.

    Args:
        path: The folder to write.
        model: The fitted model.
        result: What the fit returned.
        config: The configuration of the fit, JSON-able.
        metadata: What else to record, JSON-able.
        split: Which documents were trained on and which held out.
        overwrite: Replace a model or run that is there already.

    Returns:
        The folder.

    Raises:
        ConfigError: The folder exists and may not be replaced.
    """
    about = {
        "stop_reason": result.stop_reason,
        "num_unconverged": result.num_unconverged,
        "objective_name": result.objective_name,
        "objective": result.history[-1]["objective"] if result.history else None,
        "seconds": round(result.seconds, 3),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch_lntm", "torch", "pyro-ppl", "numpy")},
        },
        **(metadata or {}),
    }
    with _new_folder(Path(path), overwrite) as folder:
        _write_model(folder, model)
        _write_json(folder / _CONFIG, dict(config))
        _write_json(folder / _METADATA, about)
        with atomic_write(folder / _HISTORY) as file:
            file.write("".join(json.dumps(record) + "\n" for record in result.history).encode())
        if split is not None:
            split.save(folder / _SPLIT)
    return Path(path)


def load_run(path: str | Path) -> Run:
    """Read a run's folder.

    Args:
        path: The folder.

    Returns:
        The run, its model on the CPU.

    Raises:
        ConfigError: A file is missing, damaged or does not fit the others; the message names it.
    """
    folder = Path(path)
    model = load_model(folder)
    metadata = _read_json(folder / _METADATA)
    shares = metadata.get("topic_shares", [0.0] * model.num_topics)
    numbers = isinstance(shares, list) and all(isinstance(share, int | float) for share in shares)
    if not numbers or len(shares) != model.num_topics:
        raise ConfigError(f"{folder / _METADATA}: topic_shares are not a number per topic")
    if not isinstance(metadata.get("corpus", {}), dict):
        raise ConfigError(f"{folder / _METADATA}: corpus is not an object")
    config = _read_json(folder / _CONFIG)
    return Run(folder, model, config, metadata, _read_history(folder / _HISTORY))


def check_target(path: Path, overwrite: bool) -> None:
    """Raise if a folder may not be written here.

    Raises:
        ConfigError: There is a file, a folder that is no model's, or one and ``overwrite`` is
            false.
    """
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not path.is_dir() or not (path / _MODEL).is_file():
        raise ConfigError(f"{path}: exists and is not a run folder; choose another path")
    if not overwrite:
        raise ConfigError(f"{path}: exists already; choose another path, or overwrite it")


@contextlib.contextmanager
def _new_folder(path: Path, overwrite: bool) -> Iterator[Path]:
    """A folder to fill, which takes its name only when it is complete."""
    check_target(path, overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex
    temporary, old = path.with_name(f".{path.name}.{mark}"), path.with_name(f".{path.name}.{mark}~")
    temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            path.rename(old)
        try:
            temporary.rename(path)
        except BaseException:
            if old.exists():
                old.rename(path)
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


# -------------------------------------------------------------------- unfinished runs


class UnfinishedRun:
    """The folder ``PATH.partial`` that a fit keeps while it runs, to be continued if it is killed.

    It holds the fit's configuration and its latest checkpoint. While this object is held, no
    other process gets the same folder.

    Args:
        path: Where the run will be saved.
        config: The configuration of the fit, JSON-able.

    Raises:
        ConfigError: A checkpoint of another configuration is there, or another process is at it.
    """

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path = path
        self.folder = path.with_name(f"{path.name}.partial")
        self.checkpoint = self.folder / _CHECKPOINT
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(self.folder / "lock")
        if lock is None:
            raise ConfigError(f"{self.folder}: another fit is writing there; wait for its end")
        self._lock = lock
        try:
            self._claim(json.loads(json.dumps(config)))
        except BaseException:
            self._lock.close()
            raise

    def _claim(self, config: dict[str, Any]) -> None:
        if self.checkpoint.exists():
            found = _read_json(self.folder / _CONFIG)
            different = [
                f"{name} is {config.get(name)!r}, was {found.get(name)!r}"
                for name in sorted({*config, *found})
                if config.get(name) != found.get(name)
            ]
            if different:
                raise ConfigError(
                    f"{self.folder}: holds an unfinished fit of another configuration "
                    f"({'; '.join(different)}). Run it as it was to continue it, delete the "
                    "folder to start anew, or choose another path"
                )
        _write_json(self.folder / _CONFIG, config)

    @property
    def started(self) -> bool:
        """Whether there is a checkpoint to continue from."""
        return self.checkpoint.exists()

    @staticmethod
    def find(folder: Path, prefix: str, config: Mapping[str, Any]) -> Path | None:
        """Where the newest unfinished run of this very configuration would be saved.

        Args:
            folder: The folder of runs.
            prefix: What the run's name begins with.
            config: The configuration.

        Returns:
            The run's path, or None if there is none that can be continued.
        """
        wanted = json.loads(json.dumps(config))
        for partial in sorted(folder.glob(f"{glob.escape(prefix)}*.partial"), reverse=True):
            try:
                matches = _read_json(partial / _CONFIG) == wanted
            except ConfigError:
                continue
            if matches and (partial / _CHECKPOINT).exists():
                lock = _lock(partial / "lock")
                if lock is not None:
                    lock.close()
                    return partial.with_suffix("")
        return None

    def discard(self) -> None:
        """Remove the folder: the fit is finished."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()

    def __enter__(self) -> UnfinishedRun:
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave the folder for a later run to continue, if there is anything to continue."""
        if not self._lock.closed and not self.started:
            self.discard()
        self._lock.close()


def _lock(path: Path) -> IO[bytes] | None:
    """An open file, locked until it is closed or the process ends; None if another has it."""
    file = open(path, "ab")  # noqa: SIM115 - stays open, and with it the lock
    try:
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # on Windows, where two fits under one name are the user's to avoid
        pass
    except OSError:
        file.close()
        return None
    return file


# -------------------------------------------------------------------- files


def _write_json(path: Path, value: dict[str, Any]) -> None:
    with atomic_write(path) as file:
        file.write((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def _read_json(path: Path) -> dict[str, Any]:
    value = _parse(path, _text(path))
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def _read_history(path: Path) -> list[dict[str, Any]]:
    text = _text(path)
    if text and not text.endswith("\n"):
        raise ConfigError(f"{path}: ends within a line; is it truncated?")
    return [_parse(path, line) for line in text.splitlines()]


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except CorpusError as error:
        raise ConfigError(str(error)) from error


def _parse(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not complete JSON ({error})") from error
