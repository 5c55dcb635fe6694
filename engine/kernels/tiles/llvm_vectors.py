"""Vectors of the machine, for code written in LLVM's language, where plain loops would leave sums in memory.

This code is generated while Numba compiles: an `intrinsic` receives a builder, and `Vectors` writes with it.
Sums are float32 or float64; operands are of that type, or bfloat16's bits, which are upcast.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, Final, cast

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils as untyped
from numba.core import config as untyped_config
from numba.extending import intrinsic

cgutils: Any = untyped
"""Numba's, which has no types."""
config: Any = untyped_config
"""Numba's settings, from the environment and from a file."""

I1, I16, I32, I64 = (ir.IntType(width) for width in (1, 16, 32, 64))


def _features() -> frozenset[str]:
    """Features of the processor for which Numba compiles: those of this one, unless its settings name others.

    Of a processor that `NUMBA_CPU_NAME` names, only the features in `NUMBA_CPU_FEATURES` are known.
    """
    if config.CPU_FEATURES is None and config.CPU_NAME in (None, "host"):
        return frozenset(name for name, has in binding.get_host_cpu_features().items() if has)
    named = (config.CPU_FEATURES or "").split(",")
    return frozenset(name[1:] for name in named if name.startswith("+"))


_FEATURES: Final = _features()

VECTOR_BYTES: Final = 64 if "avx512f" in _FEATURES else 32 if "avx2" in _FEATURES else 16
"""Size of the machine's vectors."""
REGISTERS: Final = 32 if VECTOR_BYTES == 64 or platform.machine() in ("aarch64", "arm64") else 16
"""Number of its vector registers."""
LINE_BYTES: Final = 64
"""Size of a cache line."""

_NAMES: Final = {ir.FloatType(): "f32", ir.DoubleType(): "f64", I16: "i16"}
_BYTES: Final = {ir.FloatType(): 4, ir.DoubleType(): 8, I16: 2}


class Vectors:
    """Writes operations on vectors of sums.

    Args:
        builder: LLVM's, which writes.
        scalar: type of the sums, `float` or `double` of LLVM.
        size: bytes of a vector.
    """

    def __init__(self, builder: ir.IRBuilder, scalar: ir.Type, *, size: int = VECTOR_BYTES) -> None:
        self.builder, self.scalar = builder, scalar
        self.lanes = size // n_bytes(scalar)
        self.type = ir.VectorType(scalar, self.lanes)

    def load(self, pointer: ir.Value, mask: ir.Value | None = None) -> ir.Value:
        """Loads the numbers from the pointer on, in any alignment; zeros, and nothing read, where masked."""
        stored = ir.VectorType(pointer.type.pointee, self.lanes)
        place = self.builder.bitcast(pointer, stored.as_pointer())
        align = n_bytes(stored.element)
        if mask is None:
            return self.upcast(self.builder.load(place, align=align))
        load = self._intrinsic("masked.load", stored, [place.type, I32, mask.type, stored], stored, ".p0")
        zeros = ir.Constant(stored, [0] * self.lanes)
        return self.upcast(self.builder.call(load, [place, ir.Constant(I32, align), mask, zeros]))

    def store(self, value: ir.Value, pointer: ir.Value, mask: ir.Value | None = None) -> None:
        """Stores a vector of sums, in any alignment; nothing where masked."""
        place = self.builder.bitcast(pointer, self.type.as_pointer())
        align = n_bytes(self.scalar)
        if mask is None:
            self.builder.store(value, place, align=align)
            return
        takes = [self.type, place.type, I32, mask.type]
        store = self._intrinsic("masked.store", self.type, takes, ir.VoidType(), ".p0")
        self.builder.call(store, [value, place, ir.Constant(I32, align), mask])

    def upcast(self, value: ir.Value) -> ir.Value:
        """Converts bfloat16's bits, one or a vector of them, to numbers; anything else stays."""
        vector = value.type if isinstance(value.type, ir.VectorType) else None
        if (vector.element if vector else value.type) != I16:
            return value
        wide, single = I32, ir.FloatType()
        if vector:
            wide, single = (ir.VectorType(element, vector.count) for element in (wide, single))
        shift = ir.Constant(wide, [16] * vector.count if vector else 16)
        return self.builder.bitcast(self.builder.shl(self.builder.zext(value, wide), shift), single)

    def repeat(self, value: ir.Value) -> ir.Value:
        """Repeats a number in every lane."""
        vector = ir.VectorType(value.type, self.lanes)
        no_op = ir.Constant(vector, ir.Undefined)
        first = self.builder.insert_element(no_op, value, ir.Constant(I32, 0))
        return self.shuffled(first, no_op, [0] * self.lanes)

    def repeat_upcast(self, value: ir.Value) -> ir.Value:
        """Upcasts a loaded number, and repeats it in every lane."""
        if value.type != I16:
            return self.repeat(value)
        # Twice in every lane, the lower cut off: cheaper than shifts, and nothing leaves the vectors.
        pairs, wide = ir.VectorType(I16, 2 * self.lanes), ir.VectorType(I32, self.lanes)
        no_op = ir.Constant(pairs, ir.Undefined)
        first = self.builder.insert_element(no_op, value, ir.Constant(I32, 0))
        both = self.builder.bitcast(self.shuffled(first, no_op, [0] * 2 * self.lanes), wide)
        upper = self.builder.and_(both, ir.Constant(wide, [0xFFFF0000] * self.lanes))
        return self.builder.bitcast(upper, self.type)

    def shuffled(self, a: ir.Value, b: ir.Value, lanes: list[int]) -> ir.Value:
        """Picks the lanes with these numbers from the two vectors, one behind the other."""
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))

    def mask(self, count: ir.Value) -> ir.Value:
        """Makes a mask of the first `count` lanes (any number)."""
        numbers = ir.Constant(ir.VectorType(I64, self.lanes), list(range(self.lanes)))
        return self.builder.icmp_signed("<", numbers, self.repeat(count))

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Computes `a * b + c`, rounded once."""
        return self.builder.call(self._intrinsic("fma", self.type, [self.type] * 3, self.type), [a, b, c])

    def prefetch(self, pointer: ir.Value) -> None:
        """Prefetches the line at the pointer, which need not be valid."""
        place = self.builder.bitcast(pointer, ir.IntType(8).as_pointer())
        takes = ir.FunctionType(ir.VoidType(), [place.type, I32, I32, I32])
        function = cgutils.get_or_insert_function(self.builder.module, takes, "llvm.prefetch.p0")
        read, nearest, data = (ir.Constant(I32, value) for value in (0, 3, 1))
        self.builder.call(function, [place, read, nearest, data])

    def _intrinsic(
        self, name: str, vector: ir.VectorType, takes: list[ir.Type], returns: ir.Type, suffix: str = ""
    ) -> Any:
        full = f"llvm.{name}.v{vector.count}{_NAMES[vector.element]}{suffix}"
        return cgutils.get_or_insert_function(self.builder.module, ir.FunctionType(returns, takes), full)


def n_bytes(scalar: ir.Type) -> int:
    """Returns the size of a number in memory."""
    return _BYTES[scalar]


def number(value: int) -> ir.Constant:
    """Makes a constant of Numba's integer type."""
    return ir.Constant(I64, value)


def data_of(context: Any, builder: ir.IRBuilder, kind: Any, array: ir.Value) -> ir.Value:
    """Returns the pointer to the first number of an array."""
    return context.make_array(kind)(context, builder, array).data


def _declare_pointer(typing_context, array):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return data_of(context, builder, array, arguments[0])

    pointer: Any = types.CPointer
    return pointer(array.dtype)(array), generate


pointer_to = cast(Callable[[Any], Any], intrinsic(_declare_pointer))
"""The address of an array's first number. For compiled code."""


def _declare_lanes(typing_context, array):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return number(VECTOR_BYTES // n_bytes(context.get_data_type(array.dtype)))

    return types.intp(array), generate


lanes_of = cast(Callable[[Any], int], intrinsic(_declare_lanes))
"""The number of lanes of a vector of an array's type. For compiled code."""
