"""Many files as one set of predictions: the parts of a folder, of a pattern such as `parts/*.npz`, or of a bucket."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from calibrant.core import progress
from calibrant.core.errors import InputError, NoRowsError
from calibrant.data.chunks import Chunk, cut, part_error
from calibrant.data.folder import check_alike, join, keep_parts
from calibrant.data.predictions import Predictions
from calibrant.engines.engine import Engine, opened

Address = TypeVar("Address", str, Path)

PATTERN = re.compile(r"[*?\[]")


def is_pattern(address: str) -> bool:
    """Does it hold `*`, `?` or `[`, and no file of that very name exists?"""
    return PATTERN.search(address) is not None and not Path(address).exists()


def matching(pattern: str) -> list[Path]:
    """The files that match a pattern, sorted by name; `**` goes into folders."""
    return keep_parts([Path(name) for name in sorted(glob.glob(pattern, recursive=True))], pattern)


def open_all(
    addresses: Sequence[Address],
    name: str,
    open_part: Callable[[Address], Predictions],
    *,
    skip_bad_parts: bool = False,
) -> Predictions:
    """Open every part and join them in order; all must agree in kind, classes and in having labels and weights.

    A part that cannot be opened is an error that names it; with `skip_bad_parts` it is left out and listed in
    `Predictions.skipped`. A part of 0 rows adds nothing.
    """
    good: list[Predictions] = []
    skipped: list[str] = []
    empty = 0
    for number, address in enumerate(addresses):
        try:
            part = open_part(address)
            check_alike([*good[:1], part])
            good.append(part)
        except NoRowsError:
            empty += 1
        except InputError as error:
            named = part_error(error, str(address), number, len(addresses))
            if not skip_bad_parts:
                raise named from error
            skipped.append(str(named))
        progress.step(f"opening {name}", number + 1, len(addresses))
    if not good and empty:
        raise NoRowsError(f"{name}: {empty} of {len(addresses)} parts have 0 rows, and no other can be read")
    return _joined(good, name, skipped)


def without_bad_parts(predictions: Predictions, engine: str | Engine = "local") -> Predictions:
    """Read everything once, and leave out the parts in which something cannot be read or is no logit or probability."""
    chunks = cut(predictions, with_labels=False)
    with opened(engine) as running:
        found = running.run(_trouble, chunks, lambda left, right: {**right, **left})
    if not found:
        return predictions
    bad = sorted(found)
    first_rows = {chunk.part: chunk.first_row for chunk in reversed(chunks)}
    borders = [*(first_rows[part] for part in sorted(first_rows)), predictions.n]
    good = [predictions[borders[part] : borders[part + 1]] for part in sorted(first_rows) if part not in found]
    return _joined(good, predictions.name, [*predictions.skipped, *(found[part] for part in bad)])


def _joined(parts: list[Predictions], name: str, skipped: list[str]) -> Predictions:
    if not parts:
        raise InputError(f"{name}: all {len(skipped)} parts are bad; the first: {skipped[0]}")
    joined = join(parts, name)
    joined.skipped = tuple(skipped)
    return joined


def _trouble(chunk: Chunk) -> dict[int, str]:
    """The number of the part and what is wrong with it; nothing if all is well."""
    try:
        for _ in chunk.values(check=True):
            pass
    except InputError as error:
        return {chunk.part: str(error)}
    return {}
