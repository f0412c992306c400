"""Measure and fit on a Dask cluster: the same calls, another engine, the same bits.

python examples/cluster.py                              four files here, two worker processes on this machine
python examples/cluster.py 'parts/*.npz' tcp://...      your files, your scheduler (workers must see the files)
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import calibrant as cal
from calibrant.engines.dask import DaskEngine


def write_parts(folder, n_parts=4, n=5000, n_classes=50):
    generator = np.random.default_rng(0)
    for part in range(n_parts):
        labels = generator.integers(0, n_classes, n)
        logits = 5 * (generator.normal(size=(n, n_classes)) + 3 * np.eye(n_classes)[labels])
        np.savez(Path(folder) / f"{part:03}.npz", logits=logits.astype("float32"), labels=labels)
    return f"{folder}/*.npz"


def main(pattern=None, address=None):
    pattern = pattern or write_parts(tempfile.mkdtemp())
    predictions = cal.open_predictions(pattern)
    print(f"{predictions.n} rows, {predictions.n_classes} classes")

    engine = DaskEngine(address) if address else DaskEngine(n_workers=2)
    try:
        figures = cal.metrics.stream(predictions, ["ece", "nll", "accuracy"], engine=engine)
        fitted = cal.VectorScaling().fit(predictions, engine=engine)
    finally:
        engine.close()
    print({name: round(value, 4) for name, value in figures.items()})

    here = cal.VectorScaling().fit(predictions)
    print("the cluster's fit has the bits of the local one:", bool((here.scale_ == fitted.scale_).all()))
    cal.save(fitted, Path(tempfile.mkdtemp()) / "cal.safetensors")


if __name__ == "__main__":  # worker processes import this file
    main(*sys.argv[1:3])
