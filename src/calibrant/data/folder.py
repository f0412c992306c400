"""A folder of files is one set of predictions: its parts, in the order of their names, one after another."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calibrant.core.errors import InputError
from calibrant.data.formats import SUFFIXES, suffix_of
from calibrant.data.npy import is_companion
from calibrant.data.predictions import Predictions
from calibrant.data.source import PartsSource


def part_paths(folder: Path) -> list[Path]:
    """The files of a folder that hold rows, sorted by name."""
    return keep_parts(sorted(folder.iterdir()), str(folder))


def holds_rows(path: Path) -> bool:
    """Does the name say so? Hidden files and the companions of `.npy` matrices hold none."""
    hidden = path.name.startswith((".", "_"))
    return not hidden and suffix_of(path) in SUFFIXES and not (path.suffix == ".npy" and is_companion(path))


def keep_parts(paths: list[Path], name: str) -> list[Path]:
    """Those files that hold rows."""
    parts = [path for path in paths if holds_rows(path) and path.is_file()]
    if not parts:
        what = "is a folder without" if Path(name).is_dir() else "matches no"
        raise InputError(f"{name} {what} prediction files ({', '.join(sorted(SUFFIXES))})")
    return parts


def check_alike(parts: list[Predictions]) -> None:
    """Raise unless all agree in kind, classes and in having labels and weights."""
    first = parts[0]
    for part in parts[1:]:
        for word, ours, theirs in (
            ("task", first.task, part.task),
            ("kind", first.kind, part.kind),
            ("number of classes", first.n_classes, part.n_classes),
            ("number of columns", first.source.shape[1], part.source.shape[1]),
            ("class names", first.class_names, part.class_names),
            ("having labels", first.has_labels, part.has_labels),
            ("having weights", first.weights is not None, part.weights is not None),
            ("having label shares", first.label_shares is not None, part.label_shares is not None),
            ("having clusters", first.clusters is not None, part.clusters is not None),
            ("groups", sorted(first.groups), sorted(part.groups)),
        ):
            if ours != theirs:
                raise InputError(
                    f"{first.name} and {part.name} differ in {word}: {str(ours)[:60]} and {str(theirs)[:60]}"
                )


def join(parts: list[Predictions], name: str) -> Predictions:
    """The rows of all parts, one after another."""
    check_alike(parts)
    first = parts[0]
    source = PartsSource([part.source for part in parts], name)
    return first._like(
        source,
        whole=False,
        _labels=_joined([part._labels if part.label_field is None else part.labels for part in parts]),
        weights=_joined([part.weights for part in parts]),
        label_shares=_joined([part.label_shares for part in parts]),
        groups={word: np.concatenate([part.groups[word] for part in parts]) for word in first.groups},
        clusters=_clusters(parts),
        _checked=False,
    )


def _joined(columns: list[np.ndarray | None]) -> np.ndarray | None:
    there = [column for column in columns if column is not None]
    return np.concatenate(there) if there else None


def _clusters(parts: list[Predictions]) -> np.ndarray | None:
    """Clusters of all parts; numbers that only count the images of one file must not meet those of another."""
    if not all(part.local_clusters for part in parts):
        return _joined([part.clusters for part in parts])
    found, first = [], 0
    for part in parts:
        clusters = np.asarray(part.clusters)
        found.append(clusters + first)
        first += int(clusters.max()) + 1
    return np.concatenate(found)
