"""Parameters as tensors by name, wherever they are kept: in files of safetensors or of `torch.save`, and in
checkpoints.

Networks whose parameters have their own names alone need no torch for a file of safetensors.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import safetensors

from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.files import check_target, load_parameters, write_atomically
from partita.engine.parameters.module_names import state_entries
from partita.engine.parameters.reader import Checkpoint
from partita.layers.graph import Graph
from partita.layers.module_state import ModuleState
from partita.partitioner.plan import Plan

if TYPE_CHECKING:
    import torch

_PICKLED: Final = (b"PK\x03\x04", b"\x80")
"""The first bytes of a file of `torch.save`: of an archive, or of a pickle, as old versions wrote it."""
_VERSIONS: Final = "module_versions"
"""The entry of a safetensors file's metadata with the versions of the modules, as JSON by their paths."""


def load_tensors(path: str | Path) -> dict[str, torch.Tensor]:
    """Reads tensors by name, as they are kept. Nothing in a file is executed.

    Args:
        path: a file of safetensors; a state dict that `torch.save` wrote, which is read with
            `weights_only=True`; or a folder of checkpoints, whose newest whole one is read: by the names of
            the module's state dict where the network was made of one, for `load_state_dict(...,
            strict=True)`, and else by the network's own names.

    Raises:
        ValueError: there is nothing, or it is damaged, or holds something else.
    """
    path = Path(path)
    if path.is_dir():
        return checkpoint_tensors(_newest(path))
    return _pickled(path) if _is_pickled(path) else _safe(path)


def tensors_of(parameters: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Returns parameters as tensors, by the same names."""
    import torch  # a process that trains imports torch only if it is asked for tensors

    return {name: torch.from_numpy(values) for name, values in parameters.items()}


def _newest(folder: Path) -> Checkpoint:
    """The newest whole checkpoint in a folder. Raises ValueError."""
    found = Checkpoints(folder).latest(None)
    if found is None:
        raise ValueError(f"{folder} holds no complete checkpoint; give the folder of a run, or a file")
    return found


def checkpoint_tensors(found: Checkpoint) -> dict[str, torch.Tensor]:
    """Returns the state dict of the module of which a checkpoint was made, or else its parameters by the
    network's own names.

    Raises:
        CheckpointError: it is damaged.
    """
    parameters = found.parameters()
    if not found.manifest.module:
        return tensors_of(parameters)
    from partita.engine.pytorch.state_dict import state_of

    return state_of(state_entries(found.manifest.module, parameters), parameters)


def _is_pickled(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4).startswith(_PICKLED)
    except FileNotFoundError as error:
        raise ValueError(f"there is no file {path}; check the path, or train and save first") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error})") from error


def _safe(path: Path) -> dict[str, torch.Tensor]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            names = file.keys()
            found = OrderedDict((name, file.get_tensor(name)) for name in names)
            metadata = file.metadata() or {}
            versions = msgspec.json.decode(metadata.get(_VERSIONS, "{}"), type=dict[str, int])
    except (safetensors.SafetensorError, msgspec.MsgspecError, OSError) as error:
        raise ValueError(f"{path} is not a readable safetensors file ({error}); save it again") from error
    if versions:
        found._metadata = {path: {"version": n} for path, n in versions.items()}  # type: ignore[attr-defined]
    return found


def _pickled(path: Path) -> dict[str, torch.Tensor]:
    import torch

    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, zipfile.BadZipFile, ValueError, OSError) as error:
        raise ValueError(
            f"{path} holds other objects than tensors, or is damaged; nothing in it was unpickled; write it "
            "by torch.save(module.state_dict(), path)"
        ) from error
    wrong = (
        [str(name) for name, one in found.items() if not isinstance(one, torch.Tensor)]
        if isinstance(found, Mapping)
        else [f"a {type(found).__name__}"]
    )
    if wrong:
        names = ", ".join(wrong[:8])
        raise ValueError(
            f"{path} holds no state dict of tensors, but {names}; save the state dict alone: "
            'torch.save(module.state_dict(), path), or pass torch.load(path, weights_only=True)["..."]'
        )
    return dict(found)


def has_modules(graph: Graph) -> bool:
    """Returns whether a module of PyTorch is the network, or a layer of it."""
    return bool(graph.origin) or any(hasattr(grid.layer, "state_dict") for grid in graph.computed)


def module_state(graph: Graph) -> ModuleState:
    """Every entry of the state dict of a network that is a module of PyTorch, or has one; none for others."""
    if graph.origin or not has_modules(graph):
        return graph.origin
    from partita.engine.pytorch.state_dict import entries_of

    return entries_of(graph)


def initial_of(
    plan: Plan, given: Mapping[str, Any] | str | Path | None
) -> tuple[Plan, Mapping[str, Any] | None]:
    """Reads parameters to start from, by the names of the network or of its module.

    Args:
        plan: of the network.
        given: tensors or arrays by name, or the path of what `load_tensors` reads; None for nothing.

    Returns:
        The plan, with the module's constants as they were given, and the parameters by the network's own
        names.

    Raises:
        ValueError: it cannot be read, or does not fit the network: says all that differs.
    """
    graph = plan.graph
    plain = not has_modules(graph)
    if isinstance(given, str | Path):
        path, what = Path(given), f"{given} does"
        if plain and not path.is_dir() and not _is_pickled(path):
            shapes = {name: parameter.shape for name, parameter in graph.parameters.items()}
            return plan, load_parameters(path, shapes)
        # a checkpoint's own numbers: under the module's names those of narrow types are rounded
        given = tensors_of(_newest(path).parameters()) if path.is_dir() else load_tensors(path)
    else:
        what = "the initial parameters do"
    if given is None or (plain and not any(hasattr(one, "detach") for one in given.values())):
        return plan, given
    from partita.engine.pytorch import state_dict

    parameters, constants = state_dict.parameters_of(graph, given, what=what)
    if constants:
        entries = state_dict.entries_of(graph)
        fresh = (replace(one, constant=constants.get(one.same_as, one.constant)) for one in entries)
        plan = plan.made_of(tuple(fresh))
    return plan, parameters


def state_dict_of(graph: Graph, parameters: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Returns the state dict of a network with these parameters; see `Run.state_dict`."""
    from partita.engine.pytorch import state_dict

    return state_dict.state_of(state_dict.entries_of(graph), parameters)


def save_state(path: str | Path, state: Mapping[str, torch.Tensor]) -> None:
    """Writes a state dict as one safetensors file, atomically.

    A tensor with several names is written once, under the first; the metadata has the others, as
    `safetensors.torch.save_model` writes them, and `load_model` reads them. The metadata has the versions of
    the modules, too, for `load_tensors`.

    Raises:
        OSError: it could not be written; an older file is unchanged.
    """
    from safetensors.torch import save

    check_target(Path(path))
    first: dict[int, str] = {}
    names = {name: first.setdefault(id(one), name) for name, one in state.items()}
    tensors = {name: one.contiguous() for name, one in state.items() if names[name] == name}
    metadata = {"format": "pt"} | {name: same_as for name, same_as in names.items() if name != same_as}
    modules: Mapping[str, Mapping[str, int]] = getattr(state, "_metadata", {})
    if versions := {path: one["version"] for path, one in modules.items() if "version" in one}:
        metadata[_VERSIONS] = msgspec.json.encode(versions).decode()
    write_atomically(Path(path), _in_order(save(tensors, metadata=metadata)), mode=0o644)


def _in_order(data: bytes) -> bytes:
    """A safetensors file with its metadata in the order of their names: equal states have equal bytes.

    The library writes them in the order of a hash that is another in each process.
    """
    size = int.from_bytes(data[:8], "little")
    header = msgspec.json.decode(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-len(encoded) % 8)
    return b"".join((len(encoded).to_bytes(8, "little"), encoded, memoryview(data)[8 + size :]))
