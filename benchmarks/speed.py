"""Speed of the likelihood fits and of `transform` beside the peers, all in one run.

    PYTHONPATH=src .venv-peers/bin/python benchmarks/speed.py [--repeats 5] [--large-repeats 3] [--skip-slow]
    OMP_NUM_THREADS=1 CALIBRANT_THREADS=1 PYTHONPATH=src .venv-peers/bin/python benchmarks/speed.py --processor-time

The second form compares processor time on one thread each: what other work on the machine changes least.

Same float32 arrays, same two cores, medians. Only ratios within one run mean anything. A peer that is not installed
is left out. Each row also says how far from the optimum the answer is: a fast wrong answer is no rival.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "2")

import numpy as np

from calibrant import MatrixScaling, StructuredMatrixScaling, TemperatureScaling, VectorScaling
from calibrant.core.softmax import log_softmax


def predictions(n: int, n_classes: int, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Logits whose best temperature is about the given one."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, n_classes, n)
    logits = rng.normal(size=(n, n_classes), scale=2).astype(np.float32)
    logits[np.arange(n), labels] += rng.normal(6.5, 2.5, n).astype(np.float32)
    best = TemperatureScaling().fit(logits, labels).temperature_
    return logits * np.float32(temperature / best), labels


clock = time.perf_counter


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Median of the repeats, after one call that is not counted."""
    work()
    taken = []
    for _ in range(repeats):
        started = clock()
        work()
        taken.append(clock() - started)
    return statistics.median(taken)


def mean_nll(scores: np.ndarray, labels: np.ndarray) -> float:
    return float(-log_softmax(scores.astype(np.float64))[np.arange(len(labels)), labels].mean())


def temperature_peers() -> dict[str, Callable[[np.ndarray, np.ndarray], float]]:
    """Fits that return the temperature they found."""
    peers: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {}
    try:
        from sklearn.calibration import _TemperatureScaling

        peers["scikit-learn"] = lambda z, y: 1.0 / float(_TemperatureScaling().fit(z, y).beta_)
    except ImportError:
        pass
    try:
        import torch
        from probmetrics.calibrators.temperature_scaling import TemperatureScalingCalibrator
        from probmetrics.distributions import CategoricalLogits

        def probmetrics(opt: str) -> Callable[[np.ndarray, np.ndarray], float]:
            def fit(z: np.ndarray, y: np.ndarray) -> float:
                calibrator = TemperatureScalingCalibrator(opt=opt)
                calibrator.fit_torch(CategoricalLogits(torch.as_tensor(z)), torch.as_tensor(y))
                return 1.0 / float(calibrator.invtemp_)

            return fit

        peers["probmetrics (bisection)"] = probmetrics("bisection")
        peers["probmetrics (L-BFGS)"] = probmetrics("lbfgs")
    except ImportError:
        pass
    try:
        from netcal.scaling import TemperatureScaling as NetcalTemperature

        def netcal(z: np.ndarray, y: np.ndarray) -> float:
            probabilities = np.exp(log_softmax(z))
            method = NetcalTemperature()
            method.fit(probabilities, y)
            return 1.0 / float(np.ravel(method.temperature)[0])

        peers["netcal"] = netcal
    except ImportError:
        pass
    try:
        import torch

        def lbfgs(z: np.ndarray, y: np.ndarray) -> float:
            logits, labels = torch.as_tensor(z), torch.as_tensor(y)
            temperature = torch.nn.Parameter(torch.ones(1) * 1.5)
            optimiser = torch.optim.LBFGS([temperature], lr=0.01, max_iter=50)

            def closure() -> torch.Tensor:
                optimiser.zero_grad()
                loss = torch.nn.functional.cross_entropy(logits / temperature, labels)
                loss.backward()
                return loss

            optimiser.step(closure)
            return float(temperature)

        peers["torch LBFGS (the often copied recipe)"] = lbfgs
    except ImportError:
        pass
    return peers


def vector_peers() -> dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]:
    """Fits that return their calibrated logits of the fit data."""
    peers: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {}
    try:
        import torch
    except ImportError:
        return peers

    def lbfgs(z: np.ndarray, y: np.ndarray) -> np.ndarray:
        logits, labels = torch.as_tensor(z), torch.as_tensor(y)
        scale = torch.nn.Parameter(torch.ones(z.shape[1]))
        bias = torch.nn.Parameter(torch.zeros(z.shape[1]))
        optimiser = torch.optim.LBFGS([scale, bias], lr=0.1, max_iter=100)

        def closure() -> torch.Tensor:
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(logits * scale + bias, labels)
            loss.backward()
            return loss

        optimiser.step(closure)
        return (logits * scale + bias).detach().numpy()

    peers["torch LBFGS (lr 0.1, 100 steps, as torch-uncertainty)"] = lbfgs
    try:
        from probmetrics.calibrators.logistic import VectorScalingCalibrator
        from probmetrics.distributions import CategoricalLogits

        def probmetrics(z: np.ndarray, y: np.ndarray) -> np.ndarray:
            calibrator = VectorScalingCalibrator()
            calibrator.fit_torch(CategoricalLogits(torch.as_tensor(z)), torch.as_tensor(y))
            return (torch.as_tensor(z) / calibrator.temp_ + calibrator.bias_).detach().numpy()

        peers["probmetrics"] = probmetrics
    except ImportError:
        pass
    return peers


def compare_temperatures(
    shape: tuple[int, int], temperature: float, repeats: int, peer_repeats: int, only: str
) -> None:
    n, n_classes = shape
    logits, labels = predictions(n, n_classes, temperature)
    fitted = TemperatureScaling().fit(logits, labels)
    ours = seconds(lambda: TemperatureScaling().fit(logits, labels), repeats)
    best = fitted.temperature_
    print(f"\nTS nll, {n:,} × {n_classes:,}, best temperature {best:.4f}", flush=True)
    print(f"| calibrant | {ours * 1e3:.1f} ms | 1 | {best:.5f} |", flush=True)
    for name, fit in temperature_peers().items():
        if only not in name:
            continue
        found = fit(logits, labels)
        taken = seconds(lambda fit=fit: fit(logits, labels), peer_repeats)
        print(f"| {name} | {taken * 1e3:.1f} ms | {taken / ours:.1f}× | {found:.5f} |", flush=True)


def compare_vectors(n: int, n_classes: int, repeats: int, peer_repeats: int) -> None:
    logits, labels = predictions(n, n_classes, 1.4)
    ours = seconds(lambda: VectorScaling().fit(logits, labels), repeats)
    best = mean_nll(VectorScaling().fit(logits, labels).transform(logits), labels)
    print(f"\nVS, {n:,} × {n_classes:,}", flush=True)
    print(f"| calibrant | {ours * 1e3:.1f} ms | 1 | {best:.6f} |", flush=True)
    for name, fit in vector_peers().items():
        loss = mean_nll(fit(logits, labels), labels)
        taken = seconds(lambda fit=fit: fit(logits, labels), peer_repeats)
        print(f"| {name} | {taken * 1e3:.1f} ms | {taken / ours:.1f}× | {loss:.6f} |", flush=True)


def time_matrices(repeats: int) -> None:
    logits, labels = predictions(5_000, 100, 1.4)
    print("\nMatrices, 5,000 × 100", flush=True)
    for method in (
        MatrixScaling(),
        MatrixScaling(100.0, 1.0),
        StructuredMatrixScaling(),
        StructuredMatrixScaling(100.0),
    ):
        print(f"| {method} | {seconds(lambda m=method: m.fit(logits, labels), repeats):.2f} s |", flush=True)


def time_transforms(repeats: int) -> None:
    logits, labels = predictions(25_000, 1_000, 1.4)
    copied = seconds(lambda: np.copy(logits), repeats)
    print("\ntransform, 25,000 × 1,000", flush=True)
    print(f"| np.copy | {copied * 1e3:.1f} ms | 1 |", flush=True)
    temperature = TemperatureScaling().fit(logits, labels)
    vector = VectorScaling(penalty_bias=1.0).fit(logits, labels)
    for name, fitted in (("ts", temperature), ("vs", vector)):
        taken = seconds(lambda f=fitted: f.transform(logits), repeats)
        print(f"| {name} | {taken * 1e3:.1f} ms | {taken / copied:.2f}× |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--large-repeats", type=int, default=3, help="of the peers on 25,000 × 1,000")
    parser.add_argument("--peers", default="", help="only peers whose name contains this")
    parser.add_argument("--skip-slow", action="store_true", help="no peers on 25,000 × 1,000")
    parser.add_argument("--processor-time", action="store_true", help="of all threads, instead of the time on the wall")
    arguments = parser.parse_args()
    if arguments.processor_time:
        global clock  # noqa: PLW0603
        clock = time.process_time
    warnings.simplefilter("ignore")
    for temperature in (0.5, 1.4, 5.0):
        compare_temperatures((5_000, 100), temperature, 3 * arguments.repeats, arguments.repeats, arguments.peers)
    compare_vectors(5_000, 100, arguments.repeats, arguments.repeats)
    time_matrices(arguments.repeats)
    time_transforms(arguments.repeats)
    if not arguments.skip_slow:
        for temperature in (0.5, 1.5, 5.0):
            compare_temperatures(
                (25_000, 1_000), temperature, arguments.repeats, arguments.large_repeats, arguments.peers
            )
        compare_vectors(25_000, 1_000, arguments.repeats, 1)


if __name__ == "__main__":
    main()
