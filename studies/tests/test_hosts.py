"""The study of hosts: its forwarder, its cells and its tables."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from studies.benchmarks import hosts
from studies.measure import Cells
from torch_lntm.errors import ConfigError

SIZES = {"num_docs": 300, "num_words": 50, "tokens_per_doc": 10, "num_topics": 3, "max_epochs": 3}
TINY = hosts.Settings(**SIZES, exchanged_words=101, exchanged_topics=3)


def test_packets_are_passed_on_in_their_order_after_the_delay() -> None:
    (source, entry), (exit_, target) = os.pipe(), os.pipe()
    stopped = threading.Event()
    thread = threading.Thread(target=hosts.forward, args=(source, target, 0.2, stopped))
    thread.start()
    started = time.monotonic()
    os.write(entry, b"first")
    time.sleep(0.05)
    os.write(entry, b"second")
    found = [os.read(exit_, 5), os.read(exit_, 6)]
    assert found == [b"first", b"second"]
    assert time.monotonic() - started >= 0.25
    stopped.set()
    thread.join()
    for end in (source, entry, exit_, target):
        os.close(end)


@pytest.mark.slow
def test_fits_without_namespaces_and_the_exchange() -> None:
    settings = hosts.Settings(**vars(TINY) | {"cells": ("alone", "loopback", "exchange")})
    found = hosts.run(settings, Cells())
    (alone,), (first, second) = found["alone"], found["loopback"]
    assert first["objectives"] == second["objectives"]
    assert first["objectives"] == pytest.approx(alone["objectives"], abs=1e-3)
    assert len(first["seconds"]) == len(first["bytes"]) == 3
    assert first["all_reduce_ms"] > 0
    assert len(found["exchange"]) == 2
    text = hosts.tables(found)
    assert "| loopback |" in text
    assert "| M-step " in text


@pytest.mark.slow
def test_two_hosts_with_and_without_delay(tmp_path: Path) -> None:
    try:
        with hosts.joined_hosts("forwarder", 0.0):
            pass
    except (ConfigError, OSError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    settings = hosts.Settings(**vars(TINY) | {"cells": ("loopback", "cable", "delay")})
    found = hosts.run(settings, Cells())
    for name in ("cable", "delay"):
        first, second = found[name]
        assert first["objectives"] == second["objectives"] == found["loopback"][0]["objectives"]
        assert first["bytes"][-1] > first["bytes"][0]
    # A number needs at least one way to the other host.
    assert found["delay"][0]["all_reduce_ms"] > TINY.delay_ms / 2


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="num_shards is 1"):
        hosts.Settings(num_shards=1)
    with pytest.raises(ConfigError, match="cells: 'moon'; expected some of alone, loopback"):
        hosts.Settings(cells=("moon",))
