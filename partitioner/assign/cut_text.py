"""Cuts as text, for command lines and files. What `format_cut` writes, `parse_cut` reads.

scores=1                the whole layer on machine 1
hidden=0,1              its rows over machines 0 and 1, as equally as possible
hidden=0:3,1:5          three rows on machine 0, five on machine 1
pool=halo:2:0,1         its rows over both, and each also computes two rows of its neighbour
pool=replicate:0,1      the whole layer on both
hidden=inputs:0,1       by its inputs; sizes are rows of the input
hidden=summed:0,1       by its inputs, and both have the activations of all nodes
conv=tiles:2x1:0,1      two tiles down and one across
conv=tiles:3+5x8:0,1    three rows on machine 0, five on machine 1, of eight columns
"""

from __future__ import annotations

from typing import Final

from partita.partitioner.assign.cuts import Cut, InputSplit, Replicated, RowSplit, Tiles, Whole

_WORDS: Final = ("halo", "replicate", "inputs", "summed", "tiles")
_EARLIER: Final = {"margin": "halo", "repeat": "replicate"}
"""Words of earlier versions, which are still read."""


def parse_cut(written: str) -> tuple[str, Cut]:
    """Returns a layer's name and its cut from a text as in this module's header.

    Raises:
        ValueError: the text is not a cut.
    """
    layer, equals, rest = (part.strip() for part in written.partition("="))
    try:
        if not equals or not layer:
            raise ValueError("name a layer and its machines")
        word, _, after = rest.partition(":") if rest[:1].isalpha() else ("", "", rest)
        word = _EARLIER.get(word.strip(), word.strip())
        if word and word not in _WORDS:
            raise ValueError(f"there is no way '{word}' to cut, only {', '.join(_WORDS)}")
        setting, _, pieces = after.partition(":") if word in ("halo", "tiles") else ("", "", after)
        return layer, _cut(word, setting, *_machines_and_sizes(pieces))
    except ValueError as error:
        raise ValueError(
            f"'{written}' is not a cut ({error}); write LAYER=MACHINE[,MACHINE...], for example hidden=0,1, "
            "hidden=0:3,1:5 or pool=replicate:0,1"
        ) from error


def format_cut(layer: str, cut: Cut) -> str:
    """The text of a layer's cut, which `parse_cut` reads."""
    match cut:
        case Whole(machine):
            return f"{layer}={machine}"
        case RowSplit(sizes=sizes, halo=halo):
            words = ["halo", str(halo)] if halo else []
        case InputSplit(sizes=sizes, replicated=replicated):
            words = ["summed" if replicated else "inputs"]
        case Replicated():
            words, sizes = ["replicate"], None
        case Tiles():
            words, sizes = ["tiles", _tiling(cut)], None
    machines = range(cut.machines) if isinstance(cut.machines, int) else cut.machines
    pieces = machines if sizes is None else (f"{m}:{size}" for m, size in zip(machines, sizes, strict=True))
    return f"{layer}=" + ":".join((*words, ",".join(map(str, pieces))))


def _machines_and_sizes(written: str) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    pieces = [piece.partition(":") for piece in written.split(",")]
    sized = [colon for _, colon, _ in pieces]
    if len(set(sized)) > 1:
        raise ValueError("give rows to each machine, or to none")
    sizes = tuple(_whole(size) for _, _, size in pieces) if sized[0] else None
    return tuple(_whole(machine) for machine, _, _ in pieces), sizes


def _cut(word: str, setting: str, machines: tuple[int, ...], sizes: tuple[int, ...] | None) -> Cut:
    if word == "halo":
        return RowSplit(machines, sizes, halo=_whole(setting))
    if word in ("inputs", "summed"):
        return InputSplit(machines, sizes, replicated=word == "summed")
    if word == "tiles" and sizes is not None:
        raise ValueError("the sizes of tiles are rows and columns, for example tiles:3+5x4+4:0,1,2,3")
    if word == "tiles":
        return _tiles(machines, setting)
    if word == "replicate" and sizes is not None:
        raise ValueError("every machine has the whole layer, so leave the sizes out")
    if word == "replicate":
        return Replicated(machines)
    return Whole(machines[0]) if len(machines) == 1 and sizes is None else RowSplit(machines, sizes)


def _tiles(machines: tuple[int, ...], setting: str) -> Tiles:
    axes = [tuple(_whole(extent) for extent in axis.split("+")) for axis in setting.split("x")]
    if len(axes) != 2:
        raise ValueError(f"'{setting}' is no number of tiles down and across, for example 2x2")
    down, across = axes
    if "+" not in setting:
        return Tiles(machines, (down[0], across[0]))
    return Tiles(machines, (len(down), len(across)), (down, across))


def _tiling(cut: Tiles) -> str:
    if cut.sizes is None or cut.across == (1, 1):
        return "x".join(map(str, cut.across))
    return "x".join("+".join(map(str, sizes)) for sizes in cut.sizes)


def _whole(written: str) -> int:
    if not written.strip().isdecimal():
        raise ValueError(f"'{written}' is not a whole number")
    return int(written)
