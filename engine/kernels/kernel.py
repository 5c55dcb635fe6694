"""The interface of kernels: the arithmetic of one machine's rows of one layer, over all examples of a batch.

Arrays are node-major, `[rows, other node axes ..., example]`, C-contiguous. A kernel knows where its rows lie
in the layer and where its input windows lie in their layers; it never knows a message or another machine.

A kernel is bound to its arrays once and prepares calls without arguments: a step finds its views made, its
scratch allocated and its code compiled.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from partita.engine.kernels.thread_pool import ThreadPool
from partita.engine.numerics import master, storage
from partita.layers.box import Spans
from partita.layers.graph import Grid
from partita.layers.layer import Layer
from partita.partitioner.cluster.products import Products

Array: TypeAlias = npt.NDArray[Any]
Call: TypeAlias = Callable[[], None]


@dataclass(frozen=True)
class KernelContext:
    """The part of a layer that a kernel computes, and how.

    Args:
        grid: the layer.
        rows: its rows `[start, stop)` that this machine owns.
        sources: its input layers.
        windows: for each source, the rows `[start, stop)` of its activations that the machine holds.
        grad_windows: for each source, the rows `[start, stop)` of the array that takes its gradient.
        batch: examples in the arrays.
        precision: "float32", "float64", "bfloat16" or "float16".
        threads: how many the kernel may use.
        device: "cpu", or a GPU as "cuda:0".
        mean_over: examples over which a loss takes the mean; `batch` if not given.
        input_rows: for a layer cut by its inputs, the rows `[start, stop)` of the input whose weights the
            machine has, for all rows of the layer.
        products: which library computes which matrix product, see `Plan.products_of`.
        training: whether the layer computes what it computes in training; a backward pass may follow also at
            rest.
        columns: of a tile, the first of its columns and the number of columns of the whole layer.
    """

    grid: Grid
    rows: tuple[int, int]
    sources: tuple[Grid, ...]
    windows: tuple[tuple[int, int], ...]
    grad_windows: tuple[tuple[int, int], ...]
    batch: int
    precision: str = "float32"
    threads: int = 1
    device: str = "cpu"
    mean_over: int | None = None
    input_rows: tuple[int, int] | None = None
    products: Products = Products()  # noqa: RUF009 - frozen
    training: bool = False
    columns: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        """The layer's kind and name, for messages."""
        return f"{self.grid.layer.kind} '{self.grid.name}'"

    @property
    def minibatch(self) -> int:
        """Examples over which a loss takes the mean: `batch`, or more where this is a micro-batch."""
        return self.mean_over or self.batch

    @property
    def dtype(self) -> np.dtype[Any]:
        """Storage type of activations, their gradients and the parameters that kernels read."""
        return storage(self.precision)

    @property
    def master(self) -> np.dtype[Any]:
        """Type of parameter gradients and of sums."""
        return master(self.precision)

    @property
    def n_rows(self) -> int:
        """Number of rows that the machine owns."""
        return self.rows[1] - self.rows[0]

    def node_ranges(
        self, rows: tuple[int, int], shape: tuple[int, ...] | None = None
    ) -> list[tuple[int, int]]:
        """The nodes of these rows as ranges `[start, stop)` of their numbers in the whole layer.

        Args:
            rows: of the machine.
            shape: of a grid with as many axes, in the place of the layer's; an axis of extent 1 stands for
                all places of the layer's.
        """
        stands_for_all = [shape is not None and extent == 1 for extent in shape or self.grid.shape]
        shape = shape or self.grid.shape
        rows = (0, 1) if stands_for_all[0] else rows
        if self.columns is None or stands_for_all[1]:
            per_row = math.prod(shape[1:])
            return [(rows[0] * per_row, rows[1] * per_row)]
        (left, width), depth = self.columns, math.prod(shape[2:])
        starts = ((row * width + left) * depth for row in range(*rows))
        return [(start, start + self.grid.shape[1] * depth) for start in starts]

    @property
    def operations(self) -> float:
        """Floating-point operations of the forward pass of the rows for a batch."""
        return self.grid.flops_per_node * self.n_rows * self.grid.nodes_per_row * self.batch


class Numbered(Protocol):
    """The examples of a step, by the numbers of which counted random bits are a function.

    Attributes:
        step: number of the step in the run.
        visit: how often the examples were seen before.
        position: examples of the run, of all replicas, before those of the step.
        seed: of the run.
    """

    step: int
    visit: int
    position: int
    seed: int

    def numbers(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """The numbers in the data of so many examples of the step, `[count]`."""


class OneStep:
    """Examples numbered from 0, of a step that is the only one."""

    step = visit = position = seed = 0

    def numbers(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """The examples' numbers in the step."""
        return np.arange(first, first + count)


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """The examples of a forward pass and the backward pass after it.

    Args:
        examples: numbers of the step's examples.
        number: of the micro-batch in the step.
        first_example: number in the step of its first example.
        real: how many of its examples are real; the others fill the arrays. All if not given.
        mean_over: examples over which gradients are the mean; `context.minibatch` if not given.
    """

    examples: Numbered = field(default_factory=OneStep)
    number: int = 0
    first_example: int = 0
    real: int | None = None
    mean_over: int | None = None


@dataclass(frozen=True, eq=False)
class PartialSums:
    """Further arrays of a layer that is cut by its inputs.

    Args:
        sums: receives the machine's sums over its own inputs, all rows of the layer.
        terms: the sums of every machine for this machine's rows, in the order in which they are added.
        grad_output: gradients of all rows; None without a backward pass.
        bias_rows: the rows `[start, stop)` of the layer whose biases the machine has.
    """

    sums: Array
    terms: tuple[Array, ...]
    grad_output: Array | None
    bias_rows: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Arrays:
    """The arrays that a kernel reads and writes in every step.

    Args:
        inputs: the input windows, `[window rows, ..., example]` each.
        output: activations of the machine's rows.
        grad_output: gradient of the output; `backward_activation` turns it into that of the preactivation, in
            place. None without a backward pass (a loss, a prediction).
        grad_inputs: for each input, the array of its gradient window; None where none is needed.
        parameters: the machine's piece of each parameter, in order, in storage type.
        summaries: of a layer that is cut, the summaries of all machines, see `Kernel.summarise`.
        grad_summaries: the gradients that each machine's rows return for the summary of all, likewise.
        partial: for a layer that is cut by its inputs.
    """

    inputs: tuple[Array, ...]
    output: Array
    grad_output: Array | None = None
    grad_inputs: tuple[Array | None, ...] = ()
    parameters: tuple[Array, ...] = ()
    summaries: Array | None = None
    grad_summaries: Array | None = None
    partial: PartialSums | None = None

    @property
    def own_grad(self) -> Array:
        """The gradient of the output, which must be there."""
        assert self.grad_output is not None, "this layer has no backward pass"
        return self.grad_output

    def grad_input(self, source: int) -> Array:
        """The array of an input's gradient window, which must be there."""
        found = self.grad_inputs[source]
        assert found is not None, f"input {source} needs no gradient"
        return found


def no_op() -> None:
    """A call that does nothing."""


class Kernel(ABC):
    """The arithmetic of a layer in a context, bound to its arrays.

    Each method prepares a call, which may be made again and again; calls for different rows may run at the
    same time.
    """

    layer: ClassVar[type[Layer]]
    """The kind of layer; none where `build` does not look the kernel up by it."""
    precisions: ClassVar[tuple[str, ...]] = ("float32", "float64", "bfloat16")
    """Precisions that the kernel computes."""
    gradient_by_rows = True
    """States whether parameter gradients can be computed for some rows alone: no two rows share a weight."""

    writes_rows: ClassVar[bool] = False
    """States whether a parameter that is `sparse` may have a `RowGradient` in the place of an array."""

    gradient_by_threads = False
    """States whether parameter gradients of different rows can be computed at the same time, see
    `on_one_thread`.
    """

    gradient_shares: int = 1
    """The number of nearly equal shares in which threads write a parameter gradient: the same threads update
    them, from their caches.
    """

    follows_steps: ClassVar[bool] = False
    """States whether `begin` has to be called before each forward pass."""

    backward_calls: int | None = None
    """The number of calls of `backward_input` and `backward_parameters` after each forward pass; the last one
    frees what the kernel keeps for them. None if it is not known.
    """

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        self.context, self.arrays, self.pool = context, arrays, pool
        self.micro_batch = MicroBatch()

    def begin(self, micro_batch: MicroBatch) -> None:
        """Takes over the examples of the next forward pass; the backward pass after it is of the same."""
        self.micro_batch = micro_batch

    @property
    def n_real(self) -> int:
        """Number of examples in the arrays that are real, the first ones."""
        return self.context.batch if self.micro_batch.real is None else self.micro_batch.real

    @contextmanager
    def on_one_thread(self) -> Iterator[None]:
        """Calls that are prepared meanwhile run on the thread that makes them."""
        pool, self.pool = self.pool, self.pool.at_most(1)
        try:
            yield
        finally:
            self.pool = pool

    @classmethod
    def computes(cls, context: KernelContext) -> bool:
        """Returns whether the kernel computes a layer of its kind, with any settings; else its `forward`
        does.
        """
        return context.precision in cls.precisions

    @classmethod
    def make(cls, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> Kernel:
        """The kernel, however the layer is cut."""
        return cls(context, arrays, pool)

    @abstractmethod
    def forward(self, *, block: tuple[int, int] | None = None, first: bool = True, last: bool = True) -> Call:
        """Computes the output from the inputs.

        A layer that splits its sum is called once for each `block`, rows `[start, stop)` of its input, in a
        fixed order: the `first` call starts the sum, the `last` adds the bias and applies the activation.
        """

    def forward_rows(self, rows: Spans) -> Call:
        """Computes the output for some of the machine's rows, for layers that are `by_rows`.

        Only those rows of the inputs are read that these rows need.
        """
        raise AssertionError(f"{self.context.label} computes all of its rows at once")

    def summarise(self, piece: int) -> Call:
        """Writes `summaries[piece]`: what other machines need to know of this machine's rows, or scores."""
        return no_op

    def summarise_gradient(self, piece: int) -> Call:
        """Writes `grad_summaries[piece]`: the gradient of this machine's rows for the summary of all."""
        raise AssertionError(f"{self.context.label} exchanges no gradient of a summary")

    def backward_activation(self) -> Call:
        """Turns the gradient of the output into that of the preactivation, in place."""
        return no_op

    @abstractmethod
    def backward_input(self, source: int, rows: Spans, *, accumulate: bool) -> Call:
        """Writes the gradient of these rows of input number `source` into its gradient window.

        With `accumulate` the rows already hold the sum over receivers of lower rows, and it is continued:
        receivers are visited in ascending rows, so that the bits do not depend on where the layer is cut.
        """

    @property
    def gradient_dtype(self) -> np.dtype[Any]:
        """Type in which `backward_parameters` writes: that of the masters, or the storage type."""
        return self.context.master

    def backward_parameters(
        self, out: Sequence[Array], rows: tuple[int, int] | None = None, *, accumulate: bool = False
    ) -> Call:
        """Writes the gradient of each parameter, summed over the examples.

        Args:
            out: for each parameter, the array for these rows, of `gradient_dtype`, C-contiguous; see
                `writes_rows`.
            rows: some of the machine's rows, `[start, stop)` in the layer; all if not given.
            accumulate: whether to add to what is there, the gradient over other examples.
        """
        return no_op


class PartialKernel(Kernel):
    """A layer cut by its inputs: `multiply` sums over the machine's inputs, `forward` adds the sums up."""

    @abstractmethod
    def multiply(self, rows: tuple[int, int]) -> Call:
        """Writes the sums over the machine's inputs for these rows of the layer."""

    @property
    def partial(self) -> PartialSums:
        """The arrays of the partial sums."""
        found = self.arrays.partial
        assert found is not None, f"{self.context.grid.name} is cut by its inputs, but has no sums over them"
        return found


class LossKernel(Kernel):
    """The kernel of a loss, which also reports metrics.

    Attributes:
        mean_over: examples over which its gradients are the mean; set to fewer than `context.minibatch`
            before the calls of a minibatch that is not full.
        loss_scale: factor of its gradients, in float16.
    """

    def __init__(self, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> None:
        super().__init__(context, arrays, pool)
        self.mean_over = context.minibatch
        self.loss_scale = 1.0

    @abstractmethod
    def metrics(self, count: int) -> tuple[float, int]:
        """The sum of the loss over the first `count` examples, with the weights of examples and not that of
        the loss; and how many labels are right (0 without labels).
        """

    def count_labels(self, count: int) -> int:
        """The number of labels of the first `count` examples, whoever has their scores; for a loss with
        labels.
        """
        return count
