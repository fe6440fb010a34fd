"""Options and fixtures of every test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from support.pretend import PretendDevice
from support.shared_state import restored

if TYPE_CHECKING:
    from torch_lntm.corpus import Corpus

# Triton reads this when it is imported: without a GPU its kernels run in its interpreter.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("cpu", "cuda", "pretend"),
        default="cpu",
        help="where the tests that take the `device` fixture compute (default: cpu); pretend runs "
        "these tests alone, on a device without hardware that refuses what CUDA refuses",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Skipping here would let a run that tested nothing on the GPU pass.
    if config.getoption("--device") == "cuda" and not torch.cuda.is_available():
        raise pytest.UsageError("--device cuda: torch finds no CUDA device on this machine")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker("slow")
    # Every operation is slow on the pretend device, and the other tests would not use it.
    if config.getoption("--device") == "pretend":
        there = [bool({"device", "accelerator"} & set(item.fixturenames)) for item in items]
        config.hook.pytest_deselected(
            items=[i for i, on in zip(items, there, strict=True) if not on]
        )
        items[:] = [item for item, on in zip(items, there, strict=True) if on]


@pytest.fixture(autouse=True)
def shared_state() -> Iterator[None]:
    """Registered names and Pyro's parameters are of one test only."""
    with restored():
        yield


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error is a terminal, whose text ``capsys`` reads."""
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda stream: True)
    monkeypatch.setattr("torch_lntm.progress.DELAY", 0.0)


@pytest.fixture
def device(pytestconfig: pytest.Config) -> Iterator[torch.device]:
    """The device named on the command line."""
    name = pytestconfig.getoption("--device")
    if name != "pretend":
        yield torch.device(name)
        return
    with PretendDevice():
        yield torch.device("cuda")


@pytest.fixture
def hardware(pytestconfig: pytest.Config) -> torch.device:
    """The device named on the command line; with the pretend one its tests are left out.

    For PyTorch's function transforms, which see through that.
    """
    return torch.device(pytestconfig.getoption("--device"))


@pytest.fixture
def accelerator(pytestconfig: pytest.Config) -> Iterator[torch.device]:
    """A CUDA device: the pretend one, unless the command line asks for the hardware's."""
    if pytestconfig.getoption("--device") == "cuda":
        yield torch.device("cuda")
        return
    with PretendDevice():
        yield torch.device("cuda")


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Switches Triton's kernels on, and says where they run: on CUDA or in the interpreter."""
    there = torch.cuda.is_available()
    # Older interpreters take no NumPy of today.
    pytest.importorskip(
        "triton", minversion=None if there else "3.7", reason="needs Triton, which is for Linux"
    )
    monkeypatch.setenv("LNTM_TRITON", "1")
    return torch.device("cuda" if there else "cpu")


@pytest.fixture
def generator(device: torch.device) -> torch.Generator:
    """A generator on the device, in the same state at the start of every test."""
    return torch.Generator(device=device).manual_seed(0)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora beside the repository; the test is skipped where there is none."""
    folder = Path(os.environ.get("LNTM_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("needs a folder of real corpora, which the variable LNTM_DATA names")
    return folder


@pytest.fixture(scope="session")
def lee() -> Corpus:
    """The 300 news articles that gensim's package carries."""
    from torch_lntm.corpus import lee_corpus

    return lee_corpus()
