"""The compiled twin of `kernels.venn_abers`: the same function through numba."""

from __future__ import annotations

from numba import njit

from calibrant.kernels import venn_abers

slopes_with_one_more = njit(nogil=True, cache=True)(venn_abers.slopes_with_one_more)
