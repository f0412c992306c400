"""Speed and exactness on one CUDA GPU, through the public API: `python benchmarks/gpu.py [--out table.json]`.

Every time is a median; ratios are to a device copy (or a read) of the same array in the same run. Each fit is compared
with a float64 Newton solution computed on the device.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import calibrant as cal
from calibrant.kernels.torch.rows import columns
from calibrant.neural.metrics import CalibrationMetrics


def median_ms(work: Callable[[], object], repeats: int = 30, warm_up: int = 3, inner: int = 1) -> float:
    """Median wall time per call, the device idle before and after; `inner` calls share one wait."""
    for _ in range(warm_up):
        work()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(inner):
            work()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) * 1e3 / inner)
    return float(np.median(times))


def problem(n_rows: int, n_classes: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Overconfident logits, made block by block on the device."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    labels = torch.randint(0, n_classes, (n_rows,), device="cuda", generator=generator)
    logits = torch.empty((n_rows, n_classes), dtype=dtype, device="cuda")
    step = max(1, (1 << 28) // n_classes)
    for start in range(0, n_rows, step):
        part = 2 * torch.randn((min(step, n_rows - start), n_classes), device="cuda", generator=generator)
        known = torch.rand((len(part), 1), device="cuda", generator=generator) < 0.75
        part.scatter_add_(1, labels[start : start + step, None], known.float() * (4 + math.log(n_classes)))
        logits[start : start + step] = (1.7 * part).to(dtype)
    return logits, labels


def exact_temperature(logits: torch.Tensor, labels: torch.Tensor, near: float) -> float:
    """T of the lowest NLL in float64 by Newton's method from a nearby start."""
    beta = torch.tensor(1 / near, dtype=torch.float64, device="cuda")
    for _ in range(6):
        slope = curvature = 0.0
        step = max(1, (1 << 26) // logits.shape[1])
        for start in range(0, len(logits), step):
            values = logits[start : start + step].double()
            values = values - values.amax(dim=1, keepdim=True)
            share = (values * beta).softmax(dim=1)
            mean = (share * values).sum(dim=1)
            true = values.gather(1, labels[start : start + step, None])[:, 0]
            slope = slope + (mean - true).sum()
            curvature = curvature + ((share * values.square()).sum(dim=1) - mean.square()).sum()
        beta = beta - slope / curvature
    return float(1 / beta)


def temperature(n_rows: int, n_classes: int, dtype: torch.dtype, repeats: int = 30) -> tuple[dict, tuple]:
    """Time and error of a temperature fit; the data too, for what comes next."""
    logits, labels = problem(n_rows, n_classes, dtype)
    size = logits.numel() * logits.element_size()
    row = {"what": "ts nll", "n": n_rows, "classes": n_classes, "dtype": str(dtype).removeprefix("torch.")}
    if size < 20e9:
        target = torch.empty_like(logits)
        row["copy_ms"] = median_ms(lambda: target.copy_(logits), repeats)
        del target
    row["read_ms"] = median_ms(lambda: logits.view(torch.int32).amax(), repeats)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    fitted = cal.TemperatureScaling().fit(logits, labels)
    row["extra_mb"] = (torch.cuda.max_memory_allocated() - before) / 1e6
    row["ms"] = median_ms(lambda: cal.TemperatureScaling().fit(logits, labels), repeats)
    row["temperature"] = fitted.temperature_
    row["relative_error"] = fitted.temperature_ / exact_temperature(logits, labels, fitted.temperature_) - 1
    return row, (logits, labels)


def metrics_in_one_pass(logits: torch.Tensor, labels: torch.Tensor, row: dict) -> dict:
    """ECE, NLL, Brier and accuracy in one pass."""
    metric = CalibrationMetrics(device="cuda")

    def update() -> None:
        metric.update(logits, labels)

    found = {"what": "ece+nll+brier+accuracy", "n": len(logits), "classes": logits.shape[1], "read_ms": row["read_ms"]}
    found["ms"] = median_ms(update, inner=10)
    found["copy_ms"] = row.get("copy_ms")
    metric.reset()
    metric.update(logits, labels)
    values = {name: float(value) for name, value in metric.compute().items()}
    *columns_there, _ = columns(logits, labels, from_logits=True)
    found["nll_error"] = values["nll"] - float(columns_there[3].double().mean())
    try:
        import torchmetrics.functional.classification as peer

        n_classes = logits.shape[1]

        def four_calls() -> None:
            share = logits.softmax(dim=1)
            peer.multiclass_calibration_error(share, labels, n_classes, n_bins=15, validate_args=False)
            peer.multiclass_accuracy(share, labels, n_classes, average="micro", validate_args=False)
            torch.nn.functional.nll_loss(share.log(), labels)
            (share - torch.nn.functional.one_hot(labels, n_classes)).square().sum(dim=1).mean()

        found["torchmetrics_ms"] = median_ms(four_calls, 5, 2)
    except (ImportError, torch.cuda.OutOfMemoryError) as missing:
        found["torchmetrics_ms"] = None
        print(type(missing).__name__)
    return found


def vector(logits: torch.Tensor, labels: torch.Tensor) -> dict:
    """Vector scaling where the data is."""
    ms = median_ms(lambda: cal.VectorScaling(penalty_bias=1.0).fit(logits, labels), 5, 1)
    plain = median_ms(lambda: cal.VectorScaling().fit(logits, labels), 5, 1)
    there = cal.VectorScaling().fit(logits, labels)
    return {
        "what": "vs",
        "n": len(logits),
        "classes": logits.shape[1],
        "ms": plain,
        "with_penalty_ms": ms,
        "n_iter": there.n_iter_,
    }


def training_step() -> dict:
    """What `update` adds to a captured training step, and that it waits for nothing."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.ReLU()]
    for _ in range(8):
        layers += [torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.ReLU()]
    layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 100)]
    network = torch.nn.Sequential(*layers).cuda().to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn((512, 3, 32, 32), device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 100, (512,), device="cuda")
    metric = CalibrationMetrics(device="cuda")

    def step(count: bool) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            logits = network(images)
        loss = torch.nn.functional.cross_entropy(logits.float(), labels)
        optimiser.zero_grad(set_to_none=False)
        loss.backward()
        optimiser.step()
        if count:
            metric.update(logits, labels)

    times = {}
    for count in (False, True, False, True):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step(count)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(count)
        times.setdefault(count, []).append(median_ms(graph.replay, 40, 5, inner=5))
    torch.cuda.set_sync_debug_mode("error")
    try:
        metric.update(torch.randn((512, 100), device="cuda"), labels)
        waits = "none"
    except RuntimeError as wait:
        waits = str(wait).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    without, with_update = min(times[False]), min(times[True])
    return {"what": "update in a captured step", "ms": with_update, "without_ms": without, "waits": waits}


def loss_cost() -> list[dict]:
    """The soft losses beside an eager bfloat16 step of the same network width."""
    logits = torch.randn((512, 100), device="cuda", dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, 100, (512,), device="cuda")
    rows = []
    for name in ("soft_ece", "soft_avuc"):
        loss = getattr(cal.losses, name)

        def both(loss: Callable = loss) -> None:
            logits.grad = None
            loss(logits.float(), labels).backward()

        rows.append({"what": f"losses.{name} forward+backward", "n": 512, "classes": 100, "ms": median_ms(both, 40)})
    return rows


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="leave out 100,000×128,000")
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__)
    rows = []

    def note(row: dict) -> None:
        rows.append(row)
        print(json.dumps({k: round(v, 10) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1))

    row, data = temperature(50_000, 1000, torch.float32)
    note(row)
    note(metrics_in_one_pass(*data, row))
    note(vector(*data))
    row, _ = temperature(5_000, 100, torch.float32)
    note(row)
    row, data = temperature(1_000_000, 100, torch.float32)
    note(row)
    note(metrics_in_one_pass(*data, row))
    note(training_step())
    for row in loss_cost():
        note(row)
    del data
    if not options.quick:
        row, _ = temperature(100_000, 128_000, torch.bfloat16, repeats=5)
        note(row)


if __name__ == "__main__":
    main()
