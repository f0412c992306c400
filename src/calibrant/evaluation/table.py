"""The one form in which every result is shown: estimates in rows and columns.

A row is a method, a metric, a model, a group, a label or a condition; a column holds one figure of each. The cell knows
the name of its figure, which decides label, unit and number format (`metrics.record`), and how it stands in its column.
Numbers are fractions, not percent.
"""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from calibrant.core.errors import InputError
from calibrant.metrics.record import facts, known_name

Json = dict[str, Any]
"""Plain values by name."""


class PlainData:
    """A dataclass that gives its fields, or the attributes named in `json_fields`, as plain JSON data."""

    json_fields: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> Json:
        """Plain JSON data by name; None stands for a number that is not finite."""
        names = self.json_fields or (one.name for one in fields(self))  # type: ignore[arg-type]
        return {name: plain(getattr(self, name)) for name in names}

    def to_json(self, indent: int | None = 2) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)


def plain(value: Any) -> Any:
    """A value as JSON can hold it.

    >>> plain((1, float("nan"), np.array([0.5])))
    [1, None, [0.5]]
    """
    if isinstance(value, PlainData):
        return value.to_dict()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


NAN = float("nan")


@dataclass(frozen=True)
class Estimate(PlainData):
    """A figure and its 95% interval, as fractions (not percent); low and high are NaN where none was asked for."""

    value: float
    low: float = NAN
    high: float = NAN
    spread: float = NAN
    """Standard deviation over repetitions (seeds) whose mean is `value`; NaN for a single result."""

    def __eq__(self, other: object) -> bool:
        """Equal numbers; a missing end equals a missing end, which Python up to 3.12 took from their identity."""
        return isinstance(other, Estimate) and np.array_equal(astuple(self), astuple(other), equal_nan=True)

    def __hash__(self) -> int:
        return hash(self.value)

    def to_dict(self) -> Json:
        """Plain JSON data; the spread only where there is one."""
        found = super().to_dict()
        if found["spread"] is None:
            del found["spread"]
        return found


class Figures(dict[str, Estimate], PlainData):
    """Estimates by name; a second name finds the same figure."""

    def __missing__(self, name: str) -> Estimate:
        if (known := known_name(name)) in self:
            return self[known]
        raise KeyError(name)

    def to_dict(self) -> Json:
        """Plain JSON data; of a figure with two names, by both."""
        second = {also: one for name, one in self.items() if (also := facts(name).also)}
        return plain(self | second)


class Cell(NamedTuple):
    """One figure of one row, and how it stands in its column.

    best, second : by value. tie : not the best, but within noise of it by paired resamples.
    """

    metric: str
    estimate: Estimate
    best: bool = False
    second: bool = False
    tie: bool = False


@dataclass(frozen=True)
class Row:
    """The cells of one row by column; where `error` says why there are none, nothing was computed."""

    name: str
    cells: Mapping[str, Cell]
    best: bool = False
    error: str | None = None


@dataclass(frozen=True)
class Table:
    """Rows × columns of estimates.

    axis : what a row is ("method", "metric", "model", "group", "label"), the heading of the first column.
    columns : headings by the name of the column, in order.
    caption : one sentence about all of it.
    """

    axis: str
    columns: Mapping[str, str]
    rows: Sequence[Row]
    caption: str = ""
    texts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Columns of words (a verdict, a reason) by name, each a word by the name of the row."""
    intervals: bool | Collection[str] = False
    """Show intervals in all columns, in none, or in those that are named."""
    missing: str = "—"
    """What stands where a row has no cell."""

    def pick(self, columns: Iterable[str] | None) -> Self:
        """The table with these columns only, in this order; a second name of a metric finds its column."""
        if columns is None:
            return self
        wanted = [name if name in self.columns else known_name(name) for name in columns]
        for name in wanted:
            if name not in self.columns:
                raise InputError(f"the table has no column {name!r}: choose from {', '.join(self.columns)}")
        return replace(self, columns={name: self.columns[name] for name in wanted})

    def to_frame(self) -> Any:
        """A pandas table: one row per row; of every column the value, and `…_low` and `…_high` where intervals are."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_frame needs pandas: install it with `pip install pandas`") from error
        found: Json = {}
        for name in self.columns:
            estimates = [row.cells[name].estimate if name in row.cells else Estimate(NAN) for row in self.rows]
            found[name] = [one.value for one in estimates]
            for end in ("low", "high", "spread"):
                values = [getattr(one, end) for one in estimates]
                if np.isfinite(values).any():
                    found[f"{name}_{end}"] = values
        found |= {name: [words.get(row.name) for row in self.rows] for name, words in self.texts.items()}
        return pandas.DataFrame(found, index=pandas.Index([row.name for row in self.rows], name=self.axis))


def metric_columns(names: Iterable[str]) -> dict[str, str]:
    """Headings of columns that hold one metric each."""
    return {name: facts(name).title for name in names}


def figure_cells(figures: Mapping[str, Estimate]) -> dict[str, Cell]:
    """Cells of figures that are not ranked against others."""
    return {name: Cell(name, one) for name, one in figures.items()}
