"""Kernel launches on a GPU, and the host's waits for it, counted without a GPU.

Every part of a fit runs on the tests' pretend device; ``launch_costs.py`` tells counts from
estimates. Launches and waits hardly depend on the sizes. The study takes two minutes.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

import torch_lntm as lntm
from studies.machine import ROOT
from studies.measure import Cells, Study, check_numbers, corpus_file
from studies.tables import table_of
from torch_lntm.errors import ConfigError

#: Costs on an H200 under eager PyTorch, to weigh launches and waits.
LAUNCH_US, WAIT_US = 5.0, 15.0


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        num_docs: Documents.
        num_words: Words of the vocabulary.
        num_topics: Topics.
        num_sources: Sources of factor models.
        length: Tokens of a document.
        corpus: Name of a corpus in the folder of data, or the path of one, instead of simulated
            documents of these sizes. Use it with ``--only "fit, ctm"``: the rest of the parts take
            all documents at once.
        only: Parts to count: a part counts if its name contains one of these. Defaults to all.
    """

    num_docs: int = 64
    num_words: int = 200
    num_topics: int = 50
    num_sources: int = 3
    length: int = 60
    corpus: str | None = None
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the numbers."""
        ones = ("num_docs", "num_words", "num_sources", "length")
        check_numbers(self, {**dict.fromkeys(ones, 1), "num_topics": 2})


def run(settings: Settings, cells: Cells) -> dict[str, dict[str, int]]:
    """Count the cost of each part, by name.

    Raises:
        ConfigError: No part has such a name.
    """
    folder = str(ROOT / "tests")
    if folder not in sys.path:
        sys.path.append(folder)
    launches = import_module("studies.benchmarks.launch_parts")
    sizes = {k: v for k, v in asdict(settings).items() if k not in ("corpus", "only")}
    corpus = lntm.read_corpus(corpus_file(settings.corpus)) if settings.corpus else None
    with launches.CountingDevice() as device:
        parts = launches.Parts(device, launches.Shape(**sizes), corpus).by_name()
        names = [
            name
            for name in parts
            if not settings.only or any(part in name for part in settings.only)
        ]
        if not names:
            raise ConfigError(
                f"no part has any of {', '.join(settings.only)} in its name; expected parts of "
                + "; ".join(parts)
            )

        def count(name: str) -> dict[str, int]:
            cost = parts[name]()
            return {"launches": cost.launches, "waits": cost.waits}

        return dict(zip(names, cells.each(names, count), strict=True))


def tables(costs: dict[str, dict[str, Any]]) -> str:
    """The costs, with estimated times."""
    rows = []
    for name, cost in costs.items():
        host = (cost["launches"] * LAUNCH_US + cost["waits"] * WAIT_US) / 1e3
        rows.append(
            {
                "part": name,
                "launches": f"{cost['launches']:,}",
                "waits": f"{cost['waits']:,}",
                "launches and waits, ms": f"{host:,.2f}",
            }
        )
    return table_of(rows)


STUDY = Study(Settings, run, tables, quick={"num_topics": 10, "only": ("counts", "leapfrog")})
