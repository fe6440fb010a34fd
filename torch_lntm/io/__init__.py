"""Models and runs in folders of safetensors, JSON and text. Loading executes no code.

A model's folder holds ``model.json`` (name and settings of the constructor), ``model.safetensors``
(the parameters) and ``vocabulary.txt``. A run's folder also holds ``config.json`` (the
configuration), ``metadata.json`` (results and versions) and ``history.jsonl`` (a record per
iteration). Runs with held-out documents hold ``split.npz`` and ``evaluation.json``. Runs by chains
hold ``chains.safetensors``, for reports and effects to continue the chains. Both folders hold a
card for people, ``README.md``. The library ignores the card.
"""

from torch_lntm.io.models import check_saveable as check_saveable
from torch_lntm.io.models import check_target as check_target
from torch_lntm.io.models import load_model, save_model
from torch_lntm.io.runs import Run, load_run, save_run, write_topic_names
from torch_lntm.io.runs import UnfinishedRun as UnfinishedRun

__all__ = [
    "Run",
    "load_model",
    "load_run",
    "save_model",
    "save_run",
    "write_topic_names",
]
