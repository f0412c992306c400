"""Acknowledged outcomes survive crashes, full disks and lost folders; one service writes a state."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from calibrant.core.errors import InputError
from calibrant.shipping import state as state_module
from calibrant.shipping.artifact import Artifact, read_artifact, save
from calibrant.shipping.feed import FeedbackDesk
from calibrant.shipping.serve import create_app

K = 5


@pytest.fixture(scope="module")
def artifact(fitted):
    return Artifact(fitted("ts"), K, digest="a" * 64)


def outcomes(n: int, seed: int) -> list[dict]:
    rng = np.random.default_rng(seed)
    return [
        {"confidence": rng.uniform(0.6, 0.95), "correct": bool(rng.random() < 0.7), "site": f"s{rng.integers(3)}",
         "id": f"{seed}-{row}"} for row in range(n)
    ]  # fmt: skip


def copy_state(state, folder):
    """The files of a state as a crash of the process leaves them."""
    folder.mkdir()
    for name in (state.name, f"{state.name}.journal"):
        shutil.copy(state.with_name(name), folder / name)
    return folder / state.name


def test_a_crash_at_any_time_loses_no_acknowledged_outcome(tmp_path, monkeypatch):
    monkeypatch.setattr(state_module, "MAX_JOURNAL_BYTES", 2000)  # the state is written a few times
    state = tmp_path / "state.json"
    desk = FeedbackDesk(by="site", state=state, artifact="a")
    for turn in range(12):
        rows = [*outcomes(5, turn), {"confidence": 0.9, "correct": None, "site": "s1", "id": f"p{turn}"}]
        assert desk.take(rows + rows[:2])["saved"]
        if turn % 2:
            desk.save()
        copy = copy_state(state, tmp_path / str(turn))
        again = FeedbackDesk(by="site", state=copy, artifact="a")
        assert again.to_json() == desk.to_json()
        again.close()
    desk.close()
    assert FeedbackDesk(by="site", state=state, artifact="b").monitor.n == 0  # outcomes of another artifact


def test_a_torn_journal_loses_only_outcomes_that_were_not_acknowledged(tmp_path):
    state = tmp_path / "state.json"
    desk = FeedbackDesk(state=state)
    journal, sizes = state.with_name("state.json.journal"), []
    for turn in range(3):
        sizes.append(journal.stat().st_size)
        desk.take(outcomes(2, turn))
    content = journal.read_bytes()
    for cut in {*range(0, len(content), 29), *range(len(content) - 3, len(content) + 1)}:
        copy = copy_state(state, tmp_path / str(cut))
        copy.with_name("state.json.journal").write_bytes(content[:cut])
        again = FeedbackDesk(state=copy)
        n_entries = max(0, content[:cut].count(b"\n") - 1)
        # an entry without its newline may be complete: it was written, but not acknowledged
        assert again.monitor.n in (2 * n_entries, 2 * n_entries + 2 * (content[cut : cut + 1] == b"\n"))
        again.close()
        shutil.rmtree(tmp_path / str(cut))


def test_outcomes_wait_for_a_full_disk(artifact, tmp_path, monkeypatch):
    monkeypatch.setattr("calibrant.shipping.service.LOOK_SECONDS", 0.05)
    state = tmp_path / "state.json"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with TestClient(create_app(artifact, feedback=FeedbackDesk(state=state))) as client:
        assert client.post("/feedback", json={"answers": outcomes(10, 0)}).json()["saved"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (state.with_name("state.json.journal").stat().st_size + 50, hard))
        try:
            for seed in range(1, 5):
                taken = client.post("/feedback", json={"answers": outcomes(25, seed)})
                assert (taken.status_code, taken.json()["saved"]) == (200, False)
            time.sleep(0.2)  # attempts fail
            ready = client.get("/readyz")
            assert (ready.status_code, ready.json()["monitor"]) == (200, "not saved")
            assert "calibrant_monitor_unsaved 100.0" in client.get("/metrics").text
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        wait_until(lambda: "monitor" not in client.get("/readyz").json())
        assert "calibrant_monitor_unsaved 0.0" in client.get("/metrics").text
        copy = copy_state(state, tmp_path / "copy")
        assert client.post("/feedback", json={"answers": outcomes(1, 9)}).json()["saved"]
    assert FeedbackDesk(state=copy, artifact="a" * 12).monitor.n == 110
    assert FeedbackDesk(state=state, artifact="a" * 12).monitor.n == 111


def test_a_folder_that_was_removed_is_reported_and_used_when_it_returns(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    desk = FeedbackDesk(state=folder / "state.json")
    desk.take(outcomes(5, 0))
    shutil.rmtree(folder)
    with pytest.raises(InputError, match="does not exist"):
        desk.save()
    assert not desk.is_saved
    assert not desk.take(outcomes(5, 1))["saved"]
    folder.mkdir()
    desk.save()
    assert desk.take(outcomes(5, 2))["saved"]
    copy = copy_state(folder / "state.json", tmp_path / "copy")
    assert FeedbackDesk(state=copy).monitor.n == 15


def test_a_killed_service_keeps_what_it_acknowledged_and_a_second_one_is_refused(tmp_path, fitted):
    path, state = tmp_path / "cal.safetensors", tmp_path / "state.json"
    save(fitted("ts"), path)
    command = [sys.executable, "-m", "calibrant", "serve", str(path), "--port", "0", "--json", "--monitor-state", state]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        address = json.loads(process.stdout.readline())["address"]
        taken = httpx.post(f"{address}/feedback", json={"answers": outcomes(50, 0)}, trust_env=False, timeout=60)
        second = subprocess.run(command, capture_output=True, text=True, check=False)
        process.kill()
    assert (taken.json()["n"], taken.json()["saved"]) == (50, True)
    assert (second.returncode, second.stdout, second.stderr.count("\n")) == (2, "", 1)
    assert "in use by another monitor" in second.stderr
    assert FeedbackDesk(state=state, artifact=read_artifact(path).digest[:12]).monitor.n == 50


def test_temporary_files_of_killed_writers_are_removed_at_the_next_start(tmp_path):
    leftover = tmp_path / ".state.k3x_9abc.json"
    others = [tmp_path / name for name in (".state.backup.json", ".state.k3x_9abc.txt", "state.k3x_9abc.json")]
    for path in (leftover, *others):
        path.write_text("half of a st")
    desk = FeedbackDesk(state=tmp_path / "state.json")
    assert not leftover.exists()
    assert all(path.exists() for path in others)
    leftover.write_text("the owner is writing")
    with pytest.raises(InputError):
        FeedbackDesk(state=tmp_path / "state.json")
    assert leftover.exists()
    desk.close()


def test_outcomes_right_after_a_reload_survive_a_crash(tmp_path):
    desk = FeedbackDesk(state=tmp_path / "state.json", artifact="old")
    desk.take(outcomes(5, 0))
    desk.renew("new")
    assert desk.take(outcomes(7, 1))["saved"]
    assert FeedbackDesk(state=copy_state(tmp_path / "state.json", tmp_path / "copy"), artifact="new").monitor.n == 7
    desk.close()


def wait_until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
