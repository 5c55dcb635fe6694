"""Embedding: a row of a table for each number of a class."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from partita.layers.box import Box, Shape, Span
from partita.layers.checks import check_flag, check_whole, is_whole
from partita.layers.connectivity import Connectivity, Index
from partita.layers.contract import Gradients, Step, Tensor, Tensors
from partita.layers.initial import Initialiser, check_initialiser
from partita.layers.layer import Layer, Parameter
from partita.layers.regularisers import Regulariser
from partita.layers.ties import ParameterOf


@dataclass(frozen=True)
class SameRow(Connectivity):
    """The wiring of the nodes of a row to all nodes of the same row of the input."""

    def shape(self, source: Shape, nodes: Shape | None) -> Shape:
        """The rows of the input, with the nodes given for each."""
        return (source[0], *(nodes or source[1:]))

    def sources(self, region: Box, source: Shape) -> tuple[Box, ...]:
        """The same rows, whole."""
        return (Box((region.rows, *((0, extent) for extent in source[1:]))),) if region.size else ()

    def edges(self, rows: Span, shape: Shape, source: Shape) -> tuple[Index, Index]:
        """All senders of the row, for each of its nodes."""
        senders, nodes = math.prod(source[1:]), math.prod(shape[1:])
        first = np.repeat(np.arange(*rows), nodes)[:, None] * senders
        return np.arange(len(first) + 1) * senders, (first + np.arange(senders)).reshape(-1)

    def fan_in(self, source: Shape) -> int:
        """The nodes of a row of the input."""
        return math.prod(source[1:])


@dataclass(frozen=True)
class Embedding(Layer):
    """Looks up a row of a table for each position: `weight[number]`.

    The input holds numbers of classes from 0, `net.input("words", shape=12, classes=1000)`; the output has
    the shape (positions, units). All positions share the table. Repeated numbers are legal: their gradients
    add up.

    With `sparse`, a step costs what the rows cost that it touches, whatever the size of the table: the
    gradient has these rows alone, and so have updates and pushes. No number differs. It takes an optimizer
    that leaves rows without a gradient as they are: `SGD` or `Adagrad`, without weight decay.

    Args:
        classes: number of rows of the table, at least as many as the input has classes.
        units: numbers of a row.
        padding_idx: a class whose output is zero and which never learns.
        initialiser: of the table, see `Parameter`.
        regulariser: of the whole table, for example `L2(1e-4)`.
        trainable: whether the table learns.
        sparse: whether gradients, updates and pushes are of the rows that a step touches.
        rows: the table has the rows `(start, stop)` of the classes alone, and the output of others is zero:
            the sum of such layers, each on a machine, is an embedding cut by the rows of its table.
        name: the layer's name in the network.
    """

    integer_inputs = True
    slowdown = 20.0

    _meant: ClassVar[Any] = {
        "num_embeddings": ("classes",),
        "input_dim": ("classes",),
        "embedding_dim": ("units",),
        "output_dim": ("units",),
        "mask_zero": "call PaddingMask(0) on the numbers, and give its result to the layers that take a mask",
    }

    classes: int
    units: int
    padding_idx: int | None = field(default=None, kw_only=True)
    initialiser: Initialiser = field(default="normal", kw_only=True)
    regulariser: Regulariser | None = field(default=None, kw_only=True)
    trainable: bool = field(default=True, kw_only=True)
    sparse: bool = field(default=False, kw_only=True)
    rows: tuple[int, int] | None = field(default=None, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raises ValueError for an invalid setting."""
        super().check()
        classes, units = (check_whole(self.classes, "the number of classes is"), self.units)
        self._settle(classes=classes, units=check_whole(units, "the number of units is"))
        self._settle(initialiser=check_initialiser(self.initialiser))
        self._settle(sparse=check_flag(self.sparse, "sparse is"))
        if self.sparse and self.regulariser is not None:
            raise ValueError(
                f"it has sparse=True, and {self.regulariser!r} changes every row in every step; leave "
                "one of them out"
            )
        if self.rows is not None:
            self._settle(rows=self._checked_rows(self.rows))
        if self.padding_idx is not None:
            self._settle(padding_idx=check_whole(self.padding_idx, "padding_idx is", least=0))
            if self.padding_idx >= self.classes:
                raise ValueError(
                    f"padding_idx is {self.padding_idx}; write a class from 0 to {self.classes - 1}"
                )

    def _checked_rows(self, given: object) -> tuple[int, int]:
        """Returns rows of the classes. Raises ValueError where they are none."""
        pair = tuple(given) if isinstance(given, tuple | list) else ()
        if len(pair) != 2 or not all(map(is_whole, pair)) or not 0 <= pair[0] < pair[1] <= self.classes:
            raise ValueError(
                f"rows is {given!r}; write the first class and the one after the last, for example "
                f"(0, {self.classes})"
            )
        return int(pair[0]), int(pair[1])

    @property
    def connectivity(self) -> Connectivity:
        """All nodes of a position to its number."""
        return SameRow()

    @property
    def definition(self) -> None:
        """None: a node picks one of its weights by the state of its sender, which is no sum over edges."""
        return None

    def shape(self, sources: tuple[Shape, ...]) -> Shape:
        """The positions, and the units of each.

        Raises:
            ValueError: the input has several axes.
        """
        if len(sources[0]) != 1:
            raise ValueError(
                f"the input has the shape {sources[0]}; give it a row of positions, shape=12 for example"
            )
        return (*sources[0], self.units)

    def parameters(self, shape: Shape, sources: tuple[Shape, ...]) -> tuple[Parameter, ...]:
        """The table, which all positions share."""
        start, stop = self.rows or (0, self.classes)
        table = (stop - start, self.units)
        fans = self.classes, self.units
        return (Parameter("weight", table, self.initialiser, *fans, shared=True, sparse=self.sparse),)

    def flops_per_node(self, sources: tuple[Shape, ...]) -> float:
        """The copy of one number of the table."""
        return 1.0

    @property
    def weight(self) -> ParameterOf:
        """The table, for another layer to use: `Linear(classes, weight=embedding.weight)` gives scores of the
        classes by the same rows.
        """
        return self.parameter("weight")

    def forward(self, step: Step, inputs: Tensors, parameters: Tensors) -> Tensor:
        """Rows of the table, `[position, unit, example]`."""
        (numbers,), (table,) = inputs, parameters
        look_up = step.torch.nn.functional.embedding
        if self.rows is not None:
            start, stop = self.rows
            counts = (numbers >= start) & (numbers < stop)
            if self.padding_idx is not None:
                counts &= numbers != self.padding_idx
            places = (numbers - start).clamp(0, stop - start - 1)
            return look_up(places, table, sparse=self.sparse).movedim(-1, 1) * counts.unsqueeze(1)
        found = look_up(numbers, table, self.padding_idx, sparse=self.sparse).movedim(-1, 1)
        if self.padding_idx is None:
            return found
        return found * (numbers != self.padding_idx).unsqueeze(1)

    def backward(
        self, step: Step, inputs: Tensors, parameters: Tensors, output: Tensor, grad_output: Tensor
    ) -> Gradients:
        """The gradients of the rows that were looked up, `(numbers, [k, unit])`: a number may occur often."""
        (numbers,) = inputs
        grads = grad_output.movedim(1, -1)  # [position, example, unit]
        if self.rows is None and self.padding_idx is None:
            return (None,), ((numbers.reshape(-1), grads.reshape(-1, self.units)),)
        start, stop = self.rows or (0, self.classes)
        counts = (numbers >= start) & (numbers < stop)
        if self.padding_idx is not None:
            counts &= numbers != self.padding_idx
        return (None,), ((numbers[counts] - start, grads[counts]),)
