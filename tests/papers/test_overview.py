"""papers/README.md lists all claims of the papers, and its links lead to files."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

PAPERS = Path(__file__).resolve().parents[2] / "papers"
sys.path.insert(0, str(PAPERS))

import overview  # noqa: E402


def test_the_table_of_claims_is_that_of_the_reports():
    assert overview.stale() == []


@pytest.mark.parametrize("folder", overview.STUDIES)
def test_each_claim_has_a_row(folder):
    page = (PAPERS / "README.md").read_text(encoding="utf-8")
    claims = overview.claims_of(folder)
    assert len(claims) > 5
    for row in claims:
        assert f"| {overview.STUDIES[folder]} | {row[0]} | {row[3]} | {row[4]} | " in page


def test_links_lead_to_files():
    page = (PAPERS / "README.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"\]\(([^)#]+)", page))
    assert len(targets) >= 6
    assert all((PAPERS / target).exists() for target in targets)
