"""`calibrant info cal.safetensors`: what an artifact is, learned when, from what, how good."""

from __future__ import annotations

import os
from typing import Any

from calibrant.cli import options
from calibrant.cli.terminal import answer, printable
from calibrant.metrics.record import facts as metric_facts
from calibrant.report.methods import learned
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
    return {
        "method": artifact.method,
        "task": calibrator.task_,
        "n_classes": artifact.n_classes,
        "kind": artifact.kind,
        "class_names": None if artifact.class_names is None else list(artifact.class_names),
        "keeps_prediction": bool(calibrator.keeps_prediction),
        **{name: getattr(artifact, name) for name in ("created", "source", "n", "fingerprint", "before", "after")},
        "parameters": {name: _plain(value) for name, value in sorted(given.items())},
        "learned": dict(sorted(learned(calibrator))),
        "digest": digest,
        "bytes": size,
        "format": artifact.format,
        "library": artifact.library,
    }


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
