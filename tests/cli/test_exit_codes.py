"""The verdict decides the exit code, whoever stops reading."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest

import calibrant
from calibrant.cli import app
from calibrant.cli.app import main

COMMAND = [sys.executable, "-m", "calibrant"]
CASES = {
    "measure": (0, "measure good.npz --resamples 5"),
    "measure gate passes": (0, "measure good.npz --resamples 5 --max-ece 0.9"),
    "measure gate fails": (1, "measure good.npz --resamples 5 --max-ece 0.001"),
    "measure gate fails in JSON": (1, "measure good.npz --resamples 5 --max-ece 0.001 --json"),
    "measure invalid": (2, "measure absent.npz"),
    "compare": (0, "compare good.npz good.npz --methods none,ts --resamples 5"),
    "compare invalid": (2, "compare good.npz absent.npz"),
    "models": (0, "models a=good.npz b=fog_1.npz --methods none --resamples 5 --pair order --split 0.5"),
    "models invalid": (2, "models good.npz absent.npz"),
    "diff": (0, "diff better.json worse.json"),
    "diff passes": (0, "diff worse.json better.json --fail-on-worse"),
    "diff fails": (1, "diff better.json worse.json --fail-on-worse"),
    "diff invalid": (2, "diff better.json good.npz.txt"),
    "select": (0, "select good.npz --candidates ts,vs -o selected.safetensors"),
    "select invalid": (2, "select absent.npz -o selected.safetensors"),
    "shift": (0, "shift cal.safetensors fog_1.npz fog_2.npz"),
    "shift invalid": (2, "shift absent.safetensors fog_1.npz"),
    "convert": (0, "convert good.npz good.csv"),
    "convert invalid": (2, "convert absent.npz good.csv"),
    "fit": (0, "fit good.npz --method ts -o fitted.safetensors"),
    "fit invalid": (2, "fit absent.npz -o fitted.safetensors"),
    "apply": (0, "apply cal.safetensors good.npz -o applied.npz"),
    "apply invalid": (2, "apply cal.safetensors absent.npz -o applied.npz"),
    "export": (0, "export cal.safetensors --onnx cal.onnx"),
    "export invalid": (2, "export absent.safetensors --onnx cal.onnx"),
    "info": (0, "info cal.safetensors"),
    "info invalid": (2, "info missing.npz"),
    "monitor": (0, "monitor calm.jsonl --once"),
    "monitor alarm": (1, "monitor alarm.jsonl --once"),
    "monitor until alarm": (1, "monitor alarm.jsonl --until-alarm"),
    "monitor invalid": (2, "monitor absent.jsonl --once"),
    "demo invalid": (2, "demo --out good.npz"),
    "serve invalid": (2, "serve absent.safetensors"),
    "help": (0, "--help"),
    "no such command": (2, "nope"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("codes")
    labels = rng.integers(0, 4, 300)
    logits = 3 * np.eye(4)[labels] + 2 * rng.normal(size=(300, 4))
    for name in ("good", "fog_1", "fog_2"):
        np.savez(path / f"{name}.npz", logits=logits, labels=labels)
    calibrant.save(calibrant.TemperatureScaling().fit(logits, labels), path / "cal.safetensors")
    for name, gap in (("calm", 0.0), ("alarm", 0.3)):
        lines = [json.dumps({"confidence": 0.9, "correct": bool(rng.random() < 0.9 - gap)}) for _ in range(300)]
        (path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    for name, value in (("better", 0.3), ("worse", 0.5)):
        metrics = {"nll": {"value": value, "low": value - 0.01, "high": value + 0.01}}
        (path / f"{name}.json").write_text(json.dumps({"task": "multiclass", "metrics": metrics}))
    return path


def leave_at_once(reader: int) -> None:
    os.close(reader)


def leave_after_a_line(reader: int) -> None:
    with os.fdopen(reader) as file:
        file.readline()


def read_all(reader: int) -> None:
    with os.fdopen(reader) as file:
        file.read()


@pytest.mark.parametrize("read", [leave_at_once, leave_after_a_line, read_all])
@pytest.mark.parametrize("case", CASES)
def test_the_exit_code_does_not_depend_on_the_reader(
    case: str, read: Callable[[int], None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, line = CASES[case]
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["calibrant", *line.split()])
    pipes = [os.pipe(), os.pipe()]
    threads = [threading.Thread(target=read, args=(reader,)) for reader, _ in pipes]
    for thread in threads:
        thread.start()
        if read is leave_at_once:
            thread.join()
    with os.fdopen(pipes[0][1], "w") as stdout, os.fdopen(pipes[1][1], "w", buffering=1) as stderr:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "stderr", stderr)
        with pytest.raises(SystemExit) as left:
            main()
        sys.stdout.flush()
        sys.stderr.flush()
        monkeypatch.undo()
    for thread in threads:
        thread.join()
    assert left.value.code == code


@pytest.mark.parametrize(
    ("case", "closed"),
    [
        ("diff fails", ">&-"),
        ("diff fails", "| true"),
        ("diff passes", ">&- 2>&-"),
        ("diff invalid", "2>&1 | true"),
        ("diff invalid", "2>/dev/full"),
    ],
)
def test_the_exit_code_survives_closed_streams(case: str, closed: str, folder: Path) -> None:
    code, line = CASES[case]
    script = f"set -o pipefail; {sys.executable} -m calibrant {line} {closed}"
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, check=False)
    assert done.returncode == code, done


def test_output_that_the_disk_cannot_hold_is_an_error(folder: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [*COMMAND, *CASES["diff"][1].split()]
        done = subprocess.run(command, cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: [Errno 28] No space left on device\n")


def test_a_service_goes_on_without_a_reader_of_its_output(folder: Path) -> None:
    command = [*COMMAND, "serve", "cal.safetensors", "--port", "0", "--json"]
    reader, writer = os.pipe()
    with subprocess.Popen(command, cwd=folder, stdout=writer, stderr=subprocess.DEVNULL) as process:
        os.close(writer)
        with os.fdopen(reader) as file:
            address = json.loads(file.readline())["address"]
        assert httpx.get(f"{address}/health", trust_env=False, timeout=60).status_code == 200
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 0


@pytest.mark.parametrize("debug", ["", "1"])
def test_an_internal_error_has_an_exit_code_of_its_own(run, monkeypatch, debug) -> None:
    def fail(_: str) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(app, "build", fail)
    monkeypatch.setenv("CALIBRANT_DEBUG", debug)
    code, out, err = run("measure", "x.npz")
    assert (code, out) == (70, "")
    assert ("Traceback" in err) == bool(debug)
    last = err.splitlines()[-1]
    assert last.startswith("error: internal error (RuntimeError: two lines): please report")
