"""Which methods serve a task, and what a short name stands for there."""

from __future__ import annotations

from typing import Any

from calibrant.calibrators.base import Calibrator
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
        from calibrant.calibrators.identity import Identity

        return Identity()
    if known == "multilabel":
        return get("multilabel")
    if known not in LABEL_METHODS and not _maps_one_score(known):
        served = ", ".join(dict.fromkeys([*LABEL_METHODS, *filter(_maps_one_score, names("binary"))]))
        raise InputError(f"{name} does not serve the task multilabel: these do: {served}")
    return get("multilabel", calibrator=known)


def _maps_one_score(name: str) -> bool:
    """Has a method a map for one score that is more than its map for two classes?"""
    made = get(name)
    return isinstance(made, Calibrator) and type(made)._fit_binary is not Calibrator._fit_binary


def check_over_logits(calibrator: Any, name: str = "") -> None:
    """Raise for what changes a network's input and thus is no map of its logits."""
    if not hasattr(calibrator, "predict_proba"):
        called = name or type(calibrator).__name__
        raise InputError(
            f"{called} is part of a network, not a map of its logits: "
            "use NeuralClamping.fit(model, loader) and attach(model) in Python"
        )


def check_task_method(calibrator: Any, task: str, name: str = "", n_classes: int | None = None) -> None:
    """Raise where a calibrator does not serve a task; two columns are a binary task as well."""
    check_over_logits(calibrator, name)
    served = getattr(calibrator, "tasks", ("multiclass", "binary"))
    wanted = "binary" if task == "pairs" else task
    two = task == "multiclass" and n_classes == 2 and "binary" in served
    if wanted not in served and not two:
        called = name or type(calibrator).__name__
        raise InputError(f"{called} serves {' and '.join(served)} tasks, not {task}: see calibrant.methods()")
