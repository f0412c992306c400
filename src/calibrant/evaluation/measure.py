"""Measure predictions: every metric with its interval, the consistency test, the worst classes, a verdict.

`Measurement` is the result, with the forms it is shown in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibrant.core import progress
from calibrant.core.arrays import Array, check_counts
from calibrant.core.bins import check_n_bins
from calibrant.core.errors import said
from calibrant.core.few_clusters import count_clusters, few_clusters_notes
from calibrant.core.schema import Reading
from calibrant.data import Predictions, open_predictions
from calibrant.data.chunks import flattened
from calibrant.engines.engine import Engine
from calibrant.evaluation import tables
from calibrant.evaluation.bootstrap import draw, sampled
from calibrant.evaluation.calibration_loss import CalibrationLoss, mendable
from calibrant.evaluation.consistency import NoiseFloor, reliability_bins, row_mass
from calibrant.evaluation.evidence import count_evidence
from calibrant.evaluation.groups import (
    GroupAnalysis,
    columns_by,
    make_grouping,
    row_groups,
)
from calibrant.evaluation.results import MAIN, ClassProfile, about
from calibrant.evaluation.scoring import (
    Chosen,
    chosen_metrics,
    class_profile,
    estimated,
    scan_predictions,
    zero_notes,
)
from calibrant.evaluation.tables import (
    Cell,
    Estimate,
    Figures,
    Json,
    PlainData,
    Row,
    Table,
    figure_cells,
    metric_columns,
    plain,
)
from calibrant.evaluation.verdict import CALIBRATED, judge_calibration, run_ece_test
from calibrant.metrics.record import facts
from calibrant.metrics.top_label import Reliability

LABEL_RESAMPLES = 200
"""Resamples behind the intervals of single labels, of which there may be a thousand."""


@dataclass(frozen=True)
class LabelFigures(PlainData):
    """One label by itself: its name, how many rows have it, and figures about its positive class."""

    name: str
    n_positive: int
    metrics: Figures


@dataclass(frozen=True, repr=False)
class Measurement(PlainData):
    """What `measure` found; figures are fractions, not percent.

    left_out : metrics that were not computed, with the reason.
    groups : the figures of every group, where `by` asked for them.
    task : what the numbers are; see `calibrant.core.schema`.
    labels : of a multilabel task, the figures of each label by itself.
    calibration_loss : how much of the log loss a map can fix; None where it was not estimated.
    warnings : what a reader of the figures should know.
    weighed : words on the weights behind the number of rows; empty where there are none.
    n_clusters : number of clusters; None if rows are independent.
    too_few_rows : reason why there is no verdict; empty if there is one.
    reading : how the columns of a file or table were read.
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
    weighed: str = ""
    n_clusters: int | None = None
    too_few_rows: str = ""
    reading: Reading | None = None

    json_fields = (
        "n", "n_classes", "class_names", "verdict", "metrics", "n_bins", "resamples", "seed", "left_out", "task",
        "about", "warnings", "weighed", "n_clusters", "too_few_rows",
    )  # fmt: skip

    def __repr__(self) -> str:
        table, what, notes = self._shown(", p-value {:.3g}")
        what += "" if self.reading is None else f"\nread: {self.reading.sentence}"
        return tables.text(table, said=[what, self.verdict], notes=notes + [f"note: {one}" for one in self.warnings])

    def _repr_html_(self) -> str:
        table, what, notes = self._shown(" (p = {:.3g})")
        drawn = [tables.diagram(self.bins, self.about)]
        notes += [f"note: {one}" for one in self.warnings]
        return tables.notebook(table, said=f"{what}. {self.verdict}", notes=notes, diagrams=drawn)

    def _shown(self, p_value: str) -> tuple[Table, str, list[str]]:
        """The main figures by their titles, what was measured, and notes, with the p-value in this form."""
        names = [name for name in MAIN if name in self.metrics]
        rows = [Row(facts(name).title, {"value": Cell(name, self.metrics[name])}) for name in names]
        table, floor = Table("metric", {"value": "value [95% interval]"}, rows, intervals=True), self.noise_floor
        floor_words = f"noise floor of the ECE {100 * floor.mean:.2f} %{p_value.format(floor.p_value)}"
        what = f"{self.n:,} rows{self.weighed}, {self.task}, {self.n_classes} classes, about the {self.about}"
        return table, what, [floor_words, self.mendable, tables.raised_words(table)]

    def plot(self, *, ax: Any = None) -> Any:
        """Draw the reliability diagram and return the axes."""
        from calibrant.report.plots import draw_reliability

        return draw_reliability(self.bins, ax, title=self.about)

    def table(self) -> Table:
        """One row per metric, with the column `value`."""
        rows = [Row(name, {"value": Cell(name, one)}) for name, one in self.metrics.items()]
        return Table("metric", {"value": "value"}, rows, self.verdict)

    def label_table(self) -> Table:
        """Labels of a multilabel task × metrics."""
        more = {label.name: {"n_positive": Estimate(label.n_positive)} | label.metrics for label in self.labels}
        rows = [Row(name, figure_cells(figures)) for name, figures in more.items()]
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
        """One sentence about the part of the log loss that a map can fix; empty where it was not estimated."""
        loss = self.calibration_loss
        return (
            ""
            if loss is None
            else loss.sentence(self.n, self.metrics["nll"].value, calibrated=self.verdict == CALIBRATED)
        )

    def worst_classes(self, count: int = 5) -> list[int]:
        """The classes of largest classwise ECE, worst first."""
        return np.argsort(-self.classes.ece, kind="stable")[:count].tolist()

    def class_name(self, index: int) -> str:
        """Its name, or its number."""
        return str(index) if self.class_names is None else self.class_names[index]

    def to_dict(self) -> Json:
        """Plain JSON data, as the published schema `measure.json` describes it."""
        floor, loss, shown = self.noise_floor, self.calibration_loss, ("ece", "over", "under", "accuracy", "count")
        found = super().to_dict() | {"noise_floor": floor.mean, "p_value": floor.p_value, "noise": floor.to_dict()}
        found["worst_classes"] = [
            {"class": index, "name": self.class_name(index)}
            | {name: plain(getattr(self.classes, name)[index]) for name in shown}
            for index in self.worst_classes()
        ]
        if (one := self.groups) is not None:
            found |= {"groups": plain(one.groups), "groups_verdict": one.verdict, "groups_differ": one.differ.to_dict()}
            found["worst_group"] = None if one.worst is None else one.groups[one.worst].by
        if loss is not None:
            found["calibration_loss"] = loss.to_dict() | {"text": self.mendable}
        if self.labels:
            found["labels"] = plain(self.labels)
        return found | ({} if self.reading is None else {"read_as": self.reading.to_dict()})


def measure(
    predictions: Any,
    *,
    by: Any = None,
    cluster: Any = None,
    kind: str | None = None,
    task: str | None = None,
    scores: Any = None,
    labels: Any = None,
    weights: Any = None,
    class_names: Any = None,
    ignore_index: int | None = None,
    n_bins: int = 15,
    resamples: int = 1000,
    seed: int = 0,
    decompose: bool | None = None,
    engine: str | Engine = "local",
    metrics: Chosen = None,
    weights_are: str = "rows",
) -> Measurement:
    """Every metric of the library with 95% intervals, and whether the error is more than chance.

    Parameters
    ----------
    predictions : Predictions, path, frame, dictionary of arrays, or (scores, labels)
        Anything that `open_predictions` takes.
    by : str, array or mapping, optional
        One or two columns of groups (names, an array of a value per row, or a mapping of names to arrays), each of
        which is then measured by itself; "age:5" cuts a column of numbers into five quantile groups.
    cluster : str or array, optional
        What is independent (a patient, an image): a column, of which whole clusters are drawn.
    kind, scores, labels, weights, class_names, ignore_index : optional
        What a file or table holds, and where; see `open_predictions`.
    task : {"multiclass", "binary", "multilabel", "pairs"}, optional
        Where names and shapes do not tell. Figures of a binary or multilabel task are about the positive class.
    n_bins, resamples, seed : int
        Bins of the calibration errors; bootstrap resamples behind the intervals, and their seed.
    decompose : bool, optional
        Estimate how much of the log loss a map can fix (`calibration_loss`, with a quick map). By default this is
        done for files of up to 64 MB and arrays; of many rows a random part is used.
    engine : "local", "dask", the address of a Dask scheduler, or an engine
        Where the pass over the rows runs.
    metrics : names, or mapping of names to functions, optional
        Registered figures to compute instead of all; or functions of (probabilities, labels, sample_weight=None) that
        return a number, on top of all.
    weights_are : {"rows", "counts"}
        What intervals and tests draw: the rows, whatever they weigh; or every copy, a weight of 2 being the row twice.

    Examples
    --------
    >>> generator = np.random.default_rng(0)
    >>> labels = generator.integers(0, 3, 1000)
    >>> logits = 4 * np.eye(3)[labels] + 4 * generator.normal(size=(1000, 3))
    >>> measure(Predictions.from_arrays(logits=logits, labels=labels)).verdict
    'overconfident by 24.8 points'
    """
    check_n_bins(n_bins)
    predictions = open_predictions(
        predictions,
        kind=kind,
        task=task,
        scores=scores,
        labels=labels,
        weights=weights,
        class_names=class_names,
        ignore_index=ignore_index,
    )
    predictions.refuse_probabilities()
    check_counts(predictions.weights, "weights")
    by = None if by is None else columns_by(predictions, by)
    predictions, by, clusters, weighed = sampled(predictions, by, cluster, weights_are)
    given, predictions = predictions, predictions.expanded()
    seen = flattened(predictions)
    weights = seen.weights
    drawn = draw(seen.n, resamples, seed, clusters)
    chosen = chosen_metrics(metrics, seen.task, n_classes=seen.n_classes)
    rows = scan_predictions(predictions, drawn, n_bins=n_bins, engine=engine)
    columns = rows.columns()
    progress.step("intervals", 0, 3)
    with said() as told:
        estimates, _, left_out = estimated(chosen, rows, drawn, n_bins)
    progress.step("intervals", 2, 3)
    confidence, correct = columns.confidence, columns.correct
    shared: Json = {"n_bins": n_bins, "weights": weights, "seed": seed}
    floor, estimates = run_ece_test(rows, estimates, clusters, n_bins=n_bins, seed=seed)
    grouping = None if by is None else make_grouping(by, seen.n)
    groups = grouping and row_groups(rows, grouping, clusters=clusters, resamples=resamples, **shared)
    bins = reliability_bins(confidence, correct, **shared)
    progress.step("intervals", 3, 3)
    size: Json = {"task": predictions.task, "n_classes": predictions.n_classes}
    evidence = count_evidence(correct, weights, clusters, n_rows=given.n, stated=confidence, **size)
    n_clusters = count_clusters(clusters, row_mass(weights, seen.n))
    two = predictions.task == "multiclass" and predictions.n_classes == 2
    hint = ["two columns are measured about the predicted class; --task binary asks about the positive class"] * two
    own = None if clusters is None else clusters[:: seen.n // predictions.n]  # of a row, not of its labels
    loss = None if evidence.shortage else mendable(predictions, own, seed, decompose)
    words, estimates = judge_calibration(rows, floor, evidence, estimates, n_bins=n_bins, seed=seed, loss=loss)
    return Measurement(
        n=given.n,
        **size,
        n_bins=n_bins,
        resamples=resamples,
        seed=seed,
        verdict=words,
        metrics=estimates,
        noise_floor=floor,
        bins=bins,
        classes=class_profile(rows, n_bins),
        class_names=predictions.class_names,
        left_out=left_out,
        groups=groups,
        weighed=weighed,
        reading=given.reading,
        labels=label_figures(predictions, min(resamples, LABEL_RESAMPLES), seed, n_bins, own),
        calibration_loss=loss,
        n_clusters=None if n_clusters == given.n else n_clusters,
        too_few_rows=evidence.shortage,
        warnings=(*given.notes, *few_clusters_notes(n_clusters, given.n), *hint, *zero_notes(columns.nll), *told),
    )


def label_figures(
    predictions: Predictions, resamples: int, seed: int, n_bins: int, clusters: Array | None
) -> tuple[LabelFigures, ...]:
    """Metrics of each label of a multilabel task; clusters of the rows (n,) are drawn as a whole."""
    if predictions.task != "multilabel":
        return ()
    drawn, metrics = draw(predictions.n, resamples, seed, clusters), chosen_metrics(None, "binary", compared=True)
    found = []
    names = predictions.class_names or range(predictions.n_classes)
    for name, scores, labels in zip(names, predictions.values.T, predictions.labels.T, strict=True):
        own = Predictions(scores, labels, kind=predictions.kind, task="binary", weights=predictions.weights)
        figures, *_ = estimated(metrics, scan_predictions(own, drawn, n_bins=n_bins), drawn, n_bins)
        figures.pop("sce", None)  # the same as the ECE where there is one probability
        found.append(LabelFigures(str(name), int(labels.sum()), figures))
    return tuple(found)
