"""The section on many labels: one row per label, worst first, with pooled and mean figures."""

from __future__ import annotations

from html import escape

import numpy as np

from calibrant.evaluation.results import Comparison, TestColumns
from calibrant.metrics.top_label import ece_of
from calibrant.report.aggregate import baseline, finished
from calibrant.report.labels import figure

MOST_LABELS = 200
"""Labels in the table; of more, those with the largest error after calibration."""
FEW_POSITIVES = 10


def label_table(comparison: Comparison) -> str:
    """Error and log loss of every label before and after the best method; empty for other tasks."""
    columns = {row.method: columns for row, columns in finished(comparison)}
    before, best = baseline(comparison) or "", comparison.best or ""
    width = comparison.n_classes
    if comparison.task != "multilabel" or best not in columns or len(comparison.labels) % width:
        return ""
    labels = np.asarray(comparison.labels).reshape(-1, width)
    weights = None if comparison.weights is None else np.asarray(comparison.weights).reshape(-1, width)[:, 0]
    old, new = (_by_label(columns[name], width, weights, comparison.n_bins) for name in (before, best))
    positive = labels.sum(axis=0).astype(int)
    few = np.minimum(positive, len(labels) - positive) < FEW_POSITIVES
    # labels with too few events cannot be ranked: they stand last
    order = np.lexsort((-new[0], few))[:MOST_LABELS]
    names = comparison.class_names or tuple(f"label {index}" for index in range(width))
    lines = [_line("mean of the labels", int(positive.sum()), [part.mean(axis=1) for part in (old, new)], "macro")]
    pooled = [np.array([comparison.row(name).metrics[key].value for key in ("ece", "nll")]) for name in (before, best)]
    lines.insert(0, _line("all labels pooled", int(positive.sum()), pooled, "macro"))
    for place in order:
        kind = "few" if few[place] else ""
        lines.append(_line(str(names[place]), int(positive[place]), [old[:, place], new[:, place]], kind))
    heads = ("Label", "Positives", "ECE before", "ECE after", "Log loss before", "Log loss after")
    head = "".join(f'<th scope="col">{one}</th>' for one in heads)
    more = f"<p class='key'>The {MOST_LABELS} largest errors of {width:,} labels.</p>" if width > MOST_LABELS else ""
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Table of labels"><table class="small">'
        f'<caption class="hidden">Labels before and after {escape(best)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>{more}"
    )


def _by_label(columns: TestColumns, width: int, weights: np.ndarray | None, n_bins: int) -> np.ndarray:
    """ECE and mean log loss (2, L) of every label."""
    stated, seen, loss = (
        np.asarray(column).reshape(-1, width) for column in (columns.confidence, columns.correct, columns.nll)
    )
    errors = [ece_of(stated[:, place], seen[:, place], weights, n_bins=n_bins) for place in range(width)]
    return np.stack([np.array(errors), np.average(loss, axis=0, weights=weights)])


def _line(name: str, positives: int, figures: list[np.ndarray], kind: str) -> str:
    mark = f' <span class="few">fewer than {FEW_POSITIVES} events</span>' if kind == "few" else ""
    shown = [figure(one[0], percent=True) for one in figures] + [figure(one[1], percent=False) for one in figures]
    cells = "".join(f"<td>{one}</td>" for one in (f"{positives:,}", *shown))
    return f'<tr class="{kind}"><th scope="row">{escape(name)}{mark}</th>{cells}</tr>'
