"""Graphs whose tensors all have the examples on axis 0, from graphs that move the examples about.

`nn.MultiheadAttention` takes positions first and merges the examples with heads and with positions; recurrent
layers return their last states as (layers, examples, units). A tensor of the module is here a node with the
examples on axis 0 and an account of which axes make up which dimensions, so that transpositions and views
change the account alone. What every operation becomes on such nodes stands in `moved_operations`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import fx

from partita.engine.pytorch.exported import Exported
from partita.engine.pytorch.nodes import operation_of
from partita.engine.pytorch.values import Unsupported

Dims = tuple[tuple[int, ...], ...]
Rule = Callable[["Rewriting", fx.Node], "Placed | None"]

RULES: Final[dict[str, Rule]] = {}
"""By the name of an operation: what it becomes where the examples are not on axis 0 before and behind it."""

CONSTRUCTORS: Final = frozenset(
    ("new_zeros", "new_ones", "new_full", "new_empty", "zeros_like", "ones_like", "full_like")
)
"""Operations that take a tensor for its shape alone."""

ELSEWHERE: Final = "it takes the examples elsewhere than on axis 0, and no rule says what it computes then"


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers what operations with these names become."""

    def register(make: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, make))
        return make

    return register


@dataclass(frozen=True)
class Placed:
    """A tensor of the module.

    Args:
        node: a node whose tensor has the examples on axis 0 and the same numbers.
        dims: for each dimension of the module's tensor, the axes of the node's tensor whose product it is,
            the one that changes slowest first; none for a dimension of extent 1.
    """

    node: fx.Node
    dims: Dims

    @property
    def extents(self) -> tuple[Any, ...]:
        """Extents of the node's axes; that of the examples is a symbol. Of several results, those of one."""
        value = self.node.meta["val"]
        return tuple((value if isinstance(value, torch.Tensor) else value[0]).shape)

    @property
    def is_plain(self) -> bool:
        """Returns whether the node is the module's own tensor."""
        return self.dims == tuple((axis,) for axis in range(len(self.extents)))

    @property
    def starts_with_examples(self) -> bool:
        """Returns whether dimension 0 is that of the examples, and no other has them."""
        return bool(self.dims) and self.dims[0] == (0,) and not any(0 in one for one in self.dims[1:])

    def size(self, dimension: int) -> int:
        """The extent of a dimension without the examples."""
        return math.prod(int(self.extents[axis]) for axis in self.dims[dimension] if axis)


class Rewriting:
    """A graph while its operations are rewritten, one after the other."""

    def __init__(self, graph: fx.Graph, inputs: Mapping[fx.Node, int]) -> None:
        """Brings the examples of the inputs, each with their dimension, to axis 0."""
        self.graph, self.placed = graph, dict[fx.Node, Placed]()
        self._unknown, self._now = set[fx.Node](), next(iter(inputs))
        self._batch = str(next(one.meta["val"].shape[dim] for one, dim in inputs.items()))
        self.splits: dict[fx.Node, tuple[Placed, int]] = {}  # by node, where it came from and the axis
        for node, dim in inputs.items():
            value = node.meta["val"]
            with value.fake_mode:
                node.meta["val"] = value.movedim(dim, 0)
            order = [dim, *(one for one in range(value.dim()) if one != dim)]
            self.placed[node] = Placed(node, tuple((order.index(one),) for one in range(value.dim())))

    def counts(self, extent: Any) -> bool:
        """Returns whether an extent is the number of examples."""
        return isinstance(extent, torch.SymInt) and str(extent) == self._batch

    def visit(self, node: fx.Node) -> None:
        """Rewrites one operation, or notes in `node.meta["refused"]` why it cannot be."""
        inputs = [one for one in node.all_input_nodes if one in self.placed or one in self._unknown]
        is_tensor = isinstance(node.meta.get("val"), torch.Tensor | tuple | list)
        if not inputs or not is_tensor or operation_of(node) in CONSTRUCTORS:
            return
        self._now = node
        if self._unknown.intersection(inputs):
            self._unknown.add(node)
            return
        make = RULES.get(operation_of(node), pointwise if is_pointwise(node) else None)
        with self.graph.inserting_before(node):
            found = None
            try:
                if self._is_first(node) and all(self.placed[one].starts_with_examples for one in inputs):
                    for one in inputs:
                        node.replace_input_with(one, self.standard(self.placed[one]))
                    n = len(Placed(node, ()).extents)
                    found = Placed(node, tuple((axis,) for axis in range(n)))
                elif make:
                    found = make(self, node)
                elif not all(self.placed[one].is_plain for one in inputs):
                    raise Unsupported(ELSEWHERE)
            except Unsupported as error:
                node.meta["refused"] = str(error)
        if found is None:
            self._unknown.add(node)
        else:
            self.placed[node] = found

    def _is_first(self, node: fx.Node) -> bool:
        """Returns whether all results of an operation have the examples alone on axis 0."""
        value = node.meta["val"]
        results = [value] if isinstance(value, torch.Tensor) else value
        return operation_of(node) not in ("lstm", "gru", "rnn_tanh", "rnn_relu") and all(
            isinstance(one, torch.Tensor) and one.dim() > 0 and self.counts(one.shape[0]) for one in results
        )

    def of(self, argument: Any) -> Placed:
        """The tensor of an argument, which has examples or was made for their number, as zeros are."""
        if argument in self.placed:
            return self.placed[argument]
        shape = argument.meta["val"].shape if isinstance(argument, fx.Node) else ()
        [*found] = (axis for axis, extent in enumerate(shape) if self.counts(extent))
        if len(found) != 1:
            raise Unsupported(f"it takes {argument!r} in the place of a tensor of examples")
        order = [found[0], *(one for one in range(len(shape)) if one != found[0])]
        node = argument if order == sorted(order) else self.call("permute", argument, order)
        return Placed(node, tuple((order.index(one),) for one in range(len(shape))))

    def call(self, target: Any, *args: Any, **named: Any) -> fx.Node:
        """Adds an operation of ATen, by its name or as it is, for the operation that is rewritten."""
        if isinstance(target, str):
            target = getattr(torch.ops.aten, target)
            target = next(
                getattr(target, one) for one in ("default", "int", "Tensor") if hasattr(target, one)
            )
        values = fx.map_arg((args, named), lambda one: one.meta["val"])
        with next(iter(self.placed)).meta["val"].fake_mode:
            return self.add(target, args, target(*values[0], **values[1]), **named)

    def add(self, target: Any, args: tuple[Any, ...], value: Any, **named: Any) -> fx.Node:
        """Adds an operation whose result is known, for the operation that is rewritten."""
        node = self.graph.call_function(target, args, named)
        kept = ("stack_trace", "nn_module_stack")
        node.meta.update({key: one for key, one in self._now.meta.items() if key in kept}, val=value)
        return node

    def again(self, node: fx.Node, replaced: Mapping[fx.Node, fx.Node], **changed: Any) -> fx.Node:
        """Adds an operation like another, of other tensors and with other arguments."""
        schema = node.target._schema.arguments  # type: ignore[union-attr]
        args, named = fx.map_arg((node.args, node.kwargs), lambda one: replaced.get(one, one))
        given = {one.name: one.default_value for one in schema if not one.kwarg_only}
        given |= dict(zip((one.name for one in schema), args, strict=False))
        given |= {**named, **changed}
        positional = [given.pop(one.name) for one in schema if not one.kwarg_only]
        return self.call(node.target, *positional, **given)

    def standard(self, x: Placed) -> fx.Node:
        """A node with the dimensions of the module, the first of which must be that of the examples."""
        if x.is_plain:
            return x.node
        if not x.starts_with_examples:
            raise Unsupported(ELSEWHERE)
        return self._shaped(x, tuple(x.size(one) for one in range(1, len(x.dims))))

    def _shaped(self, x: Placed, extents: Sequence[int]) -> fx.Node:
        """A node with the axes in the order of the dimensions, and these extents behind the examples."""
        order = [axis for one in x.dims for axis in one if axis]
        order = [0, *order, *(axis for axis in range(1, len(x.extents)) if axis not in order)]
        node = x.node if order == sorted(order) else self.call("permute", x.node, order)
        shape = tuple(node.meta["val"].shape[1:])
        return node if shape == tuple(extents) else self.call("reshape", node, [-1, *extents])

    def merged(self, x: Placed) -> Placed:
        """The tensor with at most one axis for each dimension, beside the examples, in their order."""
        dims, sizes = list[tuple[int, ...]](), list[int]()
        for number, one in enumerate(x.dims):
            size = x.size(number)
            own = () if size == 1 else (len(sizes) + 1,)
            sizes += [size] * len(own)
            if 0 in one:
                before = math.prod(int(x.extents[axis]) for axis in one[: one.index(0)])
                if 1 < before < size:
                    raise Unsupported("it merges the examples with dimensions before and behind them")
                own = (0, *own) if before == 1 else (*own, 0)
            dims.append(own)
        if tuple(dims) == x.dims and len(x.extents) == len(sizes) + 1:
            return x
        return Placed(self._shaped(x, sizes), tuple(dims))

    def with_last(self, x: Placed, dimension: int) -> Placed:
        """The tensor with one axis for a dimension, behind all others."""
        if 0 in x.dims[dimension]:
            raise Unsupported("it is along the examples, or along a dimension that has them")
        x = self.merged(x)
        own, n = x.dims[dimension], len(x.extents)
        if not own:
            node = self.call("unsqueeze", x.node, -1)
            return Placed(node, tuple((n,) if one == dimension else axes for one, axes in enumerate(x.dims)))
        order = [*(axis for axis in range(n) if axis != own[0]), own[0]]
        if order == sorted(order):
            return x
        dims = tuple(tuple(order.index(axis) for axis in one) for one in x.dims)
        return Placed(self.call("permute", x.node, order), dims)

    def split(self, x: Placed, axis: int, inner: int) -> Placed:
        """The tensor with two axes in the place of one, the second of this extent."""
        extents = [int(one) for one in x.extents[1:]]
        extents[axis - 1 : axis] = [extents[axis - 1] // inner, inner]

        def moved(one: int) -> tuple[int, ...]:
            return (axis, axis + 1) if one == axis else (one + (one > axis),)

        dims = tuple(tuple(new for one in own for new in moved(one)) for own in x.dims)
        node = self.call("reshape", x.node, [-1, *extents])
        self.splits[node] = x, axis
        return Placed(node, dims)

    def constant(self, node: fx.Node, x: Placed) -> fx.Node:
        """A tensor without examples that is joined, number by number, with one in its merged form."""
        shape = [int(one) for one in node.meta["val"].shape]
        if len(shape) > len(x.dims):
            raise Unsupported("it repeats a tensor of examples along a dimension before them")
        offset, wanted = len(x.dims) - len(shape), [1] * (len(x.extents) - 1)
        order: list[tuple[int, int]] = []
        for number, extent in enumerate(shape):
            own = x.dims[number + offset]
            if extent > 1 and (0 in own or not own):
                raise Unsupported("it joins the examples with numbers that differ from one to the next")
            if extent > 1:
                wanted[own[0] - 1] = extent
                order.append((own[0], number))
        kept = [number for _, number in sorted(order)]
        if kept != sorted(kept):
            ones = [one for one in range(len(shape)) if shape[one] == 1]
            node = self.call("permute", node, [*ones, *kept])
        while wanted and wanted[0] == 1:
            wanted.pop(0)
        given = [int(one) for one in node.meta["val"].shape]
        return node if given == wanted else self.call("reshape", node, wanted)


def is_pointwise(node: fx.Node) -> bool:
    """Returns whether an operation computes each number from those of the same place."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags or operation_of(node) in ("dropout", "detach")


def pointwise(at: Rewriting, node: fx.Node) -> Placed:
    """The same operation of the nodes: of several tensors, in one arrangement of their axes."""
    tensors = [one for one in node.all_input_nodes if isinstance(one.meta.get("val"), torch.Tensor)]
    known = [one for one in tensors if one in at.placed]
    if len(tensors) == 1:
        x = at.placed[known[0]]
        return Placed(at.again(node, {known[0]: x.node}), x.dims)
    merged = {one: at.merged(at.placed[one]) for one in known}
    first = merged[max(known, key=lambda one: one.meta["val"].dim())]
    replaced = {one: x.node for one, x in merged.items()}
    if any(x.dims != first.dims for x in merged.values()):
        raise Unsupported("it joins tensors of examples in two arrangements")
    for one in tensors:
        if one not in known:
            replaced[one] = at.constant(one, first)
    return Placed(at.again(node, replaced), first.dims)


def examples_first(exported: Exported, dims: Sequence[int]) -> Exported:
    """Rewrites the graph of a module so that its tensors of examples have these on axis 0.

    Operations that cannot be rewritten have a sentence about that in `meta["refused"]`.

    Args:
        exported: the module; its graph is changed.
        dims: for each input, its dimension of the examples; the others come behind it, and so do those of the
            output.
    """
    graph = exported.program.graph
    at = Rewriting(graph, dict(zip(exported.inputs, dims, strict=True)))
    for node in list(graph.nodes):
        if node.op == "call_function":
            at.visit(node)
    last = graph.output_node()
    for node in exported.outputs:
        x = at.placed.get(node)
        if x is not None and not (x.is_plain and x.node is node):
            behind = [one for one in x.dims if one != (0,)]
            with graph.inserting_before(last):
                if any(0 in one for one in behind):
                    node.meta["refused"] = "it mixes the examples with another dimension"
                else:
                    last.replace_input_with(node, at.standard(Placed(x.node, ((0,), *behind))))
    return replace(exported)
