"""Seconds and memory of a measurement, and a description of the machine; standard library only.

A process that measures the memory of a library imports only this light module beside the library.
"""

from __future__ import annotations

import datetime
import os
import platform
import resource
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    *("torch", "numpy", "scipy", "scikit-learn"),
    *("gensim", "tomotopy", "topica", "torch_lntm", "triton"),
)
_MB = 2.0**20


class Stopwatch:
    """Measures ``with`` blocks: CPU seconds (user + system, all threads) and wall seconds.

    Seconds of several blocks add up.
    """

    cpu_seconds = 0.0
    wall_seconds = 0.0

    def __enter__(self) -> Stopwatch:
        self._wall, self._cpu = time.perf_counter(), _cpu_seconds()
        return self

    def __exit__(self, *exception: object) -> None:
        self.wall_seconds += time.perf_counter() - self._wall
        self.cpu_seconds += _cpu_seconds() - self._cpu


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def memory_mb(peak: bool = False) -> float:
    """Resident memory of this process in MB, now or at its peak; Linux only.

    ``ru_maxrss`` is no substitute: a child process inherits it from its parent.
    """
    field = "VmHWM:" if peak else "VmRSS:"
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / _MB
    raise RuntimeError(f"/proc/self/status has no {field}")


def thread_environment(threads: int) -> dict[str, str]:
    """Environment of this process, with every numerical library bounded to a number of threads."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, str(threads))}


def describe() -> dict[str, Any]:
    """Date, commit, machine and versions of a study's run."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(git("status", "--porcelain", "--", "torch_lntm", "studies")),
        "machine": {
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "load_before": round(os.getloadavg()[0], 2),
        },
        "versions": {"python": platform.python_version(), **_versions()},
    }


def _cpu_name() -> str:
    information = Path("/proc/cpuinfo")
    for line in information.read_text().splitlines() if information.exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    installed = {package.metadata["Name"]: package.version for package in metadata.distributions()}
    return {name: installed[name] for name in PACKAGES if name in installed}


def git(*arguments: str, folder: Path = ROOT) -> str | None:
    """Output of a git command in a folder, or None if the command fails or git is missing."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True)
    except OSError:  # git is missing
        return None
    return done.stdout.strip() if done.returncode == 0 else None
