"""REPORT: figures for papers (`calibrant.plots`) and the self-contained HTML page (`write_report`)."""

from __future__ import annotations

from typing import Any

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    if name == "write_report":
        from calibrant.report.page import write_report

        return write_report
    raise AttributeError(f"module 'calibrant.report' has no attribute {name!r}")
