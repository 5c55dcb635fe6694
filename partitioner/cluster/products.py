"""The library and the number of threads of each matrix product: a part of every plan.

Libraries sum in different orders, so the choice decides bits. It follows from the plan alone: from a table
that a calibration measured, else from a fixed rule. Nothing here measures; `engine/profile/products.py` does.
`ThreadShares` holds the least work of a thread, for products as for all else that threads share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, TypeAlias, get_args

from partita.partitioner.cluster.processor import Processor
from partita.partitioner.cluster.threads import ThreadShares
from partita.partitioner.cluster.tile_forms import TileForms

Library: TypeAlias = Literal["numpy", "tiles", "flat tiles", "torch"]
"""BLAS of NumPy or of torch, or our own loops (`engine/kernels/products/tiles.py`): by tiles that fill the
registers, or by tiles of fewer rows and more vectors. All tiles have the same bits."""
Rule: TypeAlias = Literal["tiles", "torch"]
"""A fixed rule, named after the library that computes large products."""
LIBRARIES: Final[tuple[Library, ...]] = get_args(Library)
RULES: Final[tuple[Rule, ...]] = get_args(Rule)
LIBRARY_NAMES: Final[Mapping[Library, str]] = {
    "numpy": "NumPy",
    "tiles": "tiles",
    "flat tiles": "flat tiles",
    "torch": "torch",
}

LARGE: Final = 2e6
"""Operations. Below, NumPy multiplies on one thread: a call takes some 20 microseconds, and what another
library's call costs by itself is more than its product could save. A network of small products never imports
torch."""
_LARGE_GRADIENT: Final = 16 << 20
"""Bytes of a result. Above, tiles wait for memory where few examples are summed up."""
_LARGE_WEIGHT: Final = 16 << 20
"""Bytes of a weight. Above, each row of a tile waits for memory where the weight lies in columns."""
_IN_ONE_VECTOR: Final = 16
"""Columns of a product in float32 that no tile needs more than one vector for."""
_WITH_TILES: Final[Mapping[str, tuple[str, ThreadShares, int]]] = {
    "25": ("AMD's Zen 4", ThreadShares(product=16e6, gradient=16e6), 64),
    "26": ("AMD's Zen 5", ThreadShares(), 0),
}
"""Families of AMD's processors whose AVX-512 tiles use better than torch: names, the least work of a thread,
and the columns of flat tiles."""


@dataclass(frozen=True, slots=True)
class ProductShape:
    """A product of matrices, `[m, k]` times `[k, n]`.

    Args:
        m: rows of the result.
        k: terms of each sum.
        n: columns of the result.
        layout: memory layout of both factors, "N" for rows and "T" for columns.
        precision: "float32", "float64" or "bfloat16".
        threads: threads that may be used.
    """

    m: int
    k: int
    n: int
    layout: str
    precision: str
    threads: int

    @property
    def operations(self) -> float:
        """Number of multiplications and additions."""
        return 2.0 * self.m * self.k * self.n

    def __str__(self) -> str:
        return f"{self.m}x{self.k}x{self.n} {self.layout} {self.precision} x{self.threads}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The library that computes a product, and the threads that it uses."""

    library: Library
    threads: int

    @property
    def by_tiles(self) -> bool:
        """Returns whether our own loops compute it."""
        return self.library in ("tiles", "flat tiles")


@dataclass(frozen=True)
class Products:
    """The choice for every product: a table of measured ones, and a fixed rule for all others. Immutable.

    Args:
        rule: "torch": torch computes what is large. "tiles": our own loops do, and NumPy for gradients
            that no cache holds.
        origin: kind of processor on which the rule was measured; "" if it holds for any.
        measured: choices of a calibration, each for exactly one shape.
        source: processor and time of the calibration, in words.
        threads: the least work of each of several threads.
        flat: columns up to which flat tiles compute the input gradient of a large layer, where the rule has
            tiles compute it. They change no bit.
        forms: the form of the tiles in which layers on patches are multiplied.
    """

    rule: Rule = "torch"
    origin: str = ""
    measured: tuple[tuple[ProductShape, Choice], ...] = ()
    source: str = ""
    threads: ThreadShares = ThreadShares()  # noqa: RUF009 - frozen
    flat: int = 0
    forms: TileForms = TileForms()  # noqa: RUF009 - frozen

    def choose(self, shape: ProductShape) -> Choice:
        """Returns the choice for a product. The same in every process that has this plan."""
        if shape.precision != "bfloat16" and (found := self._table.get(shape)) is not None:
            return found
        return self.by_rule(shape)

    def by_rule(self, shape: ProductShape) -> Choice:
        """Returns the choice for a product that was not measured.

        bfloat16 is torch's alone, whose sums are float32 and rounded once.
        """
        if shape.precision == "bfloat16":
            return Choice("torch", self.threads.count("bfloat16", shape.operations, most=shape.threads))
        if shape.operations < LARGE:
            return Choice("numpy", 1)
        library: Library = self.rule
        if self.rule == "tiles" and _is_large_gradient(shape):
            library = "numpy"
        elif self.rule == "tiles" and _has_large_weight(shape) and _IN_ONE_VECTOR < shape.n <= self.flat:
            library = "flat tiles"
        return Choice(library, self.threads.count("product", shape.operations, most=shape.threads))

    @cached_property
    def _table(self) -> dict[ProductShape, Choice]:
        return dict(self.measured)

    def __str__(self) -> str:
        fixed = f"fixed rule{self.origin and f' of {self.origin}'}"
        if self.measured:
            return f"{len(self.measured)} from the calibration of {self.source}; others by the {fixed}"
        large = f"{LIBRARY_NAMES[self.rule]} from {LARGE / 1e6:.0f} MFLOP"
        if self.rule == "torch":
            return f"{fixed} ({large}, NumPy below)"
        flat = (
            f", flat for input gradients of {_IN_ONE_VECTOR + 1} to {self.flat} columns" if self.flat else ""
        )
        return f"{fixed} ({large}{flat}; NumPy below and for gradients above {_LARGE_GRADIENT >> 20} MiB)"


def products_for(processor: Processor) -> Products:
    """The fixed rule for a kind of processor.

    Torch computes large products, unless the kind is known to compute all of them faster by another library.
    That is so on AMD's Zen 4 and 5 with AVX-512, which the BLAS of torch (MKL) does not use there;
    `docs/performance.md` has the measurements.
    """
    known = _WITH_TILES.get(processor.family) if processor.vendor == "AuthenticAMD" else None
    if known is None or "avx512f" not in processor.features:
        return Products()
    return Products("tiles", known[0], threads=known[1], flat=known[2])


def _is_large_gradient(shape: ProductShape) -> bool:
    """Returns whether the product is the weight gradient of a large layer."""
    item_bytes = 8 if shape.precision == "float64" else 4
    return shape.layout == "NT" and shape.m * shape.n * item_bytes > _LARGE_GRADIENT


def _has_large_weight(shape: ProductShape) -> bool:
    """Returns whether the product is the input gradient, in float32, of a large layer."""
    return shape.layout == "TN" and shape.precision == "float32" and 4 * shape.m * shape.k > _LARGE_WEIGHT
