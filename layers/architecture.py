"""The architecture of a network as JSON, and back: layers, settings, losses and names, but no parameters.

A file names what it needs and holds no code. Built-in kinds go by their names; a class or a function of the
user goes by its module and name, and whoever reads the file passes it in. Nothing is imported or unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from partita.layers.architecture_settings import Reader, Writer
from partita.layers.graph import Grid
from partita.layers.layer import Layer, Placeholder
from partita.layers.states import SymbolicTensor

FORMAT: Final = "partita architecture"
VERSION: Final = 1
"""Version of the format that is written. Every version up to it is read."""

_ENTRY: Final = {"name", "kind", "inputs", "settings", "layer", "shape", "classes"}
_DOCUMENT: Final = {"format", "version", "name", "layers", "losses"}


def to_json(name: str, grids: tuple[Grid, ...], losses: tuple[str, ...]) -> str:
    """Writes a network down, a layer in each line. Arrays of initial values are lists of numbers.

    Args:
        name: of the network.
        grids: its inputs, targets and layers, each after its inputs.
        losses: the names of those that are minimised.

    Raises:
        ValueError: a setting cannot be written; the message names the layer and says what can.
    """
    first, entries = dict[int, str](), list[dict[str, Any]]()
    writer = Writer(first)
    for grid in grids:
        entry: dict[str, Any] = {"name": grid.name}
        if isinstance(grid.layer, Placeholder):
            entry["kind"] = grid.layer.kind
            if grid.layer.role == "input":
                entry |= {"shape": list(grid.shape), "classes": grid.layer.classes}
        elif id(grid.layer) in first:
            entry |= {"layer": first[id(grid.layer)], "inputs": list(grid.sources)}
        else:
            first[id(grid.layer)] = grid.name
            where = f"{grid.layer.kind} '{grid.name}'"
            settings = writer.settings(grid.layer, where)
            if settings["name"] is None:
                del settings["name"]
            kind = writer.name_of(type(grid.layer), where)
            entry |= {"kind": kind, "inputs": list(grid.sources), "settings": settings}
        entries.append(entry)
    head = _line({"format": FORMAT, "version": VERSION, "name": name})[:-1]
    lines = ",\n  ".join(map(_line, entries))
    return f'{head},\n "layers": [\n  {lines}\n ],\n "losses": {_line(list(losses))}}}\n'


def from_json(text: str, network: Callable[[Any], Any], custom: Mapping[str, Any]) -> Any:
    """Declares the network that `to_json` wrote.

    Args:
        text: the JSON.
        network: makes an empty network of a name.
        custom: the user's classes and functions by the names in the file, or by the last part of those.

    Raises:
        ValueError: the text is damaged or of a newer version, or something that it names is not in `custom`.
    """
    document = _document(text)
    layers: dict[str, Layer] = {}
    reader = Reader(_mapping(custom, "custom", "names and what they stand for"), layers)
    net = network(document.get("name"))
    placed: dict[str, SymbolicTensor] = {}
    for number, entry in enumerate(_list(document.get("layers"), "layers", dict)):
        name = entry.get("name")
        try:
            _known(entry, _ENTRY)
            placed[name] = _placed(entry, net, reader, placed, layers)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"layer {name if isinstance(name, str) else number!r} of the file: {error}"
            ) from error
    losses = [_one_of(placed, loss) for loss in _list(document.get("losses", []), "losses", str)]
    if losses:
        net.loss = tuple(losses)
    return net


def _placed(
    entry: dict[str, Any],
    net: Any,
    reader: Reader,
    placed: dict[str, SymbolicTensor],
    layers: dict[str, Layer],
) -> SymbolicTensor:
    """Declares one line of the file in the network."""
    name, kind = entry.get("name"), entry.get("kind")
    if not isinstance(name, str):
        raise ValueError('it has no "name"')
    found: SymbolicTensor
    if kind in ("Input", "Target"):
        given = {"shape": entry.get("shape"), "classes": entry.get("classes")} if kind == "Input" else {}
        found = net.input(name, **given) if given else net.target(name)
        return found
    if "layer" in entry:
        layer = reader.layer(entry["layer"])
    else:
        made = reader.made(kind, _mapping(entry.get("settings", {}), "settings", "arguments"))
        if not isinstance(made, Layer):
            raise ValueError(f"{kind!r} is no kind of layer")
        layer = layers[name] = made
    inputs = [_one_of(placed, source) for source in _list(entry.get("inputs"), "inputs", str)]
    found = layer(*inputs)
    if found.name != name:
        raise ValueError(f"a network would call it '{found.name}'; write \"name\": {name!r} in its settings")
    return found


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _document(text: object) -> dict[str, Any]:
    """The file, once it is known to be one."""
    try:
        document = json.loads(text) if isinstance(text, str | bytes | bytearray) else None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the architecture is no JSON, or damaged: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError("this is no architecture of a network; give what net.to_json() returned")
    version = document.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError(f"the architecture is damaged: its version is {version!r}")
    if version > VERSION:
        raise ValueError(
            f"the architecture is of version {version}, and this Partita reads up to {VERSION}; update it"
        )
    _known(document, _DOCUMENT)
    return document


def _known(found: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(found.keys() - known)
    if unknown:
        raise ValueError(f"there is no {unknown[0]!r} in an architecture; it has {', '.join(sorted(known))}")


def _mapping(value: object, what: str, of: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} is {value!r}; it maps {of}")
    return dict(value)


def _list(value: object, what: str, kind: type) -> list[Any]:
    if not isinstance(value, list) or not all(isinstance(one, kind) for one in value):
        raise ValueError(f"the architecture is damaged: its {what} are {value!r}")
    return value


def _one_of(placed: Mapping[str, SymbolicTensor], name: str) -> SymbolicTensor:
    if name not in placed:
        raise ValueError(f"the file names {name!r}, which does not stand before it")
    return placed[name]
