"""`--engine` and `--skip-bad-parts` as their user meets them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from calibrant.data import Predictions, write_predictions


@pytest.fixture
def parts(tmp_path):
    rng = np.random.default_rng(0)
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in range(4):
        labels = rng.integers(0, 4, 200)
        logits = (3 * (rng.normal(size=(200, 4)) + 1.5 * np.eye(4)[labels])).astype(np.float32)
        write_predictions(Predictions.from_arrays(logits=logits, labels=labels), folder / f"p{part}.npz")
    return folder


def damage(parts):
    content = bytearray((parts / "p2.npz").read_bytes())
    content[2000] ^= 0xFF
    (parts / "p2.npz").write_bytes(content)


@pytest.mark.parametrize("verb", ["fit", "measure"])
def test_a_corrupt_part_is_named_and_can_be_left_out(run, parts, tmp_path, verb):
    damage(parts)
    options = ["-o", tmp_path / "cal.safetensors"] if verb == "fit" else ["--resamples", "20"]
    code, _, err = run(verb, parts, *options)
    assert code == 2
    assert err.startswith(f"error: part 3 of 4: {parts}/p2.npz is not a whole npz archive")
    assert err.count("\n") == 1
    code, out, err = run(verb, parts, *options, "--skip-bad-parts")
    assert code == 0
    assert "warning: 1 bad part left out: part 3 of 4" in err
    code, out, _ = run(verb, parts, *options, "--skip-bad-parts", "--json")
    answer = json.loads(out)
    assert answer["n"] == 600
    assert len(answer["skipped_parts"]) == 1
    assert "p2.npz" in answer["skipped_parts"][0]


def test_nothing_bad_is_an_empty_list(run, parts, tmp_path):
    code, out, _ = run("fit", f"{parts}/p*.npz", "-o", tmp_path / "cal.safetensors", "--skip-bad-parts", "--json")
    assert code == 0
    assert json.loads(out)["skipped_parts"] == []


def test_engines_that_do_not_exist(run, parts, tmp_path):
    code, _, err = run("fit", parts, "-o", tmp_path / "cal.safetensors", "--engine", "spark")
    assert (code, err.count("\n")) == (2, 1)
    assert "no engine is called 'spark'" in err
