"""The site builds without a warning, and the generated tables are current."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from calibrant.calibrators.prepare import default_names
from calibrant.calibrators.registry import METHODS, WRAPPERS, Method

ROOT = Path(__file__).resolve().parents[2]
# by its path: the studies have modules of the same name
SPEC = importlib.util.spec_from_file_location("docs_tables", ROOT / "docs" / "scripts" / "tables.py")
tables = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tables)

CHROMIUM = os.environ.get("CALIBRANT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = run("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder))
    assert built.returncode == 0, built.stdout + built.stderr
    assert "WARNING" not in built.stdout + built.stderr
    return folder


def test_no_page_asks_another_machine(site: Path) -> None:
    loads = re.compile(
        r"<(?:script|img|iframe)[^>]+src=\"(?:https?:)?//|<link[^>]+stylesheet[^>]+href=\"(?:https?:)?//"
    )
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        found = loads.search(page.read_text(encoding="utf-8"))
        assert found is None, f"{page.relative_to(site)} loads {found[0]}"


def test_formulas_are_set_and_no_copy_button_covers_them(site: Path) -> None:
    for method in every_method():
        page, _, anchor = tables.section_of(method.class_name).partition("#")
        text = (site / page.removesuffix(".md") / "index.html").read_text(encoding="utf-8")
        section = text.partition(f'id="{anchor}"')[2].partition("<h2")[0] if anchor else text
        assert 'class="arithmatex"' in section, f"{method.class_name} has no formula"
        assert "<pre" not in section or not anchor, f"{method.class_name} shows its formula as code"


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path (apt-get install chromium)")
def test_every_formula_is_good_tex_and_names_stay_on_one_line(site: Path) -> None:
    from playwright.sync_api import sync_playwright

    formulas = [
        formula
        for page in site.rglob("*.html")
        for formula in re.findall(r'class="arithmatex">(.*?)</(?:div|span)>', page.read_text(encoding="utf-8"), re.S)
    ]
    assert len(set(formulas)) > 40
    for formula in formulas:
        assert formula.startswith("<math"), formula[:80]
        assert "\\" not in formula, f"left as TeX: {formula[:200]}"
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=quiet)
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.goto((site / "methods" / "one-temperature" / "index.html").as_uri())
        assert page.locator(".arithmatex math[display=block]").count() == 6
        assert page.locator(".arithmatex math[display=block]").nth(2).bounding_box()["height"] > 20
        page.goto((site / "methods" / "index.html").as_uri())
        heights = page.locator("td code").evaluate_all("names => names.map(name => name.getClientRects().length)")
        assert len(heights) > 30
        assert set(heights) == {1}, "a method's name is broken over lines"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than a phone"
        for scheme in ("light", "dark"):
            page = browser.new_page(color_scheme=scheme)
            page.goto((site / "index.html").as_uri())
            shown = [one.get_attribute("src") for one in page.locator(".hero img").all() if one.is_visible()]
            assert [scheme in (src or "") for src in shown] == [True], f"the front page in {scheme} shows {shown}"
        browser.close()


def test_the_reference_shows_doctests_as_code(site: Path) -> None:
    assert (site / "reference" / "metrics" / "index.html").read_text(encoding="utf-8").count("doc-heading") > 30
    for page in (site / "reference").rglob("index.html"):
        text = page.read_text(encoding="utf-8")
        assert "<blockquote>" not in text, f"{page.parent.name} shows a doctest as a quotation"


def test_the_reference_lists_the_parameters_that_all_metrics_share(site: Path) -> None:
    text = (site / "reference" / "metrics" / "index.html").read_text(encoding="utf-8")
    for name in ("calibrant.metrics.scores.nll", "calibrant.metrics.top_label.ece", "calibrant.metrics.clinical.e50"):
        entry = text.partition(f'id="{name}"')[2].partition("Examples")[0]
        for words in ("required", ">from_logits=True</code>", "A weight of 2 counts as the row twice."):
            assert words in entry, f"{name} does not show {words}"


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the table lists pts, which needs torch")
def test_generated_tables_are_current() -> None:
    checked = run("docs/scripts/tables.py", "--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def every_method() -> list[Method]:
    return [*METHODS.values(), *WRAPPERS.values()]


@pytest.mark.parametrize("name", sorted({method.class_name for method in every_method()}))
def test_every_method_has_a_section_and_a_picture(name: str) -> None:
    page, _, anchor = tables.section_of(name).partition("#")
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert f"[`{name}`](" in text, f"{page}#{anchor} does not link the reference"
    picture = tables.page_of(type(name, (), {}))
    assert (ROOT / "docs" / "images" / "methods" / f"{picture}.png").exists(), f"no picture for {name}"


@pytest.mark.parametrize(("task", "table"), [("multiclass", 0), ("binary", 1)])
def test_the_methods_page_leads_with_the_eight_that_compare_runs(task: str, table: int) -> None:
    text = (ROOT / "docs" / "methods" / "index.md").read_text(encoding="utf-8")
    tables_of_page = re.findall(r"(?:^\|.*\n)+", text, re.M)
    assert re.findall(r"^\| `([^`]+)` \|", tables_of_page[table], re.M) == default_names(task)


def test_the_search_finds_the_words_of_the_papers_and_the_glossary(site: Path) -> None:
    assert (site / "index.html").read_text(encoding="utf-8").count('data-md-component="search-query"') == 1
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    found = "\n".join(f"{entry['title']} {entry['text']}" for entry in index)
    words = ["SB-ECE", "S-AvUC", "TS-SB-ECE", "U-CTS", "CWS", "BTS", "SCTL", "AvUC-GS", "MS-ODIR", "adaECE"]
    for word in [*words, "Noise floor", "Classwise ECE"]:
        assert word in found, f"the search does not know {word}"


def test_one_version_everywhere() -> None:
    import calibrant

    version = calibrant.__version__
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"version: {version}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
