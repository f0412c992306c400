"""Logits of a model over a loader, as predictions the rest of the library takes.

The model runs on its device and in evaluation mode, and is left as it was.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.core import progress
from calibrant.core.errors import InputError
from calibrant.data import Predictions
from calibrant.kernels.torch.tensors import widened

ROW_SUM_TOLERANCE = 1e-3


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
    # labels of a loader are class numbers, also where the names of the classes are other numbers
    return Predictions(logits=matrix.numpy(), labels=torch.cat(labels).numpy()).named(class_names)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Every submodule in evaluation mode inside the block, and each as it was after it."""
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in training:
            module.training = was_training


def device_of(model: nn.Module, asked: Any = None) -> torch.device:
    """The one device of the model's weights; `asked`, where given, must be that device."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    devices = {tensor.device for tensor in [*model.parameters(), *model.buffers()]}
    if len(devices) > 1:
        words = ", ".join(sorted(map(str, devices)))
        raise InputError(f"the model's weights lie on {len(devices)} devices ({words}): move it to one")
    try:
        # a tensor knows that "cuda" is "cuda:0"
        wanted = None if asked is None else torch.empty(0, device=asked).device
    except (RuntimeError, AssertionError, TypeError) as error:  # torch asserts that it was built with CUDA
        raise InputError(f"device={asked} is not a device of this machine ({str(error).splitlines()[0]})") from error
    device = devices.pop() if devices else wanted or torch.device("cpu")
    if device.type == "meta":
        raise InputError("the model is on the device meta, which holds shapes without weights: load the weights first")
    if wanted not in (None, device):
        raise InputError(f"the model is on {device}, but device={wanted} was asked for: move the model there first")
    return device


LABEL_NAMES = ("labels", "label", "label_ids")
"""Under which of these names a dictionary batch, as Hugging Face loaders give them, holds its labels."""


def logits_in(output: Any) -> Tensor:
    """The logits that a model returned: a tensor, or `logits` of a Hugging Face output."""
    found = output
    if isinstance(output, Mapping):
        found = output.get("logits")
    elif hasattr(output, "logits"):
        found = output.logits
    if not isinstance(found, Tensor):
        raise InputError(
            f"the model returned a {type(output).__name__}, but a tensor of logits is needed: "
            "wrap it in a module that picks the logits"
        )
    return found


def read_batches(loader: Iterable[Any], *, named: bool = False) -> Iterator[tuple[Any, Tensor]]:
    """(inputs, labels) of each batch, checked: finite inputs, as many whole-number labels.

    With `named` a batch may also be a dictionary of named inputs with labels among them.
    """
    if not isinstance(loader, Iterable):
        raise InputError(f"the loader is a {type(loader).__name__}: it must give (inputs, labels) batches")
    number, n_rows = -1, 0
    for number, batch in enumerate(loader):
        is_named = named and isinstance(batch, Mapping)
        inputs, labels = (_named_parts if is_named else _plain_parts)(batch, number)
        if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
            kind = f"{labels.dtype} of shape {tuple(labels.shape)}"
            raise InputError(f"labels of batch {number} are {kind}: give one class index per row")
        n_rows += len(labels)
        yield inputs, labels
    if n_rows == 0:
        raise InputError(f"the loader has {number + 1} batches with 0 rows in all")


def _named_parts(batch: Mapping[str, Any], number: int) -> tuple[dict[str, Any], Tensor]:
    name = next((name for name in LABEL_NAMES if name in batch), None)
    if name is None:
        raise InputError(f"batch {number} has {', '.join(map(str, batch))}, but none of {', '.join(LABEL_NAMES)}")
    return {key: value for key, value in batch.items() if key != name}, torch.as_tensor(batch[name])


def _plain_parts(batch: Any, number: int) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        raise InputError(f"batch {number} of the loader is a {type(batch).__name__}: it must be (inputs, labels)")
    inputs, labels = batch[0], batch[1]
    if not isinstance(inputs, Tensor) or not isinstance(labels, Tensor):
        kinds = f"{type(inputs).__name__} and {type(labels).__name__}"
        raise InputError(f"batch {number} of the loader holds {kinds}: both must be torch tensors")
    if inputs.is_meta or labels.is_meta:
        raise InputError(f"batch {number} of the loader is on the device meta, which holds shapes without values")
    if labels.shape[:1] != inputs.shape[:1]:
        shape = tuple(labels.shape)
        raise InputError(f"batch {number} has {len(inputs)} inputs, but labels of shape {shape}: give one per row")
    if inputs.is_floating_point():
        _check_finite(inputs, f"inputs of batch {number}")
    return inputs, labels


def _check_finite(values: Tensor, what: str) -> None:
    bad = (~values.isfinite()).nonzero()
    if len(bad):
        raise InputError(f"the {what} hold NaN or Inf (first in row {bad[0, 0]}): every value must be finite")


def run_model(model: nn.Module, inputs: Any, device: torch.device) -> Tensor:
    """Logits (n, K) of a batch in float32 or wider, or an error that says what the model returned instead."""
    plain = isinstance(inputs, Tensor)
    try:
        output = model(inputs.to(device)) if plain else model(**on_device(inputs, device))
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError) as error:
        if plain and isinstance(error, TypeError):
            raise
        given = f"{inputs.dtype} inputs of shape {tuple(inputs.shape)}" if plain else f"inputs {', '.join(inputs)}"
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise InputError(f"the model does not run on {given} on {device}: {reason}") from error
    logits = logits_in(output)
    n_rows = len(inputs if plain else logits)
    if logits.ndim != 2 or logits.shape[0] != n_rows or logits.shape[1] < 2:
        raise InputError(
            f"the model returned shape {tuple(logits.shape)} for {n_rows} rows: "
            f"logits of shape ({n_rows}, K ≥ 2) are needed"
        )
    return widened(logits)


def on_device(inputs: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The tensors among named inputs on a device."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in inputs.items()}


def joined(parts: list[Tensor], what: str) -> Tensor:
    """The batches' tensors as one; an error where their rows differ in shape."""
    shapes = list(dict.fromkeys(tuple(part.shape[1:]) for part in parts))
    if len(shapes) > 1:
        raise InputError(f"the {what} have rows of shape {shapes[0]} and {shapes[1]}: all batches must agree")
    return torch.cat(parts)


def check_logits(logits: Tensor) -> None:
    """Raise where a model's outputs hold NaN, or are plainly probabilities: in [0, 1] with every row summing to one."""
    _check_finite(logits, "model's logits")
    sums = logits.double().sum(dim=1)
    if logits.min() >= 0 and (sums - 1).abs().max() <= ROW_SUM_TOLERANCE:
        raise InputError(
            f"the model returned probabilities (all {len(logits)} rows are ≥ 0 and sum to 1), but logits are needed: "
            "drop its softmax, or wrap it to return the logarithm"
        )
