"""The embedded data sets, under their public name."""

from calibrant.data.datasets import Dataset, load, long_tailed_indices, names

__all__ = ["Dataset", "load", "long_tailed_indices", "names"]
