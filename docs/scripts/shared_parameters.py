"""Griffe extension: the site lists shared parameters as `help` does."""

from __future__ import annotations

from typing import Any

import griffe

from calibrant.metrics.record import with_shared_parameters


class SharedParameters(griffe.Extension):
    """List the parameters whose types are described once in `metrics/inputs.py`."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if isinstance(obj, griffe.Function) and obj.docstring is not None:
            types = {one.name: str(one.annotation) for one in obj.parameters}
            obj.docstring.value = with_shared_parameters(obj.docstring.value, types)
