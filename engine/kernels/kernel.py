"""What a kernel is: the arithmetic of one machine's rows of one layer, over all examples of a batch.

Arrays are node-major, `[rows, other node axes ..., example]`, C-contiguous. A kernel knows where its rows lie
in the layer and where the windows it is given lie in their layers; it never knows a message or another
machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from partita.layers.graph import Grid
from partita.layers.rows import Rows

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class Site:
    """Where a kernel works.

    Args:
        grid: the layer.
        rows: its rows `[start, stop)` that this machine owns.
        sources: the layers it listens to.
        windows: for each source, the rows `[start, stop)` that the machine holds of its states.
        error_windows: for each source, the rows `[start, stop)` of the array into which its errors go.
        batch: examples in a batch.
        dtype: of states, errors and parameters.
        threads: how many the kernel may use.
    """

    grid: Grid
    rows: tuple[int, int]
    sources: tuple[Grid, ...]
    windows: tuple[tuple[int, int], ...]
    error_windows: tuple[tuple[int, int], ...]
    batch: int
    dtype: np.dtype[Any]
    threads: int = 1

    @property
    def operations(self) -> float:
        """Floating-point operations of the rows for a batch on the way up."""
        return self.grid.flops_per_node * (self.rows[1] - self.rows[0]) * self.grid.nodes_per_row * self.batch


class Kernel(ABC):
    """The arithmetic of a layer at a site. Methods write into given arrays and allocate little.

    In every method `sources` holds the windows of the inputs, `[window rows, ..., example]` each; `state` and
    `delta` the machine's own rows of the layer; `parameters` and `gradients` its piece of each parameter, in
    order.
    """

    def __init__(self, site: Site) -> None:
        self.site = site

    @abstractmethod
    def up(
        self,
        sources: Sequence[Array],
        state: Array,
        parameters: Sequence[Array],
        *,
        block: tuple[int, int] | None = None,
        first: bool = True,
        last: bool = True,
    ) -> None:
        """Computes `state`.

        A layer that splits its sum is called once for each `block`, rows `[start, stop)` of its input, in a
        fixed order: the `first` call starts the sum, the `last` adds the bias and applies the activation.
        """

    def delta(self, state: Array, error: Array) -> None:  # noqa: B027 - most have nothing to do
        """Turns the errors of the layer's states into those of its sums, in place; nothing without an
        activation.
        """

    @abstractmethod
    def errors(
        self,
        source: int,
        rows: Rows,
        out: Array,
        *,
        sources: Sequence[Array],
        state: Array,
        delta: Array,
        parameters: Sequence[Array],
        accumulate: bool,
    ) -> None:
        """Writes the errors of these rows of input number `source` into `out`, the array of its error window.

        With `accumulate` the rows already hold the sum over receivers of lower rows, and it is continued:
        receivers are visited in ascending rows, so that the bits do not depend on where the layer is cut.
        """

    def gradient(  # noqa: B027 - most learn nothing
        self,
        sources: Sequence[Array],
        state: Array,
        delta: Array,
        parameters: Sequence[Array],
        gradients: Sequence[Array],
    ) -> None:
        """Writes the gradient of each parameter, summed over the examples."""


class LossKernel(Kernel):
    """A loss also says how well its scores do."""

    @abstractmethod
    def metrics(self, sources: Sequence[Array], state: Array, count: int) -> tuple[float, int]:
        """The sum of the loss over the first `count` examples, and how many are right (0 if none can be)."""
