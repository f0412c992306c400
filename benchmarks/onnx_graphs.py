"""Time every method's ONNX graph in onnxruntime on one thread, beside graphs exported earlier if there are any.

    python benchmarks/onnx_graphs.py --export old/          # with another version of the library on PYTHONPATH
    python benchmarks/onnx_graphs.py --against old/         # both in one run, in turn

A row gives the shortest processor time of one call for 1×100 and 256×1,000 logits and, with `--against`, its ratio to
the old graph's. Calibrators are fitted to logits of the same kind; `X+top` maps are set so that many rows are crowded,
which is the slow case.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
import onnxruntime

import calibrant
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.registry import names
from calibrant.shipping.onnx import export_onnx

SHAPES = ((1, 100), (256, 1000))
EXTRA: dict[str, dict[str, object]] = {
    "ts+shape+keep": {},
    "vs+keep": {},
    "conf+shape+keep+top": {},
    "conf matrix": {"penalty": 12.0},
    "conf+shape+keep+top matrix": {"calibrator__calibrator__calibrator__penalty": 12.0},
    "hb one_vs_rest": {"mode": "one_vs_rest"},
    "iso one_vs_rest": {"mode": "one_vs_rest"},
}
"""Methods that are not in the registry, and their parameters; a word after the name tells them apart."""

MOST_CLASSES = 256
"""Above, `conf` learns no confusion matrix unless it is given a penalty."""


def invent_parameters() -> None:
    """Let the methods with a parameter per class invent what they learn: the time of a graph does not depend on it."""

    def scales(self, rows):
        rng = np.random.default_rng(0)
        k = rows.n_classes
        self.temperature_, self.temperatures_ = 1.5, rng.uniform(1, 2, k)
        self.scale_, self.bias_ = rng.uniform(0.5, 1, k), 0.1 * rng.normal(size=k)
        self.matrix_ = np.diag(self.scale_) + 0.001 * rng.normal(size=(k, k))
        self.penalties_ = self.ece_trace_ = self.accuracy_trace_ = np.zeros(1)
        self.strength_ = 1.0
        if getattr(self, "penalty", None) == "cv" and k > MOST_CLASSES:
            self.matrix_ = np.zeros((k, k))

    for name in ("ClassTemperature", "Vector", "Matrix", "StructuredMatrix", "Confusion"):
        cls = getattr(calibrant, f"{name}Scaling")
        cls._fit, cls._held_out = scales, Calibrator._held_out
        cls._settled = Calibrator._settled


def problem(n: int, n_classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a classifier that is right about two times in three, and its labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    logits = 2 * rng.normal(size=(n, n_classes))
    logits[np.arange(n), labels] += 5
    return logits.astype(np.float32), labels


def export(folder: Path, only: list[str] | None) -> None:
    """Write the graph of every method for every shape."""
    folder.mkdir(parents=True, exist_ok=True)
    invent_parameters()
    for _, n_classes in SHAPES:
        for name in only or [*names(), *EXTRA]:
            target = folder / f"{name}@{n_classes}.onnx"
            calibrator = calibrant.get(name.partition(" ")[0]).set_params(**EXTRA.get(name, {}))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                calibrator.fit(*problem(300, n_classes))
            if "+top" in name:
                calibrator.map_ = np.array([0.5, 0.1, -1.0])
            export_onnx(calibrator, target)
            print(f"wrote {target}", flush=True)


def session(path: Path) -> onnxruntime.InferenceSession:
    """A graph on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options)


def shortest_times(sessions: list[onnxruntime.InferenceSession], logits: np.ndarray, seconds: float) -> list[float]:
    """Shortest processor time of one call of each, taken in turn: other work on the machine can only add to it."""
    times: list[list[float]] = [[] for _ in sessions]
    for one in sessions:
        one.run(None, {"logits": logits})
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 30:
        for one, found in zip(sessions, times, strict=True):
            started = time.process_time()
            one.run(None, {"logits": logits})
            found.append(time.process_time() - started)
    return [min(found) for found in times]


def main() -> None:
    """Export, or time what was exported."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--export", type=Path, help="only write the graphs to this folder")
    parser.add_argument("--graphs", type=Path, default=Path("onnx_graphs"), help="where the graphs of this version go")
    parser.add_argument("--against", type=Path, help="folder of graphs to compare with")
    parser.add_argument("--seconds", type=float, default=1.0, help="per method and shape")
    parser.add_argument("--only", nargs="*", help="short names")
    arguments = parser.parse_args()
    if arguments.export:
        export(arguments.export, arguments.only)
        return
    if not arguments.graphs.is_dir():
        export(arguments.graphs, arguments.only)
    results = {}
    for n, n_classes in SHAPES:
        logits = problem(n, n_classes, seed=1)[0]
        for path in sorted(arguments.graphs.glob(f"*@{n_classes}.onnx")):
            old = arguments.against / path.name if arguments.against else None
            if arguments.only and path.name.split("@")[0] not in arguments.only:
                continue
            paths = [path, old] if old is not None and old.exists() else [path]
            found = shortest_times([session(one) for one in paths], logits, arguments.seconds)
            name = path.name.split("@")[0]
            ratio = f" {found[0] / found[1]:6.2f}x of {1e3 * found[1]:9.3f} ms" if len(found) > 1 else ""
            results[f"{name} {n}x{n_classes}"] = found
            print(f"{name:24} {n:4} x {n_classes:5} {1e3 * found[0]:9.3f} ms{ratio}", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
