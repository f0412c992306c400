"""The words of the page: those that depend on the task, what a method is called, and what its calibrator learned.

Figures are about the predicted class, or about the positive one.
"""

import re
from inspect import getdoc
from typing import Any, NamedTuple

import numpy as np

from calibrant.calibrators.registry import METHODS, PREFIXES, SUFFIXES
from calibrant.core.arrays import Array
from calibrant.evaluation.results import Comparison, MethodRow


class Wording(NamedTuple):
    """What one kind of task calls things.

    high, low : a bin whose stated probability is above, or below, what was seen.
    stated, seen : titles of the axes of a reliability diagram. mean, share : their means, in a few characters.
    yes, no : the two outcomes of a row.
    """

    high: str
    low: str
    stated: str
    seen: str
    mean: str
    share: str
    yes: str
    no: str
    reliability_shows: str

    @property
    def sides(self) -> list[str]:
        """Too high, within chance, too low."""
        return [self.high, "within chance", self.low]


PREDICTED = Wording(
    high="too sure",
    low="not sure enough",
    stated="confidence: what the model says",
    seen="accuracy: how often it is right",
    mean="mean confidence",
    share="accuracy",
    yes="right",
    no="wrong",
    reliability_shows="Predictions grouped by stated confidence; each mark is how often that group was right, with its "
    "95% interval. Bars and small numbers count the rows; bins of fewer than 10 are faint.",
)

POSITIVE = Wording(
    high="too high",
    low="too low",
    stated="probability of the positive class",
    seen="observed share of positives",
    mean="mean probability",
    share="observed share",
    yes="positive",
    no="negative",
    reliability_shows="Rows grouped by the stated probability of the positive class; each mark is the share of "
    "positives in that group, with its 95% interval. Bars and small numbers count the rows; bins of fewer than 10 are "
    "faint.",
)


PICKED_CLASS = PREDICTED._replace(stated="confidence when it says this class", seen="how often it is right")
"""Of the rows predicted as one class."""


def wording(comparison: Comparison) -> Wording:
    """The words of a comparison's task."""
    return POSITIVE if comparison.about == "positive class" else PREDICTED


TITLES = {
    "multiclass": "How far to trust a {:,}-class model",
    "binary": "How far to trust the probability of the positive class",
    "multilabel": "How far to trust the probabilities of {:,} labels",
    "pairs": "How far to trust a model's stated confidence",
}
"""The page's heading where none is given."""
SIZES = {"multiclass": "{:,} classes", "multilabel": "{:,} labels", "binary": "{:,} positives among them ({:.1%})"}
"""What else a page says about the size of its data; confidences alone have no classes."""


def sizes(comparison: Comparison) -> list[str]:
    """How much was compared, on how many rows of what."""
    labels, failed = comparison.labels, sum(row.error is not None for row in comparison.rows)
    counts = (labels.sum(), labels.mean()) if comparison.task == "binary" else (comparison.n_classes,)
    return [
        f"{len(comparison.rows) - failed} methods" + f", {failed} failed" * (failed > 0),
        comparison.fitted,
        *(words.format(*counts) for task, words in SIZES.items() if task == comparison.task),
        f"{comparison.n_bins} bins",
        f"{comparison.resamples:,} bootstrap resamples",
    ]


def class_names(comparison: Comparison) -> list[str]:
    """The names of the classes or labels, numbers where there are none."""
    word = "label" if comparison.task == "multilabel" else "class"
    return list(map(str, comparison.class_names or [f"{word} {index}" for index in range(comparison.n_classes)]))


def innermost(calibrator: Any) -> list[Any]:
    """A calibrator and those it wraps, outermost first."""
    return [] if calibrator is None else [calibrator, *innermost(vars(calibrator).get("calibrator_"))]


def class_temperatures(row: MethodRow, n_classes: int) -> Array | None:
    """The temperature of each class, where the method learned such a thing."""
    for calibrator in innermost(row.calibrator):
        found = vars(calibrator)
        values = found.get("temperatures_")
        # temperatures of confidence bins come with edges, those of a posterior with weights
        if not {"edges_", "weights_"} & {*found} and np.shape(values) == (n_classes,):
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
    return " ".join((getdoc(type(calibrator)) or "").partition("\n\n")[0].replace("`", "").split())


def parameters(comparison: Comparison, row: MethodRow) -> list[tuple[str, str]]:
    """Everything a method learned, with the classes it changed most."""
    values, temperatures = learned(row.calibrator), class_temperatures(row, comparison.n_classes)
    if temperatures is not None:
        names, order = class_names(comparison), np.argsort(temperatures, kind="stable")
        for words, places in (("most sharpened", order), ("most damped", order[::-1])):
            values.append((words, ", ".join(f"{names[place]} {temperatures[place]:.3g}" for place in places[:5])))
    return values


PLUMBING = {
    "n_features_in_", "feature_names_in_", "classes_", "calibrator_", "fit_seconds_", "n_iter_", "n_rows_",
    "fingerprint_", "n_parameters_", "task_", "objective_trace_", "score_columns_",
}  # fmt: skip
"""What every calibrator carries along; it says nothing about the method."""


def learned(calibrator: Any) -> list[tuple[str, str]]:
    """Name and readable value of everything a fitted calibrator learned, wrapped ones included."""
    return [
        (f"{type(part).__name__}." * (depth > 0) + name, readable(value))
        for depth, part in enumerate(innermost(calibrator))
        for name, value in vars(part).items()
        if name.endswith("_") and not name.startswith("_") and name not in PLUMBING and readable(value)
    ]


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
