"""The workflows name what exists: make targets, supported versions of Python, files; the gate's script works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

sys.path.insert(0, str(Path(__file__).parent))
from blocks import blocks

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSIONS = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values()
    return [step for job in jobs for step in job.get("steps", [])]


def test_python_versions_agree() -> None:
    supported = SpecifierSet(PROJECT["requires-python"])
    assert [f"3.{minor}" for minor in range(30) if f"3.{minor}" in supported] == VERSIONS
    tests = (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
    assert f"python: {VERSIONS}".replace("'", '"') in tests
    for workflow in WORKFLOWS:
        for version in re.findall(r'python-version: "(3[\d.]+)"', workflow.read_text(encoding="utf-8")):
            assert version in VERSIONS, f"{workflow.name} uses Python {version}"


def test_workflows_call_make_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    called = {
        target
        for path in WORKFLOWS
        for step in steps(path)
        for target in re.findall(r"make (\w+)", step.get("run", ""))
    }
    assert called == {"test", "oldest", "workflows", "dist", "docs"}
    for target in called:
        assert re.search(rf"^{target}:", makefile, re.M), f"no make target {target}"


def test_nothing_is_published_without_a_wheel_that_was_tried_or_with_a_token() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))["jobs"]
    assert jobs["publish"]["needs"] == "wheel"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in "".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)


@pytest.mark.parametrize(("limit", "code", "mark"), [("0.05", 0, "yes"), ("0.03", 1, "**no**")])
def test_the_gate_is_red_on_a_bad_model(limit: str, code: int, mark: str, tmp_path: Path) -> None:
    action = yaml.safe_load((ROOT / ".github/actions/gate/action.yml").read_text(encoding="utf-8"))
    script = action["runs"]["steps"][0]["run"]
    inputs = {"PREDICTIONS": "cifar10-resnet18#test", "LIMITS": f"--max-ece {limit} --resamples 20", "OUTPUT": "m.json"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **inputs, "PATH": path, "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert f"| ece | 0.0382 | at most {limit} | {mark} |" in (tmp_path / "summary.md").read_text()


def test_the_yaml_of_the_page_is_a_workflow() -> None:
    page = (ROOT / "docs" / "ci-gates.md").read_text(encoding="utf-8")
    whole = next(block.body for block in blocks(page) if block.language == "yaml")
    commands = [step["run"] for step in yaml.safe_load(whole)["jobs"]["gate"]["steps"] if "run" in step]
    assert any("--max-ece" in command for command in commands)
