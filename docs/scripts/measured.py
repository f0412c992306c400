"""Measure every method on the two embedded data sets: the tables and decision guide of the docs come from here.

Run from the checkout: `python docs/scripts/measured.py` (a few minutes), then `python docs/scripts/tables.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import calibrant
from calibrant.calibrators.registry import names
from calibrant.evaluation.results import MethodRow

TARGET = Path(__file__).resolve().parents[1] / "data" / "measured.json"
KEPT = ("ece", "adaptive_ece", "classwise_ece", "nll", "brier", "accuracy")


def main() -> None:
    """Fit on val, measure on test, keep what the tables show."""
    data_sets = {name: study(name) for name in calibrant.datasets.names()}
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(json.dumps({"version": calibrant.__version__, "data": data_sets}, indent=1) + "\n")
    print(TARGET)


def study(name: str) -> dict[str, object]:
    """One data set: sizes, noise floor, and one entry a method."""
    data = calibrant.datasets.load(name)
    table = calibrant.compare(data.val, data.test, names())
    return {
        "n_val": table.n_val,
        "n_test": table.n_test,
        "n_classes": table.n_classes,
        "noise_floor": round(table.noise_floor.mean, 5),
        "best": table.best,
        "methods": {row.method: entry(row) for row in table.rows},
    }


def entry(row: MethodRow) -> dict[str, object]:
    """The figures of one method; fit seconds are those of a machine at work, good for orders of magnitude only."""
    if row.error:
        return {"error": row.error}
    figures: dict[str, object] = {name: round(row.metrics[name].value, 5) for name in KEPT if name in row.metrics}
    return {
        **figures,
        "changed": round(row.changed_predictions, 5),
        "ties_best": row.ties_best,
        "parameters": row.n_parameters,
        "fit_seconds": float(f"{row.fit_seconds:.1g}"),
    }


if __name__ == "__main__":
    main()
