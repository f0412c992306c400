"""Two results side by side: which figures changed from the old one to the new one by more than noise."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy.stats import norm

from calibrant.core.errors import InputError
from calibrant.evaluation import rendering
from calibrant.evaluation.table import Cell, Estimate, PlainData, Row, Table
from calibrant.metrics.record import facts, known_name, number, sign

SIGNIFICANCE = 0.05
Z95 = float(norm.ppf(0.975))
CHANGE = ("change",)
"""The column whose interval every form shows."""
MEASURED = "measured"
"""The name of the one row of a measurement."""
EMBEDDED = re.compile(r'<script type="application/json" id="result">(.*?)</script>', re.S)
"""Where a report carries its result."""


@dataclass(frozen=True)
class Change(PlainData):
    """One figure of one method in both results.

    change : new minus old. noise : half-width of the 95% interval of the change, from the two intervals taken as
    independent; on the same test rows that is an upper bound. p_value : two-sided, before any adjustment.
    verdict : "better", "worse", "within noise", "changed" where no direction is good by itself, or "no interval".
    """

    model: str
    method: str
    metric: str
    old: Estimate
    new: Estimate
    change: float
    noise: float
    p_value: float
    verdict: str

    json_fields: ClassVar[tuple[str, ...]] = (
        "model", "method", "metric", "verdict", "old", "new", "change", "noise", "p_value",
    )  # fmt: skip


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

    json_fields: ClassVar[tuple[str, ...]] = (
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
            cells = {"old": one.old, "new": one.new, "change": change}
            name = f"{_at(one.model, one.method)}, {facts(one.metric).title}"
            rows.append(Row(name, {column: Cell(one.metric, each) for column, each in cells.items()}))
            verdicts[name] = one.verdict
        columns = {name: name for name in ("old", "new", "change")}
        return Table("figure", columns, tuple(rows), texts={"verdict": verdicts})

    def to_frame(self) -> Any:
        """A pandas table of all changes."""
        return self.table(everything=True).to_frame()

    def to_markdown(self, *, everything: bool = False) -> str:
        """A Markdown table of what changed."""
        table = rendering.markdown(self.table(everything=everything), intervals=CHANGE)
        return "\n".join([*self.summary(), "", table])

    def summary(self) -> list[str]:
        """Headline, counts and notes, one sentence each."""
        lines = [_headline(one, self.criterion) for one in self.headlines]
        counts = [f"{self.count(word)} {word}" for word in ("better", "worse", "changed", "within noise")]
        if missing := self.count("no interval"):
            counts.append(f"{missing} without an interval")
        lines.append(
            f"{len(self.changes)} figures: {', '.join(counts)} "
            "(95%, adjusted for the number of figures by Benjamini and Hochberg)"
        )
        lines += [f"only in the new result: {', '.join(self.added)}"] if self.added else []
        lines += [f"only in the old result: {', '.join(self.removed)}"] if self.removed else []
        return lines + [f"note: {one}" for one in self.notes]

    def _repr_html_(self) -> str:
        return rendering.notebook(self.table(), said=" · ".join(self.summary()), intervals=CHANGE)

    def __repr__(self) -> str:
        return rendering.text(self.table(), said=self.summary(), intervals=CHANGE, width=120)


def diff(old: Any, new: Any) -> Difference:
    """Say which figures of a result changed by more than noise.

    The change of a figure is judged by z = (new − old) / √(s_old² + s_new²), where s is the width of the 95% interval
    over 2·1.96. The table of all figures is adjusted for their number (Benjamini & Hochberg 1995); the deciding metric
    of the best method is one planned comparison and is not.

    Parameters
    ----------
    old, new : Comparison, ModelComparison, Measurement, their dictionaries, or files
        Files are what `compare --json`, `measure --json` and the reports write.

    Examples
    --------
    >>> old = {"task": "binary", "metrics": {"nll": {"value": 0.50, "low": 0.48, "high": 0.52}}}
    >>> new = {"task": "binary", "metrics": {"nll": {"value": 0.40, "low": 0.38, "high": 0.42}}}
    >>> diff(old, new).changes[0].verdict
    'better'
    """
    documents = [_document(result, word) for result, word in ((old, "old"), (new, "new"))]
    # comparisons by model; a single one has no name
    first, second = (dict(document.get("models", {"": document})) for _, document in documents)
    names = tuple(name for name, _ in documents)
    _comparable(names, first, second)
    criterion = known_name(next(iter(second.values())).get("criterion") or "nll")
    changes, headlines, added, removed = [], [], [], []
    for model in (name for name in second if name in first):
        before, after = _rows(first[model]), _rows(second[model])
        added += [_at(model, method) for method in after if method not in before]
        removed += [_at(model, method) for method in before if method not in after]
        for method in (name for name in after if name in before):
            changes += list(_changes(model, method, before[method], after[method]))
        headlines += _best_change(model, criterion, first[model], second[model])
    if not changes:
        said = [", ".join(sorted({row for one in part.values() for row in _rows(one)})) for part in (first, second)]
        raise InputError(
            f"{names[0]} has figures of {said[0]}, but {names[1]} of {said[1]}: no method is in both"
        )  # fmt: skip
    added += [f"model {name}" for name in second if name not in first]
    removed += [f"model {name}" for name in first if name not in second]
    notes = _notes(first, second)
    return Difference(tuple(_adjusted(changes)), tuple(headlines), tuple(added), tuple(removed), notes, criterion)


def _document(result: Any, word: str) -> tuple[str, dict[str, Any]]:
    """A name for errors, and the result as plain data."""
    if isinstance(result, Mapping):
        return f"the {word} result", dict(result)
    if hasattr(result, "to_dict"):
        return f"the {word} result", result.to_dict()
    if not isinstance(result, str | os.PathLike):
        raise InputError(f"{word} must be a result, its dictionary or a file, got {type(result).__name__}")
    name = os.fspath(result)
    try:
        text = Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not text: give the JSON of compare --json or a report") from error
    if text.lstrip()[:1] == "<":
        found = EMBEDDED.search(text)
        if found is None:
            raise InputError(f"{name} carries no result: write the report anew, or give the JSON of compare --json")
        text = found.group(1)
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InputError(f"{name} is not JSON ({error}): give the output of compare --json or a report") from error
    if not isinstance(document, dict) or not {"rows", "models", "metrics"} & set(document):
        raise InputError(f"{name} is no result of compare or measure: it has no rows, models or metrics")
    return name, document


def _rows(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Metrics by method."""
    if "rows" not in document:
        return {MEASURED: document.get("metrics", {})}
    return {row["method"]: row["metrics"] for row in document["rows"] if row.get("metrics")}


def _comparable(names: tuple[str, ...], first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    common = [name for name in second if name in first]
    if not common:
        there = [", ".join(part) if "" not in part else "one model without a name" for part in (first, second)]
        raise InputError(f"{names[0]} holds {there[0]}, but {names[1]} {there[1]}: no model is in both")
    for model in common:
        for field, words in (("task", "is a {} task"), ("n_classes", "has {} classes")):
            old, new = (part[model].get(field) for part in (first, second))
            if old is not None and new is not None and old != new:
                raise InputError(
                    f"{names[0]} {words.format(old)}, but {names[1]} {words.format(new)}: "
                    "only results of the same problem can be compared"
                )


def _estimate(found: Mapping[str, Any]) -> Estimate:
    values = (found.get(name) for name in ("value", "low", "high"))
    return Estimate(*(float("nan") if value is None else float(value) for value in values))


def _changes(model: str, method: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for metric in new:
        # an earlier name stands beside the present one
        if metric in old and (metric == known_name(metric) or known_name(metric) not in new):
            yield _change(model, method, metric, _estimate(old[metric]), _estimate(new[metric]))


def _change(model: str, method: str, metric: str, old: Estimate, new: Estimate) -> Change:
    change = new.value - old.value
    spread = float(np.hypot(old.high - old.low, new.high - new.low)) / (2 * Z95)
    if not np.isfinite(spread):
        p_value = float("nan")
    elif spread == 0:
        p_value = 1.0 if change == 0 else 0.0
    else:
        p_value = float(2 * norm.sf(abs(change) / spread))
    verdict = _verdict(metric, change, p_value, p_value < SIGNIFICANCE)
    return Change(model, method, metric, old, new, change, Z95 * spread, p_value, verdict)


def _verdict(metric: str, change: float, p_value: float, beyond: bool) -> str:
    if not np.isfinite(p_value):
        return "no interval"
    if not beyond:
        return "within noise"
    if facts(metric).better == 0:
        return "changed"
    return "better" if sign(metric) * change < 0 else "worse"


def _adjusted(changes: list[Change]) -> list[Change]:
    """The verdicts that hold when 5% of those beyond noise may be wrong (Benjamini & Hochberg 1995)."""
    p_values = np.sort([one.p_value for one in changes if np.isfinite(one.p_value)])
    passed = p_values <= SIGNIFICANCE * np.arange(1, len(p_values) + 1) / max(1, len(p_values))
    limit = p_values[np.flatnonzero(passed)[-1]] if passed.any() else -1.0
    return [replace(one, verdict=_verdict(one.metric, one.change, one.p_value, one.p_value <= limit))
            for one in changes]  # fmt: skip


def _best_change(model: str, criterion: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """What a user who takes each result's best method would notice."""
    names, estimates = [], []
    for document in (old, new):
        rows = _rows(document)
        name = str(document.get("best") or MEASURED)
        if criterion not in rows.get(name, {}):
            return []
        names.append(name)
        estimates.append(_estimate(rows[name][criterion]))
    label = names[1] if names[0] == names[1] else f"{names[0]} → {names[1]}"
    return [_change(model, label, criterion, *estimates)]


def _headline(one: Change, criterion: str) -> str:
    label = facts(criterion).title
    old, new, change = (number(one.metric, value) for value in (one.old.value, one.new.value, one.change))
    change = f"{'' if one.change < 0 else '+'}{change}"
    change += f" ± {number(one.metric, one.noise)}" if np.isfinite(one.noise) else ""
    where = f"{one.model}: " if one.model else ""
    what = label if one.method == MEASURED else f"{label} of the best method ({one.method})"
    return f"{where}{what}: {old} → {new}, {one.verdict} ({change})"


def _notes(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[str, ...]:
    notes = []
    for model in (name for name in second if name in first):
        old, new = first[model], second[model]
        for field, words in (("n_bins", "bins of the calibration errors"), ("criterion", "deciding metric")):
            if old.get(field) != new.get(field) and old.get(field) is not None and new.get(field) is not None:
                notes.append(_at(model, f"{words} differ: {old[field]} and {new[field]}"))
        rows = [part.get("test_fingerprint") for part in (old, new)]
        if rows[0] is not None and rows[0] == rows[1]:
            notes.append(
                _at(model, "both were measured on the same labels: the noise of a change is at most what is stated")
            )
    return tuple(notes)


def _at(model: str, text: str) -> str:
    return f"{model}: {text}" if model else text
