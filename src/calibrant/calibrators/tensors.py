"""Calibrators over torch tensors: fits and answers where the data is, as tensors on the same device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.calibrators.maps import raise_zeros, torch_space
from calibrant.calibrators.solvers.folds import divided
from calibrant.core.arrays import look_like_probabilities, probabilities_error
from calibrant.core.errors import InputError

if TYPE_CHECKING:
    from calibrant.calibrators.base import Calibrator

FEW = 1 << 11
"""Numbers that are looked at on the host before a fit."""


def fit_on_device(calibrator: Calibrator, logits: Any, labels: Any, weights: Any) -> None:
    """Fit on a CUDA tensor; methods without a form on the device copy the rows to the host and warn."""
    from calibrant.kernels.torch.rows import device_blocks

    blocks: Any = device_blocks(logits, labels, weights)
    rows = blocks.rows()
    # a few rows tell logits from probabilities; only if they look like these is the whole tensor read
    if look_like_probabilities(rows.logits[: max(2, FEW // rows.n_classes)]) and blocks.hold_probabilities():
        raise probabilities_error(rows.n, "logits", "give their logarithms, torch.log(p)")
    there = calibrator.fits_on_device
    if calibrator.additive or (rows.weights is None if there == "unweighted" else there):
        calibrator.fit_rows(rows)
    else:
        calibrator.fit_rows(divided(rows.whole()))
    calibrator._keep_floor(blocks.log_floor)
    calibrator.n_rows_ = rows.n


def transform_tensor(calibrator: Calibrator, logits: Any) -> Any:
    """Calibrated logits of a tensor (n×K, N×K×H×W or n), of its dtype and on its device."""
    return _answer(calibrator, logits, probabilities=False)


def probabilities_of_tensor(calibrator: Calibrator, logits: Any) -> Any:
    """Calibrated probabilities (n×K, N×K×H×W, or n×2 of one score per row) as a tensor on the same device."""
    return _answer(calibrator, logits, probabilities=True)


def _answer(calibrator: Calibrator, logits: Any, *, probabilities: bool) -> Any:
    import torch

    _check(calibrator, logits)
    if logits.ndim > 2:
        # maps (N, K, …), one of the N at a time: a row is a position
        result = torch.empty_like(logits)
        for place, one in enumerate(logits.detach()):
            rows = one.reshape(one.shape[0], -1).T
            result[place] = _answer(calibrator, rows, probabilities=probabilities).T.reshape(one.shape)
        return result
    shape = (len(logits), calibrator._n_classes) if probabilities else logits.shape
    result = torch.empty(shape, dtype=logits.dtype, device=logits.device)
    for block, calibrated in _calibrated(calibrator, logits):
        answer = calibrated
        if probabilities:
            two = torch.stack([torch.zeros_like(answer), answer], dim=1) if answer.ndim == 1 else answer
            answer = two.softmax(dim=1)
        result[block] = answer.reshape(result[block].shape).to(result.dtype)
    return result


def _calibrated(calibrator: Calibrator, logits: Any) -> Any:
    import torch

    xp = torch_space()

    from calibrant.kernels.torch.tensors import row_slices

    binary = calibrator.task_ == "binary"
    rows = logits.detach().reshape(-1) if binary else logits.detach()
    narrow = rows.dtype in (torch.float16, torch.bfloat16)
    learned = as_tensors(calibrator._learned(), logits.device)
    floor = calibrator.log_floor_
    for block in row_slices(len(rows), 1 if binary else rows.shape[1]):
        part = rows[block].float() if narrow else rows[block]
        if floor is not None and bool(torch.isinf(part).any()):
            part = raise_zeros(xp, part, floor, scores=calibrator.task_ != "multiclass")
        mapped = calibrator._map_binary(xp, part, learned) if binary else calibrator._map(xp, part, learned)
        yield block, mapped


def can_fit_inner(calibrator: Calibrator | None) -> bool:
    """Is this inner calibrator fitted on the device, and its answers on the fit rows good for a second stage?"""
    return calibrator is None or bool(calibrator.few_parameters and (calibrator.additive or calibrator.fits_on_device))


def fit_inner(calibrator: Calibrator, rows: Any) -> Any:
    """Fit an inner calibrator of few parameters on the device; the rows as it maps them."""
    calibrator.fit_rows(rows)
    given = rows.blocks
    change = device_map(calibrator, given.tensor.device)
    return type(given)(given.tensor, given.target, given.mass, change).rows()


def device_map(calibrator: Calibrator, device: Any) -> Any:
    """A fitted calibrator's map from logits to logits, as a function of tensors on a device."""
    xp = torch_space()

    learned = as_tensors(calibrator._learned(), device)
    return lambda block: calibrator._map(xp, block, learned)


def as_tensors(learned: SimpleNamespace, device: Any) -> SimpleNamespace:
    """What was learned as float64 tensors on a device."""
    import torch

    def one(value: Any) -> Any:
        if isinstance(value, SimpleNamespace):
            return as_tensors(value, device)
        if isinstance(value, list):
            return [one(item) for item in value]
        return torch.as_tensor(value, device=device) if isinstance(value, np.ndarray) else value

    return SimpleNamespace(**{name: one(value) for name, value in vars(learned).items()})


def _check(calibrator: Calibrator, logits: Any) -> None:
    width = 1 if logits.ndim == 1 else logits.shape[1]
    if (logits.ndim > 2 and calibrator.task_ == "binary") or width != calibrator.n_features_in_:
        raise InputError(
            f"logits have shape {tuple(logits.shape)}, but {type(calibrator).__name__} was fitted on "
            f"{calibrator.n_features_in_} columns"
        )
    if not bool(logits.isfinite().all()):
        raise InputError("logits hold NaN or infinite values")
