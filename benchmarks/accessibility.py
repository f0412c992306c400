"""Check report pages with axe-core in headless Chromium: light and dark, desktop and phone.

    npm pack axe-core@4.14.0 && tar xzf axe-core-4.14.0.tgz package/axe.min.js
    python benchmarks/accessibility.py package/axe.min.js                 # writes six reports and checks them
    python benchmarks/accessibility.py package/axe.min.js my-report.html  # or checks these

Exits with 1 where a finding is serious or critical. It needs chromium and playwright.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import sync_playwright

import calibrant as cal

LOOKS = [(width, theme) for width in (1280, 390) for theme in ("light", "dark")]
GRAVE = ("serious", "critical")


def rows(task: str, part: int, scale: float = 2.0) -> cal.Predictions:
    """Overconfident predictions of a task with a column of groups."""
    generator = np.random.default_rng(part)
    n = 1500
    place = {"place": np.where(generator.random(n) < 0.4, "north", "south")}
    if task == "multiclass":
        labels = generator.integers(0, 6, n)
        logits = scale * (1.5 * np.eye(6)[labels] + generator.normal(size=(n, 6)))
        return cal.Predictions(logits, labels, kind="logits", task=task, groups=place)
    score = generator.normal(-1, 1.5, (n, 4) if task == "multilabel" else n)
    seen = (generator.random(score.shape) < 1 / (1 + np.exp(-score))).astype(int)
    if task == "pairs":
        return cal.Predictions(1 / (1 + np.exp(-scale * score)), seen, kind="probabilities", task=task, groups=place)
    return cal.Predictions(scale * score, seen, kind="logits", task=task, groups=place)


def reports(folder: Path) -> list[Path]:
    """A page of every kind."""
    pages = []
    for task, methods in (
        ("multiclass", ["none", "ts", "vs", "cts-nll"]),
        ("binary", ["none", "platt", "beta"]),
        ("multilabel", ["none", "platt"]),
        ("pairs", ["none", "platt"]),
    ):
        table = cal.compare(rows(task, 0), rows(task, 1), methods, resamples=100)
        pages.append(cal.write_report(table, folder / f"{task}.html"))
    table = cal.compare(rows("multiclass", 0), rows("multiclass", 1), ["none", "ts"], resamples=100, by="place")
    pages.append(cal.write_report(table, folder / "groups.html"))
    models = {f"model {k}": (rows("multiclass", k, 1.0 + k), rows("multiclass", k + 5, 1.0 + k)) for k in range(3)}
    pages.append(
        cal.write_report(
            cal.compare_models(models, ["none", "ts", "vs"], pair="none", resamples=100), folder / "models.html"
        )
    )
    return pages


def findings(browser: Any, page: Path, axe: str) -> list[dict[str, Any]]:
    """What axe-core says about a page in every look."""
    found = []
    for width, theme in LOOKS:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        tab = context.new_page()
        tab.goto(page.resolve().as_uri())
        tab.wait_for_load_state("load")
        if tab.locator("#data").count():
            tab.wait_for_selector("html[data-ready]")
        tab.evaluate("() => { for (const one of document.querySelectorAll('details')) one.open = true; }")
        tab.evaluate(axe)
        for one in tab.evaluate("() => axe.run(document).then(result => result.violations)"):
            found.append({"look": f"{width} px {theme}", **one})
        context.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axe", type=Path, help="axe.min.js of the npm package axe-core")
    parser.add_argument("pages", type=Path, nargs="*", help="reports; six are written where none is given")
    given = parser.parse_args()
    chromium = os.environ.get("CALIBRANT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    grave = 0
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=quiet)
        for page in given.pages or reports(Path(folder)):
            found = findings(browser, page, given.axe.read_text(encoding="utf-8"))
            severe = [one for one in found if one["impact"] in GRAVE]
            grave += len(severe)
            print(f"{page.name}: {len(severe)} serious or critical, {len(found) - len(severe)} lesser findings")
            for one in found:
                print(f"  {one['look']}: {one['impact']} {one['id']}: {one['help']}")
                for node in one["nodes"][:4]:
                    print(f"    {node['target'][0]}  {node['html'][:110]}")
        browser.close()
    sys.exit(1 if grave else 0)


if __name__ == "__main__":
    main()
