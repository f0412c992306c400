"""The monitor's promise: false alarms on calibrated streams at most at the promised rate; the delay after a break.

python benchmarks/monitor.py --streams 1000 --length 10000
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from calibrant.monitor import Monitor

SHAPES = {"sharp": (8.0, 0.8), "middling": (4.0, 1.5), "flat": (1.0, 1.0)}
"""Beta distributions that confidences come from."""


def stream(rng: np.random.Generator, shape: str, length: int, break_at: int, shift: float):
    """Confidences and correctness; from `break_at` on the chance of being right has its logit moved by `shift`."""
    confidence = rng.beta(*SHAPES[shape], length)
    logit = np.log(confidence) - np.log1p(-confidence)
    chance = np.where(np.arange(length) < break_at, confidence, 1 / (1 + np.exp(-(logit + shift))))
    return confidence, rng.random(length) < chance


def false_alarms(streams: int, length: int, rate: float, seed: int = 0) -> int:
    """How many of the calibrated streams raise an alarm at any time."""
    rng = np.random.default_rng(seed)
    alarms = 0
    for number in range(streams):
        monitor = Monitor(false_alarm_rate=rate)
        monitor.update_answers(*stream(rng, list(SHAPES)[number % 3], length, length, 0.0))
        alarms += monitor.alarm
    return alarms


def delays(streams: int, break_at: int, shift: float, rate: float, seed: int = 1, room: int = 20_000) -> list[float]:
    """Answers from the break to the alarm, inf where none came within `room`; early alarms are left out."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(streams):
        monitor = Monitor(false_alarm_rate=rate)
        monitor.update_answers(*stream(rng, list(SHAPES)[number % 3], break_at + room, break_at, shift))
        delay = np.inf if monitor.alarm_at is None else monitor.alarm_at - break_at
        if delay > 0:
            found.append(float(delay))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--length", type=int, default=10_000)
    parser.add_argument("--delay-streams", type=int, default=30)
    arguments = parser.parse_args()
    kept = True
    for rate in (0.05, 0.01):
        started = time.perf_counter()
        alarms = false_alarms(arguments.streams, arguments.length, rate)
        kept &= alarms <= rate * arguments.streams
        share = alarms / arguments.streams
        seconds = time.perf_counter() - started
        print(f"{arguments.streams} calibrated streams of {arguments.length}, promised rate {rate}: {alarms} alarms "
              f"({share:.4f}), {seconds:.0f} s")  # fmt: skip
    print("\nmedian delay in answers (10%, 90%), promised rate 0.01; the chance of being right drops by |shift| logits")
    print(f"{'break at':>10}{'shift -0.25':>22}{'shift -0.5':>22}{'shift -1':>22}{'shift +0.5':>22}")
    for break_at in (0, 1000, 10_000, 50_000):
        cells = []
        for shift in (-0.25, -0.5, -1.0, 0.5):
            found = delays(arguments.delay_streams, break_at, shift, 0.01)
            low, middle, high = np.quantile(found, (0.1, 0.5, 0.9), method="nearest")
            cells.append(f"{middle:.0f} ({low:.0f}, {high:.0f})")
        print(f"{break_at:>10}" + "".join(f"{cell:>22}" for cell in cells))
    raise SystemExit(not kept)


if __name__ == "__main__":
    main()
