"""Calibrators over torch tensors: fits and answers where the data is, as tensors on the same device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calibrant.calibrators.maps import each_array, raise_zeros, torch_space
from calibrant.core.errors import InputError

if TYPE_CHECKING:
    from calibrant.calibrators.base import Calibrator


def answer_tensor(calibrator: Calibrator, logits: Any, *, probabilities: bool) -> Any:
    """Calibrated logits, or probabilities (n×2 of one score per row), of a tensor (n×K, N×K×H×W or n).

    They have its dtype and are on its device.
    """
    import torch

    from calibrant.kernels.torch.tensors import row_slices

    width = 1 if logits.ndim == 1 else logits.shape[1]
    if (logits.ndim > 2 and calibrator.task_ == "binary") or width != calibrator.n_features_in_:
        raise InputError(
            f"logits have shape {tuple(logits.shape)}, but {type(calibrator).__name__} was fitted on "
            f"{calibrator.n_features_in_} columns"
        )
    if logits.ndim > 2:
        # maps (N, K, …), one of the N at a time: a row is a position
        result = torch.empty_like(logits)
        for place, one in enumerate(logits.detach()):
            rows = one.reshape(one.shape[0], -1).T
            result[place] = answer_tensor(calibrator, rows, probabilities=probabilities).T.reshape(one.shape)
        return result
    rows, floor = (
        logits.detach().reshape(-1) if calibrator.task_ == "binary" else logits.detach(),
        calibrator.log_floor_,
    )
    scores, finite = calibrator.task_ != "multiclass", bool(rows.isfinite().all())
    if floor is not None and (scores or not finite):
        rows = raise_zeros(torch_space(), rows, floor, scores=scores)
    if not finite and not rows.isfinite().all():
        raise InputError("logits hold NaN or infinite values")
    shape = (len(rows), calibrator._n_classes) if probabilities else logits.shape
    result = torch.empty(shape, dtype=logits.dtype, device=logits.device)
    change = device_map(calibrator, logits.device)
    for block in row_slices(len(rows), rows[0].numel() if len(rows) else 1):
        answer = change(rows[block].float() if rows.itemsize == 2 else rows[block])
        if probabilities:
            two = torch.stack([torch.zeros_like(answer), answer], dim=1) if answer.ndim == 1 else answer
            answer = two.softmax(dim=1)
        result[block] = answer.reshape(result[block].shape).to(result.dtype)
    return result


def device_map(calibrator: Calibrator, device: Any) -> Any:
    """A fitted calibrator's map from logits to logits, as a function of tensors on a device."""
    import torch

    xp, learned = torch_space(), each_array(calibrator._learned(), lambda one: torch.as_tensor(one, device=device))
    return lambda block: calibrator._map_either(xp, block, learned)
