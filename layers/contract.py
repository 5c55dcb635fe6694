"""The contract of a layer's arithmetic: what a layer is given for a step, and what it returns.

A layer writes `forward(step, inputs, parameters)`; the engine calls it for some of the layer's rows, on any
device. Nothing here imports torch: a step hands it over, so that declaring a network imports none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from partita.layers.box import Shape, Span
from partita.layers.connectivity import Connectivity

Tensor: TypeAlias = Any
"""A tensor of torch, node-major: `[rows, other node axes ..., example]`."""
Tensors: TypeAlias = tuple[Tensor, ...]
"""Tensors of the inputs, or of the parameters."""
Gradients: TypeAlias = tuple[tuple[Tensor | None, ...], Tensors]
"""Gradients of the inputs (None: zero) and of the parameters."""


@dataclass(frozen=True)
class Summary:
    """The numbers that each machine of a cut layer computes of its rows and sends to every other.

    Args:
        shape: of the array, without the axis of examples.
        by_example: whether it has such numbers for each example: then the last axis is that of examples.
    """

    shape: Shape
    by_example: bool = True


@dataclass(frozen=True)
class Step:
    """One call of a layer: which examples, which rows, and what for.

    Args:
        number: number of the step in the run.
        micro_batch: number of the micro-batch in the step.
        training: False while a network evaluates or predicts, and where a module of PyTorch is in `eval()`; a
            backward pass may follow there, too.
        first_example: number in the step of the first example.
        rows: rows `[start, stop)` of the layer that are to be computed.
        shape: shape of the layer; of a tile, of the machine's columns.
        sources: shapes of the inputs, likewise.
        windows: for each input, the rows `[start, stop)` that are given: those that feed `rows`.
        wiring: connectivity of the layer; of a tile, over the machine's columns.
        torch: the module, in place of an import.
        random: returns counted random bits, see `bits`.
        examples: how many of the examples are real; those after them only fill the array.
        with_gradient: returns an output, and gives a parameter this gradient in the backward pass, whatever
            the output's: `with_gradient(output, parameter, gradient)`.
        multiply: returns the product of a matrix and the matrices in the last two axes of a tensor, `weight @
            x`, by the library that the plan determines: `multiply(weight, x)`. That may be several times as
            fast as PyTorch's own product.
        contiguous: returns a tensor that lies in the order of its axes: `contiguous(x.permute(...))`. Where
            examples change from last to first, that is several times as fast as `x.contiguous()`.
        convolve: returns what `torch.nn.functional.conv2d` does, of all arguments: `convolve(picture, weight,
            bias, stride, padding, dilation, groups)`. The gradient of a weight of more filters than places is
            several times as fast.
        mean_over: examples of the minibatch, over which gradients are the mean.
        position: examples of the run, of all replicas, before the first one.
        summary: in `forward` and `backward`, the summaries of all machines, as `combine` returned them.
    """

    number: int
    micro_batch: int
    training: bool
    first_example: int
    rows: Span
    shape: Shape
    sources: tuple[Shape, ...]
    windows: tuple[Span, ...]
    wiring: Connectivity
    torch: Any
    random: Callable[..., Tensor]
    examples: int
    mean_over: int
    position: int
    with_gradient: Callable[[Tensor, Tensor, Tensor], Tensor]
    multiply: Callable[[Tensor, Tensor], Tensor]
    contiguous: Callable[[Tensor], Tensor]
    convolve: Callable[..., Tensor]
    summary: Tensor = field(default=None, repr=False)

    @property
    def own(self) -> slice:
        """The rows to compute, as a slice of an input that is given whole."""
        return slice(*self.rows)

    def bits(self, noise: Shape | None = None) -> Tensor:
        """Returns 32 random bits for each node and example, as int32 `[rows, ..., example]`.

        They are Philox of (seed, layer, visit, example, node): equal whatever the cut, the micro-batches, the
        number of replicas and the device, and new in each epoch.

        Args:
            noise: the shape of the whole layer with 1 in the place of extents along which all nodes have the
                same bits; the result has 1 there, too.
        """
        return self.random(noise)

    def keeps(self, rate: float, noise: Shape | None = None) -> Tensor:
        """Returns for each node and example whether it is kept, bool, where each is dropped with this
        rate; for `noise` see `bits`.
        """
        return self.bits(noise) >= min(math.floor(rate * 2.0**32), 2**32 - 1) - 2**31
