"""Post-hoc methods on networks whose logits were kept: temperatures, Dirichlet and class-wise scaling (table 5).

    python papers/soft_objectives/post_hoc.py LOGITS.npz … --labels ../shared/data/zoo/c100_resnet20_ce.npz

The kept logits are too large for the repository; what comes out is added to `results/post-hoc.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from figures import fit_temperature

import calibrant as cal
from calibrant.core.bins import mass_index
from calibrant.core.softmax import softmax

HERE = Path(__file__).parent
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "TS": ("ts", {}),
    "TS-SB-ECE": ("ts-soft", {}),
    "TS-SB-ECE, label form": ("ts-soft", {"weighting": "label"}),
    "Dirichlet (ODIR)": ("dir", {}),
    "vector scaling": ("vs", {}),
}
RESAMPLES, N_BINS = 500, 15
HARD = "TS-HB-ECE, ℓ₂"
"""The temperature of lowest equal-width ECE in the paper's norm."""


def main() -> int:
    """Fit on val, measure on test, with paired resamples of the test rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logits", type=Path, nargs="+", help="files with arrays 'NAME val' and 'NAME test'")
    parser.add_argument("--labels", type=Path, required=True, help="file with val_labels and test_labels")
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the names of networks")
    options = parser.parse_args()
    with np.load(options.labels) as file:
        labels = {part: file[f"{part}_labels"].astype(np.int64) for part in ("val", "test")}
    kept = HERE / "results" / "post-hoc.json"
    found = json.loads(kept.read_text(encoding="utf-8"))
    for path in options.logits:
        with np.load(path) as file:
            for name in sorted({key.rsplit(" ", 1)[0] for key in file.files if key.endswith(" val")}):
                if not any(word in name for word in options.only):
                    continue
                val, test = (file[f"{name} {part}"].astype(np.float64) for part in ("val", "test"))
                found[name] = study(val, labels["val"], test, labels["test"])
                print(name, flush=True)
    kept.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return 0


def study(val: np.ndarray, val_labels: np.ndarray, test: np.ndarray, labels: np.ndarray) -> dict[str, list[str]]:
    """Accuracy, ECE₂ and its difference to TS of every method."""
    generator = np.random.default_rng(0)
    picks = [generator.integers(0, len(labels), len(labels)) for _ in range(RESAMPLES)]
    columns = {"none": top_label(test, labels)}
    for name, (short, parameters) in METHODS.items():
        columns[name] = top_label(cal.get(short, **parameters).fit(val, val_labels).transform(test), labels)
    hard = fit_temperature(torch.from_numpy(val), torch.from_numpy(val_labels), "hard_ece")
    columns[HARD] = top_label(test / hard, labels)
    errors = {
        name: np.array([error(*(part[pick] for part in pair)) for pick in picks]) for name, pair in columns.items()
    }
    rows = {}
    for name, (confidence, correct) in columns.items():
        value, base = error(confidence, correct), error(*columns["TS"])
        draws = errors[name] - errors["TS"]
        draws = value - base + draws - draws.mean()
        low, high = np.quantile(draws, [0.025, 0.975])
        difference = f"{100 * (value - base):+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]".replace("-", "−")
        rows[name] = [f"{100 * correct.mean():.2f}", f"{100 * value:.2f}", "" if name == "TS" else difference]
    return rows


def top_label(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Confidence and correctness of each row."""
    p = softmax(np.asarray(logits, dtype=np.float64))
    return p.max(axis=1), (p.argmax(axis=1) == labels).astype(np.float64)


def error(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Equal-mass ECE₂."""
    index = mass_index(confidence, N_BINS)
    count = np.bincount(index, minlength=N_BINS)
    gap = np.bincount(index, correct - confidence, minlength=N_BINS) / np.maximum(count, 1)
    return float(np.sqrt((count / len(index)) @ gap**2))


if __name__ == "__main__":
    raise SystemExit(main())
