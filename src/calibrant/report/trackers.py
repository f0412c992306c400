"""Results into experiment trackers: MLflow directly, the others by plain dictionaries of metrics and figures."""

import re
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import calibrant
from calibrant.core.errors import InputError, MissingExtraError
from calibrant.evaluation.models import ModelComparison
from calibrant.evaluation.results import Comparison
from calibrant.evaluation.tables import Json
from calibrant.report.page import write_report

FORBIDDEN = re.compile(r"[^A-Za-z0-9_\-./: ]")
"""What a name in MLflow may not hold."""


def log_to_mlflow(
    comparison: Comparison | ModelComparison, *, prefix: str = "", report: bool = True, figures: bool = True
) -> str:
    """Log a comparison to MLflow: parameters, metrics, reliability diagrams, the JSON and the HTML report.

    Into the active run where there is one; else a run is started and ended. Names are `METHOD/METRIC`, with
    `best/METRIC` for the winner; signs that MLflow refuses become `_` (`ts+top` is logged as `ts_top`).

    Parameters
    ----------
    comparison : the result of `calibrant.compare` or `calibrant.compare_models`.
    prefix : put before every name, such as "calibration/".
    report, figures : log the HTML page, and the diagrams.

    Returns
    -------
    str
        The id of the run.

    Examples
    --------
    Needs a place to log to, so that it is not run here::

        with mlflow.start_run():
            cal.log_to_mlflow(cal.compare(val, test))
    """
    if not isinstance(comparison, Comparison | ModelComparison):
        raise InputError(f"comparison must be the result of calibrant.compare, got {type(comparison).__name__}")
    try:
        import mlflow
    except ImportError as error:
        raise MissingExtraError("mlflow", "mlflow") from error

    about = {"task": comparison.task, "criterion": comparison.criterion, "best": comparison.best}
    about["calibrant_version"] = calibrant.__version__
    if isinstance(comparison, ModelComparison):
        about["models"] = ", ".join(comparison.models)
    else:
        for name in ("n_val", "n_test", "n_classes", "n_bins", "resamples", "seed"):
            about[name] = getattr(comparison, name)
    active = mlflow.active_run()
    with mlflow.start_run() if active is None else nullcontext(active) as run:
        mlflow.log_params({prefix + name: value for name, value in about.items()})
        mlflow.log_metrics(_allowed(prefix, comparison.metrics(intervals=True)))
        for name, figure in _allowed(prefix, comparison.figures() if figures else {}).items():
            mlflow.log_figure(figure, f"{name}.png")
        mlflow.log_dict(comparison.to_dict(), f"{prefix}comparison.json")
        if report:
            with TemporaryDirectory() as folder:
                page = write_report(comparison, Path(folder) / "report.html")
                mlflow.log_artifact(str(page), prefix.rstrip("/") or None)
        return str(run.info.run_id)


def _allowed(prefix: str, values: Json) -> Json:
    """Names that MLflow takes; two that would become one keep apart by a number."""
    found: Json = {}
    for name, value in values.items():
        plain = key = FORBIDDEN.sub("_", prefix + name)
        count = 1
        while key in found:
            count += 1
            key = f"{plain}_{count}"
        found[key] = value
    return found
