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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from partita.partitioner.assign.cuts import Cut, InputSplit, Replicated, RowSplit, Tiles, Whole

Machines: TypeAlias = tuple[int, ...]
Sizes: TypeAlias = tuple[int, ...] | None


@dataclass(frozen=True)
class _Form:
    """A form of text for cuts: `WORD:MACHINE[:ROWS],...` or `WORD:SETTING:MACHINE[:ROWS],...`.

    Args:
        word: first word; "" for plain rows.
        made_by: returns the cut of machines and sizes, with a setting.
        setting: returns the setting of a cut of this form, "" for none; None for any other cut.
    """

    word: str
    made_by: Callable[[Machines, Sizes, str], Cut]
    setting: Callable[[Any], str | None]
    has_setting: bool = False


def _plain(machines: Machines, sizes: Sizes, setting: str) -> Cut:
    return Whole(machines[0]) if len(machines) == 1 and sizes is None else RowSplit(machines, sizes)


def _replicated(machines: Machines, sizes: Sizes, setting: str) -> Cut:
    if sizes is not None:
        raise ValueError("every machine has the whole layer, so leave the sizes out")
    return Replicated(machines)


def _tiles(machines: Machines, sizes: Sizes, setting: str) -> Cut:
    if sizes is not None:
        raise ValueError("the sizes of tiles are rows and columns, for example tiles:3+5x4+4:0,1,2,3")
    axes = [tuple(_whole(extent) for extent in axis.split("+")) for axis in setting.split("x")]
    if len(axes) != 2:
        raise ValueError(f"'{setting}' is no number of tiles down and across, for example 2x2")
    down, across = axes
    if "+" not in setting:
        return Tiles(machines, (down[0], across[0]))
    return Tiles(machines, (len(down), len(across)), (down, across))


def _tiling(cut: Tiles) -> str:
    axes = zip(cut.across, cut.sizes or ((), ()), strict=True)
    if cut.sizes is None or cut.across == (1, 1):
        return "x".join(str(count) for count, _ in axes)
    return "x".join("+".join(map(str, sizes)) for _, sizes in axes)


_EARLIER: Final = {"margin": "halo", "repeat": "replicate"}
"""Words of earlier versions, which are still read."""
_FORMS: Final = (
    _Form("", _plain, lambda cut: "" if isinstance(cut, RowSplit) and not cut.halo else None),
    _Form(
        "halo",
        lambda machines, sizes, setting: RowSplit(machines, sizes, halo=_whole(setting)),
        lambda cut: str(cut.halo) if isinstance(cut, RowSplit) and cut.halo else None,
        has_setting=True,
    ),
    _Form("replicate", _replicated, lambda cut: "" if isinstance(cut, Replicated) else None),
    _Form(
        "inputs",
        lambda machines, sizes, setting: InputSplit(machines, sizes),
        lambda cut: "" if isinstance(cut, InputSplit) and not cut.replicated else None,
    ),
    _Form(
        "summed",
        lambda machines, sizes, setting: InputSplit(machines, sizes, replicated=True),
        lambda cut: "" if isinstance(cut, InputSplit) and cut.replicated else None,
    ),
    _Form("tiles", _tiles, lambda cut: _tiling(cut) if isinstance(cut, Tiles) else None, has_setting=True),
)


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
        form = next((form for form in _FORMS if form.word == word), None)
        if form is None:
            known = ", ".join(form.word for form in _FORMS if form.word)
            raise ValueError(f"there is no way '{word}' to cut, only {known}")
        setting, _, machines = after.partition(":") if form.has_setting else ("", "", after)
        return layer, _made(form, setting, machines)
    except ValueError as error:
        raise ValueError(
            f"'{written}' is not a cut ({error}); write LAYER=MACHINE[,MACHINE...], for example hidden=0,1, "
            "hidden=0:3,1:5 or pool=replicate:0,1"
        ) from error


def format_cut(layer: str, cut: Cut) -> str:
    """The text of a layer's cut, which `parse_cut` reads."""
    if isinstance(cut, Whole):
        return f"{layer}={cut.machine}"
    machines = tuple(range(cut.machines)) if isinstance(cut.machines, int) else cut.machines
    sizes = None if isinstance(cut, Tiles | Replicated) else cut.sizes
    pieces = machines if sizes is None else (f"{m}:{size}" for m, size in zip(machines, sizes, strict=True))
    form, setting = next((form, setting) for form in _FORMS if (setting := form.setting(cut)) is not None)
    return f"{layer}=" + ":".join(filter(None, (form.word, setting, ",".join(map(str, pieces)))))


def _made(form: _Form, setting: str, written: str) -> Cut:
    pieces = [piece.partition(":") for piece in written.split(",")]
    sized = [colon for _, colon, _ in pieces]
    if len(set(sized)) > 1:
        raise ValueError("give rows to each machine, or to none")
    sizes = tuple(_whole(size) for _, _, size in pieces) if sized[0] else None
    return form.made_by(tuple(_whole(machine) for machine, _, _ in pieces), sizes, setting)


def _whole(written: str) -> int:
    if not written.strip().isdecimal():
        raise ValueError(f"'{written}' is not a whole number")
    return int(written)
