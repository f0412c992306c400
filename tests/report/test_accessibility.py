"""The main rules of accessible pages, checked without a browser; `benchmarks/accessibility.py` runs axe-core."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from calibrant.data import Predictions
from calibrant.evaluation.compare import compare
from calibrant.evaluation.models import compare_models
from calibrant.evaluation.results import Comparison
from calibrant.report.page import asset, write_report

LANDMARKS = {"header", "nav", "main", "footer"}
NEED_NAME = {"button", "select", "input", "a", "summary"}


class Page(HTMLParser):
    """The elements of a page in order, those inside hidden sections left out, with the text inside each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[dict] = []
        self.open: list[dict] = []
        self.feed(re.sub(r"<(script|style).*?</\1>", "", text, flags=re.S))

    def handle_starttag(self, tag: str, attrs: list) -> None:
        hidden = "hidden" in dict(attrs) or any(one["hidden"] for one in self.open)
        element = {"tag": tag, "attrs": dict(attrs), "text": "", "hidden": hidden, "in": [o["tag"] for o in self.open]}
        self.elements.append(element)
        if tag not in ("meta", "input", "br", "path", "circle", "rect", "line"):
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()["tag"] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element["text"] += data

    def all(self, *tags: str) -> list[dict]:
        return [one for one in self.elements if one["tag"] in tags and not one["hidden"]]


def render(comparison: Comparison, **options: str) -> str:
    with TemporaryDirectory() as folder:
        return write_report(comparison, Path(folder) / "page.html", **options).read_text(encoding="utf-8")


def binary() -> Comparison:
    generator = np.random.default_rng(0)
    score = generator.normal(size=600)
    labels = (generator.random(600) < 1 / (1 + np.exp(-score))).astype(int)
    ward = np.where(generator.random(600) < 0.5, "A", "B")
    val, test = (
        Predictions(2 * score[part], labels[part], kind="logits", task="binary", groups={"ward": ward[part]})
        for part in (slice(0, 300), slice(300, 600))
    )
    return compare(val, test, ["none", "platt"], resamples=20, by="ward")


def models() -> str:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 400)
    logits = 4 * (generator.normal(size=(400, 3)) + np.eye(3)[labels])
    halves = (logits[:200], labels[:200]), (logits[200:], labels[200:])
    return render(compare_models({"<a>": halves, "b": halves}, ["none", "ts"], resamples=20))


@pytest.fixture(scope="module", params=["multiclass", "binary", "models"])
def text(request: pytest.FixtureRequest, comparison: Comparison) -> str:
    if request.param == "models":
        return models()
    return render(comparison if request.param == "multiclass" else binary())


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_language_title_and_landmarks(page: Page) -> None:
    assert page.all("html")[0]["attrs"]["lang"] == "en"
    assert page.all("title")[0]["text"].strip()
    top = {one["tag"]: one for one in page.elements if "main" not in one["in"] or one["tag"] == "main"}
    assert set(top) >= LANDMARKS
    assert len(page.all("main")) == 1
    assert page.all("nav")[0]["attrs"]["aria-label"]


def test_headings_go_down_one_level_at_a_time(page: Page) -> None:
    levels = [int(one["tag"][1]) for one in page.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_pictures_have_words_or_are_hidden(page: Page) -> None:
    for one in page.all("svg"):
        attributes = one["attrs"]
        assert attributes.get("aria-hidden") == "true" or (
            attributes.get("role") == "img" and attributes["aria-label"].strip()
        )


def test_controls_have_names_and_tables_have_captions_and_scopes(page: Page) -> None:
    labels = {one["attrs"].get("for") for one in page.all("label")}
    for one in page.all(*NEED_NAME):
        named = one["attrs"].get("aria-label") or one["text"].strip()
        labelled = "label" in one["in"] or one["attrs"].get("id") in labels
        assert named or labelled, one
    for one in page.all("th"):
        assert one["attrs"].get("scope") in ("row", "col"), one
    assert len(page.all("table")) == len(page.all("caption"))


def test_ids_are_unique_and_scrolling_regions_take_the_keyboard(page: Page) -> None:
    ids = [one["attrs"]["id"] for one in page.elements if "id" in one["attrs"]]
    assert len(ids) == len(set(ids))
    for one in page.all("div", "pre"):
        if "scroll" in one["attrs"].get("class", "").split() or one["tag"] == "pre":
            assert one["attrs"].get("tabindex") == "0"


def luminance(color: str) -> float:
    channels = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def palettes() -> list[dict[str, str]]:
    blocks = re.findall(r":root[^{]*\{(.*?)\}", asset("page.css"), re.S)
    return [dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", block)) for block in blocks[:2]]


@pytest.mark.parametrize("place", [0, 1], ids=["light", "dark"])
def test_contrast_of_the_palette(place: int) -> None:
    colors = palettes()[place]
    for ground in ("bg", "card", "tint"):
        for words in ("ink", "muted", "accent"):
            assert contrast(colors[words], colors[ground]) >= 4.5, (words, ground)
    # marks are told apart by shape as well; against their ground they need 3 : 1
    for mark in ("over", "under", "ok", "before", *(f"line-{k}" for k in range(7))):
        assert contrast(colors[mark], colors["card"]) >= 3, mark
    assert contrast(colors["card"], colors["ok"]) >= 4.5  # the badge
