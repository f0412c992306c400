"""Regenerate docs/images/report.png: the top of a real report, as the README shows it.

Run from the checkout: `python docs/scripts/report_picture.py`. It needs chromium, playwright and pillow.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import calibrant
from calibrant.report.page import write_report

TARGET = Path(__file__).resolve().parents[1] / "images" / "report.png"
METHODS = ["none", "ts", "vs", "cws", "ts+top", "shape", "conf+shape+keep"]
WIDTH, HEIGHT, LIMIT = 1280, 2120, 300_000


def main() -> None:
    """Compare, write the report and photograph it."""
    data = calibrant.datasets.load("cifar100-resnet18")
    table = calibrant.compare(data.val, data.test, METHODS)
    with tempfile.TemporaryDirectory() as folder:
        page = write_report(table, Path(folder) / "report.html", title="CIFAR-100, ResNet-18")
        picture = photograph(page)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    # full coverage of the colour space keeps the few coloured marks among all the grey
    image.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(TARGET, optimize=True)
    size = TARGET.stat().st_size
    if size > LIMIT:
        raise SystemExit(f"{TARGET} has {size} bytes, but at most {LIMIT} are wanted: crop it")
    print(f"{TARGET}: {size} bytes")


def photograph(page: Path) -> bytes:
    """The upper part of a page in headless Chromium."""
    chromium = os.environ.get("CALIBRANT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-ready]")
        tab.wait_for_timeout(300)
        picture = tab.screenshot()
        browser.close()
    return picture


if __name__ == "__main__":
    main()
