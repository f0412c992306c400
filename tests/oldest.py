"""Print the lower bounds of pyproject.toml as constraints for pip: `make oldest` installs and tests these versions.

torch is not included: `make oldest` installs the version of constraints.txt.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

EXTRAS = ("onnx", "dask", "serve", "skops")


def lower_bounds(project: dict) -> list[str]:
    """Return `name==bound` for each dependency of the package and of the extras without torch."""
    dependencies = [
        *project["dependencies"],
        *(line for extra in EXTRAS for line in project["optional-dependencies"][extra]),
    ]
    pins = []
    for requirement in map(Requirement, dependencies):
        bounds = [part.version for part in requirement.specifier if part.operator == ">="]
        if len(bounds) != 1:
            sys.exit(f"pyproject.toml: {requirement} has {len(bounds)} lower bounds, give it one")
        pins.append(f"{requirement.name}=={bounds[0]}")
    return pins


if __name__ == "__main__":
    file = Path(__file__).resolve().parents[1] / "pyproject.toml"
    print("\n".join(lower_bounds(tomllib.loads(file.read_text(encoding="utf-8"))["project"])))
