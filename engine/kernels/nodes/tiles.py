"""Building blocks of generated loops over a tile of examples: rows, tiles on the stack, free sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_utils
from numba.extending import intrinsic
from numba.np import arrayobj as untyped_arrays

from partita.engine.numerics import compiled

cgutils: Any = untyped_utils
arrayobj: Any = untyped_arrays

TILE: Final = 128
"""Examples that run side by side, whose varying numbers stay in the nearest cache."""


def _view(context: Any, builder: Any, array_type: Any, pointer: Any, length: Any) -> Any:
    """Makes an array of `length` numbers at a pointer; it owns nothing."""
    array = arrayobj.make_array(array_type)(context, builder)
    size = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(array_type.dtype)))
    arrayobj.populate_array(
        array, data=pointer, shape=(length,), strides=(size,), itemsize=size, meminfo=None
    )
    return array._getvalue()


def _generate_stack(typing_context, length, kind):  # type: ignore[no-untyped-def]
    if not isinstance(length, types.IntegerLiteral):
        return None
    array_type = types.Array(kind.dtype, 1, "C")

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        data = context.get_data_type(array_type.dtype)
        with builder.goto_entry_block():
            buffer = builder.alloca(data, length.literal_value)
            buffer.align = 64
        n = context.get_constant(types.intp, length.literal_value)
        return _view(context, builder, array_type, buffer, n)

    return array_type(length, kind), generate


stack = cast(Callable[[int, Any], Any], intrinsic(_generate_stack))
"""`stack(128, np.float32)` is an array on the stack, for as long as the function runs, not set to anything.
LLVM knows that nothing else points to it. The length is a literal."""


def _generate_row(typing_context, x, padding, sender, start, length):  # type: ignore[no-untyped-def]
    array_type = types.Array(x.dtype, 1, "C")

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        x_type, padding_type, *_ = signature.args
        array = arrayobj.make_array(x_type)(context, builder, arguments[0])
        outside = arrayobj.make_array(padding_type)(context, builder, arguments[1])
        _, sender, start, length = arguments[1:]
        n_examples = cgutils.unpack_tuple(builder, array.shape, 2)[1]
        place = builder.add(builder.mul(sender, n_examples), start)
        is_there = builder.icmp_signed(">=", sender, ir.Constant(sender.type, 0))
        pointer = builder.select(
            is_there, builder.gep(array.data, [place]), builder.gep(outside.data, [start])
        )
        return _view(context, builder, array_type, pointer, length)

    return array_type(x, padding, types.intp, types.intp, types.intp), generate


row = cast(Callable[[Any, Any, int, int, int], Any], intrinsic(_generate_row))
"""`row(x, padding, sender, start, length)` is `x[sender, start : start + length]`, or of `padding` where the
sender is padding. Nothing is checked."""


def _generate_line(typing_context, array, line, start, length):  # type: ignore[no-untyped-def]
    view = types.Array(array.dtype, 1, "C")

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        whole = arrayobj.make_array(signature.args[0])(context, builder, arguments[0])
        _, line, start, length = arguments
        line_length = cgutils.unpack_tuple(builder, whole.shape, 2)[1]
        place = builder.add(builder.mul(line, line_length), start)
        return _view(context, builder, view, builder.gep(whole.data, [place]), length)

    return view(array, types.intp, types.intp, types.intp), generate


part = cast(Callable[[Any, int, int, int], Any], intrinsic(_generate_line))
"""`part(array, line, start, length)` is `array[line, start : start + length]`. Nothing is checked."""


def _generate_add(typing_context, total, value):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.fadd(*arguments, flags=("reassoc", "nsz", "contract"))

    return (total(total, value), generate) if total == value and isinstance(total, types.Float) else None


add_freely = cast(Callable[[Any, Any], Any], intrinsic(_generate_add))
"""`total + value`, as part of a sum over the examples that may be taken in the order that suits vectors."""


def _generate_multiply_add(typing_context, a, b, total):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        a, b, total = arguments
        product = builder.fmul(a, b, flags=("contract",))
        return builder.fadd(total, product, flags=("reassoc", "nsz", "contract"))

    return (total(a, b, total), generate) if a == b == total and isinstance(total, types.Float) else None


multiply_add_freely = cast(Callable[[Any, Any, Any], Any], intrinsic(_generate_multiply_add))
"""`a * b + total`, as `add_freely`, rounded once or twice."""


@compiled
def within(index: int, length: int) -> int:
    """Returns the place of an index that may count from the end.

    Raises:
        IndexError: it lies outside.
    """
    place = index + length if index < 0 else index
    if place < 0 or place >= length:
        raise IndexError("an index lies outside of the node's edges")
    return place


assert np.dtype(np.int64) == np.dtype(np.intp), "indices are 64 bits wide"
