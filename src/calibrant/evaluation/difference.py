"""Two results side by side: which figures changed from the old one to the new one by more than noise."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtr

from calibrant.core.errors import InputError
from calibrant.core.few_clusters import needs_t_interval, t_quantile
from calibrant.core.schema import Schema
from calibrant.data import Predictions
from calibrant.data.opening import READERS, suffix_of
from calibrant.evaluation import tables
from calibrant.evaluation.consistency import SIGNIFICANCE
from calibrant.evaluation.models import ModelComparison, compare_models
from calibrant.evaluation.results import TOO_FEW_TO_COMPARE
from calibrant.evaluation.tables import NAN, Cell, Estimate, Json, PlainData, Row, Table
from calibrant.metrics.record import facts, number, sign

MEASURED = "measured"
"""The name of the one row of a measurement."""
EMBEDDED = re.compile(rb'<script type="application/json" id="result">(.*?)</script>', re.S)
"""Where a report carries its result."""


@dataclass(frozen=True)
class Change(PlainData):
    """One figure of one method in both results.

    change : new minus old. noise : half-width of the 95% interval of the change: of paired resamples if predictions
    were compared, else from the two intervals taken as independent, an upper bound on the same test rows. p_value :
    two-sided, before any adjustment.
    verdict : "better", "worse", "within noise", "changed" where no direction is good by itself, or "no interval".
    """

    model: str
    method: str
    metric: str
    verdict: str
    old: Estimate
    new: Estimate
    change: float
    noise: float
    p_value: float


@dataclass(frozen=True, repr=False)
class Difference(PlainData):
    """What changed between two results.

    `to_dict` and `to_json` give plain JSON data, as the published schema `diff.json` describes it.

    Attributes
    ----------
    changes : one `Change` per model, method and metric that both have.
    headlines : the deciding metric of each result's best method, per model: what a user of it would notice.
    added, removed : methods (with their model where there are several) that only one result has.
    notes : what a reader of the figures should know.
    """

    changes: tuple[Change, ...]
    headlines: tuple[Change, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    notes: tuple[str, ...]
    criterion: str

    def count(self, verdict: str) -> int:
        """How many figures have this verdict."""
        return sum(one.verdict == verdict for one in self.changes)

    @property
    def worse(self) -> bool:
        """Is the deciding metric of the best method worse beyond noise, on any model?"""
        return any(one.verdict == "worse" for one in self.headlines)

    json_fields = (
        "criterion", "worse", "headlines", "changes", "added", "removed", "notes",
    )  # fmt: skip

    def shown(self, *, everything: bool = False) -> list[Change]:
        """The changes beyond noise and every deciding figure, or all of them."""
        quiet = ("within noise", "no interval")
        return [one for one in self.changes if everything or one.verdict not in quiet or one.metric == self.criterion]

    def table(self, *, everything: bool = False) -> Table:
        """One row per change: the old value, the new one and the change with its 95% noise; verdicts as words."""
        rows, verdicts = [], {}
        for one in self.shown(everything=everything):
            change = Estimate(one.change, one.change - one.noise, one.change + one.noise)
            name = f"{_at(one.model, one.method)}, {facts(one.metric).title}"
            cells = {"old": one.old, "new": one.new, "change": change}
            rows.append(Row(name, {column: Cell(one.metric, each) for column, each in cells.items()}))
            verdicts[name] = one.verdict
        columns = {name: name for name in ("old", "new", "change")}
        return Table("figure", columns, rows, texts={"verdict": verdicts}, intervals=("change",))

    def to_frame(self) -> Any:
        """A pandas table of all changes."""
        return self.table(everything=True).to_frame()

    def to_markdown(self, *, everything: bool = False) -> str:
        """A Markdown table of what changed."""
        return "\n".join([*self.summary(), "", tables.markdown(self.table(everything=everything))])

    def summary(self) -> list[str]:
        """Headline, counts and notes, one sentence each."""
        counts = [f"{self.count(word)} {word}" for word in ("better", "worse", "changed", "within noise")]
        missing = self.count("no interval")
        counts += [f"{missing} without an interval"] * bool(missing)
        lines = [
            *map(_headline, self.headlines),
            f"{len(self.changes)} figures: {', '.join(counts)} "
            "(95%, adjusted for the number of figures by Benjamini and Hochberg)",
        ]
        for word, names in (("new", self.added), ("old", self.removed)):
            lines += [f"only in the {word} result: {', '.join(names)}"] * bool(names)
        return lines + [f"note: {one}" for one in self.notes]

    def _repr_html_(self) -> str:
        return tables.notebook(self.table(), said=" · ".join(self.summary()))

    def __repr__(self) -> str:
        return tables.text(self.table(), said=self.summary(), width=120)


def diff(old: Any, new: Any, *, pair: str | None = None, **options: Any) -> Difference:
    """Say which figures of a result changed by more than noise.

    The change of a figure is judged by z = (new − old) / √(s_old² + s_new²), where s is the width of the 95% interval
    over 2·1.96; with fewer than 20 clusters by Student's t instead. Two files of predictions of the same rows are
    compared row by row: s is then that of the interval of the change, which finds smaller changes. The table of all
    figures is adjusted for their number (Benjamini & Hochberg 1995); the deciding metric of the best method is one
    planned comparison and is not.

    Parameters
    ----------
    old, new : Comparison, ModelComparison, Measurement, their dictionaries, or files
        Files are what `compare --json`, `measure --json` and the reports write; or two files of predictions.
    pair : as in `compare_models`, for predictions: the column that names the rows, or "order".
    **options : further options of `compare_models`, for predictions.

    Examples
    --------
    >>> old = {"task": "binary", "metrics": {"nll": {"value": 0.50, "low": 0.48, "high": 0.52}}}
    >>> new = {"task": "binary", "metrics": {"nll": {"value": 0.40, "low": 0.38, "high": 0.42}}}
    >>> diff(old, new).changes[0].verdict
    'better'
    """
    if is_predictions(old) and is_predictions(new):
        return _paired_difference(compare_models({"old": old, "new": new}, ["none"], pair=pair, **options))
    names, documents = zip(*(_document(result, word) for result, word in ((old, "old"), (new, "new"))), strict=True)
    # comparisons by model; a single one has no name
    first, second = (document.get("models", {"": document}) for document in documents)
    criterion = facts(next(iter(second.values())).get("criterion") or "nll").name
    changes, headlines, added, removed, notes = [], [], [], [], []
    for model in [model for model in second if model in first]:
        both = first[model], second[model]
        notes += [_at(model, note) for note in _notes(names, *both)]
        before, after = map(_rows, both)
        freedom = _degrees_of_freedom(document.get("n_clusters") for document in both)
        added += [_at(model, method) for method in after if method not in before]
        removed += [_at(model, method) for method in before if method not in after]
        for method, metrics in after.items():
            for metric, estimate in metrics.items():
                if metric in before.get(method, {}):
                    changes.append(_change(model, method, metric, before[method][metric], estimate, freedom))
        reasons = {word: one.get("too_few_rows") for word, one in zip(("old", "new"), both, strict=True)}
        few = [f"{word} result: {reason}: {TOO_FEW_TO_COMPARE}" for word, reason in reasons.items() if reason]
        notes += [_at(model, note) for note in few]
        if few:
            continue
        # what a user who takes each result's best method would notice
        best = [str(document.get("best") or MEASURED) for document in both]
        found = [rows[name][criterion] for rows, name in zip((before, after), best, strict=True)
                 if criterion in rows.get(name, {})]  # fmt: skip
        if len(found) == 2:
            headlines.append(_change(model, " → ".join(dict.fromkeys(best)), criterion, found[0], found[1], freedom))
    if not changes:
        said = ["; ".join(_at(model, ", ".join(_rows(one))) for model, one in part.items()) for part in (first, second)]
        raise InputError(f"{names[0]} has figures of {said[0]}, but {names[1]} of {said[1]}: no method is in both")
    added += [f"model {name}" for name in second if name not in first]
    removed += [f"model {name}" for name in first if name not in second]
    return Difference(_adjusted(changes), tuple(headlines), tuple(added), tuple(removed), tuple(notes), criterion)


def is_predictions(given: Any) -> bool:
    """Return whether a side of a diff is predictions, or names a file of them."""
    if not isinstance(given, str | os.PathLike):
        return isinstance(given, Predictions)
    suffix = suffix_of(Path(os.fspath(given).partition("#")[0]))
    return suffix in READERS and suffix != ".json"


def _paired_difference(models: ModelComparison) -> Difference:
    """The changes between two models on the same rows, with intervals of the paired resamples."""
    old, new = (one.row("none") for one in models.comparisons.values())
    if error := old.error or new.error:
        raise InputError(error)
    freedom = _degrees_of_freedom(one.n_clusters for one in models.comparisons.values())
    changes = [
        _change(
            "", MEASURED, metric, old.metrics[metric], new.metrics[metric], freedom, paired=new.minus(old, metric)[0]
        )
        for metric in new.metrics
        if metric in old.metrics
    ]
    if not models.pairing:
        raise InputError('a diff of predictions pairs their rows: give pair="order" or the column of their identifiers')
    few, notes = models.too_few_rows, [models.pairing]
    if few:
        notes.append(f"{few}: {TOO_FEW_TO_COMPARE}")
    headlines = () if few else tuple(one for one in changes if one.metric == models.criterion)
    return Difference(_adjusted(changes), headlines, (), (), tuple(notes), models.criterion)


def _adjusted(changes: Sequence[Change]) -> tuple[Change, ...]:
    """Set verdicts at a false discovery rate of 5% (Benjamini & Hochberg 1995)."""
    p_values = np.sort([one.p_value for one in changes if np.isfinite(one.p_value)])
    ranks = np.arange(1, len(p_values) + 1)
    limit = p_values[p_values * len(p_values) <= SIGNIFICANCE * ranks].max(initial=-1.0)
    return tuple(_judged(one, limit) for one in changes)


def _document(result: Any, word: str) -> tuple[str, Json]:
    """A name for errors, and the result as plain data."""
    if isinstance(result, PlainData):
        result = result.to_dict()
    if isinstance(result, Mapping):
        return f"the {word} result", dict(result)
    if not isinstance(result, str | os.PathLike):
        raise InputError(f"{word} must be a result, its dictionary or a file, got {type(result).__name__}")
    name = os.fspath(result)
    content = Path(name).read_bytes()
    if content.lstrip().startswith(b"<"):
        found = EMBEDDED.search(content)
        if found is None:
            raise InputError(f"{name} carries no result: write the report anew, or give the JSON of compare --json")
        content = found[1]
    try:
        document = json.loads(content)
    except ValueError as error:
        raise InputError(f"{name} is not JSON ({error}): give the output of compare --json or a report") from error
    if not isinstance(document, dict) or not {"rows", "models", "metrics"} & set(document):
        raise InputError(f"{name} is not a result of compare or measure: it has no rows, models or metrics")
    return name, document


def _rows(document: Mapping[str, Any]) -> dict[str, dict[str, Estimate]]:
    """Figures by method and metric; where a figure has two names, by the present one."""
    found: dict[str, dict[str, Estimate]] = {}
    for row in document.get("rows", [{"method": MEASURED, "metrics": document.get("metrics")}]):
        for name, one in (row.get("metrics") or {}).items():
            ends = (NAN if one.get(end) is None else float(one[end]) for end in ("value", "low", "high"))
            found.setdefault(row["method"], {})[facts(name).name] = Estimate(*ends)
    return found


def _degrees_of_freedom(n_clusters: Iterable[int | None]) -> float:
    """Return the degrees of freedom of intervals; those over a few clusters are Student's t with at most n − 1."""
    return min((count - 1 for count in n_clusters if count is not None and needs_t_interval(count)), default=np.inf)


def _change(  # noqa: PLR0917
    model: str,
    method: str,
    metric: str,
    old: Estimate,
    new: Estimate,
    freedom: float,
    *,
    paired: Estimate | None = None,
) -> Change:
    change = new.value - old.value
    width = np.hypot(old.high - old.low, new.high - new.low) if paired is None else paired.high - paired.low
    noise = float(width) / 2
    # a metric that never varies changed for certain, if at all
    p_value = float(2 * stdtr(freedom, -abs(change) * t_quantile(freedom) / max(noise, 1e-300)))
    return _judged(Change(model, method, metric, "", old, new, change, noise, p_value), SIGNIFICANCE)


def _judged(one: Change, limit: float) -> Change:
    """With the verdict where p-values up to the limit are beyond noise."""
    verdict = "better" if sign(one.metric) * one.change < 0 else "worse"
    if not np.isfinite(one.p_value):
        verdict = "no interval"
    elif one.p_value > limit:
        verdict = "within noise"
    elif facts(one.metric).better == 0:
        verdict = "changed"
    return replace(one, verdict=verdict)


def _headline(one: Change) -> str:
    label = facts(one.metric).title
    old, new, change, noise = (number(one.metric, x) for x in (one.old.value, one.new.value, one.change, one.noise))
    change = f"{'' if one.change < 0 else '+'}{change}" + (f" ± {noise}" if np.isfinite(one.noise) else "")
    what = label if one.method == MEASURED else f"{label} of the best method ({one.method})"
    return _at(one.model, f"{what}: {old} → {new}, {one.verdict} ({change})")


def _notes(names: Sequence[str], old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """What a reader of the figures should know; results of different problems are refused."""
    schemas = []
    for one, other in ((old, new), (new, old)):
        known = {**other, **one}  # what a result does not say is taken from the other one
        own = one.get("class_names")
        classes = known.get("n_classes", 2), None if own is None else tuple(own)
        schemas.append(Schema(known.get("task", "multiclass"), "", *classes))
    first, second = schemas
    if first.task != second.task:  # figures of pairs and of a positive class differ, though both have one score
        raise InputError(f"{names[0]} is a {first.task} task, but {names[1]} is {second.task}: give the same problem")
    if note := first.align(second, *names).note:
        yield note
    for field, words in (("n_bins", "bins of the calibration errors"), ("criterion", "deciding metric")):
        before, after = old.get(field), new.get(field)
        if None not in (before, after) and before != after:
            yield f"{words} differ: {before} and {after}"
    if old.get("test_fingerprint") is not None and old["test_fingerprint"] == new.get("test_fingerprint"):
        yield (
            "both were measured on the same labels: the stated noise of a change is an upper bound; a diff of the two "
            "files of predictions pairs their rows"
        )


def _at(model: str, text: str) -> str:
    return f"{model}: {text}" if model else text
