"""Broken artifacts on purpose: each mutation must give a clean error or a calibrator with finite probabilities.

python benchmarks/fuzz_artifacts.py --mutations 20000
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import json
import random
import resource
import time
import warnings
from collections import Counter

import numpy as np

from calibrant.calibrators import registry
from calibrant.core.errors import InputError
from calibrant.shipping.artifact import from_bytes, to_bytes

K = 4
NASTY = [
    None, True, False, 0, 1, -1, 2, 3, 10**12, 10**30, -(10**9), 0.0, -0.0, 1e-320, 1e300, -1e300, 0.5, "", "x", "nan",
    "Identity", "os.system", "__class__", "../../etc/passwd", [], {}, [[]], {"tensor": "x"}, {"number": "nan"},
    {"number": "inf"}, {"calibrator": {}}, {"tuple": []}, {"dict": {}}, {"strings": ["a"]}, [1, 2, 3], "é\u0000",
    [0.1] * 5,
]  # fmt: skip
SPECIALS = [np.nan, np.inf, -np.inf, 0.0, -1.0, 1e308, -1e308, 5e-324, 1e-30, 1e30, 2.0]


def samples() -> dict[str, bytes]:
    """An artifact of every method that the registry can fit, and of nested ones."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, K, 400)
    logits = 3 * (rng.normal(size=(400, K)) + 1.5 * np.eye(K)[labels])
    made = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in registry.names():
            made[name] = to_bytes(registry.get(name).fit(logits, labels), class_names=list("abcd"), before={"ece": 0.1})
    return made


def split(content: bytes) -> tuple[dict, bytes]:
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def join(outer: dict, payload: bytes) -> bytes:
    text = json.dumps(outer).encode()
    return len(text).to_bytes(8, "little") + text + payload


def flip_bits(content: bytes, rng: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def grow(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content))
    return content[:place] + rng.randbytes(rng.choice((1, 8, 64))) + content[place:]


def claim_header(content: bytes, rng: random.Random) -> bytes:
    size = rng.choice((0, 1, 7, 2**31, 2**40, 2**63, 2**64 - 1, len(content), len(content) - 8))
    return (size % 2**64).to_bytes(8, "little") + content[8:]


def spoil_numbers(content: bytes, rng: random.Random) -> bytes:
    outer, payload = split(content)
    data = bytearray(payload)
    for _ in range(rng.choice((1, 1, 3))):
        if len(data) >= 8:
            place = 8 * rng.randrange(len(data) // 8)
            data[place : place + 8] = np.float64(rng.choice(SPECIALS)).tobytes()
    return join(outer, bytes(data))


def spoil_tensors(content: bytes, rng: random.Random) -> bytes:
    outer, payload = split(content)
    names = [name for name in outer if name != "__metadata__"]
    if not names:
        return flip_bits(content, rng)
    entry = outer[rng.choice(names)]
    what = rng.randrange(4)
    if what == 0:
        entry["shape"] = rng.choice(([], [1], [10**12], [2**63], [-1], [0], [len(payload)], [2, 2], "x"))
    elif what == 1:
        entry["dtype"] = rng.choice(("F64", "F32", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "C64", "x"))
    elif what == 2:
        entry["data_offsets"] = rng.choice(([0, 0], [0, 2**50], [8, 0], [0, len(payload)], [-8, 0]))
    else:
        outer[rng.choice(("a", "b", *names))] = outer.pop(rng.choice(names))
    return join(outer, payload)


def spoil_header(content: bytes, rng: random.Random) -> bytes:
    outer, payload = split(content)
    header = json.loads(outer["__metadata__"]["calibrant"])
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        parent, key = rng.choice(list(places(header)))
        action = rng.randrange(6)
        if action == 0 and isinstance(parent, dict):
            del parent[key]
        elif action == 1 and isinstance(parent, dict):
            parent[rng.choice(("extra", "transform", "__dict__", "fit", "weights_", "classes_", "n_parameters_"))] = 1
        elif action == 2:
            other, other_key = rng.choice(list(places(header)))
            parent[key] = json.loads(json.dumps(other[other_key]))
        else:
            parent[key] = copy.deepcopy(rng.choice(NASTY))
    text = json.dumps(header)
    if rng.random() < 0.1:
        text = text.replace("1", "1e999", 1) if rng.random() < 0.5 else "[" * rng.choice((100, 100_000)) + text
    outer["__metadata__"]["calibrant"] = text
    return join(outer, payload)


def places(value):
    """Every (container, key) inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from places(inner)


MUTATORS = (flip_bits, cut, grow, claim_header, spoil_numbers, spoil_tensors, spoil_header, spoil_header, spoil_header)


def outcome(content: bytes, probes: list[np.ndarray]) -> str:
    """'refused' or 'valid'; any other exception, and any output that is no probability, escapes."""
    try:
        calibrator = from_bytes(content).calibrator
    except InputError as error:
        if "\n" in str(error):
            raise AssertionError(f"an error of more than one line: {error}") from error
        return "refused"
    with np.errstate(all="ignore"):
        for logits in probes:
            probabilities = calibrator.predict_proba(logits)
            if not np.isfinite(probabilities).all() or np.abs(probabilities.sum(axis=1) - 1).max() > 1e-3:
                raise AssertionError("a loaded calibrator gave values that are no probabilities")
    return "valid"


def run(mutations: int, seed: int = 0) -> dict[str, object]:
    """Mutate and load; returns counts, the slowest case and the growth of memory."""
    originals = samples()
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    probes = [numbers.normal(size=(20, K)) * scale for scale in (1, 10, 1e4)]
    probes += [probe.astype(np.float32) for probe in probes]
    names = list(originals)
    counts: Counter[str] = Counter()
    slowest, problems = 0.0, []
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(mutations):
        name, mutate = rng.choice(names), rng.choice(MUTATORS)
        content = mutate(originals[name], rng)
        started = time.perf_counter()
        try:
            counts[outcome(content, probes)] += 1
        except Exception as error:
            problems.append(f"{number} {name} {mutate.__name__}: {type(error).__name__}: {error}")
        slowest = max(slowest, time.perf_counter() - started)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
    return {"methods": len(names), **counts, "problems": problems, "slowest_s": slowest, "memory_growth_mb": grown}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    faulthandler.enable()
    warnings.simplefilter("ignore")
    started = time.perf_counter()
    result = run(arguments.mutations, arguments.seed)
    problems = result.pop("problems")
    print(f"{arguments.mutations} mutations in {time.perf_counter() - started:.0f} s: {result}")
    print(f"problems: {len(problems)}")
    for problem in problems[:20]:
        print(" ", problem[:300])
    raise SystemExit(bool(problems))


if __name__ == "__main__":
    main()
