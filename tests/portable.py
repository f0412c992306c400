"""Run the numeric tests with the kernels of other processors: `python tests/portable.py [--settings NAME …] [TEST …]`.

Libraries select kernels by the processor, and kernels sum in different orders. Each setting makes them select other
ones by environment variables; a test that passes on one processor only fails here. One line per setting reports the
passed and failed tests, and the BLAS kernels and threads in use. The exit code is 1 if a test fails.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

TESTS = Path(__file__).resolve().parent
FOLDERS = ("core", "kernels", "metrics", "calibrators", "contracts", "evaluation", "engines", "recorded", "shipping")
AVX2, AVX512 = ("X86_V3", "AVX2"), ("X86_V4", "AVX512_SKX")
"""Names of instruction sets in numpy from 2.4 on, and before."""
BLAS_REPORT = """
import numpy, scipy.linalg, threadpoolctl
found = {(one.get("architecture"), one["num_threads"]) for one in threadpoolctl.threadpool_info()}
print(", ".join(f"{kernel} × {threads}" for kernel, threads in sorted(found, key=str)))
"""


class Setting(NamedTuple):
    """Environment variables, and instruction sets (any of several names) that they need."""

    variables: Mapping[str, str]
    needs: tuple[str, ...] = ()


class Result(NamedTuple):
    """Numbers of tests, and the lines that name failed ones."""

    passed: int
    failed: int
    failures: list[str]


def numpy_features() -> list[str]:
    """Names of the instruction sets that numpy selects kernels by and this processor has."""
    return np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])


def make_settings() -> dict[str, Setting]:
    """Settings by name."""
    kernels = {"Prescott": (), "Haswell": AVX2, "Zen": AVX2, "SkylakeX": AVX512}
    settings = {
        f"{kernel}-{threads}": Setting({"OPENBLAS_CORETYPE": kernel, "OPENBLAS_NUM_THREADS": str(threads)}, needs)
        for kernel, needs in kernels.items()
        for threads in (1, 4)
    }
    settings["numba-generic"] = Setting({"NUMBA_CPU_NAME": "generic"})
    settings["numpy-baseline"] = Setting({"NPY_DISABLE_CPU_FEATURES": " ".join(numpy_features())})
    torch = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}
    settings["torch-baseline"] = Setting(torch)
    # the mathematical functions of the C library, which numpy and scipy call
    settings["libm-baseline"] = Setting({"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F"})
    return settings


def reason_to_skip(setting: Setting) -> str:
    """Return why this machine cannot run a setting, or an empty string."""
    if "OPENBLAS_CORETYPE" in setting.variables and platform.machine().lower() not in {"x86_64", "amd64"}:
        return f"the kernels need an x86 processor, this is {platform.machine()}"
    if setting.needs and not set(setting.needs) & set(numpy_features()):
        return f"the processor lacks {setting.needs[-1]}"
    return ""


def describe_blas(variables: Mapping[str, str]) -> str:
    """Return the kernels and threads that the BLAS libraries select, such as `Haswell × 2`.

    OpenBLAS calls its Prescott kernels Katmai, and uses at most one thread per core.
    """
    command = [sys.executable, "-c", BLAS_REPORT]
    return subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, check=True
    ).stdout.strip()


def run_tests(variables: Mapping[str, str], paths: list[str], workers: int) -> Result:
    """Run the tests in a process with these environment variables."""
    command = [sys.executable, "-m", "pytest", "--tb=short", "-rfE", *paths]
    if workers > 1:
        command += ["-n", str(workers), "--dist", "worksteal"]
    done = subprocess.run(
        command,
        cwd=TESTS.parent,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    counts = {
        word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|error)", lines[-1] if lines else "")
    }
    failed = counts.get("failed", 0) + counts.get("error", 0)
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR", "E  "))]
    if done.returncode and not failed:
        # the run itself ended early
        failed, failures = 1, lines[-20:]
    return Result(counts.get("passed", 0), failed, failures)


def main() -> int:
    """Run the settings and return the exit code."""
    settings = make_settings()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tests", nargs="*", default=[f"tests/{folder}" for folder in FOLDERS], help="folders or files")
    parser.add_argument("--settings", nargs="+", choices=settings, default=list(settings), metavar="NAME")
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest-xdist")
    options = parser.parse_args()
    any_failed = False
    print(f"{'setting':16} {'passed':>7} {'failed':>7} {'seconds':>8}  BLAS")
    for name in options.settings:
        setting = settings[name]
        if reason := reason_to_skip(setting):
            print(f"{name:16} skipped: {reason}", flush=True)
            continue
        blas, start = describe_blas(setting.variables), time.monotonic()
        result = run_tests(setting.variables, options.tests, options.workers)
        seconds = time.monotonic() - start
        print(f"{name:16} {result.passed:7,} {result.failed:7,} {seconds:8.0f}  {blas}", flush=True)
        for line in result.failures:
            print(f"  {line}", flush=True)
        any_failed |= result.failed > 0
    return int(any_failed)


if __name__ == "__main__":
    sys.exit(main())
