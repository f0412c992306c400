"""Multiple-choice questions answered by a language model: log-likelihoods of the options as predictions."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from calibrant.core.arrays import Array, as_array
from calibrant.core.errors import InputError
from calibrant.data.predictions import Predictions


def multiple_choice(
    option_log_likelihoods: Any,
    labels: Any,
    *,
    lengths: Any = None,
    normalise: str = "none",
    groups: Any = None,
    clusters: Any = None,
    class_names: Sequence[str] | None = None,
    absent: str | None = None,
) -> Predictions:
    """Predictions over the options of each question: p_j ∝ exp(log-likelihood of option j).

    With normalise="length" the log-likelihood of an option is divided by its length first (tokens, or characters, as
    `lengths` counts them), so that long options are not punished for their length.

    Parameters
    ----------
    option_log_likelihoods : array (n, C), Σ log p(token | question, tokens before) of each option; or n sequences of
        different lengths, where questions have different numbers of options
    labels : (n,) number of the right option
    lengths : of the same shape, above 0; needed for normalise="length"
    normalise : {"none", "length"}
    groups, clusters, class_names : as in `Predictions`
    absent : None, or "never" if options that no question has as its right one, such as "none of these", cannot be right

    Examples
    --------
    >>> found = multiple_choice([[-4.0, -9.0], [-12.0, -7.0]], [0, 1], lengths=[[2, 3], [4, 7]], normalise="length")
    >>> found.logits.tolist()
    [[-2.0, -3.0], [-3.0, -1.0]]
    """
    if normalise not in ("none", "length"):
        raise InputError(f"normalise must be one of none, length, got {normalise!r}")
    scores, options = _matrix(option_log_likelihoods, "option_log_likelihoods")
    for row in np.flatnonzero(~(scores <= 0).all(axis=1)):  # above 0, or not a number
        raise InputError(f"option_log_likelihoods of question {row} are not logarithms of probabilities: {scores[row]}")
    given = np.asarray(labels)
    if given.shape == (len(scores),) and given.dtype.kind in "iu":
        for row in np.flatnonzero((given >= options) | (given < 0)):
            raise InputError(f"label of question {row} is {given[row]}, but it has options 0..{options[row] - 1}")
        if class_names is not None and len(class_names) == scores.shape[1]:
            given = np.array([str(name) for name in class_names])[given]  # places, also where names are numbers
    if normalise == "length":
        if lengths is None:
            raise InputError("normalise='length' needs lengths: give the tokens (or characters) of each option")
        sizes, counted = _matrix(lengths, "lengths")
        if sizes.shape != scores.shape or (counted != options).any():
            raise InputError(f"lengths have shape {sizes.shape}, but the log-likelihoods {scores.shape}")
        real = np.arange(scores.shape[1]) < options[:, None]
        if not (sizes[real] > 0).all():
            raise InputError(f"lengths must be above 0, got {sizes[real].min():g}")
        scores = scores / np.where(real, sizes, 1.0)
    made = Predictions(logits=scores, labels=given, groups=groups, clusters=clusters, class_names=class_names)
    return made.like(absent=absent)


def _matrix(values: Any, name: str) -> tuple[Array, Array]:
    """A float64 matrix, padded with −inf where a question has fewer options, and the options of each question."""
    try:
        given = values if isinstance(values, (list, tuple)) else as_array(values, name)
        rows = [np.asarray(row, dtype=np.float64) for row in given]
    except (TypeError, ValueError):
        rows = []
    if not rows or any(row.ndim != 1 for row in rows):
        raise InputError(f"{name} must hold a sequence of numbers per question, (n, C)")
    options = np.array(list(map(len, rows)))
    if options.min() < 1 or options.max() < 2:
        raise InputError(f"{name} must hold two or more options, got {options.min()}")
    return np.array(list(zip_longest(*rows, fillvalue=-np.inf))).T, options
