"""What a method is called in words, and what its calibrator learned."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from calibrant.calibrators.registry import METHODS, PREFIXES, SUFFIXES
from calibrant.core.arrays import Array
from calibrant.evaluation.results import Comparison, MethodRow
from calibrant.report.wording import class_names


def innermost(calibrator: Any) -> list[Any]:
    """A calibrator and those it wraps, outermost first."""
    chain: list[Any] = []
    while calibrator is not None:
        chain.append(calibrator)
        calibrator = vars(calibrator).get("calibrator_")
    return chain


def class_temperatures(row: MethodRow, n_classes: int) -> Array | None:
    """The temperature of each class, where the method learned such a thing."""
    for calibrator in innermost(row.calibrator):
        found = vars(calibrator)
        values = found.get("temperatures_")
        # temperatures of confidence bins come with edges
        if values is not None and "edges_" not in found and np.shape(values) == (n_classes,):
            return np.asarray(values, dtype=float)
    return None


STEPS = {
    "+top": ", then a map of the top confidence",
    "+shape": ", then shape scaling",
    "+keep": ", predictions kept",
    "+shift": ", corrected for label shift",
    "+group": ", fitted per group",
    "+multi": ", multicalibrated over groups",
    "sctl+": ", classes of high loss counting more",
}
"""What a prefix or suffix of a short name does to the method."""

OBJECTIVES = {"ece": "ECE", "adaptive_ece": "adaptive ECE", "soft_ece": "soft ECE", "nll": "log loss", "gap": "bin gap"}


def full_name(method: str, calibrator: Any = None) -> str:
    """A short name in words: the class of the method, what it was fitted for, and what follows it.

    >>> full_name("ts+top")
    'Temperature scaling, then a map of the top confidence'
    """
    for step in (*PREFIXES, *SUFFIXES):
        inner = method.removeprefix(step).removesuffix(step)
        if inner != method:
            return full_name(inner) + STEPS.get(step, f" ({step})")
    if method == "none":
        return "Uncalibrated"
    known = METHODS.get(method)
    if known is None:
        return method if calibrator is None else _spelt(type(calibrator).__name__)
    words = _spelt(known.class_name)
    objective = known.parameters.get("objective")
    if objective is not None:
        words += f" for {OBJECTIVES.get(objective, objective)}"
    return words + (", free to change predictions" if known.parameters.get("preserve_accuracy") is False else "")


def _spelt(class_name: str) -> str:
    """CamelCase in words, the first with a capital letter.

    >>> _spelt("ClassTemperatureScaling")
    'Class temperature scaling'
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", class_name).capitalize()


def summary(calibrator: Any) -> str:
    """The first sentence of a method's own description."""
    first, *_ = (type(calibrator).__doc__ or "").strip().split("\n\n")
    return " ".join(first.replace("`", "").split())


def parameters(comparison: Comparison, row: MethodRow, count: int = 5) -> list[tuple[str, str]]:
    """Everything a method learned, with the classes it changed most."""
    values, temperatures = learned(row.calibrator), class_temperatures(row, comparison.n_classes)
    if temperatures is not None:
        names, order = class_names(comparison), np.argsort(temperatures, kind="stable")
        for words, places in (("most sharpened", order[:count]), ("most damped", order[::-1][:count])):
            values.append((words, ", ".join(f"{names[place]} {temperatures[place]:.3g}" for place in places)))
    return values


PLUMBING = {
    "n_features_in_", "feature_names_in_", "classes_", "calibrator_", "fit_seconds_", "n_iter_", "n_rows_",
    "fingerprint_", "n_parameters_", "task_", "objective_trace_",
}  # fmt: skip
"""What every calibrator carries along; it says nothing about the method."""


def learned(calibrator: Any) -> list[tuple[str, str]]:
    """Name and readable value of everything a fitted calibrator learned, wrapped ones included."""
    found = []
    for depth, part in enumerate(innermost(calibrator)):
        prefix = f"{type(part).__name__}." if depth else ""
        for name, value in vars(part).items():
            if name.endswith("_") and not name.startswith("_") and name not in PLUMBING:
                text = readable(value)
                if text:
                    found.append((prefix + name, text))
    return found


def readable(value: Any) -> str:
    """A learned value in one line: numbers as they are, long arrays by shape and range; empty for what is no number."""
    if isinstance(value, bool | str | int | np.integer):
        return str(value)
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        return ""
    if array.ndim == 0:
        return f"{float(array):.6g}"
    if array.ndim == 1 and array.size <= 16:
        return ", ".join(f"{number:.4g}" for number in array)
    low, middle, high = np.nanmin(array), np.nanmedian(array), np.nanmax(array)
    shape = "×".join(map(str, array.shape))
    return f"{shape} numbers, from {low:.4g} to {high:.4g}, median {middle:.4g}"
