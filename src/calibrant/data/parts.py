"""Many files as one set of predictions: the parts of a folder, of a pattern such as `parts/*.npz`, or of a bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from calibrant.core import progress
from calibrant.core.errors import InputError, NoRowsError
from calibrant.core.schema import identifiers
from calibrant.data.chunks import Chunk, cut, part_error
from calibrant.data.predictions import PER_ROW, Predictions
from calibrant.data.source import PartsSource
from calibrant.engines.engine import Engine, opened

Address = TypeVar("Address", str, Path)


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
            good.append(_alike(good[0], part) if good else part)
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
    chunks = cut(predictions)
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


def _alike(first: Predictions, part: Predictions) -> Predictions:
    """A part with the columns of the first in order; an InputError where they differ in what else they hold."""
    part = part.aligned(first.schema, first.name)
    for word, ours, theirs in zip(FACTS, _facts(first), _facts(part), strict=True):
        if ours != theirs:
            raise InputError(f"{first.name} and {part.name} differ in {word}: {str(ours)[:60]} and {str(theirs)[:60]}")
    return part


FACTS = ("task", "kind", "having labels", "having weights", "having label shares", "having clusters", "groups")


def _facts(part: Predictions) -> tuple[Any, ...]:
    columns = (part.weights, part.label_shares, part.clusters)
    return part.task, part.kind, part.has_labels, *(column is not None for column in columns), sorted(part.groups)


def join(parts: list[Predictions], name: str) -> Predictions:
    """The rows of all parts, one after another."""
    first = parts[0]
    source = PartsSource([part.source for part in parts], name)
    columns = {word: [getattr(part, word) for part in parts] for word in PER_ROW if word != "clusters"}
    return first._like(
        source,
        whole=False,
        **{word: None if there[0] is None else np.concatenate(there) for word, there in columns.items()},
        groups={word: _joined_identifiers([part.groups[word] for part in parts]) for word in first.groups},
        clusters=_clusters(parts),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        _checked=False,
    )


def _joined_identifiers(columns: list[np.ndarray]) -> np.ndarray:
    """Groups or clusters of all parts; as exact text where numbers of one part would lose digits beside another's."""
    kinds = {column.dtype.kind for column in columns}
    if len(kinds) == 1 or (kinds <= set("fiub") and all(np.nanmax(np.abs(column)) < 2**53 for column in columns)):
        return np.concatenate(columns)
    coded = [identifiers(column) for column in columns]
    return np.concatenate([np.array(names)[codes] for codes, names in coded])


def _clusters(parts: list[Predictions]) -> np.ndarray | None:
    """Clusters of all parts; numbers that only count the images of one file must not meet those of another."""
    columns = [part.clusters for part in parts if part.clusters is not None]
    if not all(part.local_clusters for part in parts):
        return _joined_identifiers(columns) if columns else None
    found, first = [], 0
    for clusters in columns:
        found.append(clusters + first)
        first += int(clusters.max()) + 1
    return np.concatenate(found)
