"""Fits on a Dask cluster: the bits of the local engine, also when a worker is killed; errors in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import calibrant as cal
from calibrant.core import progress
from calibrant.core.errors import InputError
from calibrant.evaluation.measure import measure
from calibrant.metrics import stream

BORDERS = np.linspace(0, 4000, 21).astype(int)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, made_up, write_parts):
    logits, labels = made_up()
    return write_parts(tmp_path_factory.mktemp("dask") / "parts", logits, labels, BORDERS, (".npz", ".parquet"))


@pytest.mark.parametrize("name", ["ts", "ws", "bts"])
def test_a_cluster_gives_the_bits_of_the_threads(cluster, folder, name):
    parts = cal.open_predictions(folder)
    here = cal.get(name).fit(parts)
    there = cal.get(name).fit(parts, engine=cluster)
    logits = parts[:500].logits
    np.testing.assert_array_equal(here.predict_proba(logits), there.predict_proba(logits))


def test_metrics_and_measurements_run_on_a_cluster(cluster, folder):
    parts = cal.open_predictions(folder)
    assert stream(parts, ["ece", "ks_error"], engine=cluster) == stream(parts, ["ece", "ks_error"])
    here, there = measure(parts, resamples=50), measure(parts, resamples=50, engine=cluster)
    assert here.to_dict() == there.to_dict()


def test_a_killed_worker_costs_only_time(cluster, folder):
    parts = cal.open_predictions(folder)
    alone = cal.VectorScaling().fit(parts)
    killed = []

    def kill(stage, done, total, note):
        if stage == "pass 2" and done and not killed:
            killed.append(next(iter(cluster.client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)

    with progress.listen(kill):
        fitted = cal.VectorScaling().fit(parts, engine=cluster)
    assert killed
    np.testing.assert_array_equal(fitted.scale_, alone.scale_)
    np.testing.assert_array_equal(fitted.bias_, alone.bias_)


def test_bad_input_on_a_worker_is_the_same_line(cluster, tmp_path, made_up, write_parts):
    logits, labels = made_up(300)
    parts = write_parts(tmp_path / "parts", logits, labels, [0, 100, 200, 300], (".npy",))
    values = np.load(parts / "part-001_logits.npy")
    values[7, 2] = np.nan
    np.save(parts / "part-001_logits.npy", values)
    with pytest.raises(InputError, match=r"part 2 of 3: .*part-001_logits.npy: logits contains NaN in row 7, column 2"):
        cal.get("ws").fit(parts, engine=cluster)


def test_a_running_scheduler_is_joined_by_address(cluster, folder):
    address = cluster.client.scheduler.address
    there = cal.TemperatureScaling().fit(folder, engine=address)
    assert there.temperature_ == cal.TemperatureScaling().fit(folder).temperature_


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "tcp://nowhere.invalid:8786"])
def test_a_scheduler_that_is_not_there_is_one_line(folder, address, deadline):
    with pytest.raises(InputError, match=f"no Dask scheduler answers at {address} within 4 s") as caught:
        cal.TemperatureScaling().fit(folder, engine=address)
    assert "\n" not in str(caught.value)


def _blocked(pipes: tuple[str, str]) -> int:
    """Say that the work has begun, and wait for what never comes."""
    started, never = pipes
    with open(started, "w") as out:
        out.write("started")
    with open(never) as source:
        return len(source.read())


def test_a_dying_scheduler_is_one_line(tmp_path, monkeypatch):
    """Killed while a chunk is under way: the fit used to wait for ever, or ended in a traceback."""
    pytest.importorskip("distributed")
    from calibrant.engines import dask as engine_module

    monkeypatch.setattr(engine_module, "ANSWER_SECONDS", 0.5)
    pipes = str(tmp_path / "started"), str(tmp_path / "never")
    for pipe in pipes:
        os.mkfifo(pipe)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(cal.__file__).parents[1]), str(Path(__file__).parent)]),
    }
    address_file = tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    command += ["--no-dashboard", "--scheduler-file", str(address_file)]
    scheduler = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    address = next(line.split()[-1] for line in scheduler.stderr if "Scheduler at:" in line)
    worker = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "distributed.cli.dask_worker",
            address,
            "--no-nanny",
            "--nthreads",
            "1",
            "--no-dashboard",
        ],
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        engine = engine_module.DaskEngine(address)
        engine.client.wait_for_workers(1, timeout=60)

        def kill() -> None:
            with open(pipes[0]) as source:
                source.read()
            scheduler.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(InputError, match=r"the Dask scheduler at .* went away during the work"):
            engine.run(_blocked, [pipes], max)
        killer.join(30)
        with pytest.raises(InputError, match="went away during the work"):
            engine.run(abs, [1, 2], max)  # a client that is closed already
        engine.close()
    finally:
        scheduler.kill()
        worker.kill()
        scheduler.wait()
        worker.wait()
        scheduler.stderr.close()
