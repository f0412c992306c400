"""What the losses cost beside a ResNet-18 training step, and whether they run clean on the GPU.

    python papers/soft_objectives/cost.py --out papers/soft_objectives/results/cost.json

Per loss: the milliseconds it adds to a training step at batch 512 and K = 100 (forward and backward, bfloat16,
channels-last), beside the step with cross entropy alone, measured in turns; in eager mode and, for the soft losses,
compiled; whether a step waits for the host; whether
`torch.compile(fullgraph=True)` gives the eager value; whether value and gradient stay finite on saturated logits.
"""

from __future__ import annotations

import argparse
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

STEPS, WARM_UP = 10, 2
"""Steps between two looks at the clock, as a training loop runs them, and rounds before the clock counts."""

SECONDARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mmce": losses.mmce,
    "mmce weighted": partial(losses.mmce, weighted=True),
    "avuc": losses.avuc,
    "avuc_gs": losses.avuc_gs,
    "soft_avuc": losses.soft_avuc,
    "soft_ece bin": losses.soft_ece,
    "soft_ece label": partial(losses.soft_ece, weighting="label"),
    "soft_marginal_ece": losses.soft_marginal_ece,
}
PRIMARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
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
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--regimes", nargs="*", choices=("eager", "compiled"), default=["eager"])
    parser.add_argument("--no-checks", action="store_true", help="only the cost")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    result: dict[str, Any] = {"device": torch.cuda.get_device_name() if device == "cuda" else "cpu"}
    result |= {"batch": options.batch, "classes": options.classes, "torch": torch.__version__}
    for regime in options.regimes:
        try:
            result[regime] = step_cost(options, device, compiled=regime == "compiled")
        except Exception as error:
            result[regime] = {"error": repr(error)}
    if not options.no_checks:
        every = {**PRIMARY, **SECONDARY}
        result["clean"] = {name: clean(loss, device, options.classes) for name, loss in every.items()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0


def step_cost(options: argparse.Namespace, device: str, *, compiled: bool) -> dict[str, Any]:
    """Milliseconds of a step with cross entropy alone, and of what each secondary loss adds to it."""
    model = make_network(options.network, options.classes, 0).to(device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)
    images = torch.randn(options.batch, 3, 32, 32).to(device).to(memory_format=torch.channels_last)
    labels = torch.randint(0, options.classes, (options.batch,)).to(device)

    def step(secondary: Callable[[Tensor, Tensor], Tensor] | None) -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(images)
        loss = losses.cross_entropy(logits, labels)
        if secondary is not None:
            loss = loss + secondary(logits, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    measured = SECONDARY
    if compiled:
        # a compiled loss beside the same eager network: what is left of the launches
        soft = ("soft_avuc", "soft_ece label")
        measured = {name: torch.compile(SECONDARY[name], fullgraph=True) for name in soft}
    variants: dict[str, Callable[[Tensor, Tensor], Tensor] | None] = {"none": None, **measured}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(options.repeats + WARM_UP):
        for name, secondary in variants.items():
            _wait(device)
            started = time.perf_counter()
            for _ in range(STEPS):
                step(secondary)
            _wait(device)
            if turn >= WARM_UP:
                times[name].append((time.perf_counter() - started) / STEPS * 1e3)
    plain = statistics.median(times["none"])
    added = {name: statistics.median(times[name]) - plain for name in measured}
    share = {name: value / plain for name, value in added.items()}
    return {"step_ms": plain, "added_ms": added, "share_of_step": share}


def clean(loss: Callable[[Tensor, Tensor], Tensor], device: str, n_classes: int) -> dict[str, Any]:
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


def _without_waiting(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor) -> bool:
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.autograd.grad(loss(logits, labels), logits)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return True


def _captured_difference(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor) -> float:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        expected = torch.autograd.grad(loss(logits, labels), logits)[0].clone()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gradient = torch.autograd.grad(loss(logits, labels), logits)[0]
    graph.replay()
    return float((gradient - expected).abs().max())


def _finite(loss: Callable[[Tensor, Tensor], Tensor], scale: float, n: int, n_classes: int, device: str) -> bool:
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
