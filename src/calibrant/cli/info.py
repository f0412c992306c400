"""`calibrant info cal.safetensors`: what an artifact is, learned when, from what, how good."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import calibrant as cal
from calibrant.cli.verbs import Fields, answer, doubts_of, printable, reading_lines, verb
from calibrant.data.opening import READERS, suffix_of
from calibrant.metrics.record import facts as metric_facts
from calibrant.report.wording import learned
from calibrant.shipping.artifact import can_hold_artifact, read_artifact

MAX_NAMES = 8
FIRST_ROWS = 3
FIELDS = (
    "method", "n_classes", "kind", "created", "source", "n", "fingerprint", "before", "after", "digest", "format",
    "library", "class_names", "reading",
)  # fmt: skip


@verb
def info(artifact: str, *, as_json: bool = False) -> None:
    """Say what an artifact is: method, classes, when and from what it was learned, and how good it was there.

    Of predictions: how they are read, classes with counts, other columns, and the first rows.

    Parameters
    ----------
    artifact : A saved calibrator, such as cal.safetensors, or a file of predictions.
    """
    if suffix_of(Path(artifact)) in READERS and Path(artifact).is_file() and not can_hold_artifact(artifact):
        _describe_predictions(artifact, as_json)
        return
    found = read_artifact(artifact)
    calibrator = found.calibrator
    facts = {
        **{name: getattr(found, name) for name in FIELDS},
        "task": calibrator.task_,
        "keeps_prediction": bool(calibrator.keeps_prediction),
        "parameters": {
            name: value if isinstance(value, int | float | str | None) else str(value)[:200]
            for name, value in sorted(calibrator.get_params(deep=False).items())
        },
        "learned": dict(sorted(learned(calibrator))),
        "bytes": os.path.getsize(artifact),
    }
    lines = [f"  {name:<12}{printable(text)}" for name, text in _lines(facts)]
    answer(as_json, {"artifact": artifact, **facts}, [os.path.basename(artifact), *lines])


def _describe_predictions(file: str, as_json: bool) -> None:
    """Print how a file of predictions is read, its classes with counts, other columns, and the first rows."""
    predictions = cal.open_predictions(file, require_labels=False)
    head = predictions[: min(FIRST_ROWS, predictions.n)]
    counts: Fields = {}
    if predictions.has_labels and predictions.task != "multilabel" and predictions.label_shares is None:
        names = predictions.class_names if not predictions.flat and predictions.class_names else None
        numbers, rows = np.unique(predictions.labels, return_counts=True)
        counts = {str(names[k] if names else k): int(n) for k, n in zip(numbers.tolist(), rows.tolist(), strict=True)}
    facts = {
        "n": predictions.n,
        "n_classes": predictions.n_classes,
        "task": predictions.task,
        "kind": predictions.kind,
        "read_as": None if predictions.reading is None else predictions.reading.to_dict(),
        "class_counts": counts,
        "columns": sorted(predictions.extras),
        "first_rows": head.values[:, :MAX_NAMES].tolist() if head.values.ndim > 1 else head.values.tolist(),
    }
    shown = [f"{name} {count:,}" for name, count in list(counts.items())[:MAX_NAMES]]
    shown += ["…"] * (len(counts) > MAX_NAMES)
    cells = [[row] if predictions.flat else row for row in facts["first_rows"]]
    lines = [
        f"{file}  {predictions.n:,} rows, {predictions.task}, {predictions.n_classes} classes, {predictions.kind}",
        *(f"  {line}" for line in reading_lines(predictions)),
        *(f"  doubt: {doubt}" for doubt in doubts_of(predictions)),
        f"  labels: {printable(', '.join(shown)) or 'none'}",
        f"  other columns: {printable(', '.join(facts['columns'][:MAX_NAMES])) or 'none'}",
        "  first rows:",
        *("    " + " ".join(f"{cell:.4g}" for cell in row) for row in cells),
    ]
    answer(as_json, {"file": file, **facts}, lines)


def _lines(facts: Fields) -> Iterator[tuple[str, str]]:
    kept = "keeps every predicted class" if facts["keeps_prediction"] else "may change the predicted class"
    classes = "a network's input" if facts["n_classes"] is None else f"{facts['n_classes']} classes"
    yield "method", f"{facts['method']} for {classes}; {kept}"
    yield "takes", facts["kind"]
    if facts["reading"]:
        yield "reads", facts["reading"]["sentence"]
    rows = "an unknown number of rows" if facts["n"] is None else f"{facts['n']:,} rows"
    name = f" of {facts['source']}" if facts["source"] else ""
    mark = f" (fingerprint {facts['fingerprint'][:16]})" if facts["fingerprint"] else ""
    yield "fitted", f"{facts['created'] or 'at an unknown time'}, from {rows}{name}{mark}"
    before, after = facts["before"] or {}, facts["after"] or {}
    for name, value in after.items():
        change = f"{before[name]:.4f} → " if name in before else ""
        yield "fit data", f"{metric_facts(name).label} {change}{value:.4f}"
    if after:
        yield "", "on the fit data, or by cross-validation: measure on other data too"
    for name, text in facts["learned"].items():
        yield "value", f"{name} = {text}"
    for name, value in facts["parameters"].items():
        yield "option", f"{name} = {value!r}"
    names = facts["class_names"] or ()
    if names:
        yield "classes", ", ".join([*names[:MAX_NAMES], *["…"] * (len(names) > MAX_NAMES)])
    written = f"{facts['bytes']:,} bytes, digest {facts['digest'][:12]}, format {facts['format']}"
    yield "file", f"{written}, calibrant {facts['library']}"
