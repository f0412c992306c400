"""Measurements of Neural Clamping and output calibrators on resamples of the test rows, from the logits of `clamp.py`.

    python papers/neural_clamping/intervals.py FOLDER --labels ../shared/data/zoo/c100_resnet20_ce.npz

The logits are too large for the repository; `results/NETWORK-clamping.json` and `results/measurements.npz` are not.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from outputs import METHODS
from scipy import sparse

from calibrant.core.bins import mass_index, width_index
from calibrant.core.softmax import log_softmax
from studies.measuring import RESOLUTION, Estimate, read_measurements, store

HERE = Path(__file__).parent
RESAMPLES, N_BINS = 1000, 15
COLUMNS = ("accuracy", "entropy", "ece", "ace", "nll", "sce")
OWN = "its own T, without δ"
"""The row of table 3 that keeps the temperature of the joint fit and leaves δ out."""


def main() -> int:
    """Measure the networks whose results are in the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--labels", type=Path, required=True, help="file with val_labels and test_labels")
    options = parser.parse_args()
    with np.load(options.labels) as file:
        labels = [file[f"{part}_labels"].astype(np.int64) for part in ("val", "test")]
    path = HERE / "results" / "measurements.npz"
    estimates = read_measurements(path) if path.exists() else {}
    for results in sorted(options.folder.glob("*.json")):
        network, arrays = results.stem, {}
        for part in sorted(options.folder.glob(f"{network}-logits-*.npz")):
            with np.load(part) as file:
                arrays |= {name: file[name].astype(np.float64) for name in file.files}
        study = json.loads(results.read_text(encoding="utf-8"))
        estimates = {name: one for name, one in estimates.items() if not name.startswith(f"{network}/")}
        estimates |= measure_network(network, arrays, *labels, study)
        (HERE / "results" / f"{network}-clamping.json").write_text(json.dumps(study) + "\n", encoding="utf-8")
        print(f"measured {network}", flush=True)
    store(estimates, path)
    return 0


def temperatures(study: Any) -> dict[str, float]:
    """T of the first seed of each kind of run, by the name of its logits."""
    runs = [(run, "") for run in study["runs"]]
    for section in ("published", "published_small_start"):
        runs += [(run, " published") for run in study.get(section, {}).get("runs", [])]
    return {
        f"γ={run['gamma']:g} λ={run['penalty']:g} {run['start']} rate={run['rate']:g}{kind}": run["temperature"]
        for run, kind in runs
        if run["seed"] == 0 and "temperature" in run
    }


def measure_network(
    network: str, arrays: dict[str, np.ndarray], val_labels: np.ndarray, labels: np.ndarray, study: Any
) -> dict[str, Estimate]:
    """The columns of each method and clamping, by NETWORK/METHOD/COLUMN."""
    val, test = arrays.pop("val"), arrays.pop("test")
    methods = {"No calibration": test, "T alone, same γ": test / study["T alone"]["temperature"], **arrays}
    for name, make in METHODS.items():
        methods[name] = np.asarray(make().fit(val, val_labels).transform(test))
        print(name, flush=True)
    own = {f"{OWN} ({name})": test / one for name, one in temperatures(study).items() if name in arrays}
    generator = np.random.default_rng(0)
    picks = [generator.integers(0, len(labels), len(labels)) for _ in range(RESAMPLES)]
    counts = np.stack([np.bincount(pick, minlength=len(labels)) for pick in picks]).astype(np.float64)
    found = {}
    for name, logits in (methods | own).items():
        columns = columns_of(logits, labels)
        errors = class_errors(logits, labels, np.vstack([np.ones(len(labels)), counts]))
        values = np.array([*figures(columns), errors[0]])
        draws = np.column_stack([np.array([figures(columns[pick]) for pick in picks]), errors[1:]])
        # recentred, since a resampled ECE is biased upwards
        deviations = RESOLUTION * np.rint((draws - draws.mean(axis=0)) / RESOLUTION)
        for place, column in enumerate(COLUMNS):
            found[f"{network}/{name}/{column}"] = Estimate(float(values[place]), values[place] + deviations[:, place])
    return found


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
