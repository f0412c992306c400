"""`calibrant info cal.safetensors`: what an artifact is, learned when, from what, how good."""

import os
from collections.abc import Iterator

from calibrant.cli.verbs import Fields, answer, printable, verb
from calibrant.metrics.record import facts as metric_facts
from calibrant.report.wording import learned
from calibrant.shipping.artifact import read_artifact

MAX_NAMES = 8
FIELDS = (
    "method", "n_classes", "kind", "created", "source", "n", "fingerprint", "before", "after", "digest", "format",
    "library", "class_names",
)  # fmt: skip


@verb
def info(artifact: str, *, as_json: bool = False) -> None:
    """Say what an artifact is: method, classes, when and from what it was learned, and how good it was there."""
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


def _lines(facts: Fields) -> Iterator[tuple[str, str]]:
    kept = "keeps every predicted class" if facts["keeps_prediction"] else "may change the predicted class"
    classes = "a network's input" if facts["n_classes"] is None else f"{facts['n_classes']} classes"
    yield "method", f"{facts['method']} for {classes}; {kept}"
    yield "takes", facts["kind"]
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
