"""The network that a module of PyTorch became, with the names of the module's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt
import torch

from partita.engine.pytorch.state_dict import constant_of, dtype_name, parameters_of, state_of, versions_of
from partita.layers import Network, Slice
from partita.layers.graph import Graph
from partita.layers.module_state import ModuleState, StateEntry
from partita.layers.states import SymbolicTensor


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
    """The origin of a parameter of the network.

    Args:
        name: of the parameter or buffer in the module.
        shape: its shape there.
        order: its dimensions in the order of the network's array.
    """

    name: str
    shape: tuple[int, ...]
    order: tuple[int, ...]


class ImportedNetwork(Network):
    """A network that a module of PyTorch became. Give it a loss, as any other, where the
    module has none of its own.

    Attributes:
        output: the module's result, in its own order of axes.
        origins: for each parameter, that of the module which it was.
        kept: by the path of a part that stays as it is, the operations without layers that are the reason.
        arguments: for each tensor that the module takes, the input, or the target of its own loss.
    """

    def __init__(self, name: str) -> None:
        """Has no layers yet."""
        super().__init__(name)
        self.output: SymbolicTensor
        self.origins: dict[str, Origin] = {}
        self.kept: dict[str, tuple[Missing, ...]] = {}
        self.arguments: tuple[str, ...] = ()
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
        state = module.state_dict(keep_vars=True)
        for name, kept in state.items():
            same_as, shape = first.setdefault(id(kept), name), tuple(kept.shape)
            entry = StateEntry(name, shape, dtype_name(kept), same_as, constant=constant_of(kept))
            self._state.append(replace(entry, versions=versions_of(name, state)))

    def slice_of(self, states: SymbolicTensor) -> tuple[SymbolicTensor, range] | None:
        """Returns the source of a layer that takes successive positions of its last axis, and these; else
        None.
        """
        grid = self._grids[states.name]
        if type(grid.layer) is not Slice or grid.layer.axis % len(grid.shape) != len(grid.shape) - 1:
            return None
        source = SymbolicTensor(self, grid.sources[0])
        found = range(source.shape[-1])[grid.layer.start : grid.layer.stop]
        return (source, found) if grid.layer.step == 1 else None

    def drop_unused(self) -> None:
        """Drops the layers whose result nothing reads, but the output and losses.

        Their parameters become constants.
        """
        while True:
            read = {source for grid in self._grids.values() for source in grid.sources}
            read |= {self.output.name, *(one.name for one in self.loss)}
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
