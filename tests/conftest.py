"""Fixtures every test may use."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "calibrant",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("calibrant")

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real predictions beside the checkout; tests that need it are skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"no shared data at {SHARED}")
    return SHARED


@pytest.fixture
def deadline() -> Iterator[None]:
    """End the run where a test hangs, in C code too; no test is judged by its seconds."""
    faulthandler.dump_traceback_later(600, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line that says how many tests were skipped, and how many of these for want of data."""
    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", []) if report.longrepr]
    if reasons:
        absent = sum("no shared data" in reason or "no predictions at" in reason for reason in reasons)
        terminalreporter.write_line(f"skipped: {absent} for want of shared data, {len(reasons) - absent} for others")
