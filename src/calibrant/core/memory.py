"""How much memory may still be taken."""

from __future__ import annotations

from pathlib import Path

UNKNOWN = 2**30
"""Where the system does not tell."""

CGROUP = Path("/sys/fs/cgroup")


def spare_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = CGROUP) -> int:
    """Bytes that this process may take without swapping: what the machine has left, or its container if that is less.

    >>> spare_memory() > 0
    True
    """
    found = [_available(meminfo), *(_left(cgroup, *names) for names in _LIMITS)]
    known = [one for one in found if one is not None]
    return max(min(known), 0) if known else UNKNOWN


_LIMITS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
"""Limit and use of a container, in the two layouts that Linux has."""


def _available(meminfo: Path) -> int | None:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _left(folder: Path, limit: str, used: str) -> int | None:
    try:
        return int((folder / limit).read_text()) - int((folder / used).read_text())
    except (OSError, ValueError):
        return None  # "max" is no limit
