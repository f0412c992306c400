"""The studies of papers that need nothing but predictions: tables and claims from a folder of `.npz` files.

Each study is a module with `run(folder, resamples, seed, workers)` → `Study`. A study fits on `val` and measures on
`test` of every file; `studies.writing` draws its figures.
"""

from __future__ import annotations

import importlib
import os

from calibrant.core.errors import InputError
from studies.study import Study

NAMES = ("cts", "sctl", "weight_scaling")
RESAMPLES = 1000


def run_study(
    name: str, folder: str | os.PathLike[str], *, resamples: int = RESAMPLES, seed: int = 0, workers: int = 1
) -> Study:
    """Run the study of a paper on the `.npz` files of a folder, each holding val and test predictions.

    Parameters
    ----------
    name : "cts" (Frenkel & Goldberger 2021), "sctl" (Jung et al. 2023) or "weight_scaling" (Frenkel & Goldberger 2022)
    folder : holds the files, or the folder `zoo` (`chestxray14` for weight_scaling) with the files
    resamples : paired bootstrap resamples of the test rows
    seed : of the resamples
    workers : processes that fit networks side by side; the result does not depend on it
    """
    if name not in NAMES:
        raise InputError(f"no study is called {name!r}; there are: {', '.join(NAMES)}")
    module = importlib.import_module(f"studies.{name}")
    return module.run(folder, resamples=resamples, seed=seed, workers=workers)


__all__ = ["NAMES", "RESAMPLES", "Study", "run_study"]
