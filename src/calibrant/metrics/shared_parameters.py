"""Parameters that many metrics share are described once, in their types, and listed in every docstring."""

from __future__ import annotations

import re
from collections.abc import Mapping

from calibrant.metrics import inputs

DESCRIBED = ("Probabilities", "ClassIndices", "PositiveProbabilities", "BinaryLabels", "RowWeights")
"""The types of `inputs` that say what they are."""

HEADING = "Parameters\n----------\n"
NEXT_SECTION = re.compile(r"^(?=\w+\n-{3,}$)", re.M)


def with_shared_parameters(docstring: str, types: Mapping[str, str]) -> str:
    """The docstring with an entry for every parameter whose type, by its name, is described.

    >>> print(with_shared_parameters("Accuracy.", {"labels": "BinaryLabels", "n_bins": "int"}))
    Accuracy.
    <BLANKLINE>
    Parameters
    ----------
    labels : array (n,)
        0 or 1.
    """
    entries = ""
    for parameter, name in types.items():
        if name in DESCRIBED and f"\n{parameter} : " not in docstring:  # a module may be reloaded
            shape, _, meaning = getattr(inputs, name).__metadata__[0].partition(": ")
            entries += f"{parameter} : {shape}\n    {meaning}\n"
    if not entries:
        return docstring
    if HEADING in docstring:
        return docstring.replace(HEADING, HEADING + entries, 1)
    following = NEXT_SECTION.search(docstring)
    start, rest = (
        (docstring, "") if following is None else (docstring[: following.start()], docstring[following.start() :])
    )
    return f"{start.rstrip()}\n\n{HEADING}{entries}\n{rest}".rstrip()
