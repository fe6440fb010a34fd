"""Models and runs in folders: safetensors, JSON and text, nothing that executes when loaded.

A model's folder holds ``model.json`` (the constructor's name and settings), ``model.safetensors``
(the parameters) and ``vocabulary.txt``. A run's folder holds these and ``config.json`` (what was
asked for), ``metadata.json`` (what came of it, and under which versions), ``history.jsonl`` (a
record per iteration) and, where documents were held out, ``split.npz`` and ``evaluation.json``.
A fit by chains leaves ``chains.safetensors``, from which reports and effects continue.
Both folders hold a card for people, ``README.md``, which no function reads.
"""

from torch_lntm.io.folders import check_target
from torch_lntm.io.models import FORMAT_VERSION, check_saveable, load_model, save_model
from torch_lntm.io.runs import Run, load_run, save_run, write_card
from torch_lntm.io.unfinished import UnfinishedRun, partial_folder

__all__ = [
    "FORMAT_VERSION",
    "Run",
    "UnfinishedRun",
    "check_saveable",
    "check_target",
    "load_model",
    "load_run",
    "partial_folder",
    "save_model",
    "save_run",
    "write_card",
]
