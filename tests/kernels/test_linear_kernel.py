"""The kernel of `Linear`: against float64, the same bits under cuts and threads, and where it is chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from partita.engine.kernels import Array, ThreadPool, build
from partita.engine.kernels.layer_form import LayerFormKernel
from partita.engine.kernels.linear import LinearKernel
from partita.engine.kernels.products import product
from partita.layers import Layer, Linear
from partita.layers.box import Shape
from partita.partitioner.cluster.products import Choice, Products, ProductShape
from partita.partitioner.cluster.threads import ThreadShares
from tests.draws import examples
from tests.kernels.cases import Case, Played, case, play, seeds
from tests.properties.kernels import assert_same_bits


@dataclass(frozen=True)
class ByTiles(Products):
    """Tiles compute every product, on all threads."""

    def choose(self, shape: ProductShape) -> Choice:
        return Choice("tiles", shape.threads)


@dataclass(frozen=True)
class TiledCase(Case):
    """A layer whose plan has tiles compute every product."""

    def context(self, *given: object, **settings: object):  # type: ignore[no-untyped-def]
        return replace(super().context(*given, **settings), products=ByTiles())  # type: ignore[arg-type]


def tiled(
    units: int, shape: Shape, *, batch: int, seed: int = 0, dtype: type = np.float64, use_bias: bool = True
) -> TiledCase:
    found = case(Linear(units, use_bias=use_bias), shape, batch=batch, seed=seed, dtype=dtype)
    given_case = TiledCase(found.grid, found.sources, found.inputs, found.parameters, found.error)
    assert isinstance(given_case.kernel(), LinearKernel)
    return given_case


def expected(given_case: Case) -> Played:
    """The same by PyTorch in float64."""
    x, grad = (torch.from_numpy(one.astype(np.float64)) for one in (given_case.inputs[0], given_case.error))
    weight, *bias = (
        torch.from_numpy(one.astype(np.float64)).requires_grad_() for one in given_case.parameters
    )
    x.requires_grad_()
    out = torch.nn.functional.linear(x.movedim(-2, -1), weight, *bias).movedim(-1, -2)
    out.backward(grad)
    numbers: list[Array] = [one.grad.numpy() for one in (x, weight, *bias)]  # type: ignore[union-attr]
    return Played(out.detach().numpy(), (numbers[0],), tuple(numbers[1:]))


def assert_close(found: Played, truth: Played, tolerance: float) -> None:
    pairs = zip(
        (found.state, *found.errors, *found.gradients),
        (truth.state, *truth.errors, *truth.gradients),
        strict=True,
    )
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * np.abs(other).max())


shapes = st.one_of(
    st.tuples(st.integers(1, 9), st.integers(1, 40)),
    st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 20)),
)
units_of = st.one_of(st.integers(1, 20), st.integers(95, 100))


@given(units_of, shapes, st.integers(1, 40), st.sampled_from(["float32", "float64"]), st.booleans(), seeds)
@settings(max_examples=examples(15))
@example(97, (3, 530), 33, "float32", True, 0)
@example(5, (70, 17), 8, "float64", False, 1)
def test_equals_pytorch_in_float64(
    units: int, shape: Shape, batch: int, precision: str, use_bias: bool, seed: int
) -> None:
    dtype = np.dtype(precision).type
    given_case = tiled(units, shape, batch=batch, seed=seed, dtype=dtype, use_bias=use_bias)
    assert_close(play(given_case), expected(given_case), {"float32": 2e-5, "float64": 1e-12}[precision])


@given(st.integers(1, 30), st.integers(2, 40), st.integers(1, 20), st.data(), seeds)
@settings(max_examples=examples(12))
def test_neither_cuts_nor_threads_show_in_the_bits(
    units: int, positions: int, batch: int, data: st.DataObject, seed: int
) -> None:
    """But for the sums over machines, which weight gradients are."""
    given_case = tiled(units, (positions, 7), batch=batch, seed=seed, dtype=np.float32)
    whole = play(given_case)
    assert_same_bits(play(given_case, threads=data.draw(st.integers(2, 3))), whole)
    cuts = data.draw(st.lists(st.integers(1, positions - 1), min_size=1, max_size=3))
    found = play(given_case, *cuts, extra=data.draw(st.integers(0, 2)))
    assert_same_bits(replace(found, gradients=whole.gradients), whole)
    assert_close(found, whole, 1e-4)


def test_has_the_bits_of_one_product_of_matrices() -> None:
    given_case = tiled(100, (40, 70), batch=8, dtype=np.float32, use_bias=False)
    found, weight, columns = play(given_case), given_case.parameters[0], folded(given_case.inputs[0])
    pool, grads = ThreadPool(1), folded(given_case.error)
    wholes = (found.state, weight, columns), (found.errors[0], weight.T, grads)
    for one, left, right in wholes:
        out = np.zeros((len(left), right.shape[1]), np.float32)
        product(left, right, out, pool=pool, choices=ByTiles())()
        assert folded(one).tobytes() == out.tobytes()
    gradient = np.zeros_like(weight)
    product(grads, columns.T, gradient, pool=pool, choices=ByTiles())()
    assert found.gradients[0].tobytes() == gradient.tobytes()


def folded(x: Array) -> Array:
    """The matrices of all places side by side."""
    return np.ascontiguousarray(np.moveaxis(x, -2, 0)).reshape(x.shape[-2], -1)


@pytest.mark.parametrize(
    ("layer", "products", "kernel"),
    [
        (Linear(64), Products("tiles"), LinearKernel),
        (Linear(64), Products("torch"), LayerFormKernel),
        (Linear(8), Products("tiles"), LayerFormKernel),  # too few operations
        (Linear(64, activation="relu"), Products("tiles"), LayerFormKernel),
        (Linear(64, axis=0), Products("tiles"), LayerFormKernel),
    ],
    ids=str,
)
def test_is_chosen_where_tiles_compute_all_products(layer: Layer, products: Products, kernel: type) -> None:
    given_case = case(layer, (32, 32), batch=32, dtype=np.float32)
    context = replace(given_case.context(), products=products)
    pool = ThreadPool(1, shares=ThreadShares())
    assert type(build(context, given_case.arrays(context), pool)) is kernel
