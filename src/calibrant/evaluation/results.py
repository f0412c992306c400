"""What a comparison found, as frozen data: computed once, then shown as a table, JSON, Markdown, LaTeX or a report."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from calibrant.core.arrays import Array
from calibrant.evaluation import tables
from calibrant.evaluation.bootstrap import percentile_interval
from calibrant.evaluation.consistency import NoiseFloor, reliability_bins
from calibrant.evaluation.evidence import Evidence, Precision, count_evidence, loss_precision
from calibrant.evaluation.tables import (
    NAN,
    Cell,
    Estimate,
    Figures,
    Json,
    PlainData,
    Row,
    Table,
    plain,
)
from calibrant.kernels.rows import RowColumns
from calibrant.metrics.record import facts, sign
from calibrant.metrics.top_label import Reliability


def about(task: str) -> str:
    """Which class the figures of a task are about."""
    return "predicted class" if task in ("multiclass", "pairs") else "positive class"


@dataclass(frozen=True)
class ClassProfile:
    """Per class (K,): classwise ECE with its over- and underconfident parts, accuracy, loss and test rows.

    `over` + `under` = `ece` (each divided by n, as `classwise_ece`); `accuracy` is recall (NaN for an absent class);
    `top_over` and `top_under` split the ECE of the rows PREDICTED as the class, divided by their number.
    """

    ece: Array
    over: Array
    under: Array
    accuracy: Array
    nll: Array
    count: Array
    predicted: Array
    top_over: Array
    top_under: Array


@dataclass(frozen=True)
class MethodRow(PlainData):
    """One line of the comparison; where `error` is set, nothing else was computed.

    p_beats_best : share of the paired resamples in which this method does better than the best by the criterion.
    ties_best : the paired 95% interval of the difference to the best holds 0.
    ties : the metrics in which the method is best or tied with the best of that column.
    """

    method: str
    calibrator: Any = None
    metrics: Figures = field(default_factory=Figures)
    fit_seconds: float = NAN
    error: str | None = None
    n_parameters: int | None = None
    changed_predictions: float = NAN
    changed_rankings: float = NAN
    p_beats_best: float = NAN
    ties_best: bool = False
    ties: tuple[str, ...] = ()
    difference: Figures = field(default_factory=Figures)
    """Every figure minus that of the best row, with 95% intervals of the paired resamples; empty for the best."""
    noise_floor: NoiseFloor | None = None
    calibration: str = ""
    """The verdict on calibration; empty for fitted methods."""
    columns: RowColumns | None = None
    """What diagrams need of every test row under this method; no entropy."""
    draws: dict[str, Array] = field(default_factory=dict)
    """Draws (R,) of every figure over resamples of the test rows, which are the same for all methods."""
    classes: ClassProfile | None = None
    warnings: tuple[str, ...] = ()
    groups: Any = None
    """`groups.GroupAnalysis` of the test rows under this method, where groups were asked for."""

    json_fields = (
        "method", "metrics", "fit_seconds", "error", "n_parameters", "changed_predictions", "changed_rankings",
        "p_beats_best", "ties_best", "ties", "difference", "noise_floor", "warnings",
    )  # fmt: skip

    def to_dict(self) -> Json:
        """The row as plain JSON data, without calibrator and columns."""
        return super().to_dict() | ({} if self.groups is None else {"groups": plain(self.groups.groups)})

    def minus(self, other: Self, metric: str) -> tuple[Estimate, Array]:
        """The difference of a figure to that of another row with its 95% interval, and its draws (R,).

        The resamples of both rows are the same, so that the difference is far less noisy than either figure.
        """
        value, slack = self.metrics[metric].value - other.metrics[metric].value, ROUNDING * self.metrics[metric].value
        draws = self.draws[metric] - other.draws[metric]
        if len(draws):
            # around the estimates: a resampled ECE is biased upwards, its spread is what we need
            draws = value + draws - draws.mean()
        low, high = percentile_interval(draws, value)
        return Estimate(value, low - abs(slack), high + abs(slack)), draws


ROUNDING = 1e-6
"""Of a figure: fits to scaled copies of the same scores differ by less, and by nothing else."""

MAIN = ("nll", "brier", "ece", "accuracy", "calibration_slope", "observed_expected", "roc_auc")
"""The figures of a short table, those of them that a result has."""

TOO_FEW_TO_COMPARE = "too few to compare methods"
LITTLE_CHANGE = "changes little until there is evidence"

MODEL_CARD = """## Calibration

{start}, {comparison.fitted} ({comparison.n_classes} classes; 95% intervals from \
{comparison.resamples:,} resamples). {comparison.verdict}

{table}"""
CARD_USAGE = """
```python
import calibrant as cal

probabilities = cal.load("calibrator.safetensors").predict_proba(logits)
```
"""

EXTRAS = ("changed_predictions", "changed_rankings", "p_beats_best", "n_parameters", "fit_seconds")
"""What a table of methods says besides the metrics."""


@dataclass(frozen=True, repr=False)
class Comparison(PlainData):
    """Every method fitted on one set of rows and measured on another.

    `to_dict` and `to_json` give plain JSON data, as the published schema `compare.json` describes it.

    Attributes
    ----------
    rows : one `MethodRow` per method, in the order asked for.
    criterion : the metric that decides `best` and `second`.
    best, second : short names, or None when every method failed. With too few rows no method is second, and the best
        is `auto` if it was compared, else None.
    recommended, advice : what to ship; the same in sentences, with what it changes.
    n_val, n_test, n_classes : sizes.
    class_names : K names, or None where the files gave none.
    labels, weights : test labels (n,) and weights (n,) or None.
    noise_floor : the consistency test of the uncalibrated scores (of the first row that worked where "none" is absent).
    n_bins, resamples, seed : how the figures were made.
    verdict : one sentence.
    task : what the numbers are; see `calibrant.core.schema`.
    warnings : what a reader of the figures should know, such as rows that are in both sets.
    clusters : the cluster of each test row (n,), or None.
    weighed : words on the weights of the test rows; empty where there are none.
    division : how one set of rows was divided into those to fit on and to measure on; empty where two were given.
    shares_rows : were rows fitted on also measured on, which one of the warnings says?
    too_few_rows : reason why the test rows are too few to compare methods; empty if they are enough.
    grouping : `groups.Grouping` of the test rows, where groups were asked for.
    group_changes : what shipping the recommended method changes in the loss of every group, with intervals.
    n_clusters : number of clusters of test rows; None if rows are independent.
    """

    rows: tuple[MethodRow, ...]
    criterion: str
    n_val: int
    n_test: int
    n_classes: int
    class_names: tuple[str, ...] | None
    labels: Array
    weights: Array | None
    noise_floor: NoiseFloor | None
    n_bins: int
    resamples: int
    seed: int
    best: str | None = None
    second: str | None = None
    verdict: str = ""
    task: str = "multiclass"
    warnings: tuple[str, ...] = ()
    clusters: Array | None = None
    weighed: str = ""
    division: str = ""
    shares_rows: bool = False
    too_few_rows: str = ""
    grouping: Any = None
    group_changes: Figures = field(default_factory=Figures)
    n_clusters: int | None = None

    @property
    def calibration(self) -> str:
        """The verdict on the uncalibrated scores, as `measure` gives it; empty if "none" was not compared."""
        return next((row.calibration for row in self.rows if row.calibration), "")

    @property
    def loss(self) -> str:
        """The criterion where it is a mean loss, by which groups are compared; else the log loss."""
        return "brier" if self.criterion == "brier" else "nll"

    @property
    def fitted(self) -> str:
        """How many rows were fitted on and measured on, and how they were divided."""
        how = f" ({self.division})" if self.division else ""
        return f"fitted on {self.n_val:,} rows, measured on {self.n_test:,}{self.weighed}{how}"

    @property
    def by_method(self) -> dict[str, MethodRow]:
        """The rows by short name."""
        return {row.method: row for row in self.rows}

    def row(self, method: str) -> MethodRow:
        """The row of a method by short name."""
        if method not in self.by_method:
            raise KeyError(f"no row {method!r}; there are: {', '.join(self.by_method)}")
        return self.by_method[method]

    @property
    def metric_names(self) -> list[str]:
        """Names of the metrics, in the order tables show them."""
        return next((list(row.metrics) for row in self.rows if row.metrics), [])

    @property
    def recommended(self) -> str | None:
        """What to ship: `none` unless a method beats it beyond noise; then `auto` where it ties with the best, or that.

        Among methods that these rows cannot tell apart, the default is the choice that other data have confirmed.
        """
        rows = self.by_method
        if self.too_few_rows:
            return self.best
        return next((one for one in ("none", "auto") if one in rows and rows[one].ties_best), self.best)

    @property
    def advice(self) -> list[str]:
        """What to ship, why, and what that changes: decisions, and groups that get worse."""
        if self.too_few_rows and self.fitted_methods:
            return [f"auto {LITTLE_CHANGE}"]
        if self.best is None or self.recommended is None:
            return []
        rows, name = self.by_method, self.criterion
        shipped, base, label = rows[self.recommended], rows.get("none"), facts(name).label
        if shipped is base:
            return [f"ship the scores as they are: no method has a better {label} beyond noise on these rows"]
        why = f"best by {label}"
        if shipped.method != self.best:
            why = f"the default, within noise of the best ({self.best})"
        lines = [f"ship {shipped.method}: {why}"]
        if self.task != "pairs":  # an answer stays what it is
            share = tables.figure("changed_predictions", shipped.changed_predictions)
            kept = [one for one in self.ranking(name) if rows[one].ties_best and not rows[one].changed_predictions]
            other = f" ({kept[0]} changes none, within noise)" if kept and shipped.changed_predictions else ""
            lines.append(f"it changes {share} of the decisions{other}")
        if base is not None and self.group_changes:
            told, worse = 0, []
            for both in zip(base.groups.groups, shipped.groups.groups, strict=True):
                told += not both[1].too_few
                if not both[1].too_few and self.group_changes[both[1].name].low > 0:
                    figures = (tables.figure(self.loss, one.metrics[self.loss].value) for one in both)
                    worse.append(f"{both[1].name} ({' → '.join(figures)})")
            names = ", ".join(worse[:3]) + f" and {len(worse) - 3} more" * (len(worse) > 3)
            by = f" by {facts(self.loss).label}" * (self.loss != name)
            lines.append(f"{len(worse)} of {told} groups get worse{by} beyond noise{': ' * bool(worse)}{names}")
        return lines

    @property
    def fitted_methods(self) -> list[str]:
        """Methods that did not fail, in the order asked for."""
        return [row.method for row in self.rows if row.error is None]

    @property
    def precision(self) -> Precision | None:
        """Precision of the log loss of the recommended method, or of the first one; None if it is not known."""
        row = self.by_method.get(self.recommended or next(iter(self.fitted_methods), ""))
        if row is None or row.columns is None:
            return None
        return loss_precision(row.columns.nll, self.count_evidence(row.columns), self.weights, self.clusters)

    def count_evidence(self, columns: RowColumns, *, stated: Array | None = None) -> Evidence:
        """Evidence in the test rows under one method; with the stated probabilities for a verdict on calibration."""
        size: Json = {"task": self.task, "n_classes": self.n_classes, "n_rows": self.n_test}
        return count_evidence(columns.correct, self.weights, self.clusters, stated=stated, **size)

    @property
    def conclusions(self) -> list[str]:
        """The advice and the precision of the estimate, one sentence each."""
        precision = self.precision
        return self.advice if precision is None else [*self.advice, precision.text]

    @property
    def shown_extras(self) -> tuple[str, ...]:
        """Columns of a table of methods besides the metrics; no chance of being better with too few rows."""
        return tuple(name for name in EXTRAS if name != "p_beats_best" or not self.too_few_rows)

    @property
    def fit_warnings(self) -> list[tuple[str, str]]:
        """What the fits warned of, each thing once, after the methods it is about: three by name, more by number."""
        found: dict[str, list[str]] = {}
        for row in self.rows:
            for text in row.warnings:
                found.setdefault(text, []).append(row.method)
        return [(f"{len(own)} methods" if len(own) > 3 else ", ".join(own), text) for text, own in found.items()]

    def ranking(self, metric: str) -> list[str]:
        """Methods from best to worst by one metric; rows that failed are left out."""
        metric = facts(metric).name
        done = [row for row in self.rows if metric in row.metrics and np.isfinite(row.metrics[metric].value)]
        return [row.method for row in sorted(done, key=lambda row: sign(metric) * row.metrics[metric].value)]

    json_fields = (
        "rows", "best", "second", "recommended", "criterion", "verdict", "too_few_rows", "precision", "n_val", "n_test",
        "n_classes", "class_names", "n_bins", "resamples", "seed", "noise_floor", "task", "about", "test_fingerprint",
        "warnings", "weighed", "division", "n_clusters", "calibration",
    )  # fmt: skip

    @property
    def about(self) -> str:
        """Which class the figures are about: the predicted or the positive one."""
        return about(self.task)

    @property
    def test_fingerprint(self) -> str:
        """A hash of the test labels, by which results on the same rows are known."""
        return hashlib.sha256(np.ascontiguousarray(self.labels).tobytes()).hexdigest()[:16]

    def table(self) -> Table:
        """Methods × metrics, the best of a column, the second and ties with the best marked; then what else is known.

        A second that is within noise of the best is a tie, not a second place; where a low value by itself is not
        good, and with too few rows, nothing is marked.
        """
        ranked = {name for name in self.metric_names if facts(name).better and not self.too_few_rows}
        orders = {name: self.ranking(name) if name in ranked else [] for name in self.metric_names}
        rows = []
        for row in self.rows:
            cells = {name: Cell(name, Estimate(float(getattr(row, name)))) for name in EXTRAS if not row.error}
            if best := row.method == self.best and not self.too_few_rows:
                cells["p_beats_best"] = Cell("p_beats_best", Estimate(NAN))
            if row.difference:
                cells["difference"] = Cell(self.criterion, row.difference[self.criterion])
            for name, estimate in row.metrics.items():
                first, second = (orders[name][place : place + 1] == [row.method] for place in (0, 1))
                tie = bool(orders[name]) and name in row.ties
                cells[name] = Cell(name, estimate, first, second and not tie, tie and not first)
            rows.append(Row(row.method, cells, best, row.error))
        columns = {name: facts(name).title for name in (*self.metric_names, "difference", *EXTRAS)}
        return Table("method", columns, rows, self.verdict)

    def __repr__(self) -> str:
        notes = ["* best. " * (not self.too_few_rows) + self.verdict, *self.conclusions]
        notes += [f"note: {one}" for one in self.warnings]
        return tables.text(self._short(), said=[self._sizes()], notes=notes, width=120)

    def _repr_html_(self) -> str:
        table = replace(self._short(), intervals=True)
        said, notes = f"{self._sizes()}. {self.verdict}", [*self.conclusions, tables.raised_words(table)]
        notes += [f"note: {one}" for one in self.warnings]
        drawn = [tables.diagram(self.bins(method), method) for method in self._drawn()]
        return tables.notebook(table, said=said, notes=notes, diagrams=drawn)

    def _drawn(self) -> list[str]:
        """The methods whose diagrams are shown: the uncalibrated scores and the winner."""
        return [row.method for row in self.rows if row.method in ("none", self.best) and row.columns is not None]

    def _sizes(self) -> str:
        return f"{len(self.rows)} methods {self.fitted}; {self.task}, {self.n_classes} classes"

    def _short(self) -> Table:
        """The main figures; of more methods than one screen holds, the best by the criterion and the uncalibrated."""
        kept = {*self.ranking(self.criterion)[: tables.MOST_ROWS - 1], "none"}
        few = len(self.rows) <= tables.MOST_ROWS
        table = self.table().pick([*(name for name in MAIN if name in self.metric_names), "fit_seconds"])
        return replace(table, rows=[row for row in table.rows if few or row.name in kept])

    def plot(self, method: str | None = None, *, ax: Any = None, legend: bool = True) -> Any:
        """Draw the reliability diagram of a method, the best one by default, and return the axes."""
        from calibrant.report.plots import draw_reliability

        method = method or self.best or self.rows[0].method
        return draw_reliability(self.bins(method), ax, title=method, legend=legend)

    def bins(self, method: str) -> Reliability:
        """The bins of a method's reliability diagram."""
        row = self.row(method)
        if row.columns is None:
            raise KeyError(f"{method} has no test rows to draw: {row.error or 'they were not kept'}")
        return reliability_bins(row.columns.confidence, row.columns.correct, n_bins=self.n_bins, weights=self.weights)

    def metrics(self, *, intervals: bool = False) -> dict[str, float]:
        """Every figure by `METHOD/METRIC`, and of the winner by `best/METRIC`: a plain dictionary for trackers.

        With `intervals` the ends of the 95% intervals follow as `…_low` and `…_high`; what is not finite is left out.
        """
        named = self.by_method | ({"best": self.row(self.best)} if self.best else {})
        return {
            f"{name}/{metric}{suffix}": float(value)
            for name, row in named.items()
            for metric, one in row.metrics.items()
            for suffix, value in (("", one.value), ("_low", one.low), ("_high", one.high))
            if np.isfinite(value) and (intervals or not suffix)
        }

    def figures(self) -> Json:
        """Reliability diagrams of the uncalibrated scores and of the winner as matplotlib figures, by name."""
        return {f"reliability/{method}": self.plot(method).figure for method in self._drawn()}

    def to_frame(self) -> Any:
        """A pandas table: one row per method; each metric as `name`, `name_low`, `name_high`."""
        frame = self.table().to_frame()
        return frame.assign(ties_best=[row.ties_best for row in self.rows], error=[row.error for row in self.rows])

    def to_model_card(self) -> str:
        """A section for a model card in Markdown: what was done, how well it is calibrated, how to use it."""
        best = self.best or self.rows[0].method
        columns = {"none": "uncalibrated", best: "calibrated"}
        start, usage = f"Calibrated with `{best}`", CARD_USAGE
        if self.too_few_rows and self.best is None:
            columns = {"none": "uncalibrated"} if "none" in self.by_method else {best: best}
            start, usage = "No method was chosen", ""
        found = {method: row.metrics for method, row in self.by_method.items() if method in columns and row.metrics}
        rows = [
            Row(facts(name).title, {method: Cell(name, figures[name]) for method, figures in found.items()})
            for name in ("ece", "nll", "brier", "accuracy")
            if name in self.metric_names
        ]
        table = tables.markdown(Table("metric", columns, rows, intervals=True))
        return MODEL_CARD.format(start=start, table=table, comparison=self) + usage

    def to_markdown(self, *, columns: Iterable[str] | None = None, intervals: bool = False) -> str:
        """A Markdown table: best of a column bold, second underlined, ties with the best marked ≈.

        columns : metrics to show, in this order; all of them by default.
        """
        marks = "**Best**, <u>second</u>, ≈ within noise of the best of the column."
        return tables.markdown(self._printed(columns, intervals, marks))

    def to_latex(self, *, columns: Iterable[str] | None = None, intervals: bool = False) -> str:
        """A booktabs table with the figures and marks of `to_markdown`."""
        marks = "Bold: best; underlined: second; approx: within noise of the best."
        return tables.latex(self._printed(columns, intervals, marks))

    def _printed(self, columns: Iterable[str] | None, intervals: bool, marks: str) -> Table:
        extras = [name for name in self.shown_extras if name != "n_parameters"]
        marks = "" if self.too_few_rows else marks
        table = self.table().pick([*self.metric_names, *extras] if columns is None else columns)
        use = "95% intervals from" if intervals else "Differences judged by"
        verdict = self.verdict if self.too_few_rows else f"{use} {self.resamples:,} paired bootstrap resamples"
        caption = f"{self.fitted.capitalize()}; {self.n_classes} classes. {verdict}. "
        if intervals and (words := tables.raised_words(table)):
            caption += f"{words}. "
        return replace(table, caption=(caption + marks).rstrip(), intervals=intervals)
