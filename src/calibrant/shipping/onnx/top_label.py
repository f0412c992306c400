"""ONNX nodes of the methods that set the confidence of the predicted class (`calibrators/helpers/top_label.py`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrant.shipping.onnx.graph import Graph


def confidence(graph: Graph, logits: str) -> str:
    """Top probability (n×1)."""
    return graph.reduce("ReduceMax", graph.softmax(logits))


def keep(graph: Graph, scores: str, column: str, n_classes: int) -> str:
    """Scores whose given column (n×1) leads every other by a few ulps at least."""
    mask = graph.is_column(column, n_classes)
    others = graph.reduce("ReduceMax", graph.node("Where", mask, graph.number(-np.inf), scores))
    size = graph.node("Max", graph.node("Abs", others), graph.number(1.0))
    ahead = graph.add(others, graph.multiply(size, graph.number(8 * np.finfo(graph.dtype).eps)))
    return graph.node("Where", mask, graph.node("Max", scores, ahead), scores)


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
    """Log-shares with none above the cap and the same sum: min(λ·q, cap), in logs as the method itself."""
    sorted_shares, _ = graph.nodes_with("TopK", (others, graph.integers([n_classes])), 2, axis=1)
    floor, ceiling = graph.number(-_huge(graph)), graph.number(_huge(graph))
    descending = graph.node("Max", sorted_shares, floor)
    capped = graph.multiply(graph.node("Exp", cap), graph.number(np.arange(n_classes)[None, :]))
    left = graph.node("Max", graph.subtract(graph.node("Exp", total), capped), graph.number(0.0))
    factor = graph.subtract(graph.node("Log", left), _suffix_logsumexp(graph, descending, n_classes))
    bound = graph.add(cap, graph.number(1e-12))
    fits = graph.node("Not", graph.node("Greater", graph.add(factor, descending), bound))
    # in the last place only the predicted class is left, and all others are at the cap
    last = graph.typed(np.arange(n_classes)[None, :] == n_classes - 1, bool)
    first = graph.argmax(graph.cast(graph.node("Or", fits, last)))
    chosen = graph.node("GatherElements", factor, first, axis=1)
    chosen = graph.node("Where", graph.node("Less", chosen, floor), ceiling, chosen)
    return graph.node("Min", graph.add(others, chosen), cap)


def _suffix_logsumexp(graph: Graph, tensor: str, n_columns: int) -> str:
    """log Σ_{i ≥ j} exp(x_i) of each column j, by doubling: log₂K steps instead of K."""
    step = 1
    while step < n_columns:
        shifted = graph.node("Slice", tensor, graph.integers([step]), graph.integers([n_columns]), graph.integers([1]))
        shifted = graph.node("Pad", shifted, graph.integers([0, 0, 0, step]), graph.number(-_huge(graph)))
        tensor = graph.add(tensor, softplus(graph, graph.subtract(shifted, tensor)))
        step *= 2
    return tensor


def _huge(graph: Graph) -> float:
    """A number that stands for infinity where infinities would meet."""
    return float(np.finfo(graph.dtype).max) / 1e8


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
