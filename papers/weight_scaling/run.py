"""Weight scaling on the authors' published logits (the paper's tables 1–2 and figures 1–2).

    python papers/weight_scaling/run.py --data ../shared/data/chestxray14

rewrites `results/` and the claims of the README; with `--out` it runs on any folder and writes there.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from study_runner import main

if __name__ == "__main__":
    raise SystemExit(main(Path(__file__).parent))
