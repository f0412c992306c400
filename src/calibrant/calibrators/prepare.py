"""The one gate of every fit: arrays, predictions, files and tables become `Rows`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from calibrant.calibrators.registry import get, names, resolve
from calibrant.calibrators.solvers.folds import divided
from calibrant.core.arrays import (
    Array,
    check_counts,
    check_label_matrix,
    check_labels,
    check_matrix,
    check_outcomes,
    check_score_matrix,
    check_scores,
    check_weights,
    is_tensor,
    look_like_probabilities,
    on_device,
    probabilities_error,
)
from calibrant.core.errors import InputError, warn_user
from calibrant.core.rows import Rows, is_one_column
from calibrant.core.schema import cluster_codes, missing_clusters_note
from calibrant.data import open_predictions
from calibrant.data.chunks import file_rows
from calibrant.data.source import ArraySource
from calibrant.engines.engine import Engine, opened

FEW = 1 << 11
"""Numbers of a tensor on a GPU that are looked at on the host before a fit."""

STREAM_BYTES = 64 * 2**20
"""Single scores of more bytes than this are read pass by pass."""


@contextmanager
def prepared(  # noqa: PLR0917
    calibrator: Any,
    given: Any,
    labels: Any = None,
    weights: Any = None,
    groups: Any = None,
    clusters: Any = None,
    engine: str | Engine = "local",
) -> Iterator[Rows]:
    """Rows of which shapes, dtypes, labels and weights are right; nobody has looked at the scores yet.

    What is not an array with labels must hold its labels itself.
    """
    calibrator.score_columns_ = ()
    if labels is not None:
        calibrator.kind_ = "logits"
        if on_device(given) and not is_one_column(given) and groups is None and clusters is None:
            rows = device_rows(calibrator, given, labels, weights)
        else:
            rows = array_rows(calibrator, given, labels, weights, clusters)
        check_counts(rows.weights)
        count_evidence(rows)
        rows.groups = calibrator._group_numbers(groups, rows.n)
        yield rows
        return
    if isinstance(given, (np.ndarray, list)) or is_tensor(given):
        raise InputError(f"{type(calibrator).__name__} requires y to be passed, but the target y is None")
    predictions = open_predictions(given)
    calibrator.kind_ = predictions.kind
    if not predictions.flat and len(predictions.score_columns) == predictions.n_classes:
        calibrator.score_columns_ = predictions.score_columns
    check_task_method(calibrator, predictions.task, n_classes=predictions.n_classes)
    predictions.refuse_probabilities()
    if not predictions.spread:
        check_counts(predictions.weights, f"{predictions.name}: weights" if predictions.name else "weights")
    predictions = predictions.expanded()
    # rows in files are read as blocks; single scores fit in memory unless there are very many
    large = predictions.flat and predictions.n * predictions.dtype.itemsize > STREAM_BYTES
    blocks = predictions.task == "multiclass" or (large and calibrator.additive_scores)
    if isinstance(predictions.source, ArraySource) or calibrator.takes_groups or not blocks:
        own = predictions.clusters if clusters is None else clusters
        rows = array_rows(calibrator, predictions.logits, predictions.labels, predictions.weights, own)
        if not predictions.spread:
            count_evidence(rows)
        rows.absent = predictions.absent
        if calibrator.takes_groups and groups is None:
            groups = dict(predictions.groups or ())
            if not groups:
                raise InputError(
                    f"{type(calibrator).__name__} needs one or two columns of groups, but "
                    f"{predictions.name or 'the predictions'} has none: name them (by=, --groups)"
                )
        rows.groups = calibrator._group_numbers(groups, rows.n)
        yield rows
        return
    with opened(engine) as running:
        rows = file_rows(predictions, running)
        if not predictions.spread:
            count_evidence(rows)
        rows.absent = predictions.absent
        rows.clusters = _cluster_codes(rows.clusters, rows.n)
        calibrator.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        # a fit that ranks or splits rows sees arrays: maps of files, not memory
        yield rows if predictions.flat or calibrator.additive else rows.whole()
    for piece in predictions.source.pieces():
        piece.check_unchanged()


def count_evidence(rows: Rows) -> None:
    """Let the weights count as evidence as if they summed to the number of rows: those of a survey are no copies."""
    if rows.weights is not None:
        rows.rows_per_weight = np.count_nonzero(rows.weights) / float(rows.weights.sum())


def array_rows(calibrator: Any, given: Any, labels: Any, weights: Any, clusters: Any) -> Rows:
    """Arrays whose shapes, dtypes and labels are right; nobody has looked at the values yet."""
    if "multilabel" in calibrator.tasks:
        scores = check_score_matrix(given)
        labels = check_label_matrix(labels, scores.shape, against="logits")
    elif is_one_column(given):
        scores = check_scores(given)
        if look_like_probabilities(scores):
            warn_user(
                f"all {len(scores)} scores lie in [0, 1] and are taken as logits: if they are probabilities, give "
                "log(p/(1 − p)), or Predictions with kind='probabilities'"
            )
        labels = check_outcomes(labels, len(scores))
    else:
        scores = check_matrix(given)
        if look_like_probabilities(scores):
            raise probabilities_error(len(scores), "logits", "give their logarithms, np.log(p)")
        labels = check_labels(labels, *scores.shape)
    check_names(calibrator, given, scores.reshape(len(scores), -1), reset=True)
    codes = _cluster_codes(clusters, len(scores))
    return Rows(scores, labels, check_weights(weights, len(scores)), clusters=codes, settled=False)


def _cluster_codes(clusters: Any, n_rows: int) -> Array | None:
    """Number the clusters (n,), and warn of rows without a cluster id; None without clusters."""
    if clusters is None:
        return None
    codes, n_missing = cluster_codes(clusters, n_rows)
    if n_missing:
        warn_user(missing_clusters_note(n_missing, n_rows))
    return codes


def device_rows(calibrator: Any, given: Any, labels: Any, weights: Any) -> Rows:
    """Rows of a CUDA tensor; on the host, with a warning, for methods without a form on the device."""
    from calibrant.kernels.torch.rows import device_blocks

    blocks: Any = device_blocks(given, labels, weights)
    rows = blocks.rows()
    # a few rows tell logits from probabilities; only if they look like these is the whole tensor read
    if look_like_probabilities(rows.logits[: max(2, FEW // rows.n_classes)]) and blocks.hold_probabilities():
        raise probabilities_error(rows.n, "logits", "give their logarithms, torch.log(p)")
    there = calibrator.fits_on_device
    stays = calibrator.additive or (weights is None if there == "unweighted" else there)
    return rows if stays else rows.whole()


def ready(calibrator: Any, rows: Rows) -> Rows:
    """Rows for a fit: unless it reads them through `Rows.total` alone, which then does so, every value is looked at.

    For fits that put rows into folds those of large weight are in pieces.
    """
    additive = calibrator.additive
    if not additive or (rows.one_score and rows.in_memory):
        rows.settle()
    return rows if additive or not rows.in_memory else divided(rows)


def check_over_logits(calibrator: Any, name: str = "") -> None:
    """Raise for what changes a network's input and thus is no map of its logits."""
    if not hasattr(calibrator, "predict_proba"):
        called = name or type(calibrator).__name__
        raise InputError(
            f"{called} is part of a network, not a map of its logits: "
            "use NeuralClamping.fit(model, loader) and attach(model) in Python"
        )


def check_task_method(calibrator: Any, task: str, name: str = "", n_classes: int | None = None) -> None:
    """Raise where a calibrator does not serve a task; two columns are a binary task as well."""
    check_over_logits(calibrator, name)
    served = calibrator.tasks
    wanted = "binary" if task == "pairs" else task
    two = task == "multiclass" and n_classes == 2 and "binary" in served
    if wanted not in served and not two:
        called = name or type(calibrator).__name__
        raise InputError(f"{called} serves {' and '.join(served)} tasks, not {task}: see calibrant.methods()")


LABEL_METHODS = ("none", "auto", "platt", "beta", "quad")
"""Short names for many labels that are tried by default: each stands for a `MultilabelCalibrator` of that map."""


def task_names(task: str) -> list[str]:
    """Short names of the listed methods that serve a task; pairs are a binary task of being right.

    >>> task_names("multilabel")[0], "ts" in task_names("pairs")
    ('none', True)
    """
    if task == "multilabel":
        return list(LABEL_METHODS)
    return names("multiclass" if task == "multiclass" else "binary")


SHORT = {
    "multiclass": ("none ts svs shape conf+shape+keep auto", "cts hb", "ts+group shape+group"),
    "binary": ("none ts platt beta iso auto", "spline va", "ts+group bend+group"),
}
"""The methods that a comparison tries unless told otherwise: always, without groups, and with them."""


def default_names(task: str, grouped: bool = False) -> list[str]:
    """Short names of the methods that are worth a first look in a task.

    >>> default_names("binary")
    ['none', 'ts', 'platt', 'beta', 'iso', 'auto', 'spline', 'va']
    """
    if task == "multilabel":
        return list(LABEL_METHODS)
    always, alone, by_group = SHORT["multiclass" if task == "multiclass" else "binary"]
    return f"{always} {by_group if grouped else alone}".split()


def task_method(name: str, task: str, n_classes: int | None = None) -> Any:
    """The unfitted calibrator that a short name stands for in a task; an InputError where it serves another one."""
    known = name if name in ("auto", "multilabel") else resolve(name)
    if task != "multilabel" or known in ("none", "multilabel"):
        calibrator = get(name)
        if task != "multilabel":
            check_task_method(calibrator, task, name, n_classes)
        return calibrator
    if known not in LABEL_METHODS and not _maps_one_score(known):
        served = ", ".join(dict.fromkeys([*LABEL_METHODS, *filter(_maps_one_score, names("binary"))]))
        raise InputError(f"{name} does not serve the task multilabel: these do: {served}")
    return get("multilabel", calibrator=known)


def _maps_one_score(name: str) -> bool:
    made = get(name)
    check_over_logits(made, name)
    return made.maps_one_score()


def check_names(estimator: Any, given: Any, matrix: Array, *, reset: bool) -> None:
    """Learn (`reset`) or compare the number and the names of the columns, as scikit-learn does.

    A fit of a file or table with labels has learned which columns held the scores.
    """
    known = () if reset else estimator.score_columns_
    if known and hasattr(given, "columns"):
        if tuple(given.columns) != known:
            raise InputError(
                f"the columns are {', '.join(map(str, given.columns))}, but the fit had {', '.join(known)}"
            )
        return
    if isinstance(given, np.ndarray) and not hasattr(estimator, "feature_names_in_"):
        # what `validate_data` comes to where nobody names columns, without its search for tables
        if reset:
            estimator.n_features_in_ = matrix.shape[1]
        return
    validate_data(estimator, X=given if hasattr(given, "columns") else matrix, reset=reset, skip_check_array=True)
