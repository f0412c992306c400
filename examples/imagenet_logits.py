"""From a large file of logits to a shipped calibrator, without holding the file in memory.

python examples/imagenet_logits.py                       a synthetic file of 8,000 rows and 1,000 classes
python examples/imagenet_logits.py val.npz test.npz      your own (`logits` and `labels`)
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import calibrant as cal


def write_logits(path, n, n_classes, seed):
    """What an overconfident network might say: the true class stands out, everything is too loud."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, n_classes, n)
    logits = generator.normal(size=(n, n_classes)).astype("float32")
    logits[np.arange(n), labels] += generator.normal(4.5, 1.5, n).astype("float32")
    np.savez(path, logits=(6 * logits).astype("float16"), labels=labels)
    return path


def main(val=None, test=None, n=8000, n_classes=1000, folder=None):
    folder = Path(folder or tempfile.mkdtemp())
    val = val or write_logits(folder / "val.npz", n // 2, n_classes, seed=0)
    test = test or write_logits(folder / "test.npz", n, n_classes, seed=1)

    figures = cal.metrics.stream(cal.open_predictions(test), ["ece", "nll", "accuracy"])
    print("before:", {name: round(value, 4) for name, value in figures.items()})

    table = cal.compare(val, test, ["none", "ts", "ts+top", "shape"], resamples=200)
    print(table.verdict)

    artifact = folder / "cal.safetensors"
    cal.save(table.row(table.best).calibrator, artifact)
    fitted = cal.load(artifact)
    written = 0
    for chunk in cal.open_predictions(test).chunks():  # about 64 MB at a time
        written += len(fitted.predict_proba(chunk.logits))
    print(f"{written} rows calibrated by {table.best}; the calibrator is {artifact.stat().st_size} bytes: {artifact}")
    return table


if __name__ == "__main__":
    main(*sys.argv[1:3])
