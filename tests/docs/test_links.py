"""Relative links and anchors of every Markdown file lead somewhere; no network is asked."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "papers/*/README.md", "benchmarks/*.md") for path in ROOT.glob(pattern)
)
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.S)
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)")


@cache
def anchors(path: Path) -> frozenset[str]:
    """What a heading is called in a link, as GitHub and MkDocs agree on for plain words."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
    found = set(re.findall(r"\{#([\w-]+)\}", text)) | set(re.findall(r"^::: (\S+)", text, re.M))
    for heading in re.findall(r"^#+ (.+?)(?: \{#[\w-]+\})?$", text, re.M):
        words = re.sub(r"[^\w\s-]", "", heading.lower()).strip()
        found.add(re.sub(r"\s", "-", words))
        found.add(re.sub(r"[-\s]+", "-", words))
    return frozenset(found)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = CODE.sub("", path.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            assert target.startswith("https://"), f"{target} is no https address"
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), f"{path.name} links to {target}: there is no such file"
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), f"{path.name} links to {target}: no such heading"


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 200


def test_the_first_screen_of_the_readme_says_for_whom_and_shows_a_picture_and_three_commands() -> None:
    first = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    assert len(first.splitlines()) < 30
    assert "It is for" in first
    assert all((ROOT / name).exists() for name in re.findall(r'(?:src|srcset)="([^"]+)"', first))
    assert "<picture>" in first
    commands = re.search(r"```bash\n(.*?)```", first, re.S)
    assert commands is not None
    assert [line.split()[:2] for line in commands[1].splitlines()] == [
        ["calibrant", verb] for verb in ("measure", "compare", "fit")
    ]


def test_the_readme_installs_an_extra_with_the_pinned_versions() -> None:
    assert "pip install '.[torch]' -c constraints.txt" in (ROOT / "README.md").read_text(encoding="utf-8")
