"""`write_report`: a comparison as ONE self-contained HTML file that works offline.

The file carries its own copy of Vega-Lite, the numbers behind the charts (bins and curves, never rows) and a content
security policy that lets nothing but its own scripts run and nothing be fetched.
"""

import base64
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import altair
import numpy as np
import vl_convert
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup, escape

import calibrant
from calibrant.core.atomic import atomic_write, check_replaceable
from calibrant.core.errors import InputError
from calibrant.evaluation.models import ModelComparison
from calibrant.evaluation.results import Comparison
from calibrant.evaluation.shift import ShiftCurves
from calibrant.evaluation.tables import Json, bounds, diagram, figure, raised, raised_words, templates
from calibrant.metrics.record import facts, number
from calibrant.report import page_data, usage
from calibrant.report.answers import answers, model_answers
from calibrant.report.page_data import baseline, shown_method
from calibrant.report.wording import TITLES, full_name, parameters, sizes, summary, wording


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
    if isinstance(comparison, Comparison):
        template, context = "page.html", _one_model(comparison, shift)
    elif not isinstance(comparison, ModelComparison):
        raise InputError(f"comparison must be the result of calibrant.compare, got {type(comparison).__name__}")
    elif shift is not None:
        raise InputError("shift is about one model: write its report by itself")
    else:
        template, context = "models.html", _several_models(comparison)
    comparisons, best = context["comparisons"], comparison.recommended
    context |= {
        "title": title or context["title"],
        "css": asset("page.css"),
        "version": calibrant.__version__,
        "compared": comparison,
        "result": comparison.to_dict(),
        "best": best,
        "failed": not comparison.fitted_methods,
        "made": next(iter(comparisons.values())),
        "raised": raised_words(*(one.table() for one in comparisons.values())),
        "usage": usage.usage(best, comparison.task, sources, command, several="" not in comparisons),
        "figure": figure,
        "small_figure": page_data.small_figure,
        "number": number,
        "provenance": usage.provenance(comparisons, sources, command),
    }
    environment = templates().overlay()
    environment.filters = environment.filters | FILTERS
    page = environment.get_template(template).render(context)
    check_replaceable(path, is_html, "a page")
    with atomic_write(path) as temporary:
        temporary.write_text(page, encoding="utf-8", errors="backslashreplace")
    return Path(path)


def is_html(path: Path) -> bool:
    """Return whether a file begins like an HTML page."""
    with path.open("rb") as file:
        return file.read(1024).lstrip().lower().startswith((b"<!doctype html", b"<html"))


def _one_model(comparison: Comparison, shift: ShiftCurves | None) -> Json:
    """What the page of one model shows."""
    data = page_data.payload(comparison, shift)
    return {
        "title": TITLES[comparison.task].format(comparison.n_classes),
        "scripts": [bundle(), asset("common.js") + asset("page.js")],
        "data": data,
        "comparisons": {"": comparison},
        "answers": answers(comparison),
        "facts": sizes(comparison),
        "words": wording(comparison),
        "methods": page_data.methods_table(comparison),
        "clinical": page_data.clinical_table(comparison) if data["decisions"] else None,
        "labels": page_data.label_table(comparison),
        "group_table": page_data.group_tables(comparison)[1],
        "shift": shift,
        "parameters": {name: parameters(comparison, comparison.row(name)) for name in data["methods"]},
    }


def _several_models(table: ModelComparison) -> Json:
    """What the page of several models shows: who does well everywhere, the matrix behind it, a section per model."""
    models, matrix = table.comparisons, table.table("methods")
    caption = "The deciding metric of every method on every model"
    columns = {**matrix.columns, "mean_rank": "Mean rank", "best_or_tied": f"Best or tied, of {table.n_ranked}"}
    if table.too_few_rows:
        columns = {name: name for name in models}
    return {
        "title": f"How far to trust {len(models)} models",
        "scripts": [asset("common.js")],
        "data": None,
        "comparisons": models,
        "answers": model_answers(table),
        "facts": table.sizes.split("; "),
        "matrix": replace(matrix, axis="Method", columns=columns, caption=caption),
        "models_table": table.short_table("models") if table.pairing else None,
        "group_table": table.table("groups") if table.pairing else None,
        "links": {name: f"#model-{place}" for place, name in enumerate(models)},
        "sections": {name: _section(name, one) for name, one in models.items()},
    }


def _section(name: str, comparison: Comparison) -> Json:
    """One model: the answers, the diagram before and after, and the methods."""
    words, before, best = wording(comparison), baseline(comparison), shown_method(comparison)
    found = {"answers": answers(comparison), "methods": page_data.model_methods(comparison), "words": words}
    if not best:
        return found
    old, new = comparison.bins(before), comparison.bins(best)
    drawn = diagram(new, before=old if before != best else None)
    drawn["label"] = f"Reliability diagram of {name}: ECE {old.ece:.2%} before, {new.ece:.2%} after {best}"
    drawn["method"] = best
    drawn |= {"stated": words.stated.split(":")[0], "seen": words.seen.split(":")[0]}
    return found | {"diagram": drawn}


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
    coded = re.sub(r"`(.+?)`", r"<code>\1</code>", bold)
    # the text is escaped before constant tags without attributes are added: no injection is possible
    return Markup(coded)  # noqa: S704  # nosec B704


def embedded(value: Any) -> Markup:
    """JSON that may stand inside a script element: no text of the data can close it or open a comment."""
    return htmlsafe_json_dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def digest(script: str) -> str:
    """A script as a content security policy names it."""
    # a browser reads CR LF as LF before it hashes; none of our scripts holds a CR
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def sort_value(value: float) -> str:
    """What a column is sorted by; numbers that are not finite come last."""
    return f"{value:.10g}" if np.isfinite(value) else ""


FILTERS = {
    one.__name__: one
    for one in (bounds, digest, embedded, facts, figure, full_name, marked, raised, sort_value, summary)
}
"""What templates call by its own name."""
