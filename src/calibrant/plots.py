"""Figures for papers, under their public name."""

from calibrant.report.plots import *  # noqa: F403
from calibrant.report.plots import __all__ as __all__  # noqa: PLC0414
