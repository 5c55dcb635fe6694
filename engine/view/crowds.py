"""Charts of many machines: the lanes that say most, one lane for all others, and the others by themselves.

A chart of more than `MOST` machines shows those that compute longest and those that end last; what the
others mostly do stands in one lane. `Parted.rest` has a lane for each of the others, shown on demand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from partita.engine.view.gantt import Gantt, GanttBar, Lane, sliced
from partita.layers.text import counted

MOST: Final = 16
"""Machines up to which each has a lane."""
SLICES: Final = 120
"""Slices of time of the lane of all others."""


class Parted(NamedTuple):
    """A chart whose machines are at most `MOST`, and a chart of the others, if there are more."""

    chart: Gantt
    rest: Gantt | None


def parted(gantt: Gantt, *, most: int = MOST) -> Parted:
    """Parts a chart of more machines than `most`: the busiest and the slowest first, then all others."""
    blocks = _blocks(gantt.lanes)
    if len(blocks) <= most:
        return Parted(gantt, None)
    ranked = _ranked(gantt, blocks)
    chosen, others = ranked[: most - 1], sorted(ranked[most - 1 :])
    rest = _only(gantt, [blocks[n] for n in others])
    chart = _only(gantt, [blocks[n] for n in chosen])
    name = counted(len(others), "other machine")
    number = len(chart.lanes)
    told = (bar for bar in rest.bars if not rest.lanes[bar.lane].thin)
    bars = (replace(bar, lane=number) for bar in sliced(told, stop_s=gantt.stop_s, slices=SLICES))
    note = "what most of them do at a time"
    chart = replace(
        chart,
        lanes=(*chart.lanes, Lane(name, note=note)),
        bars=(*chart.bars, *bars),
        until_s=gantt.stop_s,
    )
    return Parted(chart, replace(rest, title=f"{gantt.title}: {name}", until_s=gantt.stop_s))


def _blocks(lanes: tuple[Lane, ...]) -> list[list[int]]:
    """Returns the numbers of the lanes of each machine."""
    blocks: list[list[int]] = []
    for number, lane in enumerate(lanes):
        if lane.name or not blocks:
            blocks.append([])
        blocks[-1].append(number)
    return blocks


def _ranked(gantt: Gantt, blocks: list[list[int]]) -> list[int]:
    """Returns the numbers of the machines: by turns the busiest and the one that ends last."""
    owner = {lane: number for number, block in enumerate(blocks) for lane in block}
    busy_s, last_s = [0.0] * len(blocks), [0.0] * len(blocks)
    for bar in gantt.bars:
        lane, number = gantt.lanes[bar.lane], owner[bar.lane]
        if not lane.pale and bar.kind not in {"wait", "idle"}:
            busy_s[number] += 0.0 if lane.thin else bar.stop_s - bar.start_s
            last_s[number] = max(last_s[number], bar.stop_s)
    every = range(len(blocks))
    busiest = sorted(every, key=lambda n: -busy_s[n])
    slowest = sorted(every, key=lambda n: -last_s[n])
    return list(dict.fromkeys(n for pair in zip(busiest, slowest, strict=True) for n in pair))


def _only(gantt: Gantt, blocks: list[list[int]]) -> Gantt:
    """Returns the chart of some machines in this order, with the messages between them."""
    number = {lane: n for n, lane in enumerate(lane for block in blocks for lane in block)}
    bars = tuple(_moved(bar, number) for bar in gantt.bars if bar.lane in number)
    arrows = tuple(
        replace(arrow, source=number[arrow.source], destination=number[arrow.destination])
        for arrow in gantt.arrows
        if arrow.source in number and arrow.destination in number
    )
    return replace(gantt, lanes=tuple(gantt.lanes[lane] for lane in number), bars=bars, arrows=arrows)


def _moved(bar: GanttBar, number: dict[int, int]) -> GanttBar:
    return replace(bar, lane=number[bar.lane])
