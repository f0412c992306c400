"""The soft-objectives study in small: it runs to its tables on the CPU, and its figures are the library's."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")

import calibrant as cal  # noqa: E402

torch.set_num_threads(1)
STUDY = Path(__file__).resolve().parents[2] / "papers" / "soft_objectives"


@pytest.fixture
def study(monkeypatch):
    """Import a file of the study by name, and forget it afterwards: other studies have files of the same names."""
    monkeypatch.syspath_prepend(str(STUDY))
    before = set(sys.modules)
    yield __import__
    for name in set(sys.modules) - before:
        if str(STUDY) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, str(STUDY / script), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    return done.stdout


def test_tiny_table_and_tuning_run(tmp_path, study) -> None:
    out = tmp_path / "table.jsonl"
    run("run.py", "--tiny", "2", "--epochs", "2", "--out", str(out))
    run("run.py", "--tiny", "3", "--epochs", "2", "--out", str(out))  # goes on where the first stopped
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert [result["row"] for result in results] == [
        "cross_entropy+none",
        "focal+none",
        "focal+soft_ece",
        "focal+soft_avuc",
        "cross_entropy+soft_ece (interleaved)",
    ]
    assert len(results[0]["shift"]) == 25
    assert 0 <= results[0]["test"]["ts"]["mass_ece"] <= 1
    tables = study("tables")
    rows = tables.table_rows(results)
    assert tables.main_table(rows).count("\n") == 6
    assert "severity 5" in tables.shift_table(rows, "ts")
    tuning = tmp_path / "tuning.jsonl"
    options = ("--tiny", "--epochs", "2", "--tracks", "focal+mmce", "--seeds", "2", "--out", str(tuning))
    assert "focal+mmce: Setting(" in run("tune.py", *options)
    tried = [json.loads(line) for line in tuning.read_text().splitlines()]
    assert sorted(one["setting"]["weight"] for one in tried if one["tag"] == "focal+mmce") == [0.03, 0.1, 0.3]
    best = min((one for one in tried if one["tag"] == "focal+mmce"), key=lambda one: one["validation"]["ece"])
    assert [(one["seed"], one["setting"]) for one in tried if one["tag"] == "table"] == [(1, best["setting"])]
    assert run("tune.py", *options).count("\n") == 1  # all of it is known by now


def test_the_table_is_that_of_the_kept_runs(study) -> None:
    tables, settings = study("tables"), study("settings")
    rows = tables.table_rows(tables.read_results(STUDY / "results"))
    assert {settings.Setting(**runs[0]["setting"]) for runs in rows.values()} == set(settings.TABLE)


def test_the_figures_show_the_kept_runs(study) -> None:
    tables, pictures = study("tables"), study("pictures")
    rows = tables.table_rows(tables.read_results(STUDY / "results"))
    drawn = pictures.draw(rows)
    assert sorted(drawn) == sorted(path.stem for path in (STUDY / "results").glob("figure-*.png"))
    assert {"figure-1", "figure-5", "figure-8", "figure-10"} <= set(drawn)
    raw, scaled, soft = (line[0].get_ydata() for line in drawn["figure-2"].containers)
    assert raw[0] == pytest.approx(np.mean(tables.pick(rows["cross_entropy+none"], "test", "none", "mass_ece")))
    assert (scaled < raw).all()
    assert (soft < raw).all()


def test_a_track_tries_one_number_at_a_time(study) -> None:
    tune, settings = study("tune"), study("settings")
    start = settings.Setting("focal", "soft_ece", weight=0.1, temperature=0.01)
    track = tune.Track(start, [("temperature", (0.03,)), ("weight", (0.2,))])
    errors = {start: 0.03, start.but(temperature=0.03): 0.02, start.but(temperature=0.03, weight=0.2): 0.05}
    waiting, made = track.next_jobs(), []
    while waiting:
        job = waiting.pop(0)
        made.append(job.setting)
        validation = {"accuracy": 0.7, "ece": errors[job.setting]}
        waiting += track.receive(job, {"setting": dataclasses.asdict(job.setting), "validation": validation})
    assert made == list(errors)
    assert track.done
    assert track.best == start.but(temperature=0.03)


def test_every_cell_of_the_table_is_there(study) -> None:
    settings = study("settings")
    cells = {(setting.primary, setting.secondary) for setting in settings.TABLE}
    assert cells == {(primary, secondary) for primary in settings.PRIMARY for secondary in settings.SECONDARY}


def test_figures_are_those_of_the_library(study) -> None:
    figures = study("figures")
    rng = np.random.default_rng(0)
    logits, labels = 2 * rng.normal(size=(700, 6)), rng.integers(0, 6, 700)
    logits[np.arange(700), labels] += 1.5
    logits[:60] = logits[60:120]
    found = figures.full_figures(torch.from_numpy(logits), torch.from_numpy(labels))
    metrics = cal.metrics
    expected = {
        "accuracy": metrics.accuracy(logits, labels, from_logits=True),
        "ece": metrics.ece(logits, labels, from_logits=True),
        "mass_ece": metrics.ece(logits, labels, norm=2, binning="mass", from_logits=True),
        "nll": metrics.nll(logits, labels, from_logits=True),
        "brier": metrics.brier(logits, labels, from_logits=True),
        "ks_error": metrics.ks_error(logits, labels, from_logits=True),
        "marginal_ece": metrics.marginal_ece(logits, labels, from_logits=True),
        "confidence": metrics.confidence(logits, labels, from_logits=True),
        "entropy": metrics.entropy(logits, labels, from_logits=True),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(float(value), abs=1e-9), name
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    plain = cal.TemperatureScaling().fit(logits, labels).temperature_
    assert figures.fit_temperature(z, y, "nll") == pytest.approx(plain, rel=1e-3)


def test_tuning_keeps_the_lowest_ece_within_a_point_of_accuracy(study) -> None:
    tune = study("tune")
    results = [
        {"name": name, "validation": {"accuracy": accuracy, "ece": error}}
        for name, accuracy, error in (("best", 0.74, 0.05), ("close", 0.733, 0.02), ("far", 0.70, 0.001))
    ]
    assert tune.choose(results)["name"] == "close"


def test_corruptions_grow_with_severity(study) -> None:
    images = study("images")
    pictures = torch.randint(0, 256, (20, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for kind in ("noise", "contrast", "brightness", "blur"):
        change = [(images.corrupt(pictures, kind, level).float() - pictures).abs().mean() for level in (1, 3, 5)]
        assert change[0] < change[1] < change[2], kind


def test_crops_are_shifted_and_mirrored_copies(study) -> None:
    images = study("images")
    torch.manual_seed(0)
    pictures = torch.randint(0, 256, (1, 32, 32, 3), dtype=torch.uint8)
    padded = images.pad(pictures)
    for crop in images.crop_and_flip(padded, torch.zeros(20, dtype=torch.long)):
        windows = [padded[0, top : top + 32, left : left + 32] for top in range(9) for left in range(9)]
        assert any(torch.equal(crop, window) or torch.equal(crop, window.flip(1)) for window in windows)


def test_a_list_of_runs_keeps_logits_and_is_not_made_twice(tmp_path, study) -> None:
    run_module, pool_module = study("run"), study("pool")
    jobs = tmp_path / "jobs.json"
    setting = {"primary": "focal", "secondary": "soft_marginal_ece", "weight": 0.1}
    jobs.write_text(json.dumps([{"setting": setting, "seed": 1, "keep_logits": True}, {"setting": setting, "seed": 2}]))
    listed = run_module.listed_jobs(jobs)
    assert [(job.seed, job.rank, job.keep_logits) for job in listed] == [(1, 0, True), (2, 1, False)]
    recipe = study("training").Recipe(network="tiny", epochs=1, batch=64, compiled=False, graphs=False)
    out = tmp_path / "out" / "runs.jsonl"
    source = pool_module.Source(None, "cpu", shift=False)
    pool = pool_module.Pool(source, recipe, n_workers=1, deadline=float("inf"), out=out)
    results = [result for _, result in pool.run(listed[:1])]
    assert set(results[0]["test"]) == {"none", "ts", "ts-soft", "ts-hard"}
    with np.load(tmp_path / "out" / "logits-1.npz") as file:
        assert file["cifar100 focal+soft_marginal_ece seed 1 test"].shape == (128, 4)
    known = [json.loads(line) for line in out.read_text().splitlines()]
    assert [job.seed for job in run_module.missing(listed, known, 1)] == [2]
    assert len(run_module.missing(listed, known, 1, "cifar10")) == 2


def test_cells_are_tuned_and_their_winner_gets_the_other_seeds(tmp_path, study) -> None:
    out = tmp_path / "cells.jsonl"
    run("cells.py", "--tiny", "--tracks", "focal+mmce_weighted", "--out", str(out))
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(one["setting"]["weight"] for one in results if one["seed"] == 0) == [0.03, 0.1, 0.3, 1.0]
    best = study("tune").choose([one for one in results if one["seed"] == 0])["setting"]
    assert [one["seed"] for one in results if one["setting"] == best] == [0, 1, 2]
    assert not any(one["shift"] for one in results)
    rows = study("tables").cell_rows(STUDY / "results")
    assert len(rows) == 21
    assert {len(runs) for runs in rows.values()} == {3}


def test_claims_are_decided_by_their_intervals(study) -> None:
    claims = study("claims")

    def sample(*values):
        return claims.Sample(values, {})

    high, low = sample(5.0, 5.1, 4.9), sample(1.0, 1.1, 0.9)
    assert claims.between(high, low).below().verdict == "holds"
    assert claims.between(low, high).below().verdict == "does not hold"
    assert claims.between(sample(5.0, 6.0, 4.0), sample(4.5, 5.5, 4.0)).below().verdict == "not decided"
    assert claims.between(high, sample(1.0)).below().verdict == "not decided"
    first, second = sample(3.0, 4.0, 5.0), sample(2.5, 3.6, 4.4)
    difference = claims.within(first, second)
    gaps = np.subtract(second, first)
    reach = 4.302652729749464 * gaps.std(ddof=1) / np.sqrt(3)
    judged = difference.below()
    assert (judged.low, judged.high) == pytest.approx((gaps.mean() - reach, gaps.mean() + reach))
    welch = claims.between(first, second).below()
    from scipy.stats import ttest_ind

    interval = ttest_ind(second, first, equal_var=False).confidence_interval(0.95)
    assert (welch.low, welch.high) == pytest.approx((interval.low, interval.high))
