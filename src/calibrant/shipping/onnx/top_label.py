"""ONNX nodes of the methods that set the confidence of the predicted class (`calibrators/top_label.py`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.shipping.onnx.graph import Graph


def confidence(graph: Graph, logits: str) -> str:
    """Top probability (n×1)."""
    return graph.reduce("ReduceMax", graph.softmax(logits))


def keep(graph: Graph, scores: str, column: str, n_classes: int) -> str:
    """Scores whose argmax is the given column (n×1): where rounding lost it, it leads by a few ulps."""
    peak = graph.reduce("ReduceMax", scores)
    size = graph.node("Max", graph.node("Abs", peak), graph.number(1.0))
    ahead = graph.add(peak, graph.multiply(size, graph.number(4 * np.finfo(graph.dtype).eps)))
    kept = graph.node("Equal", graph.argmax(scores), column)
    lifted = graph.node("Where", graph.is_column(column, n_classes), ahead, scores)
    return graph.node("Where", kept, scores, lifted)


def log_odds(graph: Graph, probability: str) -> str:
    """log(c / (1 − c))."""
    return graph.subtract(
        graph.node("Log", probability), graph.node("Log", graph.subtract(graph.number(1.0), probability))
    )


def top_log_odds(graph: Graph, logits: str, n_classes: int) -> str:
    """log(c / (1 − c)) of the top confidence (n×1), exact also where c rounds to 1."""
    _, _, total = _others(graph, logits, n_classes)
    return graph.subtract(graph.reduce("ReduceMax", logits), total)


def softplus(graph: Graph, tensor: str) -> str:
    """log(1 + exp(x)), without overflow."""
    decay = graph.node("Exp", graph.node("Neg", graph.node("Abs", tensor)))
    rest = graph.node("Log", graph.add(decay, graph.number(1.0)))
    return graph.add(graph.node("Max", tensor, graph.number(0.0)), rest)


def interpolate(graph: Graph, points: str, knots: np.ndarray, values: np.ndarray) -> str:
    """np.interp(points, knots, values) for points (n×1)."""
    if len(knots) == 1:
        return graph.add(graph.multiply(points, graph.number(0.0)), graph.number(values[0]))
    gaps = np.diff(knots)
    slopes = np.divide(np.diff(values), gaps, out=np.zeros(len(gaps)), where=gaps > 0)
    inside = graph.node("Min", graph.node("Max", points, graph.number(knots[0])), graph.number(knots[-1]))
    reached = graph.cast(graph.node("Not", graph.node("Less", inside, graph.number(knots[None, :-1]))))
    index = graph.index(graph.subtract(graph.reduce("ReduceSum", reached), graph.number(1.0)))
    left, bottom = graph.look_up(knots[:-1], index), graph.look_up(values[:-1], index)
    return graph.add(graph.multiply(graph.look_up(slopes, index), graph.subtract(inside, left)), bottom)


def with_confidence(graph: Graph, logits: str, new_log_odds: str, n_classes: int) -> str:
    """Log-probabilities (n×K) whose predicted class has the confidence 1/(1 + exp(−v)), v the new log-odds (n×1)."""
    column, others, total = _others(graph, logits, n_classes)
    odds = graph.node("Max", new_log_odds, graph.number(-np.log(n_classes - 1.0)))
    top = graph.node("Neg", softplus(graph, graph.node("Neg", odds)))
    rest = graph.node("Neg", softplus(graph, odds))
    shares = graph.add(others, graph.subtract(rest, total))
    crowded = graph.node("Greater", graph.reduce("ReduceMax", shares), top)
    shares = graph.node("Where", crowded, _water_fill(graph, shares, top, rest, n_classes), shares)
    result = graph.node("Where", graph.is_column(column, n_classes), top, shares)
    return keep(graph, result, column, n_classes)


def _others(graph: Graph, logits: str, n_classes: int) -> tuple[str, str, str]:
    """Predicted column (n×1), the logits with −inf there (n×K), and the log-sum-exp of what is left (n×1)."""
    column = graph.argmax(logits)
    others = graph.node("Where", graph.is_column(column, n_classes), graph.number(-np.inf), logits)
    peak = graph.reduce("ReduceMax", others)
    mass = graph.reduce("ReduceSum", graph.node("Exp", graph.subtract(others, peak)))
    return column, others, graph.add(peak, graph.node("Log", mass))


def _water_fill(graph: Graph, others: str, cap: str, total: str, n_classes: int) -> str:
    """Log-shares with none above the cap and the same sum: min(λ·q, cap)."""
    descending, _ = graph.nodes_with("TopK", (others, graph.integers([n_classes])), 2, axis=1)
    shares, limit = graph.node("Exp", descending), graph.node("Exp", cap)
    tail = graph.node("CumSum", shares, graph.integers(1), reverse=1)
    left = graph.subtract(graph.node("Exp", total), graph.multiply(limit, graph.number(np.arange(n_classes)[None, :])))
    some = graph.node("Greater", tail, graph.number(0.0))
    safe = graph.node("Where", some, tail, graph.number(1.0))
    scale = graph.node("Where", some, graph.divide(left, safe), graph.number(0.0))
    bound = graph.multiply(limit, graph.number(1 + 1e-12))
    fits = graph.node("Not", graph.node("And", some, graph.node("Greater", graph.multiply(scale, shares), bound)))
    first = graph.argmax(graph.cast(fits))
    factor = graph.node("Max", graph.node("GatherElements", scale, first, axis=1), graph.number(1.0))
    return graph.node("Min", graph.add(others, graph.node("Log", factor)), cap)


def one_vs_rest(graph: Graph, mapped: str) -> str:
    """Log-probabilities of rows of positive numbers, divided by their sum."""
    return graph.log(graph.divide(mapped, graph.reduce("ReduceSum", mapped)))


def map_columns(graph: Graph, probabilities: str, tables: list[tuple[np.ndarray, np.ndarray]], kind: str) -> str:
    """Each column through its own table: "steps" (inner edges, values) or "lines" (knots, values)."""
    width = max(len(values) for _, values in tables)
    points = graph.unsqueeze(probabilities, 2)
    edges = np.stack([np.pad(e, (0, width - len(e)), constant_values=np.inf) for e, _ in tables])
    if kind == "steps":
        above = graph.node("Greater", points, graph.number(edges[None]))
        return _flat_look_up(graph, [values for _, values in tables], width, above, shift=0.0)
    knots = np.stack([np.pad(k, (0, width - len(k)), mode="edge") for k, _ in tables])
    lowest, highest = knots[:, 0][None, :], knots[:, -1][None, :]
    inside = graph.node("Min", graph.node("Max", probabilities, graph.number(lowest)), graph.number(highest))
    reached = graph.node("Not", graph.node("Less", graph.unsqueeze(inside, 2), graph.number(edges[None])))
    slopes, lefts, bottoms = [], [], []
    for k, v in tables:
        gaps = np.append(np.diff(k), 0.0)
        slopes.append(np.divide(np.append(np.diff(v), 0.0), gaps, out=np.zeros(len(gaps)), where=gaps > 0))
        lefts.append(k)
        bottoms.append(v)
    slope, left, bottom = (
        _flat_look_up(graph, table, width, reached, shift=-1.0) for table in (slopes, lefts, bottoms)
    )
    return graph.add(graph.multiply(slope, graph.subtract(inside, left)), bottom)


def _flat_look_up(graph: Graph, tables: list[np.ndarray], width: int, flags: str, shift: float) -> str:
    """Table j at the count of flags (n×K×width) of column j, plus a shift: (n×K)."""
    count = graph.squeeze(graph.reduce("ReduceSum", graph.cast(flags), axis=2), 2)
    starts = width * np.arange(len(tables))[None, :] + shift
    index = graph.index(graph.add(count, graph.number(starts)))
    flat = np.concatenate([np.pad(table, (0, width - len(table)), mode="edge") for table in tables])
    return graph.look_up(flat, index)


def histogram(calibrator: Any, graph: Graph, logits: str) -> str:
    """HistogramBinning."""
    edges, values = np.asarray(calibrator.edges_), np.asarray(calibrator.values_)
    n_classes = int(calibrator.n_features_in_)
    if len(edges) == 1:
        accuracy = graph.look_up(values[0], graph.place(confidence(graph, logits), edges[0]))
        return with_confidence(graph, logits, log_odds(graph, accuracy), n_classes)
    tables = [(edges[j, 1:-1], values[j]) for j in range(n_classes)]
    return one_vs_rest(graph, map_columns(graph, graph.softmax(logits), tables, "steps"))


def isotonic(calibrator: Any, graph: Graph, logits: str) -> str:
    """IsotonicCalibration."""
    cuts = [slice(*pair) for pair in zip(calibrator.offsets_[:-1], calibrator.offsets_[1:], strict=True)]
    tables = [(calibrator.knots_[cut], calibrator.values_[cut]) for cut in cuts]
    if len(tables) == 1:
        accuracy = interpolate(graph, confidence(graph, logits), *tables[0])
        return with_confidence(graph, logits, log_odds(graph, accuracy), int(calibrator.n_features_in_))
    return one_vs_rest(graph, map_columns(graph, graph.softmax(logits), tables, "lines"))


def spline(calibrator: Any, graph: Graph, logits: str) -> str:
    """SplineCalibration."""
    accuracy = interpolate(graph, confidence(graph, logits), calibrator.confidences_, calibrator.values_)
    return with_confidence(graph, logits, log_odds(graph, accuracy), int(calibrator.n_features_in_))
