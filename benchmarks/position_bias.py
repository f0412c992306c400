"""Multiple choice with a preference for a letter: methods with parameters per class beside one temperature.

    python benchmarks/position_bias.py --data FOLDER [--options 4]

Reads the calibration halves (`val_logits`, `val_labels`) of FOLDER/vlm_*.npz: vision-language models on MMBench and
OOD-CV, public in EnSec-AI/VLM-Uncertainty-Bench. Of six options E and F are never right: the first four are kept. Five
folds; intervals draw questions, which the models of one benchmark share. `shift` is half the sum of the differences
between how often a letter is the answer and how often it is right.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.model_selection import StratifiedKFold

import calibrant as cal

METHODS = ("ts", "svs", "vs", "auto")


def held_out(logits, labels, method):
    """Probabilities of every row by a calibrator that was fitted on the other folds."""
    found = np.empty(logits.shape)
    for fit, test in StratifiedKFold(5, shuffle=True, random_state=0).split(logits, labels):
        found[test] = cal.get(method).fit(logits[fit], labels[fit]).predict_proba(logits[test])
    return found


def interval(values, rng):
    """Mean of values per question, with the ends of its 95% interval."""
    draws = values[rng.integers(0, len(values), (2000, len(values)))].mean(axis=1)
    return values.mean(), *np.quantile(draws, (0.025, 0.975))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--options", type=int, default=4)
    asked = parser.parse_args()
    for family in ("mmbench", "oodcv"):
        gains = {method: [] for method in METHODS}
        losses = {method: [] for method in METHODS}
        for path in sorted(asked.data.glob(f"vlm_{family}_*.npz")):
            with np.load(path) as arrays:
                logits, labels = (
                    arrays["val_logits"][:, : asked.options].astype(float),
                    arrays["val_labels"].astype(int),
                )
            answers = {method: held_out(logits, labels, method) for method in METHODS}
            right = {method: p.argmax(axis=1) == labels for method, p in answers.items()}
            for method, p in answers.items():
                gains[method].append(right[method].astype(float) - right["ts"])
                losses[method].append(np.log(answers["ts"] / p)[np.arange(len(labels)), labels])
            said, true = (np.bincount(one, minlength=asked.options) for one in (logits.argmax(axis=1), labels))
            shift = np.abs(said - true).sum() / 2 / len(labels)
            cells = " ".join(f"{method} {100 * right[method].mean():.2f}" for method in METHODS)
            print(f"{path.stem:32} shift {100 * shift:5.1f}%  accuracy {cells}")
        for method in METHODS[1:]:
            rng = np.random.default_rng(0)
            points = " ".join(f"{100 * value:.2f}" for value in interval(np.mean(gains[method], axis=0), rng))
            nats = " ".join(f"{value:.4f}" for value in interval(np.mean(losses[method], axis=0), rng))
            print(f"{family}: {method} minus ts, mean of the models: accuracy {points} points, NLL {nats}")


if __name__ == "__main__":
    main()
