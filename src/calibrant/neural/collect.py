"""Logits of a model over a loader, as predictions the rest of the library takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from typing import Any

import torch
from torch import nn

from calibrant.core import progress
from calibrant.data import Predictions
from calibrant.neural.model_io import check_logits, device_of, evaluation_mode, joined, read_batches, run_model


def collect_logits(
    model: nn.Module, loader: Iterable[Any], *, device: Any = None, class_names: Sequence[str] | None = None
) -> Predictions:
    """Run a classifier over (inputs, labels) batches and keep its logits and the labels.

    Parameters
    ----------
    model : module from inputs to logits (n, K), a tensor or an output with `logits`; its mode and device are left as
        they were
    loader : iterable of (inputs, labels) batches, or of dictionaries with "labels" among their named inputs
    device : where the model is expected to be; None takes the model's own device
    class_names : names of the K columns

    Returns
    -------
    Predictions with float32 logits (float64 where the model computes in it) and int64 labels.

    Examples
    --------
    >>> inputs, labels = torch.eye(3), torch.tensor([0, 1, 2])
    >>> collected = collect_logits(nn.Identity(), [(5 * inputs, labels)])
    >>> collected.n, collected.n_classes
    (3, 3)
    """
    place = device_of(model, device)
    n_batches = len(loader) if isinstance(loader, Sized) else None
    logits, labels = [], []
    with evaluation_mode(model), torch.inference_mode():
        for number, (batch_inputs, batch_labels) in enumerate(read_batches(loader, named=True)):
            logits.append(run_model(model, batch_inputs, place).cpu())
            labels.append(batch_labels.cpu().long())
            progress.step("collecting logits", number + 1, n_batches)
    matrix = joined(logits, "model's logits")
    check_logits(matrix)
    return Predictions.from_arrays(logits=matrix.numpy(), labels=torch.cat(labels).numpy(), class_names=class_names)
