"""Files that mean harm: refused in one line, by few calls and within 200 MB, and without running anything."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

CHILD = """
import sys
sys.setrecursionlimit(1000)
from calibrant.core.errors import InputError
from calibrant.data import open_predictions
import torch, calibrant.data.json_lines

def high_water():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

def count(frame, event, argument):
    # of Python and of C: the same number on any machine and under any load, as seconds are not
    global calls
    calls += event in ("call", "c_call")

for path in sys.argv[1:]:
    before = high_water()
    calls = 0
    sys.setprofile(count)
    try:
        open_predictions(path).values
        words = "READ"
    except InputError as error:
        words = "ERROR " + str(error)
        assert "\\n" not in words, words
    sys.setprofile(None)
    grown = (high_water() - before) / 1024
    print(f"{calls} {grown:.0f} {words[:300]}")
"""


CALLS = 20_000_000
"""What reading a file of that size may take; the ordinary reading of a large one takes some millions."""


class Payload:
    """Makes a folder when unpickled by pickle itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.folder,)


def archive(pkl: bytes, **members: bytes) -> bytes:
    """A torch archive with this pickle."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("archive/data.pkl", pkl)
        file.writestr("archive/byteorder", b"little")
        for name, data in members.items():
            file.writestr(f"archive/data/{name}", data)
    return stream.getvalue()


def tensor(shape: str, count: int = 1, strides: str = "") -> bytes:
    """Pickle instructions for a tensor over storage 0; shape and strides are pickle texts of integers."""
    head = (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000"
    )
    head += b"X\x03\x00\x00\x00cpu" + f"I{count}\n".encode() + b"tQI0\n"
    return head + f"({shape}t({strides or shape}t".encode() + b"I00\n}tR."


def deep_key() -> bytes:
    """An OrderedDict whose key is a tuple nested 200,000 deep: hashing it would end the process."""
    return b"ccollections\nOrderedDict\n((" + b")" + b"\x85" * 200_000 + b"K\x01\x86ltR."


def zip_bomb() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", b"]" * 2**29)
    return stream.getvalue()


def hostile(folder: Path) -> dict[str, bytes]:
    million = b"I999999999\n"
    huge = b"\x8a\xff" + b"\x7f" * 255
    numpy_array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(%s t".replace(b" ", b"")
    return {
        "code.pt": archive(pickle.dumps({"logits": Payload(folder / "victim")}, protocol=2)),
        "code.pth": pickle.dumps(Payload(folder / "victim")),
        "code.pkl": pickle.dumps([Payload(folder / "victim")]),
        "large_shape.pt": archive(tensor("I1000000000\nI2\n"), **{"0": b"\0" * 4}),
        "expanded.pt": archive(tensor("I1000000000\n", strides="I0\n"), **{"0": b"\0" * 4}),
        "large_storage.pt": archive(tensor("I4\n", count=10**9), **{"0": b"\0" * 16}),
        "negative.pt": archive(tensor("I-4\n"), **{"0": b"\0" * 16}),
        "other_member.pt": archive(tensor("I1\n")),
        "zip_bomb.pt": zip_bomb(),
        "truncated.pt": archive(tensor("I1\n"), **{"0": b"\0" * 4})[:-40],
        "nested_key.pt": archive(
            b"\x80\x02(X\x07\x00\x00\x00storagectorch\nFloatStorage\n)" + b"2\x86" * 60 + b"X\x03\x00\x00\x00cpuI1\ntQ."
        ),
        "deep_key.pkl": deep_key(),
        "deep_list.pkl": b"]" * 300_000 + b"a" * 299_999 + b".",
        "deep_tuple.pkl": b")" + b"\x85" * 500_000 + b".",
        "many.pkl": b"(" + b"]" * 3_000_000 + b"l.",
        "memo.pkl": b"]" + b"".join(b"r" + struct.pack("<I", n) for n in range(600_000)) + b".",
        "huge_shape.pkl": numpy_array % (huge * 30) + b"cnumpy\ndtype\n(S'f8'\nI0\nI1\ntRI00\nS''\ntb.",
        "large_integers.pkl": numpy_array % (million * 40) + b"cnumpy\ndtype\n(S'f8'\nI0\nI1\ntRI00\nS''\ntb.",
        "long.pkl": b"\x8b" + struct.pack("<i", 2**24) + b"\x7f" * 2**24 + b".",
        "line.pkl": b"L" + b"9" * 2_000_000 + b"L\n.",
        "nan.jsonl": b'{"logits": [NaN, 1.0], "label": 0}\n',
        "infinity.jsonl": b'{"confidence": Infinity, "correct": true}\n',
        "deep.jsonl": b'{"logits": ' + b"[" * 100_000 + b"]" * 100_000 + b', "label": 0}\n',
        "brackets.jsonl": b'{"logits": [' + b"[]," * 1_000_000 + b'[]], "label": 0}\n',
        "long_line.jsonl": b'{"logits": [' + b"0," * 5_000_000 + b'0], "label": 0}\n',
        "digits.jsonl": b'{"logits": [' + b"9" * 1_000_000 + b', 1], "label": 0}\n',
        "exponent.jsonl": b'{"logits": [1e999, 1], "label": 0}\n{"logits": [1, 1], "label": 0}\n',
        "ragged.jsonl": b'{"logits": [1, 2], "label": 0}\n{"logits": [1, 2, 3], "label": 0}\n',
        "no_object.jsonl": b"[1, 2]\n",
        "keys.jsonl": json.dumps({f"k{n}": n for n in range(150_000)}).encode() + b"\n",
    }


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system reports no peak memory in /proc")
def test_hostile_files_are_refused_quickly(tmp_path: Path) -> None:
    files = hostile(tmp_path)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *(str(tmp_path / name) for name in files)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=600,  # ends a hang
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert len(lines) == len(files)
    for name, line in zip(files, lines, strict=True):
        calls, megabytes, words = line.split(" ", 2)
        assert words.startswith("ERROR"), (name, line)
        assert int(calls) < CALLS, (name, line)
        assert float(megabytes) < 200, (name, line)
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_the_payload_is_live(tmp_path: Path, protocol: int) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "victim"), protocol=protocol))
    assert (tmp_path / "victim").is_dir()
