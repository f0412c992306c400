"""Results in experiment trackers: plain dictionaries, and a real MLflow store on this disk."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import calibrant as cal


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 500)
    logits = 4 * (rng.normal(size=(500, 3)) + np.eye(3)[labels])
    halves = (logits[:250], labels[:250]), (logits[250:], labels[250:])
    return cal.compare(*halves, ["none", "ts", "ts+top"], resamples=30)


def test_metrics_are_a_plain_dictionary(table):
    metrics = table.metrics()
    assert metrics["ts/nll"] == table.row("ts").metrics["nll"].value
    assert metrics["best/ece"] == table.row(table.best).metrics["ece"].value
    assert all(type(value) is float and np.isfinite(value) for value in metrics.values())
    wide = table.metrics(intervals=True)
    assert wide["ts/nll_high"] == table.row("ts").metrics["nll"].high
    assert set(metrics) < set(wide)
    json.dumps(wide, allow_nan=False)


def test_figures_are_matplotlib_figures(table, tmp_path):
    from matplotlib.figure import Figure

    figures = table.figures()
    assert set(figures) == {"reliability/none", f"reliability/{table.best}"}
    assert all(isinstance(figure, Figure) for figure in figures.values())


def test_failed_methods_are_left_out():
    class Broken(cal.Identity):
        def fit(self, logits, y, sample_weight=None):
            raise ValueError("no")

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 3)), rng.integers(0, 3, 60)
    found = cal.compare(rows, (rows[0] + 1, rows[1]), {"none": cal.Identity(), "broken": Broken()}, resamples=10)
    assert {name.split("/")[0] for name in found.metrics()} == {"none", "best"}


@pytest.fixture
def store(tmp_path, monkeypatch):
    """MLflow on this disk, silent and offline."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    yield mlflow
    mlflow.set_tracking_uri(before)


def test_a_run_holds_what_the_comparison_says(table, store):
    run_id = cal.log_to_mlflow(table, prefix="calibration/")
    assert store.active_run() is None
    run = store.get_run(run_id)
    assert run.info.status == "FINISHED"
    logged = run.data.metrics
    assert logged["calibration/ts/nll"] == pytest.approx(table.row("ts").metrics["nll"].value)
    assert logged["calibration/ts_top/ece"] == pytest.approx(table.row("ts+top").metrics["ece"].value)
    assert len(logged) == len(table.metrics(intervals=True))
    assert run.data.params["calibration/best"] == table.best
    folder = Path(store.artifacts.download_artifacts(run_id=run_id))
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"calibration/report.html", "calibration/comparison.json", "calibration/reliability/none.png"} <= names
    assert (folder / "calibration/reliability/none.png").read_bytes().startswith(b"\x89PNG")
    assert cal.diff(folder / "calibration/report.html", folder / "calibration/comparison.json").count("worse") == 0


def test_an_active_run_is_used_and_left_open(table, store):
    with store.start_run() as run:
        assert cal.log_to_mlflow(table, report=False, figures=False) == run.info.run_id
        assert store.active_run() is not None
    assert not any(
        path.suffix == ".png" for path in Path(store.artifacts.download_artifacts(run_id=run.info.run_id)).rglob("*")
    )


def test_several_models(store):
    rng = np.random.default_rng(1)
    rows = [(2 * rng.normal(size=(80, 3)), rng.integers(0, 3, 80)) for _ in range(4)]
    found = cal.compare_models({"a": rows[:2], "b": rows[2:]}, ["none", "ts"], pair="none", resamples=10)
    run = store.get_run(cal.log_to_mlflow(found))
    assert run.data.metrics["a/ts/nll"] == pytest.approx(found.estimate("ts", "a").value)
    assert run.data.metrics["mean_rank/ts"] == found.mean_ranks()["ts"]


def test_names_that_would_collide_stay_apart():
    from calibrant.report.trackers import _allowed

    assert _allowed("", {"ts+top": 1, "ts_top": 2, "ts-top": 3}) == {"ts_top": 1, "ts_top_2": 2, "ts-top": 3}


def test_without_mlflow_and_without_a_comparison_it_is_one_line(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ImportError, match="needs mlflow: install it"):
        cal.log_to_mlflow(table)
    with pytest.raises(cal.InputError, match="got dict"):
        cal.log_to_mlflow({})
