"""Every code block of the README, CONTRIBUTING and the docs runs, and prints what the page says it prints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from blocks import ROOT, blocks, pages, run_page

RUNNABLE = [page for page in pages() if any(block.language in ("python", "bash") for block in blocks(page.read_text()))]


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(page, tmp_path) > 0, "a page whose blocks all say `not run` shows nothing that is known to work"


def test_a_false_promise_is_noticed(tmp_path: Path) -> None:
    page = ROOT / "docs" / "false.md"
    text = "```python\nprint(1 + 1)  # → 3\n```\n"
    assert blocks(text)[0].runs
    with pytest.raises(AssertionError, match="not \\['3'\\]"):
        run_text(text, page, tmp_path)
    with pytest.raises(AssertionError, match="not printed"):
        run_text("```bash\necho two\n```\n```text\nthree\n```\n", page, tmp_path)
    assert run_text("<!-- not run: needs a cluster -->\n```bash\nfalse\n```\n", page, tmp_path) == 0


def run_text(text: str, page: Path, folder: Path) -> int:
    class Page(type(page)):  # type: ignore[misc]
        def read_text(self, *args, **kwargs):
            return text

    return run_page(Page(page), folder)
