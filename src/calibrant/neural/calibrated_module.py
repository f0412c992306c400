"""A classifier and its calibrator as one torch module."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from calibrant.calibrators.maps import raise_zeros, torch_space
from calibrant.calibrators.prepare import check_over_logits
from calibrant.core.errors import InputError
from calibrant.kernels.torch.tensors import widened
from calibrant.neural.collect import device_of, logits_in

OUTPUTS = ("probabilities", "log_probabilities", "logits")


xp = torch_space()


class CalibratedModule(nn.Module):
    """softmax(calibrator(model(x))): any fitted calibrator behind any torch classifier.

    The calibrator's numbers become buffers, so the module exports, compiles, moves between devices and saves its
    state like any other. Its answers equal `calibrator.predict_proba` on the model's logits to 1e-5.

    Parameters
    ----------
    model : module from inputs to logits (n, K), maps (N, K, H, W), or (n,) for binary scores; used as it is, its mode
        included. A Hugging Face model takes its named inputs, and `logits` is picked from what it returns
    calibrator : a fitted calibrator for K classes, or for one score per row
    output : "probabilities", "log_probabilities" or "logits" (as the calibrator's `transform`)

    A calibrator of groups takes the number of each row's group, −1 for an unknown one, as `module(x, groups=codes)`;
    `calibrator.group_codes(names, n)` gives the numbers. Without them all rows get the pooled fit.

    `torch.export.export(module, (x,), dynamic_shapes=({0: batch},))` leaves the number of rows open, and so does
    `torch.onnx.export(module, (x,), path, dynamic_shapes=({0: "batch"},))`, which needs the package onnxscript.

    Examples
    --------
    >>> import numpy as np
    >>> from calibrant import TemperatureScaling
    >>> logits, labels = np.array([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0]]), np.array([0, 1, 1])
    >>> module = CalibratedModule(nn.Identity(), TemperatureScaling().fit(logits, labels))
    >>> [round(value, 4) for value in module(torch.tensor([[2.0, 0.0]]))[0].tolist()]  # two of three are right
    [0.6667, 0.3333]
    """

    def __init__(self, model: nn.Module, calibrator: Any, *, output: str = "probabilities") -> None:
        super().__init__()
        if output not in OUTPUTS:
            raise InputError(f"output must be one of {', '.join(OUTPUTS)}, got {output!r}")
        device = device_of(model)
        check_over_logits(calibrator)
        check_is_fitted(calibrator)
        self.model = model
        self.calibration = LearnedModule(calibrator).to(device)
        self.n_classes = len(calibrator.classes_)
        self.task = calibrator.task_
        self.takes_groups = bool(getattr(calibrator, "takes_groups", False))
        self.output = output
        self.training = model.training

    def forward(self, inputs: Any = None, /, *more: Any, **named: Any) -> Tensor:
        """Calibrated probabilities (n, K) or (N, K, H, W), or what `output` names; of one score per row (n, 2)."""
        # the first input has a place of its own, so that `torch.export(dynamic_shapes=({0: b},))` finds its shape
        given = more if inputs is None else (inputs, *more)
        groups = named.pop("groups", None) if self.takes_groups else None
        logits = logits_in(self.model(*given, **named))
        if groups is not None and tuple(groups.shape) != (logits.shape[0],):
            raise InputError(f"groups have shape {tuple(groups.shape)}, but the model returned {logits.shape[0]} rows")
        binary, shape = self.task == "binary", tuple(logits.shape)
        if not (len(shape) == 1 or shape[1:] == (1,) if binary else shape[1:2] == (self.n_classes,)):
            expected = "one score per row" if binary else f"{self.n_classes} classes"
            raise InputError(f"the model returned shape {shape}, but the calibrator was fitted on {expected}")
        if binary and len(shape) == 2:
            logits = logits[:, 0]
        wide = widened(logits)
        if wide.ndim > 2:
            if groups is not None:
                raise InputError(f"groups are per row, but the model returned maps of shape {tuple(logits.shape)}")
            last = wide.movedim(1, -1)
            return self._answer(last.reshape(-1, self.n_classes), None).reshape(last.shape).movedim(-1, 1)
        return self._answer(wide, groups)

    def _answer(self, wide: Tensor, groups: Tensor | None) -> Tensor:
        if torch.is_autocast_enabled(wide.device.type):
            with torch.autocast(wide.device.type, enabled=False):
                return self._finish(self.calibration(wide, groups))
        return self._finish(self.calibration(wide, groups))

    def _finish(self, calibrated: Tensor) -> Tensor:
        if self.output == "logits":
            return calibrated
        if self.task == "multilabel":
            return calibrated.sigmoid() if self.output == "probabilities" else nn.functional.logsigmoid(calibrated)
        rows = torch.stack([torch.zeros_like(calibrated), calibrated], dim=1) if calibrated.ndim == 1 else calibrated
        return rows.softmax(dim=1) if self.output == "probabilities" else rows.log_softmax(dim=1)


class LearnedArrays(nn.Module):
    """Learned arrays as float64 buffers, so that they move, save and load with the module they belong to."""

    def __init__(self, learned: SimpleNamespace | list[Any]) -> None:
        super().__init__()
        entries = vars(learned) if isinstance(learned, SimpleNamespace) else dict(enumerate(learned))
        self.names = [str(name) for name in entries]
        for name, value in zip(self.names, entries.values(), strict=True):
            if isinstance(value, (SimpleNamespace, list)):
                self.add_module(name, LearnedArrays(value))
            else:
                self.register_buffer(name, torch.as_tensor(np.array(value, dtype=np.float64)))

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, name) for name in self.names)

    def _apply(self, fn: Any, recurse: bool = True) -> LearnedArrays:
        """Follow the model to its device, not to its dtype: `half()` must not round what was learned."""
        learned = [(name, value) for name, value in self.named_buffers(recurse=False) if not value.is_meta]
        super()._apply(fn, recurse)
        for name, value in learned:
            setattr(self, name, value.to(getattr(self, name).device))
        return self


class LearnedModule(nn.Module):
    """A fitted calibrator as a module from logits to calibrated logits of the same dtype."""

    def __init__(self, calibrator: Any) -> None:
        super().__init__()
        self.calibrator = calibrator
        self.learned = LearnedArrays(calibrator._learned())

    def forward(self, logits: Tensor, groups: Tensor | None = None) -> Tensor:
        """Calibrated logits (n×K), or (n,) of one score per row; `groups` (n,) where the calibrator takes them."""
        floor = self.calibrator.log_floor_
        if floor is not None:
            logits = raise_zeros(xp, logits, floor, scores=self.calibrator.task_ != "multiclass")
        if groups is not None:
            return self.calibrator._map_groups(xp, logits, groups, self.learned)
        return self.calibrator._map_either(xp, logits, self.learned)
