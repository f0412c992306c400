"""Quality beside the peers: every method fits `val` and is measured on `test` of every network in a folder.

    PYTHONPATH=src .venv-peers/bin/python benchmarks/quality.py --data ../shared/data/zoo

Ours and the peers' run in one process on the same arrays. Printed: mean test figures over balanced and long-tailed
files, mean ranks, wins, and paired bootstrap intervals of the NLL difference to temperature scaling.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

import calibrant
from calibrant import metrics

FIGURES = ("nll", "brier", "ece", "sce", "accuracy")
OURS = ("none", "ts", "ets", "vs", "sms", "cts", "cws", "iso", "spline", "ts+top", "vs+top", "shape", "conf")
Predict = Callable[[np.ndarray], np.ndarray]
Fit = Callable[[np.ndarray, np.ndarray], Predict]


def ours(name: str) -> Fit:
    def fit(logits: np.ndarray, labels: np.ndarray) -> Predict:
        calibrator = calibrant.AutoCalibrator() if name == "auto" else calibrant.get(name)
        return calibrator.fit(logits, labels).predict_proba

    return fit


def probmetrics(name: str) -> Fit:
    def fit(logits: np.ndarray, labels: np.ndarray) -> Predict:
        import torch
        from probmetrics.calibrators import get_calibrator
        from probmetrics.distributions import CategoricalLogits

        calibrator = get_calibrator(name)
        calibrator.fit_torch(CategoricalLogits(torch.tensor(logits)), torch.tensor(labels))
        return lambda test: (
            calibrator.predict_proba_torch(CategoricalLogits(torch.tensor(test))).get_probs().numpy().astype(np.float64)
        )

    return fit


def sklearn_temperature(logits: np.ndarray, labels: np.ndarray) -> Predict:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    class Scores(ClassifierMixin, BaseEstimator):
        """A fitted classifier whose features are its own scores."""

        def __init__(self, n_classes: int = 2) -> None:
            self.n_classes = n_classes

        def fit(self, features: np.ndarray, target: np.ndarray) -> Scores:
            self.classes_ = np.arange(self.n_classes)
            return self

        def decision_function(self, features: np.ndarray) -> np.ndarray:
            return features

        def predict(self, features: np.ndarray) -> np.ndarray:
            return features.argmax(axis=1)

    scores = Scores(logits.shape[1]).fit(logits, labels)
    return CalibratedClassifierCV(FrozenEstimator(scores), method="temperature").fit(logits, labels).predict_proba


def netcal_temperature(logits: np.ndarray, labels: np.ndarray) -> Predict:
    from netcal.scaling import TemperatureScaling

    def probabilities(values: np.ndarray) -> np.ndarray:
        return metrics_softmax(values.astype(np.float64))

    calibrator = TemperatureScaling()
    calibrator.fit(probabilities(logits), labels)
    return lambda test: calibrator.transform(probabilities(test))


def metrics_softmax(logits: np.ndarray) -> np.ndarray:
    from calibrant.core.softmax import softmax

    return softmax(logits)


def methods() -> dict[str, Fit]:
    return {
        "AutoCalibrator": ours("auto"),
        **{name: ours(name) for name in OURS},
        "probmetrics temp-scaling": probmetrics("temp-scaling"),
        "probmetrics svs": probmetrics("svs"),
        "probmetrics logistic (sms)": probmetrics("logistic"),
        "scikit-learn temperature": sklearn_temperature,
        "netcal temperature": netcal_temperature,
    }


def measure(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    # peers may return rows off by more than float32 rounding; what they would sum to is not what is compared here
    probabilities = np.clip(np.asarray(probabilities, dtype=np.float64), 1e-30, None)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    return {name: float(getattr(metrics, name)(probabilities, labels)) for name in FIGURES}


def losses(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    chosen = np.asarray(probabilities, dtype=np.float64)[np.arange(len(labels)), labels]
    return -np.log(np.clip(chosen, 1e-30, None))


def run(folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    results: dict[str, dict[str, dict[str, float]]] = {}
    for path in sorted(folder.glob("*.npz")):
        data = np.load(path)
        logits, test = (data[f"{part}_logits"].astype(np.float32) for part in ("val", "test"))
        labels, truth = (data[f"{part}_labels"].astype(np.int64) for part in ("val", "test"))
        results[path.stem], by_row = {}, {}
        for name, fit in methods().items():
            started = time.perf_counter()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    probabilities = fit(logits, labels)(test)
            except Exception as error:
                print(f"  {path.stem}: {name} did not run: {type(error).__name__}: {error}"[:160])
                continue
            figures = measure(probabilities, truth)
            figures["seconds"] = time.perf_counter() - started
            results[path.stem][name], by_row[name] = figures, losses(probabilities, truth)
        counts = np.random.default_rng(0).multinomial(len(truth), np.full(len(truth), 1 / len(truth)), size=1000)
        for name, loss in by_row.items():
            excess = counts @ (loss - by_row["ts"]) / len(truth)
            figures = results[path.stem][name]
            figures["excess"], figures["low"], figures["high"] = (
                float((loss - by_row["ts"]).mean()),
                *(float(value) for value in np.quantile(excess, [0.025, 0.975])),
            )
        print(f"{path.stem}: done", flush=True)
    return results


def ranks(results: dict[str, dict[str, dict[str, float]]], figure: str) -> dict[str, np.ndarray]:
    """Rank of each method in each file, 1 the best; equal figures share their mean rank."""
    from scipy.stats import rankdata

    names = [name for name in methods() if all(name in rows for rows in results.values())]
    table = np.array([[rows[name][figure] for name in names] for rows in results.values()])
    places = np.array([rankdata(-row if figure == "accuracy" else row) for row in table])
    return {name: places[:, index] for index, name in enumerate(names)}


def show(results: dict[str, dict[str, dict[str, float]]]) -> str:
    long_tailed = [name for name in results if "lt_" in name]
    balanced = [name for name in results if name not in long_tailed]
    place = {figure: ranks(results, figure) for figure in ("nll", "brier")}
    lines = [
        "| method | NLL rank | Brier rank | NLL wins | ECE-15 balanced % | ECE-15 long-tailed % | classwise ECE "
        "| largest accuracy loss (points) | NLL − TS (1e-3, mean) | files better / worse than TS in NLL |",
        "| --- " * 10 + "|",
    ]
    for name in sorted(place["nll"], key=lambda one: place["nll"][one].mean()):
        rows = {file: figures[name] for file, figures in results.items()}
        loss = max(results[file]["none"]["accuracy"] - row["accuracy"] for file, row in rows.items())
        better = sum(row["high"] < 0 for row in rows.values())
        worse = sum(row["low"] > 0 for row in rows.values())
        tailed = f"{100 * np.mean([rows[file]['ece'] for file in long_tailed]):.2f}" if long_tailed else "–"
        lines.append(
            f"| {name} | {place['nll'][name].mean():.2f} | {place['brier'][name].mean():.2f} "
            f"| {int((place['nll'][name] == 1).sum())} | {100 * np.mean([rows[file]['ece'] for file in balanced]):.2f} "
            f"| {tailed} | {np.mean([row['sce'] for row in rows.values()]):.5f} | {100 * loss:+.2f} "
            f"| {1e3 * np.mean([row['excess'] for row in rows.values()]):+.1f} | {better} / {worse} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of .npz files with val_* and test_* arrays")
    parser.add_argument("--json", type=Path, help="also write all figures there")
    options = parser.parse_args()
    results = run(options.data)
    print(show(results))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
