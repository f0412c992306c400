"""What the losses cost beside a ResNet-18 training step, and whether they run clean on the GPU.

    python papers/soft_objectives/cost.py --out papers/soft_objectives/results/cost.json

Per loss: the milliseconds it adds to a training step at batch 512 and K = 100 (forward and backward, bfloat16,
channels-last), beside the step with cross entropy alone: run line by line (eager) and with the whole step captured as
a CUDA graph. Each loss is timed in turns with the plain step, and the median of the differences counts. Then: whether
a step waits for the host; whether `torch.compile(fullgraph=True)` and a captured graph give the eager result; whether
value and gradient stay finite on saturated logits.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from network import make_network
from torch import Tensor

from calibrant.neural import losses

STEPS, WARM_UP = 5, 3
"""Steps between two looks at the clock, as a training loop runs them, and rounds before the clock counts."""

Loss = Callable[[Tensor, Tensor], Tensor]
REGIMES = ("eager", "captured")
SECONDARY: dict[str, Loss] = {
    "mmce": losses.mmce,
    "mmce weighted": partial(losses.mmce, weighted=True),
    "avuc": losses.avuc,
    "avuc_gs": losses.avuc_gs,
    "soft_avuc": losses.soft_avuc,
    "soft_ece bin": losses.soft_ece,
    "soft_ece label": partial(losses.soft_ece, weighting="label"),
    "soft_marginal_ece": losses.soft_marginal_ece,
}
PRIMARY: dict[str, Loss] = {
    "cross_entropy": losses.cross_entropy,
    "focal": losses.focal,
    "focal flsd-53": partial(losses.focal, gamma="flsd-53"),
    "brier": losses.brier,
    "label_smoothing": losses.label_smoothing,
}


def main(arguments: list[str] | None = None) -> int:
    """Command line of the measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--regimes", nargs="*", choices=REGIMES, default=list(REGIMES))
    parser.add_argument("--no-checks", action="store_true", help="only the cost")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    result: dict[str, Any] = {"device": torch.cuda.get_device_name() if device == "cuda" else "cpu"}
    result |= {"batch": options.batch, "classes": options.classes, "torch": torch.__version__}
    for regime in options.regimes:
        try:
            result[regime] = step_cost(options, device, captured=regime == "captured")
        except Exception as error:
            result[regime] = {"error": repr(error)}
    if not options.no_checks:
        every = {**PRIMARY, **SECONDARY}
        result["clean"] = {name: clean(loss, device, options.classes) for name, loss in every.items()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0


def step_cost(options: argparse.Namespace, device: str, *, captured: bool) -> dict[str, Any]:
    """Milliseconds of a step with cross entropy alone, and of what each secondary loss adds to it."""
    layout = torch.channels_last if device == "cuda" else torch.contiguous_format
    model = make_network(options.network, options.classes, 0).to(device).to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)
    images = torch.randn(options.batch, 3, 32, 32).to(device).to(memory_format=layout)
    labels = torch.randint(0, options.classes, (options.batch,)).to(device)

    def step(secondary: Loss | None) -> None:
        # cached casts would outlive the captured graph that made them
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda", cache_enabled=not captured):
            logits = model(images)
        loss = losses.cross_entropy(logits, labels)
        if secondary is not None:
            loss = loss + secondary(logits, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    prepare = _captured if captured and device == "cuda" else (lambda run: run)
    plain = prepare(partial(step, None))
    added: dict[str, float] = {}
    shares: dict[str, float] = {}
    plain_times: list[float] = []
    for name, secondary in SECONDARY.items():
        with_it = prepare(partial(step, secondary))
        pairs = [
            (_milliseconds(plain, device), _milliseconds(with_it, device)) for _ in range(options.repeats + WARM_UP)
        ]
        without, differences = zip(*((one, both - one) for one, both in pairs[WARM_UP:]), strict=True)
        added[name] = statistics.median(differences)
        shares[name] = added[name] / statistics.median(without)
        plain_times += without
    return {"step_ms": statistics.median(plain_times), "added_ms": added, "share_of_step": shares}


def _milliseconds(run: Callable[[], None], device: str) -> float:
    """Of one step, mean over a few in a row."""
    _wait(device)
    started = time.perf_counter()
    for _ in range(STEPS):
        run()
    _wait(device)
    return (time.perf_counter() - started) / STEPS * 1e3


def _captured(run: Callable[[], None]) -> Callable[[], None]:
    """The step as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    gc.collect()  # memory freed by a late collection would break the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def clean(loss: Loss, device: str, n_classes: int) -> dict[str, Any]:
    """Does the loss wait for the host, compile as one graph, survive a captured graph, stay finite when saturated."""
    torch.manual_seed(0)
    logits = torch.randn(64, n_classes).to(device).requires_grad_()
    labels = torch.randint(0, n_classes, (64,)).to(device)
    value = loss(logits, labels)
    report: dict[str, Any] = {}
    if device == "cuda":
        report["no_host_wait"] = _attempt(lambda: _without_waiting(loss, logits, labels))
    try:
        torch._dynamo.reset()
        compiled = torch.compile(loss, fullgraph=True)
        report["compiled_difference"] = float((compiled(logits, labels) - value).detach().abs())
    except Exception as error:
        report["compiled_difference"] = repr(error)[:200]
    report["finite"] = all(_finite(loss, scale, n, n_classes, device) for scale in (1.0, 1e4) for n in (1, 64))
    if device == "cuda":
        report["captured_difference"] = _attempt(lambda: _captured_difference(loss, logits, labels))
    return report


def _without_waiting(loss: Loss, logits: Tensor, labels: Tensor) -> bool:
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.autograd.grad(loss(logits, labels), logits)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return True


def _captured_difference(loss: Loss, logits: Tensor, labels: Tensor) -> float:
    gradient = torch.zeros_like(logits)

    def run() -> None:
        gradient.copy_(torch.autograd.grad(loss(logits, labels), logits)[0])

    run()
    expected = gradient.clone()
    replay = _captured(run)
    gradient.zero_()
    replay()
    return float((gradient - expected).abs().max())


def _finite(loss: Loss, scale: float, n: int, n_classes: int, device: str) -> bool:
    # drawn on the host: a captured graph may still hold the device's generator
    signs = (torch.randn(n, n_classes).sign() * scale).to(device)
    for labels in (signs.argmax(1), signs.argmin(1), torch.zeros(n, dtype=torch.long, device=device)):
        for dtype in (torch.float32, torch.bfloat16):
            logits = signs.to(dtype).detach().clone().requires_grad_()
            with torch.autocast(device, torch.bfloat16):
                value = loss(logits, labels)
            value.backward()
            if not (value.isfinite().all() and logits.grad is not None and logits.grad.isfinite().all()):
                return False
    return True


def _attempt(check: Callable[[], Any]) -> Any:
    try:
        return check()
    except Exception as error:
        return repr(error)[:200]


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    raise SystemExit(main())
