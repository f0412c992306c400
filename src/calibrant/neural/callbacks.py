"""Callbacks for training loops: Hugging Face Trainer and Lightning.

Both callbacks run the model over a held-out loader after each epoch, log ECE, NLL, Brier score and accuracy, and fit a
calibrator when training ends.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from calibrant import metrics
from calibrant.calibrators.registry import get
from calibrant.core.arrays import as_array
from calibrant.core.errors import InputError
from calibrant.neural.calibrated_module import CalibratedModule
from calibrant.neural.collect import collect_logits

NAMES = ("ece", "nll", "brier", "accuracy")


def figures(logits: Any, labels: Any, prefix: str = "") -> dict[str, float]:
    """ECE, NLL, Brier score and accuracy of logits (n, K), for a log."""
    return {f"{prefix}{name}": float(getattr(metrics, name)(logits, labels, from_logits=True)) for name in NAMES}


def compute_metrics(evaluated: Any) -> dict[str, float]:
    """`compute_metrics` of a Hugging Face Trainer: an object or a pair of predictions (logits) and label_ids.

    Examples
    --------
    >>> import numpy as np
    >>> round(compute_metrics((np.zeros((2, 4)), np.array([0, 1])))["ece"], 2)
    0.25
    """
    pair = (evaluated.predictions, evaluated.label_ids) if hasattr(evaluated, "label_ids") else tuple(evaluated)
    logits = pair[0][0] if isinstance(pair[0], (tuple, list)) else pair[0]
    return figures(as_array(logits, "predictions"), np.asarray(pair[1]))


class _Calibration:
    """What both callbacks share: a loader, a history of figures and the calibrator fitted at the end."""

    def __init__(self, loader: Iterable[Any], method: str = "ts", prefix: str = "calibration_") -> None:
        self.loader, self.method, self.prefix = loader, method, prefix
        self.history_: list[dict[str, float]] = []
        self.calibrator_: Any = None

    def measure(self, model: Any) -> dict[str, float]:
        """Figures of the model as it is now; also kept in `history_`."""
        seen = collect_logits(model, self.loader)
        found = figures(seen.logits, seen.labels, self.prefix)
        self.history_.append(found)
        return found

    def finish(self, model: Any) -> None:
        """Fit the calibrator on the loader's rows."""
        seen = collect_logits(model, self.loader)
        self.calibrator_ = get(self.method).fit(seen.logits, seen.labels)

    def calibrated(self, model: Any, **options: Any) -> CalibratedModule:
        """The model and the fitted calibrator as one module."""
        if self.calibrator_ is None:
            raise InputError("training has not ended: there is no calibrator yet")
        return CalibratedModule(model, self.calibrator_, **options)


def trainer_callback(loader: Iterable[Any], method: str = "ts", prefix: str = "calibration_") -> Any:
    """A `transformers.TrainerCallback` that logs calibration after each epoch and calibrates at the end.

    Parameters
    ----------
    loader : batches of rows that the training does not see, as `collect_logits` takes them
    method : short name of the calibrator that is fitted when training ends
    prefix : of the names in the log

    Returns
    -------
    A callback with `history_` (one dictionary per epoch), `calibrator_` and `calibrated(model)`.
    """
    from transformers import TrainerCallback

    class CalibrationCallback(_Calibration, TrainerCallback):
        """Calibration figures in `state.log_history`."""

        def on_epoch_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            """Measure and log."""
            state.log_history.append({**self.measure(model), "epoch": state.epoch, "step": state.global_step})

        def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            """Fit the calibrator."""
            self.finish(model)

    return CalibrationCallback(loader, method, prefix)


def lightning_callback(loader: Iterable[Any], method: str = "ts", prefix: str = "calibration_") -> Any:
    """A Lightning callback that logs calibration after each epoch and calibrates at the end; see `trainer_callback`."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback  # type: ignore[assignment]

    class CalibrationCallback(_Calibration, Callback):
        """Calibration figures through `pl_module.log`."""

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            """Measure and log."""
            for name, value in self.measure(pl_module).items():
                pl_module.log(name, value)

        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
            """Fit the calibrator."""
            self.finish(pl_module)

    return CalibrationCallback(loader, method, prefix)
