"""THE input gate: every array that enters the library is checked here, once, with one wording.

Structure (shape, dtype, label range, weights) is cheap and checked up front. Values (finite logits,
probabilities that sum to one) need a pass over the whole matrix; `check_values` makes that pass, and the
fused kernels that read the matrix anyway call `explain_bad_values` only when they met something odd.
"""

import sys
from typing import Any

import numpy as np

from calibrant.core.errors import InputError, NoRowsError, warn_user

Array = np.ndarray
"""What the numeric functions take and return; the shape stands in their docstrings."""
Json = dict[str, Any]
"""Named values as JSON holds them."""

PROBABILITY_TOLERANCE = 1e-3
"""How far a row of probabilities may be from a sum of one: room for float16 files, not for logits."""

FEWEST_COUNTS, MANY_COUNTS, IMPOSSIBLE_COUNTS = 0.2, 50.0, 1e12
"""Means of positive weights: below the first an error, above the second a warning, above the third an error."""

LARGEST_NUMBER = 1e300
"""Numeric options are smaller."""

MAX_REPR = 80
"""Characters of a value in an error message."""

LARGEST_EXPONENT = 100
"""Weights within 2^±100 can be squared and summed as they are."""


def check_matrix(values: Any, name: str = "logits") -> np.ndarray:
    """An n×K float matrix with n ≥ 1 rows and K ≥ 2 columns; float16 and integers are widened."""
    array = as_array(values, name)
    check_shape(array.shape, array.dtype, name)
    return widen(array)


def check_scores(values: Any, name: str = "scores") -> np.ndarray:
    """One score per row, (n,) or (n, 1), as a float array (n,) with n ≥ 1; float16 and integers are widened."""
    array = _one_column(values, name)
    check_shape(array.shape, array.dtype, name, classes=False)
    return widen(array)


def check_score_matrix(scores: Any, name: str = "logits") -> np.ndarray:
    """A float matrix (n×L) with n, L ≥ 1; ±inf stand for probabilities of 0 and 1, NaN is refused."""
    array = np.asarray(scores)
    if array.ndim != 2 or not array.size:
        raise InputError(f"{name} must have the shape (n, L) with one column per label, got {array.shape}")
    check_shape(array.shape, array.dtype, name, classes=False)
    matrix = widen(array)
    bad = np.argwhere(np.isnan(matrix))
    if len(bad):
        raise InputError(f"{name} contains NaN in row {bad[0, 0]}, column {bad[0, 1]}: every value must be a number")
    return matrix


def check_shape(shape: tuple[int, ...], dtype: np.dtype[Any], name: str = "logits", *, classes: bool = True) -> None:
    """Raise unless an array of this shape holds real numbers in n ≥ 1 rows: also for one that is still on disk.

    classes : it is a matrix with a column for each of K ≥ 2 classes.
    """
    if dtype.kind not in "fiub":
        raise InputError(f"{name} must hold real numbers, got dtype {_dtype_words(dtype)}")
    if classes and len(shape) != 2:
        remedy = ". Reshape your data to (n, K)" if len(shape) == 1 else ""
        raise InputError(f"{name} must have 2 dimensions (rows, classes), got {len(shape)}, shape {shape}{remedy}")
    if shape[0] < 1:
        raise NoRowsError(f"{name} has 0 sample(s) (shape={shape}) while a minimum of 1 is required")
    if classes and shape[1] < 2:
        raise InputError(
            f"{name} has {shape[1]} feature(s) (shape={shape}) while a minimum of 2 is required: "
            "give a binary problem both columns"
        )


def widen(array: np.ndarray) -> np.ndarray:
    """float32 and float64 as they are, float16 as float32, everything else as float64; native byte order."""
    size = array.dtype.itemsize if array.dtype.kind == "f" else 8
    return array.astype(np.float32 if size in (2, 4) else np.float64, copy=False)


def check_labels(labels: Any, n_rows: int, n_classes: int, name: str = "labels", against: str = "logits") -> np.ndarray:
    """Class indices 0 … K−1, one per row, as int64; of two classes also False and True."""
    column = _one_column(labels, name, n_rows, against)
    if n_classes == 2 and column.dtype == bool:
        column = column.astype(np.int64)
    array = whole_numbers(column, f"0..{n_classes - 1}", name)
    if n_rows == 0:
        raise InputError(f"{name} has 0 rows while a minimum of 1 is required")
    lowest, highest = array.min(), array.max()
    if lowest < 0 or highest >= n_classes:
        reach = f"go down to {lowest}" if lowest < 0 else f"reach {highest}"
        from_one = lowest == 1 and highest == n_classes
        remedy = ": if the classes are numbered from 1, subtract 1, or give class_names="
        raise InputError(
            f"{name} {reach}, but the {against} have columns 0..{n_classes - 1}{remedy if from_one else ''}"
        )
    return array.astype(np.int64, copy=False)


def whole_numbers(array: np.ndarray, wanted: str, name: str) -> np.ndarray:
    """An integer array; floats are accepted where every value is a whole number, as tables with gaps store them."""
    if array.dtype.kind in "iu":
        return array
    if array.dtype.kind != "f":
        raise InputError(f"{name} must be whole numbers {wanted}, got dtype {_dtype_words(array.dtype)}")
    broken = ~((array == np.floor(array)) & (np.abs(array) < 2.0**53))  # NaN differs from itself
    if broken.any():
        place = tuple(np.argwhere(broken)[0])
        found = f"{array[place]} in row {place[0]}, dtype {array.dtype}"
        raise InputError(f"{name} must be whole numbers {wanted}, got {found}")
    return array.astype(np.int64)


def check_outcomes(labels: Any, n_rows: int, name: str = "labels", against: str = "scores") -> np.ndarray:
    """Outcomes 0 or 1 (or False, True), one per row, as int64."""
    why = f"{against} has 1 feature(s), one score per row, and more classes need a minimum of 2 columns"
    return _zeros_and_ones(_one_column(labels, name, n_rows, against), name, why)


def _one_column(values: Any, name: str, n_rows: int | None = None, against: str = "") -> np.ndarray:
    """One value per row (n,), of any dtype, from (n,) or (n, 1); where `n_rows` is given, as many as that."""
    array = as_array(values, name)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InputError(f"{name} must have 1 dimension, got {array.ndim}, shape {array.shape}: give one per row")
    if n_rows not in (None, len(array)):
        raise InputError(f"{name} has {len(array)} rows, but {against} has {n_rows}")
    return array


def check_label_matrix(
    labels: Any, shape: tuple[int, ...], name: str = "labels", against: str = "scores"
) -> np.ndarray:
    """Outcomes 0 or 1, one per row and label (n×L), as int64."""
    array = as_array(labels, name)
    if array.shape != shape:
        raise InputError(f"{name} has shape {array.shape}, but {against} has {shape}: give 0 or 1 per row and label")
    return _zeros_and_ones(array, name, f"{against} has one score per label")


def _zeros_and_ones(array: np.ndarray, name: str, why: str) -> np.ndarray:
    if array.dtype.kind == "b":
        return array.astype(np.int64)
    found = whole_numbers(array, "0 or 1", name).astype(np.int64, copy=False)
    if found.size and (found.min() < 0 or found.max() > 1):
        raise InputError(f"{name} range from {found.min()} to {found.max()}, but outcomes are 0 or 1: {why}")
    return found


def check_shares(shares: Any, shape: tuple[int, ...], name: str = "label_shares") -> np.ndarray:
    """Shares of annotators that chose each class (n×K), as float64; every row sums to one."""
    array = as_array(shares, name)
    if array.shape != shape:
        raise InputError(f"{name} has shape {array.shape}, but the scores have {shape}: give one share per class")
    check_shape(shape, array.dtype, name)
    array = array.astype(np.float64)
    check_values(array, from_logits=False, name=name)
    return array / array.sum(axis=1, keepdims=True)


def check_score_values(values: np.ndarray, *, from_logits: bool, name: str, first_row: int = 0) -> None:
    """Raise unless every logit is a number (±inf is p = 0 or 1), or every probability lies in [0, 1]."""
    if not sums_finitely(values):
        explain_bad_values(values.reshape(-1, 1), from_logits=from_logits, name=name, first_row=first_row)
    if from_logits:
        return
    lowest, highest = float(values.min()), float(values.max())
    if lowest < 0 or highest > 1:
        raise InputError(
            f"{name} range from {lowest:.4g} to {highest:.4g}, but probabilities lie in [0, 1]: "
            'if these are logits, say kind="logits" (from_logits=True of a metric); if they are percent, divide by 100'
        )


def check_weights(weights: Any, n_rows: int, name: str = "sample_weight") -> np.ndarray | None:
    """Finite weights ≥ 0 with a positive sum as float64, or None for weights of one."""
    if weights is None:
        return None
    array = as_array(weights, name)
    array = _one_column(np.full(n_rows, array) if array.ndim == 0 else array, name)
    if len(array) != n_rows:
        raise InputError(f"{name} has shape {array.shape}, but there are {n_rows} rows: give one weight per row")
    check_shape(array.shape, array.dtype, name, classes=False)
    array = array.astype(np.float64, copy=False)
    bad = ~(np.isfinite(array) & (array >= 0))
    if bad.any():
        row = bad.argmax()
        raise InputError(f"{name} is {array[row]:g} in row {row}: weights must be 0 or more and finite")
    with np.errstate(over="ignore"):
        total = array.sum()
    if total <= 0:
        raise InputError(f"{name} sums to 0 over {n_rows} rows: at least one weight must be positive")
    if not np.isfinite(total):
        raise InputError(f"{name} reaches {array.max():g} and its sum overflows: divide the weights by their maximum")
    return array


def check_whole(value: Any, name: str, least: int, most: int = 2**63) -> int:
    """A whole number of at least `least`, for options that count something."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= most:
        limit = f"most {most:,}" if isinstance(value, int) and value > most else f"least {least}"
        raise InputError(f"{name} must be a whole number of at {limit}, got {short_repr(value)}")
    return int(value)


def check_number(
    value: Any, name: str, *, least: float = -np.inf, above: float = -np.inf, most: float = np.inf
) -> float:
    """Return a finite real number in a range."""
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not real or not abs(value) < LARGEST_NUMBER or not least <= value <= most or value <= above:
        limits = (("at least", least), ("above", above), ("at most", most))
        words = " and ".join(f"{word} {limit:g}" for word, limit in limits if abs(limit) < np.inf)
        raise InputError(f"{name} must be {words or 'a finite number'}, got {short_repr(value)}")
    return float(value)


def check_choice(value: Any, name: str, choices: tuple[str, ...]) -> str:
    """Return one of a few words."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name} must be one of {', '.join(map(repr, choices))}, got {short_repr(value)}")
    return value


def check_flag(value: Any, name: str) -> bool:
    """Return a truth value."""
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{name} must be True or False, got {short_repr(value)}")
    return bool(value)


def short_repr(value: Any) -> str:
    """Return the representation of a value as one short line for error messages."""
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_REPR else f"{text[:MAX_REPR]} …"


def check_counts(weights: np.ndarray | None, name: str = "sample_weight") -> None:
    """Raise unless checked weights can be counts of rows: 2 means the row twice. A large mean is only a warning.

    Methods that know how much data they have (penalties, bins of a minimum size, held-out folds, debiasing) take the
    sum of the weights as the number of rows. Weights that sum to 1 would tell them that there is one row.
    """
    if weights is None:
        return
    positive = weights[weights > 0]
    total, n_rows = positive.sum(), len(positive)
    if not FEWEST_COUNTS * n_rows <= total <= IMPOSSIBLE_COUNTS * n_rows:
        raise InputError(
            f"{name}: these sum to {total:.4g} over {n_rows:,} rows of positive weight, but a weight counts rows "
            f"(2 is the row twice): multiply by n / sum = {n_rows / total if total > 1e-300 else np.inf:.4g}"
        )
    if total > MANY_COUNTS * n_rows:
        warn_user(
            f"{name} has a mean of {total / n_rows:.4g}: fits and metrics count each row as that many; if that is not "
            "meant, multiply by n / sum"
        )


def unit_scale(weights: np.ndarray | None) -> np.ndarray | None:
    """Weights for ratios of sums: extreme ones times a power of two, so that no sum or product leaves float64."""
    if weights is None:
        return None
    _, exponent = np.frexp(weights.max())
    return weights if abs(exponent) <= LARGEST_EXPONENT else np.ldexp(weights, -exponent)


def check_values(values: np.ndarray, *, from_logits: bool, name: str = "", first_row: int = 0) -> None:
    """Raise unless every row holds logits (−inf is a probability of 0), or probabilities that sum to one."""
    if not (sums_finitely(values) if from_logits else are_probabilities(values)):
        explain_bad_values(values, from_logits=from_logits, name=name, first_row=first_row)


def sums_finitely(values: np.ndarray) -> bool:
    """Whether there is nothing to explain: a sum meets any NaN or Inf at the speed of memory.

    It may overflow by itself, so that a False asks for a closer look.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.sum(dtype=values.dtype)))


def are_probabilities(values: np.ndarray, whole: float = 1.0) -> bool:
    """Do all values lie in [0, 1] and all rows sum to one, or in percent, which may be rounded, to a `whole` of 100?"""
    room = PROBABILITY_TOLERANCE if whole == 1 else min(0.5 * values.shape[1], 2.0)
    inside = values.min() >= 0 and values.max() <= whole + room
    return bool(inside and (np.abs(values.sum(axis=1, dtype=np.float64) - whole) <= room).all())


FEWEST_RISKS = 20
"""Scores, one per row, from which [0, 1] is no accident."""


def look_like_probabilities(values: np.ndarray) -> bool:
    """Do two or more rows all lie in [0, 1] and sum to one, as softmax outputs do and logits never do? Or to 100?

    Of one score per row: do twenty or more all lie in [0, 1]?
    """
    if values.ndim == 1:
        return len(values) >= FEWEST_RISKS and bool(values.min() >= 0 and values.max() <= 1)
    if values.ndim != 2 or values.shape[1] < 2 or len(values) < 2:
        return False
    # real logits fail in the first rows, so that the whole matrix is read only where it matters
    return any(are_probabilities(values[:64], whole) and are_probabilities(values, whole) for whole in (1.0, 100.0))


def probabilities_error(n_rows: int, name: str, remedy: str) -> InputError:
    """The error for probabilities that were passed as logits."""
    return InputError(
        f"{name} are probabilities: all {n_rows} rows lie in [0, 1] and sum to 1 (in percent, 100); {remedy}"
    )


def explain_bad_values(values: np.ndarray, *, from_logits: bool, name: str, first_row: int = 0) -> None:
    """Raise the InputError that names the first bad value; return only if there is none."""
    name = name or ("logits" if from_logits else "probabilities")
    fine = np.isfinite(values)
    if from_logits and values.shape[1] > 1:
        fine |= np.isneginf(values)
        if fine.all() and (hopeless := np.isneginf(values).all(axis=1)).any():
            row = hopeless.argmax()
            raise InputError(f"{name} is -Inf in all columns of row {first_row + row}: no class has a probability")
    elif from_logits:
        fine |= np.isinf(values)
    if not fine.all():
        row, column = np.argwhere(~fine)[0]
        word = "NaN" if np.isnan(values[row, column]) else "Inf" if values[row, column] > 0 else "-Inf"
        remedy = "" if word == "NaN" else " (float16 overflows to Inf beyond 65504: store float32)"
        raise InputError(
            f"{name} contains {word} in row {first_row + row}, column {column}: every value must be finite{remedy}"
        )
    if from_logits:
        return
    sums = values.sum(axis=1, dtype=np.float64)
    lowest, highest = float(values.min()), float(values.max())
    if lowest < 0 or highest > 1 + PROBABILITY_TOLERANCE:
        remedy = 'if these are logits, say kind="logits" (from_logits=True of a metric)'
        if are_probabilities(values, 100.0):
            remedy = "the rows sum to 100, so these are percent: divide by 100"
        raise InputError(f"{name} range from {lowest:.4g} to {highest:.4g}, but probabilities lie in [0, 1]: {remedy}")
    off = np.abs(sums - 1)
    if (off > PROBABILITY_TOLERANCE).any():
        row = off.argmax()
        raise InputError(
            f"{name} of row {first_row + row} sum to {sums[row]:.6g}, off by {off[row]:.3g} "
            f"(at most {PROBABILITY_TOLERANCE:g} is allowed): normalise the rows"
        )


def as_array(values: Any, name: str) -> np.ndarray:
    """A numpy array from anything that can be one; torch tensors with a gradient, of bfloat16 or on a GPU included.

    Masked entries and ragged lists are an InputError.
    """
    if type(values) is np.ndarray:
        return values
    sparse = sys.modules.get("scipy.sparse")
    if sparse is not None and sparse.issparse(values):
        raise InputError(f"{name} is a sparse matrix; calibrant needs a dense array")
    columns = values if isinstance(values, (list, tuple)) else (values,)
    count = sum(np.ma.count_masked(one) for one in columns if isinstance(one, np.ma.MaskedArray))
    if count:
        raise InputError(
            f"{name} is a masked array with {count} masked values: remove those rows (or fill the values) first"
        )
    if is_tensor(values):
        # without its gradient, in main memory, and of a dtype that numpy has
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        # ragged lists, tensors that require a gradient: numpy's first sentence says what is wrong
        reason = " ".join(str(error).split()).split(". ")[0]
        raise InputError(f"{name} cannot be read as an array: {reason}") from error


def _dtype_words(dtype: np.dtype[Any]) -> str:
    return {"O": "object", "U": "string", "S": "bytes"}.get(dtype.kind, str(dtype))


def is_tensor(value: Any) -> bool:
    """A torch tensor of any kind."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def on_device(value: Any) -> bool:
    """A torch tensor that lies on a CUDA device."""
    return is_tensor(value) and value.is_cuda
