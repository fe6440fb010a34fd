"""Threads of the compiled kernels: their number, their bits, forks, Ctrl-C and damaged caches."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.corpora import make_corpus
from torch import Tensor

import torch_lntm as lntm
from torch_lntm.errors import ConfigError, LNTMWarning
from torch_lntm.inference.interruption import handled_signals
from torch_lntm.kernels import fused as fused_kernels
from torch_lntm.kernels import threads


@pytest.fixture
def three(monkeypatch):
    """Three threads for any work, however little."""
    monkeypatch.setattr(threads, "LEAST_EFFORT", 1)
    monkeypatch.setattr(threads, "num_threads", lambda: 3)


@pytest.fixture
def cores(monkeypatch):
    """Four cores with two threads each, in a process that no other Python process has started."""
    monkeypatch.setattr(threads, "_cores", lambda physical=False: 4 if physical else 8)
    monkeypatch.setattr(threads, "_chosen", None)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: None)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# -- bits ------------------------------------------------------------------------------------------


def fitted(number: int, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Parameters, objectives and chains of a short fit in float32 with its start."""
    monkeypatch.setattr(threads, "LEAST_EFFORT", 1)
    monkeypatch.setattr(threads, "num_threads", lambda: number)
    corpus = make_corpus(num_docs=70, num_words=61, rate=0.4)
    model = lntm.models.ctm(6, corpus.num_words, seed=0)
    engine = lntm.inference.MonteCarloEM(
        model, max_epochs=3, warmup_epochs=1, batch_size=20, progress=False
    )
    result = engine.fit(corpus)
    objectives = torch.as_tensor([record["objective"] for record in result.history])
    return [*(p.detach() for p in model.parameters()), objectives, *result.chains.latents.values()]


@pytest.mark.filterwarnings("ignore:.*never moved:torch_lntm.errors.ConvergenceWarning")
def test_any_number_of_threads_gives_the_same_bits(numba, monkeypatch) -> None:
    alone = fitted(1, monkeypatch)
    for number in (2, 3):
        for got, expected in zip(fitted(number, monkeypatch), alone, strict=True):
            assert torch.equal(got.isnan(), expected.isnan())
            assert torch.equal(got.nan_to_num(), expected.nan_to_num())


# -- pieces ----------------------------------------------------------------------------------------


def test_pieces_cover_all_items_once_and_errors_reach_the_caller(three) -> None:
    seen: list[int] = []
    threads.share(lambda first, end: seen.extend(range(first, end)), 1000, 1e9)
    assert sorted(seen) == list(range(1000))
    threads.share(lambda first, end: seen.clear(), 0, 1e9)
    assert seen

    def fail(first: int, end: int) -> None:
        if end > 9:
            raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        threads.share(fail, 10, 1e9)


def test_pieces_are_short_enough_for_ctrl_c(monkeypatch) -> None:
    """A single thread too checks for signals between pieces."""
    monkeypatch.setattr(threads, "num_threads", lambda: 1)
    for effort, expected in ((threads.MOST_EFFORT / 2, 1), (10 * threads.MOST_EFFORT, 10)):
        sizes: list[int] = []
        threads.share(lambda first, end, to=sizes: to.append(end - first), 1000, effort)
        assert len(sizes) == expected
        assert sum(sizes) == 1000


def test_ctrl_c_in_the_caller_stops_the_other_threads(three) -> None:
    main, running, begun = threading.get_ident(), threading.Event(), []

    def work(first: int, end: int) -> None:
        if first == end:
            return
        begun.append(first)
        if threading.get_ident() == main:
            assert running.wait(10)
            raise KeyboardInterrupt
        running.set()
        time.sleep(0.2)

    with pytest.raises(KeyboardInterrupt):
        threads.share(work, 1000, 1e9)
    number = len(begun)
    assert number <= 3
    time.sleep(0.3)
    assert len(begun) == number


def test_items_are_made_in_order_by_other_threads_and_errors_reach_the_caller(three) -> None:
    makers: list[int] = []

    def items() -> Iterator[int]:
        for item in range(4):
            makers.append(threading.get_ident())
            yield item
        raise RuntimeError("no file")

    def use() -> None:
        for item in threads.ahead(items()):
            seen.append(item)
            if item > 1:  # without kernels, the caller makes the next one
                threads.share(lambda first, end: time.sleep(0.02), 100, 1e9)

    seen: list[int] = []
    with pytest.raises(RuntimeError, match="no file"):
        use()
    assert seen == [0, 1, 2, 3]
    here = threading.get_ident()
    assert [maker == here for maker in makers] == [True, True, True, False]
    for _ in threads.ahead(iter([1, 2])):
        break
    assert not threads._later


def test_callers_do_not_wait_for_threads_that_are_busy_elsewhere(three, monkeypatch) -> None:
    released = threading.Event()
    pool = threads.ThreadPoolExecutor(1)
    monkeypatch.setattr(threads, "_pool", lambda: pool)
    pool.submit(released.wait, 60)
    seen: list[int] = []
    threads.share(lambda first, end: seen.extend(range(first, end)), 100, 1e9)
    assert sorted(seen) == list(range(100))
    pool.shutdown(wait=False)
    # A fit in another Python thread may outlive the main thread, where threads no longer start.
    threads.share(lambda first, end: seen.extend(range(first, end)), 100, 1e9)
    assert len(seen) == 200
    released.set()


# -- number of threads -----------------------------------------------------------------------------


def test_kernels_have_the_threads_of_torch_but_no_more_than_the_cores(cores) -> None:
    for number, expected in ((1, 1), (3, 3), (16, 8)):
        torch.set_num_threads(number)
        assert threads.num_threads() == expected


def test_children_have_one_thread_unless_told_otherwise(cores, monkeypatch) -> None:
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object())
    for number, expected in ((4, 1), (8, 1), (2, 2)):
        torch.set_num_threads(number)
        assert threads.num_threads() == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    torch.set_num_threads(8)
    assert threads.num_threads() == 8


def test_a_process_has_the_cores_of_its_affinity(monkeypatch) -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("needs an affinity")
    allowed = os.sched_getaffinity(0)
    threads._cores.cache_clear()
    assert 1 <= threads._cores() <= len(allowed)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        threads._cores.cache_clear()
        assert threads._cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
        threads._cores.cache_clear()


def test_fits_in_several_python_threads_have_the_threads_together(cores) -> None:
    torch.set_num_threads(6)
    inside, found = threading.Barrier(2), []

    def fit() -> None:
        with threads.kernels_only(), threads.kernels_only():
            inside.wait(10)
            found.append((threads.num_threads(), torch.get_num_threads()))
            inside.wait(10)
        found.append(torch.get_num_threads())

    fits = [threading.Thread(target=fit) for _ in range(2)]
    for thread in fits:
        thread.start()
    for thread in fits:
        thread.join()
    assert found == [(3, 1), (3, 1), 6, 6]
    assert torch.get_num_threads() == 6
    assert threads.num_threads() == 6


def test_chains_of_a_model_leave_torch_one_thread(cores, numba, monkeypatch) -> None:
    corpus, seen = make_corpus(num_docs=6), []
    model = lntm.models.ctm(2, corpus, seed=0)
    visit = fused_kernels.visit
    monkeypatch.setattr(
        fused_kernels, "visit", lambda *x: seen.append(torch.get_num_threads()) or visit(*x)
    )
    torch.set_num_threads(3)
    kernel = lntm.inference.DocumentHMC(model)
    kernel.run(corpus.batch(), 4, 2, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lntm.inference.theta_draws(kernel, corpus, num_draws=4, progress=False)
        lntm.evaluation.document_completion(model, corpus, theta="exact", progress=False)
        lntm.inference.joint_draws(model=model, corpus=corpus, num_draws=2, progress=False)
    assert set(seen) == {1}
    assert torch.get_num_threads() == 3


def test_a_command_sets_threads_of_kernels_and_of_torch(cores, monkeypatch) -> None:
    monkeypatch.setattr(threads, "_torch_threads", lambda: 4)
    threads.set_threads(None)
    assert (threads.num_threads(), torch.get_num_threads()) == (4, 1)
    threads.set_threads(2)
    assert (threads.num_threads(), torch.get_num_threads()) == (2, 2)
    with threads.kernels_only():
        assert (threads.num_threads(), torch.get_num_threads()) == (2, 1)


WORKERS = """
import functools, multiprocessing, os, threading
import joblib, torch
import torch_lntm as lntm
from torch_lntm.kernels import threads

threads.LEAST_EFFORT, threads._cores = 1, functools.cache(lambda physical=False: 3)

def fit(number=0):
    threads.LEAST_EFFORT = 1
    model = lntm.models.lda(4, lntm.example_corpus(), seed=0)
    engine = lntm.inference.MonteCarloEM(model, max_epochs=2, warmup_epochs=1, progress=False)
    engine.fit(lntm.example_corpus())
    return threads.num_threads()

if __name__ == "__main__":
    torch.set_num_threads(3)
    assert fit() == 3
    child = os.fork()
    if not child:
        os._exit(fit())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(fit, range(2)) == [1, 1]
    jobs = [joblib.delayed(fit)() for _ in range(3)]
    for backend, expected in (("loky", 1), ("multiprocessing", 1), ("threading", None)):
        with joblib.parallel_config(backend):
            found = joblib.Parallel(n_jobs=3)(jobs)
        assert expected is None or found == 3 * [expected], (backend, found)
    assert fit() == 3
    # The main thread ends first, which shuts the pools of threads down.
    threading.Timer(1.0, lambda: print(fit() == 3)).start()
"""


@pytest.mark.long
def test_forked_workers_and_threads_neither_hang_nor_share_cores(tmp_path, numba) -> None:
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    environment = {name: x for name, x in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment["LOKY_MAX_CPU_COUNT"] = "3"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


# -- signals ---------------------------------------------------------------------------------------


class Interrupted:
    """Object whose finaliser, where Python drops exceptions, gets a Ctrl-C."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def finalise_and_wait() -> None:
    held = [Interrupted()]
    del held
    for _ in range(1000):
        time.sleep(0.01)


def test_ctrl_c_where_exceptions_are_lost_comes_again() -> None:
    def handle(kind: type[KeyboardInterrupt]) -> None:
        raise kind

    # An earlier test may have left a handler of its own, which stays in place.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with handled_signals(handle), pytest.raises(KeyboardInterrupt):
            finalise_and_wait()
    finally:
        signal.signal(signal.SIGINT, before)


# -- installations ---------------------------------------------------------------------------------


@pytest.fixture
def undecided(monkeypatch):
    """A process that has not yet looked for Numba."""
    monkeypatch.delenv("LNTM_TRITON", raising=False)
    monkeypatch.setenv("LNTM_COMPILED", "")
    fused_kernels._has_numba.cache_clear()
    yield monkeypatch
    fused_kernels._has_numba.cache_clear()


def remove_numba(monkeypatch: pytest.MonkeyPatch, name: str = "numba") -> None:
    """Let the next import of compiled kernels fail, as it fails without a module."""
    for kernels in ("compiled", "numba_ops", "caching"):
        whole = f"torch_lntm.kernels.{kernels}"
        for module in [m for m in sys.modules if f"{m}.".startswith(f"{whole}.")]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.delattr(whole, raising=False)
    monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize(
    ("value", "message"), [("2", "LNTM_COMPILED is '2'"), ("1", "pip install")]
)
def test_a_bad_switch_and_a_missing_numba_are_errors(value, message, undecided) -> None:
    undecided.setenv("LNTM_COMPILED", value)
    remove_numba(undecided)
    with pytest.raises(ConfigError, match=message):
        fused_kernels.is_compiled(torch.ones(2))
    undecided.setenv("LNTM_COMPILED", "")
    assert not fused_kernels.is_compiled(torch.ones(2))


def test_a_missing_numba_is_advised_once(undecided) -> None:
    undecided.setattr(fused_kernels, "_ADVICE", iter(["pip install numba"]))
    undecided.setenv("LNTM_COMPILED", "0")
    remove_numba(undecided)
    assert fused_kernels.advice(torch.ones(2)) is None
    undecided.setenv("LNTM_COMPILED", "")
    assert fused_kernels.advice(torch.ones(2)) == "pip install numba"
    assert fused_kernels.advice(torch.ones(2)) is None


@pytest.mark.parametrize("broken", ["import", "kernel"])
def test_a_broken_numba_is_reported_and_replaced(broken, undecided, numba) -> None:
    undecided.setenv("LNTM_COMPILED", "")
    if broken == "import":
        remove_numba(undecided, "numba.core.caching")
    else:
        from torch_lntm.kernels import compiled

        undecided.setattr(compiled, "mixed", lambda bits: bits + 1)
    with pytest.warns(LNTMWarning, match="Numba does not work here"):
        assert not fused_kernels.is_compiled(torch.ones(2))
    undecided.setattr(fused_kernels, "_ADVICE", iter(["pip install numba"]))
    assert fused_kernels.advice(torch.ones(2)) is None


def loaded(path: Path):
    """A kernel of a file, in a module of its own."""
    spec = importlib.util.spec_from_file_location("doubled", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.doubled


@pytest.mark.parametrize("damage", ["none", "index", "data", "unwritable", "full"])
def test_a_damaged_cache_costs_time_only(damage, numba, tmp_path, monkeypatch) -> None:
    from torch_lntm.kernels import caching

    compiled: list[str] = []
    monkeypatch.setattr(caching, "_announce", compiled.append)
    path = tmp_path / "doubled.py"
    path.write_text(
        "from torch_lntm.kernels.caching import kernel\n\n\n"
        "@kernel(nogil=True)\ndef doubled(x):\n    return 2 * x\n"
    )
    if damage == "unwritable":
        monkeypatch.setattr(caching.FunctionCache, "__init__", refuse(RuntimeError))
    if damage == "full":
        monkeypatch.setattr(caching.FunctionCache, "save_overload", refuse(OSError))
    assert loaded(path)(3) == 6
    assert len(compiled) == 1
    ends = {"index": ".nbi", "data": ".nbc"}
    for file in tmp_path.glob(f"__pycache__/*{ends.get(damage)}"):
        file.write_bytes(file.read_bytes()[:20])
    assert loaded(path)(3) == 6
    assert len(compiled) == (1 if damage == "none" else 2)
    if damage in ends:
        assert loaded(path)(3) == 6
        assert len(compiled) == 2  # repaired


def refuse(kind: type[Exception]):
    """Function that raises an error."""

    def refused(*args: object) -> None:
        raise kind("refused")

    return refused


def test_a_start_uses_no_threads_of_numpy() -> None:
    """They spin after each product, and PyTorch's number of threads does not limit them."""
    program = """
import time
import numpy as np
import torch
from torch_lntm.inference.em.merging import merged_labels
torch.set_num_threads(1)
random = np.random.default_rng(0)
counts = [random.gamma(0.1, size=(40, size)).astype(np.float32) for size in (20_000, 100)]
merged_labels(*counts, 20)  # kernels are loaded
before = time.process_time() - time.thread_time()
merged_labels(*counts, 20)
print(time.process_time() - time.thread_time() - before)
"""
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.02
