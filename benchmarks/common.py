"""What the benchmarks share: measuring, describing the machine, results."""

from __future__ import annotations

import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("LNTM_DATA", ROOT.parent / "shared" / "data"))
RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "gensim", "tomotopy", "torch_lntm")
_MB = 2.0**20


class Stopwatch:
    """Measures the block it is entered for: CPU (user + system, all threads) and wall seconds."""

    cpu_seconds = 0.0
    wall_seconds = 0.0

    def __enter__(self) -> Stopwatch:
        self._wall, self._cpu = time.perf_counter(), _cpu_seconds()
        return self

    def __exit__(self, *exception: object) -> None:
        self.wall_seconds = time.perf_counter() - self._wall
        self.cpu_seconds = _cpu_seconds() - self._cpu


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def memory_mb(peak: bool = False) -> float:
    """Resident memory of this process, now or at its peak; Linux only.

    Not ``ru_maxrss``, which a child process inherits from its parent.
    """
    field = "VmHWM:" if peak else "VmRSS:"
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / _MB
    raise RuntimeError(f"/proc/self/status has no {field}")


def thread_environment(threads: int) -> dict[str, str]:
    """This process's environment with every numerical library bounded to some threads."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, str(threads))}


def corpus_path(given: Path) -> Path:
    """The corpus file, or a message instead of a traceback where there is none."""
    if not given.exists():
        sys.exit(f"there is no corpus at {given}; name one that torch_lntm reads by --corpus PATH")
    return given


def describe(**settings: Any) -> dict[str, Any]:
    """Where, when and with what a benchmark ran; the settings are added as they are."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--", "torch_lntm")),
        "machine": {
            "cpu": model,
            "cores": os.cpu_count(),
            "load_before": round(os.getloadavg()[0], 2),
        },
        "versions": {"python": platform.python_version(), **_versions()},
        "settings": settings,
    }


def _versions() -> dict[str, str]:
    installed = {package.metadata["Name"]: package.version for package in metadata.distributions()}
    return {name: installed[name] for name in PACKAGES if name in installed}


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write a result, the folder with it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    print(f"written: {path}")


def print_table(rows: list[dict[str, str]]) -> None:
    """Print rows of ready-made cells, the first column to the left."""
    names = list(rows[0])
    widths = [max(len(name), *(len(row[name]) for row in rows)) for name in names]
    for cells in (names, *([row[name] for name in names] for row in rows)):
        first, *rest = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        print("  ".join((first, *rest)))
