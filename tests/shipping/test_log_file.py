"""Following a log: rotation, copies, long lines, duplicates and damaged states."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.core.errors import InputError
from calibrant.shipping import feed
from calibrant.shipping.feed import LogFollower


def lines(start: int, stop: int) -> str:
    """Answers that differ, so that no two stretches of a log look alike."""
    return "".join(f'{{"confidence": 0.{700 + row}, "correct": true, "id": {row}}}\n' for row in range(start, stop))


def reopened(watch: LogFollower) -> LogFollower:
    again = LogFollower(watch.path, batch=watch.batch, by=watch.by, id=watch.id)
    return LogFollower.from_json(watch.to_json(), again)


@pytest.fixture(params=["one run", "a run for each look"])
def again(request):
    """The same watch, kept in memory or through its state."""
    return reopened if request.param.startswith("a") else lambda watch: watch


def test_a_renamed_log_is_read_to_its_end_and_its_successor_from_the_start(tmp_path, again):
    log = tmp_path / "answers.jsonl"
    log.write_text(lines(0, 40))
    watch = LogFollower(str(log))
    assert watch.read() == 40
    with log.open("a") as file:
        file.write(lines(40, 45))
    log.rename(tmp_path / "answers.jsonl.1")
    watch = again(watch)
    assert watch.read() == 5  # the log is missing for a moment
    log.write_text(lines(100, 130))
    watch = again(watch)
    assert watch.read() == 30
    assert again(watch).read() == 0
    assert watch.monitor.n == 75


def test_a_missing_log_is_waited_for(tmp_path, again):
    log = tmp_path / "answers.jsonl"
    log.write_text(lines(0, 40))
    watch = LogFollower(str(log))
    watch.read()
    log.unlink()
    watch = again(watch)
    assert watch.read() == 0
    log.write_text(lines(50, 60))
    assert again(watch).read() == 10
    with pytest.raises(InputError, match="no such file"):
        LogFollower(str(tmp_path / "absent")).read()


@pytest.mark.parametrize("step", [1, 500, 5000])
def test_a_log_that_is_copied_back_is_not_counted_twice(tmp_path, again, step):
    log, old = tmp_path / "answers.jsonl", tmp_path / "answers.jsonl.1"
    log.write_text(lines(0, 60))
    watch = LogFollower(str(log))
    assert watch.read() == 60
    log.rename(old)
    content = old.read_bytes()
    log.write_bytes(b"")
    assert watch.read() == 0
    for start in range(0, len(content), step):  # looked at while the copy is still short
        with log.open("ab") as file:
            file.write(content[start : start + step])
        if step > 1 or start % 400 == 0:
            watch = again(watch)
            assert watch.read() == 0
    with log.open("a") as file:
        file.write(lines(60, 70))
    assert again(watch).read() == 10


def test_an_older_and_shorter_copy_is_not_counted_twice_and_said(tmp_path, again):
    log = tmp_path / "answers.jsonl"
    log.write_text(lines(0, 60))
    watch = LogFollower(str(log))
    watch.read()
    log.write_text(lines(0, 50))
    watch = again(watch)
    assert watch.read() == 0
    assert "taken for a copy" in watch.note
    with log.open("a") as file:
        file.write(lines(50, 61))
    assert again(watch).read() == 1


def test_a_truncated_log_is_read_from_its_start(tmp_path, again):
    log = tmp_path / "answers.jsonl"
    log.write_text(lines(0, 60))
    watch = LogFollower(str(log))
    watch.read()
    shutil.copy(log, tmp_path / "answers.jsonl.1")
    with log.open("r+") as file:
        file.truncate()
        file.write(lines(200, 210))
    watch = again(watch)
    assert watch.read() == 10
    with log.open("r+") as file:  # grown past the old position between two looks
        file.truncate()
        file.write(lines(300, 340))
    assert again(watch).read() == 40


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6), cut=st.integers(1, 30))
def test_every_line_counts_once_whatever_the_pieces(tmp_path_factory, sizes, cut):
    folder = tmp_path_factory.mktemp("log")
    log, row = folder / "a.jsonl", 0
    log.touch()
    watch = LogFollower(str(log))
    for turn, size in enumerate(sizes):
        text = lines(row, row + size)
        row += size
        with log.open("a") as file:
            file.write(text[:-cut])
        watch.read()
        watch = reopened(watch)
        with log.open("a") as file:
            file.write(text[-cut:])
        if turn % 2:
            os.replace(log, folder / f"a.jsonl.{turn}")
            log.touch()
    watch.read()
    assert (watch.monitor.n, watch.n_bad) == (row, 0)


def test_long_lines_are_passed_over(tmp_path, again, monkeypatch):
    monkeypatch.setattr(feed, "MAX_WAITING", 3)
    monkeypatch.setattr(feed, "MAX_LINE_BYTES", 2048)
    log = tmp_path / "answers.jsonl"
    log.write_text(lines(0, 10) + "x" * 3000 + "\n" + lines(10, 20) + "y" * 9000)
    watch = LogFollower(str(log))
    assert watch.read() == 20
    with log.open("a") as file:
        file.write("y" * 9000)
    watch = again(watch)
    assert watch.read() == 0
    with log.open("a") as file:
        file.write("y\n" + lines(20, 25))
    watch = again(watch)
    assert watch.read() == 5
    assert (watch.monitor.n, watch.n_bad, watch.n_lines) == (25, 2, 27)
    assert "longer than" in watch.first_problem


def test_answers_logged_twice_are_counted_once(tmp_path, again):
    log = tmp_path / "answers.jsonl"
    log.write_text(lines(0, 30) + lines(10, 40))
    watch = LogFollower(str(log), id="id")
    assert watch.read() == 40
    assert watch.n_duplicates == 20
    with log.open("a") as file:
        file.write(lines(0, 40) + '{"confidence": 0.7, "correct": true}\n')
    watch = again(watch)
    assert watch.read() == 0
    assert (watch.n_duplicates, watch.n_bad) == (60, 1)
    assert "field 'id'" in watch.first_problem


def test_batches_and_groups_come_from_fields(tmp_path, again):
    rng = np.random.default_rng(0)
    log = tmp_path / "answers.jsonl"
    with log.open("w") as file:
        for row in range(3000):
            group, confidence = ("north", "south")[row % 2], rng.uniform(0.6, 0.95)
            right = rng.random() < confidence - (0.2 if group == "south" else 0)
            answer = f'"confidence": {confidence}, "correct": {int(right)}, "hospital": "{group}", "day": {row // 60}'
            file.write("{" + answer + "}\n")
    watch = LogFollower(str(log), batch="day", by="hospital")
    assert watch.read() == 3000
    watch = again(watch)
    assert watch.monitor.alarms == ["south"]
    assert watch.monitor.report().n_batches == 49


@pytest.fixture
def written_state(tmp_path):
    """A log and the state of a monitor that has read it."""
    log, state = tmp_path / "answers.jsonl", tmp_path / "state.json"
    log.write_text(lines(0, 40))
    watch = LogFollower(str(log), state=state)
    watch.read()
    watch.save()
    watch.close()
    return log, state


@pytest.mark.parametrize("text", ["[]", "{}", "null", "some notes", '{"a": 1}', "[" * 100_000, lines(0, 9)])
def test_a_file_that_is_not_a_state_is_refused(written_state, text):
    log, state = written_state
    state.write_text(text)
    with pytest.raises(InputError, match=r"it is not the state of a monitor .* move it away"):
        LogFollower(str(log), state=state)
    assert state.read_text() == text


@pytest.mark.parametrize("damage", [lambda _: "", lambda text: "\0" * len(text), lambda text: text[:1000],
                                    lambda text: text.replace('"n": 40', '"n": -4')])  # fmt: skip
def test_a_damaged_state_is_set_aside_and_reported(written_state, damage):
    log, state = written_state
    for number in (1, 2):
        text = damage(state.read_text())
        state.write_text(text)
        watch = LogFollower(str(log), state=state)
        assert f"renamed to {state}.damaged-{number}" in watch.note
        assert state.with_name(f"state.json.damaged-{number}").read_text() == text
        assert (watch.monitor.n, watch.offset) == (0, 0)
        assert watch.read() == 40
        watch.save()
        watch.close()
    assert LogFollower(str(log), state=state).monitor.n == 40


def test_a_second_monitor_of_one_state_is_refused(written_state):
    log, state = written_state
    with contextlib.closing(LogFollower(str(log), state=state)):
        with pytest.raises(InputError, match="in use by another monitor") as refused:
            LogFollower(str(log), state=state)
        assert "\n" not in str(refused.value)
    LogFollower(str(log), state=state).close()


def test_pipes_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="a device or a pipe"):
        LogFollower(str(tmp_path / "pipe")).read()


@pytest.mark.parametrize("truncated_in_place", [False, True])
def test_the_rest_of_a_compressed_log_is_read(tmp_path, again, truncated_in_place):
    log = tmp_path / "answers.jsonl"
    log.write_text(lines(0, 60))
    watch = LogFollower(str(log))
    watch.read()
    with log.open("a") as file:
        file.write(lines(60, 75))
    with gzip.open(tmp_path / "answers.jsonl.1.gz", "wb") as file:
        file.write(log.read_bytes())
    (tmp_path / "answers.jsonl.2.gz").write_bytes(b"damaged")
    watch = again(watch)
    if truncated_in_place:
        with log.open("r+") as file:
            file.truncate()
        assert watch.read() == 0
    else:
        log.rename(tmp_path / "gone")  # keeps its inode from being used again
    with log.open("a") as file:
        file.write(lines(100, 110))
    watch = again(watch)
    assert (watch.read(), watch.note) == (15 + 10, None)
    assert again(watch).read() == 0


def test_lines_that_are_lost_with_a_rotated_log_are_reported(tmp_path, again):
    log = tmp_path / "answers.jsonl"
    log.write_text(lines(0, 60))
    watch = LogFollower(str(log))
    watch.read()
    log.rename(tmp_path / "gone")
    log.write_text(lines(100, 110))
    watch = again(watch)
    assert watch.read() == 10
    assert f"after byte {len(lines(0, 60))} are missing" in watch.note


def test_an_id_counts_once_within_the_window(tmp_path):
    log = tmp_path / "answers.jsonl"
    for window, n_twice in ((40, 40), (30, 0)):
        log.write_text(lines(0, 40) * 2)
        watch = LogFollower(str(log), id="id", id_window=window)
        watch.read()
        assert (watch.n_duplicates, len(watch.seen)) == (n_twice, window)


def test_names_of_groups_are_limited_in_length_and_number(tmp_path):
    log = tmp_path / "answers.jsonl"
    names = ["a", "b", "x" * 150_000, "c", "a", "other", "d"]
    log.write_text("".join(f'{{"confidence": 0.9, "correct": true, "site": "{name}"}}\n' for name in names))
    watch = LogFollower(str(log), by="site", max_groups=3)
    watch.read()
    found = {group["group"]: group["n"] for group in watch.monitor.report().groups}
    assert found == {"a": 2, "b": 1, "c": 1, "other": 3}
    watch = LogFollower(str(log), by=f"site={'x' * 150_000},d", max_groups=1)
    watch.read()
    assert {len(group["group"]): group["n"] for group in watch.monitor.report().groups} == {150_000: 1, 1: 1, 5: 5}
