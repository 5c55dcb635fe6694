"""Forms of tiles: the code that is generated for each, the bits that all share, and what a host lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import numba
import numpy as np
import pytest
from llvmlite import ir

from partita.engine.kernels import local_loops
from partita.engine.kernels.convolution import loops as shared_loops
from partita.engine.kernels.tiles.choice import tile_for
from partita.engine.kernels.tiles.forms import (
    FLAT,
    OWN,
    OWN_TILE,
    ROWS,
    VECTORS,
    candidates,
    is_usable,
    tile_of,
)
from partita.engine.kernels.tiles.llvm_vectors import I64, VECTOR_BYTES
from partita.engine.kernels.tiles.vector_products import _Tiles
from partita.layers import Conv2D, Layer, LocallyConnected2D, Node, Patch
from partita.partitioner.cluster.products import Products
from partita.partitioner.cluster.tile_forms import (
    TAILS,
    TILED_OPERATIONS,
    VECTOR_SIZES,
    TileForm,
    TileForms,
)
from tests.kernels.cases import case, play
from tests.networks import LEARNS, leaky_sum
from tests.properties.kernels import assert_same_bits, assert_true

FLAT_FORM: Final = replace(OWN, rows=FLAT[0], vectors=FLAT[1])
EVERY: Final = [
    TileForm(size, *FLAT, tails) for size in VECTOR_SIZES if size <= VECTOR_BYTES for tails in TAILS
]
CASES: Final[Mapping[str, tuple[Layer, int, Any]]] = MappingProxyType(
    {
        "local": (LocallyConnected2D(9, (3, 2), padding="same", activation="tanh"), 13, local_loops),
        "node": (Node(Patch((2, 3)), leaky_sum, *LEARNS[leaky_sum], (5,)), 21, local_loops),
        "convolution": (Conv2D(9, 3, padding="same", activation="tanh"), 21, shared_loops),
    }
)
"""Layers on patches, examples that leave a rest beyond vectors, and the module of their loops."""


def generated(form: TileForm, scalar: ir.Type) -> str:
    """The tiles of a form in LLVM's language, for sums and operands of one type."""
    pointer, tuples = scalar.as_pointer(), [ir.LiteralStructType([I64] * n) for n in (2, 4, 3, 4, 5)]
    into, left, right, extent, ahead = tuples
    takes = [pointer, into, pointer, left, pointer, right, extent, ir.IntType(8), ahead, I64]
    function = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), takes), "tiles")
    builder = ir.IRBuilder(function.append_basic_block())
    _Tiles(builder, scalar, function.args, numba.typeof(tile_of(form))).write()
    builder.ret_void()
    return str(function.module)


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, marks=[pytest.mark.slow] if form.vector_bytes == 64 else [], id=str(form))
        for form in EVERY
        if form.vector_bytes > 16 or VECTOR_BYTES == 16
    ],
)
def test_what_is_generated_is_what_the_form_says(form: TileForm) -> None:
    item = 4 if form.vector_bytes == 32 else 8
    text, lanes = generated(form, {4: ir.FloatType(), 8: ir.DoubleType()}[item]), form.vector_bytes // item
    multiplied = {size for size in (1, 2, 4, 8, 16) if f"llvm.fma.v{size}f{8 * item}" in text}
    halves = {lanes >> k for k in range(1, lanes.bit_length())}
    assert multiplied == {lanes} | (halves if form.tails == "halved" else {lanes // 2})
    assert (f"llvm.masked.store.v{lanes}f{8 * item}" in text) == (form.tails != "halved")
    # Tiles of one row and one vector: with a mask, without, and of each half.
    found = sum(line.strip('":').startswith("tile_1_1") for line in text.splitlines())
    assert found == {"masked": 1, "masked or whole": 2, "halved": 1 + len(halves)}[form.tails]


def test_the_rule_is_the_first_candidate_and_there_is_code_for_all() -> None:
    assert candidates()[0] == OWN and len(set(candidates())) == len(candidates()) > 1
    assert all(map(is_usable, candidates()))
    assert (OWN.vector_bytes, OWN.rows, OWN.vectors) == (VECTOR_BYTES, ROWS, VECTORS)


def test_a_form_that_the_host_cannot_have_is_replaced_by_its_own() -> None:
    assert tile_of(None) == tile_of(TileForm(OWN.vector_bytes, ROWS + 1, 1)) == OWN_TILE
    wider = [size for size in VECTOR_SIZES if size > VECTOR_BYTES]
    for size in wider:
        assert type(tile_of(TileForm(size, 4, 3))) is type(OWN_TILE)
    assert tile_of(FLAT_FORM) == FLAT and type(tile_of(FLAT_FORM)) is type(OWN_TILE)


def other_kinds() -> list[Any]:
    """Forms of which every loop is compiled once more."""
    return [pytest.param(form, marks=pytest.mark.slow, id=str(form)) for form in EVERY]


@pytest.mark.parametrize("form", [FLAT_FORM, *other_kinds()], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_layer_is_computed_in_the_form_of_the_plan_with_the_bits_of_every_other(
    name: str, form: TileForm
) -> None:
    layer, batch, loops = CASES[name]
    given = case(layer, (7, 6, 5), batch=batch, seed=3)
    chosen = replace(given, products=Products(forms=TileForms(fixed=form)))
    found = play(chosen, threads=2)
    assert_true(chosen, found)
    assert_same_bits(found, play(given))
    for operation in TILED_OPERATIONS:
        tile = tile_for(chosen.context(), operation, shared=name == "convolution")
        assert tile == (form.rows, form.vectors)
    kind = numba.typeof(tile_of(form))
    for loop in (loops.forward, loops.backward_input):
        assert any(kind in signature for signature in loop.overloads), f"{loop} was not compiled for {form}"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_all_forms_have_the_same_bits_in_every_precision(name: str, precision: str) -> None:
    layer, batch, _ = CASES[name]
    given = case(layer, (7, 6, 5), batch=batch, seed=3, dtype=np.float32)
    given = given.rounded if precision == "bfloat16" else given
    expected = play(given)
    for form in candidates():
        assert_same_bits(play(replace(given, products=Products(forms=TileForms(fixed=form)))), expected)
