"""The HTML page as a file: whole, small, safe against texts from data; what it looks like is tested in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from calibrant.calibrators.registry import PREFIXES, SUFFIXES, names
from calibrant.cli import main
from calibrant.core.errors import InputError
from calibrant.data import Predictions
from calibrant.evaluation.compare import compare
from calibrant.evaluation.consistency import reliability_bins
from calibrant.evaluation.models import compare_models
from calibrant.evaluation.results import Comparison
from calibrant.evaluation.tables import Estimate, Figures
from calibrant.evaluation.verdict import CALIBRATED, describe_gap
from calibrant.kernels.rows import RowColumns
from calibrant.metrics import flexible_calibration
from calibrant.report import page_data, usage
from calibrant.report.answers import answers
from calibrant.report.page import embedded, write_report
from calibrant.report.wording import STEPS, full_name, learned, readable

LIMIT = 3_000_000
NASTY = (
    "</script><script>boom()</script>",
    "<img src=x onerror=boom()>",
    "a & b \" ' <b>",
    "<!-- <script>",
    "$title ${x}",
)


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, name: str) -> list[dict]:
        return [attributes for tag, attributes in self.tags if tag == name]


def payload(page: str) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))


def render(comparison: Comparison, **options: str) -> str:
    with TemporaryDirectory() as folder:
        return write_report(comparison, Path(folder) / "page.html", **options).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(comparison: Comparison) -> str:
    return render(comparison, title="A report")


def test_page_is_one_small_file_that_fetches_nothing(page: str) -> None:
    assert len(page.encode()) < 1_500_000
    tags = Tags(page)
    assert not tags.all("link")
    assert not tags.all("iframe")
    assert not any("src" in attributes for _, attributes in tags.tags)
    links = [attributes["href"] for attributes in tags.all("a")]
    assert all(link.startswith("#") for link in links)
    ids = {attributes.get("id") for _, attributes in tags.tags}
    assert {link[1:] for link in links} <= ids


def test_policy_names_exactly_the_scripts_of_the_page(page: str) -> None:
    policy = next(a["content"] for a in Tags(page).all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy
    scripts = re.findall(r"<script>(.*?)</script>", page, re.S)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    assert len(scripts) == 2
    assert policy.split("script-src ")[1] == " ".join(f"'sha256-{digest}'" for digest in digests)


def test_texts_from_data_stay_text(build_comparison: Callable[..., Comparison]) -> None:
    made = build_comparison(n=400, n_classes=5, class_names=NASTY, methods=3, error="<script>boom()</script>")
    renamed = replace(made.rows[1], method="ts</script><svg onload=boom()>", warnings=("<i>odd</i>",))
    made = replace(made, rows=(made.rows[0], renamed, *made.rows[2:]), best=renamed.method, verdict="<b>boom</b>")
    page = render(made, title="</title><script>boom()</script>")
    tags = Tags(page)
    assert len(tags.all("script")) == 4
    assert not any(key.startswith("on") for _, attributes in tags.tags for key in attributes)
    assert not tags.all("img")
    assert not tags.all("i")
    assert payload(page)["classes"]["names"] == list(NASTY)
    assert "boom()</script>" not in page


def test_embedded_json_comes_back_whole() -> None:
    value = {"a": ["</script>", "<!--", "&amp;", "ü", None, 1.5], "b": NASTY}
    text = embedded(value)
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"a": value["a"], "b": list(NASTY)}


def test_every_section_and_both_lines_of_help_are_there(page: str) -> None:
    for words in ("Methods", "Class by class", "Defer the least sure", "What was learned", "Use it"):
        assert words in page
    figures = len(Tags(page).all("figure"))
    assert figures >= 6
    assert page.count("<b>What it shows.</b>") == page.count("<b>How to read it.</b>") >= figures


def test_table_marks_best_second_and_failed(build_comparison: Callable[..., Comparison]) -> None:
    table = render(build_comparison(n=500, error="three is not four"))
    assert table.count('<span class="badge">best</span>') == 1
    assert table.index('data-method="ts"') < table.index('data-method="none"')
    assert 'aria-sort="ascending"' in table
    assert re.search(r'<tr class="failed">.*three is not four', table)
    assert 'class="best"' in table
    assert 'class="second"' in table


def test_usage_names_the_winner_in_three_ways(comparison: Comparison) -> None:
    python, shell, onnx = (text for _, text in usage.usage(comparison.best, comparison.task))
    assert "cal.get('ts')" in python
    assert "--method ts" in shell
    assert "--onnx" in onnx


@pytest.mark.parametrize(("p_value", "words"), [(0.5, "chance explains"), (0.001, "too sure")])
def test_verdict_says_what_the_test_says(comparison: Comparison, p_value: float, words: str) -> None:
    first = comparison.rows[0]
    floor = replace(first.noise_floor, p_value=p_value)
    first = replace(first, noise_floor=floor, calibration=CALIBRATED)
    changed = replace(comparison, rows=(first, *comparison.rows[1:]))
    first = answers(changed)[0]
    assert words in first.short + first.detail


def test_a_comparison_in_which_everything_failed_is_still_a_page(comparison: Comparison) -> None:
    failed = tuple(replace(row, error="no", columns=None, classes=None, metrics=Figures()) for row in comparison.rows)
    page = render(replace(comparison, rows=failed, best=None, second=None))
    assert "Every method failed" in page
    assert payload(page)["methods"] == []


def test_bins_of_the_page_are_the_bins_of_the_rows(comparison: Comparison) -> None:
    data = page_data.payload(comparison)
    table, histogram = data["reliability"], data["histogram"]
    chosen = [place for place, name in enumerate(table["method"]) if name == "ts"]
    columns = comparison.row("ts").columns
    bins = reliability_bins(columns.confidence, columns.correct, n_bins=comparison.n_bins)
    np.testing.assert_allclose([table["accuracy"][place] for place in chosen], bins.accuracy[bins.filled], atol=5e-5)
    assert [table["count"][place] for place in chosen] == bins.count[bins.filled].tolist()
    for name in ("none", "ts"):
        rows = [r for m, r in zip(histogram["method"], histogram["rows"], strict=True) if m == name]
        assert sum(rows) == comparison.n_test


def test_class_diagrams_hold_every_row_once(comparison: Comparison) -> None:
    for method, own in page_data.class_tables(comparison)["methods"].items():
        cells = [cell for diagram in own["bins"] for cell in diagram]
        assert sum(count for _, _, count in cells) == comparison.n_test
        mean = sum(thousandths * count for thousandths, _, count in cells) / (1000 * comparison.n_test)
        assert np.isclose(mean, comparison.row(method).columns.confidence.mean(), atol=5e-4)
        assert sum(right for _, right, _ in cells) == comparison.row(method).columns.correct.sum()


def test_deferral_curve_agrees_with_a_plain_count(comparison: Comparison) -> None:
    table = page_data.payload(comparison)["coverage"]
    columns = comparison.row("ts").columns
    for place, name in enumerate(table["method"]):
        if name == "ts" and table["deferred"][place] in (0.0, 0.2, 0.5, 0.9):
            keep = round((1 - table["deferred"][place]) * comparison.n_test)
            surest = np.argsort(-columns.confidence, kind="stable")[:keep]
            assert np.isclose(table["risk"][place], 1 - columns.correct[surest].mean(), atol=6e-5)
            assert table["bound"][place] >= table["risk"][place]


def test_a_thousand_classes_and_thirty_methods_stay_small(build_comparison: Callable[..., Comparison]) -> None:
    made = build_comparison(n=8000, n_classes=1000, methods=3)
    rows = [replace(made.rows[1 + i % 2], method=f"method-{i}") for i in range(29)]
    made = replace(made, rows=(made.rows[0], *rows), best="method-0", second="method-1")
    page = render(made)
    assert len(page.encode()) < LIMIT
    classes = payload(page)["classes"]
    assert {"none", "method-0"} <= set(classes["methods"])
    assert set(classes["methods"]) | set(classes["left_out"]) == {row.method for row in made.rows}
    assert classes["left_out"]
    assert re.search(r"To keep this page small it shows \d+ of 30 methods", page)


def test_more_classes_than_the_list_holds_keeps_the_most_predicted(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_data, "MOST_CLASSES", 4)
    found = page_data.class_tables(comparison)
    predicted = comparison.rows[0].classes.predicted
    kept = [int(name.split()[1]) for name in found["names"]]
    assert len(kept) == 4
    assert "the 4 classes predicted most often, of 10" in render(comparison)
    assert predicted[kept].min() >= np.delete(predicted, kept).max()


def test_learned_values_are_readable() -> None:
    assert readable(1.23456789) == "1.23457"
    assert readable(np.array([1.0, 2.5])) == "1, 2.5"
    assert readable(np.arange(100.0)) == "100 numbers, from 0 to 99, median 49.5"
    assert readable(np.zeros((3, 30))).startswith("3×30 numbers")
    assert readable(object()) == ""


def test_learned_names_come_from_the_calibrator(comparison: Comparison) -> None:
    assert learned(comparison.row("ts").calibrator) == [("temperature_", "1.66667")]


def test_a_folder_that_is_not_there_is_one_line(comparison: Comparison, tmp_path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        write_report(comparison, tmp_path / "missing" / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_anything_but_a_comparison_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="dict"):
        write_report({}, tmp_path / "report.html")


def compared(task: str, **options) -> Comparison:
    """A small comparison of a real fit, with a column of groups."""
    generator = np.random.default_rng(3)
    scores = generator.normal(-1, 1.5, (900, 3) if task == "multilabel" else 900)
    labels = (generator.random(scores.shape) < 1 / (1 + np.exp(-scores))).astype(int)
    stated = 1 / (1 + np.exp(-2 * scores)) if task == "pairs" else 2 * scores
    place = np.where(generator.random(900) < 0.5, "north", "south")
    kind = "probabilities" if task == "pairs" else "logits"
    val, test = (
        Predictions(stated[part], labels[part], kind=kind, task=task, groups={"place": place[part]})
        for part in (slice(0, 400), slice(400, 900))
    )
    return compare(val, test, ["none", "platt"], resamples=50, **options)


@pytest.fixture(scope="module", params=["binary", "pairs", "multilabel"])
def other_task(request: pytest.FixtureRequest) -> Comparison:
    return compared(request.param, by="place")


def test_words_of_a_page_are_those_of_its_task(other_task: Comparison) -> None:
    page = render(other_task)
    data = payload(page)
    assert data["classes"]["names"] == []
    assert '<section id="classes-section" hidden>' in page
    assert 'href="#classes-section"' not in page
    positive = other_task.task != "pairs"
    axes = json.dumps(data["charts"]["reliability"])
    assert ("probability of the positive class" in axes) == positive
    assert ("how often it is right" in axes) != positive
    assert set(data["histogram"]["outcome"]) == ({"positive", "negative"} if positive else {"right", "wrong"})
    assert ("Changed predictions" in page) == positive
    assert "Classwise ECE" not in page


def test_deferral_of_a_positive_class_is_about_decisions() -> None:
    table = compared("binary")
    columns = table.row("none").columns
    risk = page_data.payload(table)["coverage"]["risk"][0]
    assert risk == pytest.approx(np.mean((columns.confidence >= 0.5) != columns.correct), abs=1e-4)
    assert risk == pytest.approx(1 - table.row("none").metrics["accuracy"].value, abs=1e-4)


def test_groups_of_a_page_are_those_of_the_comparison(other_task: Comparison) -> None:
    page = render(other_task)
    groups = payload(page)["groups"]
    for method in ("none", "platt"):
        analysis = other_task.row(method).groups
        gaps = {one.name: one.metrics["gap"] for one in analysis.groups}
        for place, name in enumerate(groups["gaps"]["group"]):
            if groups["gaps"]["method"][place] == method:
                assert groups["gaps"]["gap"][place] == pytest.approx(gaps[name].value, abs=5e-5)
                assert groups["gaps"]["low"][place] == pytest.approx(gaps[name].low, abs=5e-5)
        assert groups["sentences"][method][1:-1] == analysis.verdict[1:]
    (focus,) = (one for one in other_task.rows[0].groups.groups if one.name == groups["focus"])
    rows = [n for n, m in zip(groups["bins"]["count"], groups["bins"]["method"], strict=True) if m == "none"]
    assert sum(rows) == focus.n
    assert "For whom?" in page
    assert '<section id="groups-section">' in page
    assert ("O:E after" in page) == (other_task.task != "pairs")


def test_many_groups_keep_the_largest_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    table = compared("binary", by="place")
    monkeypatch.setattr(page_data, "MOST_GROUPS", 1)
    page = render(table)
    gaps = {one.name: abs(one.metrics["gap"].value) for one in table.row(table.best).groups.groups}
    assert set(payload(page)["groups"]["gaps"]["group"]) == {max(gaps, key=gaps.get)}
    assert "Shown are the 1 with the largest gaps" in page


def test_without_groups_the_section_is_hidden(comparison: Comparison) -> None:
    page = render(comparison)
    assert '<section id="groups-section" hidden>' in page
    assert payload(page)["groups"] is None
    assert "forest" not in payload(page)["charts"]


def test_decisions_of_a_binary_page_agree_with_plain_counts() -> None:
    table = compared("binary")
    page = render(table)
    thresholds = payload(page)["decisions"]["thresholds"]
    p, y = table.row("platt").columns.confidence, table.labels.astype(bool)
    for place, cut in enumerate(thresholds["threshold"]):
        if thresholds["method"][place] == "platt" and cut in (0.1, 0.3, 0.5):
            flagged = p >= cut
            assert thresholds["sensitivity"][place] == pytest.approx(flagged[y].mean(), abs=1e-4)
            assert thresholds["ppv"][place] == pytest.approx(y[flagged].mean(), abs=1e-4)
            assert thresholds["flagged"][place] == pytest.approx(flagged.mean(), abs=1e-4)
            benefit = (flagged & y).mean() - (flagged & ~y).mean() * cut / (1 - cut)
            assert thresholds["benefit"][place] == pytest.approx(benefit, abs=6e-5)
    assert '<section id="decisions-section">' in page
    assert "For every 100 events expected" in page
    assert len(payload(page)["decisions"]["smooth"]["method"]) == 2 * 51


def patients(n: int, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Risks and outcomes of patients with several rows each, which share how ill a patient is; who is whom."""
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(n), rows)
    score = np.repeat(rng.normal(size=n), rows) - 1
    # what nobody knows of a patient moves all of his rows, and the risk over both is as stated
    known = 1 / (1 + np.exp(-score))
    ill = np.repeat(rng.random(n), rows) < known
    outcome = np.where(rng.random(n * rows) < 0.9, ill, rng.random(n * rows) < known)
    return known, outcome.astype(np.int64), patient


def test_clinical_intervals_and_the_band_know_clusters() -> None:
    """Twenty-five rows of a patient are hardly more than one: ends by rows would call chance an overestimate."""
    excluded = {"rows": 0, "patients": 0}
    for seed in range(20):
        p, labels, patient = patients(60, 25, seed)
        given = Predictions(probabilities=p, labels=labels)
        widths = {}
        for name, cluster in (("rows", None), ("patients", patient)):
            made = compare(given, given, ["none"], resamples=200, cluster=cluster)
            found = page_data.clinical_figures(made, made.row("none").columns)[0]["observed_expected"]
            excluded[name] += not found.low <= 1 <= found.high
            widths[name] = found.high - found.low
        assert widths["patients"] > 2 * widths["rows"]
    assert excluded["rows"] >= 8
    assert excluded["patients"] <= 4
    assert (
        "no more than chance explains"
        in page_data.clinical_table(made)[0].texts["In words, after"]["Observed : expected events"]
    )
    plain, clustered = (flexible_calibration(p, labels, clusters=one) for one in (None, patient))
    np.testing.assert_array_equal(plain.observed, clustered.observed)
    assert np.median((clustered.high - clustered.low) / (plain.high - plain.low)) > 2
    smooth = page_data.decision_tables(made)["smooth"]
    assert np.allclose(np.ravel(smooth["low"]), clustered.low[::2], atol=1e-3)
    with pytest.raises(InputError, match=r"clusters has shape \(3,\), but there are"):
        flexible_calibration(p, labels, clusters=[1, 2, 3])


def test_the_band_by_rows_is_that_of_clusters_of_one() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.05, 0.95, 4000)
    labels = rng.random(4000) < p
    plain, own = (flexible_calibration(p, labels, clusters=one) for one in (None, np.arange(4000)))
    np.testing.assert_allclose(own.high - own.low, plain.high - plain.low, rtol=0.15)


def test_clinical_words_say_which_way_risks_are_wrong() -> None:
    table = compared("binary")
    before, told = page_data.clinical_figures(table, table.row("none").columns)
    assert not told
    # the logits were doubled: the slope that mends them is one half
    assert before["calibration_slope"].low < 0.5 < before["calibration_slope"].high
    words = page_data.clinical_words
    assert "too extreme" in words("calibration_slope", before["calibration_slope"])
    assert "underestimated" in words("observed_expected", Estimate(1.3, 1.1, 1.5))
    assert "chance explains" in words("observed_expected", Estimate(1.1, 0.9, 1.3))
    assert "too low on average" in words("calibration_intercept", Estimate(0.4, 0.2, 0.6))


def test_the_page_says_that_a_slope_has_no_finite_estimate() -> None:
    """As `measure` does: a threshold separates the classes, so that the slope in the table is held by a weak pull."""
    p = np.linspace(0.05, 0.95, 400)
    rows = Predictions(probabilities=p, labels=(p > 0.5).astype(np.int64))
    page = render(compare(rows, rows, ["none"], resamples=50))
    assert "<code>none</code> calibration_slope: a threshold separates the classes" in page


def test_pages_of_other_tasks_have_no_decisions() -> None:
    page = render(compared("pairs"))
    assert '<section id="decisions-section" hidden>' in page
    assert payload(page)["decisions"] is None


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("none", "Uncalibrated"),
        ("platt", "Platt scaling"),
        ("ts-ece", "Temperature scaling for ECE"),
        ("conf+shape+keep", "Confusion scaling, then shape scaling, predictions kept"),
        ("sctl+vs", "Vector scaling, classes of high loss counting more"),
    ],
)
def test_methods_have_full_names(method: str, words: str) -> None:
    assert full_name(method) == words


def test_every_listed_method_has_a_name_of_its_own() -> None:
    found = {name: full_name(name) for name in names(None)}
    assert len(set(found.values())) == len(found)
    assert all(words != name and " (+" not in words for name, words in found.items())
    assert set(STEPS) == {*PREFIXES, *SUFFIXES}


def test_page_says_what_it_was_made_of(comparison: Comparison, tmp_path) -> None:
    source = tmp_path / "val <1>.npz"
    source.write_bytes(b"rows")
    page = render(
        comparison,
        sources=(str(source), "s3://bucket/test.npz?token=secret"),
        command="calibrant compare s3://b/x?k=secret",
    )
    assert hashlib.sha256(b"rows").hexdigest()[:16] in page
    assert "s3://bucket/test.npz" in page
    assert "secret" not in page
    assert f"numpy {np.__version__}" in page
    assert "val &lt;1&gt;.npz" in page


def test_labels_stand_worst_first_and_rare_ones_last() -> None:
    table = compared("multilabel")
    labels = table.labels.reshape(-1, 3).copy()
    lines = {line.name: line for line in labels_of(table)}
    columns = table.row(table.best).columns
    errors = {}
    for place, name in enumerate(("one", "two", "three")):
        bins = reliability_bins(columns.confidence[place::3], columns.correct[place::3], n_bins=table.n_bins)
        errors[name] = bins.ece
        cells = lines[name].cells
        assert cells["Positives"].estimate.value == labels[:, place].sum()
        assert cells["ECE after"].estimate.value == pytest.approx(bins.ece)
    assert list(lines)[2:] == sorted(errors, key=lambda name: -errors[name])
    labels[:, 1] = 0
    rare = labels_of(replace(table, labels=labels.reshape(-1)))
    assert rare[-1].name == "two"
    assert rare[-1].note
    assert page_data.label_table(compared("binary")) is None


def labels_of(table: Comparison) -> list[page_data.Line]:
    return list(page_data.label_table(replace(table, class_names=("one", "two", "three"))).rows)


def test_deciding_metric_is_the_first_column(comparison: Comparison) -> None:
    columns = page_data.methods_table(comparison).columns
    assert next(iter(columns.values())) == "NLL"
    assert set(comparison.metric_names) < set(columns)


def test_an_error_at_the_end_of_its_interval_is_explained(comparison: Comparison) -> None:
    words = "(chance alone raises the estimate)"
    assert words not in render(comparison)
    row = comparison.row("ts")
    edge = Figures({**row.metrics, "ece": Estimate(0.02, 0.0, 0.02)})
    rows = tuple(replace(one, metrics=edge) if one is row else one for one in comparison.rows)
    assert words in render(replace(comparison, rows=rows))


def test_three_questions_are_answered_first(comparison: Comparison) -> None:
    page = render(comparison)
    found = answers(comparison)
    assert [one.question for one in found] == ["Is it calibrated?", "What should I use?", "How sure is that?"]
    places = [page.index(one.question) for one in found]
    assert places == sorted(places)
    assert places[-1] < page.index('id="methods"')
    first, use, sure = found
    assert (first.short, first.kind) == ("No, it is too sure", "bad")
    assert f"{100 * comparison.rows[0].metrics['ece'].value:.2f} points" in first.detail
    assert "`ts`" in use.short
    assert "80%" in sure.detail
    assert sure.kind == "open"


def test_what_was_mended_is_said_where_it_is_beyond_noise(comparison: Comparison) -> None:
    before, best = comparison.row("none"), comparison.row("ts")
    sure = replace(before, p_beats_best=0.0)
    changed = replace(
        comparison, criterion="nll", rows=tuple(sure if row is before else row for row in comparison.rows)
    )
    loss, rest = before.metrics["nll"].value, best.metrics["nll"].value
    words = f"{loss - rest:.3f} of the {loss:.3f} nats are miscalibration, which a map can fix; the rest is the model's"
    assert words in answers(changed)[1].detail
    unsure = replace(before, p_beats_best=0.2)
    changed = replace(changed, rows=tuple(unsure if row is sure else row for row in changed.rows))
    assert "nats" not in answers(changed)[1].detail


def test_answers_admit_what_they_cannot_know(comparison: Comparison) -> None:
    shared = replace(comparison, warnings=("VAL and TEST share rows",), shares_rows=True)
    assert answers(shared)[2].short == "Not at all"
    few = replace(comparison.rows[0], columns=RowColumns(*(one[:20] for one in comparison.rows[0].columns)))
    assert answers(replace(comparison, rows=(few, *comparison.rows[1:])))[0].short == "Too few rows to tell"
    none_best = replace(comparison, best="none")
    assert answers(none_best)[1].short == "The model as it is"
    noted = replace(comparison, warnings=("12 rows give what happened a probability of 0",))
    assert answers(noted)[2].short != "Not at all"


@pytest.mark.parametrize(
    ("over", "under", "page", "line"),
    [
        (0.05, 0.02, "off in both directions", "in others"),
        (0.05, 0.01, "too sure", "overconfident by 4.0 points"),
        (0.01, 0.05, "not sure enough", "underconfident by 4.0 points"),
    ],
)
def test_page_and_measure_name_the_same_direction(
    comparison: Comparison, over: float, under: float, page: str, line: str
) -> None:
    before = comparison.row("none")
    parts = {"over_confidence": Estimate(over), "under_confidence": Estimate(under)}
    floor = replace(before.noise_floor, p_value=0.001)
    changed = replace(before, metrics=Figures(before.metrics | parts), noise_floor=floor)
    rows = tuple(changed if row is before else row for row in comparison.rows)
    assert answers(replace(comparison, rows=rows))[0].short == f"No, it is {page}"
    assert describe_gap(over, under).endswith(line)


def test_a_model_that_a_map_mends_is_not_called_calibrated() -> None:
    """Two classes that are off in opposite directions: bins of confidence show no gap, the log loss does."""
    rng = np.random.default_rng(3)
    p = rng.uniform(0.15, 0.85, 6000)
    labels = (rng.random(6000) < p - 0.12).astype(np.int64)
    halves = [
        Predictions(probabilities=np.stack([1 - p, p], axis=1)[part], labels=labels[part])
        for part in (slice(0, 3000), slice(3000, 6000))
    ]
    made = compare(*halves, ["none", "vs"], resamples=200)
    assert made.row("none").noise_floor.p_value >= 0.05
    assert (answers(made)[0].short, answers(made)[0].kind) == ("No, though bins show no gap", "bad")
    assert "`vs` takes more than chance off the log loss" in answers(made)[0].detail


def test_classes_have_as_many_bins_as_their_rows_bear(build_comparison: Callable[..., Comparison]) -> None:
    made = build_comparison(n=1500, n_classes=12)
    columns = made.rows[0].columns
    diagrams = page_data.class_tables(made)["methods"]["none"]["bins"]
    for index, diagram in enumerate(diagrams):
        mine = columns.prediction == index
        wanted = int(np.clip(np.sqrt(mine.sum()) / 2, 1, made.n_bins))
        assert len(diagram) <= wanted
        # bins of equal size hold the rows that a split of the sorted confidences puts there
        parts = np.array_split(np.sort(columns.confidence[mine]), wanted)
        if len(np.unique(columns.confidence[mine])) == mine.sum():
            assert max(count for *_, count in diagram) - min(count for *_, count in diagram) <= 1
            assert abs(diagram[0][0] / 1000 - parts[0].mean()) < 0.05


def test_equal_confidences_share_a_bin(comparison: Comparison) -> None:
    row = comparison.rows[0]
    flat = row.columns._replace(confidence=np.full(comparison.n_test, 0.7))
    made = replace(comparison, rows=(replace(row, columns=flat),), best="none", second=None)
    assert all(len(diagram) == 1 for diagram in page_data.class_tables(made)["methods"]["none"]["bins"])


def test_an_error_at_the_end_of_its_interval_is_marked_in_every_table(comparison: Comparison) -> None:
    row = comparison.row("ts")
    edge = Figures({**row.metrics, "ece": Estimate(0.02, 0.0, 0.02)})
    made = replace(comparison, rows=tuple(replace(one, metrics=edge) if one is row else one for one in comparison.rows))
    for text in (render(made), made.to_markdown(intervals=True), made._repr_html_()):
        assert text.count("‡") >= 1
    assert "ddagger" in made.to_latex(intervals=True)
    assert "chance alone raises" in render(made)
    for text in (render(comparison), comparison.to_markdown(intervals=True)):
        assert "‡" not in text


@pytest.mark.parametrize("task", ["multiclass", "binary", "multilabel", "pairs"])
def test_use_it_runs_with_the_files_of_the_user(task: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    for name in ("my val.npz", "my test.npz"):
        if task == "multiclass":
            labels = generator.integers(0, 3, 200)
            arrays = {"outputs": 3 * (generator.normal(size=(200, 3)) + np.eye(3)[labels]), "truth": labels}
        else:
            score = generator.normal(size=(200, 3) if task == "multilabel" else 200)
            arrays = {"outputs": 2 * score, "truth": (generator.random(score.shape) < 1 / (1 + np.exp(-score))) * 1}
            if task == "pairs":
                arrays["outputs"] = 1 / (1 + np.exp(-2 * score))
        np.savez(name, **arrays)
    kind = "probabilities" if task == "pairs" else "logits"
    command = (
        f"calibrant compare 'my val.npz' 'my test.npz' --scores outputs --labels=truth --kind {kind} --task {task}"
    )
    method = "ts" if task == "multiclass" else "platt"
    code = usage.usage(method, task, ("my val.npz", "my test.npz"), command)
    python, shell, _ = (text for _, text in code)
    found: dict = {}
    exec(python, found)
    assert len(found["probabilities"]) == 200
    assert (tmp_path / "calibrator.safetensors").exists()
    for line in shell.splitlines():
        monkeypatch.setattr("sys.argv", shlex.split(line))
        with pytest.raises(SystemExit) as left:
            main()
        assert not left.value.code
    assert (tmp_path / "calibrated.npz").exists()


def test_models_page_holds_the_matrix_and_a_section_for_each(tmp_path) -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 400)
    logits = 4 * (generator.normal(size=(400, 3)) + np.eye(3)[labels])
    halves = (logits[:200], labels[:200]), (logits[200:], labels[200:])
    table = compare_models({"<script>": halves, "b": halves}, ["none", "ts"], resamples=20)
    text = write_report(table, tmp_path / "models.html", title="Two").read_text()
    tags = Tags(text)
    assert len(tags.all("script")) == 2
    assert [one["id"] for one in tags.all("section")] == [
        "verdict", "matrix", "models", "model-0", "model-1", "use", "provenance"
    ]  # fmt: skip
    links = {one["href"][1:] for one in tags.all("a")}
    assert links <= {one.get("id") for _, one in tags.tags}
    assert text.count(f"{table.estimate('ts', 'b').value:.4f}") >= 3
    policy = next(a["content"] for a in tags.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert policy.endswith(f"script-src 'sha256-{digest}'")
