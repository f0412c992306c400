"""How much memory may still be taken."""

from contextlib import suppress
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")

_LIMITS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
"""Limit and use of a container, in the two layouts that Linux has."""


def spare_memory(cgroup: Path = CGROUP) -> int:
    """Bytes that this process may take without swapping: what the machine has left, or its container if that is less.

    >>> spare_memory() > 0
    True
    """
    found = [psutil.virtual_memory().available]
    for limit, used in _LIMITS:
        with suppress(OSError, ValueError):  # "max" is no limit
            found.append(int((cgroup / limit).read_text()) - int((cgroup / used).read_text()))
    return max(min(found), 0)
