"""`calibrant info cal.safetensors`: what an artifact is, learned when, from what, how good."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from calibrant.cli import options
from calibrant.cli.terminal import answer, printable
from calibrant.metrics.record import facts as metric_facts
from calibrant.shipping.artifact import digest_of, from_bytes, read_content

MAX_NAMES = 8


def info(artifact: options.Artifact, *, as_json: options.AsJson = False) -> None:
    """Say what an artifact is: method, classes, when and from what it was learned, and how good it was there."""
    content = read_content(artifact)
    facts = _facts(from_bytes(content), digest_of(content), len(content))
    lines = [f"  {name:<12}{printable(text)}" for name, text in _lines(facts)]
    answer(as_json, {"artifact": artifact, **facts}, [os.path.basename(artifact), *lines])


def _facts(artifact: Any, digest: str, size: int) -> dict[str, Any]:
    calibrator = artifact.calibrator
    given = calibrator.get_params(deep=False)
    learned = {name: value for name, value in sorted(vars(calibrator).items()) if name.endswith("_") and name[0] != "_"}
    return {
        "method": artifact.method,
        "task": calibrator.task_,
        "n_classes": artifact.n_classes,
        "kind": artifact.kind,
        "class_names": None if artifact.class_names is None else list(artifact.class_names),
        "keeps_prediction": bool(getattr(calibrator, "keeps_prediction", False)),
        **{name: getattr(artifact, name) for name in ("created", "source", "n", "fingerprint", "before", "after")},
        "parameters": {name: _plain(value) for name, value in sorted(given.items())},
        "learned": {name: _summary(value) for name, value in learned.items() if _is_learned(name, value)},
        "digest": digest,
        "bytes": size,
        "format": artifact.format,
        "library": artifact.library,
    }


def _is_learned(name: str, value: Any) -> bool:
    bookkeeping = {"n_features_in_", "classes_", "n_iter_", "fit_seconds_", "objective_trace_", "task_", "n_rows_"}
    hidden = bookkeeping | {"fingerprint_", "n_parameters_"}
    return name not in hidden and not name.endswith("_trace_") and value is not None


def _summary(value: Any) -> str:
    if hasattr(value, "get_params"):
        return type(value).__name__
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return str(value)[:80]
    if array.size == 0:
        return "empty"
    if array.size <= 4:
        return ", ".join(f"{number:.6g}" for number in array.ravel())
    shape = "×".join(str(size) for size in array.shape)
    return f"{shape} numbers from {array.min():.4g} to {array.max():.4g}"


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)[:200]


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    kept = "keeps every predicted class" if facts["keeps_prediction"] else "may change the predicted class"
    classes = "a network's input" if facts["n_classes"] is None else f"{facts['n_classes']} classes"
    lines = [("method", f"{facts['method']} for {classes}; {kept}")]
    lines.append(("takes", facts["kind"]))
    lines.append(("fitted", f"{facts['created'] or 'at an unknown time'}, from {_origin(facts)}"))
    before, after = facts["before"] or {}, facts["after"] or {}
    for name in after:
        label = metric_facts(name).label
        change = f"{before[name]:.4f} → " if name in before else ""
        lines.append(("fit data", f"{label} {change}{after[name]:.4f}"))
    if after:
        lines.append(("", "measured on the fit data or by cross-validation over it: measure on other data too"))
    lines += [("value", f"{name} = {text}") for name, text in facts["learned"].items()]
    lines += [("option", f"{name} = {value!r}") for name, value in facts["parameters"].items()]
    if facts["class_names"]:
        names = ", ".join(facts["class_names"][:MAX_NAMES])
        lines.append(("classes", names + (", …" if len(facts["class_names"]) > MAX_NAMES else "")))
    written = f"{facts['bytes']:,} bytes, digest {facts['digest'][:12]}, format {facts['format']}"
    return [*lines, ("file", f"{written}, calibrant {facts['library']}")]


def _origin(facts: dict[str, Any]) -> str:
    rows = "an unknown number of rows" if facts["n"] is None else f"{facts['n']:,} rows"
    name = f" of {facts['source']}" if facts["source"] else ""
    mark = f" (fingerprint {facts['fingerprint'][:16]})" if facts["fingerprint"] else ""
    return rows + name + mark
