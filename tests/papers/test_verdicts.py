"""Every verdict of the studies and the counts of docs/papers.md, computed again by other means than `verdicts.py`."""

from __future__ import annotations

import json
from decimal import ROUND_HALF_EVEN, Decimal
from math import inf
from pathlib import Path

import pytest
from scipy import stats

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "cts": "results.json",
    "weight_scaling": "results.json",
    "sctl": "results.json",
    "neural_clamping": "claims.json",
    "soft_objectives": "claims.json",
}


def judge(one):
    """The verdict of a claim's interval, its ends rounded half to even on their exact binary values."""
    if one["judged"] is None or isinstance(one["judged"], bool):
        return {None: "not decided", True: "holds", False: "does not hold"}[one["judged"]]
    found = one["judged"]
    if found["low"] is None or found["high"] is None:
        return "not decided"
    step, margin = Decimal(1).scaleb(-found["places"]), Decimal(found["margin"])
    low, high = (Decimal(found[end]).quantize(step, ROUND_HALF_EVEN) for end in ("low", "high"))
    sides = {"below": ("holds", "does not hold"), "above": ("does not hold", "holds")}[found["side"]]
    return sides[0] if high < margin else (sides[1] if low > margin else "not decided")


def p_value(found):
    """Two-sided, from the end of the interval that points to the margin."""
    if found["low"] is None or found["high"] is None:
        return 1.0
    away = found["value"] - found["margin"]
    reach = abs(found["value"] - (found["low"] if away > 0 else found["high"]))
    law = stats.t(found["df"]) if found["df"] else stats.norm()
    return float(2 * law.sf(law.ppf(0.975) * (abs(away) / reach if reach else inf * (away != 0) or 0)))


def after_holm(claims):
    """Step down through the sorted p-values of the paper's claims."""
    tested = [
        (p_value(one["judged"]), one) for one in claims if one["kind"] == "paper" and isinstance(one["judged"], dict)
    ]
    answers, going = {(one["claim"], one["ours"]): "counted" for one in claims}, True
    for left, (p, one) in zip(range(len(tested), 0, -1), sorted(tested, key=lambda pair: pair[0]), strict=True):
        going = going and p * left <= 0.05
        answers[one["claim"], one["ours"]] = judge(one) if going else "not decided"
    return answers


@pytest.mark.parametrize("study", FILES)
def test_every_verdict_of_a_report_follows_from_the_results(study):
    claims = json.loads((ROOT / "papers" / study / "results" / FILES[study]).read_text(encoding="utf-8"))["claims"]
    text = (ROOT / "papers" / study / "README.md").read_text(encoding="utf-8")
    lines = text.partition("<!-- claims -->")[2].partition("<!-- end -->")[0].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    rows = [row for row in rows if row[0] not in ("claim", "---")]
    corrected, shown = after_holm(claims), {(row[0], row[2]): row for row in rows}
    assert len(shown) == len(rows) == len(claims)
    for one in claims:
        row = shown[one["claim"], one["ours"]]
        assert row[3].partition(" (")[0] == judge(one) == one["holds"], one["claim"]
        assert len(row) == 4 or row[4] == corrected[one["claim"], one["ours"]], one["claim"]
        assert (one["kind"] == "paper") == (len(row) == 5)
        assert isinstance(one["judged"], (dict, bool)) or "not" in one["ours"] or "0 of" in one["ours"]
    papers = [one for one in claims if one["kind"] == "paper"]
    counts = [sum(judge(one) == verdict for one in papers) for verdict in ("holds", "does not hold", "not decided")]
    after = [corrected[one["claim"], one["ours"]] for one in papers]
    counts += [after.count("holds"), after.count("does not hold")]
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    row = f"](../papers/{study}/README.md#claims-of-the-paper) | " + " | ".join(map(str, counts)) + " |"
    assert row in page, f"docs/papers.md does not count {counts} of {study}"
    known = [
        line.strip("| ").split(" | ")[1:]
        for line in page.splitlines()
        if line.startswith(f"| {study.replace('_', ' ')} | ")
    ]
    known = [row for row in known if len(row) == 5]
    assert len(known) >= 5, f"docs/papers.md does not say what {study} is known for"
    for row in known:
        assert row == shown[row[0], row[2]]  # whose verdicts were computed again above


@pytest.mark.parametrize(
    "word",
    ["SB-ECE", "S-AvUC", "TS-SB-ECE", "U-CTS", "CWS", "BTS", "SCTL", "AvUC-GS", "MS-ODIR", "adaECE", "TS-HB-ECE"],
)
def test_the_words_of_the_papers_lead_to_a_function(word):
    lines = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    assert any(word in row[0] and len(row) == 2 and "](" in row[1] and "`" in row[1] for row in rows)


def test_the_page_of_papers_leads_to_the_losses_and_a_table_of_each_paper():
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| Karandikar"))
    assert "(training.md)" in row
    section = page.partition("## A table of each paper in fifteen lines")[2].partition("\n## ")[0]
    tables = section.split("\n### ")[1:]
    assert len(tables) == len(FILES)
    for table in tables:
        code = table.partition("```python\n")[2].partition("```")[0].splitlines()
        lines = [line for line in code if line.strip() and not line.startswith(("import ", "from "))]
        assert 0 < len(lines) <= 15, table.splitlines()[0]
