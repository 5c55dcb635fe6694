"""The forms of register tiles that the host's processor has code for, and the rule for its own.

Compiled code receives a tile as a named tuple of its rows and its vectors. What code is generated from, the
size of vectors and how the rest beyond them is computed, is the tuple's class: Numba compiles a loop once for
each.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Final, TypeAlias, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from partita.engine.kernels.tiles.llvm_vectors import I1, REGISTERS, VECTOR_BYTES, n_bytes, number
from partita.partitioner.cluster.tile_forms import TAILS, VECTOR_SIZES, Tails, TileForm

Tile: TypeAlias = Any
"""A named tuple `(rows, vectors)` of one of the classes in `_KINDS`."""

ROWS, VECTORS = (8, 3) if REGISTERS == 32 else (6, 2)
"""Rows and vectors of the largest tile: its sums, a vector of each operand, and one to spare, fill the
registers.
"""
FLAT: Final = (4, 4) if REGISTERS == 32 else (4, 3)
"""Rows and vectors of the largest of the flat tiles, which some products are computed faster by."""
SIZES: Final = tuple(
    size
    for size in product(range(1, ROWS + 1), range(1, max(VECTORS, FLAT[1]) + 1))
    if any(size[0] <= rows and size[1] <= vectors for rows, vectors in ((ROWS, VECTORS), FLAT))
)
"""Rows and vectors of every tile that there is code for."""

OWN: Final = TileForm(VECTOR_BYTES, ROWS, VECTORS, "masked" if VECTOR_BYTES == 64 else "masked or whole")
"""The form by rule. AVX-512 has registers for masks. Elsewhere a masked load takes longer, and its mask a
register of sums: so there are tiles without masks, too."""


def _kind(vector_bytes: int, tails: Tails) -> type[Tile]:
    """Makes the class of tiles of such vectors; files of compiled code refer to it by its name here."""
    name = f"Tile{8 * vector_bytes}{tails.title().replace(' ', '')}"
    globals()[name] = kind = namedtuple(name, ("rows", "vectors"), module=__name__)
    return kind


_KINDS: Final[Mapping[tuple[int, Tails], type[Tile]]] = {
    (vector_bytes, tails): _kind(vector_bytes, tails) for vector_bytes in VECTOR_SIZES for tails in TAILS
}
_OF_KIND: Final = {kind: of for of, kind in _KINDS.items()}


def form_of_kind(tile: Any) -> tuple[int, Tails]:
    """Returns bytes of a vector and tails, of Numba's type of a tile."""
    return _OF_KIND[tile.instance_class]


def is_usable(form: TileForm) -> bool:
    """Returns whether this processor has vectors of the size, and there is code for tiles of so many."""
    return form.vector_bytes <= VECTOR_BYTES and (form.rows, form.vectors) in SIZES


def tile_of(form: TileForm | None) -> Tile:
    """Returns a form for compiled code; the host's own for None, and in the place of one it cannot have.

    All have the same bits.
    """
    used = form if form is not None and is_usable(form) else OWN
    return _KINDS[used.vector_bytes, used.tails](used.rows, used.vectors)


def candidates() -> tuple[TileForm, ...]:
    """Returns the forms among which a calibration chooses on this processor, the rule's first."""
    narrow = replace(OWN, vector_bytes=32) if VECTOR_BYTES == 64 else replace(OWN, tails="halved")
    return tuple(
        replace(kind, rows=rows, vectors=vectors)
        for kind in (OWN, narrow)
        for rows, vectors in ((ROWS, VECTORS), FLAT)
    )


OWN_TILE: Final = tile_of(OWN)
FLAT_TILE: Final = tile_of(replace(OWN, rows=FLAT[0], vectors=FLAT[1]))
"""Tiles of products of whole matrices, for which the plan chooses between the two."""


def _declare_lanes_in(typing_context, array, tile):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return number(form_of_kind(tile)[0] // n_bytes(context.get_data_type(array.dtype)))

    return types.intp(array, tile), generate


lanes_in = cast(Callable[[Any, Tile], int], intrinsic(_declare_lanes_in))
"""The number of lanes of a tile's vectors of an array's type. For compiled code."""


def _declare_is_halved(typing_context, tile):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return ir.Constant(I1, form_of_kind(tile)[1] == "halved")

    return types.boolean(tile), generate


is_halved = cast(Callable[[Tile], bool], intrinsic(_declare_is_halved))
"""Whether the lanes beyond whole vectors are a tile of their own. For compiled code."""
