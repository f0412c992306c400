"""A network trained and validated on long-tailed data will meet all classes alike: correct for that, then calibrate.

python examples/long_tailed.py                          synthetic
python examples/long_tailed.py predictions.npz          your own: long-tailed val_*, balanced test_*
"""

import sys

import numpy as np

import calibrant as cal


def rows(n, frequency, prior, seed):
    """Logits of a network that learned the classes together with how rare they are."""
    generator = np.random.default_rng(seed)
    n_classes = len(prior)
    labels = generator.choice(n_classes, n, p=frequency)
    logits = generator.normal(size=(n, n_classes)) + 2.2 * np.eye(n_classes)[labels] + 0.7 * np.log(prior)
    return 1.6 * logits, labels


def main(path=None, n=6000, n_classes=20):
    if path:
        val, test = (cal.open_predictions(f"{path}#{part}") for part in ("val", "test"))
        (fit_logits, fit_labels), (logits, labels) = (val.logits, val.labels), (test.logits, test.labels)
    else:
        prior = 0.02 ** (np.arange(n_classes) / (n_classes - 1))
        prior /= prior.sum()
        fit_logits, fit_labels = rows(n, prior, prior, seed=0)
        logits, labels = rows(n, np.full(n_classes, 1 / n_classes), prior, seed=1)

    methods = {
        "none": cal.Identity(),
        "ts": cal.TemperatureScaling(),
        "label shift + ts": cal.LabelShift(cal.TemperatureScaling(), "uniform"),
        "label shift, prior from unlabelled rows": cal.LabelShift(cal.TemperatureScaling(), logits),
    }
    figures = {}
    print(f"{'':40s} {'accuracy':>8s} {'ECE':>7s} {'NLL':>7s}")
    for name, method in methods.items():
        p = method.fit(fit_logits, fit_labels).predict_proba(logits)
        figures[name] = [metric(p, labels) for metric in (cal.metrics.accuracy, cal.metrics.ece, cal.metrics.nll)]
        print(f"{name:40s} {figures[name][0]:8.3f} {figures[name][1]:7.4f} {figures[name][2]:7.4f}")
    return figures


if __name__ == "__main__":
    main(*sys.argv[1:2])
