"""Try an installed wheel in a clean environment: `make dist` runs this with the environment's own Python."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

COMMAND = Path(sys.executable).parent / "calibrant"


def main() -> None:
    os.chdir(tempfile.mkdtemp())  # away from the checkout, so that only what was installed can answer
    import calibrant

    assert "site-packages" in calibrant.__file__, f"{calibrant.__file__} is not the installed package"
    assert (Path(calibrant.__file__).parent / "py.typed").exists(), "py.typed is not in the wheel"
    assert importlib.util.find_spec("torch") is None, "torch is installed: this is no clean environment"
    assert run("--version").strip().endswith(calibrant.__version__)
    measured = json.loads(run("measure", "cifar10-resnet18#test", "--json"))
    assert measured["n"] == 10000
    assert abs(measured["metrics"]["ece"]["value"] - 0.0382) < 1e-4
    run("fit", "cifar10-resnet18#val", "--method", "shape", "-o", "cal.safetensors")
    run("apply", "cal.safetensors", "cifar10-resnet18#test", "-o", "calibrated.npz")
    after = json.loads(run("measure", "calibrated.npz", "--json"))
    assert after["metrics"]["ece"]["value"] < measured["metrics"]["ece"]["value"]
    check_parts_that_need_torch()
    ours, numpy = n_modules("calibrant"), n_modules("numpy")
    print(f"calibrant {calibrant.__version__} works; its import loads {ours} modules, numpy's {numpy}")
    assert ours < numpy + 50


def check_parts_that_need_torch() -> None:
    """Training losses and torch files raise an error that names the extra; methods that optimize by gradient work."""
    remedy = "pip install 'calibrant[torch]'"
    run("fit", "cifar10-resnet18#val", "--method", "pts", "-o", "pts.safetensors")
    Path("logits.pt").touch()
    rejected = subprocess.run([COMMAND, "measure", "logits.pt"], check=False, capture_output=True, text=True)
    assert rejected.returncode == 2, rejected
    assert remedy in rejected.stderr, rejected
    imported = subprocess.run(
        [sys.executable, "-c", "import calibrant.losses"], check=False, capture_output=True, text=True
    )
    assert imported.returncode != 0
    assert remedy in imported.stderr, imported


def run(*arguments: str) -> str:
    return subprocess.run([COMMAND, *arguments], check=True, capture_output=True, text=True).stdout


def n_modules(name: str) -> int:
    """What a fresh interpreter has loaded after this import: unlike its seconds, the same under any load."""
    command = [sys.executable, "-c", f"import sys, {name}; print(len(sys.modules))"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
