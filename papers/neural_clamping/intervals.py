"""Paired intervals of Neural Clamping against output calibrators, from the logits that `clamp.py` kept.

    python papers/neural_clamping/intervals.py FOLDER --labels ../shared/data/zoo/c100_resnet20_ce.npz

The kept logits are too large for the repository; what comes out is in `results/NETWORK-intervals.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from outputs import METHODS
from scipy import sparse

from calibrant.core.bins import mass_index, width_index
from calibrant.core.softmax import log_softmax

HERE = Path(__file__).parent
RESAMPLES, N_BINS = 1000, 15
COLUMNS = ("accuracy", "entropy", "ece", "ace", "nll", "sce")
OWN = "its own T, without δ"
"""The row of table 3 that keeps the temperature of the joint fit and leaves δ out."""


def main() -> int:
    """Every network whose logits are in the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--labels", type=Path, required=True, help="file with val_labels and test_labels")
    parser.add_argument(
        "--networks", nargs="+", default=["c100_resnet20_ce", "c100_resnet18"], help="one labels file, so one dataset"
    )
    options = parser.parse_args()
    with np.load(options.labels) as file:
        labels = [file[f"{part}_labels"].astype(np.int64) for part in ("val", "test")]
    for network in options.networks:
        with np.load(options.folder / f"{network}-logits.npz") as file:
            arrays = {name: file[name].astype(np.float64) for name in file.files}
        study = json.loads((HERE / "results" / f"{network}-clamping.json").read_text(encoding="utf-8"))
        arrays = {name: values for name, values in arrays.items() if not name.endswith("rate=0.1")}
        result = network_study(arrays, *labels, study)
        path = HERE / "results" / f"{network}-intervals.json"
        path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"wrote {path}", flush=True)
    return 0


def temperatures(study: Any) -> dict[str, float]:
    """T of the first seed of every kind of run, by the name of its logits."""
    runs = [*study["runs"], *study.get("printed", {}).get("runs", [])]
    return {
        f"γ={one['gamma']:g} λ={one['penalty']:g} {one['start']} rate={one['rate']:g}": one["temperature"]
        for one in runs
        if one["seed"] == 0 and "temperature" in one
    }


def network_study(arrays: dict[str, np.ndarray], val_labels: np.ndarray, labels: np.ndarray, study: Any) -> Any:
    """Figures of every method and clamping, and differences of each clamping to each method with 95% intervals."""
    val, test = arrays.pop("val"), arrays.pop("test")
    outputs = {"No calibration": test, "T alone, same γ": test / study["T alone"]["temperature"]}
    for name, make in METHODS.items():
        outputs[name] = np.asarray(make().fit(val, val_labels).transform(test))
        print(name, flush=True)
    own = {name: test / temperature for name, temperature in temperatures(study).items() if name in arrays}
    generator = np.random.default_rng(0)
    picks = [generator.integers(0, len(labels), len(labels)) for _ in range(RESAMPLES)]
    counts = np.stack([np.bincount(pick, minlength=len(labels)) for pick in picks]).astype(np.float64)
    every = outputs | arrays | {f"{OWN} ({name})": logits for name, logits in own.items()}
    values, drawn = {}, {}
    for name, logits in every.items():
        columns = columns_of(logits, labels)
        errors = class_errors(logits, labels, np.vstack([np.ones(len(labels)), counts]))
        values[name] = np.array([*figures(columns), errors[0]])
        drawn[name] = np.column_stack([np.array([figures(columns[pick]) for pick in picks]), errors[1:]])
    differences = {}
    for name in arrays:
        others = {other: other for other in outputs} | {OWN: f"{OWN} ({name})"}
        differences[name] = {
            word: {
                column: interval(values[name] - values[other], drawn[name] - drawn[other], place)
                for place, column in enumerate(COLUMNS)
            }
            for word, other in others.items()
            if other in values
        }
    rows = {name: dict(zip(COLUMNS, map(float, np.round(value, 6)), strict=True)) for name, value in values.items()}
    return {"rows": rows, "differences": differences}


def interval(value: np.ndarray, draws: np.ndarray, place: int) -> list[float]:
    """Value, low and high of one column; the draws recentred, since a resampled ECE is biased upwards."""
    recentred = value[place] + draws[:, place] - draws[:, place].mean()
    return [round(float(one), 6) for one in (value[place], *np.quantile(recentred, [0.025, 0.975]))]


def class_errors(logits: np.ndarray, labels: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """SCE (R,): mean over classes of the binned gap of the probability of each class, rows as often as counted."""
    p = np.exp(log_softmax(logits))
    n, n_classes = p.shape
    cell = width_index(p.ravel(), N_BINS) + N_BINS * np.tile(np.arange(n_classes), n)
    p[np.arange(n), labels] -= 1
    gaps = sparse.csr_array((p.ravel(), (np.repeat(np.arange(n), n_classes), cell)), shape=(n, N_BINS * n_classes))
    return np.abs((gaps.T @ counts.T).T).sum(axis=1) / n / n_classes


def columns_of(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Confidence, correctness, entropy and log loss of each row (n, 4)."""
    logs = log_softmax(logits)
    p = np.exp(logs)
    own = -logs[np.arange(len(labels)), labels]
    return np.column_stack([p.max(axis=1), p.argmax(axis=1) == labels, -(p * logs).sum(axis=1), own])


def figures(columns: np.ndarray) -> tuple[float, ...]:
    """The figures of some rows, in the order of COLUMNS."""
    confidence, correct, entropy, loss = columns.T
    errors = [
        np.abs(np.bincount(index, correct - confidence, minlength=N_BINS)).sum() / len(confidence)
        for index in (width_index(confidence, N_BINS), mass_index(confidence, N_BINS))
    ]
    return float(correct.mean()), float(entropy.mean()), float(errors[0]), float(errors[1]), float(loss.mean())


if __name__ == "__main__":
    raise SystemExit(main())
