"""The tables of studies/pages/benchmarks.md from the results of the study ``quality``.

    python -m studies.benchmarks.leads [RESULT.json ...]

prints a row for each corpus and number of topics. The first columns have the perplexity and the CPU
seconds of ``auto``, of tuned peers, and of peers at their defaults. The next columns have the lead
of ``auto`` over the best peer. Its standard error is over documents and seeds, and p is that of a
two-sided t test (:mod:`studies.benchmarks.splits`). The last columns
compare a longer fit with ``auto`` and with the best peer, on the splits of the longer fit. Without
files the program reads ``studies/results/quality-*.json``.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from statistics import fmean
from typing import Any

from studies.benchmarks.frozen import CORPORA
from studies.benchmarks.quality import scores_of
from studies.benchmarks.splits import Scores, difference, pooled
from studies.machine import ROOT
from studies.tables import table_of

OURS, LONG = "torch_lntm ctm, auto", "torch_lntm ctm, auto, long"
PEERS = ("topica LDA, tuned", "tomotopy LDA, tuned", "topica LDA", "tomotopy LDA")


def cells_of(files: list[Path]) -> dict[str, Any]:
    """The cells of several results. Files may repeat a split."""
    cells: dict[str, Any] = {}
    for file in files:
        cells |= json.loads(file.read_text(encoding="utf-8"))["cells"]
    return cells


def rows(cells: dict[str, Any]) -> list[dict[str, str]]:
    """A row for each corpus and number of topics with a fit of ``auto`` and of a peer."""
    splits = {(c["corpus"], c["seed"]): c for name, c in cells.items() if name.startswith("split,")}
    fits: dict[tuple[str, int], dict[str, dict[int, Any]]] = {}
    for name, cell in cells.items():
        if not name.startswith("split,") and "failed" not in cell:
            here = fits.setdefault((cell["corpus"], cell["num_topics"]), {})
            here.setdefault(cell["system"], {})[cell["seed"]] = cell
    order = {name: place for place, name in enumerate(CORPORA)}
    keys = sorted(fits, key=lambda key: (key[1], order.get(key[0], len(order)), key[0]))
    return [
        row_of(corpus, num_topics, fits[corpus, num_topics], splits)
        for corpus, num_topics in keys
        if OURS in fits[corpus, num_topics] and set(PEERS) & set(fits[corpus, num_topics])
    ]


def row_of(
    corpus: str,
    num_topics: int,
    fits: dict[str, dict[int, Any]],
    splits: dict[tuple[str, int], Any],
) -> dict[str, str]:
    """One row. Systems are compared on the seeds of all of them."""
    systems = [system for system in (OURS, *PEERS) if system in fits]
    seeds = sorted(set.intersection(*(set(fits[system]) for system in systems)))
    scores: dict[str, list[Scores]] = {
        system: [
            scores_of(splits[corpus, seed], fits[system][seed]["log_predictive"]) for seed in seeds
        ]
        for system in systems
    }
    cells = {"corpus": f"*{corpus}*", "K": str(num_topics), "splits": str(len(seeds))}
    for system in (OURS, *PEERS):
        text = "–"
        if system in systems:
            seconds = fmean(fits[system][seed]["cpu_seconds"] for seed in seeds)
            text = f"{pooled(scores[system]).perplexity:.0f}, {seconds:.0f}"
        cells[system] = text
    best = max(systems[1:], key=lambda system: pooled(scores[system]).nats_per_token)
    cells |= {"best peer": best, "lead": lead(scores[OURS], scores[best])}
    both = [place for place, seed in enumerate(seeds) if seed in fits.get(LONG, {})]
    long = [
        scores_of(splits[corpus, seeds[place]], fits[LONG][seeds[place]]["log_predictive"])
        for place in both
    ]
    cells["long"] = f"{pooled(long).perplexity:.0f}" if both else "–"
    for name, system in (("auto", OURS), ("peer", best)):
        there = [scores[system][place] for place in both]
        cells[f"{name}, same splits"] = f"{pooled(there).perplexity:.0f}" if both else "–"
        cells[f"lead of long over {name}"] = lead(long, there) if both else "–"
    return cells


def lead(ours: list[Scores], theirs: list[Scores]) -> str:
    """Lead in nats a token with its standard error: over documents alone for a single split."""
    found = difference(ours, theirs)
    error = found.document_error if math.isnan(found.error) else found.error
    chance = "" if math.isnan(found.p) else f" (p = {found.p:.2f})"
    return f"{found.gain:+.3f} ± {error:.3f}{chance}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Leads of auto over the best peer.")
    results = ROOT / "studies" / "results"
    parser.add_argument(
        "files", nargs="*", type=Path, default=sorted(results.glob("quality-*.json"))
    )
    files = [file for file in parser.parse_args().files if file.name != "quality-splits.json"]
    print(table_of(rows(cells_of(files))))


if __name__ == "__main__":
    main()
