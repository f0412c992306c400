"""Scaling of class-wise training losses on a folder of networks (the paper's tables 1–3 and figures 1, 3, 4).

    python papers/sctl/run.py --data ../shared/data/zoo

rewrites `results/` and the claims of the README; with `--out` it runs on any folder and writes there.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from study_runner import main

if __name__ == "__main__":
    raise SystemExit(main(Path(__file__).parent))
