"""What a method learns: names, shapes and ranges, declared in its class and checked when an artifact is loaded.

A shape is a tuple of numbers and letters. K is the number of classes (2 for binary scores), C is 1 or K (one map, or
one map per class), any other letter is free but the same wherever it occurs within one calibrator, and `B+1` is one
more than B.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator

from calibrant.core.arrays import Array
from calibrant.core.errors import InputError

LARGE = 1e30
SMALL = 1e-30
"""What a parameter may be: float32 holds it, its inverse and its product with an ordinary logit."""

TASKS = ("multiclass", "binary", "multilabel")
"""What a calibrator may be fitted to: logits n×K, one logit per row (n,), or one per row and label (n×L)."""


class Learned(NamedTuple):
    """Shape and inclusive range of one learned name.

    kind "array" holds numbers of this shape (None: any shape), "calibrator" a fitted calibrator, and "record"
    describes the fit and is never read by a prediction. `many` is a list of such values. Names that are not `free`,
    such as the edges of bins, do not count as parameters of the method. An `optional` name is only learned with some
    settings: the class checks which names go together. A class without fit rows gets 0, of a `shared` name what the
    others have in the middle (of a matrix on its diagonal).
    """

    shape: tuple[str | int, ...] | None = None
    low: float = -LARGE
    high: float = LARGE
    increasing: bool = False
    kind: str = "array"
    many: bool = False
    free: bool = True
    optional: bool = False
    shared: bool = False


TEMPERATURE = Learned((), SMALL, LARGE)
PER_CLASS, MATRIX = Learned(("K",)), Learned(("K", "K"))
SCALES, SCALE_MATRIX = PER_CLASS._replace(shared=True), MATRIX._replace(shared=True)
TEMPERATURES = SCALES._replace(low=SMALL)
EDGES = Learned(("B+1",), 0.0, 1.0, increasing=True, free=False)
CHANCE = (1e-12, 1.0 - 1e-12)
"""Range of probabilities whose log-odds are taken."""

INNER = Learned(kind="calibrator")
INNERS = INNER._replace(many=True)
RECORD = Learned(kind="record")

EVERY_FIT: Mapping[str, Learned] = dict.fromkeys(
    (
        "n_features_in_",
        "feature_names_in_",
        "classes_",
        "task_",
        "n_iter_",
        "objective_trace_",
        "fit_seconds_",
        "n_rows_",
        "fingerprint_",
        "kind_",
        "score_columns_",
        "log_floor_",
    ),
    RECORD,
)
"""What any fit may leave behind besides the method's own names."""


def spec_of(kind: Any, task: str = "multiclass") -> dict[str, Learned]:
    """Every name that a class may have learned in a task."""
    return {**EVERY_FIT, **_own(kind, task)}


def _own(kind: Any, task: str) -> Mapping[str, Learned]:
    """The names that a class declares for a task."""
    return kind.learns_binary if task == "binary" and kind.learns_binary is not None else kind.learns


def check_declared(calibrator: Any) -> None:
    """Raise unless the names that a fit has set are those that its class declares."""
    kind = type(calibrator)
    known = {*EVERY_FIT, *kind.learns, *(kind.learns_binary or ())}  # an object may be fitted to both tasks in turn
    if extra := [name for name in vars(calibrator) if name.endswith("_") and name not in known]:
        raise InputError(
            f"{kind.__name__} learned {', '.join(extra)}, which its class does not declare: add "
            f"learns = {{{extra[0]!r}: cal.Learned(shape)}}, with () for a number or ('K',) for one per class"
        )


def learned_values(calibrator: Any) -> Iterator[tuple[str, Learned, Any]]:
    """Name, rule and value of everything that a fitted calibrator's predictions read."""
    for name, rule in _own(calibrator, calibrator.task_).items():
        if rule.kind != "record" and not (rule.optional and name not in vars(calibrator)):
            yield name, rule, getattr(calibrator, name)


def inner_calibrators(calibrator: Any) -> Iterator[Any]:
    """The fitted calibrators inside one."""
    for _, rule, value in learned_values(calibrator):
        if rule.kind == "calibrator":
            yield from value if rule.many else [value]


def scales_classes(calibrator: Any) -> bool:
    """Whether it, or one inside it, learned numbers of single classes."""
    shared = any(rule.shared for rule in type(calibrator).learns.values())
    return shared or any(map(scales_classes, inner_calibrators(calibrator)))


def widen(calibrator: Any, present: Array, n_classes: int) -> None:
    """Give what was learned over the columns of the present classes the shape of all classes."""
    for name, rule in type(calibrator).learns.items():
        if rule.shape not in {PER_CLASS.shape, MATRIX.shape}:
            continue
        value = np.asarray(getattr(calibrator, name))
        if rule.shared:
            whole = np.full(n_classes, np.median(value if value.ndim == 1 else np.diagonal(value)))
        else:
            whole = np.zeros(n_classes)
            # a constant added to all biases changes nothing: that of an absent class lies in their middle
            value = value - np.median(value) if value.ndim == 1 else value
        if value.ndim == 2:
            whole = np.diag(whole)
        whole[np.ix_(*[present] * value.ndim)] = value
        setattr(calibrator, name, whole)


def check_learned(calibrator: Any, n_classes: int | None) -> None:
    """Raise InputError unless a calibrator, and each one inside it, learned what its class declares."""
    name = type(calibrator).__name__
    if n_classes is None:
        # learned around a network: there is no K
        _check_names(name, calibrator.artifact_state(), dict(type(calibrator).learns), {"K": 0})
        return
    learned = {key: value for key, value in vars(calibrator).items() if key.endswith("_")}
    task = learned.get("task_", "multiclass")
    if task not in TASKS:
        raise InputError(f"{name} was fitted to the task {task!r}, but there are: {', '.join(TASKS)}")
    expected = 1 if task == "binary" else n_classes
    if learned.get("n_features_in_") != expected:
        raise InputError(
            f"{name} was fitted on {learned.get('n_features_in_')!r} classes, but the file says {expected}"
        )
    if task == "binary" and n_classes != 2:
        raise InputError(f"{name} was fitted on binary scores, but the file says {n_classes} classes")
    # the maps of single labels have one score per row
    sizes = {"K": n_classes, "inner": 2 if task == "multilabel" else n_classes}
    _check_names(name, learned, spec_of(type(calibrator), task), sizes)
    if sizes.get("C", 1) not in (1, n_classes):
        raise InputError(f"{name} holds {sizes['C']} maps, but needs 1 or {n_classes}")
    calibrator._check_learned()


def _check_names(name: str, learned: dict[str, Any], spec: dict[str, Learned], sizes: dict[str, int]) -> None:
    for key, rule in spec.items():
        if key not in learned and rule.kind != "record" and not rule.optional:
            raise InputError(f"{name} lacks its learned {key}")
    for key, value in learned.items():
        if key not in spec:
            raise InputError(f"{name} cannot have learned a {key!r}: its class declares {', '.join(spec)}")
        _check_value(f"{name}.{key}", value, spec[key], sizes)


def _check_value(where: str, value: Any, rule: Learned, sizes: dict[str, int]) -> None:
    if rule.many:
        if not isinstance(value, (list, tuple)) or not (value or rule.kind == "calibrator"):
            raise InputError(f"{where} must be a list of {rule.kind}s, got a {type(value).__name__}")
        for item in value:
            _check_value(where, item, rule._replace(many=False), sizes)
        return
    if rule.kind == "record":
        _check_record(where, value)
        return
    if rule.kind == "calibrator":
        if not isinstance(value, BaseEstimator):
            raise InputError(f"{where} must be a fitted calibrator, got a {type(value).__name__}")
        check_learned(value, sizes.get("inner", sizes["K"]))
        return
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where} must hold numbers") from error
    if rule.shape is not None:
        expected = tuple(_size(symbol, length, sizes) for symbol, length in zip(rule.shape, array.shape, strict=False))
        if len(rule.shape) != array.ndim or expected != array.shape:
            raise InputError(f"{where} has shape {array.shape}, but needs {rule.shape} with K = {sizes['K']}")
    # written so that a NaN fails too
    if not ((array >= rule.low) & (array <= rule.high)).all():
        raise InputError(f"{where} holds values outside [{rule.low:g}, {rule.high:g}]")
    if rule.increasing and (np.diff(array) < 0).any():
        raise InputError(f"{where} must not decrease")


def _size(symbol: str | int, length: int, sizes: dict[str, int]) -> int:
    """The length a dimension must have; the first array that has a free letter settles it."""
    if isinstance(symbol, int):
        return symbol
    letter, _, plus = symbol.partition("+")
    extra = int(plus or 0)
    return sizes.setdefault(letter, max(length - extra, 1)) + extra


def _check_record(where: str, value: Any) -> None:
    """A record may hold anything but a calibrator, which would go unchecked."""
    if isinstance(value, BaseEstimator):
        raise InputError(f"{where} describes the fit: it must not hold a calibrator")
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    for item in items:
        _check_record(where, item)
