"""A run in a terminal: tables of its present state, which `rich` draws again and again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from partita.engine.watch.records import Lane, SampledStep
from partita.engine.watch.state import State
from partita.layers.text import readable_bytes
from partita.partitioner.text import readable_seconds

MOST_ROWS: Final = 16
"""Rows of a table: of more hosts or machines, the ones that wait longest."""

_EVENTS: Final = 6
_BAR: Final = 24
"""Characters of a machine's step."""


def screen(state: State) -> RenderableType:
    """Returns what a terminal shows of a run."""
    parts: list[RenderableType] = [_heading(state)]
    sample = state.newest_sample()
    if sample is not None:
        parts += [Text(), _lanes(state, sample)]
    if state.waits:
        parts += [Text(), _waits(state)]
    if state.hosts:
        parts += [Text(), _hosts(state)]
    if state.events:
        parts += [Text(), _events(state)]
    return Group(*parts)


def _heading(state: State) -> Text:
    found = [_name(state), *_far(state)]
    if state.ended is not None:
        found.append(state.ended.text)
    return Text("  ".join(found), style="bold")


def _name(state: State) -> str:
    name = "a run" if state.run is None else f"{state.run.network}, {state.run.driver}"
    return f"{name}: {state.phase}"


def _far(state: State) -> Iterator[str]:
    now = state.progress
    if now is None:
        return
    unit, total = ("step", None) if state.run is None else (state.run.unit, state.run.steps)
    yield f"{unit} {now.step:,}" + (f" of {total:,}" if total else "")
    figures = {"loss": now.loss, **now.metrics, "staleness": now.staleness}
    yield from (f"{name} {value:.4g}" for name, value in figures.items() if value is not None)
    if now.examples_per_s is not None:
        yield f"{now.examples_per_s:,.0f} examples/s"
    if now.remaining_s is not None and state.ended is None:
        yield f"{now.remaining_s:.0f} s left"


def _lanes(state: State, sample: SampledStep) -> Table:
    """The last sampled step: a bar for each machine, and what was predicted for it."""
    predicted = {} if state.run is None else {lane.machine: lane for lane in state.run.predicted}
    planned = None if state.run is None else state.run.predicted_step_s
    beside = "" if planned is None else f", predicted {readable_seconds(planned)}"
    title = f"step {sample.step:,} of replica {sample.replica}: {readable_seconds(sample.step_s)}{beside}"
    table = _table(title, "machine", "", "compute", "transfer", "wait", "predicted", "waits for")
    for lane in sorted(sample.lanes, key=lambda lane: -lane.wait_s)[:MOST_ROWS]:
        name = _machine(state, lane.machine)
        planned_wait = predicted[lane.machine].wait_s if lane.machine in predicted else None
        waited = lane.waited[0] if lane.waited else None
        table.add_row(
            name,
            _bar(lane),
            readable_seconds(lane.compute_s),
            readable_seconds(lane.transfer_s),
            readable_seconds(lane.wait_s),
            "" if planned_wait is None else readable_seconds(planned_wait),
            "" if waited is None else f"{waited.what} from {_machine(state, waited.peer)}",
        )
    return table


def _machine(state: State, machine: int) -> str:
    return str(machine) if state.run is None else state.run.machines[machine].name


def _bar(lane: Lane) -> Text:
    """A machine's step: compute, transfer, wait, and idle as blanks."""
    parts = ((lane.compute_s, "█", "blue"), (lane.transfer_s, "▒", "magenta"), (lane.wait_s, "░", "red"))
    total = sum(seconds for seconds, _, _ in parts) + lane.idle_s
    found = Text()
    for seconds, sign, style in parts:
        found.append(sign * round(_BAR * seconds / total if total else 0), style=style)
    found.pad_right(max(_BAR - len(found), 0))
    return found


def _waits(state: State) -> Table:
    table = _table("waits now", "host", "for", "what", "since")
    for wait in state.waits[:MOST_ROWS]:
        table.add_row(wait.host, wait.on, wait.what, f"{max(state.at_s - wait.since_s, 0.0):.1f} s")
    return table


def _hosts(state: State) -> Table:
    table = _table("hosts", "host", "state", "since", "memory", "sent", "received")
    first = {"lost": 0, "silent": 1, "starting": 2, "preparing": 3}
    rows = sorted(state.hosts.values(), key=lambda row: (first.get(row.state, 9), row.kind, row.name))
    for row in rows[:MOST_ROWS]:
        memory, counters = state.memory.get(row.name), state.traffic.get(row.name)
        held = None if memory is None else memory.pss_bytes or memory.resident_bytes
        table.add_row(
            row.name,
            row.state,
            f"{max(state.at_s - row.since_s, 0.0):.0f} s",
            "" if held is None else readable_bytes(held),
            "" if counters is None else readable_bytes(counters.sent_bytes),
            "" if counters is None else readable_bytes(counters.received_bytes),
        )
    if len(rows) > MOST_ROWS:
        table.add_row(f"and {len(rows) - MOST_ROWS} more", *[""] * 5)
    return table


def _events(state: State) -> Table:
    table = _table("events", "at", "what")
    for event in list(state.events)[: -_EVENTS - 1 : -1]:
        table.add_row(f"{event.at_s:.0f} s", event.text)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1), header_style="dim")
    for n, column in enumerate(columns):
        table.add_column(column, justify="left" if n == 0 or column in ("", "what", "waits for") else "right")
    return table
