"""Turn committed results into the study's tables: `python papers/neural_clamping/tables.py` rewrites README's tables.

Every number comes from `results/*.json`; none is typed in.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CHECKPOINTS = ("c100_resnet20_ce", "c10_resnet20_ce")
COLUMNS = ("accuracy", "entropy", "ece", "ace", "sce")
HEADER = "| method | accuracy | entropy ↑ | ECE ↓ | ACE ↓ | SCE ↓ |\n| --- | --- | --- | --- | --- | --- |"


def cells(runs: list[dict[str, Any]]) -> str:
    """Mean ± standard deviation over runs of each column."""
    words = []
    for column in COLUMNS:
        values = [run[column] for run in runs]
        scale, digits = (100, 2) if column == "accuracy" else (1, 4)
        text = f"{scale * statistics.mean(values):.{digits}f}"
        if len(values) > 1:
            text += f" ± {scale * statistics.stdev(values):.{digits}f}"
        words.append(text)
    return " | ".join(words)


def chosen(study: dict[str, Any], variant: str, start: str = "data-driven") -> list[dict[str, Any]]:
    """The runs of one pair of γ and λ from one start."""
    gamma, penalty = study["variants"][variant]
    return [run for run in study["runs"] if (run["gamma"], run["penalty"], run["start"]) == (gamma, penalty, start)]


def table_one(name: str) -> str:
    """Output calibrators beside Neural Clamping (the paper's table 1)."""
    lines = [HEADER]
    outputs, study = read(f"{name}-outputs"), read(f"{name}-clamping")
    if outputs is not None:
        lines += [f"| {method} | {cells([figures])} |" for method, figures in outputs["rows"].items()]
    if study is None:
        return "\n".join([*lines, "| Neural Clamping | not run | | | | |"])
    for variant, words in (("ce", "Neural Clamping, cross entropy"), ("focal", "Neural Clamping, focal")):
        gamma, penalty = study["variants"][variant]
        runs = [run["joint"] for run in chosen(study, variant)]
        if not runs:
            lines.append(f"| {words}, γ={gamma:g}, λ={penalty:g} | not run | | | | |")
            continue
        mark = " (chosen)" if study["variants"][variant] == study["variants"]["chosen"] else ""
        lines.append(f"| {words}, γ={gamma:g}, λ={penalty:g}{mark} | {cells(runs)} |")
    return "\n".join(lines)


def ablation(name: str) -> str:
    """δ alone, T alone, both (the paper's table 3), and both starts (figure 3), at the chosen γ and λ."""
    study = read(f"{name}-clamping")
    if study is None:
        return "(not run)"
    lines = [HEADER] + ([f"| no calibration | {cells([study['none']])} |"] if "none" in study else [])
    parts = [("input_only", "δ alone", "data-driven"), ("output_only", "T alone", "data-driven")]
    parts += [("joint", "both, data-driven start", "data-driven"), ("joint", "both, random start", "normal")]
    for part, words, start in parts:
        runs = [run[part] for run in chosen(study, "chosen", start) if part in run]
        lines.append(f"| {words} ({len(runs)} seeds) | {cells(runs) if runs else 'not run | | | |'} |")
    return "\n".join(lines)


def pool(name: str) -> str:
    """Held-out ECE of every pair that was tried."""
    study = read(f"{name}-clamping")
    if study is None or "scores" not in study:
        return "(not kept)"
    lines = ["| γ | λ | held-out ECE |", "| --- | --- | --- |"]
    scores = sorted(study["scores"], key=lambda one: (one["gamma"], one["penalty"]))
    return "\n".join(lines + [f"| {one['gamma']:g} | {one['penalty']:g} | {one['ece']:.4f} |" for one in scores])


def claims() -> str:
    """claim | paper (ResNet-110, CIFAR-100) | here | holds?, the verdicts computed from the results."""
    lines = ["| claim | paper | checkpoint | here | holds here? |", "| --- | --- | --- | --- | --- |"]
    for name in CHECKPOINTS:
        outputs, study = read(f"{name}-outputs"), read(f"{name}-clamping")
        if outputs is None or study is None:
            continue
        rows, joint = outputs["rows"], [run["joint"] for run in chosen(study, "chosen")]
        error = statistics.mean(run["ece"] for run in joint)
        accuracy = 100 * statistics.mean(run["accuracy"] for run in joint)
        checks = [("Lower ECE than temperature scaling", "0.0172 → 0.0085", rows["Temperature scaling"]["ece"], error)]
        checks += [("Lower ECE than TS, grid searched", "0.0133 → 0.0085", rows["TS (grid searched)"]["ece"], error)]
        checks += [("Lower ECE than MS-ODIR", "0.0206 → 0.0085", rows["MS-ODIR"]["ece"], error)]
        for claim, paper, before, after in checks:
            verdict = "yes" if after < before else "**no**"
            lines.append(f"| {claim} | {paper} | {name} | {before:.4f} → {after:.4f} | {verdict} |")
        plain = 100 * rows["No calibration"]["accuracy"]
        verdict = "yes" if accuracy > plain - 0.5 else "**no**"
        words = f"{plain:.2f} → {accuracy:.2f}"
        lines.append(f"| Accuracy falls by less than half a point | 74.15 → 73.69 | {name} | {words} | {verdict} |")
        gamma = study["variants"]["chosen"][0]
        verdict = "yes" if gamma > 0 else "**no**"
        lines.append(f"| A focal loss is chosen over cross entropy | γ > 0 | {name} | γ = {gamma:g} | {verdict} |")
        spreads = []
        for start in ("normal", "data-driven"):
            errors = [run["joint"]["ece"] for run in chosen(study, "chosen", start)]
            spreads.append(statistics.stdev(errors) if len(errors) > 1 else float("nan"))
        verdict = "yes" if spreads[1] < spreads[0] else "**no**"
        words = f"{spreads[0]:.4f} → {spreads[1]:.4f}"
        lines.append(
            f"| The data-driven start spreads less than the random | figure 3 | {name} | {words} | {verdict} |"
        )
    return "\n".join(lines)


def read(name: str) -> dict[str, Any] | None:
    """A result, or None where it has not been made."""
    path = HERE / "results" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def main() -> int:
    """Rewrite the tables of README.md."""
    readme = HERE / "README.md"
    text = readme.read_text()
    head, found, rest = text.partition("<!-- claims -->\n")
    text = head + found + claims() + "\n" + rest[rest.index("<!-- end -->") :]
    for name in CHECKPOINTS:
        for kind, make in (("table 1", table_one), ("table 3", ablation), ("pool", pool)):
            head, found, rest = text.partition(f"<!-- {name} {kind} -->\n")
            if not found:
                raise SystemExit(f"{readme} has no section {name} {kind}")
            text = head + found + make(name) + "\n" + rest[rest.index("<!-- end -->") :]
    readme.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
