"""The table of all claims in papers/README.md; `python papers/overview.py` rewrites it from the studies' reports."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
BEGIN, END = "<!-- claims -->\n", "<!-- end -->"
STUDIES = {
    "cts": "Class-based temperature scaling",
    "weight_scaling": "Weight scaling",
    "sctl": "Class-wise training losses",
    "neural_clamping": "Neural Clamping",
    "soft_objectives": "Soft objectives",
}
"""The paper of each folder."""


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


def filled(text: str) -> str:
    """The page with the current table."""
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + claims_table() + rest[rest.index(END) :]


def stale() -> list[str]:
    """A line that names the page if its table is not current."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    return [] if filled(text) == text else ["papers/README.md is out of date: run papers/overview.py"]


if __name__ == "__main__":
    page = HERE / "README.md"
    page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
