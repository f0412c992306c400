"""The numba twins; imported only through `kernels.dispatch.pick`, for inputs large enough to pay for it."""
