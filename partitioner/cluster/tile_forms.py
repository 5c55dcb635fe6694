"""The form of the register tiles in which layers on patches are multiplied: a part of every plan.

A tile has some rows by some vectors of sums, and the numbers beyond whole vectors are computed in one of
several ways. Which form is fastest depends on the processor and on the layer, so a calibration measures it
(`engine/profile/tiles.py`), for each operation of each layer. What was not measured is computed in the form
that each host's own processor determines (`engine/kernels/tiles/forms.py`). A form changes no bit: every sum
is a chain of fused multiply-adds in an order of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, TypeAlias, get_args

from partita.layers.text import counted

Tails: TypeAlias = Literal["masked", "masked or whole", "halved"]
"""How the numbers beyond whole vectors are computed. "masked": the last vector of every tile has a mask.
"masked or whole": there are tiles without masks, too, for numbers that fill their vectors. "halved": nothing
has a mask; the rest is computed in vectors of a half, a quarter ... down to a single number."""
TAILS: Final[tuple[Tails, ...]] = get_args(Tails)
VECTOR_SIZES: Final = (16, 32, 64)
"""Bytes of a vector: of SSE and NEON, AVX2, and AVX-512."""

TiledOperation: TypeAlias = Literal["forward", "input gradient", "weight gradient"]
TILED_OPERATIONS: Final[tuple[TiledOperation, ...]] = get_args(TiledOperation)


@dataclass(frozen=True, slots=True)
class TileForm:
    """The form of a tile of sums.

    Args:
        vector_bytes: size of its vectors: 16, 32 or 64.
        rows: rows of the largest tile.
        vectors: vectors of each of its rows.
        tails: how the numbers beyond whole vectors are computed.

    Raises:
        ValueError: there is no such form.
    """

    vector_bytes: int
    rows: int
    vectors: int
    tails: Tails = "masked"

    def __post_init__(self) -> None:
        if self.vector_bytes not in VECTOR_SIZES or self.tails not in TAILS:
            raise ValueError(
                f"there are no tiles of vectors of {self.vector_bytes} bytes with tails '{self.tails}'; "
                f"vectors have {', '.join(map(str, VECTOR_SIZES))} bytes, and tails are {', '.join(TAILS)}"
            )
        if self.rows < 1 or self.vectors < 1:
            raise ValueError(
                f"a tile of {self.rows} x {self.vectors} vectors has no sums; write at least 1 x 1"
            )

    def __str__(self) -> str:
        return f"{self.rows} x {self.vectors} vectors of {self.vector_bytes} bytes, {self.tails}"


@dataclass(frozen=True, slots=True)
class TiledLoop:
    """An operation of a layer on patches, which a tile's form is chosen for.

    Args:
        operation: "forward", "input gradient" or "weight gradient".
        shared: whether all places have the same weights, as in a convolution.
        patch: rows and columns of a patch.
        stride: rows and columns from one patch to the next.
        before: rows and columns by which the first patch begins outside of the picture.
        picture: rows, columns and channels.
        places: rows and columns of the layer, and filters of a place.
        batch: examples.
        precision: "float32", "float64" or "bfloat16".
    """

    operation: TiledOperation
    shared: bool
    patch: tuple[int, int]
    stride: tuple[int, int]
    before: tuple[int, int]
    picture: tuple[int, int, int]
    places: tuple[int, int, int]
    batch: int
    precision: str

    @property
    def row_operations(self) -> float:
        """Number of multiplications and additions of one row of places, the padding counted as patches."""
        (height, width), channels = self.patch, self.picture[2]
        return 2.0 * self.places[1] * self.places[2] * height * width * channels * self.batch

    @property
    def operations(self) -> float:
        """Those of all rows."""
        return self.row_operations * self.places[0]

    def __str__(self) -> str:
        patch, places = (f"{a}x{b}x{c}" for a, b, c in ((*self.patch, self.picture[2]), self.places))
        weights = "shared" if self.shared else "own"
        return f"{patch} to {places}, {weights} weights, x{self.batch} {self.precision}"


@dataclass(frozen=True)
class TileForms:
    """The form of the tiles of every operation: a table of measured ones, and a rule for others. Immutable.

    Args:
        measured: forms of a calibration, each for exactly one operation of a layer.
        source: processor and time of the calibration, in words.
        fixed: the form of all others, given by hand; None: that of each host's processor.
    """

    measured: tuple[tuple[TiledLoop, TileForm], ...] = ()
    source: str = ""
    fixed: TileForm | None = None

    def choose(self, loop: TiledLoop) -> TileForm | None:
        """Returns the form for an operation; None for that of the host's processor."""
        return self._table.get(loop, self.fixed)

    @cached_property
    def _table(self) -> dict[TiledLoop, TileForm]:
        return dict(self.measured)

    def __str__(self) -> str:
        rule = f"{self.fixed}" if self.fixed else "as wide as each host's vectors"
        if not self.measured:
            return f"fixed rule ({rule})"
        forms = Counter(str(form) for _, form in self.measured)
        shown = "; ".join(f"{form}: {n}" for form, n in forms.most_common())
        how = f"{counted(len(self.measured), 'loop')} from the calibration of {self.source}"
        return f"{how} ({shown}); others by the fixed rule ({rule})"
