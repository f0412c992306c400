"""`write_report`: a comparison as ONE self-contained HTML file that works offline.

The file carries its own copy of Vega-Lite, the numbers behind the charts (bins and curves, never rows) and a content
security policy that lets nothing but its own scripts run and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import altair
import numpy as np
import vl_convert
from markupsafe import Markup, escape

import calibrant
from calibrant.core.atomic import atomic_write
from calibrant.core.errors import InputError
from calibrant.evaluation.models import ModelComparison
from calibrant.evaluation.rendering import diagram, figure, raised, raised_words, templates
from calibrant.evaluation.results import Comparison, MethodRow
from calibrant.evaluation.shift import ShiftCurves
from calibrant.metrics.record import facts
from calibrant.report import chart_data, tables, usage
from calibrant.report.answers import answers, model_answers
from calibrant.report.charts import charts
from calibrant.report.methods import class_temperatures, full_name, learned, summary
from calibrant.report.wording import size, wording
from calibrant.report.wording import title as default_title

MOST_LINKS = 6
"""Models with a link of their own in the bar; beyond, the matrix links to them."""


def write_report(
    comparison: Comparison | ModelComparison,
    path: str | os.PathLike[str],
    *,
    shift: ShiftCurves | None = None,
    title: str | None = None,
    sources: Sequence[str] = (),
    command: str | None = None,
) -> Path:
    """Write the report of a comparison and return its path.

    The page holds the verdict, the table of methods, reliability diagrams and histograms, a class explorer, deferral,
    shift where given, the fitted parameters, and how to apply the winner. Its size hardly depends on the number of
    rows: rows are binned before they are written, and the class explorer has a budget.

    Parameters
    ----------
    comparison : the result of `calibrant.compare` or `calibrant.compare_models`.
    path : where the page goes; written whole or not at all.
    shift : the result of `calibrant.evaluation.shift.shift`, for a section on shifted data.
    title : the page's heading.
    sources : the files that were fitted on and measured on; the page names them, with their hashes.
    command : the command that made the page.

    Examples
    --------
    >>> import tempfile, calibrant, numpy as np
    >>> logits = np.random.default_rng(0).normal(size=(400, 3)) * 3
    >>> labels = (logits + np.random.default_rng(1).normal(size=(400, 3)) * 3).argmax(axis=1)
    >>> half = slice(0, 200), slice(200, 400)
    >>> val, test = ((logits[part], labels[part]) for part in half)
    >>> table = calibrant.compare(val, test, ["none", "ts"], resamples=50)
    >>> write_report(table, tempfile.mkdtemp() + "/report.html").name
    'report.html'
    """
    if isinstance(comparison, ModelComparison):
        if shift is not None:
            raise InputError("shift is about one model: write its report by itself")
        page = render_models(comparison, title=title, sources=sources, command=command)
    elif isinstance(comparison, Comparison):
        page = render(comparison, shift=shift, title=title, sources=sources, command=command)
    else:
        raise InputError(f"comparison must be the result of calibrant.compare, got {type(comparison).__name__}")
    with atomic_write(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return Path(path)


def render(
    comparison: Comparison,
    *,
    shift: ShiftCurves | None = None,
    title: str | None = None,
    sources: Sequence[str] = (),
    command: str | None = None,
) -> str:
    """The page as text."""
    data = _payload(comparison, shift)
    groups = data["groups"]
    return _page(
        "page.html",
        title=title or default_title(comparison),
        scripts=[bundle(), asset("common.js") + asset("page.js")],
        data=data,
        result=comparison.to_dict(),
        navigation=_navigation(comparison, data, shift),
        options=_options(comparison, data["selected"]),
        comparisons={"": comparison},
        made=comparison,
        best=comparison.best,
        answers=answers(comparison),
        facts=_facts(comparison),
        cards=cards(comparison),
        words=wording(comparison),
        methods=tables.methods_table(comparison),
        criterion=facts(comparison.criterion).label,
        raised=raised_words(comparison.table()),
        fit_warnings=[(row.method, warning) for row in comparison.rows for warning in row.warnings],
        decisions=data["decisions"],
        clinical=tables.clinical_table(comparison),
        labels=tables.label_table(comparison),
        groups=groups and {**groups, "lead": group_lead(comparison), "table": tables.group_table(comparison)},
        classes=data["classes"]["names"],
        classes_note=classes_note(data["classes"]),
        shift=shift,
        shift_metric=shift and facts(shift.metric).heading,
        parameters=[_parameters(comparison, row) for row, _ in chart_data.finished(comparison)],
        usage=usage.usage(comparison.best, comparison.task, sources, command),
        provenance=usage.provenance(comparison, sources, command),
    )


def render_models(
    table: ModelComparison, *, title: str | None = None, sources: Sequence[str] = (), command: str | None = None
) -> str:
    """The page of several models: who does well everywhere, the matrix behind it, and a section per model."""
    models = table.comparisons
    rows = [one.n_test for one in models.values()]
    span = f"{min(rows):,}" if min(rows) == max(rows) else f"{min(rows):,} to {max(rows):,}"
    first, look = next(iter(models.values())), facts(table.criterion)
    sizes = [f"{len(table.methods)} methods", f"{len(models)} models", f"{span} test rows each", table.task]
    links = [(f"model-{place}", name) for place, name in enumerate(models)] if len(models) <= MOST_LINKS else []
    return _page(
        "models.html",
        title=title or f"How far to trust {len(models)} models",
        scripts=[asset("common.js")],
        data=None,
        result=table.to_dict(),
        navigation=[("matrix", "Matrix"), *links, ("use", "Use it"), ("provenance", "Origin")],
        comparisons=models,
        made=first,
        best=table.best,
        answers=model_answers(table),
        facts=[*sizes, f"{first.resamples:,} bootstrap resamples"],
        matrix_lead=f"{look.heading}{' in percent' if look.percent else ''} of every method on every model's test rows "
        f"({look.meaning}); {'higher' if look.better > 0 else 'lower'} is better. The lowest mean rank stands first.",
        matrix=tables.matrix(table),
        raised=raised_words(*(one.table() for one in models.values())),
        sections=[_section(name, one) for name, one in models.items()],
        usage=usage.model_usage(table.best, table.task, sources, command),
        provenance=usage.model_provenance(table, sources, command),
    )


def _page(template: str, **context: Any) -> str:
    filters = {"marked": marked, "digest": digest, "embedded": embedded_json, "full_name": full_name}
    environment = templates().overlay()
    environment.filters = {**environment.filters, **filters}
    page = environment.get_template(template)
    return str(page.render(css=asset("page.css"), version=calibrant.__version__, **context))


def asset(name: str) -> str:
    """A template, style sheet or script as text."""
    return files("calibrant").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, of the version that Altair writes charts for."""
    wanted = ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    known = vl_convert.get_vegalite_versions()
    code = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", wanted if wanted in known else None)
    # inside a script element these two would end or change how the rest is read; both only occur in string literals
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def marked(text: str) -> Markup:
    """Escaped text in which `code` and **bold** are marked.

    >>> marked("`a<b` is **best**")
    Markup('<code>a&lt;b</code> is <b>best</b>')
    """
    bold = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", str(escape(text)))
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", bold))  # noqa: S704 (escaped above)


def embedded_json(value: Any) -> Markup:
    """JSON that may stand inside a script element: no text of the data can close it or open a comment."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(text)  # noqa: S704 (escaped above)


def digest(script: str) -> str:
    """A script as a content security policy names it."""
    # a browser reads CR LF as LF before it hashes; none of our scripts holds a CR
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _payload(comparison: Comparison, shift: ShiftCurves | None) -> dict[str, Any]:
    """What the page's script reads: chart specifications and the numbers behind them."""
    done = chart_data.finished(comparison)
    methods, words = [row.method for row, _ in done], wording(comparison)
    groups, decisions = chart_data.group_tables(comparison), chart_data.decision_tables(comparison)
    shown = len(chart_data.shown_groups(comparison)) if groups else 0
    return {
        "methods": methods,
        "before": chart_data.baseline(comparison) or "",
        "selected": comparison.best if comparison.best in methods else next(iter(methods), ""),
        "charts": charts(words, shift, groups=shown, decisions=decisions is not None) if methods else {},
        "words": {"mean": words.mean, "share": words.share},
        "reliability": chart_data.reliability_table(comparison),
        "histogram": chart_data.histogram_table(comparison),
        "means": chart_data.means(comparison),
        "sentences": {row.method: ece_words(row) for row, _ in done},
        "coverage": chart_data.coverage_table(comparison),
        "guarantees": chart_data.guarantees(comparison),
        "classes": chart_data.class_tables(comparison),
        "groups": groups,
        "decisions": decisions,
        "smooth": chart_data.smooth_table(comparison),
        "shift": None if shift is None else chart_data.shift_table(shift),
    }


def _navigation(comparison: Comparison, data: Mapping[str, Any], shift: ShiftCurves | None) -> list[tuple[str, str]]:
    """Links to the sections that are there."""
    labels = comparison.task == "multilabel" and comparison.best is not None
    sections = [("methods", "Methods", True), ("reliability-section", "Reliability", True)]
    sections += [("decisions-section", "Decisions", data["decisions"]), ("labels-section", "Labels", labels)]
    sections += [
        ("groups-section", "For whom?", data["groups"]),
        ("classes-section", "Classes", data["classes"]["names"]),
    ]
    sections += [("deferral-section", "Deferral", True), ("shift-section", "Shift", shift is not None)]
    sections += [("parameters", "Parameters", True), ("use", "Use it", True)]
    return [(anchor, word) for anchor, word, there in sections if there]


def _options(comparison: Comparison, selected: str) -> list[tuple[str, str, bool]]:
    """The choices of the method switch: short name, words, whether it is chosen at first."""
    notes = {comparison.best: " (best)", chart_data.baseline(comparison): " (before)"}
    found = []
    for row, _ in chart_data.finished(comparison):
        words = full_name(row.method, row.calibrator)
        name = row.method if words == row.method else f"{row.method} – {words}"
        found.append((row.method, name + notes.get(row.method, ""), row.method == selected))
    return found


def _facts(comparison: Comparison) -> list[str]:
    """Sizes and settings."""
    done, failed = len(chart_data.finished(comparison)), len(tables.failures(comparison))
    words = [
        f"{done} methods" + (f", {failed} failed" if failed else ""),
        f"fitted on {comparison.n_val:,} rows",
        f"measured on {comparison.n_test:,}",
        size(comparison),
        f"{comparison.n_bins} bins",
        f"{comparison.resamples:,} bootstrap resamples",
    ]
    return [word for word in words if word]


def cards(comparison: Comparison) -> list[dict[str, str]]:
    """Before → after of the figures that matter most."""
    if comparison.best is None:
        return []
    best, words = comparison.row(comparison.best), wording(comparison)
    before = comparison.row(chart_data.baseline(comparison) or best.method)
    found: list[dict[str, str]] = []
    wanted = dict.fromkeys((comparison.criterion, "ece", "nll", "brier", "accuracy"))
    for name in [name for name in wanted if name in best.metrics][:4]:
        look, estimate = facts(name), best.metrics[name]
        more = look.meaning
        if name == "ece":
            more = f"mean gap between {words.mean.removeprefix('mean ')} and {words.share}"
        if np.isfinite(estimate.low):
            low, high = (figure(name, bound) for bound in (estimate.low, estimate.high))
            more += f"; 95% interval {low} to {high}"
            more += " (chance alone raises the estimate)" if raised(name, estimate) else ""
        start = "" if before is best else figure(name, before.metrics[name].value)
        decides = " · decides" if name == comparison.criterion else ""
        value = figure(name, estimate.value)
        found.append({"name": look.heading + decides, "before": start, "value": value, "meaning": more})
    return found


def ece_words(row: MethodRow) -> str:
    """The sentence beside the reliability diagram."""
    text = f": calibration error {figure('ece', row.metrics['ece'].value)}"
    if row.noise_floor is not None:
        mean, critical = (figure("ece", one) for one in (row.noise_floor.mean, row.noise_floor.critical))
        text += f"; a perfectly calibrated model would show about {mean}, up to {critical} by chance"
    return text + "."


def group_lead(comparison: Comparison) -> str:
    """What the groups are, and how many of them are shown."""
    first = next(iter(chart_data.group_analyses(comparison).values()))
    count, most = len(first.groups), chart_data.MOST_GROUPS
    more = f" Shown are the {most} with the largest gaps." if count > most else ""
    return f"{count} groups by {' and '.join(first.columns)}.{more}"


def classes_note(classes: Mapping[str, Any]) -> str:
    """What the class explorer leaves out to keep the page small."""
    shown, total, left_out = len(classes["names"]), classes["total"], len(classes["left_out"])
    notes = []
    if shown < total:
        notes.append(f"the {shown:,} classes predicted most often, of {total:,}")
    if left_out:
        notes.append(f"{len(classes['methods'])} of {len(classes['methods']) + left_out} methods")
    return f"To keep this page small it shows {' and '.join(notes)}." if notes and shown else ""


def _parameters(comparison: Comparison, row: MethodRow, count: int = 5) -> dict[str, Any]:
    """Everything a method learned, with the classes it changed most."""
    values, temperatures = learned(row.calibrator), class_temperatures(row, comparison.n_classes)
    if temperatures is not None:
        names = comparison.class_names or tuple(f"class {index}" for index in range(comparison.n_classes))
        order = np.argsort(temperatures, kind="stable")
        for words, places in (("most sharpened", order[:count]), ("most damped", order[::-1][:count])):
            values.append((words, ", ".join(f"{names[place]} {temperatures[place]:.3g}" for place in places)))
    learnt = f"{row.n_parameters:,} learned" if row.n_parameters else "nothing to learn"
    return {
        "method": row.method,
        "name": full_name(row.method, row.calibrator),
        "best": row.method == comparison.best,
        "count": f"{type(row.calibrator).__name__}, {learnt}",
        "summary": summary(row.calibrator),
        "learned": values,
    }


def _section(name: str, comparison: Comparison) -> dict[str, Any]:
    """One model: the answers in a paragraph, the diagram before and after, and the methods."""
    shared = {"name": name, "best": comparison.best, "methods": tables.model_methods(name, comparison)}
    if comparison.best is None:
        return {**shared, "lead": "Every method failed.", "diagram": None}
    first, second, third = answers(comparison)
    lead = f"{first.short}. {first.detail} Best here: {second.short}. {second.detail} {third.detail}"
    words, best = wording(comparison), comparison.best
    before = chart_data.baseline(comparison) or best
    old, new = comparison.bins(before), comparison.bins(best)
    drawn = diagram(new, before=old if before != best else None) | {
        "label": f"Reliability diagram of {name}: ECE {old.ece:.2%} before, {new.ece:.2%} after {best}",
        "stated": words.stated.split(":")[0],
        "seen": words.seen.split(":")[0],
    }
    return {**shared, "lead": lead, "shows": words.reliability_shows.split(" Bars")[0], "diagram": drawn}
