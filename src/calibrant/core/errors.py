"""The errors and warnings that calibrant raises on purpose."""

import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PACKAGE = str(Path(__file__).parents[1]), contextmanager.__code__.co_filename
"""Files that no warning names: those of the library, and contextlib, which runs its context managers."""


class InputError(ValueError):
    """Bad input: the message is one line and names the field, both numbers and the remedy.

    remedy : the options with which the same call would work, where they are known; they end the message, in Python's
    words, and the command line makes a command of them.

    >>> print(InputError("a.csv does not say its kind", kind="percent"))
    a.csv does not say its kind; try kind='percent'
    """

    def __init__(self, message: str, *remedies: Mapping[str, Any], **remedy: Any) -> None:
        super().__init__(message)
        self.remedies = [dict(one) for one in (remedy, *remedies) if one]

    @property
    def remedy(self) -> dict[str, Any]:
        """The first set of options; empty if none is known."""
        return self.remedies[0] if self.remedies else {}

    @property
    def message(self) -> str:
        """What is wrong, without the remedy."""
        return str(self.args[0])

    def __str__(self) -> str:
        words = ", ".join(f"{name}={value!r}" for name, value in self.remedy.items())
        return f"{self.message}; try {words}" if words else self.message


class NoRowsError(InputError):
    """An input with 0 rows; as one part of many it is left out."""


class MissingExtraError(ImportError):
    """An optional dependency is absent; the message names the extra that brings it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs {package}: install it with `pip install 'calibrant[{extra}]'`")


class FitWarning(UserWarning):
    """A fit ended somewhere a person should look at: not converged, or an optimum at infinity."""


class NoOptimumWarning(FitWarning):
    """A likelihood has no maximum, or a search ended at the edge of its grid."""


@contextmanager
def said() -> Iterator[Counter[str]]:
    """What fits inside the block warn of, each with how often, to be told with their results."""
    texts: Counter[str] = Counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        yield texts
        texts.update(str(one.message) for one in caught if issubclass(one.category, FitWarning))


def warn_user(message: str, category: type[FitWarning] = FitWarning) -> None:
    """A FitWarning that names the line outside calibrant from which the work was started."""
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(message, category, stacklevel=level)
