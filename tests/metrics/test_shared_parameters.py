"""`help` of every metric describes every parameter it takes."""

from __future__ import annotations

import inspect

import pytest

from calibrant import metrics

PUBLIC = {name: one.function for name, one in metrics.METRICS.items()}
SHARED = {"probabilities", "labels", "sample_weight"}


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_help_lists_the_shared_parameters_once(name: str) -> None:
    said = PUBLIC[name].__doc__
    for parameter in SHARED & set(inspect.signature(PUBLIC[name]).parameters):
        assert said.count(f"\n{parameter} : ") == 1
    assert said.count("Parameters\n----------\n") <= 1


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_help_names_the_types_of_parameters(name: str) -> None:
    """Written out, the type of an array alone fills five lines."""
    shown = str(inspect.signature(PUBLIC[name]))
    assert "_array_like" not in shown
    assert "robabilities'" in shown
