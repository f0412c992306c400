"""Hand the uncertain cases to a physician: a threshold with a guarantee, before and after calibration.

python examples/medical_deferral.py                         synthetic findings
python examples/medical_deferral.py predictions.npz         your own (val_logits, val_labels, test_logits, test_labels)

Three sets are needed: one to fit the calibrator, one to choose the threshold, one to see whether it held.
"""

import sys

import numpy as np

import calibrant as cal
from calibrant.evaluation.deferral import defer, threshold_for_error

TARGET = 0.05


def findings(n, seed):
    """Eight findings, most of the images without any, and a network that is too sure of itself."""
    generator = np.random.default_rng(seed)
    frequency = np.array([0.5, 0.15, 0.1, 0.08, 0.07, 0.05, 0.03, 0.02])
    labels = generator.choice(8, n, p=frequency)
    strength = generator.uniform(0.5, 6, n)[:, None]
    logits = 4 * (strength * np.eye(8)[labels] + generator.normal(size=(n, 8)) + 0.5 * np.log(frequency))
    return logits, labels


def columns(probabilities, labels):
    """Confidence, and whether the predicted class was right."""
    return probabilities.max(axis=1), probabilities.argmax(axis=1) == labels


def main(path=None, n=8000):
    if path:
        val, test = (cal.open_predictions(f"{path}#{part}") for part in ("val", "test"))
        fit, rest = (val.logits, val.labels), (test.logits, test.labels)
    else:
        fit, rest = findings(n // 2, seed=0), findings(2 * n, seed=1)
    half = len(rest[1]) // 2
    choose, check = (rest[0][:half], rest[1][:half]), (rest[0][half:], rest[1][half:])

    outcome = {}
    for name in ("none", "ts+top"):
        fitted = cal.get(name).fit(*fit)
        confidence, right = columns(fitted.predict_proba(choose[0]), choose[1])
        found = threshold_for_error(confidence, right, TARGET)
        new_confidence, new_right = columns(fitted.predict_proba(check[0]), check[1])
        kept = new_confidence >= found.threshold
        error = 1 - new_right[kept].mean() if kept.any() else 0.0
        outcome[name] = found.threshold, kept.mean(), error, new_confidence.mean() - new_right.mean()
        print(
            f"{name:7s} answers {kept.mean():.1%} itself, from a confidence of {found.threshold:.3f} on, and is"
            f" wrong in {error:.2%} of them (promised: at most {TARGET:.0%}, with 95% certainty)"
        )
        stated, true = new_confidence[~kept].mean(), new_right[~kept].mean()
        print(f"        the physician is told {stated:.0%} on average, and {true:.0%} would have been right")
        fifth = defer(new_confidence, new_right, share=0.2)
        print(f"        deferring a fifth: error {1 - new_right.mean():.2%} -> {fifth.error:.2%}")
    return outcome


if __name__ == "__main__":
    main(*sys.argv[1:2])
