"""How calibration holds when the data shift: a metric over severities 0 … 5 of several corruptions."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.calibrators.prepare import check_over_logits
from calibrant.core.arrays import Array
from calibrant.core.errors import InputError
from calibrant.core.schema import Schema
from calibrant.core.softmax import softmax
from calibrant.data import Predictions, open_predictions
from calibrant.data.arrays import npz_fields
from calibrant.data.source import Wanted
from calibrant.evaluation.tables import Cell, Estimate, PlainData, Row, Table
from calibrant.metrics.record import METRICS, facts, user_metric

SHIFT_KEY = re.compile(r"shift_(?P<corruption>.+)_(?P<severity>\d+)$")
FILE_NAME = re.compile(r"(?P<corruption>.+?)[_-](?P<severity>\d+)$")

Shifted = dict[tuple[str, int], Predictions]
"""Predictions by (corruption, severity); severity 0 is the clean data, under any corruption name."""


@dataclass(frozen=True)
class ShiftCurves(PlainData):
    """A metric of several methods over corruptions and severities.

    values : (methods, corruptions, severities); NaN where a combination was not given. The clean severity 0 has the
    same value under every corruption.
    mean : (methods, severities), over the corruptions.
    half_width : (methods, severities), of the 95% within-subject interval; NaN where fewer than two corruptions are.
    sem : (methods, severities), the within-subject standard error.
    """

    metric: str
    methods: tuple[str, ...]
    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    values: Array
    mean: Array
    sem: Array
    half_width: Array

    def table(self) -> Table:
        """Methods × severities: the mean over corruptions with its within-subject interval."""
        names = [str(severity) for severity in self.severities]
        ends = np.stack([self.mean, self.mean - self.half_width, self.mean + self.half_width], axis=2).tolist()
        rows = [
            Row(method, {name: Cell(self.metric, Estimate(*one)) for name, one in zip(names, own, strict=True)})
            for method, own in zip(self.methods, ends, strict=True)
        ]
        return Table("method", {name: f"severity {name}" for name in names}, rows, intervals=True)

    def to_frame(self) -> Any:
        """A pandas table: one row per method, one column per severity with the ends of its interval."""
        return self.table().to_frame()


def open_shift(paths: Sequence[str | os.PathLike[str]]) -> Shifted:
    """Read shifted predictions.

    A `.npz` with arrays `shift_<corruption>_<severity>` and `shift_labels` gives all of them, and its `test_logits`
    as severity 0. Any other file of predictions is one condition, named by its file: `fog_3.npz` is fog at severity 3;
    severity 0 needs no corruption (`clean_0.npz`).
    """
    found: Shifted = {}
    for path in paths:
        bundle = _bundle(Path(path))
        if not bundle:
            rows, (file, _, part) = open_predictions(path), os.fspath(path).partition("#")
            match = FILE_NAME.match(Path(part or file).name.split(".")[0])
            if match is None:
                raise InputError(
                    f"{path}: holds no shift_<corruption>_<severity> arrays, and its name does not end in _<severity>: "
                    "name it like fog_3.npz"
                )
            bundle = {(match["corruption"], int(match["severity"])): rows}
        found |= bundle
    if not found:
        raise InputError("no shifted predictions: give at least one file")
    return found


def shift(
    calibrators: Mapping[str, Any],
    shifted: Shifted | Sequence[str | os.PathLike[str]],
    *,
    metric: str | Callable[..., float] = "ece",
    metric_options: Mapping[str, Any] | None = None,
    schemas: Mapping[str, Schema | None] | None = None,
) -> ShiftCurves:
    """Measure fitted calibrators over corruptions and severities (Karandikar et al. 2021, fig. 2).

    The error bars are within-subject intervals (Loftus & Masson 1994): corruptions differ in how hard they are, which
    says nothing about the difference between methods, so only the method × corruption interaction counts,
    ``√(MS_interaction / C) · t`` for C corruptions, at each severity.

    Parameters
    ----------
    calibrators : mapping of names to fitted calibrators
        None stands for the scores as they are.
    shifted : mapping of (corruption, severity) to Predictions, or paths
    metric : str or function
        A name in `calibrant.metrics`, or a function of that signature returning a number.
    metric_options : mapping
        Passed on to the metric, for example `{"n_bins": 20}`.
    schemas : mapping of names to Schema, optional
        What the calibrators were fitted on; the columns of the shifted data are brought into that order by name.
    """
    if not isinstance(shifted, Mapping):
        shifted = open_shift(shifted)
    if callable(metric):
        name = getattr(metric, "__name__", "metric")
        function = user_metric(metric, name).function
    elif (name := facts(metric).name) in METRICS:
        name, function = metric, METRICS[name].function
    else:
        raise InputError(f"no metric is called {metric!r}; there are: {', '.join(METRICS)}")
    corruptions = tuple(dict.fromkeys(corruption for corruption, severity in shifted if severity > 0)) or ("none",)
    severities = tuple(sorted({severity for _, severity in shifted}))
    values = np.full((len(calibrators), len(corruptions), len(severities)), np.nan)
    known, reference = schemas or {}, next(iter(shifted.values())).schema
    for (corruption, severity), given in shifted.items():
        columns: Any = slice(None) if severity == 0 else corruptions.index(corruption)
        for row, (method, calibrator) in enumerate(calibrators.items()):
            predictions = given.aligned(known.get(method) or reference, method)
            if calibrator is not None:
                check_over_logits(calibrator, method)
            fitted = getattr(calibrator, "n_features_in_", predictions.n_classes)
            if fitted != predictions.n_classes:
                raise InputError(
                    f"{predictions.name or 'the shifted data'} has {predictions.n_classes} classes, "
                    f"but {method} was fitted on {fitted}"
                )
            probabilities = (softmax if calibrator is None else calibrator.predict_proba)(predictions.logits)
            figure = function(
                probabilities, predictions.labels, sample_weight=predictions.weights, **(metric_options or {})
            )
            if not isinstance(figure, int | float | np.number):
                raise InputError(f"{name} is a {type(figure).__name__}, not one number: choose another metric")
            if np.isnan(figure):
                raise InputError(f"the metric {name} is NaN on {predictions.name or 'the shifted data'}")
            values[row, columns, severities.index(severity)] = figure
    # one within-subject table (corruptions, methods) per severity
    errors = np.array([within_subject_interval(table) for table in values.T])
    sem, half_width = np.repeat(errors.T[:, None], len(calibrators), axis=1)
    with np.errstate(invalid="ignore"):
        mean = np.nansum(values, axis=1) / np.isfinite(values).sum(axis=1)
    return ShiftCurves(name, tuple(calibrators), corruptions, severities, values, mean, sem, half_width)


def within_subject_interval(table: Array) -> tuple[float, float]:
    """Standard error and half width of a within-subject interval of condition means (Loftus & Masson 1994).

    ``MS = Σ_sc (x_sc − x̄_s − x̄_c + x̄)² / ((S−1)(C−1))``, standard error √(MS/S), times t with (S−1)(C−1) degrees of
    freedom. With a single condition there is no interaction, and the usual standard error over subjects is returned.

    Parameters
    ----------
    table : array (subjects, conditions); subjects with a missing value are left out.

    Examples
    --------
    Subjects that differ a lot but respond alike leave a small error:

    >>> table = np.array([[1.0, 2.0], [11.0, 12.1], [21.0, 21.9]])
    >>> sem, half_width = within_subject_interval(table)
    >>> round(sem, 4), round(half_width, 4)
    (0.0408, 0.1757)
    """
    from scipy.special import stdtrit

    table = table[np.isfinite(table).all(axis=1)]
    subjects, conditions = table.shape
    if subjects < 2:
        return np.nan, np.nan
    freedom = (subjects - 1) * max(conditions - 1, 1)
    rest = table - table.mean(axis=0)
    if conditions > 1:
        rest -= table.mean(axis=1, keepdims=True) - table.mean()
    sem = float(np.sqrt((rest**2).sum() / freedom / subjects))
    return sem, sem * float(stdtrit(freedom, 0.975))


def _bundle(path: Path) -> Shifted:
    """The shifted sets inside one `.npz`, or nothing if it holds none."""
    arrays = npz_fields(path, Wanted()) if path.suffix == ".npz" and path.is_file() else {}
    matches = [match for key in arrays if (match := SHIFT_KEY.match(key))]
    if not matches:
        return {}
    if "shift_labels" not in arrays:
        raise InputError(f"{path}: has {matches[0][0]} but no shift_labels; it has {', '.join(list(arrays)[:8])}")
    found = {}
    for match in matches:
        rows = open_predictions(path, scores=match[0], labels="shift_labels", kind="logits")
        found[match["corruption"], int(match["severity"])] = rows
    if {"test_logits", "test_labels"} <= set(arrays):
        clean = open_predictions(f"{path}#test")
        # where every k-th test row was shifted, the unshifted rows are those, since an ECE's bias depends on n
        every = slice(None, None, max(1, clean.n // rows.n))
        found["clean", 0] = clean[every] if np.array_equal(clean.labels[every], rows.labels) else clean
    return found
