"""The kernel of any node definition on any device: the inputs of all nodes are gathered, and its functions
run in torch, or in plain Python.

The second is for what the first cannot express, node after node and example after example: slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, Protocol, cast

import numpy as np
import torch

from partita.engine.kernels.kernel import Arrays, Kernel, KernelContext
from partita.engine.kernels.layer_form import LayerFormKernel
from partita.engine.kernels.nodes import ir
from partita.engine.kernels.nodes.derivatives import steep
from partita.engine.kernels.nodes.on_torch import TorchFunction
from partita.engine.kernels.nodes.wiring import edges_of
from partita.engine.kernels.parameters import is_per_node
from partita.engine.kernels.thread_pool import ThreadPool
from partita.layers.box import Span
from partita.layers.connectivity import PADDING
from partita.layers.contract import Step
from partita.layers.layer import Layer

Tensor = torch.Tensor


class Form(Protocol):
    """The functions of a node for several nodes that have equally many edges.

    Arrays of the edges are `[edge, node, example]`, numbers of the nodes `[node, example]`.
    """

    @property
    def has_downward(self) -> bool:
        """Returns whether `downward` is called; else autograd derives it."""

    def upward(self, incoming: Tensor, learned: Sequence[Tensor], n_nodes: int) -> Tensor:
        """Returns the states of the nodes."""

    def downward(
        self, incoming: Tensor, learned: Sequence[Tensor], state: Tensor, error: Tensor
    ) -> Sequence[Tensor]:
        """Returns the errors, and the gradient of each parameter by example."""


@dataclass(frozen=True)
class TorchForm:
    """Functions that were read, in torch.

    Args:
        names: of the parameters.
        up: of `upward`.
        down: of `downward`; None if it is derived.
    """

    names: tuple[str, ...]
    up: ir.Function
    down: ir.Function | None

    @property
    def has_downward(self) -> bool:
        """Returns whether the user wrote a `downward`."""
        return self.down is not None

    def upward(self, incoming: Tensor, learned: Sequence[Tensor], n_nodes: int) -> Tensor:
        """Runs `upward` in torch."""
        (state,) = self._function(incoming, learned, n_nodes, {}).run(self.up)
        return cast(Tensor, state)

    def downward(
        self, incoming: Tensor, learned: Sequence[Tensor], state: Tensor, error: Tensor
    ) -> Sequence[Tensor]:
        """Runs `downward` in torch."""
        assert self.down is not None, "autograd derives it"
        more = {ir.STATE.name: state, ir.ERROR.name: error}
        return self._function(incoming, learned, len(state), more).run(self.down)

    def _function(
        self, incoming: Tensor, learned: Sequence[Tensor], n_nodes: int, more: dict[str, Tensor]
    ) -> TorchFunction:
        given = dict(zip(self.names, learned, strict=True))
        arrays = {ir.INCOMING: incoming, **{name: one for name, one in given.items() if one.dim() == 3}}
        numbers = {name: one for name, one in given.items() if one.dim() == 2}
        shape = n_nodes, incoming.shape[2]
        return TorchFunction(torch, arrays, {**numbers, **more}, shape, len(incoming), self._steep)

    @cached_property
    def _steep(self) -> frozenset[ir.Operand]:
        if self.has_downward:
            return frozenset()
        return steep(self.up.body, (ir.INCOMING, *self.names))


@dataclass(frozen=True)
class PythonForm:
    """Functions as they are written, called for each node and example."""

    up: Callable[..., Any]
    down: Callable[..., Any] | None
    has_downward: bool = True

    def upward(self, incoming: Tensor, learned: Sequence[Tensor], n_nodes: int) -> Tensor:
        """Calls `upward` in plain Python."""
        state = np.empty((n_nodes, incoming.shape[2]))
        for n, e in np.ndindex(*state.shape):
            state[n, e] = _number(self.up(*_given((incoming, *learned), n, e)))
        return torch.from_numpy(state).to(incoming)

    def downward(
        self, incoming: Tensor, learned: Sequence[Tensor], state: Tensor, error: Tensor
    ) -> Sequence[Tensor]:
        """Calls `downward` in plain Python."""
        assert self.down is not None, "the kernel has refused to train"
        shapes = [
            (len(one), *error.shape) if one.dim() == 3 else tuple(error.shape) for one in (incoming, *learned)
        ]
        found = [np.empty(shape) for shape in shapes]
        for n, e in np.ndindex(*error.shape):
            results = self.down(*_given((incoming, *learned, state, error), n, e))
            _check(results, shapes)
            for array, result in zip(found, results, strict=True):
                array[..., n, e] = result
        return [torch.from_numpy(array).to(incoming) for array in found]


def _given(arrays: Sequence[Tensor], n: int, e: int) -> list[Any]:
    """The arguments of a function for a node and an example; parameters cannot be changed."""
    found: list[Any] = []
    for i, array in enumerate(arrays):
        own = array[..., min(n, array.shape[-2] - 1), min(e, array.shape[-1] - 1)].detach().cpu().double()
        found.append(own.numpy().copy() if own.dim() else float(own))
        if i and own.dim():
            found[-1].flags.writeable = False
    return found


def _number(result: Any) -> float:
    if np.ndim(result) != 0 or isinstance(result, complex | str):
        raise ValueError(f"upward must return one number, the state; it returned {result!r}")
    return float(result)


def _check(results: Any, shapes: Sequence[tuple[int, ...]]) -> None:
    wanted = [shape[:-2] for shape in shapes]
    if not isinstance(results, tuple) or [np.shape(one) for one in results] != wanted:
        arrays = ", ".join("an array as long as incoming" if shape else "a number" for shape in wanted)
        raise ValueError(
            f"downward must return the tuple ({arrays},), an error for each sender, then a gradient for each "
            f"parameter; it returned {results!r}"
        )


@dataclass(frozen=True)
class _Group:
    """Nodes with equally many edges.

    Attributes:
        nodes: their places in the rows.
        senders: `[edge, node]`, or `[edge, 1]` for all nodes alike; the last place is padding.
        parts: of each parameter, its places in the flat array, `[edge, node]` or `[node]`.
    """

    nodes: Tensor
    senders: Tensor
    parts: tuple[Tensor, ...]


class _Gathered:
    """A layer whose `forward` gathers the inputs of its nodes; in everything else the user's layer."""

    rounds_products = False

    def __init__(self, context: KernelContext, form: Form) -> None:
        self._layer, self._context, self._form = context.grid.layer, context, form
        self._groups: dict[tuple[Span, Any], list[_Group]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    @property
    def has_backward(self) -> bool:
        """Returns whether the user wrote `downward`."""
        return self._form.has_downward

    def forward(self, step: Step, inputs: Sequence[Tensor], parameters: Sequence[Tensor]) -> Tensor:
        """The states of some rows."""
        table, flats = self._table(inputs), [one.reshape(-1) for one in parameters]
        groups = self._grouped(step, table.device)
        found = [self._form.upward(table[one.senders], _parts(one, flats), len(one.nodes)) for one in groups]
        whole = found[0]
        if len(groups) > 1:
            whole = torch.cat(found)[torch.cat([one.nodes for one in groups]).argsort()]
        return whole.reshape(-1, *step.shape[1:], table.shape[-1])

    def backward(
        self,
        step: Step,
        inputs: Sequence[Tensor],
        parameters: Sequence[Tensor],
        output: Tensor,
        grad_output: Tensor,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The gradients that `downward` returns."""
        table, flats = self._table(inputs), [one.reshape(-1) for one in parameters]
        errors, gradients = torch.zeros_like(table), [torch.zeros_like(one) for one in flats]
        states, given = output.flatten(0, -2), grad_output.flatten(0, -2)
        for one in self._grouped(step, table.device):
            results = self._form.downward(
                table[one.senders], _parts(one, flats), states[one.nodes], given[one.nodes]
            )
            places = one.senders.expand(-1, len(one.nodes)).reshape(-1)
            errors.index_add_(0, places, results[0].reshape(-1, table.shape[-1]))
            for gradient, part, result in zip(gradients, one.parts, results[1:], strict=True):
                gradient.index_add_(0, part.reshape(-1), result.sum(-1).reshape(-1))
        sizes = [one.shape[:-1].numel() for one in inputs]
        split = torch.split(errors[:-1], sizes)
        return (
            [found.reshape(one.shape) for found, one in zip(split, inputs, strict=True)],
            [found.reshape(one.shape) for found, one in zip(gradients, parameters, strict=True)],
        )

    def _table(self, inputs: Sequence[Tensor]) -> Tensor:
        """All inputs, a sender in each row; the last row is padding."""
        rows = [one.flatten(0, -2) for one in inputs]
        return torch.cat([*rows, rows[0].new_full((1, rows[0].shape[-1]), self._layer.padding_value)])

    def _grouped(self, step: Step, device: torch.device) -> list[_Group]:
        key = step.rows, step.windows
        if key not in self._groups:
            self._groups[key] = [*self._made(step, device)]
        return self._groups[key]

    def _made(self, step: Step, device: torch.device) -> Any:
        grid = self._context.grid
        counts, senders = edges_of(grid.wirings, step.rows, step.shape, step.sources, step.windows)
        first, nodes = np.cumsum(counts) - counts, np.arange(len(counts))
        per_node = [is_per_node(parameter, grid) for parameter in grid.parameters]
        sizes = [prod(source[1:]) for source in step.sources]
        n_senders = sum(
            (stop - start) * size for (start, stop), size in zip(step.windows, sizes, strict=True)
        )

        def on_device(array: Any) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array, np.int64)).to(device)

        for count in np.unique(counts):
            own = nodes[counts == count]
            edges = first[own] + np.arange(count)[:, None]
            listed = senders[edges]
            listed = np.where(listed == PADDING, n_senders, listed)
            if count and (listed == listed[:, :1]).all():
                listed = listed[:, :1]
            parts = []
            for parameter, single in zip(grid.parameters, per_node, strict=True):
                if parameter.shared:
                    of_filter = own % parameter.shape[0]
                    edges_of_filter = of_filter * count + np.arange(count)[:, None]
                    parts.append(on_device(of_filter if single else edges_of_filter))
                else:
                    parts.append(on_device(own if single else edges))
            yield _Group(on_device(own), on_device(listed), tuple(parts))


def _parts(group: _Group, flats: Sequence[Tensor]) -> list[Tensor]:
    return [flat[part].unsqueeze(-1) for flat, part in zip(flats, group.parts, strict=True)]


def gathered_kernel(form: Form, context: KernelContext, arrays: Arrays, pool: ThreadPool) -> Kernel:
    """Makes the kernel of a node definition in a form."""
    layer = cast(Layer, _Gathered(context, form))
    return LayerFormKernel(replace(context, grid=replace(context.grid, layer=layer)), arrays, pool)
