"""`write_report`: a comparison as ONE self-contained HTML file that works offline.

The file carries its own copy of Vega-Lite, the numbers behind the charts (bins and curves, never rows) and a content
security policy that lets nothing but its own scripts run and nothing be fetched.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import calibrant
from calibrant.core.atomic import atomic_write
from calibrant.core.errors import InputError
from calibrant.evaluation.models import ModelComparison
from calibrant.evaluation.results import Comparison
from calibrant.evaluation.shift import ShiftCurves
from calibrant.report import aggregate, group_section, html, positive_section
from calibrant.report.answers import answers, boxes
from calibrant.report.label_section import label_table
from calibrant.report.models_page import render_models
from calibrant.report.provenance import provenance
from calibrant.report.snippets import usage
from calibrant.report.wording import title as default_title
from calibrant.report.wording import wording


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
    script, library = html.asset("common.js") + html.asset("page.js"), bundle()
    payload = _payload(comparison, shift)
    heading, words = title or default_title(comparison), wording(comparison)
    return Template(html.asset("page.html")).substitute(
        title=escape(heading),
        version=escape(calibrant.__version__),
        css=html.asset("page.css"),
        script=script,
        bundle=library,
        hashes=" ".join(html.script_hash(text) for text in (library, script)),
        data=html.embedded_json(payload),
        navigation=html.navigation(
            classes=bool(payload["classes"]["names"]),
            shift=shift is not None,
            groups=bool(payload["groups"]),
            decisions=bool(payload["decisions"]),
            labels=comparison.task == "multilabel" and comparison.best is not None,
        ),
        method_options=html.method_options(comparison, payload["selected"]),
        answers=boxes(answers(comparison)),
        result=html.embedded_json(comparison.to_dict()),
        alerts=html.alerts(comparison),
        test_rows="the test rows, some of which it was fitted on" if comparison.warnings else "test rows it never saw",
        facts=html.facts(comparison),
        cards=html.cards(comparison),
        **{name: escape(text) for name, text in asdict(words).items()},
        table=html.table(comparison),
        table_key=html.table_key(comparison),
        warnings=html.warnings(comparison),
        decisions_hidden="" if payload["decisions"] else " hidden",
        smooth_hidden="" if payload["decisions"] else " hidden",
        clinical_table=positive_section.clinical_table(comparison),
        groups_hidden="" if payload["groups"] else " hidden",
        groups_lead=group_section.lead(comparison),
        groups_table=group_section.table(comparison),
        group_focus=escape(payload["groups"]["focus"] if payload["groups"] else ""),
        best=escape(comparison.best or ""),
        classes_hidden="" if payload["classes"]["names"] else " hidden",
        classes_note=html.classes_note(payload["classes"]),
        shift_hidden="" if shift is not None else " hidden",
        shift_lead="" if shift is None else html.shift_lead(shift),
        parameters=html.parameters(comparison),
        use_lead=html.use_lead(comparison),
        usage=usage(comparison.best, comparison.task, sources, command),
        provenance=provenance(comparison, sources, command),
        labels_table=label_table(comparison),
        labels_hidden="" if comparison.task == "multilabel" and comparison.best is not None else " hidden",
        footer=html.footer(comparison),
    )


@cache
def bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, of the version that Altair writes charts for."""
    import altair
    import vl_convert

    wanted = ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    known = vl_convert.get_vegalite_versions()
    code = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", wanted if wanted in known else None)
    # inside a script element these two would end or change how the rest is read; both only occur in string literals
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _payload(comparison: Comparison, shift: ShiftCurves | None) -> dict[str, Any]:
    from calibrant.report.charts import charts

    methods = [row.method for row, _ in aggregate.finished(comparison)]
    groups, decisions = group_section.group_tables(comparison), positive_section.decision_tables(comparison)
    shown = len(group_section.shown_groups(comparison)) if groups else 0
    return {
        "methods": methods,
        "before": aggregate.baseline(comparison) or "",
        "selected": comparison.best if comparison.best in methods else next(iter(methods), ""),
        "charts": charts(wording(comparison), shift, groups=shown, decisions=decisions is not None) if methods else {},
        "words": {"mean": wording(comparison).mean, "share": wording(comparison).share},
        "reliability": aggregate.reliability_table(comparison),
        "histogram": aggregate.histogram_table(comparison),
        "means": aggregate.means(comparison),
        "sentences": {row.method: html.ece_words(row) for row, _ in aggregate.finished(comparison)},
        "coverage": aggregate.coverage_table(comparison),
        "guarantees": aggregate.guarantees(comparison),
        "classes": aggregate.class_tables(comparison),
        "groups": groups,
        "decisions": decisions,
        "smooth": positive_section.smooth_table(comparison),
        "shift": None if shift is None else aggregate.shift_table(shift),
    }
