"""Which methods serve a task, and what a short name stands for there."""

from __future__ import annotations

from typing import Any

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.prepare import check_task_method
from calibrant.calibrators.registry import get, names, resolve
from calibrant.core.errors import InputError

LABEL_METHODS = ("none", "auto", "platt", "beta", "quad")
"""Short names for many labels that are tried by default: each stands for a `MultilabelCalibrator` of that map."""


def task_names(task: str) -> list[str]:
    """Short names of the listed methods that serve a task; pairs are a binary task of being right.

    >>> task_names("multilabel")[0], "ts" in task_names("pairs")
    ('none', True)
    """
    if task == "multilabel":
        return list(LABEL_METHODS)
    return names("multiclass" if task == "multiclass" else "binary")


def task_method(name: str, task: str, n_classes: int | None = None) -> Any:
    """The unfitted calibrator that a short name stands for in a task; an InputError where it serves another one."""
    if task != "multilabel":
        calibrator = get(name)
        check_task_method(calibrator, task, name, n_classes)
        return calibrator
    known = name if name in ("auto", "multilabel") else resolve(name)
    if known == "none":
        from calibrant.calibrators.base import Identity

        return Identity()
    if known == "multilabel":
        return get("multilabel")
    if known not in LABEL_METHODS and not _maps_one_score(known):
        served = ", ".join(dict.fromkeys([*LABEL_METHODS, *filter(_maps_one_score, names("binary"))]))
        raise InputError(f"{name} does not serve the task multilabel: these do: {served}")
    return get("multilabel", calibrator=known)


def _maps_one_score(name: str) -> bool:
    made = get(name)
    return isinstance(made, Calibrator) and made.maps_one_score()
