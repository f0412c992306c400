"""Several models at once: the same methods on each, one matrix of the deciding metric, and the best over all models."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from calibrant.core import progress
from calibrant.core.arrays import Array
from calibrant.core.errors import InputError
from calibrant.evaluation import rendering
from calibrant.evaluation.compare import Methods, compare
from calibrant.evaluation.results import Comparison
from calibrant.evaluation.table import Cell, Estimate, PlainData, Row, Table, figure_cells, metric_columns
from calibrant.metrics.record import facts, known_name, sign

PARTS = ("val", "test")
"""The parts of one file that are fitted on and measured on."""
NEEDS_PARTS = "a model needs the parts val and test, or NAME=VAL_FILE,TEST_FILE"

MOST_DIAGRAMS = 4
"""Models whose reliability diagram a notebook shows."""


@dataclass(frozen=True, repr=False)
class ModelComparison(PlainData):
    """The same methods on several models.

    Attributes
    ----------
    comparisons : the `Comparison` of every model by its name, in the order given.
    criterion : the metric of the matrix.
    """

    comparisons: dict[str, Comparison]
    criterion: str

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models."""
        return tuple(self.comparisons)

    @property
    def methods(self) -> tuple[str, ...]:
        """Every method that was tried on some model, in the order asked for."""
        return tuple(dict.fromkeys(row.method for one in self.comparisons.values() for row in one.rows))

    @property
    def task(self) -> str:
        """What the numbers of all models are."""
        return next(iter(self.comparisons.values())).task

    def estimate(self, method: str, model: str) -> Estimate | None:
        """The deciding metric of a method on a model; None where the method failed or was not tried."""
        row = self.comparisons[model].by_method.get(method)
        return None if row is None else row.metrics.get(self.criterion)

    def ranks(self) -> Array:
        """Rank (methods, models) by the deciding metric, 1 for the best; ties share, and failures come last."""
        found = [[self.estimate(method, model) for model in self.models] for method in self.methods]
        values = np.array([[np.nan if one is None else one.value for one in row] for row in found])
        return rankdata(np.where(np.isfinite(values), sign(self.criterion) * values, np.inf), axis=0)

    def mean_ranks(self) -> dict[str, float]:
        """Mean rank of every method over the models."""
        return dict(zip(self.methods, self.ranks().mean(axis=1).tolist(), strict=True))

    def wins(self) -> dict[str, int]:
        """Of every method: on how many models it is best or within noise of the best."""
        comparisons = self.comparisons.values()
        every = [row.method for one in comparisons for row in one.rows if row.ties_best or row.method == one.best]
        return {method: every.count(method) for method in self.methods}

    @property
    def best(self) -> str | None:
        """The method of the lowest mean rank; None when every method failed on every model."""
        if all(one.best is None for one in self.comparisons.values()):
            return None
        ranks = self.mean_ranks()
        return min(ranks, key=ranks.__getitem__)

    recommended = best

    @property
    def verdict(self) -> str:
        """One sentence: who has the lowest mean rank, and on how many models it is best or tied."""
        if self.best is None:
            return "every method failed on every model"
        count, total = self.wins()[self.best], len(self.models)
        return (
            f"{self.best} has the lowest mean rank by {self.criterion} ({self.mean_ranks()[self.best]:.2f} over "
            f"{total} models); it is best or within noise of the best on {count} of {total}"
        )

    def table(self) -> Table:
        """Methods × models of the deciding metric, lowest mean rank first, with the mean rank and the wins.

        The best method of each model is marked, and those within noise of it.
        """
        ranks, wins, rows = self.mean_ranks(), self.wins(), []
        for method in sorted(ranks, key=ranks.__getitem__):
            cells = figure_cells({"mean_rank": Estimate(ranks[method]), "best_or_tied": Estimate(wins[method])})
            for model, one in self.comparisons.items():
                if found := self.estimate(method, model):
                    best = one.best == method
                    cells[model] = Cell(self.criterion, found, best, tie=one.row(method).ties_best and not best)
            rows.append(Row(method, cells, method == self.best))
        columns = {model: model for model in self.models} | metric_columns(("mean_rank", "best_or_tied"))
        return Table("method", columns, tuple(rows), self.verdict, missing="failed")

    def over_seeds(self) -> Table:
        """Methods × metrics where the models are one model trained with several seeds: mean ± standard deviation.

        The best mean of every metric is marked; a method that failed with some seed has its error.
        """
        every = [one.by_method for one in self.comparisons.values()]
        names = next(iter(self.comparisons.values())).metric_names
        means: dict[str, dict[str, Estimate]] = {method: {} for method in self.methods}
        for method, own in means.items():
            found = [one[method].metrics for one in every if method in one and one[method].metrics]
            for name in names if len(found) == len(every) else ():
                values = [one[name].value for one in found]
                spread = float(np.std(values, ddof=1)) if len(values) > 1 else np.nan
                own[name] = Estimate(float(np.mean(values)), spread=spread)
        best = {}
        for name in names:
            scores = {method: sign(name) * own[name].value for method, own in means.items() if own}
            if scores and facts(name).better:
                best[name] = min(scores, key=scores.__getitem__)
        rows = []
        for method, own in means.items():
            cells = {name: Cell(name, one, best.get(name) == method) for name, one in own.items()}
            rows.append(Row(method, cells, error=None if cells else "failed with some seed"))
        caption = f"Mean ± standard deviation over {len(every)} seeds."
        return Table("method", metric_columns(names), tuple(rows), caption)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, as the published schema `models.json` describes it."""
        return {
            "models": {name: one.to_dict() for name, one in self.comparisons.items()},
            "criterion": self.criterion,
            "best": self.best,
            "mean_ranks": self.mean_ranks(),
            "best_or_tied": self.wins(),
            "verdict": self.verdict,
            "task": self.task,
        }

    def metrics(self, *, intervals: bool = False) -> dict[str, float]:
        """Every figure by `MODEL/METHOD/METRIC` and the mean ranks by `mean_rank/METHOD`: for trackers."""
        found = {
            f"{model}/{name}": value
            for model, one in self.comparisons.items()
            for name, value in one.metrics(intervals=intervals).items()
        }
        return found | {f"mean_rank/{method}": rank for method, rank in self.mean_ranks().items()}

    def figures(self) -> dict[str, Any]:
        """The reliability diagrams of every model as matplotlib figures, by name."""
        return {
            f"{model}/{name}": figure
            for model, one in self.comparisons.items()
            for name, figure in one.figures().items()
        }

    def to_frame(self) -> Any:
        """A pandas table of the deciding metric: one row per method, one column per model, then the mean rank."""
        return self.table().to_frame(intervals=False).loc[list(self.methods)]

    def to_markdown(self, *, columns: Iterable[str] | None = None, intervals: bool = False) -> str:
        """A Markdown table: best of each model bold, ties with it marked ≈, lowest mean rank first."""
        caption = f"{self.sizes}. **Best** of each model, ≈ within noise of it."
        return rendering.markdown(replace(self.table().pick(columns), caption=caption, intervals=intervals))

    def to_latex(self, *, columns: Iterable[str] | None = None, intervals: bool = False) -> str:
        """A booktabs table with the same figures and marks."""
        return rendering.latex(replace(self.table().pick(columns), caption=self.sizes, intervals=intervals))

    @property
    def sizes(self) -> str:
        """How much was compared, by which metric."""
        look = facts(self.criterion)
        direction = ", higher is better" if look.better > 0 else ""
        return f"{len(self.methods)} methods on {len(self.models)} models; {self.task}; {look.title}{direction}"

    def short_table(self) -> Table:
        """The table with headings that a terminal holds."""
        table = self.table()
        return replace(table, columns={name: rendering.shortened(title) for name, title in table.columns.items()})

    def __repr__(self) -> str:
        marks = "* best of the model, ≈ within noise of it"
        return rendering.text(self.short_table(), said=[self.sizes], notes=[marks, self.verdict])

    def _repr_html_(self) -> str:
        drawn = [
            rendering.diagram(one.bins(one.best), f"{rendering.shortened(model)}, {one.best}")
            for model, one in list(self.comparisons.items())[:MOST_DIAGRAMS]
            if one.best is not None and one.row(one.best).columns is not None
        ]
        return rendering.notebook(self.table(), said=f"{self.sizes}. {self.verdict}.", diagrams=drawn)


def compare_models(
    models: Mapping[str, Any] | Sequence[Any],
    methods: Methods = "default",
    *,
    kind: str | None = None,
    task: str | None = None,
    criterion: str = "nll",
    **options: Any,
) -> ModelComparison:
    """Compare the same methods on several models.

    Parameters
    ----------
    models : mapping of names to models, or a sequence of files
        A model is a pair (val, test) of what `compare` takes, or one file or data set with the parts `val` and `test`.
    methods : as in `compare`
    kind, task, criterion : as in `compare`
    **options : what else `compare` takes (`resamples`, `seed`, `n_bins`, `by`, `cluster`, `engine`)

    Returns
    -------
    ModelComparison
        One `Comparison` per model, with the matrix methods × models, mean ranks and the number of wins.

    Examples
    --------
    >>> generator = np.random.default_rng(0)
    >>> labels = generator.integers(0, 3, 400)
    >>> logits = 4 * np.eye(3)[labels] + 4 * generator.normal(size=(400, 3))
    >>> halves = lambda z: ((z[:200], labels[:200]), (z[200:], labels[200:]))
    >>> pair = {"small": halves(logits), "sharp": halves(2 * logits)}
    >>> compare_models(pair, ["none", "ts"], resamples=100).best
    'ts'
    """
    opened = {name: _halves(name, model, kind, task) for name, model in _named(models).items()}
    first, (val, _) = next(iter(opened.items()))
    for name, (other, _) in opened.items():
        if other.task != val.task:
            raise InputError(
                f"model {first} is a {val.task} task, but {name} is {other.task}: "
                "give task=, or compare them one by one"
            )
    found = {}
    for place, (name, (val, test)) in enumerate(opened.items()):
        progress.step("comparing models", place, len(opened), name)
        try:
            found[name] = compare(val, test, methods, criterion=criterion, **options)
        except InputError as error:
            raise InputError(f"model {name}: {error}") from error
    progress.step("comparing models", len(opened), len(opened))
    return ModelComparison(found, known_name(criterion))


def short_names(names: list[str]) -> list[str]:
    """The names without the words that all of them begin with.

    >>> short_names(["imagenet_vit_b", "imagenet_vit_l", "imagenet_resnet50"])
    ['vit_b', 'vit_l', 'resnet50']
    """
    words = [name.split("_") for name in names]
    shared = 0
    while len(set(names)) > 1 and all(len(own) > shared + 1 and own[shared] == words[0][shared] for own in words):
        shared += 1
    return ["_".join(own[shared:]) for own in words]


def _named(models: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    if isinstance(models, str | os.PathLike):
        raise InputError(f"models must be a mapping or a sequence of files, got one path: {os.fspath(models)}")
    if len(models) == 0:
        raise InputError("models is empty: give at least one")
    if isinstance(models, Mapping):
        return {str(name): model for name, model in models.items()}
    if not all(isinstance(path, str | os.PathLike) for path in models):
        raise InputError("models given as a sequence must be files: give a mapping of names to (val, test) pairs")
    paths = [os.fspath(path) for path in models]
    if len(set(paths)) < len(paths):
        raise InputError(f"the same file is given twice: {', '.join(paths)}")
    stems = short_names([Path(path).stem for path in paths])
    return {stem if stems.count(stem) == 1 else path: path for stem, path in zip(stems, paths, strict=True)}


def _halves(name: str, model: Any, kind: str | None, task: str | None) -> tuple[Any, ...]:
    """The rows to fit on and to measure on."""
    from calibrant.data import as_predictions
    from calibrant.datasets import Dataset

    hint = ""
    if isinstance(model, str | os.PathLike):
        model, hint = [f"{os.fspath(model)}#{part}" for part in PARTS], f"; {NEEDS_PARTS} (in Python: a pair)"
    elif isinstance(model, Dataset):
        model = model.val, model.test
    elif isinstance(model, Mapping) and set(PARTS) <= set(model):
        model = [model[part] for part in PARTS]
    if not (isinstance(model, tuple | list) and len(model) == 2):
        raise InputError(f"model {name} must be a pair (val, test) or a file with both, got {type(model).__name__}")
    try:
        return tuple(as_predictions(rows, part, kind=kind, task=task) for rows, part in zip(model, PARTS, strict=True))
    except InputError as error:
        raise InputError(f"model {name}: {error}{hint}") from error
