"""The monitor's promise: false alarms on calibrated streams at most at the promised rate; the delay after a break.

python benchmarks/monitor.py --streams 1000 --length 10000
python benchmarks/monitor.py --dependence --streams 1000      # batches, logged twice, rounded, groups
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from calibrant.monitor import GroupMonitor, Monitor

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


def correlated(rng: np.random.Generator, shape: str, batches: int, size: int, rho: float, gap: float = 0.0):
    """Batches of answers, right with chance confidence − gap, any two of a batch correlated by rho (batches×size).

    Each answer uses its batch's random number with chance √rho and its own otherwise.
    """
    confidence = rng.beta(*SHAPES[shape], (batches, size))
    shared = rng.random((batches, size)) < np.sqrt(rho)
    number = np.where(shared, rng.random((batches, 1)), rng.random((batches, size)))
    return confidence, number < np.clip(confidence - gap, 0, 1)


def dependent_alarms(streams: int, batches: int, size: int, rho: float, rate: float, batch: int | None) -> int:
    """Alarms over calibrated streams with correlated batches."""
    rng = np.random.default_rng(2)
    alarms = 0
    for number in range(streams):
        monitor = Monitor(false_alarm_rate=rate, batch=batch)
        confidence, correct = correlated(rng, list(SHAPES)[number % 3], batches, size, rho)
        monitor.update_answers(confidence.ravel(), correct.ravel())
        alarms += monitor.alarm
    return alarms


def interleaved_alarms(streams: int, batches: int, size: int, rho: float, rate: float, at_once: int) -> int:
    """Alarms over calibrated streams whose correlated, named batches come `at_once` at a time, answer by answer."""
    rng = np.random.default_rng(2)
    names = np.arange(batches).reshape(-1, at_once, 1)
    order = np.argsort(np.broadcast_to(names // at_once * size + np.arange(size), (*names.shape[:2], size)).ravel())
    alarms = 0
    for number in range(streams):
        monitor = Monitor(false_alarm_rate=rate)
        confidence, correct = correlated(rng, list(SHAPES)[number % 3], batches, size, rho)
        monitor.update_answers(
            confidence.ravel()[order], correct.ravel()[order], batches=np.repeat(np.arange(batches), size)[order]
        )
        alarms += monitor.alarm
    return alarms


def oracle_stake(shape: str, size: int, rho: float, gap: float) -> float:
    """λ of the bet 1 − λ(mean correct − mean confidence) that grows fastest when the break is known."""
    confidence, correct = correlated(np.random.default_rng(3), shape, 20_000, size, rho, gap)
    surprise = correct.mean(axis=1) - confidence.mean(axis=1)
    most = 0.99 / surprise.max()
    return max(np.linspace(0, most, 200)[1:], key=lambda stake: np.log1p(-stake * surprise).mean())


def batch_delays(
    streams: int, shape: str, size: int, rho: float, gap: float, rate: float, break_at: int = 0, room: int = 400
):
    """Batches from the break to the alarm: of the monitor, and of the oracle bet on batch means; inf for none."""
    rng = np.random.default_rng(4)
    stake = oracle_stake(shape, size, rho, gap)
    ours, oracles = [], []
    for _ in range(streams):
        calm = correlated(rng, shape, break_at, size, rho)
        broken = correlated(rng, shape, room, size, rho, gap)
        monitor = Monitor(false_alarm_rate=rate, batch=size)
        monitor.update_answers(*(np.concatenate([a, b]).ravel() for a, b in zip(calm, broken, strict=True)))
        delay = np.inf if monitor.alarm_at is None else monitor.alarm_at / size - break_at
        if delay <= 0:
            continue
        surprise = broken[1].mean(axis=1) - broken[0].mean(axis=1)
        wealth = np.cumsum(np.log(np.maximum(1 - stake * surprise, 1e-12)))
        reached = np.flatnonzero(wealth >= -np.log(rate))
        ours.append(delay)
        oracles.append(reached[0] + 1 if len(reached) else np.inf)
    return ours, oracles


def rounded_alarms(streams: int, length: int, rate: float, digits: int | None, stored: type = np.float64) -> int:
    """Alarms over calibrated streams of confidences near 1 that were logged with 2 decimals and stored by this type."""
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(streams):
        confidence = rng.beta(60, 0.5, length)
        monitor = Monitor(false_alarm_rate=rate, digits=digits)
        logged = np.round(confidence, 2).astype(stored).astype(np.float64)
        monitor.update_answers(logged, rng.random(length) < confidence)
        alarms += monitor.alarm
    return alarms


def group_streams(streams: int, n_groups: int, length: int, rate: float, gap: float) -> tuple[int, int, list[float]]:
    """Streams with any alarm, streams whose broken group 0 was named, and the delays in answers of that group."""
    rng = np.random.default_rng(6)
    alarms, named, found = 0, 0, []
    for _ in range(streams):
        monitor = GroupMonitor(false_alarm_rate=rate, window=100)
        group = rng.integers(0, n_groups, length)
        confidence = rng.beta(*SHAPES["middling"], length)
        chance = np.where(group == 0, np.clip(confidence - gap, 0, 1), confidence)
        monitor.update_answers(confidence, rng.random(length) < chance, group)
        alarms += monitor.alarm
        named += "0" in monitor.alarms
        found += [float(monitor.groups["0"].alarm_at)] if "0" in monitor.alarms else []
    return alarms, named, found


def dependence(streams: int) -> bool:
    """Every assumption broken on purpose, without and with its remedy; True if every remedy keeps the promise."""
    rate, kept = 0.05, True
    print(f"{streams} calibrated streams each, promised rate {rate}")
    for size, rho in ((10, 0.1), (30, 0.3)):
        plain = dependent_alarms(streams, 200, size, rho, rate, None)
        batched = dependent_alarms(streams, 200, size, rho, rate, size)
        kept &= batched <= rate * streams
        print(f"batches of {size}, correlation {rho}: row by row {plain}, one bet per batch {batched} alarms")
    exact, safe = (rounded_alarms(streams, 5000, rate, digits) for digits in (7, None))
    kept &= safe <= rate * streams
    print(f"confidences near 1 rounded to 2 decimals: taken as exact {exact}, rounding-safe {safe} alarms")
    alarms, _, _ = group_streams(streams, 20, 4000, rate, 0.0)
    kept &= alarms <= rate * streams
    print(f"20 groups, any alarm of the whole or of a group: {alarms}")
    _, named, found = group_streams(max(streams // 10, 1), 20, 20_000, rate, 0.15)
    print(f"20 groups, one overconfident by 15 points: named in {named} of {max(streams // 10, 1)}, after "
          f"{np.median(found or [np.nan]):.0f} of its answers (median)")  # fmt: skip
    print("\nmedian delay in batches of 30, correlation 0.3, 5 points of overconfidence, monitor and oracle bet")
    for break_at in (0, 200):
        for shape in SHAPES:
            ours, oracles = (
                np.median(x) for x in batch_delays(max(streams // 4, 1), shape, 30, 0.3, 0.05, rate, break_at)
            )
            kept &= bool(ours <= 2 * oracles)
            print(f"break at batch {break_at}, {shape}: {ours:.0f} and {oracles:.0f}, ratio {ours / oracles:.2f}")
    return bool(kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--length", type=int, default=10_000)
    parser.add_argument("--delay-streams", type=int, default=30)
    parser.add_argument("--dependence", action="store_true")
    arguments = parser.parse_args()
    if arguments.dependence:
        raise SystemExit(not dependence(arguments.streams))
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
