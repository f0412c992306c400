"""Rows, threads and progress: sums have the same bits on any number of cores."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.core import progress, threads
from calibrant.core.rows import Rows
from calibrant.core.statistic import statistic


def make_rows(n: int = 5000, k: int = 7, weighted: bool = True) -> Rows:
    rng = np.random.default_rng(0)
    weights = rng.uniform(size=n) if weighted else None
    return Rows(rng.normal(size=(n, k)).astype(np.float32), rng.integers(0, k, n), weights)


@statistic
def powers(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, power: float) -> tuple:
    return (np.float64((logits.astype(np.float64) ** power).sum()), logits.sum(axis=0, dtype=np.float64), len(labels))


@pytest.mark.parametrize("block", [100, 1 << 12, 1 << 20])
def test_totals_have_the_same_bits_on_any_number_of_threads(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(threads.row_blocks, "__defaults__", (block,))
    rows = make_rows()
    answers = []
    for count in ("1", "2", "3", "8"):
        monkeypatch.setenv("CALIBRANT_THREADS", count)
        answers.append(rows.total(powers, 2.0))
    for answer in answers[1:]:
        assert answer[0] == answers[0][0]
        assert answer[1].tobytes() == answers[0][1].tobytes()
        assert answer[2] == rows.n
    assert answers[0][0] == pytest.approx((rows.logits.astype(np.float64) ** 2).sum(), rel=1e-12)


@given(st.integers(0, 1000), st.integers(0, 50), st.integers(1, 500))
def test_blocks_cover_every_row_once(n_rows: int, n_columns: int, block: int) -> None:
    blocks = threads.row_blocks(n_rows, n_columns, block)
    assert [row for piece in blocks for row in range(n_rows)[piece]] == list(range(n_rows))
    assert all((piece.stop - piece.start - 1) * n_columns < block for piece in blocks)


def test_results_come_back_in_order_from_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALIBRANT_THREADS", "4")
    barrier = threading.Barrier(4, timeout=120)
    seen = set()

    def work(block: slice) -> int:
        seen.add(threading.get_ident())
        barrier.wait()  # passes only if four blocks run at the same time
        return block.start

    assert threads.map_blocks(work, [slice(i, i + 1) for i in range(8)]) == list(range(8))
    assert len(seen) == 4


def test_a_map_inside_a_map_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALIBRANT_THREADS", "2")
    blocks = [slice(i, i + 1) for i in range(4)]

    def outer(block: slice) -> int:
        return sum(threads.map_blocks(lambda inner: inner.start, blocks))

    assert threads.map_blocks(outer, blocks) == [6, 6, 6, 6]


def test_an_error_in_a_block_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALIBRANT_THREADS", "2")

    def work(block: slice) -> None:
        raise ArithmeticError(f"block {block.start}")

    with pytest.raises(ArithmeticError, match="block 0"):
        threads.map_blocks(work, [slice(0, 1), slice(1, 2)])


def sum_in_child(queue: multiprocessing.Queue) -> None:
    queue.put(threads.map_blocks(lambda block: block.start, [slice(i, i + 1) for i in range(4)]))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_makes_its_own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALIBRANT_THREADS", "2")
    threads.map_blocks(lambda block: block.start, [slice(0, 1), slice(1, 2)])
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=sum_in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=120) == [0, 1, 2, 3]
    child.join(30)
    assert child.exitcode == 0


@pytest.mark.parametrize(("asked", "count"), [("3", 3), ("0", None), ("many", None), ("", None)])
def test_the_number_of_threads(monkeypatch: pytest.MonkeyPatch, asked: str, count: int | None) -> None:
    monkeypatch.setenv("CALIBRANT_THREADS", asked)
    assert threads.n_threads() == count if count else threads.n_threads() >= 1


def test_weights_classes_and_samples() -> None:
    rows = make_rows(100)
    assert rows.total_weight == pytest.approx(rows.weights.sum())
    assert make_rows(100, weighted=False).total_weight == 100
    np.testing.assert_allclose(rows.class_weight(), [rows.weights[rows.labels == c].sum() for c in range(7)])
    assert Rows(rows.logits, np.zeros(100, int)).class_weight().tolist() == [100, 0, 0, 0, 0, 0, 0]
    assert 10 <= rows.sample(10).n < 20
    assert rows.sample(1000).n == 100
    taken = rows.take(np.array([3, 1]))
    np.testing.assert_array_equal(taken.labels, rows.labels[[3, 1]])
    np.testing.assert_array_equal(taken.weights, rows.weights[[3, 1]])


def test_progress_reaches_the_innermost_listener_only() -> None:
    progress.step("nobody listens", 1)
    outer, inner = [], []
    with progress.listen(lambda *step: outer.append(step)):
        progress.step("a", 1, 2)
        with progress.listen(lambda *step: inner.append(step)):
            progress.step("b", 3, None, "note")
        progress.step("a", 2, 2)
    progress.step("nobody listens", 2)
    assert outer == [("a", 1, 2, ""), ("a", 2, 2, "")]
    assert inner == [("b", 3, None, "note")]


def test_progress_is_silent_again_after_an_error() -> None:
    heard: list[tuple] = []
    with pytest.raises(RuntimeError), progress.listen(lambda *step: heard.append(step)):
        raise RuntimeError
    progress.step("a", 1)
    assert heard == []


def test_blas_has_its_threads_back_after_a_fit():
    code = (
        "import numpy as np, calibrant, scipy.linalg, threadpoolctl as t\n"
        "from calibrant.core.threads import one_blas_thread\n"
        "count = lambda: [one['num_threads'] for one in t.threadpool_info() if one['user_api'] == 'blas']\n"
        "z = np.random.default_rng(0).normal(size=(300, 4)); before = count()\n"
        "for name in ('ts', 'vs', 'dir'): calibrant.get(name).fit(z, z.argmax(1))\n"
        "assert count() == before and max(before) > 1, (before, count())\n"
        "with one_blas_thread():\n"
        "    with one_blas_thread(): assert max(count()) == 1\n"
        "    assert max(count()) == 1\n"
        "assert count() == before\n"
    )
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], check=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    )
