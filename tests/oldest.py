"""Print the oldest versions that pyproject.toml allows, as constraints for pip: `make oldest` installs and tests them.

torch is not among the light dependencies: it stays at the version of constraints.txt.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

EXTRAS = ("onnx", "dask", "serve", "skops")


def oldest(project: dict) -> list[str]:
    """`name==bound` for each dependency of the package and of its light extras."""
    asked = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    pins = []
    for requirement in map(Requirement, asked):
        bounds = [part.version for part in requirement.specifier if part.operator == ">="]
        if len(bounds) != 1:
            sys.exit(f"pyproject.toml: {requirement} has {len(bounds)} lower bounds, give it one")
        pins.append(f"{requirement.name}=={bounds[0]}")
    return pins


if __name__ == "__main__":
    file = Path(__file__).resolve().parents[1] / "pyproject.toml"
    print("\n".join(oldest(tomllib.loads(file.read_text(encoding="utf-8"))["project"])))
