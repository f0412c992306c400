"""The command line inside hardened containers, as far as this machine can build them without a container runtime.

python benchmarks/attack/containers.py          # as root: namespaces and other users need it

Each row of the matrix runs `measure`, `fit`, `apply` on 30,000×100 logits (above the compiled threshold) under some of:
a read-only root, no HOME, uid 65534, 512 MB of address space beyond what Python maps, one CPU, a full temporary disk.
"""

from __future__ import annotations

import argparse
import os
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
CAPABILITY = "+dac_read_search"
USER = f"--reuid {NOBODY} --regid {NOBODY} --clear-groups --inh-caps {CAPABILITY} --ambient-caps {CAPABILITY}"
"""Another user who may read everything, wherever Python is installed, and write nothing but its own folder."""

READ_ONLY = (
    "mount --bind / / && mount -o remount,ro,bind / && mount -t tmpfs -o size=256m tmpfs {work} && {copy} && {run}"
)


def write(folder: Path) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, ROWS)
    logits = rng.standard_normal((ROWS, CLASSES), dtype=np.float32)
    logits[np.arange(ROWS), labels] += 3
    np.save(folder / "val_logits.npy", logits)
    np.save(folder / "val_labels.npy", labels)


def run(folder: Path, *, read_only: bool, user: bool, home: bool, memory: bool, one_cpu: bool) -> tuple[int, str]:
    """Exit code and the last line of the error output of the three verbs under one set of limits."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    verbs = [
        ["measure", "val_logits.npy", "--json"],
        ["fit", "val_logits.npy", "--method", "ts", "-o", "cal.safetensors"],
        ["apply", "cal.safetensors", "val_logits.npy", "-o", "out.npz"],
    ]
    python = f"{sys.executable} -B -m calibrant"
    inner = " && ".join(f"{python} {' '.join(verb)} > /dev/null" for verb in verbs)
    if memory:
        inner = f"ulimit -v {(512 + 1536) * 1024} && {inner}"
    command = f"cd {work} && {inner}"
    if user:
        command = f"setpriv {USER} sh -c '{command}'"
    if one_cpu:
        command = f"taskset -c 0 sh -c {quoted(command)}"
    copy = f"cp {folder}/val_*.npy {work} && chmod 777 {work} && chmod 644 {work}/*"
    if read_only:
        command = ["unshare", "--mount", "sh", "-c", READ_ONLY.format(work=work, copy=copy, run=command)]
    else:
        command = ["sh", "-c", f"{copy} && {command}"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    environment["TMPDIR"] = str(work)
    if home:
        environment["HOME"] = str(work)
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    shutil.rmtree(work, ignore_errors=True)
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1][:150]


def quoted(command: str) -> str:
    return "'" + command.replace("'", "'\\''") + "'"


def main() -> None:
    if os.geteuid() != 0:
        raise SystemExit("this needs root: namespaces and other users")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("user", "root"), help="only the rows of uid 65534, or only those of root")
    only = parser.parse_args().only
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        write(Path(folder))
        for read_only, user, home in product((False, True), (False, True), (False, True)):
            if only and (only == "user") != user:
                continue
            for tight in (False, True):
                limits = {"read_only": read_only, "user": user, "home": home, "memory": tight, "one_cpu": tight}
                code, said = run(Path(folder), **limits)
                failed += code != 0
                words = ", ".join(name for name, on in limits.items() if on) or "no limits"
                print(f"{'ok' if code == 0 else f'exit {code}':<8}{words:<48}{said}", flush=True)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
