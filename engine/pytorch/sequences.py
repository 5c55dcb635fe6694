"""Operations over sequences: recurrent layers, and attention."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from torch import fx

from partita.engine.pytorch.conversion import Conversion, operation
from partita.engine.pytorch.nodes import arguments, is_zeros, operation_of
from partita.engine.pytorch.simplified import of_heads
from partita.engine.pytorch.values import Stacked, Unsupported, Value
from partita.layers import GRU, LSTM, Attention, Concatenate, Dropout, Reshape, Slice
from partita.layers.states import SymbolicTensor


@operation("lstm", "gru")
def recurrent(at: Conversion, node: fx.Node) -> tuple[Value | Stacked, ...]:
    """A layer for each of theirs and each direction; the output, and what the last positions hand on."""
    a = arguments(node)
    directions, each = 2 if a["bidirectional"] else 1, 4 if a["has_biases"] else 2
    if len(a["params"]) != a["num_layers"] * directions * each:
        raise Unsupported("its states are projected (proj_size); the layer's are not")
    hx = a["hx"] if isinstance(a["hx"], list | tuple) else [a["hx"]]
    states = [] if all(map(is_zeros, hx)) else [_states(at, one) for one in hx]
    begun = list(zip(*states, strict=True)) if states else [()] * a["num_layers"] * directions
    with_cell = operation_of(node) == "lstm" and any(
        operation_of(one) == "getitem" and one.args[1] == 2 and one.users for one in node.users
    )
    x, last = at.value(a["input"]).in_order(), list[tuple[Value, ...]]()
    for n in range(a["num_layers"]):
        if n and a["dropout"] and a["train"]:
            x = at.layer(node, Dropout, x, rate=a["dropout"])
        outputs = []
        for number in range(n * directions, (n + 1) * directions):
            own = a["params"][number * each : (number + 1) * each]
            backwards = number % 2 == 1 and directions == 2
            found = _layer(at, node, x, own, begun[number], backwards=backwards, with_cell=with_cell)
            outputs.append(found[0])
            last.append(tuple(map(Value.plain, found[1:])))
        x = Concatenate(1)(*outputs) if directions == 2 else outputs[0]
    return (Value.plain(x), *map(Stacked, zip(*last, strict=True)))


def _states(at: Conversion, argument: Any) -> tuple[Value, ...]:
    """For each layer and direction, the state that it begins with."""
    if found := at.stacked(argument):
        return found
    joined = at.value(argument).in_order()
    rows = (Slice(row, row + 1, axis=0)(joined) for row in range(joined.shape[0]))
    return tuple(Value.plain(Reshape(joined.shape[1:])(row)) for row in rows)


def _layer(
    at: Conversion,
    node: fx.Node,
    x: SymbolicTensor,
    parameters: Sequence[Any],
    begun: Sequence[Value],
    *,
    backwards: bool,
    with_cell: bool,
) -> tuple[SymbolicTensor, ...]:
    """One layer in one direction: its states at all positions, the last one, and the last cell if asked."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    given = dict(zip(names, parameters, strict=False))
    units = at.numbers(given["weight_hh"])[1].shape[1]
    found = at.weighted(
        node,
        LSTM if operation_of(node) == "lstm" else GRU,
        x,
        *(one.in_order() for one in begun),
        given={name: (one, (0, 1) if "weight" in name else (0,)) for name, one in given.items()},
        units=units,
        use_bias="bias_ih" in given,
        return_sequences=True,
        go_backwards=backwards,
        initial_state=bool(begun),
        **({"return_cell": True} if with_cell else {}),
    )

    def row(number: int) -> SymbolicTensor:
        return Reshape((units,))(Slice(number, number + 1, axis=0)(found))

    n = x.shape[0]
    sequence = Slice(0, n, axis=0)(found) if with_cell else found
    return (sequence, row(0 if backwards else n - 1), *([row(n)] if with_cell else []))


@operation("zeros", "new_zeros", "zeros_like")
def zeros(at: Conversion, node: fx.Node) -> tuple[Value, ...]:
    """No value of its own: the state before the first position."""
    return ()


@operation("begun")
def begun(at: Conversion, node: fx.Node) -> Value:
    """The state of a cell that depends on no input."""
    return at.value(node.args[0])


@operation("getitem")
def item(at: Conversion, node: fx.Node) -> Value | Stacked:
    """One of the results of an operation."""
    return at.values(node.args[0])[operator.index(node.args[1])]  # type: ignore[arg-type]


@operation("scaled_dot_product_attention", alone=of_heads)
def attention(at: Conversion, node: fx.Node) -> Value:
    """Attention of heads, over (heads, positions, features)."""
    a = arguments(node)
    inputs = [at.value(a[name]) for name in ("query", "key", "value")]
    (heads, _, features), shared = inputs[0].extents, inputs[1].extents[0]

    def rows(one: Value) -> Any:
        return one.arranged((1, 0, 2), (one.extents[1], one.extents[0] * features))

    queries, keys, values = map(rows, inputs)
    found = at.layer(
        node,
        Attention,
        queries,
        _side_by_side(at, keys, values),
        num_heads=heads,
        key_dim=features,
        causal=a["is_causal"],
        num_key_value_heads=None if shared == heads else shared,
    )
    return Value(found, (1, 0, 2), shape=(found.shape[0], heads, features))


def _side_by_side(at: Conversion, one: SymbolicTensor, other: SymbolicTensor) -> SymbolicTensor:
    """Features of two sequences side by side: one part of a sequence, where they lie so in it."""
    before, after = at.network.slice_of(one), at.network.slice_of(other)
    if before and after and before[0] == after[0] and before[1].stop == after[1].start:
        return Slice(before[1].start, after[1].stop)(before[0])
    return Concatenate()(one, other)
