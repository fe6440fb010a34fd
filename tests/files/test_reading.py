"""Files are read with a bound, and errors say what is wrong with them."""

from __future__ import annotations

import gzip
import io
import math
import os
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from torch_lntm.corpus.archive import read_arrays
from torch_lntm.errors import FileError
from torch_lntm.files import reading

# ------------------------------------------------------------------ reading


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.TXT.GZ"])
def test_reading_is_bounded(tmp_path, name):
    data = b"x" * 100_000
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.lower().endswith("gz") else data)
    assert reading.read_bytes(path, 100_000) == data
    with pytest.raises(FileError, match=rf"{name}: holds more than 99999 bytes .* max_bytes"):
        reading.read_bytes(path, 99_999)


def test_pieces_of_a_text_join_to_the_text(tmp_path, monkeypatch):
    text = "\ufeffé one\r\ntwo €\n\r\n\nlast\r"
    (tmp_path / "a.txt").write_text(text, encoding="utf-8", newline="")
    (tmp_path / "mac.txt").write_bytes(b"one\rtwo")
    whole = reading.read_text(tmp_path / "a.txt")
    assert whole == "é one\ntwo €\n\n\nlast\r"
    for size in range(2, 12):
        monkeypatch.setattr(reading, "_PIECE", size)
        assert reading.read_text(tmp_path / "a.txt") == whole
        lines = whole.removesuffix("\r").split("\n")
        assert list(reading.iterate_lines(tmp_path / "a.txt")) == lines
    assert list(reading.iterate_lines(tmp_path / "mac.txt")) == ["one", "two"]
    (tmp_path / "bad.txt").write_bytes(b"one\ntwo\nthr\xffe")
    with pytest.raises(FileError, match=r"bad\.txt, line 3: not utf-8 text"):
        reading.read_text(tmp_path / "bad.txt")


def test_named_pipes_and_devices_are_refused_without_waiting(tmp_path):
    path = tmp_path / "pipe.txt"
    os.mkfifo(path)
    with pytest.raises(FileError, match=r"/dev/zero: .* or a device; expected a regular file"):
        reading.read_bytes(Path("/dev/zero"))
    for read in (reading.read_bytes, read_arrays):
        with pytest.raises(FileError, match=r"pipe\.txt: .* a named pipe"):
            read(path)


def test_pipes_of_the_shell_are_read():
    end, start = os.pipe()
    writer = threading.Thread(target=lambda: (os.write(start, b"one\ntwo"), os.close(start)))
    writer.start()
    try:
        assert reading.read_lines(Path(f"/dev/fd/{end}")) == ["one", "two"]
    finally:
        writer.join()
        os.close(end)


def test_folders_and_missing_files_are_refused(tmp_path):
    with pytest.raises(FileError, match="is a folder"):
        reading.read_bytes(tmp_path)
    for read in (reading.read_bytes, read_arrays):
        with pytest.raises(FileError, match=r"no\.npz: no such file; check the path"):
            read(tmp_path / "no.npz")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\r\nb\r\n", "a\nb\n"),
        (b"a\rb\r", "a\nb\n"),
        (b"a\rb\nc", "a\rb\nc"),  # a carriage return within a line
        (b"\xef\xbb\xbfa", "a"),
        (b"a\0bcd", "a\0bcd"),
        (b"", ""),
    ],
)
def test_all_line_ends_and_byte_order_marks_are_normalised(tmp_path, data, expected):
    (tmp_path / "a.txt").write_bytes(data)
    assert reading.read_text(tmp_path / "a.txt") == expected


def test_a_container_bounds_what_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_CONTAINER", tmp_path / "memory.max")
    for text, least, most in (("300\n", 100, 100), ("max\n", 1 << 28, math.inf)):
        (tmp_path / "memory.max").write_text(text)
        assert least <= reading.byte_limit(0, None, packed=False) <= most


# ------------------------------------------------------------------ arrays


def npy(array: np.ndarray, shape: str | None = None) -> bytes:
    """The bytes of an array, which may announce another shape."""
    file = io.BytesIO()
    np.save(file, array)
    data = file.getvalue()
    if shape is None:
        return data
    old = str(array.shape).encode()
    return data.replace(old + b", }" + b" " * (len(shape) - len(old)), shape.encode() + b", }")


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


def test_only_the_named_arrays_are_read(tmp_path):
    path = archive(tmp_path / "a.npz", a=npy(np.arange(3)), b=npy(np.zeros(10**6)), c=b"damaged")
    found = read_arrays(path, "a", optional=("x",), max_bytes=1000)
    assert list(found) == ["a"]
    np.testing.assert_array_equal(found["a"], [0, 1, 2])
    with pytest.raises(FileError, match=r"a\.npz: holds more than 1000 bytes"):
        read_arrays(path, "a", optional=("b",), max_bytes=1000)
    small = archive(tmp_path / "small.npz", a=npy(np.arange(3)), b=npy(np.arange(3)))
    with pytest.raises(FileError, match=r"small\.npz: holds more than 200 bytes"):
        read_arrays(small, "a", "b", max_bytes=200)


@pytest.mark.parametrize("shape", ["(1000000000000,)", "(9,)"])
def test_arrays_of_fewer_numbers_than_announced_are_refused(tmp_path, shape):
    data = npy(np.arange(3), shape)
    assert shape.encode() in data
    with pytest.raises(FileError, match=r"a\.npz: not a complete \.npz file"):
        read_arrays(archive(tmp_path / "a.npz", a=data), "a")
