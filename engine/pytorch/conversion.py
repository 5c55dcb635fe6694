"""The layers that the operations of a module become, and the parameters of the module that they take."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy.typing as npt
import torch
from torch import fx

from partita.engine.pytorch.exported import Exported
from partita.engine.pytorch.expression import Expression
from partita.engine.pytorch.grouping import Group, groups_of
from partita.engine.pytorch.imported_network import ImportedNetwork, Missing, Origin
from partita.engine.pytorch.kept import Bound
from partita.engine.pytorch.module_layer import Torch
from partita.engine.pytorch.nodes import (
    extents,
    module_of,
    operation_of,
    place_of,
    shape_of,
    tensors_of,
)
from partita.engine.pytorch.program import Program
from partita.engine.pytorch.state_dict import array_of
from partita.engine.pytorch.values import Stacked, Unsupported, Value
from partita.layers import Dense, Layer, Linear
from partita.layers.states import SymbolicTensor
from partita.layers.ties import ParameterOf

Found: TypeAlias = "Value | Stacked | tuple[Value | Stacked, ...]"
"""The result of an operation."""
Operation = Callable[["Conversion", fx.Node], Found]
"""Makes the layers of an operation; raises Unsupported."""

WEIGHTED: Final = frozenset(
    (
        *("linear", "matmul", "conv1d", "conv2d", "batch_norm", "layer_norm", "group_norm"),
        *("rms_norm", "embedding", "lstm", "gru"),
    )
)
"""Operations whose layers take parameters of the module."""

OPERATIONS: Final[dict[str, Operation]] = {}
"""By the name of the operation in ATen, without its overload."""


_ALONE: Final[dict[str, Callable[[fx.Node], bool]]] = {}
"""By the name of an operation, whether that of a node has a layer of its own."""


def operation(
    *names: str, alone: Callable[[fx.Node], bool] = lambda node: True
) -> Callable[[Operation], Operation]:
    """Registers what makes the layers of operations with these names.

    Args:
        names: of the operations.
        alone: whether that of a node, of tensors that depend on inputs, has a layer of its own; if not, it is
            part of an `Expression`.
    """

    def register(make: Operation) -> Operation:
        OPERATIONS.update(dict.fromkeys(names, make))
        _ALONE.update(dict.fromkeys(names, alone))
        return make

    return register


class Conversion:
    """The layers that the operations of a module became so far."""

    def __init__(
        self, network: ImportedNetwork, exported: Exported, parts: Mapping[str, Bound] | None = None
    ) -> None:
        """Declares the inputs. `parts` stay as they are, by their paths."""
        self.network, self._exported, self._parts = network, exported, parts or {}
        self.constants, self.free = exported.constants, exported.free
        self._values: dict[fx.Node, Found] = {}
        self.initial: dict[str, npt.NDArray[Any]] = {}
        self._express: Callable[[Conversion, Group], Value]
        self._first: dict[str, tuple[Layer, str]] = {}  # who was given a parameter of the module first
        self._given: dict[str, Origin] = {}
        for node in exported.inputs:
            extents = tuple(map(int, shape_of(node)[1:])) or (1,)
            states = network.input(name_of(node.name), shape=extents, classes=self._classes(node))
            value = Value.plain(states)
            self._values[node] = value if shape_of(node)[1:] else Value(states, (None,))

    def _classes(self, node: fx.Node) -> int | None:
        """For an input of whole numbers, the rows of the table that it looks up."""
        if node.meta["val"].is_floating_point():
            return None
        for user in node.users:
            if operation_of(user) == "embedding":
                return len(self.numbers(user.args[0])[1])
        raise Unsupported(f"the input {node.name!r} holds whole numbers, and no embedding looks them up")

    def value(self, argument: Any) -> Value:
        """The value of an operation's argument."""
        found = self._values.get(argument) if isinstance(argument, fx.Node) else None
        if isinstance(found, Value):
            return found
        if isinstance(found, Stacked):
            return found.joined()
        if isinstance(argument, fx.Node) and argument in self._exported.state:
            raise Unsupported(f"it computes with {self._exported.state[argument][0] or 'a constant'}")
        if isinstance(argument, fx.Node) and argument in self.free and extents(argument)[:1] == ((1, True),):
            made = self._express(self, Group(argument, (argument,)))
            self._values[argument] = made
            return made
        raise Unsupported(f"it takes {argument!r} in the place of states")

    def any_states(self) -> tuple[fx.Node, Value]:
        """An input of real numbers, or else the value that was made last, of which examples can be counted.

        Raises:
            Unsupported: there is none yet.
        """
        real = [one for one in self._exported.inputs if one.meta["val"].is_floating_point()]
        for node in (*real, *reversed(self._values)):
            found = self._values[node]
            if isinstance(found, Value) and node.meta["val"].is_floating_point():
                return node, found
        raise Unsupported("it depends on no input, and no layer comes before it")

    def values(self, argument: Any) -> tuple[Value | Stacked, ...]:
        """The values of an operation that has several."""
        found = self._values[argument]
        return found if isinstance(found, tuple) else (found,)

    def stacked(self, argument: Any) -> tuple[Value, ...]:
        """The values that are the places of an argument's first dimension; none where they are one value."""
        found = self._values.get(argument)
        return found.parts if isinstance(found, Stacked) else ()

    def numbers(self, argument: Any) -> tuple[str, torch.Tensor]:
        """The name and the numbers of a parameter or buffer of the module."""
        if isinstance(argument, fx.Node) and argument in self._exported.state:
            return self._exported.state[argument]
        raise Unsupported(f"it takes {argument!r} in the place of a parameter")

    def layer(
        self, node: fx.Node, make: Callable[..., Layer], *sources: SymbolicTensor, **settings: Any
    ) -> SymbolicTensor:
        """Places a layer of an operation, under the name of its module."""
        return make(**settings, name=self._free(node))(*sources)

    def weighted(
        self,
        node: fx.Node,
        make: Callable[..., Layer],
        *sources: SymbolicTensor,
        given: Mapping[str, tuple[Any, tuple[int, ...]]],
        **settings: Any,
    ) -> SymbolicTensor:
        """Places a layer with parameters of the module.

        Args:
            node: the operation.
            make: the layer's class.
            sources: its inputs.
            given: for each parameter of the layer, the argument that it is, and the order of its dimensions.
            settings: of the layer.
        """
        found = {name: (*self.numbers(argument), order) for name, (argument, order) in given.items()}
        learns = {kept.requires_grad for _, kept, _ in found.values() if isinstance(kept, torch.nn.Parameter)}
        if len(learns) > 1:
            raise Unsupported("some of its parameters require a gradient, and others do not")
        again = [name for name, (origin, _, _) in found.items() if origin in self._first]
        if learns:
            settings["trainable"] = learns == {True}
        if again and len(again) == len(found):
            before: Any = self._first[found[again[0]][0]][0]
            if type(before) is make and replace(before, name=None) == make(**settings):  # called once more
                again_states: SymbolicTensor = before(*sources)
                return again_states
        for name in again:
            origin, _, order = found[name]
            if name != "weight" or make not in (Dense, Linear):
                raise Unsupported(f"it uses {origin} once more; only weights may be shared")
            settings["weight"] = self.shared(origin, order)
        layer = make(**settings, name=self._free(node))
        states = layer(*sources)
        for name, (origin, kept, order) in found.items():
            if name not in again:
                self._adopt(layer, states, name, Origin(origin, tuple(kept.shape), order), kept)
        return states

    def expressed(
        self,
        node: fx.Node,
        program: Program,
        parameters: Mapping[str, fx.Node],
        sources: Sequence[SymbolicTensor],
    ) -> SymbolicTensor:
        """Places a layer `Expression`.

        Args:
            node: the operation that gives it its name.
            program: what it computes.
            parameters: for each of its parameters, that of the module.
            sources: its inputs.
        """
        found = {name: self.numbers(one) for name, one in parameters.items()}
        orders = {name: tuple(range(kept.dim())) for name, (_, kept) in found.items()}
        ties = tuple(
            (name, self.shared(origin, orders[name]))
            for name, (origin, _) in found.items()
            if origin in self._first
        )
        layer = Expression(program, ties=ties, name=self._free(node))
        states = layer(*sources)
        for name, (origin, kept) in found.items():
            if origin not in self._first:
                self._adopt(layer, states, name, Origin(origin, tuple(kept.shape), orders[name]), kept)
        return states

    def shared(self, origin: str, order: tuple[int, ...]) -> ParameterOf:
        """A parameter of the module that another layer has. Raises Unsupported where its order differs."""
        layer, name = self._first[origin]
        given = self._given[origin]
        if given.order != order:
            raise Unsupported(f"it uses {origin} with its dimensions in another order than before")
        return layer.parameter(name)

    def _adopt(
        self, layer: Layer, states: SymbolicTensor, name: str, origin: Origin, kept: torch.Tensor
    ) -> None:
        """Lets a parameter of a layer be one of the module, and begin with its numbers."""
        own = self.network.parameters[states.name][name]
        self.network.origins[own.name] = origin
        self.initial[own.name] = array_of(kept, origin.order).reshape(own.shape)
        if origin.name not in self._first:
            self._first[origin.name], self._given[origin.name] = (layer, name), origin

    def _free(self, node: fx.Node) -> str:
        """A name of the network for a layer: that of the module that made the node."""
        wanted = name_of(module_of(node) or operation_of(node))
        taken = self.network.parameters.keys()
        names = (wanted, *(f"{wanted}_{n}" for n in range(1, len(taken) + 2)))
        return next(name for name in names if name not in taken)

    def keep(self, node: fx.Node, part: Bound, path: str) -> Value:
        """Places a part of the module as one layer."""
        inputs: Any = node.args[2]
        integers = all(not one.meta["val"].is_floating_point() for one in inputs)
        layer = Torch(part, channels_first=False, integers=integers, name=self._free(node))
        states = layer(*(one.in_order() for one in map(self.value, inputs)))
        for short, own in self.network.parameters[states.name].items():
            tensor = part.get_buffer(short) if own.averaged else part.get_parameter(short)
            of = Origin(
                f"{path}.{short.removeprefix('module.')}", tuple(tensor.shape), tuple(range(tensor.dim()))
            )
            self.network.origins[own.name] = of
        return Value.plain(states)

    def alone(self, node: fx.Node) -> bool:
        """Returns whether an operation has a layer of its own, or needs none."""
        name = operation_of(node)
        if name in WEIGHTED:
            return _ALONE[name](node)
        known = name in OPERATIONS and not any(one in self.free for one in tensors_of(node))
        return known and _ALONE[name](node)

    def convert(self, express: Callable[[Conversion, Group], Value]) -> list[Missing]:
        """Makes the layers of all operations; returns those that have none.

        Args:
            express: makes the layer of operations that become one together.
        """
        self._express = express
        missing: list[Missing] = []
        lacking: set[fx.Node] = set()
        operations = [one for one in self._exported.operations if one not in self.free]
        groups = groups_of(operations, self.free, alone=self.alone, ends=self._exported.outputs)
        of = {node: group for group in groups for node in group.members}
        for node in operations:
            group = of.get(node)
            if group is not None and group.root is not node:
                continue
            read = node.all_input_nodes if group is None else group.leaves(self.free)
            try:
                if "refused" in node.meta:
                    raise Unsupported(node.meta["refused"])
                if group is None and operation_of(node) not in OPERATIONS and operation_of(node) != "kept":
                    raise Unsupported("")
                if not any(one in lacking for one in read):
                    self._values[node] = self._made(node) if group is None else express(self, group)
                    continue
            except (Unsupported, ValueError) as error:
                missing.append(Missing(operation_of(node), str(error), place_of(node), module_of(node)))
            lacking.add(node)
        return missing

    def output(self) -> Value:
        """Returns what the module returns."""
        return self.value(self._exported.outputs[0])

    def _made(self, node: fx.Node) -> Found:
        if operation_of(node) == "kept":
            path = str(node.args[0])
            return self.keep(node, self._parts[path], path)
        return OPERATIONS[operation_of(node)](self, node)


def name_of(text: str) -> str:
    """A name that a network accepts."""
    found = re.sub(r"[^A-Za-z0-9_-]", "_", text)
    return found if re.match(r"[A-Za-z_]", found) else f"layer_{found}"
