"""How many fit rows does a method need? Test NLL after fits on small random parts of the embedded validation rows.

Run from the checkout: `python docs/scripts/few_rows.py` (a minute or two), then `python docs/scripts/tables.py`.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np

import calibrant

TARGET = Path(__file__).resolve().parents[1] / "data" / "few_rows.json"
METHODS = ("none", "ts", "ts+top", "shape", "vs")
SIZES = (200, 500, 1000)
DRAWS = 8


def main() -> None:
    """Mean over the draws, for each data set, size and method."""
    warnings.simplefilter("ignore", calibrant.FitWarning)  # classes are absent from small draws, as in life
    found = [study(name, size) for name in calibrant.datasets.names() for size in SIZES]
    TARGET.write_text(json.dumps({"draws": DRAWS, "rows": found}, indent=1) + "\n")
    print(TARGET)


def study(name: str, size: int) -> dict[str, object]:
    """One line of the table."""
    data = calibrant.datasets.load(name)
    test_logits, test_labels = data.test.logits, data.test.labels
    scores: dict[str, list[float]] = {method: [] for method in METHODS}
    for seed in range(DRAWS):
        rows = np.random.default_rng(seed).permutation(data.val.n)[:size]
        for method, values in scores.items():
            fitted = calibrant.get(method).fit(data.val.logits[rows], data.val.labels[rows])
            values.append(calibrant.metrics.nll(fitted.transform(test_logits), test_labels, from_logits=True))
    means = {method: round(float(np.mean(values)), 4) for method, values in scores.items()}
    return {"data": name, "fit_rows": size, "nll": means}


if __name__ == "__main__":
    main()
