"""The programs of docs/several_processes.md run, and outlast the death of a process.

A launcher that is not installed skips its tests: pip install -r tests/requirements-engines.txt.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.commands import tensors
from support.markdown import DOCS
from support.processes import in_processes

import torch_lntm as lntm
from torch_lntm.inference import MonteCarloEM, Processes

ROOT = DOCS.parent
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
RESTARTS = (*TORCHRUN, "--max-restarts", "3")
#: Module of each launcher, the arguments of Python for its program, and whether it starts the
#: processes again after the death of one.
LAUNCHERS: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "torchrun": ("torch", (*TORCHRUN, "with_torchrun.py"), False),
    "torchrun --max-restarts": ("torch", (*RESTARTS, "with_torchrun.py"), True),
    "Ray": ("ray.train", ("with_ray.py",), True),
    "Accelerate": ("accelerate", (*TORCHRUN, "with_accelerate.py"), False),
    "Fabric": ("lightning_fabric", ("with_fabric.py",), False),
    "Spark": ("pyspark", ("with_spark.py",), False),
}
#: Code of fit.py that takes too long for a test, and its replacement.
SHORTER = {
    "ctm(50,": "ctm(3,",
    "MonteCarloEM(model)": "MonteCarloEM(model, max_epochs=4, progress=False)",
    'fit.safetensors", ': 'fit.safetensors", checkpoint_seconds=0.0, ',
}
#: Code before fit.py: processes write down their epochs. The second process dies once, in epoch 3,
#: after the first process has written the checkpoint of epoch 2.
DEADLY = """
import json
import os
import signal
import time
from pathlib import Path
from torch_lntm.inference.em import monte_carlo

make_epoch = monte_carlo.MonteCarloRun._epoch


def noted(run, bar):
    died = Path("/shared/died")
    rank, epoch = run.processes.rank, run.state.step
    with open("/shared/epochs", "a") as file:
        file.write(json.dumps([rank, epoch]) + "\\n")
    if rank == 1 and epoch == 2 and not died.exists():
        died.touch()
        while "[0, 2]" not in Path("/shared/epochs").read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return make_epoch(run, bar)


monte_carlo.MonteCarloRun._epoch = noted
"""


def programs() -> dict[str, str]:
    """Programs of the page by the names of their files."""
    page = (DOCS / "several_processes.md").read_text(encoding="utf-8")
    return dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL))


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder with the corpus and the programs."""
    lntm.example_corpus().save(tmp_path / "posts", shard_size=20)
    for name, code in programs().items():
        if name == "fit.py":
            for long, short in SHORTER.items():
                assert code.count(long) == 1, long
                code = code.replace(long, short)
            code = DEADLY + code
        (tmp_path / name).write_text(code.replace("/shared", str(tmp_path)), encoding="utf-8")
    return tmp_path


def run(shared: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the folder, without traces in the home of the user."""
    home = shared / "home"
    home.mkdir(exist_ok=True)
    environment = {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{shared}",
        "HOME": str(home),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=shared,
        env=os.environ | environment,
        timeout=300,
        check=False,
    )


def fitted(folder: str) -> dict[str, Any]:
    """Parameters of the fit in fit.py, in this process of a group without a launcher."""
    processes = Processes()
    options = {"rank": processes.rank, "world_size": processes.size}
    part = lntm.read_corpus(Path(folder, "posts"), **options)
    model = lntm.models.ctm(3, part.num_words, vocabulary=part.vocabulary)
    MonteCarloEM(model, max_epochs=4, progress=False).fit(part)
    return {name: x.detach().numpy() for name, x in model.state_dict().items()}


def require(module: str) -> None:
    """Skip the test if a launcher is not installed."""
    remedy = f"{module} is not installed: pip install -r tests/requirements-engines.txt"
    pytest.importorskip(module.partition(".")[0], reason=remedy)
    if importlib.util.find_spec(module) is None:
        pytest.skip(remedy)
    if module == "pyspark" and not shutil.which("java"):
        pytest.skip("Spark needs Java")


@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_program_of_a_launcher_continues_after_a_death(launcher: str, shared: Path) -> None:
    module, arguments, restarts = LAUNCHERS[launcher]
    require(module)
    first = run(shared, *arguments)
    assert (shared / "died").exists(), first.stderr
    if not restarts:
        assert first.returncode
        assert not (shared / "model").exists()
        first = run(shared, *arguments)
    assert not first.returncode, first.stderr
    epochs = [json.loads(line) for line in (shared / "epochs").read_text().splitlines()]
    # The first process reaches epoch 3 of the first run, and both begin there in the second.
    for rank in (0, 1):
        assert [epoch for r, epoch in epochs if r == rank] == [0, 1, 2, 2, 3]
    expected = in_processes(2, fitted, str(shared))[0]
    found = tensors(shared / "model")
    assert found.keys() >= expected.keys()
    for name, values in expected.items():
        assert torch.equal(found[name], torch.from_numpy(values)), name


def test_every_program_is_run() -> None:
    named = {arguments[-1] for _, arguments, _ in LAUNCHERS.values()}
    assert programs().keys() == {"fit.py", "with_ray_reports.py", *named}
