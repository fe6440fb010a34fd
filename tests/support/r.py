"""R's programs, where R is installed."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest


def run_r(script: str, *arguments: Any, packages: tuple[str, ...] = (), **options: Any) -> str:
    """Output of a script by R. Skips the test if R or a package is not installed."""
    rscript = shutil.which("Rscript")
    if rscript is None:
        pytest.skip("needs R")
    for name in packages:
        test = f"quit(status = !requireNamespace('{name}', quietly = TRUE))"
        if subprocess.run([rscript, "-e", test], capture_output=True, check=False).returncode:
            pytest.skip(f"needs R's package {name}")
    command = [rscript, "-e", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout
