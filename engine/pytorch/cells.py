"""Recurrent cells as the products and functions that they are: a module that loops over positions by itself.

Each call of `nn.LSTMCell`, `nn.GRUCell` or `nn.RNNCell` becomes two products, whose weights all positions
share, and functions of their sums. A state that depends on no input, such as zeros or a parameter, is marked:
it is the same for all examples, and becomes a value of its own.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx

from partita.engine.pytorch.folding import FILLED
from partita.engine.pytorch.nodes import arguments, operation_of, tensors_of
from partita.engine.pytorch.plain_recurrence import called, return_each, write_out_positions

ATEN: Final = torch.ops.aten
CELLS: Final = frozenset(["lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"])
"""Operations of ATen that compute a position."""


@torch.library.custom_op("partita::begun", mutates_args=())
def _begun(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Stands for a state that is given, beside the input of its cell. The graph is never run."""
    return torch.empty_like(state)


_BEGUN: Final = torch.ops.partita.begun.default


@_begun.register_fake
def _(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(state)


def write_out_cells(graph: fx.Graph, held: frozenset[fx.Node]) -> None:
    """Replaces the cells of a graph, and those of `nn.RNN`.

    Args:
        graph: is changed.
        held: parameters and buffers.
    """
    write_out_positions(graph)
    for node in list(graph.nodes):
        if node.op == "call_function" and operation_of(node) in CELLS:
            _Cell(node, held).write()


class _Cell:
    """A call of a cell, while it is written out."""

    def __init__(self, node: fx.Node, held: frozenset[fx.Node]) -> None:
        self._node, self._held = node, held

    def write(self) -> None:
        """Adds the operations, and lets others read their results."""
        a, name = arguments(self._node), operation_of(self._node)
        hx = list(a["hx"]) if isinstance(a["hx"], list | tuple) else [a["hx"]]
        states = [self._state(one, a["input"]) for one in hx]
        sums = [self._call(ATEN.linear.default, a["input"], a["w_ih"], a["b_ih"])]
        sums.append(self._call(ATEN.linear.default, states[0], a["w_hh"], a["b_hh"]))
        if name == "lstm_cell":
            return_each(self._node, self._lstm(sums, states[1]))
            return
        found = self._gru(sums, states[0]) if name == "gru_cell" else self._plain(sums, name)
        self._node.replace_all_uses_with(found)
        self._node.graph.erase_node(self._node)

    def _lstm(self, sums: list[fx.Node], cell: fx.Node) -> tuple[fx.Node, fx.Node]:
        """The state and the cell; the gates are input, forget, cell and output."""
        gates = self._gates(self._call(ATEN.add.Tensor, *sums), 4)
        first, forget, last = (self._call(ATEN.sigmoid.default, gates[one]) for one in (0, 1, 3))
        new = self._call(ATEN.mul.Tensor, first, self._call(ATEN.tanh.default, gates[2]))
        kept = self._call(ATEN.add.Tensor, self._call(ATEN.mul.Tensor, forget, cell), new)
        return self._call(ATEN.mul.Tensor, last, self._call(ATEN.tanh.default, kept)), kept

    def _gru(self, sums: list[fx.Node], state: fx.Node) -> fx.Node:
        """The state; the gates are reset, update and new."""
        of_x, of_state = (self._gates(one, 3) for one in sums)
        pairs = list(zip(of_x, of_state, strict=True))
        reset, update = (
            self._call(ATEN.sigmoid.default, self._call(ATEN.add.Tensor, *one)) for one in pairs[:2]
        )
        left = self._call(ATEN.mul.Tensor, reset, of_state[2])
        new = self._call(ATEN.tanh.default, self._call(ATEN.add.Tensor, of_x[2], left))
        change = self._call(ATEN.mul.Tensor, update, self._call(ATEN.sub.Tensor, state, new))
        return self._call(ATEN.add.Tensor, new, change)

    def _plain(self, sums: list[fx.Node], name: str) -> fx.Node:
        function = ATEN.tanh.default if name == "rnn_tanh_cell" else ATEN.relu.default
        return self._call(function, self._call(ATEN.add.Tensor, *sums))

    def _gates(self, sums: fx.Node, n: int) -> list[fx.Node]:
        """The units of each gate."""
        units = int(sums.meta["val"].shape[1]) // n
        spans = ((gate * units, (gate + 1) * units) for gate in range(n))
        return [self._call(ATEN.slice.Tensor, sums, 1, *span) for span in spans]

    def _state(self, state: fx.Node, x: fx.Node) -> fx.Node:
        """A state; one that depends on no input with a mark."""
        return state if self._depends(state) else self._call(_BEGUN, state, x)

    def _depends(self, node: fx.Node) -> bool:
        """Returns whether a tensor depends on an input."""
        seen, stack = set[fx.Node](), [node]
        while stack:
            one = stack.pop()
            if one in seen or operation_of(one) in FILLED:
                continue
            seen.add(one)
            if one.op == "placeholder" and one not in self._held:
                return True
            stack += tensors_of(one)
        return False

    def _call(self, operation: Any, *args: Any) -> fx.Node:
        return called(self._node, operation, *args)
