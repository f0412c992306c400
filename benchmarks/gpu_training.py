"""What metrics and losses add to a training step on a GPU; `benchmarks/gpu.py` runs this."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import calibrant as cal
from calibrant.neural.metrics import CalibrationMetrics

BATCH, N_CLASSES = 512, 100
STEPS = 5
"""Steps between two looks at the clock, as a training loop runs them."""


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, width_in: int, width_out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width_in, width_out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(width_out, width_out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width_out), nn.BatchNorm2d(width_out)])
        around = [nn.Conv2d(width_in, width_out, 1, stride, bias=False), nn.BatchNorm2d(width_out)]
        self.around = nn.Sequential(*around) if stride > 1 or width_in != width_out else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        """The next maps."""
        inner = self.norms[0](self.first(inputs)).relu()
        return (self.norms[1](self.second(inner)) + self.around(inputs)).relu()


def resnet18() -> nn.Module:
    """ResNet-18 for 32×32 images."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    width = 64
    for stage, following in enumerate((64, 128, 256, 512)):
        layers += [Block(width, following, 1 if stage == 0 else 2), Block(following, following, 1)]
        width = following
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, N_CLASSES))


class Training:
    """A bfloat16 training step of ResNet-18 at batch 512 and K = 100."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        torch.backends.cudnn.benchmark = True
        self.network = resnet18().cuda().to(memory_format=torch.channels_last)
        self.optimiser = torch.optim.SGD(self.network.parameters(), lr=1e-3, momentum=0.9)
        self.images = torch.randn((BATCH, 3, 32, 32), device="cuda").to(memory_format=torch.channels_last)
        self.labels = torch.randint(0, N_CLASSES, (BATCH,), device="cuda")

    def step(self, secondary: Callable[[Tensor, Tensor], Tensor] | None = None, metric: Any = None) -> None:
        """One step, perhaps with a second loss or a metric."""
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            logits = self.network(self.images)
        loss = nn.functional.cross_entropy(logits.float(), self.labels)
        if secondary is not None:
            loss = loss + secondary(logits, self.labels)
        self.optimiser.zero_grad(set_to_none=False)
        loss.backward()
        self.optimiser.step()
        if metric is not None:
            metric.update(logits, self.labels)

    def captured(self, **options: Any) -> Callable[[], None]:
        """The step as a CUDA graph."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step(**options)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step(**options)
        return graph.replay


def milliseconds(work: Callable[[], None]) -> float:
    """Of one step, the mean of a few in a row."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(STEPS):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / STEPS * 1e3


def in_turns(plain: Callable[[], None], other: Callable[[], None], rounds: int) -> tuple[float, float]:
    """Median time of the plain step and median of the differences, the two timed in turns."""
    pairs = [(milliseconds(plain), milliseconds(other)) for _ in range(rounds + 2)][2:]
    return statistics.median(one for one, _ in pairs), statistics.median(both - one for one, both in pairs)


def loss_shares(training: Training, rounds: int = 9) -> list[dict]:
    """What each batch loss adds to an eager step."""
    rows = []
    for name in ("soft_ece", "soft_avuc", "avuc", "mmce"):
        loss = getattr(cal.losses, name)
        step_ms, added = in_turns(training.step, lambda loss=loss: training.step(loss), rounds)
        what = f"losses.{name} in an eager ResNet-18 step"
        row = {"what": what, "n": BATCH, "classes": N_CLASSES, "added_ms": added, "share": added / step_ms}
        rows.append(row | {"step_ms": step_ms})
    return rows


def update_share(training: Training, rounds: int = 15) -> dict:
    """What `CalibrationMetrics.update` adds to a captured step, and that it waits for nothing."""
    metric = CalibrationMetrics(device="cuda")
    step_ms, added = in_turns(training.captured(), training.captured(metric=metric), rounds)
    torch.cuda.set_sync_debug_mode("error")
    try:
        metric.update(torch.randn((BATCH, N_CLASSES), device="cuda"), training.labels)
        waits = "none"
    except RuntimeError as wait:
        waits = str(wait).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return {
        "what": "update in a captured ResNet-18 step",
        "step_ms": step_ms,
        "added_ms": added,
        "share": added / step_ms,
        "waits": waits,
    }
