"""Calibration of a causal language model's next-token probabilities, without ever holding all its logits."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.calibrators.temperature import TemperatureScaling
from calibrant.core import progress
from calibrant.core.errors import FitWarning, InputError
from calibrant.core.rows import SolvedTemperature
from calibrant.data import Predictions
from calibrant.neural.model_io import device_of, evaluation_mode, logits_in
from calibrant.neural.token_sums import GroupSums, TemperatureNodes, TokenRows, first_estimate, row_columns

POSITION_EDGES = (16, 64, 256, 1024, 4096, 16384, 65536)
COUNT_EDGES = (1, 10, 100, 1000, 10_000, 100_000, 1_000_000)
NO_TOKEN = -100
MAX_RUNS = 4
"""Runs over the batches at most; the second and later ones where the first batch was untypical."""


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
    rows: dict[str, np.ndarray] | None = field(repr=False)

    def fit_temperature(self) -> TemperatureScaling:
        """Temperature scaling of the lowest NLL on these tokens, from the sums of the run."""
        if self.solved is None:
            raise InputError("the run took no sums for a fit: call measure_language_model with fit=True")
        rows: Any = TokenRows(self.n_tokens, self.n_classes, self.solved)
        fitted = TemperatureScaling().fit_rows(rows)
        fitted.n_rows_ = self.n_tokens
        return fitted

    def pairs(self) -> Predictions:
        """Confidence and correctness of each token, its groups and its sequence, for `measure` and the report."""
        if self.rows is None:
            raise InputError("the run kept no rows: call measure_language_model with keep_rows=True")
        kept = self.rows
        groups = {
            name: np.array(list(self.groups[name]))[kept[name]] for name in ("position", "frequency") if name in kept
        }
        return Predictions(
            confidence=kept["confidence"], correct=kept["correct"], groups=groups, clusters=kept["sequence"]
        )

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
        tables = {"": {"all tokens": self.metrics}, **self.groups}
        for by, found in tables.items():
            for label, row in found.items():
                head = f"{by} {label}".strip()
                lines.append(
                    f"{head:28}{int(row['tokens']):>12,}" + "".join(f"{row[name]:>12.4f}" for name in names[1:])
                )
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
    counts = _counts(batches if again else None, token_counts)
    run = _Run(float(temperature), fit, keep_rows, n_bins, counts, place)
    with evaluation_mode(model), torch.inference_mode():
        for number, batch in enumerate(_read(batches, place)):
            run.add(model, batch)
            progress.step("tokens", number + 1, len(batches) if isinstance(batches, Sequence) else None)
        run.check()
        for _ in range(MAX_RUNS - 1 if again else 0):
            if not run.missed():
                break
            # the first batch was far from typical: the same sums around where the optimum is
            run.look_elsewhere()
            for batch in _read(batches, place):
                run.add(model, batch, only_fit=True)
    return run.result()


class _Run:
    """The sums of one run."""

    def __init__(  # noqa: PLR0917
        self, temperature: float, fit: bool, keep_rows: bool, n_bins: int, counts: Tensor | None, device: torch.device
    ) -> None:
        self.temperature, self.fit, self.n_bins, self.device = temperature, fit, n_bins, device
        self.counts = (
            None
            if counts is None
            else torch.bucketize(counts.to(device), torch.tensor(COUNT_EDGES, device=device), right=True)
        )
        self.position_edges = torch.tensor(POSITION_EDGES, device=device)
        self.by_position = GroupSums(len(POSITION_EDGES) + 1, n_bins, device)
        self.by_count = GroupSums(len(COUNT_EDGES) + 1, n_bins, device)
        self.bad = torch.zeros((), dtype=torch.int64, device=device)
        self.nodes: TemperatureNodes | None = None
        self.kept: list[tuple[np.ndarray, ...]] | None = [] if keep_rows else None
        self.n_classes = self.n_sequences = 0
        self.solved: SolvedTemperature | float | None = None

    def add(self, model: nn.Module, batch: tuple[dict[str, Any], Tensor], *, only_fit: bool = False) -> None:
        """Run the model over one batch and add its tokens."""
        inputs, targets = batch
        logits = logits_in(model(**inputs) if len(inputs) > 1 else model(*inputs.values()))
        if logits.ndim != 3 or logits.shape[:2] != targets.shape:
            raise InputError(
                f"the model gave logits of shape {tuple(logits.shape)} for tokens of shape {tuple(targets.shape)}: "
                "next-token logits are (B, L, V)"
            )
        if self.n_classes not in (0, logits.shape[2]):
            raise InputError(f"the model gave {logits.shape[2]} logits per token, but {self.n_classes} before")
        self.n_classes = int(logits.shape[2])
        rows = logits.reshape(-1, self.n_classes)
        # the target of a position is the next token; the last position has none
        following = torch.full_like(targets, NO_TOKEN)
        following[:, :-1] = targets[:, 1:]
        flat = following.reshape(-1)
        known = (flat >= 0) & (flat < self.n_classes)
        self.bad += ((flat != NO_TOKEN) & ~known).sum()
        counted, labels = known, torch.where(known, flat, 0)
        if self.fit:
            weights = counted.double()
            if self.nodes is None:
                self.nodes = TemperatureNodes(first_estimate(rows, labels, weights), rows.device)
            self.nodes.add(rows, labels, weights)
        if not only_fit:
            self._measure(rows, labels, counted, targets.shape)

    def _measure(self, rows: Tensor, labels: Tensor, counted: Tensor, shape: torch.Size) -> None:
        found = row_columns(rows, labels, self.temperature)
        self.bad += (counted & ~torch.isfinite(found[3])).sum()
        position = torch.arange(1, shape[1] + 1, device=rows.device).repeat(shape[0])
        where = torch.bucketize(position, self.position_edges, right=True)
        self.by_position.add(found, where, counted)
        how_common = None
        if self.counts is not None:
            if len(self.counts) < self.n_classes:
                # tokens that the batches do not hold
                self.counts = nn.functional.pad(self.counts, (0, self.n_classes - len(self.counts)))
            how_common = self.counts[found[1]]
            self.by_count.add(found, how_common, counted)
        if self.kept is not None:
            sequence = torch.arange(shape[0], device=rows.device).repeat_interleave(shape[1]) + self.n_sequences
            parts = [found[0], found[2], sequence, where.to(torch.int8)]
            parts += [] if how_common is None else [how_common.to(torch.int8)]
            self.kept.append(tuple(part[counted].cpu().numpy() for part in parts))
        self.n_sequences += shape[0]

    def check(self) -> None:
        """Raise where there is nothing to measure, or a logit is NaN or infinite."""
        if not float(self.by_position.state.sum()) > 0:
            raise InputError("the batches hold no token with a token before it: nothing to measure")
        if int(self.bad):
            raise InputError(
                f"the logits of {int(self.bad)} tokens hold NaN or infinite values, or a token id is wrong"
            )

    def missed(self) -> bool:
        """Solve for the temperature; whether the optimum lies outside the nodes."""
        self.solved = None if self.nodes is None else self.nodes.solve()
        return isinstance(self.solved, float)

    def look_elsewhere(self) -> None:
        """Start the sums of the fit again around the end of the nodes that is nearer to the optimum."""
        if isinstance(self.solved, float):
            self.nodes = TemperatureNodes(self.solved, self.device)

    def result(self) -> TokenMeasurement:
        """Everything on the host."""
        if self.missed():
            warnings.warn(
                f"the temperature of the lowest NLL lies beyond {self.solved:.3g}: no fit; give batches that can be "
                "read again, and a first batch like the others",
                FitWarning,
                stacklevel=3,
            )
        solved = self.solved if isinstance(self.solved, SolvedTemperature) else None
        tables = {"position": (self.by_position, _ranges(POSITION_EDGES))}
        if self.counts is not None:
            tables["frequency"] = (self.by_count, _ranges(COUNT_EDGES))
        groups = {
            name: {label: row for label, row in zip(labels, sums.table(), strict=True) if row["tokens"]}
            for name, (sums, labels) in tables.items()
        }
        every = GroupSums(1, self.n_bins, self.device)
        every.state = self.by_position.state.sum(dim=0, keepdim=True)
        metrics = every.table()[0]
        return TokenMeasurement(
            int(metrics["tokens"]), self.n_classes, self.temperature, metrics, groups, solved, self._rows(groups)
        )

    def _rows(self, groups: dict[str, Any]) -> dict[str, np.ndarray] | None:
        if self.kept is None:
            return None
        names = ["confidence", "correct", "sequence", "position", *(["frequency"] if self.counts is not None else [])]
        joined = dict(zip(names, (np.concatenate(part) for part in zip(*self.kept, strict=True)), strict=True))
        for name, edges in (("position", POSITION_EDGES), ("frequency", COUNT_EDGES)):
            if name in joined:
                # number the groups that have tokens, in order
                present = [place for place, label in enumerate(_ranges(edges)) if label in groups[name]]
                joined[name] = np.searchsorted(present, joined[name])
        return joined


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
        inputs = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in named.items()}
        yield inputs, targets.to(device).long()


def _counts(batches: Iterable[Any] | None, given: Any) -> Tensor | None:
    if given is not None:
        return torch.as_tensor(given)
    if batches is None:
        return None
    total = torch.zeros(0, dtype=torch.int64)
    for _, targets in _read(batches, torch.device("cpu")):
        found = torch.bincount(targets[targets != NO_TOKEN])
        size = max(len(found), len(total))
        total = nn.functional.pad(total, (0, size - len(total))) + nn.functional.pad(found, (0, size - len(found)))
    return total


def _ranges(edges: Sequence[int]) -> list[str]:
    bounds = [0, *edges]
    inner = [
        f"{low:,}" if high == low + 1 else f"{low:,}–{high - 1:,}" for low, high in zip(bounds, edges, strict=False)
    ]
    return [*inner, f"{edges[-1]:,} and more"]
