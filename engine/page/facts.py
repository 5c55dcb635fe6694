"""The numbers and sentences of the page, made of the state of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from partita.engine.page.lanes import name_of, shown_sample
from partita.engine.watch.records import HostRow, RunBegan, Wait
from partita.engine.watch.state import State
from partita.layers.text import counted, readable_bytes
from partita.partitioner.text import readable_seconds

MOST_ROWS: Final = 16
"""Rows of a table; the others are counted."""
STALLED_S: Final = 3.0
"""Seconds of waiting from which on a host counts as stalled."""
SILENT_S: Final = 10.0
"""Seconds without a record after which the page says so; a run writes one about every second."""


class Stall(NamedTuple):
    """A host that others wait for, who does not wait itself."""

    host: str
    waiting: tuple[str, ...]
    what: str
    seconds: float


def stalls(state: State, now_s: float) -> list[Stall]:
    """Finds the hosts at the end of each chain of waits, longest first: those that hold up the others."""
    after: dict[str, list[Wait]] = {}
    for wait in state.waits:
        after.setdefault(wait.on, []).append(wait)
    waiting = {wait.host for wait in state.waits}
    heads = [host for host in after if host not in waiting] or list(after)
    found = []
    for head in heads:
        held, edge = [], list(after[head])
        since_s = min(wait.since_s for wait in edge)
        what = max(edge, key=lambda wait: now_s - wait.since_s).what
        while edge:
            wait = edge.pop()
            if wait.host not in held and wait.host != head:
                held.append(wait.host)
                edge += after.get(wait.host, [])
        found.append(Stall(head, tuple(sorted(held)), what, max(now_s - since_s, 0.0)))
    return sorted(found, key=lambda stall: -stall.seconds)


def headline(state: State, now_s: float) -> list[tuple[str, str]]:
    """Returns the key numbers, each with its words."""
    run, progress = state.run, state.progress
    if run is None:
        return []
    unit = run.unit
    found = []
    if progress is not None:
        total = f" / {run.steps:,}" if run.steps else ""
        left = f" · {clock(progress.remaining_s)} left" if progress.remaining_s and not state.is_over else ""
        replicas = f", {counted(run.replicas, 'replica')}"
        found.append((f"{progress.step:,}{total}", f"{unit}s{replicas}{left}"))
        if progress.loss is not None:
            held = state.validation and state.validation.metrics.get("loss")
            found.append(
                (f"{progress.loss:.4g}", "loss" + (f" · held-out {held:.4g}" if held is not None else ""))
            )
        for name, value in list(progress.metrics.items())[:3]:
            if value is not None:
                held = state.validation and state.validation.metrics.get(name)
                found.append((f"{value:.4g}", name + (f" · held-out {held:.4g}" if held is not None else "")))
        if progress.examples_per_s is not None:
            found.append((f"{progress.examples_per_s:,.0f}", "examples/s"))
        if progress.staleness is not None:
            found.append((f"{progress.staleness:.3g}", "staleness, mean"))
    step_s = state.step_s
    if step_s is not None or run.predicted_step_s:
        words = f"predicted {readable_seconds(run.predicted_step_s)}" if run.predicted_step_s else "measured"
        found.append((readable_seconds(step_s) if step_s else "–", f"step · {words}"))
    found.append((clock(state.ended.seconds if state.ended else now_s), "since the start"))
    if state.ended is not None and state.ended.lost_pushes is not None:
        found.append((f"{state.ended.lost_pushes:,}", "lost pushes"))
    return found


def clock(seconds: float) -> str:
    """Writes a duration as `3:10` or `1:03:10`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def done(state: State) -> float | None:
    """Returns the share of the run that is done; None where the end is not known."""
    run, progress = state.run, state.progress
    if run is None or progress is None or not run.steps:
        return None
    return min(progress.step / run.steps, 1.0)


def wait_table(state: State) -> tuple[list[str], list[list[str]]]:
    """Returns the waits inside of the newest sampled steps: who for whom, how long, predicted, for what."""
    run, sample = state.run, shown_sample(state)
    if run is None or sample is None:
        return [], []
    predicted = {(lane.machine, one.peer): one.seconds for lane in run.predicted for one in lane.waited}
    rows = sorted(
        ((one.seconds, lane.machine, one) for lane in sample.lanes for one in lane.waited),
        key=lambda row: -row[0],
    )
    found = [
        [
            name_of(run, machine),
            name_of(run, one.peer),
            readable_seconds(seconds),
            readable_seconds(predicted.get((machine, one.peer), 0.0)),
            one.what,
        ]
        for seconds, machine, one in rows
    ]
    return ["waits", "for", "a step", "predicted", "most for"], found


def replica_table(state: State) -> tuple[list[str], list[list[str]]]:
    """Returns how far and how stale each replica is, the slowest first."""
    rows = sorted(state.replicas.values(), key=lambda one: (one.step, one.replica))
    found = [
        [
            str(one.replica),
            f"{one.step:,}",
            _number(one.examples_per_s, ",.0f"),
            _number(one.loss, ".4g"),
            _number(one.staleness, ".3g"),
            _number(one.pushes, ","),
        ]
        for one in rows
    ]
    return ["replica", "step", "examples/s", "loss", "staleness", "pushes"], found


def link_table(state: State, most: int) -> tuple[list[str], list[list[str]], int]:
    """Returns the bytes of a push, and of a step by link, as counted and as planned, the largest first.

    There are at most so many rows of links; the last number is that of the others.
    """
    run = state.run
    if run is None:
        return [], [], 0
    planned = {(link.source, link.destination): link.n_bytes for link in run.links}
    sent = state.sent_per_step()
    links = sorted(planned.keys() | sent.keys(), key=lambda link: (-planned.get(link, 0), link))
    found = [*_push_rows(state, run)]
    found += [
        [
            f"{name_of(run, source)} → {name_of(run, destination)}",
            readable_bytes(sent[source, destination]) if (source, destination) in sent else "–",
            readable_bytes(planned.get((source, destination), 0)),
        ]
        for source, destination in links[:most]
    ]
    return ["from → to", "a step", "planned"], found, max(len(links) - most, 0)


def _push_rows(state: State, run: RunBegan) -> Iterator[list[str]]:
    """Yields the bytes of a push and of a pull, of all parts of a replica together."""
    parts = [counters for counters in state.traffic.values() if counters.host.startswith("part ")]
    push = sum(machine.push_bytes for machine in run.machines)
    pull = sum(machine.pull_bytes for machine in run.machines)
    if not push:
        return
    steps = sum(one.steps for one in parts) / max(len(run.machines), 1)
    pushed, pulled = sum(one.push_bytes for one in parts), sum(one.pull_bytes for one in parts)
    measured = (pushed, pulled) if steps else (None, None)
    for words, total, planned in (
        ("replica → shards", measured[0], push),
        ("shards → replica", measured[1], pull),
    ):
        mean = "–" if total is None else readable_bytes(total / steps)
        yield [words, mean, f"{readable_bytes(planned)} each"]


def host_table(state: State, now_s: float) -> tuple[list[str], list[list[str]]]:
    """Returns the hosts, those that need attention first."""
    order = {"lost": 0, "silent": 1, "starting": 2, "preparing": 3, "ready": 4, "gone": 5}
    rows = sorted(state.hosts.values(), key=lambda row: (order.get(row.state, 6), _natural(row.name)))
    run = state.run
    found = [
        [
            row.name,
            "" if run is None or row.machine is None else name_of(run, row.machine),
            row.state + (f" ({row.compiled} compiled)" if row.state == "preparing" else ""),
            clock(max(now_s - row.since_s, 0.0)),
            row.address or row.place,
            str(row.pid or ""),
            str(row.incarnation or ""),
        ]
        for row in rows
    ]
    return ["host", "machine", "state", "for", "address", "process", "restarts"], found


def host_counts(state: State) -> str:
    """Counts the hosts by their states: `6 ready, 1 silent`."""
    counts = Counter(row.state for row in state.hosts.values())
    return ", ".join(f"{number} {name}" for name, number in counts.most_common()) or "no host yet"


def troubled(row: HostRow | str) -> bool:
    """Returns whether a state needs attention."""
    return (row if isinstance(row, str) else row.state).split(" ")[0] in {"lost", "silent"}


def _natural(name: str) -> tuple[str, list[int]]:
    words, _, numbers = name.partition(" ")
    return words, [int(one) for one in numbers.split(".") if one.isdigit()]


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
