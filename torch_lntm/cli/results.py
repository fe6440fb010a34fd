"""Finished runs of ``torch-lntm fit``, and a summary of a fit's progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch_lntm as lntm

if TYPE_CHECKING:
    from torch_lntm.corpus import Corpus
    from torch_lntm.inference import FitResult
    from torch_lntm.io import Run

#: Options that may change when a killed fit is continued.
CHANGEABLE = (
    *("out", "overwrite", "threads", "progress", "num_words", "checkpoint_seconds"),
    "keep_chains",
)


def same_run(path: Path, corpus: Corpus, fixed: dict[str, Any]) -> Run | None:
    """The run in a folder, if its configuration and its corpus are equal; ``None`` otherwise."""
    if not (path / "metadata.json").is_file():
        return None
    run = lntm.load_run(path)
    config = {name: value for name, value in run.config.items() if name not in CHANGEABLE}
    is_equal = config == json.loads(json.dumps(fixed))
    saved = run.metadata.get("corpus", {})
    return run if is_equal and about_corpus(corpus).items() <= saved.items() else None


def about_corpus(corpus: Corpus) -> dict[str, Any]:
    """Facts about the whole corpus, for the metadata of a run.

    A part has the fingerprint of the manifest, because no process reads all counts.
    """
    part, whole = corpus.part, corpus.whole
    about: dict[str, Any] = {"name": corpus.name, "num_docs": whole.num_docs}
    about |= {"num_words": corpus.num_words, "num_tokens": whole.num_tokens}
    if part is None:
        return about | {"fingerprint": corpus.fingerprint()}
    return about | {"manifest": part.fingerprint}


def stage(result: FitResult) -> str:
    """Last phase, iteration and objective of a fit, in words."""
    if not result.history:
        return "the start"
    last = result.history[-1]
    return (
        f"phase {last['phase']}, iteration {last['iteration']}, "
        f"{last['objective']:.4f} nats per token ({result.objective_name})"
    )
