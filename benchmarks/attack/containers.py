"""The command line inside hardened containers, as far as this machine can build them without a container runtime.

python benchmarks/attack/containers.py          # as root: namespaces, control groups and other users need it

Each row of the matrix runs `measure`, `fit`, `apply` on 30,000×100 logits (above the compiled threshold) under some of:
a read-only root, no HOME, uid 65534 without any capability, 512 MB of memory, one CPU. Memory is limited by a control
group (version 2 or 1), page cache and temporary disk included; where none can be made, by RLIMIT_DATA. The first line
says which.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

import numpy as np

import calibrant

SOURCE = Path(calibrant.__file__).parents[1]
ROWS, CLASSES = 30_000, 100
NOBODY = "65534"
MEMORY = 512 * 2**20
USER = f"--reuid {NOBODY} --regid {NOBODY} --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all"
"""Another user who may write nothing but its own folder."""

GROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.swap.max"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
)
"""Where control groups of either version are made, and what limits memory and memory with swap there."""


def write(folder: Path) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, ROWS)
    logits = rng.standard_normal((ROWS, CLASSES), dtype=np.float32)
    logits[np.arange(ROWS), labels] += 3
    np.save(folder / "val_logits.npy", logits)
    np.save(folder / "val_labels.npy", labels)


def memory_group() -> Path | None:
    """A new control group of 512 MB, or None where none can be made."""
    for parent, limit, with_swap in GROUPS:
        group = parent / f"calibrant-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / limit).exists():
            (group / limit).write_text(str(MEMORY))
            if (group / with_swap).exists():
                (group / with_swap).write_text("0" if "swap" in with_swap else str(MEMORY))
            return group
        group.rmdir()
    return None


def readable(paths: list[Path], hold: Path) -> list[str]:
    """Commands that let strangers read these folders: their closed parents are covered, inside a mount namespace."""
    before, after, covered = [], [], []
    for number, path in enumerate(paths):
        closed = next((one for one in [*path.parents][::-1] if not one.stat().st_mode & 0o001), None)
        if closed is None:
            continue
        before += [f"mkdir -p {hold}/{number}", f"mount --bind {path} {hold}/{number}"]
        after += [f"mkdir -p {path}", f"mount --move {hold}/{number} {path}"]
        covered += [] if closed in covered else [closed]
    return [*before, *(f"mount -t tmpfs -o mode=755 tmpfs {one}" for one in covered), *after]


def script(folder: Path, group: Path | None, limits: dict[str, bool]) -> str:
    """The shell commands of one row of the matrix."""
    work = folder / "work"
    verbs = (
        "measure val_logits.npy --json",
        "fit val_logits.npy --method ts -o cal.safetensors",
        "apply cal.safetensors val_logits.npy -o out.npz",
    )
    inner = " && ".join([f"cd {work}", *(f"{sys.executable} -B -m calibrant {verb} > /dev/null" for verb in verbs)])
    if limits["read_only"]:
        inner = f"if touch {folder}/probe 2> /dev/null; then echo the root is writable >&2; exit 9; fi; {inner}"
    if limits["memory"] and group is None:
        inner = f"ulimit -d {MEMORY // 1024} && {inner}"
    if limits["user"]:
        inner = f"setpriv {USER} sh -c {shlex.quote(inner)}"
    if limits["one_cpu"]:
        inner = f"taskset -c 0 sh -c {shlex.quote(inner)}"
    steps = []
    if limits["user"]:
        steps += readable(list(dict.fromkeys([Path(sys.base_prefix), Path(sys.prefix), SOURCE])), folder / "hold")
    if limits["read_only"]:
        steps += ["mount --bind / /", "mount -o remount,ro,bind /", f"mount --bind {folder} {folder}"]
        steps += [f"mount -o remount,ro,bind {folder}", f"mount -t tmpfs -o size=256m tmpfs {work}"]
    steps += [f"cp {folder}/val_*.npy {work}", f"chmod 777 {work}", f"chmod 644 {work}/*"]
    if limits["memory"] and group is not None:
        steps.append(f"echo $$ > {group}/cgroup.procs")
    return " && ".join([*steps, inner])


def run(folder: Path, group: Path | None, limits: dict[str, bool]) -> tuple[int, str]:
    """Exit code and the last line of the error output of the three verbs under one set of limits."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    (folder / "hold").mkdir(exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "TMPDIR": str(work)}
    if limits["home"]:
        environment["HOME"] = str(work)
    command = ["unshare", "--mount", "sh", "-c", script(folder, group, limits)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    shutil.rmtree(work, ignore_errors=True)
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1][:150]


def main() -> None:
    if os.geteuid() != 0:
        raise SystemExit("this needs root: namespaces, control groups and other users")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("user", "root"), help="only the rows of uid 65534, or only those of root")
    only = parser.parse_args().only
    failed, group = 0, memory_group()
    print(f"512 MB by {'RLIMIT_DATA' if group is None else f'the control group {group}'}", flush=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            write(Path(folder))
            for read_only, user, home in product((False, True), (False, True), (False, True)):
                if only and (only == "user") != user:
                    continue
                for tight in (False, True):
                    limits = {"read_only": read_only, "user": user, "home": home, "memory": tight, "one_cpu": tight}
                    code, said = run(Path(folder), group, limits)
                    failed += code != 0
                    words = ", ".join(name for name, on in limits.items() if on) or "no limits"
                    print(f"{'ok' if code == 0 else f'exit {code}':<8}{words:<48}{said}", flush=True)
        if group is not None:
            most = next(one for one in ("memory.peak", "memory.max_usage_in_bytes") if (group / one).exists())
            print(f"most memory in the group: {int((group / most).read_text()) / 2**20:.0f} MB")
    finally:
        if group is not None:
            group.rmdir()
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
