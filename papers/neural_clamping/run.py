"""What of the Neural Clamping study runs on a CPU, then the tables, claims and figures from all results.

    python papers/neural_clamping/run.py --data ../shared/data [--out FOLDER]

Output calibrators on the stored logits (table 1), the checkpoints against those logits, and clamping of problems whose
features differ in scale by up to seven orders of magnitude. `clamp.py` makes the runs that need a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from outputs import outputs_study
from resnet20 import load_resnet20, read_images
from scales import scales_study

CHECKPOINTS = {"c100_resnet20_ce": "cifar100", "c10_resnet20_ce": "cifar10"}
PARTS = ("outputs", "checkpoints", "scales")
CHECKED = 2000
"""Test images run through each checkpoint again."""


def main(arguments: list[str] | None = None) -> int:
    """Command line of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds zoo/ and cifar/")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder of results")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in CHECKPOINTS if "outputs" in options.parts else ():
        write(options.out / f"{name}-outputs.json", outputs_study(options.data / "zoo" / f"{name}.npz"))
    if "checkpoints" in options.parts:
        found = {name: stored_logit_difference(options.data, name) for name in CHECKPOINTS}
        write(options.out / "stored-logits.json", found)
    if "scales" in options.parts:
        write(options.out / "scales.json", scales_study())
    return 0


def stored_logit_difference(data: Path, name: str) -> dict[str, float]:
    """How far the checkpoint's logits of the test images are from the stored ones, and how many predictions differ."""
    model = load_resnet20(data / "zoo" / f"{name}.safetensors")
    images, _ = read_images(data / "cifar", CHECKPOINTS[name], "test", CHECKED)
    with np.load(data / "zoo" / f"{name}.npz") as file:
        expected = torch.from_numpy(file["test_logits"][:CHECKED].astype(np.float32))
    with torch.no_grad():
        found = torch.cat([model(part) for part in images.split(250)])
    changed = int((found.argmax(1) != expected.argmax(1)).sum())
    # the last digits depend on the machine's arithmetic
    return {"rows": CHECKED, "largest": round(float((found - expected).abs().max()), 2), "predictions changed": changed}


def write(path: Path, result: dict[str, Any]) -> None:
    """One result as JSON."""
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {path}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
