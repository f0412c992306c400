"""The container's files: what they say is run here, as far as a machine without an engine allows."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import yaml
from packaging.requirements import Requirement

import calibrant

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    """(instruction, rest) of each line of the Dockerfile, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    joined = re.sub(r"\\\n\s*", " ", text)
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def last(instructions, name: str) -> str:
    return [rest for instruction, rest in instructions if instruction == name][-1]


def test_the_image_runs_as_nobody_and_copies_only_what_exists(instructions):
    assert last(instructions, "USER") == "65534:65534"
    names = [name for name, _ in instructions]
    assert names.count("FROM") == 2
    assert names.index("USER") > names.index("RUN")
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for instruction, rest in instructions:
        if instruction == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert source in allowed, source


def test_its_packages_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {str(Requirement(line)) for line in [*project["dependencies"], *project["optional-dependencies"]["serve"]]}
    lines = (ROOT / "docker-requirements.txt").read_text().splitlines()
    installed = {str(Requirement(line)) for line in lines if line and not line.startswith("#")}
    assert installed <= asked
    left_out = {Requirement(line).name for line in asked - installed}
    assert left_out == {"altair", "jinja2", "matplotlib", "vl-convert-python", "numba", "pyarrow"}


def test_its_command_serves_and_its_health_check_tells(instructions, tmp_path):
    """ENTRYPOINT, CMD and HEALTHCHECK of the image, with this machine's interpreter, artifact and port."""
    calibrant.save(calibrant.Identity().fit(2 * np.eye(3), [0, 1, 2]), tmp_path / "cal.safetensors")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    entry, arguments = (json.loads(last(instructions, name)) for name in ("ENTRYPOINT", "CMD"))
    assert entry[0] == "calibrant"
    replaced = {"/artifacts/cal.safetensors": str(tmp_path / "cal.safetensors"), "0.0.0.0": "127.0.0.1", "8080": port}
    command = [sys.executable, "-m", *entry, *(replaced.get(word, word) for word in arguments)]
    check = json.loads(last(instructions, "HEALTHCHECK").partition("CMD ")[2])
    assert check[0] == "python"
    health = [sys.executable, *check[1:]]
    env = {**os.environ, "CALIBRANT_PORT": port}
    assert subprocess.run(health, env=env, capture_output=True, check=False).returncode != 0
    # without numba, pyarrow and plotting, as in the image
    blocked = "import sys; sys.modules.update(dict.fromkeys(%r)); from calibrant.cli import main; sys.argv = %r; main()"
    missing = ["numba", "pyarrow", "matplotlib", "altair", "vl_convert"]
    command = [sys.executable, "-c", blocked % (missing, ["calibrant", *command[3:]])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as service:
        try:
            assert "Identity for 3 classes" in service.stdout.readline()
            deadline = time.monotonic() + 120
            while subprocess.run(health, env=env, capture_output=True, check=False).returncode:
                assert time.monotonic() < deadline
        finally:
            service.kill()


def test_the_compose_file_asks_for_what_the_command_knows(run_help):
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    service = services["calibrant"]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert all(option in run_help for option in service["command"] if option.startswith("--"))
    assert service["ports"] == ["127.0.0.1:8080:8080"]
    written = {volume.split(":")[1] for volume in service["volumes"] if not volume.endswith(":ro")}
    assert {"/state"} == written
    assert service["command"][-1].startswith("/state/")


@pytest.fixture
def run_help() -> str:
    command = [sys.executable, "-m", "calibrant", "serve", "--help"]
    env = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
