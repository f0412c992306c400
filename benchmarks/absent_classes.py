"""What every method leaves of the classes that have no fit rows: one, and seven of ten.

    python benchmarks/absent_classes.py [--methods vs,auto]

Fits the calibration part of the embedded CIFAR-10 network without the rows of some classes, and prints the accuracy on
the test rows of these classes, with the difference from `ts`, which changes no prediction. A method fails where it
loses more than a point. `auto` is measured with absent="keep", as these rows are selected by class.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np

import calibrant as cal
from calibrant.calibrators.registry import names

GONE = {"one absent (7)": (7,), "one absent (3)": (3,), "seven absent": (0, 2, 4, 5, 6, 8, 9)}


def kept(method: str, data: cal.datasets.Dataset, gone: tuple[int, ...]) -> tuple[float, bool]:
    """Accuracy on test rows of the classes that were gone from the fit rows, and whether a warning named them."""
    here, absent = ~np.isin(data.val.labels, gone), np.isin(data.test.labels, gone)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made = cal.AutoCalibrator(absent="keep") if method == "auto" else cal.get(method)
        fitted = made.fit(data.val.logits[here], data.val.labels[here])
    right = fitted.predict(data.test.logits[absent]) == data.test.labels[absent]
    return float(right.mean()), any("have no fit rows" in str(one.message) for one in said)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join([*names("multiclass"), "auto"]))
    data, wanted = cal.datasets.load("cifar10-resnet18"), parser.parse_args().methods.split(",")
    base = {name: kept("ts", data, gone)[0] for name, gone in GONE.items()}
    print(f"| method | {' | '.join(f'{name}: {100 * base[name]:.1f}% by `ts`' for name in GONE)} | warning |")
    print(f"| --- |{' ---: |' * len(GONE)} --- |")
    for method in wanted:
        found = {name: kept(method, data, gone) for name, gone in GONE.items()}
        cells = [
            f"{100 * value:.1f} ({100 * (value - base[name]):+.1f}){'!' * (value < base[name] - 0.01)}"
            for name, (value, _) in found.items()
        ]
        named = "yes" if all(told for _, told in found.values()) else "no"
        print(f"| `{method}` | {' | '.join(cells)} | {named} |", flush=True)


if __name__ == "__main__":
    main()
