"""Calibration of a causal language model's next-token probabilities, without ever holding all its logits."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from scipy.interpolate import BPoly
from scipy.optimize import brentq
from torch import Tensor, nn

from calibrant.calibrators.temperature import TemperatureScaling
from calibrant.core import progress
from calibrant.core.arrays import Array
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.rows import SolvedTemperature
from calibrant.data import Predictions
from calibrant.kernels.torch.columns import MEANS, BinSums, Columns, columns
from calibrant.kernels.torch.temperature import fast_fit, fast_sums
from calibrant.kernels.torch.tensors import row_slices, widened
from calibrant.neural.collect import device_of, evaluation_mode, logits_in, on_device
from calibrant.neural.neural_clamping import best_temperature

POSITION_EDGES = (16, 64, 256, 1024, 4096, 16384, 65536)
COUNT_EDGES = (1, 10, 100, 1000, 10_000, 100_000, 1_000_000)
EDGES = {"position": POSITION_EDGES, "frequency": COUNT_EDGES}
NO_TOKEN = -100
MAX_RUNS = 4
"""Runs over the batches at most; the second and later ones where the first batch was untypical."""

SPACING, N_NODES = 0.2, 5
"""The sums of the fit are taken at this many temperatures, this far apart in log T, around a first estimate."""

FARTHEST = 1.5
"""How far, in log T, the nodes move where the optimum lies outside them."""


@dataclass(frozen=True)
class TokenMeasurement:
    """What a run over token batches found; `measure_language_model` makes it.

    Attributes
    ----------
    n_tokens, n_classes : scored tokens, and the size of the vocabulary.
    temperature : the logits were divided by this before they were measured.
    metrics : mean NLL, Brier score, accuracy, confidence, entropy, and ECE of the predicted token.
    groups : for "position" and "frequency", label of a group → its metrics and number of tokens.
    """

    n_tokens: int
    n_classes: int
    temperature: float
    metrics: dict[str, float]
    groups: dict[str, dict[str, dict[str, float]]]
    solved: SolvedTemperature | None = field(repr=False)
    rows: dict[str, Array] | None = field(repr=False)

    def fit_temperature(self) -> TemperatureScaling:
        """Temperature scaling of the lowest NLL on these tokens, from the sums of the run."""
        if self.solved is None:
            raise InputError("the run took no sums for a fit: call measure_language_model with fit=True")
        # what a temperature fit asks of its rows; the temperature is known already
        rows: Any = SimpleNamespace(
            n=self.n_tokens,
            n_classes=self.n_classes,
            total_weight=self.n_tokens,
            in_memory=False,
            one_score=False,
            size=self.n_tokens * self.n_classes,
            solved_temperature=lambda: self.solved,
        )
        fitted = TemperatureScaling().fit_rows(rows)
        fitted.n_rows_ = self.n_tokens
        return fitted

    def pairs(self) -> Predictions:
        """Confidence and correctness of each token, its groups and its sequence, for `measure` and the report."""
        if self.rows is None:
            raise InputError("the run kept no rows: call measure_language_model with keep_rows=True")
        kept: dict[str, Any] = {**self.rows}
        groups = {name: np.array(_ranges(edges))[kept.pop(name)] for name, edges in EDGES.items() if name in kept}
        return Predictions(**kept, groups=groups)

    def to_frame(self) -> Any:
        """A table (pandas) with a row for all tokens and one per group."""
        import pandas as pd

        every = [{"by": "", "group": "all", **self.metrics}]
        for by, found in self.groups.items():
            every += [{"by": by, "group": label, **row} for label, row in found.items()]
        return pd.DataFrame(every)

    def __str__(self) -> str:
        names = ("tokens", "nll", "accuracy", "confidence", "ece")
        lines = [f"{'':28}" + "".join(f"{name:>12}" for name in names)]
        for by, found in {"": {"all tokens": self.metrics}, **self.groups}.items():
            for label, row in found.items():
                figures = "".join(f"{row[name]:>12.4f}" for name in names[1:])
                lines.append(f"{f'{by} {label}'.strip():28}{int(row['tokens']):>12,}{figures}")
        return "\n".join(lines)


def measure_language_model(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    temperature: float = 1.0,
    fit: bool = True,
    keep_rows: bool = False,
    n_bins: int = 15,
    token_counts: Any = None,
    device: Any = None,
) -> TokenMeasurement:
    """Run a causal model over token batches and sum up, batch by batch, what a fit and the metrics need.

    The logits of one batch exist at a time. They are read in the dtype that the model writes; the sums are float64.

    Parameters
    ----------
    model : module from token ids (B, L) to next-token logits (B, L, V), a tensor or an output with `logits`
    batches : iterable of token ids (B, L), or of dictionaries with "input_ids", perhaps "attention_mask", "labels"
        (as Hugging Face has them: the same tokens, −100 where a token does not count) and further inputs
    temperature : the metrics are those of softmax(z/T); a fit is about z
    fit : whether sums for `fit_temperature` are taken; each batch is then read five more times
    keep_rows : whether confidence and correctness of each token are kept, for `pairs`: 14 bytes per token
    n_bins : equal-width bins of the ECE
    token_counts : (V,) how often each token occurs in a corpus; the groups "frequency" are by the count of the
        predicted token. None counts the tokens of the batches, if they can be read twice.
    device : where the model is expected to be; None takes the model's own device

    Examples
    --------
    >>> model = nn.Embedding.from_pretrained(4 * torch.eye(8).roll(1, dims=1))  # token t + 1 follows token t
    >>> found = measure_language_model(model, [torch.tensor([[0, 1, 2, 3, 5, 6, 7, 0, 2, 3, 4, 5]])])
    >>> found.n_tokens, sorted(found.groups)
    (11, ['frequency', 'position'])
    >>> round(found.fit_temperature().temperature_, 4)  # right in 9 of 11 cases: 4/T = log(7·9/2)
    1.1594
    """
    if not (isinstance(temperature, (int, float)) and 0 < temperature < float("inf")):
        raise InputError(f"temperature must be above 0 and finite, got {temperature!r}")
    place = device_of(model, device)
    again = not isinstance(batches, Iterator)
    run = _Run(
        model, float(temperature), n_bins, _counts(batches if again else None, token_counts, place), place, keep_rows
    )
    solved: SolvedTemperature | float | None = None
    with evaluation_mode(model), torch.inference_mode():
        for number, batch in enumerate(_read(batches, place)):
            run.add(*batch, fit=fit)
            progress.step("tokens", number + 1, len(batches) if isinstance(batches, Sequence) else None)
        run.check()
        for left in reversed(range(MAX_RUNS if again else 1)):
            solved = None if run.nodes is None else run.nodes.solve()
            if not left or not isinstance(solved, float):
                break
            # the first batch was far from typical: the same sums around where the optimum is
            run.nodes = TemperatureNodes(solved, place)
            for batch in _read(batches, place):
                run.nodes.add(*run.tokens(*batch))
    if isinstance(solved, float):
        warnings.warn(
            f"the temperature of the lowest NLL lies beyond {solved:.3g}: no fit; give batches that can be "
            "read again, and a first batch like the others",
            FitWarning,
            stacklevel=2,
        )
    return run.result(solved if isinstance(solved, SolvedTemperature) else None)


class TemperatureNodes:
    """Σ NLL of z/T and its derivatives at a few temperatures, from which the T of the lowest NLL follows.

    Between two nodes the slope by log T is the polynomial of degree five that has its value and two derivatives at
    both. At a spacing of 0.2 the root is good to about 1e-7 of T.
    """

    def __init__(self, around: float, device: Any) -> None:
        steps = SPACING * (np.arange(N_NODES) - N_NODES // 2)
        # the fused pass takes exponentials in float32: it must see the number that the fit is about
        self.betas = (np.exp(steps) / around).astype(np.float32).astype(np.float64)
        self.sums = torch.zeros((N_NODES, 4), dtype=torch.float64, device=device)
        self.total = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Add rows, but for those without a token; the host does not wait."""
        labels, weights = weighed(logits, labels)
        for node, beta in enumerate(self.betas.tolist()):
            self.sums[node] += fast_sums(logits, labels, weights, beta)
        self.total += weights.sum()

    def solve(self) -> SolvedTemperature | float:
        """β of the lowest mean NLL; where that lies outside the nodes, the temperature to look around next."""
        means = (self.sums / self.total).cpu().numpy()
        if not np.isfinite(means).all():
            raise InputError("the logits of some tokens, or of padding, are NaN or infinite")
        loss, first, second, third = means.T
        # derivatives by log β of the loss
        slope, curvature, bend = first, second + first, third + 3 * second + first
        crossing = np.flatnonzero((slope[:-1] <= 0) & (slope[1:] > 0))
        if not len(crossing):
            end = 0 if slope[0] > 0 else -1
            step = abs(slope[end] / curvature[end]) if curvature[end] > 0 else FARTHEST
            step = min(max(step, 2 * SPACING), FARTHEST)
            return math.exp(step if end == 0 else -step) / self.betas[end]
        left = crossing[0]
        places = np.log(self.betas[left : left + 2])
        ends = [[slope[at], curvature[at], bend[at]] for at in (left, left + 1)]
        curve = BPoly.from_derivatives(places, ends)
        found = brentq(curve, *places, xtol=1e-14)
        lowest = loss[left] + float(curve.integrate(places[0], found))
        return SolvedTemperature(math.exp(found), lowest, N_NODES)


def weighed(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Labels that have a column, and weights that are 0 where the given ones have none."""
    known = (labels >= 0) & (labels < logits.shape[1])
    return torch.where(known, labels, 0), known.double()


def first_estimate(logits: Tensor, labels: Tensor) -> float:
    """The temperature of the first rows; 1 where they have none."""
    labels, weights = weighed(logits, labels)
    if not weights.any():
        return 1.0
    solved = fast_fit(logits, labels, weights, zeros=True)
    found = best_temperature(logits, labels, weights) if solved is None else 1.0 / solved.value
    return found if 1e-3 < found < 1e3 else 1.0


class _Run:
    """The sums of the metrics over all tokens, by position and by how common the predicted token is."""

    def __init__(  # noqa: PLR0917
        self,
        model: nn.Module,
        temperature: float,
        n_bins: int,
        counts: Tensor | None,
        device: torch.device,
        keep_rows: bool,
    ) -> None:
        self.model, self.temperature, self.counts = model, temperature, counts
        self.nodes: TemperatureNodes | None = None
        names = ("position",) if counts is None else tuple(EDGES)
        self.edges = {name: torch.tensor(EDGES[name], device=device) for name in names}
        self.sums = {name: BinSums(n_bins, device, len(EDGES[name]) + 1) for name in names}
        self.kept: list[tuple[Array, ...]] | None = [] if keep_rows else None
        self.n_classes = self.n_sequences = 0

    def tokens(self, inputs: dict[str, Any], targets: Tensor) -> tuple[Tensor, Tensor]:
        """Run the model over one batch: its logits (n, V), and the token that follows each (n,) or `NO_TOKEN`."""
        logits = logits_in(self.model(**inputs) if len(inputs) > 1 else self.model(*inputs.values()))
        if logits.ndim != 3 or logits.shape[:2] != targets.shape:
            raise InputError(
                f"the model gave logits of shape {tuple(logits.shape)} for tokens of shape {tuple(targets.shape)}: "
                "next-token logits are (B, L, V)"
            )
        if self.n_classes not in (0, logits.shape[2]):
            raise InputError(f"the model gave {logits.shape[2]} logits per token, but {self.n_classes} before")
        self.n_classes = logits.shape[2]
        # the target of a position is the next token; the last position has none
        return logits.reshape(-1, self.n_classes), nn.functional.pad(targets[:, 1:], (0, 1), value=NO_TOKEN).reshape(-1)

    def add(self, inputs: dict[str, Any], targets: Tensor, *, fit: bool) -> None:
        """Run the model over one batch and add its tokens to the metrics, and to the sums of a fit."""
        rows, labels = self.tokens(inputs, targets)
        if fit:
            self.nodes = self.nodes or TemperatureNodes(first_estimate(rows, labels), rows.device)
            self.nodes.add(rows, labels)
        found, shape = _columns(rows, labels, self.temperature), targets.shape
        values = {"position": torch.arange(1, shape[1] + 1, device=rows.device).repeat(shape[0])}
        if self.counts is not None:
            if len(self.counts) < self.n_classes:
                # tokens that the batches do not hold
                self.counts = nn.functional.pad(self.counts, (0, self.n_classes - len(self.counts)))
            values["frequency"] = self.counts[found.prediction]
        groups = [torch.bucketize(values[name], edges, right=True) for name, edges in self.edges.items()]
        for sums, group in zip(self.sums.values(), groups, strict=True):
            sums.add(found, labels, ignore_index=NO_TOKEN, groups=group)
        if self.kept is not None:
            sequence = torch.arange(shape[0], device=rows.device).repeat_interleave(shape[1]) + self.n_sequences
            parts = [found.numbers[0], found.flags[0], sequence, *(group.to(torch.int8) for group in groups)]
            self.kept.append(tuple(part[labels != NO_TOKEN].cpu().numpy() for part in parts))
        self.n_sequences += shape[0]

    def check(self) -> None:
        """Raise where there is nothing to measure, or a logit is NaN or infinite."""
        n_rows, n_bad = (int(self.sums["position"].slot(name).sum()) for name in ("rows", "bad"))
        if not n_rows:
            raise InputError("the batches hold no token with a token before it: nothing to measure")
        if n_bad:
            raise InputError(f"the logits of {n_bad} tokens hold NaN or infinite values, or a token id is wrong")

    def result(self, solved: SolvedTemperature | None) -> TokenMeasurement:
        """Everything on the host."""
        groups = {}
        for name, sums in self.sums.items():
            labelled = zip(_ranges(EDGES[name]), _table(sums), strict=True)
            groups[name] = {label: row for label, row in labelled if row["tokens"]}
        every = self.sums["position"]
        every.state = every.state.sum(dim=0, keepdim=True)
        (metrics,) = _table(every)
        rows = None
        if self.kept is not None:
            columns = map(np.concatenate, zip(*self.kept, strict=True))
            rows = dict(zip(("confidence", "correct", "clusters", *self.edges), columns, strict=True))
        return TokenMeasurement(int(metrics["tokens"]), self.n_classes, self.temperature, metrics, groups, solved, rows)


def _columns(logits: Tensor, labels: Tensor, temperature: float) -> Columns:
    """The columns of softmax(z/T); block by block, so that no second matrix of logits exists."""
    if temperature == 1.0:
        return columns(logits, labels, from_logits=True)
    blocks = row_slices(*logits.shape)
    parts = [columns(widened(logits[block]) / temperature, labels[block], from_logits=True) for block in blocks]
    return Columns(*(torch.cat(part, dim=-1) for part in zip(*parts, strict=True)))


def _table(sums: BinSums) -> list[dict[str, float]]:
    """The metrics of each group, on the host; NaN where a group has no row."""
    columns = [sums.slot("weight"), *map(sums.mean, MEANS.values()), sums.ece()]
    names = ("tokens", *MEANS, "ece")
    return [dict(zip(names, row, strict=True)) for row in torch.stack(columns, dim=1).tolist()]


def _read(batches: Iterable[Any], device: torch.device) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """The model's inputs and the targets (B, L) of each batch, −100 where a token does not count."""
    for number, batch in enumerate(batches):
        named = dict(batch) if isinstance(batch, Mapping) else {"input_ids": batch}
        tokens = named.get("input_ids")
        if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.is_floating_point():
            raise InputError(f"batch {number} must be token ids (B, L), or hold them as 'input_ids'")
        targets = named.pop("labels", None)
        targets = tokens if targets is None else targets
        if targets.shape != tokens.shape:
            raise InputError(
                f"labels of batch {number} have shape {tuple(targets.shape)}, but the tokens {tuple(tokens.shape)}"
            )
        mask = named.get("attention_mask")
        if mask is not None:
            targets = torch.where(mask.bool(), targets, NO_TOKEN)
        yield on_device(named, device), targets.to(device).long()


def _counts(batches: Iterable[Any] | None, given: Any, device: torch.device) -> Tensor | None:
    """How often each token occurs: as given, or in the batches; None where they can be read only once."""
    if given is not None:
        return torch.as_tensor(given, device=device)
    if batches is None:
        return None
    total = torch.zeros(0, dtype=torch.int64, device=device)
    for _, targets in _read(batches, device):
        found = torch.bincount(targets[targets != NO_TOKEN], minlength=len(total))
        found[: len(total)] += total
        total = found
    return total


def _ranges(edges: Sequence[int]) -> list[str]:
    inner = [f"{low:,}" if high == low + 1 else f"{low:,}–{high - 1:,}" for low, high in pairwise((0, *edges))]
    return [*inner, f"{edges[-1]:,} and more"]
