"""Fits of a corpus in parts by 2 hosts, which are network namespaces of one machine.

A pair of virtual Ethernet devices joins the hosts, or a program that passes packets on, at once or
after a delay. The cell "exchange" measures the steps that a division of the M-step by words would
change. Namespaces need Linux, the command ip and the rights of root.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from studies.benchmarks import parts
from studies.machine import ROOT, Stopwatch, thread_environment
from studies.measure import Cells, Study, check_numbers
from studies.tables import table
from torch_lntm.corpus import read_corpus
from torch_lntm.errors import ConfigError
from torch_lntm.inference import MonteCarloEM
from torch_lntm.models import ctm

#: Links between the processes of a fit. "alone" is a fit of one process.
LINKS = ("alone", "loopback", "cable", "forwarder", "delay")
#: Addresses of the hosts.
ADDRESSES = ("10.77.0.1", "10.77.0.2")
#: Request for a tunnel device, and its kind: packets of IP without a header.
TUNSETIFF, IFF_TUN_NO_PI = 0x400454CA, 0x1001
#: Repetitions of a measured exchange.
REPEATED = 3


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        num_docs: Documents.
        num_words: Words of the vocabulary.
        tokens_per_doc: Mean tokens of a document.
        num_shards: Shards of the corpus.
        num_topics: Topics, of the truth and of the fits.
        max_epochs: Epochs of chains. Figures are of the epochs after the first.
        delay_ms: Milliseconds that packets need for the way to the other host and back.
        exchanged_words: Words of the model in the cell "exchange".
        exchanged_topics: Its topics.
        seed: Seed of the documents and of the fits.
        cells: Links, and "exchange".
    """

    num_docs: int = 40_000
    num_words: int = 5_000
    tokens_per_doc: int = 20
    num_shards: int = 4
    num_topics: int = 20
    max_epochs: int = 5
    delay_ms: float = 5.0
    exchanged_words: int = 500_000
    exchanged_topics: int = 200
    seed: int = 0
    cells: tuple[str, ...] = (*LINKS, "exchange")

    def __post_init__(self) -> None:
        """Check the numbers."""
        ones = ("num_docs", "num_words", "tokens_per_doc", "exchanged_words", "exchanged_topics")
        least = {**dict.fromkeys(ones, 1), "num_shards": 2, "num_topics": 2, "max_epochs": 2}
        check_numbers(self, {**least, "seed": 0})
        unknown = [name for name in self.cells if name not in (*LINKS, "exchange")]
        if unknown:
            raise ConfigError(
                f"cells: {unknown[0]!r}; expected some of {', '.join(LINKS)}, exchange"
            )

    def corpus(self) -> parts.Settings:
        """Settings of the documents."""
        names = ("num_docs", "num_words", "tokens_per_doc", "num_shards", "num_topics", "seed")
        return parts.Settings(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class Host:
    """A host of a fit.

    Attributes:
        prefix: Command before each command of the host.
        interface: Its network interface.
    """

    prefix: tuple[str, ...]
    interface: str


def run(settings: Settings, cells: Cells) -> Any:
    """Write the corpus, and measure every cell."""
    names = list(settings.cells)
    with tempfile.TemporaryDirectory() as folder:
        if any(name not in cells.done for name in names):
            parts.write(settings.corpus(), Path(folder, "corpus"))
        measured = cells.each(names, lambda name: measure_cell(settings, name, Path(folder)))
    return dict(zip(names, measured, strict=True))


def measure_cell(settings: Settings, name: str, folder: Path) -> list[dict[str, Any]]:
    """Measurements of all processes of a cell, by rank."""
    delay = settings.delay_ms / 2000 if name == "delay" else 0.0
    with joined_hosts(name, delay) as (hosts, address):
        started = [
            subprocess.Popen(
                [
                    *(*host.prefix, sys.executable, "-m", "studies.benchmarks.hosts"),
                    *(json.dumps(asdict(settings)), name, str(rank), str(len(hosts))),
                    *(str(folder / "corpus"), address, host.interface),
                ],
                cwd=ROOT,
                env=thread_environment(1) | {"GLOO_SOCKET_IFNAME": host.interface},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, host in enumerate(hosts)
        ]
        ended = [(*process.communicate(), process.returncode) for process in started]
    for _, error, code in ended:
        if code:
            raise RuntimeError(f"a process of the cell {name} failed: {error}")
    return [json.loads(text) for text, *_ in ended]


# -- hosts -----------------------------------------------------------------------------------------


@contextmanager
def joined_hosts(link: str, delay: float) -> Iterator[tuple[list[Host], str]]:
    """Context with the hosts of a cell, and the address where their processes meet.

    Args:
        link: Name of the cell.
        delay: Seconds that a packet needs for its way through the forwarder.
    """
    if link not in ("cable", "forwarder", "delay"):
        hosts = [Host((), "lo")] * (1 if link == "alone" else 2)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        yield hosts, f"127.0.0.1:{port}"
        return
    names = [f"lntm{os.getpid()}-{i}" for i in range(2)]
    with ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
        if link == "cable":
            ip("link", "add", names[0], "type", "veth", "peer", "name", names[1])
        else:
            stack.enter_context(forwarded(names, delay))
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("link", "set", name, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", name)
            ip("-n", name, "link", "set", name, "up")
            ip("-n", name, "link", "set", "lo", "up")
        hosts = [Host(("ip", "netns", "exec", name), name) for name in names]
        yield hosts, f"{ADDRESSES[0]}:29400"


def ip(*arguments: str) -> None:
    """Run the command ip.

    Raises:
        ConfigError: The machine refuses the command.
    """
    try:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = str(getattr(error, "stderr", None) or error).strip()
        raise ConfigError(
            f"ip {' '.join(arguments)}: {reason}; hosts need Linux, iproute2 and the rights of "
            "root. Or choose the cells alone, loopback and exchange"
        ) from error


@contextmanager
def forwarded(names: list[str], delay: float) -> Iterator[None]:
    """Context with a tunnel device for each host, and threads that pass packets between them."""
    tunnels = []
    for name in names:
        tunnel = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(tunnel, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN_NO_PI))
        tunnels.append(tunnel)
    stopped = threading.Event()
    threads = [
        threading.Thread(target=forward, args=(source, target, delay, stopped))
        for source, target in (tunnels, tunnels[::-1])
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
        for tunnel in tunnels:
            os.close(tunnel)


def forward(source: int, target: int, delay: float, stopped: threading.Event) -> None:
    """Pass packets on, in their order, each after a delay in seconds."""
    waiting: deque[tuple[float, bytes]] = deque()
    while not stopped.is_set():
        wait = waiting[0][0] - time.monotonic() if waiting else 0.1
        if select.select([source], [], [], min(max(wait, 0.0), 0.1))[0]:
            packet = os.read(source, 2**16)
            waiting.append((time.monotonic() + delay, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            with suppress(OSError):  # a packet is lost while the other host is not there
                os.write(target, waiting.popleft()[1])


# -- processes of a cell ---------------------------------------------------------------------------


def main(
    settings: Settings, name: str, rank: int, size: int, path: str, address: str, interface: str
) -> None:
    """Measure in this process of a cell, and print the measurements as JSON."""
    if size > 1:
        options: dict[str, Any] = {"rank": rank, "world_size": size}
        dist.init_process_group("gloo", init_method=f"tcp://{address}", **options)
    about = exchange(settings) if name == "exchange" else fit(settings, rank, size, path, interface)
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()
    print(json.dumps(about))


def fit(settings: Settings, rank: int, size: int, path: str, interface: str) -> dict[str, Any]:
    """A fit of this process's part, with the bytes of its network interface after each epoch."""
    counters: list[int] = []
    small = torch.zeros(1)
    latency = 1000 * seconds(lambda: dist.all_reduce(small), 100)[0] if size > 1 else 0.0
    part = read_corpus(path, rank=rank, world_size=size)
    model = ctm(settings.num_topics, settings.num_words, seed=settings.seed)
    engine = MonteCarloEM(model, max_epochs=settings.max_epochs, seed=settings.seed, progress=False)
    with Stopwatch() as fitting:
        result = engine.fit(part, callback=lambda _: counters.append(sent_bytes(interface)))
    return {
        "seconds": [record["seconds"] for record in result.history],
        "objectives": [record["objective"] for record in result.history],
        "bytes": counters,
        "all_reduce_ms": latency,
        "cpu_seconds": fitting.cpu_seconds,
    }


def sent_bytes(interface: str) -> int:
    """Bytes that the interface has sent and received."""
    folder = Path("/sys/class/net", interface, "statistics")
    return sum(int((folder / f"{way}_bytes").read_text()) for way in ("tx", "rx"))


@torch.no_grad()
def exchange(settings: Settings) -> dict[str, Any]:
    """Wall and CPU seconds of an undivided M-step, and of the steps of a divided one."""
    num_words, num_topics = settings.exchanged_words, settings.exchanged_topics
    rows = torch.rand(num_words, num_topics)
    half = rows[: num_words // 2].contiguous()
    whole, average = torch.empty(2 * len(half), num_topics), torch.rand(num_words, num_topics)
    model = ctm(num_topics, num_words)
    steps: dict[str, Callable[[], Any]] = {
        "running average": lambda: average.mul_(0.9).add_(rows, alpha=0.1),
        "M-step": lambda: model.topics.m_step(rows.mT),
        "all-reduce of the counts": lambda: dist.all_reduce(rows),
        "reductions of halves": lambda: [
            dist.reduce(part, owner) for owner, part in enumerate(rows.chunk(2))
        ],
        "all-gather of the topics": lambda: dist.all_gather(list(whole.chunk(2)), half),
    }
    return {name: seconds(step, REPEATED) for name, step in steps.items()}


def seconds(step: Callable[[], Any], times: int) -> tuple[float, float]:
    """Mean wall and CPU seconds of a step that all processes make."""
    dist.barrier()
    with Stopwatch() as watch:
        for _ in range(times):
            step()
    return watch.wall_seconds / times, watch.cpu_seconds / times


# -- tables ----------------------------------------------------------------------------------------


def tables(found: dict[str, Any]) -> str:
    """A row for each link, and a row for each step of an exchange."""
    rows = []
    for name, ranks in found.items():
        if name == "exchange":
            continue
        first = ranks[0]
        epochs = [after - before for before, after in pairwise(first["seconds"])]
        sent = (first["bytes"][-1] - first["bytes"][0]) / len(epochs) / 1e6
        rows.append(
            [
                name,
                f"{first['all_reduce_ms']:.2f}",
                f"{sum(epochs) / len(epochs):.2f}",
                f"{min(epochs):.2f}",
                f"{sent:.2f}" if name not in ("alone", "loopback") else "",
                " + ".join(f"{rank['cpu_seconds']:.1f}" for rank in ranks),
                f"{first['objectives'][-1]:.6f}",
            ]
        )
    columns = ["link", "ms of a small all-reduce", "seconds of an epoch", "of the fastest"]
    columns += ["MB of an epoch", "CPU seconds of the fit", "objective"]
    texts = [table(columns, rows)] if rows else []
    if "exchange" in found:
        steps = found["exchange"][0].items()
        more = [[name, f"{wall:.2f}", f"{cpu:.2f}"] for name, (wall, cpu) in steps]
        texts.append(table(["step of an M-step", "seconds", "CPU seconds"], more))
    return "\n\n".join(texts)


STUDY = Study(
    Settings,
    run,
    tables,
    quick={"num_docs": 2_000, "num_words": 500, "exchanged_words": 5_000},
    selects=("cells",),
)

if __name__ == "__main__":
    _, _settings, _name, _rank, _size, _path, _address, _interface = sys.argv
    main(
        Settings(**json.loads(_settings)),
        *(_name, int(_rank), int(_size)),
        *(_path, _address, _interface),
    )
