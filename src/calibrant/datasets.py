"""The embedded data sets, under their public name."""

from calibrant.data.datasets import Dataset, load, names

__all__ = ["Dataset", "load", "names"]
