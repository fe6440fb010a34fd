"""Files are read, and errors say what is wrong with them."""

from __future__ import annotations

import gzip
import io
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
def test_packed_files_are_unpacked(tmp_path, name):
    data = b"x" * 100_000
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.lower().endswith("gz") else data)
    assert reading.read_bytes(path) == data


def test_pieces_of_a_text_join_to_the_text(tmp_path, monkeypatch):
    text = "\ufeffé one\r\ntwo €\n\r\n\nlast\r"
    (tmp_path / "a.txt").write_text(text, encoding="utf-8", newline="")
    (tmp_path / "mac.txt").write_bytes(b"one\rtwo")
    whole = reading.read_text(tmp_path / "a.txt")
    assert whole == "é one\ntwo €\n\n\nlast"
    for size in range(2, 12):
        monkeypatch.setattr(reading, "_PIECE", size)
        assert reading.read_text(tmp_path / "a.txt") == whole
        assert list(reading.iterate_lines(tmp_path / "a.txt")) == whole.split("\n")
    assert list(reading.iterate_lines(tmp_path / "mac.txt")) == ["one", "two"]
    (tmp_path / "bad.txt").write_bytes(b"one\ntwo\nthr\xffe")
    with pytest.raises(FileError, match=r"bad\.txt, line 3: not utf-8 text"):
        reading.read_text(tmp_path / "bad.txt")


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
    with pytest.raises(FileError, match=r"cannot be read, .* directory"):
        reading.read_bytes(tmp_path)
    for read in (reading.read_bytes, read_arrays):
        with pytest.raises(FileError, match=r"no\.npz: no such file; check the path"):
            read(tmp_path / "no.npz")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\r\nb\r\n", "a\nb"),
        (b"a\rb\r", "a\nb"),
        (b"a\rb\nc", "a\rb\nc"),  # a carriage return within a line
        (b"\xef\xbb\xbfa", "a"),
        (b"a\0bcd", "a\0bcd"),
        (b"", ""),
    ],
)
def test_all_line_ends_and_byte_order_marks_are_normalised(tmp_path, data, expected):
    (tmp_path / "a.txt").write_bytes(data)
    assert reading.read_text(tmp_path / "a.txt") == expected


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
    path = archive(tmp_path / "a.npz", a=npy(np.arange(3)), b=npy(np.zeros(9)), c=b"damaged")
    found = read_arrays(path, "a", optional=("x",))
    assert list(found) == ["a"]
    np.testing.assert_array_equal(found["a"], [0, 1, 2])


@pytest.mark.parametrize("shape", ["(1000000000000,)", "(9,)"])
def test_arrays_of_fewer_numbers_than_announced_are_refused(tmp_path, shape):
    data = npy(np.arange(3), shape)
    assert shape.encode() in data
    with pytest.raises(FileError, match=r"a\.npz: not a complete \.npz file"):
        read_arrays(archive(tmp_path / "a.npz", a=data), "a")
