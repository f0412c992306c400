"""`calibrant monitor FILE.jsonl`: the same as `calibrant watch`."""

from __future__ import annotations

from calibrant.cli.watch import watch as monitor

__all__ = ["monitor"]
