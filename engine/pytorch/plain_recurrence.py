"""`nn.RNN`, position by position: it has no layer, and a cell at each position is products and a function.

The weights of a layer and direction are shared by all positions. What the positions return is joined as the
module returns it, so that the network grows with the sequence.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch import fx

from partita.engine.pytorch.nodes import arguments, is_tensor, operation_of

ATEN: Final = torch.ops.aten
NETWORKS: Final = frozenset(["rnn_tanh", "rnn_relu"])
"""Operations of ATen that compute all positions, of several layers and both directions."""


def write_out_positions(graph: fx.Graph) -> None:
    """Replaces the operations of `nn.RNN` in a graph by cells. Those without dropout, of padded sequences."""
    for node in list(graph.nodes):
        if node.op == "call_function" and operation_of(node) in NETWORKS:
            a = arguments(node)
            if "batch_sizes" not in a and not (a["dropout"] and a["train"] and a["num_layers"] > 1):
                _Positions(node).write()


class _Positions:
    """A call of `nn.RNN`, while it is written out."""

    def __init__(self, node: fx.Node) -> None:
        self._node, self._given = node, arguments(node)
        self._cell = getattr(ATEN, f"{operation_of(node)}_cell").default
        self._axis = 1 if self._given["batch_first"] else 0  # of the positions

    def write(self) -> None:
        """Adds the cells, and lets others read what they return."""
        a = self._given
        directions, each = 2 if a["bidirectional"] else 1, 4 if a["has_biases"] else 2
        x, last = a["input"], []
        places = [self._call(ATEN.select.int, x, self._axis, n) for n in range(self._positions(x))]
        for layer in range(a["num_layers"]):
            found = []
            for number in range(layer * directions, (layer + 1) * directions):
                own = a["params"][number * each : (number + 1) * each]
                begun = self._call(ATEN.select.int, a["hx"], 0, number)
                turned = number % 2 == 1 and directions == 2
                states = self._over(places[::-1] if turned else places, begun, own)
                last.append(states[-1])
                found.append(states[::-1] if turned else states)
            places = [
                self._call(ATEN.cat.default, list(pair), -1) if directions == 2 else pair[0]
                for pair in zip(*found, strict=True)
            ]
        self._return(self._joined(places, self._axis), self._joined(last, 0))

    def _over(self, places: list[fx.Node], state: fx.Node, parameters: Any) -> list[fx.Node]:
        """The states after each of the positions, in one direction."""
        found = list[fx.Node]()
        for one in places:
            state = self._call(self._cell, one, state, *parameters)
            found.append(state)
        return found

    def _positions(self, x: fx.Node) -> int:
        return int(x.meta["val"].shape[self._axis])

    def _joined(self, places: list[fx.Node], axis: int) -> fx.Node:
        """Tensors one behind the other along a new dimension."""
        rows = [self._call(ATEN.unsqueeze.default, one, axis) for one in places]
        return self._call(ATEN.cat.default, rows, axis) if len(rows) > 1 else rows[0]

    def _call(self, operation: Any, *args: Any) -> fx.Node:
        return called(self._node, operation, *args)

    def _return(self, *found: fx.Node) -> None:
        return_each(self._node, found)


def called(like: fx.Node, operation: Any, *args: Any) -> fx.Node:
    """Adds an operation of ATen before another one, of the same line of the source."""
    with like.graph.inserting_before(like):
        made = like.graph.call_function(operation, args)
    made.meta = {key: one for key, one in like.meta.items() if key != "val"}
    values = fx.map_arg(args, lambda one: one.meta["val"])
    value: Any = like.meta["val"]
    with (value if is_tensor(like) else value[0]).fake_mode:
        made.meta["val"] = operation(*values)
    return made


def return_each(node: fx.Node, found: tuple[fx.Node, ...]) -> None:
    """Lets those that read one of an operation's results read a node of its own; erases the operation."""
    for user in list(node.users):
        assert user.target is operator.getitem, user
        user.replace_all_uses_with(found[operator.index(user.args[1])])  # type: ignore[arg-type]
        user.graph.erase_node(user)
    node.graph.erase_node(node)
