"""Several models at once: the same methods on each, which method serves all, and which model is better beyond noise.

Models are compared on the same rows, paired by an identifier or by their order with equal labels, before and after the
same method. Where rows are not to be paired, only the methods are compared.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from calibrant.core import progress
from calibrant.core.arrays import Array
from calibrant.core.errors import InputError
from calibrant.core.schema import identifiers
from calibrant.data import Predictions
from calibrant.data.guards import IDS
from calibrant.evaluation import tables
from calibrant.evaluation.compare import Halves, Methods, carried, compare, judged, open_halves
from calibrant.evaluation.groups import group_differences
from calibrant.evaluation.results import MAIN, TOO_FEW_TO_COMPARE, Comparison, MethodRow
from calibrant.evaluation.tables import (
    Cell,
    Estimate,
    Figures,
    PlainData,
    Row,
    Table,
    figure_cells,
    metric_columns,
    plain,
)
from calibrant.metrics.record import facts, sign

MARKS = "*: best; ≈: within noise of it; best or tied: on how many models either holds"
UNPAIRED = 'pair="none" compares the methods only'

MOST_DIAGRAMS = 4
"""Models whose reliability diagram a notebook shows."""


@dataclass(frozen=True, repr=False)
class ModelComparison(PlainData):
    """The same methods on several models.

    Attributes
    ----------
    comparisons : the `Comparison` of every model by its name, in the order given.
    criterion : the metric of the matrix.
    pairing : how the rows of the models were paired; empty where they were not, and models are not compared.
    """

    comparisons: dict[str, Comparison]
    criterion: str
    pairing: str = ""

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

    def _rows(self, method: str | None) -> dict[str, MethodRow]:
        """The row of a method by model; one without figures where it was not tried."""
        absent = MethodRow("", error="no method was left")
        return {name: one.by_method.get(method or "", absent) for name, one in self.comparisons.items()}

    def estimate(self, method: str, model: str) -> Estimate | None:
        """The deciding metric of a method on a model; None where the method failed or was not tried."""
        return self._rows(method)[model].metrics.get(self.criterion)

    def ranks(self) -> Array:
        """Rank (methods, models) by the deciding metric, 1 for the best; ties share, and failures come last.

        NaN for a model with too few rows to compare methods.
        """
        failed = Estimate(np.nan)
        values = np.array([
            [(self.estimate(method, model) or failed).value for model in self.models] for method in self.methods
        ])  # fmt: skip
        ranks = rankdata(np.where(np.isfinite(values), sign(self.criterion) * values, np.inf), axis=0)
        return np.where([bool(one.too_few_rows) for one in self.comparisons.values()], np.nan, ranks)

    @property
    def too_few_rows(self) -> str:
        """Reasons why the rows of all models are too few to compare methods; empty if those of one are enough."""
        reasons = {name: one.too_few_rows for name, one in self.comparisons.items()}
        if not all(reasons.values()):
            return ""
        if len({*reasons.values()}) == 1:
            return next(iter(reasons.values()))
        return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())

    @property
    def n_ranked(self) -> int:
        """Number of models with enough rows to compare methods."""
        return sum(not one.too_few_rows for one in self.comparisons.values())

    def mean_ranks(self) -> dict[str, float]:
        """Mean rank of every method over the models with enough rows; NaN if no model has enough."""
        ranks = self.ranks()
        means = np.nansum(ranks, axis=1) / self.n_ranked if self.n_ranked else np.full(len(ranks), np.nan)
        return dict(zip(self.methods, means.tolist(), strict=True))

    def wins(self) -> dict[str, int]:
        """Of every method: on how many models it is best or within noise of the best."""
        return {method: sum(row.ties_best for row in self._rows(method).values()) for method in self.methods}

    @property
    def best(self) -> str | None:
        """The method of the lowest mean rank; None when every method failed on every model.

        With too few rows for all models it is `auto` if it was compared, else None.
        """
        ranks, found = self.mean_ranks(), {one.best for one in self.comparisons.values()} - {None}
        if self.too_few_rows:
            return "auto" if "auto" in found else None
        return min(ranks, key=ranks.__getitem__) if found else None

    recommended = best

    @property
    def verdict(self) -> str:
        """One sentence: who has the lowest mean rank, and on how many models it is best or tied."""
        if not self.fitted_methods:
            return "every method failed on every model"
        if self.best is None or self.too_few_rows:
            return f"{self.too_few_rows}: {TOO_FEW_TO_COMPARE}"
        rank, total = self.mean_ranks()[self.best], self.n_ranked
        left = len(self.models) - total
        few = f"; too few rows to compare methods for {left} more" if left else ""
        return (
            f"{self.best} has the lowest mean rank by {facts(self.criterion).label} ({rank:.2f} over {total} models); "
            f"it is best or within noise of the best on {self.wins()[self.best]} of {total}{few}"
        )

    @property
    def fitted_methods(self) -> list[str]:
        """Methods that did not fail on some model, in the order asked for."""
        return list(dict.fromkeys(method for one in self.comparisons.values() for method in one.fitted_methods))

    @property
    def reference_method(self) -> str:
        """The method after which models are compared: the best, else the first that did not fail."""
        return self.best or next(iter(self.fitted_methods), "")

    def beside(self, method: str | None = None) -> Comparison:
        """The models as the rows of one comparison, all after one method, `reference_method` by default."""
        if not self.pairing:
            raise InputError("the models were not compared on the same rows: there are no differences between them")
        rows = [replace(row, method=name) for name, row in self._rows(method or self.reference_method).items()]
        first, *_ = self.comparisons.values()
        few = self.too_few_rows
        found = judged(replace(first, rows=tuple(rows), too_few_rows=few, group_changes=Figures()))
        return replace(found, best=None, verdict=f"{few}: too few to compare models") if few else found

    @property
    def model_verdict(self) -> str:
        """One sentence: which model is best, and which are within noise of it; empty where rows are not paired."""
        return f"models after {self.reference_method}: {self.beside().verdict}" if self.pairing else ""

    def group_differences(self) -> dict[str, Figures]:
        """Of every model but the best: its loss minus that of the best in every group, both calibrated by `best`."""
        if not self.pairing or (models := self.beside()).grouping is None:
            return {}
        best = models.by_method.get(models.best or "")
        return {row.method: group_differences(row, best, models) for row in models.rows if row.difference}

    def table(self, show: str = "") -> Table:
        """One of the tables; without a name models where their rows are paired, else methods.

        show : "models" (figures after `best`, and the difference to the best model), "groups" (that difference in every
            group), "methods" (the deciding metric of every method on every model), or "seeds", where the models are one
            model trained with several seeds: mean ± standard deviation of every metric.
        """
        tables = {
            "models": self._model_table, "groups": self._group_table, "methods": self._method_table,
            "seeds": self._seed_table,
        }  # fmt: skip
        show = show or ("models" if self.pairing else "methods")
        if show not in tables:
            raise InputError(f"there is no table {show!r}: choose from {', '.join(tables)}")
        return tables[show]()

    def _model_table(self) -> Table:
        models = self.beside()
        table = models.table().pick(dict.fromkeys([self.criterion, "difference", *models.metric_names]))
        return replace(table, axis="model", caption=self.model_verdict, intervals=("difference",))

    def _group_table(self) -> Table:
        models, found = self.beside(), self.group_differences()
        rows = [
            Row(group, {model: Cell(models.loss, one[group]) for model, one in found.items()})
            for group in next(iter(found.values()), ())
        ]
        caption = f"difference in {facts(models.loss).label} to {models.best} by group"
        return Table("group", {model: model for model in found}, rows, caption, intervals=True)

    def _method_table(self) -> Table:
        """Methods × models of the deciding metric, lowest mean rank first, with the mean rank and the wins.

        The best method of each model is marked, and those within noise of it.
        """
        ranks, wins, rows = self.mean_ranks(), self.wins(), []
        for method in sorted(ranks, key=ranks.__getitem__):
            cells = figure_cells({"mean_rank": Estimate(ranks[method]), "best_or_tied": Estimate(wins[method])})
            for model, one in self.comparisons.items():
                if found := self.estimate(method, model):
                    best = one.best == method and not one.too_few_rows
                    cells[model] = Cell(self.criterion, found, best, tie=one.row(method).ties_best and not best)
            rows.append(Row(method, cells, method == self.best and not self.too_few_rows))
        columns = {model: model for model in self.models} | metric_columns(("mean_rank", "best_or_tied"))
        return Table("method", columns, rows, self.verdict, missing="failed")

    def _seed_table(self) -> Table:
        """The best mean of every metric is marked; a method that failed with some seed has its error."""
        columns, every = metric_columns(next(iter(self.comparisons.values())).metric_names), {}
        for method in self.methods:
            found, cells = [row.metrics for row in self._rows(method).values()], {}
            for name in columns if all(found) else ():
                own = [one[name].value for one in found]
                spread = float(np.std(own, ddof=1)) if len(own) > 1 else np.nan
                cells[name] = Cell(name, Estimate(float(np.mean(own)), spread=spread))
            every[method] = cells
        for name in columns if any(every.values()) and not self.too_few_rows else ():
            best = min(filter(None, every.values()), key=lambda cells: sign(name) * cells[name].estimate.value)
            best[name] = best[name]._replace(best=facts(name).better != 0)
        rows = [Row(name, cells, error=None if cells else "failed with some seed") for name, cells in every.items()]
        return Table("method", columns, rows, f"Mean ± standard deviation over {len(self.models)} seeds.")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, as the published schema `models.json` describes it."""
        return plain({
            "models": self.comparisons,
            "criterion": self.criterion,
            "best": self.best,
            "too_few_rows": self.too_few_rows,
            "mean_ranks": self.mean_ranks(),
            "best_or_tied": self.wins(),
            "verdict": self.verdict,
            "task": self.task,
            "pairing": self.pairing,
            "compared": {
                method: self.beside(method)
                for method in self.methods
                if self.pairing and method in ("none", self.reference_method)
            },
            "group_differences": self.group_differences(),
        })  # fmt: skip

    def metrics(self, *, intervals: bool = False) -> dict[str, float]:
        """Every figure by `MODEL/METHOD/METRIC` and the mean ranks by `mean_rank/METHOD`: for trackers."""
        found = {
            f"{model}/{name}": value
            for model, one in self.comparisons.items()
            for name, value in one.metrics(intervals=intervals).items()
        }
        ranks = self.mean_ranks() if self.n_ranked else {}
        return found | {f"mean_rank/{method}": rank for method, rank in ranks.items()}

    def figures(self) -> dict[str, Any]:
        """The reliability diagrams of every model as matplotlib figures, by name."""
        return {
            f"{model}/{name}": figure
            for model, one in self.comparisons.items()
            for name, figure in one.figures().items()
        }

    def to_frame(self, show: str = "") -> Any:
        """One of the tables of `table` as a pandas table."""
        return self.table(show).to_frame()

    def to_markdown(self, show: str = "", *, columns: Iterable[str] | None = None, intervals: bool = False) -> str:
        """One of the tables in Markdown: the best bold, ties with it marked ≈; columns in this order."""
        return tables.markdown(self._printed(show, columns, intervals))

    def to_latex(self, show: str = "", *, columns: Iterable[str] | None = None, intervals: bool = False) -> str:
        """A booktabs table with the same figures and marks."""
        return tables.latex(self._printed(show, columns, intervals))

    def _printed(self, show: str, columns: Iterable[str] | None, intervals: bool) -> Table:
        table = self.table(show).pick(columns)
        return replace(table, caption=f"{self.sizes}. {table.caption}", intervals=intervals or table.intervals)

    @property
    def mark_legend(self) -> str:
        """The meaning of the marks in tables; empty if nothing is marked."""
        return "" if self.too_few_rows else MARKS

    @property
    def sizes(self) -> str:
        """How much was compared, by which metric, on which rows."""
        look, rows = facts(self.criterion), dict.fromkeys(one.fitted for one in self.comparisons.values())
        title = look.title + ", higher is better" * (look.better > 0)
        found = f"{len(self.methods)} methods on {len(self.models)} models", self.task, title, *rows, self.pairing
        return "; ".join(filter(None, found))

    def short_table(self, show: str = "") -> Table:
        """A table as a terminal holds it: the main figures, short headings."""
        table = self.table(show)
        if table.axis == "model":
            table = table.pick(name for name in table.columns if name in {self.criterion, "difference", *MAIN})
        if table.axis == "method" and self.too_few_rows:
            table = table.pick(name for name in table.columns if name not in ("mean_rank", "best_or_tied"))
        return replace(table, columns={name: tables.shortened(title) for name, title in table.columns.items()})

    def __repr__(self) -> str:
        return tables.text(
            self.short_table(), said=[self.sizes], notes=[self.mark_legend, self.model_verdict, self.verdict]
        )

    def _repr_html_(self) -> str:
        drawn = [
            tables.diagram(one.bins(one.best), f"{tables.shortened(model)}, {one.best}")
            for model, one in list(self.comparisons.items())[:MOST_DIAGRAMS]
            if one.best is not None
        ]
        said = ". ".join(filter(None, (self.sizes, self.model_verdict, f"{self.verdict}.")))
        return tables.notebook(self.table(), said=said, diagrams=drawn)


def compare_models(
    models: Mapping[str, Any] | Sequence[Any],
    methods: Methods = "default",
    *,
    kind: str | None = None,
    task: str | None = None,
    criterion: str = "nll",
    pair: str | None = None,
    by: Any = None,
    cluster: Any = None,
    **options: Any,
) -> ModelComparison:
    """Compare models on the same rows, and the same methods on each of them.

    Parameters
    ----------
    models : mapping of names to models, or a sequence of files
        A model is a pair (val, test) of what `compare` takes; or one file or data set: with the parts `val` and `test`,
        or without parts, of which the rows are divided as by `compare` (5 folds, `cv=`, `split=`).
    methods : as in `compare`
    kind, task, criterion, by, cluster : as in `compare`
    pair : str, optional
        What pairs the measured rows: the column of their identifiers, "order", or "none", which compares methods only.
        By default the first column of identifiers that all have (`id`, `row_id`, …), else the order. Labels must be
        equal; answers that are right or wrong differ between models, and need identifiers or "order".
    **options : what else `compare` takes (`resamples`, `seed`, `n_bins`, `cv`, `split`, `engine`)

    Returns
    -------
    ModelComparison
        One `Comparison` per model, differences between models with intervals, the matrix methods × models, mean ranks
        and the number of wins.

    Examples
    --------
    >>> generator = np.random.default_rng(0)
    >>> labels = generator.integers(0, 3, 400)
    >>> logits = 4 * np.eye(3)[labels] + 4 * generator.normal(size=(400, 3))
    >>> halves = lambda z: ((z[:200], labels[:200]), (z[200:], labels[200:]))
    >>> models = {"small": halves(logits), "sharp": halves(2 * logits)}
    >>> found = compare_models(models, ["none", "ts"], resamples=100)
    >>> found.best, found.beside().row("small").ties_best
    ('ts', True)
    """
    opened = open_models(models, kind=kind, task=task)
    _check_same(opened, lambda halves: {"task": halves[0].task}, "give task=, or compare them one by one")
    pairing = ""
    if pair != "none" and len(opened) > 1:
        opened, by, pairing = _paired(opened, pair, by, cluster)
        cluster = None
    found = {}
    for name, (val, test) in progress.each("comparing models", opened):
        try:
            found[name] = compare(val, test, methods, criterion=criterion, by=by, cluster=cluster, **options)
        except InputError as error:
            raise InputError(f"model {name}: {error}") from error
    return ModelComparison(found, facts(criterion).name, pairing)


def _check_same(models: Mapping[str, Any], contents: Callable[[Any], dict[str, Any]], remedy: str) -> None:
    """Raise unless what a function finds in each model is the same in all."""
    (mine, first), *others = ((name, contents(one)) for name, one in models.items())
    for name, found in others:
        for what, own in first.items():
            if what in found and not np.array_equal(own, found[what]):
                both = "" if np.ndim(own) else f" ({own} and {found[what]})"
                raise InputError(f"models {mine} and {name} differ in {what}{both}: {remedy}")


def _paired(
    opened: Mapping[str, Halves], pair: str | None, by: Any, cluster: Any
) -> tuple[dict[str, Halves], list[str] | None, str]:
    """Models whose measured rows are the same in the same order, names of groups, and how rows were paired."""
    _check_same(opened, lambda halves: {"having rows to fit on": halves[1] is not None}, "give both, or neither")
    given = {name: val if test is None else test for name, (val, test) in opened.items()}
    (mine, first), *_ = given.items()
    word = pair or next((word for word in IDS if all(word in one.extras for one in given.values())), "order")
    if word == "order" and pair is None and first.task == "pairs":
        raise InputError(
            "answers that are right or wrong do not tell which rows belong together: give every file a column id, or "
            'say pair="order" where all are in the same order'
        )
    # numbered as they first appear: those of the first model stand in their order
    columns = [np.arange(one.n) if word == "order" else one.column(word) for one in given.values()]
    code, _ = identifiers(np.concatenate(columns))
    rows = {}
    for name, one in given.items():
        own, code = np.split(code, [one.n])
        if not np.array_equal(np.sort(own), np.arange(first.n)):
            raise InputError(
                f"{name} has {one.n:,} rows, {mine} {first.n:,}, and they are not the same by {word}; {UNPAIRED}"
            )
        held, names = carried(one, by, cluster)
        rows[name] = held[np.argsort(own)].like(notes=one.notes).aligned(first.schema, mine)
    _check_same(rows, _contents, f"they must be the same rows; {UNPAIRED}")
    halves: dict[str, Halves] = {
        name: (rows[name], None) if test is None else (val.aligned(first.schema, mine), rows[name])
        for name, (val, test) in opened.items()
    }
    return halves, names, f"{first.n:,} rows paired by {word}"


def _contents(rows: Predictions) -> dict[str, Any]:
    """What paired rows share, whatever the model; an answer is right or wrong for one model."""
    labels = None if rows.task == "pairs" else rows.labels if rows.label_shares is None else rows.label_shares
    ids = {"clusters": rows.clusters, **rows.groups}
    return {"labels": labels, "weights": rows.weights} | {word: _as_text(column) for word, column in ids.items()}


def _as_text(ids: Array | None) -> Array | None:
    """Identifiers as text, so that missing ones equal each other."""
    if ids is None:
        return None
    codes, names = identifiers(ids)
    return np.array(names)[codes]


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


def model_files(given: str) -> tuple[str, ...]:
    """Name and files of a model as `calibrant models` takes it: one file, or one to fit on and one to measure on.

    An existing path is a path, whatever signs it holds.

    >>> model_files("resnet=val.npz,test.npz")
    ('resnet', 'val.npz', 'test.npz')
    >>> model_files("runs/vit.npz")
    ('vit', 'runs/vit.npz')
    """
    name, equals, files = given.partition("=")
    parts = [part.strip() for part in files.split(",")]
    if not equals or Path(given).exists():
        name, parts = Path(given).stem, [given]
    if len(parts) > 2 or not all([name, *parts]):
        raise InputError(f"{given!r} is not a model: give FILE, NAME=FILE or NAME=VAL_FILE,TEST_FILE")
    return name, *parts


def open_models(models: Mapping[str, Any] | Sequence[Any], **said: Any) -> dict[str, Halves]:
    """The rows of every model by its name; `said` about files as `open_predictions` takes it."""
    if not isinstance(models, Mapping):
        if isinstance(models, str) or not all(isinstance(path, str | os.PathLike) for path in models):
            raise InputError("models must be a mapping of names to models (pairs of val and test), or a list of files")
        files = [model_files(os.fspath(path)) for path in models]
        names = [name for name, *_ in files]
        if names == [Path(path).stem for path in models]:
            names = short_names(names)  # names that the user chose stay
        if len(set(names)) < len(names):
            raise InputError(f"two models are called the same ({', '.join(names)}): give NAME=FILE")
        models = {name: paths if len(paths) > 1 else paths[0] for name, (_, *paths) in zip(names, files, strict=True)}
    if not models:
        raise InputError("models is empty: give at least one")
    found = {}
    for name, model in models.items():
        try:
            found[str(name)] = open_halves(model, said)
        except InputError as error:
            raise InputError(f"model {name}: {error}") from error
    return found
