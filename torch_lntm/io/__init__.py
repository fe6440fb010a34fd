"""Saves models and runs in folders of safetensors, JSON and text, so that loading runs no code.

A model's folder holds ``model.json`` (name and settings of the constructor), ``model.safetensors``
(the parameters) and ``vocabulary.txt``. A run's folder adds ``config.json`` (the configuration),
``metadata.json`` (results and versions) and ``history.jsonl`` (a record per iteration). If
documents were held out, it also has ``split.npz`` and ``evaluation.json``; after a fit by chains it
has ``chains.safetensors``, from which reports and effects continue the chains. Both kinds of folder
contain a card for people, ``README.md``, which the library itself ignores. A model's files may also
lie in a repository of the Hugging Face Hub (:meth:`TopicModel.push_to_hub`).
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
