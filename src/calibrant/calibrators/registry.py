"""The one table of methods: short names, their classes, and how a third party adds its own.

Nothing else in the library lists methods. The table holds addresses; a method is imported only when it is asked for.
"""
# ruff: noqa: PLC0414 (an alias of the same name is how a module re-exports to type checkers)

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from calibrant.core.errors import InputError

if TYPE_CHECKING:
    # for type checkers: `calibrant` re-exports these names, which load on use
    # isort: off
    from calibrant.calibrators.affine import (
        DirichletCalibration as DirichletCalibration,
        MatrixScaling as MatrixScaling,
        StructuredMatrixScaling as StructuredMatrixScaling,
        StructuredVectorScaling as StructuredVectorScaling,
        VectorScaling as VectorScaling,
    )
    from calibrant.calibrators.auto import AutoCalibrator as AutoCalibrator
    from calibrant.calibrators.base import Calibrator as Calibrator, Identity as Identity
    from calibrant.calibrators.bend import BendScaling as BendScaling
    from calibrant.calibrators.binning import (
        BinTemperatureScaling as BinTemperatureScaling,
        ConfidenceWeightScaling as ConfidenceWeightScaling,
        HistogramBinning as HistogramBinning,
        WeightScaling as WeightScaling,
    )
    from calibrant.calibrators.class_loss import ClassLossScaling as ClassLossScaling
    from calibrant.calibrators.class_temperature import (
        ClassTemperatureScaling as ClassTemperatureScaling,
        ShrunkenClassTemperature as ShrunkenClassTemperature,
    )
    from calibrant.calibrators.confusion import ConfusionScaling as ConfusionScaling, JointScaling as JointScaling
    from calibrant.calibrators.ensemble_temperature import EnsembleTemperatureScaling as EnsembleTemperatureScaling
    from calibrant.calibrators.group import GroupCalibrator as GroupCalibrator
    from calibrant.calibrators.isotonic import IsotonicCalibration as IsotonicCalibration, VennAbers as VennAbers
    from calibrant.calibrators.label_shift import LabelShift as LabelShift
    from calibrant.calibrators.logistic import (
        BetaCalibration as BetaCalibration,
        PlattScaling as PlattScaling,
        QuadraticScaling as QuadraticScaling,
    )
    from calibrant.calibrators.multicalibration import Multicalibration as Multicalibration
    from calibrant.calibrators.multilabel import MultilabelCalibrator as MultilabelCalibrator
    from calibrant.calibrators.parameterized_temperature import (
        ParameterizedTemperatureScaling as ParameterizedTemperatureScaling,
    )
    from calibrant.calibrators.pool import LinearPool as LinearPool
    from calibrant.calibrators.posterior_temperature import PosteriorTemperatureScaling as PosteriorTemperatureScaling
    from calibrant.calibrators.second_stage import (
        KeptPrediction as KeptPrediction,
        ShapeScaling as ShapeScaling,
        TopLabelMap as TopLabelMap,
    )
    from calibrant.calibrators.spline import SplineCalibration as SplineCalibration
    from calibrant.calibrators.temperature import TemperatureScaling as TemperatureScaling
    # isort: on

ENTRY_POINTS = "calibrant.calibrators"
"""Entry-point group of installed packages: `short-name = "package.module:Class"`."""


class Method(NamedTuple):
    """Where a method lives and the parameters its short name stands for.

    `listed` methods appear in tables and in `compare --methods all`. A method `around_model` is learned around a
    network, so that it has no K of its own. A class that was `given` need not be importable by its address.
    """

    module: str
    class_name: str
    parameters: dict[str, Any]
    listed: bool = True
    around_model: bool = False
    given: Any = None

    def load(self) -> Any:
        """The class."""
        return self.given or getattr(importlib.import_module(self.module), self.class_name)


def _method(address: str, **parameters: Any) -> Method:
    module, class_name = address.split(".")
    return Method(f"calibrant.calibrators.{module}", class_name, parameters)


METHODS: dict[str, Method] = {
    "none": _method("base.Identity"),
    "ts": _method("temperature.TemperatureScaling"),
    "ts-bayes": _method("posterior_temperature.PosteriorTemperatureScaling"),
    "ts-ece": _method("temperature.TemperatureScaling", objective="ece"),
    "ts-adaece": _method("temperature.TemperatureScaling", objective="adaptive_ece"),
    "ts-soft": _method("temperature.TemperatureScaling", objective="soft_ece"),
    "cts": _method("class_temperature.ClassTemperatureScaling"),
    "u-cts": _method("class_temperature.ClassTemperatureScaling", preserve_accuracy=False),
    "cts-nll": _method("class_temperature.ClassTemperatureScaling", objective="nll"),
    "cts-shrunk": _method("class_temperature.ShrunkenClassTemperature"),
    "vs": _method("affine.VectorScaling"),
    "ms": _method("affine.MatrixScaling"),
    "sms": _method("affine.StructuredMatrixScaling"),
    "dir": _method("affine.DirichletCalibration"),
    "shape": _method("second_stage.ShapeScaling"),
    "conf": _method("confusion.ConfusionScaling"),
    "joint": _method("confusion.JointScaling"),
    "ets": _method("ensemble_temperature.EnsembleTemperatureScaling"),
    "pts": _method("parameterized_temperature.ParameterizedTemperatureScaling"),
    "ws": _method("binning.WeightScaling"),
    "cws": _method("binning.ConfidenceWeightScaling"),
    "bts": _method("binning.BinTemperatureScaling", objective="nll"),
    "ccts": _method("binning.BinTemperatureScaling", objective="gap"),
    "hb": _method("binning.HistogramBinning"),
    "iso": _method("isotonic.IsotonicCalibration"),
    "spline": _method("spline.SplineCalibration"),
    "svs": _method("affine.StructuredVectorScaling"),
    "platt": _method("logistic.PlattScaling"),
    "beta": _method("logistic.BetaCalibration"),
    "quad": _method("logistic.QuadraticScaling"),
    "va": _method("isotonic.VennAbers"),
    "multilabel": _method("multilabel.MultilabelCalibrator")._replace(listed=False),
    "bend": _method("bend.BendScaling"),
    "pool": _method("pool.LinearPool")._replace(listed=False),
    "auto": _method("auto.AutoCalibrator")._replace(listed=False),
    "neural-clamping": Method("calibrant.neural.neural_clamping", "NeuralClamping", {}, False, around_model=True),
}

PREFIXES: dict[str, Method] = {"sctl+": _method("class_loss.ClassLossScaling")}
SUFFIXES: dict[str, Method] = {
    "+top": _method("second_stage.TopLabelMap"),
    "+shape": _method("second_stage.ShapeScaling"),
    "+keep": _method("second_stage.KeptPrediction"),
    "+shift": _method("label_shift.LabelShift"),
    "+group": _method("group.GroupCalibrator"),
    "+multi": _method("multicalibration.Multicalibration"),
}
"""What may precede or follow any method X: `X+top` maps the top confidence of X, and so on."""

WRAPPERS = {**PREFIXES, **SUFFIXES}

COMPOSED = (
    "sctl+ts",
    "sctl+ets",
    "sctl+pts",
    "sctl+cts-nll",
    "sctl+vs",
    "ts+top",
    "vs+top",
    "sms+top",
    "conf+shape+keep",
)
"""The compositions offered by name; any other X works in `sctl+X` and before the suffixes too."""

ALIASES = {
    "temperature": "ts",
    "vector": "vs",
    "matrix": "ms",
    "dirichlet": "dir",
    "sigmoid": "platt",
    "isotonic": "iso",
    "histogram": "hb",
    "uncalibrated": "none",
    "identity": "none",
}
"""Other words for a short name; letter case never matters."""


def names(task: str | None = "multiclass") -> list[str]:
    """Every listed short name that serves a task, in the order of the tables; all of them for None.

    >>> names()[:3]
    ['none', 'ts', 'ts-bayes']
    """
    _read_entry_points()
    listed = [name for name, method in METHODS.items() if method.listed]
    listed += COMPOSED
    return [name for name in listed if task is None or task in _tasks(name)]


def get(name: str, **parameters: Any) -> Calibrator:
    """An unfitted calibrator by short name; parameters go to its constructor, so a typo raises.

    >>> get("cts", max_sweeps=3)
    ClassTemperatureScaling(max_sweeps=3)
    >>> get("Temperature")
    TemperatureScaling()
    """
    if not isinstance(name, str):
        raise InputError(f"a method's short name must be a text such as 'ts', got a {type(name).__name__}")
    known = resolve(name)
    inner, affix = _unwrapped(known)
    method = {**METHODS, **WRAPPERS}[affix or known]
    return method.load()(*([get(inner)] if affix else []), **{**method.parameters, **parameters})


def _unwrapped(name: str) -> tuple[str, str]:
    """The name inside a composition, and what precedes or follows it: nothing for a plain name."""
    for affix in WRAPPERS:
        inner = name.removeprefix(affix) if affix in PREFIXES else name.removesuffix(affix)
        if inner != name:
            return inner, affix
    return name, ""


def resolve(name: str) -> str:
    """The short name in the table that a name means, or an InputError with the nearest ones.

    >>> resolve("Temperature+TOP")
    'ts+top'
    """
    known = _find(name.strip().lower())
    if known is None:
        raise InputError(
            f"no method is called {name!r}; the nearest are {', '.join(nearest(name))} (see calibrant.methods())"
        )
    return known


def nearest(name: str) -> list[str]:
    """The three known names most similar to a misspelt one."""
    known = [*METHODS, *COMPOSED, *(alias for alias, target in ALIASES.items() if target in METHODS)]
    return difflib.get_close_matches(name.strip().lower(), known, n=3, cutoff=0.0)


def register(name: str, cls: Any, **parameters: Any) -> None:
    """Add a calibrator class under a short name, for `get`, `compare`, `fit`, artifacts and exports.

    A new class is fitted to a few random rows first: the order of the rows must not matter, and a weight of 2 must be
    equivalent to repeating the row. InputError names the contract that fails.

    Artifacts name classes, and only registered ones are loaded. A package does the same for all its users with an entry
    point of the group `calibrant.calibrators`.

    Parameters
    ----------
    name : short name, lower case; no `+`, which joins names
    cls : subclass of `calibrant.Calibrator`
    **parameters : what the short name stands for, given to the constructor

    Examples
    --------
    >>> from calibrant import TemperatureScaling
    >>> register("ts-fine", TemperatureScaling, objective="ece", refine=True)
    >>> get("ts-fine")
    TemperatureScaling(objective='ece', refine=True)
    """
    from calibrant.calibrators.base import Calibrator

    if not isinstance(cls, type) or not issubclass(cls, Calibrator):
        raise InputError(f"register needs a subclass of calibrant.Calibrator for {name!r}, got {cls!r}")
    if not isinstance(name, str) or name != name.strip().lower() or not name or "+" in name or "," in name:
        raise InputError(f"a short name is lower-case text without '+' and ',', got {name!r}")
    method_now = METHODS.get(name)
    if name in ALIASES if method_now is None else method_now.load() is not cls or method_now.parameters != parameters:
        raise InputError(f"the short name {name!r} is taken: choose another one for {cls.__name__}")
    taken = _address(cls.__name__)
    if taken is not None and taken.load() is not cls:
        # an artifact names the class alone
        raise InputError(f"a calibrator class called {cls.__name__} is registered already: rename the class")
    if taken is None:
        probe_calibrator(cls, parameters)
    if method_now is None:
        METHODS[name] = Method(cls.__module__, cls.__name__, parameters, given=cls)
        _tasks.cache_clear()


PROBE_ROWS, PROBE_TOLERANCE = 240, 0.02
"""Rows of the probe, and the difference of two probabilities that it allows for random solvers."""


def probe_calibrator(cls: Any, parameters: dict[str, Any]) -> None:
    """Fit a class to random rows, and raise InputError if the order of rows matters or a weight of 2 is not two rows.

    Misclassified rows weigh 3 more and class 0 weighs 2 more, so that a fit without the weights is far off.
    """
    import numpy as np

    from calibrant.core.errors import said

    if cls.takes_groups or not {"multiclass", "binary"} & set(cls.tasks):
        return
    generator, labels = np.random.default_rng(0), np.arange(PROBE_ROWS) % 3
    logits = 2.4 * np.eye(3)[labels] + 4 * generator.normal(size=(PROBE_ROWS, 3))
    counts = 1 + 3 * (logits.argmax(axis=1) != labels) + 2 * (labels == 0)
    if "multiclass" not in cls.tasks:
        logits, labels = logits[:, 0] - logits[:, 1], (labels == 0).astype(np.int64)

    def predict(rows: Any, weights: Any = None) -> Any:
        found = cls(**parameters).fit(logits[rows], labels[rows], sample_weight=weights).predict_proba(logits)
        if found.shape != (PROBE_ROWS, labels.max() + 1) or not np.isfinite(found).all():
            raise InputError(f"predict_proba returned NaN, infinity or the shape {found.shape}")
        return found

    rows = np.arange(PROBE_ROWS)
    try:
        with said():
            given, weighted = predict(rows), predict(rows, counts.astype(np.float64))
            shuffled, repeated = predict(generator.permutation(rows)), predict(np.repeat(rows, counts))
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(f"{cls.__name__} fails on {PROBE_ROWS} random rows: {reason}") from error
    for one, other, contract in (
        (given, shuffled, "the order of the rows must not matter"),
        (weighted, repeated, "a weight of 2 must be equivalent to repeating the row (use rows.weights)"),
    ):
        off = float(np.abs(one - other).max())
        if off > PROBE_TOLERANCE:
            raise InputError(f"{cls.__name__} breaks a contract: {contract}, but probabilities differ by {off:.2g}")


def find_class(name: str) -> Any:
    """A registered class by its class name, or None."""
    method = _address(name)
    if method is None:
        _read_entry_points()
        method = _address(name)
    return None if method is None else method.load()


def is_around_model(class_name: Any) -> bool:
    """Whether a class of this name is learned around a network; answered without importing it."""
    return any(method.around_model and method.class_name == class_name for method in _every())


def class_names() -> dict[str, str]:
    """Class name → module of every built-in method."""
    return {method.class_name: method.module for method in _every() if method.given is None}


def _every() -> tuple[Method, ...]:
    return (*METHODS.values(), *WRAPPERS.values())


def _address(class_name: str) -> Method | None:
    return next((method for method in _every() if method.class_name == class_name), None)


def _find(name: str) -> str | None:
    """The canonical form of a name: aliases replaced inside compositions, or None where a part is unknown."""
    inner, affix = _unwrapped(name)
    if affix:
        known = _find(inner)
        return known and (affix + known if affix in PREFIXES else known + affix)
    name = ALIASES.get(name, name)
    if name not in METHODS:
        _read_entry_points()
    return name if name in METHODS else None


@cache
def _tasks(name: str) -> tuple[str, ...]:
    return tuple(get(name).tasks)


@cache
def _read_entry_points() -> None:
    """Add the methods of installed packages; a broken one is reported and left out."""
    import warnings

    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            register(point.name, point.load())
        except Exception as error:
            reason = " ".join(str(error).split())
            warnings.warn(f"the calibrator {point.name} ({point.value}) was left out: {reason}", stacklevel=2)


FACTS = ("keeps_prediction", "keeps_ranking", "additive", "requires_logits")


class MethodTable(list[dict[str, Any]]):
    """Rows of `methods()`: a list of dictionaries that prints as a table."""

    def __repr__(self) -> str:
        if not self:
            return "no methods"
        columns = list(self[0])

        def cell(value: Any) -> str:
            if isinstance(value, bool):
                return "yes" if value else "-"
            return ", ".join(value) if isinstance(value, tuple) else str(value)

        cells = [[cell(row[column]) for column in columns] for row in self]
        widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (columns, *cells)
        )


def methods(task: str | None = None) -> MethodTable:
    """The table of short names: class, tasks and facts of each, as a list of dictionaries that prints well.

    A fact is that of `task`, or, where none is given, of every task that the method serves: "shape" keeps predictions
    of several classes, but not those of one score per row.

    >>> row = next(row for row in methods() if row["name"] == "ts")
    >>> row["class"], row["keeps_prediction"]
    ('TemperatureScaling', True)
    """
    rows = []
    for name in names(task):
        one = get(name)
        facts = dict.fromkeys(FACTS, True)
        for served in one.tasks if task is None else (task,):
            one.task_ = served
            facts = {fact: held and bool(getattr(one, fact)) for fact, held in facts.items()}
        rows.append({"name": name, "class": type(one).__name__, "tasks": tuple(one.tasks), **facts})
    return MethodTable(rows)
