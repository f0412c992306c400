"""The record of a metric: what it is called, in which unit it is shown, which direction is good, how sure it is.

`@metric(...)` registers the function that stands below it and returns it unchanged. Everything else is made from the
records in `METRICS`: the streaming form, the training metric, `measure`, `compare`, gates, JSON, tables and the docs.
Figures are fractions everywhere in the library; `percent` says that a view multiplies by 100.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from inspect import cleandoc, signature
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

import numpy as np

from calibrant.core.arrays import Array, check_choice, short_repr
from calibrant.core.errors import InputError
from calibrant.metrics import inputs

Function = TypeVar("Function", bound=Callable[..., Any])


class Mean(NamedTuple):
    """Interval of a weighted mean of one column of the rows ("nll", "brier", "confidence", "entropy", "hit").

    share : it is a share of rows, whose interval is never narrower than few errors allow.
    """

    column: str
    share: bool = False


class Gaps(NamedTuple):
    """Interval of a calibration error ‖g‖ of residuals g = Σ w(c − a)/Σw, by inverting its test.

    table : what is summed: "width", "mass" or "monotone" bins, or a function of cells of neighbouring confidences
        (with `confidence` and `share` (L,)) and of the value, which gives a table (L, F).
    norm : the error of residuals (…, F), given the `share` of the rows in each of the F.
    debiased : subtract what noise adds before errors are compared.
    shrunk : take the pattern of the error over bins less what noise gives it.
    worst : the norm is the largest bin of equal width, so that one bin beyond chance is enough.
    """

    table: str | Callable[[Any, float], Array]
    norm: Callable[..., Array]
    debiased: bool = False
    shrunk: bool = False
    worst: bool = False


class ClassGaps(NamedTuple):
    """The same of residuals (…, K·M) of K classes over "width" or "mass" bins; the norm is also given `n_classes`."""

    binning: str
    norm: Callable[..., Array]


class Redrawn(NamedTuple):
    """Percentiles of the figure of every resample, as a function of sums by cell (R, L).

    figure : of an object with `score`, `confidence` (L,), `weight`, `positive`, `excess` (R, L) and `knots`.
    lowest : what the figure cannot fall below.
    """

    figure: Callable[[Any], Array]
    lowest: float = 0.0


class Resampled(NamedTuple):
    """Percentiles of the function itself on resampled rows: right for any smooth figure, and slow."""

    lowest: float = -math.inf


class ClassSpread(NamedTuple):
    """Interval of the standard deviation over classes of the mean of a column in each class."""

    column: str


BINS = ("width", "mass")
"""The tables of `Gaps` that are bins of a given number."""
LAST = 9
"""The place among the columns of `compare` that users' metrics, and others on request, have."""

Rule = Mean | Gaps | ClassGaps | Redrawn | Resampled | ClassSpread
"""How the 95% interval of a figure is found."""


@dataclass(frozen=True)
class Figure:
    """One number of a result: how it is shown, and how its interval is found."""

    name: str
    label: str
    """As a line or a heading names it."""
    column: str
    """The same in a narrow column, without the percent sign."""
    percent: bool = False
    """Shown in percent; else as it is."""
    better: int = -1
    """−1 where low values are good, +1 where high ones are, 0 where neither is by itself."""
    meaning: str = ""
    """One line of explanation."""
    interval: Rule | None = None
    field: str = ""
    """The field of the function's result that holds the number; empty where the result is the number."""
    also: str = ""
    """A second name, in JSON and in options."""
    places: int = 4
    """Decimals of a figure that is not in percent."""
    compared: int = 0
    """Its place among the columns that `compare` shows by itself; 0 where it does so on request only."""

    @property
    def heading(self) -> str:
        """The label with a capital letter."""
        return self.label[:1].upper() + self.label[1:]

    @property
    def title(self) -> str:
        """The label with the unit of a column."""
        return self.label + (" %" if self.percent else "")

    @property
    def absolute(self) -> bool:
        """Is it the size of a gap? Noise adds to it, so that an estimate can stand at the end of its interval."""
        smooth = isinstance(self.interval, Redrawn) and self.better < 0 and self.interval.lowest == 0
        return smooth or isinstance(self.interval, Gaps | ClassGaps)


@dataclass(frozen=True)
class Metric:
    """A function of (probabilities, labels) and the figures that it gives.

    about : "any" rows, those of a "matrix" of classes, one "score" per row, or "confidence", which is not asked about a
        positive class.
    plain : a user's function, which is given arrays; those of the library also take rows that are checked already.
    copies : a weight of 2 is equivalent to repeating the row. `probe_metric` finds this out for plain functions; rows
        are resampled by index if it is False.
    """

    name: str
    function: Callable[..., Any]
    figures: tuple[Figure, ...]
    about: str = "any"
    plain: bool = False
    copies: bool = True

    def values(self, *rows: Any, **options: Any) -> dict[str, float]:
        """Every figure by name."""
        result = self.function(*rows, **options)
        if self.plain and np.size(result) != 1:
            raise InputError(f"the metric {self.name} returned an array of shape {np.shape(result)}, not one number")
        return {one.name: float(getattr(result, one.field) if one.field else result) for one in self.figures}


METRICS: dict[str, Metric] = {}
"""Every metric by name, in the order in which tables show them."""

FIGURES: dict[str, Figure] = {}
"""Every number that results hold, by name; one that has two names, by both."""


def metric(
    label: str = "",
    column: str = "",
    meaning: str = "",
    interval: Rule | None = None,
    *,
    figures: tuple[Figure, ...] = (),
    about: str = "",
    **facts: Any,
) -> Callable[[Function], Function]:
    """Register the function below under its own name; it is returned as it is.

    label, column, meaning, interval : where the result is one number. figures : where it is a dataclass; none where it
        is a vector or a curve.
    about : one "score" per row where the function takes `PositiveProbabilities`, else "any" rows.
    facts : further fields of `Figure`; sizes of gaps are in percent.
    """

    def registered(function: Function) -> Function:
        name, positive = function.__name__, function.__annotations__["probabilities"] == "PositiveProbabilities"
        shown = {"percent": isinstance(interval, Gaps | ClassGaps)} | facts
        one = Figure(name, label, column or label, meaning=meaning, interval=interval, **shown)
        enlist(Metric(name, function, (one,) if label else figures, about or ("score" if positive else "any")))
        return documented(function)

    return registered


def documented(function: Function) -> Function:
    """Describe in the docstring the parameters that many metrics share."""
    function.__doc__ = with_shared_parameters(cleandoc(function.__doc__ or ""), function.__annotations__)
    return function


HEADING = "Parameters\n----------\n"
NEXT_SECTION = re.compile(r"^(?=\w+\n-{3,}$)", re.M)


def with_shared_parameters(docstring: str, types: Mapping[str, str]) -> str:
    """The docstring with an entry for every parameter whose type, by its name in `inputs`, says what it is.

    >>> print(with_shared_parameters("Accuracy.", {"labels": "BinaryLabels", "n_bins": "int"}))
    Accuracy.
    <BLANKLINE>
    Parameters
    ----------
    labels : array (n,)
        0 or 1.
    """
    entries = ""
    for parameter, name in types.items():
        kind = vars(inputs).get(name)
        if get_origin(kind) is Annotated and f"\n{parameter} : " not in docstring:  # a module may be reloaded
            shape, _, meaning = get_args(kind)[1].partition(": ")
            entries += f"{parameter} : {shape}\n    {meaning}\n"
    if not entries:
        return docstring
    if HEADING in docstring:
        return docstring.replace(HEADING, HEADING + entries, 1)
    following = NEXT_SECTION.search(docstring)
    place = len(docstring) if following is None else following.start()
    return f"{docstring[:place].rstrip()}\n\n{HEADING}{entries}\n{docstring[place:]}".rstrip()


def enlist(one: Metric) -> Metric:
    """Put a record into the list."""
    METRICS[one.name] = one
    FIGURES.update({name: figure for figure in one.figures for name in (figure.name, figure.also) if name})
    return one


def register_metric(
    function: Callable[..., Any],
    name: str = "",
    *,
    label: str = "",
    unit: str = "",
    better: int = -1,
    meaning: str = "",
    about: str = "any",
) -> Metric:
    """Register a function of (probabilities, labels, sample_weight=None) that returns a number.

    `measure`, `compare` and gates then accept its name and report a bootstrap interval and paired draws. The function
    must not depend on the order of the rows. If it ignores `sample_weight`, or has no such parameter, its interval
    comes from repeated rows instead of weights.

    Parameters
    ----------
    function : callable
        Of probabilities (n, K), or (n,) of the positive class; labels (n,); and, optionally, weights (n,) or None.
    name, label : str
        The function's own name where none is given.
    unit : {"", "%"}
    better : {-1, 1, 0}
        −1 where low values are good, +1 where high ones are.
    about : {"any", "matrix", "score", "confidence"}

    Examples
    --------
    >>> def worst(probabilities, labels, sample_weight=None):
    ...     return float(1 - probabilities.max())
    >>> register_metric(worst, label="least doubt").figures[0].label
    'least doubt'
    >>> del METRICS["worst"], FIGURES["worst"]
    """
    if not callable(function):
        raise InputError(f"register_metric needs a function, got {short_repr(function)}")
    for word, text in (("name", name), ("label", label), ("meaning", meaning)):
        if not isinstance(text, str):
            raise InputError(f"{word} must be text, got {short_repr(text)}")
    check_choice(unit, "unit", ("", "%"))
    check_choice(about, "about", ("any", "matrix", "score", "confidence"))
    if not isinstance(better, int) or better not in (-1, 0, 1):
        raise InputError(f"better must be -1, 0 or 1, got {short_repr(better)}")
    name = name or getattr(function, "__name__", "metric")
    if name in METRICS and not METRICS[name].plain:
        raise InputError(f"there is a metric {name!r} in the library: give another name")
    return enlist(user_metric(function, name, label, about, percent=unit == "%", better=better, meaning=meaning))


def user_metric(function: Callable[..., Any], name: str, label: str = "", about: str = "any", **facts: Any) -> Metric:
    """The record of a user's function, which is not put into the list."""
    text = label or name.replace("_", " ")
    one = Figure(name, text, text, interval=Resampled(), compared=LAST, **facts)
    callable_with_weights = function if takes_weights(function) else without_weights(function)
    return Metric(name, callable_with_weights, (one,), about, plain=True, copies=False)


def takes_weights(function: Callable[..., Any]) -> bool:
    """Return whether a function has a parameter `sample_weight`, or takes any keyword."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
    return any(one.name == "sample_weight" or one.kind is one.VAR_KEYWORD for one in parameters)


def without_weights(function: Callable[..., Any]) -> Callable[..., Any]:
    """Drop the weights in calls of a function that has no parameter for them."""

    @wraps(function)
    def call(probabilities: Any, labels: Any, sample_weight: Any = None, **options: Any) -> Any:
        return function(probabilities, labels, **options)

    return call


PROBE_ROWS, PROBE_ELEMENTS, PROBE_TOLERANCE = 60, 1 << 21, 1e-4
"""Fewest rows and most numbers in either half of the rows of a probe, and the relative rounding that it allows."""


def probe_metric(one: Metric, n_classes: int, *, flat: bool) -> Metric:
    """Call a user's metric on random rows and return it with `copies` set.

    An order of the rows that matters, and an exception, raise InputError. The weights of the probe are 0 in one half
    of the rows, and 1 or 2 in the other half: a maximum over the rows notices only the zeros.
    """
    half = max(PROBE_ROWS, min(2 * n_classes, PROBE_ELEMENTS // n_classes))
    generator, rows = np.random.default_rng(0), np.arange(2 * half)
    probabilities, labels = generator.dirichlet(np.ones(n_classes), 2 * half), np.tile(rows[:half] % n_classes, 2)
    probabilities = probabilities[:, 1] if flat else probabilities

    def value(some: Array, weights: Array | None = None) -> float:
        try:
            return one.values(probabilities[some], labels[some], sample_weight=weights)[one.name]
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            where = f"{len(some)} random rows of {'one probability' if flat else f'{n_classes} classes'}"
            raise InputError(f"the metric {one.name} fails on {where} ({reason})") from error

    def equal(left: float, right: float) -> bool:
        return bool(np.isclose(left, right, rtol=PROBE_TOLERANCE, atol=1e-12, equal_nan=True))

    given, shuffled = value(rows), value(generator.permutation(rows))
    if not equal(given, shuffled):
        raise InputError(
            f"the metric {one.name} depends on the order of the rows ({given:.6g}, after shuffling {shuffled:.6g}): "
            "it must be a function of probabilities, labels and weights only"
        )
    copies = True
    for part in (rows < half, rows >= half):
        counts = np.where(part, generator.integers(1, 3, len(rows)), 0)
        copies = copies and equal(value(rows, counts.astype(np.float64)), value(np.repeat(rows, counts)))
    return replace(one, copies=copies)


def facts(name: str) -> Figure:
    """The facts of a figure by either of its names; one that is not listed has its own, and less of it is better."""
    text = str(name)
    plain = text.replace("_", " ")
    return FIGURES.get(text, Figure(text, plain, plain))


def sign(name: str) -> float:
    """What to multiply a figure by so that less is better."""
    return -1.0 if facts(name).better > 0 else 1.0


def number(name: str, value: float) -> str:
    """A figure as every table prints it: percent with two places, others with theirs.

    >>> number("ece", 0.0312), number("n", 1500), number("nll", float("nan"))
    ('3.12', '1,500', '—')
    """
    look = facts(name)
    if not math.isfinite(value):
        return "—"
    if look.percent:
        return f"{100 * value:.2f}"
    return f"{value:,.{look.places}f}"


for _name, _label, _column, _places, _meaning in (
    ("gap", "gap", "gap", None, "mean confidence minus accuracy"),
    ("noise_floor", "noise floor", "floor", None, "the ECE that a calibrated model would show"),
    ("changed_predictions", "changed predictions", "chg", None, "rows whose decision changed"),
    ("changed_rankings", "changed rankings", "order", None, "pairs whose order was reversed"),
    ("p_beats_best", "P(beats best)", "P", 2, "share of paired resamples better than the best"),
    ("fit_seconds", "fit s", "fit", 2, "seconds that the fit took"),
    ("n", "rows", "rows", 0, "rows behind the figures"),
    ("n_positive", "positives", "positives", 0, "rows that have the label"),
    ("mean_rank", "mean rank", "rank", 2, "1 is first on every model"),
    ("best_or_tied", "best or tied", "wins", 0, "models on which it is best or tied"),
    ("n_parameters", "parameters", "params", 0, "learned numbers"),
):
    # None: in percent
    FIGURES[_name] = Figure(_name, _label, _column, _places is None, 0, _meaning, places=_places or 0)
