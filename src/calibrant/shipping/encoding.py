"""A calibrator as plain data and back: JSON for structure, arrays beside it, never code.

A specification is `{"class", "parameters", "learned"}`. Classes are found by name in the registry, never by a path
from the file. Values are JSON scalars and lists; everything else is an object with one key that says what it is:

    {"tensor": name}            an array of the file; with "scalar": true a numpy scalar of that dtype
    {"calibrator": spec}        a calibrator inside a calibrator
    {"tuple": [...]}, {"dict": {...}}, {"strings": [...]}, {"number": "nan" | "inf" | "-inf"}
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.learned import spec_of
from calibrant.calibrators.registry import find_class
from calibrant.core.errors import InputError

DTYPES = frozenset({"float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"})
DERIVED = frozenset({"classes_"})
"""Learned names that follow from the number of classes and are not stored."""

MAX_DEPTH = 12
MAX_ITEMS = 1_000_000
MAX_COUNT = 10_000_000
"""A count such as n_bins in a file may not ask for more than this (a seed may)."""
MAX_REAL = 1e12


class Encoder:
    """Collects the arrays of a calibrator while writing its specification."""

    def __init__(self) -> None:
        self.tensors: dict[str, np.ndarray] = {}

    def calibrator(self, calibrator: Any, where: str = "") -> dict[str, Any]:
        """The specification of a calibrator; its arrays go to `tensors` under names that start with `where`."""
        name = type(calibrator).__name__
        if type(calibrator) is not find_class(name):
            raise InputError(f"{name} is not one of calibrant's calibrators: calibrant.register it before saving it")
        parameters = {key: getattr(calibrator, key) for key in _constructor(type(calibrator))}
        state = saved_state(calibrator, parameters)
        # private names hold leftovers of a fit; `to_bytes` proves that predictions do not need it
        learned = {key: value for key, value in state.items() if key not in DERIVED and not key.startswith("_")}
        declared = _declared(type(calibrator), learned.get("task_"))
        stray = [key for key in learned if key not in declared]
        if stray:
            raise InputError(
                f"{name} holds {', '.join(stray)}, which its class does not declare in `learns`: not saved"
            )
        return {
            "class": name,
            "parameters": {key: self.value(value, f"{where}{key}") for key, value in parameters.items()},
            "learned": {key: self.value(value, f"{where}{key}") for key, value in learned.items()},
        }

    def value(self, value: Any, where: str) -> Any:
        """One value as JSON."""
        if type(value).__module__.startswith("torch"):
            value = value.detach().cpu().numpy() if hasattr(value, "detach") else str(value)
        if value is None or isinstance(value, (bool, str)) or type(value) is int:
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"number": str(value)}
        if isinstance(value, list):
            return [self.value(item, f"{where}.{i}") for i, item in enumerate(value)]
        return self._object(value, where)

    def _object(self, value: Any, where: str) -> dict[str, Any]:
        if isinstance(value, np.ndarray) and _holds_texts(value):
            described: dict[str, Any] = {"strings": [str(item) for item in value]}
        elif isinstance(value, np.ndarray):
            described = {"tensor": self._tensor(value, where)}
        elif isinstance(value, np.generic):
            described = {"tensor": self._tensor(np.asarray(value), where), "scalar": True}
        elif isinstance(value, Calibrator):
            described = {"calibrator": self.calibrator(value, f"{where}.")}
        elif isinstance(value, tuple):
            described = {"tuple": [self.value(item, f"{where}.{i}") for i, item in enumerate(value)]}
        elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
            described = {"dict": {key: self.value(item, f"{where}.{key}") for key, item in value.items()}}
        elif callable(value):
            raise InputError(f"{where} is a function, which an artifact cannot hold: save `calibrator_` instead")
        else:
            raise InputError(f"{where} is a {type(value).__name__}, which an artifact cannot hold")
        return described

    def _tensor(self, array: np.ndarray, where: str) -> str:
        if str(array.dtype) not in DTYPES:
            raise InputError(f"{where} has dtype {array.dtype}, which an artifact cannot hold")
        name, number = where, 1
        while name in self.tensors:
            number += 1
            name = f"{where}~{number}"
        self.tensors[name] = np.ascontiguousarray(array).reshape(array.shape)
        return name


class Decoder:
    """Rebuilds calibrators from specifications and the arrays of one file."""

    def __init__(self, tensors: dict[str, np.ndarray], n_classes: int | None) -> None:
        self.tensors = tensors
        self.n_classes = n_classes
        self.used: set[str] = set()
        self._items = 0

    def calibrator(self, spec: Any, depth: int = 0) -> Any:
        """The calibrator that a specification describes."""
        _need(
            isinstance(spec, dict) and set(spec) == {"class", "parameters", "learned"},
            "a calibrator must have the keys class, parameters and learned",
        )
        name, parameters, learned = spec["class"], spec["parameters"], spec["learned"]
        kind: Any = find_class(str(name))
        _need(kind is not None, f"class {name!r} is not one of calibrant's calibrators: calibrant.register it first")
        _need(
            isinstance(parameters, dict) and isinstance(learned, dict),
            f"parameters and learned of {name} must be objects",
        )
        known = _constructor(kind)
        unknown = sorted(set(parameters) - set(known))
        _need(not unknown, f"{name} has no parameter {unknown[:3]}: if a newer calibrant wrote this file, upgrade")
        settings = {key: self.setting(key, value, depth) for key, value in parameters.items()}
        missing = [key for key, required in known.items() if required and key not in settings]
        _need(not missing, f"{name} lacks its parameter {missing[:3]}")
        calibrator = kind(**settings)
        state = {}
        declared = _declared(kind, learned.get("task_"))
        for key, value in learned.items():
            state[key] = self.value(value, key, depth)
            _need(key in declared, f"{name} cannot have learned a {key!r}")
        if state and self.n_classes is not None:
            state["classes_"] = np.arange(2 if state.get("task_") == "binary" else self.n_classes)
        restore_state(calibrator, state)
        return calibrator

    def setting(self, name: str, value: Any, depth: int) -> Any:
        """A constructor parameter; counts are bounded, so that none can ask for absurd work."""
        decoded = self.value(value, name, depth)
        if isinstance(decoded, (int, float)) and not isinstance(decoded, bool) and name != "seed":
            limit = MAX_COUNT if isinstance(decoded, int) else MAX_REAL
            # an infinite penalty is a way to leave a part out
            _need(
                abs(decoded) <= limit or decoded == math.inf,
                f"parameter {name} is {decoded:.6g}, above the limit of {limit:g}",
            )
        return decoded

    def value(self, value: Any, where: str, depth: int) -> Any:
        """The Python value that JSON stands for."""
        self._items += 1
        _need(depth <= MAX_DEPTH, f"{where} is nested deeper than {MAX_DEPTH} levels")
        _need(self._items <= MAX_ITEMS, f"the header holds more than {MAX_ITEMS} values")
        if value is None or isinstance(value, (bool, str, int, float)):
            # JSON spells 1e999, which Python reads as infinity
            _need(not isinstance(value, float) or math.isfinite(value), f"{where} holds a number that is not finite")
            return value
        if isinstance(value, list):
            return [self.value(item, where, depth + 1) for item in value]
        kinds = sorted(set(value) - {"scalar"})
        _need(len(kinds) == 1, f"{where} must be described by one key, got {sorted(value)[:4]}")
        return self._object(kinds[0], value, where, depth)

    def _object(self, kind: str, value: dict[str, Any], where: str, depth: int) -> Any:
        inner = value[kind]
        if kind == "tensor":
            return self._tensor(inner, where, value.get("scalar", False))
        if kind == "calibrator":
            return self.calibrator(inner, depth + 1)
        if kind == "tuple" and isinstance(inner, list):
            return tuple(self.value(item, where, depth + 1) for item in inner)
        if kind == "dict" and isinstance(inner, dict):
            return {key: self.value(item, f"{where}.{key}", depth + 1) for key, item in inner.items()}
        if kind == "strings" and isinstance(inner, list) and all(isinstance(item, str) for item in inner):
            return np.array(inner, dtype=object)
        if kind == "number" and inner in ("nan", "inf", "-inf"):
            return float(inner)
        raise InputError(f"{where} is described as {kind!r}, which this calibrant does not know: upgrade it")

    def _tensor(self, name: Any, where: str, scalar: Any) -> Any:
        _need(isinstance(name, str) and name in self.tensors, f"{where} refers to an array that is not in the file")
        self.used.add(name)
        array = self.tensors[name]
        if scalar is not True:
            return array
        _need(array.ndim == 0, f"{where} must be one number, got shape {array.shape}")
        return array[()]


def _holds_texts(array: np.ndarray) -> bool:
    return array.dtype.kind in "OU" and array.ndim == 1 and all(isinstance(item, str) for item in array)


def _constructor(kind: Any) -> dict[str, bool]:
    """The names a constructor takes, and whether each must be given."""
    if kind.__init__ is object.__init__:
        return {}
    given = list(inspect.signature(kind.__init__).parameters.values())[1:]
    return {parameter.name: parameter.default is inspect.Parameter.empty for parameter in given}


def _declared(kind: Any, task: Any) -> set[str]:
    """Learned names that a class declares; one that is learned around a network knows no tasks."""
    return set(spec_of(kind, task) if issubclass(kind, Calibrator) else kind.learns)


def saved_state(calibrator: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """What a fitted calibrator holds beyond its parameters; a class may offer `artifact_state()` instead."""
    if hasattr(calibrator, "artifact_state"):
        return dict(calibrator.artifact_state())
    return {key: value for key, value in vars(calibrator).items() if key not in parameters}


def restore_state(calibrator: Any, state: dict[str, Any]) -> None:
    """Give a new calibrator its learned state; a class may offer `restore_artifact_state(state)` instead."""
    if hasattr(calibrator, "restore_artifact_state"):
        calibrator.restore_artifact_state(state)
        return
    for key, value in state.items():
        setattr(calibrator, key, value)


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(message)
