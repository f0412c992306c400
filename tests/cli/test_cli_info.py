"""`calibrant info`: what an artifact is."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import numpy as np
import pytest

import calibrant
from calibrant.shipping.artifact import digest_of, from_bytes, read_artifact, save, to_bytes


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 500)
    return 3 * (np.eye(4)[labels] + rng.normal(size=(500, 4))), labels


def test_info_says_method_origin_and_gain(run, tmp_path, data):
    np.savez(tmp_path / "val.npz", logits=data[0], labels=data[1])
    output = tmp_path / "cal.safetensors"
    assert run("fit", tmp_path / "val.npz", "--method", "ts", "-o", output)[0] == 0
    code, out, err = run("info", output, "--json")
    facts = json.loads(out)
    assert (code, err) == (0, "")
    assert (facts["method"], facts["n_classes"], facts["n"], facts["task"]) == (
        "TemperatureScaling",
        4,
        500,
        "multiclass",
    )
    assert facts["source"].endswith("val.npz")
    age = datetime.now(UTC) - datetime.fromisoformat(facts["created"])
    assert 0 <= age.total_seconds() < 600
    assert facts["after"]["nll"] < facts["before"]["nll"]
    assert float(facts["learned"]["temperature_"]) == pytest.approx(calibrant.load(output).temperature_, rel=1e-5)
    code, out, _ = run("info", output)
    assert code == 0
    for words in ("TemperatureScaling for 4 classes; keeps every predicted class", "500 rows of", "temperature_ = "):
        assert words in out


def test_info_of_every_kind_of_artifact(run, tmp_path, data):
    scores = data[0][:, 0] - data[0][:, 1]
    makers = {
        "binary": calibrant.get("ts").fit(scores, (data[1] == 0).astype(int)),
        "composed": calibrant.get("ts+top").fit(*data),
        "plain": calibrant.Identity().fit(*data),
    }
    for name, calibrator in makers.items():
        save(calibrator, tmp_path / name, class_names=["a\x1b[31m", "b"] if name == "binary" else None)
        code, out, err = run("info", tmp_path / name)
        assert (code, err, "\x1b" in out) == (0, "", False)


def test_info_refuses_what_is_no_artifact(run, tmp_path):
    (tmp_path / "x").write_bytes(b"nothing")
    for path in ("x", "absent", "."):
        code, out, err = run("info", tmp_path / path)
        assert (code, out, err.count("\n")) == (2, "", 1)


def test_time_and_source_are_optional_and_leave_the_digest_alone(tmp_path, data):
    calibrator = calibrant.get("ts").fit(*data)
    content = to_bytes(calibrator)
    assert from_bytes(content).created is None
    assert digest_of(to_bytes(calibrator, created="2026-01-01")) == digest_of(content)
    assert digest_of(to_bytes(calibrator, n=7)) != digest_of(content)
    save(calibrator, tmp_path / "cal", source="val.npz")
    assert read_artifact(tmp_path / "cal").source == "val.npz"


def test_info_of_predictions_shows_their_reading_and_the_counts_of_classes(run, tmp_path):
    (tmp_path / "a.csv").write_text("prob_cat,prob_dog,label,note\n0.75,0.25,cat,x\n0.5,0.5,dog,y\n0.9,0.1,cat,z\n")
    code, out, err = run("info", tmp_path / "a.csv")
    assert (code, err) == (0, "")
    assert "read: probabilities prob_cat, prob_dog (rows sum to 1), labels label" in out
    assert "labels: cat 2, dog 1" in out
    assert "other columns: note" in out
    code, out, _ = run("info", tmp_path / "a.csv", "--json")
    assert json.loads(out)["class_counts"] == {"cat": 2, "dog": 1}
    assert json.loads(out)["read_as"]["doubts"] == []
    predictions = calibrant.open_predictions(tmp_path / "a.csv")
    calibrant.data.write_predictions(predictions.like(extras={}), tmp_path / "a.safetensors")
    code, out, _ = run("info", tmp_path / "a.safetensors", "--json")
    assert (code, json.loads(out)["class_counts"]) == (0, {"cat": 2, "dog": 1})
