"""Speed and exactness on one CUDA GPU, through the public API: `python benchmarks/gpu.py [--out table.json]`.

Every time is a median; ratios are to a device copy (or a read) of the same array in the same run. Each fit is compared
with a float64 Newton solution computed on the device.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

import calibrant as cal
from calibrant.kernels.torch.columns import columns
from calibrant.neural import measure_language_model
from calibrant.neural.metrics import CalibrationMetrics

sys.path.insert(0, str(Path(__file__).parent))
from gpu_training import Training, loss_shares, update_share


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
    found["nll_error"] = values["nll"] - float(columns(logits, labels, from_logits=True).numbers[1].double().mean())
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


def class_temperatures(logits: torch.Tensor, labels: torch.Tensor) -> tuple[dict, np.ndarray]:
    """Class temperature scaling by ECE, and what it found."""
    fitted = cal.ClassTemperatureScaling().fit(logits, labels)
    ms = median_ms(lambda: cal.ClassTemperatureScaling().fit(logits, labels), 3, 0)
    row = {"what": "cts", "n": len(logits), "classes": logits.shape[1], "ms": ms, "sweeps": fitted.n_iter_}
    return row, fitted.temperatures_


def host_class_temperatures(logits: torch.Tensor, labels: torch.Tensor, found: np.ndarray) -> dict:
    """The same search on the host: how many temperatures differ."""
    started = time.perf_counter()
    here = cal.ClassTemperatureScaling().fit(logits.cpu().numpy(), labels.cpu().numpy())
    seconds = time.perf_counter() - started
    different = int((here.temperatures_ != found).sum())
    row = {"what": "cts on the host", "n": len(logits), "classes": logits.shape[1], "seconds": seconds}
    return row | {"different": different}


def methods(logits: torch.Tensor, labels: torch.Tensor) -> list[dict]:
    """Every method with a form on the device: its time there, and on few rows how far it is from the host's fit."""
    rows = []
    few, few_labels = problem(1511, 20, torch.float32)
    for name in METHODS:
        row: dict = {"what": f"fit {name}", "n": len(logits), "classes": logits.shape[1]}
        try:
            there = cal.get(name).fit(few, few_labels).predict_proba(few).cpu().numpy()
            here = cal.get(name).fit(few.cpu().numpy(), few_labels.cpu().numpy()).predict_proba(few.cpu().numpy())
            apart = abs(there - here)
            row |= {"difference": float(apart.max()), "typical_difference": float(apart.mean())}
            started = time.perf_counter()
            cal.get(name).fit(logits, labels)
            torch.cuda.synchronize()
            row["ms"] = (time.perf_counter() - started) * 1e3
        except Exception as error:
            row["error"] = repr(error)[:300]
        rows.append(row)
    return rows


METHODS = (
    *("ts-ece", "ts-adaece", "ts-soft", "ets", "shape", "ts+top", "bts", "hb", "iso", "spline", "ws", "cws"),
    *("sctl+ts", "cts-nll", "svs"),
)


def language_model(vocabulary: int = 128_000) -> dict:
    """Tokens through a small model with a large vocabulary: time of the sums beside the model's own, memory, T."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(vocabulary, 64), torch.nn.Linear(64, vocabulary, bias=False))
    model = model.cuda().bfloat16()
    with torch.no_grad():
        model[1].weight.mul_(12)
    batches = [torch.randint(0, vocabulary, (4, 512), device="cuda") for _ in range(4)]
    with torch.inference_mode():
        for tokens in batches:
            # text that the model half knows: the next token is often its first choice
            for place in range(1, 512):
                likely = model(tokens[:, place - 1 : place]).argmax(dim=2)[:, 0]
                tokens[:, place] = torch.where(torch.rand(4, device="cuda") < 0.4, likely, tokens[:, place])
        logits = torch.cat([model(tokens)[:, :-1].reshape(-1, vocabulary) for tokens in batches])
    labels = torch.cat([tokens[:, 1:].reshape(-1) for tokens in batches])
    whole = cal.TemperatureScaling().fit(logits, labels).temperature_
    nll = float(columns(logits, labels, from_logits=True).numbers[1].double().mean())
    n_tokens = len(labels)
    del logits
    torch.cuda.empty_cache()

    alone = median_ms(lambda: [model(tokens).shape for tokens in batches], 3, 1)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    found = measure_language_model(model, batches)
    extra = (torch.cuda.max_memory_allocated() - before) / 1e6
    return {
        "what": "measure_language_model",
        "n": n_tokens,
        "classes": vocabulary,
        "ms": median_ms(lambda: measure_language_model(model, batches), 3, 0),
        "model_ms": alone,
        "peak_mb": extra,
        "logits_of_a_batch_mb": 4 * 512 * vocabulary * 2 / 1e6,
        "temperature": found.fit_temperature().temperature_,
        "relative_error": found.fit_temperature().temperature_ / whole - 1,
        "nll": found.metrics["nll"],
        "nll_error": found.metrics["nll"] - nll,
    }


def host_comparison() -> Iterator[dict]:
    """The class temperatures of the device beside those of the host."""
    data = problem(25_000, 1000, torch.float32)
    row, found = class_temperatures(*data)
    yield row
    yield host_class_temperatures(*data, found)


def small() -> Iterator[dict]:
    """Everything of up to a million rows."""
    row, data = temperature(50_000, 1000, torch.float32)
    yield row
    yield metrics_in_one_pass(*data, row)
    yield vector(*data)
    yield temperature(5_000, 100, torch.float32)[0]
    row, data = temperature(1_000_000, 100, torch.float32)
    yield row
    yield metrics_in_one_pass(*data, row)
    yield class_temperatures(*problem(25_000, 1000, torch.float32))[0]


def training() -> Iterator[dict]:
    """What metrics and losses add to a training step."""
    network = Training()
    yield update_share(network)
    yield from loss_shares(network)


def large() -> Iterator[dict]:
    """25.6 GB of logits."""
    yield temperature(100_000, 128_000, torch.bfloat16, repeats=5)[0]


def every_method() -> Iterator[dict]:
    """The other methods."""
    yield from methods(*problem(50_000, 1000, torch.float32))


def tokens() -> Iterator[dict]:
    """A language model."""
    yield language_model()


def main() -> None:
    """Run everything, the promised figures first, and print each row as it comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="leave out 100,000×128,000")
    parser.add_argument("--host", action="store_true", help="only: class temperatures beside the host's, two minutes")
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__)
    rows = []
    parts = [small, training, *([] if options.quick else [large]), every_method, tokens]
    for part in [host_comparison] if options.host else parts:
        started = time.perf_counter()
        try:
            for row in part():
                rows.append(row)
                print(json.dumps({k: round(v, 10) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
                if options.out:
                    options.out.write_text(json.dumps(rows, indent=1))
        except Exception:  # one part that fails must not cost the others their machine time
            traceback.print_exc()
        gc.collect()
        torch.cuda.empty_cache()
        print(f"{part.__name__}: {time.perf_counter() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
