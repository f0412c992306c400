"""What the files behind `--models` mean: one file with both parts, or NAME=VAL,TEST."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from calibrant.core.errors import InputError


def opened(files: list[str], said: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The rows to fit on and to measure on of every model, by its name."""
    from calibrant.data import open_parts, open_predictions
    from calibrant.evaluation.models import short_names

    found: dict[str, tuple[Any, Any]] = {}
    split_up = [split(given) for given in files]
    names = [name for name, _ in split_up]
    if names == [Path(given).stem for given in files]:
        names = short_names(names)  # names that the user chose stay
    for name, (_, both) in zip(names, split_up, strict=True):
        if name in found:
            raise InputError(f"two models are called {name}: give NAME=FILE with names that differ")
        if len(both) == 2:
            found[name] = (open_predictions(both[0], **said), open_predictions(both[1], **said))
            continue
        parts = open_parts(both[0], **said)
        if not {"val", "test"} <= set(parts):
            there = ", ".join(parts) if "" not in parts else "one part"
            raise InputError(
                f"{both[0]} holds {there}, but a model needs the parts val and test: give {name}=VAL_FILE,TEST_FILE"
            )
        found[name] = parts["val"], parts["test"]
    return found


def split(given: str) -> tuple[str, list[str]]:
    """The name of a model and its one or two files; an existing path is a path, whatever signs it holds.

    >>> split("resnet=val.npz,test.npz")
    ('resnet', ['val.npz', 'test.npz'])
    >>> split("runs/vit.npz")
    ('vit', ['runs/vit.npz'])
    """
    if Path(given).exists() or "=" not in given:
        return Path(given).stem, [given]
    name, _, files = given.partition("=")
    both = [part.strip() for part in files.split(",")]
    if len(both) > 2 or not all([name, *both]):
        raise InputError(f"{given!r} is no model: give FILE, NAME=FILE or NAME=VAL_FILE,TEST_FILE")
    return name, both
