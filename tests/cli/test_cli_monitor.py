"""`calibrant monitor`: groups, batches, ids, and states that were damaged."""

from __future__ import annotations

import json

import numpy as np


def write(log, n, gap=0.0, seed=0, **more):
    rng = np.random.default_rng(seed)
    with log.open("a") as file:
        for row in range(n):
            confidence = rng.uniform(0.6, 0.95)
            answer = {"confidence": confidence, "correct": bool(rng.random() < confidence - gap)}
            file.write(json.dumps({**answer, "id": f"{seed}-{row}", **more}) + "\n")


def test_a_damaged_state_is_set_aside_and_reported(run, tmp_path):
    log, state = tmp_path / "a.jsonl", tmp_path / "state.json"
    write(log, 100)
    assert run("monitor", log, "--once", "--state", state)[0] == 0
    half = state.read_text()[:1000]
    state.write_text(half)
    code, out, err = run("monitor", log, "--once", "--state", state, "--json")
    assert (code, json.loads(out)["n"], err.count("\n")) == (0, 100, 1)
    assert "the monitor starts without answers" in err
    assert (tmp_path / "state.json.damaged-1").read_text() == half


def test_a_state_of_something_else_is_never_touched(run, tmp_path):
    log, notes = tmp_path / "a.jsonl", tmp_path / "notes.json"
    write(log, 10)
    notes.write_text('{"mine": 1}')
    code, _, err = run("monitor", log, "--once", "--state", notes)
    assert (code, err.count("\n"), notes.read_text()) == (2, 1, '{"mine": 1}')


def test_groups_batches_and_ids(run, tmp_path):
    log, state = tmp_path / "a.jsonl", tmp_path / "state.json"
    for day in range(25):
        write(log, 30, seed=day, hospital="north\x1b[31m", day=day)
        write(log, 30, 0.25, seed=100 + day, hospital="south", day=day)
    log.write_text(log.read_text() * 2)  # logged twice
    options = ["--once", "--by", "hospital", "--batch", "day", "--id", "id", "--state", state]
    code, out, err = run("monitor", log, *options)
    assert code == 1
    assert "south: ALARM" in out
    assert "north" not in out
    assert "1500 answers were logged more than once" in err
    code, out, _ = run("monitor", log, *options, "--json")
    report = json.loads(out)
    assert (code, report["n"], report["n_duplicates"], report["alarms"]) == (1, 1500, 1500, ["south"])
    assert [group["group"] for group in report["groups"]] == ["south", "north\x1b[31m"]
    code, _, err = run("monitor", log, "--once", "--state", state, "--batch", "30")
    assert code == 2
    assert "'batch': 'day'" in err
    assert "'batch': 30" in err


def test_a_batch_of_n_answers(run, tmp_path):
    log = tmp_path / "a.jsonl"
    write(log, 95)
    code, out, _ = run("monitor", log, "--once", "--batch", "10", "--json")
    assert (code, json.loads(out)["n_batches"], json.loads(out)["n_open"]) == (0, 9, 5)


def test_a_reset_begins_a_new_period_without_reading_the_old_log_again(run, tmp_path):
    log, state = tmp_path / "a.jsonl", tmp_path / "state.json"
    options = [log, "--once", "--state", state, "--id", "id", "--json"]
    write(log, 300, 0.4)
    assert run("monitor", *options)[0] == 1
    write(log, 50, 0.4, seed=1)  # of the old artifact, not read yet
    code, out, err = run("monitor", *options, "--reset")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"n": 0, "alarm": False, "n_bad_lines": 0, "n_duplicates": 0, "n_pending": 0}
    assert run("monitor", *options)[0] == 0  # no answer yet
    write(log, 200, seed=2)
    write(log, 10, seed=1)  # logged twice, first in the old period
    code, out, _ = run("monitor", *options)
    report = json.loads(out)
    assert (code, report["n"], report["n_duplicates"], report["alarm"]) == (0, 200, 10, False)
