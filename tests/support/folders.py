"""Models and results to write, and ways to damage the files."""

from __future__ import annotations

import json
from dataclasses import replace

import safetensors.torch
import torch

import torch_lntm as lntm
from torch_lntm.inference import VariationalResult

WORDS = ("alpha", "beta", "γάμμα", "two words", "#")


def make_model(**options):
    options = {"vocabulary": WORDS, "seed": 3} | options
    return lntm.models.ctm(3, len(WORDS), **options)


def make_factor_model(**options):
    options = {"vocabulary": WORDS, "seed": 3} | options
    return lntm.models.iftm(4, len(WORDS), 2, **options)


def make_aspect_model(**options):
    options = {"vocabulary": WORDS, "seed": 3} | options
    return lntm.models.lda(3, len(WORDS), **options)


def make_result(**changes):
    history = [{"phase": "em", "iteration": 1, "objective": -1.5, "seconds": 0.1, "unconverged": 0}]
    guide = lntm.guides.TaylorGuide(make_model())
    result = VariationalResult(
        history, "converged", 0, torch.zeros(4, 3), "some objective", 0.25, guide=guide
    )
    return replace(result, **changes)


def edit_json(path, **changes):
    value = json.loads(path.read_text())
    for key, change in changes.items():
        if change is None:
            del value[key]
        else:
            value[key] = change
    path.write_text(json.dumps(value))


def edit_settings(path, **changes):
    settings = json.loads(path.read_text())["config"] | changes
    edit_json(path, config=settings)


def edit_tensors(path, **changes):
    """Changes tensors in a file as versions without checksums wrote it."""
    edit_json(path.with_name("model.json"), checksums=None)
    tensors = safetensors.torch.load_file(path)
    for name, change in changes.items():
        name = name.replace("__", ".")
        if change is None:
            del tensors[name]
        else:
            tensors[name] = change
    safetensors.torch.save_file(tensors, path)
