"""Finds out which choices the kernels of a part ask the plan for: of libraries, and of forms of tiles."""

from __future__ import annotations

from typing import NamedTuple

from typing_extensions import override

from partita.engine.kernels.kernel import Array
from partita.engine.parameters.optimizers import SGD
from partita.engine.profile.kernel_benchmark import BenchmarkPart
from partita.engine.runtime.buffers import Buffers, Vectors
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.feed import Feed
from partita.engine.runtime.local_optimizer import LocalOptimizer
from partita.layers.box import Box
from partita.partitioner.cluster.products import LARGE, Choice, Products, ProductShape
from partita.partitioner.cluster.tile_forms import TiledLoop, TileForm, TileForms


class Asked(NamedTuple):
    """The large products, and the large operations of layers on patches, that a part computes in a step."""

    products: frozenset[ProductShape]
    loops: frozenset[TiledLoop]


def asked_of(part: BenchmarkPart) -> Asked:
    """Returns what the kernels of a part ask for."""
    plan, machine = part.plan, part.machine
    if machine not in {*plan.large_products, *plan.large_patches}:
        return Asked(frozenset(), frozenset())
    forms = _AskedForms()
    products = _AskedProducts(forms)
    recorded = plan.multiplying_by(products)
    program = recorded.programs_for(part.kind)[machine]
    vectors = Vectors(recorded, machine, gradient=program.kind.gradients == "whole")
    buffers, updates = Buffers(recorded, machine, program, vectors), LocalOptimizer(SGD(1e-9), vectors)
    Computations(buffers, _Nothing(), updates).close()  # kernels ask where their calls are prepared
    by_libraries = plan.precision != "bfloat16" and machine in plan.large_products
    return Asked(
        frozenset(shape for shape in products.shapes if by_libraries and shape.operations >= LARGE),
        frozenset(loop for loop in forms.loops if loop.operations >= LARGE),
    )


class _AskedProducts(Products):
    """Records the products for which kernels want a choice."""

    def __init__(self, forms: TileForms) -> None:
        super().__init__(forms=forms)
        object.__setattr__(self, "shapes", set())

    shapes: set[ProductShape]

    @override
    def choose(self, shape: ProductShape) -> Choice:
        self.shapes.add(shape)
        return Choice("numpy", 1)


class _AskedForms(TileForms):
    """Records the operations for which kernels want the form of a tile."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "loops", set())

    loops: set[TiledLoop]

    @override
    def choose(self, loop: TiledLoop) -> TileForm | None:
        self.loops.add(loop)
        return None


class _Nothing(Feed):
    """Feeds a part that is prepared and never played."""

    @override
    def fill(self, name: str, box: Box, out: Array, *, first: int = 0) -> None:
        raise AssertionError(f"{name} is wanted, but nothing is played")
