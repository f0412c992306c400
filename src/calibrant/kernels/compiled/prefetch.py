"""Ask for memory before it is read: short loops over rows wait for each row otherwise."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from calibrant.kernels.compiled.cached import njit

AHEAD_BYTES = 4096
"""How far before its use a row is asked for: about ten rows of a hundred float32."""

LINE_BYTES = 64
"""What one request brings."""


@intrinsic
def _prefetch(typing_context: Any, address: Any) -> Any:
    """Bring the cache line at an address near; one beyond the end of the data is ignored by the processor."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        read, keep_near, data = number(0), number(3), number(1)
        builder.call(function, [builder.inttoptr(arguments[0], pointer), read, keep_near, data])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@njit(nogil=True, cache=True)
def prefetch_row(address, row_bytes):
    """Ask for what lies `AHEAD_BYTES` beyond a row; rows shorter than a cache line need no help."""
    for line in range(0, row_bytes - LINE_BYTES + 1, LINE_BYTES):
        _prefetch(address + AHEAD_BYTES + line)  # type: ignore[call-arg]
