"""Past one machine's memory: exactness, memory, speed, growth, lost workers and broken parts, in one run.

    python benchmarks/scale.py                  # everything small: a minute or two
    python benchmarks/scale.py --full           # also 5,000,000 × 200 float32, 4 GB under --folder

Every figure is printed with what it is compared to; the exit code is 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import calibrant as cal
from calibrant.core import progress
from calibrant.data import Predictions, write_predictions
from calibrant.metrics import METRICS, stream

PARTS = 40
broken: list[str] = []


def show(what: str, figure: str, kept: bool) -> None:
    print(f"{'ok ' if kept else 'BAD'} {what:<58} {figure}", flush=True)
    if not kept:
        broken.append(what)


def write_parts(folder: Path, n: int, k: int, parts: int, suffix: str = ".npy") -> None:
    """Overconfident logits of a made-up classifier, float32, in equal parts."""
    folder.mkdir(parents=True)
    borders = np.linspace(0, n, parts + 1).astype(int)
    for part in range(parts):
        rng = np.random.default_rng(part)
        count = borders[part + 1] - borders[part]
        labels = rng.integers(0, k, count)
        logits = rng.standard_normal((count, k), dtype=np.float32)
        logits *= 2
        logits[np.arange(count), labels] += 6
        one = Predictions.from_arrays(logits=logits, labels=labels)
        write_predictions(one, folder / f"part-{part:03}{suffix}")


def numbers(value: object) -> np.ndarray:
    """All figures of a metric's result in one vector."""
    if isinstance(value, (float, int, np.ndarray)):
        return np.nan_to_num(np.ravel(np.asarray(value, dtype=float)))
    fields = [getattr(value, name) for name in value.__dataclass_fields__]  # type: ignore[attr-defined]
    return np.concatenate([numbers(field) for field in fields if not isinstance(field, str)])


def exactness(folder: Path) -> None:
    """40 files against the arrays in memory."""
    n, k = 120_000, 20
    write_parts(folder / "forty", n, k, PARTS)
    parts = cal.open_predictions(folder / "forty")
    logits, labels = np.concatenate([chunk.logits for chunk in parts.chunks()]), parts.labels
    for name in ("ts", "vs", "ets", "ms", "dir", "ws", "bts", "ccts", "cts-nll", "sctl+ts", "cws", "iso", "spline"):
        whole = cal.get(name).fit(logits, labels)
        chunked = cal.get(name).fit(parts)
        gap = np.abs(whole.predict_proba(logits[:5000]) - chunked.predict_proba(logits[:5000])).max()
        show(f"{name} over {PARTS} files = in memory (1e-6, probabilities)", f"{gap:.1e}", gap <= 1e-6)
    streamed = stream(parts)
    gaps = {}
    for name in streamed:
        direct = METRICS[name].function(logits, labels, from_logits=True)
        gaps[name] = float(np.abs(numbers(direct) - numbers(streamed[name])).max())
    show(f"{len(gaps)} additive metrics over {PARTS} files = in memory (1e-6)", f"{max(gaps.values()):.1e}",
         max(gaps.values()) <= 1e-6)  # fmt: skip
    found = {}
    for pieces in (1, 7, PARTS):
        other = folder / f"pieces-{pieces}"
        other.mkdir()
        borders = np.linspace(0, n, pieces + 1).astype(int)
        for part in range(pieces):
            own = slice(borders[part], borders[part + 1])
            one = Predictions.from_arrays(logits=logits[own], labels=labels[own])
            write_predictions(one, other / f"{part:03}.npz")
        for threads in ("1", "2", "5"):
            os.environ["CALIBRANT_THREADS"] = threads
            found[pieces, threads] = cal.TemperatureScaling().fit(other).temperature_
        del os.environ["CALIBRANT_THREADS"]
    by_pieces = [{found[pieces, threads] for threads in ("1", "2", "5")} for pieces in (1, 7, PARTS)]
    show(
        "T on 1, 2, 5 threads: the same bits", str([len(one) for one in by_pieces]), all(len(o) == 1 for o in by_pieces)
    )
    spread = max(found.values()) - min(found.values())
    show("T from 1, 7, 40 files (1e-6)", f"{spread:.1e}", spread <= 1e-6)


def tree_memory(pid: int) -> int:
    """Resident bytes of a process and all its children."""
    import psutil

    try:
        process = psutil.Process(pid)
        return sum(one.memory_info().rss for one in [process, *process.children(recursive=True)])
    except psutil.Error:
        return 0


def read_speed(folder: Path) -> float:
    """Seconds to read all files into one buffer, start to end, and do nothing with them."""
    buffer = bytearray(8 * 2**20)
    started = time.perf_counter()
    for path in sorted(folder.iterdir()):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - started


FIT = """
import json, sys, time
import calibrant as cal
from calibrant.core import progress
passes, work = {}, {}
def listen(stage, done, total, note):
    for seen, now in ((passes, time.perf_counter()), (work, time.process_time())):
        seen[stage] = (seen.get(stage, (now, now))[0], now)
started = time.perf_counter()
parts = cal.open_predictions(sys.argv[1])
opened = time.perf_counter()
cal.TemperatureScaling().fit(parts[:20000])  # the first fit of a process loads the compiled kernels
loaded = time.perf_counter()
with progress.listen(listen):
    fitted = cal.TemperatureScaling().fit(parts)
seconds = {stage: last - first for stage, (first, last) in passes.items() if stage.startswith("pass")}
cpu = sum(last - first for stage, (first, last) in work.items() if stage.startswith("pass"))
found = {"T": fitted.temperature_, "open": opened - started, "fit": fitted.fit_seconds_, "passes": seconds}
found |= {"cpu": cpu, "load": loaded - opened}
print(json.dumps(found))
"""


def fit_apart(folder: Path) -> tuple[dict, int]:
    """The fit in a process of its own, and the peak of its memory, children included."""
    process = subprocess.Popen([sys.executable, "-c", FIT, str(folder)], stdout=subprocess.PIPE, text=True)
    peak = [0]

    def watch() -> None:
        while process.poll() is None:
            peak[0] = max(peak[0], tree_memory(process.pid))
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, _ = process.communicate()
    watcher.join()
    return json.loads(out), peak[0]


def speed_and_memory(folder: Path, n: int, k: int, repeats: int) -> None:
    write_parts(folder / "large", n, k, PARTS)
    size = sum(path.stat().st_size for path in (folder / "large").iterdir())
    fit_apart(folder / "large")  # the first run of a machine compiles the kernels
    runs = []
    for _ in range(repeats):
        before = read_speed(folder / "large")
        result, peak = fit_apart(folder / "large")
        read = min(before, read_speed(folder / "large"))
        passes = list(result["passes"].values())
        runs.append((read * len(passes) / sum(passes), read * len(passes) / result["fit"], peak))
        print(
            f"    read {read:.2f} s; passes {', '.join(f'{seconds:.2f}' for seconds in passes)} s wall, "
            f"{result['cpu'] / len(passes):.2f} s of CPU each; open {result['open']:.2f} s, "
            f"load kernels {result['load']:.2f} s, fit {result['fit']:.2f} s, "
            f"peak {peak / 2**30:.2f} GiB, load {os.getloadavg()[0]:.1f}"
        )
    pass_share, fit_share = (max(run[which] for run in runs) for which in (0, 1))
    peak = max(run[2] for run in runs)
    size_words = f"TS on {n:,} × {k} float32, {size / 1e9:.1f} GB"
    show(f"{size_words}: peak memory (1.5 GiB)", f"{peak / 2**30:.2f} GiB", peak <= 1.5 * 2**30)
    # small files are over before the threads are warm: the promise is about large ones
    large = size > 2**31
    show("a pass, by the speed of simply reading the files (60%)", f"{pass_share:.0%}", pass_share >= 0.6 or not large)
    show("the whole fit, by that of reading once a pass (60%)", f"{fit_share:.0%}", fit_share >= 0.6 or not large)
    shutil.rmtree(folder / "large")


def growth(folder: Path, n: int, k: int) -> None:
    print(f"    {'rows':>12} {'seconds':>9} {'ratio':>7}")
    # the same files again and again are more rows of the same kind: every size makes the same number of passes
    write_parts(folder / "grow-1", n, k, 10)
    for times in (2, 4):
        (folder / f"grow-{times}").mkdir()
        for copy in range(times):
            for path in (folder / "grow-1").iterdir():
                os.link(path, folder / f"grow-{times}" / f"{copy}-{path.name}")
    best = dict.fromkeys((1, 2, 4), np.inf)
    fit = cal.VectorScaling(penalty_bias=1.0)
    passes = {}
    for _ in range(4):
        for times in best:
            parts = cal.open_predictions(folder / f"grow-{times}")
            with progress.listen(lambda stage, *_: passes.__setitem__(times, stage)):  # noqa: B023
                started = time.perf_counter()
                fit.fit(parts)
            best[times] = min(best[times], time.perf_counter() - started)
    for times, seconds in best.items():
        ratio = seconds / best[1]
        print(f"    {n * times:>12,} {seconds:>9.2f} {ratio:>7.2f}  ({passes[times]})")
        show(f"{times}× the rows take {times}× the time (±15%)", f"{ratio:.2f}", abs(ratio / times - 1) <= 0.15)


def cluster(folder: Path) -> None:
    from calibrant.engines.dask import DaskEngine

    write_parts(folder / "cluster", 200_000, 50, PARTS)
    parts = cal.open_predictions(folder / "cluster")
    alone = cal.VectorScaling().fit(parts)
    engine = DaskEngine(n_workers=2)
    killed: list[int] = []

    def kill(stage: str, done: int, total: int | None, note: str) -> None:
        if stage == "pass 3" and done and not killed:
            killed.append(next(iter(engine.client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)

    with progress.listen(kill):
        fitted = cal.VectorScaling().fit(parts, engine=engine)
    engine.close()
    gap = float(np.abs(fitted.scale_ - alone.scale_).max())
    show("two Dask workers, one killed in pass 3: same answer", f"{gap:.1e}", bool(killed) and gap <= 1e-6)
    started = time.perf_counter()
    try:
        cal.TemperatureScaling().fit(parts, engine="tcp://127.0.0.1:9")
        words = ""
    except cal.InputError as error:
        words = str(error)
    seconds = time.perf_counter() - started
    show(
        "no scheduler there: one line within 10 s",
        f"{seconds:.1f} s",
        bool(words) and "\n" not in words and seconds < 10,
    )


def bad_parts(folder: Path) -> None:
    write_parts(folder / "bad", 8000, 10, 8, ".npz")
    victim = folder / "bad" / "part-003.npz"
    content = bytearray(victim.read_bytes())
    content[5000] ^= 0xFF
    victim.write_bytes(content)
    command = [sys.executable, "-m", "calibrant.cli", "fit", str(folder / "bad"), "-o", str(folder / "cal.safetensors")]
    command[1:3] = ["-c", "from calibrant.cli import main; main()"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    show("a corrupt part: error names file and part", refused.stderr.strip()[-70:],
         refused.returncode == 2 and "part-003.npz" in refused.stderr and "part 4 of 8" in refused.stderr)  # fmt: skip
    skipped = subprocess.run([*command, "--skip-bad-parts", "--json"], capture_output=True, text=True, check=False)
    answer = json.loads(skipped.stdout)
    show("--skip-bad-parts counts and reports it", f"n {answer['n']}, {len(answer['skipped_parts'])} part skipped",
         answer["n"] == 7000 and len(answer["skipped_parts"]) == 1)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="also 5,000,000 × 200 float32 (4 GB)")
    parser.add_argument("--only", default="", help="one of exactness, speed, growth, cluster, bad")
    parser.add_argument("--folder", default=None, help="where the files go; they are removed at the end")
    parser.add_argument("--repeats", type=int, default=2)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="calibrant-scale-", dir=asked.folder))
    studies = {
        "exactness": lambda: exactness(folder),
        "speed": lambda: speed_and_memory(folder, *(5_000_000 if asked.full else 500_000, 200), asked.repeats),
        "growth": lambda: growth(folder, 100_000, 100),
        "cluster": lambda: cluster(folder),
        "bad": lambda: bad_parts(folder),
    }
    try:
        for name, study in studies.items():
            if asked.only in ("", name):
                print(name)
                study()
    finally:
        shutil.rmtree(folder)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
