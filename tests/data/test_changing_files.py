"""Files that other processes write to while they are read: an error that says so, never SIGBUS or mixed sums."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import calibrant as cal
from calibrant.core.errors import InputError
from calibrant.core.memory import spare_memory


def write(folder, seed, n=3000, n_classes=20):
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % n_classes
    logits = (rng.normal(size=(n, n_classes)) + 3 * np.eye(n_classes)[labels]).astype(np.float32)
    np.save(folder / "val_logits.npy", logits)
    np.save(folder / "val_labels.npy", labels)
    return folder / "val_logits.npy"


def test_a_file_cut_short_between_blocks_is_an_error(tmp_path):
    path = write(tmp_path, 0)
    blocks = cal.open_predictions(path).source.blocks(0, 3000, 1000)
    next(blocks)
    os.truncate(path, 2000)
    with pytest.raises(InputError, match=r"changed while it was read \(240128 bytes before, 2000 now\)"):
        next(blocks)


def test_a_file_written_anew_between_blocks_is_an_error(tmp_path):
    path = write(tmp_path, 0)
    blocks = cal.open_predictions(path).source.blocks(0, 3000, 1000)
    next(blocks)
    os.utime(write(tmp_path, 1), ns=(1, 1))
    with pytest.raises(InputError, match="changed while it was read"):
        next(blocks)


def test_blocks_are_memory_and_not_maps(tmp_path):
    path = write(tmp_path, 0)
    kept = list(cal.open_predictions(path).source.blocks(0, 3000, 1000))
    os.truncate(path, 0)  # the pages of a map would be gone now
    assert np.isfinite(np.concatenate(kept)).all()


def test_blocks_that_are_held_are_not_overwritten(tmp_path):
    path = write(tmp_path, 0, n=60_000)
    whole = np.load(path)
    held = [block[:1] for block in cal.open_predictions(path).source.blocks(0, 60_000, 20_000)]
    assert (np.concatenate(held) == whole[[0, 20_000, 40_000]]).all()


def test_files_that_others_may_write_are_not_mapped(tmp_path):
    path = write(tmp_path, 0)
    assert cal.open_predictions(path).source.whole() is not None
    path.chmod(0o666)
    assert cal.open_predictions(path).source.whole() is None


CUT_DURING_A_FIT = """
import os, sys
import calibrant as cal
from calibrant.data import scratch
path, in_memory = sys.argv[1], sys.argv[2] == "memory"
if not in_memory:
    import calibrant.data.chunks as chunked, calibrant.data.predictions as predictions
    predictions.CHUNK_BYTES, predictions.MEMORY_SHARE, chunked.SPILL_BYTES = 1000, 0.0, 1000

class CutShort(cal.Identity):
    additive = False

    def _fit(self, rows):
        os.truncate(path, 200)  # the pages of a map would be gone now: reading them is SIGBUS
        print(float(rows.logits.sum()), flush=True)

try:
    CutShort().fit(path)
except cal.InputError as error:
    print(error)
"""


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_cutting_a_large_file_during_a_fit_is_an_error(tmp_path, where):
    """66 MB, more than a chunk: a fit that needs all rows at once used to map it, and died."""
    n, n_classes = (17_000, 1000) if where == "memory" else (3000, 20)
    path = write(tmp_path, 0, n, n_classes)
    total = float(np.load(path).sum())
    environment = {**os.environ, "PYTHONPATH": str(Path(cal.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", CUT_DURING_A_FIT, str(path), where],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-500:]
    read, message = done.stdout.splitlines()
    assert float(read) == pytest.approx(total, rel=1e-5)
    assert "changed while it was read" in message


def test_spare_memory_is_that_of_the_container(tmp_path):
    assert spare_memory(tmp_path) > 10_000
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert spare_memory(tmp_path) > 10_000
    (tmp_path / "memory.max").write_text("5000\n")
    assert spare_memory(tmp_path) == 4000


def test_sigterm_removes_temporary_files(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    script = (
        "import sys, time\nfrom calibrant.cli import app\nfrom calibrant.core.atomic import atomic_write\n"
        "from calibrant.data.scratch import Scratch\nimport calibrant.cli.convert as verb\n"
        "def convert(source: str, target: str) -> None:\n"
        "    held = Scratch()\n"
        f"    with atomic_write({str(tmp_path / 'out.npz')!r}):\n"
        "        print('ready', flush=True)\n        time.sleep(60)\n"
        "verb.convert = convert\nsys.argv = ['calibrant', 'convert', 'a', 'b']\napp.main()\n"
    )
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": str(Path(cal.__file__).parents[1])}
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout.readline() == "ready\n"
    assert list(scratch.iterdir())
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 143
    assert list(scratch.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["scratch"]


def test_an_artifact_that_is_a_pipe_is_refused(tmp_path, deadline):
    os.mkfifo(tmp_path / "cal.safetensors")
    with pytest.raises(InputError, match="is a device or a pipe"):
        cal.load(tmp_path / "cal.safetensors")


def test_an_empty_part_is_zero_rows(tmp_path):
    rng = np.random.default_rng(0)
    for number, n in enumerate((5, 0, 7)):
        np.savez(tmp_path / f"part{number}.npz", logits=rng.normal(size=(n, 3)), labels=np.arange(n) % 3)
    assert cal.open_predictions(tmp_path).n == 12
    assert cal.open_predictions(str(tmp_path / "part*.npz")).n == 12
    with pytest.raises(InputError, match="1 of 1 parts have 0 rows"):
        cal.open_predictions(str(tmp_path / "part[1].npz"))


def test_a_part_of_two_tied_rows_is_not_taken_for_probabilities(tmp_path):
    """Logits of 0 and 1 that sum to one in a small part; a part of many such rows is refused as before."""
    for number, row in enumerate(([0.0, 1.0], [3.0, -1.0], [0.0, 2.0])):
        np.savez(tmp_path / f"part{number}.npz", logits=np.array([row, row[::-1]]), labels=np.array([0, 1]))
    fitted = cal.TemperatureScaling().fit(tmp_path)
    assert fitted.n_rows_ == 6
    np.savez(tmp_path / "part3.npz", logits=np.full((20, 2), 0.5), labels=np.arange(20) % 2)
    with pytest.raises(InputError, match=r"part 4 of 4: .*logits are probabilities"):
        cal.open_predictions(tmp_path)
    for number in range(4):
        np.savez(tmp_path / f"part{number}.npz", logits=np.full((2, 2), 0.5), labels=np.array([0, 1]))
    with pytest.raises(InputError, match="logits are probabilities: all 8 rows"):
        cal.TemperatureScaling().fit(tmp_path)


def test_shift_refuses_what_the_reader_refuses(tmp_path, monkeypatch):
    from calibrant.evaluation.shift import open_shift

    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, shift_fog_1=np.zeros((200_000, 10)), shift_labels=np.zeros(200_000, dtype=np.int64))
    monkeypatch.setenv("CALIBRANT_MAX_EXPANDED_BYTES", "1000000")
    with pytest.raises(InputError, match="over 200 times as many"):
        open_shift([path])
