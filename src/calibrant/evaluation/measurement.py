"""The result of `measure`, and the forms it is shown in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibrant.evaluation import rendering
from calibrant.evaluation.calibration_loss import CalibrationLoss
from calibrant.evaluation.consistency import NoiseFloor
from calibrant.evaluation.flat import about
from calibrant.evaluation.groups import GroupAnalysis, group_fields
from calibrant.evaluation.labels import LabelFigures
from calibrant.evaluation.results import MAIN, ClassProfile
from calibrant.evaluation.table import (
    Cell,
    Estimate,
    Figures,
    PlainData,
    Row,
    Table,
    figure_cells,
    metric_columns,
    plain,
)
from calibrant.metrics.record import facts
from calibrant.metrics.reliability import Reliability


@dataclass(frozen=True, repr=False)
class Measurement(PlainData):
    """What `measure` found; figures are fractions, not percent.

    left_out : metrics that were not computed, with the reason.
    groups : the figures of every group, where `by` asked for them.
    task : what the numbers are; see `calibrant.core.schema`.
    labels : of a multilabel task, the figures of each label by itself.
    calibration_loss : how much of the log loss a map can mend; None where it was not estimated.
    warnings : what a reader of the figures should know.
    """

    n: int
    n_classes: int
    n_bins: int
    resamples: int
    seed: int
    verdict: str
    metrics: Figures
    noise_floor: NoiseFloor
    bins: Reliability
    classes: ClassProfile
    class_names: tuple[str, ...] | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    groups: GroupAnalysis | None = None
    task: str = "multiclass"
    labels: tuple[LabelFigures, ...] = ()
    calibration_loss: CalibrationLoss | None = None
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        table, floor = self._short(), self.noise_floor
        notes = [f"noise floor of the ECE {100 * floor.mean:.2f} %, p-value {floor.p_value:.3g}", *self._notes(table)]
        said = [f"{self.n:,} rows, {self._what()}", self.verdict]
        return rendering.text(table, said=said, notes=notes + [f"note: {one}" for one in self.warnings])

    def _repr_html_(self) -> str:
        table, floor = self._short(), self.noise_floor
        notes = [f"noise floor of the ECE {100 * floor.mean:.2f} % (p = {floor.p_value:.3g})", *self._notes(table)]
        said = f"{self.n:,} rows, {self._what()}. {self.verdict}"
        drawn = [rendering.diagram(self.bins, self.about)]
        return rendering.notebook(table, said=said, notes=notes, diagrams=drawn)

    def _what(self) -> str:
        return f"{self.task}, {self.n_classes} classes, about the {self.about}"

    def _notes(self, table: Table) -> list[str]:
        return [self.mendable, rendering.raised_words(table)]

    def _short(self) -> Table:
        """The main figures by their titles."""
        names = [name for name in MAIN if name in self.metrics]
        rows = tuple(Row(facts(name).title, {"value": Cell(name, self.metrics[name])}) for name in names)
        return Table("metric", {"value": "value [95% interval]"}, rows, intervals=True)

    def plot(self, *, ax: Any = None) -> Any:
        """Draw the reliability diagram and return the axes."""
        from calibrant.report.plots.reliability import draw_reliability

        return draw_reliability(self.bins, ax, title=self.about)

    def table(self) -> Table:
        """One row per metric, with the column `value`."""
        rows = (Row(name, {"value": Cell(name, one)}) for name, one in self.metrics.items())
        return Table("metric", {"value": "value"}, tuple(rows), self.verdict)

    def label_table(self) -> Table:
        """Labels of a multilabel task × metrics."""
        more = {label.name: {"n_positive": Estimate(label.n_positive)} | label.metrics for label in self.labels}
        rows = tuple(Row(name, figure_cells(figures)) for name, figures in more.items())
        return Table("label", metric_columns(next(iter(more.values()), ())), rows)

    def to_frame(self) -> Any:
        """A pandas table: one row per metric with value, low and high."""
        return self.table().to_frame().rename(columns=lambda name: name.removeprefix("value_"))

    @property
    def about(self) -> str:
        """Which class the figures are about: the predicted or the positive one."""
        return about(self.task)

    @property
    def mendable(self) -> str:
        """One sentence about the part of the log loss that a map can mend; empty where it was not estimated."""
        loss = self.calibration_loss
        return "" if loss is None else loss.sentence(self.n, self.metrics["nll"].value)

    def worst_classes(self, count: int = 5) -> list[int]:
        """The classes of largest classwise ECE, worst first."""
        return np.argsort(-self.classes.ece, kind="stable")[:count].tolist()

    def class_name(self, index: int) -> str:
        """Its name, or its number."""
        return str(index) if self.class_names is None else self.class_names[index]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, as the published schema `measure.json` describes it."""
        floor, shown = self.noise_floor, ("ece", "over", "under", "accuracy", "count")
        worst = [
            {"class": index, "name": self.class_name(index)}
            | {name: plain(getattr(self.classes, name)[index]) for name in shown}
            for index in self.worst_classes()
        ]
        return {
            "n": self.n,
            "n_classes": self.n_classes,
            "verdict": self.verdict,
            "metrics": self.metrics.to_dict(),
            "noise_floor": floor.mean,
            "p_value": floor.p_value,
            "noise": floor.to_dict(),
            "worst_classes": worst,
            "n_bins": self.n_bins,
            "resamples": self.resamples,
            "seed": self.seed,
            "left_out": dict(self.left_out),
            **({} if self.groups is None else group_fields(self.groups)),
            "task": self.task,
            "about": self.about,
            **self._mendable_fields(),
            "warnings": list(self.warnings),
            **({"labels": [label.to_dict() for label in self.labels]} if self.task == "multilabel" else {}),
        }

    def _mendable_fields(self) -> dict[str, Any]:
        loss = self.calibration_loss
        return {} if loss is None else {"calibration_loss": {**loss.to_dict(), "text": self.mendable}}
