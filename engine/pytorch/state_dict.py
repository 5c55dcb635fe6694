"""State dicts: the parameters of a network under the names of the module that it was made of, and back.

A network of `from_torch` has the names, shapes and orders of axes of its module; any other has its own names,
with those of the module behind the name of a layer `Torch`. Parameters that a module has under several names
are one tensor.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from partita.engine.pytorch.module_layer import Torch
from partita.layers.graph import Graph, Grid
from partita.layers.module_state import ModuleState, StateEntry
from partita.layers.text import listed

Array = npt.NDArray[Any]
State = Mapping[str, Any]

_NARROW: Final = ("bfloat16", "float16")
"""Types that parameters have in a module alone: a run keeps them as float32, which holds every number."""


def dtype_name(tensor: torch.Tensor) -> str:
    """PyTorch's name of a tensor's type: "float32"."""
    return str(tensor.dtype).removeprefix("torch.")


def array_of(tensor: torch.Tensor, order: tuple[int, ...] | None = None, *, copy: bool = True) -> Array:
    """The numbers of a parameter with its dimensions in this order; those of narrow types as float32.

    Without `copy` the array may share memory with the tensor.
    """
    plain = tensor.detach().to("cpu", copy=copy)
    if dtype_name(plain) in _NARROW:
        plain = plain.float()
    return plain.permute(tuple(range(plain.dim())) if order is None else order).contiguous().numpy()


def tensor_of(array: Array, entry: StateEntry, *, copy: bool = True) -> torch.Tensor:
    """A parameter in the order and shape that the module has; in a narrow type if the module has that.

    Without `copy` the tensor may share memory with the array.
    """
    order = entry.order or tuple(range(len(entry.shape)))
    ordered = np.asarray(array).reshape([entry.shape[one] for one in order]).transpose(np.argsort(order))
    found = torch.from_numpy(np.array(ordered, order="C") if copy else np.ascontiguousarray(ordered))
    return found.to(getattr(torch, entry.dtype)) if entry.dtype in _NARROW else found


def constant_of(tensor: torch.Tensor) -> Array:
    """The numbers of an entry without a parameter, as they are; those of bfloat16 as uint16."""
    plain = tensor.detach().to("cpu", copy=True).contiguous()
    found: Array = (plain.view(torch.uint16) if plain.dtype == torch.bfloat16 else plain).numpy()
    return found


def _constant_tensor(array: Array, dtype: str) -> torch.Tensor:
    found = torch.from_numpy(np.array(array, order="C"))
    return found.view(torch.bfloat16) if dtype == "bfloat16" else found


def entries_of(graph: Graph) -> ModuleState:
    """Every entry of a network's state dict."""
    if graph.origin:
        return graph.origin
    found: list[StateEntry] = []
    for grid in graph.computed:
        own = [one for one in grid.parameters if one.layer == grid.name]
        is_called_again = bool(grid.parameters) and not own
        if isinstance(grid.layer, Torch) and not is_called_again:
            found += _entries_of_layer(grid, grid.layer)
        else:
            found += [StateEntry(one.name, tuple(one.shape), "", one.name, one.name) for one in own]
    return tuple(found)


def _entries_of_layer(grid: Grid, layer: Torch) -> Iterator[StateEntry]:
    """The entries of a module that is a layer, behind the layer's name."""
    known = {parameter.name for parameter in grid.parameters}
    first: dict[int, str] = {}
    state = layer.module.state_dict(keep_vars=True)
    for name, kept in state.items():
        same_as, shape = first.setdefault(id(kept), name), tuple(kept.shape)
        names = f"{grid.name}.{name}", shape, dtype_name(kept), f"{grid.name}.{same_as}"
        if names[-1] in known:
            entry = StateEntry(*names, parameter=names[-1])
        else:
            entry = StateEntry(*names, constant=constant_of(kept))
        yield replace(entry, versions=(-1, *versions_of(name, state)))


def versions_of(name: str, state: State) -> tuple[int, ...]:
    """The versions of the modules in which an entry of a module's state dict lies; see `StateEntry`."""
    metadata = getattr(state, "_metadata", {})
    return tuple(metadata.get(path, {}).get("version", -1) for path in _paths(name))


def _paths(name: str) -> list[str]:
    """The modules in which an entry lies, the outermost first: "", "layers", "layers.0"."""
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(len(parts))]


def state_of(entries: ModuleState, parameters: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    """The state dict of a network; a parameter that has several names is one tensor.

    As in PyTorch's own, `_metadata` has the versions of the modules, which some of them ask for.

    Args:
        entries: of the network.
        parameters: of the network, by its own names.
    """
    found: OrderedDict[str, torch.Tensor] = OrderedDict()
    versions = {
        path: {"version": version}
        for entry in entries
        for path, version in zip(_paths(entry.name), entry.versions, strict=False)
        if version >= 0
    }
    if versions:
        found._metadata = versions  # type: ignore[attr-defined]
    for entry in entries:
        if entry.same_as in found:
            found[entry.name] = found[entry.same_as]
        elif entry.parameter:
            found[entry.name] = tensor_of(parameters[entry.parameter], entry)
        else:
            assert entry.constant is not None, entry.name
            found[entry.name] = _constant_tensor(entry.constant, entry.dtype)
    return found


def parameters_of(graph: Graph, state: State, *, what: str) -> tuple[dict[str, Array], dict[str, Array]]:
    """Reads a state dict, or parameters by the network's own names.

    Where both kinds of names fit, tensors are a state dict of the module, and arrays are parameters.

    Args:
        graph: the network.
        state: tensors or arrays by name; of those with several names in the module, one is enough.
        what: the state and the verb "does" or "do", for an error.

    Returns:
        The parameters by the network's own names, and constants that `state_of` takes.

    Raises:
        ValueError: names are missing or unknown, or shapes or types differ: all of them are listed.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in graph.parameters.items()}
    fits = {name: _shape(one) for name, one in state.items()} == shapes
    entries = entries_of(graph)
    wrong = list(_differences(entries, state))
    if fits and (wrong or not any(isinstance(one, torch.Tensor) for one in state.values())):
        return {name: _plain(state[name]) for name in shapes}, {}
    if wrong:
        raise ValueError(f"{what} not fit the network: {listed(wrong)}")
    parameters: dict[str, Array] = {}
    constants: dict[str, Array] = {}
    for entry in entries:
        if entry.name not in state:
            continue
        tensor = torch.as_tensor(state[entry.name])
        if entry.parameter:
            shape = shapes[entry.parameter]
            parameters[entry.parameter] = array_of(tensor, entry.order or None).reshape(shape)
        else:
            constants[entry.same_as] = constant_of(tensor.to(getattr(torch, entry.dtype)))
    return parameters, constants


def _plain(one: Any) -> Array:
    return array_of(one) if isinstance(one, torch.Tensor) else np.asarray(one)


def _shape(one: Any) -> tuple[int, ...]:
    return tuple(np.shape(one))


def _differences(entries: ModuleState, state: State) -> Iterator[str]:
    """Says what differs between a state dict and the entries of a network."""
    present = {entry.same_as for entry in entries if entry.name in state}
    for entry in entries:
        shape = tuple(entry.shape)
        if entry.name not in state:
            if entry.same_as not in present and entry.same_as == entry.name:
                yield f"{entry.name!r} {shape} is missing"
        elif _shape(state[entry.name]) != shape:
            yield f"{entry.name!r} is {_shape(state[entry.name])}, and {shape} in this network"
        elif entry.parameter and not _is_real(state[entry.name]):
            yield f"{entry.name!r} is {state[entry.name].dtype}, and a parameter holds real numbers"
        elif entry.name != entry.same_as and entry.same_as in state:
            one, other = torch.as_tensor(state[entry.name]), torch.as_tensor(state[entry.same_as])
            if one.shape == other.shape and not torch.equal(one, other):
                yield f"{entry.name!r} and {entry.same_as!r} are one parameter here, and differ"
    known = {entry.name for entry in entries}
    yield from (f"this network has no {name!r}" for name in state if name not in known)


def _is_real(one: Any) -> bool:
    return torch.as_tensor(one).is_floating_point()
