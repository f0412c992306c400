"""Fill the generated blocks of README and docs: `python docs/scripts/tables.py`, or `--check` to only compare.

A block is `<!-- generated: WHAT -->` … `<!-- end -->`. Guarantees come from the registry, quality from
docs/data/measured.json, and `from FILE#heading` copies the first table under a heading of another file.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import calibrant
from calibrant.calibrators.registry import names

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(<!-- generated: (?P<what>.+?) -->\n).*?(<!-- end -->)", re.S)
MEASURED: dict[str, Any] = json.loads((ROOT / "docs" / "data" / "measured.json").read_text())
SHORT = {"cifar100-resnet18": "CIFAR-100", "cifar10-resnet18": "CIFAR-10"}
MARK = {True: "✓", False: "–"}


PAPERS = {
    "cts": (
        "Frenkel, Goldberger: *Network Calibration by Class-based Temperature Scaling* (2021)",
        "ClassTemperatureScaling",
    ),
    "weight_scaling": (
        "Frenkel, Goldberger: *Calibration of Medical Imaging Classification Systems with Weight Scaling* (2022)",
        "WeightScaling ConfidenceWeightScaling BinTemperatureScaling",
    ),
    "sctl": (
        "Jung et al.: *Scaling of Class-wise Training Losses for Post-hoc Calibration* (ICML 2023)",
        "ClassLossScaling",
    ),
    "neural_clamping": ("Tang, Chen, Ho: *Neural Clamping* (2022)", "NeuralClamping"),
    "soft_objectives": (
        "Karandikar et al.: *Soft Calibration Objectives for Neural Networks* (NeurIPS 2021)",
        "TemperatureScaling",
    ),
}
"""Folder of each study, the paper, and the classes of its methods."""


def main(check: bool) -> int:
    """Rewrite what is out of date; with `check`, only name it."""
    stale = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        filled = BLOCK.sub(lambda match, page=page: match[1] + table(match["what"], page) + "\n" + match[3], text)
        if filled != text:
            stale.append(str(page.relative_to(ROOT)))
            if not check:
                page.write_text(filled, encoding="utf-8")
    if stale:
        print(("out of date: " if check else "written: ") + ", ".join(stale))
    return int(check and bool(stale))


def table(what: str, page: Path) -> str:
    """The block of this name, for this page."""
    kind, _, rest = what.partition(" ")
    makers: dict[str, Callable[[], str]] = {
        "guarantees": lambda: guarantees(names(), page),
        "quality": lambda: quality([name for name in names() if not rest or name in rest.split()]),
        "front": lambda: front(rest),
        "papers": lambda: papers(page),
        "from": lambda: copied(rest),
    }
    if kind not in makers:
        raise SystemExit(f"{page}: nothing is called {what!r}")
    return makers[kind]()


def page_of(calibrator: type) -> str:
    """The picture of a method, and its page where it has one: ClassTemperatureScaling → class-temperature."""
    words = re.sub(r"(Scaling|Calibration|Calibrator)$", "", calibrator.__name__)
    return re.sub(r"(?<!^)(?=[A-Z])", "-", words).lower()


def section_of(name: str) -> str:
    """Where docs/ explains a class: the section whose first line links its entry in the reference, or its own page."""
    section = re.compile(rf"^(#+) (.+)\n\n`[^\n]* · [^\n]*\[`{name}`\]", re.M)
    for page in sorted((ROOT / "docs").rglob("*.md")):
        found = section.search(page.read_text(encoding="utf-8"))
        if found:
            anchor = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", found[2].lower()).strip())
            return str(page.relative_to(ROOT / "docs")) + ("" if found[1] == "#" else f"#{anchor}")
    return f"methods/{page_of(type(name, (), {}))}.md"


def guarantees(wanted: list[str], page: Path) -> str:
    """What each method promises, read off its instances."""
    lines = ["| method | keeps predictions | keeps ranking | fits in chunks | works on probabilities |"]
    lines.append("| --- | :---: | :---: | :---: | :---: |")
    for name in wanted:
        one = calibrant.get(name)
        target = os.path.relpath(ROOT / "docs" / section_of(type(one).__name__), page.parent)
        facts = (one.keeps_prediction, one.keeps_ranking, one.additive, not one.requires_logits)
        marks = " | ".join(MARK[bool(fact)] for fact in facts)
        lines.append(f"| [`{name}`]({target}) | {marks} |")
    return "\n".join(lines)


def quality(wanted: list[str]) -> str:
    """ECE, NLL and the rest on the embedded data."""
    data = MEASURED["data"]
    columns = [f"{SHORT[name]} {column}" for name in data for column in ("ECE %", "NLL", "accuracy %")]
    lines = ["| method | " + " | ".join(columns) + " | fit s |"]
    lines.append("| --- |" + " ---: |" * (3 * len(data) + 1))
    for name in wanted:
        cells = []
        for found in data.values():
            figures = found["methods"].get(name, {})
            if "ece" not in figures:
                cells += [figures.get("error", "not measured"), "", ""]
                continue
            cells += [f"{100 * figures['ece']:.2f}", f"{figures['nll']:.4f}", f"{100 * figures['accuracy']:.2f}"]
        seconds = data["cifar100-resnet18"]["methods"].get(name, {}).get("fit_seconds")
        cells.append("" if seconds is None else f"{seconds:g}")
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def front(name: str) -> str:
    """The figures of the front page: CIFAR-100 before and after one method."""
    methods = MEASURED["data"]["cifar100-resnet18"]["methods"]
    before, after = methods["none"], methods[name]
    tiles = [
        ("ECE", f"{100 * before['ece']:.2f}%", f"{100 * after['ece']:.2f}%", "mean gap of confidence and accuracy"),
        ("NLL", f"{before['nll']:.4f}", f"{after['nll']:.4f}", "log loss on new rows"),
        ("Accuracy", f"{100 * before['accuracy']:.2f}%", f"{100 * after['accuracy']:.2f}%", "no prediction changed"),
        ("Brier", f"{before['brier']:.4f}", f"{after['brier']:.4f}", "squared error of all probabilities"),
    ]
    lines = [
        f"<div><span>{title}</span><b><s>{old} →</s> {new}</b><span>{what}</span></div>"
        for title, old, new, what in tiles
    ]
    return "\n".join(['<div class="figures">', *lines, "</div>"])


def papers(page: Path) -> str:
    """The studies and their reports."""
    lines = ["| paper | methods | study |", "| --- | --- | --- |"]
    for folder, (title, methods) in PAPERS.items():
        links = ", ".join(f"[`{name}`]({section_of(name)})" for name in methods.split())
        links += ", [losses](training.md)" * (folder == "soft_objectives")
        report = os.path.relpath(ROOT / "papers" / folder / "README.md", page.parent)
        lines.append(f"| {title} | {links} | [report]({report}) |")
    return "\n".join(lines)


def copied(address: str) -> str:
    """The first table under a heading of another file, or a line saying that there is none yet."""
    file, _, heading = address.partition("#")
    text = (ROOT / file).read_text(encoding="utf-8")
    for title, body in re.findall(r"^#+ (.+?)\n(.*?)(?=^#|\Z)", text, re.M | re.S):
        if re.sub(r"[^\w]+", "-", title.lower()).strip("-") == heading:
            rows = re.search(r"(?:^\|.*\n)+", body, re.M)
            if rows:
                return rows[0].rstrip("\n")
    raise SystemExit(f"{file} has no table under #{heading}")


if __name__ == "__main__":
    raise SystemExit(main("--check" in sys.argv[1:]))
