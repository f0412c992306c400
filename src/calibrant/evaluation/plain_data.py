"""Results as plain JSON data."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any, ClassVar, cast

import numpy as np


class PlainData:
    """A dataclass that gives its fields, or the attributes named in `json_fields`, as plain JSON data."""

    json_fields: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data by name; None stands for a number that is not finite."""
        names = self.json_fields or tuple(one.name for one in fields(cast(Any, self)))
        return {name: plain(getattr(self, name)) for name in names}

    def to_json(self, indent: int | None = 2) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)


def plain(value: Any) -> Any:
    """A value as JSON can hold it.

    >>> plain((1, float("nan"), np.array([0.5])))
    [1, None, [0.5]]
    """
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
