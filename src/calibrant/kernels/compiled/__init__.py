"""The numba twins; imported only through `core.statistic.Kernel.form`, for inputs large enough to pay for it."""
