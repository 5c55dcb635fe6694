"""What a kernel is: the arithmetic of one machine's rows of one layer, over all examples of a batch.

Arrays are node-major, `[rows, other node axes ..., example]`, C-contiguous. A kernel knows where its rows lie
in the layer and where the windows it is given lie in their layers; it never knows a message or another
machine.

A kernel is bound to its arrays once, and hands out calls without arguments, so that a step finds its views
made, its scratch taken and its code compiled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from partita.engine.kernels.parallel import Team
from partita.engine.numerics import master, storage
from partita.layers.box import Spans
from partita.layers.graph import Grid
from partita.partitioner.cluster.products import Products

Array: TypeAlias = npt.NDArray[Any]
Call: TypeAlias = Callable[[], None]


@dataclass(frozen=True)
class Site:
    """Where a kernel works.

    Args:
        grid: the layer.
        rows: its rows `[start, stop)` that this machine owns.
        sources: the layers it listens to.
        windows: for each source, the rows `[start, stop)` that the machine holds of its states.
        error_windows: for each source, the rows `[start, stop)` of the array into which its errors go.
        batch: examples in the arrays.
        precision: "float32", "float64" or "bfloat16".
        threads: how many the kernel may use.
        device: "cpu", or a GPU as "cuda:0".
        mean_over: examples of which a loss takes the mean; `batch` if not given.
        inputs: of a layer that is cut by its inputs, the rows `[start, stop)` of the input whose weights the
            machine has, for all rows of the layer.
        products: which library computes which product of matrices, see `Plan.products_of`.
    """

    grid: Grid
    rows: tuple[int, int]
    sources: tuple[Grid, ...]
    windows: tuple[tuple[int, int], ...]
    error_windows: tuple[tuple[int, int], ...]
    batch: int
    precision: str = "float32"
    threads: int = 1
    device: str = "cpu"
    mean_over: int | None = None
    inputs: tuple[int, int] | None = None
    products: Products = Products()  # noqa: RUF009 - frozen

    @property
    def minibatch(self) -> int:
        """Examples of which a loss takes the mean: `batch`, or more, of which these are a part."""
        return self.mean_over or self.batch

    @property
    def dtype(self) -> np.dtype[Any]:
        """In which states, errors and what kernels read of parameters lie in memory."""
        return storage(self.precision)

    @property
    def master(self) -> np.dtype[Any]:
        """Of gradients and of sums."""
        return master(self.precision)

    @property
    def n_rows(self) -> int:
        """How many rows the machine owns."""
        return self.rows[1] - self.rows[0]

    @property
    def operations(self) -> float:
        """Floating-point operations of the rows for a batch on the way up."""
        return self.grid.flops_per_node * self.n_rows * self.grid.nodes_per_row * self.batch


@dataclass(frozen=True, eq=False)
class PartialSums:
    """What a layer works on besides that is cut by its inputs.

    Args:
        sums: where the machine's sums over its own inputs go, all rows of the layer.
        terms: the sums of every machine for the machine's rows, in the order in which they are added.
        deltas: the errors of all rows; None where nothing comes down.
        biased: the rows `[start, stop)` of the layer whose biases the machine has.
    """

    sums: Array
    terms: tuple[Array, ...]
    deltas: Array | None
    biased: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Arrays:
    """What a kernel reads and writes in every step.

    Args:
        sources: the windows of the inputs, `[window rows, ..., example]` each.
        state: the machine's own rows of the layer.
        delta: the errors of these rows; None where nothing comes down (a loss, a prediction).
        errors: for each input, the array of its error window; None where it needs none.
        parameters: the machine's piece of each parameter, in order, as kernels read them.
        summaries: of a loss that is split over machines, see `LossKernel.summarise`.
        partial: of a layer that is cut by its inputs.
    """

    sources: tuple[Array, ...]
    state: Array
    delta: Array | None = None
    errors: tuple[Array | None, ...] = ()
    parameters: tuple[Array, ...] = ()
    summaries: Array | None = None
    partial: PartialSums | None = None

    @property
    def own_errors(self) -> Array:
        """`delta`, where there is one."""
        assert self.delta is not None, "nothing comes down to this layer"
        return self.delta

    def errors_of(self, source: int) -> Array:
        """The array of an input's error window."""
        found = self.errors[source]
        assert found is not None, f"input {source} needs no errors"
        return found


class Kernel(ABC):
    """The arithmetic of a layer at a site, bound to its arrays.

    Each method prepares a call, which may be made again and again; calls for different rows may run at the
    same time.
    """

    gradient_by_rows = True
    """Whether the gradient can be had for some rows alone; not where nodes of all rows share a weight."""

    def __init__(self, site: Site, arrays: Arrays, team: Team) -> None:
        self.site, self.arrays, self.team = site, arrays, team

    @abstractmethod
    def up(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Computes `state`.

        A layer that splits its sum is called once for each `block`, rows `[start, stop)` of its input, in a
        fixed order: the `first` call starts the sum, the `last` adds the bias and applies the activation.
        """

    def delta(self) -> Call:
        """Turns the errors of the layer's states into those of its sums, in place; nothing without an
        activation.
        """
        return nothing

    @abstractmethod
    def errors(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Writes the errors of these rows of input number `source` into the array of its error window.

        With `accumulate` the rows already hold the sum over receivers of lower rows, and it is continued:
        receivers are visited in ascending rows, so that the bits do not depend on where the layer is cut.
        """

    @property
    def gradient_dtype(self) -> np.dtype[Any]:
        """Of what `gradient` writes: that of the masters, or as states are stored."""
        return self.site.master

    def gradient(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Writes the gradient of each parameter, summed over the examples.

        Args:
            out: for each parameter, the array for these rows, of `gradient_dtype`, C-contiguous.
            rows: of the machine's own, `[start, stop)` in the layer; all if not given.
            accumulate: adds it to what is there, that of other examples.
        """
        return nothing


class PartialKernel(Kernel):
    """A layer that is cut by its inputs: each machine has sums over its own, and `up` adds them up."""

    @abstractmethod
    def multiply(self, rows: tuple[int, int]) -> Call:
        """Writes the sums over the machine's inputs for these rows of the layer."""

    @property
    def partial(self) -> PartialSums:
        """Where these sums lie."""
        found = self.arrays.partial
        assert found is not None, f"{self.site.grid.name} is cut by its inputs, but has no sums over them"
        return found


class LossKernel(Kernel):
    """A loss also says how well its scores do.

    Attributes:
        mean_over: examples of which its gradients are the mean; `site.minibatch`, but in a minibatch that is
            not full. Whoever calls what was prepared sets it before.
    """

    def __init__(self, site: Site, arrays: Arrays, team: Team) -> None:
        super().__init__(site, arrays, team)
        self.mean_over = site.minibatch

    def summarise(self, piece: int) -> Call:
        """Writes `summaries[piece]`, what machines must tell one another of their own scores."""
        return nothing

    @abstractmethod
    def metrics(self, count: int) -> tuple[float, int]:
        """The sum of the loss over the first `count` examples, and how many are right (0 if none can be)."""


def nothing() -> None:
    """A call that does nothing."""
