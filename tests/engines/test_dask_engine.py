"""Fits on a Dask cluster: the bits of the local engine, also when a worker is killed; errors in one line."""

from __future__ import annotations

import os
import signal
import time

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
    here = cal.get(name).fit_predictions(parts)
    there = cal.get(name).fit_predictions(parts, engine=cluster)
    logits = parts[:500].logits
    np.testing.assert_array_equal(here.predict_proba(logits), there.predict_proba(logits))


def test_metrics_and_measurements_run_on_a_cluster(cluster, folder):
    parts = cal.open_predictions(folder)
    assert stream(parts, ["ece", "ks_error"], engine=cluster) == stream(parts, ["ece", "ks_error"])
    here, there = measure(parts, resamples=50), measure(parts, resamples=50, engine=cluster)
    assert here.to_dict() == there.to_dict()


def test_a_killed_worker_costs_only_time(cluster, folder):
    parts = cal.open_predictions(folder)
    alone = cal.VectorScaling().fit_predictions(parts)
    killed = []

    def kill(stage, done, total, note):
        if stage == "pass 2" and done and not killed:
            killed.append(next(iter(cluster.client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)

    with progress.listen(kill):
        fitted = cal.VectorScaling().fit_predictions(parts, engine=cluster)
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
        cal.get("ws").fit_predictions(parts, engine=cluster)


def test_a_running_scheduler_is_joined_by_address(cluster, folder):
    address = cluster.client.scheduler.address
    there = cal.TemperatureScaling().fit_predictions(folder, engine=address)
    assert there.temperature_ == cal.TemperatureScaling().fit_predictions(folder).temperature_


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "tcp://nowhere.invalid:8786"])
def test_a_scheduler_that_is_not_there_is_one_line_within_ten_seconds(folder, address):
    started = time.monotonic()
    with pytest.raises(InputError, match=f"no Dask scheduler answers at {address} within 4 s") as caught:
        cal.TemperatureScaling().fit_predictions(folder, engine=address)
    assert time.monotonic() - started < 10
    assert "\n" not in str(caught.value)
