"""The page of several models: who does well everywhere, the matrix behind it, and a section per model."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from string import Template

import numpy as np

import calibrant
from calibrant.core.metric_facts import facts
from calibrant.evaluation.model_tables import by_rank, matrix_cell
from calibrant.evaluation.models import ModelComparison
from calibrant.evaluation.reliability import reliability_bins
from calibrant.evaluation.results import Comparison, Estimate, MethodRow
from calibrant.evaluation.tables import RAISED, RAISED_WORDS, any_raised, cell, raised
from calibrant.evaluation.verdicts import SIGNIFICANCE
from calibrant.metrics.reliability import Reliability
from calibrant.report import html, snippets
from calibrant.report.aggregate import baseline, finished
from calibrant.report.answers import Answer, answers, boxes
from calibrant.report.labels import figure, full_name
from calibrant.report.provenance import model_provenance
from calibrant.report.wording import Wording, wording

MOST_LINKS = 6
"""Models with a link of their own in the bar; beyond, the matrix links to them."""
SIDE, LEFT, TOP, BOTTOM = 300, 44, 8, 40
INNER = SIDE - LEFT - 8
"""Sizes of a static diagram, in the units of its view box."""
FEW = 10
"""Bins with fewer rows are faint."""


def render_models(
    table: ModelComparison, *, title: str | None = None, sources: Sequence[str] = (), command: str | None = None
) -> str:
    """The page as text."""
    script = html.asset("common.js")
    return Template(html.asset("models.html")).substitute(
        title=escape(title or f"How far to trust {len(table.models)} models"),
        version=escape(calibrant.__version__),
        css=html.asset("page.css"),
        script=script,
        hashes=html.script_hash(script),
        navigation=_navigation(table),
        alerts="".join(html.alerts(one, name) for name, one in table.comparisons.items()),
        answers=boxes(model_answers(table)),
        facts=_facts(table),
        matrix_lead=_lead(table),
        matrix=matrix(table),
        matrix_key=(
            "<b>Bold</b>: best of the model; ≈: within noise of it, by a paired bootstrap over the model's test rows. "
            "Mean rank: 1 is first on every model; a method that failed comes last there."
            + (f" {RAISED_WORDS}." if any(map(any_raised, table.comparisons.values())) else "")
        ),
        sections="\n".join(_section(place, name, one) for place, (name, one) in enumerate(table.comparisons.items())),
        use_lead=_use_lead(table),
        usage=snippets.model_usage(table.best, table.task, sources, command),
        provenance=model_provenance(table, sources, command),
        footer=html.footer(next(iter(table.comparisons.values()))),
        result=html.embedded_json(table.to_dict()),
    )


def _navigation(table: ModelComparison) -> str:
    links = [("matrix", "Matrix")]
    links += (
        [(f"model-{place}", name) for place, name in enumerate(table.models)] if len(table.models) <= MOST_LINKS else []
    )
    links += [("use", "Use it"), ("provenance", "Origin")]
    return "".join(f'<a href="#{anchor}">{escape(word)}</a>' for anchor, word in links)


def model_answers(table: ModelComparison) -> list[Answer]:
    """The three questions, asked of all models together."""
    first = {name: answers(one)[0] for name, one in table.comparisons.items()}
    bad = [name for name, one in first.items() if one.kind == "bad"]
    total = len(table.models)
    said = "All of them" if not bad and all(one.kind == "good" for one in first.values()) else ""
    said = said or (f"{len(bad)} of {total} are not" if bad else "Too few rows to tell for some")
    named = "; ".join(f"{escape(name)}: {one.short[:1].lower()}{one.short[1:]}" for name, one in first.items())
    found = [Answer("Are they calibrated?", said, f"{named}.", "bad" if bad else "good")]
    if table.best is None:
        return [*found, Answer("What should I use?", "Unknown", "Every method failed on every model.", "open")]
    wins, ranks = table.wins(), table.mean_ranks()
    label = facts(table.criterion).label
    found.append(
        Answer(
            "What should I use?",
            f"{escape(full_name(table.best))} <code>{escape(table.best)}</code>",
            f"Lowest mean rank by {label}: {ranks[table.best]:.2f} of {len(table.methods)} methods.",
            "good",
        )
    )
    sure = wins[table.best] == total
    rival = next((name for name in by_rank(table) if name != table.best), None)
    close = "" if rival is None else f" Next is <code>{escape(rival)}</code> with mean rank {ranks[rival]:.2f}."
    short = "It is never clearly beaten" if sure else f"It is beaten on {total - wins[table.best]} of {total}"
    detail = f"Best or within noise of the best on {wins[table.best]} of {total} models.{close}"
    return [*found, Answer("How sure is that?", short, detail, "good" if sure else "open")]


def _facts(table: ModelComparison) -> str:
    rows = [one.n_test for one in table.comparisons.values()]
    span = f"{min(rows):,}" if min(rows) == max(rows) else f"{min(rows):,} to {max(rows):,}"
    first = next(iter(table.comparisons.values()))
    words = [f"{len(table.methods)} methods", f"{len(table.models)} models", f"{span} test rows each", table.task]
    return " · ".join([*words, f"{first.resamples:,} bootstrap resamples"])


def _lead(table: ModelComparison) -> str:
    look = facts(table.criterion)
    unit = " in percent" if look.percent else ""
    return (
        f"{escape(look.heading)}{unit} of every method on every model's test rows ({escape(look.meaning)}); "
        f"{'higher' if look.better > 0 else 'lower'} is better. The lowest mean rank stands first."
    )


def matrix(table: ModelComparison) -> str:
    """Methods × models, then mean rank and wins."""
    ranks, wins = table.mean_ranks(), table.wins()
    heads = "".join(
        f'<th scope="col"><a href="#model-{place}">{escape(name)}</a></th>' for place, name in enumerate(table.models)
    )
    lines = []
    for method in by_rank(table):
        cells = []
        for model in table.models:
            one = matrix_cell(table, method, model)
            tie = '<span class="tie" title="within noise of the best"> ≈</span>' if one.tie else ""
            cells.append(f'<td class="{"best" if one.best else ""}"><span class="v">{one.value}</span>{tie}</td>')
        badge = ' <span class="badge">best</span>' if method == table.best else ""
        lines.append(
            f'<tr><th scope="row"><code>{escape(method)}</code>{badge}'
            f'<span class="full">{escape(full_name(method))}</span></th>{"".join(cells)}'
            f"<td>{ranks[method]:.2f}</td><td>{wins[method]} of {len(table.models)}</td></tr>"
        )
    return (
        '<table class="matrix"><caption class="hidden">The deciding metric of every method on every model</caption>'
        f'<thead><tr><th scope="col">Method</th>{heads}<th scope="col">Mean rank</th>'
        f'<th scope="col">Best or tied</th></tr></thead><tbody>{"".join(lines)}</tbody></table>'
    )


def _section(place: int, name: str, comparison: Comparison) -> str:
    heading = f'<section id="model-{place}"><h2 class="model-name">{escape(name)}</h2>'
    if comparison.best is None:
        return f'{heading}<p class="lead">Every method failed.</p>{_methods(name, comparison)}</section>'
    first, second, third = answers(comparison)
    words = f"{first.short}. {first.detail} Best here: {second.short}. {second.detail} {third.detail}"
    return (
        f'{heading}<p class="lead">{words}</p><div class="grid"><figure class="card">'
        f'<p class="legend"><span class="mark after">after {escape(comparison.best)}</span>'
        f'<span class="mark before">before</span></p>{_diagram(name, comparison)}'
        f"<figcaption><p><b>What it shows.</b> {escape(wording(comparison).reliability_shows.split(' Bars')[0])} "
        "Bins of fewer than 10 rows are faint.</p><p><b>How to read it.</b> On the dashed line what is stated is what "
        f"is seen.</p></figcaption></figure>{_methods(name, comparison)}</div></section>"
    )


def _diagram(name: str, comparison: Comparison) -> str:
    columns = {row.method: columns for row, columns in finished(comparison)}
    before, best = baseline(comparison) or "", comparison.best or ""
    drawn = {
        method: reliability_bins(
            columns[method].confidence,
            columns[method].correct,
            n_bins=comparison.n_bins,
            weights=comparison.weights,
        )
        for method in dict.fromkeys((before, best))
    }
    label = f"Reliability diagram of {name}: ECE {drawn[before].ece:.2%} before, {drawn[best].ece:.2%} after {best}"
    return _static_diagram(drawn[before], drawn[best] if best != before else None, wording(comparison), label)


def _static_diagram(before: Reliability, after: Reliability | None, words: Wording, label: str) -> str:
    """Bins before (hollow) and after calibration (filled, with intervals) against the diagonal."""
    height = TOP + INNER + BOTTOM
    parts = [_frame(words)]
    parts.append(f'<g fill="none" stroke="var(--before)" stroke-width="1.5">{_marks(before)}</g>')
    if after is not None:
        parts.append(f'<g stroke="var(--accent)" stroke-width="1.3">{_whiskers(after)}</g>')
        parts.append(f'<g fill="var(--accent)">{_marks(after)}</g>')
    return (
        f'<svg class="diagram" viewBox="0 0 {SIDE} {height}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def _x(value: float) -> float:
    return LEFT + INNER * float(value)


def _y(value: float) -> float:
    return TOP + INNER * (1 - float(value))


def _frame(words: Wording) -> str:
    ticks = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        ticks.append(f'<path d="M{_x(share):.1f} {TOP}V{TOP + INNER}M{LEFT} {_y(share):.1f}H{LEFT + INNER}"/>')
    numbers = []
    for share in (0.0, 0.5, 1.0):
        anchor = "end" if share == 1 else "middle"
        numbers.append(f'<text x="{_x(share):.1f}" y="{TOP + INNER + 15}" text-anchor="{anchor}">{share:.0%}</text>')
        numbers.append(f'<text x="{LEFT - 6}" y="{_y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    middle, centre = LEFT + INNER / 2, TOP + INNER / 2
    stated, seen = (escape(text.split(":")[0]) for text in (words.stated, words.seen))
    return (
        f'<g stroke="var(--grid)">{"".join(ticks)}</g>'
        f'<path d="M{LEFT} {TOP + INNER}L{LEFT + INNER} {TOP}" stroke="var(--muted)" stroke-dasharray="4 4"/>'
        f'{"".join(numbers)}<text x="{middle:.0f}" y="{TOP + INNER + 33}" text-anchor="middle">{stated}</text>'
        f'<text x="11" y="{centre:.0f}" text-anchor="middle" transform="rotate(-90 11 {centre:.0f})">{seen}</text>'
    )


def _faint(count: float) -> str:
    return ' opacity="0.35"' if count < FEW else ""


def _marks(bins: Reliability) -> str:
    return "".join(
        f'<circle r="4" cx="{_x(bins.confidence[place]):.1f}" '
        f'cy="{_y(bins.accuracy[place]):.1f}"{_faint(bins.count[place])}/>'
        for place in np.flatnonzero(bins.filled)
    )


def _whiskers(bins: Reliability) -> str:
    return "".join(
        f'<path d="M{_x(bins.confidence[place]):.1f} {_y(bins.accuracy_low[place]):.1f}'
        f'V{_y(bins.accuracy_high[place]):.1f}"{_faint(bins.count[place])}/>'
        for place in np.flatnonzero(bins.filled)
    )


def _methods(name: str, comparison: Comparison) -> str:
    names = list(dict.fromkeys((comparison.criterion, "ece", "accuracy")))
    if comparison.task == "pairs":
        names.remove("accuracy")
    heads = "".join(f'<th scope="col">{escape(facts(one).heading)}</th>' for one in names)
    rows = [comparison.row(method) for method in comparison.ranking(comparison.criterion)]
    lines = "".join(_method_line(comparison, row, names) for row in rows)
    lines += html.failed_rows(comparison, len(names) + 1)
    return (
        f'<div class="card"><div class="scroll" tabindex="0" role="region" aria-label="Methods on {escape(name)}">'
        f'<table class="small"><caption class="hidden">Methods on {escape(name)}</caption><thead><tr>'
        f'<th scope="col">Method</th>{heads}<th scope="col">Calibrated after</th></tr></thead>'
        f"<tbody>{lines}</tbody></table></div></div>"
    )


def _method_line(comparison: Comparison, row: MethodRow, names: list[str]) -> str:
    cells = []
    for metric in names:
        shown = cell(comparison, row, metric)
        kind = "best" if shown.best else ""
        cells.append(f'<td class="{kind}">{_estimate(metric, row.metrics[metric], shown.tie)}</td>')
    floor = row.noise_floor
    said = "–" if floor is None else ("no gap seen" if floor.p_value >= SIGNIFICANCE else "no")
    return f'<tr><th scope="row"><code>{escape(row.method)}</code></th>{"".join(cells)}<td>{said}</td></tr>'


def _estimate(metric: str, estimate: Estimate, tie: bool) -> str:
    percent = facts(metric).percent
    text = f'<span class="v">{figure(estimate.value, percent=percent)}</span>{" ≈" if tie else ""}'
    if metric == "accuracy" or not np.isfinite(estimate.low):
        return text
    low, high = (figure(bound, percent=percent) for bound in (estimate.low, estimate.high))
    mark = RAISED if raised(metric, estimate) else ""
    return f'{text} <span class="ci-inline">[{low}, {high}]{mark}</span>'


def _use_lead(table: ModelComparison) -> str:
    if table.best is None:
        return "No method worked, so there is nothing to apply."
    return f"Fit <b>{escape(full_name(table.best))}</b> on each model's held-out predictions; each keeps its own file."
