"""Runs a layer by its node definition in plain Python and float64: slow, and obviously right.

Kernels are tested against it. Arrays are node-major, `[node axes ..., example]`, whole layers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.engine.kernels.kernel import Array
from partita.engine.kernels.parameters import is_per_node
from partita.layers.connectivity import PADDING
from partita.layers.graph import Grid
from partita.layers.layer import NodeDefinition, Parameter, Placeholder
from partita.layers.losses import Loss


class Reference:
    """One layer over its inputs.

    Args:
        grid: the layer; it must have a node definition.
        sources: its input layers; for a loss, the scores and the target.
    """

    def __init__(self, grid: Grid, sources: Sequence[Grid]) -> None:
        assert grid.layer.definition is not None, f"{grid.name} has no node definition"
        self.grid, self._sources, self._is_loss = grid, tuple(sources), isinstance(grid.layer, Loss)
        self.definition: NodeDefinition = grid.layer.definition
        self._inputs = self._sources[:1] if self._is_loss else self._sources
        wirings = grid.layer.described_wirings(tuple(source.shape for source in self._inputs))
        pairs = zip(wirings, self._inputs, strict=False)
        self._edges = [one.edges((0, grid.n_rows), grid.shape, source.shape) for one, source in pairs]

    def forward(self, sources: Sequence[Array], parameters: Sequence[Array] = ()) -> Array:
        """Computes the activations of all nodes, float64, for these inputs."""
        batch = sources[0].shape[-1]
        state = np.empty((self.grid.n_nodes, batch))
        for n in range(self.grid.n_nodes):
            for e in range(batch):
                incoming, learned = self._incoming(n, e, sources), self._learned(n, e, sources, parameters)
                state[n, e] = self.definition.upward(incoming, *learned)
        return state.reshape(*self.grid.shape, batch)

    def backward(
        self, sources: Sequence[Array], state: Array, error: Array, parameters: Sequence[Array] = ()
    ) -> tuple[list[Array], list[Array]]:
        """Computes the gradient of each input, and of each parameter summed over the examples, in float64.

        Args:
            sources: the activations of the inputs, whole.
            state: the result of `forward`.
            error: gradient of the activations, before any activation's slope; of one shape with them.
            parameters: whole, in their order.
        """
        downward, batch = self.definition.downward, error.shape[-1]
        assert downward is not None, f"{self.grid.name} has no downward function"
        errors = [np.zeros((source.n_nodes, batch)) for source in self._inputs]
        gradients = [np.zeros(np.shape(parameter)) for parameter in parameters]
        states, given = state.reshape(-1, batch), error.reshape(-1, batch)
        for n in range(self.grid.n_nodes):
            for e in range(batch):
                incoming, learned = self._incoming(n, e, sources), self._learned(n, e, sources, parameters)
                result = downward(incoming, *learned, float(states[n, e]), float(given[n, e]))
                self._scatter(n, e, result if not self._is_loss else (result,), errors)
                for gradient, found, where in zip(gradients, result[1:], self._places(n), strict=False):
                    gradient.reshape(-1)[where] += found
        shaped = [array.reshape(*s.shape, batch) for array, s in zip(errors, self._inputs, strict=True)]
        return shaped, gradients

    def _incoming(self, n: int, e: int, sources: Sequence[Array]) -> Array:
        """Gathers the inputs of node n for example e, from one input layer after the other."""
        found, outside = [], self.grid.layer.padding_value
        for (offsets, indices), source in zip(self._edges, sources, strict=False):
            flat = source.reshape(-1, source.shape[-1])
            senders = indices[offsets[n] : offsets[n + 1]]
            found += [outside if sender == PADDING else float(flat[sender, e]) for sender in senders]
        return np.array(found, dtype=np.float64)

    def _scatter(self, n: int, e: int, result: Sequence[Any], errors: Sequence[Array]) -> None:
        found = iter(result[0])
        for (offsets, indices), error in zip(self._edges, errors, strict=True):
            for i in indices[offsets[n] : offsets[n + 1]]:
                value = next(found)
                if i != PADDING:
                    error[i, e] += value

    def _learned(self, n: int, e: int, sources: Sequence[Array], parameters: Sequence[Array]) -> list[Any]:
        """Returns the node's part of each parameter; for a loss, the example's target."""
        if self._is_loss:
            target, layer = sources[1].reshape(-1, sources[1].shape[-1])[:, e], self._sources[1].layer
            assert isinstance(layer, Placeholder)
            return [int(target[0]) if layer.classes else target.astype(np.float64)]
        flats = [np.asarray(parameter, dtype=np.float64).reshape(-1) for parameter in parameters]
        return [
            flat[where] if isinstance(where, slice) else float(flat[where])
            for flat, where in zip(flats, self._places(n), strict=True)
        ]

    def _places(self, n: int) -> list[slice | int]:
        """Finds the node's part in each flat parameter."""
        offsets = np.sum([offsets for offsets, _ in self._edges], axis=0)
        edges = slice(offsets[n], offsets[n + 1])
        return [part_of(parameter, self.grid, n, edges) for parameter in self.grid.parameters]


def part_of(parameter: Parameter, grid: Grid, node: int, edges: slice) -> slice | int:
    """Finds the part of a node in a flat parameter: its one number, or those of its edges.

    Args:
        parameter: of the layer.
        grid: the layer.
        node: its position in the flat grid.
        edges: its edges among all edges of the layer.
    """
    if not parameter.shared:
        return node if is_per_node(parameter, grid) else edges
    whose, size = node % parameter.shape[0], parameter.size // parameter.shape[0]
    return whose if is_per_node(parameter, grid) else slice(whose * size, (whose + 1) * size)
