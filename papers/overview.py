"""The tables of claims in papers/README.md and docs/papers.md; `python papers/overview.py` rewrites them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs" / "papers.md"
END = "<!-- end -->"
STUDIES = {
    "cts": "Class-based temperature scaling",
    "weight_scaling": "Weight scaling",
    "sctl": "Class-wise training losses",
    "neural_clamping": "Neural Clamping",
    "soft_objectives": "Soft objectives",
}
"""The paper of each folder."""

KNOWN = {
    "cts": (
        "CTS has a lower ECE than TS in almost all cases (table I)",
        "CTS has a lower ECE than TS on average over networks (section V)",
        "CTS keeps the accuracy of the validation set",
        "Without the constraint the ECE falls further (table II)",
        "Five sweeps are enough",
    ),
    "weight_scaling": (
        "CWS has the lowest ECE of all methods in almost all cases (table 1)",
        "CWS has a lower ECE than TS (table 1)",
        "CWS has a lower ECE than CTS (table 1)",
        "WS has a lower ECE than TS in more than half of the cases",
        "WS keeps the order of confidences between patients (figure 1)",
        "TS by the ECE does not calibrate at all, its temperature is 1",
    ),
    "sctl": (
        "Class-loss scaling lowers the ECE on balanced data (table 1)",
        "Class-loss scaling lowers the ECE on two long-tailed networks of ours (table 2)",
        "TS+Ours has a lower ECE than TS+LS on CIFAR-10-LT (table 2)",
        "CTS+Ours raises accuracy on two long-tailed networks of ours (table 2)",
        "FL raises the ECE on balanced data (table 1)",
    ),
    "neural_clamping": (
        "ResNet-20: lower ECE than temperature scaling (table 1)",
        "ResNet-18: lower ECE than temperature scaling (table 1)",
        "ResNet-18: δ lowers the ECE at the T of the joint fit (table 3)",
        "ResNet-18: δ from the data-driven start raises the entropy at the same T (Theorem 1)",
        "ResNet-20: entropy spreads less from the data-driven start (figure 3)",
    ),
    "soft_objectives": (
        "Soft ECE improves on focal alone",
        "Soft AvUC improves on focal alone",
        "Focal + soft ECE without TS beats cross entropy with TS",
        "Soft AvUC has the largest effect across primary losses (figure 1)",
        "TS-SB-ECE beats TS in most cells (table 2)",
        "CIFAR-10: soft ECE improves on focal alone",
        "CIFAR-10: TS-SB-ECE beats TS after cross entropy",
    ),
}
"""The claims that each paper is known for."""


def claims_of(folder: str) -> list[list[str]]:
    """The rows of the table "Claims of the paper" in the report of a study."""
    text = (HERE / folder / "README.md").read_text(encoding="utf-8")
    table = text.partition("### Claims of the paper\n")[2].partition("\n#")[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")][2:]


def claims_table() -> str:
    """One row per claim of a paper, with its verdict and report."""
    lines = ["| paper | claim | verdict | after Holm | report |", "| --- | --- | --- | --- | --- |"]
    for folder, title in STUDIES.items():
        link = f"[{folder}]({folder}/README.md#claims-of-the-paper)"
        lines += [f"| {title} | {row[0]} | {row[3]} | {row[4]} | {link} |" for row in claims_of(folder)]
    return "\n".join(lines) + "\n"


def counts_table() -> str:
    """The number of claims of each paper by verdict."""
    columns = ("study", "holds", "does not hold", "not decided", "holds, after Holm", "does not hold, after Holm")
    lines = ["| " + " | ".join(columns) + " |", "| --- |" + " ---: |" * 5]
    for folder in STUDIES:
        rows = claims_of(folder)
        plain, corrected = ([row[place].partition(" (")[0] for row in rows] for place in (3, 4))
        counts = [plain.count(word) for word in columns[1:4]] + [corrected.count(word) for word in columns[1:3]]
        link = f"[{folder.replace('_', ' ')}](../papers/{folder}/README.md#claims-of-the-paper)"
        lines.append(f"| {link} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(lines) + "\n"


def known_table() -> str:
    """The full rows of the claims that each paper is known for."""
    lines = ["| study | claim | paper | here | verdict | after Holm |", "|" + " --- |" * 6]
    for folder, claims in KNOWN.items():
        rows = {row[0]: row for row in claims_of(folder)}
        lines += [f"| {folder.replace('_', ' ')} | " + " | ".join(rows[claim]) + " |" for claim in claims]
    return "\n".join(lines) + "\n"


SECTIONS: dict[Path, dict[str, Callable[[], str]]] = {
    HERE / "README.md": {"claims": claims_table},
    DOCS: {"claims: counts": counts_table, "claims: known": known_table},
}
"""The tables of each page, by the name of their mark."""


def filled(page: Path) -> str:
    """A page with the current tables."""
    text = page.read_text(encoding="utf-8")
    for name, table in SECTIONS[page].items():
        head, mark, rest = text.partition(f"<!-- {name} -->\n")
        text = head + mark + table() + rest[rest.index(END) :]
    return text


def stale() -> list[str]:
    """A line for each page with a table that is not current."""
    pages = [page for page in SECTIONS if filled(page) != page.read_text(encoding="utf-8")]
    return [f"{page.parent.name}/{page.name} is out of date: run papers/overview.py" for page in pages]


if __name__ == "__main__":
    for written in SECTIONS:
        written.write_text(filled(written), encoding="utf-8")
