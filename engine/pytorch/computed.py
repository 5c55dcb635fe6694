"""Layers `Expression` from groups of operations: their inputs, constants, parameters and rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from partita.engine.pytorch.alignment import POINTWISE, PRODUCTS, SHAPES, NotAlong
from partita.engine.pytorch.conversion import Conversion
from partita.engine.pytorch.expression import Expression
from partita.engine.pytorch.grouping import Group
from partita.engine.pytorch.nodes import arguments, extent_of, extents, is_tensor, operation_of, tensors_of
from partita.engine.pytorch.program import (
    ITEM,
    PART,
    Argument,
    Call,
    ComputeType,
    Constant,
    Examples,
    Held,
    Input,
    Program,
    Register,
    Rows,
)
from partita.engine.pytorch.values import MIXED, Unsupported, Value

_ELSEWHERE = frozenset(("device", "layout", "pin_memory", "memory_format"))
"""Arguments that a step decides."""


def _is_free(name: str) -> bool:
    """Returns whether a parameter of an `Expression` may have a name."""
    return name not in Expression.__dataclass_fields__ and not hasattr(Expression, name)


def expression(at: Conversion, group: Group) -> Value:
    """Places the layer of a group of operations.

    Numbers that are the same for each example, such as a learnt state, read some states for their number of
    examples alone, and are not cut.
    """
    free = at.free
    if group.root in at.constants:
        group = Group(group.root, ())
    leaves = {one: at.value(one) for one in group.leaves(free)}
    d = _rows_of(group, leaves, free) if leaves else None
    leaves = leaves or dict([at.any_states()])
    _check_examples(group, leaves, free)
    for one in leaves:
        if not one.meta["val"].is_floating_point():
            raise Unsupported("it computes with whole numbers of an input")
    made = _Writer(at, group, leaves, d).program()
    program, parameters = made
    states = [one.states for one in leaves.values()]
    found = at.expressed(group.root, program, parameters, states)
    axes: list[int | None] = [None] * max(len(program.order), 1)
    for axis, dimension in enumerate(program.order):
        axes[dimension] = axis
    return Value(found, tuple(axes))


def _check_examples(group: Group, leaves: Mapping[fx.Node, Value], free: Any) -> None:
    """Raises Unsupported where an example's result depends on other examples."""
    if extents(group.root)[:1] != ((1, True),):
        raise Unsupported(MIXED)
    try:
        found = group.demands(0, free)
    except NotAlong:
        raise Unsupported("it mixes the examples with each other") from None
    if any(k != 0 for (_, argument), k in found.items() if argument in leaves):
        raise Unsupported("it moves the examples from axis 0")


def _rows_of(group: Group, leaves: Mapping[fx.Node, Value], free: Any) -> int | None:
    """The dimension of the result that becomes the layer's rows: that of the inputs' rows where it can be."""
    found: list[tuple[tuple[int, int, int], int]] = []
    for d in group.dimensions(free):
        if extents(group.root)[d][0] < 2:
            continue
        first, part = 0, 0
        for (_, leaf), k in group.demands(d, free).items():
            if leaf in leaves and k is not None:
                size = math.prod(leaves[leaf].extents)
                part += size
                first += size * (leaves[leaf].axes[k - 1] == 0)
        found.append(((first, part, -d), d))
    return max(found)[1] if found else None


class _Writer:
    """The program of a group, while it is written."""

    def __init__(self, at: Conversion, group: Group, leaves: Mapping[fx.Node, Value], d: int | None) -> None:
        self._at, self._group, self._leaves, self._d = at, group, leaves, d
        self._demands = group.demands(d, at.free) if d is not None else {}
        self._registers: dict[fx.Node, Register] = {}
        self._calls: list[Call] = []
        self._parameters: dict[str, fx.Node] = {}
        self._flops = 0.0

    def program(self) -> tuple[Program, dict[str, fx.Node]]:
        """Returns the program, and for each of its parameters by their names in the layer, the node."""
        inputs = tuple(self._input(leaf) for leaf in self._leaves)
        needed = self._free_nodes()
        constants = [one for one in needed if one in self._at.constants]
        parameters = [one for one in needed if one.op == "placeholder" and one not in self._at.constants]
        held = [self._held(one) for one in parameters]
        for one in (*self._leaves, *constants, *parameters):
            self._registers[one] = Register(len(self._registers))
        self._count = len(self._registers)
        for one in constants:
            self._expand(one)
        for one in (*(node for node in needed if node not in self._registers), *self._group.members):
            self._add(one)
        order = self._order()
        root = [factor for factor, _ in extents(self._group.root)[1:]]
        size = max(math.prod(root), 1)
        shape = tuple(root[one] for one in order) or (1,)
        return Program(
            inputs=inputs,
            constants=tuple(Constant(self._at.constants[one]) for one in constants),
            parameters=tuple(held),
            calls=tuple(self._calls),
            order=order,
            shape=shape,
            rows=self._d is not None,
            places=self._places(order, constants, parameters),
            operations=self._flops / size + 1.0,
        ), self._parameters

    def _input(self, leaf: fx.Node) -> Input:
        value = self._leaves[leaf]
        axes = value.axes if len(extents(leaf)) > 1 else ()
        wanted = {k for (_, one), k in self._demands.items() if one is leaf}
        k = wanted.pop() if wanted else None
        return Input(axes, None if k is None else value.axes[k - 1])

    def _free_nodes(self) -> list[fx.Node]:
        """The nodes that depend on no input and that the operations need, each behind those that it needs."""
        found: dict[fx.Node, None] = {}

        def visit(node: fx.Node) -> None:
            if node in found:
                return
            if node not in self._at.constants and node.op != "placeholder":
                for one in tensors_of(node):
                    visit(one)
            found[node] = None

        for member in self._group.members:
            for one in tensors_of(member):
                if one in self._at.free:
                    visit(one)
        if not self._group.members:
            visit(self._group.root)
        return list(found)

    def _held(self, node: fx.Node) -> Held:
        """A parameter of the module, under a name of its own in the layer."""
        name, tensor = self._at.numbers(node)
        if not isinstance(tensor, torch.nn.Parameter):
            raise Unsupported(f"it computes with {name}, which a step changes")
        short = name.rpartition(".")[2] or "parameter"
        numbered = (f"{short}_{n}" for n in range(1, len(self._parameters) + 3))
        own = next(one for one in (short, *numbered) if one not in self._parameters and _is_free(one))
        self._parameters[own] = node
        return Held(own, tuple(tensor.shape), tensor.requires_grad)

    def _expand(self, node: fx.Node) -> None:
        """Repeats a constant for each example, where the graph has it so."""
        sizes = extents(node) if is_tensor(node) else ()
        if any(counts for _, counts in sizes):
            self._registers[node] = self._call(
                "expand.default", (self._registers[node], tuple(Examples(f) if c else f for f, c in sizes))
            )

    def _call(self, operation: str, args: tuple[Argument, ...], named: Any = ()) -> Register:
        self._calls.append(Call(operation, args, tuple(named)))
        return Register(self._count + len(self._calls) - 1)

    def _add(self, node: fx.Node) -> None:
        """Writes the call of an operation."""
        name = operation_of(node)
        rows = self._own_rows(node)
        if name == "getitem":
            self._registers[node] = self._call(ITEM, (self._registers[node.all_input_nodes[0]], node.args[1]))
            return
        if not isinstance(node.target, torch._ops.OpOverload):
            raise Unsupported("it is no operation of ATen")
        if torch.Tag.nondeterministic_seeded in node.target.tags and name not in PRODUCTS:
            raise Unsupported("it draws random numbers")
        args = arguments(node)
        overload = node.target._overloadname
        if name in ("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze"):
            name = "reshape"
        if name in ("reshape", "expand"):
            given = self._read(node, node.all_input_nodes[0]), self._sizes(node, rows)
            self._registers[node] = self._call(f"{name}.default", given)
            return
        if args.get("dropout_p"):
            raise Unsupported("it has dropout, and enable_gqa=True")
        schema = {one.name: one for one in node.target._schema.arguments if one.name not in _ELSEWHERE}
        written = {key: self._argument(node, args[key]) for key in schema}
        positional = tuple(one for key, one in written.items() if not schema[key].kwarg_only)
        named = [(key, one) for key, one in written.items() if schema[key].kwarg_only and one is not None]
        self._count_operations(node)
        self._registers[node] = self._call(f"{name}.{overload}", positional, named)

    def _own_rows(self, node: fx.Node) -> int | None:
        """The dimension of a member's result that is that of the rows."""
        if node is self._group.root:
            return self._d
        wanted = {k for (_, one), k in self._demands.items() if one is node}
        return wanted.pop() if wanted and node not in self._at.free else None

    def _sizes(self, node: fx.Node, rows: int | None) -> tuple[Argument, ...]:
        """The extents of a result, for any number of examples and of rows."""
        found: list[Argument] = [Examples(f) if counts else f for f, counts in extents(node)]
        if rows:
            found[rows] = Rows()
        return tuple(found)

    def _read(self, node: fx.Node, argument: fx.Node) -> Register:
        """The register of an argument; of a tensor that depends on no input, the rows that are needed."""
        found, free = self._registers[argument], self._at.free
        k = self._demands.get((node, argument)) if argument in free and node not in free else None
        return found if k is None else self._call(PART, (found, k))

    def _argument(self, node: fx.Node, given: Any) -> Argument:
        if isinstance(given, fx.Node):
            if isinstance(given.meta.get("val"), torch.SymInt | int):
                factor, counts = extent_of(given.meta["val"])
                if counts and operation_of(node) not in SHAPES and node not in self._at.free:
                    raise Unsupported("it computes with the number of examples")
                return Examples(factor) if counts else factor
            return self._read(node, given)
        if isinstance(given, list | tuple):
            return tuple(self._argument(node, one) for one in given)
        if isinstance(given, torch.dtype):
            return ComputeType() if given.is_floating_point else given
        return given

    def _count_operations(self, node: fx.Node) -> None:
        """Adds up the operations for one example."""
        size = math.prod(factor for factor, _ in extents(node)) if is_tensor(node) else 0
        name = operation_of(node)
        if name in PRODUCTS:
            sizes = [math.prod(f for f, _ in extents(one)) for one in tensors_of(node)[:2]]
            # [n, k] times [k, m]: n k, k m and n m determine k
            size = int(2 * math.sqrt(math.prod(sizes) * max(size, 1)))
            size *= 2 if name == "scaled_dot_product_attention" else 1
        self._flops += size if name not in SHAPES else 0

    def _order(self) -> tuple[int, ...]:
        """The dimensions of the result as axes of the layer: rows, then as the largest input has."""
        n = len(extents(self._group.root)) - 1
        alike = [value for leaf, value in self._leaves.items() if len(extents(leaf)) == n + 1]
        main = max(alike, key=lambda value: math.prod(value.extents), default=None)
        order = list(range(n))
        if main is not None:
            order.sort(key=lambda one: (main.axes[one] is None, main.axes[one] or 0))
        if self._d is not None:
            order.remove(self._d - 1)
            order.insert(0, self._d - 1)
        return tuple(order)

    def _places(self, order: tuple[int, ...], constants: list[fx.Node], parameters: list[fx.Node]) -> bool:
        """Returns whether a number depends on those of its place alone."""
        if parameters or any(self._at.constants[one].numel() > 1 for one in constants):
            return False
        if any(operation_of(one) not in POINTWISE for one in self._group.members) or self._d is None:
            return False
        axes = tuple(order.index(one) for one in range(len(order)))
        same = {(value.axes, value.extents) for value in self._leaves.values()}
        root = tuple(factor for factor, _ in extents(self._group.root)[1:])
        return same == {(axes, root)}
