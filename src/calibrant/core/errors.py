"""The errors and warnings that calibrant raises on purpose."""


class InputError(ValueError):
    """Bad input: the message is one line and names the field, both numbers and the remedy."""


class NoRowsError(InputError):
    """An input with 0 rows; as one part of many it is left out."""


class MissingExtraError(ImportError):
    """An optional dependency is absent; the message names the extra that brings it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs {package}: install it with `pip install 'calibrant[{extra}]'`")


class FitWarning(UserWarning):
    """A fit ended somewhere a person should look at: not converged, or an optimum at infinity."""
