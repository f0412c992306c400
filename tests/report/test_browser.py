"""The report in headless Chromium, as a person meets it: drawn, quiet, offline, switchable, sortable, by keyboard."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibrant
from calibrant.evaluation.shift import ShiftCurves
from calibrant.report.page import write_report

CHROMIUM = os.environ.get("CALIBRANT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
PICTURES = Path(__file__).resolve().parents[2] / "out" / "report"
"""Where screenshots for a person go; not tracked."""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path (apt-get install chromium)"),
]

METHODS = ["none", "ts", "vs", "cts-nll", "ts+shape+keep"]
NASTY = "</script><script>window.boom = 1</script>"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = calibrant.datasets.load("cifar100-resnet18")
    table = calibrant.compare(data.val, data.test, METHODS, resamples=50)
    names = tuple(NASTY if index == 3 else f"kind {index}" for index in range(table.n_classes))
    table = replace(table, class_names=names)
    mean = np.linspace(0.02, 0.3, 12).reshape(2, 6)
    error = np.full((2, 6), 0.01)
    curves = ShiftCurves("ece", ("none", "ts"), ("noise",), tuple(range(6)), mean[:, None], mean, error, error)
    return write_report(table, tmp_path_factory.mktemp("report") / "report.html", shift=curves, title="CIFAR-100")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        instance = playwright.chromium.launch(executable_path=CHROMIUM, args=quiet)
        yield instance
        instance.close()


class Visit:
    """An open page, with everything it complained about or asked the network for."""

    def __init__(self, browser: Any, report: Path, **options: Any) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(report.as_uri())
        self.page.wait_for_selector("html[data-ready]")

    def picture(self, chart: str) -> str:
        """What a chart draws, once its next frame is there."""
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 60)))")
        return self.page.locator(f"#{chart} svg .root").first.evaluate("node => node.innerHTML")

    def column(self, place: int) -> list[str]:
        cells = self.page.locator(f"#table tbody tr > :nth-child({place})")
        return cells.evaluate_all("cells => cells.map(cell => cell.dataset.value)")


@pytest.fixture(scope="module")
def visit(browser: Any, report: Path) -> Iterator[Visit]:
    opened = Visit(browser, report)
    yield opened
    opened.context.close()


@pytest.fixture
def page(visit: Visit) -> Any:
    visit.page.evaluate("() => scrollTo(0, 0)")
    visit.page.select_option("#method", "ts")
    return visit.page


def test_page_is_quiet_and_offline(visit: Visit, report: Path) -> None:
    assert visit.complaints == []
    assert visit.requests == [report.as_uri()]
    assert report.stat().st_size < 1_500_000
    PICTURES.mkdir(parents=True, exist_ok=True)
    visit.page.screenshot(path=PICTURES / "light.png", full_page=True)


def test_texts_from_data_never_run(visit: Visit) -> None:
    assert visit.page.evaluate("() => window.boom") is None
    assert NASTY in visit.page.locator("#class option").all_text_contents()


@pytest.mark.parametrize("chart", ["reliability", "histogram", "class-scatter", "class-diagram", "coverage", "shift"])
def test_chart_is_drawn(visit: Visit, page: Any, chart: str) -> None:
    assert visit.picture(chart).count("<path") > 5
    box = page.locator(f"#{chart} svg").bounding_box()
    assert box["width"] > 200
    assert box["height"] > 150


def test_method_switch_changes_the_pictures(visit: Visit, page: Any) -> None:
    charts = ("reliability", "histogram", "class-scatter", "class-diagram", "coverage")
    before = {name: visit.picture(name) for name in charts}
    page.select_option("#method", "none")
    after = {name: visit.picture(name) for name in charts}
    assert all(before[name] != after[name] for name in charts)
    assert page.locator(".lead .current").inner_text() == "none"
    assert page.locator("tr.current").get_attribute("data-method") == "none"


def test_method_of_the_table_is_a_switch_too(page: Any) -> None:
    page.locator("tr[data-method=vs] th button").click()
    assert page.locator("#method").input_value() == "vs"
    assert page.locator("tr[data-method=vs] th button").get_attribute("aria-pressed") == "true"


def test_before_can_be_hidden(visit: Visit, page: Any) -> None:
    shown = visit.picture("reliability")
    page.locator("#show-before").uncheck()
    hidden = visit.picture("reliability")
    page.locator("#show-before").check()
    assert len(hidden) < len(shown)


def test_class_picker_changes_its_diagram(visit: Visit, page: Any) -> None:
    before, words = visit.picture("class-diagram"), page.locator("#class-words").inner_text()
    page.locator("#class-next").click()
    assert visit.picture("class-diagram") != before
    assert page.locator("#class-words").inner_text() != words
    page.select_option("#class", label=NASTY)
    assert page.locator("#class-name").inner_text() == NASTY


def test_a_point_of_the_class_chart_picks_its_class(page: Any) -> None:
    page.select_option("#class", index=0)
    first = page.locator("#class-name").inner_text()
    points = page.locator("#class-scatter .mark-symbol path")
    for place in range(5, 60, 6):
        points.nth(place).click(force=True)
        if page.locator("#class-name").inner_text() != first:
            break
    assert page.locator("#class-name").inner_text() != first
    assert page.locator("#class option:checked").inner_text() == page.locator("#class-name").inner_text()


def test_class_temperatures_show_where_there_are_any(visit: Visit, page: Any) -> None:
    assert not page.locator("#temperature-card").is_visible()
    page.select_option("#method", "cts-nll")
    page.wait_for_selector("#class-temperature svg")
    assert visit.picture("class-temperature").count("<path") > 100


def test_deferral_slider_tells_and_draws(visit: Visit, page: Any) -> None:
    before, words = visit.picture("coverage"), page.locator("#share-words").inner_text()
    page.locator("#share").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#share-out").inner_text() == "21%"
    assert page.locator("#share-words").inner_text() != words
    assert visit.picture("coverage") != before
    page.keyboard.press("ArrowLeft")


def test_table_sorts_both_ways_by_keyboard(visit: Visit, page: Any) -> None:
    header = page.locator("#table thead th").nth(2)
    header.locator("button").focus()
    page.keyboard.press("Enter")
    up = [float(value) for value in visit.column(3)]
    assert header.get_attribute("aria-sort") == "ascending"
    assert up == sorted(up)
    page.keyboard.press("Space")
    assert header.get_attribute("aria-sort") == "descending"
    assert [float(value) for value in visit.column(3)] == up[::-1]
    page.locator("#table thead th button").first.click()
    assert visit.column(1) == sorted(METHODS)


def test_every_control_is_reached_by_tab_and_shows_its_focus(page: Any) -> None:
    page.locator(".skip").focus()
    wanted, seen = {"method", "theme", "intervals", "show-before", "class", "class-next", "share"}, set()
    for _ in range(90):
        page.keyboard.press("Tab")
        tag, identity, outline = page.evaluate(
            "() => (e => [e.outerHTML.slice(0, 80), e.id, getComputedStyle(e).outlineStyle])(document.activeElement)"
        )
        seen.add(identity)
        assert outline != "none", tag
        if wanted <= seen:
            break
    assert wanted <= seen


def test_intervals_can_be_shown(page: Any) -> None:
    interval = page.locator("td .ci").first
    assert not interval.is_visible()
    page.locator("#intervals").check()
    assert interval.is_visible()
    page.locator("#intervals").uncheck()


def test_copy_button_says_so(page: Any) -> None:
    from playwright.sync_api import expect

    button = page.locator(".snippet button").first
    button.click()
    # the clipboard answers in its own time; a polled function would be an eval, which the page's policy forbids
    expect(button).to_have_text("Copied", timeout=60000)


def _contrast(first: str, second: str) -> float:
    def luminance(color: str) -> float:
        channels = [int(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_theme_follows_the_system_and_the_button(browser: Any, report: Path) -> None:
    opened = Visit(browser, report, color_scheme="dark")
    page = opened.page
    ground = "() => getComputedStyle(document.body).backgroundColor"
    style = "() => ['.lead', 'body'].map(one => getComputedStyle(document.querySelector(one)))"
    style += ".map((found, place) => place ? found.backgroundColor : found.color)"
    dark = page.evaluate(ground)
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert _contrast(*page.evaluate(style)) > 4.5
    page.screenshot(path=PICTURES / "dark.png", full_page=True)
    page.locator("#theme").click()
    assert page.evaluate(ground) != dark
    assert _contrast(*page.evaluate(style)) > 4.5
    assert opened.complaints == []
    opened.context.close()


def test_phone_width_needs_no_sideways_scrolling(browser: Any, report: Path) -> None:
    opened = Visit(browser, report, viewport={"width": 390, "height": 800})
    page = opened.page
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    page.screenshot(path=PICTURES / "phone.png", full_page=True)
    assert page.locator("nav a").first.is_visible()
    deciding = page.locator("#table thead th").nth(1).bounding_box()
    assert deciding["x"] + deciding["width"] <= 390
    opened.context.close()


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_three_answers_stand_on_the_first_screen(browser: Any, report: Path, width: int, height: int) -> None:
    opened = Visit(browser, report, viewport={"width": width, "height": height})
    boxes = [one.bounding_box() for one in opened.page.locator(".answer").all()]
    assert len(boxes) == 3
    assert all(box["y"] + box["height"] <= height for box in boxes)
    opened.context.close()


def test_classes_are_joined_from_before_to_after(visit: Visit, page: Any) -> None:
    def lengths() -> list[float]:
        paths = page.locator("#class-scatter .mark-rule.role-mark line")
        return paths.evaluate_all("lines => lines.map(line => Math.abs(line.getAttribute('y2') || 0))")

    visit.picture("class-scatter")
    assert sum(length > 1 for length in lengths()) > 100
    page.select_option("#method", "none")
    visit.picture("class-scatter")
    assert not any(length > 0 for length in lengths())


def test_models_page_is_quiet_and_follows_the_theme(browser: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [(4 * rng.normal(size=(200, 3)), rng.integers(0, 3, 200)) for _ in range(4)]
    table = calibrant.compare_models({"a model": rows[:2], "b": rows[2:]}, ["none", "ts"], pair="none", resamples=20)
    path = write_report(table, tmp_path / "models.html")
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(path.as_uri())
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    assert page.locator(".diagram").count() == 2
    page.locator("nav a", has_text="a model").click()
    page.locator("#theme").click()
    assert page.locator("html").get_attribute("data-theme") == "light"
    assert complaints == []
    context.close()


def test_desktop_width_shows_every_column(browser: Any, report: Path) -> None:
    opened = Visit(browser, report, viewport={"width": 1280, "height": 800})
    assert (
        opened.page.evaluate(
            "() => { const t = document.querySelector('.scroll'); return t.scrollWidth - t.clientWidth; }"
        )
        == 0
    )
    opened.context.close()


def test_page_prints_in_ink_on_paper(visit: Visit, page: Any) -> None:
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("header.bar").is_visible()
    paper = page.pdf(format="A4")
    page.emulate_media(media="screen", color_scheme="light")
    assert paper.startswith(b"%PDF")
    assert 1 <= paper.count(b"/Type /Page\n") <= 12
    (PICTURES / "print.pdf").write_bytes(paper)


def test_nothing_was_said_after_all_of_this(visit: Visit, report: Path) -> None:
    assert visit.complaints == []
    assert visit.requests == [report.as_uri()]


def test_binary_page_is_quiet_and_its_threshold_slider_tells(browser: Any, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    scores = generator.normal(-1, 1.5, 1200)
    labels = (generator.random(1200) < 1 / (1 + np.exp(-scores))).astype(int)
    ward = np.where(generator.random(1200) < 0.5, "A", "B")
    val, test = (
        calibrant.Predictions(2 * scores[part], labels[part], kind="logits", task="binary", groups={"ward": ward[part]})
        for part in (slice(0, 600), slice(600, 1200))
    )
    table = calibrant.compare(val, test, ["none", "platt"], resamples=50, by="ward")
    opened = Visit(browser, write_report(table, tmp_path / "binary.html"), viewport={"width": 390, "height": 800})
    page = opened.page
    for chart in ("reliability", "histogram", "decision", "forest", "group-diagram", "coverage"):
        assert opened.picture(chart).count("<path") > 3
    words, drawn = page.locator("#cut-words").inner_text(), opened.picture("decision")
    page.locator("#cut").focus()
    for _ in range(9):
        page.keyboard.press("ArrowRight")
    assert page.locator("#cut-out").inner_text() == "29%"
    assert page.locator("#cut-words").inner_text() != words
    assert opened.picture("decision") != drawn
    page.select_option("#method", "none")
    assert page.locator("#group-words").inner_text()[1:-1] == table.row("none").groups.verdict[1:]
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    assert opened.complaints == []
    opened.context.close()
