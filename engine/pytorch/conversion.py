"""The layers that the operations of a module become, and the names of its parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy.typing as npt
import torch
from torch import fx

from partita.engine.pytorch.exported import Exported, module_of, operation_of, place_of, shape_of
from partita.engine.pytorch.kept import Bound
from partita.engine.pytorch.module_layer import Torch
from partita.engine.pytorch.state_dict import array_of, constant_of, dtype_name, parameters_of, state_of
from partita.engine.pytorch.values import Stacked, Unsupported, Value
from partita.layers import Dense, Layer, Linear, Network
from partita.layers.graph import Graph
from partita.layers.module_state import ModuleState, StateEntry
from partita.layers.states import SymbolicTensor

Found: TypeAlias = "Value | Stacked | tuple[Value | Stacked, ...]"
"""The result of an operation."""
Operation = Callable[["Conversion", fx.Node], Found]
"""Makes the layers of an operation; raises Unsupported."""

OPERATIONS: Final[dict[str, Operation]] = {}
"""By the name of the operation in ATen, without its overload."""


def operation(*names: str) -> Callable[[Operation], Operation]:
    """Registers what makes the layers of operations with these names."""

    def register(make: Operation) -> Operation:
        OPERATIONS.update(dict.fromkeys(names, make))
        return make

    return register


@dataclass(frozen=True)
class Missing:
    """An operation without a layer.

    Args:
        operation: its name.
        why: the reason, if there are layers for others like it.
        place: the line of the source.
        module: path of the part of the module that has it.
    """

    operation: str
    why: str
    place: str
    module: str

    def __str__(self) -> str:
        return f"{self.operation}{f': {self.why}' if self.why else ''}, at {self.place}"


@dataclass(frozen=True)
class Origin:
    """Where a parameter of the network comes from.

    Args:
        name: of the parameter or buffer in the module.
        shape: its shape there.
        order: its dimensions in the order of the network's array.
    """

    name: str
    shape: tuple[int, ...]
    order: tuple[int, ...]


class ImportedNetwork(Network):
    """A network that a module of PyTorch became. Give it a loss, as any other.

    Attributes:
        output: the module's result, in its own order of axes.
        origins: for each parameter, that of the module which it was.
        kept: by the path of a part that stays as it is, the operations without layers that are the reason.
    """

    def __init__(self, name: str) -> None:
        """Has no layers yet."""
        super().__init__(name)
        self.output: SymbolicTensor
        self.origins: dict[str, Origin] = {}
        self.kept: dict[str, tuple[Missing, ...]] = {}
        self._state: list[StateEntry] = []

    @property
    def origin(self) -> ModuleState:
        """The module's state dict, and the parameters that its entries became."""
        firsts = {entry.name: entry.same_as for entry in self._state}
        # torch.export may know a shared parameter by its other name
        became = {firsts[one.name]: (own, one.order) for own, one in self.origins.items()}
        return tuple(
            replace(entry, parameter=became[entry.same_as][0], order=became[entry.same_as][1], constant=None)
            if entry.same_as in became
            else entry
            for entry in self._state
        )

    def keep_names(self, module: torch.nn.Module) -> None:
        """Keeps the names of a module's state, and those numbers that are no parameters here."""
        first: dict[int, str] = {}
        for name, kept in module.state_dict(keep_vars=True).items():
            same_as, shape = first.setdefault(id(kept), name), tuple(kept.shape)
            entry = StateEntry(name, shape, dtype_name(kept), same_as, constant=constant_of(kept))
            self._state.append(entry)

    def drop_unused(self) -> None:
        """Drops the layers whose result nothing reads, but the output; their parameters become constants."""
        while True:
            read = {source for grid in self._grids.values() for source in grid.sources} | {self.output.name}
            shared = {
                one.layer
                for grid in self._grids.values()
                for one in grid.parameters
                if one.layer != grid.name
            }
            unused = [
                name
                for name, grid in self._grids.items()
                if not grid.is_placeholder and name not in read | shared
            ]
            if not unused:
                return
            for name in unused:
                for own in self._grids.pop(name).parameters:
                    if own.layer == name:
                        self.origins.pop(own.name, None)
                del self._parameters[name]

    def state_dict(self, parameters: Mapping[str, npt.NDArray[Any]]) -> dict[str, torch.Tensor]:
        """Returns the numbers of a run by the module's names, for `load_state_dict(..., strict=True)`.

        Names of one tensor have one tensor; numbers have the precision of the run, or bfloat16 and float16
        where the module has these. `run.state_dict()` does the same.

        Args:
            parameters: `run.parameters`.
        """
        return state_of(self.origin, parameters)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes initial values from a state dict of the module, as `module.load_state_dict` does.

        Args:
            state: tensors or arrays, by the names of the module or of this network.

        Raises:
            ValueError: names are missing or unknown, or shapes or types differ: all of them are listed.
        """
        graph = Graph(self.name, self._placed, (), self.origin)
        parameters, constants = parameters_of(graph, state, what="the state dict does")
        self.initialise(parameters)
        self._state = [replace(one, constant=constants.get(one.same_as, one.constant)) for one in self._state]


class Conversion:
    """The layers that the operations of a module became so far."""

    def __init__(
        self, network: ImportedNetwork, exported: Exported, parts: Mapping[str, Bound] | None = None
    ) -> None:
        """Declares the inputs. `parts` stay as they are, by their paths."""
        self.network, self._exported, self._parts = network, exported, parts or {}
        self._values: dict[fx.Node, Found] = {}
        self.initial: dict[str, npt.NDArray[Any]] = {}
        self._layers: dict[str, Layer] = {}  # those that were given a parameter of the module first
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
        raise Unsupported(f"it takes {argument!r} in the place of states")

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
        again = [name for name, (origin, _, _) in found.items() if origin in self._layers]
        if learns:
            settings["trainable"] = learns == {True}
        if again and len(again) == len(found):
            before: Any = self._layers[found[again[0]][0]]
            if replace(before, name=None) == make(**settings):  # the same layer is called once more
                again_states: SymbolicTensor = before(*sources)
                return again_states
        for name in again:
            if name != "weight" or make not in (Dense, Linear):
                raise Unsupported(f"it uses {found[name][0]} once more; only weights may be shared")
            settings["weight"] = self._layers[found[name][0]].parameter("weight")
        layer = make(**settings, name=self._free(node))
        states = layer(*sources)
        own = self.network.parameters[states.name]
        for name, (origin, kept, order) in found.items():
            if name not in again:
                of = Origin(origin, tuple(kept.shape), order)
                self.network.origins[own[name].name] = of
                self.initial[own[name].name] = array_of(kept, order).reshape(own[name].shape)
                self._layers.setdefault(origin, layer)
        return states

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

    def convert(self) -> list[Missing]:
        """Makes the layers of all operations; returns those that have none."""
        missing: list[Missing] = []
        lacking: set[fx.Node] = set()
        for node in self._exported.operations:
            if not isinstance(node.meta.get("val"), torch.Tensor | tuple | list):
                continue  # an extent, which the operation that uses it does not need
            try:
                if "refused" in node.meta:
                    raise Unsupported(node.meta["refused"])
                if operation_of(node) not in OPERATIONS and operation_of(node) != "kept":
                    raise Unsupported("")
                if not any(one in lacking for one in node.all_input_nodes):
                    self._values[node] = self._made(node)
                    continue
            except (Unsupported, ValueError) as error:
                missing.append(Missing(operation_of(node), str(error), place_of(node), module_of(node)))
            lacking.add(node)
        return missing

    def _made(self, node: fx.Node) -> Found:
        if operation_of(node) == "kept":
            path = str(node.args[0])
            return self.keep(node, self._parts[path], path)
        return OPERATIONS[operation_of(node)](self, node)


def name_of(text: str) -> str:
    """A name that a network accepts."""
    found = re.sub(r"[^A-Za-z0-9_-]", "_", text)
    return found if re.match(r"[A-Za-z_]", found) else f"layer_{found}"
