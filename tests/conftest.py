"""Options and fixtures of every test.

The process that hands tests out to others loads this file and runs none of them, so the heavy
imports stand inside the functions.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where the tests that take the `device` fixture compute (default: cpu)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    # Triton reads this when it is imported: without a GPU its kernels run in its interpreter.
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def shared_state():
    """Registered names and Pyro's parameters are of one test only."""
    from support.shared_state import restored

    with restored():
        yield


@pytest.fixture
def terminal(capsys, monkeypatch):
    """Standard error is a terminal, whose text ``capsys`` reads."""
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda stream: True)
    monkeypatch.setattr("torch_lntm.progress.DELAY", 0.0)


@pytest.fixture
def device(pytestconfig):
    """The device named on the command line."""
    import torch

    return torch.device(pytestconfig.getoption("--device"))


@pytest.fixture
def accelerator(device):
    """A CUDA device: the pretend one, unless the command line asks for the hardware's."""
    import torch
    from support.pretend import PretendDevice

    with nullcontext() if device.type == "cuda" else PretendDevice():
        yield torch.device("cuda")


@pytest.fixture
def triton(monkeypatch):
    """Switches Triton's kernels on, and says where they run: on CUDA or in the interpreter."""
    import torch

    there = torch.cuda.is_available()
    # Older interpreters take no NumPy of today.
    pytest.importorskip(
        "triton", minversion=None if there else "3.7", reason="needs Triton, which is for Linux"
    )
    monkeypatch.setenv("LNTM_TRITON", "1")
    return torch.device("cuda" if there else "cpu")


@pytest.fixture
def numba(monkeypatch):
    """Switches Numba's kernels on, which run on the CPU."""
    pytest.importorskip("numba", reason="needs Numba, the extra fast")
    monkeypatch.delenv("LNTM_TRITON", raising=False)
    monkeypatch.setenv("LNTM_COMPILED", "1")
    import torch

    return torch.device("cpu")


@pytest.fixture(params=["triton", "numba"])
def fused(request):
    """Switches the fused kernels of each back end on, and says where they run."""
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["compiled", "pytorch"])
def back_end(request, monkeypatch):
    """Runs a test twice on the CPU: by Numba's kernels, and by PyTorch's operations."""
    if request.param == "compiled":
        request.getfixturevalue("numba")
    else:
        from support.kernels import without_fused_kernels

        without_fused_kernels(monkeypatch)
    return request.param


@pytest.fixture
def generator(device):
    """A generator on the device, in the same state at the start of every test."""
    import torch

    return torch.Generator(device=device).manual_seed(0)


@pytest.fixture(scope="session")
def shared_data():
    """The folder of real corpora beside the repository; the test is skipped where there is none."""
    folder = Path(os.environ.get("LNTM_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("needs a folder of real corpora, which the variable LNTM_DATA names")
    return folder


@pytest.fixture(scope="session")
def lee():
    """The 300 news articles that gensim's package carries."""
    from torch_lntm.corpus import lee_corpus

    return lee_corpus()
