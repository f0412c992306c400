"""The pieces of the page that are plain HTML; every text that comes from data is escaped here."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

import calibrant
from calibrant.core.metric_facts import facts as metric_facts
from calibrant.evaluation.results import Comparison, MethodRow
from calibrant.evaluation.shift import ShiftCurves
from calibrant.evaluation.tables import RAISED, RAISED_WORDS, any_raised, cell, raised
from calibrant.report.aggregate import baseline, finished
from calibrant.report.labels import class_temperatures, figure, full_name, learned, seconds, summary
from calibrant.report.wording import shown_metrics, size, wording


def navigation(
    *, classes: bool, shift: bool, groups: bool = False, decisions: bool = False, labels: bool = False
) -> str:
    """Links to the sections that are there."""
    sections = [("methods", "Methods", True), ("reliability-section", "Reliability", True)]
    sections += [("decisions-section", "Decisions", decisions), ("labels-section", "Labels", labels)]
    sections += [("groups-section", "For whom?", groups), ("classes-section", "Classes", classes)]
    sections += [("deferral-section", "Deferral", True)]
    sections += [("shift-section", "Shift", shift), ("parameters", "Parameters", True), ("use", "Use it", True)]
    return "".join(f'<a href="#{anchor}">{word}</a>' for anchor, word, there in sections if there)


def method_options(comparison: Comparison, selected: str) -> str:
    """The choices of the method switch."""
    options = []
    for row, _ in finished(comparison):
        mark = " selected" if row.method == selected else ""
        note = " (before)" if row.method == baseline(comparison) else " (best)" if row.method == comparison.best else ""
        options.append(f'<option value="{escape(row.method)}"{mark}>{escape(_named(row))}{note}</option>')
    return "".join(options)


def _named(row: MethodRow) -> str:
    """The short name with the full one, where that says more."""
    words = full_name(row.method, row.calibrator)
    return row.method if words == row.method else f"{row.method} – {words}"


def alerts(comparison: Comparison, model: str = "") -> str:
    """What makes the figures (of a model) doubtful, such as rows that are in both files."""
    word = f"Warning, {escape(model)}" if model else "Warning"
    return "".join(
        f'<p class="note alarm" role="alert"><b>{word}:</b> {escape(one)}.</p>' for one in comparison.warnings
    )


def facts(comparison: Comparison) -> str:
    """Sizes and settings in one line."""
    done, failed = len(finished(comparison)), sum(row.error is not None for row in comparison.rows)
    words = [
        f"{done} methods" + (f", {failed} failed" if failed else ""),
        f"fitted on {comparison.n_val:,} rows",
        f"measured on {comparison.n_test:,}",
        size(comparison),
        f"{comparison.n_bins} bins",
        f"{comparison.resamples:,} bootstrap resamples",
    ]
    return " · ".join(filter(None, words))


def cards(comparison: Comparison) -> str:
    """Before → after of the figures that matter most."""
    if comparison.best is None:
        return ""
    best = comparison.row(comparison.best)
    before = comparison.row(baseline(comparison) or best.method)
    tiles: list[str] = []
    words = wording(comparison)
    for name in dict.fromkeys((comparison.criterion, "ece", "nll", "brier", "accuracy")):
        if name not in best.metrics or len(tiles) == 4:
            continue
        look, estimate = metric_facts(name), best.metrics[name]
        start = figure(before.metrics[name].value, percent=look.percent)
        old = "" if before is best else f'<span class="from">{start} → </span>'
        more = look.meaning
        if name == "ece":
            more = f"mean gap between {words.mean.removeprefix('mean ')} and {words.share}"
        if np.isfinite(estimate.low):
            low, high = (figure(bound, percent=look.percent) for bound in (estimate.low, estimate.high))
            more += f"; 95% interval {low} to {high}"
            if raised(name, estimate):
                more += " (chance alone raises the estimate)"
        value = figure(estimate.value, percent=look.percent)
        decides = " · decides" if name == comparison.criterion else ""
        tiles.append(
            f'<div class="stat"><p class="name">{look.heading}{decides}</p><p class="value">{old}{value}</p>'
            f'<p class="more">{more}</p></div>'
        )
    return "".join(tiles)


EXTRA_COLUMNS = (
    ("Changed decisions", "share of test rows whose predicted class (of one probability: p ≥ 50%) changed"),
    ("Changed order", "share of pairs of test rows whose order by confidence was reversed"),
    ("P(beats best)", "share of bootstrap resamples in which the method beats the best one"),
    ("Params", "numbers the method learned"),
    ("Fit", "seconds to fit"),
)


def table(comparison: Comparison) -> str:
    """The sortable table of methods."""
    names = shown_metrics(comparison)
    heads = [("Method", "short name; choose one to see it in the charts")]
    # the split of the ECE goes by its short names: the table has many columns
    shown = [(metric_facts(name), metric_facts(name).better == 0) for name in names]
    heads += [(look.column.capitalize() if part else look.heading, look.meaning) for look, part in shown]
    heads += list(EXTRA_COLUMNS[comparison.task == "pairs" :])
    sorted_by = names.index(comparison.criterion) + 1 if comparison.criterion in names else -1
    cells = "".join(
        f'<th scope="col" aria-sort="{_direction(comparison, place == sorted_by)}">'
        f'<button type="button" title="{escape(meaning)}">{escape(label)}</button></th>'
        for place, (label, meaning) in enumerate(heads)
    )
    order = comparison.ranking(comparison.criterion)
    rows = [comparison.row(name) for name in order]
    body = "".join(_table_row(comparison, row, names) for row in rows)
    body += failed_rows(comparison, len(heads) - 1)
    return (
        f'<table id="table"><caption class="hidden">Methods and their figures on the test rows</caption>'
        f"<thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
    )


def failed_rows(comparison: Comparison, width: int) -> str:
    """Rows of a table for the methods that failed; the reason takes `width` columns."""
    return "".join(
        f'<tr class="failed"><th scope="row"><code>{escape(row.method)}</code></th>'
        f'<td colspan="{width}">failed: {escape(row.error)}</td></tr>'
        for row in comparison.rows
        if row.error is not None
    )


def _direction(comparison: Comparison, sorted_here: bool) -> str:
    if not sorted_here:
        return "none"
    return "descending" if metric_facts(comparison.criterion).better > 0 else "ascending"


def _table_row(comparison: Comparison, row: MethodRow, names: list[str]) -> str:
    badge = '<span class="badge">best</span>' if row.method == comparison.best else ""
    cells = [
        f'<th scope="row" data-value="{escape(row.method)}"><button type="button" aria-pressed="false" '
        f'title="{escape(summary(row.calibrator))}">{escape(row.method)}</button>{badge}'
        f'<span class="full">{escape(full_name(row.method, row.calibrator))}</span></th>'
    ]
    cells += [_figure_cell(comparison, row, name) for name in names]
    share = [(value, figure(value, percent=True)) for value in (row.changed_predictions, row.changed_rankings)]
    share = share[comparison.task == "pairs" :]  # answers do not change with their confidence
    chance = "–" if row.method == comparison.best or not np.isfinite(row.p_beats_best) else f"{row.p_beats_best:.0%}"
    share.append((row.p_beats_best if row.method != comparison.best else float("nan"), chance))
    share.append((float(row.n_parameters or 0), f"{row.n_parameters or 0:,}"))
    share.append((row.fit_seconds, seconds(row.fit_seconds)))
    cells += [f'<td data-value="{_sortable(value)}"><span class="v">{text}</span></td>' for value, text in share]
    return f'<tr data-method="{escape(row.method)}">{"".join(cells)}</tr>'


def _figure_cell(comparison: Comparison, row: MethodRow, name: str) -> str:
    shown, estimate = cell(comparison, row, name), row.metrics[name]
    kinds = [kind for kind, is_so in (("best", shown.best), ("second", shown.second)) if is_so]
    percent = metric_facts(name).percent
    value = figure(estimate.value, percent=percent)
    bounds = ""
    if np.isfinite(estimate.low):
        bounds = f"{figure(estimate.low, percent=percent)} – {figure(estimate.high, percent=percent)}"
        bounds += RAISED if raised(name, estimate) else ""
    tie = '<span class="tie" title="within noise of the best"> ≈</span>' if shown.tie else ""
    title = f' title="95% interval {bounds}"' if bounds else ""
    return (
        f'<td class="{" ".join(kinds)}" data-value="{_sortable(estimate.value)}"{title}>'
        f'<span class="v">{value}</span>{tie}<span class="ci">{bounds}</span></td>'
    )


def _sortable(value: float) -> str:
    return f"{value:.10g}" if np.isfinite(value) else ""


def table_key(comparison: Comparison) -> str:
    """What the marks mean."""
    label = metric_facts(comparison.criterion).label
    return (
        f"<b>Bold</b>: best of the column; <u>underlined</u>: second; ≈: within noise of the best, by a paired "
        f"bootstrap over the test rows. The winner is chosen by {escape(label)}. {escape(comparison.verdict)}."
        + (f'<span class="with-ci"> {RAISED_WORDS}.</span>' if any_raised(comparison) else "")
    )


def warnings(comparison: Comparison) -> str:
    """What the fits had to say."""
    items = [(row.method, warning) for row in comparison.rows for warning in row.warnings]
    if not items:
        return ""
    lines = "".join(f"<li><code>{escape(name)}</code> {escape(text)}</li>" for name, text in items)
    return f'<ul class="warnings">{lines}</ul>'


def ece_words(row: MethodRow) -> str:
    """The sentence beside the reliability diagram."""
    text = f": calibration error {figure(row.metrics['ece'].value, percent=True)}"
    if row.noise_floor is not None:
        floor = row.noise_floor
        text += (
            f"; a perfectly calibrated model would show about {figure(floor.mean, percent=True)}, "
            f"up to {figure(floor.critical, percent=True)} by chance"
        )
    return text + "."


def classes_note(classes: Mapping[str, Any]) -> str:
    """What the class explorer leaves out to keep the page small."""
    shown, total, left_out = len(classes["names"]), classes["total"], len(classes["left_out"])
    notes = []
    if shown < total:
        notes.append(f"the {shown:,} classes predicted most often, of {total:,}")
    if left_out:
        notes.append(f"{len(classes['methods'])} of {len(classes['methods']) + left_out} methods")
    return f" To keep this page small it shows {' and '.join(notes)}." if notes and shown else ""


def shift_lead(shift: ShiftCurves) -> str:
    """What the shift section compares."""
    kinds = ", ".join(escape(name) for name in shift.corruptions)
    label = escape(metric_facts(shift.metric).heading)
    return f"{label} as the data move away from what the model was fitted on: {kinds}."


def parameters(comparison: Comparison) -> str:
    """Everything each method learned, one fold per method, the best open."""
    folds = []
    for row, _ in finished(comparison):
        is_open = " open" if row.method == comparison.best else ""
        values = learned(row.calibrator)
        temperatures = class_temperatures(row, comparison.n_classes)
        if temperatures is not None:
            values += _extreme_classes(comparison, temperatures)
        lines = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in values)
        count = f"{row.n_parameters:,} learned" if row.n_parameters else "nothing to learn"
        folds.append(
            f"<details{is_open}><summary><code>{escape(row.method)}</code> "
            f"{escape(full_name(row.method, row.calibrator))}"
            f"<span>{escape(type(row.calibrator).__name__)}, {count}</span></summary>"
            f'<p class="about">{escape(summary(row.calibrator))}</p><dl>{lines}</dl></details>'
        )
    return f'<div class="fold">{"".join(folds)}</div>'


def _extreme_classes(comparison: Comparison, temperatures: np.ndarray, count: int = 5) -> list[tuple[str, str]]:
    names = comparison.class_names or tuple(f"class {index}" for index in range(comparison.n_classes))
    order = np.argsort(temperatures, kind="stable")

    def line(places: np.ndarray) -> str:
        return ", ".join(f"{names[place]} {temperatures[place]:.3g}" for place in places)

    return [("most sharpened", line(order[:count])), ("most damped", line(order[::-1][:count]))]


def use_lead(comparison: Comparison) -> str:
    """What the instructions are about."""
    if comparison.best is None:
        return "No method worked, so there is nothing to apply."
    return (
        f"Fit <b>{escape(full_name(comparison.best))}</b> once on held-out predictions, keep the small file, "
        "and put it behind the model."
    )


def footer(comparison: Comparison) -> str:
    """Where the page comes from and how its figures were made."""
    return (
        f"Made by calibrant {escape(calibrant.__version__)}. Charts hold bins and curves, not rows. Equal-width bins "
        f"(low, high], {comparison.n_bins} of them; intervals from {comparison.resamples:,} paired bootstrap "
        f"resamples, seed {comparison.seed}."
    )


def embedded_json(value: Any) -> str:
    """JSON that may stand inside a script element: no text of the data can close it or open a comment."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    """A file of this folder as text."""
    return files("calibrant.report").joinpath(name).read_text(encoding="utf-8")


def script_hash(script: str) -> str:
    """A script as a content security policy names it."""
    # a browser reads CR LF as LF before it hashes; none of our scripts holds a CR
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
