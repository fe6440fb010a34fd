"""Repositories of models and codebooks on the Hugging Face Hub, by the mixin of its library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from torch_lntm.errors import import_extra
from torch_lntm.io.models import CARD, MODEL, TENSORS, VOCABULARY, load_model, save_model
from torch_lntm.models import TopicModel

#: The file of a codebook in a repository.
BOOK = "codebook.safetensors"
#: All files that are downloaded. A repository may hold others, which are not even fetched.
FILES = [MODEL, TENSORS, VOCABULARY, BOOK]
#: The card of what brings no card of its own.
_CARD = """---
{{ card_data }}
---

Topics of torch_lntm, frozen as a codebook. `lntm.Codebook.from_pretrained("user/name")` loads it
from tensors and JSON, and executes no code.
"""


def push(save: Callable[[Path], object], kind: str, name: str, **options: Any) -> str:
    """Upload what a function saves; see :meth:`TopicModel.push_to_hub`.

    Args:
        save: Writes the files into an empty folder.
        kind: Kind of the model.
        name: Name of the repository.
        **options: Options of ``huggingface_hub.ModelHubMixin.push_to_hub``.
    """
    repository = _mixin()()
    repository.save = save
    # Without config.json, the mixin needs a network for what it has downloaded before.
    options.setdefault("config", {"library_name": "torch_lntm", "model_type": kind})
    return str(repository.push_to_hub(name, **options))


def pull(name: str | Path, **options: Any) -> Path:
    """The folder with the files of a repository; see :meth:`TopicModel.from_pretrained`.

    Args:
        name: Name of the repository, or the path of a folder.
        **options: Options of ``huggingface_hub.ModelHubMixin.from_pretrained``.
    """
    return Path(name if Path(name).is_dir() else _mixin().from_pretrained(name, **options).folder)


def push_model(model: TopicModel, name: str, **options: Any) -> str:
    """Upload a model; see :meth:`TopicModel.push_to_hub`."""
    return push(lambda folder: save_model(model, folder), model.name, name, **options)


def pull_model(name: str | Path, **options: Any) -> TopicModel:
    """Load a model; see :meth:`TopicModel.from_pretrained`."""
    return load_model(pull(name, **options))


def _mixin() -> Any:
    """The class of a repository, whose library is imported here.

    Raises:
        ConfigError: The library is not installed.
    """
    hub = import_extra("huggingface_hub", "files", "the Hub")
    mixin: Any = hub.ModelHubMixin
    about: Any = {"library_name": "torch_lntm", "tags": ["topic-model"]}
    about["model_card_template"] = _CARD

    class Repository(mixin, **about):
        save: Callable[[Path], object]
        folder: str

        def __init__(self) -> None:
            """Takes nothing, since the mixin passes on what config.json names like a parameter."""

        def _save_pretrained(self, save_directory: Path) -> None:
            self.save(save_directory)
            if (card := save_directory / CARD).exists():
                hub.metadata_save(card, self._hub_mixin_info.model_card_data.to_dict())

        @classmethod
        def _from_pretrained(cls, *, model_id: str, **options: Any) -> Self:
            repository = cls()
            repository.folder = hub.snapshot_download(model_id, allow_patterns=FILES, **options)
            return repository

    return Repository
